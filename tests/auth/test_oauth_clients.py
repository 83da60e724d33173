"""Metadata documents of clients, and servers that they must not reach."""

import contextlib
import functools
import json
import ssl

import httpx2
import pytest
import trio
from certificates import self_signed

from mcp_trio._auth.oauth_clients import ClientDocuments, InvalidClientError, is_document_url
from tests.auth.authorizing import CALLBACK, CHALLENGE, RESOURCE, Site

URL = "https://app.example/oauth/client.json"
PUBLIC = "93.184.216.34"
DOCUMENT = {"client_id": URL, "client_name": "Buoy", "redirect_uris": [CALLBACK]}


class Web:
    """HTTP servers, and the addresses of all names; counts the requests."""

    def __init__(self, respond, addresses=(PUBLIC,)):
        self.respond, self.addresses, self.requests = respond, addresses, []

    async def resolve(self, _host, _port):
        return list(self.addresses)

    def answer(self, request):
        self.requests.append(request)
        return self.respond(request)

    def documents(self):
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self.answer))
        return ClientDocuments(http=http, resolve=self.resolve)


def sending(value, status=200, **headers):
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    headers = {"content-type": "application/json", **headers}

    class Stream(httpx2.AsyncByteStream):
        async def __aiter__(self):
            for start in range(0, len(body), 4096):
                yield body[start : start + 4096]

    return lambda _request: httpx2.Response(status, headers=headers, stream=Stream())


async def test_the_document_is_fetched_from_the_address_that_was_checked():
    web = Web(sending(DOCUMENT))
    client = await web.documents().fetch(URL)
    assert client.client_id == URL
    assert (client.name, client.redirect_uris) == ("Buoy", [CALLBACK])
    (request,) = web.requests
    assert str(request.url) == f"https://{PUBLIC}/oauth/client.json"
    assert request.headers["host"] == "app.example"
    assert request.extensions["sni_hostname"] == "app.example"


@pytest.mark.requirement("AUTH-77")
async def test_a_document_is_kept_for_minutes_and_a_failure_for_seconds(autojump_clock):
    web = Web(sending(DOCUMENT))
    documents = web.documents()
    first = await documents.fetch(URL)
    await trio.sleep(299)
    assert await documents.fetch(URL) is first
    await trio.sleep(2)
    web.respond = sending({}, 404)
    for _ in range(3):
        with pytest.raises(InvalidClientError, match="status 404"):
            await documents.fetch(URL)
    assert len(web.requests) == 2
    await trio.sleep(11)
    web.respond = sending(DOCUMENT)
    await documents.fetch(URL)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1"),
        *("169.254.169.254", "100.64.0.1", "224.0.0.1", "255.255.255.255", "192.0.2.1"),
        *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1"),
        *("::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:7f00:1::", "fec0::1"),
        *("64:ff9b:1::a00:1", "::a00:1", "::ffff:0:a00:1"),
    ],
)
@pytest.mark.requirement("AUTH-77")
async def test_no_request_is_sent_to_an_address_that_is_not_public(address):
    for addresses in ([address], [PUBLIC, address]):
        web = Web(sending(DOCUMENT), addresses)
        with pytest.raises(InvalidClientError, match="has an address that is not public") as raised:
            await web.documents().fetch(URL)
        assert web.requests == []
        assert address not in str(raised.value)


async def test_a_public_address_of_ipv6_is_connected_to():
    web = Web(sending(DOCUMENT), ["2606:2800:220:1::1"])
    await web.documents().fetch(URL)
    assert web.requests[0].url.host == "2606:2800:220:1::1"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]", "[::ffff:169.254.169.254]", "10.1.1.1:8443"]
)
async def test_no_request_is_sent_to_a_literal_address_that_is_not_public(host):
    web = Web(sending(DOCUMENT))
    with pytest.raises(InvalidClientError, match="not public"):
        await web.documents().fetch(f"https://{host}/client.json")
    assert web.requests == []


async def test_a_number_as_a_host_is_the_address_that_the_system_makes_of_it():
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(sending(DOCUMENT)))
    with pytest.raises(InvalidClientError, match="not public"):
        await ClientDocuments(http=http).fetch("https://2130706433/client.json")


@pytest.mark.parametrize(
    ("respond", "text"),
    [
        (sending(b" " * 10 * 1024 * 1024), "more than 16384 bytes"),
        (sending(b"", 302, location="http://127.0.0.1/"), "status 302"),
        (sending(DOCUMENT, **{"content-type": "text/html"}), "not sent as JSON"),
        (sending(b"{"), "is not a JSON object"),
        (sending(b"[" * 9000 + b"]" * 7000), "is not a JSON object"),
        (sending([]), "is not a JSON object"),
        (sending({**DOCUMENT, "client_id": f"{URL}?"}), "is not the document's URL"),
        (sending({**DOCUMENT, "redirect_uris": ["http://evil.example/"]}), "not a redirect URI"),
        (sending({**DOCUMENT, "token_endpoint_auth_method": "client_secret_post"}), '"none"'),
        (sending({**DOCUMENT, "client_secret": "x"}), "client_secret"),
    ],
)
@pytest.mark.requirement("AUTH-77")
async def test_an_invalid_document_is_rejected(respond, text):
    with pytest.raises(InvalidClientError, match=text):
        await Web(respond).documents().fetch(URL)


