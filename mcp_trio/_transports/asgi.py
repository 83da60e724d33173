"""The ASGI host: an HTTP and WebSocket application as an ASGI 3 application.

The ASGI server must run on Trio. Lifespan events are not required; a shutdown event ends the
application's sessions.
"""

import functools
import logging
import math
import ssl
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeAlias, cast
from urllib.parse import quote, unquote

import attrs
import trio

from mcp_trio._jsonrpc.lines import Oversized, bounded
from mcp_trio._protocol.http_headers import (
    Headers,
    HttpRequest,
    decoded_headers,
    encoded_headers,
)
from mcp_trio._protocol.http_requests import Rejection
from mcp_trio._protocol.security import sha256_base64url
from mcp_trio._protocol.shares import Shares, network_of
from mcp_trio._protocol.websocket import CloseCode, close_reason
from mcp_trio._transports.channel import ReceivedQueue
from mcp_trio._transports.http_response import (
    PLAIN_TEXT_HEADERS,
    STATUSES_WITHOUT_BODY,
    BodyTooLargeError,
    Responder,
    ResponseState,
    UnfinishedBody,
    shares_of_bodies,
)
from mcp_trio._transports.peer_log import PeerLog
from mcp_trio._transports.websocket import SocketEnd, WebSocketApplication
from mcp_trio.limits import DEFAULT_LIMITS, Limits

logger = logging.getLogger("mcp_trio")

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
"""The types of ASGI 3, in the form that servers and frameworks accept."""


async def _send_shielded(send: Send, message: Message) -> None:
    """Send a message, without being interrupted by a cancellation.

    hypercorn updates its state of the protocol, waits for its turn to write, and shields the write
    itself. A cancellation of the wait would lose bytes that its state counts as sent.
    """
    await trio.lowlevel.checkpoint_if_cancelled()
    with trio.CancelScope(shield=True):
        await send(message)


async def send_response(
    send: Send, status: int, headers: Headers, body: bytes, *, kind: str = "http.response"
) -> None:
    """Send a complete response by two messages whose types begin with `kind`."""
    fields = encoded_headers([*headers, ("Content-Length", str(len(body)))])
    await send({"type": f"{kind}.start", "status": status, "headers": fields})
    await send({"type": f"{kind}.body", "body": body})


# WebSockets. The ASGI server does framing, pings and the handshake, and passes complete messages.
# It may shield its writes from cancellation, for as long as its client reads nothing. So once a
# WebSocket is open, only the task `_AsgiSocket.write` calls `send`, and no other task ever waits
# until that task has finished. If `send` has not returned at the end, the host aborts the
# connection.

_RESPONSE_EXTENSION: Final = "websocket.http.response"

# Headers of a valid HTTP/1.1 handshake. They replace those that were received, because the ASGI
# server has checked the handshake already, and an HTTP/2 handshake does not have them.
_VALID_HANDSHAKE_HEADERS: Final = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


@attrs.define(kw_only=True, eq=False, repr=False)
class AsgiUpgrade:
    """The `Upgrade` of one `websocket` scope.

    Attributes:
        is_stuck: Whether a write has not finished, so that the connection must be aborted.
    """

    request: HttpRequest
    extensions: Any
    receive: Receive
    send: Send
    limits: Limits
    is_stuck: bool = attrs.field(default=False, init=False)

    async def reject(self, rejection: Rejection) -> None:
        """Answer with an HTTP error; a server without the response extension answers 403."""
        if _RESPONSE_EXTENSION not in self.extensions:
            await self._put({"type": "websocket.close", "code": int(CloseCode.POLICY_VIOLATION)})
            return
        await send_response(self._put, *rejection.response(), kind=_RESPONSE_EXTENSION)

    @asynccontextmanager
    async def opened(self, subprotocol: str | None) -> AsyncGenerator["_AsgiSocket", None]:
        """Accept the handshake; the WebSocket is open within the context."""
        await self._put({"type": "websocket.accept", "subprotocol": subprotocol})
        socket = _AsgiSocket(self.receive, self.send, self.limits)
        trio.lowlevel.spawn_system_task(socket.write)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(socket.read)
                yield socket
                nursery.cancel_scope.cancel()
        finally:
            self.is_stuck = socket.stop()

    async def _put(self, message: Message) -> None:
        try:
            await _send_shielded(self.send, message)
        except Exception as error:  # the client has disconnected, or has sent frames too early
            raise trio.BrokenResourceError("the client has disconnected") from error


