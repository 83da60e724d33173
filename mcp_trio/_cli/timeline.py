"""The timeline of a recording: rows, selections and a summary."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from statistics import median
from typing import Any, Final, Literal, cast

import attrs
import click
import msgspec

from mcp_trio._cli.output import Column, Line, print_table, printable, shortened, styled
from mcp_trio._journal.conversation import (
    InputRequest,
    InputRequired,
    RoundTrip,
    RoundTripTracker,
    input_responses_in,
    subscription_of,
)
from mcp_trio._journal.reader import Damage
from mcp_trio._journal.records import OpenBody, Record, body_bytes, decode_body, message_name
from mcp_trio._jsonrpc.messages import (
    Decoder,
    ErrorResponse,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
)
from mcp_trio._protocol.metadata import CLIENT_INFO, PROTOCOL_VERSION
from mcp_trio._protocol.methods import INITIALIZE
from mcp_trio.limits import DEFAULT_LIMITS

# --------------------
# What a message is about, in words.


def what(message: Request | Notification) -> str:
    """The method, and what it is about."""
    return _what(message.method, message.params)


def asked_text(asking: InputRequired) -> str:
    """What a server asks for, each question under its key."""
    questions = [f"{key}: {_question(each)}" for key, each in asking.requests.items()]
    return f"asks {'; '.join(questions)}" if questions else "asks to come again"


def responses_text(responses: Mapping[str, msgspec.Raw]) -> str:
    """What a client answers, under the same keys."""
    answers = (f"{key}: {_response_text(each)}" for key, each in responses.items())
    return "; ".join(answers)


def members_of(body: object) -> dict[str, Any]:
    """The members of a JSON object, decoded or not; none for what is no object."""
    if isinstance(body, dict):
        return cast("dict[str, Any]", body)
    if not isinstance(body, bytes | msgspec.Raw):
        return {}
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except ValueError:
        return {}


def content_text(result: Mapping[str, Any]) -> str:
    """The text of a tool's result."""
    try:
        return " ".join(str(item["text"]) for item in result["content"] if "text" in item)
    except (KeyError, TypeError):
        return ""


def _question(question: InputRequest) -> str:
    return _what(question.method, question.params)


def _response_text(response: msgspec.Raw) -> str:
    """The action of a form and what was filled in, or the whole answer."""
    members = members_of(response)
    parts = (members.get(name) for name in ("action", "content"))
    if "action" not in members:
        return bytes(response).decode(errors="replace")
    return " ".join(part if isinstance(part, str) else _json(part) for part in parts if part)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _what(method: str, params: object) -> str:
    name = _TARGETS.get(method, _nothing)
    return f"{method} {name(members_of(params))}".rstrip()


def _nothing(_: dict[str, Any]) -> str:
    return ""


