"""The steps of resumable handlers: run once, and again only where the handler changed."""

import json

import pytest
import trio
import trio.testing

from mcp_trio import Context, ThreadContext, effect
from tests.server.rounds import FALSE, TRUE, filled, message_of, text_of


async def test_clocks_and_random_numbers_repeat_in_every_round(resumable):
    seen = []

    async def ask(*, ctx: Context) -> str:
        said = [str(ctx.now()), ctx.monotonic(), ctx.random.random(), str(ctx.uuid4())]
        seen.append(said)
        await ctx.elicit("sure?", bool)
        return json.dumps([*said, ctx.random.random()])

    result, _ = await resumable(ask).finish(lambda _request: TRUE)
    other, _ = await resumable(ask).finish(lambda _request: TRUE)

    assert seen[0] == seen[1]
    assert json.loads(text_of(result))[:4] == seen[0]
    assert text_of(result) != text_of(other)


async def test_each_task_has_steps_and_chance_of_its_own(resumable):
    done = []

    def note(name: str) -> str:
        done.append(name)
        return name

    async def ask(*, ctx: Context) -> str:
        said = {}

        async def one(name):
            await ctx.effect(note, name)
            answer = await ctx.elicit(name, str)
            said[name] = [answer.data, await ctx.effect(note, name * 2), ctx.random.random()]

        async with trio.open_nursery() as nursery:
            for name in "ab":
                nursery.start_soon(one, name)
        return json.dumps(said)

    result, _ = await resumable(ask).finish(lambda it: filled(it["params"]["message"].upper()))
    said = json.loads(text_of(result))

    assert (said["a"][:2], said["b"][:2]) == (["A", "aa"], ["B", "bb"])
    assert said["a"][2] != said["b"][2]
    assert sorted(done) == ["a", "aa", "b", "bb"]


async def test_a_step_that_failed_fails_again_without_being_done(resumable):
    done = []

    def fail() -> None:
        done.append("fail")
        raise ValueError("sold out")

    async def ask(*, ctx: Context) -> str:
        try:
            await ctx.effect(fail)
        except ValueError as error:
            await ctx.elicit(f"{error}: go on?", bool)
            return str(error)
        return "?"

    result, asked = await resumable(ask).finish(lambda _request: TRUE)

    assert text_of(result) == "sold out"
    assert asked["q1"]["params"]["message"] == "sold out: go on?"
    assert done == ["fail"]


async def test_a_step_that_was_cancelled_is_cancelled_again(resumable, autojump_clock):
    done = []

    async def slow() -> None:
        done.append("slow")
        await trio.sleep(60)

    async def ask(*, ctx: Context) -> str:
        with trio.move_on_after(1) as scope:
            await ctx.effect(slow)
        await ctx.elicit(f"{scope.cancelled_caught}?", bool)
        return str(scope.cancelled_caught)

    result, asked = await resumable(ask).finish(lambda _request: TRUE)

    assert text_of(result) == "True"
    assert list(asked) == ["q1"]
    assert done == ["slow"]


async def test_a_step_that_ran_when_the_round_ended_begins_anew(resumable):
    done, has_begun = [], trio.Event()

    async def slow() -> str:
        done.append("slow")
        has_begun.set()
        if len(done) == 1:
            await trio.sleep_forever()
        return "slow"

    async def ask(*, ctx: Context) -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ctx.effect, slow)
            await has_begun.wait()
            await ctx.elicit("sure?", bool)
        return "done"

    result, asked = await resumable(ask).finish(lambda _request: TRUE)

    assert text_of(result) == "done"
    assert list(asked) == ["q1"]
    assert done == ["slow", "slow"]


async def test_clean_up_at_the_end_of_a_round_is_no_step(resumable):
    done, rounds = [], []

    async def ask(*, ctx: Context) -> str:
        rounds.append(len(rounds))

        async def one(name):
            try:
                await ctx.elicit(name, str)
                await ctx.effect(done.append, f"{name} is there")
            finally:
                with trio.CancelScope(shield=True):
                    await ctx.effect(done.append, f"{name} cleans up")

        async with trio.open_nursery() as nursery:
            for name in "ab":
                nursery.start_soon(one, name)
        return "done"

    result, asked = await resumable(ask).finish(lambda _request: filled("x"))

    assert text_of(result) == "done"
    assert len(rounds) == 2
    assert list(asked) == ["q1", "q2"]
    cleaned = ["a cleans up", "b cleans up"]
    assert sorted(done[:2]) == cleaned
    assert sorted(done[2:]) == sorted(["a is there", "b is there", *cleaned])


