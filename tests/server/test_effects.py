"""Functions as effects: by `ctx.effect`, `ctx.to_thread`, and `@effect`."""

import datetime as dt
import decimal
import enum
import fractions
import functools
import itertools
import json
import math
import pathlib
import queue
import random
import sys
import threading
import time
import typing
import uuid

import attrs
import msgspec
import pydantic
import pytest
import trio
import trio.testing
from cattrs import Converter
from hypothesis import given
from hypothesis import strategies as st
from memory_sessions import client_session

from mcp_trio import Client, Context, Limits, Server, ThreadContext, effect
from mcp_trio._server.effects import EffectCodecs
from mcp_trio._server.results import JsonWriter
from mcp_trio.errors import LocalProtocolError, RequestAbandoned
from mcp_trio.limits import RequestLimits
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


def measure_to(begin: int, end: int = 9) -> int:
    return end - begin


def span(begin: int, end: int = 9, *, step: int = 1) -> int:
    return (end - begin) // step


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

    asker, recorded = await record(server)
    assert await asker.call("boat") == "Boat(name='Ada', metres=3.0)"
    assert recorded() == [command("find", name="Ada"), ("res", {"name": "Ada", "metres": 3})]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated at once")
async def test_the_annotation_of_a_parameter_of_an_effect_is_not_evaluated(server, record):
    names = {}
    exec("def plus_one(number: Missing) -> int: return number + 1", names)

    @server.tool
    async def run(ctx: Context) -> int:
        return await ctx.effect(names["plus_one"], 1)

    asker, recorded = await record(server)
    assert await asker.call("run") == "2"
    assert recorded() == [command("plus_one", number=1), ("res", 2)]


async def test_an_effect_returns_the_same_without_a_recording(server, serve):
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

    asker, recorded = await record(server)
    assert await asker.call("where") == "false"
    assert recorded()[0] == command("get_ident")


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

    asker, recorded = await record(server)
    assert await asker.call("patient") == "done"
    assert recorded()[-1] == ("res", "done")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (functools.partial(measure, "Ada"), command("measure", name="Ada")),
        (functools.partial(measure, name="Ada"), command("measure", name="Ada")),
        (functools.partial(functools.partial(measure), "Ada"), command("measure", name="Ada")),
        (functools.partial(measure_to, 6), command("measure_to", begin=6)),
        (functools.partial(measure_to, 6, 9), command("measure_to", begin=6, end=9)),
        (functools.partial(span, 6), command("span", begin=6)),
        (functools.partial(span, 0, step=3), command("span", begin=0, step=3)),
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

    asker, recorded = await record(server)
    assert await asker.call("run") == "3"
    assert recorded() == [expected, ("res", 3)]


