"""The records of a recording as the rows of a timeline.

A row is a record with what a reader wants to know of it: which request an answer answers and how
long that took, what a cancellation cancels, which way a frame went. Directions are told the same
way whoever recorded, so that both sides' recordings of one session look alike.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, cast

import attrs
import msgspec

from mcp_trio._journal.reader import Flaw
from mcp_trio._journal.records import OpenBody, Record, body_of, frame_of
from mcp_trio._limits import DEFAULT_LIMITS
from mcp_trio._wire import (
    Decoder,
    ErrorResponse,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
)

Direction = Literal["to server", "to client"]
Outcome = Literal["error", "cancelled"]
_RequestKey = tuple[Direction, int | str | None]

_NS_PER_MS: Final = 1_000_000
_OPPOSITE: Final[Mapping[Direction, Direction]] = {
    "to server": "to client",
    "to client": "to server",
}
# Whether the client recorded, and the kind of record. A proxy records from the server's side.
_DIRECTIONS: Final[Mapping[tuple[bool, str], Direction]] = {
    (False, "in"): "to server",
    (False, "out"): "to client",
    (True, "in"): "to client",
    (True, "out"): "to server",
}


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a timeline.

    `record` is the record's number, `ms` its time, `channel` which of several sessions it belongs
    to. `request` is the record of the request that the row is about, and `method` its method, or
    the notification's. `took_ms` is the time since that request, for a row that answers or ends it.
    A flaw of the file has a row without a record.
    """

    record: int | None = None
    ms: float | None = None
    kind: str
    channel: int | None = None
    lane: str | None = None
    request: int | None = None
    method: str | None = None
    direction: Direction | None = None
    what: str = ""
    id: int | str | None = None
    size_bytes: int | None = None
    took_ms: float | None = None
    outcome: Outcome | None = None
    note: str = ""


@attrs.frozen
class _Asked:
    """A request that was seen."""

    record: int
    method: str
    what: str
    time_ns: int


@attrs.define
class Tally:
    """What a recording holds, counted."""

    records: int = 0
    flaws: int = 0
    requests: int = 0
    answers: int = 0
    cancelled: int = 0
    errors: int = 0


_decode: Final = Decoder(json_depth_max=DEFAULT_LIMITS.json_depth_max).decode


@attrs.define
class _Seen:
    """What is known so far of the session that is told."""

    tally: Tally
    by_client: bool = False
    asked: dict[_RequestKey, _Asked] = attrs.field(factory=dict[_RequestKey, _Asked])
    asked_by_token: dict[_RequestKey, _Asked] = attrs.field(factory=dict[_RequestKey, _Asked])
    asked_in_lane: dict[str, _Asked] = attrs.field(factory=dict[str, _Asked])

    def lane_asked(self, record: Record) -> _Asked | None:
        """The request that the lane of a record handles."""
        return self.asked_in_lane.get((record.lane or "").split(".")[0])


def timeline(items: Iterable[Record | Flaw], tally: Tally) -> Iterator[Row]:
    """The rows of a recording, flaws at their places; counts them in `tally`."""
    seen = _Seen(tally)
    sessions = {0: seen}
    for item in items:
        if isinstance(item, Flaw):
            yield _flaw(seen, item)
        else:
            if item.channel not in sessions:  # its ids are its own
                sessions[item.channel] = _Seen(tally, by_client=seen.by_client)
            yield _row(sessions[item.channel], item)


def _flaw(seen: _Seen, flaw: Flaw) -> Row:
    seen.tally.flaws += 1
    return Row(kind=flaw.kind, what=f"line {flaw.line}", outcome="error", note=flaw.text)


def _row(seen: _Seen, record: Record) -> Row:
    seen.tally.records += 1
    tell = _TELLERS.get(record.kind, _body)
    told = tell(seen, record)
    row: Row = msgspec.structs.replace(
        told if told.request is not None else _about(told, seen.lane_asked(record)),
        record=record.number,
        ms=round(record.time_ns / _NS_PER_MS, 3),
        channel=record.channel or None,
        lane=record.lane,
    )
    if row.outcome == "error":
        seen.tally.errors += 1
    return row


