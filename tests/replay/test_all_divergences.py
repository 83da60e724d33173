"""Replays that go on after a divergence, and find the first one of each request."""

import logging
import sys
import time
from collections import Counter
from functools import partial

import pytest
import trio

from mcp_trio import Context, Server, ThreadContext, ToolError, effect
from mcp_trio._session.tasks import seeded_schedule
from mcp_trio.errors import ReplayDivergence
from mcp_trio.recording import replay
from tests.replay.conversations import call, stateless_call


@effect
async def fetch(key: str) -> int:
    await trio.sleep(0.010)
    return len(key)


async def sell(desk, ctx, key, *, message="sold"):
    async with ctx.lock("desk"):
        price = await fetch(key)
        desk.sold += 1
    await ctx.info(message)
    return price


async def count(desk, ctx, key):
    await trio.sleep(0)
    return desk.sold


async def enter(desk, ctx, key):
    await desk.door.wait()
    return "inside"


async def unlock(desk, ctx, key):
    await trio.sleep(0.005)
    desk.door.set()


async def ask(desk, ctx, key):
    return len(await ctx.list_roots())


async def note(desk, ctx, key):
    await ctx.info("begins")
    await ctx.info("ends")
    return "noted"


async def tidy(desk, ctx, key):
    with trio.move_on_after(0.005):
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await fetch("tidy")
    return "tidy"


async def queue(desk, ctx, key):
    async with desk.place:
        await trio.sleep(0.005)


HANDLERS = {each.__name__: each for each in (sell, count, enter, unlock, ask, note, tidy, queue)}


class Desk:
    """A server whose handlers share memory; a change replaces one of them."""

    def __init__(self, **changed):
        self.server = Server("desk")
        self.sold = 0
        self.door = trio.Event()
        self.place = trio.Semaphore(1)
        self.handlers = HANDLERS | changed
        for name in HANDLERS:
            self.register(name)
        self.register_thread()

    def register(self, name):
        @self.server.tool(name=name)
        async def tool(key: str = "", *, ctx: Context) -> str:
            return str(await self.handlers[name](self, ctx, key))

    def register_thread(self):
        @self.server.tool
        def thread(key: str = "", *, ctx: ThreadContext) -> str:
            return str(self.handlers.get("thread", in_thread)(ctx, key))


def in_thread(ctx, key):
    return fetch_in_thread(key)


@effect
def fetch_in_thread(key: str) -> int:
    return len(key)


@pytest.fixture
def record(world, tmp_path):
    """Record calls of the desk: a tuple of calls that begin together, or one call at a time."""

    def make(*rounds):
        async def client(peer, _session):
            await peer.handshake(capabilities={"roots": {}})
            number = 0
            for each in rounds:
                together = [each] if isinstance(each, str) else each
                for text in together:
                    name, _, key = text.partition(" ")
                    number += 1
                    await peer.send(call(number, name, arguments={"key": key}))
                open_requests = len(together)
                while open_requests:
                    message = await peer.receive()
                    if message.get("method") == "roots/list":
                        await peer.send_result(message, {"roots": [{"uri": "file:///a"}]})
                    open_requests -= "method" not in message

        return world.record(Desk().server, tmp_path / "desk.mcprec.jsonl", client)

    return make


def find_all(path, server, *, seed=0, **options):
    """Replay; return all divergences, the first of which is the one without the option."""
    with seeded_schedule(seed), pytest.raises(ReplayDivergence) as caught:
        replay(path, server(), all_divergences=True, **options)
    with pytest.raises(ReplayDivergence) as alone:
        replay(path, server(), **options)
    first = caught.value
    assert (first.record, first.kind, first.lane) == (
        alone.value.record,
        alone.value.kind,
        alone.value.lane,
    )
    assert first.follows is None
    return [first, *first.later]


def lanes_of(path, world, name):
    return [
        f"r{each['n']}"
        for each in world.records(path)
        if each["k"] == "in" and each["f"].get("params", {}).get("name") == name
    ]


async def sell_unlocked(desk, ctx, key):
    price = await fetch(key)
    desk.sold += 1
    await ctx.info("sold")
    return price


