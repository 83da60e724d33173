"""A channel over a WebSocket, for client and server: each JSON-RPC message is one text message.

A system task owns the WebSocket. So its errors cancel no nursery of a user, and a cancelled session
can still send its last messages and the close frame.

Hosts differ in how they open a WebSocket: `MessageSocket` is the open WebSocket and `Upgrade` the
handshake request that both the native listener and ASGI implement.
"""

import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import copy_context
from typing import ClassVar, Protocol, TypeAlias

import attrs
import trio

from mcp_trio._jsonrpc.channel_messages import AuthInfo, with_sender
from mcp_trio._jsonrpc.lines import Oversized, one_line
from mcp_trio._protocol.http_headers import HttpRequest
from mcp_trio._protocol.http_requests import Rejection
from mcp_trio._protocol.shares import network_of
from mcp_trio._protocol.websocket import (
    CloseCode,
    chosen_subprotocol,
    error_of_own_close,
    error_of_peer_close,
)
from mcp_trio._transports.channel import CLOSED_TEXT
from mcp_trio._transports.concurrency import ErrorGroup, errors_handled_by
from mcp_trio.errors import ConnectionLost
from mcp_trio.limits import Limits

logger = logging.getLogger("mcp_trio")


@attrs.frozen
class SocketEnd:
    """The reason why a WebSocket delivers no more messages.

    Attributes:
        code: The close code that the peer sent, or that this side has to send after a violation.
        is_violation: Whether this side closes, because the peer has violated the protocol.
    """

    code: int
    reason: str = ""
    is_violation: bool = False


class MessageSocket(Protocol):
    """An open WebSocket; one task may send, another receive, and a third ping.

    Sending and pinging raise `trio.BrokenResourceError` if the peer has disconnected, or if a
    cancellation has cut a message short before: nothing can be sent after it.
    """

    @property
    def bytes_sent(self) -> int:
        """The number of bytes sent, which grows also in the middle of a message."""
        ...

    async def send_texts(self, texts: Sequence[str]) -> None:
        """Send messages; this waits while the peer does not read."""
        ...

    def send_texts_nowait(self, texts: Iterable[str]) -> int:
        """Send without waiting; return how many messages were accepted, 0 during another send.

        The last accepted message may be sent partly: `is_unfinished` is true then.
        """
        ...

    @property
    def is_unfinished(self) -> bool:
        """True if a message was sent in part.

        The next `send_texts` sends its rest first, even if it gets no messages.
        """
        ...

    async def receive(self) -> Sequence[bytes | Oversized]:
        """Return received text messages, at least one; an empty sequence if there are no more.

        An `Oversized` stands for a too large message. Cancellation loses no message.

        Raises:
            trio.ClosedResourceError: `close` was called.
        """
        ...

    @property
    def ending(self) -> SocketEnd:
        """The reason for the end, after `receive` has returned an empty sequence."""
        ...

    async def ping(self) -> None:
        """Ping the peer and wait for the pong; return at once where the host itself sends pings."""
        ...

    def is_silent_since(self, moment: float) -> bool:
        """Return whether this side has been reading since `moment` and has received nothing."""
        ...

    async def close(self, code: CloseCode, reason: str) -> None:
        """Send a close frame and wait for the peer's; the caller bounds the time."""
        ...


