"""Servers that attack their clients during authorization."""

import gzip
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest
import trio

from mcp_trio._auth.client_flow import FlowSettings
from mcp_trio._auth.token_store import read_tokens, write_tokens
from mcp_trio._auth.urls import UrlError, check_authorization_url, check_url, closeness
from mcp_trio.auth import FileTokenStore
from mcp_trio.errors import AuthorizationError
from tests.auth.fake_servers import RESOURCE_PATH, SERVER, SERVER_PATH, FakeServers, Names
from tests.auth.scripted_flows import (
    RESOURCE,
    RESOURCE_URL,
    SERVER_METADATA,
    SERVER_URL,
    Conversation,
    answer,
    challenged,
    token_set,
)


@pytest.fixture
async def servers():
    """Servers, and the addresses of names."""

    names = Names()
    previous = trio.socket.set_custom_hostname_resolver(names)
    yield FakeServers(), names.addresses
    trio.socket.set_custom_hostname_resolver(previous)


async def refusal(fake, **options):
    """The text of the error, when the fake servers are used."""
    async with fake.http(auth=fake.auth(**options)) as http:
        with pytest.raises(AuthorizationError) as caught:
            await http.post(SERVER, json={"id": 1, "method": "tools/call"})
    return str(caught.value)


# URLs


@pytest.mark.requirement("SEC-03", "SEC-04")
@pytest.mark.parametrize(
    "url",
    [
        "http://login.example/",
        "ftp://login.example/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https:///path",
        "https://user@login.example/",
        "https://login.example/#fragment",
        "https://login.example/a b",
        "https://login.example/\n",
        "https://login.example/`id`",
        "https://login.example:99999/",
        "https://[::1/",
        f"https://login.example/{'a' * 3000}",
        "https://127.0.0.1/",
        "https://localhost/",
        "https://a.localhost/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://169.254.169.254/latest/meta-data",
        "https://[fe80::1]/",
        "https://0.0.0.0/",
        "https://10.0.0.1/",
        "https://192.168.1.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://127.1/",
        "https://224.0.0.1/",
    ],
)
def test_urls_that_are_not_fetched(url):
    with pytest.raises(UrlError):
        check_url(url, "the URL", server=SERVER, trusted_hosts=())


@pytest.mark.requirement("SEC-03")
@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("https://login.example/a?b=c", SERVER),
        ("https://93.184.216.34/", SERVER),
        ("http://localhost:9/", "http://127.0.0.1:8/mcp"),
        ("https://10.1.1.1/", "https://10.0.0.1/mcp"),
        ("https://10.1.1.1/", "http://localhost:8/mcp"),
        ("http://10.0.0.1:8/x", "http://10.0.0.1:8/mcp"),
        ("http://keycloak:8080/", SERVER),
    ],
)
def test_urls_that_are_fetched(url, server):
    check_url(url, "the URL", server=server, trusted_hosts={"keycloak"})


@pytest.mark.requirement("SEC-03")
@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("http://10.0.0.1:9/x", "http://10.0.0.1:8/mcp"),
        ("https://127.0.0.1/", "https://10.0.0.1/mcp"),
        ("http://localhost/", "https://login.example"),
    ],
)
def test_a_server_in_a_private_network_does_not_lead_to_this_computer(url, server):
    with pytest.raises(UrlError):
        check_url(url, "the URL", server=server, trusted_hosts=())


def test_how_close_a_host_is():
    hosts = ["login.example", "8.8.8.8", "10.0.0.1", "fd00::1", "127.0.0.1", "localhost", "::1"]
    assert [closeness(host) for host in hosts] == [0, 0, 1, 1, 2, 2, 2]


@pytest.mark.requirement("SEC-01", "SEC-04")
@pytest.mark.parametrize(
    "endpoint",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        "file:///bin/sh",
        "http://login.example/authorize",
        "https://login.example/$(id)",
        "https://login.example/a;b",
        "https://login.example/'a'",
        "https://login.example/a b",
    ],
)
def test_login_pages_that_are_not_opened(endpoint):
    document = {**SERVER_METADATA, "authorization_endpoint": endpoint}
    conversation = Conversation({SERVER_URL: answer(document)})
    with pytest.raises(AuthorizationError, match="authorization_endpoint"):
        conversation.run()
    assert conversation.login is None


@pytest.mark.requirement("SEC-01")
def test_a_login_page_on_this_computer_may_have_no_tls():
    check_authorization_url("http://127.0.0.1:9/authorize?a=b&c=d")


