"""The WebSocket endpoint of a server."""

import contextlib
import functools
from contextlib import asynccontextmanager

import attrs
import httpx2
import pytest
import trio
import trio.testing
from wsproto import events
from wsproto.extensions import PerMessageDeflate

from mcp_trio import Client, ConnectionLost, Limits, RequestError
from mcp_trio._protocol.http_requests import RejectedError
from mcp_trio._protocol.websocket import CloseCode
from mcp_trio._server.http_app import PendingRequest
from mcp_trio._server.sessions import ServerSessions
from mcp_trio._transports.hypercorn import serve_hypercorn
from mcp_trio._transports.websocket import SocketEnd
from mcp_trio.auth import HttpRequest
from mcp_trio.errors import RecordingError
from mcp_trio.limits import HttpLimits, ShutdownLimits
from mcp_trio.recording import replay
from mcp_trio.transports import open_websocket_channel
from tests.server.http.conftest import harbour
from tests.server.watched import harbour as harbour_websockets
from tests.transports.http.scripted_exchange import ScriptedExchange
from tests.transports.websocket.conftest import raw_peer

FIELDS = {
    "host": "localhost",
    "connection": "keep-alive, Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
}
HELLO = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
    b'"capabilities":{},"clientInfo":{"name":"buoy","version":"1"}}}'
)


@attrs.define(eq=False)
class Socket:
    """A socket whose peer sends a handshake and then nothing."""

    bytes_sent: int = 0
    sent: list = attrs.field(factory=list)
    closed: list = attrs.field(factory=list)
    unread: list = attrs.field(factory=lambda: [HELLO])
    ending = SocketEnd(CloseCode.NORMAL_CLOSURE)

    async def send_texts(self, texts):
        await trio.lowlevel.checkpoint()
        self.sent += texts

    async def receive(self):
        await trio.lowlevel.checkpoint()
        if not self.unread:
            await trio.sleep_forever()
        frame = self.unread.pop()
        if frame is None:
            return []
        return [frame]

    async def ping(self):
        await trio.lowlevel.checkpoint()

    def is_silent_since(self, _moment):
        return False

    async def close(self, code, _reason):
        await trio.lowlevel.checkpoint()
        self.closed.append(code)


@attrs.define(eq=False)
class Scripted:
    """A request to become a WebSocket."""

    request: HttpRequest = attrs.field(factory=lambda: HttpRequest("GET", "/ws", "", FIELDS))
    socket: Socket = attrs.field(factory=Socket)
    rejections: list = attrs.field(factory=list)
    before: list = attrs.field(factory=list)

    async def reject(self, rejection):
        await trio.lowlevel.checkpoint()
        self.rejections.append(rejection)

    @asynccontextmanager
    async def opened(self, _subprotocol):
        for call in self.before:
            call()
        yield self.socket


async def test_a_closing_server_rejects_upgrades(open_site, autojump_clock):
    site = await open_site(harbour())
    site.runtime.close()
    upgrade = Scripted()
    await site.app.serve_upgrade(upgrade)
    assert [(each.status, each.text) for each in upgrade.rejections] == [
        (503, "the server is closing")
    ]


async def test_a_server_that_closes_during_an_upgrade_closes_with_going_away(
    open_site, autojump_clock
):
    site = await open_site(harbour())
    upgrade = Scripted(before=[site.runtime.close])
    await site.app.serve_upgrade(upgrade)
    assert upgrade.socket.closed == [CloseCode.GOING_AWAY]
    assert upgrade.socket.sent == []


@pytest.mark.parametrize("how", ["the runtime closes", "the request is cancelled"])
async def test_a_session_ends_when_the_server_ends(open_site, nursery, how, autojump_clock):
    site = await open_site(harbour())
    upgrade, scope = Scripted(), trio.CancelScope()

    async def run():
        with scope:
            await site.app.serve_upgrade(upgrade)

    nursery.start_soon(run)
    await trio.testing.wait_all_tasks_blocked()
    assert len(upgrade.socket.sent) == 1
    (site.runtime.close if how == "the runtime closes" else scope.cancel)()
    with trio.fail_after(60):
        while not upgrade.socket.closed:
            await trio.sleep(0.01)
    assert upgrade.socket.closed == [CloseCode.GOING_AWAY]


async def test_a_session_closed_by_its_client_is_no_longer_counted(open_site, autojump_clock):
    site = await open_site(harbour())
    for _ in range(2):
        upgrade = Scripted(socket=Socket(unread=[None, HELLO]))
        await site.app.serve_upgrade(upgrade)
        assert upgrade.socket.closed == [CloseCode.NORMAL_CLOSURE]
        assert site.runtime.sessions._shares.total == 0


@attrs.define(eq=False)
class Outcomes:
    """An observer that keeps the status and the rejection of each request over HTTP."""

    outcomes: list = attrs.field(factory=list)

    def begin(self, _activity):
        return None

    def begin_http(self, _activity):
        return lambda outcome: self.outcomes.append((outcome.status, outcome.rejection))


def leave():
    raise trio.BrokenResourceError


class Leaving(Scripted):
    async def reject(self, _rejection):
        await trio.lowlevel.checkpoint()
        leave()


