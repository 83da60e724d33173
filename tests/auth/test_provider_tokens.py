"""The kept tokens of an identity provider, and the calls of handlers with them."""

import functools
import re
import time
from html import unescape

import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import Client, Context, RequestError, Server, ToolError
from mcp_trio._auth.provider_tokens import CREDENTIALS, token_auth
from mcp_trio.auth import (
    AccessDenied,
    AuthInfo,
    AuthorizationServer,
    IdentityProvider,
    MemoryTokenStore,
    OAuth,
    ProviderToken,
    ResourceServer,
    SqliteStorage,
)
from mcp_trio.recording import replay
from tests.auth.authorizing import ISSUER
from tests.auth.scripted_provider import (
    PROVIDER,
    Browser,
    Provider,
    setting_of,
    target_of,
    tokens_of,
)


@pytest.fixture
def setting():
    return setting_of(keeps_tokens=True)


async def user_of(site, provider, **changes):
    """The facts about a user who has logged in, as a handler gets them."""
    _, tokens = await tokens_of(site, provider, **changes)
    return await site.server.verify(tokens["access_token"])


@pytest.mark.requirement("AUTH-30")
async def test_a_token_is_renewed_before_it_expires(setting):
    site, provider = setting
    login = site.server.login
    user = await user_of(site, provider)
    assert (await login.token_of(user)).value == "access-token-1"
    site.clock.seconds += 239
    assert (await login.token_of(user)).value == "access-token-1"
    site.clock.seconds += 1
    assert (await login.token_of(user)).value == "access-token-2"
    assert (await login.token_of(user)).value == "access-token-2"
    forms = [each.content.decode() for each in provider.requests if each.url.path == "/token"]
    assert len(forms) == 2
    assert "refresh_token=refresh-token-1" in forms[1]
    # A provider need not replace the refresh token.
    provider.tokens = {"refresh_token": None}
    for _ in range(2):
        site.clock.seconds += 300
        await login.token_of(user)
    assert "refresh_token=refresh-token-2" in provider.requests[-1].content.decode()


@pytest.mark.requirement("AUTH-30")
@pytest.mark.parametrize(("status", "error"), [(400, "invalid_grant"), (200, "bad_refresh_token")])
async def test_a_login_that_the_provider_has_ended_ends_all_its_tokens_here(setting, status, error):
    site, provider = setting
    login = site.server.login
    client_id, tokens = await tokens_of(site, provider)
    user = await site.server.verify(tokens["access_token"])
    site.clock.seconds += 300
    provider.refused, provider.refused_status = {"error": error}, status
    with pytest.raises(AccessDenied, match=r"the login at https://id\.example has ended"):
        await login.token_of(user)
    assert not await site.is_alive(tokens["access_token"])
    assert (await site.refresh(client_id, tokens["refresh_token"])).problem[1] == "invalid_grant"
    with pytest.raises(AccessDenied, match="is not logged in"):
        await login.token_of(user)


async def test_a_browser_whose_login_has_ended_logs_in_again(setting):
    site, provider = setting
    browser = Browser(site)
    begun = await browser.begin(await site.client_id())
    await browser.return_with(provider.log_in(begun.headers["location"]))
    assert "Signed in as" in (await browser.get(target_of(await site.client_id()))).text
    site.server.login.client_secret = "another"
    site.server.bind(ISSUER, [f"{ISSUER}/mcp"])
    # Tokens that another secret has encrypted cannot be read.
    assert "Next you sign in" in (await browser.get(target_of(await site.client_id()))).text


async def test_a_provider_that_is_away_ends_no_login(setting, caplog):
    site, provider = setting
    login = site.server.login
    user = await user_of(site, provider)
    provider.refused = {"error": "temporarily_unavailable"}
    site.clock.seconds += 250
    assert (await login.token_of(user)).value == "access-token-1"
    requests = len(provider.requests)
    assert (await login.token_of(user)).value == "access-token-1"
    assert len(provider.requests) == requests  # the next try is later
    site.clock.seconds += 50
    with pytest.raises(RequestError, match="gives no token now"):
        await login.token_of(user)
    provider.refused = None
    assert (await login.token_of(user)).value.startswith("access-token-")
    assert "is not renewed" in caplog.text


