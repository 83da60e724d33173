"""The activities that are reported to observers, and their outcomes."""

import random
import time
from contextlib import contextmanager
from functools import partial

import attrs
import pytest
import trio
from memory_sessions import client_session

from mcp_trio import Client, Context, RequestError, Server, ToolError
from mcp_trio.limits import Limits, RequestLimits
from mcp_trio.recording import RecordOptions, open_recording, read_recording, replay
from mcp_trio.types import CreateMessageResult, TextContent

LEGACY = ("2025-11-25",)


@attrs.define(eq=False)
class Seen:
    """An observer that keeps all activities, with their outcomes."""

    observes_replays: bool = False
    activities: list = attrs.field(factory=list)
    outcomes: dict = attrs.field(factory=dict)
    entered: int = 0

    def begin(self, activity):
        self.activities.append(activity)
        return lambda outcome: self.outcomes.setdefault(activity, outcome)

    def __enter__(self):
        self.entered += 1

    def __exit__(self, *_):
        self.entered -= 1

    def of(self, kind, name=None):
        return [
            (each, self.outcomes.get(each))
            for each in self.activities
            if each.kind == kind and name in (None, each.name)
        ]


def harbour(*observers, **options):
    server = Server("harbour", observers=observers, **options)

    @server.tool
    async def moor(ship: str, *, ctx: Context) -> str:
        await ctx.sleep(1)
        if ship == "raft":
            raise ToolError("no ship")
        if ship == "wreck":
            raise RuntimeError("a leak")
        return "moored"

    @server.tool(access=lambda _: False)
    async def scuttle() -> None: ...

    @server.tool(timeout=0.5)
    async def salvage(ctx: Context) -> None:
        await ctx.sleep(5)

    @server.tool
    async def name_it(ctx: Context) -> str:
        answer = await ctx.sample("a name for a ship")
        return answer.content.text

    return server


@pytest.mark.parametrize("versions", [None, LEGACY])
async def test_requests_have_the_outcomes_that_find_has_words_for(versions, autojump_clock):
    seen = Seen()
    options = {} if versions is None else {"protocol_versions": versions}
    async with Client(harbour(seen), raise_tool_errors=False, **options) as client:
        for arguments in ({"ship": "cog"}, {"ship": "raft"}, {"ship": "wreck"}):
            await client.call_tool("moor", arguments)
        await client.call_tool("salvage")
        with pytest.raises(RequestError):
            await client.call_tool("scuttle")
        with pytest.raises(RequestError):
            await client.call_tool("no_such_tool")
    calls = seen.of("request", "tools/call")
    errors = [outcome.error for _, outcome in calls]
    assert errors == ["", "tool", "internal", "timeout", "denied", "protocol"]
    assert [each.target for each, _ in calls][-2:] == ["scuttle", "no_such_tool"]
    assert calls[-1][1].code == -32602
    assert all(each.size_bytes > 50 and outcome.size_bytes > 50 for each, outcome in calls)
    ((session, ended),) = seen.of("session")
    assert (session.name, ended.error) == ("memory", "")
    effects = seen.of("effect", "ctx.sleep")
    assert [each.outer for each, _ in effects] == [each for each, _ in calls[:4]]
    assert [outcome.error for _, outcome in effects] == ["", "", "", "Cancelled"]


async def test_requests_that_the_protocol_answers_are_observed(autojump_clock):
    seen = Seen()
    async with Client(
        harbour(seen), protocol_versions=LEGACY, methods={"ship/sink": dict}
    ) as client:
        await client.request("ping")
        with pytest.raises(RequestError):
            await client.request("ship/sink")
    found = [(each.name, outcome.error) for each, outcome in seen.of("request")]
    assert found == [("initialize", ""), ("ping", ""), ("ship/sink", "protocol")]


