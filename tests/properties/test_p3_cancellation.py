"""Property 3: cancellations come at their recorded operations, after the results before them."""

import functools
import math
from collections import Counter
from contextlib import contextmanager

import attrs
import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import Context, Limits, MCPError, Server
from mcp_trio._replay.replayer import LaneWait, Replayer
from mcp_trio.http import EffectTransport
from mcp_trio.limits import ShutdownLimits

pytestmark = pytest.mark.slow

LIMITS = Limits(shutdown=ShutdownLimits(drain_seconds=0.003))
TAKES_SECONDS = 0.004

# How long after its await point was reached a cancellation comes: at once, in the middle, in the
# very moment in which the result comes, and too late.
DELAYS = (0.0, 0.002, TAKES_SECONDS, 0.011)

# Every way to wait, each for the same time.


async def fetch(key: str) -> str:
    await trio.sleep(TAKES_SECONDS)
    return f"value of {key}"


async def fail(key: str) -> str:
    await trio.sleep(TAKES_SECONDS)
    raise LookupError(key)


async def commit(key: str) -> str:
    with trio.CancelScope(shield=True):
        return await fetch(key)


def calculate(number: int) -> int:
    return number * 2


async def log(ctx):
    await ctx.info("told")


async def report(ctx):
    await ctx.report_progress(1)


async def ask(ctx):
    return len(await ctx.list_roots())


async def effect(ctx):
    return await ctx.effect(fetch, "a")


async def shielding_effect(ctx):
    return await ctx.effect(commit, "f")


async def failing_effect(ctx):
    try:
        await ctx.effect(fail, "b")
    except LookupError as error:
        return str(error)


async def sleep(ctx):
    await ctx.sleep(TAKES_SECONDS)


async def raw_sleep(ctx):
    await trio.sleep(TAKES_SECONDS)


@contextmanager
def time_stands_still():
    """The clock of a live session does not jump while a thread runs, which takes real time."""
    clock = trio.lowlevel.current_clock()
    if isinstance(clock, trio.testing.MockClock):
        clock.autojump_threshold = math.inf
    try:
        yield
    finally:
        if isinstance(clock, trio.testing.MockClock):
            clock.autojump_threshold = 0


async def thread(ctx):
    with time_stands_still():
        return await ctx.to_thread(calculate, 4)


async def lock(ctx):
    async with ctx.lock("door"):
        return await ctx.effect(fetch, "behind the door")


class Page(httpx2.AsyncByteStream):
    async def __aiter__(self):
        yield b"half a "
        await trio.sleep(TAKES_SECONDS)
        yield b"page"


async def respond(_request):
    return httpx2.Response(200, stream=Page())


async def download(ctx):
    transport = EffectTransport(httpx2.MockTransport(respond))
    async with httpx2.AsyncClient(transport=transport) as client:
        return (await client.get("http://x.example/")).text


async def children(ctx):
    found = []

    async def child(key):
        found.append(await ctx.effect(fetch, key))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(child, "c")
        nursery.start_soon(child, "d")
    return sorted(found)


async def shielded(ctx):
    with trio.CancelScope(shield=True):
        return await ctx.effect(fetch, "e")


POINTS = (
    log, report, ask, effect, shielding_effect, failing_effect, sleep, raw_sleep, thread, lock,
    download, children, shielded,
)  # fmt: skip


# A handler that goes from point to point, and one of them is cancelled.


@attrs.define
class Trip:
    """The events that a handler saw; `reached` is set at the point that is cancelled."""

    cause: object
    point: object
    delay: float
    seen: list = attrs.field(factory=list)
    reached: trio.Event = attrs.field(factory=trio.Event)

    async def go(self, ctx):
        for point in (effect, self.point, ask, sleep):
            if point is self.point:
                self.reached.set()
                await self.cause.around(self, ctx)
            else:
                await self.visit(point, ctx)
        return self.seen

    async def visit(self, point, ctx):
        name = point.__name__
        try:
            self.seen.append(f"{name} gave {await point(ctx)}")
        except BaseException as error:
            self.seen.append(f"{name} raised {type(error).__name__}")
            raise
        finally:
            with trio.CancelScope(shield=True):
                try:
                    await ctx.info(f"left {name}")
                except MCPError as error:  # no notification can be sent any more
                    self.seen.append(type(error).__name__)
                self.seen.append(f"cleaned up behind {name}")


@attrs.frozen
class Cause:
    """The origin of a cancellation: a scope around the point, or outside of the handler."""

    name: str
    around: object
    outside: object = None


async def just_visit(trip, ctx):
    await trip.visit(trip.point, ctx)


