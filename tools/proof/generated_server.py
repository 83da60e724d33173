"""The server of a generated program."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import external_calls
from handler_steps import Act, World
from programs import Program, Script
from thread_steps import ThreadAct

from mcp_trio import Context, Limits, MCPError, Server, ThreadContext, ToolError
from mcp_trio.limits import RequestLimits, ShutdownLimits

# Few places, so that requests queue and are refused; a short drain, so that handlers are cut off;
# little patience with clients that do not come back, but much with handlers that clean up: whose
# session has given them up is in no recording.
LIMITS: Final = Limits(
    requests=RequestLimits(in_flight_max=5, queued_max=3, suspended_max=4, suspended_seconds=0.03),
    shutdown=ShutdownLimits(drain_seconds=0.02, close_seconds=20.0),
)


@attrs.frozen
class Served:
    """A server that nobody used yet, and what its handlers will share."""

    server: Server
    world: World


def server_of(program: Program) -> Served:
    """A new server with the program's handlers."""
    world = World()
    server = Server(f"generated {program.seed}", limits=LIMITS, lifespan=_lifespan)

    @server.tool
    async def run(script: int, url: str, *, ctx: Context) -> list[Any]:
        return await _act(Act(world, ctx, url), program.scripts["run"][script])

    @server.tool(resumable=True)
    async def run_resumably(script: int, url: str, *, ctx: Context) -> list[Any]:
        return await _act(Act(world, ctx, url), program.scripts["run_resumably"][script])

    @server.tool
    def run_in_thread(script: int, url: str, *, ctx: ThreadContext) -> list[Any]:
        return _act_in_thread(ThreadAct(world, ctx), program.scripts["run_in_thread"][script], url)

    return Served(server, world)


@asynccontextmanager
async def _lifespan(_server: Server) -> AsyncGenerator[external_calls.Database]:
    yield external_calls.Database()


async def _act(act: Act, script: Script) -> list[Any]:
    try:
        await act.play(script)
    except MCPError as error:
        _note(error, act.seen)
    return act.seen


def _act_in_thread(act: ThreadAct, script: Script, url: str) -> list[Any]:
    act.seen.append(url)
    try:
        act.play(script)
    except MCPError as error:
        _note(error, act.seen)
    return act.seen


def _note(error: MCPError, seen: list[Any]) -> None:
    """A client that has gone ends a handler like any other failure, but for people's refusals."""
    if isinstance(error, ToolError):
        raise error
    seen.append(type(error).__name__)
