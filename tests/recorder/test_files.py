"""Files of recordings: creation, segments, compression and locks."""

import contextlib
import errno
import fcntl
import io
import itertools
import json
import math
import os
import random
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import attrs
import msgspec
import pytest
import trio
import trio.testing
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio import Client, Limits, Server
from mcp_trio._journal.records import GapBody, OpenBody, decode_body
from mcp_trio._recorder import options as record_options
from mcp_trio._recorder.files import (
    CompressedSink,
    FileSink,
    Segments,
    later_names,
    recordings_in,
    segment_name,
    segment_of,
)
from mcp_trio._recorder.options import open_recorder, recorder_of_session
from mcp_trio._recorder.writer import Recorder
from mcp_trio.errors import RecordingError
from mcp_trio.limits import RecordingLimits
from mcp_trio.recording import (
    Damage,
    RecordOptions,
    Redaction,
    SharedRecording,
    TickClock,
    check,
    diff,
    open_recording,
    read_recording,
)
from tests.clocks import Clock
from tests.processes import open_descriptors
from tests.recorder.conftest import FACTS

ZSTANDARD_MAGIC = b"\x28\xb5\x2f\xfd"


def first_record(path):
    return next(iter(read_recording(open_recording(path))))


async def test_a_recording_begins_with_the_facts_of_the_session(tmp_path):
    path = tmp_path / "one.mcprec.jsonl"
    recording = open_recorder(path, listed={"tools": ("1 x",)}, lifespan=True, **FACTS)
    body = decode_body(first_record(path), OpenBody)
    assert (body.role, body.transport, body.name, body.version) == tuple(FACTS.values())
    assert (body.listed, body.lifespan) == ({"tools": ["1 x"]}, True)
    assert body.started
    assert body.writer.startswith("mcp_trio/")
    recording.close({})


async def test_the_seed_is_a_number_that_every_reader_of_json_keeps(tmp_path):
    for number in range(9):
        path = tmp_path / f"{number}.mcprec.jsonl"
        open_recorder(path, **FACTS).close({})
        seed = decode_body(first_record(path), OpenBody).seed
        assert isinstance(seed, int)
        assert float(seed) == seed < 2**53


async def test_only_its_owner_may_read_a_recording(tmp_path):
    path = tmp_path / "one.mcprec.jsonl"
    open_recorder(path, **FACTS).close({})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_folder_gets_a_file_for_each_session(tmp_path):
    for _ in range(3):
        open_recorder(tmp_path, **FACTS).close({})
    names = [path.name for path in tmp_path.iterdir()]
    assert len(names) == 3
    assert all(name.startswith("a-weather-") for name in names)
    assert all(name.endswith(".mcprec.jsonl") for name in names)


async def test_a_folder_gets_compressed_files_if_asked_to(tmp_path):
    open_recorder(RecordOptions(tmp_path, compress=True), **FACTS).close({})
    (path,) = tmp_path.iterdir()
    assert path.name.endswith(".mcprec.jsonl.zst")
    assert check(open_recording(path)).complete


async def test_times_count_from_the_start_on_the_clock_of_the_run(mock_clock, tmp_path):
    path = tmp_path / "one.mcprec.jsonl"
    mock_clock.jump(5)
    recording = open_recorder(path, **FACTS)
    mock_clock.jump(1.5)
    recording.record("mark", b'{"name":"later"}')
    recording.close({})
    assert [r.time_ns for r in read_recording(open_recording(path))][:2] == [0, 1_500_000_000]


async def test_a_file_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RecordingError, match="cannot record to"):
        open_recorder(tmp_path / "file" / "inside.mcprec.jsonl", **FACTS)


async def test_a_compressed_file_is_written_by_its_name(tmp_path):
    path = tmp_path / "one.mcprec.jsonl.zst"
    recording = open_recorder(path, **FACTS)
    assert first_record(path).kind == "open"
    recording.close({})
    assert path.read_bytes().startswith(ZSTANDARD_MAGIC)
    assert check(open_recording(path)).complete


async def test_a_session_has_an_id_of_its_own(tmp_path):
    bodies = []
    for name in ("a.jsonl", "b.jsonl"):
        open_recorder(tmp_path / name, **FACTS).close({})
        bodies.append(decode_body(first_record(tmp_path / name), OpenBody))
    assert bodies[0].session != bodies[1].session
    assert bodies[0].seed != bodies[1].seed
    assert [body.segment for body in bodies] == [1, 1]


