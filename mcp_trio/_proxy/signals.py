"""A proxy that no server's exit ends: it ends with its peers, or with a signal."""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final

import trio

from mcp_trio._engine import bare

SIGNAL_STATUS_BASE: Final = 128

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def heeded(signals: Iterable[int]) -> list[int]:
    """Those that were not ignored when we were started: `nohup` has to mean something."""
    return [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]


async def until_signal(serve: Callable[[], Awaitable[int]], *, shut: Callable[[], None]) -> int:
    """The exit status that `serve` returns, or that of the signal which has cancelled it.

    `shut` is called before it is cancelled. A second signal ends the process at once.

    Raises:
        Exception: What `serve` raises, bare.
    """
    received: list[int] = []
    status = 0

    async def watch(signals: AsyncIterator[int]) -> None:
        async for number in signals:
            if received:
                os._exit(SIGNAL_STATUS_BASE + number)
            received.append(number)
            shut()
            serving.cancel()

    with trio.open_signal_receiver(*heeded(_SIGNALS)) as signals:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch, signals)
                with trio.CancelScope() as serving:
                    status = await serve()
                nursery.cancel_scope.cancel()
        except ExceptionGroup as error:
            raise bare(error) from None
    return SIGNAL_STATUS_BASE + received[0] if received else status