async def test_a_task_that_is_one_step_late_asks_in_the_same_round(resumable):
    async def ask(*, ctx: Context) -> str:
        async def late():
            await trio.lowlevel.checkpoint()
            await ctx.elicit("late", bool)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ctx.elicit, "early", bool)
            nursery.start_soon(late)
        return "done"

    for _ in range(20):  # Trio runs tasks in a random order
        assert len((await resumable(ask).begin())["inputRequests"]) == 2


async def test_sleep_is_over_and_a_lock_is_held_in_every_round(resumable, autojump_clock):
    begun = trio.current_time()

    async def ask(*, ctx: Context) -> str:
        async with ctx.lock("till"):
            await ctx.sleep(50)
            answer = await ctx.elicit("sure?", bool)
        return str(answer.data)

    result, _ = await resumable(ask).finish(lambda _request: TRUE)

    assert text_of(result) == "True"
    assert 50 <= trio.current_time() - begun < 100


async def test_functions_that_are_effects_are_steps_too(resumable):
    done = []

    @effect
    def stock() -> int:
        done.append("stock")
        return 3

    async def ask(*, ctx: Context) -> str:
        count = stock()
        await ctx.elicit("sure?", bool)
        return f"{count} {stock()}"

    result, _ = await resumable(ask).finish(lambda _request: TRUE)

    assert text_of(result) == "3 3"
    assert done == ["stock", "stock"]


async def test_tasks_of_an_effect_are_none_of_the_handlers(resumable):
    async def busy() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.lowlevel.checkpoint)

    async def ask(*, ctx: Context) -> str:
        said = []

        async def one():
            said.append((await ctx.elicit("sure?", bool)).data)

        await ctx.effect(busy)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
        return str(said)

    result, asked = await resumable(ask).finish(lambda _request: TRUE)

    assert text_of(result) == "[True]"
    assert list(asked) == ["q1"]


async def test_inside_of_an_effect_nothing_is_asked(resumable):
    async def ask(*, ctx: Context) -> str:
        async def nested() -> None:
            await ctx.elicit("sure?", bool)

        try:
            await ctx.effect(nested)
        except Exception as error:
            return type(error).__name__
        return "?"

    result, asked = await resumable(ask).finish(lambda _request: TRUE)

    assert text_of(result) == "LocalProtocolError"
    assert not asked


async def test_each_notification_of_all_rounds_is_sent_once(resumable):
    async def ask(*, ctx: Context) -> str:
        await ctx.progress(1)
        await ctx.warning("begun")
        await ctx.elicit("sure?", bool)
        await ctx.progress(2)
        await ctx.warning("agreed")
        return "done"

    it = resumable(ask)
    it.params["_meta"] = {
        "progressToken": "p",
        "io.modelcontextprotocol/logLevel": "info",
    }
    await it.finish(lambda _request: TRUE)

    said = [message["params"].get("data", message["params"].get("progress")) for message in it.told]
    assert said == [1, "begun", 2, "agreed"]


async def test_a_handler_in_a_thread_is_resumed_as_well(resumable):
    done = []

    def price() -> int:
        done.append("price")
        return 30

    def ask(*, ctx: ThreadContext) -> str:
        total = ctx.effect(price)
        moment = ctx.now()
        answer = ctx.elicit(f"pay {total}?", bool)
        return f"{total} {answer.data} {moment <= ctx.now()}"

    result, asked = await resumable(ask).finish(lambda _request: TRUE)

    assert text_of(result) == "30 True True"
    assert list(asked) == ["q1"]
    assert done == ["price"]


