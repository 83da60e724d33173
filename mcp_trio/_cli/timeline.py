"""The timeline of a recording: its rows, which of them to show, a summary, and its printing."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from statistics import median
from typing import Any, Final, Literal

import attrs
import click
import msgspec

from mcp_trio._cli.options import records_of
from mcp_trio._cli.output import Column, Line, echo_text, print_table, printable, styled
from mcp_trio._journal.calls import trace_id_of
from mcp_trio._journal.conversation import (
    InputRequired,
    RoundTrip,
    RoundTripTracker,
    input_responses_in,
    keep_latest,
    members_of,
    reference_of,
    subscription_of,
)
from mcp_trio._journal.records import (
    Damage,
    OpenBody,
    Record,
    body_bytes,
    decode_body,
    message_name,
)
from mcp_trio._journal.texts import json_text, shortened, tool_text
from mcp_trio._jsonrpc.messages import (
    ErrorResponse,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
    decoder_for,
)
from mcp_trio._protocol.metadata import CLIENT_INFO, PROTOCOL_VERSION
from mcp_trio._protocol.methods import INITIALIZE
from mcp_trio.limits import DEFAULT_LIMITS

# Rows: each record has one, and a batch has one more for each of its messages.
#
# A row connects its record with others: a response with its request and the time between them, a
# cancellation with what it cancels, and the requests by which one call is retried with each other.
# Directions are the same whichever side recorded, so that both sides' recordings of one session
# look alike.

Direction = Literal["to server", "to client"]
Outcome = Literal["error", "cancelled"]

# How the rows are printed.
ARROWS: Final[Mapping[Direction | None, str]] = {"to server": "->", "to client": "<-", None: ""}
OUTCOME_COLOURS: Final[Mapping[Outcome | None, str | None]] = {
    "error": "red",
    "cancelled": "yellow",
    None: None,
}

_NS_PER_MS: Final = 1_000_000
_OPPOSITE: Final[Mapping[Direction, Direction]] = {
    "to server": "to client",
    "to client": "to server",
}


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One row of a timeline.

    Attributes:
        record: The record's number; None for damage of the file.
        ms: The time since the recording began.
        kind: The kind of record, or of damage.
        channel: The session, in a recording of several; None for channel 0.
        request: The record of the request that the row is about.
        method: That request's method, or the notification's.
        direction: Which way a message went.
        id: The id of the request or response.
        size_bytes: The size of the record's message or batch.
        took_ms: The time since the request, for a row that answers or ends it.
        outcome: Whether the row is an error or a cancellation.
        first_request: The record of the first request of a call in several rounds, for the rows of
            its retries, and of each response that requires input. The row of the first request does
            not have it, because the retries come later.
        round: The number of the request in such a call, from 1.
        protocol_version: The version of a stateless request, or that a handshake agreed on.
        client: The name and version of the client that sent a stateless request.
        trace: The trace id of a request that has one.
        note: Anything else, such as an error's text.
    """

    record: int | None = None
    ms: float | None = None
    kind: str = ""
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
    first_request: int | None = None
    round: int | None = None
    protocol_version: str | None = None
    client: str | None = None
    trace: str | None = None
    note: str = ""

    @property
    def call(self) -> int | None:
        """The record of the first request of the call that the row is about."""
        return self.request if self.first_request is None else self.first_request


class _SentRequest(msgspec.Struct, frozen=True):
    """A request to which later records refer."""

    record: int
    method: str
    what: str
    time_ns: int
    round_trip: RoundTrip
    client: str | None = None


# By the direction of the request, and its id or progress token.
_SentRequests = dict[tuple[Direction, int | str | None], _SentRequest]


@attrs.define
class Counts:
    """Counts of a recording, and its protocol versions in order of appearance."""

    records: int = 0
    damage: int = 0
    requests: int = 0
    answers: int = 0
    cancelled: int = 0
    errors: int = 0
    protocol_versions: dict[str, None] = attrs.field(factory=dict[str, None])


