"""What becomes of a connection of the native listener whose client asks for a WebSocket."""

import logging

import trio

from mcp_trio._protocol.http.heads import Head
from mcp_trio._transports.http.native_wire import Wire
from mcp_trio._transports.websocket.stream_upgrade import StreamUpgrade
from mcp_trio._transports.websocket.upgrade import Upgraded
from mcp_trio._transports.websocket.wire_stream import WireStream

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
