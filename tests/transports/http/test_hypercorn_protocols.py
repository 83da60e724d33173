"""What hypercorn's protocols are kept from, and what they do not keep."""

import socket

import pytest
import trio
from hypercorn.config import Config

from mcp_trio._transports.asgi import MORE
from mcp_trio._transports.hypercorn import BoundedStream, HypercornConnection
from mcp_trio._transports.socket_bytes import SocketEnds
from mcp_trio.limits import DEFAULT_LIMITS


@pytest.fixture
def connected(nursery):
    """A client of an ASGI application."""

    async def serve(connection):
        try:
            await connection.serve(Config(), None)
        finally:
            connection.stream.cut()

    def connected(app):
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ends = SocketEnds(fd=ours.detach(), chunk_bytes=DEFAULT_LIMITS.messages.chunk_bytes)
        stream = BoundedStream(ends, DEFAULT_LIMITS)
        nursery.start_soon(serve, HypercornConnection(app, stream, DEFAULT_LIMITS, None, None))
        return trio.SocketStream(trio.socket.from_stdlib_socket(theirs))

    return connected


async def test_what_was_held_for_a_message_that_never_comes_leaves_with_the_end(connected):
    async def app(_scope, receive, send):
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "hello", MORE: True})

    async with connected(app) as client:
        await client.send_all(
            b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        received = b"".join([piece async for piece in client])
    assert received.startswith(b"HTTP/1.1 101 ")
    assert received.endswith(b"\x81\x05hello" + b"\x88\x02\x03\xf3")  # 1011: an internal error


async def test_http2_in_plain_text_may_be_known_before(connected):
    """Which is another thing than to change to it (RFC 9113, 3.3)."""
    scopes = []

    async def app(scope, _receive, send):
        scopes.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    settings, goaway = b"\0\0\0\4\0\0\0\0\0", b"\0\0\x08\7\0\0\0\0\0" + bytes(8)
    head = b"\x82\x84\x86\x41\x01x"  # GET, /, http, and the authority
    async with connected(app) as client:
        await client.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
        await client.send_all(bytes((0, 0, len(head), 1, 5, 0, 0, 0, 1)) + head)
        received = b""
        while b"hello" not in received:
            received += await client.receive_some()
        await client.send_all(goaway)
    assert [each["http_version"] for each in scopes] == ["2"]