async def test_a_handshake_whose_client_disconnects_is_observed(open_site, autojump_clock):
    observer = Outcomes()
    site = await open_site(harbour(observers=[observer]))
    with pytest.raises(trio.BrokenResourceError):
        await site.app.serve_upgrade(Scripted(before=[leave]))
    site.runtime.close()
    with pytest.raises(trio.BrokenResourceError):
        await site.app.serve_upgrade(Leaving())
    assert observer.outcomes == [(None, ""), (503, "the server is closing")]


async def test_a_get_without_a_websocket_handshake_is_rejected(open_site):
    site = await open_site(harbour())
    exchange = ScriptedExchange.of("GET", "/ws")
    pending = PendingRequest(exchange, HttpRequest("GET", "/ws", "", FIELDS), [], 1000)
    with pytest.raises(RejectedError, match="not a WebSocket handshake"):
        await site.app.websocket.respond(pending)


async def test_without_the_websocket_endpoint_hosts_get_no_upgrade_callback(open_site):
    site = await open_site(harbour(), has_websocket=False)
    assert site.app.serve_upgrade is None


# WebSocket at `/ws` of a served application, on both hosts and mounted.


HOSTS = ["native", "hypercorn", "mounted"]
# hypercorn waits that long at its stop for a client that has closed its connection.
QUICK_STOP = Limits(shutdown=ShutdownLimits(close_seconds=0.2))
LEGACY, STATELESS = "2025-11-25", "2026-07-28"
SECONDS = 10.0


async def serve_mounted(server, *, task_status, **options):
    app = server.asgi(**options)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    try:
        async with trio.open_nursery() as nursery:
            serve = functools.partial(serve_hypercorn, app, listeners, limits=QUICK_STOP)
            await nursery.start(serve)
            task_status.started(f"http://127.0.0.1:{port}/mcp")
    finally:
        with trio.CancelScope(shield=True):
            await app.aclose()


@contextlib.asynccontextmanager
async def served(server, host, **options):
    """The URL of the WebSocket, and the scope of the serving."""
    if host == "mounted":
        serve = functools.partial(serve_mounted, server, **options)
    else:
        serve = functools.partial(server.serve_http, port=0, server=host, **options)
    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve)
        yield url.replace("http", "ws").replace("/mcp", "/ws"), nursery.cancel_scope
        nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def peer_of(url, subprotocols=("mcp",), extensions=()):
    """A raw peer that has opened a WebSocket, and what the server has answered."""
    peer = await raw_peer(url)
    host = url.removeprefix("ws://").removesuffix("/ws")
    offered = {"subprotocols": list(subprotocols), "extensions": list(extensions)}
    asked = events.Request(host=host, target="/ws", **offered)
    async with peer.stream:
        await peer.stream.send_all(peer.protocol.send(asked))
        yield peer, await peer.event()


def text(result):
    return result.content[0].text


@pytest.mark.parametrize("host", HOSTS)
async def test_one_port_serves_stateless_and_legacy_clients_over_both_transports(host):
    async with served(harbour_websockets(), host) as (url, _scope):
        for protocol_version in (LEGACY, STATELESS):
            for where in (url, url.replace("ws:", "http:").replace("/ws", "/mcp")):
                async with Client(where, protocol_versions=[protocol_version]) as client:
                    assert client.protocol_version == protocol_version
                    assert text(await client.call_tool("tide")) == "high, said a gull"


@pytest.mark.parametrize("host", HOSTS)
async def test_each_session_has_its_own_recording_that_replays(host, tmp_path):
    server = harbour_websockets(protocol_versions=[LEGACY])
    async with served(server, host, record=tmp_path) as (url, _scope):
        for _ in range(2):
            async with Client(url) as client:
                await client.call_tool("tide")
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2
    for file in files:
        assert '"transport":"websocket"' in file.read_text().splitlines()[0]
        # hypercorn does not pass on that the client has closed with code 1000.
        assert ('"eof"' if host == "native" else '"lost"') in file.read_text()
        report = await trio.to_thread.run_sync(
            replay, file, harbour_websockets(protocol_versions=[LEGACY])
        )
        assert report.is_complete, file


@pytest.mark.parametrize("host", HOSTS)
async def test_a_page_of_another_origin_is_rejected_before_the_upgrade(host):
    async with served(harbour_websockets(), host) as (url, _scope):
        for origin in ("https://evil.example", "null"):
            with pytest.raises(ConnectionLost, match=r"HTTP 403.*origins="):
                await open_websocket_channel(url, headers={"Origin": origin})
        port = url.removesuffix("/ws").rpartition(":")[2]
        peer = await raw_peer(url)
        async with peer.stream:
            await peer.stream.send_all(
                b"GET /ws HTTP/1.1\r\nHost: evil.example:%s\r\nUpgrade: websocket\r\n"
                b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n" % port.encode()
            )
            assert b" 403 " in await peer.stream.receive_some()
    async with served(harbour_websockets(), host, origins=["https://app.example"]) as (url, _scope):
        channel = await open_websocket_channel(url, headers={"Origin": "https://app.example"})
        await channel.aclose()


