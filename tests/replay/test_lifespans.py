"""The lifespan runs again in a replay, if the recording holds all its sessions."""

import contextlib
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
from contextvars import ContextVar
from functools import partial

import pytest
import trio
from memory_sessions import scripted_session

from mcp_trio import Context, Server, effect
from mcp_trio._replay.many_replays import remarks_of
from mcp_trio._replay.replay import run_replay
from mcp_trio._replay.replayer import Stop
from mcp_trio._replay.targets import fresh_server
from mcp_trio._replay.trace import load_trace
from mcp_trio._server.sessions import HandlerHttpClient, sessions_of
from mcp_trio._session.lanes import LANE
from mcp_trio._session.tasks import seeded_schedule
from mcp_trio.errors import BlockedInReplay, NothingCompared, RecordingError, ReplayDivergence
from mcp_trio.recording import (
    RecordOptions,
    Redaction,
    SharedRecording,
    TickClock,
    replay,
    sweep,
)
from mcp_trio.testing import WirePeer, mock_server
from mcp_trio.transports import memory_pair

RAN_AGAIN = "the lifespan ran again"


def serving(lifespan, handler=None, **options):
    """Return a server with the tool `run`; by default it returns the value of the lifespan."""
    server = Server("hub", lifespan=lifespan, **options)

    async def value(ctx: Context) -> str:
        return str(ctx.lifespan)

    server.tool(name="run")(handler or value)
    return server


def call(number):
    return {"id": number, "method": "tools/call", "params": {"name": "run", "arguments": {}}}


async def call_twice(peer, session):
    await peer.handshake()
    await peer.send(call(1), call(2))
    await peer.receive_many(2)


@pytest.fixture
def record(tmp_path):
    def make(server, client=call_twice, *, around=contextlib.nullcontext, **options):
        path = tmp_path / "a.mcprec.jsonl"
        path.unlink(missing_ok=True)

        async def talk():
            with around():
                async with scripted_session(server, RecordOptions(path, **options)) as ends:
                    await client(*ends)

        trio.run(talk, clock=TickClock())
        return path

    return make


def assert_replays(path, make_server, **options):
    for number in range(10):
        with seeded_schedule(number):
            report = replay(path, make_server(), **options)
        assert report.is_complete
        assert report.lifespan == RAN_AGAIN


def marks(world, path):
    """Return the values of the marks without a lane, by name."""
    found = [
        record for record in world.records(path) if record["k"] == "mark" and "l" not in record
    ]
    return {record["f"]["name"]: record["f"]["value"] for record in found}


def lanes(world, path):
    records = world.records(path)
    stepped = [lane for each in records if each["k"] == "step" for lane in each["f"]["lanes"]]
    return {str(lane) for lane in [*stepped, *(each.get("l") for each in records)]}


RUNS = []


@effect
async def fetch(number: int) -> int:
    RUNS.append(number)
    await trio.sleep(0.001)
    return number * 10


# Handlers and workers.


def make_exchange():
    """Return a server whose handlers get answers from workers of the lifespan."""

    @contextlib.asynccontextmanager
    async def lifespan(_):
        send, receive = trio.open_memory_channel(0)
        total = await fetch(1)

        async def work():
            nonlocal total
            async for reply in receive:
                before = total
                await trio.sleep(0)
                total = before + await fetch(before)  # A race with the other worker.
                reply.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            nursery.start_soon(work)
            yield send, lambda: total
            nursery.cancel_scope.cancel()

    async def handler(ctx: Context) -> int:
        send, total = ctx.lifespan
        reply = trio.Event()
        await send.send(reply)
        await reply.wait()
        return total()

    return serving(lifespan, handler)


def test_handlers_and_workers_of_the_lifespan_meet_in_the_recorded_order(record):
    path = record(make_exchange())
    ran = len(RUNS)
    assert_replays(path, make_exchange)
    assert len(RUNS) == ran


async def call_from_each_of_three_clients(peer, session):
    for _ in range(3):
        await call_twice(peer, session)


