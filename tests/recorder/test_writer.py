"""A recorder writes every record, or marks the gap where it could not."""

import datetime as dt
import errno
import math
import os
import random
import threading
import time
from functools import partial

import attrs
import pytest
import trio
from memory_sessions import client_session

from mcp_trio import Client, ClientGroup, Context, Limits, Server, ToolError
from mcp_trio._journal.records import (
    BEGINS_STEP,
    HAS_WAITED,
    EndBody,
    GapBody,
    MarkBody,
    OpenBody,
    StepsBody,
    decode_body,
    encode_body,
)
from mcp_trio._recorder import files as syncing
from mcp_trio._recorder import options as record_options
from mcp_trio._recorder.encryption import EncryptedSink
from mcp_trio._recorder.files import CompressedSink, FileSink, Segments
from mcp_trio._recorder.options import open_recorder, options_of, recorder_of_session
from mcp_trio._recorder.writer import Recorder
from mcp_trio._session.journal import Recording
from mcp_trio._session.lanes import Lane
from mcp_trio.errors import RecordingError
from mcp_trio.limits import RecordingLimits
from mcp_trio.recording import (
    Damage,
    RecordOptions,
    Redaction,
    SharedRecording,
    body_bytes,
    check,
    open_recording,
    read_recording,
    replay_async,
)
from tests.clocks import Clock
from tests.processes import open_descriptors
from tests.recorder.conftest import FACTS

OPEN = encode_body(OpenBody(transport="t", role="server", name="n", version="1", started="s"))
LIMITS = Limits(
    recording=RecordingLimits(write_ms_max=250, buffer_bytes_max=1000, close_seconds=20)
)
SLOW_SECONDS = 0.5


@attrs.define
class MemorySink:
    """A sink that keeps writes; each fails with `error`, or takes `takes_seconds` of the clock."""

    clock: Clock
    writes: list = attrs.Factory(list)
    error: Exception | None = None
    takes_seconds: float = 0.0
    threads: list = attrs.Factory(list)
    is_closed: bool = False

    def write(self, data):
        self.threads.append(threading.current_thread())
        self.clock.seconds += self.takes_seconds
        if self.error is not None:
            raise self.error
        self.writes.append(data)

    def close(self):
        self.is_closed = True


@attrs.define
class StallingSink(MemorySink):
    """A sink whose writes outside of the main thread wait for `let_go`."""

    may_write: threading.Semaphore = attrs.Factory(lambda: threading.Semaphore(0))
    done: threading.Semaphore = attrs.Factory(lambda: threading.Semaphore(0))

    def write(self, data):
        is_threaded = threading.current_thread() is not threading.main_thread()
        if is_threaded:
            assert self.may_write.acquire(timeout=20)
        try:
            MemorySink.write(self, data)
        finally:
            if is_threaded:
                self.done.release()

    def let_go(self, writes=1):
        """Let this number of writes happen, and wait until they have."""
        for _ in range(writes):
            self.may_write.release()
            assert self.done.acquire(timeout=20)


def recording_to(sink_type=MemorySink, limits=LIMITS):
    clock = Clock()
    sink = sink_type(clock)
    recorder = Recorder(sink, clock=clock, write_clock=clock, limits=limits)
    recorder.record("open", OPEN)
    recorder.flush()
    return recorder, sink


def lines_of(sink):
    return b"".join(sink.writes).splitlines(keepends=True)


def records_in_short(sink):
    """Return kind and number of each record; of a gap, its reason or the count of lost records."""
    entries = []
    for item in read_recording(lines_of(sink)):
        if isinstance(item, Damage):
            entries.append(item)
        elif item.kind == "gap":
            body = decode_body(item, GapBody)
            entries.append(body.reason if body.count is None else body.count)
        else:
            entries.append(f"{item.kind}{item.number}")
    return entries


def record_frames(recorder, count, size=2):
    return [recorder.record("in", b'"%b"' % (b"x" * (size - 2))) for _ in range(count)]


def until(condition):
    """Wait until another thread has made the condition true; pytest limits the time."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.001)


def test_records_are_buffered_and_written_at_once():
    recorder, sink = recording_to()
    assert recorder.next_number == 1
    assert record_frames(recorder, 3) == [1, 2, 3]
    assert len(sink.writes) == 1
    recorder.flush()
    assert len(sink.writes) == 2
    recorder.flush()
    assert len(sink.writes) == 2
    recorder.close({"in": 3})
    assert records_in_short(sink) == ["open0", "in1", "in2", "in3", "end4"]
    assert check(lines_of(sink)).complete
    assert sink.is_closed


def test_a_record_contains_the_given_values():
    recorder, sink = recording_to()
    sink.clock.seconds = 2
    recorder.record("in", b"\xff", lane="r0", ordinal=3, channel=2, envelope={"a": 1}, embed=False)
    recorder.record("res", b"1", lane="r0", ordinal=4, has_waited=True)
    recorder.flush()
    _, record, outcome = read_recording(lines_of(sink))
    assert (record.lane, record.ordinal, record.channel, record.time_ns) == ("r0", 3, 2, 2 * 10**9)
    assert (record.envelope, body_bytes(record)) == ({"a": 1}, b"\xff")
    assert (record.step_start, outcome.step_start) == (0, HAS_WAITED)


# Steps.


def steps_of(sink):
    """Return the records after `open`: a step's lanes, or else kind, lane and `step_start`."""
    _, *records = read_recording(lines_of(sink))
    return [
        decode_body(each, StepsBody).lanes
        if each.kind == "step"
        else f"{each.kind} {each.lane or '-'}{' s' * bool(each.step_start)}"
        for each in records
    ]


