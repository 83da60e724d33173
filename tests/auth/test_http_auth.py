"""Tokens for the requests of a client: one login for all, renewed in time, never shown."""

import base64
import hashlib
import json
import logging

import httpx2
import pytest
import trio
from joserfc import jwt
from joserfc.jwk import ECKey

from mcp_trio import Client, ClientGroup, ConnectionLost, Server
from mcp_trio._auth.http_auth import ProofKey, RedirectListener
from mcp_trio._auth.token_store import read_clients, read_tokens
from mcp_trio._transports.http_libraries import send
from mcp_trio.auth import (
    Bearer,
    ClientCredentials,
    EnterpriseManaged,
    FileTokenStore,
    MemoryTokenStore,
    OAuth,
    TokenExchange,
    WorkloadIdentity,
    http_auth,
    log_out,
)
from mcp_trio.errors import AuthorizationError
from mcp_trio.limits import AuthorizationLimits
from tests.auth.fake_servers import ISSUER, SERVER, FakeServers, Names

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}


@pytest.fixture
async def servers():
    previous = trio.socket.set_custom_hostname_resolver(Names(default="93.184.216.34"))
    yield FakeServers()
    trio.socket.set_custom_hostname_resolver(previous)


async def call(http, message=CALL):
    return await http.post(SERVER, json=message)


async def refused(http, message=CALL):
    """The text of the error with which a request fails."""
    with pytest.raises(AuthorizationError) as caught:
        await call(http, message)
    return str(caught.value)


# The life of a token


@pytest.mark.requirement("AUTH-07", "TRAP-122")
async def test_a_user_logs_in_once_and_every_request_has_the_token(servers):
    async with servers.http(auth=servers.auth()) as http:
        assert (await call(http)).status_code == 200
        assert (await call(http)).status_code == 200
        assert (await http.get(SERVER)).status_code == 405
        assert (await http.delete(SERVER)).status_code == 405
    first, *others = servers.authorizations()
    assert (first, servers.logins) == (None, 1)
    assert set(others) == {"Bearer access-token-3"}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("https://mcp.example:443/mcp", SERVER),
        ("https://user:password@MCP.example/mcp#x", SERVER),
        ("https://b\u00fccher.example/mcp", "https://xn--bcher-kva.example/mcp"),
    ],
)
async def test_the_url_of_a_server_may_be_written_in_another_way(servers, given, sent):
    servers.server = sent
    auth = http_auth(given, servers.oauth(), http=servers.http())
    async with servers.http(auth=auth) as http:
        assert (await http.post(given, json=CALL)).status_code == 200
    (token,) = servers.tokens
    async with servers.http(auth=http_auth(given, Bearer(token))) as http:
        assert (await http.post(given, json=CALL)).status_code == 200


@pytest.mark.requirement("AUTH-01")
async def test_a_server_that_requires_no_token_gets_none(servers):
    servers.tokens[""] = set()
    async with servers.http(auth=servers.auth()) as http:
        assert (await call(http)).status_code == 200
    assert (servers.authorizations(), len(servers.requests)) == ([None], 1)


async def test_requests_that_wait_share_one_login(servers):
    servers.token_delay = 1
    async with servers.http(auth=servers.auth()) as http, trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(call, http)
    assert (servers.logins, servers.token_requests) == (1, 1)
    assert servers.authorizations().count("Bearer access-token-3") == 20


@pytest.mark.requirement("AUTHX-02")
async def test_requests_that_wait_share_one_refresh_before_the_token_expires(servers):
    async with servers.http(auth=servers.auth()) as http:
        await call(http)
        servers.now += 3600 - 61
        await call(http)
        assert servers.refreshes == 0
        servers.now += 2
        servers.token_delay = 1
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(call, http)
    assert (servers.logins, servers.refreshes) == (1, 1)
    assert servers.authorizations().count(None) == 1


async def test_a_stored_token_that_is_rejected_is_refreshed_once_for_the_first_requests(
    servers, tmp_path
):
    oauth = servers.oauth(store=FileTokenStore(tmp_path))
    async with servers.http(auth=servers.auth(oauth)) as http:
        await call(http)
    servers.expire()
    replies = []
    async with servers.http(auth=servers.auth(oauth)) as http:

        async def call_and_note():
            replies.append((await call(http)).status_code)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(call_and_note)
    assert replies == [200] * 5
    assert (servers.logins, servers.refreshes) == (1, 1)


async def test_requests_do_not_wait_for_a_renewal_that_has_failed(servers, autojump_clock):
    async with servers.http(auth=servers.auth()) as http:
        await call(http)
        servers.now += 3600 - 30
        servers.token_delay = 1000
        started = trio.current_time()
        for _ in range(5):
            assert (await call(http)).status_code == 200
        assert trio.current_time() - started == AuthorizationLimits().request_seconds
        servers.token_delay = 0
        servers.expire()
        assert (await call(http)).status_code == 200
    assert (servers.logins, servers.refreshes) == (1, 1)


async def test_a_request_that_is_rejected_during_a_failing_renewal_logs_in(servers, autojump_clock):
    tokens_are_revoked = trio.Event()

    class SlowServers(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request):
            if request.url.path == "/mcp" and not tokens_are_revoked.is_set():
                await tokens_are_revoked.wait()
                await trio.sleep(0.5)  # The renewal begins.
            return await servers.handle_async_request(request)

    auth = servers.auth()
    async with servers.http(auth=auth) as http:
        await call(http)
    async with httpx2.AsyncClient(transport=SlowServers(), auth=auth) as http:
        replies = []

        async def call_and_note():
            replies.append((await call(http)).status_code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call_and_note)
            await trio.testing.wait_all_tasks_blocked()
            servers.expire()
            servers.refresh_tokens.clear()
            servers.now += 3600 - 30
            servers.token_delay = 1
            tokens_are_revoked.set()
            nursery.start_soon(call_and_note)
    assert replies == [200, 200]
    assert servers.logins == 2


