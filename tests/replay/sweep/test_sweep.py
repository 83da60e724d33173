"""Sweeps find races, and repeat them by their seeds."""

import errno
import json
import os
import socket
import threading
from contextlib import suppress

import msgspec
import pytest
import trio
from memory_sessions import scripted_session

from mcp_trio import Context, Server, ThreadContext, effect
from mcp_trio._cli.replay import sweep_summary
from mcp_trio._replay import sweep as sweeping
from mcp_trio._replay.sweep import SweepOptions, sweep_forked
from mcp_trio.errors import BlockedInReplay, NothingCompared, RecordingError, SweepUnavailable
from mcp_trio.limits import Limits
from mcp_trio.recording import (
    RecordOptions,
    Redaction,
    Schedule,
    SharedRecording,
    UntrackedCall,
    sweep,
)

SCHEDULES = 20


def test_a_race_is_found(sums, path):
    report = sweep(path, sums.make_server, schedules=SCHEDULES)
    assert not report.is_clean
    assert report.schedules == SCHEDULES
    assert 1 < report.outcomes < SCHEDULES
    assert 0 < len(report.failing_schedules) < SCHEDULES
    assert {difference.call for difference in report.differences} == {'tools/call "total"'}
    assert {difference.recorded for difference in report.differences} == {'"11"'}
    assert {difference.swept for difference in report.differences} <= {'"1"', '"10"'}
    assert {d.path for d in report.differences} == {"answer $.result.content[0].text"}


def test_a_server_in_place_of_a_function_that_makes_one_is_rejected(sums, path):
    with pytest.raises(TypeError, match="a function that returns a new server for each schedule"):
        sweep(path, sums.make_server())


def test_a_failing_seed_fails_again_alone(sums, path):
    report = sweep(path, sums.make_server, schedules=SCHEDULES)
    seed = report.failing_schedules[0]
    expected = tuple(each for each in report.differences if each.schedule == seed)
    for _ in range(3):
        alone = sweep(path, sums.make_server, seed=seed)
        assert alone.schedules == 1
        assert alone.differences == expected


def test_a_handler_with_a_lock_has_no_differences(sums, path):
    report = sweep(path, lambda: sums.make_server(exclusive=True), schedules=SCHEDULES)
    assert report.differences == ()
    assert report.is_clean


def test_schedules_differ_also_without_effects(sums, world, tmp_path):
    """Only the order of tasks that are ready can differ."""

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
        await peer.send(*(sums.call(n, "come_in", name=name) for n, name in enumerate(names, 1)))
        for _ in names:
            await peer.receive()
        await peer.send(sums.call(9, "who_came"))
        await peer.receive()

    path = world.record(make(), tmp_path / "orders.mcprec.jsonl", talk)
    assert sweep(path, make, schedules=SCHEDULES).outcomes > 8


@pytest.mark.parametrize("token", [{}, [1], None])
def test_progress_with_an_invalid_token_is_no_update_of_a_request(sums, world, tmp_path, token):
    async def talk(peer, session):
        await peer.handshake()
        await peer.send_notification("notifications/progress", {"progressToken": token})
        await peer.send(sums.call(1, "total"))
        await peer.receive()

    path = world.record(sums.make_server(), tmp_path / "a.mcprec.jsonl", talk)
    assert sweep(path, sums.make_server, schedules=2).is_clean


# Other outcomes of requests.


def test_an_answer_that_never_comes_is_a_difference(sums, path):
    async def total() -> int:
        await trio.sleep_forever()

    report = sweep(path, lambda: sums.changed_server(total=total), schedules=2)
    (first, second) = report.differences
    assert (first.path, first.swept, second.schedule) == ("answer", "nothing", 1)
    assert 'schedule 0: tools/call "total" (lane r' in str(first)


def test_a_handler_that_fails_is_a_difference(sums, path):
    async def total() -> int:
        raise ZeroDivisionError

    (difference,) = sweep(path, lambda: sums.changed_server(total=total), schedules=1).differences
    assert difference.path == "answer $.result.content[0].text"
    assert difference.swept == '"internal error in total"'


