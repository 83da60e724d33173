"""WebSockets through ASGI: by a scripted server, and by hypercorn with peers that do odd things."""

import contextlib
import functools
import socket

import attrs
import h2.events
import pytest
import trio
import trio.testing
import wsproto.connection
from wsproto import events

from mcp_trio import ConnectionLost, Limits
from mcp_trio._protocol.http_requests import Rejection
from mcp_trio._transports.asgi import AnswerBrokenOff, AsgiHost
from mcp_trio._transports.hypercorn import serve_hypercorn
from mcp_trio.errors import OutcomeUnknown
from mcp_trio.limits import MessageLimits, ShutdownLimits, WebSocketLimits
from tests.transports.http.http2_client import Http2Client
from tests.transports.websocket.conftest import handing_over, raw_peer

LIMITS = Limits(messages=MessageLimits(bytes_max=1000), shutdown=ShutdownLimits(close_seconds=0.3))
FRAME = b'{"jsonrpc":"2.0","method":"check"}'
SECONDS = 10.0


async def nobody(_exchange):
    raise AssertionError("everybody asks for a WebSocket here")


# A scripted server


def scope_of(**more):
    return {
        "type": "websocket",
        "scheme": "ws",
        "http_version": "1.1",
        "path": "/ws",
        "raw_path": b"/ws",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"sec-websocket-protocol", b"mcp")],
        "client": ("127.0.0.1", 1),
        "subprotocols": ["mcp"],
        **more,
    }


@attrs.define(eq=False)
class Scripted:
    """A server that tells what it is told to tell; `host_check` holds up what is sent to it."""

    sent: list = attrs.field(factory=list)
    host_check: trio.Event = attrs.field(factory=trio.Event)
    tell: trio.MemorySendChannel = attrs.field(init=False)
    told: trio.MemoryReceiveChannel = attrs.field(init=False)
    is_shielded: bool = False

    def __attrs_post_init__(self):
        self.tell, self.told = trio.open_memory_channel(100)
        self.tell.send_nowait({"type": "websocket.connect"})
        self.host_check.set()

    def text(self, frame):
        self.tell.send_nowait({"type": "websocket.receive", "text": frame.decode()})

    async def send(self, message):
        self.sent.append(message)
        with trio.CancelScope(shield=self.is_shielded):
            await self.host_check.wait()

    async def run(self, upgraded, **more):
        app = AsgiHost(nobody, upgraded=upgraded, limits=LIMITS)
        await app(scope_of(**more), self.told.receive, self.send)

    @property
    def kinds(self):
        return [each["type"].removeprefix("websocket.") for each in self.sent]


@pytest.fixture
def opened(nursery):
    """A scripted server, the channel over it, and what the application raised in the end."""

    async def opened(**more):
        server, raised = Scripted(**more), []
        arrived, arrivals = trio.open_memory_channel(1)

        async def run():
            try:
                await server.run(handing_over(arrived, LIMITS))
            except AnswerBrokenOff as error:
                raised.append(error)

        nursery.start_soon(run)
        return server, await arrivals.receive(), raised

    return opened


async def test_messages_go_both_ways_and_the_close_is_reported(opened, autojump_clock):
    server, channel, raised = await opened()
    assert server.sent == [{"type": "websocket.accept", "subprotocol": "mcp"}]
    server.text(FRAME)
    assert await channel.receive() == [FRAME]
    await channel.send([FRAME, FRAME])
    assert [each.get("text") for each in server.sent[1:]] == [FRAME.decode()] * 2
    server.tell.send_nowait({"type": "websocket.disconnect", "code": 1001})
    assert await channel.receive() == []
    with pytest.raises(trio.BrokenResourceError):
        await channel.send([FRAME])
    await channel.aclose()
    assert not raised


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"type": "websocket.disconnect"}, "close code 1006"),
        ({"type": "websocket.disconnect", "code": 1011, "reason": "ouch"}, "failed .*1011.*ouch"),
        ({"type": "websocket.receive", "bytes": b"x"}, "binary"),
    ],
)
async def test_abnormal_closes_are_lost_connections(opened, message, complaint, autojump_clock):
    server, channel, _raised = await opened()
    server.tell.send_nowait(message)
    with pytest.raises(OutcomeUnknown, match=complaint):
        await channel.receive()
    await channel.aclose()


async def test_an_error_of_receive_loses_the_connection(opened, autojump_clock):
    server, channel, _raised = await opened()
    server.tell.close()
    with pytest.raises(ConnectionLost, match="1006"):
        await channel.receive()


async def test_an_error_of_send_loses_the_connection(opened, autojump_clock):
    server, channel, _raised = await opened()
    server.host_check = None
    with pytest.raises(trio.BrokenResourceError):
        await channel.send([FRAME])


