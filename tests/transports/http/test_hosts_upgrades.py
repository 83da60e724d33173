"""Requests to upgrade to protocols other than WebSocket, which our own listener ignores.

hypercorn upgrades to HTTP/2 in plain text, which RFC 9113, section 3.1, has made obsolete.
"""

import pytest
import trio

from tests.transports.http.conftest import say_hello

HTTP2_SETTINGS = "AAMAAABkAARAAAAAAAIAAAAA"
WISHES = {
    "HTTP/2 in plain text": [
        ("Connection", "Upgrade, HTTP2-Settings"),
        ("Upgrade", "h2c"),
        ("HTTP2-Settings", HTTP2_SETTINGS),
    ],
    "the same, without its settings": [("Connection", "upgrade"), ("UPGRADE", "H2C")],
    "the same, behind another": [
        ("Connection", "upgrade"),
        ("Upgrade", "TLS/1.0"),
        ("Upgrade", "h2c"),
    ],
    "another protocol": [("Connection", "upgrade"), ("Upgrade", "IRC/6.9")],
}


@pytest.mark.parametrize("headers", WISHES.values(), ids=WISHES)
async def test_an_upgrade_to_another_protocol_is_ignored(opened_by_listener, headers):
    heads = []

    async def respond(exchange):
        heads.append(exchange.head)
        await say_hello(exchange)

    client = await (await opened_by_listener(respond)).connect()
    for target in ("/a?b", "/c"):  # the connection is one of HTTP/1.1 still
        answer = await client.exchange(target=target, headers=headers)
        assert (answer.status, answer.body, answer.informational) == (200, b"hello", [])
    assert [(each.method, each.path, each.query) for each in heads] == [
        ("GET", "/a", "b"),
        ("GET", "/c", ""),
    ]
    assert {each.headers["host"] for each in heads} == {"host.test"}


@pytest.mark.parametrize("headers", WISHES.values(), ids=WISHES)
async def test_a_disconnect_after_an_upgrade_request_is_noticed(opened_by_listener, headers):
    is_asked, is_gone = trio.Event(), trio.Event()

    async def respond(exchange):
        await exchange.body(100)
        is_asked.set()
        await exchange.gone()
        is_gone.set()

    client = await (await opened_by_listener(respond)).connect()
    await client.ask("POST", headers=headers, body=b"{}")
    await is_asked.wait()
    await client.aclose()
    with trio.fail_after(5):
        await is_gone.wait()