@pytest.mark.requirement("SEC-02")
async def test_a_browser_is_opened_without_a_shell(monkeypatch, tmp_path):
    from mcp_trio.auth import open_browser

    started = []

    def start(command, **options):
        started.append((command, options))
        raise OSError

    monkeypatch.setattr("subprocess.Popen", start)
    monkeypatch.setattr("webbrowser._tryorder", None)
    monkeypatch.setattr("webbrowser._browsers", {})
    monkeypatch.setenv("BROWSER", "some-browser %s")
    with pytest.raises(AuthorizationError, match="pass on_authorize="):
        await open_browser("https://login.example/?a=b&c=$(id)")
    assert all(not options.get("shell") for _, options in started)
    assert all(isinstance(command, list) for command, _ in started)


async def test_a_browser_that_runs_on_does_not_delay_the_end_of_a_login(monkeypatch):
    from mcp_trio.auth import open_browser

    is_closed = threading.Event()
    monkeypatch.setattr("webbrowser.open", lambda _url: is_closed.wait(10))
    started = trio.current_time()
    try:
        with trio.move_on_after(0.1) as scope:
            await open_browser("https://login.example/")
    finally:
        is_closed.set()
    assert scope.cancelled_caught
    assert trio.current_time() - started < 5


@pytest.mark.requirement("SEC-03")
@pytest.mark.parametrize(
    "answers",
    [
        {RESOURCE_URL: answer(b"", 302, location="https://169.254.169.254/")},
        {RESOURCE_URL: answer({**RESOURCE, "authorization_servers": ["https://127.0.0.1:6379"]})},
        {SERVER_URL: answer(b"", 302, location="http://localhost/")},
        {SERVER_URL: answer({**SERVER_METADATA, "token_endpoint": "https://10.0.0.1/token"})},
        {
            SERVER_URL: answer(
                {**SERVER_METADATA, "registration_endpoint": "https://[::1]/register"}
            )
        },
    ],
)
def test_metadata_do_not_lead_to_this_computer(answers):
    conversation = Conversation(answers)
    with pytest.raises(AuthorizationError, match=r"this computer or a private network|https://"):
        conversation.run()
    assert conversation.hosts() <= {"mcp.example", "login.example"}


def test_a_challenge_does_not_lead_to_this_computer():
    conversation = Conversation()
    with pytest.raises(AuthorizationError, match="this computer"):
        conversation.run(challenged('Bearer resource_metadata="https://127.0.0.1:2375/"'))
    assert conversation.sent == []


@pytest.mark.requirement("SEC-03")
@pytest.mark.parametrize(
    ("ours", "theirs", "trusted", "is_fetched"),
    [
        (None, "127.0.0.1", (), False),
        ("93.184.216.34", "169.254.169.254", (), False),
        ("93.184.216.34", "10.0.0.7", (), False),
        ("93.184.216.34", "10.0.0.7", {"login.example"}, True),
        ("10.0.0.1", "10.0.0.7", (), True),
        ("10.0.0.1", "127.0.0.1", (), False),
        ("93.184.216.34", "1.1.1.1", (), True),
        (None, None, (), True),  # a proxy may know the names
    ],
)
async def test_names_that_lead_to_this_computer(servers, ours, theirs, trusted, is_fetched):
    fake, addresses = servers
    named = {"mcp.example": ours, "login.example": theirs}
    addresses.update({name: address for name, address in named.items() if address})
    auth = fake.auth(fake.oauth(trusted_hosts=trusted))
    async with fake.http(auth=auth) as http:
        if is_fetched:
            assert (await http.get(SERVER)).status_code == 405
            return
        with pytest.raises(AuthorizationError, match=r"login\.example is this computer or in a"):
            await http.get(SERVER)
    assert fake.count("login.example", SERVER_PATH) == 0


# Mix-up of authorization servers


@pytest.mark.requirement("AUTH-34", "AUTH-59", "TRAP-120")
async def test_a_code_of_an_honest_server_is_not_sent_to_another(servers):
    """The attack of RFC 9207, section 1: the login page of the honest server, other endpoints."""
    fake, _ = servers
    fake.server_metadata = {"authorization_endpoint": "https://honest.example/authorize"}

    async def log_in(url):
        return f"{await fake.log_in(url)}&iss=https%3A%2F%2Fhonest.example"

    auth = fake.auth(fake.oauth(on_authorize=log_in))
    async with fake.http(auth=auth) as http:
        with pytest.raises(AuthorizationError, match=r"is not from https://login\.example"):
            await http.get(SERVER)
    assert fake.token_requests == 0


# Sizes and loops


class Endless(httpx2.AsyncByteStream):
    """A body without an end, which counts what was read."""

    def __init__(self):
        self.chunks = 0

    async def __aiter__(self):
        while True:
            await trio.lowlevel.checkpoint()
            self.chunks += 1
            yield b"x" * 65536


