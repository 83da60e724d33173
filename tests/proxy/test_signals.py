"""What a signal does to a proxy that no server's exit ends."""

import os
import signal
from functools import partial

import pytest
import trio

from mcp_trio._proxy.stdio import until_signal


async def test_without_a_signal_the_status_is_the_proxys():
    async def serve():
        return 7

    assert await until_signal(serve, shut=list) == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_is_told_and_then_cancels(number):
    said = []

    async def serve():
        os.kill(os.getpid(), number)
        try:
            await trio.sleep_forever()
        finally:
            said.append("cancelled")

    with trio.fail_after(5):
        assert await until_signal(serve, shut=partial(said.append, "shut")) == 128 + number
    assert said == ["shut", "cancelled"]


async def test_a_second_signal_ends_the_process_at_once(monkeypatch):
    shut, exited = trio.Event(), trio.Event()
    statuses = []

    def leave(status):
        statuses.append(status)
        exited.set()

    async def serve():
        os.kill(os.getpid(), signal.SIGTERM)
        with trio.CancelScope(shield=True):
            await shut.wait()
            os.kill(os.getpid(), signal.SIGINT)
            await exited.wait()

    monkeypatch.setattr(os, "_exit", leave)
    with trio.fail_after(5):
        await until_signal(serve, shut=shut.set)
    assert statuses == [128 + signal.SIGINT]


async def test_what_goes_wrong_comes_out_bare():
    async def serve():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)

    async def fail():
        raise OSError(98, "in use")

    with pytest.raises(OSError, match="in use"):
        await until_signal(serve, shut=list)
