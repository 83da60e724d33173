"""A server with a race, and a session in which the race had no effect."""

from types import SimpleNamespace

import pytest
import trio

from mcp_trio import Context, Server


def make_server(*, exclusive=False):
    """Return a server that asks its client during an addition; with `exclusive`, under a lock."""
    server = Server("sums")
    sums = {"total": 0}
    door = trio.Lock()

    @server.tool
    async def add(amount: int, *, ctx: Context) -> str:
        if exclusive:
            async with door:
                await add_to_sum(amount, ctx)
        else:
            await add_to_sum(amount, ctx)
        await ctx.report_progress(1)
        await ctx.list_roots()
        return f"added {amount}"

    async def add_to_sum(amount, ctx):
        before = sums["total"]
        await ctx.list_roots()
        sums["total"] = before + amount

    @server.tool
    async def total() -> int:
        return sums["total"]

    return server


def call(number, tool, **arguments):
    params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": number}}
    return {"id": number, "method": "tools/call", "params": params}


async def talk_by_luck(peer, session):
    """Send the second call after the first one has changed the total, and before its response."""
    await peer.handshake(capabilities={"roots": {}})
    await peer.send(call(1, "add", amount=1))
    await answer(peer)
    await trio.sleep(0.005)
    await peer.send(call(2, "add", amount=10))
    await answer(peer)
    await answer(peer)
    await answer(peer)
    while (await peer.receive()).get("id") != 2:
        pass
    await peer.send(call(3, "total"))
    await peer.receive()


async def answer(peer):
    message = await peer.receive()
    while message.get("method") != "roots/list":
        message = await peer.receive()
    await trio.sleep(0.010)
    await peer.send_result(message, {"roots": [{"uri": "file:///a"}]})


@pytest.fixture
def path(world, tmp_path):
    return world.record(make_server(), tmp_path / "lucky.mcprec.jsonl", talk_by_luck)


def changed_server(**tools):
    server = make_server()
    for name, tool in tools.items():
        server.remove_tool(name)
        server.tool(name=name)(tool)
    return server


@pytest.fixture(scope="session")
def sums():
    return SimpleNamespace(make_server=make_server, changed_server=changed_server, call=call)
