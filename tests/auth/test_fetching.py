"""Requests to authorization servers are bounded in size and time, and follow no redirects."""

import httpx2
import pytest
import trio
import trio.testing

from mcp_trio._auth.fetching import Fetcher, FetchError, check_url
from mcp_trio._auth.metadata import AuthorizationServerMetadata as Document

URL = "https://issuer.example/.well-known/oauth-authorization-server"


def fetcher(respond, **options):
    client = httpx2.AsyncClient(transport=httpx2.MockTransport(respond))
    return Fetcher(client=client, **options)


async def test_a_document_is_fetched_and_decoded():
    requests = []

    def respond(request):
        requests.append(request)
        return httpx2.Response(200, json={"issuer": "https://issuer.example"})

    document = await fetcher(respond).get_json(URL, Document)
    assert document == Document(issuer="https://issuer.example")
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
            URL, Document
        )
    assert body.read <= 66


async def test_a_slow_document_is_given_up(autojump_clock):
    async def respond(_):
        await trio.sleep(3600)

    with pytest.raises(FetchError, match="no response within 10"):
        await fetcher(respond).get_json(URL, Document)
    assert trio.current_time() == pytest.approx(10)


async def test_a_redirect_is_not_followed():
    seen = []

    def respond(request):
        seen.append(str(request.url))
        return httpx2.Response(302, headers={"Location": URL})

    with pytest.raises(FetchError, match="HTTP status 302") as caught:
        await fetcher(respond).get_json(URL, Document)
    assert caught.value.status == 302
    assert seen == [URL]


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ({"status_code": 404}, "HTTP status 404"),
        ({"status_code": 200, "text": "<html>"}, "not a valid document"),
        ({"status_code": 200, "json": {"issuer": 1}}, "not a valid document"),
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
        await fetcher(lambda _: httpx2.Response(**response)).get_json(URL, Document)


async def test_a_server_that_is_away_is_an_error():
    def respond(_):
        raise httpx2.ConnectError("connection refused")

    with pytest.raises(FetchError, match="connection refused"):
        await fetcher(respond).get_json(URL, Document)


@pytest.mark.parametrize(
    "url",
    ["https://h/x", "http://localhost:1/x", "http://127.0.0.1/", "http://[::1]:3/"],
)
def test_allowed_urls(url):
    check_url(url)


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
        check_url(url)
    with pytest.raises(FetchError):
        await Fetcher().send("GET", url)