def test_a_lifespan_outlives_the_clients_that_initialize_one_after_the_other(
    world, record, tmp_path
):
    path = record(make_exchange(), call_from_each_of_three_clients, redaction=Redaction())
    negotiated = [each for each in world.records(path) if "negotiated" in str(each.get("f"))]
    assert len(negotiated) == 3
    assert_replays(path, make_exchange)
    for length in range(2, len(world.records(path)), 5):
        cut = world.rewrite(path, tmp_path / "cut.mcprec.jsonl", lambda lines, n=length: lines[:n])
        with contextlib.suppress(NothingCompared):
            assert not replay(cut, make_exchange()).is_complete


def test_the_mock_of_a_session_that_begins_again_answers_each_client_as_recorded(world, record):
    path = record(make_exchange(), call_from_each_of_three_clients)

    async def answers():
        ours, theirs = memory_pair()
        peer = WirePeer(theirs)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mock_server(path).serve, ours)
            await call_from_each_of_three_clients(peer, None)
            nursery.cancel_scope.cancel()
        return sorted(map(bytes, peer.received))

    recorded = [
        json.loads(line)["f"] for line in path.read_text().splitlines() if '"k":"out"' in line
    ]
    assert sorted(map(json.loads, trio.run(answers)), key=str) == sorted(recorded, key=str)


def test_outbound_mode_runs_the_lifespan_too(record):
    assert_replays(record(make_exchange()), make_exchange, mode="outbound")


def test_a_recording_that_was_cut_anywhere_replays_up_to_the_cut(world, record, tmp_path):
    path = record(make_exchange())
    for length in range(2, len(world.records(path))):
        cut = world.rewrite(path, tmp_path / "cut.mcprec.jsonl", lambda lines, n=length: lines[:n])
        with contextlib.suppress(NothingCompared):
            assert not replay(cut, make_exchange()).is_complete


def test_a_lifespan_sees_its_own_steps_only_while_it_is_recorded(record):
    seen = []

    @contextlib.asynccontextmanager
    async def lifespan(_):
        seen.append(LANE.get())
        yield

    async def handler() -> None: ...

    record(serving(lifespan, handler))
    (lane,) = seen
    assert lane.name == "lifespan"

    async def unrecorded():
        ours, theirs = memory_pair()
        await theirs.aclose()
        await serving(lifespan, handler).serve(ours)

    trio.run(unrecorded)
    assert seen == [lane, None]


VARIABLE = ContextVar("variable", default="unset")


def test_handlers_see_context_variables_that_the_lifespan_has_set(record):
    @contextlib.asynccontextmanager
    async def lifespan(_):
        VARIABLE.set("set")
        yield

    async def handler() -> str:
        return f"{VARIABLE.get()} {LANE.get().name[0]}"

    make_server = partial(serving, lifespan, handler)
    assert_replays(record(make_server()), make_server)


def test_a_task_in_a_nursery_that_another_request_opened_replays(record):
    def make_server():
        found, rooms = [], []

        async def visit(number: int) -> None:
            await trio.sleep(0)
            found.append(number)

        async def handler(ctx: Context) -> list[int]:
            number = len(found)
            async with trio.open_nursery() as room:
                rooms.append(room)
                for each in rooms:
                    each.start_soon(visit, number)
                await fetch(number)
            rooms.remove(room)
            return found

        return serving(None, handler)

    path = record(make_server())
    for number in range(10):
        with seeded_schedule(number):
            assert replay(path, make_server()).is_complete


def test_a_task_of_the_lifespans_nursery_that_a_handler_started_replays_after_the_session(
    world, record
):
    def make_server():
        noted = []

        @contextlib.asynccontextmanager
        async def lifespan(_):
            async with trio.open_nursery() as nursery:
                yield nursery
                await fetch(2)
            assert noted == ["late", "late"]

        async def outlive() -> None:
            await trio.sleep(0.05)
            noted.append("late")

        async def handler(ctx: Context) -> None:
            ctx.lifespan.start_soon(outlive)

        return serving(lifespan, handler)

    path = record(make_server())
    ended = world.place_of(path, lambda each: each["k"] == "mark" and each["f"]["name"] == "ended")
    assert any("r" in str(each) for each in world.records(path)[ended:] if each["k"] == "step")
    assert_replays(path, make_server)


# The end.