_decoder: Final = decoder_for(DEFAULT_LIMITS.messages)


@attrs.define
class _Session:
    """The requests of one session so far; with `requests_max`, the latest ones."""

    counts: Counts
    requests_max: int | None
    is_of_client: bool = False  # the client recorded the session
    by_id: _SentRequests = attrs.field(factory=_SentRequests)
    by_progress_token: _SentRequests = attrs.field(factory=_SentRequests)
    by_lane: dict[str, _SentRequest] = attrs.field(factory=dict[str, _SentRequest])
    round_trips: RoundTripTracker = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.round_trips = RoundTripTracker(self.requests_max)

    def request_of_lane(self, record: Record) -> _SentRequest | None:
        """Return the request that the record's lane handles."""
        return self.by_lane.get((record.lane or "").split(".")[0])

    def message_rows(self, record: Record) -> list[Row]:
        """Return a row for each message; before those of a batch, one for the batch."""
        raw, envelope = body_bytes(record) or b"", record.envelope or {}
        # A proxy records like the server.
        is_to_client = (record.kind == "in") == self.is_of_client
        direction: Direction = "to client" if is_to_client else "to server"
        if "part" in envelope:  # a proxy saw a line that is too long, and forwarded it in parts
            rows = [Row(what=f"part {envelope['part']} of a line")]
        elif not raw.strip():
            rows = [Row(what="a blank line")]
        else:
            rows = [
                self._message_row(message, record, index, direction)
                for index, message in enumerate(_decoder.messages(raw))
            ]
            if len(rows) > 1:
                rows.insert(0, Row(what=f"a batch of {len(rows)} messages"))
        rows[0] = msgspec.structs.replace(rows[0], size_bytes=envelope.get("discarded", len(raw)))
        return [msgspec.structs.replace(row, direction=direction) for row in rows]

    def _message_row(
        self, message: Message, record: Record, index: int, direction: Direction
    ) -> Row:
        match message:
            case Request():
                return self._request_row(message, record, index, direction)
            case Notification():
                return self._notification_row(message, record, direction)
            case Response() | ErrorResponse():
                return self._response_row(message, record, direction)
            case Malformed():
                what = "malformed message"
                if message.is_request and message.id is not None:
                    round_trip = self.round_trips.add_request(record.number, "", None)
                    request = _SentRequest(record.number, "", what, record.time_ns, round_trip)
                    self.by_id[direction, message.id] = request
                    keep_latest(self.by_id, self.requests_max)
                note = f"{message.code}: {message.message}"
                return Row(what=what, id=message.id, outcome="error", note=note)

    def _request_row(
        self, message: Request, record: Record, index: int, direction: Direction
    ) -> Row:
        params = members_of(message.params)
        meta = members_of(params.get("_meta"))
        round_trip = self.round_trips.add_request(record.number, message.method, message.params)
        is_retry = round_trip.retry_of is not None
        text = _message_text(message.method, message.params)
        if is_retry:
            text = f"{text}, round {round_trip.number}"
        members = members_of(meta.get(CLIENT_INFO))
        name, version = (members.get(each) for each in ("name", "version"))
        client = f"{name} {version or ''}".rstrip() if isinstance(name, str) else None
        request = _SentRequest(
            record.number, message.method, text, record.time_ns, round_trip, client
        )
        self.counts.requests += 1
        self.by_id[direction, message.id] = request
        keep_latest(self.by_id, self.requests_max)
        self.by_lane[f"r{message_name(record.number, index)}"] = request
        keep_latest(self.by_lane, self.requests_max)
        token, protocol_version = meta.get("progressToken"), meta.get(PROTOCOL_VERSION)
        if isinstance(token, int | str):
            self.by_progress_token[direction, token] = request
            keep_latest(self.by_progress_token, self.requests_max)
        row = Row(
            what=text,
            id=message.id,
            note=_responses_text(input_responses_in(message.params)) if is_retry else "",
            protocol_version=protocol_version if isinstance(protocol_version, str) else None,
            trace=trace_id_of(meta.get("traceparent")) or None,
        )
        return _with_request(row, request)

    def _notification_row(self, message: Notification, record: Record, direction: Direction) -> Row:
        what = _message_text(message.method, message.params)
        row = Row(what=what, method=message.method)
        requester, subscription = _OPPOSITE[direction], subscription_of(message.params)
        if subscription is not None:  # also for a cancellation, which ends the subscription
            return _with_request(row, self.by_id.get((requester, subscription)))
        reference = reference_of(message)
        if message.method == "notifications/progress":
            return _with_request(row, self.by_progress_token.get((requester, reference)))
        if message.method == "notifications/cancelled":
            self.counts.cancelled += 1
            request = self.by_id.get((direction, reference))
            row = Row(
                what=f"cancel {_request_text(request)}",
                method=message.method,
                id=reference,
                took_ms=_ms_since(request, record),
                outcome="cancelled",
                note=str(members_of(message.params).get("reason", "")),
            )
            return _with_request(row, request)
        return row

    def _response_row(
        self, message: Response | ErrorResponse, record: Record, direction: Direction
    ) -> Row:
        request = self.by_id.pop((_OPPOSITE[direction], message.id), None)
        if request is None:  # a later request with the same id was answered before this one
            request = self.request_of_lane(record)
        self.counts.answers += 1
        result: dict[str, Any] = {}
        error: str | None = None
        if isinstance(message, ErrorResponse):
            error = f"{message.error.code}: {message.error.message}"
        else:
            result = members_of(message.result)
            if result.get("isError") is True:
                error = tool_text(result)
        row = Row(
            what=f"answer {_request_text(request)}",
            id=message.id,
            took_ms=_ms_since(request, record),
            outcome=None if error is None else "error",
            note=error or "",
        )
        row = _with_request(row, request)
        if request is None or isinstance(message, ErrorResponse):
            return row
        input_required = self.round_trips.add_result(request.round_trip, message.result)
        if input_required is not None:
            row = msgspec.structs.replace(row, note=_input_required_text(input_required))
            return _with_round(row, request.round_trip)
        version = result.get("protocolVersion") if request.method == INITIALIZE else None
        if isinstance(version, str):
            return msgspec.structs.replace(row, protocol_version=version)
        return row

    def other_row(self, record: Record) -> Row:
        """Return the row of a record that is not a message."""
        match record.kind:
            case "open":
                opened = decode_body(record, OpenBody)
                self.is_of_client = opened.role == "client"
                note = f"role {opened.role}, {opened.transport}, {opened.started}"
                return Row(what=f"{opened.name} {opened.version}", note=note)
            case "cxl":
                request = self.request_of_lane(record)
                return Row(
                    what=_request_text(request),
                    took_ms=_ms_since(request, record),
                    outcome="cancelled",
                    # Only the record of a handler that never started has a body.
                    note="" if body_bytes(record) is None else "never started",
                )
            case "mark":
                body = members_of(body_bytes(record))
                value = body.get("value")
                note = "" if value is None else json_text(value)
                return Row(what=str(body.get("name", "")), note=note)
            case "shut":
                return Row(what=str(members_of(body_bytes(record)).get("cause", "")))
            case "end":
                counts = members_of(body_bytes(record)).get("counts")
                return Row(note=json_text(counts) if counts else "")
            case _:
                outcome: Outcome | None = "error" if record.kind in {"err", "gap"} else None
                note = (body_bytes(record) or b"").decode(errors="replace")
                return Row(outcome=outcome, note=note)


