"""An authorization server beside the MCP endpoint, over HTTP."""

import functools
import json
import re
import time

import httpx2
import pytest

from mcp_trio import Client, Context, Server
from mcp_trio._auth.authorization_endpoints import Grant
from mcp_trio._server.http_serve import app_of
from mcp_trio.auth import (
    AuthorizationServer,
    DevelopmentLogin,
    MemoryTokenStore,
    OAuth,
    OAuthClient,
)
from mcp_trio.testing import allow_access
from tests.auth.authorizing import Clock


def notes(**settings):
    authorization = AuthorizationServer(login=DevelopmentLogin("ada"), **settings)
    server = Server("notes", auth=authorization)

    @server.tool
    async def whoami(*, ctx: Context) -> str:
        return f"{ctx.auth.subject}: {' '.join(sorted(ctx.auth.scopes))}"

    @server.tool(scopes=["notes:write"])
    async def write() -> str:
        return "written"

    return server


@pytest.mark.parametrize("host", ["native", "hypercorn"])
async def test_a_client_logs_in_and_uses_the_server(nursery, host):
    url = await nursery.start(functools.partial(notes().serve_http, port=0, server=host))
    store = MemoryTokenStore()
    async with Client(url, auth=OAuth(on_authorize=allow_access, store=store)) as client:
        assert (await client.call_tool("whoami")).data == "ada: notes:write"
        assert (await client.call_tool("write")).data == "written"
    async with Client(url, auth=OAuth(store=store, interactive=False)) as client:
        assert (await client.call_tool("whoami")).data == "ada: notes:write"
    nursery.cancel_scope.cancel()


async def test_other_tokens_are_rejected_and_a_revoked_one_at_once(nursery):
    clock = Clock(time.time())
    server, other = notes(now=clock), notes()
    url = await nursery.start(functools.partial(server.serve_http, port=0))
    other_url = await nursery.start(functools.partial(other.serve_http, port=0))
    authorization = server.auth.verifier
    endpoints = authorization.endpoints
    assert authorization.issuer == url.removesuffix("/mcp")

    async def token(endpoints, resource, now):
        grant = Grant(
            subject="ada",
            client_id="c",
            scopes=[],
            resource=resource,
            has_refresh=False,
            ends_at=now + 3600,
        )
        await endpoints._add("grant", grant, now=now, seconds=900)
        granted = OAuthClient(client_id="c"), "grant", (grant, [])
        return json.loads((await endpoints._with_tokens(*granted, now)).body)["access_token"]

    good = await token(endpoints, url, clock.now)
    async with httpx2.AsyncClient() as http:

        async def status(token):
            headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
            return (await http.post(url, headers=headers, json={})).status_code

        assert await status(good) == 400  # past the authentication
        foreign = await token(other.auth.verifier.endpoints, other_url, time.time())
        assert await status(foreign) == 401
        assert await status(f"{good}x") == 401
        clock.now += 1000
        assert await status(good) == 401
        clock.now -= 1000
        await endpoints.end_grant("grant", now=clock.now)
        assert await status(good) == 401
        challenge = await http.post(url, json={})
        assert challenge.status_code == 401
        metadata_url = re.search(
            r'resource_metadata="([^"]*)"', challenge.headers["www-authenticate"]
        )[1]
        metadata = (await http.get(metadata_url)).json()
        assert metadata["authorization_servers"] == [authorization.issuer]
    nursery.cancel_scope.cancel()


async def test_the_endpoints_need_no_credentials_and_bound_bodies(nursery):
    url = await nursery.start(functools.partial(notes().serve_http, port=0))
    issuer = url.removesuffix("/mcp")
    async with httpx2.AsyncClient(base_url=issuer) as http:
        metadata = await http.get("/.well-known/oauth-authorization-server")
        assert metadata.json()["issuer"] == issuer
        assert metadata.json()["scopes_supported"] == ["notes:write"]
        assert (await http.get("/jwks")).json()["keys"]
        assert (await http.get("/token")).status_code == 405
        large = await http.post("/register", content=b" " * 65537)
        assert large.status_code == 413

        async def pieces():
            for _ in range(20):
                yield b" " * 4096

        assert (await http.post("/register", content=pieces())).status_code == 413
        foreign = await http.post("/authorize", headers={"Origin": "https://evil.example"})
        assert foreign.status_code == 403
    nursery.cancel_scope.cancel()


def test_a_server_that_other_machines_reach_needs_another_login():
    server = notes(issuer="https://tools.example")
    with pytest.raises(ValueError, match="DevelopmentLogin lets everyone in"):
        app_of(server._sessions, {}, [("127.0.0.1", 8000)])


def test_a_path_of_the_authorization_server_is_taken():
    with pytest.raises(ValueError, match="has a handler of POST already"):
        notes().route("/token", methods=["POST"])(allow_access)


async def test_a_user_without_a_consent_page_is_an_error(nursery):
    url = await nursery.start(functools.partial(notes().serve_http, port=0))
    with pytest.raises(ValueError, match="no consent page, but status 400"):
        await allow_access(url.replace("/mcp", "/authorize"))
    nursery.cancel_scope.cancel()


def test_workers_need_a_storage_that_they_share():
    with pytest.raises(ValueError, match="workers need its storage="):
        notes().run("http", port=0, workers=2)
