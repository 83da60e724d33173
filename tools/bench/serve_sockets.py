"""Servers under measurement or attack, over each socket transport: `run(server, transport, place)`.

Where the server is gets printed first, in a line. It ends by SIGTERM.
"""

import signal
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import trio

from mcp_trio import Server

STARTS: Final[Mapping[str, Callable[[Server, str], Callable[..., Awaitable[None]]]]] = {
    "unix": lambda server, place: partial(server.serve_unix, place),
    "tcp": lambda server, place: partial(server.serve_tcp, port=int(place)),
    "websocket": lambda server, place: partial(server.serve_websocket, port=int(place)),
    "native": lambda server, place: partial(server.serve_http, port=int(place)),
    "hypercorn": lambda server, place: partial(
        server.serve_http, port=int(place), server="hypercorn"
    ),
}
"""How each transport is served at a place: a port, 0 for any, or the path of a socket file.

WebSockets by themselves, and beside everything else of the web, by either host.
"""


def run(server: Server, transport: str, place: str) -> None:
    """Serve until SIGTERM comes."""
    trio.run(_until_terminated, STARTS[transport](server, place))


async def _until_terminated(serve: Callable[..., Awaitable[Any]]) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            print(await nursery.start(serve), flush=True)
            async for _ in signals:
                nursery.cancel_scope.cancel()
