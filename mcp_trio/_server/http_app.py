"""What stands over HTTP in the place of a server of our own: a recording, or somebody else's."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import Context
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar
from urllib.parse import parse_qs

import attrs
import msgspec
import trio

from mcp_trio._jsonrpc.messages import Malformed, Notification
from mcp_trio._jsonrpc.sse import Event
from mcp_trio._protocol.http_headers import JSON, Headers, HttpRequest
from mcp_trio._protocol.http_requests import (
    SESSION_ID,
    STATUS_OF_ERROR,
    Ending,
    Listening,
    Opening,
    Rejection,
    Stateless,
    ToSession,
)
from mcp_trio._protocol.requests import RequestId
from mcp_trio._protocol.security import HostCheck, is_preflight
from mcp_trio._protocol.websocket import upgrade_rejection
from mcp_trio._server.http_options import Verify
from mcp_trio._server.http_sessions import HttpSession, Runtime, TooManySessionsError
from mcp_trio._server.sockets import Door, verified
from mcp_trio._server.subscriptions import Audience
from mcp_trio._session.leader_followers import FirstStep, TaskPool, lead_all
from mcp_trio._transports.asgi import AsgiHost, Receive, Scope, Send
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.concurrency import Faults, TimerQueue, contained
from mcp_trio._transports.http_response import (
    AnswerStream,
    BodyTooLargeError,
    Carrier,
    Exchange,
    carried,
    until_gone,
)
from mcp_trio._transports.http_sessions import DuplicateIdError, SessionChannel, TooManyStreamsError
from mcp_trio._transports.websocket import Upgrade, Upgraded, accepted
from mcp_trio.errors import SERVER_BUSY
from mcp_trio.limits import Limits

if TYPE_CHECKING:
    from mcp_trio._server.http_sessions import StatelessSession


# --------------------
# One request to a served application, as the endpoints see it.


class RejectedError(Exception):
    """The request is answered with this refusal."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.text)
        self.rejection = rejection


