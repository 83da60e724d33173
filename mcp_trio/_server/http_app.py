"""The HTTP application: checks, routes and answers the requests that an HTTP server receives.

`HttpApp` checks `Host` and `Origin` and verifies the user. It routes each request to the MCP
endpoint (`McpEndpoint`), the two endpoints of the HTTP+SSE transport (`SseEndpoints`), the
WebSocket endpoint (`WebSocketEndpoint`), or a route of the user (`CustomRoutes`). `AsgiApp` is
the same application as an ASGI application.

A function that gets a `PendingRequest` raises `RejectedError` if the request is rejected, and
`trio.BrokenResourceError` if its client is gone; `HttpApp` handles both.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context, copy_context
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from urllib.parse import parse_qs

import attrs
import msgspec
import trio

from mcp_trio._auth.challenges import INSUFFICIENT_SCOPE
from mcp_trio._jsonrpc.messages import Malformed, Notification
from mcp_trio._jsonrpc.messages import Request as JsonRpcRequest
from mcp_trio._jsonrpc.sse import Event
from mcp_trio._protocol.http_headers import JSON, Headers, HttpRequest
from mcp_trio._protocol.http_requests import (
    RETRY_SECONDS,
    SESSION_ID,
    STATUS_OF_ERROR,
    EndSession,
    OpenSession,
    OpenStream,
    RejectedError,
    Rejection,
    SessionMessage,
    StatelessMessage,
)
from mcp_trio._protocol.metadata import TRACE
from mcp_trio._protocol.security import HostCheck
from mcp_trio._protocol.websocket import upgrade_rejection
from mcp_trio._server.forwarding import ForwardedExchange, InstanceUnavailableError
from mcp_trio._server.http_sessions import HttpSession, Runtime, TooManySessionsError
from mcp_trio._server.instances import StoreUnavailableError
from mcp_trio._server.monitoring import HEALTH, READY, respond_health, respond_ready
from mcp_trio._server.routes import (
    TEXT,
    MalformedBodyError,
    Request,
    Response,
    RouteHandler,
    Routes,
)
from mcp_trio._server.sockets import HandshakeCheck
from mcp_trio._session.exceptions import (
    exc_info_from_users_code,
    faults_as_exceptions,
    one_line_about,
    raise_unchanged,
    split_faults,
)
from mcp_trio._session.handlers import CRASH_TEXT
from mcp_trio._session.lanes import drive
from mcp_trio._session.leader_followers import CollectedJob, lead
from mcp_trio._transports.asgi import AsgiExchange, AsgiHost, AsgiUpgrade, Receive, Scope, Send
from mcp_trio._transports.concurrency import (
    ErrorGroup,
    TimerQueue,
    Wakeup,
    errors_handled_by,
)
from mcp_trio._transports.http_channels import (
    DuplicateIdError,
    StatelessRequest,
    TooManyStreamsError,
)
from mcp_trio._transports.http_response import (
    BodyTooLargeError,
    CompleteResponse,
    Exchange,
    ResponseStream,
    StreamSender,
    StreamSource,
    TooManyBodiesError,
    run_while_connected,
)
from mcp_trio._transports.peer_log import PeerLog
from mcp_trio._transports.websocket import Upgrade, WebSocketApplication, accept_websocket
from mcp_trio.errors import FORBIDDEN, PARSE_ERROR, SERVER_BUSY
from mcp_trio.types import RequestId

if TYPE_CHECKING:
    from mcp_trio._auth.resource_server import ProtectedResource
    from mcp_trio._session.observing import HttpActivity, HttpObservation

logger = logging.getLogger("mcp_trio")


# Requests and their observers -------------------------------------------------------------------


class PendingRequest(msgspec.Struct, eq=False):
    """A request that is not answered yet, with the exchange that answers it.

    Attributes:
        request: The method, path and headers of the request, with its sender.
        headers: Headers that every response to the request has.
        is_second_try: Whether the session was looked for on other instances already.
        rejection: The text of the rejection that was sent; "" without one.
        variables: The context variables of the request, which a verifier of tokens may set; those
            of the connection without one.
    """

    exchange: Exchange
    request: HttpRequest
    headers: Headers
    bytes_max: int
    is_received: bool = False
    is_second_try: bool = False
    rejection: str = ""
    variables: Context | None = None

    async def body(self) -> bytes:
        """Return the complete body; one that is too large is rejected."""
        try:
            body = await self.exchange.body(self.bytes_max)
        except BodyTooLargeError:
            text = f"the body is larger than limits.messages.bytes_max ({self.bytes_max})"
            raise RejectedError(Rejection(status=413, text=text)) from None
        except TooManyBodiesError as error:
            raise RejectedError(_busy(503, str(error))) from None
        self.is_received = True
        return body

    async def answer(self, status: int, headers: Headers = (), body: bytes = b"") -> None:
        """Send a complete response."""
        await self.exchange.answer(status, [*headers, *self.headers], body)

    async def reject(self, rejection: Rejection) -> None:
        """Send a rejection as the response."""
        self.rejection = rejection.text
        await self.answer(*rejection.response())


def check_method(pending: PendingRequest, method: str) -> None:
    """Reject a request with another method."""
    if pending.request.method != method:
        text = f"this endpoint does not support {pending.request.method}"
        raise RejectedError(Rejection(status=405, text=text, headers=[("Allow", method)]))


class ObservedExchange:
    """An `Exchange` that notes the status of its response for observers."""

    # No method is a coroutine itself: that would make each wait slower.

    def __init__(self, exchange: Exchange, observation: "HttpObservation") -> None:
        self._exchange = exchange
        self.observation = observation
        self.request: HttpRequest = exchange.request
        self.may_lead = exchange.may_lead
        self.body, self.body_nowait = exchange.body, exchange.body_nowait
        self.send, self.end = exchange.send, exchange.end
        self.gone, self.close_after_response = exchange.gone, exchange.close_after_response

    def answer(self, status: int, headers: Headers, body: bytes = b"") -> Awaitable[None]:
        """Send a complete response, and note its status."""
        self.observation.status = status
        return self._exchange.answer(status, headers, body)

    def start(self, status: int, headers: Headers) -> Awaitable[None]:
        """Send the headers of a response whose length is unknown, and note its status."""
        self.observation.status = status
        return self._exchange.start(status, headers)


def _http_activity(request: HttpRequest, route: str, *, is_mounted: bool = False) -> "HttpActivity":
    from mcp_trio._session.observing import HttpActivity

    headers = request.headers
    return HttpActivity(
        method=request.method,
        path=request.path,
        route=route,
        scheme=request.scheme,
        is_mounted=is_mounted,
        trace={name: headers[name] for name in TRACE if name in headers},
    )


def _http_observation(
    runtime: Runtime, request: HttpRequest, route: str, *, is_mounted: bool
) -> "HttpObservation":
    """Return the observation of a request that has arrived, for a server with observers."""
    from mcp_trio._session.observing import HttpObservation

    activity = _http_activity(request, route, is_mounted=is_mounted)
    return HttpObservation(runtime.observers, activity)


def _traced(pending: PendingRequest, body: bytes) -> HttpRequest:
    """Return a request as another instance gets it: with the trace context of its span here."""
    exchange: object = pending.exchange
    if not isinstance(exchange, ObservedExchange):
        return pending.request
    trace = exchange.observation.forwarded_trace(body)
    return pending.request.with_headers(trace) if trace else pending.request


# The MCP endpoint -------------------------------------------------------------------------------


@attrs.define(eq=False, repr=False)
class McpEndpoint:
    """The MCP endpoint of the Streamable HTTP transport, for stateless and legacy clients.

    Attributes:
        streams_answers: Answer requests in sessions with event streams, also where plain JSON would
            do.
        protected: Makes the challenges of responses with status 403.
    """

    runtime: Runtime
    streams_answers: bool = attrs.field(kw_only=True)
    protected: "ProtectedResource | None" = attrs.field(kw_only=True)
    _timer_queue: TimerQueue = attrs.field(init=False)
    # The senders of responses in sessions, of stateless ones, and of those to stateless requests
    # that lack metadata.
    _sender: StreamSender = attrs.field(init=False)
    _stateless_sender: StreamSender = attrs.field(init=False)
    _incomplete_sender: StreamSender = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        limits, is_protected = self.runtime.limits, self.protected is not None
        self._timer_queue = TimerQueue(limits.http.watch_after_seconds)
        self._sender = StreamSender(
            limits=limits,
            # In sessions, only the error of a denied access has another status than 200.
            status_of=_status_of_denial if is_protected else None,
            challenge_of=self._headers_of_error,
            prefers_events=self.streams_answers,
        )
        self._stateless_sender, self._incomplete_sender = (
            StreamSender(limits=limits, status_of=status_of, challenge_of=self._headers_of_error)
            for status_of in (
                partial(_stateless_status, is_protected=is_protected),
                _status_of_incomplete,
            )
        )

    def respond(self, pending: PendingRequest) -> Awaitable[object]:
        """Answer one request."""
        if not self.runtime.is_closing and pending.request.method == "POST":
            body = pending.exchange.body_nowait(pending.bytes_max)
            if body is not None:
                pending.is_received = True
                routing_result = self.runtime.endpoint.route(pending.request, body)
                return _ACTIONS[type(routing_result)](self, pending, routing_result, body)
        return self._receive_and_respond(pending)

    async def _receive_and_respond(self, pending: PendingRequest) -> None:
        body = await pending.body() if pending.request.method == "POST" else b""
        if self.runtime.is_closing:
            if isinstance(pending.exchange, ForwardedExchange):
                pending.exchange.answer_unknown()  # another instance takes the session
                return
            if not self.runtime.may_forward:
                raise RejectedError(closing())
        routing_result = self.runtime.endpoint.route(pending.request, body)
        await _ACTIONS[type(routing_result)](self, pending, routing_result, body)

    async def reject(self, pending: PendingRequest, rejection: Rejection, body: bytes) -> None:
        """Send a rejection, or let another instance answer that owns the session."""
        session_id = pending.request.header(SESSION_ID)
        if rejection.status == HTTPStatus.NOT_FOUND and session_id is not None:
            continued = partial(self.answer_continued, pending, session_id, body)
            await respond_elsewhere(
                self.runtime, pending, session_id, body, rejection, self.respond, continued
            )
        else:
            await pending.reject(rejection)

    async def answer_continued(self, pending: PendingRequest, session_id: str, body: bytes) -> bool:
        """Send the response of a request that goes on here, if it does; return whether it does."""
        if self.runtime.sessions.known(session_id) is None:
            return False
        session = self.runtime.sessions.use(session_id)
        message = self.runtime.endpoint.decoder.decode(body)
        if not isinstance(message, JsonRpcRequest):
            return False
        stream = session.channel.take_continued(message.id)
        if stream is None:
            return False
        await self._send_response(pending, session, stream)
        return True

    # Sessions.

    async def open(self, pending: PendingRequest, opening: OpenSession, body: bytes) -> None:
        """Open a session; the response to `initialize` carries its id in `Mcp-Session-Id`."""
        forwarder = self.runtime.forwarder
        if forwarder is not None and forwarder.is_leaving:
            exchange, request = pending.exchange, _traced(pending, body)
            if not await forwarder.open_elsewhere(exchange, request, body, pending.headers):
                raise RejectedError(closing(opening.request.id))
            return
        session = open_session(self.runtime, pending, opening.request.id)
        has_received_id = False
        try:
            stream = session.channel.deliver(
                body,
                opening.request,
                [opening.request.id],
                auth=pending.request.auth,
                is_json_only=not pending.request.accepts_event_streams,
            )
            assert stream is not None
            await stream.wait_ready()  # A session whose handshake fails gets no id.
            if session.is_negotiated:
                self.runtime.sessions.note_message(session, opening.request, body)
                await self.runtime.sessions.publish(session)
            has_received_id = (
                await self._send_response(pending, session, stream) and session.is_negotiated
            )
        finally:
            # A client that has not received the id cannot use the session.
            if not has_received_id:
                session.close()

    def deliver(
        self, pending: PendingRequest, routing_result: SessionMessage, body: bytes
    ) -> Awaitable[object]:
        """Deliver a message to its session; return an awaitable that sends the response."""
        runtime, request = self.runtime, pending.request
        message, awaited = routing_result.message, routing_result.awaited
        session = runtime.sessions.use(routing_result.session)
        if runtime.sessions.instance is not None:
            runtime.sessions.note_message(session, message, body)
        if not awaited:
            session.channel.deliver(body, message, auth=request.auth)
            return pending.answer(202, _id_headers(session))
        deliver = partial(
            session.channel.deliver,
            body,
            message,
            awaited,
            auth=request.auth,
            is_json_only=not request.accepts_event_streams,
        )
        jobs = None
        try:
            if pending.exchange.may_lead:
                stream, jobs = runtime.pool.collect(deliver)
            else:
                stream = deliver()
        except DuplicateIdError as error:
            text = f"an unfinished request has the same id: {error.id!r}"
            raise RejectedError(Rejection(status=400, text=text, id=error.id)) from None
        except TooManyStreamsError:
            text = "too many requests of this session wait for responses (limits.http.streams_max)"
            raise RejectedError(_busy(429, text, awaited[0])) from None
        assert stream is not None
        return self._send_response(pending, session, stream, jobs)

    async def _send_response(
        self,
        pending: PendingRequest,
        session: HttpSession,
        stream: ResponseStream,
        jobs: list[CollectedJob] | None = None,
    ) -> bool:
        """Send the response; return whether the client stayed connected to its end."""
        headers = (*_id_headers(session), *pending.headers)
        has_stayed = is_answered = False
        try:
            if jobs:
                await lead(jobs)
            is_answered = stream.is_ended
            has_stayed = await self._sender.send_while_connected(
                pending.exchange, stream, session, headers, self._timer_queue
            )
        finally:
            if not is_answered:  # Otherwise `use` has noted the time just now.
                session.used_at = trio.current_time()
            if not has_stayed:
                session.channel.mark_disconnected(stream)
        return has_stayed

    async def listen(
        self, pending: PendingRequest, routing_result: OpenStream, _body: bytes
    ) -> None:
        """Answer a GET with the session's own stream, or resume a stream that broke off."""
        session = self.runtime.sessions.use(routing_result.session)
        event_id = routing_result.last_event_id
        if event_id:
            try:
                stream = session.channel.resume(event_id)
            except LookupError as error:
                raise RejectedError(Rejection(status=400, text=str(error))) from None
            if stream.is_ended and not stream.has_messages:
                # After an empty stream, the TypeScript SDK would reconnect for ever.
                text = f"the stream of event {event_id!r} has ended: no event follows it"
                allowed = [("Allow", "POST, DELETE")]
                raise RejectedError(Rejection(status=405, text=text, headers=allowed))
        else:
            stream = session.channel.standalone
            if stream.sender is not None:
                text = "this stream is open already, on another connection"
                raise RejectedError(Rejection(status=409, text=text))
        headers = (*_id_headers(session), *pending.headers)
        send = partial(self._sender.send_events, pending.exchange, stream, session, headers)
        try:
            await run_while_connected(pending.exchange, send)
        finally:
            session.used_at = trio.current_time()
            session.channel.mark_disconnected(stream)

    async def end(self, pending: PendingRequest, routing_result: EndSession, _body: bytes) -> None:
        """Close the session that the client has ended with DELETE."""
        session = self.runtime.sessions.use(routing_result.session)
        session.close()
        self.runtime.sessions.forget(session)
        await pending.answer(200)

    def _headers_of_error(self, request: HttpRequest, data: Any) -> Headers:
        """Return the headers for the data of an error.

        The error of a denied access becomes a challenge if scopes would prevent it, and that of a
        rate limit becomes the time to wait.
        """
        members = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
        if self.protected is not None and members.get("error") == INSUFFICIENT_SCOPE:
            scopes = str(members.get("scope", "")).split()
            if scopes:
                return [self.protected.step_up(request, scopes)]
        seconds = members.get("retryAfter")
        if isinstance(seconds, int | float) and 0 <= seconds < math.inf:
            return [("Retry-After", str(math.ceil(seconds)))]
        return []

    # Stateless requests.

    async def answer_stateless(
        self, pending: PendingRequest, routing_result: StatelessMessage, body: bytes
    ) -> None:
        """Answer a stateless message; a request is cancelled when its client disconnects."""
        runtime, request = self.runtime, pending.request
        runtime.renew_stateless()
        channel = runtime.stateless
        if not runtime.has_stateless:
            raise RejectedError(
                _stateless_session_lost(getattr(routing_result.message, "id", None))
            )
        if isinstance(routing_result.message, Notification):
            channel.notify(routing_result.message)
            await pending.answer(202)
            return
        deliver = partial(
            channel.deliver,
            routing_result.message,
            request.auth,
            body=body,
            address=request.client,
            is_json_only=not request.accepts_event_streams,
        )
        jobs = None
        if pending.exchange.may_lead:
            delivered, jobs = runtime.pool.collect(deliver)
        else:
            delivered = deliver()
        is_incomplete = routing_result.is_incomplete
        sender = self._incomplete_sender if is_incomplete else self._stateless_sender
        try:
            if jobs:
                await lead(jobs)
            await sender.send_while_connected(
                pending.exchange,
                delivered.stream,
                _StatelessSource(runtime, delivered),
                pending.headers,
                self._timer_queue,
            )
        finally:
            channel.cancel(delivered)


