"""The records of a recording as the rows of a timeline.

A row is a record with what a reader wants to know of it: which request an answer answers and how
long that took, what a cancellation cancels, which way a frame went. Directions are told the same
way whoever recorded, so that both sides' recordings of one session look alike. The requests by
which one handler asks in rounds are one story, and each says which round it is.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import attrs
import msgspec

from mcp_trio._cli.wording import asked_text, content_text, members_of, responses_text, what
from mcp_trio._journal.conversation import subscription_of
from mcp_trio._journal.messages import message_name
from mcp_trio._journal.reader import Flaw
from mcp_trio._journal.records import OpenBody, Record, body_of, frame_of
from mcp_trio._journal.rounds import Round, Stories, responses_in
from mcp_trio._limits import DEFAULT_LIMITS
from mcp_trio._protocol import CLIENT_INFO, INITIALIZE, PROTOCOL_VERSION
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
    `story` is the record of the first request of several rounds, and `round` the number of the
    round; the first request itself does not know yet that there will be more. `revision` is the one
    that a modern request is made under, or that a handshake has agreed on; `client` is who says to
    have made the modern request that the row is about. A flaw of the file has a row without a
    record.
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
    story: int | None = None
    round: int | None = None
    revision: str | None = None
    client: str | None = None
    note: str = ""

    @property
    def first(self) -> int | None:
        """The request that the story of the row begins with, if it is about a request."""
        return self.request if self.story is None else self.story


@attrs.frozen
class _Asked:
    """A request that was seen."""

    record: int
    method: str
    what: str
    time_ns: int
    round: Round
    client: str | None = None


@attrs.define
class Tally:
    """What a recording holds, counted; and the revisions that were spoken, in their order."""

    records: int = 0
    flaws: int = 0
    requests: int = 0
    answers: int = 0
    cancelled: int = 0
    errors: int = 0
    revisions: dict[str, None] = attrs.field(factory=dict[str, None])


_decoder: Final = Decoder(json_depth_max=DEFAULT_LIMITS.json_depth_max)


@attrs.define
class _Seen:
    """What is known so far of the session that is told."""

    tally: Tally
    by_client: bool = False
    asked: dict[_RequestKey, _Asked] = attrs.field(factory=dict[_RequestKey, _Asked])
    asked_by_token: dict[_RequestKey, _Asked] = attrs.field(factory=dict[_RequestKey, _Asked])
    asked_in_lane: dict[str, _Asked] = attrs.field(factory=dict[str, _Asked])
    stories: Stories = attrs.field(factory=Stories)

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
            yield from _rows(sessions[item.channel], item)


def _flaw(seen: _Seen, flaw: Flaw) -> Row:
    seen.tally.flaws += 1
    return Row(kind=flaw.kind, what=f"line {flaw.line}", outcome="error", note=flaw.text)


def _rows(seen: _Seen, record: Record) -> Iterator[Row]:
    """The row of a record; of a frame with several messages, one more for each of them."""
    seen.tally.records += 1
    if record.kind in {"in", "out"}:
        told = _frame(seen, record)
    else:
        told = [_TELLERS.get(record.kind, _body)(seen, record)]
    for row in told:
        yield _row(seen, record, row)


def _row(seen: _Seen, record: Record, told: Row) -> Row:
    row: Row = msgspec.structs.replace(
        told if told.request is not None else _about(told, seen.lane_asked(record)),
        record=record.number,
        ms=round(record.time_ns / _NS_PER_MS, 3),
        channel=record.channel or None,
        lane=record.lane,
    )
    if row.outcome == "error":
        seen.tally.errors += 1
    if row.revision is not None:
        seen.tally.revisions[row.revision] = None
    return row


def _about(row: Row, asked: _Asked | None) -> Row:
    """The row, with the request that it is about, and the story of that."""
    if asked is None:
        return row
    row = msgspec.structs.replace(
        row, request=asked.record, method=row.method or asked.method, client=asked.client
    )
    return row if asked.round.before is None else _of_story(row, asked.round)


def _of_story(row: Row, round_: Round) -> Row:
    return msgspec.structs.replace(row, story=round_.first, round=round_.number)


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
    return Row(kind="shut", what=str(members_of(frame_of(record)).get("cause", "")))


def _end(_: _Seen, record: Record) -> Row:
    counts = members_of(frame_of(record)).get("counts")
    return Row(kind="end", note=_text(msgspec.json.encode(counts)) if counts else "")


def _mark(_: _Seen, record: Record) -> Row:
    body = members_of(frame_of(record))
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


@attrs.frozen
class _Place:
    """Where a message stands: at a place of a record's frame, on its way."""

    record: Record
    index: int
    direction: Direction


def _frame(seen: _Seen, record: Record) -> list[Row]:
    frame, envelope = frame_of(record) or b"", record.envelope or {}
    direction = _DIRECTIONS[seen.by_client, record.kind]
    if frame.strip() and "part" not in envelope:
        rows = _messages(seen, record, _decoder.messages(frame), direction)
    else:
        rows = [Row(kind=record.kind, what=_no_frame(envelope))]
    size_bytes = envelope.get("discarded", len(frame))
    rows[0] = msgspec.structs.replace(rows[0], size_bytes=size_bytes)
    return [msgspec.structs.replace(row, direction=direction) for row in rows]