def take_steps(recorder, *lanes, channel=0):
    for lane in lanes:
        recorder.step(lane, channel)


def test_the_record_that_a_lane_makes_in_a_step_implies_the_step():
    recorder, sink = recording_to()
    for _ in range(2):
        take_steps(recorder, "r1")
        recorder.record("val", b"1", lane="r1", ordinal=1)
    recorder.record("out", b"1", lane="r1", ordinal=3)
    recorder.flush()
    assert steps_of(sink) == ["val r1 s", "val r1 s", "out r1"]


def test_steps_without_a_record_are_listed_before_the_next_record():
    recorder, sink = recording_to()
    take_steps(recorder, "r1", "r2", "r1")
    recorder.record("out", b"1", lane="r1", ordinal=1)
    take_steps(recorder, "r2", "r1.0")
    recorder.record("in", b"{}")
    recorder.flush()
    assert steps_of(sink) == [["r1", "r2"], "out r1 s", ["r2", "r1.0"], "in -"]


def test_a_record_of_another_lane_or_session_does_not_imply_a_step():
    recorder, sink = recording_to()
    take_steps(recorder, "r1")
    recorder.record("out", b"1", lane="r2", ordinal=1)
    take_steps(recorder, "r1", channel=1)
    recorder.record("out", b"1", lane="r1", ordinal=1, channel=2)
    recorder.flush()
    assert steps_of(sink) == [["r1"], "out r2", ["r1"], "out r1"]
    assert [each.channel for each in read_recording(lines_of(sink))] == [0, 0, 0, 1, 2]


def test_listed_steps_have_the_time_between_them():
    recorder, sink = recording_to()
    sink.clock.seconds = 1
    take_steps(recorder, "r1", "r2")
    sink.clock.seconds = 3
    take_steps(recorder, "r1", "r2")
    sink.clock.seconds = 3.5
    take_steps(recorder, "r1")
    sink.clock.seconds = 4
    recorder.record("in", b"{}")
    recorder.flush()
    assert steps_of(sink) == [["r1", "r2", 2 * 10**9, "r1", "r2", 5 * 10**8, "r1"], "in -"]
    assert [each.time_ns for each in read_recording(lines_of(sink))] == [0, 10**9, 4 * 10**9]


@pytest.mark.requirement("TOOL-40")
def test_a_record_lists_a_bounded_number_of_steps():
    recorder, sink = recording_to()
    take_steps(recorder, *(f"r{number}" for number in range(150)))
    recorder.record("in", b"{}")
    recorder.flush()
    *listed, _ = steps_of(sink)
    assert [len(lanes) for lanes in listed] == [64, 64, 22]
    assert [lane for lanes in listed for lane in lanes] == [f"r{number}" for number in range(150)]


def test_the_steps_of_a_handler_that_sends_nothing_are_written_in_the_end():
    limits = Limits(recording=RecordingLimits(unwritten_bytes_max=2000))
    recorder, sink = recording_to(limits=limits)
    writes = len(sink.writes)
    take_steps(recorder, *["r1"] * 10_000)
    assert len(sink.writes) > writes + 10
    assert len(steps_of(sink)) > 10_000 / 64 * 0.8


def test_the_steps_of_each_session_of_a_file_have_their_own_record():
    recorder, sink = recording_to()
    take_steps(recorder, "r1", "r2", channel=1)
    take_steps(recorder, "r1", channel=2)
    sink.clock.seconds = 1
    take_steps(recorder, "r1", channel=1)
    recorder.record("in", b"{}", channel=1)
    recorder.flush()
    assert steps_of(sink) == [["r1", "r2"], ["r1"], ["r1"], "in -"]
    records = list(read_recording(lines_of(sink)))
    assert [each.channel for each in records] == [0, 1, 2, 1, 1]
    assert [each.time_ns for each in records] == [0, 0, 0, 10**9, 10**9]


def test_the_end_of_a_recording_lists_the_last_steps():
    recorder, sink = recording_to()
    take_steps(recorder, "r1", "r2")
    recorder.close({})
    assert steps_of(sink) == [["r1", "r2"], "end -"]


def test_the_end_of_a_session_lists_its_last_steps(tmp_path):
    recorder, sink = recording_to()
    assert recorder.begin_session("memory") == 1
    take_steps(recorder, "r1", channel=1)
    recorder.end_session({}, channel=1)
    assert steps_of(sink) == ["mark -", ["r1"], "mark -"]


def test_steps_that_a_full_disk_loses_are_counted_as_one_record():
    recorder, sink = recording_to()
    sink.error = OSError(errno.ENOSPC, "no space")
    recorder.record("in", b"{}")
    recorder.flush()
    take_steps(recorder, "r1", "r2")
    assert recorder.record("in", b"{}") == 3
    sink.error = None
    sink.clock.seconds += LIMITS.recording.retry_seconds
    recorder.flush()
    assert records_in_short(sink) == ["open0", "[Errno 28] no space", 3]


def test_a_closed_recorder_keeps_nothing():
    recorder, sink = recording_to()
    recorder.close({})
    writes = len(sink.writes)
    assert recorder.record("in", b"{}") == 2
    recorder.flush()
    recorder.close({})
    assert len(sink.writes) == writes


def test_a_file_is_complete_after_each_flush(tmp_path):
    path = tmp_path / "x.mcprec.jsonl"
    clock = Clock()
    recorder = Recorder(FileSink(path), clock=clock, limits=LIMITS)
    recorder.record("open", OPEN)
    for count in range(1, 100):
        record_frames(recorder, 1)
        recorder.flush()
        assert check(open_recording(path)).records == count + 1
    recorder.close({})
    assert check(open_recording(path)).damage == []


