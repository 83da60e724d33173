"""Pairs of servers and clients that need tokens: `python tools/interop/token_pairs.py`.

Each client logs in at each server and calls a tool: ours, and those of the official Python and
TypeScript SDKs 1. The tokens come from `oidc-provider` of npm, a certified OpenID Connect provider,
or from our own `AuthorizationServer`. Prints a line for each pair with what it did; the exit status
is 1 if a pair fails that is not in `EXPECTED_FAILURES`.

With `--demo` it runs a server and a client of ten lines against the provider instead, records the
session, replays it, and replays it again after a scope was removed from the rule of the tool.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, cast

import trio
from install import ensure
from login import PACKAGE, User, provider
from peers import NODE, PYTHON_1, TYPESCRIPT, Command
from server_processes import listening, running_server, wait_until_listening

from mcp_trio import Client, Context, Server
from mcp_trio.auth import (
    AuthorizationServer,
    DevelopmentLogin,
    JWTVerifier,
    MemoryTokenStore,
    OAuth,
    ResourceServer,
)
from mcp_trio.testing import allow_access

HERE: Final = Path(__file__).resolve().parent
SCOPE: Final = "files"
SECONDS_MAX: Final = 60.0
OURS: Final = "mcp_trio"
PYTHON: Final = f"Python SDK {PYTHON_1.pins()['mcp']}"
SDKS: Final[Mapping[str, Command]] = {
    PYTHON: PYTHON_1.start(str(HERE / "python_1_tokens.py")),
    f"TypeScript SDK {TYPESCRIPT.pins()['@modelcontextprotocol/sdk']}": TYPESCRIPT.start(
        "tokens_1.mjs"
    ),
}
OWN_ISSUER: Final = "AuthorizationServer"

# The Python SDK adds a slash to the issuer in the metadata of a server, but issuers are compared as
# plain strings (RFC 8414, sections 3.3 and 4). So the client has to name the issuer, too.
NAMES_ISSUER: Final = frozenset({(OURS, PYTHON)})

Agree = Callable[[str], Awaitable[str | None]]


class Failed(Exception):  # noqa: N818  the result of a pair
    """A client did not get a result; the text says what happened."""


async def whoami(*, ctx: Context) -> str:
    """Return the scopes of the token."""
    assert ctx.auth is not None
    return f"scopes {' '.join(sorted(ctx.auth.scopes))}"


def our_server(issuer: str | None) -> Server:
    """Return a server with tokens of an issuer, or of its own authorization server."""
    if issuer is not None:
        server = Server("protected", auth=ResourceServer(JWTVerifier(issuer), scopes={SCOPE}))
    else:
        authorization = AuthorizationServer(login=DevelopmentLogin("ada"), scopes={SCOPE})
        server = Server("protected", auth=ResourceServer(authorization, scopes={SCOPE}))
    server.tool(whoami)
    return server


@asynccontextmanager
async def our_url(issuer: str | None) -> AsyncGenerator[str]:
    """Serve our server; give its URL."""
    async with trio.open_nursery() as nursery:
        yield await nursery.start(partial(our_server(issuer).serve_http, port=0))
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def sdk_url(command: Command, issuer: str) -> AsyncGenerator[str]:
    """Serve a server of an SDK; give its URL."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server([*command, "server", issuer], Path(folder, "log")) as server,
    ):
        wait_until_listening(server.port, server.process)
        yield server.url


async def _line(stream: trio.abc.ReceiveStream, received: bytearray) -> str:
    while b"\n" not in received:
        chunk = await stream.receive_some()
        if not chunk:
            raise Failed("it ended")
        received += chunk
    line, _, rest = bytes(received).partition(b"\n")
    received[:] = rest
    return line.decode().strip()


async def our_call(url: str, agree: Agree, issuer: str | None) -> str:
    """Call the tool with our client; `issuer` is that of its options."""
    oauth = OAuth(store=MemoryTokenStore(), on_authorize=agree, issuer=issuer)
    async with Client(url, auth=oauth) as client:
        result = await client.call_tool("whoami")
        return str(getattr(result.content[0], "text", result))