@pytest.mark.parametrize("host", [f"{'a' * 64}.example", "a..example"])
async def test_a_name_that_no_host_can_have_is_rejected(host):
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(sending(DOCUMENT)))
    with pytest.raises(InvalidClientError, match="cannot be fetched"):
        await ClientDocuments(http=http).fetch(f"https://{host}/client.json")


async def test_a_server_that_does_not_answer_is_given_up(autojump_clock):
    async def never(_request):
        await trio.sleep_forever()

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(never))
    documents = ClientDocuments(http=http, resolve=Web(None).resolve)
    with pytest.raises(InvalidClientError, match="no response within 5 s"):
        await documents.fetch(URL)


async def test_requests_at_once_fetch_a_document_once(autojump_clock):
    class SlowWeb(Web):
        async def resolve(self, host, port):
            await trio.sleep(1)
            return await super().resolve(host, port)

    web = SlowWeb(sending(DOCUMENT))
    documents, clients = web.documents(), []

    async def fetch():
        clients.append(await documents.fetch(URL))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(fetch)
        with trio.move_on_after(0.5):  # One of them is cancelled, and others go on.
            await documents.fetch(URL)
    assert len(clients) == 20
    assert len(web.requests) == 1


async def test_one_host_is_asked_for_a_few_documents_only(autojump_clock):
    web = Web(sending({}, 404))
    documents = web.documents()
    for number in range(15):
        with pytest.raises(InvalidClientError):
            await documents.fetch(f"{URL}?{number}", f"192.0.2.{number}")
    assert len(web.requests) == 10


async def test_one_sender_does_not_use_up_the_rate_of_a_host(autojump_clock):
    web = Web(sending(DOCUMENT))
    documents = web.documents()
    for number in range(15):
        with pytest.raises(InvalidClientError):
            await documents.fetch(f"{URL}?{number}", f"2001:db8::{number}")
    with pytest.raises(InvalidClientError, match="too many"):
        await documents.fetch(URL, "2001:db8::1")
    assert len(web.requests) == 5
    assert (await documents.fetch(URL, "192.0.2.1")).client_id == URL


async def test_one_sender_with_slow_hosts_does_not_keep_out_others(autojump_clock):
    async def answer(request):
        if request.headers["host"] != "app.example":
            await trio.sleep_forever()
        return sending(DOCUMENT)(request)

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    documents = ClientDocuments(http=http, resolve=Web(None).resolve)

    async def fetch_slow(number):
        with pytest.raises(InvalidClientError):
            await documents.fetch(f"https://{number}.example/client.json", "192.0.2.1")

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(fetch_slow, number)
        await trio.sleep(1)
        with trio.fail_after(1):
            assert (await documents.fetch(URL, "192.0.2.2")).client_id == URL


@pytest.mark.requirement("AUTH-77")
async def test_a_document_that_cannot_be_fetched_again_is_used_for_a_day(autojump_clock):
    web = Web(sending(DOCUMENT))
    documents = web.documents()
    first = await documents.fetch(URL)
    await trio.sleep(301)
    web.respond = sending({}, 404)
    for number in range(10):  # This uses up the rate of the host.
        with pytest.raises(InvalidClientError, match="status 404"):
            await documents.fetch(f"{URL}?{number}", f"192.0.2.{number}")
    assert await documents.fetch(URL) is first
    web.respond = sending({}, 503)
    for hours in (1, 23):
        await trio.sleep(hours * 3600 - 301)
        assert await documents.fetch(URL) is first
    await trio.sleep(600)
    with pytest.raises(InvalidClientError, match="status 503"):
        await documents.fetch(URL)


async def test_failures_displace_no_document(autojump_clock):
    web = Web(sending(DOCUMENT))
    documents = web.documents()
    first = await documents.fetch(URL)
    web.respond = sending({}, 404)
    for number in range(2_000):
        with pytest.raises(InvalidClientError):
            await documents.fetch(f"https://{number}.example/client.json", f"198.18.0.{number}")
    assert await documents.fetch(URL) is first