def _about(row: Row, asked: _Asked | None) -> Row:
    """The row, with the request that it is about."""
    if asked is None:
        return row
    return msgspec.structs.replace(row, request=asked.record, method=row.method or asked.method)


# Records that are no frames.


def _body(_: _Seen, record: Record) -> Row:
    return Row(kind=record.kind, note=_text(frame_of(record)))


def _open(seen: _Seen, record: Record) -> Row:
    body = body_of(record, OpenBody)
    seen.by_client = body.role == "client"
    what = f"{body.name} {body.version}"
    return Row(kind="open", what=what, note=f"role {body.role}, {body.transport}, {body.started}")


def _error(_: _Seen, record: Record) -> Row:
    return Row(kind="err", outcome="error", note=_text(frame_of(record)))


def _gap(_: _Seen, record: Record) -> Row:
    return Row(kind="gap", outcome="error", note=_text(frame_of(record)))


def _shut(_: _Seen, record: Record) -> Row:
    return Row(kind="shut", what=str(_members(frame_of(record)).get("cause", "")))


def _end(_: _Seen, record: Record) -> Row:
    counts = _members(frame_of(record)).get("counts")
    return Row(kind="end", note=_text(msgspec.json.encode(counts)) if counts else "")


def _mark(_: _Seen, record: Record) -> Row:
    body = _members(frame_of(record))
    value = body.get("value")
    note = "" if value is None else _text(msgspec.json.encode(value))
    return Row(kind="mark", what=str(body.get("name", "")), note=note)


def _cancellation(seen: _Seen, record: Record) -> Row:
    asked = seen.lane_asked(record)
    unstarted = frame_of(record) is not None
    return Row(
        kind="cxl",
        what=_named(asked),
        took_ms=_ms_since(asked, record),
        outcome="cancelled",
        note="never started" if unstarted else "",
    )


# Frames.


def _frame(seen: _Seen, record: Record) -> Row:
    frame, envelope = frame_of(record) or b"", record.envelope or {}
    direction = _DIRECTIONS[seen.by_client, record.kind]
    if frame.strip() and "part" not in envelope:
        message = _decode(frame)
        row = _MESSAGES[type(message)](seen, message, record, direction)
    else:
        row = Row(kind=record.kind, what=_no_frame(envelope))
    size_bytes = envelope.get("discarded", len(frame))
    return msgspec.structs.replace(row, direction=direction, size_bytes=size_bytes)


def _no_frame(envelope: Mapping[str, Any]) -> str:
    """What a proxy has seen on the wire that is no frame of its own."""
    return f"part {envelope['part']} of a line" if "part" in envelope else "a blank line"


def _request(seen: _Seen, message: Request, record: Record, direction: Direction) -> Row:
    what = _what(message)
    asked = _Asked(record.number, message.method, what, record.time_ns)
    seen.tally.requests += 1
    seen.asked[direction, message.id] = asked
    seen.asked_in_lane[f"r{record.number}"] = asked
    token = _members(_members(message.params).get("_meta")).get("progressToken")
    if isinstance(token, int | str):
        seen.asked_by_token[direction, token] = asked
    return _about(Row(kind=record.kind, what=what, id=message.id), asked)


def _notification(seen: _Seen, message: Notification, record: Record, direction: Direction) -> Row:
    if message.method == "notifications/cancelled":
        return _cancelled(seen, message, record, direction)
    row = Row(kind=record.kind, what=_what(message), method=message.method)
    if message.method != "notifications/progress":
        return row
    token = _members(message.params).get("progressToken")
    token = token if isinstance(token, int | str) else None
    return _about(row, seen.asked_by_token.get((_OPPOSITE[direction], token)))


def _cancelled(seen: _Seen, message: Notification, record: Record, direction: Direction) -> Row:
    params = _members(message.params)
    named = params.get("requestId")
    id_ = named if isinstance(named, int | str) else None
    asked = seen.asked.get((direction, id_))
    seen.tally.cancelled += 1
    row = Row(
        kind=record.kind,
        what=f"cancel {_named(asked)}",
        method=message.method,
        id=id_,
        took_ms=_ms_since(asked, record),
        outcome="cancelled",
        note=str(params.get("reason", "")),
    )
    return _about(row, asked)


