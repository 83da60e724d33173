"""The end of a session: closing from any task, errors, and their effect on the block."""

import contextlib
import signal
import sys

import pytest
import trio
import trio.testing

from mcp_trio import Client, ConnectionLost
from mcp_trio import types as t
from mcp_trio.transports import memory_pair
from tests.client.conftest import (
    Bench,
    call_that_is_lost,
    connected,
    open_descriptors,
    running_tasks,
    said,
    text,
)

LOG = t.LoggingMessageParams(level="info", data="x")
EXTREME = [
    KeyError("mine"),
    KeyboardInterrupt(),
    SystemExit(3),
    ExceptionGroup("own", [ValueError()]),
]


@pytest.mark.parametrize("error", EXTREME, ids=repr)
async def test_l02_an_exception_of_the_block_is_raised_without_a_group(bench, error):
    """L2: a KeyError arrived as a group in a group."""
    with pytest.raises(type(error)) as caught:
        async with Client(bench):
            raise error
    assert caught.value is error


async def test_an_exception_of_the_block_is_not_masked_by_a_cancellation(bench):
    with trio.CancelScope() as scope, pytest.raises(KeyError):  # noqa: PT012  (the block is the point)
        async with Client(bench):
            scope.cancel()
            raise KeyError


async def test_closing_is_not_cut_short_by_a_cancellation(bench):
    tasks = running_tasks()
    with trio.move_on_after(0):
        async with contextlib.AsyncExitStack() as stack:
            with trio.CancelScope(shield=True):
                client = await stack.enter_async_context(Client(bench))
            await trio.sleep_forever()
    assert not client.is_open
    assert running_tasks() == tasks


@pytest.mark.requirement("LIFE-20")
async def test_closing_sends_nothing_and_closes_the_channel(scripted, nursery):
    client, server = await connected(scripted, nursery)
    await client.aclose()
    assert await server.receive_end() == []


async def test_l13_closing_works_from_another_task_and_twice(bench):
    """L13: "attempted to exit cancel scope in a different task"."""
    client = await Client(bench).__aenter__()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.aclose)
        nursery.start_soon(client.aclose)
    await client.aclose()
    assert not client.is_open


async def test_l13_clients_may_be_closed_in_the_order_in_which_they_were_opened():
    first, second = [await Client(Bench()).__aenter__() for _ in range(2)]
    await first.aclose()
    await second.ping()
    await second.aclose()


async def test_l13_a_stack_may_be_opened_in_one_task_and_closed_in_another(bench):
    stack = contextlib.AsyncExitStack()

    async def enter(task_status):
        task_status.started(await stack.enter_async_context(Client(bench)))

    async with trio.open_nursery() as nursery:
        client = await nursery.start(enter)
    assert said(await client.call_tool("hello")) == "hello"
    await stack.aclose()
    assert not client.is_open


async def test_calls_in_flight_end_when_the_client_is_closed(bench, autojump_clock):
    async with Client(bench) as client:
        async with call_that_is_lost(client.call_tool, "forever", match="closed on this side"):
            await client.aclose()
        with pytest.raises(ConnectionLost, match="closed on this side"):
            await client.ping()


async def test_l01_a_lost_server_fails_the_calls_in_flight_and_nothing_else(bench):
    """L1: the whole block was cancelled, and the error shown only outside, in a group."""
    async with Client(bench) as client:
        async with call_that_is_lost(client.call_tool, "forever", match="the peer closed"):
            bench.sessions[0].shut("closed")
        assert not client.is_open
        with pytest.raises(ConnectionLost):
            await client.list_tools()
        await trio.lowlevel.checkpoint()


async def test_no_task_is_left_after_many_sessions(bench):
    tasks, descriptors = running_tasks(), open_descriptors()
    for _ in range(20):
        async with Client(bench) as client:
            await client.call_tool("hello")
    assert running_tasks() == tasks
    assert open_descriptors() == descriptors


def test_an_unclosed_client_ends_with_the_trio_run(bench):
    async def main():
        return await Client(bench).__aenter__()

    assert not trio.run(main).is_open


async def test_a_callback_that_is_shielded_does_not_keep_the_client_from_closing(
    bench, autojump_clock, caplog
):
    release = trio.Event()

    async def log(params):
        with trio.CancelScope(shield=True):
            await release.wait()

    @bench.tool
    async def speak(handling):
        await handling.notify("notifications/message", LOG)
        return text("spoken")

    async with Client(bench, log=log) as client:
        await client.call_tool("speak")
    assert "has not ended within" in caplog.text
    release.set()
    await trio.testing.wait_all_tasks_blocked()


async def test_messages_received_before_closing_are_processed(bench, autojump_clock):
    heard = []

    async def log(params):
        await trio.sleep(0.1)
        heard.append(params.data)

    @bench.tool
    async def speak(handling):
        for number in range(5):
            await handling.notify("notifications/message", {"level": "info", "data": number})
        return text("spoken")

    async with Client(bench, log=log) as client:
        await client.call_tool("speak")
    assert heard == [0, 1, 2, 3, 4]


class Faulty:
    """A channel that fails in a way that no channel may."""

    def __init__(self, channel, error):
        self.channel, self.error = channel, error
        self.fails = trio.Event()

    async def send(self, messages):
        await self.channel.send(messages)

    async def receive(self):
        async with trio.open_nursery() as nursery:

            async def fail():
                await self.fails.wait()
                raise self.error

            nursery.start_soon(fail)
            messages = await self.channel.receive()
            nursery.cancel_scope.cancel()
        return messages

    async def aclose(self):
        await self.channel.aclose()


async def test_an_unexpected_exception_of_a_channel_loses_the_session(
    bench, nursery, autojump_clock, caplog
):
    ours, theirs = memory_pair()
    channel = Faulty(ours, RuntimeError("broken transport"))
    nursery.start_soon(bench.serve, theirs)
    async with Client(channel) as client:
        channel.fails.set()
        with pytest.raises(ConnectionLost):
            await client.call_tool("forever")
    assert "broken transport" in caplog.text


async def test_a_system_exit_inside_the_session_loses_the_session(bench, caplog):
    @bench.tool
    async def leave(handling):
        sys.exit(3)

    async with Client(bench) as client:
        with pytest.raises(ConnectionLost):
            await client.call_tool("leave")
    assert "the session failed" in caplog.text


def test_an_interrupt_inside_the_session_reaches_the_main_task(bench):
    @bench.tool
    async def interrupt(handling):
        signal.raise_signal(signal.SIGINT)

    async def main():
        async with Client(bench) as client:
            with contextlib.suppress(ConnectionLost):
                await client.call_tool("interrupt")
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)


async def test_l13_a_callback_may_close_its_own_client(bench, autojump_clock, caplog):
    """L13: closing from a task of the session waited for that task."""

    async def log(params):
        await client.aclose()

    @bench.tool
    async def speak(handling):
        await handling.notify("notifications/message", LOG)
        await trio.sleep_forever()

    async with Client(bench, log=log) as client:
        with pytest.raises(ConnectionLost, match="closed on this side"):
            await client.call_tool("speak")
    assert "has not ended within" not in caplog.text


async def test_a_handler_may_close_the_client_of_its_own_server_object(
    bench, autojump_clock, caplog
):
    @bench.tool
    async def hang_up(handling):
        await client.aclose()
        return text("too late")

    async with Client(bench) as client:
        with pytest.raises(ConnectionLost, match="closed on this side"):
            await client.call_tool("hang_up")
    assert "has not ended within" not in caplog.text
