"""`mcp-trio demo`: a session recorded, replayed and shown."""

import shlex
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from mcp_trio._client.client import Client
    from mcp_trio.types import ProgressParams

EXAMPLE: Final = "mcp_trio.examples.weather"
SERVER_FILE: Final = "weather-server.mcprec.jsonl"
CLIENT_FILE: Final = "weather-client.mcprec.jsonl"


@click.command(
    short_help="Record, replay and show a session.",
    epilog="""\b
Exit status: 0; 1 DIR cannot be made.

\b
Examples:
  mcp-trio demo
  mcp-trio demo --keep recordings
""",
)
@click.option(
    "--keep",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Leave the recordings of both sides in this folder.",
)
def demo_command(keep: str | None) -> None:
    """Record a session with the example server, replay it byte for byte, and show it."""
    from mcp_trio._cli.inspect import print_timeline
    from mcp_trio._cli.replay import replayed
    from mcp_trio._cli.targets import load_server
    from mcp_trio._replay.replay import replay

    with _folder(keep) as folder:
        server_file, client_file = folder / SERVER_FILE, folder / CLIENT_FILE
        _say(f"Recording: a client talks to `mcp-trio run {EXAMPLE}` over stdio.")
        _record(server_file, client_file)
        _say("\nReplaying: the server's handlers run again, against the recording alone.")
        begin = time.perf_counter()
        report = replay(server_file, load_server(EXAMPLE))
        _say(replayed(report, time.perf_counter() - begin))
        _say(f"\nThe recording, {SERVER_FILE}:\n")
        print_timeline(server_file)
    _say("\nWhat to try next:")
    _say("\n".join(f"  {command}" for command in _next_steps(keep)))


def _say(text: str) -> None:
    click.echo(text)


@contextmanager
def _folder(keep: str | None) -> Generator[Path, None, None]:
    """The folder that was asked for, or one that is removed afterwards."""
    if keep is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    else:
        yield _made(Path(keep))


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"cannot make {folder}: {error.strerror}") from error
    return folder


def _record(server_file: Path, client_file: Path) -> None:
    import trio

    from mcp_trio._client.client import Client

    command = [sys.executable, "-m", "mcp_trio", "run", EXAMPLE, "--record", str(server_file)]

    async def session() -> None:
        async with Client(command, name="demo", record=client_file, log_level="info") as client:
            await _talk(client)

    trio.run(session)


async def _talk(client: "Client") -> None:
    """A bit of everything that the example has to offer, all at once."""
    import trio

    tools = await client.list_tools()
    _say(f"  it offers {', '.join(tool.name for tool in tools)}")
    async with trio.open_nursery() as nursery:
        for call in (_forecast, _impatient, _rejected, _warmest, _read, _prompt):
            nursery.start_soon(call, client)


async def _forecast(client: "Client") -> None:
    reports: list[object] = []
    await client.call_tool("forecast", {"city": "Oslo"}, progress=reports.append)
    _say(f"  forecast for Oslo: came with {len(reports)} reports of progress")


async def _impatient(client: "Client") -> None:
    import trio

    scope = trio.CancelScope()

    def give_up(_: "ProgressParams") -> None:
        scope.cancel()

    with scope:
        await client.call_tool("forecast", {"city": "Lima", "days": 14}, progress=give_up)
    _say(f"  forecast for Lima: {'cancelled' if scope.cancelled_caught else 'was faster'}")


async def _rejected(client: "Client") -> None:
    from mcp_trio.errors import ToolError

    try:
        await client.call_tool("forecast", {"city": "Atlantis"})
    except ToolError as error:
        _say(f"  forecast for Atlantis: {error}")


async def _warmest(client: "Client") -> None:
    result = await client.call_tool("warmest", {"days": 2})
    _say(f"  warmest: {getattr(result.content[0], 'text', '')}")


async def _read(client: "Client") -> None:
    result = await client.read_resource("weather://Bergen/now")
    _say(f"  read {result.contents[0].uri}")


async def _prompt(client: "Client") -> None:
    result = await client.get_prompt("plan_trip", {"city": "Pune"})
    _say(f"  plan_trip: a prompt of {len(result.messages)} message")


def _next_steps(keep: str | None) -> Iterator[str]:
    if keep is None:
        yield "mcp-trio demo --keep recordings"
        return
    names = (SERVER_FILE, CLIENT_FILE)
    server_file, client_file = (shlex.quote(str(Path(keep) / name)) for name in names)
    yield f"mcp-trio replay {server_file} {EXAMPLE}"
    yield f"mcp-trio show {client_file}"
    yield f"mcp-trio check {server_file}"
    source = shlex.quote(_source())
    yield f"cp {source} . && mcp-trio replay {server_file} weather.py    # edit it in between"


def _source() -> str:
    """Where the example's code is."""
    import importlib.util

    spec = importlib.util.find_spec(EXAMPLE)
    assert spec is not None
    return str(spec.origin)
