"""Sweeps: races are found and come again by their seed; what is no race is none."""

import json
import os
import socket
import time
from contextlib import suppress

import msgspec
import pytest
import trio

from mcp_trio import Context, Server, ThreadContext, effect
from mcp_trio._cli.sweep import swept
from mcp_trio._engine.stray_calls import Stray
from mcp_trio._errors import BlockedInReplay, RecordingError, SweepUnavailable
from mcp_trio._replay import sweep as sweeping
from mcp_trio._replay import sweep_score
from mcp_trio._replay.sweep import sweep, sweep_forked
from mcp_trio._replay.sweep_score import load_sweep_score
from mcp_trio._testing.wire_peer import WirePeer
from mcp_trio._transports.memory import memory_pair
from mcp_trio.recording import RecordOptions, Redaction

SCHEDULES = 20


def make_server(*, exclusive=False):
    """Adds to a total, and asks the client in between; `exclusive` lets one at a time do so."""
    server = Server("sums")
    sums = {"total": 0}
    door = trio.Lock()

    @server.tool
    async def add(amount: int, *, ctx: Context) -> str:
        if exclusive:
            async with door:
                await add_to_sum(amount, ctx)
        else:
            await add_to_sum(amount, ctx)
        await ctx.progress(1)
        await ctx.list_roots()
        return f"added {amount}"

    async def add_to_sum(amount, ctx):
        before = sums["total"]
        await ctx.list_roots()
        sums["total"] = before + amount

    @server.tool
    async def total() -> int:
        return sums["total"]

    return server


def call(number, tool, **arguments):
    params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": number}}
    return {"id": number, "method": "tools/call", "params": params}


async def talk_by_luck(peer, session):
    """The second one comes when the first one has written, but has not been answered yet."""
    await peer.handshake(capabilities={"roots": {}})
    await peer.send(call(1, "add", amount=1))
    await answer(peer)
    await trio.sleep(0.005)
    await peer.send(call(2, "add", amount=10))
    await answer(peer)
    await answer(peer)
    await answer(peer)
    while (await peer.receive()).get("id") != 2:
        pass
    await peer.send(call(3, "total"))
    await peer.receive()


async def answer(peer):
    message = await peer.receive()
    while message.get("method") != "roots/list":
        message = await peer.receive()
    await trio.sleep(0.010)
    await peer.send_result(message, {"roots": [{"uri": "file:///a"}]})


@pytest.fixture
def path(world, tmp_path):
    return world.record(make_server(), tmp_path / "lucky.mcprec.jsonl", talk_by_luck)


def changed_server(**tools):
    server = make_server()
    for name, tool in tools.items():
        server.remove_tool(name)
        server.tool(name=name)(tool)
    return server


# Races.


def test_a_race_is_found(path):
    report = sweep(path, make_server, schedules=SCHEDULES)
    assert not report.is_clean
    assert report.schedules == SCHEDULES
    assert 1 < report.outcomes < SCHEDULES
    assert 0 < len(report.failing_seeds) < SCHEDULES
    assert {difference.call for difference in report.differences} == {'tools/call "total"'}
    assert {difference.recorded for difference in report.differences} == {'"11"'}
    assert {difference.swept for difference in report.differences} <= {'"1"', '"10"'}
    assert {d.path for d in report.differences} == {"answer $.result.content[0].text"}


def test_a_failing_seed_fails_again_alone(path):
    report = sweep(path, make_server, schedules=SCHEDULES)
    seed = report.failing_seeds[0]
    expected = tuple(each for each in report.differences if each.seed == seed)
    for _ in range(3):
        alone = sweep(path, make_server, seed=seed)
        assert alone.schedules == 1
        assert alone.differences == expected


def test_a_handler_that_lets_one_at_a_time_in_is_clean(path):
    report = sweep(path, lambda: make_server(exclusive=True), schedules=SCHEDULES)
    assert report.differences == ()
    assert report.is_clean


def test_schedules_differ_in_the_order_of_tasks_alone_too(world, tmp_path):
    """Without a delay to play with, the order in which ready tasks run is all there is."""

    def make():
        server = Server("orders")
        come = []

        @server.tool
        async def come_in(name: str) -> str:
            await trio.lowlevel.checkpoint()
            come.append(name)
            return name

        @server.tool
        async def who_came() -> str:
            return ",".join(come)

        return server

    async def talk(peer, session):
        await peer.handshake()
        names = "abcd"
        await peer.send(*(call(n, "come_in", name=name) for n, name in enumerate(names, 1)))
        for _ in names:
            await peer.receive()
        await peer.send(call(9, "who_came"))
        await peer.receive()

    path = world.record(make(), tmp_path / "orders.mcprec.jsonl", talk)
    assert sweep(path, make, schedules=SCHEDULES).outcomes > 8