async def test_that_a_thread_looks_into_its_memory_is_no_record(resumable, tmp_path):
    def ask(*, ctx: ThreadContext) -> None:
        ctx.effect(json.dumps, 30)
        ctx.elicit("sure?", bool)

    path = tmp_path / "a.mcprec.jsonl"
    it = resumable(ask)
    it.options = {"record": path}
    await it.begin()
    await trio.testing.wait_all_tasks_blocked()

    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    names = [record["f"]["name"] for record in records if record["k"] in {"cmd", "mark"}]
    begun = names.index("thread")
    assert names[begun : begun + 3] == ["thread", "dumps", "elicitation/create"]


async def test_a_resource_that_is_read_on_the_way_is_part_of_the_handler(chain):
    done = []

    def note(name: str) -> str:
        done.append(name)
        return name

    def register(server):
        @server.resource("shop://price")
        def price(*, ctx: ThreadContext) -> str:
            return ctx.effect(note, "price")

        @server.tool(name="it", resumable=True)
        async def buy(*, ctx: Context) -> str:
            (price,) = await ctx.read_resource("shop://price")
            answer = await ctx.elicit("sure?", bool)
            return f"{price.text} {answer.data}"

    result, _ = await chain(register).finish(lambda _request: TRUE)

    assert text_of(result) == "price True"
    assert done == ["price"]


@pytest.mark.requirement("MRTR-02")
async def test_prompts_and_resources_are_resumed_as_well(chain):
    def register(server):
        @server.prompt(resumable=True)
        async def hello(*, ctx: Context) -> str:
            return str((await ctx.elicit("who?", str)).data)

        @server.resource("shop://{item}", resumable=True)
        async def item(item: str, *, ctx: Context) -> str:
            return f"{item} {(await ctx.elicit('how many?', int)).data}"

    it = chain(register)
    it.method, it.params = "prompts/get", {"name": "hello"}
    prompt, _ = await it.finish(lambda _request: filled("Anna"))
    it.method, it.params = "resources/read", {"uri": "shop://tea"}
    resource, _ = await it.finish(lambda _request: filled(3))

    assert prompt["messages"][0]["content"]["text"] == "Anna"
    assert resource["contents"][0]["text"] == "tea 3"


# Code changes -----------------------------------------------------------------------------------


async def test_a_handler_that_changed_forgets_from_there_and_asks_again(resumable):
    done = []

    def step(name: str) -> str:
        done.append(name)
        return name

    def version(name):
        async def ask(*, ctx: Context) -> str:
            await ctx.effect(step, "same")
            first = await ctx.elicit("first?", str)
            said = await ctx.effect(step, name)
            second = await ctx.elicit("second?", str)
            return f"{first.data} {said} {second.data}"

        return resumable(ask)

    first = await version("old").begin()
    second = await version("old").go_on(first, q1=filled("1"))
    again = await version("new").go_on(second, q2=filled("2"))
    last = await version("new").go_on(again, q3=filled("3"))

    assert message_of(again, "q3") == "second?"
    assert text_of(last) == "1 new 3"
    assert done == ["same", "old", "new"]


async def test_an_answer_to_another_question_is_none(resumable):
    def version(question):
        async def ask(*, ctx: Context) -> str:
            return f"{question}: {(await ctx.elicit(question, bool)).data}"

        return resumable(ask)

    first = await version("delete one?").begin()
    second = await version("delete all?").go_on(first, q1=TRUE)

    assert message_of(second, "q2") == "delete all?"
    assert text_of(await version("delete all?").go_on(second, q2=FALSE)) == "delete all?: False"


async def test_a_patch_is_taken_from_where_it_was_there(resumable):
    def version(is_new):
        async def ask(*, ctx: Context) -> str:
            said = []
            for number in range(2):
                is_patched = is_new and ctx.patched("polite")
                assert not is_new or is_patched is ctx.patched("polite")
                said.append(is_patched)
                await ctx.elicit(f"question {number}", bool)
            return str(said)

        return resumable(ask)

    async def answered(*versions):
        it, result = versions[0], await versions[0].begin()
        for number, it in enumerate(versions[1:], 1):
            result = await it.go_on(result, **{f"q{number}": TRUE})
        return text_of(result)

    assert await answered(version(True), version(True), version(True)) == "[True, True]"
    assert await answered(version(False), version(True), version(True)) == "[False, False]"