def _with_request(row: Row, request: _SentRequest | None) -> Row:
    """Add the request that the row is about."""
    if request is None:
        return row
    row = msgspec.structs.replace(
        row, request=request.record, method=row.method or request.method, client=request.client
    )
    is_retry = request.round_trip.retry_of is not None
    return _with_round(row, request.round_trip) if is_retry else row


def _with_round(row: Row, round_trip: RoundTrip) -> Row:
    return msgspec.structs.replace(row, first_request=round_trip.first, round=round_trip.number)


def _request_text(request: _SentRequest | None) -> str:
    return "an unknown request" if request is None else request.what


def _ms_since(request: _SentRequest | None, record: Record) -> float | None:
    if request is None:
        return None
    return round((record.time_ns - request.time_ns) / _NS_PER_MS, 3)


# Texts about messages.


def _message_text(method: str, params: object) -> str:
    """Return the method, and what the message is about, such as `tools/call forecast`."""
    subject = _SUBJECTS.get(method)
    return method if subject is None else f"{method} {subject(members_of(params))}".rstrip()


def _input_required_text(result: InputRequired) -> str:
    """Return the requests of a result that asks the client for input, each with its key."""
    requests = [
        f"{key}: {_message_text(each.method, each.params)}" for key, each in result.requests.items()
    ]
    return f"asks {'; '.join(requests)}" if requests else "asks to retry the request"


