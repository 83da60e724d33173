"""Functions as effects: by `ctx.effect`, `ctx.to_thread`, and `@effect`."""

import functools
import itertools
import threading
import time

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import Client, Context, Server, ThreadContext, effect
from mcp_trio.errors import LocalProtocolError, RequestAbandoned
from mcp_trio.limits import RequestLimits
from mcp_trio.transports import memory_pair
from tests.server.conftest import played_again


@attrs.frozen
class Boat:
    name: str
    metres: float


class Registry:
    def __init__(self):
        self.asked = 0

    def ask(self, *names: str, **options: str) -> int:
        self.asked += len(names) + len(options)
        return self.asked

    @effect
    def ask_too(self, name: str) -> int:
        return self.ask(name, name)

    def double(self, number: float) -> int:
        return int(2 * number)

    @classmethod
    def count(cls, *names: str) -> int:
        return 1 + len(names)


def command(name, /, **arguments):
    return "cmd", {"name": name, "arguments": arguments}


async def find(name: str) -> Boat:
    await trio.lowlevel.checkpoint()
    return Boat(name, len(name))


def measure(name: str) -> int:
    return len(name)


@effect
async def look_up(name: str) -> Boat:
    return await find(name)


@effect
def weigh(name: str) -> int:
    return 2 * len(name)


@effect
def thread_of_mine() -> int:
    return threading.get_ident()


# By the context.


async def test_a_function_is_an_effect(server, record):
    @server.tool
    async def boat(ctx: Context) -> str:
        return repr(await ctx.effect(find, "Ada"))

    asker, told = await record(server)
    assert await asker.call("boat") == "Boat(name='Ada', metres=3.0)"
    assert told() == [command("find", name="Ada"), ("res", {"name": "Ada", "metres": 3})]


async def test_without_a_recording_it_is_the_same(server, serve):
    @server.tool
    async def boat(ctx: Context) -> str:
        return repr(await ctx.effect(find, "Ada"))

    asker = await serve(server)
    assert await asker.call("boat") == "Boat(name='Ada', metres=3.0)"


async def test_a_def_function_is_run_in_place(server, record):
    @server.tool
    async def where(ctx: Context) -> bool:
        return await ctx.effect(threading.get_ident) == threading.get_ident()

    asker, _ = await record(server)
    assert await asker.call("where") == "true"


async def test_a_function_that_blocks_runs_in_a_thread(server, record):
    @server.tool
    async def where(ctx: Context) -> bool:
        return await ctx.to_thread(threading.get_ident) == threading.get_ident()

    asker, told = await record(server)
    assert await asker.call("where") == "false"
    assert told()[0] == command("get_ident")


async def test_a_cancelled_thread_is_waited_for_and_its_result_counts(server, record):
    begun, may_end = trio.Event(), threading.Event()

    def slow():
        trio.from_thread.run_sync(begun.set)
        assert may_end.wait(10)
        return "done"

    @server.tool
    async def patient(ctx: Context) -> str:
        async with trio.open_nursery() as nursery:

            async def cancel():
                await begun.wait()
                nursery.cancel_scope.cancel()
                may_end.set()

            nursery.start_soon(cancel)
            return await ctx.to_thread(slow)

    asker, told = await record(server)
    assert await asker.call("patient") == "done"
    assert told()[-1] == ("res", "done")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (functools.partial(measure, "Ada"), command("measure", name="Ada")),
        (functools.partial(measure, name="Ada"), command("measure", name="Ada")),
        (functools.partial(functools.partial(measure), "Ada"), command("measure", name="Ada")),
        (lambda: 3, command("<lambda>")),
        ("Ada".__len__, command("__len__")),
        (functools.partial(Registry.count, "a", "b"), command("count", names=["a", "b"])),
        (functools.partial(Registry().double, 1.5), command("double", number=1.5)),
        (functools.partial(Registry.double, None, 1.5), command("double", number=1.5)),
        (functools.partial(max, 1, 3), command("max", **{"0": 1, "1": 3})),
        (functools.partial(int, 3), command("int", **{"0": 3})),
    ],
    ids=itertools.count(),
)
async def test_an_effect_has_the_functions_name_and_its_arguments_by_theirs(
    server, record, function, expected
):
    @server.tool
    async def run(ctx: Context) -> int:
        return await ctx.effect(function)

    asker, told = await record(server)
    assert await asker.call("run") == "3"
    assert told() == [expected, ("res", 3)]