@attrs.define(kw_only=True, eq=False, repr=False)
class WebSocketChannel:
    """The channel over an open WebSocket; made by `open_websocket_channel`, or by a server.

    The channel pings the peer every `limits.websocket.ping_interval_seconds`. It is lost if nothing
    at all arrives for `limits.websocket.pong_seconds` after a ping.

    Attributes:
        name: The peer in logs and error messages, without secrets.
        auth: At a server, the client as it has been authenticated.
        expires_at: The time, of Trio's clock, at which the client's token expires. The WebSocket is
            then closed with code 1008 (policy violation).
        network: At a server, the network of the client; None if it is unknown.
        rejection: The error if the peer has closed with code 1008 (policy violation), after which
            `dial` does not connect again; else None.
    """

    transport: ClassVar[str] = "websocket"

    name: str
    auth: AuthInfo | None = None
    expires_at: float = math.inf
    network: str | None = attrs.field(default=None, init=False)
    rejection: ConnectionLost | None = attrs.field(default=None, init=False)
    _socket: MessageSocket = attrs.field(alias="socket")
    _limits: Limits = attrs.field(alias="limits")
    _code: CloseCode = attrs.field(default=CloseCode.NORMAL_CLOSURE, init=False)
    _is_closing: bool = attrs.field(default=False, init=False)
    _has_received_end: bool = attrs.field(default=False, init=False)
    _loss: ConnectionLost | None = attrs.field(default=None, init=False)
    _task_scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _unresponsive: trio.Event = attrs.field(factory=trio.Event, init=False)
    _task_ended: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __repr__(self) -> str:
        """Return the class and the peer's name, without headers and tokens."""
        return f"<WebSocketChannel with {self.name}>"

    @property
    def bytes_sent(self) -> int:
        """The number of bytes sent, which shows a session whether a slow send makes progress."""
        return self._socket.bytes_sent

    # Sending and receiving

    async def send(self, messages: Sequence[bytes]) -> None:
        """Send messages, as `Channel.send` documents.

        After a cancellation in the middle of a message, nothing more can be sent.

        Raises:
            ValueError: A message is not UTF-8, so that it cannot be a text message.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        if self._loss is not None:
            raise self._loss
        try:
            await self._socket.send_texts([message.decode() for message in messages])
        except trio.BrokenResourceError:
            self._check_open()
            raise
        if not messages:  # the socket may have executed no checkpoint
            await trio.lowlevel.cancel_shielded_checkpoint()

    def send_nowait(self, messages: Sequence[bytes]) -> int:
        """Send without waiting; return how many messages were accepted."""
        self._check_open()
        if self._loss is not None:
            raise self._loss
        return self._socket.send_texts_nowait(message.decode() for message in messages)

    @property
    def is_unfinished(self) -> bool:
        """True if a message was sent in part; the next `send` sends its rest first."""
        return self._socket.is_unfinished

    async def receive(self) -> Sequence[bytes | Oversized]:
        """Return received messages; an empty sequence after the peer has closed normally."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self._has_received_end:
            self._check_open()
            received: Sequence[bytes | Oversized] = ()
            with suppress(trio.ClosedResourceError):  # after `fail`
                received = await self._socket.receive()
            self._check_open()
            if received:
                return [
                    with_sender(one_line(each), self.auth) if isinstance(each, bytes) else each
                    for each in received
                ]
            self._set_loss(self._socket.ending)
        await trio.lowlevel.cancel_shielded_checkpoint()
        self._check_open()
        if self._loss is not None:
            raise self._loss
        return []

    def _set_loss(self, ended: SocketEnd) -> None:
        """Set the error that `receive` raises; the first one is kept."""
        self._has_received_end = True
        if self._loss is not None:
            return
        if ended.is_violation:
            self._code = CloseCode(ended.code)
            self._loss = error_of_own_close(self.name, self._code, ended.reason)
        else:
            self._loss = error_of_peer_close(self.name, ended.code, ended.reason)
            self.rejection = self._loss if ended.code == CloseCode.POLICY_VIOLATION else None

    def _check_open(self) -> None:
        if self._is_closing:
            raise trio.ClosedResourceError(CLOSED_TEXT)

    # The task that owns the WebSocket

    async def run(self) -> None:
        """Ping the peer until the channel is closed, then close the WebSocket in bounded time."""
        with self._task_scope:
            limits = self._limits
            while True:
                ping_at = trio.current_time() + limits.websocket.ping_interval_seconds
                await trio.sleep_until(min(ping_at, self.expires_at))
                pinged_at = trio.current_time()
                if pinged_at >= self.expires_at:
                    self.fail(ConnectionLost("the token has expired"), CloseCode.POLICY_VIOLATION)
                    break
                try:
                    with trio.move_on_after(limits.websocket.pong_seconds) as timeout:
                        await self._socket.ping()
                except trio.BrokenResourceError:
                    break  # `receive` reports it
                if timeout.cancelled_caught and self._socket.is_silent_since(pinged_at):
                    self.fail(error_of_own_close(self.name, CloseCode.INTERNAL_ERROR))
                    break
            self._unresponsive.set()
            await trio.sleep_forever()  # until `aclose` or `fail` cancels the scope
        with trio.move_on_after(self._limits.shutdown.close_seconds, shield=True):
            await self._socket.close(self._code, str(self._loss or ""))

    async def wait_unresponsive(self) -> None:
        """Wait until a ping has failed, or the channel is closed."""
        await self._unresponsive.wait()

    async def wait_ended(self) -> None:
        """Wait until the task that owns the WebSocket has finished."""
        await self._task_ended.wait()

    def mark_ended(self) -> None:
        """Note that the task that owns the WebSocket has finished."""
        self._unresponsive.set()
        self._task_ended.set()

    def fail(self, loss: ConnectionLost, code: CloseCode = CloseCode.INTERNAL_ERROR) -> None:
        """Close the WebSocket with `code`; `receive` and `send` then raise `loss`."""
        if self._loss is None and not self._has_received_end:
            self._loss, self._code = loss, code
        self._task_scope.cancel()

    # Closing

    def mark_going_away(self) -> None:
        """Close with code 1001 (going away) later on, because the server is stopping."""
        if self._code is CloseCode.NORMAL_CLOSURE:
            self._code = CloseCode.GOING_AWAY

    async def aclose(self) -> None:
        """Close the channel; the peer has `limits.shutdown.close_seconds` to close its side.

        Cancellation does not shorten this.
        """
        self._is_closing = True
        self._task_scope.cancel()
        with trio.CancelScope(shield=True):
            await self._task_ended.wait()
        await trio.lowlevel.checkpoint()


