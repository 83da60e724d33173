"""Property 7: recording changes no byte that is sent, and no disk stops a session."""

import errno
import tempfile
import threading
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_trio import Context, Limits, Server
from mcp_trio._journal.records import OpenBody
from mcp_trio._recorder.writer import Recorder
from mcp_trio._session.journal import Recording
from mcp_trio.limits import RecordingLimits, RequestLimits, ShutdownLimits
from mcp_trio.recording import RecordOptions, Redaction, SharedRecording, check

pytestmark = pytest.mark.slow

# Handlers that do the same whenever they run at the same times.


async def fetch(key: int) -> dict[str, object]:
    await trio.sleep(key / 1000)
    return {"key": key, "token": f"secret number {key}"}


async def log(ctx, amount):
    await ctx.info({"amount": amount, "password": "hunter2-hunter2"})


async def report(ctx, amount):
    await ctx.report_progress(amount)


async def ask(ctx, amount):
    return len(await ctx.list_roots())


async def effect(ctx, amount):
    return await ctx.effect(fetch, amount)


async def sleep(ctx, amount):
    await ctx.sleep(amount / 1000)


async def hurry(ctx, amount):
    try:
        with ctx.timeout(amount / 2000):
            await ctx.effect(fetch, amount % 7)
    except trio.TooSlowError:
        return "too slow"


async def lock(ctx, amount):
    async with ctx.lock("door"):
        await ctx.sleep(amount / 4000)


async def children(ctx, amount):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log, ctx, amount)
        nursery.start_soon(sleep, ctx, amount)


async def fail(ctx, amount):
    if amount > 17:
        raise ValueError("a crash, of which the peer is told nothing")


STEPS = (log, report, ask, effect, sleep, hurry, lock, children, fail)


def server_of(scripts):
    server = Server(
        "steps",
        limits=Limits(
            requests=RequestLimits(in_flight_max=3), shutdown=ShutdownLimits(drain_seconds=0.01)
        ),
    )

    @server.tool
    async def run(script: int, *, ctx: Context) -> list[object]:
        return [await step(ctx, amount) for step, amount in scripts[script]]

    return server


def talk_of(calls, stage):
    async def talk(peer, _session):
        await peer.handshake(capabilities={"roots": {}})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.answer_all, peer, *range(len(calls)))
            for number, (delay, script, is_cancelled) in enumerate(calls):
                await trio.sleep(delay / 1000)
                await peer.send(stage.call(number, "run", script=script))
                if is_cancelled:
                    await trio.sleep(delay / 1000)
                    await peer.cancel(number)

    return talk


PLAIN, COMPRESSED = "a.mcprec.jsonl", "a.mcprec.jsonl.zst"
WAYS = {
    "plain": lambda folder: folder / PLAIN,
    "compressed": lambda folder: folder / COMPRESSED,
    "segments": lambda folder: RecordOptions(folder / PLAIN, segment_bytes_max=400),
    "redacted": lambda folder: RecordOptions(folder / PLAIN, redaction=Redaction()),
    "strict": lambda folder: RecordOptions(folder / PLAIN, strict=True),
    "synced": lambda folder: RecordOptions(folder / PLAIN, sync_seconds=0.001),
    "shared": lambda folder: SharedRecording(folder / PLAIN),
    "everything": lambda folder: RecordOptions(
        folder / COMPRESSED, segment_bytes_max=400, redaction=Redaction(), strict=True
    ),
}

