"""The server of a generated program."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import external_calls
from handler_steps import STEPS, RunningHandler, SharedState
from programs import COMPOSED, LEAVES, RAW, THREAD_COMPOSED, THREAD_LEAVES, Program, Script
from thread_steps import STEPS as THREAD_STEPS
from thread_steps import RunningThreadHandler

from mcp_trio import Context, Limits, MCPError, Server, ThreadContext, ToolError
from mcp_trio.limits import RequestLimits, ShutdownLimits

# A step without a function would fail in the session and in each replay alike, unnoticed.
assert STEPS.keys() == {*LEAVES, *RAW, *COMPOSED}
assert THREAD_STEPS.keys() == {*THREAD_LEAVES, *THREAD_COMPOSED}

# Few places, so that requests queue and are rejected; a short drain, so that handlers are cut off;
# a short wait for clients that do not retry, but a long one for handlers that clean up:
# no recording tells that the session has given them up.
LIMITS: Final = Limits(
    requests=RequestLimits(in_flight_max=5, queued_max=3, suspended_max=4, suspended_seconds=0.03),
    shutdown=ShutdownLimits(drain_seconds=0.02, close_seconds=20.0),
)


@attrs.frozen
class GeneratedServer:
    """A fresh server, and the state that its handlers share."""

    server: Server
    shared: SharedState


def server_of(program: Program) -> GeneratedServer:
    """Return a fresh server with the program's handlers."""
    shared = SharedState()
    server = Server(f"generated {program.seed}", limits=LIMITS, lifespan=_lifespan)

    @server.tool
    async def run(script: int, url: str, *, ctx: Context) -> list[Any]:
        return await _run(RunningHandler(shared, ctx, url), program.scripts["run"][script])

    @server.tool(resumable=True)
    async def run_resumably(script: int, url: str, *, ctx: Context) -> list[Any]:
        return await _run(
            RunningHandler(shared, ctx, url), program.scripts["run_resumably"][script]
        )

    @server.tool
    def run_in_thread(script: int, url: str, *, ctx: ThreadContext) -> list[Any]:
        return _run_in_thread(
            RunningThreadHandler(shared, ctx), program.scripts["run_in_thread"][script], url
        )

    return GeneratedServer(server, shared)


@asynccontextmanager
async def _lifespan(_server: Server) -> AsyncGenerator[external_calls.Database]:
    yield external_calls.Database()


async def _run(handler: RunningHandler, script: Script) -> list[Any]:
    try:
        await handler.run(script)
    except MCPError as error:
        _note_error(error, handler.seen)
    return handler.seen


def _run_in_thread(handler: RunningThreadHandler, script: Script, url: str) -> list[Any]:
    handler.seen.append(url)
    try:
        handler.run(script)
    except MCPError as error:
        _note_error(error, handler.seen)
    return handler.seen


def _note_error(error: MCPError, seen: list[Any]) -> None:
    """Raise a tool error again; add other errors to the handler's answer."""
    if isinstance(error, ToolError):
        raise error
    seen.append(type(error).__name__)