@pytest.mark.parametrize(
    ("make_clock", "kind"),
    [
        (TickClock, "tick"),
        (trio.testing.MockClock, "virtual"),
        (lambda: trio.testing.MockClock(rate=1000), "foreign"),
        (lambda: None, "foreign"),
    ],
)
def test_a_recording_names_the_kind_and_the_time_of_its_clock(tmp_path, make_clock, kind):
    path = tmp_path / "one.mcprec.jsonl"

    async def record():
        await trio.lowlevel.checkpoint()
        begin = trio.current_time()
        recorder = open_recorder(path, **FACTS)
        await trio.lowlevel.checkpoint()
        recorder.record("in", b"{}")
        recorder.close({})
        return begin, trio.current_time()

    begin, end = trio.run(record, clock=make_clock())
    body = decode_body(first_record(path), OpenBody)
    assert body.clock == kind
    assert begin <= (body.clock_ns + 1) / 1e9
    _, record, _ = read_recording(open_recording(path))
    assert (body.clock_ns + record.time_ns - 1) / 1e9 <= end
    if kind == "tick":
        assert (body.clock_ns / 1e9, (body.clock_ns + record.time_ns) / 1e9) == (begin, end)


async def test_random_values_of_a_session_are_no_difference(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        open_recorder(tmp_path / name, **FACTS).close({})
    a, b = (
        list(read_recording(open_recording(tmp_path / name))) for name in ("a.jsonl", "b.jsonl")
    )
    assert a[0].body != b[0].body
    assert diff(a, b) == []


async def test_options_say_how_a_session_is_recorded(tmp_path):
    path = tmp_path / "one.mcprec.jsonl"
    options = RecordOptions(path, segment_bytes_max=1, sync_seconds=60)
    recorder, channel = recorder_of_session(options, **FACTS)
    recorder.record("mark", b'{"name":"x"}')
    recorder.close({})
    assert channel == 0
    assert len(list(tmp_path.iterdir())) > 1
    assert check(open_recording(path)).kinds == {"open": 1, "mark": 1, "end": 1}


@pytest.mark.parametrize("name", ["segment_bytes_max", "segment_seconds_max", "sync_seconds"])
@pytest.mark.parametrize("number", [0, -1, math.nan, math.inf])
def test_an_option_that_makes_no_sense_is_rejected(name, number):
    with pytest.raises(ValueError, match=f"{name} is {number}"):
        RecordOptions("x", **{name: number})


async def test_an_invalid_redaction_leaves_no_file(tmp_path):
    path = tmp_path / "one.mcprec.jsonl"
    path.write_text("precious")
    wrong = RecordOptions(path, redaction=Redaction(paths={"*": ["no path"]}))
    with pytest.raises(ValueError, match="not a JSON path"):
        recorder_of_session(wrong, **FACTS)
    assert path.read_text() == "precious"


async def test_segments_replace_only_segments(tmp_path):
    path = tmp_path / "one.mcprec.jsonl"
    options = RecordOptions(path, segment_bytes_max=1, overwrite=True)
    for _ in range(2):
        recorder_of_session(options, **FACTS)[0].close({})
    second = tmp_path / "one.2.mcprec.jsonl"
    assert second.exists()
    second.write_bytes(b"")
    recorder_of_session(options, **FACTS)[0].close({})
    open_recorder(RecordOptions(second, overwrite=True), **FACTS).close({})
    before = path.read_bytes(), second.read_bytes()
    with pytest.raises(
        RecordingError, match=f"a later segment would replace {second}, which is not a segment"
    ):
        recorder_of_session(options, **FACTS)
    assert (path.read_bytes(), second.read_bytes()) == before
    recorder_of_session(RecordOptions(path, overwrite=True), **FACTS)[0].close({})


async def test_a_segment_of_an_earlier_recording_is_not_replaced_unasked(tmp_path):
    path = tmp_path / "one.mcprec.jsonl"
    options = RecordOptions(path, segment_bytes_max=1)
    recorder_of_session(options, **FACTS)[0].close({})
    path.unlink()
    second = tmp_path / "one.2.mcprec.jsonl"
    before = second.read_bytes()
    with pytest.raises(RecordingError, match=f"would replace {second}; .*overwrite=True"):
        recorder_of_session(options, **FACTS)
    assert (path.exists(), second.read_bytes()) == (False, before)


async def test_a_recording_is_overwritten_only_when_that_is_asked_for(tmp_path):
    path = tmp_path / "one.mcprec.jsonl"
    path.touch()
    recorder_of_session(path, **FACTS)[0].close({})
    before = path.read_bytes()
    for record in (path, RecordOptions(path)):
        with pytest.raises(RecordingError, match=r"the file exists; .*--overwrite.*overwrite=True"):
            recorder_of_session(record, **FACTS)
        with pytest.raises(RecordingError, match="the file exists"):
            SharedRecording(record)
        with pytest.raises(RecordingError, match="the file exists"):
            Client(Server("x"), record=record)
    assert path.read_bytes() == before
    recorder_of_session(RecordOptions(path, overwrite=True), **FACTS)[0].close({})
    assert path.read_bytes() != before


async def test_a_folder_gets_another_file_even_if_a_process_took_the_next_name(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(record_options, "_session_numbers", itertools.cycle((1, 1, 2)))
    for _ in range(2):
        recorder_of_session(tmp_path, **FACTS)[0].close({})
    assert len(list(tmp_path.iterdir())) == 2


_RECORDS_MANY = """
import sys, trio
from mcp_trio import Client, Server

server = Server("bank", version="1")

@server.tool
async def rate() -> int:
    return 3

async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(20):
        async with Client(server, record=sys.argv[1]) as client:
            await client.call_tool("rate")

trio.run(main)
"""


def test_two_processes_record_into_one_folder_at_the_same_time(tmp_path):
    command = [sys.executable, "-c", _RECORDS_MANY, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            process.communicate(timeout=60)
            assert process.returncode == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    paths = [*tmp_path.iterdir()]
    assert len(paths) == 2 * 20
    for path in paths:
        report = check(open_recording(path))
        assert (report.damage, report.complete) == ([], True)


async def test_a_device_has_no_segments(tmp_path):
    (tmp_path / "null").symlink_to("/dev/null")
    open_recorder(tmp_path / "null", **FACTS).close({})
    with pytest.raises(RecordingError, match="in segments: it is not a regular file"):
        open_recorder(RecordOptions(tmp_path / "null", segment_bytes_max=1), **FACTS)
    assert len(list(tmp_path.iterdir())) == 1


async def test_a_file_is_compressed_by_its_name_alone(tmp_path):
    with pytest.raises(RecordingError, match=r"compressed if its name ends in \.zst"):
        open_recorder(RecordOptions(tmp_path / "x.mcprec.jsonl", compress=True), **FACTS)
    assert not list(tmp_path.iterdir())
    path = tmp_path / "x.mcprec.jsonl.zst"
    open_recorder(RecordOptions(path, compress=True), **FACTS).close({})
    assert check(open_recording(path)).complete


# A recording in several files is one recording, whatever fails between them.


OPEN = OpenBody(transport="t", role="server", name="n", version="1", started="s", session="id")
LIMITS = Limits(recording=RecordingLimits(retry_seconds=1))
FRAME = b'{"jsonrpc":"2.0","method":"' + b"x" * 100 + b'"}'


@attrs.define
class Disk:
    """A disk with real files; `rejects` is the operation that fails: "open", "write" or "close"."""

    rejects: str = ""
    opened: list = attrs.Factory(list)

    def open(self, path):
        if self.rejects == "open":
            raise OSError(28, "No space left on device")
        self.opened.append(path)
        return FullSink(self, FileSink(path))


@attrs.define
class FullSink:
    disk: Disk
    file: FileSink

    @property
    def written_bytes(self):
        return self.file.written_bytes

    def write(self, data):
        if self.disk.rejects == "write":
            raise OSError(28, "No space left on device")
        self.file.write(data)

    def close(self):
        self.file.close()
        if self.disk.rejects == "close":
            raise OSError(5, "Input/output error")


def start(path, disk=None, clock=None, **options):
    clock = clock or Clock()
    sink = Segments(path, open_file=(disk or Disk()).open, clock=clock, **options)
    recorder = Recorder(sink, clock=clock, write_clock=clock, limits=LIMITS)
    recorder.open(OPEN)
    return recorder


def write(recorder, count=1):
    for _ in range(count):
        recorder.record("in", FRAME)
        recorder.flush()


def records(path):
    return [each for each in read_recording(open_recording(path)) if not isinstance(each, Damage)]


def test_a_full_file_is_followed_by_the_next(tmp_path):
    path = tmp_path / "trip.mcprec.jsonl"
    recorder = start(path, bytes_max=1010)
    write(recorder, 20)
    recorder.close({})
    files = [path, *map(Path, later_names(str(path)))]
    assert sorted(files) == sorted(tmp_path.iterdir())
    assert len(files) > 2
    report = check(open_recording(path))
    assert (report.damage, report.complete) == ([], True)
    assert report.kinds == {"open": 1, "in": 20, "end": 1}
    heads = [json.loads(file.read_bytes().splitlines()[0]) for file in files]
    assert [head["f"]["segment"] for head in heads] == list(range(1, len(files) + 1))
    assert {head["f"]["session"] for head in heads} == {"id"}


def test_an_old_file_is_followed_by_the_next(tmp_path):
    clock, disk = Clock(), Disk()
    recorder = start(tmp_path / "x.mcprec.jsonl", disk, clock, seconds_max=60)
    for seconds in (59, 60, 61, 119, 130, 200):
        clock.seconds = seconds
        write(recorder)
    recorder.close({})
    assert [name.partition("x.")[2] for name in disk.opened] == [
        "mcprec.jsonl",
        "2.mcprec.jsonl",
        "3.mcprec.jsonl",
    ]
    assert check(open_recording(tmp_path / "x.mcprec.jsonl")).damage == []


@pytest.mark.slow
@given(bytes_max=st.integers(1, 3000), batches=st.lists(st.integers(1, 70), max_size=8))
def test_the_records_are_the_same_however_they_are_cut_into_files(
    tmp_path_factory, bytes_max, batches
):
    folder = tmp_path_factory.mktemp("segments")
    contents = []
    for name, options in (("one", {}), ("many", {"bytes_max": bytes_max})):
        recorder = start(folder / name, **options)
        for batch in batches:
            for _ in range(batch):
                recorder.record("in", FRAME)
            recorder.flush()
        recorder.close({})
        assert check(open_recording(folder / name)).damage == []
        contents.append([(each.number, each.kind, each.body) for each in records(folder / name)])
    assert contents[0] == contents[1]
    shutil.rmtree(folder)


@pytest.mark.parametrize("rejects", ["open", "write"])
def test_a_file_that_cannot_be_begun_is_a_gap_and_begun_later(tmp_path, rejects):
    clock, disk = Clock(), Disk()
    path = tmp_path / "x.mcprec.jsonl"
    recorder = start(path, disk, clock, bytes_max=500)
    write(recorder, 2)
    assert path.stat().st_size >= 500
    disk.rejects = rejects
    write(recorder, 4)
    clock.seconds = 2
    recorder.flush()
    disk.rejects = ""
    clock.seconds = 4
    recorder.flush()
    write(recorder)
    recorder.close({})
    report = check(open_recording(path))
    assert (report.damage, report.complete) == ([], True)
    reasons = [decode_body(each, GapBody) for each in records(path) if each.kind == "gap"]
    assert "No space left" in reasons[0].reason
    assert (reasons[1].count, report.kinds["in"]) == (4, 3)
    assert later_names(str(path))[0] == str(tmp_path / "x.2.mcprec.jsonl")


def test_a_file_of_an_earlier_recording_is_not_taken_for_a_segment(tmp_path):
    path = tmp_path / "x.mcprec.jsonl"
    recorder = start(path, bytes_max=500)
    write(recorder, 9)
    recorder.close({})
    clock = Clock()
    sink = FileSink(path, overwrite=True)
    other = Recorder(sink, clock=clock, limits=LIMITS)
    other.open(msgspec.structs.replace(OPEN, session="another"))
    other.close({})
    assert len(list(tmp_path.iterdir())) > 1
    assert check(open_recording(path)).kinds == {"open": 1, "end": 1}


def test_a_copy_of_a_recording_beside_it_is_not_taken_for_a_segment(tmp_path):
    path = tmp_path / "x.mcprec.jsonl"
    recorder = start(path)
    write(recorder)
    recorder.close({})
    shutil.copy(path, tmp_path / "x.2.mcprec.jsonl")
    report = check(open_recording(path))
    assert (report.damage, report.kinds) == ([], {"open": 1, "in": 1, "end": 1})


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path, monkeypatch):
    path = tmp_path / "x.mcprec.jsonl"
    start(path)  # it is not closed, so another file may follow

    def reject(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", reject)
    with pytest.raises(RecordingError, match=f"later segments of {path}: Permission denied"):
        list(open_recording(path))


@pytest.mark.requirement("TOOL-40")
def test_the_folder_of_a_complete_recording_is_not_listed(tmp_path, monkeypatch):
    path = tmp_path / "x.mcprec.jsonl"
    start(path).close({})
    monkeypatch.setattr(os, "listdir", None)
    assert check(open_recording(path)).complete


def test_a_disk_that_is_full_at_first_costs_no_later_record(tmp_path):
    clock, disk = Clock(), Disk(rejects="write")
    path = tmp_path / "x.mcprec.jsonl"
    recorder = start(path, disk, clock)
    write(recorder, 3)
    clock.seconds = 2
    recorder.flush()
    disk.rejects = ""
    clock.seconds = 4
    recorder.flush()
    write(recorder, 2)
    recorder.close({})
    report = check(open_recording(path))
    assert (report.damage, report.complete) == ([], True)
    assert report.kinds == {"open": 1, "gap": 2, "in": 2, "end": 1}
    gaps = [decode_body(each, GapBody) for each in records(path) if each.kind == "gap"]
    assert [gap.count for gap in gaps] == [None, 3]


def test_a_full_file_that_cannot_be_closed_loses_no_record_of_the_next(tmp_path, caplog):
    path = tmp_path / "x.mcprec.jsonl"
    recorder = start(path, Disk(rejects="close"), bytes_max=500)
    write(recorder, 8)
    recorder.close({})
    report = check(open_recording(path))
    assert (report.damage, report.complete) == ([], True)
    assert report.kinds == {"open": 1, "in": 8, "end": 1}
    last = "a recording"  # the recorder, which closes it, was given no path
    for name in (path, tmp_path / "x.2.mcprec.jsonl", last):
        assert f"the end of {name} may not be on the disk: [Errno 5] Input/output" in caplog.text


def test_a_missing_segment_is_damage(tmp_path):
    path = tmp_path / "x.mcprec.jsonl"
    recorder = start(path, bytes_max=500)
    write(recorder, 20)
    recorder.close({})
    (tmp_path / "x.2.mcprec.jsonl").unlink()
    assert {flaw.kind for flaw in check(open_recording(path)).damage} == {"numbering", "digest"}


def test_damage_at_the_end_of_a_segment_is_found_by_the_next(tmp_path):
    path = tmp_path / "x.mcprec.jsonl"
    recorder = start(path, bytes_max=500)
    write(recorder, 3)
    path.write_bytes(path.read_bytes().replace(b"xxxx", b"yxxx", 1))
    report = check(open_recording(path))
    assert ([flaw.kind for flaw in report.damage], report.complete) == (["digest"], False)
    recorder.close({})


def test_a_later_segment_names_the_first(tmp_path):
    path = tmp_path / "x.mcprec.jsonl"
    recorder = start(path, bytes_max=500)
    write(recorder, 9)
    recorder.close({})
    second = tmp_path / "x.2.mcprec.jsonl"
    with pytest.raises(RecordingError, match=f"segment 2 .* name its first file, {path}"):
        next(open_recording(second))
    with pytest.raises(RecordingError, match="segment 2 of a recording"):
        list(read_recording(second.read_bytes().splitlines(keepends=True)))


def test_a_torn_segment_is_a_cut(tmp_path):
    path = tmp_path / "x.mcprec.jsonl"
    recorder = start(path, bytes_max=500)
    write(recorder, 9)
    recorder.close({})
    last = later_names(str(path))[-1]
    os.truncate(last, Path(last).stat().st_size - 3)
    report = check(open_recording(path))
    assert [flaw.kind for flaw in report.damage] == ["torn"]
    assert not report.complete
    os.truncate(last, 5)
    assert check(open_recording(path)).damage == []


def test_while_the_disk_is_slow_the_file_stays_the_same(tmp_path):
    disk = Disk()
    ticks = iter(range(10_000))
    path = tmp_path / "x.mcprec.jsonl"
    sink = Segments(path, open_file=disk.open, bytes_max=500)
    recorder = Recorder(sink, clock=Clock(), write_clock=lambda: next(ticks), limits=LIMITS)
    recorder.open(OPEN)
    write(recorder, 9)
    recorder.close({})
    assert len(disk.opened) == 1
    report = check(open_recording(path))
    assert (report.damage, report.complete, report.kinds["in"]) == ([], True, 9)


@pytest.mark.parametrize(
    ("path", "second"),
    [
        ("a/trip.mcprec.jsonl", "a/trip.2.mcprec.jsonl"),
        ("trip.mcprec.jsonl.zst", "trip.2.mcprec.jsonl.zst"),
        ("trip.jsonl", "trip.2.jsonl"),
        ("trip.x.zst", "trip.2.x.zst"),
        ("a.b/trip", "a.b/trip.2"),
    ],
)
def test_a_segment_is_named_after_the_first(path, second):
    assert segment_name(path, 2) == second
    assert segment_of(second) == (path, 2)


def test_segments_are_found_in_their_order(tmp_path):
    for name in ("x.10.jsonl", "x.2.jsonl", "x.jsonl", "x.02.jsonl", "x.2.jsonl.zst", "y.3.jsonl"):
        (tmp_path / name).touch()
    found = later_names(str(tmp_path / "x.jsonl"))
    assert [name.rpartition("/")[2] for name in found] == ["x.2.jsonl", "x.10.jsonl"]


def test_compressed_segments_are_one_recording(tmp_path):
    path = tmp_path / "x.mcprec.jsonl.zst"
    sink = Segments(path, open_file=lambda name: CompressedSink(FileSink(name)), bytes_max=400)
    recorder = Recorder(sink, clock=Clock(), limits=LIMITS)
    recorder.open(OPEN)
    write(recorder, 60)
    assert check(open_recording(path)).kinds["in"] == 60
    recorder.close({})
    report = check(open_recording(path))
    assert (report.damage, report.complete) == ([], True)
    assert len(later_names(str(path))) >= 1


# A compressed recording can be read at any time, up to where it is written or was cut.


@attrs.define
class MemoryFile:
    """The file of a sink in memory; writes with the numbers in `rejected` fail."""

    rejected: set = attrs.Factory(set)
    data: bytes = b""
    writes: int = 0
    is_closed: bool = False

    @property
    def written_bytes(self):
        return len(self.data)

    def write(self, data):
        self.writes += 1
        if self.writes in self.rejected:
            raise OSError(28, "No space left on device")
        self.data += data

    def close(self):
        self.is_closed = True


def decompressed(data):
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True) as r:
        return r.read()


def test_written_data_can_be_read_at_once(tmp_path):
    path = tmp_path / "x.zst"
    sink = CompressedSink(FileSink(path))
    for count in range(1, 50):
        sink.write(b"line\n")
        assert list(open_recording(path)) == [b"line\n"] * count
    assert sink.written_bytes == path.stat().st_size
    sink.close()
    assert list(open_recording(path)) == [b"line\n"] * 49
    assert zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())


def test_a_frame_that_has_not_ended_is_read_to_its_last_block(tmp_path):
    path = tmp_path / "x.zst"
    sink = CompressedSink(FileSink(path))
    lines = [random.Random(number).randbytes(4000).hex().encode() + b"\n" for number in range(50)]
    sink.write(b"".join(lines))
    assert list(open_recording(path)) == lines
    sink.close()


def test_a_cut_file_has_all_complete_writes(tmp_path):
    path = tmp_path / "x.zst"
    sink = CompressedSink(FileSink(path))
    ends = [0]
    for number in range(5):
        sink.write(random.Random(number).randbytes(30).hex().encode() + b"\n")
        ends.append(sink.written_bytes)
    sink.close()
    whole = path.read_bytes()
    lines = list(open_recording(path))
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        at_least = sum(end <= cut for end in ends[1:])
        assert list(open_recording(path))[:at_least] == lines[:at_least]


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=12),
    rejected=st.sets(st.integers(1, 12)),
)
def test_a_failed_write_affects_no_other_write(chunks, rejected):
    file = MemoryFile(rejected)
    sink = CompressedSink(file)
    kept = []
    for chunk in chunks:
        try:
            sink.write(chunk)
        except OSError:
            continue
        kept.append(chunk)
        assert decompressed(file.data) == b"".join(kept)
    with contextlib.suppress(OSError):  # the end of the frame may be rejected, too
        sink.close()
    assert file.is_closed
    assert decompressed(file.data) == b"".join(kept)


