"""`mcp-trio mock`: stand in for the server or the client of a recording."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import click

from mcp_trio._cli.behind import command_behind
from mcp_trio._cli.inputs import LiveServerCommand, driven
from mcp_trio._cli.listening_options import (
    TRANSPORTS,
    flag_of,
    is_said,
    listening,
    placed,
    serving_options,
    where,
)
from mcp_trio._cli.terminal import echo_error
from mcp_trio._cli.urls import header_option

if TYPE_CHECKING:
    from mcp_trio._replay.mock import MockServer


@click.command(
    cls=LiveServerCommand,
    short_help="Stand in for a recorded server or client.",
    epilog="""\b
The server is played over stdin and stdout: put this command where a host wants that of a server.
Over http (with websocket at /ws), websocket, unix and tcp it is played to all who come, until a
signal ends it; over http in the era that was recorded.
A request is answered as the same one was in the recording, with the notifications and questions
that came with it. What was not recorded gets an error that says what comes nearest, and is told
on stderr at the end; lists and pings may be asked again, and whatever modern clients ask over
http, unless --strict. In a redacted recording, values also fit that have the shape of the
recorded ones.

\b
Exit status: 0; 1 with --strict, if something else or less was asked than was recorded, and with
--as client, if the server has answered nothing; 2 FILE is unusable, or the server cannot be
started or reached; 128 plus the number of a signal.

\b
Examples:
  mcp-trio mock recordings/trip.mcprec.jsonl
  mcp-trio mock recordings/trip.mcprec.jsonl --transport http --port 8000
  mcp-trio mock trip.mcprec.jsonl --transport http --allow-origin https://app.example --allow-cors
  mcp-trio mock recordings/trip.mcprec.jsonl --transport unix --socket mock.sock
  mcp-trio call forecast city=Oslo -- mcp-trio mock recordings/trip.mcprec.jsonl
  mcp-trio mock recordings/trip.mcprec.jsonl --as client -- npx -y some-server
  mcp-trio mock recordings/trip.mcprec.jsonl --as client ws://127.0.0.1:8000/ws
""",
)
@click.argument("file")
@click.argument("target", required=False)
@click.option(
    "--as",
    "role",
    type=click.Choice(("server", "client")),
    default="server",
    show_default=True,
    help="Whom to stand in for; a client needs the server to talk to.",
)
@click.option("--pace", is_flag=True, help="As slow as the recorded server; else at once.")
@click.option("--strict", is_flag=True, help="Fail if not exactly what was recorded is asked.")
@click.option(
    "--transport", type=click.Choice(list(TRANSPORTS)), help="For a server: stdio by default."
)
@serving_options
@header_option
@click.option("--channel", type=int, metavar="N", help="Which session, in a recording of several.")
@click.pass_context
def mock(
    context: click.Context,
    /,
    file: str,
    target: str | None,
    role: Literal["server", "client"],
    *,
    headers: Mapping[str, str],
    channel: int | None,
    **of_server: Any,
) -> None:
    """Stand in for the server of the recording FILE, or for its client."""
    if role == "client":
        _refuse(of_server)
        report = driven(context, file, target, ignore=("$",), channel=channel, headers=headers)
        click.echo(report.summary)
        context.exit(0 if report.answered else 1)
    if target is not None or command_behind(context) is not None or headers:
        raise click.UsageError("a server is named with --as client only")
    _mock_server(context, file, channel=channel, **of_server)


def _refuse(of_server: Mapping[str, Any]) -> None:
    given = [name for name, value in of_server.items() if is_said(value)]
    if given:
        raise click.UsageError(f"{flag_of(given[0])} is not for --as client")


def _mock_server(
    context: click.Context,
    file: str,
    *,
    channel: int | None,
    pace: bool,
    strict: bool,
    transport: str | None,
    **said: Any,
) -> None:
    from mcp_trio._cli.recordings import naming
    from mcp_trio._replay.mock import mock_server

    name = transport or "stdio"
    place = placed(name, said)
    with naming(file):
        server = mock_server(file, strict=strict, pace=pace, channel=channel)
    status = _served_over_stdio(server) if name == "stdio" else _served(server, name, place)
    if strict:
        server.check()
    for miss in server.misses:
        echo_error(miss)
    context.exit(status)


def _served_over_stdio(server: "MockServer") -> int:
    from mcp_trio._replay.mock_stdio import run_mock

    return run_mock(server)


def _served(server: "MockServer", transport: str, place: Mapping[str, Any]) -> int:
    """The exit status, which is that of the signal which ended it."""
    from mcp_trio._server.runners import RUNNERS

    status = 0
    try:
        with listening(where(**place), "serving") as attempt:
            RUNNERS[transport](server, told=attempt.told, **place)
    except SystemExit as ended:
        status = int(ended.code or 0)
    return status