class Asked(msgspec.Struct, eq=False):
    """An exchange, with who asks.

    Attributes:
        exchange: Where it is answered.
        head: What came before the body, with the principal.
        headers: What every answer to it has.
        bytes_max: How large its body may be.
    """

    exchange: Exchange
    head: HttpRequest
    headers: Headers
    bytes_max: int

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            RefusedError: It is too large.
            trio.BrokenResourceError: The client is gone.
        """
        try:
            return await self.exchange.body(self.bytes_max)
        except BodyTooLargeError:
            text = f"the body is larger than limits.messages.bytes_max ({self.bytes_max})"
            raise RejectedError(Rejection(status=413, text=text)) from None

    async def answer(self, status: int, headers: Headers = (), body: bytes = b"") -> None:
        """Give a whole answer.

        Raises:
            trio.BrokenResourceError: The client is gone.
        """
        await self.exchange.answer(status, [*headers, *self.headers], body)

    async def reject(self, rejection: Rejection) -> None:
        """Answer with an error.

        Raises:
            trio.BrokenResourceError: The client is gone.
        """
        headers = [("Content-Type", JSON), *rejection.headers]
        await self.answer(rejection.status, headers, rejection.body())


def only(asked: Asked, method: str) -> None:
    """Refuse every other method.

    Raises:
        RefusedError: It is another.
    """
    if asked.head.method != method:
        text = f"{asked.head.method} is not for this endpoint"
        raise RejectedError(Rejection(status=405, text=text, headers=[("Allow", method)]))


# --------------------
# The MCP endpoint: what is done for each kind of verdict.


T = TypeVar("T")

_ELSEWHERE: Final = f"this session lives in another process: route requests by {SESSION_ID}"


@attrs.define(eq=False)
class McpEndpoint:
    """One path for both eras; see the module.

    Attributes:
        runtime: The sessions.
        streams_answers: Answers in sessions are streams also where they could be JSON.
    """

    runtime: Runtime
    streams_answers: bool = attrs.field(kw_only=True, default=False)
    _timer_queue: TimerQueue = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._timer_queue = TimerQueue(self.runtime.server.limits.http.watch_after_seconds)

    async def respond(self, asked: Asked) -> None:
        """Answer one request.

        Raises:
            RefusedError: It is refused.
            trio.BrokenResourceError: The client is gone.
        """
        body = await asked.body() if asked.head.method == "POST" else b""
        if self.runtime.is_closing:
            raise RejectedError(closing())
        routing_result = self.runtime.endpoint.judge(asked.head, body)
        await _EFFECTS[type(routing_result)](self, asked, routing_result, body)

    async def reject(self, asked: Asked, rejection: Rejection, _body: bytes) -> None:
        """Nothing else happens; but a session that lives elsewhere has not ended (HTTP-51)."""
        if rejection.status == HTTPStatus.NOT_FOUND and await self._is_elsewhere(asked.head):
            rejection = attrs.evolve(
                rejection, status=HTTPStatus.MISDIRECTED_REQUEST, text=_ELSEWHERE
            )
        await asked.reject(rejection)

    async def _is_elsewhere(self, head: HttpRequest) -> bool:
        session_id = head.header(SESSION_ID)
        if session_id is None:
            return False
        return await self.runtime.sessions.is_elsewhere(session_id, head.principal)

    # Sessions.

    async def open(self, asked: Asked, opening: Opening, body: bytes) -> None:
        """Begin a session, whose id goes out with the first answer (HTTP-44)."""
        begun = begun_session(self.runtime, asked, opening.request.id)
        is_told = False
        try:
            stream = begun.channel.deliver(
                body,
                opening.request,
                [opening.request.id],
                is_narrow=not asked.head.takes_streams,
            )
            assert stream is not None
            await stream.news()  # a session that was refused has no id
            if begun.is_negotiated:
                self.runtime.sessions.agreed(begun)
            is_told = await self._carry(asked, begun, stream) and begun.is_negotiated
        finally:
            if not is_told:  # the client has no id to come back with
                begun.close()

    def deliver(self, asked: Asked, routing_result: ToSession, body: bytes) -> Awaitable[object]:
        """Give a message to its session; what is returned carries what is answered to it."""
        begun = self.runtime.sessions.used(routing_result.session)
        channel, awaited = begun.channel, routing_result.awaited
        if not awaited:
            channel.deliver(body, routing_result.message)
            return asked.answer(202, _named(begun))
        narrow = not asked.head.takes_streams
        try:
            stream, steps = self._delivered(
                asked,
                lambda: channel.deliver(body, routing_result.message, awaited, is_narrow=narrow),
            )
        except (DuplicateIdError, TooManyStreamsError) as error:
            raise RejectedError(_undeliverable(error, awaited[0])) from None
        assert stream is not None
        return self._carry(asked, begun, stream, awaited[0], steps)

    def _delivered(self, asked: Asked, deliver: Callable[[], T]) -> tuple[T, list[FirstStep]]:
        """Return what `deliver` returns, and the handlers that it started and the caller leads."""
        if asked.exchange.may_lead:
            return self.runtime.pool.collect(deliver)
        return deliver(), []

    async def _carry(
        self,
        asked: Asked,
        begun: HttpSession,
        stream: AnswerStream,
        request_id: RequestId | None = None,
        steps: list[FirstStep] | None = None,
    ) -> bool:
        """Carry what is answered; returns whether the client stayed to the end."""
        carrier = self._carrier(asked, begun, stream, partial(_ended, begun, request_id))
        has_stayed = is_answered = False
        try:
            if steps:
                await lead_all(steps)
            is_answered = stream.is_ended
            has_stayed = await carried(asked.exchange, carrier, stream, self._timer_queue)
        finally:
            if not is_answered:  # else it has been used just now
                begun.used_at = trio.current_time()
            if not has_stayed:
                begun.channel.left(stream)
        return has_stayed

    async def listen(self, asked: Asked, routing_result: Listening, _body: bytes) -> None:
        """Carry what belongs to no request, or what was broken off (HTTP-27, HTTP-41)."""
        begun = self.runtime.sessions.used(routing_result.session)
        stream = _listened_to(begun.channel, routing_result.last_event_id)
        carrier = self._carrier(asked, begun, stream)
        try:
            await until_gone(asked.exchange, partial(carrier.stream, asked.exchange, stream))
        finally:
            begun.used_at = trio.current_time()
            begun.channel.left(stream)

    async def end(self, asked: Asked, routing_result: Ending, _body: bytes) -> None:
        """The client is done with its session (HTTP-53)."""
        begun = self.runtime.sessions.used(routing_result.session)
        begun.close()
        self.runtime.sessions.forget(begun)
        await asked.answer(200)

    def _carrier(
        self,
        asked: Asked,
        begun: HttpSession,
        stream: AnswerStream,
        why_unanswered: Callable[[], Rejection | None] = lambda: None,
    ) -> Carrier:
        channel, primes = begun.channel, begun.primes_streams
        return Carrier(
            limits=self.runtime.server.limits,
            headers=[*_named(begun), *asked.headers],
            begin=partial(channel.begin if primes else channel.begin_unseen, stream),
            last_id=partial(channel.last_id, stream) if primes else None,
            wants_stream=self.streams_answers,
            why_unanswered=why_unanswered,
        )

    # Modern requests.

    async def answer(self, asked: Asked, routing_result: Stateless, _body: bytes) -> None:
        """Answer a modern message; its client's going away cancels it (MHTTP-22)."""
        self.runtime.renew_stateless()
        channel, limits = self.runtime.stateless, self.runtime.server.limits
        if not self.runtime.has_stateless:
            raise RejectedError(_lost(getattr(routing_result.message, "id", None)))
        if isinstance(routing_result.message, Notification):
            channel.notify(routing_result.message)
            await asked.answer(202)
            return
        message, principal = routing_result.message, asked.head.principal
        narrow = not asked.head.takes_streams
        slot, steps = self._delivered(
            asked, lambda: channel.deliver(message, principal, is_narrow=narrow)
        )
        carrier = Carrier(
            limits=limits,
            headers=asked.headers,
            status_of=_bad if routing_result.is_incomplete else _status_of,
            why_unanswered=partial(self._why_unanswered, slot.id),
        )
        try:
            if steps:
                await lead_all(steps)
            await carried(asked.exchange, carrier, slot.stream, self._timer_queue)
        finally:
            channel.abandon(slot)

    def _why_unanswered(self, request_id: RequestId) -> Rejection:
        return (closing if self.runtime.is_closing else _lost)(request_id)


