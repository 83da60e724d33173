"""Handlers in plain Trio replay, generated ones too, and changes of them that matter are found."""

import contextlib
import random
from contextvars import ContextVar, copy_context

import pytest
import trio
from memory_sessions import scripted_session

from mcp_trio import Context, Server, effect
from mcp_trio._replay.trace import load_trace
from mcp_trio._session.tasks import seeded_schedule
from mcp_trio.errors import NothingCompared, ReplayDivergence
from mcp_trio.recording import TickClock, replay
from tests.replay import generated_lifespans, generated_programs


@effect
async def fetch(number: int) -> int:
    await trio.sleep(random.random() / 1000)
    return number * 10


async def talk(server, path, client):
    async with scripted_session(server, path) as (peer, _):
        await peer.handshake()
        await client(peer)


@pytest.fixture
def record(tmp_path):
    def make(server, client):
        path = tmp_path / "a.mcprec.jsonl"
        trio.run(talk, server, path, client, clock=TickClock())
        return path

    return make


def assert_replays(path, make_server):
    for number in range(20):
        with seeded_schedule(number):
            assert replay(path, make_server()).is_complete


async def call_twice(peer):
    for number in range(2):
        await peer.send_request("tools/call", {"name": "run", "arguments": {}}, id=number)
    await peer.receive_many(2)


def make_fan_out(limit, *, notes_before=False):
    def make_server():
        server, found = Server("fan out"), []

        @server.tool
        async def run() -> list[int]:
            capacity = limit()

            async def one(number: int) -> None:
                if notes_before:
                    found.append(-number)
                async with capacity:
                    found.append(await fetch(number))

            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(one, number)
            return found

        return server

    return make_server


@pytest.mark.parametrize("notes_before", [False, True])
@pytest.mark.parametrize(
    "limit", [lambda: trio.CapacityLimiter(2), lambda: trio.Semaphore(2), trio.Lock]
)
def test_a_fan_out_replays(record, limit, notes_before):
    make_server = make_fan_out(limit, notes_before=notes_before)
    assert_replays(record(make_server(), call_twice), make_server)


def make_lock_across_requests():
    server, lock, order = Server("lock"), trio.Lock(), []

    @server.tool
    async def run() -> list[int]:
        await trio.lowlevel.checkpoint()
        async with lock:
            order.append(len(order))
            await trio.sleep(0.001)
            order.append(-len(order))
        return order

    return server


def test_a_lock_across_requests_replays(record):
    assert_replays(record(make_lock_across_requests(), call_twice), make_lock_across_requests)


def make_clean_up(*, is_shielded):
    def make_server():
        server = Server("clean up")

        @server.tool
        async def run(*, ctx: Context) -> None:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=is_shielded):
                    await fetch(1)

        return server

    return make_server


async def call_and_cancel(peer):
    await peer.send_request("tools/call", {"name": "run", "arguments": {}}, id=1)
    await trio.sleep(0.002)
    await peer.cancel(1)
    await trio.sleep(0.01)


@pytest.mark.parametrize("is_shielded", [True, False])
def test_a_shield_that_was_removed_or_added_is_a_divergence(record, is_shielded):
    make_server = make_clean_up(is_shielded=is_shielded)
    path = record(make_server(), call_and_cancel)
    assert_replays(path, make_server)
    with pytest.raises(ReplayDivergence, match="cancelled") as caught:
        replay(path, make_clean_up(is_shielded=not is_shielded)())
    assert caught.value.lane is not None


def make_limited(seconds, sleep_seconds):
    def make_server():
        server = Server("limited")

        @server.tool
        async def run(*, ctx: Context) -> str:
            with trio.move_on_after(seconds):
                await trio.sleep(sleep_seconds)
                return "slept"
            return "too late"

        return server

    return make_server


# The times are far apart, because a turn of the event loop may be late by some milliseconds.
@pytest.mark.parametrize(
    ("seconds", "changed", "sleep_seconds"),
    [(0.005, 30.0, 20.0), (1.0, 0.005, 0.02), (0.005, 10.0, 20.0)],
)
def test_another_timeout_is_a_divergence(record, seconds, changed, sleep_seconds):
    path = record(make_limited(seconds, sleep_seconds)(), call_twice)
    assert_replays(path, make_limited(seconds, sleep_seconds))
    with pytest.raises(ReplayDivergence):
        replay(path, make_limited(changed, sleep_seconds)())


