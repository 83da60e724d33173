"""Rules of MCP over WebSocket: handshake, authentication, close codes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._protocol.http_headers import HttpRequest
from mcp_trio._protocol.websocket import (
    CloseCode,
    checked_token,
    chosen_subprotocol,
    error_of_own_close,
    error_of_peer_close,
    has_token,
    offered_subprotocols,
    token_subprotocol,
    upgrade_rejection,
    with_token_header,
)
from mcp_trio.errors import OutcomeUnknown

TOKENS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1)
HANDSHAKE = {
    "upgrade": "websocket",
    "connection": "keep-alive, Upgrade",
    "sec-websocket-version": "13",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


def head(method="GET", path="/ws", repeated=(), **headers):
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpRequest(method, path, "", fields, frozenset(repeated))


def offering(*subprotocols, **headers):
    return head(sec_websocket_protocol=", ".join(subprotocols), **headers)


# The upgrade


def test_a_handshake_is_not_rejected():
    assert upgrade_rejection(HttpRequest("GET", "/ws", "a=b", HANDSHAKE), path="/ws") is None
    assert upgrade_rejection(HttpRequest("GET", "/ws/", "", HANDSHAKE), path="/ws") is None


@pytest.mark.parametrize(
    ("change", "status", "complaint"),
    [
        ({"path": "/"}, 404, "the WebSocket endpoint is /ws"),
        ({"method": "POST"}, 405, "POST is not allowed here"),
        ({"upgrade": "h2c"}, 426, "accepts only WebSocket"),
        ({"upgrade": None}, 426, "accepts only WebSocket"),
        ({"sec-websocket-version": "8"}, 426, "version of WebSocket must be 13"),
        ({"connection": "keep-alive"}, 400, "handshake is invalid"),
        ({"sec-websocket-key": "AAAA"}, 400, "handshake is invalid"),
        ({"sec-websocket-key": "ä"}, 400, "handshake is invalid"),
        ({"sec-websocket-key": None}, 400, "handshake is invalid"),
    ],
)
def test_an_invalid_websocket_handshake_is_rejected_with_the_reason(change, status, complaint):
    method, path = change.pop("method", "GET"), change.pop("path", "/ws")
    headers = {name: it for name, it in (HANDSHAKE | change).items() if it is not None}
    rejection = upgrade_rejection(HttpRequest(method, path, "", headers), path="/ws")
    assert rejection.status == status
    assert complaint in rejection.text
    assert (("Sec-WebSocket-Version", "13") in rejection.headers) == (status == 426)


# Subprotocols and tokens


def test_an_offered_subprotocol_that_is_no_token_can_be_chosen():
    assert offered_subprotocols(None) == ["mcp"]
    assert chosen_subprotocol(offering("a", "mcp")) == "mcp"
    assert chosen_subprotocol(offering("a", "mcp.token.eA")) is None
    assert chosen_subprotocol(head()) is None


@given(TOKENS)
def test_a_token_is_accepted_as_subprotocol_and_in_a_header(token):
    offered = offering(*offered_subprotocols(token))
    found = with_token_header(offered)
    assert has_token(found, token)
    assert found.header("sec-websocket-protocol") == "mcp"
    assert has_token(head(authorization=f"bearer {token}"), token)
    assert not has_token(head(authorization=f"Bearer {token}x"), token)
    assert not has_token(head(authorization=token), token)


def test_a_request_without_a_token_is_unchanged():
    offered = offering("mcp")
    assert with_token_header(offered) is offered
    assert not has_token(offered, "x")


def test_two_tokens_are_ignored():
    offered = offering("mcp", token_subprotocol("a"), token_subprotocol("b"))
    assert with_token_header(offered).header("authorization") is None
    twice = head(authorization="Bearer a", repeated=["authorization"])
    assert not has_token(twice, "a")


def test_a_token_in_the_header_takes_precedence():
    both = offering("mcp", token_subprotocol("a"), authorization="Bearer b")
    assert has_token(with_token_header(both), "b")


@pytest.mark.parametrize("text", ["mcp.token.", "mcp.token.x", "mcp.token.===", "mcp.token._w"])
def test_a_wrong_token_is_rejected(text):
    assert not has_token(with_token_header(offering("mcp", text)), "x")


@pytest.mark.parametrize("token", ["", "a b", "ä", "a\n"])
def test_a_token_that_could_not_be_sent_is_rejected(token):
    with pytest.raises(ValueError, match="visible ASCII"):
        checked_token(token)


def test_a_token_is_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda *both: bool(compared.append(both)))
    assert not has_token(head(authorization="Bearer abc"), "xyz")
    assert compared == [(b"abc", b"xyz")]


# Close codes


@pytest.mark.parametrize("code", [1000, 1001, 1005])
def test_a_peer_that_is_done_leaves_nothing_open(code):
    assert error_of_peer_close("it", code, "bye") is None


@pytest.mark.parametrize("code", [1002, 1003, 1006, 1007, 1008, 1009, 1011, 1012, 1013, 3000, 4999])
def test_any_other_close_leaves_the_outcome_unknown(code):
    loss = error_of_peer_close("it", code, "x" * 1000)
    assert isinstance(loss, OutcomeUnknown)
    assert loss.reason.startswith("it ")
    assert f"(close code {code}): 'xxx" in loss.reason
    assert len(loss.reason) < 250


def test_the_error_of_our_close_names_the_violation_and_the_setting():
    assert (
        "limits.websocket.pong_seconds" in error_of_own_close("it", CloseCode.INTERNAL_ERROR).reason
    )
    assert error_of_own_close("it", CloseCode.PROTOCOL_ERROR, "why").reason.endswith(": why")
