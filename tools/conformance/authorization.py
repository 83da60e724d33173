"""The leg of the suite that tests an authorization server, with a user on its consent page.

The suite is a client. It prints the URL of its authorization request, for a user who opens it in a
browser; here a program allows the access, and follows the redirect to the suite.
"""

import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import httpx2
import trio

from mcp_trio import Server
from mcp_trio.auth import AuthorizationServer, DevelopmentLogin, trusted_client
from mcp_trio.testing import allow_access

sys.path.append(str(Path(__file__).resolve().parents[1]))

from server_processes import free_port

SCENARIOS: Final = ("authorization-server-metadata-endpoint", "authorization-code-grant")
CLIENT_ID: Final = "conformance"
CALLBACK: Final = "http://127.0.0.1/callback"  # with any port
RUN_SECONDS: Final = 60.0

_URL: Final = re.compile(r"https?://\S+/authorize\?\S+")


async def run_suite(command: Sequence[str], folder: Path) -> str:
    """Run the suite against our authorization server; return its output.

    Raises:
        trio.TooSlowError: The suite does not end.
    """
    clients = [trusted_client(CLIENT_ID, [CALLBACK])]
    auth = AuthorizationServer(login=DevelopmentLogin(), clients=clients)
    server = Server("conformance", auth=auth)
    output: list[str] = []
    with trio.fail_after(RUN_SECONDS):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(partial(server.serve_http, port=0))
            issuer = url.removesuffix("/mcp")
            target = ["--url", issuer, "--resource", url, "--client-id", CLIENT_ID]
            options = ["--port", f"{free_port()}", "-o", f"{folder}"]
            run = partial(trio.run_process, stdout=-1, check=False)
            process = await nursery.start(run, [*command, "authorization", *target, *options])
            async for piece in process.stdout:
                output.append(piece.decode())
                for found in _URL.findall(output[-1]):
                    nursery.start_soon(act_as_user, found)
            nursery.cancel_scope.cancel()
    return "".join(output)


async def act_as_user(url: str) -> None:
    """Allow the access on the consent page, and follow the redirect to the suite."""
    async with httpx2.AsyncClient() as browser:
        await browser.get(await allow_access(url))