@pytest.mark.requirement("TRAP-122", "TRAP-123", "AUTH-17")
async def test_a_token_that_is_rejected_is_refreshed_once(servers):
    async with servers.http(auth=servers.auth()) as http:
        await call(http)
        servers.expire()
        assert (await call(http)).status_code == 200
        servers.expire()
        servers.refresh_tokens.clear()
        assert (await call(http)).status_code == 200
    assert (servers.logins, servers.refreshes) == (2, 2)


async def test_a_renewal_that_fails_leaves_the_token_until_it_is_rejected(servers):
    async with servers.http(auth=servers.auth()) as http:
        await call(http)
        servers.now += 3600 - 30
        servers.overrides["/token"] = lambda _request: httpx2.Response(503)
        assert (await call(http)).status_code == 200
        servers.expire()
        assert "HTTP 503" in await refused(http)


async def test_a_token_without_a_lifetime_is_used_until_it_is_rejected(servers):
    servers.lifetime = None
    async with servers.http(auth=servers.auth()) as http:
        await call(http)
        servers.now += 1e9
        assert (await call(http)).status_code == 200
    assert servers.refreshes == 0


async def test_an_expiring_token_without_a_refresh_token_is_used(servers):
    servers.issues_refresh_tokens = False
    async with servers.http(auth=servers.auth()) as http:
        await call(http)
        servers.now += 3599
        await call(http)
    assert (servers.logins, servers.token_requests) == (1, 1)


@pytest.mark.requirement("TRAP-123")
async def test_a_server_that_rejects_every_token_gets_one_login(servers):
    challenge = {"WWW-Authenticate": "Bearer"}
    servers.overrides["/mcp"] = lambda _request: httpx2.Response(401, headers=challenge)
    async with servers.http(auth=servers.auth()) as http:
        assert (await call(http)).status_code == 401
        assert servers.logins == 1
        # The next request tries a refresh, and then leaves it at that, too.
        assert (await call(http)).status_code == 401
    assert (servers.logins, servers.refreshes) == (1, 1)


@pytest.mark.requirement("AUTH-67", "AUTH-68", "TRAP-123")
async def test_more_scopes_are_requested_when_a_request_needs_them(servers):
    servers.required = {"tools/list": {"basic"}, "tools/call": {"write"}}
    async with servers.http(auth=servers.auth()) as http:
        await call(http, {**CALL, "method": "tools/list"})
        assert (await call(http)).status_code == 200
    assert servers.logins == 2
    assert [*servers.tokens.values()] == [{"basic"}, {"basic", "write"}]


@pytest.mark.requirement("AUTH-67", "TRAP-123")
async def test_scopes_that_were_requested_in_vain_are_not_requested_again(servers):
    challenge = {"WWW-Authenticate": 'Bearer error="insufficient_scope", scope="admin"'}

    def serve(request):
        if "authorization" not in request.headers:
            return httpx2.Response(401, headers={"WWW-Authenticate": 'Bearer scope="basic"'})
        return httpx2.Response(403, headers=challenge)

    servers.overrides["/mcp"] = serve
    async with servers.http(auth=servers.auth()) as http:
        assert (await call(http)).status_code == 403
        assert (await call(http)).status_code == 403
    assert servers.logins == 2


async def test_a_server_that_asks_for_ever_more_scopes_gets_three_logins(servers):
    def serve(request):
        if "authorization" not in request.headers:
            return httpx2.Response(401, headers={"WWW-Authenticate": "Bearer"})
        challenge = f'Bearer error="insufficient_scope", scope="s{servers.logins}"'
        return httpx2.Response(403, headers={"WWW-Authenticate": challenge})

    servers.overrides["/mcp"] = serve
    async with servers.http(auth=servers.auth()) as http:
        assert (await call(http)).status_code == 403
    assert servers.logins == 3


async def test_a_403_for_another_reason_is_left_alone(servers):
    servers.overrides["/mcp"] = httpx2.Response(403)
    async with servers.http(auth=servers.auth()) as http:
        assert (await call(http)).status_code == 403
    assert servers.logins == 0


@pytest.mark.requirement("AUTH-56", "TRAP-125")
async def test_another_authorization_server_in_the_midst_of_a_session(servers):
    async with servers.http(auth=servers.auth()) as http:
        await call(http)
        servers.expire()
        servers.issuer = "https://second.example"
        assert (await call(http)).status_code == 200
    assert servers.count("second.example", "/register") == 1
    assert servers.refreshes == 0
    # The refresh token of the first one is not used any more.
    (revocation,) = [each for each in servers.requests if each.url.path == "/revoke"]
    assert revocation.url.host == "login.example"
    assert b"token=refresh-token-" in revocation.content


async def test_a_token_that_cannot_be_revoked_does_not_hinder_the_next(servers):
    servers.overrides[f"{ISSUER}/revoke"] = httpx2.Response(500)
    async with servers.http(auth=servers.auth()) as http:
        await call(http)
        servers.expire()
        servers.issuer = "https://second.example"
        assert (await call(http)).status_code == 200
    servers.server_metadata = {"revocation_endpoint": None}
    async with servers.http(auth=servers.auth()) as http:
        for issuer in ("https://third.example", "https://fourth.example"):
            servers.expire()
            servers.issuer = issuer
            assert (await call(http)).status_code == 200
    assert servers.count("login.example", "/revoke") == 1


async def test_more_scopes_leave_the_refresh_token_before_alone(servers):
    async with servers.http(auth=servers.auth()) as http:
        await call(http)
        servers.required = {"tools/call": {"files"}}
        assert (await call(http)).status_code == 200
    assert (servers.logins, servers.revoked) == (2, [])


