"""Replay of several sessions in one recording."""

import pytest
import trio

from mcp_trio import Context, Server
from mcp_trio.errors import ReplayDivergence
from mcp_trio.recording import SharedRecording, replay
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair

COUNT = 4


async def add(total, ctx):
    before = total[0]
    await ctx.info(before)
    await trio.sleep(0.001)
    total[0] = before + 1
    ctx.server.list_changed("tools")
    await ctx.sleep(0.002)


def make_server(handler=add):
    server = Server("shared", offers=["tools"])
    total = [0]

    @server.tool
    async def run(*, ctx: Context) -> int:
        await handler(total, ctx)
        return total[0]

    return server


async def talk(server, shared, number):
    await trio.sleep(number / 2000)
    ours, theirs = memory_pair()
    peer = WirePeer(theirs)
    async with trio.open_nursery() as nursery:
        serve = lambda **options: server.serve(ours, record=shared, **options)  # noqa: E731
        await nursery.start(lambda task_status: serve(task_status=task_status))
        await peer.handshake()
        for call in range(3):
            await peer.send_request("tools/call", {"name": "run", "arguments": {}}, id=call)
            await trio.sleep(0.0012)
        await trio.sleep(0.01)
        await peer.aclose()


@pytest.fixture
def path(tmp_path):
    async def main():
        with SharedRecording(tmp_path / "shared.mcprec.jsonl") as shared:
            async with trio.open_nursery() as nursery:
                for number in range(COUNT):
                    nursery.start_soon(talk, server, shared, number)

    server = make_server()
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return tmp_path / "shared.mcprec.jsonl"


@pytest.mark.parametrize("number", range(4))
def test_all_sessions_send_the_same_bytes_in_the_same_order(world, path, number):
    assert {r.get("c", 0) for r in world.records(path)} == set(range(COUNT + 1))
    assert world.replayed(path, make_server(), number=number).frames == world.sent_frames(path)


def test_a_cut_replays_up_to_the_cut(world, path, tmp_path):
    lines = path.read_bytes().splitlines(keepends=True)
    for count in range(1, len(lines), 3):
        cut = world.rewrite(path, tmp_path / "cut.jsonl", lambda lines, n=count: lines[:n])
        assert replay(cut, make_server(), watches=False).records == count - 1


def test_a_divergence_names_its_session(path):
    async def once_more(total, ctx):
        await add(total, ctx)
        await ctx.info("more")

    with pytest.raises(ReplayDivergence, match=r"lane r[0-9]+ of session [1-4]"):
        replay(path, make_server(once_more))


def test_a_session_that_never_ends_diverges(world, path, tmp_path):
    async def shielded(total, ctx):
        await add(total, ctx)
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()

    with pytest.raises(ReplayDivergence):
        replay(path, make_server(shielded))


# Sessions that are in no file, or in another one.


async def talk_apart(server, paths):
    async with trio.open_nursery() as nursery:
        for number, path in enumerate(paths):
            nursery.start_soon(talk, server, path, number)


@pytest.mark.parametrize(
    ("others", "told"),
    [
        (0, ""),
        (
            1,
            "; 1 other session was open at the same time: memory that sessions share is not in this file",
        ),
        (
            2,
            "; 2 other sessions were open at the same time: memory that sessions share is not in this file",
        ),
    ],
)
def test_a_divergence_counts_the_concurrent_sessions_of_other_files(tmp_path, others, told):
    path = tmp_path / "apart.mcprec.jsonl"
    trio.run(talk_apart, make_server(), [path, *[None] * others])
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server(louder))
    assert told in caught.value.hint
    assert ("SharedRecording" in caught.value.hint) == bool(others)


async def louder(total, ctx):
    await ctx.info("louder")
