"""The bytes of one connection: what came and nobody has taken yet, and what leaves.

A cancel scope costs about as much as all that Python does for a small request, so there is none on
the short way: bytes that are there, and bytes that the system takes at once.
"""

import contextlib
import socket
from collections.abc import Awaitable, Callable, Generator
from types import coroutine
from typing import Final, Protocol

import attrs
import msgspec
import trio

from mcp_trio._transports.descriptors import SocketDescriptor
from mcp_trio._transports.lines import ByteSink, ByteSource
from mcp_trio.limits import Limits

# --------------------
# Waiting for bytes in such a way that somebody may wait for many at once.


class IdleConnection(msgspec.Struct, eq=False):
    """What is to go on when there is something to read from `fd`, the end included.

    Attributes:
        fd: It is the same for all rests of one connection, as is this object.
        let_go: How who watches `fd` is told that this has an end; None: nobody does.
    """

    fd: int
    unregister: Callable[[], None] | None = None

    def end(self) -> None:
        """Nobody watches `fd` any more; call it before that is closed.

        A poller goes on with what is closed here, as long as another process has it too.
        """
        if self.unregister is not None:
            self.unregister()


@coroutine
def wait_idle(resting: IdleConnection) -> Generator[IdleConnection, None, None]:
    """Wait; only for what is driven by hand, by who knows this trap, and holds no scope open.

    It may be called back too early. What never goes on is closed.
    """
    yield resting


WITH_ADDRESSES: Final = frozenset({socket.AF_INET, socket.AF_INET6})
"""The families of sockets whose ends are known by a number and a port."""


def client_of(stream: trio.abc.Stream) -> str | None:
    """The address of who has connected, where there is one."""
    if not isinstance(stream, trio.SocketStream) or stream.socket.family not in WITH_ADDRESSES:
        return None
    try:
        address: str = stream.socket.getpeername()[0]
    except OSError:  # it has gone already
        return None
    return address


class Ends(ByteSource, ByteSink, Protocol):
    """Both ends of a connection's bytes."""

    def shut_writing(self) -> None:
        """Tells the peer that nothing more comes; reading goes on."""
        ...

    def end(self) -> None:
        """What is there can still be read, and behind it is the end."""
        ...

    def wait_idle(self) -> Awaitable[None]:
        """`wait_readable` for who is driven by hand: see `resting`."""
        ...


@attrs.define(kw_only=True, eq=False)
class SocketEnds(SocketDescriptor):
    """Those of a connected socket, which it owns."""

    _resting: IdleConnection = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._resting = IdleConnection(self.fd)

    def shut_writing(self) -> None:
        """See `Ends.shut_writing`."""
        with contextlib.suppress(OSError):  # the peer was faster
            self._socket.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """See `Ends.end`; it wakes who rests as well."""
        super().end()
        with contextlib.suppress(OSError):  # as above
            self._socket.shutdown(socket.SHUT_RD)

    def wait_idle(self) -> Awaitable[None]:
        """See `Ends.wait_idle`."""
        return wait_idle(self._resting)

    def close(self) -> None:
        """See `Descriptor.close`."""
        self._resting.end()
        super().close()


@attrs.define(kw_only=True, eq=False)
class Wire:
    """One connection, without what HTTP makes of it.

    Attributes:
        received: What came and nobody has taken.
        has_ended: The peer sends nothing more.
        is_broken: Nothing more can be sent, be it that the peer has gone or that something was
            begun and not finished.
    """

    ends: Ends
    limits: Limits
    received: bytearray = attrs.field(factory=bytearray, init=False)
    has_ended: bool = attrs.field(default=False, init=False)
    is_broken: bool = attrs.field(default=False, init=False)

    async def receive(self, *, rests: bool = False) -> bool:
        """Waits for more; False, now and always, when the peer has closed.

        `rests` says that who calls is driven by hand, and may rest: see `resting`.
        """
        while not self.has_ended:
            await (self.ends.wait_idle() if rests else self.ends.wait_readable())
            try:
                chunk = self.ends.read_nowait()
            except BlockingIOError:
                continue
            except OSError:
                chunk = b""
            self.received += chunk
            self.has_ended = not chunk
            return not self.has_ended
        await trio.lowlevel.checkpoint()
        return False

    async def receive_until(self, is_there: Callable[[], bool], *, seconds: float) -> bool:
        """Whether it was there in time, which begins anew with each chunk that came.

        Raises:
            trio.BrokenResourceError: The peer closed before.
        """
        with trio.move_on_after(seconds) as limit:
            fresh = 0
            while not is_there():
                before = len(self.received)
                if not await self.receive():
                    raise trio.BrokenResourceError("the peer has gone away")
                fresh += len(self.received) - before
                if fresh >= self.limits.messages.chunk_bytes:
                    fresh = 0
                    limit.deadline = trio.current_time() + seconds
            return True
        return False

    def take(self, length: int) -> bytes:
        """Takes so much from the front."""
        taken = bytes(self.received[:length])
        del self.received[:length]
        return taken

    async def write(self, data: bytes) -> None:
        """Returns when the system has taken all; cancelled before, the connection is broken.

        Raises:
            trio.BrokenResourceError: The peer has gone, or reads nothing.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        rest = self.begin_write(data)
        if rest:
            await self.write_rest(rest)

    def begin_write(self, data: bytes) -> memoryview:
        """What of it `write_rest` has to write: the system has taken all else.

        Raises:
            trio.BrokenResourceError: The peer has gone.
        """
        if self.is_broken:
            raise trio.BrokenResourceError("the connection is broken")
        return memoryview(data)[self.write_nowait(data) :]

    async def write_rest(self, rest: memoryview) -> None:
        """The end of a `write` that has begun; raises, and is cancelled, like one."""
        self.is_broken = True
        await self._write_rest(rest)
        self.is_broken = False

    async def _write_rest(self, rest: memoryview) -> None:
        seconds = self.limits.messages.write_stall_seconds
        while rest:
            with trio.move_on_after(seconds) as limit:
                await self.ends.wait_writable()
            if limit.cancelled_caught:
                raise trio.BrokenResourceError(
                    f"the peer has read nothing for {seconds:g} s"
                    " (limits.messages.write_stall_seconds)"
                )
            rest = rest[self.write_nowait(rest) :]

    def write_nowait(self, data: bytes | memoryview) -> int:
        """How many bytes the system takes at once, perhaps none.

        Raises:
            trio.BrokenResourceError: The peer has gone.
        """
        try:
            return self.ends.write_nowait(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.is_broken = True
            raise trio.BrokenResourceError("the peer has gone away") from error

    async def linger(self) -> None:
        """Lets the peer read what was sent: a socket that is closed with unread bytes resets it.

        What still comes is thrown away, for `limits.shutdown.close_seconds` at most.
        """
        if self.is_broken:
            return
        self.ends.shut_writing()
        with trio.move_on_after(self.limits.shutdown.close_seconds):
            while await self.receive():
                self.received.clear()