# What else may come of a request.


def test_an_answer_that_never_comes_is_a_difference(path):
    async def total() -> int:
        await trio.sleep_forever()

    report = sweep(path, lambda: changed_server(total=total), schedules=2)
    (first, second) = report.differences
    assert (first.path, first.swept, second.seed) == ("answer", "nothing", 1)
    assert 'seed 0: tools/call "total" (lane r' in str(first)


def test_a_handler_that_fails_is_a_difference(path):
    async def total() -> int:
        raise ZeroDivisionError

    (difference,) = sweep(path, lambda: changed_server(total=total), schedules=1).differences
    assert "internal error" in difference.swept or difference.path.startswith("answer")


def test_a_handler_that_spins_ends_all_the_same(path):
    async def total() -> int:
        while True:
            await trio.lowlevel.checkpoint()

    (difference,) = sweep(path, lambda: changed_server(total=total), schedules=1).differences
    assert difference.path == "answer"


def test_a_handler_that_beats_for_ever_ends_all_the_same(path):
    async def total() -> int:
        while True:
            await trio.sleep(0.5)

    (difference,) = sweep(path, lambda: changed_server(total=total), schedules=1).differences
    assert difference.path == "answer"


@pytest.mark.parametrize("seconds", [0, 0.5, float("inf")])
def test_a_handler_that_shields_itself_ends_all_the_same(path, seconds):
    async def total() -> int:
        with trio.CancelScope(shield=True):
            while True:
                await trio.sleep(seconds)

    (difference,) = sweep(path, lambda: changed_server(total=total), schedules=1).differences
    assert difference.path == "answer"


def test_a_message_more_or_less_is_a_difference(path):
    async def total(ctx: Context) -> int:
        await ctx.info("hello")
        return 11

    (difference,) = sweep(path, lambda: changed_server(total=total), schedules=1).differences
    assert difference.path.endswith(("$.method", "$.id", "$.jsonrpc")) or difference.path


def test_a_question_that_was_not_asked_then_gets_no_answer(path):
    async def total(ctx: Context) -> int:
        await ctx.list_roots()
        return 11

    (difference,) = sweep(path, lambda: changed_server(total=total), schedules=1).differences
    assert difference.path == "answer"


def test_requests_that_were_cancelled_are_not_compared(world, tmp_path, desk):
    path = world.record(desk.make_server(), tmp_path / "desk.mcprec.jsonl", desk.talk)
    report = sweep(path, desk.make_server, schedules=5)
    calls = {difference.call for difference in report.differences}
    assert 'tools/call "forever"' not in calls


# Effects, and what else a handler asks its context.


class Refused(Exception):
    pass


def effectful_server(*, wrong=False, more=False):
    """Everything that a handler may ask; options change it since it was recorded."""
    server = Server("effectful")

    @effect
    async def fetch(what: str) -> str:
        await trio.sleep(0.003 if what != "for ever" else 9)
        if what == "nothing":
            raise Refused(what)
        return what.upper()

    @effect
    def configured(name: str) -> str:
        if name == "nothing":
            raise Refused(name)
        return f"{name} is set"

    @server.tool
    async def everything(ctx: Context) -> list[str]:
        said = [await fetch("b" if wrong else "a"), configured("x"), str(ctx.patched("new"))]
        said += [ctx.now().isoformat(), str(ctx.uuid4()), str(ctx.random.random())]
        try:
            await fetch("nothing")
        except Refused as error:
            said.append(str(error))
        with suppress(Refused):
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
    await peer.send(call(1, "everything"), call(2, "in_thread"), call(3, "in_thread"))
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
def test_what_a_handler_asks_its_context_is_answered_as_recorded(effects):
    report = sweep(effects, effectful_server, schedules=SCHEDULES)
    assert report.differences == ()
    assert report.strays == ()


@pytest.mark.real_time
def test_an_effect_with_other_arguments_is_a_difference(effects):
    def changed():
        return effectful_server(wrong=True)

    (difference,) = sweep(effects, changed, schedules=1).differences
    assert difference.path.startswith("effect of lane r")
    assert difference.path.endswith("$.arguments.what")
    assert (difference.recorded, difference.swept) == ('"a"', '"b"')


@pytest.mark.real_time
def test_an_effect_that_was_not_done_then_fails_and_is_a_difference(effects):
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
            await peer.send(call(number, tool))
            await peer.receive()

    return world.record(server, path, talk)


