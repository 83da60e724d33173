"""A server process that is killed, and another one in its place."""

import contextlib
import signal
import subprocess

import pytest
import trio

from mcp_trio import Client, ConnectionLost, Limits
from mcp_trio.errors import OutcomeUnknown
from mcp_trio.limits import HttpLimits
from tests.client.conftest import python

PROGRAM = """
import os, sys, trio
from mcp_trio import Server

server = Server("harbour", offers={"tools"})

waiting = []

@server.tool
async def wait() -> None:
    waiting.append(1)
    await trio.sleep_forever()

@server.tool
async def count() -> int:
    return len(waiting)

@server.tool
async def pid() -> int:
    return os.getpid()

async def main():
    async with trio.open_nursery() as nursery:
        print(await nursery.start(lambda task_status: server.serve_http(
            port=int(sys.argv[1]), task_status=task_status)), flush=True)

trio.run(main)
"""
WAYS = {"/mcp": ("2026-07-28", "2025-11-25"), "/sse": ("2024-11-05",)}
LIMITS = Limits(http=HttpLimits(sse_retry_ms=50))


@contextlib.contextmanager
def started(port=0):
    """A server process, and its URL without a path."""
    command = [part for part in python(PROGRAM) if part != "-S"]
    with subprocess.Popen([*command, str(port)], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stdout.readline().strip().removesuffix("/mcp")
        finally:
            process.kill()


@contextlib.asynccontextmanager
async def clients_of(base, **options):
    """One client for each way to talk with it, by protocol version."""
    async with contextlib.AsyncExitStack() as stack:
        yield {
            protocol_version: await stack.enter_async_context(
                Client(base + path, protocol_versions=(protocol_version,), limits=LIMITS, **options)
            )
            for path, protocol_versions in WAYS.items()
            for protocol_version in protocol_versions
        }


async def lose(client):
    with pytest.raises(OutcomeUnknown):
        await client.call_tool("wait")


@pytest.mark.real_time
@pytest.mark.requirement("TRAP-133", "HTTP-52", "SUB-16")
async def test_calls_in_flight_are_lost_and_later_ones_reach_the_new_server():
    changed = trio.Event()
    with trio.fail_after(60), started() as (process, base):
        port = int(base.rpartition(":")[2])
        async with clients_of(base, list_changed=lambda _kind: changed.set()) as clients:
            async with trio.open_nursery() as calls:
                for client in clients.values():
                    assert await client.call_tool("pid", result_type=int) == process.pid
                    calls.start_soon(lose, client)
                while await client.call_tool("count", result_type=int) < len(clients):
                    await trio.sleep(0.01)
                process.send_signal(signal.SIGKILL)
                await trio.to_thread.run_sync(process.wait)  # and its connections are closed
            for client in clients.values():
                with pytest.raises(ConnectionLost) as lost:
                    await client.call_tool("pid")
                assert not isinstance(lost.value, OutcomeUnknown)
            with started(port) as (another, _):
                for protocol_version, client in clients.items():
                    assert await client.call_tool("pid", result_type=int) == another.pid, (
                        protocol_version
                    )
                await changed.wait()  # the stateless one hears that something may be missed
