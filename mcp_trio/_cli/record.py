"""`mcp-trio record`: a recording proxy in front of anybody's server."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import click

from mcp_trio._cli.listening_options import (
    CORS_IS_THEIRS,
    NOT_EXECUTABLE_STATUS,
    check_program,
    cors_option,
    gate_options,
    listening,
    where,
)
from mcp_trio._cli.recording_options import RecordingChoices, record_options, recording_options
from mcp_trio._cli.terminal import echo_error
from mcp_trio._cli.urls import checked_url, header_option

if TYPE_CHECKING:
    from mcp_trio._proxy.bridge import Behind, Front
    from mcp_trio._recorder.options import RecordOptions


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int


def _address(_: click.Context, __: click.Parameter, text: str | None) -> Address | None:
    if text is None:
        return None
    host, _colon, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004  the ports that there are
        raise click.BadParameter(f"{text!r} is no HOST:PORT")
    return Address(host.strip("[]") or "127.0.0.1", int(port))


@click.command(
    short_help="Record what a client and a server say to each other.",
    epilog="""\b
Put it before the server's command in the host's settings, or give clients the URL that it tells
instead of the server's. Nothing changes for both: every byte goes on as it comes. In front of a
COMMAND the server's stderr and exit status are passed on, and so are SIGINT, SIGTERM and SIGHUP;
after a signal the server has a few seconds before it is killed.

\b
Of HTTP, messages are recorded and no headers. A folder gets a file for each session, and one for
all that belongs to none; a file takes all of them. Behind --listen, COMMAND is started for each
session, and once for all modern requests; a server at URL says by itself whether pages of other
origins may read its answers.

\b
Exit status: the server's, 128 plus the number of a signal that killed it, or us where there is
no server to kill; 1 the server at URL has ended the session;
126 COMMAND cannot be started, 127 it is not found; 2 FILE cannot be made, or is there already,
or nobody can listen there.

\b
Examples:
  mcp-trio record -o trip.mcprec.jsonl -- python server.py
  mcp-trio record -o recordings/ -- npx -y some-server --its-option
  mcp-trio record -o recordings/ --listen 127.0.0.1:9000 --to http://127.0.0.1:8000/mcp
  mcp-trio record -o recordings/ --listen 127.0.0.1:9000 -- python server.py
  mcp-trio record -o trip.mcprec.jsonl --to https://server.example/mcp
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
@click.option("--to", "url", metavar="URL", help="The server, if it is reached over HTTP.")
@click.option(
    "--listen",
    "address",
    metavar="HOST:PORT",
    callback=_address,
    help="Take clients over HTTP there, instead of a host over stdio; port 0 is any.",
)
@gate_options("With --listen")
@cors_option("With --listen and COMMAND")
@header_option
@recording_options
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def record(  # noqa: PLR0917  click passes them by name
    context: click.Context,
    /,
    output: str,
    url: str | None,
    address: Address | None,
    hosts: Sequence[str],
    origins: Sequence[str],
    headers: Mapping[str, str],
    command: tuple[str, ...],
    *,
    allows_cors: bool,
    **choices: Unpack[RecordingChoices],
) -> None:
    """Record both directions to FILE: of COMMAND, a server over stdio, or of the server at URL."""
    if (url is None) is not bool(command):
        raise click.UsageError("name one server: --to URL, or its COMMAND behind --")
    if address is None and (hosts or origins or allows_cors):
        raise click.UsageError("--allow-host, --allow-origin and --allow-cors go with --listen")
    if url is not None and allows_cors:
        raise click.UsageError(CORS_IS_THEIRS)
    if headers and (url is None or address is not None):
        raise click.UsageError("--header goes with --to and a host over stdio: others bring theirs")
    options = record_options(output, choices)
    target = command if url is None else checked_url(url)
    if command:
        check_program(context, command[0])

    from mcp_trio._proxy.bridge import Behind

    behind = Behind(target=target, headers=headers)
    front = _front(address, hosts=hosts or None, origins=origins or None, allows_cors=allows_cors)
    try:
        status = _recorded(front, behind, options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    context.exit(status)


def _front(address: Address | None, **who: Any) -> "Front":
    from mcp_trio._proxy.bridge import Front
    from mcp_trio._proxy.http import Place

    if address is None:
        return Front()
    return Front(kind="http", place=Place(host=address.host, port=address.port, **who))


def _recorded(front: "Front", behind: "Behind", record: "RecordOptions") -> int:
    """The exit status, when all is over."""
    from mcp_trio._errors import ConnectionLost
    from mcp_trio._proxy.bridge import run_bridge

    place = front.place
    listens_at = None if front.kind == "stdio" else where(host=place.host, port=place.port)
    try:
        with listening(listens_at, "recording") as attempt:
            return run_bridge(front, behind, record=record, told=attempt.told)
    except ConnectionLost as error:
        echo_error(str(error))
        return NOT_EXECUTABLE_STATUS