def test_functions_named_as_what_the_context_has_are_answered_as_recorded(world, tmp_path):
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


def test_a_sleep_without_end_is_slept(world, tmp_path):
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
    await peer.send(call(1, "add", amount=1))
    await trio.sleep(0.015)
    await peer.send(call(2, "add", amount=10))
    await peer.receive()
    await peer.receive()


def test_other_arguments_of_an_effect_in_passing_are_a_difference(world, tmp_path):
    path = world.record(saving_server([]), tmp_path / "saved.mcprec.jsonl", save_by_luck)
    report = sweep(path, lambda: saving_server([]), schedules=SCHEDULES)
    told = {(each.recorded, each.swept) for each in report.differences}
    assert told == {("11", "1"), ("11", "10"), ("1", "11")} & told != set()
    assert {each.path.rpartition(" ")[2] for each in report.differences} == {"$.arguments.total"}


def test_an_effect_in_passing_is_never_done(world, tmp_path):
    path = world.record(saving_server([]), tmp_path / "saved.mcprec.jsonl", save_by_luck)
    saved = []
    report = sweep(path, lambda: saving_server(saved, more=True), schedules=2)
    assert saved == []
    assert (report.differences[0].recorded, report.differences[0].swept) == ('"work"', '"save"')


def test_an_effect_that_goes_on_where_a_recording_was_cut_never_ends(world, tmp_path):
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
        await peer.send(call(1, "clear"))
        await trio.sleep(0.01)
        await peer.send(call(2, "total"))
        await peer.receive()

    path = world.record(make(), tmp_path / "whole.mcprec.jsonl", talk)
    answered = [b'"id":2,"result"' in line for line in path.read_bytes().splitlines()].index(True)
    cut = world.rewrite(path, tmp_path / "cut.mcprec.jsonl", lambda rows: rows[: answered + 1])
    assert sweep(cut, make, schedules=5).is_clean


def test_long_values_are_shown_by_their_begin(path):
    async def total() -> str:
        return "x" * 100_000

    (difference,) = sweep(path, lambda: changed_server(total=total), schedules=1).differences
    assert len(difference.swept) == 301
    assert difference.swept.endswith("x…")


def test_a_clock_beside_the_context_is_told_and_a_socket_ends_the_sweep(path):
    async def total() -> int:
        assert time.time()
        return 11

    async def reaching() -> int:
        return socket.socket().fileno()

    (stray,) = sweep(path, lambda: changed_server(total=total), schedules=2).strays
    assert stray.call == "time.time"
    with pytest.raises(BlockedInReplay, match=r"socket\.socket\(\) at test_sweep.py"):
        sweep(path, lambda: changed_server(total=reaching), schedules=2)


def test_a_sweep_takes_one_schedule_at_least(path):
    with pytest.raises(ValueError, match="one schedule"):
        sweep(path, make_server, schedules=0)


# Which recordings.


def test_what_was_taken_out_of_a_redacted_recording_is_not_compared(world, tmp_path):
    def make(*, place="home"):
        server = Server("sums")

        @effect
        async def login(password: str, pin: int) -> str:
            return f"of {password}"

        @server.tool
        async def enter(password: str, pin: int) -> dict[str, str | int]:
            return {
                "at": place + await login("secret " + password, pin),
                "token": "abcd-1234",
                "pin": 70707,
            }

        return server

    async def talk(peer, session):
        await peer.handshake()
        await peer.send(call(1, "enter", password="swordfish", pin=9137))
        await peer.receive()

    options = RecordOptions(
        tmp_path / "redacted.mcprec.jsonl", redaction=Redaction(keys=["password", "token", "pin"])
    )
    world.record(make(), options, talk)
    path = options.path
    assert b"swordfish" not in path.read_bytes()
    assert sweep(path, make, schedules=2).is_clean
    (difference,) = sweep(path, lambda: make(place="cave"), schedules=1).differences
    assert "caveof" in difference.swept


def rewritten(world, path, tmp_path, change):
    def changed(lines):
        records = [json.loads(line) for line in lines]
        change(records)
        return [json.dumps(record).encode() + b"\n" for record in records]

    return world.rewrite(path, tmp_path / "changed.mcprec.jsonl", changed)


def test_a_recording_of_a_client_is_refused(world, path, tmp_path):
    changed = rewritten(world, path, tmp_path, lambda rows: rows[0]["f"].update(role="client"))
    with pytest.raises(RecordingError, match="of role 'client'"):
        sweep(changed, make_server)


