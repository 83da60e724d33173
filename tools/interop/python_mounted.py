"""The "everything" server, mounted in other applications, for `mounts.py`.

Run by hypercorn's command, `hypercorn python_mounted.py:in_starlette()`, or without an application
around it, `python python_mounted.py --server native`. No application forwards the lifespan to it.
Its connections are short-lived, so that a long call in a session has to reconnect.
"""

import argparse
import logging
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

sys.path.append(str(Path(__file__).resolve().parent.parent / "conformance"))

from server import server

CONNECTION_SECONDS: Final = 0.6
RETRY_MS: Final = 100
DEEP: Final = "/deep/path"
BESIDE: Final = "/beside"
HELLO: Final = "Hello."

server.limits = msgspec.structs.replace(
    server.limits,
    http=msgspec.structs.replace(
        server.limits.http, stream_seconds_max=CONNECTION_SECONDS, sse_retry_ms=RETRY_MS
    ),
)


def alone() -> Any:
    """Return the application, unmounted."""
    return server.asgi()


def in_starlette(path: str = "") -> Any:
    """Return a Starlette application in which ours is mounted; Starlette forwards no lifespan."""
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Mount, Route

    async def beside(_request: object) -> PlainTextResponse:
        return PlainTextResponse(HELLO)

    return Starlette(routes=[Route(BESIDE, beside), Mount(path, app=server.asgi())])


def in_fastapi() -> Any:
    """Return a FastAPI application in which ours is mounted, and whose lifespan closes ours."""
    from collections.abc import AsyncGenerator
    from contextlib import asynccontextmanager

    from fastapi import FastAPI
    from fastapi.responses import PlainTextResponse

    mounted = server.asgi()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        yield
        await mounted.aclose()

    app = FastAPI(lifespan=lifespan)

    @app.get(BESIDE)
    async def beside() -> PlainTextResponse:
        return PlainTextResponse(HELLO)

    app.mount(DEEP, mounted)
    return app


def beside_quart() -> Any:
    """Return ours beside a Quart-Trio application, by hypercorn's dispatcher."""
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