class _StatelessSource(StreamSource, msgspec.Struct, eq=False):
    """One stateless request, whose client cannot reconnect."""

    runtime: Runtime
    delivered: StatelessRequest

    def unanswered(self, stream: ResponseStream) -> CompleteResponse | None:  # noqa: ARG002
        """Return an error: the session of stateless requests has ended before the response."""
        reject = closing if self.runtime.is_closing else _stateless_session_lost
        return reject(self.delivered.id).response()


async def respond_elsewhere(
    runtime: Runtime,
    pending: PendingRequest,
    session_id: str,
    body: bytes,
    unknown: Rejection,
    respond: Callable[[PendingRequest], Awaitable[object]],
    answer_continued: Callable[[], Awaitable[bool]] | None = None,
) -> None:
    """Let the instance that owns a session answer a request; reject it if there is no session."""
    forwarder, is_known = runtime.forwarder, False
    if forwarder is not None and not pending.is_second_try:
        pending.is_second_try = True
        try:
            is_known = await forwarder.answer(
                pending.exchange,
                _traced(pending, body),
                body,
                session_id=session_id,
                headers=pending.headers,
                answer_here=partial(respond, pending),
                answer_continued=answer_continued,
            )
        except StoreUnavailableError as error:
            # Not for clients: the error may have the address of the store.
            logger.warning("a request for a session of another instance is rejected: %s", error)
            text = "the store that the instances share does not answer"
            raise RejectedError(_busy(503, text)) from None
        except (
            InstanceUnavailableError,
            TooManySessionsError,  # here, where the session would continue
        ) as error:
            raise RejectedError(_busy(503, str(error))) from None
    if not is_known:
        raise RejectedError(unknown)