def test_a_full_disk_becomes_a_gap_that_counts_what_is_missing():
    recorder, sink = recording_to()
    sink.error = OSError(28, "No space left on device")
    record_frames(recorder, 2)
    recorder.flush()
    assert record_frames(recorder, 3) == [3, 4, 5]
    sink.error = None
    recorder.flush()  # too early to try again
    assert len(sink.writes) == 1
    sink.clock.seconds += LIMITS.recording.retry_seconds
    recorder.flush()
    assert record_frames(recorder, 70)[0] == 8
    recorder.close({})
    assert records_in_short(sink)[:5] == [
        "open0",
        "[Errno 28] No space left on device",
        5,
        "in8",
        "in9",
    ]
    assert check(lines_of(sink)).damage == []
    assert check(lines_of(sink)).complete


def test_a_full_disk_is_retried_at_intervals_and_uses_no_record_numbers():
    recorder, sink = recording_to()
    sink.error = OSError("full")
    record_frames(recorder, 1)
    recorder.flush()
    for _ in range(5):
        record_frames(recorder, 1)
        sink.clock.seconds += LIMITS.recording.retry_seconds
        recorder.flush()
    assert len(sink.threads) == 1 + 1 + 5
    assert recorder.next_number == 7
    sink.error = None
    recorder.close({})
    assert records_in_short(sink) == ["open0", "full", 6, "end9"]
    assert check(lines_of(sink)).damage == []


def test_a_disk_that_is_full_to_the_end_leaves_a_recording_that_was_cut():
    recorder, sink = recording_to()
    sink.error = RuntimeError("people's sinks may raise anything")
    record_frames(recorder, 1)
    recorder.flush()
    recorder.close({})
    assert records_in_short(sink) == ["open0"]
    assert sink.is_closed


def test_a_disk_that_fills_up_at_the_end_leaves_a_recording_that_was_cut():
    recorder, sink = recording_to()
    sink.error = OSError("full")
    recorder.close({})
    assert records_in_short(sink) == ["open0"]
    assert sink.is_closed


def slowed(limits=LIMITS, sink_type=StallingSink):
    """A recorder that has just moved to its thread."""
    recorder, sink = recording_to(sink_type, limits)
    record_frames(recorder, 1)
    sink.takes_seconds = SLOW_SECONDS
    recorder.flush()
    sink.takes_seconds = 0.0
    return recorder, sink


def test_one_slow_write_moves_writing_to_a_thread_and_back():
    recorder, sink = slowed()
    record_frames(recorder, 2)
    recorder.flush()
    assert len(sink.writes) == 2  # nobody waited
    sink.let_go(2)
    until(lambda: recorder._thread.has_caught_up)
    recorder.flush()
    record_frames(recorder, 1)
    recorder.flush()
    assert records_in_short(sink) == ["open0", "in1", "slow disk", "in3", "in4", 0, "in6"]
    main = threading.main_thread()
    assert [thread is main for thread in sink.threads] == [True, True, False, False, True, True]
    assert not sink.threads[2].is_alive()
    assert not sink.threads[2].daemon
    recorder.close({})
    assert check(lines_of(sink)).damage == []


def test_records_that_do_not_fit_are_dropped_and_counted():
    recorder, sink = slowed()
    numbers = record_frames(recorder, 20, size=100)
    recorder.flush()
    record_frames(recorder, 5, size=100)
    recorder.flush()
    assert numbers == list(range(3, 23))
    assert recorder._thread.waiting_bytes < 2 * LIMITS.recording.buffer_bytes_max
    sink.may_write.release(9)
    until(lambda: recorder._thread.has_caught_up)
    recorder.flush()
    record_frames(recorder, 70)
    recorder.close({})
    entries = records_in_short(sink)
    (closing,) = (at for at, word in enumerate(entries) if isinstance(word, int))
    assert entries[:4] == ["open0", "in1", "slow disk", "in3"]
    assert 4 <= closing - 3 <= 12
    assert entries[closing] == 25 - (closing - 3)
    assert entries[-1] == "end99"
    assert check(lines_of(sink)).damage == []


def test_a_disk_that_stays_slow_keeps_its_thread():
    recorder, sink = slowed()
    sink.takes_seconds = SLOW_SECONDS
    sink.let_go(1)
    until(lambda: not recorder._thread.waiting_bytes)
    recorder.flush()
    assert recorder._thread is not None
    sink.may_write.release()
    recorder.close({})
    assert records_in_short(sink) == ["open0", "in1", "slow disk", 0, "end4"]


def test_closing_waits_for_the_thread():
    recorder, sink = slowed()
    record_frames(recorder, 1)
    sink.may_write.release(3)
    recorder.close({})
    assert records_in_short(sink) == ["open0", "in1", "slow disk", "in3", 0, "end5"]
    assert sink.is_closed
    assert not sink.threads[-1].is_alive()


class FailingThreadSink(StallingSink):
    """A sink whose writes outside of the main thread fail."""

    def write(self, data):
        is_threaded = threading.current_thread() is not threading.main_thread()
        self.error = OSError("gone") if is_threaded else None
        StallingSink.write(self, data)


def test_an_error_of_a_slow_disk_at_the_end_is_recorded_as_a_gap():
    recorder, sink = slowed(sink_type=FailingThreadSink)
    record_frames(recorder, 2)
    sink.may_write.release()
    recorder.close({})
    # Lost are the first gap, both frames, the second gap and `end`.
    assert records_in_short(sink) == ["open0", "in1", "gone", 5, "end9"]
    assert check(lines_of(sink)).damage == []
    assert recorder.lost_records == 5
    assert sink.is_closed