async def test_a_token_without_a_refresh_token_is_used_until_it_expires(setting):
    site, provider = setting
    login = site.server.login
    provider.tokens = {"refresh_token": None}
    user = await user_of(site, provider)
    site.clock.seconds += 299
    assert (await login.token_of(user)).value == "access-token-1"
    site.clock.seconds += 1
    with pytest.raises(AccessDenied, match="has ended"):
        await login.token_of(user)
    provider.tokens |= {"expires_in": None}
    forever = await user_of(site, provider)
    site.clock.seconds += 600
    assert (await login.token_of(forever)).value == "access-token-2"


class SlowRenewal:
    """A renewal that starts, and goes on when the test says so."""

    def __init__(self, login):
        self.started, self.finish = trio.Event(), trio.Event()
        self.renew, login._tokens.renew = login._tokens.renew, self

    async def __call__(self, refresh_token):
        self.started.set()
        await self.finish.wait()
        return await self.renew(refresh_token)


@pytest.mark.requirement("AUTH-30")
async def test_of_many_calls_one_renews_a_token(setting, autojump_clock):
    site, provider = setting
    login = site.server.login
    user = await user_of(site, provider)
    slow, found = SlowRenewal(login), []

    async def use():
        found.append((await login.token_of(user)).value)

    site.clock.seconds += 300
    async with trio.open_nursery() as nursery:
        nursery.start_soon(use)
        await slow.started.wait()
        for _ in range(3):
            nursery.start_soon(use)
        await trio.sleep(1)
        assert found == []
        slow.finish.set()
    assert found == ["access-token-2"] * 4
    # Before the old token has expired, the others use it.
    slow = SlowRenewal(login)
    site.clock.seconds += 250
    async with trio.open_nursery() as nursery:
        nursery.start_soon(use)
        await slow.started.wait()
        await use()
        assert found[4:] == ["access-token-2"]
        slow.finish.set()
    assert found[5:] == ["access-token-3"]


async def test_a_cancelled_call_keeps_the_token_that_was_just_issued(setting):
    site, provider = setting
    login = site.server.login
    user = await user_of(site, provider)
    site.clock.seconds += 300
    slow = SlowRenewal(login)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(login.token_of, user)
        await slow.started.wait()
        nursery.cancel_scope.cancel()
        slow.finish.set()
    assert (await login.token_of(user)).value == "access-token-2"


@pytest.mark.requirement("AUTH-30")
async def test_the_storage_has_no_readable_token(tmp_path):
    path = tmp_path / "authorization.sqlite"
    storage = SqliteStorage(path)
    site, provider = setting_of(keeps_tokens=True)
    site.server.storage = storage
    site.server.bind(ISSUER, [f"{ISSUER}/mcp"])
    await user_of(site, provider)
    storage.close()
    files = [each.read_bytes() for each in tmp_path.iterdir()]
    assert any(b"provider tokens" in each for each in files)
    assert not any(b"-token-1" in each for each in files)


async def test_only_users_of_the_provider_have_its_token(setting):
    site, _ = setting
    for user in (None, AuthInfo(subject="local"), AuthInfo(claims={"grant_id": "unknown"})):
        with pytest.raises(AccessDenied, match="not logged in at https"):
            await site.server.login.token_of(user)


def test_tokens_that_are_not_kept_cannot_be_used():
    login = IdentityProvider(issuer=PROVIDER, client_id="desk", client_secret="sesame")
    with pytest.raises(ValueError, match="keeps_tokens=True"):
        login.auth_of(None)


async def test_a_token_replaces_other_credentials_of_a_request():
    async def token():
        return "access-token-1"

    add = token_auth(token, lambda _: None)
    headers = [("authorization", "Basic eA=="), ("accept", "a"), ("accept", "b")]
    request = add(httpx2.Request("GET", "https://api.example/files", headers=headers))
    sent = await request.extensions[CREDENTIALS](request)
    assert sent.headers.get_list("authorization") == ["Bearer access-token-1"]
    assert sent.headers.get_list("accept") == ["a", "b"]


# Handlers.