async def test_a_cancelled_send_completes_one_message_and_drops_the_rest(opened, autojump_clock):
    server, channel, _raised = await opened(is_shielded=True)
    server.host_check = trio.Event()
    with trio.move_on_after(1):
        await channel.send([b"%d" % number for number in range(10)])
    server.host_check.set()
    await channel.send([b"end"])
    texts = [each["text"] for each in server.sent[1:]]
    assert texts == ["0", "end"]


async def test_a_write_that_cannot_be_cancelled_breaks_the_connection_off(opened, autojump_clock):
    server, channel, raised = await opened(is_shielded=True)
    server.host_check = trio.Event()
    with trio.move_on_after(1):
        await channel.send([FRAME])
    await channel.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert len(raised) == 1
    server.host_check.set()


async def test_a_silent_peer_is_left_to_the_asgi_server(opened, autojump_clock):
    server, channel, _raised = await opened()
    await trio.sleep(10 * (LIMITS.websocket.ping_interval_seconds + LIMITS.websocket.pong_seconds))
    await channel.send([FRAME])
    assert server.kinds == ["accept", "send"]
    await channel.aclose()


async def test_messages_are_sent_without_waiting_while_the_queue_is_empty(opened, autojump_clock):
    server, channel, _raised = await opened()
    assert channel.send_nowait([FRAME, FRAME]) == 2
    assert channel.send_nowait([FRAME]) == 0
    await channel.send([FRAME])
    assert [each.get("text") for each in server.sent[1:]] == [FRAME.decode()] * 3
    chunk = b"x" * LIMITS.messages.chunk_bytes
    assert channel.send_nowait([chunk, FRAME]) == 1
    assert not channel.is_unfinished
    server.tell.send_nowait({"type": "websocket.disconnect"})
    with pytest.raises(OutcomeUnknown):
        await channel.receive()
    with pytest.raises(OutcomeUnknown):
        channel.send_nowait([FRAME])
    await channel.aclose()


async def test_sending_to_a_disconnected_client_fails_at_once(opened, autojump_clock):
    server, channel, _raised = await opened()
    server.tell.send_nowait({"type": "websocket.disconnect"})
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(trio.BrokenResourceError):
        channel.send_nowait([FRAME])
    await channel.aclose()


async def test_a_client_that_reads_nothing_is_lost_without_a_pending_send(opened, autojump_clock):
    server, channel, _raised = await opened()
    server.host_check = trio.Event()
    assert channel.send_nowait([FRAME]) == 1
    started = trio.current_time()
    with pytest.raises(OutcomeUnknown, match="did not respond"):
        await channel.receive()
    assert LIMITS.messages.write_stall_seconds <= trio.current_time() - started <= 100
    await channel.aclose()


async def test_a_close_ends_a_send_that_waits(opened, autojump_clock):
    server, channel, _raised = await opened()
    server.host_check = trio.Event()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def send():
            with pytest.raises(trio.ClosedResourceError):
                await channel.send([FRAME])

        await trio.testing.wait_all_tasks_blocked()
        await channel.aclose()


async def test_a_peer_that_does_not_answer_the_close_is_not_waited_for(opened, autojump_clock):
    server, channel, raised = await opened()
    started = trio.current_time()
    await channel.aclose()
    assert trio.current_time() - started == pytest.approx(LIMITS.shutdown.close_seconds)
    assert server.sent[-1] == {"type": "websocket.close", "code": 1000, "reason": ""}
    assert not raised


async def refusing(upgrade):
    await upgrade.reject(Rejection(status=403, text="no", headers=[("X-Why", "so")]))


async def test_a_rejection_is_an_answer_where_the_server_can_give_one():
    server = Scripted()
    await server.run(refusing, extensions={"websocket.http.response": {}})
    assert server.kinds == ["http.response.start", "http.response.body"]
    assert server.sent[0]["status"] == 403
    assert (b"x-why", b"so") in server.sent[0]["headers"]
    server = Scripted()
    await server.run(refusing)
    assert server.kinds == ["close"]


async def test_a_disconnected_client_is_neither_accepted_nor_rejected(caplog):
    server = Scripted()
    server.told.receive_nowait()
    server.tell.send_nowait({"type": "websocket.disconnect"})
    await server.run(refusing)
    assert server.sent == []
    server = Scripted(host_check=trio.Event())
    server.host_check = None
    await server.run(refusing)
    assert not caplog.records


async def test_what_the_application_raises_is_logged(caplog):
    async def fail(_upgrade):
        raise ValueError("ouch")

    await Scripted().run(fail)
    assert "a WebSocket connection failed" in caplog.text


async def test_an_application_without_websockets_rejects_them():
    server = Scripted()
    await AsgiHost(nobody)(scope_of(), server.told.receive, server.send)
    assert server.kinds == ["close"]


async def test_the_handshake_request_is_one_of_http(autojump_clock):
    heads = []

    async def look(upgrade):
        heads.append(upgrade.head)

    await Scripted().run(look, scheme="wss", path="/app/ws", raw_path=b"/app/ws", root_path="/app")
    assert (heads[0].method, heads[0].scheme, heads[0].path) == ("GET", "https", "/ws")