def test_nothing_written_is_an_empty_file():
    file = MemoryFile()
    CompressedSink(file).close()
    assert (file.data, file.is_closed) == (b"", True)


def test_a_failed_write_raises_an_error():
    with pytest.raises(OSError, match="No space"):
        CompressedSink(MemoryFile({1})).write(b"x")


def test_an_empty_write_after_a_failed_one_leaves_a_compressed_file_readable(tmp_path):
    """When the disk is full, the last write of a recorder is an empty one, before `close`."""
    for rejected in (set(), {1}, {2}, {2, 3}):
        file = MemoryFile(rejected)
        sink = CompressedSink(file)
        for data in (b"one\n", b"two\n", b""):
            with contextlib.suppress(OSError):
                sink.write(data)
        # The third write is the end of the frame.
        with pytest.raises(OSError) if 3 in rejected else contextlib.nullcontext():
            sink.close()
        assert file.is_closed
        path = tmp_path / "x.zst"
        path.write_bytes(file.data)
        assert len(list(open_recording(path))) == 2 - len(rejected & {1, 2})


# Files of recordings: private, whole, readable.


LINES = [b"one\n", b"two\n", b"three"]


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_compressed_recording_is_readable_by_its_owner_only(tmp_path, mask):
    before = os.umask(mask)
    try:
        FileSink(tmp_path / "x").close()
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "x") == 0o600


