"""The official Python SDK 1 with authorization: `python python_1_tokens.py server|client URL`.

`server ISSUER` serves one tool to clients with tokens of an issuer, and prints its URL.
`client URL` logs in at a server and calls the tool. It prints the URL of the login page after
"authorize", reads the URL to which the browser was redirected, and prints the result after
"called".
"""

import socket
import sys
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx
import jwt
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider, TokenStorage
from mcp.client.streamable_http import streamablehttp_client
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken, TokenVerifier
from mcp.server.auth.settings import AuthSettings
from mcp.server.fastmcp import FastMCP
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

SCOPE = "files"


class Verifier(TokenVerifier):
    """Verifies the tokens of an issuer for one resource."""

    def __init__(self, issuer: str, resource: str) -> None:
        self.issuer, self.resource = issuer, resource
        keys = httpx.get(f"{issuer}/jwks", trust_env=False).json()["keys"]
        self.keys = {key["kid"]: jwt.PyJWK(key) for key in keys}

    async def verify_token(self, token: str) -> AccessToken | None:
        try:
            key = self.keys[jwt.get_unverified_header(token)["kid"]]
            algorithms = [key.algorithm_name]
            claims = jwt.decode(
                token, key.key, algorithms, audience=self.resource, issuer=self.issuer
            )
        except (jwt.PyJWTError, KeyError):
            return None
        scopes = claims["scope"].split()
        return AccessToken(token=token, client_id=claims["client_id"], scopes=scopes)


def serve(issuer: str) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    url = f"http://127.0.0.1:{port}/mcp"
    settings = AuthSettings(issuer_url=issuer, resource_server_url=url, required_scopes=[SCOPE])
    verifier = Verifier(issuer, url)
    server = FastMCP(
        "protected", token_verifier=verifier, auth=settings, port=port, log_level="ERROR"
    )

    @server.tool()
    async def whoami() -> str:
        """Return the client of the token."""
        found = get_access_token()
        return "no token" if found is None else f"scopes {' '.join(found.scopes)}"

    print(url, flush=True)
    server.run("streamable-http")


class Memory(TokenStorage):
    """Tokens in memory."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


async def call(url: str) -> None:
    async def redirect(page: str) -> None:
        print("authorize", page, flush=True)

    async def callback() -> tuple[str, str | None]:
        line = await anyio.to_thread.run_sync(sys.stdin.readline)
        query = parse_qs(urlsplit(line.strip()).query)
        return query["code"][0], query.get("state", [None])[0]

    metadata = OAuthClientMetadata(
        client_name="Python SDK",
        redirect_uris=["http://127.0.0.1:8765/callback"],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
    )
    oauth = OAuthClientProvider(url, metadata, Memory(), redirect, callback)
    async with (
        streamablehttp_client(url, auth=oauth) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        result = await session.call_tool("whoami", {})
        print("called", result.content[0].text, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(sys.argv[2])
    else:
        anyio.run(call, sys.argv[2])
