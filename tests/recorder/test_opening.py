"""How a session comes to be recorded: the file and its first record."""

import stat

import pytest

from mcp_trio._errors import RecordingError
from mcp_trio._journal.reader import read_recording
from mcp_trio._journal.records import OpenBody, body_of
from mcp_trio._recorder.opening import open_recorder
from mcp_trio._recorder.sink import open_recording

FACTS = {"role": "server", "transport": "memory", "name": "a / weather!", "version": "1.0"}


def first_record(path):
    return next(iter(read_recording(open_recording(path))))


async def test_a_recording_begins_with_what_is_known(tmp_path):
    path = tmp_path / "one.mcprec.jsonl"
    recording = open_recorder(path, tools_digest="d", lifespan=True, **FACTS)
    body = body_of(first_record(path), OpenBody)
    assert (body.role, body.transport, body.name, body.version) == tuple(FACTS.values())
    assert (body.tools_digest, body.lifespan) == ("d", True)
    assert body.started
    assert isinstance(body.seed, int)
    recording.close({})


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


async def test_times_count_from_the_start_on_the_clock_of_the_run(mock_clock, tmp_path):
    path = tmp_path / "one.mcprec.jsonl"
    mock_clock.jump(5)
    recording = open_recorder(path, **FACTS)
    mock_clock.jump(1.5)
    recording.record("mark", b'{"name":"later"}')
    recording.close({})
    assert [r.time_ns for r in read_recording(open_recording(path))][:2] == [0, 1_500_000_000]


async def test_a_file_that_cannot_be_made_is_said_so(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RecordingError, match="cannot record to"):
        open_recorder(tmp_path / "file" / "inside.mcprec.jsonl", **FACTS)


async def test_no_compressed_file_is_promised(tmp_path):
    with pytest.raises(RecordingError, match="written uncompressed"):
        open_recorder(tmp_path / "one.mcprec.jsonl.zst", **FACTS)
    assert not list(tmp_path.iterdir())
