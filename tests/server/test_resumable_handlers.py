"""Resumable handlers: each round may run on another instance of the server."""

import json

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import Context, Elicitation, Server, ToolError
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
async def test_a_handler_goes_on_where_it_asked_and_does_nothing_twice(resumable):
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
async def test_an_answer_that_is_none_is_rejected(resumable, answer):
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


async def test_a_state_of_another_version_is_over(chain):
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
async def test_a_state_is_over_when_its_time_is(resumable, limits):
    async def ask(*, ctx: Context) -> str:
        return str((await ctx.elicit("sure?", bool)).data)

    it = resumable(ask, options={"limits": attrs.evolve(DEFAULT_LIMITS, **limits)})
    state = (await it.begin())["requestState"]

    assert await it.rejected(requestState=state, inputResponses={"q1": TRUE}) == NOT_VALID


async def test_steps_too_large_for_a_state_fail_the_request(resumable, caplog):
    def long() -> str:
        return "".join(map(chr, range(32, 20_000)))

    async def ask(*, ctx: Context) -> str:
        return await ctx.effect(long) + str(await ctx.elicit("sure?", bool))

    error = await resumable(ask).rejected()

    assert (error["code"], error["message"]) == (-32603, "internal error")
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


# Endings ----------------------------------------------------------------------------------------


async def test_a_handler_that_fails_between_rounds_fails_the_request(resumable):
    async def ask(*, ctx: Context) -> str:
        answer = await ctx.elicit("sure?", bool)
        if not answer.data:
            raise ToolError("then not")
        raise RuntimeError("boom")

    it = resumable(ask)
    state = (await it.begin())["requestState"]
    said_no = (await it.send(requestState=state, inputResponses={"q1": FALSE}))["result"]

    assert said_no["isError"]
    assert said_no["content"][0]["text"] == "then not"
    error = await it.rejected(requestState=state, inputResponses={"q1": TRUE})
    assert error == {"code": -32603, "message": "internal error"}


async def test_a_failure_beside_a_question_is_the_answer(resumable):
    async def ask(*, ctx: Context) -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ctx.elicit, "sure?", bool)
            await trio.lowlevel.checkpoint()
            raise RuntimeError("closed")

    assert (await resumable(ask).rejected())["message"] == "internal error"


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