@pytest.mark.parametrize("fails_at", ["start", "worker", "end"])
def test_a_lifespan_that_fails_is_reported_as_without_a_recording_and_replays(
    world, tmp_path, fails_at
):
    path = tmp_path / "a.mcprec.jsonl"

    def make_server():
        @contextlib.asynccontextmanager
        async def lifespan(_):
            if fails_at == "start":
                raise ZeroDivisionError(await fetch(1))
            async with trio.open_nursery() as nursery:
                yield nursery
                if fails_at == "end":
                    raise ZeroDivisionError(await fetch(2))

        async def fail() -> None:
            raise ZeroDivisionError(await fetch(3))

        async def handler(ctx: Context) -> None:
            if fails_at == "worker":
                ctx.lifespan.start_soon(fail)

        return serving(lifespan, handler)

    async def talk(record):
        ours, theirs = memory_pair()
        peer = WirePeer(theirs)
        async with trio.open_nursery() as nursery:

            async def serve():
                try:
                    await make_server().serve(ours, record=record)
                except* ZeroDivisionError as group:
                    errors.append(str(group.exceptions))
                peer_scope.cancel()

            nursery.start_soon(serve)
            with trio.CancelScope() as peer_scope:
                with contextlib.suppress(EOFError):
                    await call_twice(peer, None)
                await peer.aclose()
                await trio.sleep_forever()

    errors = []
    trio.run(talk, None, clock=TickClock())
    trio.run(talk, path, clock=TickClock())
    recorded, unrecorded = errors
    assert recorded == unrecorded
    assert world.records(path)[-1]["k"] == "end"
    if fails_at == "start":
        with pytest.raises(NothingCompared):
            replay(path, make_server())
    else:
        assert_replays(path, make_server)


def test_a_server_that_is_cancelled_cancels_its_lifespan_at_the_recorded_moment(world, record):
    def make_server():
        @contextlib.asynccontextmanager
        async def lifespan(_):
            counted = []

            async def work():
                while True:
                    await trio.sleep(0.0005)
                    counted.append(1)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(work)
                try:
                    yield
                except trio.Cancelled:
                    with trio.CancelScope(shield=True):
                        await fetch(len(counted))
                    raise

        return serving(lifespan)

    scope = trio.CancelScope()

    async def cancel(peer, session):
        await call_twice(peer, session)
        scope.cancel()

    path = record(make_server(), cancel, around=lambda: scope)
    assert "lifespan cancelled" in marks(world, path)
    assert_replays(path, make_server)


SLOW = """
import contextlib, math, random, sys
import trio
from mcp_trio import Context, Limits, Server, effect
from mcp_trio.limits import ShutdownLimits


@effect
async def fetch(number: int) -> float:
    await trio.sleep(random.random() / 1000)
    return random.random()


@contextlib.asynccontextmanager
async def lifespan(_):
    found = [await fetch(0)]

    async def work():
        while True:
            await trio.sleep(0.002)
            found.append(await fetch(len(found)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        nursery.start_soon(work)
        yield found
        try:
            await trio.sleep(EXIT_SECONDS)
        finally:
            with trio.CancelScope(shield=True):
                await fetch(-1)
            nursery.cancel_scope.cancel()


server = Server("slow", lifespan=lifespan, limits=Limits(shutdown=ShutdownLimits(close_seconds=0.2)))


@server.tool
async def run(ctx: Context) -> list[float]:
    await trio.sleep(0.01)
    return ctx.lifespan


if __name__ == "__main__":
    server.run(record=sys.argv[1])
"""


