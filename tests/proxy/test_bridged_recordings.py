"""What a bridge has recorded, put to every use that a proxy's recording has."""

import attrs
import pytest
import trio

from mcp_trio import Client
from mcp_trio.errors import RecordingError
from mcp_trio.examples.weather import server as weather
from mcp_trio.limits import DEFAULT_LIMITS, RequestLimits
from mcp_trio.recording import replay_async, run_inputs
from mcp_trio.testing import mock_server
from tests.proxy.bridged import SOURCES, bridged
from tests.ways import CONNECTIONS, served

pytestmark = pytest.mark.real_time  # the weather's stations take a while to answer

LIMITS = attrs.evolve(DEFAULT_LIMITS, requests=RequestLimits(idle_seconds=10))
SECONDS = 20.0


async def ask(target, protocol_version):
    """All that is asked for; the same from any server that is the same."""
    progress = []
    async with Client(target, protocol_versions=[protocol_version]) as client:
        tools = await client.list_tools()
        answer = await client.call_tool("forecast", {"city": "Oslo"}, progress=progress.append)
    return [tool.name for tool in tools], answer.content[0].text, len(progress)


@pytest.mark.parametrize("protocol_version", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("to", CONNECTIONS)
@pytest.mark.parametrize("source", SOURCES)
async def test_a_bridged_session_is_mocked_and_asked_again_over_any_transport(
    tmp_path, source, to, protocol_version
):
    folder = tmp_path / "recorded"
    folder.mkdir()
    with trio.fail_after(SECONDS):
        async with served(weather, to, tmp_path) as (url, _scope):
            async with bridged(source, url, tmp_path, record=folder) as listen:
                live = await ask(listen, protocol_version)
            path = next(each for each in folder.iterdir() if "tools/call" in each.read_text())
            report = await run_inputs(path, url, limits=LIMITS)
            assert report.is_same, str(report)
        assert (await run_inputs(path, weather, limits=LIMITS)).is_same
        assert await ask(mock_server(path), protocol_version) == live


async def test_handlers_are_not_run_against_what_a_bridge_recorded(tmp_path):
    path = tmp_path / "bridged.mcprec.jsonl"
    async with (
        served(weather, "tcp") as (url, _scope),
        bridged("websocket", url, tmp_path, record=path) as listen,
    ):
        await ask(listen, "2025-11-25")
    with pytest.raises(RecordingError, match="strict replay runs the handlers of a server"):
        await replay_async(path, weather)
