"""The ways by which a server is reached over connections: how it is served by each, and where."""

import functools
import os
from contextlib import asynccontextmanager, suppress

import trio
import trio.testing

from mcp_trio import ConnectionLost
from mcp_trio._transports.connections import SocketChannelOptions, open_socket_channel
from mcp_trio.limits import DEFAULT_LIMITS

CONNECTIONS = ("websocket", "unix", "tcp")
BESIDE_HTTP = "/ws"  # the WebSocket that a server of HTTP has, too
WAYS = (*CONNECTIONS, BESIDE_HTTP)


def serving(what, way, folder=None, *, port=0, **options):
    """Return a function that serves a server, or a mock; a socket file is in the folder."""
    if way == "unix":
        return functools.partial(what.serve_unix, os.fspath(folder / "socket"), **options)
    serve = getattr(what, "serve_http" if way == BESIDE_HTTP else f"serve_{way}")
    return functools.partial(serve, port=port, **options)


@asynccontextmanager
async def served(what, way, folder=None, **options):
    """Its URL, and the scope of its serving."""
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serving(what, way, folder, **options))
        if way == BESIDE_HTTP:
            url = url.replace("http:", "ws:").removesuffix("/mcp") + BESIDE_HTTP
        yield url, nursery.cancel_scope
        nursery.cancel_scope.cancel()


def opened(url, limits=DEFAULT_LIMITS):
    """A channel to whoever listens there, without a client round it; to be awaited."""
    return open_socket_channel(url, SocketChannelOptions(), limits)


async def sent_away(silent, clock, seconds):
    """Returns when a silent one had to go, as more than so many seconds have passed."""
    await trio.testing.wait_all_tasks_blocked(0.01)  # it has arrived
    clock.jump(2 * seconds)
    with suppress(ConnectionLost):
        while await silent.receive():
            pass
    await silent.aclose()
