"""Replay of handlers that hide and show entries at the same time, and of transformed tools."""

import pytest
import trio

from mcp_trio import Context, Limits, Server, ThreadContext
from mcp_trio.limits import ShutdownLimits
from mcp_trio.tools import Argument, Fixed

LIMITS = Limits(shutdown=ShutdownLimits(drain_seconds=0.05))


def make_server():
    server = Server("harbour", limits=LIMITS)

    @server.tool(tags={"admin"}, timeout=0.0025)
    async def drain(seconds: float, unit: str, ctx: Context) -> str:
        await ctx.sleep(seconds)
        return f"{seconds} {unit}"

    @server.tool
    async def switch(number: int, ctx: Context) -> None:
        await (ctx.enable if number % 2 else ctx.disable)(tags={"admin"})
        await ctx.sleep(0.001 * (number % 3))
        await ctx.disable("drain", "harbour://tide")

    @server.tool
    async def unlock(ctx: Context) -> None:
        await ctx.enable("drain")

    @server.tool
    def switch_in_thread(number: int, ctx: ThreadContext) -> None:
        ctx.enable(tags={"admin"})
        ctx.sleep(0.001)
        (ctx.enable if number % 2 else ctx.disable)("harbour://tide")

    @server.resource("harbour://tide", tags={"admin"})
    async def tide() -> str:
        return "high"

    async def wrap(call, arguments, ctx):
        await ctx.info("drains")
        return await call(arguments)

    changes = {"seconds": Argument("time", default=0.001), "unit": Fixed("s")}
    server.transform_tool("drain", arguments=changes, wrap=wrap)
    server.disable(tags={"admin"})
    return server


def request(id_, method, **params):
    return {"id": id_, "method": method, "params": params}


def call(id_, name, **arguments):
    return request(id_, "tools/call", name=name, arguments=arguments)


async def talk(peer, _session):
    await peer.handshake()
    for number in range(8):
        ids = (f"{number}.{part}" for part in range(6))
        await peer.send(
            call(next(ids), "switch", number=number),
            call(next(ids), "drain"),
            request(next(ids), "tools/list"),
        )
        await peer.send(
            call(next(ids), "switch_in_thread", number=number),
            call(next(ids), "drain", time=0.001 * number),
            request(next(ids), "resources/list"),
        )
        while not (await peer.receive()).get("id", "").startswith(f"{number}."):
            pass
    await trio.sleep(0.1)
    await peer.send(call("last", "unlock"))
    await trio.sleep(0.1)
    await peer.send(call("late", "drain", time=9), call("in time", "drain", time=0.002))
    await trio.sleep(0.1)
    await peer.receive_available()


@pytest.mark.parametrize(
    "number", [0, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 4))]
)
def test_decisions_of_concurrent_handlers_replay_byte_for_byte(world, tmp_path, number):
    path = world.record(make_server(), tmp_path / "a.mcprec.jsonl", talk, number=number)
    text = path.read_text(encoding="utf-8")
    for part in "unknown tool: drain", "timed out", "0.002 s", "list_changed":
        assert part in text
    for other in (number + 100, number + 200):
        heard = world.replayed(path, make_server(), number=other)
        assert heard.sent_messages == world.sent_frames(path)
        assert heard.ordered == world.played(path)
