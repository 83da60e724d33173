"""Sweeps give the calls of the context their recorded outcomes."""

from contextlib import suppress

import pytest
import trio

from mcp_trio import Context, Server, ThreadContext, effect
from mcp_trio.recording import sweep
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair

SCHEDULES = 20


class Rejected(Exception):
    pass


def effectful_server(*, wrong=False, more=False):
    """Everything that a handler may ask; options change it since it was recorded."""
    server = Server("effectful")

    @effect
    async def fetch(what: str) -> str:
        await trio.sleep(0.003 if what != "for ever" else 9)
        if what == "nothing":
            raise Rejected(what)
        return what.upper()

    @effect
    def configured(name: str) -> str:
        if name == "nothing":
            raise Rejected(name)
        return f"{name} is set"

    @server.tool
    async def everything(ctx: Context) -> list[str]:
        said = [await fetch("b" if wrong else "a"), configured("x"), str(ctx.patched("new"))]
        said += [ctx.now().isoformat(), str(ctx.uuid4()), str(ctx.random.random())]
        try:
            await fetch("nothing")
        except Rejected as error:
            said.append(str(error))
        with suppress(Rejected):
            configured("nothing")
            said.append("configured")
        await ctx.sleep(0.002)
        with suppress(trio.TooSlowError), ctx.timeout(0.001):
            await ctx.effect(trio.sleep, 1)
            said.append("too late")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch, "for ever")
            await ctx.sleep(0.001)
            nursery.cancel_scope.cancel()
        async with ctx.lock("door"):
            said.append(await ctx.to_thread(str.upper, "c"))
        if more:
            said.append(await fetch("more"))
        return said

    @server.tool
    def in_thread(ctx: ThreadContext) -> str:
        ctx.info("in a thread")
        return f"{fetch_here()} {ctx.uuid4()}"

    @effect
    def fetch_here() -> str:
        return "here"

    return server


async def ask_everything(peer, session):
    await peer.handshake()
    for number, tool in enumerate(["everything", "in_thread", "in_thread"], 1):
        await peer.send_request("tools/call", {"name": tool}, id=number)
    answered = set()
    while answered != {1, 2, 3}:
        answered |= {(await peer.receive()).get("id")} - {None}


@pytest.fixture
def effects(tmp_path):
    """Recorded in real time, since an autojump of the clock does not wait for threads."""
    path = tmp_path / "effects.mcprec.jsonl"

    async def session():
        ours, theirs = memory_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: effectful_server().serve(ours, record=path))
            peer = WirePeer(theirs)
            await ask_everything(peer, None)
            await peer.aclose()

    trio.run(session)
    return path


@pytest.mark.real_time
def test_calls_of_the_context_get_their_recorded_outcomes(effects):
    report = sweep(effects, effectful_server, schedules=SCHEDULES)
    assert report.differences == ()
    assert report.untracked_calls == ()


@pytest.mark.real_time
def test_an_effect_with_other_arguments_is_a_difference(effects):
    def changed():
        return effectful_server(wrong=True)

    (difference,) = sweep(effects, changed, schedules=1).differences
    assert difference.path.startswith("effect of lane r")
    assert difference.path.endswith("$.arguments.what")
    assert (difference.recorded, difference.swept) == ('"a"', '"b"')


@pytest.mark.real_time
def test_an_unrecorded_effect_fails_and_is_a_difference(effects):
    def changed():
        return effectful_server(more=True)

    first, second = sweep(effects, changed, schedules=1).differences
    assert first.recorded == "nothing"
    assert '"more"' in first.swept
    assert second.path.startswith("answer")


def recorded_calls(world, path, server, *tools):
    """A recording of calls, one after the other."""

    async def talk(peer, session):
        await peer.handshake()
        for number, tool in enumerate(tools, 1):
            await peer.send_request("tools/call", {"name": tool}, id=number)
            await peer.receive()

    return world.record(server, path, talk)