@pytest.mark.requirement("AUTHX-26")
async def test_a_logout_revokes_the_token_and_forgets_the_client(servers, tmp_path):
    store = FileTokenStore(tmp_path)
    oauth = servers.oauth(store=store)
    async with servers.http(auth=servers.auth(oauth)) as http:
        await call(http)
        assert await log_out(SERVER, oauth, http=servers.http()) == "revoked"
        assert [each[:13] for each in servers.revoked] == ["refresh-token"]
        assert (store.names("token"), store.names("client")) == ([], [])
        assert await log_out(SERVER, oauth, http=servers.http()) == "absent"
        # A client that is connected logs in again, once the server rejects its token.
        servers.expire()
        assert (await call(http)).status_code == 200
    assert servers.logins == 2


async def test_a_logout_says_that_a_token_was_not_revoked(servers):
    oauth = servers.oauth()
    for metadata, override in (({}, httpx2.Response(503)), ({"revocation_endpoint": None}, None)):
        servers.server_metadata = metadata
        servers.overrides = {"/revoke": override}
        async with servers.http(auth=servers.auth(oauth)) as http:
            servers.expire()
            await call(http)
        if override is None:
            assert await log_out(SERVER, oauth, http=servers.http()) == "removed"
        else:
            with pytest.raises(AuthorizationError, match="did not revoke the token: HTTP 503"):
                await log_out(SERVER, oauth, http=servers.http())
        assert oauth.store.names("token") == []
    with pytest.raises(ValueError, match="URL"):
        await log_out("server.py", oauth)


@pytest.mark.requirement("AUTH-12")
async def test_another_origin_gets_no_token(servers):
    auth = servers.auth()
    async with servers.http(auth=auth) as http:
        await call(http)
        await http.get("https://elsewhere.example/mcp")
        await http.get("http://mcp.example/mcp")
    assert not any("authorization" in request.headers for request in servers.requests[-2:])


def test_a_blocking_client_is_refused():
    for credentials in (OAuth(store=MemoryTokenStore()), Bearer("t")):
        auth = http_auth(SERVER, credentials)
        transport = httpx2.MockTransport(lambda _request: httpx2.Response(200))
        with (
            httpx2.Client(auth=auth, transport=transport) as http,
            pytest.raises(RuntimeError, match=r"needs an httpx2\.AsyncClient on Trio"),
        ):
            http.get(SERVER)


# Cancellation


async def test_a_request_that_is_cancelled_leaves_the_login_to_the_others(servers, autojump_clock):
    servers.token_delay = 10
    async with servers.http(auth=servers.auth()) as http, trio.open_nursery() as nursery:
        nursery.start_soon(call, http)
        await trio.sleep(1)
        with trio.move_on_after(1):
            await call(http)
    assert servers.logins == 1
    assert "Bearer access-token-3" in servers.authorizations()


async def test_a_login_that_no_request_waits_for_ends(servers, autojump_clock):
    async def never(_url):
        await trio.sleep_forever()

    auth = servers.auth(servers.oauth(on_authorize=never))
    async with servers.http(auth=auth) as http:
        with trio.move_on_after(1):
            await call(http)
        auth.credentials = servers.oauth()  # the next login succeeds
        assert (await call(http)).status_code == 200


@pytest.mark.requirement("AUTH-42")
async def test_a_token_that_was_being_issued_is_kept_when_its_request_is_cancelled(
    servers, autojump_clock
):
    servers.token_delay = 10
    oauth = servers.oauth()
    async with servers.http(auth=servers.auth(oauth)) as http:
        with trio.move_on_after(5):
            await call(http)
        await trio.sleep(10)
        assert read_tokens(oauth.store, SERVER).access_token == "access-token-3"
        servers.token_delay = 0
        assert (await call(http)).status_code == 200
    assert servers.logins == 1


async def test_a_user_who_does_not_log_in_is_not_waited_for_for_ever(servers, autojump_clock):
    async def never(_url):
        await trio.sleep_forever()

    limits = AuthorizationLimits(login_seconds=60)
    async with servers.http(
        auth=servers.auth(servers.oauth(on_authorize=never), limits=limits)
    ) as http:
        assert "no login within limits.authorization.login_seconds (60)" in await refused(http)


async def test_an_authorization_server_that_hangs_is_not_waited_for_for_ever(
    servers, autojump_clock
):
    servers.token_delay = 1e6
    async with servers.http(auth=servers.auth()) as http:
        assert "within limits.authorization.request_seconds (30)" in await refused(http)


# Stores


@pytest.mark.requirement("AUTH-42", "AUTH-54")
async def test_the_token_and_the_client_are_stored(servers, tmp_path):
    store = FileTokenStore(tmp_path)
    async with servers.http(auth=servers.auth(servers.oauth(store=store))) as http:
        await call(http)
    assert read_tokens(store, SERVER).access_token == "access-token-3"
    assert read_clients(store)[ISSUER].client_secret == "client-secret-1"
    async with servers.http(auth=servers.auth(servers.oauth(store=store))) as http:
        assert (await call(http)).status_code == 200
    assert servers.logins == 1


async def test_a_stored_token_is_used_only_if_it_is_of_the_issuer_in_the_options(servers):
    store = MemoryTokenStore()
    for options in ({}, {"issuer": ISSUER}):
        async with servers.http(auth=servers.auth(servers.oauth(store=store, **options))) as http:
            assert (await call(http)).status_code == 200
    assert servers.logins == 1
    other = servers.oauth(store=store, issuer="https://other.example")
    async with servers.http(auth=servers.auth(other)) as http:
        with pytest.raises(AuthorizationError, match="the settings name the authorization server"):
            await call(http)


@pytest.mark.requirement("AUTH-42")
async def test_the_password_of_a_url_is_not_stored(servers, tmp_path):
    store = FileTokenStore(tmp_path)
    servers.server = "https://me:password@MCP.example/mcp"
    auth = servers.auth(servers.oauth(store=store))
    servers.server = SERVER
    async with servers.http(auth=auth) as http:
        await call(http)
    assert store.names("token") == [SERVER]
    assert not [path for path in tmp_path.iterdir() if b"password" in path.read_bytes()]


