"""What a bridge has recorded, put to every use that a proxy's recording has."""

import os
from contextlib import asynccontextmanager
from functools import partial

import attrs
import pytest
import trio

from mcp_trio import Client
from mcp_trio._errors import RecordingError
from mcp_trio._limits import DEFAULT_LIMITS
from mcp_trio._proxy.bridge import Behind, front_of, serve_site, site_of
from mcp_trio._proxy.journal import recorded_to, start_frames
from mcp_trio._recorder.options import options_of
from mcp_trio._replay.inputs import run_inputs
from mcp_trio._replay.mock import mock_server
from mcp_trio.examples.weather import server as weather
from mcp_trio.recording import replay_async

LIMITS = attrs.evolve(DEFAULT_LIMITS, request_idle_seconds=10)
SECONDS = 20.0
FROMS = {
    "http": "http://127.0.0.1:0/mcp",
    "websocket": "ws://127.0.0.1:0/ws",
    "unix": "unix:{}/from",
    "tcp": "tcp://127.0.0.1:0",
}
TOS = ["websocket", "unix", "tcp"]


@asynccontextmanager
async def served(way, folder):
    """Where the weather is."""
    ways = {
        "websocket": partial(weather.serve_websocket, port=0),
        "unix": partial(weather.serve_unix, os.fspath(folder / "to")),
        "tcp": partial(weather.serve_tcp, port=0),
    }
    async with trio.open_nursery() as nursery:
        yield await nursery.start(ways[way])
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def bridged(source, url, record):
    """Where a bridge is that records."""
    front, behind = front_of(source), Behind(target=url)
    with recorded_to(options_of(record)) as recording:
        start = partial(start_frames, recording, transport=front.kind, name="it", limits=LIMITS)
        site = site_of(front, behind, start=start, limits=LIMITS)
        told, tells = trio.open_memory_channel(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_site, front, site, told.send_nowait)
            yield await tells.receive()
            nursery.cancel_scope.cancel()


async def ask(target, revision):
    """All that is asked for; the same from any server that is the same."""
    progress = []
    async with Client(target, revisions=[revision]) as client:
        tools = await client.list_tools()
        answer = await client.call_tool("forecast", {"city": "Oslo"}, progress=progress.append)
    return [tool.name for tool in tools], answer.content[0].text, len(progress)


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("to", TOS)
@pytest.mark.parametrize("source", FROMS)
async def test_a_bridged_session_is_mocked_and_asked_again_over_any_transport(
    tmp_path, source, to, revision
):
    folder = tmp_path / "recorded"
    folder.mkdir()
    with trio.fail_after(SECONDS):
        async with served(to, tmp_path) as url:
            async with bridged(FROMS[source].format(tmp_path), url, folder) as place:
                live = await ask(place, revision)
            path = next(each for each in folder.iterdir() if "tools/call" in each.read_text())
            report = await run_inputs(path, url, limits=LIMITS)
            assert report.is_same, str(report)
        assert (await run_inputs(path, weather, limits=LIMITS)).is_same
        assert await ask(mock_server(path), revision) == live


async def test_handlers_are_not_run_against_what_a_bridge_recorded(tmp_path):
    path = tmp_path / "bridged.mcprec.jsonl"
    async with (
        served("tcp", tmp_path) as url,
        bridged(FROMS["websocket"], url, path) as place,
    ):
        await ask(place, "2025-11-25")
    with pytest.raises(RecordingError, match="strict replay runs the handlers of a server"):
        await replay_async(path, weather)
