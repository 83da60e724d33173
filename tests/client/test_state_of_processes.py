"""A stateless server's process belongs to its client, not to a task or call."""

import os

import pytest
import trio
import trio.testing

from mcp_trio import Client
from tests.client.conftest import is_alive, python, said
from tests.client.stateless import DISCOVERED, STATELESS

STATELESS_PROGRAM = f"""
import json, os, sys

for line in sys.stdin:
    message = json.loads(line)
    result = {DISCOVERED!r}
    if message["method"] == "tools/call":
        if message["params"]["name"] == "hang":
            continue
        text = {{"type": "text", "text": str(os.getpid())}}
        result = {{"resultType": "complete", "content": [text]}}
    if "id" in message:
        told = {{"jsonrpc": "2.0", "id": message["id"], "result": result}}
        print(json.dumps(told), flush=True)
"""


@pytest.mark.requirement("STATE-04")
async def test_a_process_outlives_the_tasks_and_calls_that_use_it(nursery):
    client = Client(python(STATELESS_PROGRAM), protocol_versions=[STATELESS])
    await nursery.start(_open, client)
    pids = set()

    async def converse():
        pids.add(int(said(await client.call_tool("pid"))))

    async with trio.open_nursery() as conversations:
        conversations.start_soon(converse)
        conversations.start_soon(converse)
    async with trio.open_nursery() as conversations:
        conversations.start_soon(client.call_tool, "hang")
        await trio.testing.wait_all_tasks_blocked()
        conversations.cancel_scope.cancel()
    await converse()
    (pid,) = pids
    assert pid != os.getpid()
    assert is_alive(pid)
    await client.aclose()
    assert not is_alive(pid)


async def _open(client, *, task_status):
    """Opened by a task that is over then."""
    await client.__aenter__()
    task_status.started()