def test_a_handler_that_loops_without_waiting_is_ended(sums, path):
    async def total() -> int:
        while True:
            await trio.lowlevel.checkpoint()

    (difference,) = sweep(path, lambda: sums.changed_server(total=total), schedules=1).differences
    assert difference.path == "answer"


def test_a_handler_that_sleeps_again_and_again_is_ended(sums, path):
    async def total() -> int:
        while True:
            await trio.sleep(0.5)

    (difference,) = sweep(path, lambda: sums.changed_server(total=total), schedules=1).differences
    assert difference.path == "answer"


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, 0.5, float("inf")])
def test_a_shielded_handler_is_ended(sums, path, seconds):
    async def total() -> int:
        with trio.CancelScope(shield=True):
            while True:
                await trio.sleep(seconds)

    (difference,) = sweep(path, lambda: sums.changed_server(total=total), schedules=1).differences
    assert difference.path == "answer"


def test_an_unrecorded_message_is_a_difference(sums, path):
    async def total(ctx: Context) -> int:
        await ctx.info("hello")
        return 11

    (difference,) = sweep(path, lambda: sums.changed_server(total=total), schedules=1).differences
    assert (difference.path, difference.recorded) == ("answer $.id", "3")


def test_an_unrecorded_request_to_the_client_gets_no_answer(sums, path):
    async def total(ctx: Context) -> int:
        await ctx.list_roots()
        return 11

    (difference,) = sweep(path, lambda: sums.changed_server(total=total), schedules=1).differences
    assert difference.path == "answer"


def test_requests_that_were_cancelled_are_not_compared(world, tmp_path, desk):
    path = world.record(desk.make_server(), tmp_path / "desk.mcprec.jsonl", desk.talk)
    report = sweep(path, desk.make_server, schedules=5)
    calls = {difference.call for difference in report.differences}
    assert 'tools/call "forever"' not in calls


def test_a_direct_reading_is_reported_and_a_direct_socket_ends_the_sweep(sums, path):
    async def total() -> int:
        assert os.getpid()
        return 11

    async def reaching() -> int:
        return socket.socket().fileno()

    (untracked_call,) = sweep(
        path, lambda: sums.changed_server(total=total), schedules=2
    ).untracked_calls
    assert untracked_call.call == "os.getpid"
    with pytest.raises(BlockedInReplay, match=r"socket\.socket\(\) at test_sweep.py"):
        sweep(path, lambda: sums.changed_server(total=reaching), schedules=2)


# Reports.


def test_long_values_are_cut(sums, path):
    async def total() -> str:
        return "x" * 100_000

    (difference,) = sweep(path, lambda: sums.changed_server(total=total), schedules=1).differences
    assert len(difference.swept) == 300
    assert difference.swept.endswith("x…")


def test_the_report_shows_the_first_differences_and_the_untracked_calls(sums, path):
    report = sweep(path, sums.make_server, schedules=SCHEDULES)
    many = report.differences * SCHEDULES
    untracked_call = UntrackedCall(
        call="time.time", location="at a.py:3", lane="r5", instead="ctx.now()"
    )
    text = sweep_summary(
        msgspec.structs.replace(report, differences=many, untracked_calls=(untracked_call,)),
        "a",
        "b.py",
    )
    assert f"\nand {len(many) - 10} more\n" in text
    assert "\nuntracked call: time.time() at a.py:3 in lane r5: use ctx.now()\n" in text


# Sweeps give the calls of the context their recorded outcomes.


class Rejected(Exception):
    pass