def begun_session(
    runtime: Runtime, asked: Asked, request_id: RequestId | None = None, *, transport: str = "http"
) -> HttpSession:
    """A session of who asks.

    Raises:
        RefusedError: There is no place for it.
    """
    if runtime.is_closing:
        raise RejectedError(closing(request_id))
    try:
        return runtime.begin_session(asked.head.principal, transport=transport)
    except TooManySessionsError:
        raise RejectedError(too_many_sessions(request_id)) from None


def too_many_sessions(request_id: RequestId | None = None) -> Rejection:
    """The refusal of a session for which there is no place."""
    text = "there are too many sessions (limits.http.sessions_max)"
    return Rejection(status=503, code=SERVER_BUSY, text=text, id=request_id)


def _listened_to(channel: SessionChannel, last_event_id: str | None) -> AnswerStream:
    """The stream that a GET is for; only who names an event takes over what another one carries.

    Raises:
        RefusedError: There is none, or nothing would come on it.
    """
    if not last_event_id:
        if channel.unasked.is_carried:
            text = "this stream is open already, on another connection"
            raise RejectedError(Rejection(status=409, text=text))
        return channel.unasked
    try:
        stream = channel.resumed(last_event_id)
    except LookupError as error:
        raise RejectedError(Rejection(status=400, text=str(error))) from None
    if stream.is_ended and not stream.has_waiting:
        raise RejectedError(_nothing_behind(last_event_id))
    return stream


def _named(begun: HttpSession) -> list[tuple[str, str]]:
    return [(SESSION_ID, begun.id)] if begun.is_negotiated else []


def _ended(begun: HttpSession, request_id: RequestId | None) -> Rejection | None:
    """Why a request was not answered; None: the client has cancelled it.

    No 404: that would say that nothing of it was done, and to try again in a new session.
    """
    if not begun.is_closed:
        return None
    text = "the session was closed before this was answered"
    return Rejection(status=503, code=SERVER_BUSY, text=text, id=request_id)


def closing(request_id: RequestId | None = None) -> Rejection:
    """The refusal of whatever comes too late."""
    return Rejection(status=503, code=SERVER_BUSY, text="the server is closing", id=request_id)


def _lost(request_id: RequestId | None) -> Rejection:
    text = "the session of stateless requests was lost, and another one is about to begin"
    return Rejection(status=503, code=SERVER_BUSY, text=text, id=request_id)


def _nothing_behind(event_id: str) -> Rejection:
    """An empty stream would have the TypeScript SDK come back again and again."""
    text = f"the stream of event {event_id!r} has ended: nothing comes behind it"
    return Rejection(status=405, text=text, headers=[("Allow", "POST, DELETE")])


