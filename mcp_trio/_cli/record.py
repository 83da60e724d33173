"""`mcp-trio record`: a recording proxy in front of anybody's server."""

import os
import shutil
from typing import Final, Unpack

import click

from mcp_trio._cli.recording_options import RecordingChoices, record_options, recording_options

NOT_FOUND_STATUS: Final = 127
NOT_EXECUTABLE_STATUS: Final = 126


@click.command(
    short_help="Record what a host and a server say to each other.",
    epilog="""\b
Put it before the server's command in the host's settings. Nothing changes for host and server:
every byte goes on as it comes, the server's stderr and exit status are passed on, and so are
SIGINT, SIGTERM and SIGHUP. After a signal the server has a few seconds before it is killed.

\b
Exit status: the server's, 128 plus the number of a signal that killed it;
126 COMMAND cannot be started, 127 it is not found; 2 FILE cannot be made, or is there already.

\b
Examples:
  mcp-trio record -o trip.mcprec.jsonl -- python server.py
  mcp-trio record -o recordings/ -- npx -y some-server --its-option
""",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    required=True,
    help="Where to record: a new file, or an existing folder for a file of its own each session; "
    "compressed if the name ends in .zst.",
)
@recording_options
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def record(
    context: click.Context,
    output: str,
    command: tuple[str, ...],
    **choices: Unpack[RecordingChoices],
) -> None:
    """Run COMMAND as a server over stdio and record both directions to FILE."""
    options = record_options(output, choices)
    _check_program(context, command[0])

    from mcp_trio._errors import ConnectionLost
    from mcp_trio._proxy import run_stdio_proxy

    try:
        status = run_stdio_proxy(command, record=options)
    except ConnectionLost as error:
        click.echo(str(error), err=True)
        status = NOT_EXECUTABLE_STATUS
    context.exit(status)


def _check_program(context: click.Context, program: str) -> None:
    """Ends as a shell does if there is no such program: before a file is made for nothing."""
    if shutil.which(program):
        return
    if shutil.which(program, os.F_OK):
        click.echo(f"cannot start {program!r}: it is not executable", err=True)
        context.exit(NOT_EXECUTABLE_STATUS)
    click.echo(f"cannot start {program!r}: not found", err=True)
    context.exit(NOT_FOUND_STATUS)
