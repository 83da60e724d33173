"""Compare two observed sessions, or a session with its recording."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs
from recorded_session import records_of

from mcp_trio.recording import Record, body_bytes

AROUND_BYTES: Final = 80

# What differs between any two sessions with a server, without anybody between.
CLOCK: Final = rb"\d\d?:\d\d:\d\d( [AP]M)?"
DATE_TIME: Final = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[^\"\\]*"
MASKS: Final[Mapping[str, tuple[bytes, ...]]] = {
    "everything": (rb"created at " + CLOCK, rb'"blob":"[^"]*"'),
    "filesystem": (rb"(created|modified|accessed): [^\\]*",),
    "time": (DATE_TIME,),
}


@attrs.frozen(kw_only=True)
class Seen:
    """What a session comes down to: the bytes at the host, those at the server, and how it ended.

    `got` is what came to the server of what was `said`; None if nobody looked. `status` is the exit
    status as a shell tells it; None is a server that did not end. `fault` is what the server did
    otherwise than the host was told; a difference between two sessions is none.
    """

    said: bytes
    heard: bytes
    got: bytes | None
    stderr: bytes
    status: int | None
    fault: str = ""


def differences(direct: Seen, proxied: Seen, masks: Sequence[bytes] = ()) -> list[str]:
    """What was not the same with and without the proxy, in sentences."""
    found = [direct.fault] if direct.fault else []
    if direct.status is None:
        found.append("the server did not end")
    for name in attrs.fields_dict(Seen):
        without, through = (masked(getattr(seen, name), masks) for seen in (direct, proxied))
        if without != through:
            found.append(f"{name} differs: {first_difference(without, through)}")
    if proxied.got not in (None, proxied.said):
        found.append("what came to the server is not what was said")
    return found


def masked(value: object, masks: Sequence[bytes]) -> bytes:
    """Bytes without what differs anyway; other values as text."""
    data = value if isinstance(value, bytes) else str(value).encode()
    for mask in masks:
        data = re.sub(mask, b"<masked>", data)
    return data


def first_difference(without: bytes, through: bytes) -> str:
    """The surroundings of the first place where bytes differ."""
    pairs = enumerate(itertools.zip_longest(without, through))
    place = next((place for place, (a, b) in pairs if a != b), len(without))
    begin, end = max(0, place - AROUND_BYTES), place + AROUND_BYTES
    return f"at byte {place}, {without[begin:end]!r} became {through[begin:end]!r}"


def unrecorded(seen: Seen, lines: Iterable[bytes]) -> list[str]:
    """In what a recording is not exactly what passed, in sentences.

    Raises:
        RecordingError: It is no recording.
    """
    records, found = records_of(lines)
    for kind, passed in (("in", seen.said), ("out", seen.heard)):
        if (recorded := stream_of(records, kind)) != passed:
            found.append(f"{kind} is recorded otherwise: {first_difference(passed, recorded)}")
    return found


def stream_of(records: Iterable[Record], kind: str) -> bytes:
    """The bytes of a direction, from their records alone."""
    return b"".join(
        (body_bytes(record) or b"") + (b"\n" if (record.envelope or {}).get("lf", True) else b"")
        for record in records
        if record.kind == kind
    )