async def test_a_cancelled_and_a_rejected_request_end(autojump_clock):
    seen = Seen()
    limits = Limits(requests=RequestLimits(in_flight_max=1, queued_max=0))
    async with Client(harbour(seen, limits=limits), protocol_versions=LEGACY) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "moor", {"ship": "cog"})
            await trio.sleep(0.1)
            with pytest.raises(RequestError, match="queued_max"):
                await client.call_tool("moor", {"ship": "hulk"})
            nursery.cancel_scope.cancel()
        await client.request("ping")
    errors = [outcome.error for _, outcome in seen.of("request", "tools/call")]
    assert errors == ["cancelled", "protocol"]


@pytest.mark.parametrize("versions", [None, LEGACY])
async def test_both_sides_observe_a_question_of_the_server(versions, autojump_clock):
    there, here = Seen(), Seen()

    async def sample(_):
        content = TextContent(text="Argo")
        return CreateMessageResult(role="assistant", content=content, model="m")

    options = {} if versions is None else {"protocol_versions": versions}
    server = harbour(there)
    async with Client(server, observers=[here], sampling=sample, **options) as client:
        assert (await client.call_tool("name_it")).data == "Argo"
    if versions is None:  # the question is in the first response
        (_, asked), (_, answered) = there.of("request", "tools/call")
        assert (asked.asked, answered.asked) == (["sampling/createMessage"], [])
    else:
        assert there.of("call", "sampling/createMessage")[0][1].error == ""
        assert here.of("request", "sampling/createMessage")[0][1].error == ""
    ours = here.of("call", "tools/call")
    assert [outcome.error for _, outcome in ours] == [""] * len(ours)
    assert [each.target for each, _ in ours] == ["name_it"] * len(ours)


async def test_calls_of_a_client_have_the_outcome_that_the_caller_gets(autojump_clock):
    seen = Seen()
    async with Client(harbour(), observers=[seen], raise_tool_errors=False) as client:
        await client.call_tool("moor", {"ship": "raft"})
        with pytest.raises(RequestError):
            await client.call_tool("scuttle")
        with pytest.raises(Exception, match="no response"):
            await client.call_tool("moor", {"ship": "cog"}, total_seconds=0.5)
        with trio.move_on_after(0.5):
            await client.call_tool("moor", {"ship": "cog"})
        assert seen.entered == 1
    assert seen.entered == 0
    calls = seen.of("call", "tools/call")
    assert [outcome.error for _, outcome in calls] == ["tool", "protocol", "timeout", "cancelled"]
    assert len({each.request_id for each, _ in calls}) == 4


async def test_an_observer_that_fails_is_logged_and_changes_nothing(autojump_clock, caplog):
    class Failing:
        def begin(self, activity):
            if activity.kind == "effect":
                return lambda _: 1 / 0
            raise LookupError(activity.kind)

    seen = Seen()
    async with Client(harbour(Failing(), seen)) as client:
        assert (await client.call_tool("moor", {"ship": "cog"})).data == "moored"
    assert seen.of("request", "tools/call")[0][1].error == ""
    assert {record.exc_info[0] for record in caplog.records} == {LookupError, ZeroDivisionError}


async def test_the_log_of_an_observer_that_fails_has_no_arguments(autojump_clock, caplog):
    @attrs.define
    class Failing:
        operation: object = None

        def begin(self, operation):
            self.operation = operation
            return partial(self.fail, operation)

        def fail(self, *_):
            raise LookupError

    server = harbour(Failing())

    @server.prompt
    async def hail(password: str) -> str:
        return "ahoy"

    async with Client(server) as client:
        await client.get_prompt("hail", {"password": "red-tulip-97"})
    assert "the observer Failing failed" in caplog.text
    assert "tulip" not in caplog.text


async def test_a_scope_of_an_observer_that_fails_is_logged_and_changes_nothing(
    autojump_clock, caplog
):
    @contextmanager
    def fails_at_the_begin():
        raise LookupError
        yield

    @contextmanager
    def fails_at_the_end():
        yield
        raise ZeroDivisionError

    class Failing:
        def begin(self, activity):
            activity.scopes += [fails_at_the_begin, fails_at_the_end]

    seen = Seen()
    async with Client(harbour(Failing(), seen)) as client:
        assert (await client.call_tool("moor", {"ship": "cog"})).data == "moored"
    assert seen.of("request", "tools/call")[0][1].error == ""
    assert {record.exc_info[0] for record in caplog.records} == {LookupError, ZeroDivisionError}


