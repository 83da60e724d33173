"""Resumable handlers: each round may run on another instance of the server."""

import dataclasses
import json
import time

import msgspec
import pytest
import trio
import trio.testing

from mcp_trio import Context, Elicitation, Server, ThreadContext, ToolError, effect
from mcp_trio.errors import LocalProtocolError
from mcp_trio.limits import DEFAULT_LIMITS, RequestLimits
from tests.server.conftest import EVERYTHING
from tests.server.rounds import (
    FALSE,
    NOT_VALID,
    TRUE,
    asking_at_its_end,
    filled,
    message_of,
    text_of,
)

STATELESS = "2026-07-28"


@pytest.mark.requirement("MRTR-02", "MRTR-05", "MRTR-06", "MRTR-09", "STATE-02")
async def test_a_handler_continues_where_it_asked_and_repeats_no_operation(resumable):
    done = []

    def price(count: int) -> int:
        done.append(count)
        return 10 * count

    async def buy(count: int, *, ctx: Context) -> str:
        total = await ctx.effect(price, count)
        pays = await ctx.elicit(f"pay {total}?", bool)
        name = await ctx.elicit("to whom?", str)
        await ctx.effect(price, -count)
        return f"{total} {pays.data} {name.data}"

    it = resumable(buy, count=3)
    first = await it.begin()
    second = await it.go_on(first, q1=TRUE)
    last = await it.go_on(second, q2=filled("Anna"))

    assert message_of(first, "q1") == "pay 30?"
    assert message_of(second, "q2") == "to whom?"
    assert set(first["inputRequests"]["q1"]) == {"method", "params"}
    assert text_of(last) == "30 True Anna"
    assert done == [3, -3]


async def test_all_that_is_asked_at_once_is_one_round(resumable):
    async def ask(*, ctx: Context) -> str:
        answers = {}

        async def one(name):
            answers[name] = (await ctx.elicit(name, str)).data

        async with trio.open_nursery() as nursery:
            for name in ("a", "b"):
                nursery.start_soon(one, name)
        roots = await ctx.list_roots()
        return json.dumps([sorted(answers.items()), [root.uri for root in roots]])

    def answer(request):
        if request["method"] == "roots/list":
            return {"roots": [{"uri": "file:///r"}]}
        return filled(request["params"]["message"].upper())

    result, asked = await resumable(ask).finish(answer)

    assert json.loads(text_of(result)) == [[["a", "A"], ["b", "B"]], ["file:///r"]]
    assert list(asked) == ["q1", "q2", "q3"]


@pytest.mark.requirement("MRTR-25", "MRTR-26")
async def test_missing_answers_are_asked_again_and_unknown_answers_ignored(resumable):
    async def ask(*, ctx: Context) -> str:
        a, b = await ctx.ask_all(Elicitation("a", str), Elicitation("b", str))
        return f"{a.data}{b.data}"

    it = resumable(ask)
    first = await it.begin()
    second = await it.go_on(first, q2=filled("B"), q7=filled("?"), other={"no": "answer"})
    third = await it.go_on(second)
    last = await it.go_on(third, q4=filled("A"))

    assert list(first["inputRequests"]) == ["q1", "q2"]
    assert message_of(second, "q3") == "a"
    assert list(second["inputRequests"]) == ["q3"]
    assert list(third["inputRequests"]) == ["q4"]
    assert text_of(last) == "AB"


@pytest.mark.requirement("MRTR-24")
@pytest.mark.parametrize(
    "answer",
    [{"action": "maybe"}, {"roots": []}, [], 1, {"action": "accept", "content": {"value": "no"}}],
)
async def test_an_invalid_answer_is_rejected(resumable, answer):
    async def ask(*, ctx: Context) -> str:
        return str(await ctx.elicit("sure?", bool))

    it = resumable(ask)
    state = (await it.begin())["requestState"]

    error = await it.rejected(requestState=state, inputResponses={"q1": answer})

    assert error["code"] == -32602
    assert "input" in error["message"]