def make_hurried(seconds):
    def make_server():
        server = Server("hurried")

        @server.tool
        async def run(*, ctx: Context) -> int:
            with ctx.timeout(seconds):
                return await fetch(1)

        return server

    return make_server


def test_a_timeout_that_is_now_shorter_than_an_effect_is_a_divergence(record):
    path = record(make_hurried(1)(), call_twice)
    assert_replays(path, make_hurried(1))
    with pytest.raises(ReplayDivergence):
        replay(path, make_hurried(0)())


def make_notified():
    server, notified = Server("notified"), trio.Event()

    @server.method("notifications/acme/tick")
    async def tick() -> None:
        await trio.sleep(0.001)
        notified.set()

    @server.tool
    async def run() -> str:
        with trio.move_on_after(0.01) as scope:
            await notified.wait()
        return "too late" if scope.cancelled_caught else "told"

    return server


async def call_and_notify(peer):
    for number in range(3):
        await peer.send_request("tools/call", {"name": "run", "arguments": {}}, id=number)
        await trio.sleep(0.0005)
        await peer.send_notification("notifications/acme/tick")
    await peer.receive_many(3)


def test_a_handler_of_notifications_wakes_a_request_again(record):
    assert_replays(record(make_notified(), call_and_notify), make_notified)


# Async generators that a handler drops before their end.


def make_system_tasks():
    server, seen = Server("system tasks"), []
    variable = ContextVar("variable", default="none")

    @server.tool
    async def run() -> list[object]:
        variable.set("of the handler")
        token, done = trio.lowlevel.current_trio_token(), trio.Event()

        async def work(number):
            seen.append([number, await fetch(number), variable.get()])
            await trio.sleep(0.0005)
            seen.append(-number)
            if number == 3:
                token.run_sync_soon(done.set)

        for number in (1, 2, 3):
            trio.lowlevel.spawn_system_task(work, number)
            token.run_sync_soon(seen.append, number * 100)
            token.run_sync_soon(seen.append, number * 1000, idempotent=True)
            await fetch(4)
        trio.lowlevel.spawn_system_task(work, 5, context=copy_context(), name="named")
        await done.wait()
        return seen

    return server


def test_system_tasks_and_callbacks_of_a_handler_replay(record):
    path = record(make_system_tasks(), call_twice)
    assert_replays(path, make_system_tasks)
    assert b"none" in path.read_bytes()  # they have the context variables of the run


def test_a_system_task_with_a_given_context_may_wait_at_the_end(record):
    @effect
    async def wait() -> None:
        await trio.sleep_forever()

    def make_server():
        server = Server("waits")

        @server.tool
        async def run() -> int:
            trio.lowlevel.spawn_system_task(wait, context=copy_context())
            return await fetch(1)

        return server

    assert_replays(record(make_server(), call_twice), make_server)


@pytest.mark.parametrize("spawns", [True, False])
def test_a_system_task_or_callback_of_a_handler_changes_nothing_in_a_replay(
    record, tmp_path, caplog, spawns
):
    def make_server(word="done"):
        server = Server("writes")

        async def write():
            (tmp_path / "written").write_text(word)

        @server.tool
        async def run() -> str:
            if spawns:
                trio.lowlevel.spawn_system_task(write)
            else:
                token = trio.lowlevel.current_trio_token()
                token.run_sync_soon((tmp_path / "written").write_text, word)
            await fetch(1)
            for _ in range(5):  # The task or callback begins some turns of the event loop later.
                await trio.sleep(0.0005)
            return word

        return server

    path = record(make_server(), call_twice)
    (tmp_path / "written").unlink()
    report = replay(path, make_server())
    assert not (tmp_path / "written").exists()
    assert [call.call for call in report.untracked_calls] == ["pathlib.Path.write_text"] * 2
    assert "a system task of a handler ended: pathlib.Path.write_text(" in caplog.text
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server("changed"))
    assert caught.value.kind == "blocked"