@pytest.mark.requirement("SEC-08", "HTTP-05")
@pytest.mark.parametrize("host", HOSTS)
async def test_the_token_is_accepted_over_both_transports(host):
    async with served(harbour_websockets(), host, token="sesame") as (url, _scope):
        async with Client(await open_websocket_channel(url, token="sesame")) as client:
            assert text(await client.call_tool("who")) == "bearer"
        for wrong in ("sesam", None):
            with pytest.raises(ConnectionLost, match=r"HTTP 401.*token="):
                await open_websocket_channel(url, token=wrong)
        endpoint = url.replace("ws:", "http:").replace("/ws", "/mcp")
        headers = {"Authorization": "Bearer sesame"}
        async with Client(endpoint, headers=headers) as client:
            assert text(await client.call_tool("who")) == "bearer"
        async with httpx2.AsyncClient() as http:
            assert (await http.get(endpoint)).status_code == 401


@pytest.mark.parametrize("host", HOSTS)
async def test_a_browser_sends_its_token_as_a_subprotocol(host):
    async with (
        served(harbour_websockets(), host, token="sesame") as (url, _scope),
        peer_of(url, ["mcp.token.c2VzYW1l", "mcp"]) as (_peer, answer),
    ):
        assert answer.subprotocol == "mcp"


async def test_the_native_listener_does_not_negotiate_compression():
    async with (
        served(harbour_websockets(), "native") as (url, _),
        peer_of(url, extensions=[PerMessageDeflate()]) as (_, answer),
    ):
        assert isinstance(answer, events.AcceptConnection)
        assert answer.extensions == []


@pytest.mark.parametrize("host", HOSTS)
async def test_other_requests_and_paths_are_rejected_with_a_hint(host):
    async with served(harbour_websockets(), host) as (url, _scope), httpx2.AsyncClient() as http:
        site = url.replace("ws:", "http:")
        answer = await http.get(site)
        assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")
        assert (await http.post(site)).status_code == 405
        with pytest.raises(ConnectionLost, match=r"HTTP 404.*endpoint is /ws"):
            await open_websocket_channel(url.replace("/ws", "/mcp"))


@pytest.mark.parametrize("host", HOSTS)
async def test_the_websocket_path_can_be_changed_or_disabled(host):
    async with served(harbour_websockets(), host, ws_path="/socket") as (url, _scope):
        channel = await open_websocket_channel(url.replace("/ws", "/socket"))
        await channel.aclose()
    async with served(harbour_websockets(), host, has_websocket=False) as (url, _scope):
        with pytest.raises(ConnectionLost, match=r"HTTP 40[34]"):
            await open_websocket_channel(url)
        async with httpx2.AsyncClient() as http:
            assert (await http.get(url.replace("ws:", "http:"))).status_code == 404


@pytest.mark.parametrize("host", HOSTS)
async def test_websocket_sessions_count_among_all_sessions(host):
    limits = Limits(http=HttpLimits(sessions_max=1), shutdown=ShutdownLimits(close_seconds=0.3))
    async with served(harbour_websockets(limits=limits, protocol_versions=[LEGACY]), host) as (
        url,
        _scope,
    ):
        endpoint = url.replace("ws:", "http:").replace("/ws", "/mcp")
        async with Client(url) as client:
            with pytest.raises(ConnectionLost, match=r"HTTP 503.*limits\.http\.sessions_max"):
                await open_websocket_channel(url)
            with pytest.raises(RequestError, match=r"limits\.http\.sessions_max"):
                async with Client(endpoint):
                    pass
            assert text(await client.call_tool("who")) == "None"
        with trio.fail_after(SECONDS):
            async with Client(endpoint) as client:
                assert text(await client.call_tool("who")) == "None"


@pytest.mark.parametrize("host", HOSTS)
async def test_a_stopping_server_closes_its_websockets_with_a_reason(host):
    codes = []
    async with served(harbour_websockets(), host) as (url, scope):
        with trio.CancelScope(shield=True), trio.fail_after(SECONDS):
            async with peer_of(url) as (peer, _answer):
                await peer.frame(0x1, b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
                await peer.event()
                scope.cancel()
                codes.append(await peer.closed())
    assert codes == [1001]


@pytest.mark.parametrize("host", HOSTS)
async def test_a_session_that_cannot_start_closes_its_connection(host, monkeypatch, caplog):
    begin = ServerSessions.begin_session

    def begin_session(server, channel, *args, **options):
        if channel.transport == "websocket":
            raise RecordingError("there is no room")
        return begin(server, channel, *args, **options)

    monkeypatch.setattr(ServerSessions, "begin_session", begin_session)
    async with served(harbour_websockets(), host) as (url, _scope):
        with pytest.raises(ConnectionLost):
            async with Client(url):
                pass
    assert "a WebSocket connection failed" in caplog.text


async def test_token_and_auth_together_are_rejected():
    async def verify(_head):
        return "anybody"

    with pytest.raises(ValueError, match=r"either token= or Server\(auth="):
        await harbour_websockets(auth=verify).serve_http(port=0, token="x")