@pytest.mark.requirement("MRTR-19", "MRTR-20", "MRTR-22", "STATE-09", "TRAP-96")
async def test_every_invalid_state_has_the_same_error(resumable, serve):
    async def ask(count: int = 0, *, ctx: Context) -> str:
        return str((await ctx.elicit("sure?", bool)).data)

    it = resumable(ask, count=1)
    state = (await it.begin())["requestState"]
    answers = {"q1": TRUE}

    async def rejection(state, **params):
        other = resumable(ask)
        other.params |= params
        return await other.rejected(requestState=state, inputResponses=answers)

    count = {"name": "it", "arguments": {"count": 1}}
    assert await rejection(state, arguments={"count": 2}) == NOT_VALID
    assert await rejection(state[:50] + "****" + state[54:], **count) == NOT_VALID
    assert await rejection("", **count) == NOT_VALID
    assert await rejection("garbage", **count) == NOT_VALID
    assert await rejection(state + " " * 9000, **count) == NOT_VALID
    assert text_of((await it.send(requestState=state, inputResponses=answers))["result"]) == "True"


async def test_a_state_is_rejected_by_a_handler_that_never_gave_one(chain, resumable):
    async def ask(*, ctx: Context) -> str:
        return str((await ctx.elicit("sure?", bool)).data)

    async def plain() -> str:
        return "plain"

    state = (await resumable(ask).begin())["requestState"]
    it = chain(lambda server: server.tool(name="it")(plain))

    assert await it.rejected(requestState=state) == NOT_VALID
    assert text_of((await it.send())["result"]) == "plain"


async def test_a_state_of_another_handler_version_is_rejected(chain):
    async def ask(*, ctx: Context) -> str:
        return str((await ctx.elicit("sure?", bool)).data)

    def version(resumable):
        return chain(lambda server: server.tool(name="it", resumable=resumable)(ask))

    state = (await version("2").begin())["requestState"]
    retry = {"requestState": state, "inputResponses": {"q1": TRUE}}

    assert await version("3").rejected(**retry) == NOT_VALID
    assert await version(True).rejected(**retry) == NOT_VALID
    assert text_of((await version("2").send(**retry))["result"]) == "True"


@pytest.mark.parametrize(
    "limits",
    [
        {"requests": RequestLimits(state_seconds=0.0)},
        {"requests": RequestLimits(state_chain_seconds=0.0)},
    ],
)
async def test_a_state_expires(resumable, limits):
    async def ask(*, ctx: Context) -> str:
        return str((await ctx.elicit("sure?", bool)).data)

    it = resumable(ask, options={"limits": msgspec.structs.replace(DEFAULT_LIMITS, **limits)})
    state = (await it.begin())["requestState"]

    assert await it.rejected(requestState=state, inputResponses={"q1": TRUE}) == NOT_VALID


@pytest.mark.parametrize(("back_seconds", "goes_on"), [(60, True), (3600, False)])
async def test_a_clock_that_is_set_back_between_rounds_ends_a_request_at_most(
    resumable, monkeypatch, back_seconds, goes_on
):
    async def ask(*, ctx: Context) -> str:
        return str((await ctx.elicit("sure?", bool)).data)

    it = resumable(ask)
    retry = {"requestState": (await it.begin())["requestState"], "inputResponses": {"q1": TRUE}}
    earlier = time.time() - back_seconds
    monkeypatch.setattr(time, "time", lambda: earlier)
    if goes_on:
        assert text_of((await it.send(**retry))["result"]) == "True"
    else:
        assert await it.rejected(**retry) == NOT_VALID
        begun = await it.begin()  # a new request is none the worse
        retry["requestState"] = begun["requestState"]
        assert text_of((await it.send(**retry))["result"]) == "True"


async def test_operations_too_large_for_a_state_fail_the_request(resumable, caplog):
    def long() -> str:
        return "".join(map(chr, range(32, 20_000)))

    async def ask(*, ctx: Context) -> str:
        return await ctx.effect(long) + str(await ctx.elicit("sure?", bool))

    assert await resumable(ask).failure() == "internal error in it"
    assert "limits.requests.state_bytes_max=8192" in caplog.text


async def test_a_legacy_client_is_asked_by_requests_and_gets_no_state(serve):
    server = Server("shop")
    done = []

    def step() -> None:
        done.append("step")

    @server.tool(resumable=True)
    async def ask(*, ctx: Context) -> str:
        await ctx.effect(step)
        return str((await ctx.elicit("sure?", bool)).data)

    asker = await serve(server, protocol_version="2025-11-25", capabilities=EVERYTHING)
    call = await asker.begin("tools/call", {"name": "ask"})
    question = await asker.wire.receive()
    await asker.wire.send_result(question, TRUE)
    result = (await asker.end(call))["result"]

    assert question["method"] == "elicitation/create"
    assert result["content"][0]["text"] == "True"
    assert done == ["step"]