sell_loudly = partial(sell, message="SOLD")


def test_each_request_that_differs_is_reported(record, world):
    path = record("sell a", "note", "sell bb", ("sell a", "sell ccc"), "note")
    found = find_all(path, lambda: Desk(sell=sell_unlocked).server)
    assert [each.lane for each in found] == lanes_of(path, world, "sell")
    assert {each.follows for each in found} == {None}  # all of them differ in the same way


def test_requests_that_differ_in_the_same_way_share_a_paragraph(record, world):
    path = record("sell a", "sell bb", "sell ccc")
    found = find_all(path, lambda: Desk(sell=sell_unlocked).server)
    lines = str(found[0]).splitlines()
    assert lines[0] == "3 divergences in 3 requests, in 1 way"
    assert Counter(line.partition(":")[0].strip() for line in lines)["recorded"] == 1
    also = [line for line in lines if line.startswith("  also at:")]
    assert len(also) == 2
    for line, each in zip(also, found[1:], strict=True):
        assert f"record {each.record} of " in line
        assert f'tools/call "sell", lane {each.lane}, operation 1, at test_all_div' in line


def test_one_divergence_is_reported_as_without_the_option(record):
    path = record("sell a", "note")
    (only,) = find_all(path, lambda: Desk(sell=sell_unlocked).server)
    assert str(only).startswith("replay diverged at record ")


def test_a_message_with_other_content_does_not_end_its_request(record):
    path = record("sell a", "count")
    found = find_all(path, lambda: Desk(sell=sell_loudly).server)
    assert [each.kind for each in found] == ["message"]


async def count_and_exit(desk, ctx, key):
    raise SystemExit(3)


def test_an_exit_hides_no_divergence_before_it(record):
    path = record("sell a", "count", "note")
    found = find_all(path, lambda: Desk(sell=sell_loudly, count=count_and_exit).server)
    assert [each.kind for each in found] == ["message", "problem"]
    assert "SystemExit: 3" in str(found[1])


@pytest.mark.slow
@pytest.mark.real_time
def test_many_requests_that_all_differ_in_another_way_are_reported_soon(world, tmp_path):
    def make_server(value):
        server = Server("values")

        @server.tool
        async def values(key: str) -> dict[str, int]:
            return {key: value}

        return server

    async def client(peer, _session):
        await peer.handshake(protocol_version="2025-06-18")
        for number in range(600):
            await peer.send(call(number, "values", arguments={"key": f"k{number}"}))
            await peer.receive()

    path = world.record(make_server(1), tmp_path / "values.mcprec.jsonl", client)
    begin = time.process_time()
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server(2), all_divergences=True)
    assert time.process_time() - begin < 3
    assert len(caught.value.later) == 599


def test_requests_that_have_ended_cost_later_divergences_nothing(record):
    def calls_for(count):
        path, calls = record(*["sell a"] * count), 0
        path = path.rename(path.with_stem(f"sold-{count}"))

        def count_calls(_frame, event, _argument):
            nonlocal calls
            calls += event == "call"

        before = sys.getprofile()
        sys.setprofile(count_calls)
        try:
            with pytest.raises(ReplayDivergence) as caught:
                replay(path, Desk(sell=sell_unlocked).server, all_divergences=True)
        finally:
            sys.setprofile(before)
        assert len(caught.value.later) == count - 1
        return calls

    # In quadratic time, the last 40 of 80 cost three times as much as the first 40.
    first, both = calls_for(40), calls_for(80)
    assert both - first < 1.1 * first


async def note_otherwise(desk, ctx, key):
    await ctx.info("BEGINS")
    await ctx.info("ENDS")
    return "NOTED"


@pytest.mark.parametrize("state", [{}, ["a"]])
def test_an_invalid_request_state_does_not_end_the_replay(world, tmp_path, state):
    async def client(peer, _session):
        await peer.handshake()
        invalid = call(2, "note", requestState=state)
        for request in (call(1, "sell"), invalid, call(3, "sell")):
            await peer.send(request)
            while "method" in await peer.receive():
                pass

    path = world.record(Desk().server, tmp_path / "desk.mcprec.jsonl", client)
    found = find_all(path, lambda: Desk(sell=sell_unlocked).server)
    assert [each.lane for each in found] == lanes_of(path, world, "sell")


