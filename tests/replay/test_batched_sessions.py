"""Sessions with JSON-RPC batches are recorded as one record per batch and replay byte for byte."""

import json

import pytest
import trio

from mcp_trio import Context, Server
from mcp_trio._cli.timeline import Counts, timeline
from mcp_trio.errors import ReplayDivergence
from mcp_trio.recording import diff, drive, open_recording, read_recording, replay, sweep

BATCHED = "2025-03-26"


def make_server(*, greeting="hello"):
    server = Server("post")

    @server.tool
    async def greet(name: str, *, ctx: Context) -> str:
        await ctx.list_roots()
        await ctx.sleep(0.01)
        return f"{greeting} {name} {ctx.random.random()}"

    @server.tool
    async def hang() -> str:
        await trio.sleep_forever()
        return ""

    @server.method("notifications/letter")
    async def letter(params: dict[str, str]) -> None:
        pass

    return server


def call(number, tool, **arguments):
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def note(method, **params):
    return {"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params}


def batch(*messages):
    return json.dumps(messages, separators=(",", ":")).encode()


async def talk(peer, _session):
    await peer.handshake(protocol_version=BATCHED, capabilities={"roots": {}})
    await peer.send(
        batch(
            note("letter", text="a"),
            call(1, "greet", name="Ada"),
            {"jsonrpc": "2.0", "id": 7, "method": 9},
            call(2, "hang"),
            call(3, "greet", name="Bob"),
            note("letter", text="b"),
            {"jsonrpc": "2.0", "id": 4, "method": "ping"},
        )
    )
    heard = await peer.receive_many(4)
    asked = [each["id"] for each in heard if each.get("method") == "roots/list"]
    assert len(asked) == 2
    await peer.send(batch(call(5, "greet", name="Eve")))
    asked.append((await peer.receive())["id"])
    await peer.send(
        batch(*({"jsonrpc": "2.0", "id": id_, "result": {"roots": []}} for id_ in asked))
    )
    assert {each["id"] for each in await peer.receive_many(3)} == {1, 3, 5}
    await peer.send(batch(note("cancelled", requestId=2)))
    await peer.receive_available()


@pytest.fixture
def path(world, tmp_path):
    return world.record(make_server(), tmp_path / "post.mcprec.jsonl", talk)


@pytest.mark.requirement("BASE-24", "BASE-27")
def test_a_batch_is_one_record_and_each_of_its_messages_has_a_lane(world, path):
    records = world.records(path)
    batches = [r for r in records if r["k"] == "in" and isinstance(r["f"], list)]
    assert len(batches) == 4
    number = batches[0]["n"]
    lanes = {record["l"] for record in records if record.get("l", "").endswith(tuple("0123456789"))}
    assert lanes == {
        *(f"n{number}", f"n{number}-5"),
        *(f"r{number}-1", f"r{number}-3", f"r{number}-4"),
        f"r{batches[1]['n']}",
    }
    answers = [r["f"]["id"] for r in records if r["k"] == "out" and "method" not in r["f"]]
    assert sorted(map(str, answers)) == ["1", "3", "4", "5", "7", "handshake"]


def test_batches_replay_byte_for_byte(world, path):
    for number in range(5):
        story = world.replayed(path, make_server(), number=number)
        assert story.moments == world.played(path)
        assert story.frames == world.sent_frames(path)


@pytest.mark.parametrize("lane", range(3))
def test_a_recording_of_batches_cut_anywhere_replays_up_to_the_cut(world, path, tmp_path, lane):
    for cut in range(6 + lane, len(world.records(path)), 3):
        part = world.rewrite(path, tmp_path / "cut.mcprec.jsonl", lambda lines, c=cut: lines[:c])
        replay(part, make_server())


def test_a_divergence_names_the_call_within_the_batch(path):
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server(greeting="bye"))
    assert 'tools/call "greet"' in str(caught.value)


def test_a_live_replay_sends_the_messages_of_a_batch_one_by_one(path):
    report = drive(path, make_server())
    assert (report.requests, report.answered) == (6, 5)
    assert {each.path for each in report.differences} <= {"$.result.content[0].text"}


def test_two_recordings_of_the_same_batches_are_equal(world, path, tmp_path):
    again = world.record(make_server(), tmp_path / "again.mcprec.jsonl", talk)
    both = [list(read_recording(open_recording(each))) for each in (path, again)]
    different = [each for each in diff(*both) if not each.path.endswith("text")]
    assert different == []


def test_a_sweep_reads_requests_and_responses_in_batches(path):
    report = sweep(path, make_server, schedules=3)
    assert {difference.path for difference in report.differences} <= {
        "answer $.result.content[0].text"
    }


def test_a_timeline_tells_the_batch_and_each_of_its_messages(path):
    counts = Counts()
    rows = list(timeline(read_recording(open_recording(path)), counts))
    head = next(row for row in rows if row.what == "a batch of 7 messages")
    told = [row for row in rows if row.record == head.record]
    assert [row.what for row in told[1:]] == [
        "notifications/letter",
        "tools/call greet",
        "malformed message",
        "tools/call hang",
        "tools/call greet",
        "notifications/letter",
        "ping",
    ]
    assert [row.size_bytes is None for row in told] == [False, *[True] * 7]
    answers = [row.what for row in rows if row.kind == "out" and row.id in {1, 3}]
    assert (
        answers == ["roots/list", "roots/list", *["answer tools/call greet"] * 2][-len(answers) :]
    )
    assert counts.records == len({row.record for row in rows})