def test_a_file_that_was_there_is_emptied_and_made_private(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    path.chmod(0o644)
    with pytest.raises(FileExistsError):
        FileSink(path)
    assert (path.read_bytes(), mode_of(path)) == (b"old", 0o644)
    sink = FileSink(path, overwrite=True)
    sink.write(b"new")
    sink.close()
    assert (path.read_bytes(), mode_of(path)) == (b"new", 0o600)


# Shared folders, in which others may create files.


async def test_a_link_in_a_folder_is_not_followed(tmp_path, monkeypatch):
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    monkeypatch.setattr(record_options, "_session_numbers", iter((1, 2, 1, 3)))
    is_planted = False

    def lexists(path):
        nonlocal is_planted
        there = path.is_symlink() or path.exists()
        if not is_planted:
            is_planted = True
            path.symlink_to(outside)  # right after the check
        return there

    with monkeypatch.context() as patched:
        patched.setattr(record_options.os.path, "lexists", lexists)
        with pytest.raises(RecordingError, match="the file exists"):
            recorder_of_session(folder, **FACTS)
    recorder_of_session(folder, **FACTS)[0].close({})  # the number 2
    recorder_of_session(folder, **FACTS)[0].close({})  # the number 1 is a link
    assert not outside.exists()
    assert len(list(folder.iterdir())) == 3


async def test_a_later_segment_is_not_written_through_a_link(tmp_path):
    path, outside = tmp_path / "one.mcprec.jsonl", tmp_path / "outside"
    recorder, _ = recorder_of_session(RecordOptions(path, segment_bytes_max=1), **FACTS)
    (tmp_path / "one.2.mcprec.jsonl").symlink_to(outside)
    recorder.record("mark", b'{"name":"x"}')
    recorder.close({})
    assert not outside.exists()


@pytest.mark.parametrize("options", [{}, {"segment_bytes_max": 1}])
async def test_a_fifo_without_a_reader_is_an_error_and_does_not_block(tmp_path, options):
    path = tmp_path / "one.mcprec.jsonl"
    os.mkfifo(path)
    text = "not a regular file" if options else "no program reads this FIFO"
    with pytest.raises(RecordingError, match=text):
        recorder_of_session(RecordOptions(path, **options), **FACTS)


async def test_a_fifo_with_a_reader_gets_the_recording(tmp_path):
    path = tmp_path / "one.mcprec.jsonl"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    recorder, _ = recorder_of_session(path, **FACTS)
    recorder.close({})
    assert os.read(reader, 65536).count(b"\n") == 2
    os.close(reader)


@pytest.mark.parametrize("has_reader", [False, True])
async def test_a_fifo_with_the_name_of_a_later_segment_is_neither_written_nor_read(
    tmp_path, has_reader
):
    path, fifo = tmp_path / "one.mcprec.jsonl", tmp_path / "one.2.mcprec.jsonl"
    recorder, _ = recorder_of_session(RecordOptions(path, segment_bytes_max=1), **FACTS)
    os.mkfifo(fifo)
    readers = [os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)] if has_reader else []
    recorder.record("mark", b'{"name":"x"}')
    recorder.close({})
    for reader in readers:
        assert os.read(reader, 100) == b""
        os.close(reader)
    assert check(open_recording(path)).kinds["open"] == 1