async def test_a_client_that_is_registered_is_used_for_the_next_login(servers, tmp_path):
    store = FileTokenStore(tmp_path)
    redirect = "https://host.example/callback"
    for _ in range(2):
        oauth = servers.oauth(store=store, redirect=redirect)
        async with servers.http(auth=servers.auth(oauth)) as http:
            await call(http)
        store.remove("token", SERVER)
    assert (servers.logins, servers.count("login.example", "/register")) == (2, 1)


@pytest.mark.parametrize("failure", ["a page with an error", "a cancelled call", "invalid_client"])
async def test_a_client_that_is_not_known_any_more_is_registered_again(
    servers, failure, autojump_clock
):
    store = MemoryTokenStore()

    async def see_error_page(_url):
        await trio.sleep_forever()

    async def log_in(**options):
        oauth = servers.oauth(store=store, redirect="https://host.example/callback", **options)
        async with servers.http(auth=servers.auth(oauth)) as http:
            await call(http)
        store.remove("token", SERVER)

    await log_in()
    if failure == "invalid_client":
        servers.overrides["/token"] = httpx2.Response(401, json={"error": failure})
        with pytest.raises(AuthorizationError, match=failure):
            await log_in()
        servers.overrides.clear()
    elif failure == "a cancelled call":
        with trio.move_on_after(10):
            await log_in(on_authorize=see_error_page)
    else:
        with pytest.raises(AuthorizationError, match="no login within"):
            await log_in(on_authorize=see_error_page)
    assert servers.count("login.example", "/register") == 1
    await trio.sleep(1)  # The flow of a cancelled call ends by itself.
    await log_in()
    assert servers.count("login.example", "/register") == 2


async def test_the_token_of_another_client_is_not_used(servers):
    store = MemoryTokenStore()
    async with servers.http(auth=servers.auth(servers.oauth(store=store))) as http:
        await call(http)
    oauth = servers.oauth(store=store, client_id="mine", client_secret="s")
    async with servers.http(auth=servers.auth(oauth)) as http:
        await call(http)
    assert servers.logins == 2


async def test_a_token_that_another_process_has_renewed_is_used(servers):
    oauth = servers.oauth()
    async with (
        servers.http(auth=servers.auth(oauth)) as ours,
        servers.http(auth=servers.auth(oauth)) as theirs,
    ):
        await call(ours)
        await call(theirs)
        servers.now += 3590
        await call(theirs)
        await call(ours)
    assert (servers.logins, servers.refreshes) == (1, 1)


async def test_a_server_that_another_process_logs_in_to_is_waited_for(servers, autojump_clock):
    oauth = servers.oauth()
    release = oauth.store.try_lock(SERVER)
    async with servers.http(auth=servers.auth(oauth)) as http:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, http)
            await trio.sleep(100)
            assert servers.logins == 0
            release()
        assert servers.logins == 1
        oauth.store.remove("token", SERVER)
        servers.expire()
        oauth.store.try_lock(SERVER)
        assert "another process logs in" in await refused(http)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("the keyring is locked")]
)
async def test_a_store_that_cannot_be_written_is_reported_and_the_token_used(
    servers, caplog, error
):
    class Full(MemoryTokenStore):
        def write(self, *_arguments):
            raise error

    async with servers.http(auth=servers.auth(servers.oauth(store=Full()))) as http:
        assert (await call(http)).status_code == 200
    assert error.args[-1] in caplog.text


# Users


async def test_without_a_user_there_is_an_error(servers):
    auth = servers.auth(servers.oauth(interactive=False))
    async with servers.http(auth=auth) as http:
        assert "a user has to log in" in await refused(http)


async def test_a_user_names_a_client(servers):
    servers.server_metadata = {"registration_endpoint": None}

    async def ask(issuer):
        assert issuer == ISSUER
        return "named", "secret"

    oauth = servers.oauth(ask_for_client=ask)
    async with servers.http(auth=servers.auth(oauth)) as http:
        assert (await call(http)).status_code == 200
    assert read_tokens(oauth.store, SERVER).client.client_id == "named"
    async with servers.http(auth=servers.auth()) as http:
        assert "pass its id with client_id=" in await refused(http)


async def test_the_error_of_a_host_reaches_the_request(servers):
    async def fail(_url):
        raise ValueError("no screen")

    async with servers.http(auth=servers.auth(servers.oauth(on_authorize=fail))) as http:
        assert "no screen" in await refused(http)


async def test_a_host_without_a_listener_has_to_return_the_redirect(servers):
    async def forget(_url):
        return None

    oauth = servers.oauth(on_authorize=forget, redirect="https://host.example/callback")
    async with servers.http(auth=servers.auth(oauth)) as http:
        assert "on_authorize= returned None" in await refused(http)


@pytest.mark.real_time
@pytest.mark.requirement("AUTH-41")
async def test_the_browser_is_redirected_to_a_listener(servers):
    pages = []

    async def browse(url):
        target = await servers.log_in(url)
        assert target.startswith("http://127.0.0.1:")
        async with httpx2.AsyncClient(trust_env=False) as browser:
            forged = await browser.get(target.replace("state=", "state=x"))
            pages.append(forged.status_code)

        async def visit():
            async with httpx2.AsyncClient(trust_env=False) as browser:
                pages.append((await browser.get(target)).status_code)

        trio.lowlevel.spawn_system_task(visit)

    async with servers.http(auth=servers.auth(servers.oauth(on_authorize=browse))) as http:
        assert (await call(http)).status_code == 200
    assert pages[0] == 400


# DPoP


def decoded(proof):
    """The claims of a proof that is signed by the key in its header."""
    header = json.loads(part(proof, 0))
    assert (header["typ"], header["alg"]) == ("dpop+jwt", "ES256")
    assert "d" not in header["jwk"]
    return jwt.decode(proof, ECKey.import_key(header["jwk"])).claims


