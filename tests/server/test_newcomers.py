"""Connections whose client says nothing that counts."""

import contextlib
import functools
import json

import attrs
import pytest
import trio

from mcp_trio import Client, ConnectionLost, Limits, Server
from mcp_trio._protocol.websocket import CloseCode
from mcp_trio._server.newcomers import Newcomers
from mcp_trio._transports.bell import Milestone
from mcp_trio.transports import open_tcp_channel, open_unix_channel, open_websocket_channel

LIMITS = Limits(first_request_seconds=0.4, close_seconds=0.3)
LEGACY, MODERN = "2025-11-25", "2026-07-28"
SECONDS = 10.0


@attrs.define(eq=False)
class SomeSession:
    has_begun: bool = False
    closing: Milestone = attrs.field(factory=Milestone)
    shut_by: list = attrs.field(factory=list)

    def shut(self, cause):
        self.shut_by.append((cause, trio.current_time()))
        self.closing.set()


@attrs.define(eq=False)
class SomeWebSocket:
    failures: list = attrs.field(factory=list)

    def fail(self, loss, code):
        self.failures.append((str(loss), code))


@pytest.fixture
def newcomers(nursery):
    newcomers = Newcomers(Limits(first_request_seconds=80))
    nursery.start_soon(newcomers.see_off)
    return newcomers


async def test_who_does_not_begin_is_sent_away_once_and_who_does_stays(
    newcomers, autojump_clock, caplog
):
    silent, busy = SomeSession(), SomeSession()
    for session in (silent, busy):
        newcomers.welcome(object()).started(session)
    await trio.sleep(75)
    assert not silent.shut_by
    busy.has_begun = True
    await trio.sleep(1000)
    [(cause, at)] = silent.shut_by
    assert (cause, busy.shut_by) == ("lost", [])
    assert 80 <= at <= 90
    assert "asked nothing for 80 s (first_request_seconds)" in caplog.text


async def test_a_websocket_is_told_why(newcomers, autojump_clock):
    channel, session = SomeWebSocket(), SomeSession()
    newcomers.welcome(channel).started(session)
    await trio.sleep(100)
    [(text, code)] = channel.failures
    assert "first_request_seconds" in text
    assert code == CloseCode.FAILED
    assert not session.shut_by  # it hears of it by its channel


async def test_who_has_ended_or_never_came_to_be_is_forgotten(newcomers, autojump_clock):
    ended = SomeSession()
    newcomers.welcome(object()).started(ended)
    newcomers.welcome(object())
    ended.closing.set()
    await trio.sleep(1000)
    assert not ended.shut_by
    assert not newcomers._waiting


def ways(server, tmp_path):
    return {
        "websocket": (functools.partial(server.serve_websocket, port=0), open_websocket_channel),
        "/ws": (functools.partial(server.serve_http, port=0), open_websocket_channel),
        "unix": (functools.partial(server.serve_unix, tmp_path / "s"), open_unix_channel),
        "tcp": (functools.partial(server.serve_tcp, port=0), open_tcp_channel),
    }


def target(way, url):
    if way == "/ws":
        return [url.replace("http", "ws", 1).replace("/mcp", "/ws")]
    rest = url.partition(":")[2]
    host, _, port = rest.removeprefix("//").rpartition(":")
    return {"unix": [rest], "tcp": [host, int(port) if port.isdigit() else 0]}.get(way, [url])


@pytest.mark.real_time
@pytest.mark.parametrize("way", ["websocket", "/ws", "unix", "tcp"])
async def test_a_silent_client_has_to_go_and_others_stay(way, tmp_path):
    server = Server("harbour", limits=LIMITS)

    @server.tool
    async def tide() -> str:
        return "high"

    serve, connect = ways(server, tmp_path)[way]
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            where = target(way, await nursery.start(serve))
            async with contextlib.AsyncExitStack() as stack:
                clients = [
                    await stack.enter_async_context(
                        Client(await connect(*where), revisions=[revision])
                    )
                    for revision in (LEGACY, MODERN)
                ]
                silent = await connect(*where)
                await silent.send([json.dumps({"id": 1}).encode()])  # which is nothing that counts
                with contextlib.suppress(ConnectionLost):
                    while await silent.receive():
                        pass
                await silent.aclose()
                for client in clients:
                    assert (await client.call_tool("tide")).content[0].text == "high"
            nursery.cancel_scope.cancel()
    assert not list(tmp_path.iterdir())