def _responses_text(responses: Mapping[str, msgspec.Raw]) -> str:
    """Return a client's responses to these requests, each with its key.

    Of an elicitation's response, these are the action and the content.
    """
    texts: list[str] = []
    for key, response in responses.items():
        members = members_of(response)
        if "action" in members:
            parts = [part for name in ("action", "content") if (part := members.get(name))]
            text = " ".join(part if isinstance(part, str) else json_text(part) for part in parts)
        else:
            text = json_text(bytes(response))
        texts.append(f"{key}: {text}")
    return "; ".join(texts)


def _member(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda params: str(params.get(name, ""))


def _progress(params: dict[str, Any]) -> str:
    total, message = params.get("total"), params.get("message")
    of = "" if total is None else f"/{total}"
    return f"{params.get('progress')}{of}" + ("" if message is None else f" {message}")


def _subscribed(params: dict[str, Any]) -> str:
    """Return the names of lists and the URIs of resources that a subscription asks for."""
    wanted = members_of(params.get("notifications"))
    return " ".join(
        json_text(value) if isinstance(value, list) else name
        for name, value in wanted.items()
        if value
    )


_SUBJECTS: Final[Mapping[str, Callable[[dict[str, Any]], str]]] = {
    "tools/call": _member("name"),
    "prompts/get": _member("name"),
    "resources/read": _member("uri"),
    "resources/subscribe": _member("uri"),
    "resources/unsubscribe": _member("uri"),
    "logging/setLevel": _member("level"),
    "initialize": _member("protocolVersion"),
    "subscriptions/listen": _subscribed,
    "elicitation/create": _member("message"),
    "notifications/elicitation/complete": _member("elicitationId"),
    "notifications/progress": _progress,
    "notifications/message": lambda params: f"{params.get('level')}: {params.get('data')}",
    "notifications/resources/updated": _member("uri"),
    "notifications/subscriptions/acknowledged": _subscribed,
}


class Timeline:
    """The rows of a recording whose records become known one after the other.

    Args:
        requests_max: The number of requests of a session that are kept in memory, for later rows
            that are about them; None, for a recording that has an end, keeps all of them.
    """

    def __init__(self, requests_max: int | None = None) -> None:
        self.counts = Counts()
        self._requests_max = requests_max
        self._sessions = {0: _Session(self.counts, requests_max)}

    def rows(self, item: Record | Damage) -> Iterator[Row]:
        """Yield the rows of the next record, or of the damage in its place."""
        sessions, counts = self._sessions, self.counts
        if isinstance(item, Damage):
            counts.damage += 1
            yield Row(kind=item.kind, what=f"line {item.line}", outcome="error", note=item.text)
            return
        if item.channel not in sessions:  # request ids are unique within a session only
            sessions[item.channel] = _Session(
                counts, self._requests_max, is_of_client=sessions[0].is_of_client
            )
        session = sessions[item.channel]
        counts.records += 1
        if item.kind in {"in", "out"}:
            rows = session.message_rows(item)
        else:
            rows = [session.other_row(item)]
        for row in rows:
            if row.request is None:
                row = _with_request(row, session.request_of_lane(item))
            if row.outcome == "error":
                counts.errors += 1
            if row.protocol_version is not None:
                counts.protocol_versions[row.protocol_version] = None
            yield msgspec.structs.replace(
                row,
                record=item.number,
                kind=item.kind,
                ms=round(item.time_ns / _NS_PER_MS, 3),
                channel=item.channel or None,
                lane=item.lane,
            )


# Which rows to show.
#
# A *window* (channel, kinds, begin, end) hides all rows outside of it. A *condition* (lane, method,
# id, slower_than, errors) is about what happened: a row that meets all conditions is shown together
# with the request that it is about, and the response to that.

_MS_PER_SECOND: Final = 1000


class Bound(msgspec.Struct, frozen=True):
    """One end of a window: a record's number, or seconds since the beginning."""

    value: float
    is_seconds: bool

    def position_of(self, row: Row) -> float:
        """Return the row's number or seconds, for comparison with `value`."""
        if self.is_seconds:
            return (row.ms or 0.0) / _MS_PER_SECOND
        return row.record or 0


def parse_bound(_: click.Context, __: click.Parameter, text: str | None) -> Bound | None:
    """Parse a bound: `12` is a record, `1.5s` a time."""
    if text is None:
        return None
    number, is_seconds = text.removesuffix("s"), text.endswith("s")
    try:
        return Bound(float(number) if is_seconds else int(number), is_seconds)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither a record (12) nor a time in seconds (1.5s)"
        ) from None


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of rows of a timeline; None and empty values select every row."""

    at: int | None = None
    channel: int | None = None
    lane: str | None = None
    method: str | None = None
    id: str | None = None
    slower_than: float | None = None
    errors: bool = False
    kinds: Collection[str] = ()
    begin: Bound | None = None
    end: Bound | None = None

    def rows(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows to show, in order."""
        in_window = [
            row
            for row in rows
            if (self.channel is None or (row.channel or 0) == self.channel)
            and (not self.kinds or row.kind in self.kinds)
            and (self.begin is None or self.begin.value <= self.begin.position_of(row))
            and (self.end is None or self.end.position_of(row) <= self.end.value)
        ]
        chosen = {
            index
            for index, row in enumerate(in_window)
            if (self.at is None or row.record == self.at)
            and (self.lane is None or _is_in_lane(row, self.lane))
            and (self.method is None or fnmatchcase(row.method or "", self.method))
            and (self.id is None or str(row.id) == self.id)
            and (self.slower_than is None or (row.took_ms or 0.0) > self.slower_than)
            and (not self.errors or row.outcome == "error")
        }
        calls = {in_window[index].call for index in chosen} - {None}
        for index, row in enumerate(in_window):
            is_request_or_response = row.id is not None and row.kind in {"in", "out"}
            if index in chosen or (row.call in calls and is_request_or_response):
                yield row


