"""The transports of `Server.run`: for each a Trio run of its own, which owns the signals."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Final

from mcp_trio._server.stdio import run_stdio


def _run_http(server: Any, /, **options: Any) -> None:
    from mcp_trio._server.http.running import run_http

    run_http(server, **options)


def _run_until_signal(
    serve_of: Callable[[Any], Callable[..., Awaitable[None]]], server: Any, /, **options: Any
) -> None:
    from mcp_trio._server.http.running import run_until_signal

    run_until_signal(serve_of(server), **options)


RUNNERS: Final[Mapping[str, Callable[..., None]]] = {
    "stdio": run_stdio,
    "http": _run_http,
    "websocket": partial(_run_until_signal, attrgetter("serve_websocket")),
    "unix": partial(_run_until_signal, attrgetter("serve_unix")),
    "tcp": partial(_run_until_signal, attrgetter("serve_tcp")),
}