# Hypercorn


@pytest.fixture
def on_hypercorn(nursery):
    """The URL of a host, and the channels of those who come."""

    async def on_hypercorn(**options):
        limits = attrs.evolve(LIMITS, **options)
        arrived, arrivals = trio.open_memory_channel(10)
        app = AsgiHost(nobody, upgraded=handing_over(arrived, limits), limits=limits)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(functools.partial(serve_hypercorn, app, listeners, limits=limits))
        return f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}/ws", arrivals

    return on_hypercorn


@pytest.fixture
def raw(on_hypercorn):
    """A raw peer, and the server's channel with it."""

    async def raw(**options):
        url, arrivals = await on_hypercorn(**options)
        peer = await raw_peer(url)
        await peer.shake_hands()
        return peer, await arrivals.receive()

    return raw


@pytest.mark.parametrize("code", [1000, 1011])
async def test_a_peer_that_closes_is_reported_without_its_close_code(raw, code):
    """hypercorn reports every close as an abnormal one (1006)."""
    peer, channel = await raw()
    async with peer.stream:
        await peer.frame(0x8, code.to_bytes(2, "big") + b"bye")
        assert await peer.closed() == code
        with pytest.raises(OutcomeUnknown, match="1006"):
            await channel.receive()
        await channel.aclose()


async def test_a_peer_that_is_cut_off_is_a_loss(raw):
    peer, channel = await raw()
    await peer.stream.aclose()
    with pytest.raises(OutcomeUnknown, match="1006"):
        await channel.receive()
    await channel.aclose()


async def test_a_message_over_the_limit_closes_the_connection(raw):
    peer, channel = await raw()
    async with peer.stream:
        await peer.frame(0x1, b"x" * 1001)
        assert await peer.closed() == 1009
        await channel.aclose()


async def test_a_binary_message_closes_the_connection(raw):
    peer, channel = await raw()
    async with peer.stream:
        await peer.frame(0x2, b"x" * 500)
        with pytest.raises(OutcomeUnknown, match="binary"):
            await channel.receive()
        await channel.aclose()
        assert await peer.closed() == 1003


@pytest.mark.real_time
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="needs TCP_USER_TIMEOUT")
async def test_a_peer_that_reads_nothing_is_cut_off(raw):
    peer, channel = await raw(messages=MessageLimits(bytes_max=2**26, write_stall_seconds=0.3))
    async with peer.stream:
        with trio.fail_after(SECONDS):
            with contextlib.suppress(trio.BrokenResourceError):
                await channel.send([b"x" * 2**25])
            with pytest.raises(OutcomeUnknown):
                await channel.receive()
        await channel.aclose()


@pytest.mark.real_time
async def test_a_peer_that_answers_pings_is_kept(raw):
    peer, channel = await raw(websocket=WebSocketLimits(ping_interval_seconds=0.05))
    async with peer.stream:
        for _ in range(5):
            event = await peer.event()
            assert isinstance(event, events.Ping)
            await peer.stream.send_all(peer.protocol.send(event.response()))
        await peer.frame(0x1, FRAME)
        assert await channel.receive() == [FRAME]
        await channel.aclose()


# HTTP/2


@contextlib.asynccontextmanager
async def over_http2(on_hypercorn):
    """A client, the number of its stream, the frames on that, and the channel at the other end."""
    url, arrivals = await on_hypercorn()
    client = await Http2Client.over((await raw_peer(url)).stream)
    async with client.stream:
        await client.event(None, h2.events.RemoteSettingsChanged)
        asked = [(":protocol", "websocket"), ("sec-websocket-version", "13")]
        asked.append(("sec-websocket-protocol", "mcp"))
        number = await client.ask("CONNECT", "/ws", asked, is_whole=False)
        answer = dict((await client.event(number, h2.events.ResponseReceived)).headers)
        assert (answer[b":status"], answer[b"sec-websocket-protocol"]) == (b"200", b"mcp")
        framed = wsproto.connection.Connection(wsproto.ConnectionType.CLIENT)
        yield client, number, framed, await arrivals.receive()


async def test_a_websocket_over_http2_is_one_as_well(on_hypercorn):
    async with over_http2(on_hypercorn) as (client, number, framed, channel):
        client.http.send_data(number, framed.send(events.TextMessage(data=FRAME.decode())))
        await client.flush()
        assert await channel.receive() == [FRAME]
        await channel.send([FRAME])
        heard = []
        while not any(isinstance(each, events.TextMessage) for each in heard):  # pings come, too
            framed.receive_data((await client.event(number, h2.events.DataReceived)).data)
            heard += framed.events()
        assert heard[-1].data == FRAME.decode()
        client.http.send_data(number, framed.send(events.CloseConnection(code=1000)))
        await client.flush()
        with pytest.raises(OutcomeUnknown, match="1006"):
            await channel.receive()
        await channel.aclose()
