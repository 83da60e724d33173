"""A stateless server process: no handshake, no requests of its own, a quick exit."""

import json
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

SERVER = """
import trio
from mcp_trio import Context, Server

server = Server("probe")

@server.tool
async def where(*, ctx: Context) -> str:
    print("a print")
    (root,) = await ctx.list_roots()
    return root.uri

@server.tool
async def wait(*, ctx: Context) -> str:
    await ctx.progress(1)
    await trio.sleep_forever()
"""
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"roots": {}},
}
EXIT_SECONDS = 8.0  # a slow machine's; without a request in flight it leaves at once


@pytest.fixture
def process(tmp_path):
    (tmp_path / "server.py").write_text(SERVER, encoding="utf-8")
    command = [sys.executable, "-m", "mcp_trio", "run", str(tmp_path / "server.py")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        yield process
        process.kill()


def send(process, **message):
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    process.stdin.flush()


def receive(process):
    return json.loads(process.stdout.readline())


def call(process, id_, name, **members):
    meta = {**META, "progressToken": id_}
    send(process, id=id_, method="tools/call", params={"name": name, "_meta": meta, **members})


@pytest.mark.requirement("STDIO-11", "STDIO-06", "STDIO-18", "STDIO-19", "VER-04")
def test_a_process_requires_input_by_its_results_and_exits_at_the_end_of_stdin(process):
    call(process, 1, "where")
    asked = receive(process)
    assert asked["result"]["resultType"] == "input_required"
    ((key, question),) = asked["result"]["inputRequests"].items()
    assert question["method"] == "roots/list"
    answers = {key: {"roots": [{"uri": "file:///pier"}]}}
    state = asked["result"]["requestState"]
    call(process, 2, "where", requestState=state, inputResponses=answers)
    assert receive(process)["result"]["content"][0]["text"] == "file:///pier"
    process.stdin.close()
    began = time.monotonic()
    assert process.stdout.read() == ""
    assert process.wait(EXIT_SECONDS) == 0
    assert time.monotonic() - began < EXIT_SECONDS
    assert process.stderr.read() == "a print\n"


@pytest.mark.real_time
@pytest.mark.requirement("STDIO-18", "STDIO-16", "CANC-15")
def test_a_process_exits_with_a_request_in_flight_and_a_cancelled_one(process):
    for id_ in (1, 2):
        call(process, id_, "wait")
        assert receive(process)["method"] == "notifications/progress"
    send(process, method="notifications/cancelled", params={"requestId": 1})
    process.stdin.close()
    assert process.wait(EXIT_SECONDS) == 0
    assert '"id":1' not in process.stdout.read()