def _is_in_lane(row: Row, lane: str) -> bool:
    """Return whether a row is in the lane or one of its children, or is about its request."""
    row_lane = row.lane or ""
    if row_lane == lane or row_lane.startswith(f"{lane}."):
        return True
    return lane in {f"r{row.request}", f"r{row.first_request}"}


# Calls that took several round trips, because the server asked the client for input.

_CALL_COLUMNS: Final = (
    Column("record", "right"),
    Column("ms", "right"),
    Column(""),
    Column("what"),
    Column("note"),
)


def multi_round_trip_calls(rows: Iterable[Row]) -> list[list[Row]]:
    """Return the rows of the messages of each call that took several round trips."""
    calls: dict[tuple[int | None, int | None], list[Row]] = {}
    for row in rows:
        if row.direction is not None:
            calls.setdefault((row.channel, row.call), []).append(row)
    return [rows for rows in calls.values() if any(row.first_request for row in rows)]


def heading_of_call(rows: Sequence[Row]) -> str:
    """Return the first request of a call, the number of its round trips, and their time."""
    rounds = max(row.round or 1 for row in rows)
    took_ms = (rows[-1].ms or 0.0) - (rows[0].ms or 0.0)
    return f"{rows[0].what}: {rounds} round{'' if rounds == 1 else 's'} in {took_ms:.1f} ms"