def part(token, number):
    """The decoded part of a JWT."""
    text = token.split(".")[number]
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@pytest.mark.requirement("AUTHX-16", "AUTHX-17")
def test_a_proof_names_its_request():
    key = ProofKey(None)
    key.note_nonce("https://h/a", "n")
    key.note_nonce("https://other/a", None)
    claims = decoded(key.proof("POST", "https://h/b?q#f", now=5.5, token_id="i", access_token="t"))
    assert claims == {
        "jti": "i",
        "htm": "POST",
        "htu": "https://h/b",
        "iat": 5,
        "nonce": "n",
        "ath": base64.urlsafe_b64encode(hashlib.sha256(b"t").digest()).decode().rstrip("="),
    }
    other = key.proof("GET", "https://other/", now=5, token_id="i")
    assert "nonce" not in decoded(other)
    header = json.loads(part(other, 0))
    assert (header["typ"], header["alg"]) == ("dpop+jwt", "ES256")
    assert "d" not in header["jwk"]
    assert ProofKey(key.jwk).jwk == key.jwk


@pytest.mark.requirement("AUTHX-18")
async def test_bound_tokens_are_sent_with_a_fresh_proof_each_time(servers):
    servers.token_type = "DPoP"
    oauth = servers.oauth()
    async with servers.http(auth=servers.auth(oauth)) as http:
        await call(http)
        await call(http)
    proofs = [each.headers["dpop"] for each in servers.requests if "dpop" in each.headers]
    claims = [decoded(proof) for proof in proofs]
    assert [each["htu"] for each in claims] == [f"{ISSUER}/token", SERVER, SERVER]
    assert len({each["jti"] for each in claims}) == 3
    assert servers.authorizations()[-1].startswith("DPoP ")
    # The key is stored with the token, for the next process.
    async with servers.http(auth=servers.auth(oauth)) as http:
        await call(http)
    assert part(servers.requests[-1].headers["dpop"], 0) == part(proofs[0], 0)


@pytest.mark.requirement("AUTHX-19")
async def test_a_nonce_of_the_server_is_used(servers):
    servers.token_type = "DPoP"
    plain = servers.serve

    def serve(request):
        proof = request.headers.get("dpop")
        if proof is None or decoded(proof).get("nonce") == "n1":
            return plain(request)
        return httpx2.Response(
            401,
            headers={"WWW-Authenticate": 'DPoP error="use_dpop_nonce"', "DPoP-Nonce": "n1"},
        )

    servers.overrides["/mcp"] = serve
    async with servers.http(auth=servers.auth()) as http:
        assert (await call(http)).status_code == 200
        assert (await call(http)).status_code == 200
    assert servers.logins == 1


# Programs


@pytest.mark.requirement("AUTHX-01", "AUTHX-02", "AUTHX-09", "AUTHX-10")
async def test_a_program_gets_and_renews_its_token(servers):
    servers.issues_refresh_tokens = False
    key = ECKey.generate_key("P-256")
    for credentials in (
        ClientCredentials(client_id="bot", secret="s"),
        ClientCredentials(client_id="bot", private_key=key.as_pem(private=True)),
        ClientCredentials(client_id="bot", private_key=key.as_dict(private=True)),
    ):
        servers.requests.clear()
        async with servers.http(auth=servers.auth(credentials)) as http:
            assert (await call(http)).status_code == 200
            servers.now += 3599
            assert (await call(http)).status_code == 200
        assert servers.token_requests == 2
        assert servers.logins == 0
    form = dict(httpx2.QueryParams(servers.requests[-2].content.decode()))
    claims = jwt.decode(form["client_assertion"], key).claims
    assert claims["iss"] == claims["sub"] == "bot"
    assert claims["aud"] == ISSUER
    assert claims["exp"] - claims["iat"] == 300
    assert claims["jti"]
    assert "client_id" not in form


async def test_a_key_that_does_not_fit_is_not_shown(servers):
    for key in ("not a key", ECKey.generate_key("P-384").as_dict(private=True)):
        credentials = ClientCredentials(client_id="bot", private_key=key)
        async with servers.http(auth=servers.auth(credentials)) as http:
            text = await refused(http)
        assert text == "the private_key cannot sign with algorithm 'ES256'"


@pytest.mark.requirement("AUTHX-15")
async def test_a_workload_reads_its_identity_each_time(servers, tmp_path):
    file = tmp_path / "token"
    credentials = WorkloadIdentity(client_id="pod", token=file)
    async with servers.http(auth=servers.auth(credentials)) as http:
        assert f"{file}: the token cannot be read" in await refused(http)
        file.write_text("identity\n")
        assert (await call(http)).status_code == 200
    assert b"assertion=identity&" in servers.requests[-2].content


async def test_an_identity_provider_may_be_in_a_private_network(servers):
    names = Names({"provider.corp": "10.0.0.7"}, default="93.184.216.34")
    trio.socket.set_custom_hostname_resolver(names)
    issued = {"access_token": "jag", "token_type": "N_A"}
    servers.overrides["https://provider.corp/token"] = httpx2.Response(200, json=issued)
    credentials = EnterpriseManaged(
        client_id="c",
        id_token="id",
        provider_token_endpoint="https://provider.corp/token",
        provider_client_id="p",
    )
    async with servers.http(auth=servers.auth(credentials)) as http:
        assert (await call(http)).status_code == 200


async def test_a_token_of_a_function_is_exchanged(servers):
    async def current():
        return "subject"

    for token in (current, lambda: "subject", "subject"):
        credentials = TokenExchange(client_id="x", token=token)
        async with servers.http(auth=servers.auth(credentials)) as http:
            assert (await call(http)).status_code == 200
        assert b"subject_token=subject&" in servers.requests[-2].content