@pytest.mark.parametrize("close_seconds", [0, math.inf])
def test_a_disk_that_was_slow_takes_records_again_however_long_closing_may_take(close_seconds):
    limits = Limits(recording=RecordingLimits(write_ms_max=250, close_seconds=close_seconds))
    recorder, sink = slowed(limits)
    sink.let_go()
    until(lambda: recorder._thread.has_caught_up)
    recorder.flush()
    record_frames(recorder, 1)
    recorder.close({})
    assert records_in_short(sink) == ["open0", "in1", "slow disk", 0, "in4", "end5"]


def test_closing_without_a_limit_waits_for_the_thread():
    limits = Limits(recording=RecordingLimits(write_ms_max=250, close_seconds=math.inf))
    recorder, sink = slowed(limits)
    sink.may_write.release(2)
    recorder.close({})
    assert records_in_short(sink) == ["open0", "in1", "slow disk", 0, "end4"]
    assert sink.is_closed


def test_closing_leaves_a_hanging_disk_to_the_thread():
    recorder, sink = slowed(Limits(recording=RecordingLimits(write_ms_max=250, close_seconds=0.01)))
    thread = recorder._thread._thread
    recorder.close({})
    assert not sink.is_closed
    assert thread.is_alive()
    sink.may_write.release(2)
    thread.join(20)
    assert records_in_short(sink) == ["open0", "in1", "slow disk", 0, "end4"]


def test_an_error_of_a_slow_disk_is_recorded_as_a_gap():
    recorder, sink = slowed()
    record_frames(recorder, 2)
    recorder.flush()
    record_frames(recorder, 1)
    sink.error = OSError("gone")
    sink.let_go(1)
    until(lambda: recorder._thread.failure)
    recorder.flush()
    assert recorder._thread is None
    sink.error = None
    recorder.close({})
    assert records_in_short(sink) == ["open0", "in1", "gone", 4, "end8"]
    assert check(lines_of(sink)).damage == []


def test_without_a_thread_writes_are_slow_but_complete(monkeypatch):
    def reject(self):
        raise RuntimeError("can't start new thread")

    recorder, sink = recording_to()
    monkeypatch.setattr(threading.Thread, "start", reject)
    sink.takes_seconds = SLOW_SECONDS
    for _ in range(3):
        record_frames(recorder, 1)
        recorder.flush()
    recorder.close({})
    assert records_in_short(sink) == ["open0", "in1", "in2", "in3", "end4"]


