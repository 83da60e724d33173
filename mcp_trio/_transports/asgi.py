"""One host of exchanges: an ASGI application, for hypercorn or for whatever it is mounted in.

It needs Trio underneath. It needs no lifespan events, but ends in good order if they come.
"""

import contextlib
import enum
import functools
import logging
import math
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
from mcp_trio._protocol.http_headers import JSON, Headers, HttpRequest, encoded, fields_of
from mcp_trio._protocol.http_requests import Rejection
from mcp_trio._protocol.websocket import CloseCode, close_reason
from mcp_trio._transports.http_response import BodyTooLargeError, Responder
from mcp_trio._transports.inboxes import ReceivedQueue
from mcp_trio._transports.websocket import SocketEnded, Upgrade, Upgraded
from mcp_trio.limits import DEFAULT_LIMITS, Limits

# --------------------
# WebSocket through ASGI: a request to become one, and the socket of messages that it becomes.
#
# The server frames, answers pings and shakes hands, and tells whole messages. It may shield what it
# writes, for as long as its client reads nothing. So a task of its own writes, which nobody has to
# wait for; who holds the connection is told to cut it off if that task is left over.


logger = logging.getLogger("mcp_trio")

MORE: Final = "mcp_trio.more"
"""Stands in a message behind which the next comes at once: our own host sends them together."""

BYTES_SENT: Final = "mcp_trio.bytes_sent"
"""Among a scope's extensions: tells how much has left, also in the middle of a message."""

_ANSWERS: Final = "websocket.http.response"

# What HTTP/1.1 says of a handshake, which the server has checked; HTTP/2 says it in another way.
_CHECKED: Final = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


def _no_bytes() -> int:
    return 0


def checked_head(head: HttpRequest) -> HttpRequest:
    """The head of a `websocket` scope, in the words of HTTP/1.1."""
    scheme = "https" if head.scheme in ("wss", "https") else "http"
    return attrs.evolve(head, scheme=scheme, headers={**head.headers, **_CHECKED})


@attrs.define(kw_only=True, eq=False)
class AsgiUpgrade:
    """See `Upgrade`; over one `websocket` scope.

    Attributes:
        head: What came; see `checked_head`.
        extensions: What the server can do beside what every server can.
        receive: That of ASGI.
        send: That of ASGI.
        limits: How large a message may be.
        is_stuck: A write was left over: the connection is to be cut off.
    """

    head: HttpRequest
    extensions: Any
    receive: Any
    send: Any
    limits: Limits
    is_stuck: bool = attrs.field(default=False, init=False)

    async def reject(self, rejection: Rejection) -> None:
        """See `Upgrade.reject`; a server that can say no more says 403."""
        if _ANSWERS not in self.extensions:
            await self._say({"type": "websocket.close", "code": int(CloseCode.REJECTED)})
            return
        body = rejection.body()
        length = ("Content-Length", str(len(body)))
        headers = encoded([("Content-Type", JSON), length, *rejection.headers])
        start = {"type": f"{_ANSWERS}.start", "status": rejection.status, "headers": headers}
        await self._say(start)
        await self._say({"type": f"{_ANSWERS}.body", "body": body})

    @asynccontextmanager
    async def opened(self, subprotocol: str | None) -> AsyncGenerator["AsgiSocket", None]:
        """See `Upgrade.opened`."""
        await self._say({"type": "websocket.accept", "subprotocol": subprotocol})
        told: Callable[[], int] = self.extensions.get(BYTES_SENT, _no_bytes)
        socket = AsgiSocket(self.receive, self.send, self.limits, told)
        trio.lowlevel.spawn_system_task(socket.write)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(socket.read)
                yield socket
                nursery.cancel_scope.cancel()
        finally:
            self.is_stuck = socket.stop()

    async def _say(self, message: dict[str, Any]) -> None:
        try:
            await self.send(message)
        except Exception as error:  # of a client that has gone, or has sent frames too early
            raise trio.BrokenResourceError("the client is gone") from error


