"""Bugs of other SDKs over HTTP, checked here; the numbers are those of the survey of peers."""

import contextlib
import re
import signal
import subprocess
import sys
import time
from functools import partial

import httpx2
import pytest
import trio

from mcp_trio import Client, ConnectionLost, Limits, MCPError, RequestError, Server
from mcp_trio.errors import OutcomeUnknown
from mcp_trio.limits import HttpLimits, RequestLimits

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

SECONDS = 20
SOON = 5
WAYS = {
    "stateless": ("/mcp", "2026-07-28"),
    "legacy": ("/mcp", "2025-11-25"),
    "HTTP+SSE": ("/sse", "2024-11-05"),
}
HOSTS = ("native", "hypercorn")

PROGRAM = """
import logging, sys, trio
from mcp_trio import Server
server = Server("probed")
@server.tool
async def wait() -> str:
    print("waiting", flush=True)
    await trio.sleep_forever()
@server.tool
async def answer() -> str:
    return "answered"
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
server.run("http", port=int(sys.argv[1]), server=sys.argv[2])
"""


class Process:
    """A server in a process of its own, at the port that the first one got."""

    def __init__(self, host):
        self.host, self.port, self.process = host, 0, None

    def start(self):
        command = [sys.executable, "-c", PROGRAM, str(self.port), self.host]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.port = int(re.search(r":(\d+)/", self.line())[1])
        return f"http://127.0.0.1:{self.port}"

    def line(self):
        return self.process.stdout.readline()

    def end(self, number):
        self.process.send_signal(number)
        status = self.process.wait(SOON)
        self.process.stdout.close()
        return status


@pytest.fixture(params=HOSTS)
def process(request):
    process = Process(request.param)
    yield process
    with contextlib.suppress(ProcessLookupError):
        process.process.kill()
    process.process.wait()
    process.process.stdout.close()


def client_of(way, base, **limits):
    path, protocol_version = WAYS[way]
    return Client(base + path, protocol_versions=(protocol_version,), limits=Limits(**limits))


@pytest.mark.parametrize("way", WAYS)
async def test_l01_a_killed_server_fails_the_calls_in_flight_and_the_block_goes_on(process, way):
    """Others cancel the whole block, show the error outside only, and are dead for good."""
    base = process.start()
    with trio.fail_after(SECONDS):
        async with client_of(way, base, http=HttpLimits(reconnect_seconds_max=0.2)) as client:

            async def call(*, task_status):
                task_status.started()
                with pytest.raises(OutcomeUnknown):
                    await client.call_tool("wait")

            async with trio.open_nursery() as calls:
                await calls.start(call)
                assert await trio.to_thread.run_sync(process.line) == "waiting\n"
                assert process.end(signal.SIGKILL) == -signal.SIGKILL
            with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1") as lost:
                await client.call_tool("answer")
            assert not isinstance(lost.value, OutcomeUnknown)
            assert process.start() == base
            assert await client.call_tool("answer", result_type=str) == "answered"


def test_open_streams_do_not_keep_a_server_from_stopping(process):
    """Others wait for their clients (python-sdk#514)."""
    base = process.start()

    async def stop_in_the_middle():
        with trio.fail_after(SECONDS):
            async with contextlib.AsyncExitStack() as clients, trio.open_nursery() as calls:
                for way in WAYS:
                    client = client_of(way, base, http=HttpLimits(reconnect_seconds_max=0.2))
                    calls.start_soon(lost, await clients.enter_async_context(client))
                    assert await trio.to_thread.run_sync(process.line) == "waiting\n"
                begin = time.monotonic()
                status = await trio.to_thread.run_sync(process.end, signal.SIGTERM)
                assert status == 128 + signal.SIGTERM
                assert time.monotonic() - begin < SOON

    async def lost(client):
        with pytest.raises((OutcomeUnknown, RequestError)):
            await client.call_tool("wait")

    trio.run(stop_in_the_middle)


@pytest.fixture(params=HOSTS)
async def base(nursery, request):
    """Serve tools that send and receive half of an emoji, and return the URL."""
    server = Server("probed")

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def half() -> str:
        return "\ud83d"

    url = await nursery.start(partial(server.serve_http, port=0, server=request.param))
    yield url.removesuffix("/mcp")
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", [KeyError("theirs"), KeyboardInterrupt()], ids=type)
async def test_l02_an_exception_of_the_block_is_raised_without_a_group(base, way, error):
    caught = None
    with trio.fail_after(SECONDS):
        try:
            async with client_of(way, base) as client:
                await client.list_tools()
                raise error
        except BaseException as raised:
            caught = raised
    assert caught is error


@pytest.mark.parametrize("way", WAYS)
async def test_l13_clients_are_closed_in_any_order_from_any_task(base, way):
    with trio.fail_after(SECONDS):
        first, second = client_of(way, base), client_of(way, base)
        await first.__aenter__()
        await second.__aenter__()
        async with trio.open_nursery() as closing:
            closing.start_soon(first.__aexit__, None, None, None)
        assert await second.call_tool("echo", {"text": "yes"}, result_type=str) == "yes"
        async with trio.open_nursery() as closing:
            closing.start_soon(second.aclose)
        await second.__aexit__(None, None, None)


@pytest.mark.parametrize("way", WAYS)
async def test_l16_a_lone_surrogate_in_a_result_fails_that_call_alone(base, way):
    with trio.fail_after(SECONDS):
        async with client_of(way, base) as client:
            with pytest.raises(MCPError) as failed:
                await client.call_tool("half")
            assert not isinstance(failed.value, ConnectionLost)
            assert await client.call_tool("echo", {"text": "yes"}, result_type=str) == "yes"


@pytest.mark.parametrize("way", WAYS)
async def test_l17_a_lone_surrogate_in_an_argument_is_rejected_before_sending(base, way):
    with trio.fail_after(SECONDS):
        async with client_of(way, base) as client:
            with pytest.raises(ValueError, match="cannot be encoded"):
                await client.call_tool("echo", {"text": "\ud83d"})
            assert await client.call_tool("echo", {"text": "yes"}, result_type=str) == "yes"


async def test_l17_a_lone_surrogate_in_a_request_is_answered(base):
    """Other SDKs drop the message, and the client waits for its timeout."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "echo",
    }
    body = (
        rb'{"jsonrpc":"2.0","id":"half","method":"tools/call","params":{"name":"echo",'
        rb'"arguments":{"text":"\ud83d"},"_meta":{'
        rb'"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
        rb'"io.modelcontextprotocol/clientCapabilities":{}}}}'
    )
    with trio.fail_after(SECONDS):
        async with httpx2.AsyncClient(trust_env=False) as http:
            answer = await http.post(f"{base}/mcp", content=body, headers=headers)
    assert answer.json()["id"] == "half"
    assert answer.json()["error"]["code"] in {-32700, -32602}


@pytest.mark.parametrize("way", WAYS)
async def test_l12_connecting_to_a_silent_server_times_out(nursery, way):
    async def say_nothing(_stream):
        await trio.sleep_forever()

    serve = partial(trio.serve_tcp, say_nothing, 0, host="127.0.0.1")
    [listener] = await nursery.start(serve)
    base = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
    client = client_of(way, base, requests=RequestLimits(initialize_seconds=0.3, probe_seconds=0.3))
    with (
        trio.fail_after(SOON),
        pytest.raises(MCPError, match=r"limits\.requests\.initialize_seconds"),
    ):
        await client.__aenter__()
    nursery.cancel_scope.cancel()
