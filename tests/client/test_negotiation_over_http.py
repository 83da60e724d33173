"""Negotiation of the protocol version over HTTP."""

import logging

import pytest

from mcp_trio import Client, RequestError
from tests.transports.http.scripted_server import Legacy, Modern, error, result, serve

UNSUPPORTED = -32022


def make_picky(rejections):
    """A stateless server that rejects its first requests with errors of stateless versions."""
    asked = []

    async def discover(seen):
        asked.append(seen.message["method"])
        if len(asked) <= rejections:
            data = {"supported": ["2026-07-28"], "requested": "2026-07-28"}
            return error(seen, UNSUPPORTED, status=400, data=data)
        return await Modern()(seen)

    async def initialize(seen):
        asked.append("initialize")
        return error(seen, UNSUPPORTED, status=400, data={"supported": ["2026-07-28"]})

    return Modern(answers={"server/discover": discover, "initialize": initialize}), asked


@pytest.mark.requirement("VER-20", "VER-19")
async def test_a_rejection_that_names_our_protocol_version_is_asked_again(nursery):
    server, asked = make_picky(rejections=1)
    url = await nursery.start(serve, server)
    async with Client(url, protocol_versions=("2026-07-28", "2025-11-25")) as client:
        assert client.protocol_version == "2026-07-28"
    assert asked == ["server/discover"] * 2
    nursery.cancel_scope.cancel()


@pytest.mark.requirement("VER-20")
async def test_an_error_of_stateless_servers_leads_to_no_handshake(nursery):
    server, asked = make_picky(rejections=9)
    url = await nursery.start(serve, server)
    with pytest.raises(RequestError, match=str(UNSUPPORTED)):
        async with Client(url, protocol_versions=("2026-07-28", "2025-11-25")):
            pytest.fail("nothing was agreed on")
    assert "initialize" not in asked
    nursery.cancel_scope.cancel()


@pytest.mark.requirement("HTTP-47")
async def test_a_session_id_is_neither_shown_nor_logged(nursery, caplog):
    async def tools(seen):
        return result(seen, tools=[])

    server = Legacy(session="s3cret-session", answers={"tools/list": tools})
    url = await nursery.start(serve, server)
    with caplog.at_level(logging.DEBUG, logger="mcp_trio"):
        async with Client(url, protocol_versions=("2025-11-25",)) as client:
            await client.list_tools()
            assert "s3cret-session" not in repr(client) + repr(client._session.channel)
    assert "s3cret-session" not in caplog.text
    nursery.cancel_scope.cancel()