def open_session(
    runtime: Runtime,
    pending: PendingRequest,
    request_id: RequestId | None = None,
    *,
    transport: str = "http",
) -> HttpSession:
    """Open a session for the principal of a request."""
    if runtime.is_closing:
        raise RejectedError(closing(request_id))
    try:
        return runtime.open_session(
            pending.request.principal, address=pending.request.client, transport=transport
        )
    except TooManySessionsError as error:
        raise RejectedError(_busy(503, str(error), request_id)) from None


def _status_of_denial(code: int) -> int:
    return HTTPStatus.FORBIDDEN if code == FORBIDDEN else HTTPStatus.OK


def _stateless_status(code: int, *, is_protected: bool) -> int:
    if is_protected and code == FORBIDDEN:
        return HTTPStatus.FORBIDDEN
    return STATUS_OF_ERROR.get(code, HTTPStatus.OK)


def _status_of_incomplete(_code: int) -> int:
    return HTTPStatus.BAD_REQUEST


def _busy(status: int, text: str, request_id: RequestId | None = None) -> Rejection:
    """Return the rejection of a request that the client may repeat after a while."""
    headers = [("Retry-After", RETRY_SECONDS)]
    return Rejection(status=status, code=SERVER_BUSY, text=text, id=request_id, headers=headers)