@pytest.fixture
def slow_process(tmp_path):
    """Start the server above; return its process after two calls, and the paths of both files."""
    processes = []

    def start(exit_seconds):
        file, path = tmp_path / "slow.py", tmp_path / "slow.mcprec.jsonl"
        file.write_text(SLOW.replace("EXIT_SECONDS", str(exit_seconds)))
        process = subprocess.Popen(
            [sys.executable, file, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        processes.append(process)
        info = {"name": "peer", "version": "0"}
        opening = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
        for message in (
            {"id": 0, "method": "initialize", "params": opening},
            {"method": "notifications/initialized"},
            call(1),
            call(2),
        ):
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        process.stdin.flush()
        for _ in range(3):
            assert process.stdout.readline()
        return process, file, path

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.mark.parametrize(
    ("ending", "exit_seconds"),
    [
        ("eof", 0),
        pytest.param("eof", "math.inf", marks=pytest.mark.slow),
        pytest.param("SIGTERM", 0, marks=pytest.mark.slow),
        ("SIGTERM", "math.inf"),
        pytest.param("SIGKILL", 0, marks=pytest.mark.slow),
        pytest.param("SIGKILL", "math.inf", marks=pytest.mark.slow),
    ],
)
def test_a_process_replays_however_it_ended(world, slow_process, ending, exit_seconds):
    process, file, path = slow_process(exit_seconds)
    if ending == "eof":
        process.stdin.close()
    else:
        process.send_signal(getattr(signal, ending))
    process.wait(timeout=30)
    is_complete = ending != "SIGKILL"
    if is_complete:
        assert world.records(path)[-1]["k"] == "end"
        assert ("lifespan cancelled" in marks(world, path)) is (exit_seconds != 0)
    for number in range(5):
        with fresh_server(str(file)) as server, seeded_schedule(number):
            report = replay(path, server)
        assert report.is_complete is is_complete
        assert report.requests == 2
        assert remarks_of(report) == [RAN_AGAIN]  # The command prints these.


def test_a_keyboard_interrupt_ends_the_lifespan_and_leaves_a_recording_that_is_cut(
    world, record, tmp_path
):
    @contextlib.asynccontextmanager
    async def lifespan(_):
        try:
            yield await fetch(1)
        finally:
            with trio.CancelScope(shield=True):
                await fetch(2)

    async def raise_interrupt():
        raise KeyboardInterrupt

    async def interrupt(peer, session):
        await call_twice(peer, session)
        session.start_actor(raise_interrupt)

    ran = len(RUNS)
    with pytest.raises(BaseExceptionGroup) as caught:
        record(serving(lifespan), interrupt)
    assert caught.value.subgroup(KeyboardInterrupt)
    assert RUNS[ran:] == [1, 2]
    assert world.records(tmp_path / "a.mcprec.jsonl")[-1]["k"] != "end"


# What a lifespan does by itself.


def opening_a_file(path):
    @contextlib.asynccontextmanager
    async def lifespan(_):
        await fetch(6)
        with open(path, "a") as file:  # noqa: PTH123  reported by this name
            yield file

    return lifespan


async def passing_on(ctx: Context) -> int:
    @effect
    async def write(file: object) -> int:
        return 1

    return await write(ctx.lifespan)


@pytest.mark.parametrize("strict", [False, True])
def test_a_lifespan_that_opens_a_file_is_replaced(world, record, tmp_path, caplog, strict):
    target = tmp_path / "log.txt"
    make_server = partial(serving, opening_a_file(target), passing_on)
    with caplog.at_level(logging.INFO, "mcp_trio"):
        path = record(make_server(), strict=strict)
    call = f"open({str(target)!r}) at test_lifespans.py"
    assert call in caplog.text
    assert "a replay uses a stand-in for its value" in caplog.text
    opened = marks(world, path)["lifespan opened"]
    assert (opened["call"], opened["target"]) == ("open", str(target))
    # The recording holds nothing of the lifespan from then on.
    begin = world.place_of(
        path, lambda each: each.get("f", {}) == {"name": "lifespan opened"} | {"value": opened}
    )
    assert not any(each.get("l") == "lifespan" for each in world.records(path)[begin:])
    target.unlink()
    report = replay(path, make_server())
    assert report.is_complete
    assert report.lifespan.startswith(
        f"the lifespan was replaced by a stand-in: it opened something by itself, {call}:"
    )
    assert not target.exists()


def test_a_worker_that_opens_something_later_lets_the_lifespan_be_replaced(record):
    def make_server():
        @contextlib.asynccontextmanager
        async def lifespan(_):
            async def work():
                await trio.sleep(0.001)
                sqlite3.connect(":memory:").close()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(work)
                yield nursery
                nursery.cancel_scope.cancel()

        async def handler(ctx: Context) -> None:
            await fetch(7)
            await trio.sleep(0.005)

        return serving(lifespan, handler)

    path = record(make_server())
    assert "sqlite3.connect(':memory:')" in replay(path, make_server()).lifespan


def test_a_use_of_the_stand_in_is_explained_by_what_the_lifespan_has_opened(record, tmp_path):
    make_server = partial(serving, opening_a_file(tmp_path / "log.txt"))
    path = record(make_server())
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server())
    assert caught.value.kind == "blocked"
    assert "the lifespan did not run again, because it opened something by itself" in str(
        caught.value
    )


def test_what_a_lifespan_reads_is_noted_and_named_by_a_divergence(world, record, monkeypatch):
    @contextlib.asynccontextmanager
    async def lifespan(_):
        yield os.environ["HARBOUR"]

    monkeypatch.setenv("HARBOUR", "open")
    make_server = partial(serving, lifespan)
    path = record(make_server())
    noted = marks(world, path)["untracked"]
    assert (noted["call"], noted["target"], noted["lane"]) == ("os.environ", "HARBOUR", "lifespan")
    assert_replays(path, make_server)
    monkeypatch.delenv("HARBOUR")
    with pytest.raises(ReplayDivergence, match=r"cause:.*os\.environ\('HARBOUR'\)"):
        replay(path, make_server())


def test_a_changed_lifespan_diverges(record):
    def lifespan_with(*numbers, error=None):
        @contextlib.asynccontextmanager
        async def lifespan(_):
            await fetch(numbers[0])
            yield
            await fetch(numbers[1])
            if error is not None:
                raise error

        return lifespan

    path = record(serving(lifespan_with(1, 2)))
    assert replay(path, serving(lifespan_with(1, 2))).is_complete
    for changed, lane in (
        (lifespan_with(3, 2), "lifespan"),
        (lifespan_with(1, 3), "lifespan"),
        (lifespan_with(1, 2, error=ValueError("new")), "lifespan"),
        (None, "lifespan"),
    ):
        for all_divergences in (False, True):
            with pytest.raises(ReplayDivergence) as caught:
                replay(path, serving(changed), all_divergences=all_divergences)
            assert caught.value.lane == lane
            assert caught.value.later == []


@pytest.mark.parametrize("all_divergences", [False, True])
def test_a_lifespan_that_waits_longer_before_its_yield_diverges(record, all_divergences):
    def lifespan_with(*numbers):
        @contextlib.asynccontextmanager
        async def lifespan(_):
            for number in numbers:
                await fetch(number)
            yield

        return lifespan

    path = record(serving(lifespan_with(1)))
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, serving(lifespan_with(1, 2)), all_divergences=all_divergences)
    assert caught.value.lane == "lifespan"


