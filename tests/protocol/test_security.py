"""The host and origin check."""

import json

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._protocol.http_headers import HttpRequest
from mcp_trio._protocol.security import LOOPBACK, HostCheck, host_check_for

LOCAL = host_check_for([("127.0.0.1", 8000)])
LOCAL_6 = host_check_for([("::1", 8000)])
BOTH_PORTS = host_check_for([("127.0.0.1", 80), ("::1", 443)])
OTHER_LOOPBACK = host_check_for([("127.0.0.53", 8000)])
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


def head(host="localhost:8000", origin=None, method="POST", scheme="http", **more):
    """A head with these fields; a tuple is a field that comes several times."""
    fields = {"Host": host, "Origin": origin, **more}
    lines = []
    for name, values in fields.items():
        for value in values if isinstance(values, tuple) else (values,):
            if value is not None:
                lines.append((name.replace("_", "-").encode(), value.encode("latin-1")))
    return HttpRequest.of(method, "/mcp", lines, scheme=scheme)


def passes(host_check, *fields, **more):
    return host_check.rejection(head(*fields, **more)) is None


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
def test_a_request_names_a_host_that_is_ours(host_check, host, is_let_through):
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
    rejection = LOCAL.rejection(head(host, origin))
    assert (rejection.status, rejection.text) == (403, text)
    said = json.loads(rejection.body())
    assert said["error"] == {"code": -32600, "message": text}
    assert said.get("id") is None


def test_a_rejected_page_gets_no_cors_headers():
    assert not LOCAL.rejection(head(origin="http://evil.example")).headers


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

CORS = attrs.evolve(PAGES, allows_cors=True)


def asks(origin="https://app.example", wanted="content-type, mcp-param-region", **more):
    fields = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": wanted,
        **more,
    }
    return head(origin=origin, method=fields.pop("method", "OPTIONS"), **fields)


def test_an_allowed_page_gets_cors_headers_if_enabled():
    headers = dict(CORS.cors_headers(head(origin="https://app.example")))
    assert headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert headers["Vary"] == "Origin"
    exposed = {name.strip() for name in headers["Access-Control-Expose-Headers"].split(",")}
    assert {"Mcp-Session-Id", "WWW-Authenticate"} <= exposed
    own = dict(CORS.cors_headers(head(origin="http://localhost:8000")))
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
    assert host_check.cors_headers(head(origin=origin)) == []
    assert host_check.preflight(asks(origin)) is None


def test_an_allowed_page_gets_no_cors_headers_with_a_foreign_host():
    assert CORS.cors_headers(head("evil.example", "https://app.example")) == []
    assert CORS.preflight(asks(host="evil.example")) is None


def test_with_any_origin_allowed_the_requesting_origin_is_named():
    host_check = host_check_for([], origins=["*"], allows_cors=True)
    headers = dict(host_check.cors_headers(head(origin="http://evil.example")))
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
    assert CORS.preflight(head(origin="https://app.example", method="OPTIONS")) is None


def test_a_preflight_without_cors_is_rejected_with_the_setting():
    rejection = PAGES.rejection(asks())
    assert rejection.status == 403
    assert json.loads(rejection.body())["error"]["message"].endswith("setting allows_cors=")
    assert "origins=" in PAGES.rejection(asks("https://evil.example")).text
    assert CORS.rejection(asks()) is None
    assert PAGES.rejection(asks(method="POST")) is None
    assert PAGES.rejection(asks(origin=None)) is None
