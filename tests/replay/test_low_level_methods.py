"""Replay of servers with low-level methods only."""

import pytest
import trio

from mcp_trio import Context, Limits, Server, types
from mcp_trio.limits import ShutdownLimits
from mcp_trio.recording import replay


def make_server():
    moored = []
    server = Server(
        "bare",
        capabilities=types.ServerCapabilities(tools=types.ToolsCapability(list_changed=True)),
    )

    @server.method("tools/list")
    async def list_tools(params: types.PaginatedParams) -> types.ListToolsResult:
        tools = [types.Tool(name=name, input_schema={"type": "object"}) for name in moored]
        return types.ListToolsResult(tools=tools)

    @server.method("notifications/acme/moored")
    async def moor(params: dict) -> None:
        await trio.sleep(0.001)
        moored.append(params["name"])
        server.list_changed("tools")

    @server.method("acme/wait")
    async def wait(params: dict, ctx: Context) -> dict:
        before = len(moored)
        await ctx.progress(1)
        await trio.sleep(params["seconds"])
        return {"before": before, "after": len(moored)}

    return server


async def talk(peer, session):
    await peer.handshake()
    for number in range(4):
        params = {"seconds": 0.002 * number, "_meta": {"progressToken": number}}
        await peer.send(
            {"id": number, "method": "acme/wait", "params": params},
            {"method": "notifications/acme/moored", "params": {"name": f"boat {number}"}},
            {"id": f"l{number}", "method": "tools/list"},
        )
        await trio.sleep(0.0015)
    await trio.sleep(0.02)


def test_a_server_with_only_low_level_methods_replays(world, tmp_path):
    for number in range(6):
        path = world.record(make_server(), tmp_path / f"{number}.mcprec.jsonl", talk, number=number)
        report = replay(path, make_server())
        assert report.is_complete
        assert report.requests == 8
        methods = [
            record["f"].get("method") for record in world.records(path) if record["k"] == "out"
        ]
        assert methods.count("notifications/tools/list_changed") == 4
        assert methods.count("notifications/progress") == 4


# When a notification is looked at.


def make_counter(*, moors=True, seconds=0.0, step=1):
    """A server whose requests see how many notifications were looked at before."""
    count = 0
    server = Server("bare", limits=Limits(shutdown=ShutdownLimits(drain_seconds=0.05)))

    async def moor(params: dict) -> None:
        nonlocal count
        count += step
        await trio.sleep(seconds)

    if moors:
        server.method("notifications/acme/moored")(moor)

    @server.method("acme/count")
    async def counted() -> dict:
        return {"count": count}

    return server


MOORED = {"method": "notifications/acme/moored"}


async def moor_and_count(peer, session):
    await peer.handshake()
    for number in range(6):
        count = [{"id": f"{number} {place}", "method": "acme/count"} for place in "ab"]
        await peer.send(count[0], MOORED, count[1])
        await trio.sleep(0.001)


def told(world, path):
    """What the records of notifications say, beside the frame itself."""
    return [(r["k"], r["o"]) for r in world.records(path) if r.get("l", "").startswith("n")]


@pytest.mark.parametrize("number", range(8))
def test_requests_see_the_state_that_a_notification_handler_left(world, tmp_path, number):
    path = world.record(make_counter(), tmp_path / "x.mcprec.jsonl", moor_and_count, number=number)
    assert told(world, path) == [("mark", 1)] * 6
    heard = world.replayed(path, make_counter(), number=number + 1)
    assert heard.frames == world.sent_frames(path)
    assert heard.moments == world.played(path)


def test_a_session_that_ends_before_all_notifications_are_handled_replays(world, tmp_path):
    async def flood_and_close(peer, session):
        await peer.handshake()
        await peer.send(*[MOORED] * 5)
        await trio.sleep(0.005)
        session.shut("closed")

    path = tmp_path / "x.mcprec.jsonl"
    world.record(make_counter(seconds=1.5), path, flood_and_close)
    assert told(world, path) == [("mark", 1)] * 2 + [("cxl", 1)] * 3
    assert replay(path, make_counter(seconds=1.5)).is_complete


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True)])
def test_a_notification_handled_by_only_one_server_is_a_divergence(
    world, desk, tmp_path, before, after
):
    path = tmp_path / "x.mcprec.jsonl"
    world.record(make_counter(moors=before), path, moor_and_count)
    divergence = desk.assert_diverges(path, make_counter(moors=after))
    assert divergence.lane.startswith("n")
    assert "notifications/acme/moored, lane n" in str(divergence)


def test_a_divergence_names_the_handler_of_the_method(world, desk, tmp_path):
    path = world.record(make_counter(), tmp_path / "x.mcprec.jsonl", moor_and_count)
    divergence = desk.assert_diverges(path, make_counter(step=2))
    assert "in acme/count at test_low_level_methods.py:" in str(divergence)
