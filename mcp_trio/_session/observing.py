"""Observers: logs, metrics, traces and the audit log of what the sessions of a program do.

A session reports each of its activities to its observers: the session itself, the requests of the
peer, the requests that this side sends, and the effects of handlers. An observer is notified when
an activity begins, and returns the function to call with its outcome.

Observers run in the reader, the dispatcher and the handlers of a session, so they must return at
once. An exception of an observer is logged, and changes nothing for the session. They see what a
session does, but nothing of theirs is recorded or sent: they run without the lane of the handler,
so the clocks and random numbers that they use are their own. A replay has no observers, unless an
observer has `observes_replays`.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, TypeAlias
from weakref import WeakKeyDictionary

import attrs
import msgspec
import trio

from mcp_trio._journal.calls import ErrorKind, read_outcome, trace_id_of
from mcp_trio._journal.conversation import members_of
from mcp_trio._protocol.connection import ImmediateResponse
from mcp_trio._protocol.metadata import TRACE, Peer
from mcp_trio._protocol.requests import IncomingRequest
from mcp_trio._session.lanes import without_lane
from mcp_trio.errors import RequestError, RequestTimeout
from mcp_trio.types import CallToolResult, RequestId

if TYPE_CHECKING:
    from contextvars import Token

    from mcp_trio._session.session import Session

logger = logging.getLogger("mcp_trio")

ActivityKind = Literal["session", "request", "call", "effect"]

# An observer, or what it has returned, may show the arguments of requests in its `repr`.
_FAILED: Final = "the observer %s failed"
_NO_TRACE: Final[Mapping[str, str]] = {}


@attrs.define(kw_only=True, eq=False)
class Activity:
    """Something that a session does, which begins and ends.

    Attributes:
        kind: "session"; "request": a request of the peer; "call": a request to the peer; "effect":
            an effect of a handler.
        name: The method of a request or call, the name of an effect, the transport of a session.
        session: The session.
        params: The params of a request or call: a struct of `mcp_trio.types`, a mapping, or None.
        request_id: The id of a request; of a call, as soon as it is sent.
        peer: The peer, as far as it is known; it has the principal and the trace context.
        record: The number of the record with the request or call, or of an effect's command; for a
            value, such as a time, that of the request that reads it; None without a recording.
        size_bytes: The size of a request.
        is_denied: True as soon as an access rule has rejected the request.
        scopes: Functions that return context managers in which the activity's code runs; an
            observer may add one when the activity begins.
        outer: The request whose handler runs the effect.
        span_trace_id: The trace id of the span that an observer has begun for it; "" without one.
    """

    kind: ActivityKind
    name: str
    session: "Session"
    params: Any = None
    request_id: RequestId | None = None
    peer: Peer | None = None
    record: int | None = None
    size_bytes: int = 0
    is_denied: bool = False
    scopes: list[Callable[[], AbstractContextManager[object]]] = attrs.field(
        factory=list[Callable[[], AbstractContextManager[object]]]
    )
    outer: "Activity | None" = None
    span_trace_id: str = ""

    @property
    def target(self) -> str:
        """The name of the tool or prompt, or the URI of the resource; "" for other methods."""
        params: Any = self.params
        members = members_of(params)
        target: object = None
        for name in ("name", "uri"):
            target = target or members.get(name) or getattr(params, name, None)
        return target if isinstance(target, str) else ""

    @property
    def principal(self) -> str:
        """The name of the authenticated sender of a request; "" without authentication."""
        return (None if self.peer is None else self.peer.principal) or ""

    @property
    def trace(self) -> Mapping[str, str]:
        """The trace context that came with a request: `traceparent`, `tracestate`, `baggage`."""
        if self.kind != "request":
            return _NO_TRACE
        if self.peer is not None and self.peer.trace:
            return self.peer.trace
        return getattr(self.params, "meta", None) or _NO_TRACE

    @property
    def trace_id(self) -> str:
        """The trace id of its span, else that of the `traceparent` that came with it, or ""."""
        return self.span_trace_id or trace_id_of(self.trace.get("traceparent"))

    @property
    def recording(self) -> Path | None:
        """The file of the session's recording; None if the session is not recorded.

        Under a `RecordPolicy` that forgets sessions, the file exists only if it is kept.
        """
        recorder = getattr(self.session.sequencer, "recorder", None)
        return None if recorder is None else recorder.path

    @property
    def session_id(self) -> str:
        """The id of the session in its recording; "" if the session is not recorded."""
        recorder = getattr(self.session.sequencer, "recorder", None)
        return "" if recorder is None else recorder.session_id


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an activity.

    Attributes:
        error: The kind of error, as in queries of `mcp-trio find`; "" for success. For an effect,
            the class of the exception.
        code: The code of an error response.
        text: The text of the error.
        size_bytes: The size of the response to a request.
        asked: The methods of the questions to the client, if the response asks for input.
        seconds: The duration.
    """

    error: ErrorKind | str = ""
    code: int | None = None
    text: str = ""
    size_bytes: int = 0
    asked: Sequence[str] = ()
    seconds: float = 0.0