def test_the_folder_must_exist(tmp_path):
    with pytest.raises(FileNotFoundError):
        FileSink(tmp_path / "no" / "x")


def test_written_data_is_passed_to_the_system_at_once(tmp_path):
    sink = FileSink(tmp_path / "x")
    sink.write(b"one\n")
    sink.write(b"two\n")
    assert (tmp_path / "x").read_bytes() == b"one\ntwo\n"
    sink.close()


def test_a_full_disk_is_an_error_and_leaves_the_device_alone():
    before = mode_of(Path("/dev/full"))
    sink = FileSink("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        sink.write(b"x")
    sink.close()
    assert mode_of(Path("/dev/full")) == before


FULL_DISK = """
import resource, signal, sys
from mcp_trio._recorder.files import FileSink
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
sink = FileSink(sys.argv[1])
sink.write(b"12345678")
try:
    sink.write(b"never half of it")
except OSError:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    sink.write(b"later")
    sink.close()
"""


def test_a_write_that_fails_half_way_is_taken_back(tmp_path):
    """In a process of its own, where a file may grow to 10 bytes and a longer write is cut."""
    subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path / "x")], check=True)
    assert (tmp_path / "x").read_bytes() == b"12345678later"


def test_the_lines_of_a_recording_keep_their_ends(tmp_path):
    (tmp_path / "x.mcprec.jsonl").write_bytes(b"".join(LINES))
    assert list(open_recording(tmp_path / "x.mcprec.jsonl")) == LINES