def effectful_server(*, wrong=False, more=False):
    """Return a server whose handler uses all of its context; the options change the handler."""
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
        values = [await fetch("b" if wrong else "a"), configured("x"), str(ctx.patched("new"))]
        values += [ctx.now().isoformat(), str(ctx.uuid4()), str(ctx.random.random())]
        try:
            await fetch("nothing")
        except Rejected as error:
            values.append(str(error))
        with suppress(Rejected):
            configured("nothing")
            values.append("configured")
        await ctx.sleep(0.002)
        with suppress(trio.TooSlowError), ctx.timeout(0.001):
            await ctx.effect(trio.sleep, 1)
            values.append("too late")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch, "for ever")
            await ctx.sleep(0.001)
            nursery.cancel_scope.cancel()
        async with ctx.lock("door"):
            values.append(await ctx.to_thread(str.upper, "c"))
        if more:
            values.append(await fetch("more"))
        return values

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
        async with scripted_session(effectful_server(), path) as ends:
            await ask_everything(*ends)

    trio.run(session)
    return path


@pytest.mark.real_time
def test_calls_of_the_context_get_their_recorded_outcomes(effects):
    report = sweep(effects, effectful_server, schedules=SCHEDULES)
    assert report.differences == ()
    assert report.untracked_calls == ()


def locking_server():
    """Return a server whose two handlers take two locks in opposite order."""
    server, left, right = Server("locks"), trio.Lock(), trio.Lock()

    @effect
    async def fetch(seconds: float) -> None:
        await trio.sleep(seconds)

    async def take(first, second):
        async with first:
            await fetch(0.002)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(enter, second)

    async def enter(lock):
        async with lock:
            await fetch(0.002)

    @server.tool
    async def forth() -> None:
        await take(left, right)

    @server.tool
    async def back() -> None:
        await fetch(0.02)
        await take(right, left)

    return server


def test_the_tasks_of_a_deadlock_are_located(world, tmp_path):
    async def client(peer, _session):
        await peer.handshake()
        for number, name in enumerate(["forth", "back"]):
            await peer.send_request("tools/call", {"name": name}, id=number)
        await peer.receive_many(2)

    path = world.record(locking_server(), tmp_path / "a.mcprec.jsonl", client)
    report = sweep(path, locking_server, strategy="depth-first", schedules=40)
    deadlock = next(each for each in report.differences if each.path == "answer")
    assert [wait.partition(": ")[2] for wait in deadlock.waits] == [
        "async with trio.open_nursery() as nursery:",
        "async with lock:",
    ]
    assert "nothing now; its handler waits at test_sweep.py:" in deadlock.text


def pacing_server():
    """Return a server with a handler whose thread begins, or goes on, after a while."""
    server, door, log = Server("paces"), trio.Lock(), []

    @effect
    async def fetch() -> None:
        await trio.sleep(0.001)

    async def enter(name):
        async with door:
            await fetch()
            log.append(name)

    @server.tool
    def pace(name: str, milliseconds: int) -> None:
        threading.Event().wait(milliseconds / 1000)
        for _ in range(3):
            trio.from_thread.run(enter, name)

    @server.tool
    def order() -> str:
        return "".join(log)

    return server


@pytest.mark.real_time
def test_a_thread_may_be_slow_in_the_recorded_order(tmp_path):
    path = tmp_path / "paces.mcprec.jsonl"

    async def session():
        async with scripted_session(pacing_server(), path) as (peer, _):
            await peer.handshake()
            for number, pace in enumerate([("a", 0), ("b", 40)], 1):
                arguments = dict(zip(["name", "milliseconds"], pace, strict=True))
                params = {"name": "pace", "arguments": arguments}
                await peer.send_request("tools/call", params, id=number)
            await peer.receive_many(2)
            await peer.send_request("tools/call", {"name": "order"}, id=3)
            assert "aaabbb" in str(await peer.receive())

    trio.run(session)
    assert sweep(path, pacing_server, schedules=1).differences == ()
    assert sweep(path, pacing_server, schedules=20).differences


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
    """Return a server whose race shows only in the arguments of an effect without a wait."""
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
    differences = {(each.recorded, each.swept) for each in report.differences}
    assert set() < differences <= {("11", "1"), ("11", "10"), ("1", "11")}
    assert {each.path.rpartition(" ")[2] for each in report.differences} == {"$.arguments.total"}


