"""The calls in a recording: the requests of its client, with duration and outcome of each.

A recorder that decides which sessions to keep follows the calls while they happen, and the
catalogue reads them from the file. Both use `CallTracker`, so they agree on what an error is.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from mcp_trio._journal.conversation import CANCELLED, members_of
from mcp_trio._journal.records import (
    DENIED_MARK,
    LOST_MARK,
    Record,
    body_bytes,
    message_position,
    messages_in,
)
from mcp_trio.errors import INTERNAL_ERROR, TOO_MANY_REQUESTS, RecordingError

ErrorKind = Literal[
    "", "tool", "protocol", "internal", "timeout", "denied", "limited", "cancelled", "unanswered"
]
"""The outcome of a call; "" for a result without `isError`.

- tool: a result with `isError`;
- protocol: an error response, or a proxy's note that the server does not respond;
- internal: an unexpected exception of the handler; timeout: the handler's time was over;
- denied: an access rule rejected the client; limited: the client has to wait;
- cancelled: the client withdrew the request; unanswered: the recording ends before a response.
"""

ERROR_KINDS: Final[Sequence[ErrorKind]] = tuple(kind for kind in get_args(ErrorKind) if kind)

NO_ERROR_KINDS: Final[frozenset[ErrorKind]] = frozenset({"", "cancelled", "unanswered"})
"""The outcomes that do not count as errors."""

# A result does not name the kind of its error. So two kinds are recognized by the text that the
# server gives them (in `_session/handlers.py` and `_server/handlers.py`): an internal error by its
# beginning, a timeout by a part of it.
INTERNAL_ERROR_PREFIX: Final = "internal error in "
_TIMEOUT_PHRASE: Final = "timed out: it did not finish within"

# The names of marks as JSON; searching for these bytes costs less than decoding each mark.
_DENIED: Final = f'"{DENIED_MARK}"'.encode()
_LOST: Final = f'"{LOST_MARK}"'.encode()

_KIND_OF_CODE: Final[Mapping[int, ErrorKind]] = {
    INTERNAL_ERROR: "internal",
    TOO_MANY_REQUESTS: "limited",
}
# Requests beyond this number of open ones are not followed.
_OPEN_CALLS_MAX: Final = 100_000


class Call(msgspec.Struct, kw_only=True):
    """A request of the client, and its outcome.

    Attributes:
        record: The number of the record with the request.
        channel: The session in a shared recording.
        method: The method, such as `tools/call`.
        name: The name of the tool or prompt, or the URI of the resource; empty for other methods.
        begin_ns: The time of the request, in nanoseconds since the recording began.
        duration_ns: The nanoseconds until the response.
        principal: The authenticated sender; empty without authentication.
        trace_id: The trace id of the request's `traceparent`; empty without one.
        error: The kind of error; empty if the call succeeded.
        text: The text of the error.
    """

    record: int
    channel: int
    method: str
    name: str
    begin_ns: int
    duration_ns: int = 0
    principal: str = ""
    trace_id: str = ""
    error: ErrorKind = ""
    text: str = ""


class _Meta(msgspec.Struct):
    traceparent: Any = ""


class _Params(msgspec.Struct):
    name: Any = ""
    uri: Any = ""
    request_id: Any = msgspec.field(name="requestId", default=None)
    # A server may overlook a `_meta` that is no object: it must not hide the call.
    meta: msgspec.Raw = msgspec.field(name="_meta", default=msgspec.Raw(b""))


class _Error(msgspec.Struct):
    code: int = 0
    message: str = ""


class _Block(msgspec.Struct):
    text: Any = ""


class _Result(msgspec.Struct):
    is_error: Any = msgspec.field(name="isError", default=False)
    content: msgspec.Raw = msgspec.Raw(b"[]")
    input_requests: Any = msgspec.field(name="inputRequests", default=None)


class _Message(msgspec.Struct):
    method: Any = None
    id: Any = None
    params: _Params | None = None
    result: _Result | None = None
    error: _Error | None = None


class _LostRequest(msgspec.Struct):
    id: Any
    error: str


class _LostMark(msgspec.Struct):
    name: Literal["lost"]
    value: _LostRequest


_Position: TypeAlias = tuple[int, int]
"""The number of the record with a request, and the position of the request in a batch."""

_DECODE: Final = msgspec.json.Decoder(_Message).decode
_DECODE_META: Final = msgspec.json.Decoder(_Meta).decode
_DECODE_BLOCKS: Final = msgspec.json.Decoder(list[_Block]).decode
_NO_CALLS: Final[Sequence[Call]] = ()


class CallTracker:
    """A tracker of the calls in the records of one recording, which are added in order.

    `role` is the role in the `open` record: a client records its own requests as `out`.
    """

    def __init__(self, role: str) -> None:
        self._is_proxy = role == "proxy"
        self._request_kind = "out" if role == "client" else "in"
        self._response_kind = "in" if role == "client" else "out"
        # A peer may use an id again before the first request is answered, which is an error.
        self._open: dict[tuple[int, Any], list[tuple[Call, _Position]]] = {}
        self._open_count = 0
        self._denied: set[_Position] = set()

    def add(self, record: Record) -> Sequence[Call]:
        """Return the calls that end with this record."""
        kind = record.kind
        if kind == self._request_kind:
            return self._add_requests(record)
        if kind == self._response_kind:
            return self._add_responses(record) if self._open else _NO_CALLS
        if kind != "mark":
            return _NO_CALLS
        if self._is_proxy:
            return self._add_lost(record)
        if record.lane is not None and _DENIED in (body_bytes(record) or b""):
            position = message_position(record.lane)
            if position is not None:
                self._denied.add(position)
        return _NO_CALLS

    def unanswered(self, time_ns: int) -> list[Call]:
        """Return the calls that have no response, at the end of the recording."""
        calls = [call for same_id in self._open.values() for call, _ in same_id]
        for call in calls:
            call.error, call.duration_ns = "unanswered", time_ns - call.begin_ns
        return calls

    def _add_requests(self, record: Record) -> Sequence[Call]:
        ended: list[Call] = []
        for position, message in _messages(record):
            params = message.params or _Params()
            if not isinstance(message.method, str):
                continue
            if message.method == CANCELLED:
                cancelled = self._take(_key(record.channel, params.request_id))
                if cancelled is not None:
                    call = cancelled[0]
                    call.error, call.duration_ns = "cancelled", record.time_ns - call.begin_ns
                    ended.append(call)
            elif message.id is not None and self._open_count < _OPEN_CALLS_MAX:
                envelope = record.envelope or {}
                call = Call(
                    record=record.number,
                    channel=record.channel,
                    method=message.method,
                    name=_string(params.name) or _string(params.uri),
                    begin_ns=record.time_ns,
                    principal=_string(envelope.get("principal")),
                    trace_id=_trace_id_in(params.meta),
                )
                key = _key(record.channel, message.id)
                self._open.setdefault(key, []).append((call, (record.number, position)))
                self._open_count += 1
        return ended

    def _add_lost(self, record: Record) -> Sequence[Call]:
        """Return the call that has failed with this mark of a proxy, if it is about one."""
        body = body_bytes(record) or b""
        if _LOST not in body:
            return _NO_CALLS
        try:
            mark = msgspec.json.decode(body, type=_LostMark)
        except ValueError:  # another mark, with this text in its value
            return _NO_CALLS
        lost = self._take(_key(record.channel, mark.value.id))
        if lost is None:
            return _NO_CALLS
        call, _ = lost
        call.duration_ns = record.time_ns - call.begin_ns
        call.error, call.text = "protocol", mark.value.error
        return [call]

    def _add_responses(self, record: Record) -> Sequence[Call]:
        ended: list[Call] = []
        handled = None if record.lane is None else message_position(record.lane)
        for _, message in _messages(record):
            if message.method is not None:
                continue
            answered = self._take(_key(record.channel, message.id), handled)
            if answered is None:
                continue
            call, position = answered
            call.duration_ns = record.time_ns - call.begin_ns
            call.error, call.text = _error_in(message)
            if position in self._denied:
                self._denied.discard(position)
                call.error = "denied" if call.error else ""
            ended.append(call)
        return ended

    def _take(
        self, key: tuple[int, Any], handled: _Position | None = None
    ) -> tuple[Call, _Position] | None:
        """Remove and return the open call with an id; None if there is none.

        Of several it is the one that the lane of the record handles, or else the latest, because a
        server rejects the later ones at once.
        """
        same_id = self._open.get(key)
        if same_id is None:
            return None
        index = -1
        if handled is not None:
            positions = [position for _, position in same_id]
            index = positions.index(handled) if handled in positions else -1
        found = same_id.pop(index)
        if not same_id:
            del self._open[key]
        self._open_count -= 1
        return found


def trace_id_of(traceparent: object) -> str:
    """Return the trace id in a `traceparent`; "" if there is none.

    https://www.w3.org/TR/trace-context/#traceparent-header
    """
    _, _, rest = _string(traceparent).partition("-")
    trace_id, dash, _ = rest.partition("-")
    return trace_id if dash else ""


def _trace_id_in(meta: msgspec.Raw) -> str:
    if meta:
        with suppress(ValueError, RecursionError):
            return trace_id_of(_DECODE_META(meta).traceparent)
    return ""


def read_outcome(response: bytes) -> tuple[ErrorKind, int | None, str, list[str]]:
    """Return the kind of error in a response, its code, its text, and the methods of questions."""
    try:
        message = _DECODE(response)
    except (ValueError, RecursionError):
        return "", None, "", []
    error, text = _error_in(message)
    input_requests = None if message.result is None else message.result.input_requests
    questions = members_of(input_requests).values()
    asked = [_string(members_of(each).get("method")) for each in questions]
    return error, None if message.error is None else message.error.code, text, asked


def _error_in(message: _Message) -> tuple[ErrorKind, str]:
    """Return the kind and the text of the error in a response; "" if there is none."""
    if message.error is not None:
        return _KIND_OF_CODE.get(message.error.code, "protocol"), message.error.message
    if message.result is None or message.result.is_error is not True:
        return "", ""
    text = ""
    with suppress(ValueError, RecursionError):
        blocks = _DECODE_BLOCKS(message.result.content)
        text = "\n".join(_string(block.text) for block in blocks)
    if _TIMEOUT_PHRASE in text:
        return "timeout", text
    return "internal" if text.startswith(INTERNAL_ERROR_PREFIX) else "tool", text


def _key(channel: int, request_id: Any) -> tuple[int, Any]:
    """Return the key of a request in `CallTracker`; an invalid id counts as None."""
    return channel, request_id if isinstance(request_id, int | str) else None


def _string(value: Any) -> str:
    """Return a string as it is; empty for any other value."""
    return value if isinstance(value, str) else ""


def _messages(record: Record) -> Iterator[tuple[int, _Message]]:
    """Yield the messages of a record that can be decoded, each with its position in the batch."""
    try:
        body = body_bytes(record) or b""
    except RecordingError:
        return
    for position, each in enumerate(messages_in(body)):
        try:
            yield position, _DECODE(each)
        except (ValueError, RecursionError):
            continue
