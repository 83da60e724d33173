"""The bytes of a connection as libraries want them, over a socket that is ours.

Beside what every stream can, it writes without waiting: most messages leave so at once.
"""

import attrs
import trio

from mcp_trio._limits import Limits
from mcp_trio._transports.http.native_wire import SocketEnds, Wire


@attrs.frozen(eq=False)
class WireStream(trio.abc.HalfCloseableStream):
    """See the module."""

    _wire: Wire

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See `trio.abc.SendStream`; a peer that reads nothing is cut off in the end."""
        await self._wire.write(bytes(data))
        await trio.lowlevel.cancel_shielded_checkpoint()  # the wire has none on its short way

    def write_nowait(self, data: bytes) -> int:
        """How many bytes the system has taken, perhaps none; not while somebody sends.

        Raises:
            trio.BrokenResourceError: The peer is gone.
        """
        return self._wire.write_nowait(data)

    async def wait_send_all_might_not_block(self) -> None:
        """See `trio.abc.SendStream`."""
        await self._wire.ends.wait_writable()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """See `trio.abc.ReceiveStream`."""
        received = self._wire.received
        if not received:
            await self._wire.receive()
        return self._wire.take(len(received) if max_bytes is None else max_bytes)

    async def send_eof(self) -> None:
        """See `trio.abc.HalfCloseableStream`."""
        self._wire.ends.shut_writing()
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Closes it at once, and wakes who waits."""
        self._wire.is_broken = self._wire.has_ended = True
        self._wire.ends.close()
        await trio.lowlevel.checkpoint()


def over_wire(stream: trio.abc.Stream, limits: Limits) -> trio.abc.Stream:
    """The same connection, as a `WireStream` if nothing stands between it and its socket."""
    if not isinstance(stream, trio.SocketStream):
        return stream
    ends = SocketEnds(fd=stream.socket.detach(), chunk_bytes=limits.chunk_bytes)
    return WireStream(Wire(ends=ends, limits=limits))