def _id_headers(session: HttpSession) -> list[tuple[str, str]]:
    return [(SESSION_ID, session.id)] if session.is_negotiated else []


def closing(request_id: RequestId | None = None) -> Rejection:
    """Return the rejection (503) of a request that arrives while the server closes."""
    return _busy(503, "the server is closing", request_id)


def _stateless_session_lost(request_id: RequestId | None) -> Rejection:
    text = "the session of stateless requests was lost, and another one is about to begin"
    return _busy(503, text, request_id)


_ACTIONS: Final[Mapping[type[Any], Callable[..., Awaitable[object]]]] = {
    Rejection: McpEndpoint.reject,
    OpenSession: McpEndpoint.open,
    SessionMessage: McpEndpoint.deliver,
    OpenStream: McpEndpoint.listen,
    EndSession: McpEndpoint.end,
    StatelessMessage: McpEndpoint.answer_stateless,
}


# The HTTP+SSE transport of protocol version 2024-11-05 ------------------------------------------


class _SseSource(StreamSource, msgspec.Struct, eq=False):
    """A session of HTTP+SSE, whose client cannot reconnect."""

    endpoint: Event

    def begin_events(self, stream: ResponseStream) -> Event | None:  # noqa: ARG002
        """Return the event with the URL of the endpoint for POSTs."""
        return self.endpoint


