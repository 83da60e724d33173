"""A recorder keeps everything while it can, and says so in the file when it could not."""

import threading

import attrs
import pytest

from mcp_trio import Limits
from mcp_trio._journal.records import GapBody, OpenBody, decode_body, encode_body
from mcp_trio._recorder.files import FileSink
from mcp_trio._recorder.writer import Recorder
from mcp_trio.limits import RecordingLimits
from mcp_trio.recording import Damage, body_bytes, check, open_recording, read_recording
from tests.recorder.conftest import Clock

OPEN = encode_body(OpenBody(transport="t", role="server", name="n", version="1", started="s"))
LIMITS = Limits(
    recording=RecordingLimits(write_ms_max=250, buffer_bytes_max=1000, close_seconds=20)
)
SLOW_SECONDS = 0.5


@attrs.define
class MemorySink:
    """Keeps writes; fails or takes its time (of the test's clock) when told to."""

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
    """A write outside the main thread waits until the test lets it go."""

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
        """Let so many writes happen, and wait until they have."""
        for _ in range(writes):
            self.may_write.release()
            assert self.done.acquire(timeout=20)


def recording_to(sink_type=MemorySink, limits=LIMITS):
    clock = Clock()
    sink = sink_type(clock)
    recorder = Recorder(sink, clock_ns=clock.nanoseconds, write_clock=clock, limits=limits)
    recorder.record("open", OPEN)
    recorder.flush()
    return recorder, sink


def lines_of(sink):
    return b"".join(sink.writes).splitlines(keepends=True)


def story(sink):
    """What the file says, in short: kinds and numbers, and gaps with what they say."""
    told = []
    for item in read_recording(lines_of(sink)):
        if isinstance(item, Damage):
            told.append(item)
        elif item.kind == "gap":
            body = decode_body(item, GapBody)
            told.append(body.reason if body.count is None else body.count)
        else:
            told.append(f"{item.kind}{item.number}")
    return told


def record_frames(recorder, count, size=2):
    return [recorder.record("in", b'"%b"' % (b"x" * (size - 2))) for _ in range(count)]


def until(condition):
    """Wait for the other thread; a test that waits in vain ends by its time limit."""
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
    assert story(sink) == ["open0", "in1", "in2", "in3", "end4"]
    assert check(lines_of(sink)).complete
    assert sink.is_closed


def test_a_record_holds_what_was_given():
    recorder, sink = recording_to()
    sink.clock.seconds = 2
    recorder.record("in", b"\xff", lane="r0", ordinal=3, channel=2, envelope={"a": 1}, embed=False)
    recorder.record("mark", b'{"name":"start"}', time_ns=7)
    recorder.flush()
    _, record, mark = read_recording(lines_of(sink))
    assert (record.lane, record.ordinal, record.channel, record.time_ns) == ("r0", 3, 2, 2 * 10**9)
    assert (record.envelope, body_bytes(record)) == ({"a": 1}, b"\xff")
    assert mark.time_ns == 7


def test_a_closed_recorder_keeps_nothing():
    recorder, sink = recording_to()
    recorder.close({})
    writes = len(sink.writes)
    assert recorder.record("in", b"{}") == 2
    recorder.flush()
    recorder.close({})
    assert len(sink.writes) == writes


def test_a_real_file_is_whole_after_each_flush(tmp_path):
    path = tmp_path / "x.mcprec.jsonl"
    clock = Clock()
    recorder = Recorder(FileSink(path), clock_ns=clock.nanoseconds, limits=LIMITS)
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
    assert story(sink)[:5] == ["open0", "[Errno 28] No space left on device", 5, "in8", "in9"]
    assert check(lines_of(sink)).damage == []
    assert check(lines_of(sink)).complete


def test_a_disk_that_stays_full_is_tried_now_and_then_and_uses_no_numbers():
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
    assert story(sink) == ["open0", "full", 6, "end9"]
    assert check(lines_of(sink)).damage == []


def test_a_disk_that_is_full_to_the_end_leaves_a_recording_that_was_cut():
    recorder, sink = recording_to()
    sink.error = RuntimeError("people's sinks may raise anything")
    record_frames(recorder, 1)
    recorder.flush()
    recorder.close({})
    assert story(sink) == ["open0"]
    assert sink.is_closed


def test_a_disk_that_fills_up_at_the_end_leaves_a_recording_that_was_cut():
    recorder, sink = recording_to()
    sink.error = OSError("full")
    recorder.close({})
    assert story(sink) == ["open0"]
    assert sink.is_closed


def slowed(limits=LIMITS):
    """A recorder that has just moved to its thread."""
    recorder, sink = recording_to(StallingSink, limits)
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
    assert story(sink) == ["open0", "in1", "slow disk", "in3", "in4", 0, "in6"]
    main = threading.main_thread()
    assert [thread is main for thread in sink.threads] == [True, True, False, False, True, True]
    assert not sink.threads[2].is_alive()
    assert not sink.threads[2].daemon
    recorder.close({})
    assert check(lines_of(sink)).damage == []


def test_what_does_not_fit_is_dropped_and_counted():
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
    told = story(sink)
    (closing,) = (at for at, word in enumerate(told) if isinstance(word, int))
    assert told[:4] == ["open0", "in1", "slow disk", "in3"]
    assert 4 <= closing - 3 <= 12
    assert told[closing] == 25 - (closing - 3)
    assert told[-1] == "end99"
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
    assert story(sink) == ["open0", "in1", "slow disk", 0, "end4"]


def test_closing_waits_for_the_thread():
    recorder, sink = slowed()
    record_frames(recorder, 1)
    sink.may_write.release(3)
    recorder.close({})
    assert story(sink) == ["open0", "in1", "slow disk", "in3", 0, "end5"]
    assert sink.is_closed
    assert not sink.threads[-1].is_alive()


def test_closing_leaves_a_hanging_disk_to_the_thread():
    recorder, sink = slowed(Limits(recording=RecordingLimits(write_ms_max=250, close_seconds=0.01)))
    thread = recorder._thread._thread
    recorder.close({})
    assert not sink.is_closed
    assert thread.is_alive()
    sink.may_write.release(2)
    thread.join(20)
    assert story(sink) == ["open0", "in1", "slow disk", 0, "end4"]


def test_a_slow_disk_that_fails_becomes_a_gap_of_that():
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
    assert story(sink) == ["open0", "in1", "gone", 4, "end8"]
    assert check(lines_of(sink)).damage == []


def test_without_a_thread_writes_stay_slow_but_whole(monkeypatch):
    def reject(self):
        raise RuntimeError("can't start new thread")

    recorder, sink = recording_to()
    monkeypatch.setattr(threading.Thread, "start", reject)
    sink.takes_seconds = SLOW_SECONDS
    for _ in range(3):
        record_frames(recorder, 1)
        recorder.flush()
    recorder.close({})
    assert story(sink) == ["open0", "in1", "in2", "in3", "end4"]


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_any_number_of_records_is_read_without_damage(count):
    recorder, sink = recording_to()
    for _ in range(count):
        record_frames(recorder, 1)
        recorder.flush()
    recorder.close({})
    assert check(lines_of(sink)).damage == []