async def test_the_object_of_a_method_is_left_out(server, record):
    registry = Registry()

    @server.tool
    async def run(ctx: Context) -> list[int]:
        return [await ctx.effect(registry.ask, "a", "b", by="c"), registry.ask_too("d")]

    asker, recorded = await record(server)
    assert await asker.call("run") == "[3,5]"
    assert recorded() == [
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
        await ctx.effect(take, "a", "\ud800", None)

    asker, recorded = await record(server)
    await asker.result("tools/call", {"name": "run"})
    opaque = "<opaque>"
    assert recorded()[0] == command("take", one=opaque, other=opaque, ctx=opaque)
    assert recorded()[2] == command("count", things=[[1, 2], opaque])
    assert recorded()[4] == command("take", one="a", other=opaque, ctx=None)


async def test_a_large_argument_is_opaque(record):
    small = Server(
        "harbour",
        limits=msgspec.structs.replace(
            Server("").limits, requests=RequestLimits(effect_bytes_max=10)
        ),
    )

    @small.tool
    async def run(ctx: Context) -> int:
        return await ctx.effect(measure, "Ada and Grace")

    asker, recorded = await record(small)
    assert await asker.call("run") == "13"
    assert recorded()[0] == command("measure", name="<opaque>")


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


async def test_a_decorated_function_is_an_effect_of_the_running_handler(server, record):
    @server.tool
    async def boat() -> str:
        return f"{await look_up('Ada')} {weigh('Ada')}"

    asker, recorded = await record(server)
    assert await asker.call("boat") == "Boat(name='Ada', metres=3.0) 6"
    assert recorded() == [
        command("look_up", name="Ada"),
        ("res", {"name": "Ada", "metres": 3}),
        ("val", {"name": "weigh", "arguments": {"name": "Ada"}, "value": 6}),
    ]


async def test_outside_a_handler_an_effect_calls_the_function():
    assert weigh("Ada") == 6
    assert await look_up("Ada") == Boat("Ada", 3)
    assert look_up.__name__ == "look_up"


@pytest.mark.parametrize("is_recorded", [True, False])
async def test_an_effect_inside_an_effect_calls_the_function(server, serve, record, is_recorded):
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
    asker, recorded = await record(server)
    assert await asker.call("run") == "[6.0,3.0]"
    assert recorded() == [command("outer"), ("res", [6, 3])]


async def test_a_def_handlers_effects_run_in_its_thread(server, record):
    @server.tool
    def run(ctx: ThreadContext) -> bool:
        here = threading.get_ident()
        return {thread_of_mine(), ctx.effect(threading.get_ident)} == {here}

    asker, recorded = await record(server)
    assert await asker.call("run") == "true"
    assert [kind for kind, _ in recorded()] == ["cmd", "res"] * 2


async def test_an_async_function_of_a_def_handler_runs_in_the_loop(server, record):
    @server.tool
    def run(ctx: ThreadContext) -> str:
        return ctx.effect(find, "Ada").name

    asker, recorded = await record(server)
    assert await asker.call("run") == "Ada"
    assert recorded()[0] == command("find", name="Ada")


async def test_an_effect_in_a_thread_is_cancelled_with_its_request(server, record):
    has_begun, may_end = trio.Event(), threading.Event()
    ended = queue.SimpleQueue[str]()

    def slow() -> int:
        trio.from_thread.run_sync(has_begun.set)
        assert may_end.wait(10)
        return 1

    @server.tool
    def run(ctx: ThreadContext) -> int:
        try:
            return ctx.effect(slow)
        except RequestAbandoned:
            ended.put("over")
            raise

    asker, recorded = await record(server)
    request_id = await asker.begin("tools/call", {"name": "run"})
    await has_begun.wait()
    await asker.wire.cancel(request_id)
    await trio.testing.wait_all_tasks_blocked()
    may_end.set()
    await played_again(asker, recorded, server)
    # The call of the thread, the wait for the thread, and the request.
    assert recorded() == [command("slow"), ("cxl", None), ("cxl", None), ("cxl", None)]
    # Neither session waits for its abandoned thread, so the test does.
    for _ in range(2):
        assert await trio.to_thread.run_sync(functools.partial(ended.get, timeout=10)) == "over"


async def test_a_def_handler_that_may_not_block_reads_in_passing(server, record):
    @server.tool(thread=False)
    def run() -> int:
        return weigh("Ada")

    asker, recorded = await record(server)
    assert await asker.call("run") == "6"
    assert [kind for kind, _ in recorded()] == ["val"]


async def test_a_handler_has_its_context_again_after_a_thread_has_read_a_resource(server, record):
    @server.resource("boat://ada")
    def ada() -> str:
        return str(thread_of_mine() != threading.main_thread().ident)

    @server.tool
    async def run(ctx: Context) -> str:
        (contents,) = await ctx.read_resource("boat://ada")
        return contents.text + str(weigh("Ada"))

    asker, recorded = await record(server)
    assert await asker.call("run") == "True6"
    assert [kind for kind, _ in recorded()] == ["cmd", "res", "val"]


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

    asker, recorded = await record(server)
    assert await asker.call("run") == "6"
    assert recorded() == [command("ask"), ("res", "6")]


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
        async with client_session(inner, path) as client:
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


@pytest.mark.parametrize("function", [5, classmethod(print)])
def test_what_cannot_be_called_is_no_effect(function):
    with pytest.raises(TypeError, match="@effect takes a function, not"):
        effect(function)


def test_generators_are_no_effects():
    def numbers():
        yield 1

    async def later():
        yield 1

    for function in numbers, later:
        with pytest.raises(TypeError, match="generator"):
            effect(function)


# Replays.


async def test_effects_of_async_and_def_handlers_replay(server, record):
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

    asker, recorded = await record(server)
    await asker.call("run")
    await asker.call("run_too")
    await played_again(asker, recorded, server)
    assert ran == ["roll"]


# Clocks, random numbers, sleep, timeouts and patches of the context are effects.


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
    """A handler in a thread has the lane of its thread."""
    both(lambda ctx: ctx.random.random())
    asker, recorded = await record(server)
    number = float(await asker.call("tool"))
    records = [json.loads(line) for line in recorded.path.read_bytes().splitlines()]
    seed = records[0]["f"]["seed"]
    lane = "r5.0" if any(each["f"].get("name") == "thread" for each in records[1:]) else "r5"
    assert random.Random(f"{seed}:{lane}").random() == number


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
    asker, recorded = await record(server)
    await asker.call("tool")
    report = await played_again(asker, recorded, server)
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

    asker, recorded = await record(server)
    await asker.call("tool")
    is_new = True
    await played_again(asker, recorded, server)


async def test_sleep_is_an_effect(server, record, autojump_clock):
    @server.tool
    async def tool(ctx: Context) -> float:
        start = ctx.monotonic()
        await ctx.sleep(5)
        return ctx.monotonic() - start

    asker, recorded = await record(server)
    assert await asker.call("tool") == "5.0"
    assert recorded()[1:3] == [
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

    asker, recorded = await record(server)
    assert await asker.call("tool") == "late"
    await played_again(asker, recorded, server)


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


# Results of effects are encoded as JSON, and decoded by their annotation.


class Colour(enum.Enum):
    RED = "red"


class Vessel(msgspec.Struct):
    name: str


class Ship(Vessel):
    masts: int


@attrs.frozen
class Crew:
    names: set[str]
    since: dt.date


class Load(pydantic.BaseModel):
    tons: float
    codes: list[int] = []


class Known(typing.TypedDict):
    name: str


class Angle:
    def __init__(self, degrees):
        self.degrees = degrees

    def __eq__(self, other):
        return self.degrees == other.degrees

    __hash__ = None


def make_converter():
    converter = Converter()

    def read(degrees: float, _) -> Angle:
        return Angle(degrees)

    converter.register_structure_hook(Angle, read)
    converter.register_unstructure_hook(Angle, lambda angle: angle.degrees)
    return converter


def returning(hint):
    def function():
        pass

    if hint is not None:
        function.__annotations__["return"] = hint
    return function


def codec(hint, *, converter=None, **limits):
    results = EffectCodecs(converter, JsonWriter(converter), Limits(**limits))
    return results.of(returning(hint))


UTC = dt.UTC


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (type(None), None),
        (int, 3),
        (int, 2**70),
        (str, "ada\n\0"),
        (bytes, b"\xff"),
        (Colour, Colour.RED),
        (Vessel, Vessel("Ada")),
        (Ship | None, Ship("Ada", 3)),
        (Crew, Crew({"b", "a"}, dt.date(2026, 1, 2))),
        (Load, Load(tons=1.5, codes=[1])),
        (Known, {"name": "Ada"}),
        (tuple[int, ...], (1, 2)),
        (dict[int, Vessel], {1: Vessel("Ada")}),
        (list[Vessel | str], [Vessel("Ada"), "Grace"]),
        (dict[str, typing.Any], {"a": [1, {"b": None}]}),
        (tuple[object, ...], (1, "a")),
        (typing.Annotated[dict, msgspec.Meta(extra_json_schema={})], {"a": 1}),
        (decimal.Decimal, decimal.Decimal("1.10")),
        (dt.datetime, dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
        (uuid.UUID, uuid.UUID(int=5)),
        (pathlib.PurePosixPath, pathlib.PurePosixPath("a/b")),
        (typing.Any, {"a": [1, 2.5, None, True]}),
        (None, ["no annotation"]),
        (None, None),
        ("list[Vessel]", [Vessel("by name")]),
    ],
)
def test_a_result_that_json_preserves_is_returned_equal(hint, value):
    it = codec(hint)
    result, body = it.converted(value)
    assert result == value
    assert type(result) is type(value)
    assert it.decoded(body) == value


def test_the_users_converter_is_used():
    it = codec(Angle, converter=make_converter())
    result, body = it.converted(Angle(90.0))
    assert (result, body) == (Angle(90.0), b"90.0")
    assert it.decoded(body) == result


@pytest.mark.parametrize(
    ("hint", "value", "result"),
    [
        (float, 1, 1.0),
        (tuple[int, ...], [1], (1,)),
        (list[int], (1,), [1]),
        (frozenset[int], {1}, frozenset({1})),
        (Vessel, {"name": "Ada"}, Vessel("Ada")),
        (Crew, {"names": ["a"], "since": "2026-01-02"}, Crew({"a"}, dt.date(2026, 1, 2))),
    ],
)
def test_an_effect_returns_the_annotated_type(hint, value, result):
    assert codec(hint).converted(value)[0] == result


@pytest.mark.parametrize(
    ("hint", "value", "why"),
    [
        (None, (1, 2), "annotate what the function returns"),
        (None, {1: 2}, "annotate"),
        (None, Vessel("Ada"), "annotate"),
        (typing.Any, Crew({"a"}, dt.date(2026, 1, 2)), "annotate"),
        (None, math.nan, "annotate"),
        (None, b"bytes", "annotate"),
        (Vessel, Ship("Ada", 3), "would lose something"),
        (dict[str, typing.Any], {"at": dt.date(2026, 1, 2)}, "would lose something"),
        (dict[str, object] | None, {"it": (1, 2)}, "would lose something"),
        (list, [math.nan], "would lose something"),
        (Known, {"name": "Ada", "masts": 3}, "would lose something"),
        (float, math.nan, "does not have the annotated type"),
        (type(None), 3, "does not have the annotated type"),
        (str, 3, "does not have the annotated type"),
        (str, "\ud800", "has no JSON form"),
        (None, object(), "has no JSON form"),
        (None, fractions.Fraction(1, 2), "has no JSON form"),
        (int, lambda: 3, "has no JSON form"),
    ],
)
def test_a_result_that_json_would_change_is_rejected_with_the_functions_name(hint, value, why):
    with pytest.raises(TypeError, match=why) as caught:
        codec(hint).converted(value)
    assert f"the result of the effect {__name__}.returning.<locals>.function" in str(caught.value)


def test_a_large_result_is_rejected_with_the_settings_name():
    it = codec(str, requests=RequestLimits(effect_bytes_max=10))
    assert it.converted("a" * 8)[0] == "a" * 8
    with pytest.raises(TypeError, match=r"11 bytes.*limits\.requests\.effect_bytes_max=10"):
        it.converted("a" * 9)


@pytest.mark.parametrize("hint", ["Nobody", Angle])
def test_an_annotation_that_cannot_be_read_is_rejected_with_the_functions_name(hint):
    with pytest.raises(TypeError, match=r"returning\.<locals>\.function"):
        codec(hint)


def test_a_recorded_result_of_another_type_is_rejected():
    with pytest.raises(TypeError, match="does not have the annotated type"):
        codec(int).decoded(b'"three"')


def test_the_conversion_of_results_is_determined_once_for_each_function():
    results = EffectCodecs(None, JsonWriter(), Limits())
    function = returning(int)
    assert results.of(function) is results.of(function)
    assert results.of(function) is not results.of(returning(int))


class Slotted:
    __slots__ = ()

    def __call__(self) -> int:
        return 3


@pytest.mark.parametrize("function", [Slotted(), print, int])
def test_any_callable_can_be_an_effect(function):
    it = EffectCodecs(None, JsonWriter(), Limits()).of(function)
    assert it.converted(3) == (3, b"3")


def test_the_annotation_of_an_object_that_is_called_counts():
    with pytest.raises(TypeError, match=r"Slotted\.__call__"):
        EffectCodecs(None, JsonWriter(), Limits()).of(Slotted()).converted("three")


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(plain)
def test_plain_json_comes_back_equal_or_is_rejected(value):
    it = codec(None)
    try:
        result, body = it.converted(value)
    except TypeError:
        return
    assert repr(result) == repr(it.decoded(body)) == repr(value)
