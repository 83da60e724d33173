"""`mcp-trio bridge`: any two transports joined."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import click

from mcp_trio._cli.behind import TakesCommand, command_behind
from mcp_trio._cli.listening_options import (
    CORS_IS_THEIRS,
    NOT_EXECUTABLE_STATUS,
    check_program,
    cors_option,
    gate_options,
    listening,
    token_option,
    told_to,
)
from mcp_trio._cli.recording_options import RecordingChoices, record_options, recording_options
from mcp_trio._cli.terminal import echo_error
from mcp_trio._cli.urls import header_option, naming_header, refuse_headers

if TYPE_CHECKING:
    from mcp_trio._proxy.bridge import Behind, Front


class BridgeCommand(TakesCommand):
    """`mcp-trio bridge [OPTIONS] FROM TO`."""

    server_place: ClassVar[int] = 2


@click.command(
    cls=BridgeCommand,
    short_help="Join any two transports.",
    epilog="""\b
FROM is where clients come from:
  -                      one, at our stdin and stdout
  http://HOST:PORT/PATH  Streamable HTTP; /mcp without a PATH
  ws://HOST:PORT/PATH    WebSocket; /ws without a PATH
  tcp://HOST:PORT        a message a line
  unix:PATH              the same at a socket file, for us alone (0600)
TO is the server: http://, https://, ws://, wss://, tcp://HOST:PORT, unix:PATH, or its command.

\b
At - there is one client; elsewhere each session of a client is one of the server's: a connection,
or a process. Messages pass as they are, and so do the requests of both eras. When one side ends,
the other does, and is told why where its transport has words for that. From http:// to http(s)://
the server itself says whether pages of other origins may read its answers.

\b
Exit status: of a COMMAND behind - the server's, and 126 if it cannot be started, 127 if it is not
found; of another server behind - 0 when the client is done, 1 when one of both was lost; 128 plus
the number of a signal; 2 nobody can listen there, or the recording cannot be made.

\b
Examples:
  mcp-trio bridge - wss://server.example/ws --header 'Authorization: Bearer ${TOKEN}'
  mcp-trio bridge ws://127.0.0.1:9000 -- python server.py
  mcp-trio bridge http://127.0.0.1:9000/mcp unix:/run/server.sock
  mcp-trio bridge unix:server.sock https://server.example/mcp --record recordings/
""",
)
@click.option(
    "--record",
    metavar="PATH",
    help="Record what passes: to a file, or in an existing folder to a file of its own each "
    "session; compressed if the name ends in .zst.",
)
@recording_options
@header_option
@token_option("From http:// and ws://")
@gate_options("From http:// and ws://")
@cors_option("From http://, unless TO is http(s)://")
@click.option(
    "--open", "is_open", is_flag=True, help="From tcp://: whoever reaches us from elsewhere may."
)
@click.argument("source", metavar="FROM")
@click.argument("url", metavar="TO", required=False)
@click.pass_context
def bridge(  # noqa: PLR0917  click passes them by name
    context: click.Context,
    /,
    source: str,
    url: str | None,
    record: str | None,
    headers: Mapping[str, str],
    token: str | None,
    hosts: Sequence[str],
    origins: Sequence[str],
    *,
    allows_cors: bool,
    is_open: bool,
    **choices: Unpack[RecordingChoices],
) -> None:
    """Join the clients at FROM and the server at TO, each session to one of its own."""
    from mcp_trio._proxy.bridge import run_bridge

    if record is None and any(choices.values()):
        raise click.UsageError("what is said of the recording needs --record PATH")
    options = None if record is None else record_options(record, choices)
    behind = _behind(context, url, headers)
    said = {
        "token": token,
        "hosts": hosts,
        "origins": origins,
        "allows_cors": allows_cors,
        "is_open": is_open,
    }
    try:
        front = _front(source, behind, said)
        with listening(None if front.kind == "stdio" else source, "listening at") as attempt:
            status = _told_of_loss(
                behind, partial(run_bridge, front, behind, record=options, told=attempt.told)
            )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    context.exit(status)


def _told_of_loss(behind: "Behind", run: Callable[[], int]) -> int:
    """The status; that a command cannot be started is one, as with `record`."""
    from mcp_trio._errors import ConnectionLost

    try:
        return run()
    except ConnectionLost as error:
        if isinstance(behind.target, str):
            raise naming_header(error) from error
        echo_error(str(error))
        return NOT_EXECUTABLE_STATUS


def _behind(context: click.Context, url: str | None, headers: Mapping[str, str]) -> "Behind":
    from mcp_trio._proxy.bridge import Behind, check_server_url

    command = command_behind(context)
    if (url is None) is (command is None):
        raise click.UsageError("name one server: its URL, or its COMMAND behind --")
    refuse_headers(headers, url)
    if command is not None:
        check_program(context, command[0])
        return Behind(target=command)
    assert url is not None
    try:
        check_server_url(url)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return Behind(target=url, headers=headers)


def _front(source: str, behind: "Behind", said: Mapping[str, Any]) -> "Front":
    """See `front_of`; with who may come."""
    import attrs

    from mcp_trio._client.targets import has_url
    from mcp_trio._proxy.bridge import front_of

    front = front_of(source)
    who = told_to(front.kind, said)
    if "allows_cors" in who and has_url(behind.target):
        raise click.UsageError(CORS_IS_THEIRS)
    is_open = who.pop("is_open", False)
    return attrs.evolve(front, place=attrs.evolve(front.place, **who), is_open=is_open)