def test_a_compressed_recording_is_read_alike(tmp_path):
    path = tmp_path / "x.mcprec.jsonl.zst"
    compress = zstandard.ZstdCompressor().compress
    path.write_bytes(compress(b"".join(LINES[:1])) + compress(b"".join(LINES[1:])))
    assert list(open_recording(str(path))) == LINES


def test_a_compressed_recording_that_was_cut_is_read_up_to_there(tmp_path):
    path = tmp_path / "x.mcprec.jsonl.zst"
    compressor = zstandard.ZstdCompressor().compressobj()
    begin = compressor.compress(b"one\n") + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    path.write_bytes(begin)
    assert list(open_recording(path)) == [b"one\n"]


def test_deeply_nested_lines_are_read_as_lines(tmp_path):
    path = tmp_path / "x.mcprec.jsonl"
    nested = b'{"k":"in","f":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    for lines in ([nested], [b'{"k":"open","f":{"session":"s"}}\n', nested]):
        path.write_bytes(b"".join(lines))
        assert list(open_recording(path)) == lines
        assert recordings_in(tmp_path, role="server") == [str(path)]


def test_an_unreadable_file_is_an_error(tmp_path):
    with pytest.raises(RecordingError, match="No such file"):
        list(open_recording(tmp_path / "x.mcprec.jsonl"))
    (tmp_path / "x.zst").write_bytes(b"not compressed at all")
    with pytest.raises(RecordingError, match=r"cannot decompress .*x\.zst: "):
        list(open_recording(tmp_path / "x.zst"))