# Ends.


async def test_a_handler_that_fails_between_rounds_fails_the_request(resumable):
    async def ask(*, ctx: Context) -> str:
        answer = await ctx.elicit("sure?", bool)
        if not answer.data:
            raise ToolError("then not")
        raise RuntimeError("boom")

    it = resumable(ask)
    state = (await it.begin())["requestState"]
    declined = (await it.send(requestState=state, inputResponses={"q1": FALSE}))["result"]

    assert declined["isError"]
    assert declined["content"][0]["text"] == "then not"
    text = await it.failure(requestState=state, inputResponses={"q1": TRUE})
    assert text == "internal error in it"


async def test_a_failure_beside_a_question_is_the_answer(resumable):
    async def ask(*, ctx: Context) -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ctx.elicit, "sure?", bool)
            await trio.lowlevel.checkpoint()
            raise RuntimeError("closed")

    assert await resumable(ask).failure() == "internal error in it"


async def test_a_cancelled_question_is_not_asked(resumable):
    async def ask(*, ctx: Context) -> str:
        with trio.CancelScope() as scope:
            scope.cancel()
            await ctx.elicit("too late?", bool)
        return "unasked"

    assert text_of(await resumable(ask).begin()) == "unasked"


async def test_a_handler_that_ends_cannot_ask(resumable):
    errors = []
    result = await resumable(asking_at_its_end(errors)).begin()

    assert list(result["inputRequests"]) == ["q1"]
    assert errors == ["the round of this handler is over: it cannot ask during clean-up"]


