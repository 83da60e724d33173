"""Clocks, random numbers, sleep, timeouts and patches of the context are effects."""

import datetime as dt
import json
import math
import random
import uuid

import pytest
import trio
import trio.testing

from mcp_trio import Context, ThreadContext
from mcp_trio.errors import LocalProtocolError
from tests.server.conftest import played_again


@pytest.fixture(params=[True, False], ids=["recorded", "unrecorded"])
def either(request, serve, record):
    """Serve, recorded or not."""

    async def start(server):
        return (await record(server))[0] if request.param else await serve(server)

    return start


@pytest.fixture(params=[True, False], ids=["async def", "def"])
def both(request, server):
    """Register a handler of no arguments in both kinds; it uses only words that both have."""

    def register(function):
        if request.param:

            async def tool(ctx: Context):
                return function(ctx)

        else:

            def tool(ctx: ThreadContext):
                return function(ctx)

        server.tool(name="tool")(tool)

    return register


async def test_now_is_the_time_of_day(server, either, both):
    both(lambda ctx: ctx.now().isoformat())
    before = dt.datetime.now(dt.UTC)
    asker = await either(server)
    now = dt.datetime.fromisoformat(await asker.call("tool"))
    assert before <= now <= dt.datetime.now(dt.UTC)
    assert now.tzinfo is not None


async def test_monotonic_is_the_clock_of_the_trio_run(server, either, both):
    both(lambda ctx: ctx.monotonic())
    asker = await either(server)
    before = trio.current_time()
    assert before <= float(await asker.call("tool")) <= trio.current_time()


async def test_random_numbers_differ_between_requests(server, either, both):
    both(lambda ctx: [ctx.random.random(), ctx.random.random(), str(ctx.uuid4())])
    asker = await either(server)
    found = [json.loads(await asker.call("tool")) for _ in range(2)]
    numbers = {number for one, other, _ in found for number in (one, other)}
    assert len(numbers) == 4
    assert [uuid.UUID(text).version for *_, text in found] == [4, 4]
    assert found[0][2] != found[1][2]


async def test_recorded_random_numbers_follow_from_seed_and_lane(server, record, both):
    both(lambda ctx: ctx.random.random())
    asker, told = await record(server)
    number = float(await asker.call("tool"))
    records = [json.loads(line) for line in told.path.read_bytes().splitlines()]
    seed = records[0]["f"]["seed"]
    assert random.Random(f"{seed}:r5").random() == number


async def test_patched_is_true_outside_of_old_recordings(server, either, both):
    both(lambda ctx: ctx.patched("a") and ctx.patched("a"))
    assert await (await either(server)).call("tool") == "true"


async def test_clocks_random_numbers_and_patches_replay(server, record, both):
    both(
        lambda ctx: [
            str(ctx.now()),
            ctx.monotonic(),
            ctx.random.random(),
            str(ctx.uuid4()),
            ctx.patched("a"),
        ]
    )
    asker, told = await record(server)
    await asker.call("tool")
    report = await played_again(asker, told, server)
    assert report.requests == 1


async def test_patched_is_false_in_replays_of_older_recordings(server, record):
    is_new = False

    @server.tool
    async def tool(ctx: Context) -> str:
        if is_new and ctx.patched("a"):
            assert ctx.patched("a")
            return "new"
        await ctx.info("one")
        return "old"

    asker, told = await record(server)
    await asker.call("tool")
    is_new = True
    await played_again(asker, told, server)


async def test_sleep_is_an_effect(server, record, autojump_clock):
    @server.tool
    async def tool(ctx: Context) -> float:
        start = ctx.monotonic()
        await ctx.sleep(5)
        return ctx.monotonic() - start

    asker, told = await record(server)
    assert await asker.call("tool") == "5.0"
    assert told()[1:3] == [
        ("cmd", {"name": "ctx.sleep", "arguments": {"seconds": 5}}),
        ("res", None),
    ]


async def test_sleep_in_a_thread_is_an_effect(server, either):
    @server.tool
    def tool(ctx: ThreadContext) -> None:
        return ctx.sleep(0.001)

    asker = await either(server)
    assert (await asker.result("tools/call", {"name": "tool"}))["content"] == []


async def test_a_negative_sleep_raises_value_error(server, either):
    @server.tool
    async def tool(ctx: Context) -> str:
        try:
            await ctx.sleep(-1)
        except ValueError as error:
            return str(error)
        return ""

    assert "non-negative" in await (await either(server)).call("tool")


async def test_a_timeout_cancels_its_block(server, either, autojump_clock):
    @server.tool
    async def tool(ctx: Context) -> list[object]:
        start = trio.current_time()
        try:
            with ctx.timeout(3) as scope:
                await ctx.sleep(100)
        except trio.TooSlowError:
            return [trio.current_time() - start, scope.cancelled_caught]
        return []

    assert await (await either(server)).call("tool") == "[3.0,true]"


async def test_a_timeout_that_is_not_needed_does_nothing(server, either, autojump_clock):
    @server.tool
    async def tool(ctx: Context) -> bool:
        with ctx.timeout(math.inf), ctx.timeout(3) as scope:
            await ctx.sleep(2)
        return scope.cancelled_caught

    assert await (await either(server)).call("tool") == "false"


async def test_a_timeout_replays(server, record):
    @server.tool
    async def tool(ctx: Context) -> str:
        try:
            with ctx.timeout(0.01):
                await ctx.sleep(100)
        except trio.TooSlowError:
            return "late"
        return "in time"

    asker, told = await record(server)
    assert await asker.call("tool") == "late"
    await played_again(asker, told, server)


@pytest.mark.parametrize(
    "use",
    [
        lambda ctx: ctx.now(),
        lambda ctx: ctx.monotonic(),
        lambda ctx: ctx.random,
        lambda ctx: ctx.uuid4(),
        lambda ctx: ctx.patched("a"),
        lambda ctx: ctx.effect(min, 1, 2),
        lambda ctx: ctx.sleep(0),
        lambda ctx: ctx.info("one"),
    ],
)
async def test_the_context_is_rejected_inside_an_effect(server, either, use):
    """Also in the effect of a thread, and with the same words."""

    def rejected(ctx):
        try:
            found = use(ctx)
            if hasattr(found, "send"):
                found.send(None)
        except LocalProtocolError as error:
            return str(error)
        return "let in"

    @server.tool
    async def tool(ctx: Context) -> str:
        return await ctx.effect(rejected, ctx)

    @server.tool
    def tool_too(ctx: ThreadContext) -> str:
        return ctx.effect(rejected, ctx)

    asker = await either(server)
    for name in "tool", "tool_too":
        assert (await asker.call(name)).startswith(
            "the context cannot be used inside the effect 'rejected'"
        )


async def test_a_timeout_inside_an_effect_is_rejected(server, either):
    @server.tool
    async def tool(ctx: Context) -> str:
        def use():
            with ctx.timeout(1):
                pass

        try:
            await ctx.effect(use)
        except LocalProtocolError:
            return "rejected"
        return "let in"

    assert await (await either(server)).call("tool") == "rejected"
