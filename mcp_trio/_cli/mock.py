"""`mcp-trio mock`: stand in for the server or the client of a recording."""

from typing import Literal

import click

from mcp_trio._cli.behind import command_behind
from mcp_trio._cli.inputs import LiveServerCommand, driven


@click.command(
    cls=LiveServerCommand,
    short_help="Stand in for a recorded server or client.",
    epilog="""\b
The server is played over stdin and stdout: put this command where a host wants that of a server.
A request is answered as the same one was in the recording, with the notifications and questions
that came with it. What was not recorded gets an error that says what comes nearest, and is told
on stderr at the end; lists and pings may be asked again. In a redacted recording, values also fit
that have the shape of the recorded ones.

\b
Exit status: 0; 1 with --strict, if something else or less was asked than was recorded, and with
--as client, if the server has answered nothing; 2 FILE is unusable, or the server cannot be
started; 128 plus the number of a signal.

\b
Examples:
  mcp-trio mock recordings/trip.mcprec.jsonl
  mcp-trio call forecast city=Oslo -- mcp-trio mock recordings/trip.mcprec.jsonl
  mcp-trio mock recordings/trip.mcprec.jsonl --as client -- npx -y some-server
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
@click.option("--channel", type=int, metavar="N", help="Which session, in a recording of several.")
@click.pass_context
def mock(  # noqa: PLR0917  click passes its parameters by name
    context: click.Context,
    /,
    file: str,
    target: str | None,
    role: Literal["server", "client"],
    pace: bool,  # noqa: FBT001  the same
    strict: bool,  # noqa: FBT001
    channel: int | None,
) -> None:
    """Stand in for the server of the recording FILE, or for its client."""
    if role == "server":
        _mock_server(context, file, target, pace=pace, strict=strict, channel=channel)
    else:
        if pace or strict:
            raise click.UsageError("--pace and --strict are for a server")
        _mock_client(context, file, target, channel=channel)


def _mock_server(
    context: click.Context,
    file: str,
    target: str | None,
    *,
    pace: bool,
    strict: bool,
    channel: int | None,
) -> None:
    from mcp_trio._cli.recordings import naming
    from mcp_trio._replay.mock import mock_server
    from mcp_trio._replay.mock_stdio import run_mock

    if target is not None or command_behind(context) is not None:
        raise click.UsageError("a server is named with --as client only")
    with naming(file):
        server = mock_server(file, strict=strict, pace=pace, channel=channel)
    status = run_mock(server)
    if strict:
        server.check()
    for miss in server.misses:
        click.echo(miss, err=True)
    context.exit(status)


def _mock_client(
    context: click.Context, file: str, target: str | None, *, channel: int | None
) -> None:
    report = driven(context, file, target, ignore=("$",), channel=channel)
    click.echo(report.summary)
    context.exit(0 if report.answered else 1)
