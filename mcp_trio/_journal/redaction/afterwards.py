"""A whole recording redacted afterwards, when all of its secrets are known."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import attrs
import msgspec
from msgspec import UNSET

from mcp_trio._journal.records import (
    OpenBody,
    Record,
    RecordEncoder,
    body_of,
    encode_body,
    frame_of,
)
from mcp_trio._journal.redaction.redactor import Redaction, Redactor
from mcp_trio._journal.redaction.schemas import password_paths
from mcp_trio._limits import DEFAULT_LIMITS, Limits


def redacted_again(
    records: Sequence[Record],
    redaction: Redaction,
    *,
    key: bytes,
    limits: Limits = DEFAULT_LIMITS,
) -> Iterator[bytes]:
    """The lines of the recording with what is secret replaced, also where it came before its name.

    Numbers, lanes and times stay; digests are taken anew. What was redacted already stays, if that
    was done by the same key or is told by the manifest. Tools' schemas are those that were listed.

    Raises:
        RecordingError: `open` is damaged.
        ValueError: As `Redactor`.
    """
    opening = body_of(records[0], OpenBody)
    before = opening.redaction or {}
    redaction = attrs.evolve(redaction, keys={*redaction.keys, *before.get("names", ())})
    tools = list(_listed(records))
    redaction = attrs.evolve(redaction, paths=_with_results(redaction.paths, tools))
    schemas = {tool.name: tool.input_schema for tool in tools}
    redactor = Redactor(redaction, key=key, schemas=schemas, limits=limits)
    if before:
        redactor.adopt(before.get("tokens", ()), records)
    for record in records:
        _redacted(record, redactor)
    encoder = RecordEncoder()
    for record in records:
        body = _redacted(record, redactor)
        if record.kind == "open":
            opened = msgspec.json.decode(body or b"", type=dict[str, Any])
            body = encode_body(opened | {"redaction": redactor.manifest()})
        told = _with_body(record, body, encoder)
        if record.envelope is not None:
            envelope = redactor.redact_envelope(record.envelope)
            told = msgspec.structs.replace(told, envelope=envelope)
        yield encoder.lines([told])


def _redacted(record: Record, redactor: Redactor) -> bytes | None:
    body = frame_of(record)
    if body is None:
        return None
    return redactor.redact(record.kind, body, is_whole_json=record.frame is not UNSET)


def _with_body(record: Record, body: bytes | None, encoder: RecordEncoder) -> Record:
    encoder.next_number = record.number
    made = encoder.record(record.kind, body, record.time_ns, embed=record.frame is not UNSET)
    return msgspec.structs.replace(
        record, frame=made.frame, frame_base64=made.frame_base64, digest=None
    )


class _Tool(msgspec.Struct, rename="camel"):
    name: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = None


class _Tools(msgspec.Struct):
    tools: list[_Tool]


class _Listed(msgspec.Struct):
    result: _Tools


def _listed(records: Collection[Record]) -> Iterator[_Tool]:
    """The tools that were listed in these records."""
    for record in records:
        body = frame_of(record) or b""
        if b'"inputSchema"' in body:
            with suppress(ValueError, RecursionError):
                yield from msgspec.json.decode(body, type=_Listed).result.tools


def _with_results(
    paths: Mapping[str, Collection[str]], tools: Collection[_Tool]
) -> dict[str, Collection[str]]:
    """The paths, and those to what tools call passwords in their results."""
    found = [
        path.replace("$", "$.result.structuredContent", 1)
        for tool in tools
        for path in password_paths(tool.output_schema)
    ]
    return {**paths, "tools/call": [*paths.get("tools/call", ()), *found]} if found else {**paths}