def test_an_immediate_effect_is_not_performed(world, tmp_path):
    path = world.record(saving_server([]), tmp_path / "saved.mcprec.jsonl", save_by_luck)
    saved = []
    report = sweep(path, lambda: saving_server(saved, more=True), schedules=2)
    assert saved == []
    assert (report.differences[0].recorded, report.differences[0].swept) == ('"work"', '"save"')


def test_an_effect_that_runs_at_the_cut_never_ends(sums, world, tmp_path):
    """If the effect failed, the handler would clear the sum before the other one reads it."""

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


# The recordings that can be swept.


def test_redacted_values_are_not_compared(sums, world, tmp_path):
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
        await peer.send(sums.call(1, "enter", password="swordfish", pin=9137))
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


def test_a_recording_of_a_client_is_rejected(sums, world, path, tmp_path):
    changed = rewritten(world, path, tmp_path, lambda rows: rows[0]["f"].update(role="client"))
    with pytest.raises(RecordingError, match="of role 'client'"):
        sweep(changed, sums.make_server)


def test_a_recording_of_several_sessions_is_rejected(sums, world, tmp_path):
    with SharedRecording(tmp_path / "shared.mcprec.jsonl") as shared:
        world.record(sums.make_server(), shared, talk_shortly)
    with pytest.raises(RecordingError, match="one session"):
        sweep(tmp_path / "shared.mcprec.jsonl", sums.make_server)


async def talk_shortly(peer, session):
    await peer.handshake()


def test_a_cut_recording_is_swept_up_to_the_cut(sums, world, path, tmp_path):
    lines = path.read_bytes().splitlines()
    first = next(at for at, line in enumerate(lines) if b'"result":{"content"' in line)
    for count in range(1, len(lines)):
        cut = world.rewrite(path, tmp_path / "cut.jsonl", lambda rows, n=count: rows[:n])
        if count > first:
            assert sweep(cut, lambda: sums.make_server(exclusive=True), schedules=1).is_clean
        else:
            with pytest.raises(NothingCompared, match="nothing would be compared"):
                sweep(cut, sums.make_server, schedules=1)


def test_damage_of_the_file_is_in_the_report(sums, world, path, tmp_path):
    changed = rewritten(world, path, tmp_path, lambda rows: rows[0]["f"].update(name="other"))
    report = sweep(changed, lambda: sums.make_server(exclusive=True), schedules=1)
    assert report.is_clean
    (note,) = report.notes
    assert "a line between the last digest and this record was changed" in note
    assert f"\nnote: {note}" in sweep_summary(report, "a", "b.py")


def test_invalid_messages_are_delivered(sums, world, tmp_path):
    async def talk(peer, session):
        await peer.handshake()
        await peer.send(b"{", b"[" * 5000, {"id": 1, "method": "ping"})
        await peer.send(sums.call(2, "total"))
        while (await peer.receive()).get("id") != 2:
            pass

    path = world.record(sums.make_server(), tmp_path / "bad.mcprec.jsonl", talk)
    assert sweep(path, sums.make_server, schedules=3).is_clean


# The processes of a sweep.

FORKS = 8


@pytest.mark.slow
def test_each_fork_starts_with_new_state_and_finds_the_same_differences(sums, path):
    assert sweep_forked(
        path, sums.make_server(exclusive=True), SweepOptions(schedules=FORKS)
    ).is_clean
    here = sweep(path, sums.make_server, schedules=FORKS)
    forked = sweep_forked(path, sums.make_server(), SweepOptions(schedules=FORKS))
    assert forked.differences == here.differences != ()
    assert forked.outcomes == here.outcomes > 1


@pytest.mark.slow
def test_a_failing_fork_reports_its_error(path):
    class Broken:
        limits = Limits()

        @property
        def _sessions(self):
            return self

        def open_session(self, *_, **__):
            raise ZeroDivisionError("not today")

    with pytest.raises(SweepUnavailable, match="not today"):
        sweep_forked(path, Broken(), SweepOptions(schedules=1))