async def test_the_object_of_a_method_is_left_out(server, record):
    registry = Registry()

    @server.tool
    async def run(ctx: Context) -> list[int]:
        return [await ctx.effect(registry.ask, "a", "b", by="c"), registry.ask_too("d")]

    asker, told = await record(server)
    assert await asker.call("run") == "[3,5]"
    assert told() == [
        command("ask", names=["a", "b"], options={"by": "c"}),
        ("res", 3),
        ("val", {"name": "ask_too", "arguments": {"name": "d"}, "value": 5}),
    ]


async def test_arguments_without_a_json_form_are_recorded_as_opaque(server, record):
    def count(*things: object) -> int:
        return len(things)

    def take(one: object, other: object, ctx: object) -> None:
        pass

    @server.tool
    async def run(ctx: Context) -> None:
        await ctx.effect(take, object(), "\ud800", ctx)
        await ctx.effect(count, {1, 2}, object())

    asker, told = await record(server)
    await asker.result("tools/call", {"name": "run"})
    opaque = "<opaque>"
    assert told()[0] == command("take", one=opaque, other=opaque, ctx=opaque)
    assert told()[2] == command("count", things=[[1, 2], opaque])


async def test_a_large_argument_is_opaque(record):
    small = Server(
        "harbour",
        limits=attrs.evolve(Server("").limits, requests=RequestLimits(effect_bytes_max=10)),
    )

    @small.tool
    async def run(ctx: Context) -> int:
        return await ctx.effect(measure, "Ada and Grace")

    asker, told = await record(small)
    assert await asker.call("run") == "13"
    assert told()[0] == command("measure", name="<opaque>")


@pytest.mark.parametrize("is_recorded", [True, False])
async def test_wrong_arguments_are_pythons_type_error(server, serve, record, is_recorded):
    @server.tool
    async def run(ctx: Context) -> str:
        try:
            await ctx.effect(measure, "a", "b")
        except TypeError as error:
            return str(error)
        return ""

    asker = (await record(server))[0] if is_recorded else await serve(server)
    assert await asker.call("run") == "measure() takes 1 positional argument but 2 were given"


# By the decorator.


async def test_a_decorated_function_finds_its_handler(server, record):
    @server.tool
    async def boat() -> str:
        return f"{await look_up('Ada')} {weigh('Ada')}"

    asker, told = await record(server)
    assert await asker.call("boat") == "Boat(name='Ada', metres=3.0) 6"
    assert told() == [
        command("look_up", name="Ada"),
        ("res", {"name": "Ada", "metres": 3}),
        ("val", {"name": "weigh", "arguments": {"name": "Ada"}, "value": 6}),
    ]


async def test_outside_of_a_handler_it_is_the_function():
    assert weigh("Ada") == 6
    assert await look_up("Ada") == Boat("Ada", 3)
    assert look_up.__name__ == "look_up"


@pytest.mark.parametrize("is_recorded", [True, False])
async def test_an_effect_inside_of_an_effect_is_the_function(server, serve, record, is_recorded):
    @effect
    async def outer() -> list[float]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look_up, "in a task")
        return [weigh("Ada"), (await look_up("Ada")).metres]

    @server.tool
    async def run() -> list[float]:
        return await outer()

    if not is_recorded:
        assert await (await serve(server)).call("run") == "[6.0,3.0]"
        return
    asker, told = await record(server)
    assert await asker.call("run") == "[6.0,3.0]"
    assert told() == [command("outer"), ("res", [6, 3])]


async def test_a_def_handlers_effects_run_in_its_thread(server, record):
    @server.tool
    def run(ctx: ThreadContext) -> bool:
        here = threading.get_ident()
        return {thread_of_mine(), ctx.effect(threading.get_ident)} == {here}

    asker, told = await record(server)
    assert await asker.call("run") == "true"
    assert [kind for kind, _ in told()] == ["cmd", "res"] * 2


async def test_an_async_function_of_a_def_handler_runs_in_the_loop(server, record):
    @server.tool
    def run(ctx: ThreadContext) -> str:
        return ctx.effect(find, "Ada").name

    asker, told = await record(server)
    assert await asker.call("run") == "Ada"
    assert told()[0] == command("find", name="Ada")


