"""Who becomes a WebSocket of a listener, and what the others are told."""

import functools
import json
import ssl

import pytest
import trio
import trio.testing
from wsproto.events import CloseConnection

from mcp_trio import Client, ConnectionLost, Limits, Server
from mcp_trio._protocol.http_requests import Rejection
from mcp_trio._testing.peers import notification, request
from mcp_trio._transports.websocket_server import WebSocketHost, serve_websocket
from mcp_trio.limits import MIB, HttpLimits, MessageLimits, ShutdownLimits
from mcp_trio.transports import open_websocket_channel
from tests.transports.websocket.conftest import LIMITS, anybody, raw_peer

FRAME = b'{"jsonrpc":"2.0","method":"check"}'
SECONDS = 10.0
HELLO = request(
    "initialize",
    {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
    id=1,
)
CALL = request("tools/call", {"name": "load"}, id=2)


async def never(_channel):
    raise AssertionError("nobody gets that far")


async def answered(request, *, limits=LIMITS, admit=anybody):
    """What is answered to the bytes of a request: all of it, until the connection is closed."""
    ours, theirs = trio.testing.memory_stream_pair()
    host = WebSocketHost(admit=admit, handle=never, limits=limits)
    answer = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.serve, theirs)
        if request:
            await ours.send_all(request)
        while chunk := await ours.receive_some():
            answer += chunk
        await ours.aclose()
    return answer


# Heads


REJECTED = {
    "no HTTP": (b"\x16\x03\x01\x02\x00", 400, "not HTTP/1.1"),
    "a line of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\n", 400, "not HTTP/1.1"),
    "no host": (b"GET /ws HTTP/1.1\r\n\r\n", 400, "malformed"),
    "a body": (
        b"GET /ws HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
        400,
        "cannot have a body",
    ),
    "two lengths": (
        b"GET /ws HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
        "both",
    ),
    "a huge head": (b"GET /ws HTTP/1.1\r\nX: " + b"x" * 70_000, 431, "longer than"),
}


@pytest.mark.parametrize("kind", REJECTED)
async def test_what_is_no_request_is_rejected(kind, autojump_clock):
    request, status, complaint = REJECTED[kind]
    answer = await answered(request)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert complaint in answer.decode()


@pytest.mark.parametrize("begun", [b"", b"GET /ws HTTP/1.1\r\nHost: x\r\n"])
async def test_a_head_that_takes_too_long_is_rejected(begun, autojump_clock):
    started = trio.current_time()
    answer = await answered(begun)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert trio.current_time() - started == pytest.approx(LIMITS.http.headers_seconds)


async def test_a_head_in_single_bytes_is_read():
    ours, theirs = trio.testing.memory_stream_pair()
    host = WebSocketHost(admit=anybody, handle=never, limits=LIMITS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.serve, theirs)
        for byte in b"POST /ws HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n":
            await ours.send_all(bytes([byte]))
        assert (await ours.receive_some()).startswith(b"HTTP/1.1 400 ")
        await ours.aclose()


async def test_a_rejection_is_an_answer_of_http_with_its_headers(autojump_clock):
    async def nobody(_head):
        return Rejection(status=401, text="who are you?", headers=[("WWW-Authenticate", "Bearer")])

    answer = await answered(b"GET /ws HTTP/1.1\r\nHost: x\r\n\r\n", admit=nobody)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 401 ")
    assert b"www-authenticate: Bearer" in head
    assert json.loads(body)["error"]["message"] == "who are you?"


async def test_a_client_that_disconnects_before_its_handshake_harms_no_other(caplog):
    ours, theirs = trio.testing.memory_stream_pair()
    await ours.send_all(b"GET /ws HT")
    await ours.aclose()
    await WebSocketHost(admit=anybody, handle=never, limits=LIMITS).serve(theirs)
    assert not caplog.records


async def test_a_fault_of_ours_ends_its_connection_alone_and_is_logged(served, caplog):
    failures = [ValueError("no")]

    async def admit(head):
        if failures:
            raise failures.pop()
        return head

    url, arrivals = await served(admit=admit)
    with pytest.raises(ConnectionLost, match="disconnected during the handshake"):
        await open_websocket_channel(url)
    assert "a WebSocket connection failed" in caplog.text
    ours = await open_websocket_channel(url, limits=LIMITS)
    await arrivals.receive()
    await ours.aclose()