async def test_an_error_whose_text_fails_reaches_the_handler(autojump_clock):
    class WordlessError(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    async def fail():
        raise WordlessError

    server, seen = harbour(), Seen()
    server.observers = [seen]

    @server.tool
    async def sink(ctx: Context) -> str:
        with pytest.raises(WordlessError):
            await ctx.effect(fail)
        return "sunk"

    async with Client(server) as client:
        assert (await client.call_tool("sink")).data == "sunk"
    assert seen.of("effect", "fail")[0][1].error == "WordlessError"


def messages(path):
    records = list(read_recording(open_recording(path)))
    return [(each.kind, each.lane, each.body) for each in records if each.kind != "open"]


async def day(server, path):
    async with client_session(server, path, raise_tool_errors=False) as client:
        await client.call_tool("moor", {"ship": "cog"})
        await client.call_tool("moor", {"ship": "raft"})


def test_observers_change_no_byte_of_a_recording_and_see_no_replay(tmp_path):
    seen = Seen()
    for name, server in (("without", harbour()), ("with", harbour(seen))):
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(day, server, tmp_path / f"{name}.mcprec.jsonl", clock=clock)
    path = tmp_path / "with.mcprec.jsonl"
    assert messages(path) == messages(tmp_path / "without.mcprec.jsonl")
    records = {each.number: each for each in read_recording(open_recording(path))}
    calls = seen.of("request", "tools/call")
    for call, _ in calls:
        assert call.recording == path
        assert b'"ship"' in bytes(records[call.record].body)
        assert call.session_id == seen.of("session")[0][0].session_id != ""
    count = len(seen.activities)
    assert replay(path, harbour(seen)).is_complete
    assert len(seen.activities) == count
    again = Seen(observes_replays=True)
    assert replay(path, harbour(again)).is_complete
    assert [each.record for each, _ in again.of("request", "tools/call")] == [
        each.record for each, _ in calls
    ]


@pytest.mark.requirement("TOOL-40")
@pytest.mark.parametrize("versions", [None, LEGACY])
def test_the_clocks_and_random_numbers_of_observers_are_not_those_of_handlers(tmp_path, versions):
    class Restless:
        def begin(self, activity):
            activity.scopes.append(self.scope)
            self.use()
            return lambda _: self.use()

        @contextmanager
        def scope(self):
            self.use()
            yield
            self.use()

        def use(self):
            time.time()
            random.random()
            tmp_path.stat()

    def server_with(*observers):
        server = harbour(*observers)

        @server.tool
        async def toss(ctx: Context) -> float:
            await ctx.sample("heads or tails")
            return random.random()

        return server

    async def sample(_):
        content = TextContent(text="heads")
        return CreateMessageResult(role="assistant", content=content, model="m")

    async def tosses():
        options = {} if versions is None else {"protocol_versions": versions}
        record = RecordOptions(path, strict=True)
        async with client_session(
            server_with(Restless()), record, sampling=sample, **options
        ) as client:
            await client.call_tool("toss")
            await client.call_tool("moor", {"ship": "cog"})

    path = tmp_path / "day.mcprec.jsonl"
    trio.run(tosses, clock=trio.testing.MockClock(autojump_threshold=0))
    kinds = [kind for kind, _, _ in messages(path)]
    assert "out" in kinds
    assert "val" not in kinds
    assert replay(path, server_with()).is_complete


async def test_observers_are_entered_while_the_server_serves(autojump_clock):
    seen = Seen()
    server = harbour(seen)
    async with Client(server), Client(server):
        assert seen.entered == 1
    assert seen.entered == 0