async def sdk_call(command: Command, url: str, agree: Agree) -> str:
    """Call the tool with the client of an SDK, whose login page is opened here."""
    process = await trio.lowlevel.open_process(
        [*command, "client", url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    errors, received = bytearray(), bytearray()

    async def keep_errors(stream: trio.abc.ReceiveStream) -> None:
        async for chunk in stream:
            errors.extend(chunk)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_errors, process.stderr)
        try:
            while True:
                word, _, rest = (await _line(process.stdout, received)).partition(" ")
                if word == "called":
                    return rest
                if word == "authorize":
                    await process.stdin.send_all(f"{await agree(rest)}\n".encode())
        except Failed:
            await process.wait()
            lines = errors.decode().strip().splitlines() or ["no error"]
            raise Failed(lines[-1][:200]) from None
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
            nursery.cancel_scope.cancel()


async def pair(client: str, server: str, issuer: str | None) -> str:
    """Let a client log in at a server and call its tool; return what happened."""
    agree: Agree = allow_access if issuer is None else User().agree
    serving = our_url(issuer)
    if server != OURS:
        assert issuer is not None
        serving = sdk_url(SDKS[server], issuer)
    try:
        with trio.fail_after(SECONDS_MAX):
            async with serving as url:
                if client == OURS:
                    named = issuer if (client, server) in NAMES_ISSUER else None
                    with_option = "" if named is None else ", with OAuth(issuer=…)"
                    return f"called: {await our_call(url, agree, named)}{with_option}"
                return f"called: {await sdk_call(SDKS[client], url, agree)}"
    except Exception as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            nested = cast("BaseExceptionGroup[BaseException]", error)
            error = nested.exceptions[0]
        return f"FAILED: {type(error).__name__}: {error}"


def matrix(issuer: str) -> int:
    """Try each pair; return the exit status."""
    source = f"{PACKAGE} {TYPESCRIPT.pins()[PACKAGE]}"
    pairs: list[tuple[str, str, str, str | None]] = [
        *((each, OURS, OWN_ISSUER, None) for each in (OURS, *SDKS)),
        *((each, OURS, source, issuer) for each in (OURS, *SDKS)),
        *((OURS, each, source, issuer) for each in SDKS),
    ]
    status = 0
    print(f"{'client':24}{'server':24}{'authorization server':24}result")
    for client, server, name, url in pairs:
        result = trio.run(pair, client, server, url)
        if result.startswith("FAILED"):
            status = 1
        print(f"{client:24}{server:24}{name:24}{result}", flush=True)
    return status


# The demonstration --------------------------------------------------------------------------------

SERVER: Final = """\
import os
import sys
from mcp_trio import Context, Server

server = Server("notes", auth=os.environ["ISSUER"])

@server.tool(scopes={"files"})
async def whoami(*, ctx: Context) -> str:
    return f"scopes {' '.join(sorted(ctx.auth.scopes))}"

if __name__ == "__main__":
    server.run("http", port=int(sys.argv[1]), record="recordings/")
"""
CLIENT: Final = """\
import sys
import trio
from mcp_trio import Client

async def main():
    async with Client(sys.argv[1], auth="oauth") as client:
        print((await client.call_tool("whoami")).content[0].text)

trio.run(main)
"""
BROWSER: Final = """\
import sys
import httpx2, trio
sys.path.insert(0, {interop!r})
from login import User

async def main():
    url = await User().agree(sys.argv[1])
    httpx2.get(url, trust_env=False)

trio.run(main)
"""


def demo(issuer: str) -> int:
    """Run the server and the client, and replay their session; return the exit status."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in (("server.py", SERVER), ("client.py", CLIENT)):
            (folder / file).write_text(text, encoding="utf-8")
            print(f"--- {file}\n{text}")
        (folder / "recordings").mkdir()
        (folder / "browser.py").write_text(BROWSER.format(interop=str(HERE)), "utf-8")
        environment = {
            **os.environ,
            "BROWSER": f"{sys.executable} {folder / 'browser.py'} %s",
            "XDG_STATE_HOME": str(folder / "state"),
            "ISSUER": issuer,
        }
        run = partial(_run, folder=folder, environment=environment)
        serve = [sys.executable, "server.py"]
        with listening(lambda port: [*serve, f"{port}"], cwd=folder, env=environment) as server:
            status = run("client", [sys.executable, "client.py", f"{server.url}/mcp"])
        recordings = sorted(map(str, (folder / "recordings").iterdir()))
        replay = [sys.executable, "-m", "mcp_trio", "replay"]
        for recording in recordings:
            status |= run("replay", [*replay, recording, "server.py"])
        secret = any("eyJ" in Path(each).read_text(encoding="utf-8") for each in recordings)
        print(f"a token in a recording: {'YES' if secret else 'no'}")
        changed = SERVER.replace('@server.tool(scopes={"files"})', "@server.tool")
        (folder / "server.py").write_text(changed, encoding="utf-8")
        print("--- the scope is removed from the rule: @server.tool")
        diverged = [
            run("replay", [*replay, recording, "server.py"]) != 0 for recording in recordings
        ]
        return int(status != 0 or secret or not any(diverged))


def _run(title: str, command: Sequence[str], *, folder: Path, environment: dict[str, str]) -> int:
    print(f"--- {title}", flush=True)
    finished = subprocess.run(
        command, cwd=folder, env=environment, check=False, timeout=SECONDS_MAX, capture_output=True
    )
    text = (finished.stdout + finished.stderr).decode()
    print(text.replace(str(folder), "…").rstrip(), f"(exit status {finished.returncode})")
    return finished.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description="Servers and clients that need tokens.")
    parser.add_argument("--demo", action="store_true", help="record, replay, and change the rule")
    options = parser.parse_args()
    for each in (NODE, TYPESCRIPT, *(() if options.demo else (PYTHON_1,))):
        ensure(each)
    with provider() as issuer:
        return demo(issuer) if options.demo else matrix(issuer)


if __name__ == "__main__":
    sys.exit(main())
