"""Sessions of a server with a `Client`, or with a client that a script controls, in one process."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from mcp_trio import Client, Server
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


@asynccontextmanager
async def client_session(
    server: Server, record: RecordTarget | None = None, **options: Any
) -> AsyncGenerator[Client]:
    """Serve one session in memory; return its client, with these options, until it is closed.

    `record` is the recording of the server; a `Client` of a server object records its own side.
    """
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(server.serve, ours, record=record))
        async with Client(theirs, **options) as client:
            yield client
