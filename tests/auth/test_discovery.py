"""The discovery of an authorization server: challenges, metadata documents, and where they are."""

from urllib.parse import parse_qsl, urlsplit

import httpx2
import msgspec
import pytest
import trio
import trio.testing

from mcp_trio._auth.challenges import (
    Challenge,
    checked_scopes,
    format_challenge,
    parse_challenges,
)
from mcp_trio._auth.fetching import Fetcher, FetchError, check_secure_url
from mcp_trio._auth.metadata import (
    ProtectedResourceMetadata,
    authorization_server_urls,
    protected_resource_urls,
)
from mcp_trio._auth.urls import with_query
from mcp_trio.auth import AuthorizationServerMetadata

# Metadata documents.


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        (
            "https://h:1/mcp",
            [
                "https://h:1/.well-known/oauth-protected-resource/mcp",
                "https://h:1/.well-known/oauth-protected-resource",
            ],
        ),
        ("https://h", ["https://h/.well-known/oauth-protected-resource"]),
        ("https://h/", ["https://h/.well-known/oauth-protected-resource"]),
        (
            "https://h/a/b?c=d",
            [
                "https://h/.well-known/oauth-protected-resource/a/b?c=d",
                "https://h/.well-known/oauth-protected-resource",
            ],
        ),
    ],
)
@pytest.mark.requirement("AUTH-18", "TRAP-119")
def test_the_urls_of_protected_resource_metadata(resource, expected):
    assert protected_resource_urls(resource) == expected


@pytest.mark.parametrize(
    ("issuer", "expected"),
    [
        (
            "https://h",
            [
                "https://h/.well-known/oauth-authorization-server",
                "https://h/.well-known/openid-configuration",
            ],
        ),
        (
            "https://h/t/1",
            [
                "https://h/.well-known/oauth-authorization-server/t/1",
                "https://h/.well-known/openid-configuration/t/1",
                "https://h/t/1/.well-known/openid-configuration",
            ],
        ),
    ],
)
@pytest.mark.requirement("AUTH-33", "TRAP-119")
def test_the_urls_of_authorization_server_metadata(issuer, expected):
    assert authorization_server_urls(issuer) == expected
    assert authorization_server_urls(f"{issuer}/") == expected


@pytest.mark.parametrize("url", ["https://a/x", "https://a/x?", "https://a/x?c=d", "https://a/x?&"])
def test_parameters_are_added_to_a_url(url):
    found = parse_qsl(urlsplit(with_query(url, {"q": "a b", "r": "&"})).query)
    assert found[-2:] == [("q", "a b"), ("r", "&")]
    assert found[:-2] == parse_qsl(urlsplit(url).query)


def test_a_document_has_only_the_members_that_are_given():
    metadata = ProtectedResourceMetadata(
        resource="https://h/mcp", authorization_servers=["https://a"]
    )
    assert msgspec.json.decode(msgspec.json.encode(metadata)) == {
        "resource": "https://h/mcp",
        "authorization_servers": ["https://a"],
    }


def test_unknown_members_and_null_are_accepted():
    document = b'{"issuer": "https://a", "jwks_uri": null, "x": 1}'
    metadata = msgspec.json.decode(document, type=AuthorizationServerMetadata)
    assert metadata == AuthorizationServerMetadata(issuer="https://a")


# `WWW-Authenticate`: parsing what servers send, and formatting what we send.


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", []),
        (" , ,", []),
        ("Bearer", [Challenge(scheme="Bearer")]),
        (
            'Bearer resource_metadata="https://a/b,c", scope="a b", error=invalid_token',
            [
                Challenge(
                    scheme="Bearer",
                    parameters={
                        "resource_metadata": "https://a/b,c",
                        "scope": "a b",
                        "error": "invalid_token",
                    },
                )
            ],
        ),
        (
            r'Basic realm="x\"y", Bearer, Negotiate abc==, DPoP algs="ES256"',
            [
                Challenge(scheme="Basic", parameters={"realm": 'x"y'}),
                Challenge(scheme="Bearer"),
                Challenge(scheme="Negotiate", token68="abc=="),
                Challenge(scheme="DPoP", parameters={"algs": "ES256"}),
            ],
        ),
        (
            "bearer  Resource_Metadata = https://a/b?c=d ,ERROR=x",
            [
                Challenge(
                    scheme="bearer",
                    parameters={"resource_metadata": "https://a/b?c=d", "error": "x"},
                )
            ],
        ),
        ('Bearer a="1", a="2"', [Challenge(scheme="Bearer", parameters={"a": "1"})]),
        (
            'Basic realm="x", Bearer error="never closed',
            [Challenge(scheme="Basic", parameters={"realm": "x"}), Challenge(scheme="Bearer")],
        ),
    ],
)
@pytest.mark.requirement("AUTH-17")
def test_a_header_is_parsed_to_its_challenges(value, expected):
    assert parse_challenges([value]) == expected


def test_the_challenges_of_all_headers_are_returned():
    found = parse_challenges(["Basic", 'DPoP error="x"'])
    assert [each.scheme for each in found] == ["Basic", "DPoP"]
    assert found[1].is_for("dpop")
    assert found[1].error == "x"
    assert found[0].scopes is None


def test_the_scopes_of_a_challenge_keep_their_order():
    (challenge,) = parse_challenges(['Bearer scope="b a  b"'])
    assert challenge.scopes == ("b", "a")