def test_without_a_thread_a_full_segment_is_followed_by_the_next(tmp_path, monkeypatch):
    def reject(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", reject)
    path, clock = tmp_path / "x.mcprec.jsonl", Clock()

    def slow_clock():
        clock.seconds += SLOW_SECONDS
        return clock.seconds

    sink = Segments(path, open_file=FileSink, bytes_max=1, clock=clock)
    recorder = Recorder(sink, clock=clock, write_clock=slow_clock, limits=LIMITS)
    recorder.open(OPEN_REDACTING)
    for _ in range(2):
        record_frames(recorder, 1)
        recorder.flush()
    recorder.close({})
    assert len(list(tmp_path.iterdir())) == 4
    report = check(open_recording(path))
    assert (report.damage, report.complete, report.kinds["in"]) == ([], True, 2)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_any_number_of_records_is_read_without_damage(count):
    recorder, sink = recording_to()
    for _ in range(count):
        record_frames(recorder, 1)
        recorder.flush()
    recorder.close({})
    assert check(lines_of(sink)).damage == []


# Syncs, by a thread; the next write raises the error of a failed one.


@pytest.fixture
def syncs(monkeypatch):
    """The syncs of files, with the names of their threads; they fail with `syncs.error`."""
    syncs = Syncs()
    monkeypatch.setattr(syncing.os, "fdatasync", syncs.sync)
    return syncs


class Syncs:
    def __init__(self):
        self.threads = []
        self.error = None
        self.happened = threading.Semaphore(0)

    def sync(self, descriptor):
        os.fstat(descriptor)
        self.threads.append(threading.current_thread())
        self.happened.release()
        if self.error is not None:
            raise self.error

    def wait(self, count=1):
        for _ in range(count):
            assert self.happened.acquire(timeout=20)


@pytest.mark.real_time
def test_a_file_is_synced_by_time_and_when_it_is_closed(tmp_path, syncs):
    sink = FileSink(tmp_path / "x", sync_seconds=0.001)
    sink.write(b"data")
    syncs.wait(3)
    assert threading.main_thread() not in syncs.threads
    sink.close()
    assert threading.main_thread() not in syncs.threads
    assert (tmp_path / "x").read_bytes() == b"data"


@pytest.mark.real_time
def test_a_file_is_synced_when_it_is_closed(tmp_path, syncs):
    before = open_descriptors()
    sink = FileSink(tmp_path / "x", sync_seconds=threading.TIMEOUT_MAX * 2)
    assert syncs.threads == []
    sink.close()
    assert len(syncs.threads) == 1
    assert open_descriptors() == before


@pytest.mark.real_time
def test_closing_does_not_wait_for_a_disk_that_hangs(tmp_path, monkeypatch):
    goes_on, ended = threading.Event(), threading.Event()

    def hang(_):
        goes_on.wait(20)
        ended.set()

    monkeypatch.setattr(syncing.os, "fdatasync", hang)
    limits = Limits(recording=RecordingLimits(close_seconds=0.01))
    sink = FileSink(tmp_path / "x", sync_seconds=60, limits=limits)
    with pytest.raises(OSError, match=r"longer than limits.recording.close_seconds \(0.01\)"):
        sink.close()
    assert not ended.is_set()
    with pytest.raises(OSError, match="another session"):
        FileSink(tmp_path / "x")
    goes_on.set()
    assert ended.wait(20)


@pytest.mark.real_time
def test_without_sync_seconds_no_file_is_synced(tmp_path, syncs):
    sink = FileSink(tmp_path / "x")
    sink.write(b"data")
    sink.close()
    assert syncs.threads == []


@pytest.mark.real_time
def test_the_next_write_reports_a_failed_sync_once(tmp_path, syncs):
    syncs.error = OSError(errno.EIO, "Input/output error")
    sink = FileSink(tmp_path / "x", sync_seconds=0.001)
    syncs.wait(2)
    syncs.error = None
    syncs.wait(2)
    with pytest.raises(OSError, match="Input/output error"):
        sink.write(b"lost")
    sink.write(b"kept")
    sink.close()
    assert (tmp_path / "x").read_bytes() == b"kept"


@pytest.mark.real_time
@pytest.mark.parametrize("name", ["x.mcprec.jsonl", "x.mcprec.jsonl.zst"])
async def test_a_failure_of_the_last_sync_is_logged(tmp_path, syncs, caplog, name):
    path, before = tmp_path / name, open_descriptors()
    recorder = open_recorder(RecordOptions(path, sync_seconds=60), **FACTS)
    syncs.error = OSError(errno.EIO, "Input/output error")
    recorder.close({})
    assert f"the end of {path} may not be on the disk: [Errno 5] Input/output" in caplog.text
    assert check(open_recording(path)).complete
    assert open_descriptors() == before


@pytest.mark.real_time
@pytest.mark.parametrize("wrap", [CompressedSink, partial(EncryptedSink, keys={"a": b"k" * 32})])
def test_a_failed_sync_that_no_write_has_reported_is_reported_when_it_closes(tmp_path, syncs, wrap):
    before = open_descriptors()
    sink = wrap(FileSink(tmp_path / "x", sync_seconds=0.001))
    sink.write(b"data")
    syncs.error, count = OSError(errno.EIO, "Input/output error"), len(syncs.threads)
    until(lambda: len(syncs.threads) > count + 2)
    syncs.error, count = None, len(syncs.threads)
    until(lambda: len(syncs.threads) > count + 1)
    with pytest.raises(OSError, match="Input/output error"):
        sink.close()
    assert open_descriptors() == before


@pytest.mark.real_time
def test_if_no_sync_thread_can_start_no_file_stays_open(tmp_path, monkeypatch):
    def reject(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", reject)
    before = open_descriptors()
    with pytest.raises(OSError, match="cannot start a thread that syncs the file"):
        FileSink(tmp_path / "x", sync_seconds=1)
    assert open_descriptors() == before


# Several sessions in one file, in one order.


def begin(shared, **facts):
    return Recording(*recorder_of_session(shared, **{**FACTS, **facts}))


def records_of_shared_recording(path):
    return [
        (each.channel, each.kind, decode_body(each, MarkBody).name if each.kind == "mark" else "")
        for each in read_recording(open_recording(path))
    ]


async def test_sessions_have_different_channels(tmp_path):
    path = tmp_path / "x.mcprec.jsonl"
    with SharedRecording(path) as shared:
        assert not path.exists()
        one, two = begin(shared), begin(shared, transport="stdio")
        assert one.seed == two.seed
        numbers = [one.received(b"{}", embed=True), two.received(b"{}", embed=True)]
        assert numbers == [3, 4]
        one.shut("eof")
        one.close({"faults": 1})
        two.sent(b"{}", None)
        two.close({})
    assert records_of_shared_recording(path) == [
        (0, "open", ""),
        (1, "mark", "session"),
        (2, "mark", "session"),
        (1, "in", ""),
        (2, "in", ""),
        (1, "shut", ""),
        (1, "mark", "ended"),
        (2, "out", ""),
        (2, "mark", "ended"),
        (0, "end", ""),
    ]
    records = list(read_recording(open_recording(path)))
    assert decode_body(records[2], MarkBody).value == {"transport": "stdio"}
    assert decode_body(records[6], MarkBody).value == {"counts": {"faults": 1}}
    assert decode_body(records[-1], EndBody).counts == {"sessions": 2}
    assert check(open_recording(path)).damage == []


BODIES = (b"{}", b'{"a":1}', b"1", b" 1", b"1\t", b"[1,\n2]", b"[1,\r2]", b"%d" % 10**60)
OUTCOMES = ("res", "err", "cxl", "cxl")


def record_at_random(recorder, clock, seed):
    """Let two sessions take steps and make records, as a random generator decides."""
    draw = random.Random(seed)
    sessions = [Recording(recorder, channel) for channel in (0, 1)]
    lanes = {each: [Lane(f"r{number}", each) for number in range(3)] for each in sessions}
    for _ in range(draw.randrange(200)):
        session, body = draw.choice(sessions), draw.choice(BODIES)
        lane = draw.choice(lanes[session])
        clock.seconds += draw.choice((0, 0, 1))
        lane.has_waited = lane.has_waited or draw.random() < 0.2
        match draw.choice(("in", "step", "step", "out", "out", "cmd", "outcome", "other")):
            case "in":
                session.received(body, embed=draw.random() < 0.8)
            case "step":
                session.step(lane)
            case "out":
                session.sent(body.strip(), draw.choice((lane, lane, None)))
            case "cmd":
                session.effect_started(lane, body.strip())
            case "outcome":
                kind, is_cancelled = draw.choice(OUTCOMES), draw.random() < 0.2
                session.resumed(
                    lane, kind, None if kind == "cxl" else body, is_cancelled=is_cancelled
                )
            case _:
                draw.choice((recorder.flush, partial(session.ended, lane)))()
    recorder.close({})


@pytest.mark.parametrize("seed", range(50))
async def test_an_observer_makes_no_difference_to_what_sessions_write(seed):
    limits = Limits(recording=RecordingLimits(unwritten_bytes_max=1000))
    written = []
    for observe in (None, lambda _: None):
        clock = Clock()
        sink = MemorySink(clock)
        recorder = Recorder(sink, clock=clock, write_clock=clock, limits=limits, observe=observe)
        recorder.record("open", OPEN)
        record_at_random(recorder, clock, seed)
        written.append(sink.writes)
    assert written[0] == written[1]
    assert check(b"".join(written[0]).splitlines(keepends=True)).damage == []


async def test_a_shared_recording_has_the_steps_of_all_sessions_in_order(tmp_path):
    path = tmp_path / "x.mcprec.jsonl"
    with SharedRecording(path) as shared:
        one, two = begin(shared), begin(shared)
        lanes = [Lane(f"r{each.received(b'{}', embed=True)}") for each in (one, two)]
        assert one.step(lanes[0]) is None
        assert two.step(lanes[1]) is None
        one.sent(b"{}", lanes[0])
        two.step(lanes[1])
        two.sent(b"{}", lanes[1])
    records = list(read_recording(open_recording(path)))[5:]
    assert [(each.channel, each.kind, each.step_start) for each in records] == [
        (1, "step", 0),
        (2, "step", 0),
        (1, "out", 0),
        (2, "out", BEGINS_STEP),
    ]


async def test_records_of_a_session_are_written_before_other_sessions_continue(tmp_path):
    path = tmp_path / "x.mcprec.jsonl"
    shared = SharedRecording(path)
    one, two = begin(shared), begin(shared)
    one.received(b"{}", embed=True)
    two.flush()
    assert (1, "in", "") in records_of_shared_recording(path)
    shared.close()


async def test_sessions_that_do_not_belong_together_are_rejected(tmp_path):
    with SharedRecording(tmp_path / "x.mcprec.jsonl") as shared:
        begin(shared)
        for change in ({"role": "client"}, {"name": "other"}):
            with pytest.raises(RecordingError, match="role and name"):
                begin(shared, **change)
    with pytest.raises(RecordingError, match="is closed"):
        begin(shared)
    shared.close()


async def test_a_session_that_goes_on_too_long_is_cut_and_the_recording_not_whole(tmp_path):
    path = tmp_path / "x.mcprec.jsonl"
    with SharedRecording(RecordOptions(path)) as shared:
        begin(shared).close({})
        session = begin(shared)
    session.received(b"{}", embed=True)
    session.close({})
    begun = [(1, "mark", "session"), (1, "mark", "ended"), (2, "mark", "session")]
    assert records_of_shared_recording(path)[1:] == begun
    assert not check(open_recording(path)).complete


def test_a_shared_recording_belongs_to_one_trio_run(tmp_path):
    with SharedRecording(tmp_path / "x.mcprec.jsonl") as shared:

        async def session():
            begin(shared)

        trio.run(session)
        with pytest.raises(RecordingError, match="the same Trio run"):
            trio.run(session)


def test_a_shared_recording_without_a_session_makes_no_file(tmp_path):
    with SharedRecording(tmp_path / "x.mcprec.jsonl"):
        pass
    assert not list(tmp_path.iterdir())


def test_every_target_has_options():
    options = RecordOptions("x.jsonl", strict=True)
    assert options_of(options) is options
    assert options_of(SharedRecording(options)) is options
    assert options_of("x") == RecordOptions("x")


def test_a_name_without_a_suffix_is_a_folder_that_has_to_exist(tmp_path):
    for path in (tmp_path / "new", RecordOptions(tmp_path / "new")):
        with pytest.raises(
            RecordingError, match=r"no such folder; make it, or name a file such as"
        ):
            SharedRecording(path)
    (tmp_path / "new").touch()
    SharedRecording(tmp_path / "new")


# Whole sessions, recorded in every way at once.


SECRET = "correct-horse-battery"


def make_server(**limits):
    server = Server("bank", version="1", limits=Limits(**limits))

    @server.tool
    async def open_account(owner: str, password: str, *, ctx: Context) -> str:
        await ctx.info(f"{owner} may enter with {password}")
        return f"welcome, {password}"

    @server.tool
    async def process() -> int:
        return os.getpid()

    return server


async def talk(server, record, calls=1):
    """A session that is recorded on the server's side."""
    async with client_session(server, record) as client:
        for number in range(calls):
            arguments = {"owner": f"user {number}", "password": SECRET}
            await client.call_tool("open_account", arguments)


def last_counts(path):
    *_, last = read_recording(open_recording(path))
    return decode_body(last, EndBody).counts


@pytest.mark.parametrize("suffix", ["", ".zst"])
async def test_rotation_compression_and_redaction_go_together(tmp_path, suffix):
    path = tmp_path / f"trip.mcprec.jsonl{suffix}"
    options = RecordOptions(path, redaction=Redaction(), segment_bytes_max=1000, sync_seconds=0.01)
    await talk(make_server(), options, calls=20)
    report = check(open_recording(path))
    assert (report.damage, report.complete) == ([], True)
    assert report.kinds["in"] == 1 + 20
    assert len(list(tmp_path.iterdir())) > 1
    lines = b"".join(open_recording(path))
    assert SECRET.encode() not in lines
    assert b"user 19" in lines
    assert (await replay_async(path, make_server())).is_complete


async def test_what_a_slow_disk_wrote_in_the_end_replays_whole(tmp_path):
    path = tmp_path / "trip.mcprec.jsonl"
    await talk(make_server(recording=RecordingLimits(write_ms_max=1e-9)), path, calls=3)
    report = check(open_recording(path))
    assert (report.kinds["gap"], report.has_loss) == (2, False)
    replayed = await replay_async(path, make_server())
    assert (replayed.is_complete, replayed.requests, replayed.notes) == (True, 3, ())


async def test_a_clock_that_is_set_back_leaves_a_recording_in_order(tmp_path, monkeypatch):
    """Times of records are those of the Trio run, which no one sets; names have numbers."""

    class Earlier(dt.datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) - dt.timedelta(hours=1)

    server, earlier, folder = make_server(), time.time() - 3600, tmp_path / "folder"
    folder.mkdir()
    arguments = {"owner": "x", "password": "y"}
    for _ in range(2):
        async with client_session(server, folder) as client:
            await client.call_tool("open_account", arguments)
            monkeypatch.setattr(record_options, "datetime", Earlier)
            monkeypatch.setattr(time, "time", lambda: earlier)
            await client.call_tool("open_account", arguments)
    paths = [*folder.iterdir()]
    assert len(paths) == 2
    for path in paths:
        report = check(open_recording(path))
        assert (report.damage, report.complete) == ([], True)
        times = [each.time_ns for each in read_recording(open_recording(path))]
        assert times == sorted(times)
        assert (await replay_async(path, server)).is_complete


@pytest.mark.real_time
async def test_a_disk_that_takes_long_delays_the_first_write_alone(tmp_path, monkeypatch):
    def write_slowly(descriptor, data):
        if is_slow:
            time.sleep(SLOW_SECONDS)
        return write(descriptor, data)

    is_slow, write = False, syncing._write
    monkeypatch.setattr(syncing, "_write", write_slowly)
    path, server, seconds = tmp_path / "slow.mcprec.jsonl", make_server(), []
    async with client_session(server, path) as client:
        await client.ping()
        is_slow = True
        for _ in range(20):
            began = trio.current_time()
            await client.call_tool("open_account", {"owner": "x", "password": "y"})
            seconds.append(trio.current_time() - began)
        is_slow = False
    assert seconds[0] >= SLOW_SECONDS
    assert sum(seconds[1:]) < SLOW_SECONDS
    report = check(open_recording(path))
    assert (report.damage, report.has_loss, report.kinds["in"]) == ([], False, 22)
    assert (await replay_async(path, server)).is_complete


async def test_a_recording_can_be_read_while_it_is_written(tmp_path):
    path = tmp_path / "trip.mcprec.jsonl.zst"
    record = RecordOptions(path, segment_bytes_max=500)
    async with client_session(make_server(), record) as client:
        for number in range(1, 9):
            await client.call_tool("open_account", {"owner": "x", "password": "y"})
            report = check(open_recording(path))
            assert (report.damage, report.complete) == ([], False)
            assert report.kinds["in"] == 1 + number
    assert check(open_recording(path)).complete


async def test_an_observer_gets_the_records_of_each_recording_before_they_are_written(tmp_path):
    observed = []

    def observer():
        observed.append([])
        return observed[-1].append

    record = RecordOptions(f"{tmp_path}/", observer=observer)
    for _ in range(2):
        async with Client(make_server(), record=record) as client:
            await client.call_tool("open_account", {"owner": "x", "password": "y"})
    # The file also has `open` and `end`, which are no records of a session.
    recorded = [
        [(each.number, each.kind, body_bytes(each)) for each in read_recording(lines)][1:-1]
        for lines in map(open_recording, sorted(tmp_path.iterdir()))
    ]
    assert recorded == [
        [(each.number, each.kind, body_bytes(each)) for each in records] for records in observed
    ]
    assert len(observed) == 2


async def test_a_clients_session_is_recorded_by_the_same_options(tmp_path):
    path = tmp_path / "trip.mcprec.jsonl"
    async with Client(make_server(), record=RecordOptions(path, redaction=Redaction())) as client:
        await client.call_tool("open_account", {"owner": "x", "password": SECRET})
    assert check(open_recording(path)).complete
    assert SECRET.encode() not in path.read_bytes()


async def test_the_sessions_of_a_group_may_share_a_recording(tmp_path):
    path = tmp_path / "trip.mcprec.jsonl"
    with SharedRecording(path) as shared:
        async with ClientGroup({"a": make_server(), "b": make_server()}, record=shared) as group:
            await group.call_tool("b_process")
    report = check(open_recording(path))
    assert (report.damage, report.complete) == ([], True)
    records = list(read_recording(open_recording(path)))
    assert {each.channel for each in records} == {0, 1, 2}
    (call,) = (each for each in records if b'"tools/call"' in body_bytes(each))
    answers = [each for each in records if each.kind == "in" and each.number > call.number]
    assert {each.channel for each in answers} == {call.channel}


async def test_concurrent_sessions_in_other_files_are_counted(tmp_path):
    server = make_server()
    async with client_session(server, tmp_path / "long.jsonl"):
        await talk(server, tmp_path / "one.jsonl")
        await talk(server, None)
    await talk(server, tmp_path / "alone.jsonl")
    assert last_counts(tmp_path / "long.jsonl")["sessions beside"] == 2
    assert last_counts(tmp_path / "one.jsonl")["sessions beside"] == 1
    assert "sessions beside" not in last_counts(tmp_path / "alone.jsonl")


async def test_sessions_in_the_same_recording_are_not_counted(tmp_path):
    server = make_server()
    path = tmp_path / "x.mcprec.jsonl"
    with SharedRecording(RecordOptions(path, segment_bytes_max=2000)) as shared:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(talk, server, shared, 2)
    records = list(read_recording(open_recording(path)))
    assert check(open_recording(path)).damage == []
    assert decode_body(records[-1], EndBody).counts == {"sessions": 3}
    ended = [decode_body(each, MarkBody) for each in records if each.kind == "mark"]
    ended = [mark.value["counts"] for mark in ended if mark.name == "ended"]
    assert len(ended) == 3
    assert not any("sessions beside" in counts for counts in ended)
    assert {each.channel for each in records} == {0, 1, 2, 3}


async def test_a_strict_recording_rejects_calls_that_cannot_be_replayed(tmp_path, caplog):
    server = make_server()
    record = RecordOptions(tmp_path / "x.mcprec.jsonl", strict=True)
    async with client_session(server, record) as client:
        with pytest.raises(ToolError, match="internal error in process"):
            await client.call_tool("process")
        await client.call_tool("open_account", {"owner": "x", "password": "y"})
    assert "os.getpid() at test_writer.py" in caplog.text


async def test_without_strict_nothing_is_rejected(tmp_path):
    async with client_session(make_server(), tmp_path / "x.jsonl") as client:
        assert (await client.call_tool("process")).content


# Redaction before records are buffered; a record that cannot be redacted is lost in a gap.


OPEN_REDACTING = OpenBody(
    transport="t", role="server", name="secret", version="1", started="s", session="secret"
)
LIMITS_REDACTING = Limits(recording=RecordingLimits(retry_seconds=0.0))


@attrs.define
class Rule:
    """A redactor that replaces one word; it raises `error`."""

    seen: list = attrs.Factory(list)
    error: Exception | None = None

    def redact(self, kind, body, *, is_whole_json=True):
        self.seen.append((kind, is_whole_json))
        if self.error is not None:
            raise self.error
        return body.replace(b"secret", b"tokens")

    def manifest(self):
        return {"rules": len(self.seen)}


def start(path, rule, **options):
    sink = Segments(path, open_file=FileSink, **options)
    recorder = Recorder(sink, clock=Clock(), limits=LIMITS_REDACTING, redactor=rule)
    recorder.open(OPEN_REDACTING)
    return recorder


def test_every_body_passes_the_redactor(tmp_path):
    rule = Rule()
    path = tmp_path / "x.mcprec.jsonl"
    recorder = start(path, rule, bytes_max=1)
    recorder.record("in", b'"secret"')
    recorder.record("in", b"secret\xff", embed=False)
    recorder.record("shut")
    recorder.flush()
    recorder.record("res", b'"my secret"')
    recorder.close({"in": 2})
    assert [kind for kind, _ in rule.seen if kind != "open"] == ["in", "in", "res"]
    assert ("in", False) in rule.seen
    opening, first, second, _, last, _ = read_recording(open_recording(path))
    assert decode_body(opening, OpenBody).redaction == {"rules": 0}
    assert [body_bytes(each) for each in (first, second, last)] == [
        b'"tokens"',
        b"tokens\xff",
        b'"my tokens"',
    ]
    for file in tmp_path.iterdir():
        assert b"secret" not in file.read_bytes()
    assert check(open_recording(path)).damage == []


def gaps_of(path):
    return [
        decode_body(r, GapBody) for r in read_recording(open_recording(path)) if r.kind == "gap"
    ]


def test_a_failing_redactor_drops_only_its_record_and_reveals_nothing(tmp_path):
    rule = Rule()
    path = tmp_path / "x.mcprec.jsonl"
    recorder = start(path, rule)
    recorder.record("in", b'"before"')
    rule.error = ValueError("secret")
    expected = recorder.next_number + 1
    assert recorder.record("in", b'"secret"') == expected
    rule.error = None
    recorder.record("in", b'"behind"')
    recorder.close({})
    report = check(open_recording(path))
    assert (report.damage, report.complete, report.kinds["in"]) == ([], True, 2)
    assert b"secret" not in path.read_bytes()
    reason = "redaction failed: ValueError"
    assert gaps_of(path) == [GapBody(reason=reason), GapBody(count=1)]


def test_on_a_slow_disk_a_failing_redactor_is_counted_in_the_gap(tmp_path):
    ticks = iter(range(100))
    rule = Rule()
    path = tmp_path / "x.mcprec.jsonl"
    recorder = Recorder(
        FileSink(path),
        clock=Clock(),
        limits=LIMITS_REDACTING,
        write_clock=ticks.__next__,
        redactor=rule,
    )
    recorder.open(OPEN_REDACTING)
    rule.error = ValueError("secret")
    assert recorder.record("in", b'"secret"') == recorder.next_number - 1
    rule.error = None
    recorder.close({})
    report = check(open_recording(path))
    assert (report.damage, report.complete) == ([], True)
    assert gaps_of(path) == [GapBody(reason="slow disk"), GapBody(count=1)]


def test_a_redactor_that_fails_at_a_new_segment_leaves_the_recording_in_this_one(tmp_path):
    rule = Rule()
    path = tmp_path / "x.mcprec.jsonl"
    recorder = start(path, rule, bytes_max=1)
    recorder.record("shut")
    rule.error = ValueError("secret")
    recorder.flush()
    recorder.record("shut")
    recorder.flush()
    rule.error = None
    recorder.close({})
    assert len(list(tmp_path.iterdir())) == 2
    report = check(open_recording(path))
    assert (report.damage, report.complete, report.kinds["shut"]) == ([], True, 2)