async def test_an_effect_in_a_thread_is_cancelled_with_its_request(server, record):
    has_begun, may_end = trio.Event(), threading.Event()
    said = []

    def slow() -> int:
        trio.from_thread.run_sync(has_begun.set)
        assert may_end.wait(10)
        return 1

    @server.tool
    def run(ctx: ThreadContext) -> int:
        try:
            return ctx.effect(slow)
        except RequestAbandoned:
            said.append("over")
            raise

    asker, told = await record(server)
    request_id = await asker.begin("tools/call", {"name": "run"})
    await has_begun.wait()
    await asker.wire.cancel(request_id)
    await trio.testing.wait_all_tasks_blocked()
    may_end.set()
    await played_again(asker, told, server)
    assert told() == [command("slow"), ("cxl", None), ("cxl", None)]
    assert said == ["over"] * 2


async def test_a_def_handler_that_may_not_block_reads_in_passing(server, record):
    @server.tool(thread=False)
    def run() -> int:
        return weigh("Ada")

    asker, told = await record(server)
    assert await asker.call("run") == "6"
    assert [kind for kind, _ in told()] == ["val"]


async def test_after_a_resource_that_a_thread_has_read_the_handler_is_itself_again(server, record):
    @server.resource("boat://ada")
    def ada() -> str:
        return str(thread_of_mine() != threading.main_thread().ident)

    @server.tool
    async def run(ctx: Context) -> str:
        (contents,) = await ctx.read_resource("boat://ada")
        return contents.text + str(weigh("Ada"))

    asker, told = await record(server)
    assert await asker.call("run") == "True6"
    assert [kind for kind, _ in told()] == ["cmd", "res", "val"]


async def test_a_session_inside_of_an_effect_has_handlers_of_its_own(server, record):
    inner = Server("island")

    @inner.tool
    async def there(ctx: Context) -> int:
        await ctx.info("here")
        return weigh("Ada")

    @effect
    async def ask() -> str:
        async with Client(inner) as client:
            return (await client.call_tool("there")).content[0].text

    @server.tool
    async def run() -> str:
        return await ask()

    asker, told = await record(server)
    assert await asker.call("run") == "6"
    assert told() == [command("ask"), ("res", "6")]


async def test_a_recorded_session_inside_of_an_effect_has_effects_of_its_own(
    server, serve, tmp_path
):
    inner = Server("island")
    path = tmp_path / "inner.mcprec.jsonl"

    @inner.tool
    async def there() -> int:
        return weigh("Ada")

    @effect
    async def ask() -> str:
        ours, theirs = memory_pair(limits=inner.limits)
        async with trio.open_nursery() as nursery:
            await nursery.start(functools.partial(inner.serve, theirs, record=path))
            async with Client(ours) as client:
                return (await client.call_tool("there")).content[0].text

    @server.tool
    async def run() -> str:
        return await ask()

    assert await (await serve(server)).call("run") == "6"
    assert b'"k":"val"' in path.read_bytes()


@pytest.mark.parametrize("is_recorded", [True, False])
async def test_a_thread_that_the_handler_started_itself_has_no_effects(
    server, serve, record, is_recorded
):
    @server.tool
    async def run() -> str:
        try:
            return str(await trio.to_thread.run_sync(weigh, "Ada"))
        except LocalProtocolError as error:
            return str(error)

    asker = (await record(server))[0] if is_recorded else await serve(server)
    assert "before the thread starts" in await asker.call("run")


def test_generators_are_no_effects():
    def numbers():
        yield 1

    async def later():
        yield 1

    for function in numbers, later:
        with pytest.raises(TypeError, match="generator"):
            effect(function)


# What a replay does with all that.


async def test_everything_replays(server, record):
    ran = []

    @effect
    async def roll() -> float:
        ran.append("roll")
        return time.perf_counter()

    @server.tool
    async def run(ctx: Context) -> list[float]:
        found = [await roll(), await ctx.effect(time.perf_counter)]
        return [*found, await ctx.to_thread(time.perf_counter)]

    @server.tool
    def run_too(ctx: ThreadContext) -> list[float]:
        return [ctx.effect(time.perf_counter), ctx.effect(find, "Ada").metres]

    asker, told = await record(server)
    await asker.call("run")
    await asker.call("run_too")
    await played_again(asker, told, server)
    assert ran == ["roll"]