def test_a_function_of_trio_that_a_nursery_runs_changes_nothing_in_a_replay(record, tmp_path):
    written = tmp_path / "written"

    def make_server():
        server = Server("writes")

        @server.tool
        async def run() -> str:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.Path(written).write_text, "done")
            return "written"

        return server

    path = record(make_server(), call_twice)
    written.unlink()
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server())
    assert caught.value.kind == "blocked"
    assert "trio.Path.write_text() at _path.py:" in str(caught.value)
    assert not written.exists()


def test_system_tasks_end_with_a_replay_that_diverges(record):
    def make_server(answer):
        server = Server("waits")

        async def wait():
            await fetch(1)
            await trio.sleep(0.0001)
            await fetch(2)
            await trio.sleep_forever()

        @server.tool
        async def run() -> int:
            trio.lowlevel.spawn_system_task(wait)
            await fetch(3)
            return answer

        return server

    path = record(make_server(1), call_twice)
    replay(path, make_server(1))
    with pytest.raises(ReplayDivergence):
        replay(path, make_server(2))
    lines = path.read_bytes().splitlines(keepends=True)
    for count in range(5, len(lines)):
        path.write_bytes(b"".join(lines[:count]))
        with contextlib.suppress(NothingCompared):
            replay(path, make_server(1))


DROPPED = "ignore:the async generator .* was dropped:ResourceWarning"


def make_dropper(*, fails=False):
    def make_server():
        server, seen = Server("dropper"), []

        @server.tool
        async def run() -> list[int]:
            number = len(seen)

            async def generate():
                try:
                    yield number
                finally:
                    seen.append(number)
                    if fails:
                        raise ValueError("while it was closed")
                    await trio.sleep(1)  # cancelled at once
                    seen.append(-1)

            async for _ in generate():
                break
            for _ in range(3):
                seen.append(await fetch(number))
            return seen

        return server

    return make_server


@pytest.mark.filterwarnings(DROPPED)
def test_a_generator_that_a_handler_drops_is_closed_in_its_turn(record):
    make_server = make_dropper()
    path = record(make_server(), call_twice)
    assert_replays(path, make_server)
    lanes = {lane for record in load_trace(path).journal if (lane := record.lane)}
    assert len({lane for lane in lanes if lane.endswith(".0.0")}) == 2  # one for each generator


@pytest.mark.filterwarnings(DROPPED)
def test_a_handler_is_warned_of_a_generator_that_it_drops(record):
    with pytest.warns(ResourceWarning, match=r"'make_dropper.*generate' was dropped before its"):
        record(make_dropper()(), call_twice)


@pytest.mark.filterwarnings(DROPPED)
def test_a_generator_that_fails_while_it_is_closed_is_logged(record, caplog):
    record(make_dropper(fails=True)(), call_twice)
    logged = [each for each in caplog.records if each.name == "trio.async_generator_errors"]
    assert [str(each.exc_info[1]) for each in logged] == ["while it was closed"] * 2


async def sleep():
    await trio.sleep(0.002)


async def take_free_lock():
    async with trio.Lock():
        pass


async def wait_not():
    pass


def make_waiting(wait, *, then):
    def make_server():
        server = Server("waiting")

        @server.tool
        async def run(*, ctx: Context) -> int:
            await wait()
            if then == "notification":
                await ctx.info("waited")
            return await fetch(1) if then == "effect" else 1

        return server

    return make_server


async def call_once(peer):
    await peer.send_request("tools/call", {"name": "run", "arguments": {}}, id=1)
    await peer.receive()
    await peer.receive_available()


@pytest.mark.parametrize("then", ["notification", "effect", "result"])
@pytest.mark.parametrize("wait", [sleep, take_free_lock, trio.lowlevel.checkpoint])
def test_a_wait_that_was_removed_or_added_is_a_divergence(record, wait, then):
    for recorded, changed in ((wait, wait_not), (wait_not, wait)):
        path = record(make_waiting(recorded, then=then)(), call_once)
        assert replay(path, make_waiting(recorded, then=then)()).is_complete
        with pytest.raises(ReplayDivergence) as caught:
            replay(path, make_waiting(changed, then=then)())
        assert caught.value.lane == "r5"
        path.unlink()