def test_a_session_whose_recorded_lifespan_is_no_number_has_none(world, record, tmp_path):
    path = record(make_exchange())

    def change(lines):
        return [line.replace(b'"lifespan":0', b'"lifespan":[0]') for line in lines]

    assert load_trace(path).lifespan_of
    changed = world.rewrite(path, tmp_path / "changed.mcprec.jsonl", change)
    assert load_trace(changed).lifespan_of == {}


def test_a_replay_stops_at_any_record_of_a_lifespan(world, record):
    scope = trio.CancelScope()

    async def client(peer, session):
        await call_twice(peer, session)
        scope.cancel()

    path = record(make_exchange(), client, around=lambda: scope)
    assert marks(world, path).keys() >= {"session", "lifespan", "lifespan cancelled"}
    recorded = world.records(path)[1:]
    ended = world.place_of(path, lambda each: "'name': 'ended'" in str(each))
    with pytest.raises(RecordingError, match=f"stop at record {ended + 1} instead"):
        run_replay(path, make_exchange(), stop=Stop(ended, print))
    for number in {each["n"] for each in recorded} - {ended}:
        stopped = []
        report = run_replay(path, make_exchange(), stop=Stop(number, stopped.append))
        assert report is not None
        assert report.lifespan == RAN_AGAIN
        (at,) = stopped
        assert str(at).startswith(f"stopped at record {number} of ")
        stop = Stop(number, lambda at: at.end())
        assert run_replay(path, make_exchange(), stop=stop) is None


