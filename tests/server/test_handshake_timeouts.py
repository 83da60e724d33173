"""Connections whose client sends no first request are closed."""

import contextlib
import json
import math

import attrs
import pytest
import trio

from mcp_trio import Client, Limits
from mcp_trio._protocol.websocket import CloseCode
from mcp_trio._server.sockets import HandshakeTimeouts
from mcp_trio._transports.concurrency import LightEvent
from mcp_trio.limits import RequestLimits
from tests.server.watched import watched
from tests.ways import WAYS, opened, sent_away, served

LIMITS = Limits(requests=RequestLimits(first_request_seconds=80))
LEGACY, STATELESS = "2025-11-25", "2026-07-28"


@attrs.define(eq=False)
class SomeSession:
    has_begun: bool = False
    closing: LightEvent = attrs.field(factory=LightEvent)
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
def handshake_timeouts(nursery):
    handshake_timeouts = HandshakeTimeouts(LIMITS)
    nursery.start_soon(handshake_timeouts.see_off)
    return handshake_timeouts


async def test_only_connections_without_a_first_request_are_closed(
    handshake_timeouts, autojump_clock, caplog
):
    silent, busy = SomeSession(), SomeSession()
    for session in (silent, busy):
        handshake_timeouts.welcome(object()).started(session)
    await trio.sleep(75)
    assert not silent.shut_by
    busy.has_begun = True
    await trio.sleep(1000)
    [(cause, at)] = silent.shut_by
    assert (cause, busy.shut_by) == ("lost", [])
    assert 80 <= at <= 90
    assert "asked nothing for 80 s (limits.requests.first_request_seconds)" in caplog.text


async def test_a_websocket_is_closed_with_the_reason(handshake_timeouts, autojump_clock):
    channel, session = SomeWebSocket(), SomeSession()
    handshake_timeouts.welcome(channel).started(session)
    await trio.sleep(100)
    [(text, code)] = channel.failures
    assert "limits.requests.first_request_seconds" in text
    assert code == CloseCode.INTERNAL_ERROR
    assert not session.shut_by  # it hears of it by its channel


async def test_connections_that_have_ended_are_forgotten(handshake_timeouts, autojump_clock):
    ended = SomeSession()
    handshake_timeouts.welcome(object()).started(ended)
    handshake_timeouts.welcome(object())
    ended.closing.set()
    await trio.sleep(1000)
    assert not ended.shut_by
    assert not handshake_timeouts._waiting


@pytest.mark.parametrize("way", WAYS)
async def test_a_silent_connection_is_closed_and_others_continue(way, tmp_path, mock_clock):
    limits = Limits(requests=RequestLimits(first_request_seconds=2))
    server = watched("harbour", limits=limits)
    async with served(server, way, tmp_path) as (url, _scope), contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                Client(await opened(url), protocol_versions=[protocol_version])
            )
            for protocol_version in (LEGACY, STATELESS)
        ]
        silent = await opened(url)
        await silent.send([json.dumps({"id": 1}).encode()])  # which is nothing that counts
        await sent_away(silent, mock_clock, limits.requests.first_request_seconds)
        for client in clients:
            assert len(await client.list_tools()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seconds", [86_400.0, math.inf])
async def test_closed_connections_are_forgotten_before_the_timeout(
    nursery, autojump_clock, seconds
):
    handshake_timeouts = HandshakeTimeouts(
        Limits(requests=RequestLimits(first_request_seconds=seconds))
    )
    nursery.start_soon(handshake_timeouts.see_off)
    session = SomeSession(has_begun=True)
    handshake_timeouts.welcome(object()).started(session)
    session.closing.set()
    await trio.sleep(60)
    assert not handshake_timeouts._waiting
    nursery.cancel_scope.cancel()