@pytest.mark.parametrize("name", ["x.mcprec.jsonl", "x.mcprec.jsonl.zst"])
def test_no_more_than_a_line_of_bounded_length_is_read(tmp_path, name):
    limits = Limits(recording=RecordingLimits(line_bytes_max=4))
    path = tmp_path / name
    compress = zstandard.ZstdCompressor().compress if name.endswith(".zst") else bytes
    path.write_bytes(compress(b"123\n"))
    assert list(open_recording(path, limits=limits)) == [b"123\n"]
    path.write_bytes(compress(b"123\n1234\n"))
    lines = open_recording(path, limits=limits)
    assert next(lines) == b"123\n"
    with pytest.raises(
        RecordingError, match=r"longer than limits\.recording\.line_bytes_max \(4 bytes\)"
    ):
        next(lines)


def test_a_file_that_another_session_is_recorded_to_is_left_alone(tmp_path):
    first = FileSink(tmp_path / "x")
    first.write(b"first")
    before = open_descriptors()
    with pytest.raises(OSError, match="another session is being recorded to this file"):
        FileSink(tmp_path / "x")
    assert open_descriptors() == before
    assert (tmp_path / "x").read_bytes() == b"first"
    first.close()
    FileSink(tmp_path / "x", overwrite=True).close()
    assert (tmp_path / "x").read_bytes() == b""


def test_a_file_system_without_locks_takes_recordings(tmp_path, monkeypatch):
    def reject(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", reject)
    FileSink(tmp_path / "x").close()
    assert (tmp_path / "x").read_bytes() == b""
