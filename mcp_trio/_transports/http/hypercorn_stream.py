"""The bytes of a connection that hypercorn parses, without waits that have no end."""

import contextlib
import math

import attrs
import trio

from mcp_trio._limits import Limits
from mcp_trio._transports.bell import Bell
from mcp_trio._transports.http.native_wire import SocketEnds


@attrs.define(eq=False)
class BoundedStream:
    """As much of a stream as hypercorn and TLS need; it owns its `ends`.

    While it `is_holding`, what is sent waits for what is sent next.
    """

    _ends: SocketEnds
    _limits: Limits
    has_ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    bytes_sent: int = attrs.field(default=0, init=False)
    is_holding: bool = attrs.field(default=False, init=False)
    _held: bytes = attrs.field(default=b"", init=False)
    _has_sent: Bell = attrs.field(factory=Bell, init=False)
    _is_closing: bool = attrs.field(default=False, init=False)
    _is_cut: bool = attrs.field(default=False, init=False)
    _sending_since: float = attrs.field(default=math.inf, init=False)
    _listening_since: float = attrs.field(default=math.inf, init=False)
    _read_at: float = attrs.field(default=-math.inf, init=False)

    # Sending.

    @property
    def has_held(self) -> bool:
        """Whether something waits for what is sent next."""
        return bool(self._held)

    def send_nowait(self, data: bytes) -> bytes:
        """Send what the system takes at once; returns the rest, which has to be sent next.

        Raises:
            trio.BrokenResourceError: The client has gone away.
        """
        if self.is_holding:
            self._held += data
            return b""
        if self._held:
            data, self._held = self._held + data, b""
        if not data:
            return b""
        sent = self._write_nowait(data)
        self._has_sent.ring()
        return data[sent:]

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send it; a client that reads nothing for `write_stall_seconds` is cut off.

        Raises:
            trio.BrokenResourceError: The client has gone away, or was cut off.
        """
        await trio.lowlevel.checkpoint()
        rest = memoryview(self.send_nowait(bytes(data)))
        while rest:
            self._sending_since = trio.current_time()
            try:
                await self._ends.wait_writable()
            except (OSError, trio.ClosedResourceError) as error:
                raise trio.BrokenResourceError("the connection was cut") from error
            rest = rest[self._write_nowait(rest) :]
            self._read_at = trio.current_time()  # there is room, as the client has made some
        self._sending_since = math.inf
        self._has_sent.ring()

    def _write_nowait(self, data: bytes | memoryview) -> int:
        try:
            written = self._ends.write_nowait(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError("the client has gone away") from error
        self.bytes_sent += written
        return written

    async def wait_sent(self) -> None:
        """Return when something more was sent."""
        await self._has_sent.wait()

    # Receiving.

    async def receive_some(self, _bytes_max: int | None = None) -> bytes:
        """What has come, up to `chunk_bytes`; empty, now and always, when the client has closed.

        Raises:
            trio.ClosedResourceError: This side has closed.
        """
        if self._is_closing:
            raise trio.ClosedResourceError("this side has closed")
        self._listening_since = trio.current_time()
        try:
            data = await self._receive()
        finally:
            self._listening_since = math.inf
        if not data:
            self.has_ended.set()
        return data

    async def _receive(self) -> bytes:
        while not self._is_cut:
            await self._ends.wait_readable()
            try:
                return self._ends.read_nowait()
            except BlockingIOError:
                continue
            except OSError:
                return b""
        return b""

    # The end.

    def cut_if_waiting_since(self, earliest: float) -> None:
        """Cut it if a write has made no progress since then."""
        if self._sending_since < earliest:
            self.cut()

    def cut_if_silent_since(self, earliest: float) -> None:
        """Cut it if it has been listened to since then, and nothing was heard of the client.

        One that reads what has waited for it is there; what it was asked stands behind that.
        """
        if max(self._listening_since, self._read_at) < earliest:
            self.cut()

    async def aclose(self) -> None:
        """No more is sent or received; `linger` and `cut` are still to come."""
        self._is_closing = True
        self.has_ended.set()
        if not self._is_cut:
            self._ends.shut_writing()
            self._ends.interrupt()
        await trio.lowlevel.checkpoint()

    async def linger(self) -> None:
        """Let the client read what was sent: a close with unread bytes would reset the connection.

        What still comes is thrown away, for `close_seconds` at most.
        """
        await self.aclose()  # after a handshake that failed nobody has
        with (
            contextlib.suppress(trio.ClosedResourceError),
            trio.move_on_after(self._limits.close_seconds),
        ):
            while await self._receive():
                pass

    def cut(self) -> None:
        """Close it at once; wakes who waits for it."""
        self._is_cut = True
        self.has_ended.set()
        self._ends.close()