@pytest.mark.slow
def test_a_system_without_fork_is_rejected(sums, path, monkeypatch):
    monkeypatch.delattr("os.fork")
    with pytest.raises(SweepUnavailable, match="cannot fork"):
        sweep_forked(path, sums.make_server(), SweepOptions())


@pytest.mark.slow
def test_a_fork_that_the_system_refuses_is_an_error_and_leaves_no_pipe(sums, path, monkeypatch):
    pipes, make_pipe = [], os.pipe

    def pipe():
        pipes.append(make_pipe())
        return pipes[-1]

    def fork():
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "pipe", pipe)
    monkeypatch.setattr(os, "fork", fork)
    with pytest.raises(SweepUnavailable, match="no process can be started: Resource"):
        sweep_forked(path, sums.make_server(), SweepOptions(schedules=1))
    for descriptor in pipes[0]:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


@pytest.mark.slow
def test_an_error_of_the_sweep_process_is_raised(path):
    with pytest.raises(
        SweepUnavailable, match=r"(?s)exited with status 2: .*no/such\.py: no such file"
    ):
        sweep(path, "no/such.py", seed=3)


@pytest.mark.slow
def test_invalid_arguments_of_a_sweep_process_raise_here(path, tmp_path):
    with pytest.raises(RecordingError, match="cannot read"):
        sweep(tmp_path / "none.jsonl", "no/such.py")
    with pytest.raises(ValueError, match="schedules must be at least 1"):
        sweep(path, "no/such.py", schedules=0)
    other = Schedule(recording="other.mcprec.jsonl", digest="0", deviations=())
    with pytest.raises(RecordingError, match="the schedule belongs to 'other"):
        sweep(path, "no/such.py", schedule=other)


@pytest.mark.slow
def test_output_of_the_server_is_kept_out_of_the_report(path, tmp_path):
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


@pytest.mark.slow
def test_remaining_forks_are_killed_after_an_interrupt(sums, path, monkeypatch):
    forks, waits = [], []
    fork_process = sweeping._fork

    def fork(*args, **options):
        forks.append(fork_process(*args, **options))
        return forks[-1]

    class Dying(sweeping._Fork):
        def result(self):
            waits.append(self)
            if len(waits) == 2:
                raise KeyboardInterrupt
            return super().result()

    monkeypatch.setattr(sweeping, "_fork", fork)
    monkeypatch.setattr(sweeping, "_Fork", Dying)
    monkeypatch.setattr(sweeping, "_PROCESSES_MAX", 3)
    with pytest.raises(KeyboardInterrupt):
        sweep_forked(path, sums.make_server(), SweepOptions(schedules=6))
    os.waitpid(waits[1].process, 0)  # was being waited for
    assert len(forks) > 2
    for each in forks:
        with pytest.raises(ChildProcessError):
            os.waitpid(each.process, os.WNOHANG)


@pytest.mark.slow
def test_a_trio_without_the_flag_is_rejected(sums, path, monkeypatch):
    monkeypatch.delattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING")
    with pytest.raises(SweepUnavailable, match="Trio"):
        sweep(path, sums.make_server)


@pytest.mark.slow
def test_the_flag_is_restored_after_a_sweep(sums, path):
    from trio._core import _run

    before = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()
    sweep(path, sums.make_server, schedules=2)
    assert (_run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"schedules": 0}, "schedules must be at least 1"),
        ({"bound": 0}, "the bound"),
        ({"strategy": "luck"}, "unknown strategy 'luck': use one of random, pct, depth-first"),
        ({"strategy": "depth-first", "seed": 3}, "no seeds"),
    ],
)
def test_invalid_options_are_rejected(sums, path, options, text):
    with pytest.raises(ValueError, match=text):
        sweep(path, sums.make_server, **options)