async def test_a_given_token_is_read_again_when_it_is_rejected(servers):
    servers.tokens["second"] = set()
    current = ["first"]
    async with servers.http(auth=http_auth(SERVER, Bearer(lambda: current[0]))) as http:
        assert (await call(http)).status_code == 401
        assert len(servers.requests) == 1
        tokens = iter(["first", "second"])
        current[0] = "second"
        assert (await call(http)).status_code == 200
    async with servers.http(auth=http_auth(SERVER, Bearer(lambda: next(tokens)))) as http:
        assert (await call(http)).status_code == 200
        await http.get("https://elsewhere.example/")
    assert "authorization" not in servers.requests[-1].headers
    async with servers.http(auth=http_auth(SERVER, Bearer("a\nb"))) as http:
        assert "characters that no token may have" in await refused(http)


# In a client


def client(servers, **options):
    return Client(SERVER, **{"http": servers.http(), "auth": servers.oauth(), **options})


async def test_a_client_logs_in_when_it_connects(servers):
    servers.required = {"tools/call": {"write"}}
    async with client(servers) as connected:
        assert servers.logins == 1
        assert (await connected.call_tool("x")).content[0].text == "done"
    assert servers.logins == 2


async def test_requests_do_not_time_out_while_the_user_logs_in(servers, autojump_clock):
    async def think(url):
        await trio.sleep(200)  # `server/discover` has 5 seconds, and a call 60 without progress
        return await servers.log_in(url)

    servers.required = {"tools/call": {"write"}}
    async with client(servers, auth=servers.oauth(on_authorize=think)) as connected:
        assert (await connected.call_tool("x")).content[0].text == "done"
    assert servers.logins == 2


async def test_timeouts_of_requests_go_on_after_the_login(servers, autojump_clock):
    async def think(url):
        await trio.sleep(200)
        servers.overrides["/mcp"] = hang
        return await servers.log_in(url)

    def hang(_request):
        async def body():
            await trio.sleep_forever()
            yield b""

        return httpx2.Response(
            200, headers={"content-type": "text/event-stream"}, stream=_Hanging()
        )

    class _Hanging(httpx2.AsyncByteStream):
        async def __aiter__(self):
            await trio.sleep_forever()
            yield b""

    started = trio.current_time()
    with pytest.raises(Exception, match="no response"):
        await client(servers, auth=servers.oauth(on_authorize=think)).__aenter__()
    assert 235 <= trio.current_time() - started < 245


async def test_a_login_that_fails_is_the_error_of_the_client(servers):
    with pytest.raises(AuthorizationError, match="a user has to log in") as caught:
        await client(servers, auth=servers.oauth(interactive=False)).__aenter__()
    assert caught.value.code == "login_required"


@pytest.mark.requirement("AUTH-42", "AUTH-08")
async def test_no_secret_is_in_logs_errors_or_recordings(servers, tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    servers.required = {"tools/call": {"write"}}
    record = tmp_path / "session.mcprec.jsonl"
    oauth = servers.oauth(store=FileTokenStore(tmp_path / "store"))
    shown = []
    async with client(servers, auth=oauth, record=record) as connected:
        await connected.call_tool("x")
        servers.expire()
        servers.refresh_tokens.clear()
        await connected.call_tool("x")
        shown.append(repr(connected))
        servers.expire()
        for override in (
            httpx2.Response(400, json={"error": "invalid_grant"}),
            httpx2.Response(200, json={"access_token": "evil token", "token_type": "Bearer"}),
        ):
            servers.overrides["/token"] = override
            with pytest.raises(ConnectionLost) as caught:
                await connected.call_tool("x")
            shown += [str(caught.value), repr(caught.value)]
            servers.expire()
    tokens = read_tokens(oauth.store, SERVER)
    shown += [repr(tokens), str(tokens), repr(oauth), repr(servers.auth(oauth)), caplog.text]
    shown += [record.read_text(), *capfd.readouterr()]
    assert len(servers.secrets) > 5
    for secret in [*servers.secrets, "evil token"]:
        assert not [text for text in shown if secret in text], secret


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"auth": "basic"}, "not str"),
        ({"auth": 7}, "not int"),
        ({"auth": "oauth", "token": "t"}, "takes the place of token="),
        ({"auth": "oauth", "headers": {"authorization": "x"}}, "takes the place of token="),
    ],
)
async def test_auth_that_cannot_be_used_is_refused(options, text):
    with pytest.raises(TypeError, match=text):
        await Client(SERVER, **options).__aenter__()


@pytest.mark.requirement("AUTH-02", "AUTH-03", "AUTH-04")
async def test_auth_is_for_http_only():
    with pytest.raises(TypeError, match="http:// and https:// only"):
        await Client("ws://127.0.0.1:1/ws", auth="oauth").__aenter__()
    with pytest.raises(TypeError, match="for URLs only"):
        await Client(["program"], auth="oauth").__aenter__()


async def test_a_client_logs_in_by_the_http_client_of_either_library(servers, library):
    servers.required = {"tools/call": {"write"}}

    class Transport(library.AsyncBaseTransport):
        async def handle_async_request(self, request):
            return await send(servers, request)

    async with library.AsyncClient(transport=Transport()) as http:
        async with client(servers, http=http) as connected:
            assert (await connected.call_tool("x")).content[0].text == "done"
        assert servers.logins == 2  # the second one with the scope that the call requires


async def test_a_login_names_the_error_of_the_http_client_of_either_library(servers, library):
    class Unreachable(library.AsyncBaseTransport):
        async def handle_async_request(self, request):
            if request.url.path == "/token":
                raise library.ConnectError("the cable is cut")
            return await send(servers, request)

    async with library.AsyncClient(transport=Unreachable()) as http:
        with pytest.raises(AuthorizationError, match="/token cannot be reached: the cable is cut"):
            await client(servers, http=http).__aenter__()


@pytest.mark.requirement("AUTH-05")
async def test_an_auth_object_of_either_library_is_accepted(servers, library):
    class Given(library.Auth):
        def auth_flow(self, request):
            request.headers["Authorization"] = "Bearer given"
            yield request

    servers.tokens["given"] = set()
    async with client(servers, auth=Given()) as connected:
        await connected.call_tool("x")
    assert set(servers.authorizations()) == {"Bearer given"}