def _status_of(code: int) -> int:
    return STATUS_OF_ERROR.get(code, 200)


def _bad(_code: int) -> int:
    """What was incomplete is a bad request, whatever the error says."""
    return 400


def _undeliverable(error: Exception, request_id: RequestId) -> Rejection:
    if isinstance(error, DuplicateIdError):
        text = f"an unfinished request has the same id: {request_id!r}"
        return Rejection(status=400, text=text, id=request_id)
    text = "too many requests of this session wait for answers (limits.http.streams_max)"
    return Rejection(status=429, code=SERVER_BUSY, text=text, id=request_id)


_EFFECTS: Final[Mapping[type[Any], Callable[..., Awaitable[object]]]] = {
    Rejection: McpEndpoint.reject,
    Opening: McpEndpoint.open,
    ToSession: McpEndpoint.deliver,
    Listening: McpEndpoint.listen,
    Ending: McpEndpoint.end,
    Stateless: McpEndpoint.answer,
}


# --------------------
# Revision 2024-11-05 over HTTP: a stream for everything, and a place to post to.


@attrs.frozen(eq=False)
class SseEndpoints:
    """The two endpoints; a session lives as long as its stream."""

    runtime: Runtime

    async def respond_stream(self, asked: Asked) -> None:
        """Begin a session, and carry all that it sends (SSE-01, SSE-04).

        Raises:
            RefusedError: It is refused.
        """
        only(asked, "GET")
        begun = begun_session(self.runtime, asked, transport="sse")
        # Where to post, relative to here: nobody knows under which name and path we were found.
        endpoint = Event(f"messages?session_id={begun.id}".encode(), name="endpoint")
        carrier = Carrier(
            limits=self.runtime.server.limits, headers=asked.headers, first_event=endpoint
        )
        carry = partial(carrier.stream, asked.exchange, begun.channel.unasked)
        try:
            await until_gone(asked.exchange, carry)
        finally:
            begun.channel.finish()

    async def respond_post(self, asked: Asked) -> None:
        """Give what was posted to its session; the answer takes the stream.

        Raises:
            RefusedError: It is refused.
            trio.BrokenResourceError: The client is gone.
        """
        only(asked, "POST")
        body = await asked.body()
        begun = self._session(asked)
        message = self.runtime.endpoint.decoder.decode(body)
        if isinstance(message, Malformed):
            rejection = Rejection(
                status=400, code=message.code, text=message.message, id=message.id
            )
            raise RejectedError(rejection)
        begun.channel.deliver(body, message)
        await asked.answer(202)

    def _session(self, asked: Asked) -> HttpSession:
        session_id = parse_qs(asked.head.query).get("session_id", [""])[0]
        known = self.runtime.sessions.known(session_id, transport="sse")
        if known is None or known.principal != asked.head.principal:
            raise RejectedError(Rejection(status=404, text="there is no such session"))
        return self.runtime.sessions.used(session_id)


# --------------------
# WebSocket at one path of a served application: each connection is a session of its own.


@attrs.frozen(kw_only=True, eq=False)
class WebSocketEndpoint:
    """The endpoint.

    Attributes:
        runtime: The sessions.
        door: Who may open one, and where.
    """

    runtime: Runtime
    door: Door

    async def respond(self, asked: Asked) -> None:
        """Tell a plain request what is here.

        Raises:
            RefusedError: Always.
        """
        rejection = upgrade_rejection(asked.head, path=self.door.path)
        raise RejectedError(
            rejection or Rejection(status=400, text="this is no handshake of WebSocket")
        )

    async def upgrade(self, upgrade: Upgrade) -> None:
        """Make a WebSocket of a request, and serve it until its session has ended; or refuse it.

        Raises:
            trio.BrokenResourceError: The client has gone away.
            RecordingError: The recording cannot be made.
        """
        admitted = await self.door.admit(upgrade.head)
        if isinstance(admitted, Rejection):
            await upgrade.reject(admitted)
            return
        if self.runtime.is_closing:
            await upgrade.reject(closing())
            return
        try:
            with self.runtime.sessions.place():
                channel = await accepted(upgrade, admitted, self.runtime.server.limits)
                await self.runtime.serve(channel)
        except TooManySessionsError:
            await upgrade.reject(too_many_sessions())


# --------------------
# The application behind every HTTP host: the gate, who asks, and which endpoint answers.