@attrs.define(eq=False)
class AsgiSocket:
    """A `MessageSocket`; what it has to send waits for `write`, and `read` brings what came."""

    _receive: Any
    _send: Any
    _limits: Limits
    _bytes_sent: Callable[[], int]
    _bytes_begun: int = attrs.field(default=0, init=False)
    _inbox: ReceivedQueue = attrs.field(init=False)
    _ended: SocketEnded | None = attrs.field(default=None, init=False)
    _is_gone: bool = attrs.field(default=False, init=False)
    _unsent: deque[dict[str, Any]] = attrs.field(factory=deque[dict[str, Any]], init=False)
    _held: int = attrs.field(default=0, init=False)
    _sending_since: float = attrs.field(default=0.0, init=False)
    _bytes_seen: int = attrs.field(default=0, init=False)
    _writing: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _filled: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _progress: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        self._inbox = ReceivedQueue(self._limits.messages.chunk_bytes)

    # The tasks.

    async def read(self) -> None:
        """Bring what comes, until the client has gone."""
        ended = SocketEnded(CloseCode.BROKEN_OFF)
        with suppress(Exception):  # a server that fails has no client any more
            while (message := await self._receive())["type"] == "websocket.receive":
                await self._take(message)
            ended = SocketEnded(message.get("code", ended.code), message.get("reason") or "")
        self._is_gone = True
        self._end(ended)

    async def _take(self, message: dict[str, Any]) -> None:
        text = message.get("text")
        if text is None:
            self._end(SocketEnded(CloseCode.NOT_TEXT, is_ours=True))
            return
        self._inbox.put(bounded(text.encode(), frame_bytes_max=self._limits.messages.bytes_max))
        await self._inbox.room()

    def _end(self, ended: SocketEnded) -> None:
        self._ended = self._ended or ended
        self._inbox.end()
        self._progress.unpark_all()

    async def write(self) -> None:
        """Send what there is, until it is stopped."""
        with self._writing:
            try:
                while True:
                    await self._write_next()
            except Exception as error:
                logger.debug("a WebSocket takes nothing more", exc_info=error)
                self._is_gone = True
                self._progress.unpark_all()

    async def _write_next(self) -> None:
        while not self._unsent:
            await self._filled.park()
        message = self._unsent[0]
        size = len(message.get("text", ""))
        self._bytes_begun += size
        self._note_progress()
        self._held += size
        if len(self._unsent) == 1 or self._held >= self._limits.messages.chunk_bytes:
            self._held = 0
        else:
            message[MORE] = True
        await self._send(message)
        self._unsent.popleft()
        self._progress.unpark_all()

    def _note_progress(self) -> None:
        self._sending_since, self._bytes_seen = trio.current_time(), self.bytes_sent

    def stop(self) -> bool:
        """Nothing more is sent; whether something is being sent that cannot be stopped."""
        self._writing.cancel()
        is_stuck = bool(self._unsent) and not self._is_gone
        self._is_gone = True
        self._progress.unpark_all()
        return is_stuck

    # The socket.

    @property
    def bytes_sent(self) -> int:
        """See `MessageSocket`; in the middle of a message, only our own host tells it."""
        return self._bytes_begun + self._bytes_sent()

    async def send_texts(self, texts: Sequence[str]) -> None:
        """See `MessageSocket`; cancelled, no message is cut, and most of the others not sent."""
        await self._put([{"type": "websocket.send", "text": text} for text in texts])

    def send_texts_nowait(self, texts: Iterable[str]) -> int:
        """See `MessageSocket`; about a chunk of them, if nothing else waits to be sent."""
        if self._is_gone:
            raise trio.BrokenResourceError("the peer is gone")
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
        """See `MessageSocket`; `write` finishes what was begun."""
        return False

    async def _put(self, messages: Sequence[dict[str, Any]]) -> None:
        await self._all_sent()  # what was left by somebody who was cancelled
        self._unsent.extend(messages)
        self._filled.unpark_all()
        try:
            await self._all_sent()
        except trio.Cancelled:
            while len(self._unsent) > 2:  # noqa: PLR2004  that one, and what it may wait for
                self._unsent.pop()
            raise

    async def _all_sent(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._unsent and not self._is_gone:
            await self._progress.park()
        if self._is_gone:
            raise trio.BrokenResourceError("the peer is gone")

    async def receive(self) -> Sequence[bytes | Oversized]:
        """See `MessageSocket`."""
        try:
            messages = await self._inbox.take()
        except trio.ClosedResourceError:
            raise SocketEnded(CloseCode.DONE) from None
        if messages:
            return cast("Sequence[bytes | Oversized]", messages)
        assert self._ended is not None
        raise self._ended

    async def ping(self) -> None:
        """See `MessageSocket`; ASGI knows none, but who answers one reads what is sent before."""
        await self._all_sent()

    def is_silent_since(self, moment: float) -> bool:  # noqa: ARG002  the protocol has it
        """See `MessageSocket`; the server sees that, and tells of it, but not that nobody reads."""
        if self.bytes_sent != self._bytes_seen:
            self._note_progress()
        waited_seconds = trio.current_time() - self._sending_since
        return bool(self._unsent) and waited_seconds >= self._limits.messages.write_stall_seconds

    async def close(self, code: CloseCode, reason: str) -> None:
        """See `MessageSocket`."""
        self._inbox.end()
        self._inbox.close()
        said = {"type": "websocket.close", "code": int(code), "reason": close_reason(reason)}
        with suppress(trio.BrokenResourceError):
            await self._put([said])
        while not self._is_gone:
            await self._progress.park()


async def serve_upgrade(upgrade: AsgiUpgrade, upgraded: Upgraded) -> None:
    """Let `upgraded` have a request, of which nothing was received yet."""
    if (await upgrade.receive())["type"] != "websocket.connect":
        return
    try:
        await upgraded(upgrade)
    except trio.BrokenResourceError:
        pass  # the client has gone away
    except Exception:
        logger.exception("a WebSocket connection failed")


Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
"""The types of ASGI 3, as far as all servers and frameworks agree on them."""

IS_WAITING: Final = "mcp_trio.is_waiting"
"""Among a scope's extensions: tells whether the next message is there, and nobody would wait."""

NO_TRIO: Final = (
    "This application runs on Trio. Serve it by hypercorn's Trio worker "
    "(hypercorn --worker-class trio), or by mcp_trio itself.\n"
)


class AnswerBrokenOff(Exception):  # noqa: N818 (named by what happened to the answer)
    """Tells the ASGI server that the rest of an answer will not come; it was logged here."""


def _is_not_waiting() -> bool:
    return False


async def _nothing() -> None:
    await trio.lowlevel.checkpoint()


@attrs.frozen(eq=False)
class AsgiHost:
    """An ASGI application that hands each request to `respond`, as an exchange.

    `upgraded` is given those that ask for a WebSocket; without it they are refused.
    `ended` is awaited when the server says that it shuts down, before it may go.
    """

    _respond: Responder
    _limits: Limits = attrs.field(default=DEFAULT_LIMITS, kw_only=True, alias="limits")
    _ended: Callable[[], Awaitable[None]] = attrs.field(
        default=_nothing, kw_only=True, alias="ended"
    )
    _upgraded: Upgraded | None = attrs.field(default=None, kw_only=True, alias="upgraded")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection in the sense of ASGI: a request, a WebSocket, or the lifespan.

        Raises:
            AnswerBrokenOff: The answer has begun and will not be completed.
        """
        match scope["type"]:
            case "http" if trio.lowlevel.in_trio_task():
                await self._serve(scope, receive, send)
            case "http":
                await _say_no_trio(send)
            case "lifespan":
                await self._live(receive, send)
            case "websocket" if self._upgraded is not None and trio.lowlevel.in_trio_task():
                await self._upgrade(scope, receive, send, self._upgraded)
            case "websocket":
                await _reject_websocket(receive, send)
            case unknown:
                raise NotImplementedError(f"ASGI scope {unknown!r}")

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = AsgiExchange(scope, receive, send, limits=self._limits)
        try:
            if self._is_long(scope):
                exchange.reject(_LONG, self._long_text)
            elif _has_two_lengths(exchange.head):
                exchange.reject(_AMBIGUOUS)
            else:
                await self._respond_guarded(exchange)
            await exchange.finish()
        finally:
            exchange.close()

    async def _upgrade(
        self, scope: Scope, receive: Receive, send: Send, upgraded: Upgraded
    ) -> None:

        upgrade = AsgiUpgrade(
            head=checked_head(head_of({**scope, "method": "GET"})),
            extensions=scope.get("extensions") or {},
            receive=receive,
            send=send,
            limits=self._limits,
        )
        await serve_upgrade(upgrade, self._reject_long if self._is_long(scope) else upgraded)
        if upgrade.is_stuck:
            raise AnswerBrokenOff

    def _is_long(self, scope: Scope) -> bool:
        """What has come whole, or over HTTP/2, servers do not hold against their own limit."""
        return _head_bytes(scope) > self._limits.http.headers_bytes_max

    @property
    def _long_text(self) -> str:
        bytes_max = self._limits.http.headers_bytes_max
        return f"the head is longer than limits.http.headers_bytes_max ({bytes_max})"

    async def _reject_long(self, upgrade: Upgrade) -> None:
        await upgrade.reject(Rejection(status=_LONG, text=self._long_text))

    async def _respond_guarded(self, exchange: "AsgiExchange") -> None:
        try:
            await self._respond(exchange)
        except* trio.BrokenResourceError as errors:
            level = logging.DEBUG if exchange.is_broken else logging.ERROR
            _log_failure(exchange, errors, level)
        except* Exception as errors:
            _log_failure(exchange, errors, logging.ERROR)

    async def _live(self, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        if trio.lowlevel.in_trio_task():  # else nothing was ever begun
            await self._ended()
        await send({"type": "lifespan.shutdown.complete"})


def _log_failure(exchange: "AsgiExchange", errors: BaseException, level: int) -> None:
    head = exchange.head
    logger.log(level, "answering %s %s failed", head.method, head.path, exc_info=errors)


async def _say_no_trio(send: Send) -> None:
    body = NO_TRIO.encode("ascii")
    headers = [
        ("content-type", "text/plain; charset=utf-8"),
        ("content-length", str(len(body))),
    ]
    await send({"type": "http.response.start", "status": 500, "headers": encoded(headers)})
    await send({"type": "http.response.body", "body": body})


async def _reject_websocket(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 1000})


class _Stage(enum.Enum):
    """How far an answer is."""

    SILENT = "nothing was sent"
    BEGUN = "it has begun"
    WHOLE = "it was sent whole"


# Most answers say what one before has said.
_remembered_encoded: Final = functools.lru_cache(maxsize=256)(encoded)

_BODILESS_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
_LENGTHLESS_STATUSES: Final = frozenset({204, 304})
_AMBIGUOUS: Final = 400
_SLOW: Final = 408
_LONG: Final = 431
_FAILED: Final = 500
_LENGTH_DIGITS_MAX: Final = 18
_PLAIN_TEXT: Final = [("content-type", "text/plain; charset=utf-8")]

# What stands around a name and a value in a head.
_FIELD_BYTES: Final = len(": \r\n")


@attrs.define(eq=False)
class AsgiExchange:
    """An `Exchange` over one `http` scope; see there for what each method promises.

    The server tells by `receive` that the client has gone, and by nothing else. So one task reads
    from there as soon as the body is read and somebody wants to know. It is a system task, as most
    exchanges need none, and a nursery for all would cost each of them.
    """

    _scope: Scope
    _receive: Receive
    _send: Send
    _limits: Limits = attrs.field(kw_only=True, alias="limits")
    may_lead: bool = attrs.field(default=False, init=False)
    head: HttpRequest = attrs.field(init=False)
    _body: bytes = attrs.field(default=b"", init=False)
    _is_body_over: trio.Event = attrs.field(factory=trio.Event, init=False)
    _watcher: trio.CancelScope | None = attrs.field(default=None, init=False)
    _is_gone: trio.Event = attrs.field(factory=trio.Event, init=False)
    _is_stalled: bool = attrs.field(default=False, init=False)
    # Whether the connection carries other exchanges at the same time.
    _is_multiplexed: bool = attrs.field(init=False)
    _stage: _Stage = attrs.field(default=_Stage.SILENT, init=False)
    _status_unsaid: int = attrs.field(default=_FAILED, init=False)
    _text_unsaid: str = attrs.field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        self.head = head_of(self._scope)
        self._is_multiplexed = not self._scope.get("http_version", "1.1").startswith("1")
        if not _may_have_body(self.head):
            self._is_body_over.set()

    @property
    def is_broken(self) -> bool:
        """Whether nothing more can reach the client."""
        return self._is_stalled or self._is_gone.is_set()

    # Reading

    async def body(self, bytes_max: int) -> bytes:
        """See `Exchange.body`."""
        if not self._is_body_over.is_set():
            self._body = await self._read_body(bytes_max)
            self._is_body_over.set()
        return self._body

    async def _read_body(self, bytes_max: int) -> bytes:
        announced = _announced(self.head)
        if announced is not None and announced > bytes_max:
            raise BodyTooLargeError(
                f"more is announced than the body may have: at most {bytes_max} bytes"
            )
        body = bytearray()
        if await self._has_taken_all(body, bytes_max):
            return bytes(body)
        seconds = self._limits.http.body_seconds
        with trio.move_on_after(seconds) as timer_queue:
            await self._take_rest(body, bytes_max, timer_queue)
            return bytes(body)
        self._status_unsaid = _SLOW
        raise trio.BrokenResourceError(
            f"the body has not come for {seconds} s (limits.http.body_seconds)"
        )

    async def _has_taken_all(self, body: bytearray, bytes_max: int) -> bool:
        """Whether what is there already was all of it: nobody has waited then, or needs a timer."""
        extensions: Mapping[str, Any] = self._scope.get("extensions") or {}
        is_waiting: Callable[[], bool] = extensions.get(IS_WAITING, _is_not_waiting)
        while is_waiting():
            if await self._has_taken_last(body, bytes_max):
                return True
        return False

    async def _take_rest(
        self, body: bytearray, bytes_max: int, timer_queue: trio.CancelScope
    ) -> None:
        """In a time that begins anew with each `limits.messages.chunk_bytes` of it."""
        mark = len(body) + self._limits.messages.chunk_bytes
        while not await self._has_taken_last(body, bytes_max):
            if len(body) >= mark:
                mark = len(body) + self._limits.messages.chunk_bytes
                timer_queue.deadline = trio.current_time() + self._limits.http.body_seconds

    async def _has_taken_last(self, body: bytearray, bytes_max: int) -> bool:
        """Take a piece; over HTTP/1.1 the last is known by the length, and its sign not awaited."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._is_body_over.set()
            self._is_gone.set()
            raise trio.BrokenResourceError("the client went away within its request")
        body += message.get("body", b"")
        if len(body) > bytes_max:
            raise BodyTooLargeError(f"the body has more than {bytes_max} bytes")
        length = None if self._is_multiplexed else _announced(self.head)
        return len(body) == length or not message.get("more_body", False)

    async def gone(self) -> None:
        """See `Exchange.gone`."""
        await self._is_body_over.wait()
        self._watch()
        await self._is_gone.wait()

    def _watch(self) -> None:
        """From now on what the client sends is dropped, and its going away is noticed."""
        self._is_body_over.set()
        if self._watcher is None:
            self._watcher = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._drop_until_gone, self._watcher)

    async def _drop_until_gone(self, scope: trio.CancelScope) -> None:
        with scope:
            with contextlib.suppress(Exception):  # a server that fails has no client any more
                while (await self._receive())["type"] != "http.disconnect":
                    pass
            self._is_gone.set()

    # Answering

    async def answer(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """See `Exchange.answer`."""
        has_length = status not in _LENGTHLESS_STATUSES
        await self._begin(status, headers, len(body) if has_length else None)
        await self._put_body(b"" if self.head.method == "HEAD" else body, more_body=False)
        self._stage = _Stage.WHOLE

    async def start(self, status: int, headers: Headers) -> None:
        """See `Exchange.start`."""
        await self._begin(status, headers)
        self._watch()
        # A server may keep the head back until it has seen the first of the body.
        await self._put_body(b"", more_body=True)

    async def send(self, piece: bytes) -> None:
        """See `Exchange.send`."""
        self._expect(_Stage.BEGUN)
        if self.head.method != "HEAD":
            await self._put_body(piece, more_body=True)

    async def end(self) -> None:
        """See `Exchange.end`."""
        self._expect(_Stage.BEGUN)
        await self._put_body(b"", more_body=False)
        self._stage = _Stage.WHOLE

    def reject(self, status: int, text: str = "") -> None:
        """Nobody is to see the request: it is too long, or other ones to those before us."""
        self._status_unsaid, self._text_unsaid = status, text

    async def finish(self) -> None:
        """To be called when the application has returned; gives the answer that it has not begun.

        Raises:
            AnswerBrokenOff: Its answer is not complete, and there is a client that waits for it.
        """
        if self._stage is _Stage.SILENT and not self.is_broken:
            headers = _PLAIN_TEXT if self._text_unsaid else []
            with contextlib.suppress(trio.BrokenResourceError):
                await self.answer(self._status_unsaid, headers, self._text_unsaid.encode())
        if self._stage is not _Stage.WHOLE and not self._is_gone.is_set():
            raise AnswerBrokenOff

    def close(self) -> None:
        """End the exchange: nobody hears any more that the client is gone."""
        if self._watcher is not None:
            self._watcher.cancel()

    async def _begin(self, status: int, headers: Headers, length: int | None = None) -> None:
        self._expect(_Stage.SILENT)
        fields = [*_remembered_encoded(tuple(headers))]
        if length is not None:
            fields.append((b"content-length", b"%d" % length))
        if not self._is_body_over.is_set():
            # Somebody has to take the rest, or the server could not even take the answer.
            self._watch()
            if not self._is_multiplexed:
                fields.append((b"connection", b"close"))
        self._stage = _Stage.BEGUN
        await self._put({"type": "http.response.start", "status": status, "headers": fields})

    def _expect(self, stage: _Stage) -> None:
        if self._stage is not stage:
            raise RuntimeError(f"this cannot be sent: of the answer, {self._stage.value}")

    async def _put_body(self, body: bytes, *, more_body: bool) -> None:
        """In pieces, as a large answer may take longer than a client may take over nothing."""
        step = self._limits.messages.chunk_bytes
        last = max(0, len(body) - 1) // step * step
        for first in range(0, last, step):
            await self._put_piece(body[first : first + step], more_body=True)
        await self._put_piece(body[last:], more_body=more_body)

    async def _put_piece(self, piece: bytes, *, more_body: bool) -> None:
        await self._put({"type": "http.response.body", "body": piece, "more_body": more_body})

    async def _put(self, message: Message) -> None:
        if self.is_broken:
            raise trio.BrokenResourceError("the client is gone")
        try:
            if self._is_multiplexed:
                await self._send_in_time(message)
            else:  # hypercorn shields these writes: only who holds the connection can end them
                await self._send(message)
        except OSError as error:
            self._is_gone.set()
            raise trio.BrokenResourceError(f"the client is gone: {error}") from error

    async def _send_in_time(self, message: Message) -> None:
        seconds = self._limits.messages.write_stall_seconds
        with trio.move_on_after(seconds):
            await self._send(message)
            return
        self._is_stalled = True
        raise trio.BrokenResourceError(
            f"the client has read nothing for {seconds} s (limits.messages.write_stall_seconds)"
        )


def head_of(scope: Scope) -> HttpRequest:
    """The head of an `http` scope, with what the application is mounted under taken off."""
    query = scope["query_string"].decode("latin-1")
    client = scope.get("client")
    return HttpRequest(
        scope["method"],
        _path_below_mount(scope),
        query,
        *_fields(scope["headers"]),
        scope.get("scheme", "http"),
        client[0] if client else None,
    )


_SECRETS: Final = frozenset({b"authorization", b"proxy-authorization", b"cookie"})
_REMEMBERED_BYTES_MAX: Final = 2048
_remembered_fields_of: Final = functools.lru_cache(maxsize=256)(fields_of)


def _fields(
    headers: Iterable[tuple[bytes, bytes]],
) -> tuple[Mapping[str, str], frozenset[str]]:
    """Clients say the same over and over, which is remembered unless somebody's secret is in it."""
    sent = tuple([(name, value) for name, value in headers])
    values = dict(sent)
    is_short = sum(map(len, values.values())) <= _REMEMBERED_BYTES_MAX
    is_remembered = is_short and len(values) == len(sent) and _SECRETS.isdisjoint(values)
    return (_remembered_fields_of if is_remembered else fields_of)(sent)


def _head_bytes(scope: Scope) -> int:
    """How long a head is, about; that of HTTP/2 as it would be in HTTP/1.1."""
    fields = sum([len(name) + len(value) + _FIELD_BYTES for name, value in scope["headers"]])
    return len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"]) + fields


def _path_below_mount(scope: Scope) -> str:
    """The path as it came; some servers and frameworks give it only without its escapes.

    The mount's own path stands in front of it or does not, by the framework.
    """
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    raw = (scope.get("raw_path") or b"").decode("latin-1").partition("?")[0]
    whole = raw if unquote(raw) in (path, root + path) else quote(path)
    for prefix in (root, quote(root)):
        rest = whole.removeprefix(prefix)
        if prefix and rest != whole and rest[:1] in ("", "/"):
            return rest or "/"
    return whole


def _may_have_body(head: HttpRequest) -> bool:
    """Over HTTP/2 a body may come unannounced, but not with these methods."""
    if "transfer-encoding" in head.headers:
        return True
    length = head.headers.get("content-length")
    return head.method not in _BODILESS_METHODS if length is None else length != "0"


def _has_two_lengths(head: HttpRequest) -> bool:
    """What servers read in different ways, and smugglers live on; some servers let it through."""
    return "content-length" in head.headers and "transfer-encoding" in head.headers


def _announced(head: HttpRequest) -> float | None:
    """How long the body is said to be; what is no number says nothing."""
    length = head.headers.get("content-length")
    if length is None or not length.isdecimal():
        return None
    return int(length) if len(length) <= _LENGTH_DIGITS_MAX else math.inf
