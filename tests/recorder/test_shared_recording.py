"""Several sessions in one file, in one order."""

import pytest
import trio

from mcp_trio._journal.records import EndBody, MarkBody, decode_body
from mcp_trio._recorder.writer import begin_session, options_of
from mcp_trio._session.journal import Lane, Recording
from mcp_trio.errors import RecordingError
from mcp_trio.recording import RecordOptions, SharedRecording, check, open_recording, read_recording
from tests.recorder.conftest import FACTS


def begin(shared, **facts):
    return Recording(*begin_session(shared, **{**FACTS, **facts}))


def story(path):
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
    assert story(path) == [
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


async def test_a_handler_always_has_its_start_where_others_may_come_between(tmp_path):
    path = tmp_path / "x.mcprec.jsonl"
    with SharedRecording(path) as shared:
        one, two = begin(shared), begin(shared)
        lane = Lane(f"r{one.received(b'{}', embed=True)}")
        one.started(lane)
        two.received(b"{}", embed=True)
        one.sent(b"{}", lane)
    assert (1, "mark", "start") in story(path)
    assert [kind for _, kind, _ in story(path)][3:7] == ["in", "mark", "in", "out"]


async def test_what_a_session_wrote_is_there_before_the_others_go_on(tmp_path):
    path = tmp_path / "x.mcprec.jsonl"
    shared = SharedRecording(path)
    one, two = begin(shared), begin(shared)
    one.received(b"{}", embed=True)
    two.flush()
    assert (1, "in", "") in story(path)
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
    assert story(path)[1:] == begun
    assert not check(open_recording(path)).complete


def test_another_run_is_another_recording(tmp_path):
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
    options = RecordOptions("x", strict=True)
    assert options_of(options) is options
    assert options_of(SharedRecording(options)) is options
    assert options_of("x") == RecordOptions("x")