@pytest.mark.parametrize("path", [RESOURCE_PATH, SERVER_PATH, "/register", "/token"])
async def test_a_response_without_end_is_not_read(servers, path):
    fake, _ = servers
    body = Endless()
    fake.overrides[path] = lambda _request: httpx2.Response(200, stream=body)
    assert "limits.authorization.document_bytes_max (262144) bytes" in await refusal(fake)
    assert body.chunks <= 5


@pytest.mark.parametrize("path", [RESOURCE_PATH, "/token"])
async def test_a_compressed_response_is_not_expanded(servers, path):
    fake, _ = servers
    data = gzip.compress(b" " * 10_000_000)
    fake.overrides[path] = lambda _request: httpx2.Response(
        200, headers={"content-encoding": "gzip"}, stream=httpx2.ByteStream(data)
    )
    assert "Content-Encoding 'gzip'" in await refusal(fake)


async def test_the_body_of_a_rejection_is_not_read(servers):
    fake, _ = servers
    body = Endless()
    plain = fake.serve

    def serve(request):
        response = plain(request)
        if response.status_code == 401:
            return httpx2.Response(401, headers=response.headers, stream=body)
        return response

    fake.overrides["/mcp"] = serve
    async with fake.http(auth=fake.auth()) as http:
        assert (await http.get(SERVER)).status_code == 405
    assert body.chunks == 0


async def test_redirects_of_an_endpoint_are_not_followed(servers):
    fake, _ = servers
    for path in ("/register", "/token"):
        fake.overrides[path] = httpx2.Response(307, headers={"location": "https://evil.example/"})
        assert "HTTP 307" in await refusal(fake)
        del fake.overrides[path]
    assert fake.count("evil.example", "/") == 0


async def test_redirects_in_a_circle_end(servers):
    fake, _ = servers
    url = f"https://mcp.example{RESOURCE_PATH}"
    fake.overrides[RESOURCE_PATH] = httpx2.Response(302, headers={"location": url})
    assert "redirects more than 3 times" in await refusal(fake)
    assert fake.count("mcp.example", RESOURCE_PATH) == 4


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"resource": 1}', b"\xff\xfe", b"null", b'"text"', b"{}"]
)
async def test_malformed_documents_are_no_documents(servers, body):
    fake, _ = servers
    fake.overrides[SERVER_PATH] = httpx2.Response(200, content=body)
    assert "has no metadata document" in await refusal(fake)


def test_a_server_cannot_put_lines_into_an_error():
    text = "a\x1b[31m\r\nb" * 1000
    conversation = Conversation({RESOURCE_URL: answer({**RESOURCE, "resource": text})})
    with pytest.raises(AuthorizationError) as caught:
        conversation.run()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2000


def test_settings_show_no_secret():
    client = token_set().client
    settings = FlowSettings(client=client)
    assert "registered-client" in repr(settings)


# Many processes

REFRESH = """
import sys, trio, httpx2
from mcp_trio.auth import FileTokenStore, OAuth, http_auth
async def main(url, folder):
    oauth = OAuth(store=FileTokenStore(folder), interactive=False)
    async with httpx2.AsyncClient(auth=http_auth(url, oauth), trust_env=False) as http:
        print((await http.get(url)).status_code)
trio.run(main, *sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.real_time
def test_of_eight_processes_one_refreshes(tmp_path):
    refreshes, lock = [], threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            is_valid = self.headers["Authorization"] == "Bearer new-token"
            self.send_response(200 if is_valid else 401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self):
            form = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                refreshes.append(form)
                # The refresh token is rotated: a second use of the old one is an error.
                is_first = len(refreshes) == 1
            body = (
                b'{"access_token":"new-token","token_type":"Bearer","expires_in":3600,'
                b'"refresh_token":"new-refresh"}'
                if is_first
                else b'{"error":"invalid_grant"}'
            )
            self.send_response(200 if is_first else 400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        origin = f"http://127.0.0.1:{server.server_port}"
        store = FileTokenStore(tmp_path)
        tokens = token_set(
            server=f"{origin}/mcp",
            resource=f"{origin}/mcp",
            issuer=origin,
            token_endpoint=f"{origin}/token",
            expires_at=1.0,
            renew_at=1.0,
        )
        write_tokens(store, tokens)
        command = [sys.executable, "-c", REFRESH, f"{origin}/mcp", str(tmp_path)]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
        statuses = [process.communicate(timeout=50)[0].strip() for process in processes]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert statuses == ["200"] * 8
    assert len(refreshes) == 1
    assert read_tokens(store, f"{origin}/mcp").refresh_token == "new-refresh"
