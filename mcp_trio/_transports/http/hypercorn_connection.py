"""One connection that hypercorn parses: its requests, and what is run for them.

Of hypercorn it is the protocols alone: HTTP/1.1, HTTP/2 and WebSocket, with their states and their
flow control. What stands around them in its own server costs more than all else: a task after each
request, which ends the connection if no other comes; a lock and a shield for each piece of an
answer; a turn of the scheduler for each message to the application. Here who is idle is looked for
now and then, by the host; bytes that the system takes at once need neither; and what has come for
an application is simply there.
"""

import contextlib
import functools
import logging
import math
from collections.abc import Awaitable, Callable
from ssl import SSLContext
from typing import Any, Final, TypeAlias, cast

import attrs
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from mcp_trio._limits import Limits
from mcp_trio._transports.bell import Bell
from mcp_trio._transports.http.asgi import (
    IS_WAITING,
    AnswerBrokenOff,
    Application,
    Message,
    Receive,
    Scope,
    Send,
)
from mcp_trio._transports.http.asgi_upgrade import BYTES_SENT, MORE
from mcp_trio._transports.http.hypercorn_arrivals import Arrivals, Windows
from mcp_trio._transports.http.hypercorn_protocols import (
    bytes_held_back,
    end_unended,
    forget_refused,
    forgive,
    has_unsent_ends,
    number_behind,
    stay_in_http1,
)
from mcp_trio._transports.http.hypercorn_stream import BoundedStream
from mcp_trio._transports.http.hypercorn_websocket import ToldWebSocket, stream_of

logger = logging.getLogger("mcp_trio")

Address: TypeAlias = tuple[str, int]

_START: Final = "http.response.start"


