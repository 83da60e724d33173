"""A mocked server as a process over stdio, for clients in any language."""

import os
from collections.abc import AsyncIterator

import attrs
import trio

from mcp_trio._limits import Limits
from mcp_trio._replay.mock import MockServer
from mcp_trio._server.stdio import SIGNAL_STATUS_BASE, SIGNALS
from mcp_trio._transports.stdio_server import (
    divert_stdio,
    open_stdio_channel,
    wait_parent_death,
)


def run_mock(mock: MockServer) -> int:
    """Serve one session over our own stdin and stdout, in a Trio run of its own.

    Ends when the client leaves, when the parent process dies, and at SIGINT and SIGTERM.

    Returns:
        The exit status: 0, or 128 plus the number of the signal that ended it.
    """
    return trio.run(_run, mock)


async def _run(mock: MockServer) -> int:
    parent_pid = os.getppid()
    channel = open_stdio_channel(*divert_stdio(), limits=mock.limits)
    ending = _Ending()
    with trio.open_signal_receiver(*SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ending.on_signal, signals, nursery.cancel_scope)
            nursery.start_soon(_on_parent_death, parent_pid, mock.limits, nursery.cancel_scope)
            await mock.serve(channel)
            nursery.cancel_scope.cancel()
    return ending.status


async def _on_parent_death(parent_pid: int, limits: Limits, scope: trio.CancelScope) -> None:
    await wait_parent_death(parent_pid=parent_pid, limits=limits)
    scope.cancel()


@attrs.define
class _Ending:
    status: int = attrs.field(default=0, init=False)

    async def on_signal(self, signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
        async for number in signals:
            self.status = SIGNAL_STATUS_BASE + number
            scope.cancel()
