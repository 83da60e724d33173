"""Every transport that clients may come over, joined to every one that a server may be at."""

import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager

import attrs
import pytest
import trio

from mcp_trio import Client, Context, Server
from tests.proxy.bridged import SOURCES, bridged, source
from tests.ways import CONNECTIONS, served

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

BRIDGE = [sys.executable, "-m", "mcp_trio", "bridge"]
FROMS = ["stdio", *SOURCES]
TOS = ["command", "http", *CONNECTIONS]
PROTOCOL_VERSIONS = ["2025-11-25", "2026-07-28"]
SECONDS = 30


@attrs.frozen
class Unit:
    unit: str


def harbour(notes):
    """A server that writes down what was cancelled."""
    server = Server("harbour", version="1")

    @server.tool
    async def tide(port: str, *, ctx: Context) -> str:
        await ctx.progress(1, 2, message="looking")
        answer = await ctx.elicit("Which unit?", Unit)
        return f"3 {answer.data.unit} at {port}"

    @server.tool
    async def wait(*, ctx: Context) -> str:
        notes.write_text("waits")
        try:
            await ctx.sleep(1000)
        finally:
            notes.write_text("cancelled")
        return "waited"

    return server


COMMAND = """
import sys
from pathlib import Path
from tests.proxy.test_bridge import harbour

harbour(Path(sys.argv[1])).run()
"""


@pytest.fixture
def notes(tmp_path):
    return tmp_path / "notes"


@pytest.fixture
def recordings(tmp_path, all_in):
    """A folder, and what is in it when all is over: of both eras the same."""
    folder = tmp_path / "recorded"
    folder.mkdir()
    yield folder
    sessions = all_in(folder)
    assert all(each.counts["malformed"] == 0 for each in sessions)
    assert all(each.kinds()[-1] == "end" for each in sessions)
    said = [body for each in sessions for body in each.bodies("in")]
    called = [each["params"]["name"] for each in said if each.get("method") == "tools/call"]
    assert called.count("wait") == 2
    assert called.count("tide") >= 2  # in the stateless era the answer to a question is asked with


@pytest.fixture
def server_at(tmp_path, notes):
    """A server somewhere; what names it on a command line."""

    @asynccontextmanager
    async def server_at(direction):
        if direction == "command":
            yield ["--", sys.executable, "-c", COMMAND, os.fspath(notes)]
            return
        async with served(harbour(notes), direction, tmp_path) as (url, _scope):
            yield [url]

    return server_at


@pytest.fixture
def bridge(tmp_path, recordings):
    """What a client has to be given to come through a bridge, in a process of its own, to a server."""
    options = ("--record", os.fspath(recordings))

    @asynccontextmanager
    async def bridge(direction, server):
        if direction == "stdio":
            yield [*BRIDGE, *options, "-", *server]
            return
        command = [*BRIDGE, *options, source(direction, tmp_path), *server]
        process = await trio.lowlevel.open_process(command, stderr=subprocess.PIPE)
        try:
            told = b""
            while not told.endswith(b"\n"):
                told += await process.stderr.receive_some()
            yield told.decode().split()[-1]
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 128 + signal.SIGTERM
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
            await process.stderr.aclose()

    return bridge


def takes_a_process(direction, to):
    """Whether a bridge has stdin, processes that are to end with it, or a proxy of its own."""
    return direction == "stdio" or to == "command" or direction == to == "http"


async def use(client, notes):
    """All that there is to a call: its answer, progress, a question, and its cancellation."""
    told = []
    result = await client.call_tool("tide", {"port": "Oslo"}, progress=told.append)
    assert result.content[0].text == "3 m at Oslo"
    assert [each.message for each in told] == ["looking"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "wait")
        while not (notes.exists() and notes.read_text() == "waits"):
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    while notes.read_text() != "cancelled":
        await trio.sleep(0.01)
    notes.unlink()


@pytest.mark.parametrize("to", TOS)
@pytest.mark.parametrize("direction", FROMS)
async def test_every_pair_carries_all_that_belongs_to_a_call_in_both_eras(
    server_at, bridge, recordings, direction, to
):
    folder = recordings.parent
    with trio.fail_after(SECONDS):
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(server_at(to))
            between = (
                bridge(direction, server)
                if takes_a_process(direction, to)
                else bridged(direction, *server, folder, record=recordings)
            )
            listen = await stack.enter_async_context(between)
            for protocol_version in PROTOCOL_VERSIONS:
                async with Client(
                    listen,
                    protocol_versions=[protocol_version],
                    elicitation=lambda _: {"unit": "m"},
                ) as client:
                    assert client.protocol_version == protocol_version
                    await use(client, folder / "notes")