def _messages(
    seen: _Seen, record: Record, messages: Sequence[Message], direction: Direction
) -> list[Row]:
    """A row for each message; those of a batch stand behind one for all of it."""
    rows = [
        _MESSAGES[type(message)](seen, message, _Place(record, index, direction))
        for index, message in enumerate(messages)
    ]
    if len(rows) > 1:
        rows.insert(0, Row(kind=record.kind, what=f"a batch of {len(rows)} messages"))
    return rows


def _no_frame(envelope: Mapping[str, Any]) -> str:
    """What a proxy has seen on the wire that is no frame of its own."""
    return f"part {envelope['part']} of a line" if "part" in envelope else "a blank line"


def _request(seen: _Seen, message: Request, place: _Place) -> Row:
    record, params = place.record, members_of(message.params)
    meta = members_of(params.get("_meta"))
    round_ = seen.stories.begin(record.number, message.method, message.params)
    is_retry = round_.before is not None
    text = f"{what(message)}, round {round_.number}" if is_retry else what(message)
    client = _implementation(meta.get(CLIENT_INFO))
    asked = _Asked(record.number, message.method, text, record.time_ns, round_, client)
    seen.tally.requests += 1
    seen.asked[place.direction, message.id] = asked
    seen.asked_in_lane[f"r{message_name(record.number, place.index)}"] = asked
    token, revision = meta.get("progressToken"), meta.get(PROTOCOL_VERSION)
    if isinstance(token, int | str):
        seen.asked_by_token[place.direction, token] = asked
    row = Row(
        kind=record.kind,
        what=text,
        id=message.id,
        note=responses_text(responses_in(message.params)) if is_retry else "",
        revision=revision if isinstance(revision, str) else None,
    )
    return _about(row, asked)


def _implementation(info: object) -> str | None:
    """The name and the version; None for what says no name."""
    members = members_of(info)
    name, version = (members.get(each) for each in ("name", "version"))
    return f"{name} {version or ''}".rstrip() if isinstance(name, str) else None


def _notification(seen: _Seen, message: Notification, place: _Place) -> Row:
    row = Row(kind=place.record.kind, what=what(message), method=message.method)
    asker, subscription = _OPPOSITE[place.direction], subscription_of(message.params)
    if subscription is not None:  # also for a cancellation, which ends it
        return _about(row, seen.asked.get((asker, subscription)))
    if message.method == "notifications/cancelled":
        return _cancelled(seen, message, place)
    if message.method != "notifications/progress":
        return row
    token = members_of(message.params).get("progressToken")
    token = token if isinstance(token, int | str) else None
    return _about(row, seen.asked_by_token.get((asker, token)))


def _cancelled(seen: _Seen, message: Notification, place: _Place) -> Row:
    params = members_of(message.params)
    named = params.get("requestId")
    id_ = named if isinstance(named, int | str) else None
    asked = seen.asked.get((place.direction, id_))
    seen.tally.cancelled += 1
    row = Row(
        kind=place.record.kind,
        what=f"cancel {_named(asked)}",
        method=message.method,
        id=id_,
        took_ms=_ms_since(asked, place.record),
        outcome="cancelled",
        note=str(params.get("reason", "")),
    )
    return _about(row, asked)


def _response(seen: _Seen, message: Response, place: _Place) -> Row:
    result = members_of(message.result)
    failed = result.get("isError") is True
    asked = seen.asked.get((_OPPOSITE[place.direction], message.id))
    row = _answer(seen, message, place, content_text(result) if failed else None)
    if asked is None:
        return row
    asking = seen.stories.answered(asked.round, message.result)
    if asking is not None:
        return _of_story(msgspec.structs.replace(row, note=asked_text(asking)), asked.round)
    agreed = result.get("protocolVersion") if asked.method == INITIALIZE else None
    return msgspec.structs.replace(row, revision=agreed) if isinstance(agreed, str) else row


def _error_response(seen: _Seen, message: ErrorResponse, place: _Place) -> Row:
    failure = f"{message.error.code}: {message.error.message}"
    return _answer(seen, message, place, failure)


def _answer(
    seen: _Seen,
    message: Response | ErrorResponse,
    place: _Place,
    failure: str | None,
) -> Row:
    asked = seen.asked.pop((_OPPOSITE[place.direction], message.id), None)
    seen.tally.answers += 1
    row = Row(
        kind=place.record.kind,
        what=f"answer {_named(asked)}",
        id=message.id,
        took_ms=_ms_since(asked, place.record),
        outcome=None if failure is None else "error",
        note=failure or "",
    )
    return _about(row, asked)


def _malformed(seen: _Seen, message: Malformed, place: _Place) -> Row:
    if message.is_request and message.id is not None:
        number = place.record.number
        round_ = seen.stories.begin(number, "", None)
        asked = _Asked(number, "", "no message", place.record.time_ns, round_)
        seen.asked[place.direction, message.id] = asked
    return Row(
        kind=place.record.kind,
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


_MESSAGES: Final[Mapping[type[Message], Callable[[_Seen, Any, _Place], Row]]] = {
    Request: _request,
    Notification: _notification,
    Response: _response,
    ErrorResponse: _error_response,
    Malformed: _malformed,
}

_TELLERS: Final[Mapping[str, Callable[[_Seen, Record], Row]]] = {
    "open": _open,
    "err": _error,
    "cxl": _cancellation,
    "mark": _mark,
    "shut": _shut,
    "end": _end,
    "gap": _gap,
}