async def test_a_given_token_is_sent(servers):
    servers.tokens["given"] = set()
    async with client(servers, auth=Bearer("given")) as connected:
        await connected.call_tool("x")
    assert servers.logins == 0


@pytest.mark.requirement("AUTHX-01", "AUTHX-04")
@pytest.mark.parametrize(
    ("credentials", "extension"),
    [
        (ClientCredentials(client_id="bot", secret="s"), "oauth-client-credentials"),
        (
            EnterpriseManaged(
                client_id="c",
                id_token="id",
                provider_token_endpoint="https://provider.example/token",
                provider_client_id="p",
            ),
            "enterprise-managed-authorization",
        ),
    ],
)
async def test_a_client_announces_the_extension_of_its_credentials(servers, credentials, extension):
    issued = {"access_token": "jag", "token_type": "N_A"}
    servers.overrides["https://provider.example/token"] = httpx2.Response(200, json=issued)
    extensions = {"io.example/mine": {}}
    async with client(servers, auth=credentials, extensions=extensions):
        pass
    first = json.loads(servers.requests[0].content)
    capabilities = first["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    assert capabilities["extensions"] == {
        "io.example/mine": {},
        f"io.modelcontextprotocol/{extension}": {},
    }


async def test_a_group_has_authorization_for_each_of_its_servers(servers):
    here = Server("here")

    def auth(name):
        return servers.oauth() if name == "there" else None

    group = ClientGroup({"there": SERVER, "here": here}, auth=auth)
    there, own = group._new_client("there", SERVER), group._new_client("here", here)
    assert (type(there.auth), own.auth) == (OAuth, None)
    group = ClientGroup({"there": SERVER, "here": here}, auth="oauth")
    there, own = group._new_client("there", SERVER), group._new_client("here", here)
    assert (there.auth, own.auth) == ("oauth", None)


async def test_a_server_of_http_sse_gets_the_token_at_both_urls(servers):
    """The transport of 2024-11-05: a stream, and another URL of the same origin for messages."""
    answers = trio.open_memory_channel(10)

    class Events(httpx2.AsyncByteStream):
        async def __aiter__(self):
            yield b"event: endpoint\ndata: /messages?session=1\n\n"
            async for message in answers[1]:
                yield b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n"

    def stream(request):
        if request.method == "POST":
            return servers.serve(request) if is_rejected(request) else httpx2.Response(405)
        if is_rejected(request):
            return servers.serve(request)
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Events())

    def is_rejected(request):
        return request.headers.get("authorization", "").removeprefix("Bearer ") not in (
            servers.tokens
        )

    def take(request):
        posted.append(request.headers.get("authorization"))
        message = json.loads(request.content)
        if message.get("method") == "initialize":
            result = {
                "protocolVersion": "2024-11-05",
                "capabilities": {},
                "serverInfo": {"name": "old", "version": "1"},
            }
            answers[0].send_nowait({"jsonrpc": "2.0", "id": message["id"], "result": result})
        return httpx2.Response(202)

    posted = []
    servers.overrides["/mcp"] = stream
    servers.overrides["/messages"] = take
    async with client(servers, protocol_versions=["2024-11-05"]) as connected:
        assert connected.server_info.name == "old"
    assert servers.logins == 1
    assert set(posted) == {"Bearer access-token-3"}


# The settings of authorization: what is refused at once, and what is never shown.


async def on_authorize(_url):
    return None


@pytest.mark.requirement("AUTH-41", "AUTH-50", "AUTH-51")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"client_secret": "s"}, "client_secret= needs client_id="),
        ({"metadata_url": "http://client.example/a"}, "metadata_url= has to begin with https://"),
        ({"metadata_url": "https://client.example"}, "metadata_url= has to begin with https://"),
        ({"metadata_url": "client.example"}, "metadata_url= is not an http"),
        ({"redirect": "http://host.example/callback"}, "redirect= has to begin with https://"),
        ({"redirect": "https://host.example/callback"}, "on_authorize= has to return"),
        ({"redirect": "myapp:callback"}, "redirect= is not an http"),
        ({"issuer": "login.example"}, "issuer= is not an http"),
        ({"scopes": ["a b"]}, "not a valid scope"),
        ({"trusted_hosts": ["https://login.corp"]}, "without a scheme and a port"),
        ({"trusted_hosts": ["login.corp:8443"]}, "without a scheme and a port"),
    ],
)
def test_a_login_that_cannot_work_is_refused_at_once(options, text):
    with pytest.raises(ValueError, match=text):
        OAuth(**options)


def test_scopes_are_no_string():
    with pytest.raises(TypeError, match="scopes are a set of strings"):
        OAuth(scopes="a b")


def test_trusted_hosts_are_no_string():
    with pytest.raises(TypeError, match="trusted_hosts= is a set of strings"):
        ClientCredentials(client_id="bot", secret="s", trusted_hosts="login.corp")
    hosts = ["Login.corp", "10.0.0.1", "::1"]
    settings = OAuth(trusted_hosts=hosts).flow_settings()
    assert settings.trusted_hosts == {"login.corp", "10.0.0.1", "::1"}


@pytest.mark.parametrize("redirect", ["http://127.0.0.1:1/a", "http://localhost/a", None])
def test_a_loopback_redirect_needs_no_host(redirect):
    assert OAuth(redirect=redirect).is_redirected_here


def test_a_web_host_receives_the_redirect_itself():
    oauth = OAuth(redirect="https://host.example/callback", on_authorize=on_authorize)
    assert not oauth.is_redirected_here


@pytest.mark.parametrize("given", [{}, {"secret": "s", "private_key": "k"}])
def test_a_program_has_either_a_secret_or_a_key(given):
    with pytest.raises(ValueError, match="give exactly one of secret= and private_key="):
        ClientCredentials(client_id="bot", **given)


def test_a_server_has_a_url():
    with pytest.raises(ValueError, match="URL of a server"):
        http_auth("server.py", Bearer("t"))