async def test_a_request_that_is_no_websocket_after_all_is_rejected_by_the_library(caplog):
    answer = await answered(b"GET /ws HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert not caplog.records


# What is agreed on


async def test_the_subprotocol_is_chosen_if_it_is_offered(served):
    url, arrivals = await served()
    for offered, chosen in (
        (["mcp"], "mcp"),
        (["graphql-ws", "mcp"], "mcp"),
        (["mcp.token.c2VzYW1l", "mcp"], "mcp"),
        (["graphql-ws"], None),
        ([], None),
    ):
        peer = await raw_peer(url)
        async with peer.stream:
            assert (await peer.shake_hands(subprotocols=offered)).subprotocol == chosen
            channel = await arrivals.receive()
            await peer.frame(0x1, FRAME)
            assert await channel.receive() == [FRAME]
            await channel.send([FRAME])
            assert (await peer.event()).data == FRAME.decode()


async def test_frames_that_came_with_the_head_are_not_lost(served):
    url, arrivals = await served()
    peer = await raw_peer(url)
    async with peer.stream:
        await peer.stream.send_all(
            b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            b"\x81\x82\0\0\0\0{}"
        )
        channel = await arrivals.receive()
        assert await channel.receive() == [b"{}"]


async def test_one_connection_too_many_is_answered_with_the_setting(served):
    url, arrivals = await served(
        limits=Limits(
            http=HttpLimits(connections_max=1), shutdown=ShutdownLimits(close_seconds=0.3)
        )
    )
    first = await open_websocket_channel(url, limits=LIMITS)
    await arrivals.receive()
    with pytest.raises(ConnectionLost, match=r"HTTP 503.*limits\.http\.connections_max"):
        await open_websocket_channel(url)
    await first.aclose()


# The end of a server


async def test_a_stopping_server_closes_with_going_away():
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}/ws"
    codes = []

    async def hold(channel):
        try:
            assert await channel.receive() == [FRAME]
            await trio.sleep_forever()
        finally:
            await channel.aclose()

    async def listen(*, task_status):
        host = WebSocketHost(admit=anybody, handle=hold, limits=LIMITS)
        await serve_websocket(listeners, host, task_status=task_status)

    async def connect(*, task_status):
        peer = await raw_peer(url)
        async with peer.stream:
            await peer.shake_hands()
            await peer.frame(0x1, FRAME)
            task_status.started()
            codes.append(await peer.closed())

    async with trio.open_nursery() as clients, trio.open_nursery() as serving:
        await serving.start(listen)
        for _ in range(3):
            await clients.start(connect)
        await trio.testing.wait_all_tasks_blocked(0.05)
        serving.cancel_scope.cancel()
    assert codes == [1001] * 3


async def test_a_server_that_stops_finishes_the_answer_that_is_leaving():
    server = Server("harbour", limits=Limits(messages=MessageLimits(bytes_max=64 * MIB)))

    @server.tool
    async def load() -> str:
        return "x" * 16 * MIB

    async with trio.open_nursery() as serving:
        peer = await raw_peer(
            await serving.start(functools.partial(server.serve_websocket, port=0, hosts=["*"]))
        )
        await peer.shake_hands()
        for message in (HELLO, notification("notifications/initialized"), CALL):
            await peer.frame(0x1, json.dumps({"jsonrpc": "2.0", **message}).encode())
        await peer.event()  # the answer to the first
        await trio.testing.wait_all_tasks_blocked(0.1)  # it is leaving, and nobody reads it
        serving.cancel_scope.cancel()
        with trio.CancelScope(shield=True), trio.fail_after(SECONDS):
            text, event = "", await peer.event()
            while not isinstance(event, CloseConnection):
                text, event = text + event.data, await peer.event()
            assert event.code == 1001
            await peer.stream.aclose()
    assert len(json.loads(text)["result"]["content"][0]["text"]) == 16 * MIB


# TLS


async def test_tls_is_spoken_with_a_certificate(certificate, nursery):
    serve = functools.partial(Server("harbour").serve_websocket, port=0, **certificate)
    url = await nursery.start(serve)
    assert url.startswith("wss://127.0.0.1:")
    trusting = ssl.create_default_context(cafile=certificate["certfile"])
    trusting.check_hostname = False
    channel = await open_websocket_channel(url, ssl_context=trusting, limits=LIMITS)
    async with Client(channel) as client:
        await client.ping()
    with pytest.raises(ConnectionLost, match="certificate verify failed"):
        await open_websocket_channel(url)
    with pytest.raises(ValueError, match="wss://"):
        await open_websocket_channel(url.replace("wss", "ws"), ssl_context=trusting)
    with trio.fail_after(SECONDS), pytest.raises(ConnectionLost):
        await open_websocket_channel(url.replace("wss", "ws"))


async def test_far_too_many_connections_are_closed_without_a_word():
    limits = Limits(http=HttpLimits(connections_max=1), shutdown=ShutdownLimits(close_seconds=0.3))
    host = WebSocketHost(admit=anybody, handle=never, limits=limits)
    async with trio.open_nursery() as nursery:
        streams = [trio.testing.memory_stream_pair() for _ in range(3)]
        for _, theirs in streams:
            nursery.start_soon(host.serve, theirs)
            await trio.testing.wait_all_tasks_blocked()
        assert (await streams[1][0].receive_some()).startswith(b"HTTP/1.1 503 ")
        assert await streams[2][0].receive_some() == b""
        nursery.cancel_scope.cancel()
