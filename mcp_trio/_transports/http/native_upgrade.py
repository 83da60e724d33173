"""What becomes of a connection of the native listener whose client asks for a WebSocket."""

import logging

import attrs
import trio

from mcp_trio._protocol.http.heads import Head
from mcp_trio._transports.http.native_wire import Wire
from mcp_trio._transports.websocket.stream_upgrade import StreamUpgrade
from mcp_trio._transports.websocket.upgrade import Upgraded

logger = logging.getLogger("mcp_trio")


async def hand_over(wire: Wire, raw: bytes, head: Head, upgraded: Upgraded) -> None:
    """Let `upgraded` have the connection, of which `raw` was read; it is closed afterwards.

    Raises:
        trio.BrokenResourceError: The client has gone away.
    """
    stream = WireStream(wire)
    received = raw + wire.take(len(wire.received))
    upgrade = StreamUpgrade(stream=stream, head=head, received=received, limits=wire.limits)
    try:
        await upgraded(upgrade)
    except trio.BrokenResourceError:
        raise
    except Exception:
        logger.exception("a WebSocket connection failed")
    finally:
        await trio.aclose_forcefully(stream)


@attrs.frozen(eq=False)
class WireStream(trio.abc.HalfCloseableStream):
    """The bytes of a connection, as libraries want them."""

    _wire: Wire

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See `trio.abc.SendStream`; a peer that reads nothing is cut off in the end."""
        await self._wire.write(bytes(data))
        await trio.lowlevel.cancel_shielded_checkpoint()  # the wire has none on its short way

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