async def start_channel(
    opening: AbstractAsyncContextManager[MessageSocket],
    *,
    name: str,
    auth: AuthInfo | None = None,
    expires_at: float = math.inf,
    limits: Limits,
) -> WebSocketChannel:
    """Open a WebSocket in a system task, and return the channel over it.

    The task opens, pings and closes the WebSocket. Cancellation closes it.

    Raises:
        Exception: Any error of opening the WebSocket.
    """
    scope, started = trio.CancelScope(), trio.Event()
    channel: WebSocketChannel | None = None
    failure: Exception | None = None

    async def own_socket() -> None:
        nonlocal channel, failure
        try:
            async with opening as socket:
                channel = WebSocketChannel(
                    name=name, auth=auth, expires_at=expires_at, socket=socket, limits=limits
                )
                started.set()
                try:
                    await channel.run()
                except Exception:  # closing the socket ends `receive`, which raises this error
                    channel.fail(ConnectionLost(f"the connection to {name} failed"))
                    raise
        except Exception as error:
            if channel is not None:
                raise
            failure = error

    async def run() -> None:
        def log_errors(errors: ErrorGroup) -> None:
            logger.error("the WebSocket channel failed", exc_info=errors)

        try:
            with errors_handled_by(log_errors), scope:
                await own_socket()
        finally:
            started.set()
            if channel is not None:
                channel.mark_ended()

    trio.lowlevel.spawn_system_task(run, context=copy_context())
    try:
        await started.wait()
    except BaseException:
        scope.cancel()
        raise
    if failure is not None:
        raise failure
    assert channel is not None, "Trio's run has ended"
    return channel


class Upgrade(Protocol):
    """A WebSocket handshake request that is not answered yet; reject or open it, once.

    Both raise `trio.BrokenResourceError` if the client has disconnected.
    """

    @property
    def request(self) -> HttpRequest:
        """The request line and the headers."""
        ...

    async def reject(self, rejection: Rejection) -> None:
        """Answer with an HTTP error; the connection then closes."""
        ...

    def opened(self, subprotocol: str | None) -> AbstractAsyncContextManager[MessageSocket]:
        """Accept the handshake; the WebSocket is open within the returned context."""
        ...


WebSocketApplication: TypeAlias = Callable[[Upgrade], Awaitable[None]]
"""Serves the WebSocket of a handshake. The host logs its errors, and closes the connection."""


async def accept_websocket(
    upgrade: Upgrade, admitted: HttpRequest, limits: Limits
) -> WebSocketChannel:
    """Accept the handshake, and return the channel with its client.

    `admitted` is the request of the handshake with its authenticated sender.

    Raises:
        trio.BrokenResourceError: The client has disconnected.
    """
    expires_at = math.inf
    if admitted.auth is not None and admitted.auth.expires_at is not None:
        expires_at = trio.current_time() + admitted.auth.expires_at - time.time()
    channel = await start_channel(
        upgrade.opened(chosen_subprotocol(admitted)),
        name=admitted.client or "the client",
        auth=admitted.auth,
        expires_at=expires_at,
        limits=limits,
    )
    channel.network = network_of(admitted.client)
    return channel
