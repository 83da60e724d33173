"""Sessions between a server and a client that a script controls."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import trio

from mcp_trio import Server
from mcp_trio._recorder.options import RecordTarget
from mcp_trio._session.session import Session
from mcp_trio.testing import WirePeer
from mcp_trio.transports import Channel, memory_pair


@asynccontextmanager
async def scripted_session(
    server: Server,
    record: RecordTarget | None = None,
    *,
    channels: tuple[Channel, Channel] | None = None,
) -> AsyncGenerator[tuple[WirePeer, Session]]:
    """Serve one session, by default in memory; return its client, which is closed, and the session.

    `channels` are the ends of the server and of the client.
    """
    ours, theirs = channels or memory_pair()
    peer = WirePeer(theirs)
    async with trio.open_nursery() as nursery:
        session = await nursery.start(partial(server.serve, ours, record=record))
        yield peer, session
        await peer.aclose()