def test_a_recording_of_several_sessions_is_refused(path, monkeypatch):
    records = list(sweep_score.read_recording(sweep_score.open_recording(path)))
    records[1] = msgspec.structs.replace(records[1], channel=2)
    monkeypatch.setattr(sweep_score, "read_recording", lambda _: iter(records))
    with pytest.raises(RecordingError, match="one session"):
        load_sweep_score(path)


def test_a_recording_that_was_cut_is_swept_up_to_there(world, path, tmp_path):
    lines = len(path.read_bytes().splitlines())
    for count in range(1, lines):
        cut = world.rewrite(path, tmp_path / "cut.jsonl", lambda rows, n=count: rows[:n])
        assert sweep(cut, lambda: make_server(exclusive=True), schedules=1).is_clean


def test_what_is_no_message_is_handed_on(world, tmp_path):
    async def talk(peer, session):
        await peer.handshake()
        await peer.send(b"{", b"[" * 5000, {"id": 1, "method": "ping"})
        await peer.receive()

    path = world.record(make_server(), tmp_path / "bad.mcprec.jsonl", talk)
    assert sweep(path, make_server, schedules=3).is_clean


# The text of the command.


def test_the_text_shows_the_first_differences_and_the_strays(path):
    report = sweep(path, make_server, schedules=SCHEDULES)
    many = report.differences * SCHEDULES
    stray = Stray(call="time.time", site="at a.py:3", lane="r5", instead="ctx.now()")
    text = swept(msgspec.structs.replace(report, differences=many, strays=(stray,)), "a", "b.py")
    assert f"\nand {len(many) - 10} more\n" in text
    assert "\nstray: time.time() at a.py:3 in lane r5: use ctx.now()\n" in text


# Processes.


FORKS = 8


def test_a_fork_for_each_schedule_starts_with_fresh_state_and_finds_what_is_found_here(path):
    assert sweep_forked(path, make_server(exclusive=True), schedules=FORKS).is_clean
    here = sweep(path, make_server, schedules=FORKS)
    forked = sweep_forked(path, make_server(), schedules=FORKS)
    assert forked.differences == here.differences != ()
    assert forked.outcomes == here.outcomes > 1


def test_a_fork_that_breaks_says_why(path):
    class Broken:
        def open_session(self, *_, **__):
            raise ZeroDivisionError("not today")

    with pytest.raises(SweepUnavailable, match="not today"):
        sweep_forked(path, Broken(), schedules=1)


def test_a_system_without_fork_is_told(path, monkeypatch):
    monkeypatch.delattr("os.fork")
    with pytest.raises(SweepUnavailable, match="cannot fork"):
        sweep_forked(path, make_server())


def test_a_target_that_cannot_be_swept_elsewhere_is_told(path):
    with pytest.raises(SweepUnavailable, match=r"(?s)ended with 2: .*no/such\.py: no such file"):
        sweep(path, "no/such.py", seed=3)


def test_what_is_wrong_with_a_sweep_elsewhere_is_told_as_of_one_here(path, tmp_path):
    with pytest.raises(RecordingError, match="cannot read"):
        sweep(tmp_path / "none.jsonl", "no/such.py")
    with pytest.raises(ValueError, match="one schedule"):
        sweep(path, "no/such.py", schedules=0)


def test_what_a_server_prints_is_no_part_of_the_report(path, tmp_path):
    target = tmp_path / "chatty.py"
    target.write_text(
        "from mcp_trio import Server\n"
        "print('imported')\n"
        "server = Server('sums')\n"
        "@server.tool\n"
        "async def total() -> int:\n"
        "    print('called')\n"
        "    return 11\n"
    )
    report = sweep(path, str(target), schedules=2)
    assert report.schedules == 2
    assert {each.call for each in report.differences} >= {'tools/call "add"'}


def test_forks_that_nobody_waits_for_any_more_are_ended(path, monkeypatch):
    forks = []

    class Dying(sweeping._Fork):
        def outcome(self):
            forks.append(self)
            if len(forks) == 2:
                raise KeyboardInterrupt
            return super().outcome()

    monkeypatch.setattr(sweeping, "_Fork", Dying)
    monkeypatch.setattr(sweeping, "_FORKS", 3)
    with pytest.raises(KeyboardInterrupt):
        sweep_forked(path, make_server(), schedules=6)
    os.waitpid(forks[1].process, 0)  # was being waited for
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_trio_without_the_flag_is_told(path, monkeypatch):
    monkeypatch.delattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING")
    with pytest.raises(SweepUnavailable, match="Trio"):
        sweep(path, make_server)


def test_the_flag_is_as_it_was_afterwards(path):
    from trio._core import _run

    before = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()
    sweep(path, make_server, schedules=2)
    assert (_run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()) == before
