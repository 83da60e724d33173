"""Instances in processes of their own that share a real Redis: calls, crashes, restarts, options."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys

import httpx
import pytest
import trio
from balancer import Balancer

from mcp_trio import Client
from mcp_trio.errors import MCPError, OutcomeUnknown, RequestError

pytestmark = [pytest.mark.slow, pytest.mark.real_time]

SECONDS = 30
LEGACY = ["2025-11-25"]
PROGRAM = """
import os
import trio
from mcp_trio import Context, Server, effect

server = Server("harbour", replayable=True)


@effect
async def load(name: str) -> int:
    with open("loaded", "a") as file:
        file.write(name + "\\n")
    return os.getpid()


@server.tool
async def ship(*, ctx: Context) -> list[int]:
    first = await load("tea")
    await ctx.info("loaded")
    await ctx.sleep(3)
    await load("rum")
    return [first, os.getpid()]


@server.tool
def ship_in_thread(*, ctx: Context) -> list[int]:
    first = ctx.effect(load, "tea")
    ctx.info("loaded")
    ctx.sleep(3)
    ctx.effect(load, "rum")
    return [first, os.getpid()]


@server.tool
async def add(*, ctx: Context) -> list[int]:
    ctx.state["count"] = ctx.state.get("count", 0) + 1
    return [ctx.state["count"], os.getpid()]


@server.tool
async def pid() -> int:
    return os.getpid()


@server.tool
async def wait(seconds: float, *, ctx: Context) -> str:
    await ctx.info("waiting")
    await trio.sleep(seconds)
    return "waited"
