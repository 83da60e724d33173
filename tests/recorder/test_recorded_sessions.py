"""Whole sessions, recorded in every way at once."""

import time

import pytest
import trio

from mcp_trio import Client, ClientGroup, Context, Limits, RequestError, Server
from mcp_trio._journal.records import EndBody, MarkBody, decode_body
from mcp_trio.limits import RecordingLimits
from mcp_trio.recording import (
    RecordOptions,
    Redaction,
    SharedRecording,
    body_bytes,
    check,
    open_recording,
    read_recording,
    replay_async,
)
from mcp_trio.transports import memory_pair

SECRET = "correct-horse-battery"


def make_server(**limits):
    server = Server("bank", version="1", limits=Limits(**limits))

    @server.tool
    async def open_account(owner: str, password: str, *, ctx: Context) -> str:
        await ctx.info(f"{owner} may enter with {password}")
        return f"welcome, {password}"

    @server.tool
    async def clock() -> float:
        return time.time()

    return server


async def talk(server, record, calls=1):
    """A session that is recorded on the server's side."""
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: server.serve(theirs, record=record))
        async with Client(ours) as client:
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


async def test_a_recording_can_be_read_while_it_is_written(tmp_path):
    path = tmp_path / "trip.mcprec.jsonl.zst"
    server = make_server()
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        record = RecordOptions(path, segment_bytes_max=500)
        nursery.start_soon(lambda: server.serve(theirs, record=record))
        async with Client(ours) as client:
            for number in range(1, 9):
                await client.call_tool("open_account", {"owner": "x", "password": "y"})
                report = check(open_recording(path))
                assert (report.damage, report.complete) == ([], False)
                assert report.kinds["in"] == 1 + number
    assert check(open_recording(path)).complete


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
            await group.call_tool("b_clock")
    report = check(open_recording(path))
    assert (report.damage, report.complete) == ([], True)
    records = list(read_recording(open_recording(path)))
    assert {each.channel for each in records} == {0, 1, 2}
    (call,) = (each for each in records if b'"tools/call"' in body_bytes(each))
    answers = [each for each in records if each.kind == "in" and each.number > call.number]
    assert {each.channel for each in answers} == {call.channel}


async def test_sessions_beside_are_counted(tmp_path):
    server = make_server()
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: server.serve(theirs, record=tmp_path / "long"))
        async with Client(ours):
            await talk(server, tmp_path / "one")
            await talk(server, None)
    await talk(server, tmp_path / "alone")
    assert last_counts(tmp_path / "long")["sessions beside"] == 2
    assert last_counts(tmp_path / "one")["sessions beside"] == 1
    assert "sessions beside" not in last_counts(tmp_path / "alone")


async def test_sessions_in_one_recording_are_not_beside_it(tmp_path):
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


async def test_a_strict_recording_rejects_what_no_replay_could_repeat(tmp_path, caplog):
    ours, theirs = memory_pair()
    server = make_server()
    record = RecordOptions(tmp_path / "x.mcprec.jsonl", strict=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: server.serve(theirs, record=record))
        async with Client(ours) as client:
            with pytest.raises(RequestError, match="internal error"):
                await client.call_tool("clock")
            await client.call_tool("open_account", {"owner": "x", "password": "y"})
    assert "time.time" in caplog.text


async def test_without_strict_nothing_is_rejected(tmp_path):
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: make_server().serve(theirs, record=tmp_path / "x"))
        async with Client(ours) as client:
            assert (await client.call_tool("clock")).content
