"""A process that serves HTTP until a signal comes."""

import logging
import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final, cast

import trio

from mcp_trio._engine import bare
from mcp_trio._server.http.options import HttpOptions
from mcp_trio._server.http.runtime import ServesSessions
from mcp_trio._server.http.serving import Address, serve_http
from mcp_trio._server.stdio import SIGNAL_STATUS_BASE, SIGNALS

logger = logging.getLogger("mcp_trio")

_OF_ADDRESS: Final = ("host", "port", "certfile", "keyfile")


def _log(url: str) -> None:
    logger.info("serving %s", url)


def run_http(
    server: ServesSessions, /, *, told: Callable[[str], None] = _log, **options: Any
) -> None:
    """A Trio run of its own round `serve_http`, ended by SIGINT and SIGTERM.

    `told` is called with the URL of the MCP endpoint. A second signal ends the process at once.

    Raises:
        SystemExit: After a signal, with status 128 plus its number.
        Exception: What `serve_http` raises, bare.
    """
    place = {name: options.pop(name) for name in _OF_ADDRESS if name in options}
    address = Address(holder=options.pop("server", "native"), **place)
    received = trio.run(_run, server, address, cast("HttpOptions", options), told)
    raise SystemExit(SIGNAL_STATUS_BASE + received)


async def _run(
    server: ServesSessions, address: Address, options: HttpOptions, told: Callable[[str], None]
) -> int:
    received: list[int] = []

    async def watch(signals: AsyncIterator[int], serving: trio.CancelScope) -> None:
        async for number in signals:
            if received:
                os._exit(SIGNAL_STATUS_BASE + number)
            received.append(number)
            serving.cancel()

    with trio.open_signal_receiver(*SIGNALS) as signals:
        try:
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as serving:
                    nursery.start_soon(watch, signals, serving)
                    await _serve(server, address, options, told)
                nursery.cancel_scope.cancel()
        except ExceptionGroup as error:
            raise bare(error) from None
    return received[0]


async def _serve(
    server: ServesSessions, address: Address, options: HttpOptions, told: Callable[[str], None]
) -> None:
    serve = partial(serve_http, server, address, options)
    async with trio.open_nursery() as nursery:
        told(await nursery.start(serve))
