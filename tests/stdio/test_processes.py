"""Recordings of servers that are killed; `tools/proof/kill_recorders.py` kills them many times."""

import json
import os
import subprocess
import sys
import time
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from mcp_trio import Limits, Server
from mcp_trio.limits import MessageLimits
from mcp_trio.transports import open_stdio_channel
from mcp_trio.types import TextContent

KILL = Path(__file__).parents[2] / "tools" / "proof" / "kill_recorders.py"
SECONDS_MAX = 400


def kill(folder, *options):
    """The report of a run in a process of its own, which forks: a test's process must not."""
    done = subprocess.run(
        [sys.executable, KILL, *options],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        check=False,
    )
    assert not list(folder.iterdir()), "recordings were left behind"
    print(done.stdout.decode())
    return done.returncode, json.loads(done.stdout)


@pytest.mark.real_time
@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.slow
def test_a_killed_server_has_recorded_every_message_that_its_peer_received(tmp_path):
    status, report = kill(tmp_path, "--kills", "500")
    assert (status, report["missing"], report["damaged"]) == (0, 0, 0)
    assert report["kills"] >= 500
    assert report["in_flight_min"] >= 16
    assert report["with_messages_before"] >= 0.9 * report["kills"]


@pytest.mark.real_time
@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.slow
def test_the_same_kills_find_lost_records_if_messages_are_sent_before_them(tmp_path):
    status, report = kill(tmp_path, "--kills", "60", "--no-write-ahead")
    assert status == 1
    assert report["kills_with_missing"] > 0


@pytest.mark.real_time
@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--zst",)], ids=["plain", "compressed"])
def test_a_recording_in_several_files_loses_no_record_either(tmp_path, options):
    status, report = kill(tmp_path, "--kills", "40", "--segment-kib", "2", *options)
    assert (status, report["missing"], report["damaged"]) == (0, 0, 0)
    assert report["files_max"] > 1


# A stateless server process.


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
    await ctx.report_progress(1)
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


@pytest.mark.slow
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


@pytest.mark.slow
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


# L5: the official SDKs joined and split their whole buffer again for each chunk of a large message.
#
# So a result of 8 MB cost much more than twice one of 4 MB. Bytes are counted here, not seconds: all
# memory that is asked for while a result travels, which is what a copy cannot do without.


CHUNK_BYTES = 4096
MB = 1_000_000
LIMITS = Limits(messages=MessageLimits(chunk_bytes=CHUNK_BYTES))

INITIALIZE = (
    b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2024-11-05",'
    b'"capabilities":{},"clientInfo":{"name":"test","version":"0"}}}'
)
INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'


class Meter:
    """Adds up the memory that is taken between any two calls, whether or not it is given back."""

    def __init__(self):
        self.total_bytes = 0
        self._held_bytes = tracemalloc.get_traced_memory()[0]

    def look(self, *_):
        held_bytes, peak_bytes = tracemalloc.get_traced_memory()
        self.total_bytes += peak_bytes - self._held_bytes
        self._held_bytes = held_bytes
        tracemalloc.reset_peak()


@contextmanager
def metered():
    tracemalloc.start()
    meter = Meter()
    sys.setprofile(meter.look)
    try:
        yield meter
    finally:
        sys.setprofile(None)
        meter.look()
        tracemalloc.stop()


def stdio_pair():
    """A server's channel and a client's, over two pipes."""
    server_in, client_out = os.pipe()
    client_in, server_out = os.pipe()
    return (
        open_stdio_channel(server_in, server_out, limits=LIMITS),
        open_stdio_channel(client_in, client_out, limits=LIMITS),
    )


async def bytes_taken(size):
    """Return the memory that a tool result of this size takes, both ends together."""
    server = Server("large", limits=LIMITS)

    @server.tool
    async def large() -> TextContent:  # a string would be sent twice
        return TextContent(text=text)

    text = "x" * size
    channel, client = stdio_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, channel)
        await client.send([INITIALIZE, INITIALIZED])
        await client.receive()
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "large"}}
        with metered() as meter:
            await client.send([json.dumps(call).encode()])
            [answer] = await client.receive()
        await client.aclose()
    assert json.loads(answer)["result"]["content"][0]["text"] == text
    return meter.total_bytes


@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_l05_the_bytes_copied_for_a_result_grow_linearly():
    four, eight = await bytes_taken(4 * MB), await bytes_taken(8 * MB)
    print(f"4 MB: {four / MB:.1f} MB copied, 8 MB: {eight / MB:.1f} MB copied")
    assert eight <= 2.2 * four
    assert eight <= 8 * 8 * MB


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_the_meter_detects_a_buffer_that_is_joined_for_each_chunk():
    def joined_again(size):
        buffer = b""
        with metered() as meter:
            for _ in range(size // CHUNK_BYTES):
                buffer = b"".join([buffer, bytes(CHUNK_BYTES)])
        return meter.total_bytes

    assert joined_again(2 * MB) > 3 * joined_again(MB)
