"""Log in with our client at a certified OpenID Connect provider: `python tools/interop/login.py`.

The provider is `oidc-provider` of npm. The MCP server that requires its tokens checks their
signature, audience and scopes with the provider's keys. Another MCP server has an authorization
server of its own in front of the provider, and calls the provider's API with the tokens of its
users. A user agrees to everything. Prints a line for each check; the exit status is 1 if one fails.
"""

import json
import re
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import urljoin, urlsplit

import httpx2
import trio
from install import ensure
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet
from peers import NODE, TYPESCRIPT

sys.path.append(str(Path(__file__).resolve().parents[1]))

from server_processes import free_port, running_server

from mcp_trio import Client, Context, Server
from mcp_trio.auth import (
    AuthorizationServer,
    IdentityProvider,
    MemoryTokenStore,
    OAuth,
    ResourceServer,
)

PACKAGE: Final = "oidc-provider"
PAGES_MAX: Final = 20
METADATA: Final = "/.well-known/oauth-protected-resource/mcp"
RESULTS: Final[dict[str, Any]] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "protected", "version": "1"},
    },
    "tools/call": {"content": [{"type": "text", "text": "done"}]},
}


class ProtectedServer(BaseHTTPRequestHandler):
    """An MCP server that requires tokens of the provider; `scopes` are those for a tool's call."""

    issuer: ClassVar[str]
    keys: ClassVar[Any]
    scopes: ClassVar[set[str]]
    requires_dpop: ClassVar[bool]
    rejected: ClassVar[set[str]]
    seen: ClassVar[list[str]]

    @property
    def origin(self) -> str:
        return f"http://{self.headers['Host']}"

    def do_GET(self) -> None:
        """Serve the metadata of this server."""
        if self.path != METADATA:
            self.respond(404, None)
            return
        document = {"resource": f"{self.origin}/mcp", "authorization_servers": [self.issuer]}
        self.respond(200, document)

    def do_POST(self) -> None:
        """Answer a request whose token suffices."""
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        named = f'resource_metadata="{self.origin}{METADATA}"'
        claims = self.claims_of(token)
        kind = "DPoP" if self.requires_dpop else "Bearer"
        if claims is None or scheme != kind or (self.requires_dpop and not self.is_bound(claims)):
            self.respond(401, None, f'{kind} {named}, scope="files"')
            return
        self.seen.append(token)
        needed = self.scopes if message["method"] == "tools/call" else {"files"}
        if not needed <= {*claims["scope"].split()}:
            names = " ".join(sorted(needed))
            error = f'{kind} error="insufficient_scope", scope="{names}", {named}'
            self.respond(403, None, error)
            return
        if "id" not in message:
            self.respond(202, None)
            return
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if message["method"] in RESULTS:
            answer["result"] = RESULTS[message["method"]]
        else:
            answer["error"] = {"code": -32601, "message": "unknown"}
        self.respond(200, answer)

    def claims_of(self, token: str) -> dict[str, Any] | None:
        """Return the claims of a valid token for this server."""
        if token in self.rejected:
            return None
        try:
            claims: dict[str, Any] = jwt.decode(token, self.keys, algorithms=["RS256"]).claims
        except (JoseError, ValueError):
            return None
        return claims if claims["aud"] == f"{self.origin}/mcp" else None

    def is_bound(self, claims: dict[str, Any]) -> bool:
        """Return whether the proof is for this request, by the key of the token."""
        proof = self.headers.get("DPoP", "")
        header = json.loads(_decoded(proof.partition(".")[0]))
        key = ECKey.import_key(header["jwk"])
        found = jwt.decode(proof, key, algorithms=["ES256"]).claims
        is_for_this = (found["htm"], found["htu"]) == ("POST", f"{self.origin}{self.path}")
        return is_for_this and claims["cnf"]["jkt"] == key.thumbprint()

    def respond(self, status: int, document: Any, challenge: str | None = None) -> None:
        body = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        if challenge is not None:
            self.send_header("WWW-Authenticate", challenge)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: Any) -> None:
        pass


def _decoded(part: str) -> bytes:
    from base64 import urlsafe_b64decode

    return urlsafe_b64decode(part + "=" * (-len(part) % 4))