@attrs.define(eq=False, repr=False)
class _AsgiSocket:
    """A `MessageSocket` over ASGI. Only the tasks `read` and `write` call the ASGI server.

    Attributes:
        bytes_sent: The number of characters of all messages whose sending has begun.
    """

    _receive: Receive
    _send: Send
    _limits: Limits
    bytes_sent: int = attrs.field(default=0, init=False)
    _inbox: ReceivedQueue = attrs.field(init=False)
    _ended: SocketEnd | None = attrs.field(default=None, init=False)
    _is_gone: bool = attrs.field(default=False, init=False)
    _unsent: deque[Message] = attrs.field(factory=deque[Message], init=False)
    _sending_since: float = attrs.field(default=0.0, init=False)
    _writing: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _filled: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _progress: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        self._inbox = ReceivedQueue(self._limits.messages.chunk_bytes)

    # The tasks

    async def read(self) -> None:
        """Queue received messages until the client disconnects."""
        ended = SocketEnd(CloseCode.ABNORMAL_CLOSURE)
        with suppress(Exception):  # an error of the server means a lost client
            while (message := await self._receive())["type"] == "websocket.receive":
                text = message.get("text")
                if text is None:
                    self._end(SocketEnd(CloseCode.UNSUPPORTED_DATA, is_violation=True))
                    continue
                bytes_max = self._limits.messages.bytes_max
                self._inbox.put(bounded(text.encode(), message_bytes_max=bytes_max))
                await self._inbox.room()
            ended = SocketEnd(message.get("code", ended.code), message.get("reason") or "")
        self._is_gone = True
        self._end(ended)

    def _end(self, ended: SocketEnd) -> None:
        self._ended = self._ended or ended
        self._inbox.end()
        self._progress.unpark_all()

    async def write(self) -> None:
        """Send the messages of the queue, until `stop`."""
        with self._writing:
            try:
                while True:
                    while not self._unsent:
                        await self._filled.park()
                    message = self._unsent[0]
                    self.bytes_sent += len(message.get("text", ""))
                    self._sending_since = trio.current_time()
                    await self._send(message)
                    self._unsent.popleft()
                    self._progress.unpark_all()
            except Exception as error:
                logger.debug("sending on a WebSocket failed", exc_info=error)
                self._is_gone = True
                self._progress.unpark_all()

    def stop(self) -> bool:
        """Cancel `write`; return whether it is within a write that it cannot cancel."""
        self._writing.cancel()
        is_stuck = bool(self._unsent) and not self._is_gone
        self._is_gone = True
        self._progress.unpark_all()
        return is_stuck

    # The `MessageSocket`

    async def send_texts(self, texts: Sequence[str]) -> None:
        await self._put([{"type": "websocket.send", "text": text} for text in texts])

    def send_texts_nowait(self, texts: Iterable[str]) -> int:
        """Queue about `chunk_bytes` of messages if the queue is empty; return their number."""
        if self._is_gone:
            raise trio.BrokenResourceError("the peer has disconnected")
        if self._unsent:
            return 0
        size = 0
        for text in texts:
            self._unsent.append({"type": "websocket.send", "text": text})
            size += len(text)
            if size >= self._limits.messages.chunk_bytes:
                break
        self._filled.unpark_all()
        return len(self._unsent)

    @property
    def is_unfinished(self) -> bool:
        return False  # the task `write` finishes every message

    async def _put(self, messages: Sequence[Message]) -> None:
        await self._all_sent()  # a cancelled call may have left messages in the queue
        self._unsent.extend(messages)
        self._filled.unpark_all()
        try:
            await self._all_sent()
        except trio.Cancelled:
            while len(self._unsent) > 1:  # the first message is being sent
                self._unsent.pop()
            raise

    async def _all_sent(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._unsent and not self._is_gone:
            await self._progress.park()
        if self._is_gone:
            raise trio.BrokenResourceError("the peer has disconnected")

    async def receive(self) -> Sequence[bytes | Oversized]:
        return cast("Sequence[bytes | Oversized]", await self._inbox.take())

    @property
    def ending(self) -> SocketEnd:
        return self._ended or SocketEnd(CloseCode.ABNORMAL_CLOSURE)

    async def ping(self) -> None:
        await self._all_sent()  # ASGI has no pings

    def is_silent_since(self, moment: float) -> bool:  # noqa: ARG002  of `MessageSocket`
        # The ASGI server notices a client that sends nothing, but not one that reads nothing.
        waited_seconds = trio.current_time() - self._sending_since
        return bool(self._unsent) and waited_seconds >= self._limits.messages.write_stall_seconds

    async def close(self, code: CloseCode, reason: str) -> None:
        """Send a close frame, and wait until the client has disconnected."""
        self._inbox.close()
        message = {"type": "websocket.close", "code": int(code), "reason": close_reason(reason)}
        with suppress(trio.BrokenResourceError):
            await self._put([message])
        while not self._is_gone:
            await self._progress.park()


# HTTP.

_NO_TRIO: Final = (
    "This application runs on Trio. Serve it with hypercorn's Trio worker "
    "(hypercorn --worker-class trio), or with mcp_trio itself.\n"
)

# Most responses have the same headers as an earlier one.
_cached_encoded_headers: Final = functools.lru_cache(maxsize=256)(encoded_headers)

_BODILESS_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
_LENGTH_DIGITS_MAX: Final = 18

# The bytes around the name and the value of a header line.
_HEADER_LINE_BYTES: Final = len(": \r\n")


class IncompleteResponse(Exception):  # noqa: N818  its cause was logged as an error already
    """A started response will not be completed; raised for the ASGI server to close it."""


@attrs.define(eq=False, repr=False)
class AsgiHost:
    """An ASGI application that passes each request to an HTTP application, as an `Exchange`.

    Args:
        respond: The HTTP application.
        limits: The limits of a request.
        on_shutdown: Called at the lifespan shutdown event, which is answered when it has returned.
        serve_upgrade: The WebSocket application; without one, handshakes are rejected.
    """

    _respond: Responder
    _limits: Limits = attrs.field(default=DEFAULT_LIMITS, kw_only=True, alias="limits")
    _on_shutdown: Callable[[], Awaitable[None]] = attrs.field(
        default=trio.lowlevel.checkpoint, kw_only=True, alias="on_shutdown"
    )
    _serve_upgrade: WebSocketApplication | None = attrs.field(
        default=None, kw_only=True, alias="serve_upgrade"
    )
    _log: PeerLog = attrs.field(factory=PeerLog, init=False)
    _bodies: Shares = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._bodies = shares_of_bodies(self._limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope: a request, a WebSocket, or the lifespan.

        Raises:
            IncompleteResponse: The response was started and will not be completed.
        """
        match scope["type"]:
            case "http" if trio.lowlevel.in_trio_task():
                await self._serve(scope, receive, send)
            case "http":
                await send_response(send, 500, PLAIN_TEXT_HEADERS, _NO_TRIO.encode("ascii"))
            case "lifespan":
                while (await receive())["type"] != "lifespan.shutdown":
                    await send({"type": "lifespan.startup.complete"})
                if trio.lowlevel.in_trio_task():  # otherwise no request was ever served
                    await self._on_shutdown()
                self._log.close()
                await send({"type": "lifespan.shutdown.complete"})
            case "websocket" if self._serve_upgrade is not None and trio.lowlevel.in_trio_task():
                await self._upgrade(scope, receive, send, self._serve_upgrade)
            case "websocket":
                await receive()
                # The server answers an unaccepted handshake with 403, whatever the code.
                await send({"type": "websocket.close", "code": int(CloseCode.NORMAL_CLOSURE)})
            case unknown:
                raise NotImplementedError(f"ASGI scope {unknown!r}")

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = AsgiExchange(scope, receive, send, self._bodies, limits=self._limits)
        try:
            if text := self._error_of_long_headers(scope):
                exchange.reject(431, text)
            elif {"content-length", "transfer-encoding"} <= exchange.request.headers.keys():
                # This may be request smuggling (RFC 9112, section 6.3). Some servers accept it.
                text = "the request has both Content-Length and Transfer-Encoding"
                exchange.reject(400, text)
            else:
                try:
                    await self._respond(exchange)
                except* trio.BrokenResourceError as errors:
                    is_expected = exchange.is_broken or exchange.has_late_body
                    level = logging.DEBUG if is_expected else logging.ERROR
                    self._log_failure(exchange, errors, level)
                except* Exception as errors:
                    self._log_failure(exchange, errors, logging.ERROR)
            await exchange.finish()
        finally:
            exchange.close()

    async def _upgrade(
        self, scope: Scope, receive: Receive, send: Send, serve_upgrade: WebSocketApplication
    ) -> None:
        request = request_of({**scope, "method": "GET"})
        request = attrs.evolve(
            request,
            scheme="https" if request.scheme in ("wss", "https") else "http",
            headers={**request.headers, **_VALID_HANDSHAKE_HEADERS},
        )
        upgrade = AsgiUpgrade(
            request=request,
            extensions=scope.get("extensions") or {},
            receive=receive,
            send=send,
            limits=self._limits,
        )
        if (await receive())["type"] != "websocket.connect":
            return
        try:
            if text := self._error_of_long_headers(scope):
                await upgrade.reject(Rejection(status=431, text=text))
            else:
                await serve_upgrade(upgrade)
        except trio.BrokenResourceError:
            pass  # the client has disconnected
        except Exception as error:
            text = "a WebSocket connection failed"
            self._log.report(text, text, level=logging.ERROR, error=error)
        if upgrade.is_stuck:
            raise IncompleteResponse

    def _error_of_long_headers(self, scope: Scope) -> str:
        """Return the error for path and headers over `limits.http.headers_bytes_max`; "" if none.

        An ASGI server may check this only for HTTP/1.1 requests that arrive slowly.
        """
        headers, path = scope["headers"], scope.get("raw_path") or scope["path"]
        size = sum([len(name) + len(value) + _HEADER_LINE_BYTES for name, value in headers])
        size += len(path) + len(scope["query_string"])
        bytes_max = self._limits.http.headers_bytes_max
        if size <= bytes_max:
            return ""
        return f"the request headers are longer than limits.http.headers_bytes_max ({bytes_max})"

    def _log_failure(self, exchange: "AsgiExchange", errors: BaseException, level: int) -> None:
        text = f"answering {exchange.request.method} {exchange.request.path} failed"
        # A kind for each level: disconnects must not keep errors from being logged.
        self._log.report(logging.getLevelName(level), text, level=level, error=errors)


@attrs.define(eq=False, repr=False)
class AsgiExchange:
    """The `Exchange` of one `http` scope.

    ASGI reports a client's disconnect by `receive` only. So a task calls `receive` once the body is
    read and `gone` is awaited or a response is started. It is a system task, because most exchanges
    need none, and a nursery would cost time in each of them.

    Attributes:
        has_late_body: Whether the body has stalled, so that the application could not read it.
    """

    _scope: Scope
    _receive: Receive
    _send: Send
    _bodies: Shares
    _limits: Limits = attrs.field(kw_only=True, alias="limits")
    request: HttpRequest = attrs.field(init=False)
    has_late_body: bool = attrs.field(default=False, init=False)
    _body: bytes = attrs.field(default=b"", init=False)
    # The application can read no more of the body, or does not want to.
    _body_over: trio.Event = attrs.field(factory=trio.Event, init=False)
    # The ASGI server has passed on all of the body.
    _input_over: trio.Event = attrs.field(factory=trio.Event, init=False)
    _watcher: trio.CancelScope | None = attrs.field(default=None, init=False)
    _disconnected: trio.Event = attrs.field(factory=trio.Event, init=False)
    _is_stalled: bool = attrs.field(default=False, init=False)
    # Whether the connection carries other exchanges at the same time.
    _is_multiplexed: bool = attrs.field(init=False)
    _response_state: ResponseState = attrs.field(default=ResponseState.NOT_STARTED, init=False)
    # The status and text that `finish` sends if the application has sent nothing.
    _host_status: int = attrs.field(default=500, init=False)
    _host_text: str = attrs.field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        self.request = request_of(self._scope)
        self._is_multiplexed = not self._scope.get("http_version", "1.1").startswith("1")
        method, headers = self.request.method, self.request.headers
        length = headers.get("content-length")
        # Over HTTP/2 a body needs no header.
        may_have_body = "transfer-encoding" in headers or (
            method not in _BODILESS_METHODS if length is None else length != "0"
        )
        if not may_have_body:
            self._body_over.set()
            if not self._is_multiplexed:
                self._input_over.set()

    @property
    def may_lead(self) -> bool:
        """False: the ASGI server runs the coroutine, so no other task can continue it."""
        return False

    @property
    def is_broken(self) -> bool:
        """True if the client has disconnected or stalled: nothing more can be sent."""
        return self._is_stalled or self._disconnected.is_set()

    # Reading

    async def body(self, bytes_max: int) -> bytes:
        """Return the request body, as `Exchange.body` documents."""
        if self._body_over.is_set():
            return self._body
        body = bytearray()
        unfinished = UnfinishedBody(self._bodies, network_of(self.request.client))
        try:
            await self._receive_body(body, bytes_max, unfinished)
        except BaseException:
            body.clear()  # the exception would keep it until the request is answered
            raise
        finally:
            unfinished.release()
        self._body = bytes(body)
        self._body_over.set()
        return self._body

    def body_nowait(self, bytes_max: int) -> bytes | None:  # noqa: ARG002
        """Return None: an ASGI server passes the body on when that is awaited."""
        return None

    async def _receive_body(
        self, body: bytearray, bytes_max: int, unfinished: UnfinishedBody
    ) -> None:
        content_length: float | None = None
        digits = self.request.headers.get("content-length", "")
        if digits.isdecimal():
            content_length = int(digits) if len(digits) <= _LENGTH_DIGITS_MAX else math.inf
        if content_length is not None and content_length > bytes_max:
            raise BodyTooLargeError(bytes_max)
        # Over HTTP/1.1 the content length decides, without waiting for the server's final message.
        length = None if self._is_multiplexed else content_length
        seconds = self._limits.http.body_seconds
        extend_at = self._limits.messages.chunk_bytes
        with trio.move_on_after(seconds) as timeout:
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    self._body_over.set()
                    self._input_over.set()
                    self._disconnected.set()
                    raise trio.BrokenResourceError(
                        "the client disconnected within the request body"
                    )
                body += message.get("body", b"")
                is_last = len(body) == length or not message.get("more_body", False)
                if is_last:
                    self._input_over.set()
                if len(body) > bytes_max:
                    raise BodyTooLargeError(bytes_max)
                if is_last:
                    return
                unfinished.count(len(body))
                if len(body) >= extend_at:  # the client has sent another chunk in time
                    extend_at = len(body) + self._limits.messages.chunk_bytes
                    timeout.deadline = trio.current_time() + seconds
        text = f"the body stalled for {seconds:g} seconds (limits.http.body_seconds)"
        self.has_late_body = True
        self.reject(408, text)
        raise trio.BrokenResourceError(text)

    async def gone(self) -> None:
        """Wait until the client disconnects, as `Exchange.gone` documents."""
        await self._body_over.wait()
        self._watch()
        await self._disconnected.wait()

    def _watch(self) -> None:
        """Start the task that drops input and notices the client's disconnect."""
        self._body_over.set()
        if self._watcher is not None:
            return
        scope = self._watcher = trio.CancelScope()

        async def drop_until_disconnected() -> None:
            with scope:
                with suppress(Exception):  # an error of the server means a lost client
                    while (message := await self._receive())["type"] != "http.disconnect":
                        if not message.get("more_body", False):
                            self._input_over.set()
                self._input_over.set()
                self._disconnected.set()

        trio.lowlevel.spawn_system_task(drop_until_disconnected)

    # Answering

    def close_after_response(self) -> None:
        """Do nothing: connections belong to the ASGI server, which closes them when it stops."""

    async def answer(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """Send a complete response."""
        has_length = status not in STATUSES_WITHOUT_BODY
        await self._begin(status, headers, len(body) if has_length else None)
        await self._complete(b"" if self.request.method == "HEAD" else body)

    async def start(self, status: int, headers: Headers) -> None:
        """Send the headers of a response whose length is unknown."""
        await self._begin(status, headers)
        self._watch()
        # A server may hold the headers back until it gets the first piece of the body.
        await self._put_body(b"", more_body=True)

    async def send(self, piece: bytes) -> None:
        """Send a piece of a started response."""
        self._expect(ResponseState.STARTED)
        if self.request.method != "HEAD":
            await self._put_body(piece, more_body=True)

    async def end(self) -> None:
        """Complete a started response."""
        self._expect(ResponseState.STARTED)
        await self._complete(b"")

    async def _complete(self, body: bytes) -> None:
        """Send the rest of the response's body, and its end when the request has ended.

        Over HTTP/1.1, servers close the connection after a response to an incomplete request, which
        resets the connection if the client still sends, and the client may lose the response. So
        the end waits for the request for `limits.shutdown.close_seconds`. Over HTTP/2 it waits
        without a limit, since hypercorn 0.18 fails with all of its connections when data arrive for
        a stream that was answered (hypercorn issue 329).
        """
        if not self._input_over.is_set():
            if body:
                await self._put_body(body, more_body=True)
                body = b""
            self._watch()
            seconds = math.inf if self._is_multiplexed else self._limits.shutdown.close_seconds
            with trio.move_on_after(seconds):
                await self._input_over.wait()
        await self._put_body(body, more_body=False)
        self._response_state = ResponseState.COMPLETE

    def reject(self, status: int, text: str) -> None:
        """Set the status and text that `finish` sends in place of a response of the application."""
        self._host_status, self._host_text = status, text

    async def finish(self) -> None:
        """Send an error if the application has returned without a response.

        Raises:
            IncompleteResponse: The application has started a response and not completed it, and the
                client is still connected.
        """
        if self._response_state is ResponseState.NOT_STARTED and not self.is_broken:
            headers: Headers = PLAIN_TEXT_HEADERS if self._host_text else []
            with suppress(trio.BrokenResourceError):
                await self.answer(self._host_status, headers, self._host_text.encode())
        if self._response_state is not ResponseState.COMPLETE and not self._disconnected.is_set():
            raise IncompleteResponse

    def close(self) -> None:
        """Stop watching for the client's disconnect."""
        if self._watcher is not None:
            self._watcher.cancel()

    async def _begin(self, status: int, headers: Headers, length: int | None = None) -> None:
        self._expect(ResponseState.NOT_STARTED)
        fields = [*_cached_encoded_headers(tuple(headers))]
        if length is not None:
            fields.append((b"content-length", b"%d" % length))
        if not self._body_over.is_set():
            # A server may accept no response before the rest of the body is received.
            self._watch()
            if not self._is_multiplexed:
                fields.append((b"connection", b"close"))
        self._response_state = ResponseState.STARTED
        await self._put({"type": "http.response.start", "status": status, "headers": fields})

    def _expect(self, state: ResponseState) -> None:
        if self._response_state is not state:
            raise RuntimeError(
                f"an HTTP response is sent out of order: {self._response_state.value}"
            )

    async def _put_body(self, body: bytes, *, more_body: bool) -> None:
        """Send in pieces, so that the stall limit counts for each piece of a large response."""
        step = self._limits.messages.chunk_bytes
        for start in range(0, len(body) or 1, step):
            end = start + step
            has_more = more_body or end < len(body)
            await self._put(
                {"type": "http.response.body", "body": body[start:end], "more_body": has_more}
            )

    async def _put(self, message: Message) -> None:
        if self.is_broken:
            raise trio.BrokenResourceError("the client has disconnected")
        try:
            if not self._is_multiplexed or message["type"] == "http.response.start":
                await _send_shielded(self._send, message)
                return
            seconds = self._limits.messages.write_stall_seconds
            with trio.move_on_after(seconds) as timeout:
                await self._send(message)
        except OSError as error:
            self._disconnected.set()
            raise trio.BrokenResourceError(f"the client has disconnected: {error}") from error
        if timeout.cancelled_caught:
            self._is_stalled = True
            raise trio.BrokenResourceError(
                f"the client has read nothing for {seconds:g} seconds"
                " (limits.messages.write_stall_seconds)"
            )


# A browser can send the token of a WebSocket only as a subprotocol.
_CREDENTIAL_HEADERS: Final = frozenset(
    {b"authorization", b"proxy-authorization", b"cookie", b"sec-websocket-protocol"}
)
_CACHED_BYTES_MAX: Final = 2048
_cached_decoded_headers: Final = functools.lru_cache(maxsize=256)(decoded_headers)


def request_of(scope: Scope) -> HttpRequest:
    """Return the request of an `http` scope, its path relative to the application's mount."""
    query = scope["query_string"].decode("latin-1")
    client = scope.get("client")
    # Short headers without credentials are cached, as clients repeat them.
    sent = tuple([(name, value) for name, value in scope["headers"]])
    names = {name for name, _ in sent}
    is_short = sum([len(name) + len(value) for name, value in sent]) <= _CACHED_BYTES_MAX
    is_cached = is_short and len(names) == len(sent) and _CREDENTIAL_HEADERS.isdisjoint(names)
    headers = (_cached_decoded_headers if is_cached else decoded_headers)(sent)
    return HttpRequest(
        scope["method"],
        _path_below_mount(scope),
        query,
        *headers,
        scope.get("scheme", "http"),
        client[0] if client else None,
        certificate=_client_certificate(scope),
    )


def _client_certificate(scope: Scope) -> str | None:
    """Return the thumbprint of the client's certificate, if the HTTP server passes it on.

    https://asgi.readthedocs.io/en/latest/specs/tls.html
    """
    extensions: Mapping[str, Any] = scope.get("extensions") or {}
    tls = extensions.get("tls")
    if not tls or tls.get("client_cert_error") or not tls.get("client_cert_chain"):
        return None
    return sha256_base64url(ssl.PEM_cert_to_DER_cert(next(iter(tls["client_cert_chain"]))))


def _path_below_mount(scope: Scope) -> str:
    """Return the encoded path without the mount's path.

    Some servers and frameworks pass the path only decoded. Frameworks differ in whether the path
    includes the mount's.
    """
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    raw = (scope.get("raw_path") or b"").decode("latin-1").partition("?")[0]
    encoded_path = raw if unquote(raw) in (path, root + path) else quote(path)
    for prefix in (root, quote(root)):
        rest = encoded_path.removeprefix(prefix)
        if prefix and rest != encoded_path and rest[:1] in ("", "/"):
            return rest or "/"
    return encoded_path