def test_a_formatted_challenge_is_parsed_to_the_same():
    parameters = {"error": "x", "error_description": r'a "quoted\" text, with commas'}
    (challenge,) = parse_challenges([format_challenge("Bearer", parameters)])
    assert challenge.parameters == parameters
    assert format_challenge("Bearer", {}) == "Bearer"


def test_a_value_that_would_break_the_header_is_rejected():
    with pytest.raises(ValueError, match="the parameter a has a character"):
        format_challenge("Bearer", {"a": "x\r\nSet-Cookie: y"})


@pytest.mark.parametrize(
    "value",
    [
        'Bearer a="' + "\\" * 99_999,
        "a" * 100_000 + "=",
        " " * 100_000,
        "a" + " " * 100_000 + "b",
        "a, " * 50_000,
        "a=" * 50_000,
    ],
)
@pytest.mark.timeout(5)
def test_a_long_header_takes_linear_time(value):
    parse_challenges([value])


def test_scopes_are_sorted_and_checked():
    assert checked_scopes({"b", "a:x"}) == ("a:x", "b")
    assert checked_scopes(scope for scope in ("b", "a:x")) == ("a:x", "b")
    with pytest.raises(TypeError, match=r"write \{'a'\}"):
        checked_scopes("a")
    for bad in ("", "a b", 'a"', "ä"):
        with pytest.raises(ValueError, match="not a valid scope"):
            checked_scopes([bad])


# Requests to authorization servers are bounded in size and time, and follow no redirects.

URL = "https://issuer.example/.well-known/oauth-authorization-server"


def fetcher(respond, **options):
    client = httpx2.AsyncClient(transport=httpx2.MockTransport(respond))
    return Fetcher(client=client, **options)


async def test_a_document_is_fetched_and_decoded():
    requests = []

    def respond(request):
        requests.append(request)
        return httpx2.Response(200, json={"issuer": "https://issuer.example"})

    document = await fetcher(respond).get_json(URL, AuthorizationServerMetadata)
    assert document == AuthorizationServerMetadata(issuer="https://issuer.example")
    assert requests[0].headers["accept-encoding"] == "identity"


class Endless(httpx2.AsyncByteStream):
    """A body of many pieces; it counts those that were read."""

    def __init__(self):
        self.read = 0
        self.is_closed = False

    async def __aiter__(self):
        while self.read < 10_000 and not self.is_closed:
            self.read += 1
            yield b" " * 1024

    async def aclose(self):
        self.is_closed = True


async def test_a_document_of_ten_mebibytes_is_not_read_to_its_end():
    body = Endless()

    with pytest.raises(FetchError, match="more than 65536 bytes"):
        await fetcher(lambda _: httpx2.Response(200, stream=body), bytes_max=65_536).get_json(
            URL, AuthorizationServerMetadata
        )
    assert body.read <= 66


async def test_a_slow_document_is_given_up(autojump_clock):
    async def respond(_):
        await trio.sleep(3600)

    with pytest.raises(FetchError, match="no response within 10"):
        await fetcher(respond).get_json(URL, AuthorizationServerMetadata)
    assert trio.current_time() == pytest.approx(10)


async def test_a_redirect_is_not_followed():
    seen = []

    def respond(request):
        seen.append(str(request.url))
        return httpx2.Response(302, headers={"Location": URL})

    with pytest.raises(FetchError, match="HTTP status 302") as caught:
        await fetcher(respond).get_json(URL, AuthorizationServerMetadata)
    assert caught.value.status == 302
    assert seen == [URL]


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ({"status_code": 404}, "HTTP status 404"),
        ({"status_code": 200, "text": "<html>"}, "not a valid document"),
        ({"status_code": 200, "json": {"issuer": 1}}, "not a valid document"),
        ({"status_code": 200, "content": b'{"a": ' + b"[" * 9000}, "not a valid document"),
        ({"status_code": 500, "content": b'{"a": ' + b"[" * 9000}, "HTTP status 500"),
        ({"status_code": 200, "content": b'{"issuer": "\xff"}'}, "not a valid document"),
        (
            {
                "status_code": 200,
                "stream": httpx2.ByteStream(b"x"),
                "headers": {"Content-Encoding": "gzip"},
            },
            "a compressed response",
        ),
    ],
)
async def test_anything_but_a_document_is_an_error(response, reason):
    with pytest.raises(FetchError, match=reason):
        await fetcher(lambda _: httpx2.Response(**response)).get_json(
            URL, AuthorizationServerMetadata
        )


async def test_a_server_that_is_away_is_an_error():
    def respond(_):
        raise httpx2.ConnectError("connection refused")

    with pytest.raises(FetchError, match="connection refused"):
        await fetcher(respond).get_json(URL, AuthorizationServerMetadata)


@pytest.mark.parametrize(
    "url",
    ["https://h/x", "http://localhost:1/x", "http://127.0.0.1/", "http://[::1]:3/"],
)
def test_a_url_with_https_or_of_this_machine_is_allowed(url):
    check_secure_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://h/x",
        "ftp://h",
        "https://",
        "https://a@h/",
        "https://h/#f",
        "file:///etc/passwd",
        "x",
        "http://localhost.evil/",
    ],
)
@pytest.mark.requirement("SEC-03")
async def test_other_urls_are_not_fetched(url):
    with pytest.raises(ValueError, match="not a"):
        check_secure_url(url)
    with pytest.raises(FetchError):
        await Fetcher().send("GET", url)
