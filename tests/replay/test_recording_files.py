"""Replay of recordings in segments, compressed, and with unknown keys."""

import json

import pytest
import trio

from mcp_trio import Context, Server, effect
from mcp_trio._replay.trace import load_trace
from mcp_trio.recording import RecordOptions, replay


@effect
async def fetch(number: int) -> str:
    await trio.sleep(0.001)
    return f"page {number}"


def make_server():
    server = Server("files")

    @server.tool
    async def run(number: int, *, ctx: Context) -> list[str]:
        with ctx.timeout(5):
            page = await fetch(number)
        async with ctx.lock("door"):
            await ctx.info(ctx.now().isoformat())
        return [page, str(ctx.patched("new")), str(ctx.uuid4())]

    return server


async def call(peer, _session):
    await peer.handshake()
    for number in range(4):
        params = {"name": "run", "arguments": {"number": number}}
        await peer.send_request("tools/call", params, id=number)
    await peer.receive_many(8)


@pytest.mark.parametrize("name", ["a.mcprec.jsonl", "a.mcprec.jsonl.zst"])
@pytest.mark.parametrize("segment_bytes_max", [None, 1000])
def test_a_recording_replays_in_segments_and_compressed(world, tmp_path, name, segment_bytes_max):
    path = tmp_path / name
    options = RecordOptions(path, segment_bytes_max=segment_bytes_max)
    world.record(make_server(), options, call)
    assert len(list(tmp_path.iterdir())) > 1 or segment_bytes_max is None
    heard = world.replayed(path, make_server())
    assert heard.frames == world.sent_frames(path)
    assert heard.moments == world.played(path)


def test_unknown_keys_are_ignored(world, tmp_path):
    path = world.record(make_server(), tmp_path / "a.mcprec.jsonl", call)

    def add_keys(lines):
        for place, line in enumerate(lines):
            record = json.loads(line)
            record.pop("h", None)
            if isinstance(record.get("f"), dict) and record["k"] in {"open", "mark", "val"}:
                record["f"]["later"] = {"deep": [1]}
            record["z"] = "new"
            lines[place] = json.dumps(record, separators=(",", ":")).encode() + b"\n"

    newer = world.rewrite(path, tmp_path / "newer.jsonl", add_keys)
    assert [r.kind for r in load_trace(newer).journal] == [r.kind for r in load_trace(path).journal]
    assert replay(newer, make_server()).is_complete
