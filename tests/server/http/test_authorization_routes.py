"""An authorization server beside the MCP endpoint, over HTTP."""

import functools
import re
from html import unescape

import httpx2
import pytest

from mcp_trio import Client, Context, Server
from mcp_trio._auth.authorization_server import AuthorizationServer, DevelopmentLogin
from mcp_trio._server.authorization_routes import add_authorization_routes
from mcp_trio.auth import MemoryTokenStore, OAuth


async def allow(url):
    """Open the consent page, allow access, and return where the browser is sent."""
    async with httpx2.AsyncClient() as browser:
        page = await browser.get(url)
        assert page.status_code == 200, page.text
        action = unescape(re.search(r'action="([^"]*)"', page.text)[1])
        request_id = re.search(r'name="request" value="([^"]*)"', page.text)[1]
        form = {"request": request_id, "decision": "allow"}
        decided = await browser.post(
            action, data=form, headers={"Origin": action.rpartition("/")[0]}
        )
        assert decided.status_code == 303, decided.text
        return decided.headers["location"]


def protected():
    server, authorization = Server("notes"), AuthorizationServer(login=DevelopmentLogin("ada"))

    @server.tool
    async def whoami(*, ctx: Context) -> str:
        return ctx.principal

    async def verify(request):
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        try:
            return (await authorization.claims(token))["sub"]
        except ValueError:
            return None

    add_authorization_routes(server._sessions.routes, authorization)
    return server, authorization, verify


@pytest.mark.parametrize("host", ["native", "hypercorn"])
async def test_a_client_logs_in_and_uses_the_server(nursery, host):
    server, authorization, verify = protected()
    serve = functools.partial(server.serve_http, port=0, verify=verify, server=host)
    url = await nursery.start(serve)
    authorization.bind(url.removesuffix("/mcp"), [url])
    store = MemoryTokenStore()
    async with Client(url, auth=OAuth(on_authorize=allow, store=store)) as client:
        assert (await client.call_tool("whoami")).data == "ada"
    async with Client(url, auth=OAuth(store=store, interactive=False)) as client:
        assert (await client.call_tool("whoami")).data == "ada"
    nursery.cancel_scope.cancel()


async def test_the_endpoints_need_no_credentials_and_bound_bodies(nursery):
    server, authorization, verify = protected()
    url = await nursery.start(functools.partial(server.serve_http, port=0, verify=verify))
    issuer = url.removesuffix("/mcp")
    authorization.bind(issuer, [url])
    async with httpx2.AsyncClient(base_url=issuer) as http:
        metadata = await http.get("/.well-known/oauth-authorization-server")
        assert metadata.json()["issuer"] == issuer
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
