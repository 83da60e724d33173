"""A user's own transport over a reliable byte stream, with the line framing of stdio."""

import json
import socket

import attrs
import pytest
import trio

from mcp_trio import Client, Server
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.transports import LineChannel


@attrs.define(eq=False)
class StreamEnd:
    """One end of a connected socket, for a `LineChannel`; `read` is all that came."""

    sock: socket.socket
    read: bytearray = attrs.field(factory=bytearray)

    def read_nowait(self):
        data = self.sock.recv(4096)
        self.read += data
        return data

    async def wait_readable(self):
        await trio.lowlevel.wait_readable(self.sock)

    def write_nowait(self, data):
        return self.sock.send(data)

    async def wait_writable(self):
        await trio.lowlevel.wait_writable(self.sock)

    def close(self):
        if self.sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self.sock)
            self.sock.close()


def pair():
    """The two ends of a Unix socket, and the channels over them."""
    ends = []
    for sock in socket.socketpair():
        sock.setblocking(False)
        ends.append(StreamEnd(sock))
    return ends, [LineChannel(source=end, sink=end, transport="unix") for end in ends]


@pytest.mark.requirement("TRAN-06", "STDIO-22", "TRAN-02", "STDIO-02", "STDIO-03", "STDIO-04")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_custom_stream_carries_a_session_one_message_per_line(nursery, protocol_version):
    server = Server("harbour")

    @server.tool
    async def echo(text: str) -> str:
        return text

    text = "two\nlines, \u2028 and \u0085 é\U0001f600"
    ends, (ours, theirs) = pair()
    nursery.start_soon(server.serve, theirs)
    async with Client(ours, protocol_versions=[protocol_version]) as client:
        assert client.protocol_version == protocol_version
        result = await client.call_tool("echo", {"text": text})
        assert result.content[0].text == text
    for end in ends:
        assert end.read.endswith(b"\n")
        messages = [json.loads(line) for line in bytes(end.read).split(b"\n")[:-1]]
        assert len(messages) >= 2
        assert all(message["jsonrpc"] == "2.0" for message in messages)