End: TypeAlias = Callable[[Outcome], object]


class HttpActivity(msgspec.Struct, kw_only=True, eq=False):
    """A request over HTTP to a server, from its headers to the end of its response.

    It may bring a message of a session, whose requests are activities of their own, or be rejected
    before it reaches a session.

    Attributes:
        method: The HTTP method.
        path: The path, without the query.
        route: The path of the endpoint that answers; "" for a route of the user, or none.
        scheme: `http` or `https`.
        is_mounted: Whether it came through an ASGI server, which may have a span for it.
        trace: The trace context in the headers: `traceparent`, `tracestate`, `baggage`.
        span_trace_id: The trace id of the span that an observer has begun for it; "" without one.
        forwarded_trace: Set by an observer that has begun a span for it. Given the trace context in
            the `_meta` of its MCP request, returns that of the span, for another instance.
    """

    method: str
    path: str
    route: str
    scheme: str
    is_mounted: bool
    trace: Mapping[str, str]
    span_trace_id: str = ""
    forwarded_trace: Callable[[Mapping[str, str]], Mapping[str, str]] | None = None

    @property
    def trace_id(self) -> str:
        """The trace id of its span, else that of the `traceparent` that came with it, or ""."""
        return self.span_trace_id or trace_id_of(self.trace.get("traceparent"))


class HttpOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a request over HTTP.

    Attributes:
        status: The status of the response; None if the client disconnected before it.
        rejection: Why the request was rejected before it reached a session; "" if it was not.
        principal: The name of the authenticated sender; "" without authentication.
        seconds: The duration.
    """

    status: int | None
    rejection: str = ""
    principal: str = ""
    seconds: float = 0.0


EndHttp: TypeAlias = Callable[[HttpOutcome], object]


class Observer(Protocol):
    """An observer of sessions: `Server(observers=[…])`, `Client(observers=[…])`.

    An observer may also be a context manager, which is entered while a server serves or a client is
    open. It may have a method `begin_http(activity: HttpActivity) -> EndHttp | None`, which is
    called for each request over HTTP to a server, and `begin_forwarded(activity)`, which is called
    for such a request on the instance that owns its session, if another one has received it. It may
    have `observes_replays = True`. What its method `trace_context` returns is the trace context of
    a client's requests, and of the requests of handlers by `Context.http`.
    """

    def begin(self, activity: Activity) -> End | None:
        """Note that an activity begins; return the function to call with its outcome, if any.

        It is called in the event loop, and must return at once; for an effect of a handler that
        runs in a thread, it is called in that thread.
        """
        ...


CURRENT_ACTIVITY: Final[ContextVar[Activity | None]] = ContextVar("mcp_trio_activity", default=None)
"""The request whose handler runs, or the call or effect that it waits for, if it is observed."""


class Observation:
    """An observed activity; a context manager in which the code of the activity runs."""

    __slots__ = ("_began", "_clock", "_ends", "_observers", "_scopes", "_token", "activity")

    def __init__(
        self, observers: "Observers", activity: Activity, clock: Callable[[], float]
    ) -> None:
        self.activity: Activity = activity
        self._observers = observers
        self._clock = clock
        self._scopes: ExitStack | None = None
        self._token: Token[Activity | None] | None = None
        with without_lane():
            self._ends: list[tuple[Observer, End]] = _begin_all(
                observers.observers, "begin", activity
            )
        self._began = clock()

    def __enter__(self) -> Self:
        self._token = CURRENT_ACTIVITY.set(self.activity)
        if self.activity.scopes:
            self._scopes = ExitStack()
            with without_lane():
                for scope in self.activity.scopes:
                    try:
                        self._scopes.enter_context(scope())
                    except Exception:
                        logger.exception("a scope of an observer failed")
        return self

    def __exit__(self, *_: object) -> None:
        if self._scopes is not None:
            with without_lane():
                try:
                    self._scopes.close()
                except Exception:
                    logger.exception("a scope of an observer failed")
        assert self._token is not None
        CURRENT_ACTIVITY.reset(self._token)

    def effect(self, name: str, record: int | None) -> "Observation":
        """Return the observation of an effect of the handler of this request.

        `record` is the number of the record with which it began, if it has one.
        """
        outer = self.activity
        return self._observers.begin(
            Activity(
                kind="effect",
                name=name,
                session=outer.session,
                record=outer.record if record is None else record,
                outer=outer,
            )
        )

    def trace_context(self) -> Mapping[str, str]:
        """Return the trace context of the code that calls this, as the observers have it."""
        found: dict[str, str] = {}
        with without_lane():
            for observer in self._observers.observers:
                read = getattr(observer, "trace_context", None)
                try:
                    found |= {} if read is None else read()
                except Exception:
                    logger.exception(_FAILED, type(observer).__name__)
        return found

    def closed(self, cause: str) -> None:
        """Note that the session has ended, for a cause as `Session.shut` has it."""
        self.end(Outcome(error="lost" if cause == "lost" else "", text=cause))

    def answered(self, answer: bytes | None) -> None:
        """Note that the request has ended with this response, or was cancelled without one."""
        if answer is None:
            self.end(Outcome(error="cancelled"))
            return
        error, code, text, asked = read_outcome(answer)
        if self.activity.is_denied and error:
            error = "denied"
        self.end(Outcome(error=error, code=code, text=text, size_bytes=len(answer), asked=asked))

    def returned(self, result: object) -> None:
        """Note that the call has ended with a result."""
        is_error = isinstance(result, CallToolResult) and result.is_error
        self.end(Outcome(error="tool" if is_error else ""))

    def raised(self, error: BaseException | None) -> None:
        """Note that the call or effect has ended with this exception, if any."""
        if error is None:
            self.end(Outcome())
        elif self.activity.kind == "effect":
            self.end(Outcome(error=type(error).__name__, text=_text_of(error)))
        elif isinstance(error, RequestError):
            self.end(Outcome(error="protocol", code=error.code, text=error.message))
        elif isinstance(error, trio.Cancelled):
            self.end(Outcome(error="cancelled"))
        else:
            is_timeout = isinstance(error, RequestTimeout)
            kind = "timeout" if is_timeout else "unanswered"
            self.end(Outcome(error=kind, text=_text_of(error)))

    def end(self, outcome: Outcome) -> None:
        """Report the outcome; only the first call counts."""
        ends, self._ends = self._ends, []
        if not ends:
            return
        outcome = msgspec.structs.replace(outcome, seconds=self._clock() - self._began)
        with without_lane():
            _end_all(ends, outcome)


def _begin_all(observers: Iterable[Observer], method: str, activity: object) -> list[Any]:
    """Call this method of the observers; return those that returned a function, with that."""
    ends: list[Any] = []
    for observer in observers:
        try:
            end = getattr(observer, method)(activity)
        except Exception:
            logger.exception(_FAILED, type(observer).__name__)
        else:
            if end is not None:
                ends.append((observer, end))
    return ends


def _end_all(ends: Iterable[tuple[Observer, Callable[[Any], object]]], outcome: object) -> None:
    for observer, end in ends:
        try:
            end(outcome)
        except Exception:
            logger.exception(_FAILED, type(observer).__name__)


def _text_of(error: BaseException) -> str:
    """Return the text of an exception; that of a user may fail to make one."""
    try:
        return str(error)
    except Exception:
        return ""


class _TracedParams(msgspec.Struct):
    meta: dict[str, Any] = msgspec.field(name="_meta", default_factory=dict[str, Any])


class _TracedMessage(msgspec.Struct):
    params: _TracedParams = msgspec.field(default_factory=_TracedParams)


class HttpObservation:
    """An observed request over HTTP.

    Attributes:
        activity: The request.
        status: The status of the response, as soon as it begins.
    """

    __slots__ = ("_began", "_ends", "activity", "status")

    def __init__(self, observers: Iterable[Observer], activity: HttpActivity) -> None:
        self.activity = activity
        self.status: int | None = None
        able = [each for each in observers if hasattr(each, "begin_http")]
        self._ends: list[tuple[Observer, EndHttp]] = _begin_all(able, "begin_http", activity)
        self._began = time.perf_counter()

    def forwarded_trace(self, body: bytes) -> Mapping[str, str]:
        """Return the trace context with which to forward the request, with this body, if any."""
        read = self.activity.forwarded_trace
        if read is None:
            return _NO_TRACE
        try:
            meta = msgspec.json.decode(body, type=_TracedMessage).params.meta
        except ValueError:  # a batch, or no message
            meta = {}
        try:
            return read({name: meta[name] for name in TRACE if isinstance(meta.get(name), str)})
        except Exception:
            logger.exception("an observer failed")
            return _NO_TRACE

    def end(self, rejection: str = "", principal: str = "") -> None:
        """Report the outcome."""
        outcome = HttpOutcome(
            status=self.status,
            rejection=rejection,
            principal=principal,
            seconds=time.perf_counter() - self._began,
        )
        _end_all(self._ends, outcome)


def begin_forwarded(observers: Iterable[Observer], activity: HttpActivity) -> None:
    """Report a request over HTTP that another instance has received and forwarded to this one."""
    able = [each for each in observers if hasattr(each, "begin_forwarded")]
    _begin_all(able, "begin_forwarded", activity)


@attrs.frozen(eq=False)
class Observers:
    """The observers of a session, in their order.

    Attributes:
        observers: The observers.
        clock: Returns the seconds by which durations are measured.
    """

    observers: Sequence[Observer]
    clock: Callable[[], float] = time.perf_counter

    def begin(self, activity: Activity) -> Observation:
        """Report that an activity begins."""
        return Observation(self, activity, self.clock)

    def begin_session(self, session: "Session") -> Observation:
        """Report that a session begins."""
        channel: object = session.channel
        transport = getattr(channel, "transport", type(channel).__name__)
        return self.begin(Activity(kind="session", name=transport, session=session))

    def begin_call(self, session: "Session", method: str, params: Any) -> Observation:
        """Report that this side sends a request."""
        peer = session.connection.peer
        return self.begin(
            Activity(kind="call", name=method, session=session, params=params, peer=peer)
        )

    def begin_request(
        self, session: "Session", request: IncomingRequest, number: int | str
    ) -> Observation:
        """Report that a request of the peer has arrived, in the message that has this number."""
        return self.begin(
            Activity(
                kind="request",
                name=request.method.name,
                session=session,
                params=request.params,
                request_id=request.id,
                peer=request.peer,
                record=_record_of(number, session),
                size_bytes=request.size_bytes,
            )
        )

    def answered(self, session: "Session", reply: ImmediateResponse, number: int | str) -> None:
        """Report a request that the protocol itself has answered at once, or rejected."""
        activity = Activity(
            kind="request",
            name=reply.method,
            session=session,
            params=reply.params,
            request_id=reply.id,
            peer=reply.peer or session.connection.peer,
            record=_record_of(number, session),
        )
        self.begin(activity).answered(reply.message)


def _record_of(number: int | str, session: "Session") -> int | None:
    """Return the number of the record with a message; None if nothing is recorded."""
    return int(str(number).partition("-")[0]) if session.sequencer.has_lanes else None


def observers_of(observers: Iterable[Observer], *, replays: bool = False) -> Observers | None:
    """Return the observers of a session; None if there are none, as in most replays."""
    chosen = [each for each in observers if not replays or getattr(each, "observes_replays", False)]
    return Observers(chosen) if chosen else None


def enter_observers(observers: Iterable[Observer]) -> ExitStack:
    """Enter those observers that are context managers; return what exits them.

    Raises:
        OSError: An observer cannot open its file.
    """
    with ExitStack() as stack:
        for each in observers:
            if isinstance(each, AbstractContextManager):
                stack.enter_context(each)
        return stack.pop_all()


# Gauges -----------------------------------------------------------------------------------------


class Load(msgspec.Struct, kw_only=True):
    """The sessions that are open now, and what waits in them.

    Attributes:
        sessions: Open sessions; all stateless requests over HTTP are one.
        running: Requests whose handlers run.
        queued: Requests that wait for a handler to start.
        suspended: Handlers that wait for the next request of a stateless client.
        send_queue_bytes: Bytes of messages that are not sent yet.
        unwritten_bytes: Bytes of records, by an estimate, that are not written yet.
        lost_records: Records that were lost since the program began, as the disk did not take them.
        paused_recordings: Recordings that only count, because a write has failed.
    """

    sessions: int = 0
    running: int = 0
    queued: int = 0
    suspended: int = 0
    send_queue_bytes: int = 0
    unwritten_bytes: int = 0
    lost_records: int = 0
    paused_recordings: int = 0


@attrs.define(eq=False, repr=False)
class OpenSessions:
    """The sessions that are open now, for gauges; an observer that others contain."""

    _open: set["Session"] = attrs.field(factory=set["Session"], init=False)
    _lost_before: int = attrs.field(default=0, init=False)
    # The part of that by recorder: another session may go on in the same recording.
    _counted: WeakKeyDictionary[Any, int] = attrs.field(
        factory=WeakKeyDictionary[Any, int], init=False
    )

    def begin(self, activity: Activity) -> End | None:
        """Add a session, until it ends."""
        if activity.kind != "session":
            return None
        session = activity.session
        self._open.add(session)

        def end(_: Outcome) -> None:
            self._open.discard(session)
            recorder = getattr(session.sequencer, "recorder", None)
            if recorder is not None and not any(
                getattr(each.sequencer, "recorder", None) is recorder for each in self._open
            ):
                self._lost_before += recorder.lost_records - self._counted.get(recorder, 0)
                self._counted[recorder] = recorder.lost_records

        return end

    def load(self) -> Load:
        """Return the numbers of now; may be called in any thread."""
        sessions = tuple(self._open)
        load = Load(sessions=len(sessions), lost_records=self._lost_before)
        recorders: set[Any] = set()
        for session in sessions:
            running, queued, suspended = session.handler_counts
            load.running += running
            load.queued += queued
            load.suspended += suspended
            load.send_queue_bytes += session.send_queue.queued_bytes
            recorders.add(getattr(session.sequencer, "recorder", None))
        for recorder in recorders - {None}:
            load.unwritten_bytes += recorder.waiting_bytes
            load.lost_records += recorder.lost_records - self._counted.get(recorder, 0)
            load.paused_recordings += recorder.is_paused
        return load