async def within_timeout(trip, ctx):
    try:
        with ctx.timeout(trip.delay):
            await trip.visit(trip.point, ctx)
    except trio.TooSlowError:
        trip.seen.append("too slow")


async def within_raw_deadline(trip, ctx):
    with trio.move_on_after(trip.delay) as scope:
        await trip.visit(trip.point, ctx)
    trip.seen.append(f"cancelled: {scope.cancelled_caught}")


async def within_parent_scope(trip, ctx):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trip.visit, trip.point, ctx)
        await ctx.sleep(trip.delay)
        nursery.cancel_scope.cancel()
    trip.seen.append("went on")


async def cancel_by_peer(peer, _session):
    await peer.cancel(1)


async def close_by_peer(peer, _session):
    await peer.aclose()


async def shut_down(_peer, session):
    session.shut("closed")


CAUSES = (
    Cause("peer", just_visit, cancel_by_peer),
    Cause("timeout", within_timeout),
    Cause("raw deadline", within_raw_deadline),
    Cause("parent scope", within_parent_scope),
    Cause("end of the channel", just_visit, close_by_peer),
    Cause("shutdown", just_visit, shut_down),
)


def server_of(trip):
    server = Server("trip", limits=LIMITS)

    @server.tool
    async def go(*, ctx: Context) -> list[str]:
        return await trip.go(ctx)

    return server


def talk_of(trip, stage):
    async def talk(peer, session):
        await peer.handshake(capabilities={"roots": {}})
        await peer.send(stage.call(1, "go"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.answer_all, peer, 1)
            if trip.cause.outside is not None:
                await trip.reached.wait()
                await trio.sleep(trip.delay)
                await trip.cause.outside(peer, session)

    return talk


def recorded(stage, trip, path):
    stage.play(server_of(trip), talk_of(trip, stage), record=path)
    return trip


@pytest.fixture(scope="module")
def taken(stage, tmp_path_factory):
    """A trip and its recording, made once for all tests that use them."""
    folder = tmp_path_factory.mktemp("trips")

    @functools.cache
    def taken(cause, point, delay):
        path = folder / f"{cause.name}-{point.__name__}-{delay}.mcprec.jsonl"
        return recorded(stage, Trip(cause, point, delay), path), path

    return taken


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.__name__)
def test_a_cancelled_await_raises_and_cleans_up_as_it_did(stage, taken, count, point, cause):
    for delay in DELAYS:
        live, path = taken(cause, point, delay)
        for seed in range(2):
            again = Trip(cause, point, delay)
            stage.replayed(path, server_of(again), seed=seed)
            assert again.seen == live.seen
    count(len(DELAYS) * 2)


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.__name__)
def test_every_await_was_cancelled_except_a_shielded_one(taken, point):
    ends = Counter()
    for cause in CAUSES:
        for delay in DELAYS:
            trip, _ = taken(cause, point, delay)
            ends["cancelled"] += any(f"{point.__name__} raised" in each for each in trip.seen)
            ends["gave"] += any(f"{point.__name__} gave" in each for each in trip.seen)
    assert ends["gave"] > 0
    assert bool(ends["cancelled"]) == (point is not shielded)


# The control.


async def wait_in_the_open(replayer, lane, *, has_operation=False, due=None, has_real_time=False):
    """Wait for a turn as `Replayer.wait_for_turn` does, but let an operation be cancelled."""
    replayer.note_task(lane)
    task = trio.lowlevel.current_task()
    replayer.waiting_lanes[lane] = LaneWait(task, has_operation, due, has_real_time)

    def abort(_):
        if not has_operation:
            return trio.lowlevel.Abort.FAILED
        replayer.waiting_lanes.pop(lane, None)
        return trio.lowlevel.Abort.SUCCEEDED

    await trio.lowlevel.wait_task_rescheduled(abort)


def test_if_an_effect_could_be_cancelled_before_its_recorded_result_the_result_would_be_lost(
    stage, taken, monkeypatch, count
):
    differing = Counter()
    for cause in CAUSES:
        _, path = taken(cause, shielding_effect, TAKES_SECONDS / 2)
        for is_uncancellable in (True, False):
            with monkeypatch.context() as patch:
                if not is_uncancellable:
                    patch.setattr(Replayer, "wait_for_turn", wait_in_the_open)
                again = Trip(cause, shielding_effect, TAKES_SECONDS / 2)
                differing[is_uncancellable] += stage.divergence(path, server_of(again)) is not None
    count(2 * len(CAUSES))
    assert differing[True] == 0
    assert differing[False] > 0