class SseEndpoints(msgspec.Struct, frozen=True, eq=False):
    """The two endpoints of HTTP+SSE: a stream for all messages to the client, and one for POSTs.

    A session lives as long as its stream.
    """

    runtime: Runtime

    async def respond_stream(self, pending: PendingRequest) -> None:
        """Open a session, and send all its messages on one stream."""
        check_method(pending, "GET")
        session = open_session(self.runtime, pending, transport="sse")
        await self.runtime.sessions.publish(session)
        # The URL is relative, since the public host and path of the server are not known here.
        endpoint = Event(f"messages?session_id={session.id}".encode(), name="endpoint")
        send = partial(
            StreamSender(limits=self.runtime.limits).send_events,
            pending.exchange,
            session.channel.standalone,
            _SseSource(endpoint),
            pending.headers,
        )
        try:
            await run_while_connected(pending.exchange, send)
        finally:
            session.channel.end_input()

    async def respond_post(self, pending: PendingRequest) -> None:
        """Deliver a posted message to its session; the stream carries the response."""
        check_method(pending, "POST")
        body = await pending.body()
        session_id = parse_qs(pending.request.query).get("session_id", [""])[0]
        known = self.runtime.sessions.known(session_id, transport="sse")
        if known is None or known.principal != pending.request.principal:
            unknown = Rejection(status=404, text="there is no such session")
            await respond_elsewhere(
                self.runtime, pending, session_id, body, unknown, self.respond_post
            )
            return
        session = self.runtime.sessions.use(session_id)
        message = self.runtime.endpoint.decoder.decode(body)
        if isinstance(message, Malformed):
            rejection = Rejection(
                status=400, code=message.code, text=message.message, id=message.id
            )
            raise RejectedError(rejection)
        session.channel.deliver(body, message, auth=pending.request.auth)
        await pending.answer(202)


# WebSocket --------------------------------------------------------------------------------------


