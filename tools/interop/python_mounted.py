"""The "everything" server, mounted in other applications, as `mounts.py` wants it.

By hypercorn's own command, `hypercorn python_mounted.py:in_starlette()`, or without an application
around it, `python python_mounted.py --server native`. Nothing here tells it that it begins or ends.
It lets no connection last, so that whoever makes a long call in a session has to come back.
"""

import argparse
import logging
import sys
from pathlib import Path
from typing import Any, Final

import attrs

sys.path.append(str(Path(__file__).resolve().parent.parent / "conformance"))

from server import server

CONNECTION_SECONDS: Final = 0.6
RETRY_MS: Final = 100
DEEP: Final = "/deep/path"
BESIDE: Final = "/beside"
HELLO: Final = "Hello."

server.limits = attrs.evolve(
    server.limits,
    http=attrs.evolve(
        server.limits.http, stream_seconds_max=CONNECTION_SECONDS, sse_retry_ms=RETRY_MS
    ),
)


def alone() -> Any:
    """The application, with nothing around it."""
    return server.asgi()


def in_starlette(path: str = "") -> Any:
    """Mounted in Starlette, which tells those that it mounts nothing of its lifespan."""
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Mount, Route

    async def beside(_request: object) -> PlainTextResponse:
        return PlainTextResponse(HELLO)

    return Starlette(routes=[Route(BESIDE, beside), Mount(path, app=server.asgi())])


def beside_quart() -> Any:
    """Beside an application of Quart-Trio, by what hypercorn has for that."""
    from hypercorn.middleware.dispatcher import TrioDispatcherMiddleware
    from quart_trio import QuartTrio

    quart = QuartTrio(__name__)

    @quart.get(BESIDE)
    async def beside() -> str:
        return HELLO

    return TrioDispatcherMiddleware({DEEP: server.asgi(), "": quart})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve everything, by itself.")
    parser.add_argument("--server", choices=["native", "hypercorn"], default="native")
    parser.add_argument("--path", default="/mcp")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # where it serves
    server.run("http", port=0, server=options.server, path=options.path)