def test_a_later_divergence_of_a_request_names_the_earlier_one(record):
    path = record("note")
    found = find_all(path, lambda: Desk(note=note_otherwise).server)
    assert [each.kind for each in found] == ["message"] * 3
    assert [each.follows for each in found] == [None, found[0].record, found[1].record]
    assert f"perhaps from record {found[1].record}, at which this request" in str(found[2])


async def sell_for_another_price(desk, ctx, key):
    async with ctx.lock("desk"):
        price = await fetch(key + "!")
        desk.sold += 1
    await ctx.info("sold")
    return price


def test_an_effect_with_other_arguments_gets_the_recorded_outcome(record):
    path = record("sell a", "count", "sell bb", "count")
    found = find_all(path, lambda: Desk(sell=sell_for_another_price).server)
    assert [each.kind for each in found] == ["argument", "argument"]


def test_a_divergence_after_a_request_was_left_out_may_follow_from_that(record, world):
    path = record("sell a", "count", "note", "count")
    found = find_all(path, lambda: Desk(sell=sell_unlocked).server)
    sell, *counts = found
    assert [each.lane for each in counts] == lanes_of(path, world, "count")
    assert {each.follows for each in counts} == {sell.record}
    assert (
        f"follows:   perhaps from record {sell.record}: from there on the replay goes on without"
        f' tools/call "sell", lane {sell.lane}'
    ) in str(sell)


async def unlock_too(desk, ctx, key):
    try:
        return await tidy(desk, ctx, key)
    finally:
        desk.door.set()


def test_of_lanes_that_could_have_gone_on_every_replay_names_the_same_one(world, tmp_path):
    async def client(peer, _session):
        await peer.handshake()
        for number in range(4):
            await peer.send(call(number, "enter"))
        await peer.send(call(4, "tidy"))
        await peer.receive()
        await trio.sleep(0.010)
        await peer.send(call(5, "unlock"))
        await peer.receive_many(5)

    path = world.record(Desk().server, tmp_path / "desk.mcprec.jsonl", client)
    lanes = set[str]()
    for seed in range(10):
        found = find_all(path, lambda: Desk(tidy=unlock_too).server, seed=seed)
        lanes.update(each.lane for each in found)
    assert len(lanes) == 1


async def keep_locked(desk, ctx, key):
    await trio.sleep_forever()


def test_a_request_that_waits_for_one_that_was_left_out_does_not_end_the_replay(record, world):
    path = record(("enter", "unlock"), "sell a")
    changed = {"unlock": keep_locked, "sell": sell_unlocked}
    unlock, enter, sell = find_all(path, lambda: Desk(**changed).server)
    assert [unlock.lane] == lanes_of(path, world, "unlock")
    assert [enter.lane] == lanes_of(path, world, "enter")
    assert enter.follows == unlock.record
    assert [sell.lane] == lanes_of(path, world, "sell")


async def ask_nothing(desk, ctx, key):
    return 1


async def ask_twice(desk, ctx, key):
    await ctx.list_roots()
    return len(await ctx.list_roots())


@pytest.mark.parametrize("changed", [ask_nothing, ask_twice])
def test_the_questions_of_later_requests_keep_their_ids(record, world, changed, caplog):
    path = record("ask a", "note", "ask b", "ask c")
    calls = []

    async def ask_otherwise_first(desk, ctx, key):
        calls.append(key)
        return await (changed if key == "a" else ask)(desk, ctx, key)

    found = find_all(path, lambda: Desk(ask=ask_otherwise_first).server)
    assert [each.lane for each in found] == lanes_of(path, world, "ask")[:1]
    assert calls[:3] == ["a", "b", "c"]
    assert not caplog.records  # of answers to questions that were not sent


def test_a_request_whose_shield_was_removed_ends_there(record):
    path = record("tidy", "note")
    went_on = []

    async def tidy_without_shield(desk, ctx, key):
        with trio.move_on_after(0.005):
            try:
                await trio.sleep_forever()
            finally:
                await fetch("tidy")
                went_on.append(1)
        return "tidy"

    (found,) = find_all(path, lambda: Desk(tidy=tidy_without_shield).server)
    assert found.causes[0].startswith("a shield was removed")
    assert went_on == []


