"""Generated programs of a server whose handlers use all of their context, and of its client.

A program runs in real time, with real threads and a real web server. Its client has one of the
protocol versions.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import external_calls
import trio
from generated_client import ScriptedClient
from generated_programs import COMPOSED, LEAVES, THREAD_COMPOSED, THREAD_LEAVES, program_of
from handler_steps import STEPS, RunningHandler, SharedState
from memory_sessions import scripted_session
from thread_steps import STEPS as THREAD_STEPS
from thread_steps import RunningThreadHandler

from mcp_trio import Context, Limits, MCPError, Server, ThreadContext, ToolError
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.limits import RequestLimits, ShutdownLimits
from mcp_trio.recording import TickClock

# A step without a function would fail in the session and in each replay alike, unnoticed.
assert STEPS.keys() == {*LEAVES, *COMPOSED}
assert THREAD_STEPS.keys() == {*THREAD_LEAVES, *THREAD_COMPOSED}

SESSION_SECONDS_MAX: Final = 30.0
# Few places, so that requests queue and are rejected; a short drain, so that handlers are cut off;
# a short wait for clients that do not retry, but a long one for handlers that clean up:
# no recording tells that the session has given them up.
LIMITS: Final = Limits(
    requests=RequestLimits(in_flight_max=5, queued_max=3, suspended_max=4, suspended_seconds=0.03),
    shutdown=ShutdownLimits(drain_seconds=0.02, close_seconds=20.0),
)


def make_server(seed: int) -> tuple[Server, SharedState]:
    """Return a fresh server with the handlers of a program, and the state that they share."""
    scripts, shared = program_of(seed).scripts, SharedState()
    server = Server(f"generated {seed}", limits=LIMITS, lifespan=_lifespan)

    @server.tool
    async def run(script: int, url: str, *, ctx: Context) -> list[Any]:
        return await run_script("run", script, url, ctx)

    @server.tool(resumable=True)
    async def run_resumably(script: int, url: str, *, ctx: Context) -> list[Any]:
        return await run_script("run_resumably", script, url, ctx)

    async def run_script(tool: str, script: int, url: str, ctx: Context) -> list[Any]:
        handler = RunningHandler(shared, ctx, url)
        try:
            await handler.run(scripts[tool][script])
        except MCPError as error:
            _note_error(error, handler.seen)
        return handler.seen

    @server.tool
    def run_in_thread(script: int, url: str, *, ctx: ThreadContext) -> list[Any]:
        handler = RunningThreadHandler(shared, ctx, [url])
        try:
            handler.run(scripts["run_in_thread"][script])
        except MCPError as error:
            _note_error(error, handler.seen)
        return handler.seen

    return server, shared


@asynccontextmanager
async def _lifespan(_server: Server) -> AsyncGenerator[external_calls.Database]:
    yield external_calls.Database()


def _note_error(error: MCPError, seen: list[Any]) -> None:
    """Raise a tool error again; add other errors to the handler's answer."""
    if isinstance(error, ToolError):
        raise error
    seen.append(type(error).__name__)


def record(seed: int, path: str) -> str:
    """Record a session of a program; return the state that its handlers share at the end.

    Programs that follow each other have clients of different protocol versions.
    """
    program, (server, shared) = program_of(seed), make_server(seed)
    protocol_version = list(PROTOCOL_VERSIONS.values())[seed % len(PROTOCOL_VERSIONS)]

    async def main() -> None:
        with trio.fail_after(SESSION_SECONDS_MAX):
            async with trio.open_nursery() as web:
                url = await external_calls.start_latency_server(web)
                async with scripted_session(server, path) as (peer, session):
                    await ScriptedClient(program, protocol_version, peer, url).run()
                    if program.ending == "closed":
                        session.shut("closed")
                web.cancel_scope.cancel()

    trio.run(main, clock=TickClock())
    return str(shared)
