"""Property 9: golden recordings replay, later formats can be read, transports do not matter."""

import os
import re

import golden_recordings
import pytest
import trio

from mcp_trio import Client, Context, Server
from mcp_trio.recording import body_bytes, check, diff, open_recording, read_recording
from mcp_trio.transports import memory_pair, open_stdio_channel

pytestmark = pytest.mark.slow

GOLDEN = list(golden_recordings.GOLDEN.values())
REPLAYED = [each for each in GOLDEN if each.replays == golden_recordings.STRICTLY]


def by_name(each):
    return each.name


@pytest.mark.parametrize("each", GOLDEN, ids=by_name)
def test_a_golden_recording_is_undamaged(each):
    report = check(open_recording(each.path))
    assert report.damage == []
    assert report.complete or each.is_cut


@pytest.mark.parametrize("each", REPLAYED, ids=by_name)
def test_a_golden_recording_of_a_server_replays(stage, each, count):
    for seed in range(2):
        server = golden_recordings.load_server(each.server)
        report = stage.replayed(each.path, server, seed=seed, key=each.key, allow_damaged=True)
        assert report.is_complete or each.is_cut
    count(2)


def test_a_changed_golden_recording_does_not_replay(stage, tmp_path, count):
    for each in REPLAYED:
        lines = list(open_recording(each.path))
        answers = [
            n for n, line in enumerate(lines) if b'"k":"out"' in line and b'"result":{' in line
        ]
        lines[answers[0]] = lines[answers[0]].replace(b'"result":{', b'"result":{"more":1,', 1)
        path = tmp_path / "changed.mcprec.jsonl"
        path.write_bytes(b"".join(lines))
        server = golden_recordings.load_server(each.server)
        assert stage.divergence(path, server, key=each.key, allow_damaged=True) is not None, (
            each.name
        )
    count(len(REPLAYED))


# Writers that come later.


def with_unknowns(lines):
    """The same recording, with a record of an unknown kind in it, and unknown keys."""
    *lines, last = (re.sub(rb',"h":"\w+"', b"", line) for line in lines)
    for number, line in enumerate(lines):
        yield line.replace(b',"t":', b',"later":true,"t":', 1) if number % 3 == 1 else line
    number = len(lines)
    yield b'{"n":%d,"k":"weather","t":0,"f":{"it":"rains"}}\n' % number
    yield last.replace(b'{"n":%d,' % number, b'{"n":%d,' % (number + 1))


def test_unknown_kinds_and_keys_are_skipped_with_a_warning(stage, tmp_path):
    each = golden_recordings.GOLDEN["counter"]
    path = tmp_path / "later.mcprec.jsonl"
    path.write_bytes(b"".join(with_unknowns(open_recording(each.path))))
    report = stage.replayed(path, golden_recordings.load_server(each.server))
    assert report.is_complete
    assert any("weather" in note for note in report.notes)
    assert any("unknown keys" in note for note in report.notes)


# The same session over another transport.


def greeter():
    server = Server("greeter")

    @server.tool
    async def greet(name: str, *, ctx: Context) -> str:
        await ctx.info(f"here is {name}")
        return f"Hello, {name}: {len(await ctx.list_roots())}"

    return server


async def over(open_ends, path):
    ours, theirs = open_ends()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: greeter().serve(theirs, record=path))
        # Legacy: the state of a stateless round is drawn anew in each session.
        legacy = ("2025-11-25",)
        async with Client(ours, roots=["file:///a"], protocol_versions=legacy) as client:
            await client.call_tool("greet", {"name": "Ada"})
            await client.list_tools()


def pipes():
    child_in, to_child = os.pipe()
    from_child, child_out = os.pipe()
    return open_stdio_channel(from_child, to_child), open_stdio_channel(child_in, child_out)


def test_sessions_over_memory_and_stdio_exchange_the_same_messages(stage, tmp_path):
    paths = [tmp_path / "memory.mcprec.jsonl", tmp_path / "stdio.mcprec.jsonl"]
    for open_ends, path in zip((memory_pair, pipes), paths, strict=True):
        trio.run(over, open_ends, path)
    left, right = (list(read_recording(open_recording(path))) for path in paths)
    bodies = [
        [(r.kind, r.lane, r.ordinal, body_bytes(r)) for r in side[1:]] for side in (left, right)
    ]
    assert bodies[0] == bodies[1]
    (only,) = diff(left, right)
    assert (only.path, only.left_value, only.right_value) == ("$.transport", "memory", "stdio")
    for path in paths:
        assert stage.replayed(path, greeter()).is_complete