async def queue_by_the_clock(desk, ctx, key):
    async with desk.place:
        if key == "a":
            ctx.now()  # diverges at once
        await trio.sleep(0.005)


def test_a_request_may_go_on_earlier_when_one_before_it_has_ended(record, world):
    path = record(("queue a", "queue b", "note", "sell c"))
    found = find_all(path, lambda: Desk(queue=queue_by_the_clock).server)
    assert [each.lane for each in found] == lanes_of(path, world, "queue")[:1]


async def sell_in_a_shielded_clean_up(desk, ctx, key):
    with trio.CancelScope(shield=True):
        async with ctx.lock("desk"):
            try:
                await ctx.sleep(1)
            finally:
                with trio.CancelScope(shield=True):
                    await fetch("shielded")
                    await trio.sleep_forever()


async def sell_in_a_shield(desk, ctx, key):
    with trio.CancelScope(shield=True):
        async with ctx.lock("desk"):
            await trio.sleep_forever()


@pytest.mark.parametrize("shielded", [sell_in_a_shield, sell_in_a_shielded_clean_up])
def test_a_request_that_is_left_out_ends_whatever_shields_it(record, world, shielded):
    path = record("sell a", "note", "sell bb")

    async def sell_otherwise_first(desk, ctx, key):
        return await (shielded if key == "a" else sell)(desk, ctx, key)

    (found,) = find_all(path, lambda: Desk(sell=sell_otherwise_first).server)
    assert [found.lane] == lanes_of(path, world, "sell")[:1]


def test_a_handler_that_is_left_out_gets_no_values_and_is_not_logged(record, caplog):
    path = record("sell a", "note")
    ended = []

    async def sell_by_the_clock(desk, ctx, key):
        try:
            ctx.now()
        except Exception:
            ended.append(key)
            raise

    with caplog.at_level(logging.INFO):
        (found,) = find_all(path, lambda: Desk(sell=sell_by_the_clock).server)
    assert found.kind in {"missing", "extra"}
    assert ended == ["a"]  # not in the replay that ends at once
    assert not caplog.records


def test_def_handlers_can_be_left_out(record, world):
    path = record(("thread a", "thread bb"), "note", "thread c")

    def sleep_first(ctx, key):
        ctx.sleep(0.1)
        return in_thread(ctx, key)

    found = find_all(path, lambda: Desk(thread=sleep_first).server)
    # The two threads that were recorded together may have come in either order.
    lanes = {each.lane.partition(".")[0] for each in found}
    assert lanes == set(lanes_of(path, world, "thread"))
    assert len(found) == len(lanes)


@pytest.mark.parametrize("seed", range(4))
def test_outbound_mode_finds_all_differences_of_what_is_sent(record, world, seed):
    path = record("sell a", ("enter", "unlock", "sell bb"), "note")
    changed = {"sell": sell_loudly, "unlock": keep_locked, "note": ask_nothing}
    found = find_all(path, lambda: Desk(**changed).server, seed=seed, mode="outbound")
    names = ("sell", "unlock", "enter", "note")
    expected = {lane for name in names for lane in lanes_of(path, world, name)}
    assert {each.lane for each in found} == expected


@pytest.mark.parametrize("seed", range(4))
def test_the_findings_do_not_depend_on_the_schedule(record, seed):
    path = record(("sell a", "sell bb", "enter", "ask", "unlock"), ("count", "note"), "tidy")
    changed = {"sell": sell_unlocked, "note": note_otherwise, "tidy": keep_locked}
    found = [
        [(each.record, each.lane, each.kind, each.follows) for each in all_found]
        for all_found in (
            find_all(path, lambda: Desk(**changed).server, seed=each) for each in (seed, seed + 4)
        )
    ]
    assert found[0] == found[1]


