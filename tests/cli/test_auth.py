"""`mcp-trio auth`: a login in a browser, its status, its end, and commands that use it."""

import itertools
import json
import re
import subprocess
import sys
import threading
import webbrowser

import httpx2
import pytest

from mcp_trio._auth.token_store import read_tokens, write_tokens
from mcp_trio.auth import FileTokenStore
from tests.auth.fake_servers import on_socket
from tests.auth.scripted_flows import token_set

pytestmark = pytest.mark.real_time


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """The folder of the tokens."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("MCP_TRIO_CLIENT_SECRET", raising=False)
    return tmp_path / "mcp-trio" / "auth"


@pytest.fixture
def fake():
    with on_socket() as servers:
        yield servers


@pytest.fixture
def browser(monkeypatch):
    """A browser whose user agrees at once; the titles of the pages that it showed."""
    pages, threads = [], []

    def browse(url):
        response = httpx2.get(url, follow_redirects=True, trust_env=False)
        pages.append(response.text)

    def start(url):
        threads.append(threading.Thread(target=browse, args=(url,)))
        threads[-1].start()
        return True

    monkeypatch.setattr("webbrowser.open", start)
    yield pages
    for thread in threads:
        thread.join()


@pytest.mark.requirement("AUTH-42")
def test_a_login_is_used_by_other_commands_until_the_logout(invoke, fake, browser, state):
    fake.required = {"tools/list": {"read"}}
    shown = invoke("auth", "login", fake.server, "--scope", "extra")
    assert shown.exit_code == 0, shown.output
    assert f"logged in to {fake.server} at {fake.issuer}\n" in shown.stdout
    assert invoke("call", fake.server, "x").stdout == "done\n"
    assert fake.logins >= 1

    (status,) = json.loads(invoke("auth", "status", "--json").stdout)
    assert (status["server"], status["issuer"]) == (fake.server, fake.issuer)
    assert {"read", "extra"} >= set(status["scopes"])
    table = invoke("auth", "status").stdout
    assert fake.server in table
    assert "is renewed" in table
    everything = shown.output + table + json.dumps(status)
    assert not [secret for secret in fake.secrets if secret in everything]

    shown = invoke("auth", "logout", fake.server)
    assert shown.stdout == f"logged out of {fake.server}\n"
    assert [each[:13] for each in fake.revoked] == ["refresh-token"]
    assert invoke("auth", "status").stdout == "no logins\n"
    shown = invoke("auth", "logout", fake.server)
    assert (shown.exit_code, shown.stderr) == (1, f"Error: no login to {fake.server}\n")


def test_a_command_without_a_login_says_how_to_log_in(invoke, fake):
    shown = invoke("call", fake.server, "x")
    assert shown.exit_code == 1
    assert f"mcp-trio auth login {fake.server}" in shown.stderr
    assert fake.logins == 0


def test_a_login_that_is_over_says_how_to_log_in_again(invoke, fake, browser):
    invoke("auth", "login", fake.server)
    fake.expire()
    fake.refresh_tokens.clear()
    shown = invoke("call", fake.server, "x")
    assert shown.exit_code == 1
    assert f"a user has to log in: mcp-trio auth login {fake.server}" in shown.stderr
    assert fake.logins == 1


def test_a_token_is_refreshed_by_a_command(invoke, fake, browser):
    invoke("auth", "login", fake.server)
    fake.expire()
    assert invoke("call", fake.server, "x").stdout == "done\n"
    assert (fake.logins, fake.refreshes) == (1, 1)


def test_an_authorization_header_takes_the_place_of_the_login(invoke, fake, browser):
    invoke("auth", "login", fake.server)
    fake.tokens["mine"] = set()
    invoke("call", fake.server, "x", "--header", "Authorization: Bearer mine")
    assert fake.authorizations()[-1] == "Bearer mine"


@pytest.mark.parametrize("is_pasted", [True, False])
def test_the_redirect_can_be_pasted_or_arrives_while_stdin_is_read(fake, is_pasted):
    command = [sys.executable, "-m", "mcp_trio", "auth", "login", fake.server, "--no-browser"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes) as process:
        shown = itertools.takewhile(lambda line: "paste" not in line, process.stderr)
        url = re.search(r"https?://\S+", "".join(shown))[0]
        page = httpx2.get(url, trust_env=False, follow_redirects=not is_pasted)
        if is_pasted:
            process.stdin.write(f"\n{page.headers['location']}\n")
            process.stdin.flush()
        assert process.wait(30) == 0, process.stderr.read()
    assert fake.logins == 1


def test_without_a_browser_the_url_is_printed(invoke, fake, browser, monkeypatch):
    urls, browse = [], webbrowser.open
    monkeypatch.setattr("webbrowser.open", lambda url: urls.append(url) or not browse(url))
    shown = invoke("auth", "login", fake.server)
    assert shown.exit_code == 0, shown.output
    assert urls[0] in shown.stderr


def test_a_logout_forgets_the_client_unless_another_server_uses_it(invoke, fake, browser, state):
    store = FileTokenStore(state)
    invoke("auth", "login", fake.server)
    write_tokens(store, token_set(server="https://second.example/mcp", issuer=fake.issuer))
    invoke("auth", "logout", fake.server)
    assert store.names("client") == [fake.issuer]
    invoke("auth", "logout", "https://second.example/mcp")
    assert store.names("client") == []


def test_a_logout_says_whether_the_token_was_revoked(invoke, fake, browser):
    fake.server_metadata = {"revocation_endpoint": None}
    invoke("auth", "login", fake.server)
    shown = invoke("auth", "logout", fake.server)
    assert shown.stdout.endswith("revokes no tokens: it is valid until it expires\n")
    fake.server_metadata = {}
    fake.overrides["/revoke"] = httpx2.Response(400, json={"error": "invalid_client"})
    invoke("auth", "login", fake.server)
    shown = invoke("auth", "logout", fake.server)
    assert (shown.exit_code, fake.revoked) == (1, [])
    assert "is removed, but was not revoked" in shown.stderr
    assert "invalid_client" in shown.stderr
    assert invoke("auth", "status").stdout == "no logins\n"
    invoke("auth", "login", fake.server)
    requests = len(fake.requests)
    assert invoke("auth", "logout", fake.server, "--local").exit_code == 0
    assert len(fake.requests) == requests


@pytest.mark.requirement("AUTH-51")
def test_the_secret_of_a_registered_client_comes_from_a_variable(
    invoke, fake, browser, monkeypatch, state
):
    monkeypatch.setenv("MCP_TRIO_CLIENT_SECRET", "my-secret")
    shown = invoke("auth", "login", fake.server, "--client-id", "mine")
    assert shown.exit_code == 0, shown.output
    (request,) = [each for each in fake.requests if each.url.path == "/token"]
    assert b"client_secret=my-secret" in request.content
    assert not [path for path in state.iterdir() if b"my-secret" in path.read_bytes()]


def test_a_server_without_authorization_needs_no_login(invoke, fake):
    fake.tokens[""] = set()
    shown = invoke("auth", "login", fake.server)
    assert shown.stdout == f"{fake.server} requires no login\n"


def test_a_login_that_fails_leaves_the_one_before(invoke, fake, browser, state):
    invoke("auth", "login", fake.server)
    before = read_tokens(FileTokenStore(state), fake.server)
    fake.overrides["/token"] = lambda _request: httpx2.Response(400, json={"error": "no"})
    shown = invoke("auth", "login", fake.server)
    assert shown.exit_code == 1
    assert "issued no token: no" in shown.stderr
    assert read_tokens(FileTokenStore(state), fake.server) == before


@pytest.mark.requirement("AUTH-42")
def test_a_file_that_others_can_read_is_not_used(invoke, fake, browser, state):
    invoke("auth", "login", fake.server)
    (path,) = state.glob("token-*.json")
    path.chmod(0o644)
    shown = invoke("call", fake.server, "x")
    assert shown.exit_code == 2
    assert "other users can read or write these tokens" in shown.stderr
    assert invoke("auth", "logout", fake.server).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("login", "server.py"), "http(s):// URL"),
        (("login", "ws://127.0.0.1:1/"), "http(s):// URL"),
        (("logout", "unix:/run/x"), "http(s):// URL"),
        (("login", "https://[::1/mcp"), "the URL is invalid"),
        (("logout", "https://[::1/mcp"), "the URL is invalid"),
        (("login", "http://127.0.0.1:1/mcp", "--scope", "a b"), "not a valid scope"),
        (("login", "http://127.0.0.1:1/mcp", "--metadata-url", "x"), "metadata_url="),
    ],
)
def test_wrong_usage_of_auth_exits_with_status_2(invoke, arguments, text):
    shown = invoke("auth", *arguments)
    assert shown.exit_code == 2
    assert text in shown.stderr


def test_a_command_with_an_invalid_url_exits_with_status_2(invoke):
    shown = invoke("call", "https://[::1/mcp", "tool")
    assert (shown.exit_code, "the URL is invalid" in shown.stderr) == (2, True)


def test_auth_status_shows_when_each_token_expires(invoke, state):
    store = FileTokenStore(state)
    for name, changes in {
        "a": {"expires_at": None},
        "b": {"expires_at": 1.0},
        "c": {"expires_at": 1e11},
    }.items():
        write_tokens(store, token_set(server=f"https://{name}", refresh_token=None, **changes))
    lines = invoke("auth", "status").stdout.splitlines()
    assert [re.split(r"\s{2,}", line)[2].split()[0] for line in lines[1:]] == [
        "unknown",
        "has",
        "in",
    ]