"""


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": LEGACY[0],
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
WAIT = {
    "jsonrpc": "2.0",
    "id": 3,
    "method": "tools/call",
    "params": {"name": "wait", "arguments": {"seconds": 1}},
}
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "pid"}}


@pytest.fixture
async def start(tmp_path, redis):
    """Start an instance; return its process and its port."""
    (tmp_path / "there.py").write_text(PROGRAM)
    with contextlib.ExitStack() as stack:

        async def start(*options):
            command = [sys.executable, "-m", "mcp_trio", "run", "there.py", "--transport", "http"]
            command += ["--port", "0", "--redis", redis.url, *options]
            process = stack.enter_context(
                subprocess.Popen(
                    command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
                )
            )
            stack.callback(kill_all, process)
            line = await trio.to_thread.run_sync(process.stderr.readline)
            found = re.search(r":(\d+)/mcp", line)
            assert found, line + process.stderr.read()
            return process, int(found[1])

        yield start


def kill_all(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def ended(process):
    with trio.fail_after(SECONDS):
        return await trio.to_thread.run_sync(process.wait)


@pytest.fixture
async def balanced(nursery, start):
    """Two instances behind a balancer."""
    balancer = Balancer()
    await nursery.start(balancer.run)
    host = f"127.0.0.1:{balancer.port}"
    instances = [await start("--allow-host", host) for _ in range(2)]
    balancer.ports = [port for _, port in instances]
    return balancer, f"http://{host}/mcp", [process for process, _ in instances]


async def test_calls_of_a_session_reach_its_owner_from_any_instance(balanced):
    balancer, url, _ = balanced
    async with Client(url, protocol_versions=LEGACY) as client:
        owner = (await client.call_tool("pid")).data
        with trio.fail_after(SECONDS):
            async with trio.open_nursery() as nursery:
                for _ in range(8):  # at once, so that there are several connections
                    nursery.start_soon(client.call_tool, "wait", {"seconds": 0.5})
        for _ in range(5):
            assert (await client.call_tool("pid")).data == owner
    assert balancer.connections > 4


async def test_a_rolling_restart_shows_no_error_to_clients(balanced):
    _, url, processes = balanced
    async with Client(url, protocol_versions=LEGACY) as client:
        owner = (await client.call_tool("pid")).data
        process = next(each for each in processes if each.pid == owner)
        with trio.fail_after(SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "wait", {"seconds": 1})
                await trio.sleep(0.3)
                process.terminate()
                for _ in range(20):
                    await client.call_tool("pid")
                    await trio.sleep(0.1)
        assert await ended(process) == 128 + signal.SIGTERM
        assert (await client.call_tool("pid")).data != owner


async def test_a_request_whose_body_arrives_late_is_answered_by_a_stopped_instance(start):
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    instances = [await start() for _ in range(2)]
    (process, port), _ = instances
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as http:
        opened = await http.post("/mcp", json=INITIALIZE)
        headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
        await http.post("/mcp", json=INITIALIZED, headers=headers)
    body = json.dumps(CALL).encode()
    headers |= {"Host": f"127.0.0.1:{port}", "Content-Length": str(len(body))}
    lines = ["POST /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all("\r\n".join([*lines, "", ""]).encode())
        process.terminate()
        await trio.sleep(1)  # Without the wait for bodies, the instance has ended by now.
        await stream.send_all(body)
        with trio.fail_after(SECONDS):
            response = b"".join([data async for data in stream])
    assert response.startswith(b"HTTP/1.1 200"), response
    assert f'"text":"{process.pid}"'.encode() not in response
    assert await ended(process) == 128 + signal.SIGTERM


async def test_a_stopped_instance_takes_another_request_after_a_stream_that_it_ends(start):
    headers = {"Accept": "application/json, text/event-stream"}
    (process, port), _ = [await start() for _ in range(2)]
    url, limits = f"http://127.0.0.1:{port}/mcp", httpx.Limits(max_connections=1)
    async with httpx.AsyncClient(headers=headers, limits=limits, timeout=SECONDS) as http:
        opened = await http.post(url, json=INITIALIZE)
        http.headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
        await http.post(url, json=INITIALIZED)
        async with http.stream("POST", url, json=WAIT) as response:  # its headers have no `close`
            process.terminate()
            await response.aread()
        await trio.sleep(1)
        late = await http.post(url, json=CALL)
    assert (late.status_code, late.headers["connection"]) == (200, "close"), late.text
    assert await ended(process) == 128 + signal.SIGTERM


async def test_a_session_goes_on_when_its_owner_is_killed(balanced):
    _, url, processes = balanced
    async with Client(url, protocol_versions=LEGACY) as client:
        owner = (await client.call_tool("pid")).data
        next(each for each in processes if each.pid == owner).kill()
        with trio.fail_after(SECONDS):
            while True:
                with contextlib.suppress(MCPError):
                    if (await client.call_tool("pid")).data != owner:
                        break
                await trio.sleep(0.1)


@pytest.mark.parametrize("tool", ["ship", "ship_in_thread"])
async def test_a_call_of_a_replayable_server_goes_on_when_its_owner_is_killed(
    balanced, tmp_path, tool
):
    _, url, processes = balanced
    loaded, shipped = trio.Event(), []
    log = lambda _: loaded.set()  # noqa: E731
    async with Client(url, protocol_versions=LEGACY, log=log) as client:
        owner = (await client.call_tool("pid")).data

        async def ship():
            shipped.extend((await client.call_tool(tool)).data)

        with trio.fail_after(SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ship)
                await loaded.wait()  # Redis has the effect, and the client an event to resume from.
                next(each for each in processes if each.pid == owner).kill()
                while not shipped:  # the next request lets another instance take the session
                    with contextlib.suppress(MCPError):
                        await client.call_tool("pid")
                    await trio.sleep(0.1)
        first, last = shipped
        assert (first == owner, last == owner) == (True, False)
        assert (tmp_path / "loaded").read_text().split() == ["tea", "rum"]


async def test_the_values_of_a_session_go_on_when_its_owner_is_killed(balanced):
    _, url, processes = balanced
    async with Client(url, protocol_versions=LEGACY) as client:
        for number in range(1, 4):
            count, owner = (await client.call_tool("add")).data
            assert count == number
        next(each for each in processes if each.pid == owner).kill()
        with trio.fail_after(SECONDS):
            while True:
                with contextlib.suppress(OutcomeUnknown):  # of a request that breaks off
                    count, other = (await client.call_tool("add")).data
                    break
        assert other != owner
        assert count == 4


async def test_the_instances_count_the_requests_of_a_user_together(start):
    limit = ("--rate-limit", "4/hour", "--token", "a-token")
    ports = [(await start(*limit))[1] for _ in range(2)]
    urls = [f"http://127.0.0.1:{port}/mcp" for port in ports]
    async with Client(urls[0], token="a-token") as one, Client(urls[1], token="a-token") as two:
        for client in (one, two) * 2:
            await client.call_tool("pid")
        for client in (one, two):
            with pytest.raises(RequestError, match=r"4/hour per user") as caught:
                await client.call_tool("pid")
            assert caught.value.data["retryAfter"] == pytest.approx(900, abs=60)


async def test_workers_with_redis_serve_sessions_and_replace_one_that_dies(start):
    parent, port = await start("--workers", "2")
    async with Client(f"http://127.0.0.1:{port}/mcp", protocol_versions=LEGACY) as client:
        worker = (await client.call_tool("pid")).data
        assert worker != parent.pid
        os.kill(worker, signal.SIGKILL)
        with trio.fail_after(SECONDS):
            while True:
                with contextlib.suppress(MCPError):
                    if (await client.call_tool("pid")).data != worker:
                        break
                await trio.sleep(0.1)
    parent.terminate()
    assert await ended(parent) == 128 + signal.SIGTERM