def print_calls(calls: Iterable[Sequence[Row]]) -> None:
    """Print the messages of each call below its heading."""
    for rows in calls:
        click.echo(styled(printable(heading_of_call(rows)), bold=True))
        lines = [
            Line((str(row.record), f"{row.ms:.1f}", ARROWS[row.direction], row.what, row.note))
            for row in rows
        ]
        print_table(_CALL_COLUMNS, lines)
        click.echo()


# The summary: counts and times for each method, the slowest requests, and totals.

SLOWEST_MAX: Final = 3
_WHAT_COLUMNS_MAX: Final = 60
_METHOD_COLUMNS: Final = (
    Column("method"),
    Column("requests", "right"),
    Column("answers", "right"),
    Column("errors", "right"),
    Column("cancelled", "right"),
    Column("median ms", "right"),
    Column("slowest ms", "right"),
)


@attrs.define
class Exchange:
    """A request, and how it ended."""

    method: str
    what: str
    record: int
    took_ms: float | None = None
    is_error: bool = False
    was_cancelled_by_peer: bool = False
    had_cancelled_operation: bool = False

    @property
    def is_cancelled(self) -> bool:
        """True if the request itself was cancelled, not only an operation or a task in it."""
        has_stopped = self.had_cancelled_operation and self.took_ms is None
        return self.was_cancelled_by_peer or has_stopped


def exchanges(rows: Iterable[Row]) -> list[Exchange]:
    """Return the requests of a timeline, in order; those of a batch are distinguished by id."""
    by_record: dict[int, dict[int | str | None, Exchange]] = {}
    for row in rows:
        if row.request is None:
            continue
        by_id = by_record.setdefault(row.request, {})
        if row.record == row.request:
            by_id[row.id] = Exchange(row.method or "", row.what, row.request)
        elif row.id in by_id or len(by_id) == 1:
            exchange = by_id.get(row.id) or next(iter(by_id.values()))
            if row.outcome == "cancelled":
                exchange.was_cancelled_by_peer |= row.kind != "cxl"
                # Only in the request's own lane: that of a child task has a dot, such as r12.1.
                exchange.had_cancelled_operation |= "." not in (row.lane or ".")
            elif row.took_ms is not None:
                exchange.took_ms = row.took_ms
                exchange.is_error = row.outcome == "error"
    return [exchange for by_id in by_record.values() for exchange in by_id.values()]


def method_lines(found: Iterable[Exchange]) -> list[Line]:
    """Return a line for each method, the most frequent first."""
    by_method: dict[str, list[Exchange]] = {}
    for exchange in found:
        by_method.setdefault(exchange.method, []).append(exchange)
    lines: list[Line] = []
    for group in sorted(by_method.values(), key=len, reverse=True):
        times = [exchange.took_ms for exchange in group if exchange.took_ms is not None]
        errors = sum(exchange.is_error for exchange in group)
        cancelled = sum(exchange.is_cancelled for exchange in group)
        counts = map(str, (len(group), len(times), errors, cancelled))
        slow = (_ms(median(times)), _ms(max(times))) if times else ("", "")
        lines.append(Line((group[0].method, *counts, *slow)))
    return lines


def slowest(found: Iterable[Exchange]) -> str:
    """Return the slowest answered requests in one line; empty if there are none."""
    answered = [(each.took_ms, each) for each in found if each.took_ms is not None]
    answered.sort(key=lambda pair: pair[0], reverse=True)
    return "; ".join(
        f"{took_ms:.1f} ms {shortened(printable(each.what), _WHAT_COLUMNS_MAX)}"
        f" (record {each.record})"
        for took_ms, each in answered[:SLOWEST_MAX]
    )


