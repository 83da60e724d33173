import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from mcp_trio import Client
from mcp_trio.recording import replay
from mcp_trio.types import CreateMessageResult

pytestmark = pytest.mark.slow

SERVER = Path(__file__).parents[2] / "tools" / "conformance" / "server.py"


async def model(params):
    return CreateMessageResult(role="assistant", content=params.messages[0].content, model="echo")


async def test_it_runs_as_a_script(tmp_path):
    record = tmp_path / "everything.mcprec.jsonl"
    command = [sys.executable, str(SERVER), "--stdio", "--record", str(record)]
    async with Client(command) as client:
        assert client.server_info.name == "mcp-trio-conformance"
        assert (await client.call_tool("test_simple_text")).content
    assert record.exists()


@pytest.mark.real_time
@pytest.mark.parametrize("host", ["native", "hypercorn"])
async def test_it_runs_as_a_script_over_http(host):
    command = [sys.executable, str(SERVER), "--port", "0", "--server", host]
    process = await trio.lowlevel.open_process(command, stderr=subprocess.PIPE)
    try:
        with trio.fail_after(30):
            told = await process.stderr.receive_some()
            url = told.decode().splitlines()[0].removeprefix("serving ")
            async with Client(url) as client:
                assert client.protocol_version == "2026-07-28"
                assert (await client.call_tool("test_simple_text")).content
            process.terminate()
            assert await process.wait() == 128 + signal.SIGTERM
    finally:
        process.kill()
        await process.stderr.aclose()


async def test_a_busy_session_replays(connect, load, tmp_path):
    record = tmp_path / "everything.mcprec.jsonl"
    options = {"sampling": model, "roots": ["file:///a"], "progress": print, "log": print}
    async with connect(record=record, **options) as client:
        await client.subscribe("test://watched-resource")
        async with trio.open_nursery() as nursery:
            for name in (
                "test_tool_with_logging",
                "test_tool_with_progress",
                "test_list_roots",
                "test_cancelled_sampling",
                "test_trigger_tool_change",
                "test_update_watched_resource",
            ):
                nursery.start_soon(client.call_tool, name)
            nursery.start_soon(client.call_tool, "test_sampling", {"prompt": "Why?"})
        with trio.move_on_after(0.15):
            await client.call_tool("test_slow")
        await client.complete("test_prompt_with_arguments", "arg1", "p")
        await client.ping()
    report = await trio.to_thread.run_sync(replay, record, load())
    assert report.is_complete
