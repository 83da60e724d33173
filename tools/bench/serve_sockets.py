"""Serve over a socket transport until SIGTERM, and print the URL."""

import signal
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import trio

from mcp_trio import Server

STARTS: Final[Mapping[str, Callable[[Server, str], Callable[..., Awaitable[None]]]]] = {
    "unix": lambda server, address: partial(server.serve_unix, address),
    "tcp": lambda server, address: partial(server.serve_tcp, port=int(address)),
    "websocket": lambda server, address: partial(server.serve_websocket, port=int(address)),
    "native": lambda server, address: partial(server.serve_http, port=int(address)),
    "hypercorn": lambda server, address: partial(
        server.serve_http, port=int(address), server="hypercorn"
    ),
}
"""How each transport is served at an address: a port, 0 for any, or a socket file's path.

WebSockets are served alone, and beside HTTP by either host.
"""


def run(server: Server, transport: str, address: str, **options: Any) -> None:
    trio.run(_until_terminated, partial(STARTS[transport](server, address), **options))


async def _until_terminated(serve: Callable[..., Awaitable[Any]]) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            print(await nursery.start(serve), flush=True)
            async for _ in signals:
                nursery.cancel_scope.cancel()
