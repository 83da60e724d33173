"""Exporting the messages of a recording as JSON-LD, so that RDF tools can read them.

Each member of a message becomes a property in the vocabulary of the published ontology; reading
the export needs no remote file. Names with another meaning in JSON-LD (keywords, prefixes, IRIs)
are percent-encoded, and so are characters that an IRI cannot contain. As always in JSON-LD, null
members and empty lists have no meaning, and lists have no order.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from mcp_trio._journal.records import Record, body_bytes
from mcp_trio.errors import RecordingError

CONTEXT: Final[Mapping[str, Any]] = {
    "@vocab": "http://modelcontextprotocol.io/ontology#",
    "mcp": "http://modelcontextprotocol.io/ontology#",
    "xsd": "http://www.w3.org/2001/XMLSchema#",
    "rdfs": "http://www.w3.org/2000/01/rdf-schema#",
    "@version": 1.1,
}

# Adds a prefix for the properties of a record, which are not part of the message.
RECORD_CONTEXT: Final[Mapping[str, Any]] = {**CONTEXT, "record": "urn:mcp-trio:record#"}

_MESSAGE_KINDS: Final = frozenset({"in", "out"})
_SPECIAL: Final = re.compile(r"""[\x00-\x20\x7f"#%:<>?@\[\\\]^`{|}]""")


def export_jsonld(record: Record, *, with_record: bool = False) -> list[bytes]:
    """Return the messages of a record as JSON-LD documents, each on one line without LF.

    That is one document for a message, several for a batch, and none for any other kind of record.
    With `with_record`, each message is the property of a node that has the record's number,
    direction (`in` is what the recorded side received), channel, lane and time.

    Raises:
        RecordingError: The body is no message: not JSON, not an object, nested too deep, or with a
            number that Python cannot write.
    """
    if record.kind not in _MESSAGE_KINDS:
        return []
    context = RECORD_CONTEXT if with_record else CONTEXT
    facts = {
        "number": record.number,
        "direction": record.kind,
        "channel": record.channel or None,
        "lane": record.lane,
        "nanoseconds": record.time_ns,
    }
    lines: list[bytes] = []
    try:
        decoded: Any = json.loads(body_bytes(record) or b"", parse_constant=_reject)
        messages = cast("Sequence[Any]", decoded) if isinstance(decoded, list) else [decoded]
        if not all(isinstance(message, dict) for message in messages):
            raise RecordingError(f"record {record.number}: the body is JSON, but no message")
        for message in messages:
            document = _renamed(message, context)
            if with_record:
                document = {
                    "@type": "record:Frame",
                    **{f"record:{name}": fact for name, fact in facts.items() if fact is not None},
                    "record:message": document,
                }
            document = {"@context": context, **document}
            lines.append(json.dumps(document, separators=(",", ":"), allow_nan=False).encode())
    except RecursionError as error:
        raise RecordingError(f"record {record.number}: nested too deep") from error
    except ValueError as error:
        raise RecordingError(f"record {record.number}: not JSON: {error}") from error
    return lines


def _reject(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _renamed(value: Any, context: Mapping[str, Any]) -> Any:
    """Return the JSON value with names that JSON-LD reads as properties."""
    if isinstance(value, dict):
        members: dict[str, Any] = {}
        for name, member in cast("dict[str, Any]", value).items():
            if name in context and not name.startswith("@"):
                renamed = _escape(name[0]) + name[1:]
            else:
                renamed = _SPECIAL.sub(lambda found: _escape(found[0]), name)
            members[renamed] = _renamed(member, context)
        return members
    if isinstance(value, list):
        items: list[Any] = []
        for item in cast("Sequence[Any]", value):
            items.append(_renamed(item, context))  # noqa: PERF401  a comprehension would double the depth
        return items
    return value


def _escape(character: str) -> str:
    return f"%{ord(character):02X}"