_HEALTH: Final = "/health"
_HEALTHY: Final = b'{"status":"ok"}'

_Route: TypeAlias = Callable[[Asked], Awaitable[None]]


@attrs.define(kw_only=True, eq=False)
class HttpApp:
    """The application; its `respond` is given to a host.

    Attributes:
        runtime: The sessions.
        gate: Who may come at all.
        path: Where the MCP endpoint is.
        verify: Who somebody is; without one nobody is anybody, and all may come.
        streams_answers: Legacy answers are streams also where they could be JSON.
        has_sse: There are the two endpoints of revision 2024-11-05 as well.
        websocket: The endpoint of WebSocket; None: there is none.
    """

    runtime: Runtime
    host_check: HostCheck
    path: str = "/mcp"
    verify: Verify | None = None
    streams_answers: bool = False
    has_sse: bool = True
    websocket: WebSocketEndpoint | None = None
    _routes: Mapping[str, _Route] = attrs.field(init=False)
    _answering: int = attrs.field(default=0, init=False)
    _idle: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        mcp = McpEndpoint(self.runtime, streams_answers=self.streams_answers)
        routes: list[tuple[str, _Route]] = [(_HEALTH, _tell_health), (self.path, mcp.respond)]
        if self.has_sse and self.runtime.endpoint.has_sessions:
            sse = SseEndpoints(self.runtime)
            routes += [("/sse", sse.respond_stream), ("/messages", sse.respond_post)]
        if self.websocket is not None:
            routes.append((self.websocket.door.path, self.websocket.respond))
        _check_paths([path for path, _ in routes])
        self._routes = dict(routes)

    @property
    def upgraded(self) -> Upgraded | None:
        """What is done with who asks for a WebSocket; given to a host as well."""
        return None if self.websocket is None else self.websocket.upgrade

    async def respond(self, exchange: Exchange) -> None:
        """Answer one request; a client that goes away ends it, and nothing else."""
        head = exchange.head
        headers = self.host_check.cors_headers(head)
        asked = Asked(exchange, head, headers, self.runtime.server.limits.messages.bytes_max)
        self._answering += 1
        try:
            try:
                await self._respond(asked)
            except RejectedError as error:
                await asked.reject(error.rejection)
        except trio.BrokenResourceError:
            pass  # its client has gone away
        finally:
            self._answering -= 1
            if self._idle and not self._answering:
                self._idle.unpark_all()

    async def all_answered(self) -> None:
        """Wait until no request is without its answer, to the last frame."""
        while self._answering:
            await self._idle.park()

    # Each coroutine on the way takes its part of each wait: who only chooses gives back the next.

    def _respond(self, asked: Asked) -> Awaitable[None]:
        preflight = self.host_check.preflight(asked.head) if is_preflight(asked.head) else None
        if preflight is not None:
            return asked.exchange.answer(204, preflight)
        rejection = self.host_check.rejection(asked.head)
        if rejection is not None:
            raise RejectedError(rejection)
        if asked.head.path == _HEALTH:  # who asks that is a balancer, and nobody in particular
            return _tell_health(asked)
        route = self._route(asked.head.path)
        return route(asked) if self.verify is None else _verified(asked, self.verify, route)

    def _route(self, path: str) -> _Route:
        route = self._routes.get(path) or self._routes.get(path.rstrip("/"))
        if route is None:
            text = f"nothing is here; the MCP endpoint is {self.path}"
            raise RejectedError(Rejection(status=404, text=text))
        return route


async def _verified(asked: Asked, verify: Verify, route: _Route) -> None:
    head = await verified(asked.head, verify)
    if isinstance(head, Rejection):
        raise RejectedError(head)
    asked.head = head
    await route(asked)


def _check_paths(paths: Sequence[str]) -> None:
    """Refuse what could not be found, or would hide something else.

    Raises:
        ValueError: It says what.
    """
    for place, path in enumerate(paths):
        if not path.startswith("/"):
            raise ValueError(f"a path begins with a slash: {path!r}")
        if path.rstrip("/") in [each.rstrip("/") for each in paths[:place]]:
            raise ValueError(f"two things cannot be at {path}: {', '.join(paths)}")


async def _tell_health(asked: Asked) -> None:
    """A server that answers is well."""
    await asked.answer(200, [("Content-Type", JSON), ("Cache-Control", "no-store")], _HEALTHY)