steps = st.tuples(st.sampled_from(STEPS), st.integers(1, 20))
scripts_ = st.lists(st.lists(steps, max_size=5), min_size=3, max_size=3)
calls_ = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 2), st.booleans()), min_size=1, max_size=6
)
drawn = {"scripts": scripts_, "calls": calls_, "seed": st.integers(0, 99)}
quietly = settings(suppress_health_check=list(HealthCheck))
many = settings(quietly, max_examples=settings().max_examples // 2)
some = settings(quietly, max_examples=settings().max_examples // 5)


@many
@given(way=st.sampled_from(sorted(WAYS)), **drawn)
def test_a_peer_gets_the_same_bytes_recorded_or_not(stage, way, scripts, calls, seed):
    talk = talk_of(calls, stage)
    plain = stage.play(server_of(scripts), talk, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        record = WAYS[way](Path(folder))
        assert stage.play(server_of(scripts), talk, record=record, seed=seed) == plain


# Disks that are slow, or full. Recorders over a sink of the test's own.


@attrs.define
class Disk:
    """Takes so many seconds for a write, by a clock that only this moves; some writes fail."""

    takes_seconds: float = 0.0
    fails: object = frozenset()
    seconds: float = 0.0
    lines: list = attrs.field(factory=list)
    stalled_in_loop: int = 0
    writes: int = 0

    def write(self, data):
        self.writes += 1
        self.seconds += self.takes_seconds
        is_in_loop = threading.current_thread() is threading.main_thread()
        self.stalled_in_loop += is_in_loop and self.takes_seconds > 0
        if self.writes in self.fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.lines += data.splitlines(keepends=True)

    def close(self):
        pass


RETRIES_AT_ONCE = Limits(recording=RecordingLimits(retry_seconds=0.0))


class TrioTime:
    """The clock of this Trio run."""

    @property
    def ns(self):
        return int(trio.current_time() * 1e9)


@attrs.frozen
class OnDisk:
    """A server that records to a disk of the test's own, by a recorder of some kind."""

    server: object
    recording: type = Recording
    limits: Limits = RETRIES_AT_ONCE

    async def serve(self, channel, *, record, task_status):
        recorder = Recorder(
            record,
            clock=TrioTime(),
            write_clock=lambda: record.seconds,
            limits=self.limits,
        )
        recorder.open(OpenBody(transport="t", role="server", name="n", version="1", started="s"))
        session = self.server._sessions.open_session(channel, sequencer=self.recording(recorder))
        await session.run(task_status=task_status)


@some
@given(**drawn)
def test_a_stalled_disk_delays_one_write_and_changes_no_byte(stage, scripts, calls, seed):
    talk, disk = talk_of(calls, stage), Disk(takes_seconds=1.0)
    plain = stage.play(server_of(scripts), talk, seed=seed)
    assert stage.play(OnDisk(server_of(scripts)), talk, record=disk, seed=seed) == plain
    assert disk.stalled_in_loop == 1
    assert check(disk.lines).kinds.get("gap", 0) > 0


@some
@given(fails=st.sets(st.integers(2, 12), min_size=1), **drawn)
def test_a_full_disk_leaves_a_gap_and_stops_no_session(stage, scripts, calls, seed, fails):
    talk, disk = talk_of(calls, stage), Disk(fails=fails)
    plain = stage.play(server_of(scripts), talk, seed=seed)
    assert stage.play(OnDisk(server_of(scripts)), talk, record=disk, seed=seed) == plain
    report = check(disk.lines)
    assert report.damage == []
    is_reported = report.kinds.get("gap", 0) > 0 or not report.complete
    assert is_reported == any(fail <= disk.writes for fail in fails)


# The controls: recorders that are felt.

RACE = ([[(sleep, 1), (effect, 2), (log, 1)]], [(4, 0, True)])


class Slow(Recording):
    """Each record takes time in the loop."""

    def effect_started(self, lane, body):
        trio.lowlevel.current_clock().jump(0.004)
        super().effect_started(lane, body)


def test_a_slow_recorder_is_detected(stage):
    scripts, calls = RACE
    talk = talk_of(calls, stage)
    plain = stage.play(server_of(scripts), talk)
    assert stage.play(OnDisk(server_of(scripts)), talk, record=Disk()) == plain
    assert stage.play(OnDisk(server_of(scripts), Slow), talk, record=Disk()) != plain


def test_a_recorder_without_the_stall_limit_stalls_at_each_write(stage):
    scripts, calls = RACE
    patient = Limits(recording=RecordingLimits(write_ms_max=1e9))
    disk = Disk(takes_seconds=1.0)
    stage.play(OnDisk(server_of(scripts), limits=patient), talk_of(calls, stage), record=disk)
    assert disk.stalled_in_loop == disk.writes > 2


def test_a_recorder_that_hides_a_full_disk_is_detected(stage, monkeypatch):
    scripts, calls = RACE
    monkeypatch.setattr(Recorder, "_append_gap", lambda *_, **__: None)
    disk = Disk(fails={3})
    stage.play(OnDisk(server_of(scripts)), talk_of(calls, stage), record=disk)
    assert {flaw.kind for flaw in check(disk.lines).damage} >= {"numbering"}
