"""Checks of hosts and origins, CORS, and the WebSocket handshake."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._protocol.http_headers import HttpRequest
from mcp_trio._protocol.security import LOOPBACK, HostCheck, host_check_for
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

LOCAL = host_check_for([("127.0.0.1", 8000)])
LOCAL_6 = host_check_for([("::1", 8000)])
BOTH_PORTS = host_check_for([("127.0.0.1", 80), ("::1", 443)])
OTHER_LOOPBACK = host_check_for([("127.0.0.53", 8000)])
MAPPED_LOOPBACK = host_check_for([("::ffff:127.0.0.1", 8000)])
UNKNOWN = host_check_for([])
OPEN = host_check_for([("0.0.0.0", 8000)])
OPEN_6 = host_check_for([("127.0.0.1", 8000), ("::", 8000)])
LAN = host_check_for([("192.0.2.7", 8000)])
SCOPED = host_check_for([("fe80::1%eth0", 8000)], hosts=["tide.example"])
NAMED = host_check_for([("0.0.0.0", 8000)], hosts=["Tide.example", "reed.example:444"])
PROXIED = host_check_for([("127.0.0.1", 8000)], hosts=["tide.example"])
SIX = host_check_for([("::", 8000)], hosts=["2001:DB8::1", "[2001:db8::2]:9000"])
PAGES = host_check_for(
    [("127.0.0.1", 8000)],
    origins=["https://App.example", "http://app.example:81", "http://port.example:80", "tool://x"],
)
ANY_HOST = host_check_for([("127.0.0.1", 8000)], hosts=["*"])
ANY_ORIGIN = host_check_for([("127.0.0.1", 8000)], origins=["*"])


def request(host="localhost:8000", origin=None, method="POST", scheme="http", **more):
    """Return a request with these headers; a tuple is a header that is repeated."""
    fields = {"Host": host, "Origin": origin, **more}
    lines = []
    for name, values in fields.items():
        for value in values if isinstance(values, tuple) else (values,):
            if value is not None:
                lines.append((name.replace("_", "-").encode(), value.encode("latin-1")))
    return HttpRequest.of(method, "/mcp", lines, scheme=scheme)


def passes(host_check, *fields, **more):
    return host_check.rejection(request(*fields, **more)) is None


@pytest.mark.requirement("SEC-10", "TRAP-45")
@pytest.mark.parametrize(
    ("host_check", "host", "is_let_through"),
    [
        (LOCAL, "localhost:8000", True),
        (LOCAL, "127.0.0.1:8000", True),
        (LOCAL, "[::1]:8000", True),
        (LOCAL, "LocalHost:8000", True),
        (LOCAL, None, False),
        (LOCAL, "", False),
        (LOCAL, ("localhost:8000", "localhost:8000"), False),
        (LOCAL, ("localhost:8000", "evil.example"), False),
        (LOCAL, "localhost", False),
        (LOCAL, "localhost:", False),
        (LOCAL, "localhost:80", False),
        (LOCAL, "localhost:8001", False),
        (LOCAL, "localhost:80000", False),
        (LOCAL, "localhost:08000", False),
        (LOCAL, "localhost.:8000", False),
        (LOCAL, "localhost:8000.", False),
        (LOCAL, "localhost:8000:8000", False),
        (LOCAL, "::1:8000", False),
        (LOCAL, "[::1]8000", False),
        (LOCAL, "[::2]:8000", False),
        (LOCAL, "0.0.0.0:8000", False),
        (LOCAL, "127.0.0.2:8000", False),
        (LOCAL, "evil.example", False),
        (LOCAL, "evil.example:8000", False),
        (LOCAL, "localhost.evil.example:8000", False),
        (LOCAL, "evil-localhost:8000", False),
        (LOCAL, "localhost:8000@evil.example", False),
        (LOCAL, "evil.example@localhost:8000", False),
        (LOCAL, "localhost:8000/evil", False),
        (LOCAL, "localhost:8000, evil.example", False),
        (LOCAL, "l\xf6calhost:8000", False),
        (LOCAL_6, "[::1]:8000", True),
        (LOCAL_6, "localhost:8000", True),
        (BOTH_PORTS, "localhost", True),
        (BOTH_PORTS, "localhost:80", True),
        (BOTH_PORTS, "[::1]:443", True),
        (BOTH_PORTS, "localhost:8000", False),
        (OTHER_LOOPBACK, "127.0.0.53:8000", True),
        (OTHER_LOOPBACK, "localhost:8000", True),
        (OTHER_LOOPBACK, "evil.example:8000", False),
        (MAPPED_LOOPBACK, "localhost:8000", True),
        (MAPPED_LOOPBACK, "evil.example:8000", False),
        (UNKNOWN, "localhost", True),
        (UNKNOWN, "127.0.0.1:5000", True),
        (UNKNOWN, "[::1]:5000", True),
        (UNKNOWN, "evil.example", False),
        (OPEN, "any.example", True),
        (OPEN, "ANY.example.:99", True),
        (OPEN, "[2001:db8::1]:8000", True),
        (OPEN, None, False),
        (OPEN, "", False),
        (OPEN, ("any.example", "any.example"), False),
        (OPEN, "any.example/", False),
        (OPEN_6, "any.example", True),
        (LAN, "any.example", True),
        (SCOPED, "tide.example", True),
        (SCOPED, "[fe80::1%eth0]:8000", False),
        (NAMED, "tide.example", True),
        (NAMED, "TIDE.example:1234", True),
        (NAMED, "reed.example:444", True),
        (NAMED, "reed.example:443", False),
        (NAMED, "reed.example", False),
        (NAMED, "localhost:8000", True),
        (NAMED, "tide.example.", False),
        (NAMED, "tide.example.evil", False),
        (NAMED, "sub.tide.example", False),
        (NAMED, "evil.example", False),
        (PROXIED, "tide.example", True),
        (PROXIED, "localhost:8000", True),
        (PROXIED, "evil.example", False),
        (SIX, "[2001:db8::1]:5", True),
        (SIX, "[2001:DB8::2]:9000", True),
        (SIX, "[2001:db8::2]", False),
        (ANY_HOST, "evil.example", True),
        (ANY_HOST, None, False),
        (ANY_ORIGIN, "evil.example", False),
    ],
)
def test_a_request_has_to_name_a_host_of_this_server(host_check, host, is_let_through):
    assert passes(host_check, host) is is_let_through


@pytest.mark.parametrize(
    ("scheme", "port"), [("http", 80), ("ws", 80), ("https", 443), ("wss", 443)]
)
def test_a_host_without_a_port_has_that_of_its_scheme(scheme, port):
    host_check = host_check_for([("127.0.0.1", port)])
    assert passes(host_check, "localhost", scheme=scheme)
    assert not passes(host_check_for([("127.0.0.1", port + 1)]), "localhost", scheme=scheme)


@pytest.mark.requirement(
    "HTTP-02", "HTTP-03", "MHTTP-05", "MHTTP-06", "SSE-05", "TRAP-44", "TRAP-45"
)
@pytest.mark.parametrize(
    ("host_check", "host", "origin", "is_let_through"),
    [
        (LOCAL, "localhost:8000", None, True),
        (LOCAL, "localhost:8000", "http://localhost:8000", True),
        (LOCAL, "localhost:8000", "https://localhost:8000", True),
        (LOCAL, "127.0.0.1:8000", "http://localhost:8000", True),
        (LOCAL, "localhost:8000", "http://[::1]:8000", True),
        (LOCAL, "localhost:8000", "", False),
        (LOCAL, "localhost:8000", "null", False),
        (LOCAL, "localhost:8000", "http://localhost", False),
        (LOCAL, "localhost:8000", "http://localhost:8001", False),
        (LOCAL, "localhost:8000", "http://localhost:80000", False),
        (LOCAL, "localhost:8000", "ftp://localhost:8000", False),
        (LOCAL, "localhost:8000", "localhost:8000", False),
        (LOCAL, "localhost:8000", "http://localhost:8000/", False),
        (LOCAL, "localhost:8000", "http://localhost:8000.evil.example", False),
        (LOCAL, "localhost:8000", "http://evil.example/localhost:8000", False),
        (LOCAL, "localhost:8000", "http://x@localhost:8000", False),
        (LOCAL, "localhost:8000", "http://evil.example", False),
        (LOCAL, "localhost:8000", "http://evil.example:8000", False),
        (LOCAL, "localhost:8000", ("http://localhost:8000", "http://localhost:8000"), False),
        (LOCAL, "localhost:8000", ("http://localhost:8000", "http://evil.example"), False),
        (LOCAL, "evil.example:8000", "http://evil.example:8000", False),
        (BOTH_PORTS, "localhost", "http://localhost", True),
        (BOTH_PORTS, "localhost:443", "https://localhost", True),
        (BOTH_PORTS, "127.0.0.1", "https://[::1]", True),
        (BOTH_PORTS, "localhost", "http://localhost:80", True),
        (BOTH_PORTS, "localhost", "http://localhost:81", False),
        (UNKNOWN, "localhost:5000", "http://localhost:5000", True),
        (UNKNOWN, "localhost:5000", "http://localhost:5001", False),
        (UNKNOWN, "localhost:5000", "http://127.0.0.1:5000", False),
        (OPEN, "tide.example", None, True),
        (OPEN, "tide.example", "http://tide.example", False),
        (OPEN, "tide.example", "https://tide.example", False),
        (OPEN, "TIDE.example:443", "https://tide.example", False),
        (OPEN, "tide.example:8000", "http://tide.example:8000", False),
        (OPEN, "tide.example:8000", "http://tide.example", False),
        (OPEN, "192.0.2.7:8000", "http://192.0.2.7:8000", True),
        (OPEN, "[2001:db8::7]:8000", "http://[2001:db8::7]:8000", True),
        (OPEN, "tide.example", "http://evil.example", False),
        (OPEN, "tide.example", "http://sub.tide.example", False),
        (OPEN, "tide.example", "http://tide.example.evil", False),
        (OPEN, "tide.example", "null", False),
        (OPEN, "any.example", "http://localhost:8000", True),
        (LAN, "192.0.2.7:8000", "http://192.0.2.7:8000", True),
        (LAN, "192.0.2.7:8000", "http://192.0.2.8:8000", False),
        (NAMED, "tide.example", "https://tide.example", True),
        (NAMED, "tide.example", "https://evil.example", False),
        (PROXIED, "tide.example", "https://tide.example", True),
        (PAGES, "localhost:8000", "https://app.example", True),
        (PAGES, "localhost:8000", "http://app.example:81", True),
        (PAGES, "localhost:8000", "http://port.example", True),
        (PAGES, "localhost:8000", "tool://x", True),
        (PAGES, "localhost:8000", "http://localhost:8000", True),
        (PAGES, "localhost:8000", None, True),
        (PAGES, "localhost:8000", "http://app.example", False),
        (PAGES, "localhost:8000", "https://app.example:81", False),
        (PAGES, "localhost:8000", "https://app.example.evil", False),
        (PAGES, "localhost:8000", "tool://y", False),
        (PAGES, "app.example", "https://app.example", False),
        (ANY_HOST, "tide.example", "http://evil.example", False),
        (ANY_ORIGIN, "localhost:8000", "http://evil.example", True),
        (ANY_ORIGIN, "localhost:8000", "null", True),
        (ANY_ORIGIN, "localhost:8000", ("http://a.example", "http://b.example"), False),
    ],
)
def test_a_page_is_our_own_or_allowed_and_programs_are_no_pages(
    host_check, host, origin, is_let_through
):
    assert passes(host_check, host, origin) is is_let_through


@pytest.mark.requirement("HTTP-03", "MHTTP-06", "SEC-10", "TRAP-45")
@pytest.mark.parametrize(
    ("host", "origin", "text"),
    [
        (None, None, "Host is missing: see the server's setting hosts="),
        (
            "evil.example",
            "http://evil.example",
            "Host 'evil.example' is not allowed here: see the server's setting hosts=",
        ),
        (
            "localhost:8000",
            "null",
            "Origin 'null' is not allowed here: see the server's setting origins=",
        ),
        (
            "localhost:8000",
            "http://" + "x" * 1000,
            f"Origin 'http://{'x' * 93}' is not allowed here: see the server's setting origins=",
        ),
    ],
)
def test_a_rejection_names_the_value_and_the_setting(host, origin, text):
    rejection = LOCAL.rejection(request(host, origin))
    assert (rejection.status, rejection.text) == (403, text)
    body = json.loads(rejection.body())
    assert body["error"] == {"code": -32600, "message": text}
    assert body.get("id") is None


def test_a_rejected_page_gets_no_cors_headers():
    assert not LOCAL.rejection(request(origin="http://evil.example")).headers


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"hosts": ["http://tide.example"]}, "hosts=.*'http://tide.example'"),
        ({"hosts": ["tide.example/"]}, "hosts="),
        ({"hosts": ["tide.example:port"]}, "hosts="),
        ({"hosts": ["tide.example:123456"]}, "hosts="),
        ({"hosts": [""]}, "hosts="),
        ({"hosts": ["*", "*.example"]}, "hosts="),
        ({"origins": ["tide.example"]}, "origins=.*'tide.example'"),
        ({"origins": ["https://tide.example/"]}, "origins="),
        ({"origins": ["https://tide.example/page"]}, "origins="),
        ({"origins": ["https://*.example"]}, "origins="),
        ({"origins": ["null"]}, "origins="),
        ({"origins": ["https://"]}, "origins="),
    ],
)
def test_settings_that_could_never_be_met_are_rejected(options, match):
    with pytest.raises(ValueError, match=match):
        host_check_for([("127.0.0.1", 8000)], **options)


@given(st.text(alphabet="localhst:80.[]/@,evi \t127", max_size=24))
def test_no_name_but_those_of_the_loopback_is_let_through(host):
    names = {f"{name}:8000" for name in ("127.0.0.1", "localhost", "[::1]")}
    assert passes(LOCAL, host) is (host.strip(" \t") in names)


def test_a_host_check_that_is_made_by_hand_takes_its_two_lists_as_they_are():
    host_check = HostCheck(
        hosts=frozenset({"tide.example"}), origins=frozenset({"https://app.example"})
    )
    assert passes(host_check, "tide.example:1", "https://app.example")
    assert not passes(host_check, "tide.example:1", "https://app.example:1")
    assert not any(passes(host_check, name) for name in LOOPBACK)
    everything = HostCheck(hosts=None, origins=None)
    assert passes(everything, "evil.example", "null")


# CORS.

CORS = msgspec.structs.replace(PAGES, allows_cors=True)


def asks(origin="https://app.example", wanted="content-type, mcp-param-region", **more):
    fields = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": wanted,
        **more,
    }
    return request(origin=origin, method=fields.pop("method", "OPTIONS"), **fields)


def test_an_allowed_page_gets_cors_headers_if_enabled():
    headers = dict(CORS.cors_headers(request(origin="https://app.example")))
    assert headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert headers["Vary"] == "Origin"
    exposed = {name.strip() for name in headers["Access-Control-Expose-Headers"].split(",")}
    assert {"Mcp-Session-Id", "WWW-Authenticate"} <= exposed
    own = dict(CORS.cors_headers(request(origin="http://localhost:8000")))
    assert own["Access-Control-Allow-Origin"] == "http://localhost:8000"


@pytest.mark.parametrize(
    ("host_check", "origin"),
    [
        (PAGES, "https://app.example"),
        (CORS, None),
        (CORS, "null"),
        (CORS, "https://evil.example"),
        (CORS, ("https://app.example", "https://app.example")),
    ],
)
def test_requests_without_an_allowed_origin_get_no_cors_headers(host_check, origin):
    # A cache must not use a response without the other headers for an allowed page.
    headers = [("Vary", "Origin")] if host_check.allows_cors else []
    assert host_check.cors_headers(request(origin=origin)) == headers
    assert host_check.preflight(asks(origin)) is None


def test_an_allowed_page_gets_no_cors_headers_with_a_foreign_host():
    headers = CORS.cors_headers(request("evil.example", "https://app.example"))
    assert headers == [("Vary", "Origin")]
    assert CORS.preflight(asks(host="evil.example")) is None


def test_with_any_origin_allowed_the_requesting_origin_is_named():
    host_check = host_check_for([], origins=["*"], allows_cors=True)
    headers = dict(host_check.cors_headers(request(origin="http://evil.example")))
    assert headers["Access-Control-Allow-Origin"] == "http://evil.example"


def test_a_preflight_allows_the_methods_and_fields_of_the_protocol():
    headers = dict(CORS.preflight(asks()))
    assert headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert headers["Access-Control-Allow-Methods"] == "GET, POST, DELETE"
    assert headers["Access-Control-Allow-Headers"] == "content-type, mcp-param-region"
    assert int(headers["Access-Control-Max-Age"]) > 0


@pytest.mark.parametrize("wanted", [None, "", "a: b", "a\x0bb", "\xe4"])
def test_fields_that_cannot_be_are_not_allowed(wanted):
    assert "Access-Control-Allow-Headers" not in dict(CORS.preflight(asks(wanted=wanted)))


def test_only_a_question_is_a_preflight():
    assert CORS.preflight(asks(method="POST")) is None
    assert CORS.preflight(request(origin="https://app.example", method="OPTIONS")) is None


def test_a_preflight_without_cors_is_rejected_with_the_setting():
    rejection = PAGES.rejection(asks())
    assert rejection.status == 403
    assert json.loads(rejection.body())["error"]["message"].endswith("setting allows_cors=")
    assert "origins=" in PAGES.rejection(asks("https://evil.example")).text
    assert CORS.rejection(asks()) is None
    assert PAGES.rejection(asks(method="POST")) is None
    assert PAGES.rejection(asks(origin=None)) is None


TOKENS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1)
HANDSHAKE = {
    "upgrade": "websocket",
    "connection": "keep-alive, Upgrade",
    "sec-websocket-version": "13",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


def handshake_headers(method="GET", path="/ws", repeated=(), **headers):
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpRequest(method, path, "", fields, frozenset(repeated))


def offering(*subprotocols, **headers):
    return handshake_headers(sec_websocket_protocol=", ".join(subprotocols), **headers)


# The WebSocket upgrade.


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


# Subprotocols and tokens.


def test_an_offered_subprotocol_that_is_no_token_can_be_chosen():
    assert offered_subprotocols(None) == ["mcp"]
    assert chosen_subprotocol(offering("a", "mcp")) == "mcp"
    assert chosen_subprotocol(offering("a", "mcp.token.eA")) is None
    assert chosen_subprotocol(handshake_headers()) is None


@given(TOKENS)
def test_a_token_is_accepted_as_subprotocol_and_in_a_header(token):
    offered = offering(*offered_subprotocols(token))
    found = with_token_header(offered)
    assert has_token(found, token)
    assert found.header("sec-websocket-protocol") == "mcp"
    assert has_token(handshake_headers(authorization=f"bearer {token}"), token)
    assert not has_token(handshake_headers(authorization=f"Bearer {token}x"), token)
    assert not has_token(handshake_headers(authorization=token), token)


def test_a_request_without_a_token_is_unchanged():
    offered = offering("mcp")
    assert with_token_header(offered) is offered
    assert not has_token(offered, "x")


def test_two_tokens_are_ignored():
    offered = offering("mcp", token_subprotocol("a"), token_subprotocol("b"))
    assert with_token_header(offered).header("authorization") is None
    twice = handshake_headers(authorization="Bearer a", repeated=["authorization"])
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
    assert not has_token(handshake_headers(authorization="Bearer abc"), "xyz")
    assert compared == [(b"abc", b"xyz")]


# Close codes.


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