def test_a_divergence_by_a_removed_wait_names_it_as_the_cause(record):
    path = record(make_waiting(take_free_lock, then="result")(), call_once)
    with pytest.raises(ReplayDivergence, match="the code no longer waits") as caught:
        replay(path, make_waiting(wait_not, then="result")())
    assert caught.value.kind == "missing"


@effect
async def fetch_slowly() -> int:
    await trio.sleep(1)
    return 1


def make_limited_effect(seconds):
    def make_server():
        server = Server("limited effect")

        @server.tool
        async def run(*, ctx: Context) -> str:
            with trio.move_on_after(seconds):
                await fetch_slowly()
            await ctx.info("asked")
            with trio.move_on_after(seconds):
                await ctx.sleep(1)
            return "too late"

        return server

    return make_server


def test_an_effect_that_is_now_cancelled_sooner_is_a_divergence_at_its_end(record):
    path = record(make_limited_effect(0.01)(), call_once)
    assert_replays(path, make_limited_effect(0.01))
    with pytest.raises(
        ReplayDivergence, match=r"was 0\.01 s when recorded, now 0\.005 s"
    ) as caught:
        replay(path, make_limited_effect(0.005)())
    assert (caught.value.kind, caught.value.ordinal) == ("argument", 2)


# Handlers and lifespans of random blocks, under other schedules and clocks.

# Programs drop async generators before their end, which is part of what they test.
dropping_generators = pytest.mark.filterwarnings("ignore:the async generator:ResourceWarning")


class EvenClock(TickClock):
    """A clock by which each turn of the event loop takes 99,999 ns."""

    def after_io_wait(self, timeout):  # noqa: ARG002  Trio's signature
        self.ns += 99_999

    def deadline_to_sleep_time(self, deadline):  # noqa: ARG002  Trio's signature
        return 0.0


def test_a_deadline_that_is_a_nanosecond_later_than_a_turn_expires_in_the_next_one(tmp_path):
    def make():
        server = Server("clocks")

        @server.tool
        async def run() -> list[int]:
            woken = []

            async def sleep(turns):
                await trio.sleep(turns * 99_999e-9 + 1e-9)
                woken.append(turns)

            async with trio.open_nursery() as nursery:
                for turns in range(2, 9):
                    nursery.start_soon(sleep, turns)
                for _ in range(12):
                    await trio.lowlevel.checkpoint()
                    woken.append(0)
            return woken

        return server

    path = tmp_path / "a.mcprec.jsonl"
    trio.run(talk, make(), path, call_twice, clock=EvenClock())
    assert_replays(path, make)


REPLAYS = 3
QUICK = range(4)
SLOW = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 60)]


@dropping_generators
@pytest.mark.parametrize("seed", [*QUICK, *SLOW])
def test_a_generated_program_replays(seed, tmp_path):
    path = str(tmp_path / "a.mcprec.jsonl")
    recorded = generated_programs.record(seed, path)
    for number in range(REPLAYS):
        server, logs = generated_programs.make_server(seed)
        with seeded_schedule(number):
            assert replay(path, server).is_complete
        assert str(logs) == recorded


@dropping_generators
@pytest.mark.parametrize("seed", [*QUICK, *SLOW])
def test_a_generated_lifespan_replays_with_the_handlers_that_it_meets(seed, tmp_path):
    path = str(tmp_path / "a.mcprec.jsonl")
    recorded = generated_lifespans.record(seed, path)
    for number in range(REPLAYS):
        server, log = generated_lifespans.make_server(seed)
        # A server that was cancelled early has answered nothing.
        with seeded_schedule(number), contextlib.suppress(NothingCompared):
            report = replay(path, server)
            assert report.is_complete
            assert report.lifespan == "the lifespan ran again"
        assert str(log) == recorded


@dropping_generators
@pytest.mark.slow
@pytest.mark.parametrize("programs", [generated_programs, generated_lifespans])
def test_two_live_runs_of_a_program_differ(programs, tmp_path):
    """Otherwise the other tests could not fail."""
    runs = [
        [programs.record(seed, str(tmp_path / f"{seed}-{run}.mcprec.jsonl")) for run in range(2)]
        for seed in range(10)
    ]
    assert sum(first != second for first, second in runs) > 5
