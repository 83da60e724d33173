"""Messages of a recording as JSON-LD, so that RDF tools can read them.

Each member of a message is a property in the vocabulary of the published ontology; no remote file
is needed to read it. Names that JSON-LD would take for something else than a member (keywords,
prefixes, whole IRIs) are percent-encoded, and so is what may not stand in an IRI. As always in
JSON-LD, a member that is null or an empty list says nothing, and a list has no order.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
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

# For what a recording knows of a message; the message itself has nothing of it.
RECORD_CONTEXT: Final[Mapping[str, Any]] = {**CONTEXT, "record": "urn:mcp-trio:record#"}

_FRAMES: Final = frozenset({"in", "out"})
_SPECIAL: Final = re.compile(r"""[\x00-\x20\x7f"#%:<>?@\[\\\]^`{|}]""")


_Write = Callable[[Record, dict[str, Any]], dict[str, Any]]


def export_jsonld(record: Record, *, with_record: bool = False) -> list[bytes]:
    """The messages of a record as JSON-LD documents, a line each without its LF.

    That is one for a frame, several for a batch, and none for what is no frame. `with_record` puts
    each into a node of its own that has the record's number, direction (`in` is what the recorded
    side received), channel, lane and time.

    Raises:
        RecordingError: The frame is no message: not JSON, no object, or with a number so large, or
            so deep, that Python cannot say it again.
    """
    if record.kind not in _FRAMES:
        return []
    write: _Write = _record_document if with_record else _message_document
    try:
        return [_encode(write(record, message)) for message in _messages(record)]
    except RecursionError as error:
        raise RecordingError(f"record {record.number}: nested too deep") from error
    except ValueError as error:
        raise RecordingError(f"record {record.number}: not JSON: {error}") from error


def _messages(record: Record) -> Sequence[dict[str, Any]]:
    frame: Any = json.loads(body_bytes(record) or b"", parse_constant=_reject)
    messages = cast("Sequence[Any]", frame) if isinstance(frame, list) else [frame]
    if not all(isinstance(message, dict) for message in messages):
        raise RecordingError(f"record {record.number}: JSON, but no message")
    return messages


def _reject(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _message_document(_: Record, message: dict[str, Any]) -> dict[str, Any]:
    return {"@context": CONTEXT, **_renamed(message, CONTEXT)}


def _record_document(record: Record, message: dict[str, Any]) -> dict[str, Any]:
    facts = {
        "number": record.number,
        "direction": record.kind,
        "channel": record.channel or None,
        "lane": record.lane,
        "nanoseconds": record.time_ns,
    }
    return {
        "@context": RECORD_CONTEXT,
        "@type": "record:Frame",
        **{f"record:{name}": fact for name, fact in facts.items() if fact is not None},
        "record:message": _renamed(message, RECORD_CONTEXT),
    }


def _renamed(value: Any, context: Mapping[str, Any]) -> Any:
    """The same JSON with names that mean the members themselves."""
    if isinstance(value, dict):
        members: dict[str, Any] = {}
        for name, member in cast("dict[str, Any]", value).items():
            members[_property(name, context)] = _renamed(member, context)
        return members
    if isinstance(value, list):
        items: list[Any] = []
        for item in cast("Sequence[Any]", value):
            items.append(_renamed(item, context))  # noqa: PERF401  two frames a level are too many
        return items
    return value


def _property(name: str, context: Mapping[str, Any]) -> str:
    if name in context and not name.startswith("@"):
        return _escape(name[0]) + name[1:]
    return _SPECIAL.sub(lambda found: _escape(found[0]), name)


def _escape(character: str) -> str:
    return f"%{ord(character):02X}"


def _encode(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