@attrs.define(eq=False)
class HypercornConnection:
    """One connection, and what runs for its requests.

    Since `idle_since` nothing has run for any; infinite while something does, and before it can:
    a handshake has its own time. Of them, `websockets` are open.
    """

    app: Application
    stream: BoundedStream
    limits: Limits
    client: Address | None
    server: Address | None
    idle_since: float = attrs.field(default=math.inf, init=False)
    websockets: int = attrs.field(default=0, init=False)
    _secured: Any = attrs.field(init=False)
    _hypercorn: ProtocolWrapper = attrs.field(init=False)
    _windows: Windows | None = attrs.field(default=None, init=False)
    _nursery: trio.Nursery = attrs.field(init=False)
    _sending: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _requests: set[trio.CancelScope] = attrs.field(factory=set[trio.CancelScope], init=False)
    _rests: Bell = attrs.field(factory=Bell, init=False)
    _is_stopping: bool = attrs.field(default=False, init=False)
    _is_ending: bool = attrs.field(default=False, init=False)
    _shaking: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _lingering: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    async def serve(self, config: Config, tls: SSLContext | None) -> None:
        """Serve its requests until either side closes it."""
        self._secured = self.stream
        if tls is None:
            await self._serve(config, "http/1.1", is_tls=False)
        else:
            protocol = await self._shake_hands(config, tls)
            if protocol is not None:
                await self._serve(config, protocol, is_tls=True)
        with self._lingering:
            await self.stream.linger()

    async def _shake_hands(self, config: Config, tls: SSLContext) -> str | None:
        """The protocol that was agreed on; None if nothing was, and it is over."""
        secured = trio.SSLStream(
            cast("Any", self.stream), tls, server_side=True, https_compatible=True
        )
        self._secured = secured
        self._shaking.deadline = trio.current_time() + config.ssl_handshake_timeout
        with (
            contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError),
            self._shaking,
        ):
            await secured.do_handshake()
            return secured.selected_alpn_protocol() or "http/1.1"
        return None

    async def _serve(self, config: Config, protocol: str, *, is_tls: bool) -> None:
        async with trio.open_nursery() as self._nursery:
            self._hypercorn = ProtocolWrapper(
                cast("Any", self.app),
                config,
                WorkerContext(None),
                cast("Any", self),
                ConnectionState(cast("Any", {})),
                is_tls,
                self.client,
                self.server,
                self._send,
                protocol,
            )
            stay_in_http1(self._hypercorn, head_bytes_max=config.h11_max_incomplete_size)
            if isinstance(self._hypercorn.protocol, H2Protocol):
                forgive(self._hypercorn.protocol)
            self._nursery.start_soon(self._cancel_when_over, self._nursery.cancel_scope)
            self.idle_since = trio.current_time()
            await self._hypercorn.initiate()
            await self._read()
            self.stream.has_ended.set()
        await self._say_goodbye()
        await self._close()

    async def _read(self) -> None:
        while True:
            try:
                data = await self._secured.receive_some(self.limits.chunk_bytes)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                break
            await self._hypercorn.handle(RawData(bytes(data)))
            if isinstance(self._hypercorn.protocol, H2Protocol):
                forget_refused(self._hypercorn.protocol)
            if not data:
                break
        await self._hypercorn.handle(Closed())

    async def _cancel_when_over(self, scope: trio.CancelScope) -> None:
        """What hypercorn runs beside the requests ends with them."""
        await self.stream.has_ended.wait()
        while self._requests:
            await self._rests.wait()
        protocol = self._hypercorn.protocol
        if self._is_stopping and isinstance(protocol, H2Protocol):
            with trio.move_on_after(self.limits.close_seconds):
                await self._all_sent(protocol)
        scope.cancel()

    async def _all_sent(self, protocol: H2Protocol) -> None:
        """Wait until the last bytes of all answers have left, which a task of hypercorn's sends."""
        while has_unsent_ends(protocol) and not protocol.closed:
            await self.stream.wait_sent()

    # The end.

    def stop(self) -> None:
        """Cancel what runs for its requests; when all that has ended, the connection ends."""
        self._is_stopping = True
        for scope in self._requests:
            scope.cancel()
        self.stream.has_ended.set()
        self._shaking.cancel()
        self._lingering.cancel()

    def end(self) -> None:
        """It was idle for too long: it is closed, and the second time cut."""
        if self._is_ending or self.stream.has_ended.is_set():
            self.stream.cut()
        else:
            self._is_ending = True
            self._nursery.start_soon(self._end)

    async def _end(self) -> None:
        if self._requests:  # one has come in the very last moment
            self._is_ending = False
            return
        await self._say_goodbye()
        await self._hypercorn.handle(Closed())
        await self._close()

    async def _say_goodbye(self) -> None:
        """Over HTTP/2 a client learns what was not seen of its requests, and may ask that again."""
        protocol = self._hypercorn.protocol
        if isinstance(protocol, H2Protocol) and not protocol.closed:
            protocol.connection.close_connection()
            await self._send_data(protocol.connection.data_to_send())

    async def _close(self) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._secured.aclose()

    # What hypercorn sends.

    async def _send(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self._send_data(event.data)
        elif isinstance(event, Closed):
            await self._close()
            await self._hypercorn.handle(Closed())

    async def _send_data(self, data: bytes) -> None:
        """Send it, cancelled or not: hypercorn counts it as sent, and would never give it again."""
        try:
            if self._secured is self.stream and not self._sending.locked():
                data = self.stream.send_nowait(data)
                if not data:
                    return
            with trio.CancelScope(shield=True):
                async with self._sending:
                    await self._secured.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await self._hypercorn.handle(Closed())
            await trio.lowlevel.checkpoint()  # now others may learn of it

    async def _send_held(self) -> None:
        """Nothing came behind it."""
        with contextlib.suppress(trio.BrokenResourceError):
            async with self._sending:
                with trio.CancelScope(shield=True):
                    await self.stream.send_all(b"")

    # What hypercorn runs: this is its `TaskGroup`.

    def spawn(self, function: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Run something of hypercorn's beside the requests."""
        self._nursery.start_soon(function, *arguments)

    async def spawn_app(
        self,
        _app: object,
        _config: object,
        scope: Scope,
        send: Callable[[Message | None], Awaitable[None]],
    ) -> Callable[[Message], Awaitable[None]]:
        """Run the application for one request; returns what its messages are given to."""
        arrivals = self._arrivals_for(send)
        self._nursery.start_soon(self._run, self._begin(), scope, arrivals, send)
        return arrivals.put

    def _arrivals_for(self, send: object) -> Arrivals:
        protocol = self._hypercorn.protocol
        if not isinstance(protocol, H2Protocol):
            return Arrivals()
        if self._windows is None:
            self._windows = Windows(protocol.connection, self._send_data)
        return self._windows.begin(number_behind(send))

    async def _run(
        self,
        running: trio.CancelScope,
        scope: Scope,
        arrivals: Arrivals,
        send: Callable[[Message | None], Awaitable[None]],
    ) -> None:
        try:
            with running:
                await self._run_app(scope, arrivals, send)
        finally:
            arrivals.end()
            self._finish(running)
            self.stream.is_holding = False  # what was to come next does not
            await send(None)
            await self._end_stream(send)

    def _begin(self) -> trio.CancelScope:
        """Around what runs for a request, which a stop cancels."""
        running = trio.CancelScope()
        self._requests.add(running)
        self.idle_since = math.inf
        if self._is_stopping:
            running.cancel()
        return running

    def _finish(self, running: trio.CancelScope) -> None:
        self._requests.remove(running)
        if not self._requests:
            self.idle_since = trio.current_time()
            self._rests.ring()

    async def _run_app(self, scope: Scope, arrivals: Arrivals, send: Send) -> None:
        protocol = self._hypercorn.protocol
        if isinstance(protocol, H2Protocol):
            forgive(protocol)
            bounded = functools.partial(self._send_bounded, protocol, send)
        else:
            bounded = functools.partial(self._send_together, send)
            scope["extensions"][BYTES_SENT] = lambda: self.stream.bytes_sent
        scope["extensions"][IS_WAITING] = arrivals.is_waiting
        try:
            await self._run_told(scope, arrivals.take, bounded)
        except AnswerBrokenOff:
            await self._break_off(send)
        except Exception:
            logger.exception("the application failed")
            await self._break_off(send)

    async def _break_off(self, send: object) -> None:
        """The rest of an answer will not come, which is no affair of other ones over HTTP/2."""
        if isinstance(self._hypercorn.protocol, H2Protocol):
            await self._end_stream(send)
        else:
            self.stream.cut()

    async def _end_stream(self, send: object) -> None:
        """Of what has no end yet, over HTTP/2, nobody is to wait for the rest."""
        protocol = self._hypercorn.protocol
        if isinstance(protocol, H2Protocol) and not protocol.closed:
            await end_unended(protocol, number_behind(send))
            await self._send_data(protocol.connection.data_to_send())

    async def _send_together(self, send: Send, message: Message) -> None:
        """The head of an answer leaves with what comes next; cancelled, nothing was begun."""
        await trio.lowlevel.checkpoint_if_cancelled()
        is_held = message["type"] == _START or MORE in message
        self.stream.is_holding = is_held
        await send(message)
        if not is_held and self.stream.has_held:
            await self._send_held()

    async def _send_bounded(self, protocol: H2Protocol, send: Send, message: Message) -> None:
        """Over HTTP/2 others would wait for it; and hypercorn sets no bound to what is kept."""
        await trio.lowlevel.checkpoint_if_cancelled()
        await send(message)
        while bytes_held_back(protocol) > self.limits.http_write_bytes_max:
            await self.stream.wait_sent()

    async def _run_told(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_websocket = scope["type"] == "websocket"
        stream = stream_of(self._hypercorn.protocol, scope) if is_websocket else None
        if stream is None:
            await self.app(scope, receive, send)
            return
        told = ToldWebSocket(stream, self.limits)
        self.websockets += 1
        try:
            await self.app(scope, told.receiving(receive), told.sending(send))
        finally:
            self.websockets -= 1