@pytest.mark.parametrize(
    "url",
    [
        *("http://app.example/c", "https://app.example", "https://app.example/", "https:///c"),
        *("https://u:p@app.example/c", "https://app.example/c#x", "https://app.example/a/../c"),
        *("https://app.example/.%2e/c", "https://app.example/a/%2E./c"),
        *("https://app.example/%2e%2E/c", "https://app.example:99999/c", "https://a.example/\n"),
        *("https://[::1/c", f"https://app.example/{'c' * 2000}", "abc", "https://a b.example/c"),
    ],
)
def test_other_client_ids_are_no_document(url):
    assert not is_document_url(url)


async def test_the_certificate_has_to_be_for_the_name(tmp_path, nursery):
    """The connection is made to an address, over real TLS."""
    trusted, served = ssl.create_default_context(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate = self_signed(tmp_path, host="app.example")
    trusted.load_verify_locations(certificate["certfile"])
    served.load_cert_chain(**certificate)
    listening = functools.partial(trio.serve_ssl_over_tcp, answer_document, 0, served)
    listeners = await nursery.start(functools.partial(listening, host="127.0.0.1"))
    port = listeners[0].transport_listener.socket.getsockname()[1]
    async with httpx2.AsyncClient(verify=trusted, trust_env=False) as http:
        web = Web(None, ["127.0.0.1"])
        documents = ClientDocuments(http=http, resolve=web.resolve, allows=lambda _address: True)
        client = await documents.fetch(f"https://app.example:{port}/client.json")
        assert client.redirect_uris == [CALLBACK]
        with pytest.raises(InvalidClientError, match="cannot be fetched"):
            await documents.fetch(f"https://other.example:{port}/client.json")
        with pytest.raises(InvalidClientError, match="more than 16384 bytes"):
            await documents.fetch(f"https://app.example:{port}/large.json")
    nursery.cancel_scope.cancel()


async def answer_document(stream):
    with contextlib.suppress(trio.BrokenResourceError):
        request = b""
        while b"\r\n\r\n" not in request:
            request += await stream.receive_some()
        if b"/large.json" in request:
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10485760\r\n\r\n")
            for _ in range(160):
                await stream.send_all(b" " * 65536)
            raise AssertionError("the document was read to its end")
        host = request.lower().split(b"\r\nhost: ")[1].split(b"\r\n")[0].decode()
        url = f"https://{host}/client.json"
        body = json.dumps({"client_id": url, "redirect_uris": [CALLBACK]}).encode()
        head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length:"
        await stream.send_all(f"{head} {len(body)}\r\n\r\n".encode() + body)


# At the authorization server.


async def test_a_client_may_be_known_by_its_document():
    site = Site.of()
    web = Web(sending(DOCUMENT))
    site.server._documents = web.documents()
    site.server.bind("", [RESOURCE], lambda: ["tool"])
    page = await site.authorize(URL)
    assert "described by app.example" in page.text
    tokens = await site.tokens(URL)
    assert (await site.refresh(URL, tokens["refresh_token"])).status == 200
    assert len(web.requests) == 1
    metadata = (await site.send("GET", "/.well-known/oauth-authorization-server")).json
    assert metadata["client_id_metadata_document_supported"] is True


async def test_the_consent_page_says_that_the_document_is_of_another_site():
    site = Site.of()
    uri = "https://elsewhere.example/cb"
    web = Web(sending({**DOCUMENT, "redirect_uris": [uri]}))
    site.server._documents = web.documents()
    site.server.bind("", [RESOURCE])
    page = await site.authorize(URL, redirect_uri=uri)
    assert "You will be sent to another site than app.example." in page.text


async def test_a_document_that_cannot_be_fetched_is_an_error_of_the_client():
    site = Site.of()
    web = Web(sending(DOCUMENT), ["169.254.169.254"])
    site.server._documents = web.documents()
    site.server.bind("", [RESOURCE])
    reply = await site.authorize(URL)
    assert (reply.status, "location" in reply.headers) == (400, False)
    assert "not public" in reply.text
    reply = await site.redeem(URL, CHALLENGE.decode())
    assert reply.problem == (401, "invalid_client")


@pytest.mark.parametrize("respond", [sending({}, 503), sending({}, 429), sending(b"x" * 20_000)])
async def test_a_client_keeps_its_tokens_while_its_document_cannot_be_fetched(
    respond, autojump_clock
):
    site = Site.of()
    web = Web(sending(DOCUMENT))
    site.server._documents = web.documents()
    site.server.bind("", [RESOURCE], lambda: ["tool"])
    tokens = await site.tokens(URL)
    web.respond = respond
    await trio.sleep(301)
    tokens = (await site.refresh(URL, tokens["refresh_token"])).json
    await trio.sleep(86_400)
    # A client would discard its tokens after `invalid_client`.
    for _ in range(2):
        reply = await site.refresh(URL, tokens["refresh_token"])
        assert reply.problem == (503, "temporarily_unavailable")
    web.respond = sending(DOCUMENT)
    await trio.sleep(11)
    assert (await site.refresh(URL, tokens["refresh_token"])).status == 200