def totals(counts: Counts) -> str:
    """Return the counts in one line."""
    numbers = attrs.asdict(counts, filter=lambda _, value: isinstance(value, int))
    texts = [f"{name} {number}" for name, number in numbers.items()]
    if counts.protocol_versions:
        texts.append(f"protocol version {', '.join(counts.protocol_versions)}")
    return ", ".join(texts)


# Printing.

# Before the record's number, for output without colours.
_OUTCOME_SIGNS: Final[Mapping[Outcome | None, str]] = {"error": "!", "cancelled": "~", None: ""}

# The text of each column for a row.
_COLUMNS: Final[Mapping[Column, Callable[[Row], str]]] = {
    Column("record", "right"): lambda row: _OUTCOME_SIGNS[row.outcome] + cell_text(row.record),
    Column("ms", "right"): lambda row: _ms(row.ms),
    Column("channel", "right"): lambda row: cell_text(row.channel),
    Column("client"): lambda row: row.client or "",
    Column("lane"): lambda row: row.lane or "",
    Column("kind"): lambda row: row.kind,
    Column(""): lambda row: ARROWS[row.direction],
    Column("what", screen_columns_max=48): lambda row: row.what,
    Column("id", "right"): lambda row: cell_text(row.id),
    Column("bytes", "right"): lambda row: cell_text(row.size_bytes),
    Column("took ms", "right"): lambda row: _ms(row.took_ms),
    Column("trace", screen_columns_max=8): lambda row: row.trace or "",
    Column("note"): lambda row: row.note,
}


def print_timeline(
    file: str | os.PathLike[str], selection: Selection | None = None, *, with_messages: bool = False
) -> None:
    """Print a recording as a table, with a summary.

    Raises:
        RecordingError: The file is not a recording.
    """
    rows, counts, messages = read_rows(file, with_messages=with_messages)
    # These columns are shown only if rows differ in them.
    differs = {
        "channel": any(row.channel is not None for row in rows),
        "client": len({row.client for row in rows} - {None}) > 1,
        "trace": any(row.trace is not None for row in rows),
    }
    columns = {column: text for column, text in _COLUMNS.items() if differs.get(column.name, True)}
    shown = list(selection.rows(rows) if selection else rows)
    lines = [
        Line(
            tuple(text(row) for text in columns.values()),
            OUTCOME_COLOURS[row.outcome],
            messages.pop(row.record, None),  # of a batch, below its first row
        )
        for row in shown
    ]
    print_table(list(columns), lines)
    click.echo()
    print_calls(multi_round_trip_calls(shown))

    found = exchanges(rows)
    if found:
        print_table(_METHOD_COLUMNS, method_lines(found))
        click.echo()
    if slow := slowest(found):
        echo_text(f"slowest: {slow}")
    if len(shown) < len(rows):
        click.echo(f"shown: {len(shown)} of {len(rows)} rows; the summary is of all of them")
    echo_text(totals(counts))


def read_rows(
    file: str | os.PathLike[str], *, with_messages: bool = False
) -> tuple[list[Row], Counts, dict[int | None, str]]:
    """Return all rows of a recording, its counts, and the texts of its messages by record number.

    There are texts only with `with_messages`.

    Raises:
        RecordingError: The file is not a recording.
    """
    timeline, rows, messages = Timeline(), list[Row](), dict[int | None, str]()
    for item in records_of(file):
        rows += timeline.rows(item)
        if with_messages and not isinstance(item, Damage) and item.kind in {"in", "out"}:
            messages[item.number] = printable(json_text(body_bytes(item) or b""))
    return rows, timeline.counts, messages


def cell_text(value: int | str | None) -> str:
    """Return the text for a cell of a table; None is an empty one."""
    return "" if value is None else str(value)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