def test_effects_with_the_names_of_context_calls_get_recorded_outcomes(world, tmp_path):
    @effect
    async def lock(door: str) -> str:
        return f"{door} locked"

    @effect
    async def sleep(seconds: str) -> str:
        return f"slept {seconds}"

    @effect
    async def sleep_quietly(seconds: str) -> None:
        pass

    @effect
    def timeout() -> str:
        return "over"

    sleep_quietly.__wrapped__.__name__ = "sleep"

    def make():
        server = Server("odd names")

        @server.tool
        async def odd() -> str:
            await sleep_quietly("a while")
            return await lock("front") + await sleep("long") + timeout()

        return server

    path = recorded_calls(world, tmp_path / "odd.mcprec.jsonl", make(), "odd")
    assert sweep(path, make, schedules=3).is_clean


def test_an_infinite_sleep_does_not_end(world, tmp_path):
    def make():
        server = Server("sleeper")

        @server.tool
        async def nap(ctx: Context) -> str:
            with trio.move_on_after(0.01):
                await ctx.sleep(float("inf"))
            return "awake"

        return server

    path = recorded_calls(world, tmp_path / "nap.mcprec.jsonl", make(), "nap")
    assert sweep(path, make, schedules=3).is_clean


def saving_server(saved, *, more=False):
    """Its race is to be seen in what it saves alone, by an effect that is done in passing."""
    server = Server("saver")
    sums = {"total": 0}

    @effect
    async def work(what: str) -> None:
        await trio.sleep(0.01)

    @effect
    def save(total: int) -> None:
        saved.append(total)

    @server.tool
    async def add(amount: int) -> str:
        before = sums["total"]
        await work("think")
        sums["total"] = before + amount
        save(sums["total"])
        if more:
            save(0)
        await work("print")
        return "added"

    return server


async def save_by_luck(peer, session):
    await peer.handshake()
    for number, amount in enumerate([1, 10]):
        params = {"name": "add", "arguments": {"amount": amount}}
        await peer.send_request("tools/call", params, id=number)
        await trio.sleep(0.015)
    await peer.receive_many(2)


def test_other_arguments_of_an_immediate_effect_are_a_difference(world, tmp_path):
    path = world.record(saving_server([]), tmp_path / "saved.mcprec.jsonl", save_by_luck)
    report = sweep(path, lambda: saving_server([]), schedules=SCHEDULES)
    told = {(each.recorded, each.swept) for each in report.differences}
    assert set() < told <= {("11", "1"), ("11", "10"), ("1", "11")}
    assert {each.path.rpartition(" ")[2] for each in report.differences} == {"$.arguments.total"}


def test_an_immediate_effect_is_not_performed(world, tmp_path):
    path = world.record(saving_server([]), tmp_path / "saved.mcprec.jsonl", save_by_luck)
    saved = []
    report = sweep(path, lambda: saving_server(saved, more=True), schedules=2)
    assert saved == []
    assert (report.differences[0].recorded, report.differences[0].swept) == ('"work"', '"save"')


def test_an_effect_that_runs_at_the_cut_never_ends(sums, world, tmp_path):
    """Had it failed, the handler would have cleared the sum behind the other one's back."""

    def make():
        server = Server("cut")
        sums = {"total": 5}

        @effect
        async def work() -> None:
            await trio.sleep(1)

        @server.tool
        async def clear() -> str:
            with suppress(Exception):
                await work()
            sums["total"] = 0
            return "cleared"

        @server.tool
        async def total() -> int:
            return sums["total"]

        return server

    async def talk(peer, session):
        await peer.handshake()
        await peer.send(sums.call(1, "clear"))
        await trio.sleep(0.01)
        await peer.send(sums.call(2, "total"))
        await peer.receive()

    path = world.record(make(), tmp_path / "whole.mcprec.jsonl", talk)
    answered = [b'"id":2,"result"' in line for line in path.read_bytes().splitlines()].index(True)
    cut = world.rewrite(path, tmp_path / "cut.mcprec.jsonl", lambda rows: rows[: answered + 1])
    assert sweep(cut, make, schedules=5).is_clean
