"""The benchmarked server on the official Python SDK, with the options that make it cheap.

These are: `async def` tools, no structured output besides the text, no log messages of its own.
With `--keys` it requires JSON Web Tokens. The SDK leaves their verification to the user: here
PyJWT, which the SDK installs, does it for each request.
"""

import json
from typing import Any

from mcp.server.mcpserver import Context, MCPServer  # type: ignore[import-not-found]
from server_options import count_function_calls, function_calls, options_parser

ISSUER = "https://issuer.example"
RESOURCE = "https://server.example/mcp"


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def echo(text: str) -> str:
    """Return the text."""
    return text


async def notify(count: int, ctx: Context) -> int:
    """Report progress so many times."""
    for step in range(count):
        await ctx.report_progress(step + 1, count)
    return count


def token_options(keys_json: str) -> dict[str, Any]:
    """Return the options of a server that requires tokens by one of these keys."""
    import jwt  # type: ignore[import-not-found]
    from mcp.server.auth.provider import AccessToken  # type: ignore[import-not-found]
    from mcp.server.auth.settings import AuthSettings  # type: ignore[import-not-found]

    keys = {key["kid"]: jwt.PyJWK(key) for key in json.loads(keys_json)["keys"]}

    class Verifier:
        async def verify_token(self, token: str) -> Any:
            try:
                key = keys[jwt.get_unverified_header(token)["kid"]].key
                claims = jwt.decode(token, key, ["ES256"], audience=RESOURCE, issuer=ISSUER)
            except (jwt.PyJWTError, KeyError):
                return None
            return AccessToken(token=token, client_id=claims["sub"], scopes=[])

    settings = AuthSettings(issuer_url=ISSUER, resource_server_url=RESOURCE)
    return {"auth": settings, "token_verifier": Verifier()}


def add_tool(server: MCPServer, number: int) -> None:
    """Add another tool like `add`."""

    async def tool(a: int, b: int) -> int:
        return a + b + number

    description = f"Add two numbers and {number}."
    server.add_tool(tool, f"add_{number}", description=description, structured_output=False)


if __name__ == "__main__":
    parser = options_parser()
    parser.add_argument("--keys", metavar="JSON", help="a JSON Web Key Set, for tokens over HTTP")
    options = parser.parse_args()
    auth = token_options(options.keys) if options.keys else {}
    server = MCPServer("bench", log_level="WARNING", **auth)
    for offered in (add, echo, notify):
        server.add_tool(offered, structured_output=False)
    for number in range(options.tools):
        add_tool(server, number)
    if options.count_calls:
        server.add_tool(function_calls, structured_output=False)
        count_function_calls()
    if options.port:
        server.run("streamable-http", port=options.port, json_response=options.form == "json")
    else:
        server.run("stdio")
