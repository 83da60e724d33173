"""Timeouts and cancellation with each protocol version."""

import os
import signal

import pytest
import trio
import trio.testing

from mcp_trio import Client, RequestTimeout
from tests.client.conftest import QUICK, is_alive, python, said
from tests.client.stateless import LEGACY, STATELESS, legacy_client, stateless_client

PROTOCOL_VERSIONS = [*reversed(LEGACY), STATELESS]
CANCELLED = "notifications/cancelled"

# A stateless server without any of our code. `tools/call` answers its process id; "hang" is silence.
PROGRAM = """
import json, os, sys

META = {"io.modelcontextprotocol/serverInfo": {"name": "program", "version": "1"}}
DISCOVERED = {
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}},
    "ttlMs": 0,
    "cacheScope": "private",
}

for line in sys.stdin:
    message = json.loads(line)
    method = message["method"]
    result = DISCOVERED
    if method == "tools/call":
        if message["params"]["name"] == "hang":
            continue
        result = {"content": [{"type": "text", "text": str(os.getpid())}]}
    if "id" in message:
        result = {"resultType": "complete", "_meta": META, **result}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


async def connected(nursery, protocol_version, **options):
    """A client, and its server, which is silent when it is called."""
    answers = {"tools/call": None, "tools/list": {"tools": []}, **options.pop("answers", {})}
    if protocol_version == STATELESS:
        return await stateless_client(nursery, answers=answers, **options)
    client, server = await legacy_client(
        nursery, protocol_version=protocol_version, answers=answers, **options
    )
    assert client.protocol_version == protocol_version
    return client, server


def about(server, method):
    return [message for message in server.requests if message.get("method") == method]


@pytest.mark.requirement("TIME-01", "TIME-02", "TIME-03", "STDIO-14", "CANC-13")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_timeout_cancels_the_request_once_and_the_session_goes_on(
    nursery, autojump_clock, protocol_version
):
    client, server = await connected(nursery, protocol_version)
    for seconds in (2, 5):
        began = trio.current_time()
        with pytest.raises(RequestTimeout):
            await client.call_tool("tide", total_seconds=seconds)
        assert trio.current_time() - began == pytest.approx(seconds, abs=0.1)
    await trio.testing.wait_all_tasks_blocked()
    calls = [message["id"] for message in about(server, "tools/call")]
    told = [message["params"]["requestId"] for message in about(server, CANCELLED)]
    assert told == calls
    assert await client.list_tools() == []
    await client.aclose()


@pytest.mark.requirement("TIME-04", "PROG-10")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_progress_restarts_the_idle_timeout_but_not_the_total(
    nursery, autojump_clock, protocol_version
):
    client, server = await connected(nursery, protocol_version)

    async def report():
        await trio.testing.wait_all_tasks_blocked()
        token = about(server, "tools/call")[-1]["params"]["_meta"]["progressToken"]
        for progress in range(10):
            await trio.sleep(2)
            params = {"progressToken": token, "progress": progress}
            await server.peer.send_notification("notifications/progress", params)

    nursery.start_soon(report)
    began = trio.current_time()
    with pytest.raises(RequestTimeout) as caught:
        await client.call_tool("tide", idle_seconds=3, total_seconds=9, progress=lambda _: None)
    assert caught.value.budget == "total"
    assert trio.current_time() - began == pytest.approx(9, abs=0.1)
    await client.aclose()


@pytest.mark.requirement("CANC-02", "CANC-14", "CANC-08", "CANC-17", "TRAP-58", "TRAP-59")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_only_what_is_in_flight_is_cancelled_and_its_late_answer_is_ignored(
    nursery, protocol_version
):
    client, server = await connected(nursery, protocol_version)
    await client.list_tools()  # has its answer
    with trio.CancelScope() as outer:
        async with trio.open_nursery() as calls:
            calls.start_soon(client.call_tool, "tide")
            await trio.testing.wait_all_tasks_blocked()
            outer.cancel()
    await trio.testing.wait_all_tasks_blocked()
    (call,), (cancelled,) = about(server, "tools/call"), about(server, CANCELLED)
    assert cancelled["params"]["requestId"] == call["id"]
    await server.peer.send_result(call, {"content": [], "resultType": "complete"})
    await trio.testing.wait_all_tasks_blocked()
    assert client.counts == {"late answer": 1}
    assert await client.list_tools() == []
    await client.aclose()
    assert len(about(server, CANCELLED)) == 1


@pytest.mark.requirement("STATE-04", "STDIO-17")
async def test_a_process_serves_one_task_after_the_other_and_ends_with_its_client():
    async with Client(python(PROGRAM), protocol_versions=[STATELESS], limits=QUICK) as client:
        pids = []

        async def converse():
            pids.append(said(await client.call_tool("pid")))
            await client.call_tool("hang")

        for _ in range(3):
            async with trio.open_nursery() as task:
                task.start_soon(converse)
                seen = len(pids)
                with trio.fail_after(10):
                    while len(pids) == seen:
                        await trio.testing.wait_all_tasks_blocked(0.01)
                task.cancel_scope.cancel()
        assert len(pids) == 3
        assert len(set(pids)) == 1
        assert is_alive(int(pids[0]))
    assert not is_alive(int(pids[0]))


@pytest.mark.real_time
@pytest.mark.requirement("STDIO-17", "TRAP-130")
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_stateless_process_that_does_not_exit_is_killed_even_under_cancellation(
    is_cancelled,
):
    stubborn = "import time\ntry:\n    exec(PROGRAM)\nfinally:\n    time.sleep(600)"
    command = python(f"PROGRAM = {PROGRAM!r}\n{stubborn}")
    with trio.CancelScope() as scope:
        async with Client(command, protocol_versions=[STATELESS], limits=QUICK) as client:
            pid = int(said(await client.call_tool("pid")))
            assert is_alive(pid)
            if is_cancelled:
                scope.cancel()
    assert not is_alive(pid)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