# --------------------
# A server as an ASGI application, wherever it is mounted.
#
# Nobody has to tell it that it begins: the first request starts its runtime, as a system task of
# the Trio run. It ends by a lifespan event, if one comes, by `aclose`, or with the run.


logger = logging.getLogger("mcp_trio")


@attrs.define(eq=False)
class _Life:
    """An application in a system task of its own, so that nobody who waits for it can end it.

    Attributes:
        app: The application.
        begun: Set when its runtime runs, or never will.
        fault: Why it never will.
    """

    app: HttpApp
    begun: trio.Event = attrs.field(factory=trio.Event, init=False)
    fault: BaseException | None = attrs.field(default=None, init=False)

    def started(self, value: object = None) -> None:  # noqa: ARG002  that it runs is enough
        """See `trio.TaskStatus`."""
        self.begun.set()

    async def live(self) -> None:
        """The task."""
        try:
            with contained(self._contain):
                await self.app.runtime.run(task_status=self)
        finally:
            self.begun.set()

    def _contain(self, faults: Faults) -> None:
        fault = faults.exceptions[0]  # there is one
        if self.begun.is_set():
            logger.error("the lifespan of a mounted server failed at its end", exc_info=fault)
        else:
            self.fault = fault

    async def running(self) -> HttpApp:
        """The application, when it runs.

        Raises:
            Exception: What the lifespan raises.
        """
        await self.begun.wait()
        if self.fault is not None:
            raise self.fault
        return self.app

    async def end(self) -> None:
        """Wind it down; returns when nothing of it runs."""
        self.app.runtime.close()
        await self.app.runtime.ended.wait()


@attrs.define(eq=False)
class MountedApp:
    """The application; `make` makes what serves one Trio run."""

    _make: Callable[[], HttpApp]
    _host: AsgiHost = attrs.field(init=False)
    _life: _Life | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        app = self._make()
        self._host = AsgiHost(
            self._respond,
            limits=app.runtime.server.limits,
            ended=self.aclose,
            upgraded=None if app.websocket is None else self._upgrade,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve what an ASGI server asks for."""
        await self._host(scope, receive, send)

    async def _respond(self, exchange: Exchange) -> None:
        app = await self._running()
        await app.respond(exchange)

    async def _upgrade(self, upgrade: Upgrade) -> None:
        app = await self._running()
        assert app.websocket is not None
        await app.websocket.upgrade(upgrade)

    async def _running(self) -> HttpApp:
        """The application with a runtime that runs; that of an earlier Trio run has ended.

        Cancelled: it goes on to begin, for whoever comes next.

        Raises:
            Exception: What the lifespan raises; the next request tries again.
        """
        life = self._life
        if life is None or life.app.runtime.ended.is_set():
            life = self._life = _Life(self._make())
            trio.lowlevel.spawn_system_task(life.live)
        return await life.running()

    async def aclose(self) -> None:
        """End all sessions, in bounded time; a later request begins anew."""
        life, self._life = self._life, None
        if life is not None:
            await life.end()


SessionT = TypeVar("SessionT", bound="StatelessSession")


@attrs.define(kw_only=True, eq=False)
class StandIn(ABC, Generic[SessionT]):
    """The base of it; see `ServesSessions`.

    Attributes:
        limits: What a session may cost.
        audience: Nobody is in it: changes come from elsewhere, if at all.
    """

    limits: Limits
    audience: Audience = attrs.field(factory=Audience, init=False)

    @abstractmethod
    def opened(self, channel: Channel) -> tuple[SessionT, Callable[[], Awaitable[None]]]:
        """A session, and what serves it to its end."""

    def entered_lifespan(self) -> AbstractAsyncContextManager[None]:
        """There is none."""
        return nullcontext()

    def param_header_paths(self, tool: str) -> None:
        """Not known: what clients repeat in their heads is not held against what they say."""

    def begin_session(
        self,
        channel: Channel,
        pool: TaskPool,
        variables: Context,
        *,
        on_ended: Callable[[], None],
        **_: Any,
    ) -> SessionT:
        """Serve one session; what goes wrong with it ends no other."""
        session, serve = self.opened(channel)
        variables.run(pool.nursery.start_soon, _serve, serve, on_ended)
        return session


async def _serve(serve: Callable[[], Awaitable[None]], on_ended: Callable[[], None]) -> None:
    try:
        await serve()
    except Exception:
        logger.exception("a session failed")
    finally:
        on_ended()