def _member(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda params: str(params.get(name, ""))


def _progress(params: dict[str, Any]) -> str:
    total, message = params.get("total"), params.get("message")
    of = "" if total is None else f"/{total}"
    return f"{params.get('progress')}{of}" + ("" if message is None else f" {message}")


def _log(params: dict[str, Any]) -> str:
    return f"{params.get('level')}: {params.get('data')}"


def _filter(params: dict[str, Any]) -> str:
    """What a subscription is about: the lists, and the resources by their URIs."""
    wishes = members_of(params.get("notifications"))
    return " ".join(
        _json(value) if isinstance(value, list) else name for name, value in wishes.items() if value
    )


_TARGETS: Final[Mapping[str, Callable[[dict[str, Any]], str]]] = {
    "tools/call": _member("name"),
    "prompts/get": _member("name"),
    "resources/read": _member("uri"),
    "resources/subscribe": _member("uri"),
    "resources/unsubscribe": _member("uri"),
    "logging/setLevel": _member("level"),
    "initialize": _member("protocolVersion"),
    "subscriptions/listen": _filter,
    "elicitation/create": _member("message"),
    "notifications/elicitation/complete": _member("elicitationId"),
    "notifications/progress": _progress,
    "notifications/message": _log,
    "notifications/resources/updated": _member("uri"),
    "notifications/subscriptions/acknowledged": _filter,
}


# --------------------
# The records of a recording as the rows of a timeline.
#
# A row is a record with what a reader wants to know of it: which request an answer answers and how
# long that took, what a cancellation cancels, which way a frame went. Directions are told the same
# way whoever recorded, so that both sides' recordings of one session look alike. The requests by
# which one handler asks in rounds are one story, and each says which round it is.


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
    round; the first request itself does not know yet that there will be more. `protocol_version` is
    the one that a modern request is made under, or that a handshake has agreed on; `client` is who
    says to have made the modern request that the row is about. A flaw of the file has a row without
    a record.
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
    protocol_version: str | None = None
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
    round: RoundTrip
    client: str | None = None


@attrs.define
class Tally:
    """What a recording holds, counted; and the revisions that were spoken, in their order."""

    records: int = 0
    damage: int = 0
    requests: int = 0
    answers: int = 0
    cancelled: int = 0
    errors: int = 0
    protocol_versions: dict[str, None] = attrs.field(factory=dict[str, None])


_decoder: Final = Decoder(json_depth_max=DEFAULT_LIMITS.messages.json_depth_max)


@attrs.define
class _Seen:
    """What is known so far of the session that is told."""

    tally: Tally
    by_client: bool = False
    asked: dict[_RequestKey, _Asked] = attrs.field(factory=dict[_RequestKey, _Asked])
    asked_by_token: dict[_RequestKey, _Asked] = attrs.field(factory=dict[_RequestKey, _Asked])
    asked_in_lane: dict[str, _Asked] = attrs.field(factory=dict[str, _Asked])
    stories: RoundTripTracker = attrs.field(factory=RoundTripTracker)

    def lane_asked(self, record: Record) -> _Asked | None:
        """The request that the lane of a record handles."""
        return self.asked_in_lane.get((record.lane or "").split(".")[0])


def timeline(items: Iterable[Record | Damage], tally: Tally) -> Iterator[Row]:
    """The rows of a recording, flaws at their places; counts them in `tally`."""
    seen = _Seen(tally)
    sessions = {0: seen}
    for item in items:
        if isinstance(item, Damage):
            yield _flaw(seen, item)
        else:
            if item.channel not in sessions:  # its ids are its own
                sessions[item.channel] = _Seen(tally, by_client=seen.by_client)
            yield from _rows(sessions[item.channel], item)


def _flaw(seen: _Seen, flaw: Damage) -> Row:
    seen.tally.damage += 1
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
    if row.protocol_version is not None:
        seen.tally.protocol_versions[row.protocol_version] = None
    return row


def _about(row: Row, asked: _Asked | None) -> Row:
    """The row, with the request that it is about, and the story of that."""
    if asked is None:
        return row
    row = msgspec.structs.replace(
        row, request=asked.record, method=row.method or asked.method, client=asked.client
    )
    return row if asked.round.before is None else _of_story(row, asked.round)


def _of_story(row: Row, round_: RoundTrip) -> Row:
    return msgspec.structs.replace(row, story=round_.first, round=round_.number)


# Records that are no frames.


def _body(_: _Seen, record: Record) -> Row:
    return Row(kind=record.kind, note=_text(body_bytes(record)))


def _open(seen: _Seen, record: Record) -> Row:
    body = decode_body(record, OpenBody)
    seen.by_client = body.role == "client"
    what = f"{body.name} {body.version}"
    return Row(kind="open", what=what, note=f"role {body.role}, {body.transport}, {body.started}")


def _error(_: _Seen, record: Record) -> Row:
    return Row(kind="err", outcome="error", note=_text(body_bytes(record)))


def _gap(_: _Seen, record: Record) -> Row:
    return Row(kind="gap", outcome="error", note=_text(body_bytes(record)))


def _shut(_: _Seen, record: Record) -> Row:
    return Row(kind="shut", what=str(members_of(body_bytes(record)).get("cause", "")))


def _end(_: _Seen, record: Record) -> Row:
    counts = members_of(body_bytes(record)).get("counts")
    return Row(kind="end", note=_text(msgspec.json.encode(counts)) if counts else "")


def _mark(_: _Seen, record: Record) -> Row:
    body = members_of(body_bytes(record))
    value = body.get("value")
    note = "" if value is None else _text(msgspec.json.encode(value))
    return Row(kind="mark", what=str(body.get("name", "")), note=note)


def _cancellation(seen: _Seen, record: Record) -> Row:
    asked = seen.lane_asked(record)
    unstarted = body_bytes(record) is not None
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
    frame, envelope = body_bytes(record) or b"", record.envelope or {}
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
    round_ = seen.stories.add_request(record.number, message.method, message.params)
    is_retry = round_.before is not None
    text = f"{what(message)}, round {round_.number}" if is_retry else what(message)
    client = _implementation(meta.get(CLIENT_INFO))
    asked = _Asked(record.number, message.method, text, record.time_ns, round_, client)
    seen.tally.requests += 1
    seen.asked[place.direction, message.id] = asked
    seen.asked_in_lane[f"r{message_name(record.number, place.index)}"] = asked
    token, protocol_version = meta.get("progressToken"), meta.get(PROTOCOL_VERSION)
    if isinstance(token, int | str):
        seen.asked_by_token[place.direction, token] = asked
    row = Row(
        kind=record.kind,
        what=text,
        id=message.id,
        note=responses_text(input_responses_in(message.params)) if is_retry else "",
        protocol_version=protocol_version if isinstance(protocol_version, str) else None,
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
    asking = seen.stories.add_result(asked.round, message.result)
    if asking is not None:
        return _of_story(msgspec.structs.replace(row, note=asked_text(asking)), asked.round)
    agreed = result.get("protocolVersion") if asked.method == INITIALIZE else None
    return msgspec.structs.replace(row, protocol_version=agreed) if isinstance(agreed, str) else row


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
        round_ = seen.stories.add_request(number, "", None)
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


# --------------------
# Which rows of a timeline to show.
#
# Two kinds of choices. A *window* is strict: what lies outside is not shown. A *condition* is about
# what happened: a row that fulfils all conditions is shown together with the request that it is
# about and the answer to that, so that neither stands there alone.


_MS_PER_SECOND: Final = 1000


@attrs.frozen(kw_only=True)
class Selection:
    """What was chosen; None and empty: everything."""

    channel: int | None = None
    lane: str | None = None
    method: str | None = None
    id: str | None = None
    slower_than: float | None = None
    errors: bool = False
    kinds: Collection[str] = ()
    begin: "Bound | None" = None
    end: "Bound | None" = None

    def rows(self, rows: "Iterable[Row]") -> "Iterator[Row]":
        """The rows to show, in order."""
        in_window = [row for row in rows if self._is_in_window(row)]
        chosen = {place for place, row in enumerate(in_window) if self._fulfils(row)}
        requests = {in_window[place].first for place in chosen} - {None}
        for place, row in enumerate(in_window):
            if place in chosen or (row.first in requests and _is_end_of_exchange(row)):
                yield row

    def _is_in_window(self, row: "Row") -> bool:
        return (
            (self.channel is None or row.channel == self.channel)
            and (not self.kinds or row.kind in self.kinds)
            and (self.begin is None or self.begin.value <= self.begin.of(row))
            and (self.end is None or self.end.of(row) <= self.end.value)
        )

    def _fulfils(self, row: "Row") -> bool:
        return (
            (self.lane is None or _is_in_lane(row, self.lane))
            and (self.method is None or fnmatchcase(row.method or "", self.method))
            and (self.id is None or str(row.id) == self.id)
            and (self.slower_than is None or (row.took_ms or 0.0) > self.slower_than)
            and (not self.errors or row.outcome == "error")
        )


@attrs.frozen
class Bound:
    """One end of a window: a record's number, or seconds since the beginning."""

    value: float
    is_seconds: bool

    def of(self, row: "Row") -> float:
        """What of a row is compared with the bound."""
        if self.is_seconds:
            return (row.ms or 0.0) / _MS_PER_SECOND
        return row.record or 0


def bound(_: click.Context, __: click.Parameter, text: str | None) -> Bound | None:
    """The bound that was typed: `12` is a record, `1.5s` a time."""
    if text is None:
        return None
    number, is_seconds = text.removesuffix("s"), text.endswith("s")
    try:
        return Bound(float(number) if is_seconds else int(number), is_seconds)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither a record (12) nor a time in seconds (1.5s)"
        ) from None


def _is_in_lane(row: "Row", lane: str) -> bool:
    """Return whether a row is of the lane, of a child of it, or a request that it handles."""
    own = row.lane or ""
    is_own = own == lane or own.startswith(f"{lane}.")
    return is_own or lane in {f"r{row.request}", f"r{row.story}"}


def _is_end_of_exchange(row: "Row") -> bool:
    """Return whether a row is a request, or its answer: what begins or ends the exchange."""
    return row.id is not None and row.kind in {"in", "out"}


# --------------------
# The rounds in which handlers asked, each handler's as one story.


_COLUMNS: Final = (
    Column("record", "right"),
    Column("ms", "right"),
    Column(""),
    Column("what"),
    Column("note"),
)


@attrs.frozen
class Story:
    """One handler's requests with their questions, retries and answers, in order."""

    rows: Sequence[Row]

    @property
    def heading(self) -> str:
        """What was asked for, in how many rounds, and how long that took."""
        first, last = self.rows[0], self.rows[-1]
        rounds = max(row.round or 1 for row in self.rows)
        took_ms = (last.ms or 0.0) - (first.ms or 0.0)
        return f"{first.what}: {rounds} round{'' if rounds == 1 else 's'} in {took_ms:.1f} ms"


def stories(rows: Iterable[Row]) -> list[Story]:
    """The stories in a timeline, in the order of their beginnings."""
    messages: dict[tuple[int | None, int | None], list[Row]] = {}
    for row in rows:
        if row.direction is not None:
            messages.setdefault((row.channel, row.first), []).append(row)
    return [Story(each) for each in messages.values() if any(row.story for row in each)]


def print_stories(found: Iterable[Story], arrows: Mapping[Direction | None, str]) -> None:
    """Print each story under its heading."""
    for story in found:
        click.echo(styled(printable(story.heading), bold=True))
        print_table(_COLUMNS, [Line(_story_cells(row, arrows)) for row in story.rows])
        click.echo()


def _story_cells(row: Row, arrows: Mapping[Direction | None, str]) -> tuple[str, ...]:
    texts = printable(row.what), printable(row.note)
    return str(row.record), f"{row.ms:.1f}", arrows[row.direction], *texts


SLOWEST_MAX: Final = 3
_WHAT_COLUMNS_MAX: Final = 60
METHOD_COLUMNS: Final = (
    Column("method"),
    Column("requests", "right"),
    Column("answers", "right"),
    Column("errors", "right"),
    Column("cancelled", "right"),
    Column("median ms", "right"),
    Column("slowest ms", "right"),
)


@attrs.define
class _Exchange:
    """A request and what became of it."""

    method: str
    what: str
    record: int
    took_ms: float | None = None
    is_error: bool = False
    is_cancelled: bool = False


def exchanges(rows: Iterable[Row]) -> list[_Exchange]:
    """The requests of a timeline, in order; those of a batch are told apart by their ids."""
    found: dict[int, dict[int | str | None, _Exchange]] = {}
    for row in rows:
        if row.request is None:
            continue
        same = found.setdefault(row.request, {})
        if row.record == row.request:
            same[row.id] = _Exchange(row.method or "", row.what, row.request)
        elif row.id in same or len(same) == 1:
            _tell(same.get(row.id) or next(iter(same.values())), row)
    return [exchange for same in found.values() for exchange in same.values()]


def _tell(exchange: _Exchange, row: Row) -> None:
    if row.outcome == "cancelled":
        exchange.is_cancelled = True
    elif row.took_ms is not None:
        exchange.took_ms = row.took_ms
        exchange.is_error = row.outcome == "error"


def method_lines(found: Iterable[_Exchange]) -> list[Line]:
    """A line for each method, the most frequent first."""
    by_method: dict[str, list[_Exchange]] = {}
    for exchange in found:
        by_method.setdefault(exchange.method, []).append(exchange)
    lists = sorted(by_method.values(), key=len, reverse=True)
    return [Line(tuple(_method_cells(list_))) for list_ in lists]


def _method_cells(same: list[_Exchange]) -> Iterator[str]:
    answered = [exchange.took_ms for exchange in same if exchange.took_ms is not None]
    yield printable(same[0].method)
    yield str(len(same))
    yield str(len(answered))
    yield str(sum(exchange.is_error for exchange in same))
    yield str(sum(exchange.is_cancelled for exchange in same))
    yield f"{median(answered):.1f}" if answered else ""
    yield f"{max(answered):.1f}" if answered else ""


def slowest(found: Iterable[_Exchange]) -> str:
    """The slowest requests that were answered, in one line; empty if there are none."""
    answered = [(each.took_ms, each) for each in found if each.took_ms is not None]
    answered.sort(key=lambda pair: pair[0], reverse=True)
    return "; ".join(
        f"{took_ms:.1f} ms {shortened(printable(each.what), _WHAT_COLUMNS_MAX)}"
        f" (record {each.record})"
        for took_ms, each in answered[:SLOWEST_MAX]
    )


def totals(tally: Tally) -> str:
    """A tally in one line."""
    counts = attrs.asdict(tally, filter=lambda _, value: isinstance(value, int))
    protocol_versions = ", ".join(map(printable, tally.protocol_versions))
    spoken = (f"revision {protocol_versions}",) if protocol_versions else ()
    return ", ".join((*(f"{name} {count}" for name, count in counts.items()), *spoken))