def test_a_lifespan_that_is_given_takes_the_place_of_the_recorded_one(record):
    @contextlib.asynccontextmanager
    async def lifespan(_):
        yield await fetch(8)

    @contextlib.asynccontextmanager
    async def given(_):
        yield 80

    path = record(serving(lifespan))
    report = replay(path, serving(None), lifespan=given)
    assert report.lifespan == "the lifespan that was passed to the replay was entered"


# Recordings of several sessions.


def make_counter():
    @contextlib.asynccontextmanager
    async def lifespan(_):
        counted = [0]

        async def work():
            while True:
                await trio.sleep(0.001)
                counted[0] += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            yield counted
            nursery.cancel_scope.cancel()

    async def handler(ctx: Context) -> int:
        await fetch(9)
        ctx.lifespan[0] += 100
        return ctx.lifespan[0]

    return serving(lifespan, handler)


@contextlib.asynccontextmanager
async def serving_two(server, record):
    """Serve two sessions at once within one lifespan."""
    sessions = sessions_of(server)
    async with (
        sessions.enter_lifespan(record, transport="memory") as lifespan,
        HandlerHttpClient(1) as http,
        trio.open_nursery() as nursery,
    ):
        peers = []
        for _ in range(2):
            ours, theirs = memory_pair()
            serve = partial(sessions.serve_session, lifespan=lifespan, http=http)
            await nursery.start(serve, ours)
            peers.append(WirePeer(theirs))
        yield peers


async def call_from_two(server, record):
    async with serving_two(server, record) as peers, trio.open_nursery() as nursery:
        for peer in peers:

            async def talk(peer=peer):
                await call_twice(peer, None)
                await peer.aclose()

            nursery.start_soon(talk)


def test_a_shared_recording_holds_the_lifespan_of_its_sessions(world, tmp_path):
    path = tmp_path / "a.mcprec.jsonl"

    async def main():
        with SharedRecording(path) as shared:
            await call_from_two(make_counter(), shared)

    trio.run(main, clock=TickClock())
    begun = [each for each in world.records(path) if "transport" in str(each.get("f", {}))][1:]
    assert [(each["c"], each["f"]["value"]["lifespan"]) for each in begun] == [(1, 0), (2, 0)]
    assert_replays(path, make_counter)


def test_sessions_of_a_shared_recording_may_each_have_a_lifespan(tmp_path):
    path = tmp_path / "a.mcprec.jsonl"

    async def main():
        with SharedRecording(path) as shared:
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(call_from_two, server, shared)

    server = make_counter()
    trio.run(main, clock=TickClock())
    assert_replays(path, make_counter)


def test_a_recording_of_one_session_of_several_has_the_stand_in(world, tmp_path):
    trio.run(call_from_two, make_counter(), f"{tmp_path}/", clock=TickClock())
    for path in tmp_path.iterdir():
        assert "lifespan" not in lanes(world, path)
        with pytest.raises(
            ReplayDivergence, match="sessions of the process together with SharedRecording"
        ):
            replay(path, make_counter())


# Other uses of such a recording.


def test_a_sweep_leaves_the_lifespan_out(record):
    async def handler() -> int:
        return await fetch(1)

    @contextlib.asynccontextmanager
    async def lifespan(_):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch, 2)
            yield await fetch(3)

    make_server = partial(serving, lifespan, handler)
    assert sweep(record(make_server()), make_server, schedules=3).is_clean


def test_a_sweep_of_handlers_that_use_the_lifespan_is_refused(record):
    with pytest.raises(
        BlockedInReplay, match=r"a sweep does not run .*: ctx\.lifespan was used at"
    ):
        sweep(record(make_exchange()), make_exchange, schedules=3)


def test_passwords_of_a_tool_that_the_lifespan_registers_are_redacted(world, record):
    def make_server():
        @contextlib.asynccontextmanager
        async def lifespan(server):
            @server.tool
            async def enter(password: str) -> str:
                return f"welcome {password}"

            yield

        return serving(lifespan)

    async def client(peer, session):
        await peer.handshake()
        arguments = {"name": "enter", "arguments": {"password": "correct horse"}}
        await peer.send_request("tools/call", arguments, id=1)
        await peer.receive()

    path = record(make_server(), client, redaction=Redaction())
    assert b"correct horse" not in path.read_bytes()
    assert_replays(path, make_server)