def _response(seen: _Seen, message: Response, record: Record, direction: Direction) -> Row:
    result = _members(message.result)
    failed = result.get("isError") is True
    return _answer(seen, message, record, direction, _content_text(result) if failed else None)


def _error_response(
    seen: _Seen, message: ErrorResponse, record: Record, direction: Direction
) -> Row:
    failure = f"{message.error.code}: {message.error.message}"
    return _answer(seen, message, record, direction, failure)


def _answer(
    seen: _Seen,
    message: Response | ErrorResponse,
    record: Record,
    direction: Direction,
    failure: str | None,
) -> Row:
    asked = seen.asked.pop((_OPPOSITE[direction], message.id), None)
    seen.tally.answers += 1
    row = Row(
        kind=record.kind,
        what=f"answer {_named(asked)}",
        id=message.id,
        took_ms=_ms_since(asked, record),
        outcome=None if failure is None else "error",
        note=failure or "",
    )
    return _about(row, asked)


def _malformed(seen: _Seen, message: Malformed, record: Record, direction: Direction) -> Row:
    if message.is_request and message.id is not None:
        asked = _Asked(record.number, "", "no message", record.time_ns)
        seen.asked[direction, message.id] = asked
    return Row(
        kind=record.kind,
        what="no message",
        id=message.id,
        outcome="error",
        note=f"{message.code}: {message.message}",
    )


def _named(asked: _Asked | None) -> str:
    return "what was never asked" if asked is None else asked.what


def _ms_since(asked: _Asked | None, record: Record) -> float | None:
    return None if asked is None else round((record.time_ns - asked.time_ns) / _NS_PER_MS, 3)


def _text(body: bytes | None) -> str:
    return (body or b"").decode(errors="replace")


def _members(body: object) -> dict[str, Any]:
    """The members of a JSON object, decoded or not; none for what is no object."""
    if isinstance(body, dict):
        return cast("dict[str, Any]", body)
    if not isinstance(body, bytes | msgspec.Raw):
        return {}
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except ValueError:
        return {}


def _content_text(result: Mapping[str, Any]) -> str:
    """The text of a tool's result."""
    try:
        return " ".join(str(item["text"]) for item in result["content"] if "text" in item)
    except (KeyError, TypeError):
        return ""


def _what(message: Request | Notification) -> str:
    """The method, and what it is about."""
    name = _TARGETS.get(message.method, _nothing)
    return f"{message.method} {name(_members(message.params))}".rstrip()


def _nothing(_: dict[str, Any]) -> str:
    return ""


def _member(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda params: str(params.get(name, ""))


def _progress(params: dict[str, Any]) -> str:
    total = params.get("total")
    return f"{params.get('progress')}" + ("" if total is None else f"/{total}")


def _log(params: dict[str, Any]) -> str:
    return f"{params.get('level')}: {params.get('data')}"


_TARGETS: Final[Mapping[str, Callable[[dict[str, Any]], str]]] = {
    "tools/call": _member("name"),
    "prompts/get": _member("name"),
    "resources/read": _member("uri"),
    "resources/subscribe": _member("uri"),
    "resources/unsubscribe": _member("uri"),
    "logging/setLevel": _member("level"),
    "initialize": _member("protocolVersion"),
    "notifications/progress": _progress,
    "notifications/message": _log,
    "notifications/resources/updated": _member("uri"),
}

_MESSAGES: Final[Mapping[type[Message], Callable[[_Seen, Any, Record, Direction], Row]]] = {
    Request: _request,
    Notification: _notification,
    Response: _response,
    ErrorResponse: _error_response,
    Malformed: _malformed,
}

_TELLERS: Final[Mapping[str, Callable[[_Seen, Record], Row]]] = {
    "open": _open,
    "in": _frame,
    "out": _frame,
    "err": _error,
    "cxl": _cancellation,
    "mark": _mark,
    "shut": _shut,
    "end": _end,
    "gap": _gap,
}