def test_a_change_of_what_the_session_sends_does_not_end_the_replay(record, world):
    path = record("note", "sell a")

    def make_server():
        desk = Desk(sell=sell_unlocked)
        renamed = Server("other", instructions="new")
        for tool in HANDLERS:
            desk.server = renamed
            desk.register(tool)
        return renamed

    first, *_, sell = find_all(path, make_server)
    assert first.lane is None
    assert [sell.lane] == lanes_of(path, world, "sell")


def test_changed_tools_are_reported_besides_the_divergences(record, world):
    path = record("sell a", "note", "count")

    class OtherDesk(Desk):
        def register(self, name):
            if name != "count":
                super().register(name)
                return

            @self.server.tool(name=name, description="Counts otherwise.")
            async def tool(key: str = "", *, ctx: Context) -> str:
                return str(await count(self, ctx, key))

    with pytest.raises(ReplayDivergence) as caught:
        replay(path, OtherDesk(sell=sell_loudly).server, all_divergences=True)
    first, (changed,) = caught.value, caught.value.later
    assert (first.kind, changed.kind) == ("message", "changed")
    assert 'the tool "count" has another description' in str(first)


# The session of `desk`, which has records of all kinds, with each handler replaced by a wrong one.


async def return_at_once(state, ctx, amount):
    return 99


async def wait_for_ever(state, ctx, amount):
    await trio.sleep_forever()


async def wait_in_a_shield(state, ctx, amount):
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()


async def raise_an_error(state, ctx, amount):
    raise ToolError("wrong")


async def ask_more(state, ctx, amount):
    await ctx.list_roots()
    await ctx.list_roots()
    await ctx.info("asked")
    return 3


async def talk_and_sleep(state, ctx, amount):
    for number in range(5):
        await ctx.info(str(number))
        await trio.sleep(0.003)
    return 1


async def read_and_sleep(state, ctx, amount):
    ctx.now()
    await ctx.sleep(0.001)
    ctx.now()
    return ctx.random.randint(1, 9)


@pytest.mark.parametrize("mode", ["strict", "outbound"])
@pytest.mark.parametrize(
    "wrong",
    [
        *(return_at_once, wait_for_ever, wait_in_a_shield, raise_an_error),
        *(ask_more, talk_and_sleep, read_and_sleep),
    ],
)
def test_a_session_of_wrong_handlers_is_replayed_to_its_end(desk, path, wrong, mode):
    handlers = dict.fromkeys(("add", "wait", "open_door", "forever", "in_time"), wrong)
    findings = [
        [
            (each.record, each.lane, each.kind)
            for each in find_all(path, lambda: desk.make_server(**handlers), seed=seed, mode=mode)
        ]
        for seed in range(3)
    ]
    assert findings[1:] == findings[:-1]
    assert len(findings[0]) > 1


# Requests that are suspended.


@pytest.mark.parametrize("is_changed_before", [True, False])
def test_the_retries_of_a_suspended_request_are_left_out_with_it(
    world, tmp_path, is_changed_before
):
    def make_server(is_changed):
        server = Server("harbour")

        @server.tool
        async def book(*, ctx: Context) -> str:
            if is_changed and is_changed_before:
                await ctx.sleep(0.1)
            boat = await ctx.elicit("Which boat?", str)
            if is_changed:
                await ctx.sleep(0.1)
            return str(boat.data)

        @server.tool
        async def greet(*, ctx: Context) -> str:
            await ctx.sleep(0.01)
            return "hello"

        return server

    async def client(peer, _session):
        meta = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
        await peer.send(stateless_call(1, "book", arguments={}, _meta=meta))
        asked = (await peer.receive())["result"]
        await peer.send(stateless_call(2, "greet", arguments={}))
        await peer.receive()
        answer = {"action": "accept", "content": {"value": "reed"}}
        again = {
            "requestState": asked["requestState"],
            "inputResponses": dict.fromkeys(asked["inputRequests"], answer),
        }
        await peer.send(stateless_call(3, "book", arguments={}, _meta=meta, **again))
        await peer.receive()
        await peer.send(stateless_call(4, "greet", arguments={}))
        await peer.receive()

    path = world.record(make_server(is_changed=False), tmp_path / "a.mcprec.jsonl", client)
    (found,) = find_all(path, lambda: make_server(is_changed=True))
    assert found.lane == "r1"
