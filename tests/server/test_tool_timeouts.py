"""Time limits of tools: `@server.tool(timeout=SECONDS)`."""

import math
import threading

import pytest
import trio
import trio.testing

from mcp_trio import Context, Server, ThreadContext, ToolError
from mcp_trio.errors import RequestAbandoned
from mcp_trio.recording import replay
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair
from tests.server.conftest import failure_text, played_again

LATE = "'tool' timed out: it did not finish within 0.5 s"


async def long(ctx: Context) -> str:
    await ctx.sleep(100)
    return "never"


@pytest.mark.requirement("TOOL-29")
async def test_a_call_is_cancelled_at_the_time_limit_of_its_tool(server, serve, autojump_clock):
    server.tool(name="tool", timeout=0.5)(long)
    asker, start = await serve(server), trio.current_time()
    assert await asker.failure("tool") == LATE
    assert trio.current_time() - start == pytest.approx(0.5)


async def test_a_call_within_its_time_limit_is_answered_as_usual(server, serve, autojump_clock):
    @server.tool(timeout=0.5)
    async def tool(ctx: Context) -> str:
        await ctx.sleep(0.4)
        return "in time"

    assert await (await serve(server)).call("tool") == "in time"


async def test_a_handler_that_finishes_in_spite_of_the_cancellation_is_answered(
    server, serve, autojump_clock
):
    @server.tool(timeout=0.5)
    async def tool(way: str) -> str:
        try:
            await trio.sleep(100)
        finally:
            if way == "error":
                raise ToolError("tidied up")
        return "never"

    @server.tool(name="busy", timeout=1e-9)
    async def busy() -> str:
        return "no wait"

    asker = await serve(server)
    assert await asker.failure("tool", {"way": "error"}) == "tidied up"
    assert await asker.failure("tool", {"way": "plain"}) == LATE
    assert await asker.call("busy") == "no wait"


async def test_a_time_limit_of_the_handler_itself_is_another_error(server, serve, autojump_clock):
    @server.tool(timeout=5)
    async def tool(ctx: Context) -> None:
        with ctx.timeout(1):
            await ctx.sleep(100)

    assert await (await serve(server)).failure("tool") == "internal error in tool"


async def test_the_child_tasks_of_a_late_handler_are_cancelled(server, serve, autojump_clock):
    ended = []

    async def child() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("child")

    @server.tool(timeout=0.5)
    async def tool() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)

    assert await (await serve(server)).failure("tool") == LATE
    assert ended == ["child"]


async def test_a_client_that_cancels_first_gets_no_answer(server, serve, autojump_clock):
    server.tool(name="tool", timeout=0.5)(long)
    asker = await serve(server)
    await asker.wire.cancel(await asker.begin("tools/call", {"name": "tool", "arguments": {}}))
    await trio.sleep(1)
    assert await asker.wire.receive_available() == []


async def test_the_thread_of_a_late_def_handler_is_abandoned(server, serve, autojump_clock):
    release, seen, ended = threading.Event(), [], threading.Event()

    @server.tool(timeout=0.5)
    def tool(ctx: ThreadContext) -> str:
        release.wait(5)
        seen.append(ctx.is_cancelled)
        try:
            ctx.info("never sent")
        except RequestAbandoned:
            seen.append("abandoned")
        ended.set()
        return "dropped"

    asker = await serve(server)
    assert await asker.failure("tool") == LATE
    release.set()
    assert await trio.to_thread.run_sync(ended.wait, 5)
    assert seen == [True, "abandoned"]
    assert await asker.wire.receive_available() == []


async def test_a_suspended_handler_ends_at_its_time_limit(server, serve, autojump_clock):
    """The retry gets the result; the time in which the client asks its user counts."""

    @server.tool(timeout=0.5)
    async def tool(ctx: Context) -> str:
        answer = await ctx.elicit("Which boat?", str)
        return str(answer.data)

    asker = await serve(
        server, protocol_version="2026-07-28", capabilities={"elicitation": {"form": {}}}
    )
    call = {"name": "tool", "arguments": {}}
    asked = await asker.result("tools/call", call)
    (key,) = asked["inputRequests"]
    await trio.sleep(1)
    retry = {
        "requestState": asked["requestState"],
        "inputResponses": {key: {"action": "accept", "content": {"value": "reed"}}},
    }
    assert failure_text(await asker.result("tools/call", call | retry)) == LATE


@pytest.mark.parametrize("timeout", [0, -1, math.nan])
def test_a_time_limit_that_is_not_positive_is_rejected_at_the_decorator(server, timeout):
    with pytest.raises(ValueError, match="'long' is not a positive number of seconds"):
        server.tool(timeout=timeout)(long)


def test_a_time_limit_that_cannot_end_the_function_is_rejected_at_the_decorator(server):
    def tool() -> None:
        pass

    with pytest.raises(ValueError, match=r"cannot end 'tool', which runs in the event loop"):
        server.tool(timeout=1, thread=False)(tool)


async def test_a_time_limit_replays(server, record, autojump_clock):
    @server.tool(timeout=0.5)
    async def tool(seconds: float, ctx: Context) -> str:
        await ctx.info("begins")
        await ctx.sleep(seconds)
        return "in time"

    asker, told = await record(server)
    assert await asker.failure("tool", {"seconds": 9.0}) == LATE
    assert await asker.call("tool", seconds=0.4) == "in time"
    assert (await played_again(asker, told, server)).requests == 2


async def call_all(server, path, seconds):
    """Record the calls of a `def` handler whose threads end before and after the time limit."""
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        await nursery.start(
            lambda task_status: server.serve(theirs, record=path, task_status=task_status)
        )
        peer = WirePeer(ours)
        await peer.handshake()
        for number, each in enumerate(seconds):
            arguments = {"seconds": each}
            await peer.send_request(
                "tools/call", {"name": "tool", "arguments": arguments}, id=number
            )
        answers = [await peer.receive() for _ in seconds]
        await peer.aclose()
    return sorted(each["id"] for each in answers if "isError" in each["result"])


@pytest.mark.parametrize("waits", ["sleep", "event"])
def test_a_time_limit_of_a_def_handler_replays(tmp_path, waits):
    never = threading.Event()

    def make():
        server = Server("threads")

        @server.tool(timeout=0.5)
        def tool(seconds: float, ctx: ThreadContext) -> str:
            ctx.uuid4()
            if waits == "sleep" or seconds < 1:
                ctx.sleep(seconds)
            else:
                never.wait(0.2)
            return str(ctx.now())

        return server

    clock = trio.testing.MockClock(autojump_threshold=0.02)
    path = tmp_path / "a.mcprec.jsonl"
    late = trio.run(call_all, make(), path, [0.1, 9.0, 0.2, 8.0], clock=clock)
    assert late == [1, 3]
    assert replay(path, make()).requests == 4
