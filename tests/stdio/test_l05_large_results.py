"""L5: the official SDKs joined and split their whole buffer again for each chunk of a large message.

So a result of 8 MB cost much more than twice one of 4 MB. Bytes are counted here, not seconds: all
memory that is asked for while a result travels, which is what a copy cannot do without.
"""

import json
import os
import sys
import tracemalloc
from contextlib import contextmanager

import pytest
import trio

from mcp_trio import Limits, Server
from mcp_trio.limits import MessageLimits
from mcp_trio.transports import open_stdio_channel

CHUNK_BYTES = 4096
MB = 1_000_000
LIMITS = Limits(messages=MessageLimits(chunk_bytes=CHUNK_BYTES))

INITIALIZE = (
    b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2024-11-05",'
    b'"capabilities":{},"clientInfo":{"name":"test","version":"0"}}}'
)
INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


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
    """What a tool result of so many bytes takes on its way, both ends together."""
    server = Server("large", limits=LIMITS)

    @server.tool
    async def large() -> str:
        return text

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


async def test_l05_the_bytes_copied_for_a_result_grow_linearly():
    four, eight = await bytes_taken(4 * MB), await bytes_taken(8 * MB)
    print(f"4 MB: {four / MB:.1f} MB copied, 8 MB: {eight / MB:.1f} MB copied")
    assert eight <= 2.2 * four
    assert eight <= 8 * 8 * MB


def test_the_meter_detects_a_buffer_that_is_joined_for_each_chunk():
    def joined_again(size):
        buffer = b""
        with metered() as meter:
            for _ in range(size // CHUNK_BYTES):
                buffer = b"".join([buffer, bytes(CHUNK_BYTES)])
        return meter.total_bytes

    assert joined_again(2 * MB) > 3 * joined_again(MB)
