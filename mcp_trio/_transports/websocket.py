"""A request to become a WebSocket, which was read and is not answered yet, of any host."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from typing import ClassVar, Protocol, TypeAlias

import attrs
import trio

from mcp_trio._jsonrpc.lines import Oversized, one_line
from mcp_trio._jsonrpc.messages import from_principal
from mcp_trio._protocol.http_headers import HttpRequest
from mcp_trio._protocol.http_requests import Rejection
from mcp_trio._protocol.websocket import CloseCode, chosen_subprotocol, loss_by_peer, loss_by_us
from mcp_trio._transports.concurrency import Faults, contained
from mcp_trio.errors import ConnectionLost
from mcp_trio.limits import Limits

# --------------------
# What a WebSocket channel stands on: a socket of messages, by whatever library holds it.
#
# One task sends and one receives, at the same time; a third may ping.


class SocketEnded(Exception):  # noqa: N818  an event, and no fault of anybody who catches it
    """Nothing more will come.

    Attributes:
        code: The peer's close code; or, with `is_ours`, the one that we close with, because of what
            the peer sent.
        reason: What was said with it.
        is_ours: Whether we end it.
    """

    def __init__(self, code: int, reason: str = "", *, is_ours: bool = False) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason
        self.is_ours = is_ours


class MessageSocket(Protocol):
    """An open WebSocket."""

    @property
    def bytes_sent(self) -> int:
        """Grows while something is sent, also in the middle of a message."""
        ...

    async def send_texts(self, texts: Sequence[str]) -> None:
        """Sends messages; waits while the peer does not read. Cancelled: one may be cut.

        Raises:
            trio.BrokenResourceError: The peer is gone, or a message was cut before.
        """
        ...

    def send_texts_nowait(self, texts: Iterable[str]) -> int:
        """How many of the messages were taken without waiting; not while somebody sends.

        One that was begun is taken, too: see `is_unfinished`.

        Raises:
            trio.BrokenResourceError: The peer is gone, or a message was cut before.
        """
        ...

    @property
    def is_unfinished(self) -> bool:
        """Whether a `send_texts` is due, be it of nothing, to finish what was begun."""
        ...

    async def receive(self) -> Sequence[bytes | Oversized]:
        """Messages of text, at least one, or what is reported of one that is too large.

        Cancelled: nothing is lost.

        Raises:
            SocketEnded: There are no more, now and always.
        """
        ...

    async def ping(self) -> None:
        """Returns when the peer has answered a ping, or at once where a host does that by itself.

        Raises:
            trio.BrokenResourceError: The peer is gone.
        """
        ...

    def is_silent_since(self, moment: float) -> bool:
        """Whether we have listened ever since, and heard nothing at all."""
        ...

    async def close(self, code: CloseCode, reason: str) -> None:
        """Says why, and waits until the peer knows; to be called once, in a bounded time."""
        ...


# --------------------
# A channel over a WebSocket, at either end: one message is one text message.
#
# Its tasks live in a system task, so that nothing that goes wrong in them is tied to a nursery of
# other people, and so that a session that is cancelled can still say what it has to say.


logger = logging.getLogger("mcp_trio")


@attrs.define(kw_only=True, eq=False, repr=False)
class WebSocketChannel:
    """The channel over an open WebSocket; made by `open_websocket_channel`, or by a server.

    A peer of which nothing is heard for `limits.websocket.ping_interval_seconds` is asked whether
    it is there, and is lost if it says nothing for another `limits.websocket.pong_seconds`.

    Attributes:
        name: Who is at the other end, without what may be secret.
        principal: At a server's end: who the client has proved to be.
        refusal: What the peer said when it closed because it does not want us (1008).
    """

    transport: ClassVar[str] = "websocket"

    name: str
    principal: str | None = None
    rejection: ConnectionLost | None = attrs.field(default=None, init=False)
    _socket: MessageSocket = attrs.field(alias="socket")
    _limits: Limits = attrs.field(alias="limits")
    _code: CloseCode = attrs.field(default=CloseCode.DONE, init=False)
    _is_closing: bool = attrs.field(default=False, init=False)
    _has_ended: bool = attrs.field(default=False, init=False)
    _loss: ConnectionLost | None = attrs.field(default=None, init=False)
    _keeping: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _gone: trio.Event = attrs.field(factory=trio.Event, init=False)
    _left: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __repr__(self) -> str:
        """Without headers and tokens."""
        return f"<WebSocketChannel with {self.name}>"

    @property
    def bytes_sent(self) -> int:
        """See `mcp_trio.transports.Channel`."""
        return self._socket.bytes_sent

    # Sending and receiving.

    async def send(self, frames: Sequence[bytes]) -> None:
        """See `Channel.send`; cancelled in the middle of a frame, it sends nothing more.

        Raises:
            ValueError: A frame is no UTF-8, and cannot go in a text message.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        if self._loss is not None:
            raise self._loss
        try:
            await self._socket.send_texts([frame.decode() for frame in frames])
        except trio.BrokenResourceError:
            self._check_open()
            raise
        if not frames:  # nobody may have waited
            await trio.lowlevel.cancel_shielded_checkpoint()

    def send_nowait(self, frames: Sequence[bytes]) -> int:
        """How many of `frames` were taken without waiting; see `mcp_trio.transports.Channel`."""
        self._check_open()
        if self._loss is not None:
            raise self._loss
        return self._socket.send_texts_nowait(frame.decode() for frame in frames)

    @property
    def is_unfinished(self) -> bool:
        """See `mcp_trio.transports.Channel`."""
        return self._socket.is_unfinished

    async def receive(self) -> Sequence[bytes | Oversized]:
        """See `Channel.receive`; empty when the peer was done."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self._has_ended:
            try:
                return await self._next()
            except SocketEnded as ended:
                self._note(ended)
        await trio.lowlevel.cancel_shielded_checkpoint()
        self._check_open()
        if self._loss is not None:
            raise self._loss
        return []

    async def _next(self) -> Sequence[bytes | Oversized]:
        self._check_open()
        messages = await self._socket.receive()
        self._check_open()
        return [self._frame(each) if isinstance(each, bytes) else each for each in messages]

    def _frame(self, message: bytes) -> bytes:
        return from_principal(one_line(message), self.principal)

    def _note(self, ended: SocketEnded) -> None:
        """Why nothing more will come; the first reason counts."""
        self._has_ended = True
        if self._loss is not None or self._is_closing:
            return
        if ended.is_ours:
            self._code = CloseCode(ended.code)
            self._loss = loss_by_us(self.name, self._code, ended.reason)
        else:
            self._loss = loss_by_peer(self.name, ended.code, ended.reason)
            self.rejection = self._loss if ended.code == CloseCode.REJECTED else None

    def _check_open(self) -> None:
        if self._is_closing:
            raise trio.ClosedResourceError("this side of the channel was closed")

    # The task that holds it.

    async def live(self) -> None:
        """Keep it alive until it is left, and say farewell; both in bounded time."""
        with self._keeping:
            await self._keep_alive()
            self._gone.set()
            await trio.sleep_forever()
        with trio.move_on_after(self._limits.shutdown.close_seconds, shield=True):
            await self._socket.close(self._code, str(self._loss or ""))

    async def wait_gone(self) -> None:
        """Return when a ping has found that the peer is not there any more."""
        await self._gone.wait()

    async def wait_left(self) -> None:
        """Return when it is closed, by whoever uses it."""
        await self._left.wait()

    def left(self) -> None:
        """Nothing holds it any more."""
        self._gone.set()
        self._left.set()

    async def _keep_alive(self) -> None:
        limits = self._limits
        while True:
            await trio.sleep(limits.websocket.ping_interval_seconds)
            asked_at = trio.current_time()
            try:
                with trio.move_on_after(limits.websocket.pong_seconds) as timer_queue:
                    await self._socket.ping()
            except trio.BrokenResourceError:
                return  # whoever receives hears of it
            if timer_queue.cancelled_caught and self._socket.is_silent_since(asked_at):
                self.fail(loss_by_us(self.name, CloseCode.FAILED), CloseCode.FAILED)
                return

    def fail(self, loss: ConnectionLost, code: CloseCode) -> None:
        """End it, because of what is no fault of the session: that hears of the loss."""
        if self._loss is None and not self._has_ended:
            self._loss, self._code = loss, code
        self._keeping.cancel()

    # Closing.

    def goes_away(self) -> None:
        """The server stops: whenever it is closed from now on, the peer is told so."""
        if self._code is CloseCode.DONE:
            self._code = CloseCode.GOING_AWAY

    async def aclose(self) -> None:
        """See `Channel.aclose`; the peer has `limits.shutdown.close_seconds` to close its side.

        Cancellation does not shorten it.
        """
        self._is_closing = True
        self._keeping.cancel()
        with trio.CancelScope(shield=True):
            await self._left.wait()
        await trio.lowlevel.checkpoint()


# The system task ----------------------------------------------------------------------------------


@attrs.define(kw_only=True, eq=False)
class _Life:
    """From before a socket is open until its end."""

    opening: AbstractAsyncContextManager[MessageSocket]
    name: str
    principal: str | None
    limits: Limits
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    begun: trio.Event = attrs.field(factory=trio.Event, init=False)
    channel: WebSocketChannel | None = attrs.field(default=None, init=False)
    failure: Exception | None = attrs.field(default=None, init=False)

    async def live(self) -> None:
        """The task; nothing but `Cancelled` leaves it."""
        try:
            with contained(_log_faults), self.scope:
                await self._live()
        finally:
            self.begun.set()
            if self.channel is not None:
                self.channel.left()

    async def _live(self) -> None:
        try:
            async with self.opening as socket:
                channel = self.channel = WebSocketChannel(
                    name=self.name, principal=self.principal, socket=socket, limits=self.limits
                )
                self.begun.set()
                try:
                    await channel.live()
                except Exception:  # before the socket is closed, which the session hears too
                    loss = ConnectionLost(f"the connection to {self.name} failed")
                    channel.fail(loss, CloseCode.FAILED)
                    raise
        except Exception as error:
            if self.channel is not None:
                raise
            self.failure = error


def _log_faults(faults: Faults) -> None:
    logger.error("the WebSocket channel failed", exc_info=faults)


async def begin_channel(
    opening: AbstractAsyncContextManager[MessageSocket],
    *,
    name: str,
    principal: str | None = None,
    limits: Limits,
) -> WebSocketChannel:
    """The channel over a socket, which is opened and held in a system task.

    Cancelled: nothing of it is left.

    Raises:
        Exception: What opening raises.
    """
    life = _Life(opening=opening, name=name, principal=principal, limits=limits)
    trio.lowlevel.spawn_system_task(life.live, context=copy_context())
    try:
        await life.begun.wait()
    except BaseException:
        life.scope.cancel()
        raise
    if life.failure is not None:
        raise life.failure
    assert life.channel is not None, "the run is over"
    return life.channel


class Upgrade(Protocol):
    """The request; it is refused, or opened, once."""

    @property
    def head(self) -> HttpRequest:
        """What came."""
        ...

    async def reject(self, rejection: Rejection) -> None:
        """Answer with an error; nothing more is done with the connection.

        Raises:
            trio.BrokenResourceError: The client has gone away.
        """
        ...

    def opened(self, subprotocol: str | None) -> AbstractAsyncContextManager[MessageSocket]:
        """The WebSocket, open within the block.

        Raises:
            trio.BrokenResourceError: The client has gone away.
        """
        ...


Upgraded: TypeAlias = Callable[[Upgrade], Awaitable[None]]
"""What is done with such a request. What it raises, but for a cancellation, is logged by the host,
and ends the connection."""


async def accepted(upgrade: Upgrade, admitted: HttpRequest, limits: Limits) -> WebSocketChannel:
    """The channel with who sent it; `admitted` is the head, with the principal.

    Raises:
        trio.BrokenResourceError: The client has gone away.
    """
    return await begin_channel(
        upgrade.opened(chosen_subprotocol(admitted)),
        name=admitted.client or "the client",
        principal=admitted.principal,
        limits=limits,
    )