def files_server(provider):
    login = IdentityProvider(
        issuer=PROVIDER,
        client_id="desk",
        client_secret="sesame",
        keeps_tokens=True,
        http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(provider.answer)),
    )
    server = Server("files", auth=ResourceServer(AuthorizationServer(login=login)))

    @server.tool
    async def sent(url: str, *, ctx: Context) -> str:
        response = await ctx.http.get(url, auth=login.auth_of(ctx.auth), follow_redirects=True)
        assert "authorization" not in response.request.headers
        return response.text

    @server.tool
    async def length(*, ctx: Context) -> int:
        async def call_api() -> int:
            return len((await login.token_of(ctx.auth)).value)

        return await ctx.effect(call_api)

    @server.tool
    async def careless(*, ctx: Context) -> str:
        async def token() -> ProviderToken:
            return await login.token_of(ctx.auth)

        return repr(await ctx.effect(token))

    return server


async def api(stream):
    """An API that answers with the token, hidden from searches, or redirects elsewhere."""
    request = (await stream.receive_some()).decode()
    target = request.split()[1]
    found = [line for line in request.splitlines() if line.lower().startswith("authorization")]
    body = found[0].rpartition("-")[2] if found else "none"
    status = "200 OK"
    if target.startswith("/to?"):
        status = f"302 Found\r\nLocation: {target.removeprefix('/to?')}"
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    await stream.send_all((head + body).encode())
    await stream.aclose()


async def origin_of(nursery):
    listeners = await nursery.start(functools.partial(trio.serve_tcp, api, 0, host="127.0.0.1"))
    port = listeners[0].socket.getsockname()[1]
    return f"http://127.0.0.1:{port}"


def user_at(provider):
    """A user who allows the access of a client, and logs in at the provider."""

    async def act(url):
        async with httpx2.AsyncClient() as browser:
            page = await browser.get(url)
            request_id = unescape(re.search(r'name="request" value="([^"]*)"', page.text)[1])
            form = {"request": request_id, "decision": "allow"}
            decided = await browser.post(url.partition("?")[0], data=form)
            values = provider.log_in(decided.headers["location"])
            reply = await browser.get(provider.callback, params=values)
            return reply.headers["location"]

    return act


async def used(folder, calls):
    """Record calls of a user; return the results, the provider, and the tokens of the client."""
    provider = Provider(clock=time.time)
    server = files_server(provider)
    store = MemoryTokenStore()
    results = []
    async with trio.open_nursery() as nursery:
        url = await nursery.start(functools.partial(server.serve_http, port=0, record=folder))
        provider.callback = f"{url.removesuffix('/mcp')}/callback"
        origins = [await origin_of(nursery) for _ in range(2)]
        login = OAuth(on_authorize=user_at(provider), store=store)
        async with Client(url, auth=login) as client:
            for name, arguments in calls:
                given = {key: value.format(*origins) for key, value in arguments.items()}
                try:
                    results.append((await client.call_tool(name, given)).content[0].text)
                except ToolError as error:
                    results.append(str(error))
            # A token of the provider is no token of this server.
            async with httpx2.AsyncClient() as http:
                for token in ("access-token-1", "refresh-token-1"):
                    headers = {"Authorization": f"Bearer {token}"}
                    results.append((await http.post(url, headers=headers, json={})).status_code)
        nursery.cancel_scope.cancel()
    return results


CALLS = [
    ("sent", {"url": "{0}/files"}),
    ("sent", {"url": "{0}/to?{0}/files"}),
    ("sent", {"url": "{0}/to?{1}/files"}),
    ("length", {}),
    ("careless", {}),
]


@pytest.mark.requirement("AUTH-30", "AUTH-72")
def test_a_handler_calls_an_api_as_its_user_and_a_replay_needs_no_token(tmp_path):
    results = trio.run(used, tmp_path, CALLS)
    # The API answers with the number of the token; the token does not follow to another origin.
    assert results[:4] == ["1", "1", "none", "14"]
    assert results[4] == "internal error in careless"
    assert results[5:] == [401, 401]
    files = [*tmp_path.glob("*.mcprec.jsonl*")]
    assert files
    for file in files:
        assert "-token-1" not in file.read_text()
        # The other server has no user, no storage with tokens, and no provider.
        report = replay(file, files_server(Provider(clock=None)))
        assert report.is_complete, report