@contextmanager
def provider() -> Generator[str]:
    """Run the provider while the block runs; yield its issuer."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(TYPESCRIPT.start("oidc_provider.mjs"), Path(folder, "log")) as process,
    ):
        yield process.url


@contextmanager
def protected_server(issuer: str) -> Generator[str]:
    """Run the MCP server, and return its URL."""
    keys = httpx2.get(f"{issuer}/jwks", trust_env=False).json()
    ProtectedServer.issuer, ProtectedServer.keys = issuer, KeySet.import_key_set(keys)
    ProtectedServer.scopes, ProtectedServer.requires_dpop = {"files"}, False
    ProtectedServer.rejected, ProtectedServer.seen = set(), []
    server = ThreadingHTTPServer(("127.0.0.1", 0), ProtectedServer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class User:
    """A user who logs in and agrees, in a browser without JavaScript.

    `hosts` are those whose pages belong to the login, beside the host of the first page.
    """

    def __init__(self, *hosts: str) -> None:
        self.hosts = hosts
        self.logins = 0

    async def agree(self, url: str) -> str | None:
        """Go through the pages of the login, to the redirect that leaves them."""
        self.logins += 1
        hosts = {urlsplit(url).netloc, *self.hosts}
        async with httpx2.AsyncClient(trust_env=False) as browser:
            response = await browser.get(url)
            for _ in range(PAGES_MAX):
                if response.is_redirect:
                    url = urljoin(url, response.headers["location"])
                    if urlsplit(url).netloc not in hosts:
                        return url
                    response = await browser.get(url)
                elif 'name="prompt" value="login"' in response.text:
                    form = {"prompt": "login", "login": "ada", "password": "any"}
                    response = await browser.post(url, data=form)
                elif 'name="prompt" value="consent"' in response.text:
                    response = await browser.post(url, data={"prompt": "consent"})
                elif found := re.search(r'name="request" value="([^"]+)"', response.text):
                    form = {"request": found[1], "decision": "allow"}
                    response = await browser.post(url.partition("?")[0], data=form)
                else:
                    raise SystemExit(f"{url} has no form: {response.text[:500]}")
        raise SystemExit("the login has no end")


async def check(url: str) -> list[tuple[str, bool]]:
    """Return the checks, and whether each of them holds."""
    user, rows = User(), list[tuple[str, bool]]()
    oauth = OAuth(store=MemoryTokenStore(), on_authorize=user.agree)
    async with Client(url, auth=oauth) as client:
        await client.call_tool("x")
        rows.append(("a user logs in once", user.logins == 1))
        ProtectedServer.rejected.update(ProtectedServer.seen)
        await client.call_tool("x")
        rows.append(("a rejected token is refreshed", user.logins == 1))
        ProtectedServer.scopes = {"files", "admin"}
        await client.call_tool("x")
        rows.append(("more scopes are granted", user.logins == 2))
    async with Client(url, auth=oauth) as client:
        await client.call_tool("x")
        rows.append(("the next client uses the stored token", user.logins == 2))
    ProtectedServer.scopes, ProtectedServer.requires_dpop = {"files"}, True
    bound = OAuth(store=MemoryTokenStore(), on_authorize=user.agree)
    async with Client(url, auth=bound) as client:
        await client.call_tool("x")
        ProtectedServer.rejected.update(ProtectedServer.seen)
        await client.call_tool("x")
    rows.append(("tokens are bound to a key, and refreshed", user.logins == 3))
    return rows


async def registered(issuer: str, redirect_uri: str) -> tuple[str, str]:
    """Register an application at the provider; return its id and secret."""
    metadata = {
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "client_name": "proxy",
    }
    async with httpx2.AsyncClient(trust_env=False) as http:
        response = await http.post(f"{issuer}/reg", json=metadata)
    answer = response.raise_for_status().json()
    return answer["client_id"], answer["client_secret"]


async def check_proxy(issuer: str) -> list[tuple[str, bool]]:
    """Return the checks of a server in front of the provider, and whether each of them holds."""
    offset, rows = 0.0, list[tuple[str, bool]]()
    tokens: list[str] = []
    port = free_port()
    client_id, secret = await registered(issuer, f"http://127.0.0.1:{port}/callback")
    provider = IdentityProvider(
        issuer=issuer,
        client_id=client_id,
        client_secret=secret,
        scopes=("openid", "offline_access"),
        parameters={"prompt": "consent"},
        keeps_tokens=True,
    )
    authorization = AuthorizationServer(login=provider, now=lambda: time.time() + offset)
    auth = ResourceServer(authorization, now=authorization.now)
    server = Server("proxy", auth=auth)

    @server.tool
    async def whoami(*, ctx: Context) -> str:
        response = await ctx.http.get(f"{issuer}/me", auth=provider.auth_of(ctx.auth))
        assert ctx.auth is not None
        return f"{ctx.auth.subject}, at the provider {response.json().get('sub')}"

    @server.tool
    async def note(*, ctx: Context) -> None:
        async def keep() -> None:
            tokens.append((await provider.token_of(ctx.auth)).value)

        await ctx.effect(keep)

    user = User(f"127.0.0.1:{urlsplit(issuer).port}")
    async with trio.open_nursery() as nursery:
        url = await nursery.start(partial(server.serve_http, port=port))
        oauth = OAuth(store=MemoryTokenStore(), on_authorize=user.agree)
        async with Client(url, auth=oauth) as client:
            result = await client.call_tool("whoami")
            rows.append(
                ("a handler calls the provider's API", result.data == "ada, at the provider ada")
            )
            await client.call_tool("note")
            offset = 3590.0
            result = await client.call_tool("whoami")
            await client.call_tool("note")
            renewed = len({*tokens}) == 2 and result.data == "ada, at the provider ada"
            rows.append(("the provider's token is renewed", renewed and user.logins == 1))
            async with httpx2.AsyncClient(trust_env=False) as http:
                headers = {"Authorization": f"Bearer {tokens[-1]}"}
                response = await http.post(url, headers=headers, json={})
            rows.append(("a token of the provider is rejected here", response.status_code == 401))
        nursery.cancel_scope.cancel()
    return rows


def main() -> None:
    ensure(NODE)
    ensure(TYPESCRIPT)
    with provider() as issuer:
        with protected_server(issuer) as url:
            rows = trio.run(check, url)
        rows += trio.run(check_proxy, issuer)
    print(f"{PACKAGE} {TYPESCRIPT.pins()[PACKAGE]}")
    for text, holds in rows:
        print(f"  {'ok' if holds else 'WRONG'}  {text}")
    sys.exit(0 if all(holds for _, holds in rows) else 1)


if __name__ == "__main__":
    main()
