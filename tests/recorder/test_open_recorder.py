"""How a session comes to be recorded: the file and its first record."""

import math
import stat

import pytest

from mcp_trio._journal.records import OpenBody, decode_body
from mcp_trio._recorder.writer import begin_session, open_recorder
from mcp_trio.errors import RecordingError
from mcp_trio.recording import RecordOptions, Redaction, check, diff, open_recording, read_recording
from tests.recorder.conftest import FACTS

ZSTANDARD_MAGIC = b"\x28\xb5\x2f\xfd"


def first_record(path):
    return next(iter(read_recording(open_recording(path))))


async def test_a_recording_begins_with_what_is_known(tmp_path):
    path = tmp_path / "one.mcprec.jsonl"
    recording = open_recorder(path, tools_digest="d", lifespan=True, **FACTS)
    body = decode_body(first_record(path), OpenBody)
    assert (body.role, body.transport, body.name, body.version) == tuple(FACTS.values())
    assert (body.tools_digest, body.lifespan) == ("d", True)
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
    for name in ("a", "b"):
        open_recorder(tmp_path / name, **FACTS).close({})
        bodies.append(decode_body(first_record(tmp_path / name), OpenBody))
    assert bodies[0].session != bodies[1].session
    assert bodies[0].seed != bodies[1].seed
    assert [body.segment for body in bodies] == [1, 1]


async def test_random_values_of_a_session_are_no_difference(tmp_path):
    for name in ("a", "b"):
        open_recorder(tmp_path / name, **FACTS).close({})
    a, b = (list(read_recording(open_recording(tmp_path / name))) for name in ("a", "b"))
    assert a[0].body != b[0].body
    assert diff(a, b) == []


async def test_options_say_how_a_session_is_recorded(tmp_path):
    path = tmp_path / "one.mcprec.jsonl"
    options = RecordOptions(path, segment_bytes_max=1, sync_seconds=60)
    recorder, channel = begin_session(options, **FACTS)
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


async def test_a_redaction_that_is_wrong_costs_no_file(tmp_path):
    path = tmp_path / "one.mcprec.jsonl"
    path.write_text("precious")
    wrong = RecordOptions(path, redaction=Redaction(paths={"*": ["no path"]}))
    with pytest.raises(ValueError, match="not a JSON path"):
        begin_session(wrong, **FACTS)
    assert path.read_text() == "precious"


async def test_segments_replace_only_segments(tmp_path):
    path = tmp_path / "one.mcprec.jsonl"
    options = RecordOptions(path, segment_bytes_max=1)
    for _ in range(2):
        begin_session(options, **FACTS)[0].close({})
    second = tmp_path / "one.2.mcprec.jsonl"
    assert second.exists()
    second.write_bytes(b"")
    begin_session(options, **FACTS)[0].close({})
    open_recorder(second, **FACTS).close({})
    before = path.read_bytes(), second.read_bytes()
    with pytest.raises(
        RecordingError, match=f"a later segment would replace {second}, which is not a segment"
    ):
        begin_session(options, **FACTS)
    assert (path.read_bytes(), second.read_bytes()) == before
    begin_session(RecordOptions(path), **FACTS)[0].close({})


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
