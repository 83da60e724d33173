"""The WebSocket endpoint at the end of a server, with a host that is scripted."""

from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from mcp_trio._protocol.http_headers import HttpRequest
from mcp_trio._protocol.websocket import CloseCode
from mcp_trio._server.http_app import Asked, RejectedError
from mcp_trio._transports.websocket import SocketEnded
from tests.server.http.conftest import harbour
from tests.transports.http.scripted_exchange import ScriptedExchange

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
    """A socket whose peer says hello and then nothing."""

    bytes_sent: int = 0
    sent: list = attrs.field(factory=list)
    closed: list = attrs.field(factory=list)
    unheard: list = attrs.field(factory=lambda: [HELLO])

    async def send_texts(self, texts):
        await trio.lowlevel.checkpoint()
        self.sent += texts

    async def receive(self):
        await trio.lowlevel.checkpoint()
        if not self.unheard:
            await trio.sleep_forever()
        frame = self.unheard.pop()
        if frame is None:
            raise SocketEnded(CloseCode.NORMAL_CLOSURE)
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

    head: HttpRequest = attrs.field(factory=lambda: HttpRequest("GET", "/ws", "", FIELDS))
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


async def test_a_server_that_closes_takes_no_more(open_site, autojump_clock):
    site = await open_site(harbour())
    site.runtime.close()
    upgrade = Scripted()
    await site.app.upgraded(upgrade)
    assert [(each.status, each.text) for each in upgrade.rejections] == [
        (503, "the server is closing")
    ]


async def test_a_server_that_closes_meanwhile_says_so(open_site, autojump_clock):
    site = await open_site(harbour())
    upgrade = Scripted(before=[site.runtime.close])
    await site.app.upgraded(upgrade)
    assert upgrade.socket.closed == [CloseCode.GOING_AWAY]
    assert upgrade.socket.sent == []


@pytest.mark.parametrize("how", ["the runtime closes", "the request is cancelled"])
async def test_a_session_ends_with_the_servers_end(open_site, nursery, how, autojump_clock):
    site = await open_site(harbour())
    upgrade, scope = Scripted(), trio.CancelScope()

    async def run():
        with scope:
            await site.app.upgraded(upgrade)

    nursery.start_soon(run)
    await trio.testing.wait_all_tasks_blocked()
    assert len(upgrade.socket.sent) == 1
    (site.runtime.close if how == "the runtime closes" else scope.cancel)()
    with trio.fail_after(60):
        while not upgrade.socket.closed:
            await trio.sleep(0.01)
    assert upgrade.socket.closed == [CloseCode.GOING_AWAY]


async def test_a_session_that_its_client_ends_gives_its_place_back(open_site, autojump_clock):
    site = await open_site(harbour())
    for _ in range(2):
        upgrade = Scripted(socket=Socket(unheard=[None, HELLO]))
        await site.app.upgraded(upgrade)
        assert upgrade.socket.closed == [CloseCode.NORMAL_CLOSURE]
        assert site.runtime.sessions._connected == 0


async def test_an_upgrade_that_its_host_has_not_seen_is_rejected(open_site):
    site = await open_site(harbour())
    exchange = ScriptedExchange.of("GET", "/ws")
    asked = Asked(exchange, HttpRequest("GET", "/ws", "", FIELDS), [], 1000)
    with pytest.raises(RejectedError, match="not a WebSocket handshake"):
        await site.app.websocket.respond(asked)


async def test_without_an_endpoint_there_is_nothing_to_give_a_host(open_site):
    site = await open_site(harbour(), has_websocket=False)
    assert site.app.upgraded is None
