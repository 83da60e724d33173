"""Servers that record their events for tests."""

import contextlib

import trio

from mcp_trio import Context, Limits, Server
from mcp_trio.limits import ShutdownLimits
from tests.story import Story


def watched(name, seen=None, **options):
    """Notes in `seen` that its lifespan begins and ends, that its tool waits and is cancelled."""
    seen = Story() if seen is None else seen

    @contextlib.asynccontextmanager
    async def lifespan(_server):
        seen.append("begins")
        try:
            yield "the sea"
        finally:
            await trio.lowlevel.checkpoint()
            seen.append("ends")

    options = {"limits": Limits(shutdown=ShutdownLimits(close_seconds=0.2)), **options}
    server = Server(name, lifespan=lifespan, **options)

    @server.tool
    async def wait(*, ctx: Context) -> str:
        seen.append("waits")
        try:
            await ctx.sleep(1000)
        finally:
            seen.append("cancelled")
        return "waited"

    return server


def harbour(seen=None, **options):
    """One with tools for effects, questions and principals, too."""
    server = watched("harbour", seen, **options)

    @server.tool
    async def tide(*, ctx: Context) -> str:
        return f"high, said {await ctx.effect(str, 'a gull')}"

    @server.tool
    async def ask(*, ctx: Context) -> str:
        answer = await ctx.elicit("to sea?")
        return answer.action

    @server.tool
    async def who(*, ctx: Context) -> str:
        return str(ctx.principal)

    return server