@pytest.mark.requirement("AUTH-42")
@pytest.mark.parametrize(
    "credentials",
    [
        OAuth(client_id="c", client_secret="SECRET"),
        ClientCredentials(client_id="c", secret="SECRET"),
        ClientCredentials(client_id="c", private_key="SECRET"),
        EnterpriseManaged(
            client_id="c",
            client_secret="SECRET",
            id_token="SECRET",
            provider_token_endpoint="https://provider.example/token",
            provider_client_id="p",
            provider_client_secret="SECRET",
        ),
        WorkloadIdentity(client_id="c", token="SECRET"),
        TokenExchange(client_id="c", client_secret="SECRET", token="SECRET"),
        Bearer("SECRET"),
        http_auth("https://mcp.example/", Bearer("SECRET")),
        http_auth(
            "https://mcp.example/",
            OAuth(client_id="c", client_secret="SECRET", store=MemoryTokenStore()),
        ),
    ],
    ids=lambda given: type(given).__name__,
)
def test_no_secret_is_in_a_repr(credentials):
    assert "SECRET" not in repr(credentials)
    assert "SECRET" not in str(credentials)


# The listener for the redirect of a browser, and what else may connect to it.

LIMITS = AuthorizationLimits(redirect_bytes_max=2048, redirect_connections_max=2)
STATE = "the-state"


@pytest.fixture
async def listener():
    opened = await RedirectListener.open(None, LIMITS)
    yield opened
    await opened.aclose()


async def browse(url, method="GET"):
    async with httpx2.AsyncClient(trust_env=False) as browser:
        return await browser.request(method, url)


@pytest.mark.real_time
@pytest.mark.requirement("AUTH-41")
async def test_a_redirect_with_the_state_ends_the_wait(listener):
    assert listener.redirect_uri.startswith("http://127.0.0.1:")
    pages = []
    async with trio.open_nursery() as nursery:

        async def visit():
            pages.append(await browse(f"{listener.redirect_uri}?code=c&state={STATE}"))

        nursery.start_soon(visit)
        url = await listener.wait(STATE)
    assert url == f"{listener.redirect_uri}?code=c&state={STATE}"
    (page,) = pages
    assert page.status_code == 200
    assert "You can close this page" in page.text
    assert page.headers["content-security-policy"] == "default-src 'none'"
    assert page.headers["cache-control"] == "no-store"


@pytest.mark.real_time
@pytest.mark.requirement("AUTH-40")
async def test_other_requests_change_nothing(listener):
    base = listener.redirect_uri
    statuses = []
    async with trio.open_nursery() as nursery:

        async def visit():
            for method, url in [
                ("GET", f"{base}?code=c&state=forged"),
                ("GET", f"{base}?code=c"),
                ("GET", f"{base}?code=c&state={STATE}&state={STATE}"),
                ("GET", base.replace("callback", "favicon.ico")),
                ("GET", base.replace("callback", f"other?code=c&state={STATE}")),
                ("POST", f"{base}?code=c&state={STATE}"),
            ]:
                statuses.append((await browse(url, method)).status_code)
            await browse(f"{base}?error=access_denied&state={STATE}")

        nursery.start_soon(visit)
        url = await listener.wait(STATE)
    assert statuses == [400] * 6
    assert url.endswith(f"?error=access_denied&state={STATE}")


@pytest.mark.real_time
async def test_a_login_that_failed_says_so(listener):
    pages = []
    async with trio.open_nursery() as nursery:

        async def visit():
            pages.append(await browse(f"{listener.redirect_uri}?error=x&state={STATE}"))

        nursery.start_soon(visit)
        await listener.wait(STATE)
    assert "login has failed" in pages[0].text


@pytest.mark.real_time
@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01", b"GET / HTTP/1.1\r\n" + b"a" * 5000, b"", b"GET\r\n\r\n"]
)
async def test_a_peer_that_does_not_speak_http_changes_nothing(listener, data):
    port = int(listener.redirect_uri.split(":")[2].split("/")[0])
    async with trio.open_nursery() as nursery:

        async def visit():
            for _ in range(5):
                async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                    await stream.send_all(data)
            await browse(f"{listener.redirect_uri}?code=c&state={STATE}")

        nursery.start_soon(visit)
        assert await listener.wait(STATE)


@pytest.mark.real_time
async def test_a_request_target_that_is_no_url_changes_nothing(listener):
    port = int(listener.redirect_uri.split(":")[2].split("/")[0])
    async with trio.open_nursery() as nursery:

        async def visit():
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(b"GET //[ HTTP/1.1\r\nHost: x\r\n\r\n")
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 400 ")
            await browse(f"{listener.redirect_uri}?code=c&state={STATE}")

        nursery.start_soon(visit)
        assert await listener.wait(STATE)


@pytest.mark.real_time
async def test_a_host_with_several_addresses_leaves_no_listener_open(monkeypatch):
    opened = [*await trio.open_tcp_listeners(0, host="127.0.0.1")]
    opened += await trio.open_tcp_listeners(0, host="127.0.0.1")

    async def open_both(port, *, host):
        nursery.cancel_scope.cancel()
        return opened

    monkeypatch.setattr(trio, "open_tcp_listeners", open_both)
    async with trio.open_nursery() as nursery:
        listener = await RedirectListener.open("http://a.localhost:1/x", LIMITS)
    await listener.aclose()
    assert [each.socket.fileno() for each in opened] == [-1, -1]


@pytest.mark.real_time
async def test_a_given_port_is_used_and_one_that_is_in_use_is_an_error(listener):
    advice = r"choose another one by redirect="
    with pytest.raises(AuthorizationError, match=f"no redirect can be received at http.*{advice}"):
        await RedirectListener.open(listener.redirect_uri, LIMITS)
    uri = listener.redirect_uri.replace("127.0.0.1", "localhost").replace("/callback", "/x")
    await listener.aclose()
    other = await RedirectListener.open(uri, LIMITS)
    assert other.redirect_uri == uri
    await other.aclose()
