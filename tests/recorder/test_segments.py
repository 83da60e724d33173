"""A recording in several files is one recording, whatever fails between them."""

import json
import os
import shutil
from pathlib import Path

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio import Limits
from mcp_trio._journal.records import GapBody, OpenBody, decode_body
from mcp_trio._recorder.files import (
    CompressedSink,
    FileSink,
    Segments,
    first_name,
    later_names,
    segment_name,
)
from mcp_trio._recorder.writer import Recorder
from mcp_trio.errors import RecordingError
from mcp_trio.limits import RecordingLimits
from mcp_trio.recording import Damage, check, open_recording, read_recording
from tests.recorder.conftest import Clock

OPEN = OpenBody(transport="t", role="server", name="n", version="1", started="s", session="id")
LIMITS = Limits(recording=RecordingLimits(retry_seconds=1))
FRAME = b'{"jsonrpc":"2.0","method":"' + b"x" * 100 + b'"}'


@attrs.define
class Disk:
    """Opens real files; refuses to open or to write when told to."""

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


def start(path, disk=None, clock=None, **options):
    clock = clock or Clock()
    sink = Segments(path, open_file=(disk or Disk()).open, clock=clock, **options)
    recorder = Recorder(sink, clock_ns=clock.nanoseconds, write_clock=clock, limits=LIMITS)
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


@given(bytes_max=st.integers(1, 3000), batches=st.lists(st.integers(1, 70), max_size=8))
def test_the_records_are_the_same_however_they_are_cut_into_files(
    tmp_path_factory, bytes_max, batches
):
    folder = tmp_path_factory.mktemp("segments")
    told = []
    for name, options in (("one", {}), ("many", {"bytes_max": bytes_max})):
        recorder = start(folder / name, **options)
        for batch in batches:
            for _ in range(batch):
                recorder.record("in", FRAME)
            recorder.flush()
        recorder.close({})
        assert check(open_recording(folder / name)).damage == []
        told.append([(each.number, each.kind, each.body) for each in records(folder / name)])
    assert told[0] == told[1]
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
    other = Recorder(FileSink(path), clock_ns=clock.nanoseconds, limits=LIMITS)
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
    start(path).close({})

    def reject(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", reject)
    with pytest.raises(RecordingError, match=f"later segments of {path}: Permission denied"):
        list(open_recording(path))


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
    recorder = Recorder(sink, clock_ns=lambda: 0, write_clock=lambda: next(ticks), limits=LIMITS)
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
    assert first_name(second) == path


def test_segments_are_found_in_their_order(tmp_path):
    for name in ("x.10.jsonl", "x.2.jsonl", "x.jsonl", "x.02.jsonl", "x.2.jsonl.zst", "y.3.jsonl"):
        (tmp_path / name).touch()
    found = later_names(str(tmp_path / "x.jsonl"))
    assert [name.rpartition("/")[2] for name in found] == ["x.2.jsonl", "x.10.jsonl"]


def test_compressed_segments_are_one_recording(tmp_path):
    path = tmp_path / "x.mcprec.jsonl.zst"
    sink = Segments(path, open_file=lambda name: CompressedSink(FileSink(name)), bytes_max=400)
    recorder = Recorder(sink, clock_ns=lambda: 0, limits=LIMITS)
    recorder.open(OPEN)
    write(recorder, 60)
    assert check(open_recording(path)).kinds["in"] == 60
    recorder.close({})
    report = check(open_recording(path))
    assert (report.damage, report.complete) == ([], True)
    assert len(later_names(str(path))) >= 1