class WebSocketEndpoint(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The WebSocket endpoint of an HTTP application; each connection is a session."""

    runtime: Runtime
    handshake_check: HandshakeCheck

    async def respond(self, pending: PendingRequest) -> None:
        """Reject a plain HTTP request to the endpoint."""
        rejection = upgrade_rejection(pending.request, path=self.handshake_check.path)
        raise RejectedError(
            rejection or Rejection(status=400, text="this is not a WebSocket handshake")
        )

    async def upgrade(self, upgrade: Upgrade) -> None:
        """Accept a WebSocket and serve it until its session has ended, or reject the request.

        Raises:
            trio.BrokenResourceError: The client is gone.
            RecordingError: The recording cannot be made.
        """
        request = upgrade.request
        observation = None
        if self.runtime.observers:
            is_mounted = isinstance(upgrade, AsgiUpgrade)
            observation = _http_observation(
                self.runtime, request, self.handshake_check.path, is_mounted=is_mounted
            )

        def report(status: int | None, rejection: str = "") -> None:
            nonlocal observation
            if observation is not None:
                observation.status = status
                observation.end(rejection, request.principal or "")
                observation = None

        async def reject(rejection: Rejection) -> None:
            report(rejection.status, rejection.text)
            await upgrade.reject(rejection)

        try:
            admitted = await self.handshake_check.admit(request)
            if isinstance(admitted, Rejection):
                await reject(admitted)
                return
            request = admitted  # It has a principal, which `report` needs.
            if self.runtime.is_closing:
                await reject(closing())
                return
            with self.runtime.sessions.counted_websocket(request.principal, request.client):
                channel = await accept_websocket(upgrade, request, self.runtime.limits)
                report(HTTPStatus.SWITCHING_PROTOCOLS)
                await self.runtime.serve(channel)
        except TooManySessionsError as error:
            await reject(_busy(503, str(error)))
        finally:
            report(None)  # The client was gone before the handshake was answered.


# Custom routes ----------------------------------------------------------------------------------


# Status, headers and body of the response of a handler; or the rejection of the request; or the
# error of a client that is gone.
_Outcome: TypeAlias = tuple[int, Headers, bytes] | RejectedError | trio.BrokenResourceError


@attrs.define(eq=False, repr=False)
class CustomRoutes:
    """The routes that a user has registered with `Server.route`."""

    routes: Routes
    _log: PeerLog = attrs.field(factory=PeerLog, init=False)

    def find(self, request: HttpRequest) -> "tuple[_Responder, bool] | None":
        """Return the function that answers a request, and whether the route is public.

        The result is None if there is no such path.

        Raises:
            RejectedError: The path does not support the method, or is not valid.
        """
        found = self.routes.find(request.path)
        if found is None:
            return None
        route, path_params = found
        method = route.find(request.method)
        if method is None:
            text = f"this path does not support {request.method}"
            raise RejectedError(Rejection(status=405, text=text, headers=[("Allow", route.allow)]))
        return partial(self._respond, method.handler, path_params), method.is_public

    async def _respond(
        self, handler: RouteHandler, path_params: Mapping[str, str], pending: PendingRequest
    ) -> None:
        """Call the handler, and cancel it when the client disconnects; send its response."""
        # An exception that left the nurseries would be in a group.
        outcomes: list[_Outcome] = []

        async def handle() -> None:
            outcomes.append(await self._call_handler(handler, path_params, pending))

        async def handle_in_task() -> None:
            # In the task of the connection, the context variables that the handler sets would stay
            # set for the next request, which may be that of another user behind the same proxy.
            async with trio.open_nursery() as nursery:
                variables = pending.variables or copy_context()
                variables.run(nursery.start_soon, handle)

        if await run_while_connected(pending.exchange, handle_in_task):
            (outcome,) = outcomes
            if isinstance(outcome, Exception):
                raise outcome
            await pending.answer(*outcome)

    async def _call_handler(
        self, handler: RouteHandler, path_params: Mapping[str, str], pending: PendingRequest
    ) -> _Outcome:
        """Call a handler, and return its outcome; an exception of the handler is logged."""
        request = pending.request
        unread: list[RejectedError | trio.BrokenResourceError] = []

        async def read_body() -> bytes:
            try:
                return await pending.body()
            except (RejectedError, trio.BrokenResourceError) as error:
                unread.append(error)
                raise

        try:
            value = await handler(
                Request(
                    method=request.method,
                    path=request.path,
                    path_params=path_params,
                    query=parse_qs(request.query, keep_blank_values=True),
                    headers=request.headers,
                    client=request.client,
                    principal=request.principal,
                    read_body=read_body,
                )
            )
            response = value if isinstance(value, Response) else Response(value)
            return response.status, *response.encode(self.routes.writer)
        except BaseException as raised:
            fault, rest = split_faults(raised)
            if rest is not None:
                if fault is not None:
                    self._report(request, fault)
                raise_unchanged(rest)
            assert fault is not None
            failure = fault
        if unread:
            return unread[0]
        if isinstance(failure, MalformedBodyError):
            return RejectedError(Rejection(status=400, code=PARSE_ERROR, text=str(failure)))
        self._report(request, failure)
        return HTTPStatus.INTERNAL_SERVER_ERROR, [("Content-Type", TEXT)], CRASH_TEXT.encode()

    def _report(self, request: HttpRequest, failure: BaseException) -> None:
        chars_max = self.routes.limits.messages.error_text_chars_max
        route = f"{request.method} {request.path}"[:chars_max]
        self._log.report(
            f"{type(failure).__name__} in a route",
            f"the handler of {route} failed: {one_line_about(failure)[:chars_max]}",
            error=exc_info_from_users_code(failure) if logger.isEnabledFor(logging.DEBUG) else None,
        )


# The application --------------------------------------------------------------------------------


_Responder: TypeAlias = Callable[[PendingRequest], Awaitable[object]]

# The most distinct headers of checked requests that an application remembers.
_CHECKED_MAX: Final = 256

# The pause between two checks whether the last requests are answered.
_POLL_SECONDS: Final = 0.05


@attrs.define(kw_only=True, eq=False, repr=False)
class HttpApp:
    """The application that an HTTP server calls, by `respond`, for each request.

    Attributes:
        host_check: The check of `Host` and `Origin`.
        path: The path of the MCP endpoint.
        protected: Authenticates clients; with None all are accepted, without a name.
        streams_answers: Answer requests in sessions with event streams, also where plain JSON would
            do.
        has_sse: Serve the two endpoints of the HTTP+SSE transport as well.

    Raises:
        ValueError: A path has no leading slash, or two endpoints have the same path.
    """

    runtime: Runtime
    host_check: HostCheck
    path: str
    protected: "ProtectedResource | None"
    streams_answers: bool
    has_sse: bool
    websocket: WebSocketEndpoint | None
    _bytes_max: int = attrs.field(init=False)
    _routes: Mapping[str, _Responder] = attrs.field(init=False)
    _custom: CustomRoutes | None = attrs.field(default=None, init=False)
    _public: frozenset[_Responder] = attrs.field(init=False)
    _answering: set[PendingRequest] = attrs.field(factory=set[PendingRequest], init=False)
    # Woken when nothing is being answered; made when something waits for that.
    _idle: Wakeup | None = attrs.field(default=None, init=False)
    # The functions that answer requests which have passed all checks, by `HttpRequest.common`.
    _checked: dict[object, _Responder] = attrs.field(factory=dict[object, "_Responder"], init=False)

    def __attrs_post_init__(self) -> None:
        mcp = McpEndpoint(
            self.runtime, streams_answers=self.streams_answers, protected=self.protected
        )
        self._bytes_max = self.runtime.limits.messages.bytes_max
        custom = self.runtime.server.routes
        # The path and the function of each endpoint, and its owner, for error texts.
        endpoints: list[tuple[str, str, _Responder]] = [
            (HEALTH, "the health check", self._respond_health),
            (self.path, "the MCP endpoint, which path= changes", mcp.respond),
        ]
        if custom is None or custom.find(READY) is None:  # The user may have a route there.
            endpoints.append((READY, "the readiness check", self._respond_ready))
        if self.has_sse and self.runtime.endpoint.has_sessions:
            sse, owner = SseEndpoints(self.runtime), "HTTP+SSE, which has_sse=False switches off"
            endpoints.append(("/sse", owner, sse.respond_stream))
            endpoints.append(("/messages", owner, sse.respond_post))
        if self.websocket is not None:
            owner = "WebSocket, which has_websocket=False switches off"
            endpoints.append((self.websocket.handshake_check.path, owner, self.websocket.respond))
        metadata: _Responder = self._respond_metadata
        if self.protected is not None and self.protected.has_metadata:
            owner = "the metadata of Server(auth=…)"
            endpoints += [(path, owner, metadata) for path in self.protected.metadata_paths]
        paths = [path for path, _, _ in endpoints]
        for index, path in enumerate(paths):
            if not path.startswith("/"):
                raise ValueError(f"a path has to begin with a slash, unlike {path!r}")
            if path.rstrip("/") in [each.rstrip("/") for each in paths[:index]]:
                raise ValueError(f"two endpoints cannot have the path {path}: {', '.join(paths)}")
        self._routes = {path: responder for path, _, responder in endpoints}
        # Load balancers, and clients that look for the authorization server, send no credentials.
        self._public = frozenset({self._respond_health, self._respond_ready, metadata})
        self.runtime.respond = self._respond_forwarded
        if custom is not None:
            for path, owner, _ in endpoints:
                custom.reserve(path, owner)
            self._custom = CustomRoutes(custom)

    @property
    def serve_upgrade(self) -> WebSocketApplication | None:
        """The function that the HTTP server calls for a WebSocket handshake, if there is one."""
        return None if self.websocket is None else self.websocket.upgrade

    # Functions that only choose the next coroutine return it without awaiting: each coroutine on
    # the stack makes every wait of the request slower.

    def respond(self, exchange: Exchange) -> Awaitable[None]:
        """Answer one request; return early if its client disconnects."""
        request = exchange.request
        host_check = self.host_check
        headers = host_check.cors_headers(request) if host_check.allows_cors else ()
        pending = PendingRequest(exchange, request, headers, self._bytes_max)
        forwarder = self.runtime.forwarder
        if forwarder is not None and forwarder.is_leaving:
            exchange.close_after_response()
        if self.runtime.observers:
            return self._answer_observed(pending)
        return self._answer(pending, self._checked.get(request.common, self._check_and_route))

    async def _answer_observed(self, pending: PendingRequest) -> None:
        """Answer one request, and tell the observers its status."""
        exchange, request = pending.exchange, pending.request
        observation = _http_observation(
            self.runtime,
            request,
            self._endpoint_path(request) or "",
            is_mounted=isinstance(exchange, AsgiExchange),
        )
        # Type checkers tell the coroutine of an `async def` from one that is returned.
        pending.exchange = cast("Exchange", ObservedExchange(exchange, observation))
        try:
            await self._answer(pending, self._check_and_route)
        except Exception:
            if observation.status is None:  # the host sends it
                observation.status = HTTPStatus.INTERNAL_SERVER_ERROR
            raise
        finally:
            observation.end(pending.rejection, pending.request.principal or "")

    async def _respond_forwarded(self, exchange: Exchange) -> None:
        """Answer a request that another instance has checked and forwarded."""
        request = exchange.request
        path = self._endpoint_path(request)
        assert path is not None  # The other instance has found the endpoint.
        if self.runtime.observers:
            from mcp_trio._session.observing import begin_forwarded

            begin_forwarded(self.runtime.observers, _http_activity(request, path))
        await self._answer(
            PendingRequest(exchange, request, (), self._bytes_max), self._routes[path]
        )

    def _endpoint_path(self, request: HttpRequest) -> str | None:
        """Return the path of the endpoint that a request names, perhaps with a trailing slash."""
        path = request.path if request.path in self._routes else request.path.rstrip("/")
        return path if path in self._routes else None

    async def _answer(self, pending: PendingRequest, respond: _Responder) -> None:
        self._answering.add(pending)
        self.runtime.note_headers(pending.request.headers)
        try:
            try:
                await respond(pending)
            except RejectedError as error:
                await pending.reject(error.rejection)
        except trio.BrokenResourceError:
            pass  # The client is gone.
        finally:
            self._answering.discard(pending)
            if self._idle is not None and not self._answering:
                self._idle.wake()

    async def finish_requests(self) -> None:
        """Wait until the requests that have arrived after `Runtime.hand_over` are answered.

        A request counts from its headers on, because its body may arrive later. This takes at most
        `limits.shutdown.close_seconds`.
        """
        runtime = self.runtime
        with trio.move_on_after(runtime.limits.shutdown.close_seconds):
            while runtime.is_busy or self._is_receiving:  # noqa: ASYNC110
                await trio.sleep(_POLL_SECONDS)

    @property
    def _is_receiving(self) -> bool:
        return any(
            each.request.method == "POST" and not each.is_received for each in self._answering
        )

    async def all_answered(self) -> None:
        """Wait until every request has been answered completely."""
        self._idle = Wakeup()
        while self._answering:
            await self._idle.wait()

    def _check_and_route(self, pending: PendingRequest) -> Awaitable[object]:
        """Check a request, and call the function that answers it."""
        request, path = pending.request, self._endpoint_path(pending.request)
        if request.is_preflight:
            methods: dict[str, str] = {}
            if self._custom is not None and path is None:
                at_path = self._custom.routes.find(request.path)
                methods = {} if at_path is None else {"methods": at_path[0].allow}
            preflight = self.host_check.preflight(request, **methods)
            if preflight is not None:
                return pending.exchange.answer(204, preflight)
        rejection = self.host_check.rejection(request)
        if rejection is not None:
            raise RejectedError(rejection)
        if path is not None:
            route = self._routes[path]
            is_public = route in self._public
        else:
            found = None if self._custom is None else self._custom.find(request)
            if found is None:
                text = f"there is no such path; the MCP endpoint is {self.path}"
                raise RejectedError(Rejection(status=404, text=text))
            route, is_public = found
        if self.protected is None or is_public:
            respond = route
        else:
            respond = partial(_authenticate_and_respond, self.protected, route)
        if path is not None and request.common is not None:
            if len(self._checked) >= _CHECKED_MAX:
                self._checked.clear()
            self._checked[request.common] = respond
        return respond(pending)

    def _respond_health(self, pending: PendingRequest) -> Awaitable[None]:
        return respond_health(self.runtime, pending.exchange, pending.headers)

    def _respond_ready(self, pending: PendingRequest) -> Awaitable[None]:
        return respond_ready(self.runtime, pending.exchange, pending.headers)

    async def _respond_metadata(self, pending: PendingRequest) -> None:
        """Answer with the protected resource metadata (RFC 9728), which need no credentials."""
        if pending.request.method != "HEAD":
            check_method(pending, "GET")
        assert self.protected is not None
        await pending.answer(
            200,
            [("Content-Type", JSON), ("Cache-Control", "max-age=3600")],
            self.protected.metadata(pending.request),
        )


async def _authenticate_and_respond(
    protected: "ProtectedResource", route: _Responder, pending: PendingRequest
) -> None:
    # The context variables that the verifier sets must not stay set for the connection, as in
    # `CustomRoutes`.
    variables = pending.variables = copy_context()
    with faults_as_exceptions():
        auth = await drive(protected.authenticate(pending.request), (), context=variables)
    if isinstance(auth, Rejection):
        raise RejectedError(auth)
    pending.request = pending.request.with_auth(auth)
    await route(pending)


# ASGI -------------------------------------------------------------------------------------------
#
# An application that is mounted in another one may receive no lifespan events. So the first request
# starts the runtime, as a system task of the Trio run. The runtime ends with a lifespan event, if
# one arrives, with `aclose`, or with the run.


@attrs.define(eq=False, repr=False)
class _RuntimeTask:
    """A system task that runs the runtime of an application; a cancelled request does not end it.

    Attributes:
        ready: Set when the runtime runs, or has failed to start.
        error: The error that kept the runtime from starting.
        scope: The cancel scope in which the runtime runs.
    """

    app: HttpApp
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    ready: trio.Event = attrs.field(factory=trio.Event, init=False)
    error: BaseException | None = attrs.field(default=None, init=False)

    def started(self, value: object = None) -> None:  # noqa: ARG002  that it runs is enough
        """Note that the runtime runs; this makes the object a `trio.TaskStatus`."""
        self.ready.set()

    async def run(self) -> None:
        """Run the runtime, as the system task; keep or log an error of its lifespan."""

        def keep(errors: ErrorGroup) -> None:
            error = errors.exceptions[0]
            if self.ready.is_set():
                logger.error("the lifespan of a mounted server failed at its end", exc_info=error)
            else:
                self.error = error

        try:
            with errors_handled_by(keep), self.scope:
                await self.app.runtime.run(task_status=self)
        finally:
            self.ready.set()


@attrs.define(eq=False, repr=False)
class AsgiApp:
    """An ASGI application; `make` returns a new `HttpApp` for each Trio run."""

    _make: Callable[[], HttpApp]
    _host: AsgiHost = attrs.field(init=False)
    _task: _RuntimeTask | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        app = self._make()
        self._host = AsgiHost(
            self._respond,
            limits=app.runtime.limits,
            on_shutdown=self.aclose,
            serve_upgrade=None if app.websocket is None else self._upgrade,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection: a request, a WebSocket, or lifespan events."""
        await self._host(scope, receive, send)

    async def _respond(self, exchange: Exchange) -> None:
        app = await self._running_app()
        await app.respond(exchange)

    async def _upgrade(self, upgrade: Upgrade) -> None:
        app = await self._running_app()
        assert app.websocket is not None
        await app.websocket.upgrade(upgrade)

    async def _running_app(self) -> HttpApp:
        """Return the application, after starting its runtime if none runs in this Trio run.

        If this is cancelled, the runtime goes on to start, for the next request.

        Raises:
            Exception: The error that the lifespan raised; the next request tries again.
        """
        task = self._task
        if task is None or task.app.runtime.ended.is_set():
            task = self._task = _RuntimeTask(self._make())
            trio.lowlevel.spawn_system_task(task.run)
        await task.ready.wait()
        if task.error is not None:
            raise task.error
        return task.app

    async def aclose(self) -> None:
        """Hand sessions over to other instances, and close the rest, in bounded time.

        A lifespan that is starting has `limits.shutdown.exit_seconds`, and is then cancelled. A
        later request starts a new runtime.
        """
        task, self._task = self._task, None
        if task is not None:
            runtime = task.app.runtime
            await runtime.hand_over()
            runtime.close()
            with trio.move_on_after(runtime.limits.shutdown.exit_seconds):
                await task.ready.wait()
            if not task.ready.is_set():
                task.scope.cancel()
            await runtime.ended.wait()
