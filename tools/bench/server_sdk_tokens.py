"""The server of `token_cost.py` on the official Python SDK: `server_sdk_tokens.py PORT [KEYS]`.

With KEYS, a JSON Web Key Set, it requires JSON Web Tokens. The SDK leaves their verification to the
user: here PyJWT, which the SDK installs, does it for each request.
"""

import json
import sys

import jwt  # type: ignore[import-not-found]
from mcp.server.auth.provider import AccessToken, TokenVerifier  # type: ignore[import-not-found]
from mcp.server.auth.settings import AuthSettings  # type: ignore[import-not-found]
from mcp.server.mcpserver import MCPServer  # type: ignore[import-not-found]

ISSUER = "https://issuer.example"
RESOURCE = "https://server.example/mcp"


class Verifier(TokenVerifier):  # type: ignore[misc]
    """Verifies tokens with given keys."""

    def __init__(self, keys: str) -> None:
        self.keys = {key["kid"]: jwt.PyJWK(key) for key in json.loads(keys)["keys"]}

    async def verify_token(self, token: str) -> AccessToken | None:
        try:
            key = self.keys[jwt.get_unverified_header(token)["kid"]]
            claims = jwt.decode(token, key.key, ["ES256"], audience=RESOURCE, issuer=ISSUER)
        except (jwt.PyJWTError, KeyError):
            return None
        return AccessToken(token=token, client_id=claims["sub"], scopes=[])


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


if __name__ == "__main__":
    options = {}
    if len(sys.argv) > 2:
        settings = AuthSettings(issuer_url=ISSUER, resource_server_url=RESOURCE)
        options = {"auth": settings, "token_verifier": Verifier(sys.argv[2])}
    server = MCPServer("bench", log_level="WARNING", **options)
    server.add_tool(add, structured_output=False)
    server.run("streamable-http", port=int(sys.argv[1]), json_response=True)
