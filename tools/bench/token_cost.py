"""Measure what access tokens cost a server: `python tools/bench/token_cost.py [--rounds N]`.

A client calls a tool over HTTP, without a token, with a fixed token, with one JSON Web Token, and
with another JSON Web Token for each call, which the server has to verify anew. A server on the
official Python SDK 2, whose user verifies with PyJWT, gets the same calls, if it is installed as
`tools/interop/install.py` does. The CPU time of the server counts (Linux only); slowness is no
failure.
"""

import argparse
import http.client
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

from joserfc import jwk, jwt
from load import cpu_seconds_of, tool_call
from measuring import print_table
from peers import PYTHON_2, is_installed
from server_processes import listening
from servers import PYTHON_PEER, python_peer

from mcp_trio import Server
from mcp_trio.auth import JWTVerifier, ResourceServer, StaticTokens

CALLS: Final = 1000
ISSUER: Final = "https://issuer.example"
RESOURCE: Final = "https://server.example/mcp"
KEYS: Final = "BENCH_KEYS"
VARIANTS: Final = ("no token", "fixed token", "one token", "a token for each call, ES256")
OF_SDK: Final = f"{PYTHON_PEER}: "
SDK_VARIANTS: Final = tuple(f"{OF_SDK}{each}" for each in VARIANTS if each != "fixed token")
BODY: Final = tool_call("add", {"a": 1, "b": 2})
HEADERS: Final = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
    "Mcp-Name": "add",
}


def serve(variant: str, port: int) -> None:
    auth: Any = None
    if variant == "fixed token":
        auth = StaticTokens({"t": "anna"})
    elif variant != "no token":
        verifier = JWTVerifier(ISSUER, keys=json.loads(os.environ[KEYS]))
        auth = ResourceServer(verifier, resource=RESOURCE)
    server = Server("bench", auth=auth)

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    server.run("http", port=port)


@contextmanager
def served(variant: str, key: jwk.ECKey) -> Iterator[tuple[int, http.client.HTTPConnection]]:
    """Serve in a process of its own; yield its id, and a connection to it."""
    environment = {**os.environ, KEYS: json.dumps({"keys": [key.as_dict(private=False)]})}

    def command(port: int) -> Sequence[str]:
        if not variant.startswith(OF_SDK):
            return [sys.executable, __file__, "--serve", variant, "--port", str(port)]
        keys = [] if variant.endswith("no token") else ["--keys", environment[KEYS]]
        return python_peer("server_sdk.py", "--port", str(port), "--form", "json", *keys)

    with (
        listening(command, env=environment) as server,
        closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection,
    ):
        yield server.process.pid, connection


def tokens(variant: str, key: jwk.ECKey, round_: int) -> list[str]:
    """Return the token of each call."""
    claims = {"iss": ISSUER, "aud": RESOURCE, "sub": "anna", "exp": int(time.time()) + 3600}

    def signed(number: int) -> str:
        header = {"alg": "ES256", "kid": key.kid, "typ": "at+jwt"}
        return jwt.encode(header, {**claims, "jti": f"{round_}-{number}"}, key)

    variant = variant.removeprefix(OF_SDK)
    if variant in {"no token", "fixed token"}:
        return ["t"] * CALLS
    if variant == "one token":
        return [signed(0)] * CALLS
    return [signed(number) for number in range(CALLS)]


def measure(rounds: int) -> dict[str, list[float]]:
    """Return milliseconds of CPU per 1,000 calls, one a round."""
    key = jwk.ECKey.generate_key("P-256", {"kid": "1"})
    of_sdk = SDK_VARIANTS if is_installed(PYTHON_2) else ()
    figures: dict[str, list[float]] = {variant: [] for variant in (*VARIANTS, *of_sdk)}
    for round_ in range(rounds):
        for variant, found in figures.items():
            with served(variant, key) as (pid, connection):
                sent = tokens(variant, key, round_)
                call(connection, sent[0])
                before = cpu_seconds_of(pid)
                for token in sent:
                    call(connection, token)
                found.append((cpu_seconds_of(pid) - before) * 1000 * 1000 / CALLS)
    return figures


def call(connection: http.client.HTTPConnection, token: str) -> None:
    headers = {**HEADERS, "Authorization": f"Bearer {token}"}
    connection.request("POST", "/mcp", body=BODY, headers=headers)
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise SystemExit(f"HTTP status {response.status}: {body!r}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Measure the cost of access tokens.")
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured")
    parser.add_argument("--serve", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.serve, options.port)
        return 0
    figures = measure(options.rounds)
    print_table(
        "server CPU per 1,000 calls over HTTP, ms",
        ["token", "median", "lowest", "highest"],
        (
            [name, f"{statistics.median(found):.0f}", f"{min(found):.0f}", f"{max(found):.0f}"]
            for name, found in figures.items()
        ),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