async def test_a_handler_cannot_ask_behind_a_shield(resumable):
    async def ask(*, ctx: Context) -> str:
        errors = []

        async def shielded():
            with trio.CancelScope(shield=True):
                try:
                    await ctx.elicit("sure?", bool)
                except LocalProtocolError as error:
                    errors.append(str(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(shielded)
        return errors[0]

    text = "a resumable handler cannot ask inside a shielded scope: its questions end it"
    assert text_of(await resumable(ask).begin()) == text


async def test_a_cancelled_request_has_no_round(resumable, serve):
    cancelled = trio.Event()

    async def ask(*, ctx: Context) -> str:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()
        return "?"

    it = resumable(ask)
    asker = await serve(it.make(), protocol_version=STATELESS, capabilities=EVERYTHING)
    call = await asker.begin("tools/call", it.params)
    await trio.testing.wait_all_tasks_blocked()
    await asker.wire.send_notification("notifications/cancelled", {"requestId": call})
    await cancelled.wait()
    await trio.testing.wait_all_tasks_blocked()

    assert await asker.wire.receive_available() == []


async def test_a_capability_that_the_client_lacks_ends_the_request(resumable):
    async def ask(*, ctx: Context) -> str:
        return str(await ctx.elicit("sure?", bool))

    it = resumable(ask)
    it.options = {"capabilities": {}}
    error = await it.rejected()

    assert error["code"] == -32021
    assert error["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}


# Steps run once, and again only if the handler changed.


async def test_clocks_and_random_numbers_repeat_in_every_round(resumable):
    seen = []

    async def ask(*, ctx: Context) -> str:
        values = [str(ctx.now()), ctx.monotonic(), ctx.random.random(), str(ctx.uuid4())]
        seen.append(values)
        await ctx.elicit("sure?", bool)
        return json.dumps([*values, ctx.random.random()])

    result, _ = await resumable(ask).finish(lambda _request: TRUE)
    other, _ = await resumable(ask).finish(lambda _request: TRUE)

    assert seen[0] == seen[1]
    assert json.loads(text_of(result))[:4] == seen[0]
    assert text_of(result) != text_of(other)


async def test_each_task_has_its_own_operations_and_random_numbers(resumable):
    done = []

    def note(name: str) -> str:
        done.append(name)
        return name

    async def ask(*, ctx: Context) -> str:
        values = {}

        async def one(name):
            await ctx.effect(note, name)
            answer = await ctx.elicit(name, str)
            values[name] = [answer.data, await ctx.effect(note, name * 2), ctx.random.random()]

        async with trio.open_nursery() as nursery:
            for name in "ab":
                nursery.start_soon(one, name)
        return json.dumps(values)

    result, _ = await resumable(ask).finish(lambda it: filled(it["params"]["message"].upper()))
    values = json.loads(text_of(result))

    assert (values["a"][:2], values["b"][:2]) == (["A", "aa"], ["B", "bb"])
    assert values["a"][2] != values["b"][2]
    assert sorted(done) == ["a", "aa", "b", "bb"]


async def test_an_operation_that_failed_fails_again_without_being_done(resumable):
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


@dataclasses.dataclass(frozen=True)
class SoldOut(Exception):
    count: int


async def test_a_frozen_exception_of_an_operation_is_raised_in_every_round(resumable):
    async def order() -> None:
        raise SoldOut(3)

    async def buy(*, ctx: Context) -> str:
        try:
            await ctx.effect(order)
        except SoldOut as error:
            later = await ctx.elicit(f"{error.count} later?", bool)
            return f"{later.data}"

    result, asked = await resumable(buy).finish(lambda _: TRUE)

    assert text_of(result) == "True"
    assert message_of({"inputRequests": asked}, "q1") == "3 later?"


async def test_an_operation_that_was_cancelled_is_cancelled_again(resumable, autojump_clock):
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


async def test_an_operation_that_ran_when_the_round_ended_begins_anew(resumable):
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


async def test_clean_up_at_the_end_of_a_round_is_not_kept(resumable):
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


async def test_a_task_that_is_one_turn_late_asks_in_the_same_round(resumable):
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


async def test_functions_that_are_effects_are_operations_too(resumable):
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
        answers = []

        async def one():
            answers.append((await ctx.elicit("sure?", bool)).data)

        await ctx.effect(busy)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
        return str(answers)

    result, asked = await resumable(ask).finish(lambda _request: TRUE)

    assert text_of(result) == "[True]"
    assert list(asked) == ["q1"]


async def test_inside_an_effect_the_client_cannot_be_asked(resumable):
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
        await ctx.report_progress(1)
        await ctx.warning("begun")
        await ctx.elicit("sure?", bool)
        await ctx.report_progress(2)
        await ctx.warning("agreed")
        return "done"

    it = resumable(ask)
    it.params["_meta"] = {
        "progressToken": "p",
        "io.modelcontextprotocol/logLevel": "info",
    }
    await it.finish(lambda _request: TRUE)

    values = [
        message["params"].get("data", message["params"].get("progress")) for message in it.received
    ]
    assert values == [1, "begun", 2, "agreed"]


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


async def test_a_thread_that_reads_its_kept_operations_records_nothing(resumable, tmp_path):
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


# Changes of the code.


async def test_a_changed_handler_forgets_later_operations_and_asks_again(resumable):
    done = []

    def step(name: str) -> str:
        done.append(name)
        return name

    def version(name):
        async def ask(*, ctx: Context) -> str:
            await ctx.effect(step, "same")
            first = await ctx.elicit("first?", str)
            step_result = await ctx.effect(step, name)
            second = await ctx.elicit("second?", str)
            return f"{first.data} {step_result} {second.data}"

        return resumable(ask)

    first = await version("old").begin()
    second = await version("old").go_on(first, q1=filled("1"))
    again = await version("new").go_on(second, q2=filled("2"))
    last = await version("new").go_on(again, q3=filled("3"))

    assert message_of(again, "q3") == "second?"
    assert text_of(last) == "1 new 3"
    assert done == ["same", "old", "new"]


async def test_an_answer_to_another_question_is_not_used(resumable):
    def version(question):
        async def ask(*, ctx: Context) -> str:
            return f"{question}: {(await ctx.elicit(question, bool)).data}"

        return resumable(ask)

    first = await version("delete one?").begin()
    second = await version("delete all?").go_on(first, q1=TRUE)

    assert message_of(second, "q2") == "delete all?"
    assert text_of(await version("delete all?").go_on(second, q2=FALSE)) == "delete all?: False"


async def test_patched_keeps_its_result_of_the_first_round(resumable):
    def version(is_new):
        async def ask(*, ctx: Context) -> str:
            branches = []
            for number in range(2):
                is_patched = is_new and ctx.patched("polite")
                assert not is_new or is_patched is ctx.patched("polite")
                branches.append(is_patched)
                await ctx.elicit(f"question {number}", bool)
            return str(branches)

        return resumable(ask)

    async def answered(*versions):
        it, result = versions[0], await versions[0].begin()
        for number, it in enumerate(versions[1:], 1):
            result = await it.go_on(result, **{f"q{number}": TRUE})
        return text_of(result)

    assert await answered(version(True), version(True), version(True)) == "[True, True]"
    assert await answered(version(False), version(True), version(True)) == "[False, False]"
