"""`mcp-trio record` and `bridge`: stand between two peers."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Unpack

import click

from mcp_trio._cli.options import (
    CORS_IS_THEIRS,
    NOT_EXECUTABLE_STATUS,
    RecordingChoices,
    TakesCommand,
    check_program,
    checked_url,
    command_behind,
    cors_option,
    header_option,
    host_check_options,
    listening,
    naming_header,
    record_options,
    recording_options,
    reject_headers,
    token_option,
    told_to,
    where,
)
from mcp_trio._cli.output import echo_error

if TYPE_CHECKING:
    from mcp_trio._proxy.bridge import Downstream, Upstream
    from mcp_trio._recorder.writer import RecordOptions


# --------------------
# `mcp-trio record`: a recording proxy in front of anybody's server.


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int


def _address(_: click.Context, __: click.Parameter, text: str | None) -> Address | None:
    if text is None:
        return None
    host, _colon, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004  the ports that there are
        raise click.BadParameter(f"{text!r} is not HOST:PORT")
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
@host_check_options("With --listen")
@cors_option("With --listen and COMMAND")
@header_option
@recording_options
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def record_command(
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

    from mcp_trio._proxy.bridge import Upstream

    upstream = Upstream(target=target, headers=headers)
    downstream = _recording_downstream(
        address, hosts=hosts or None, origins=origins or None, allows_cors=allows_cors
    )
    try:
        status = _recorded(downstream, upstream, options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    context.exit(status)


def _recording_downstream(address: Address | None, **who: Any) -> "Downstream":
    from mcp_trio._proxy.bridge import Downstream
    from mcp_trio._proxy.http import ListenOptions

    if address is None:
        return Downstream()
    return Downstream(
        kind="http", listen=ListenOptions(host=address.host, port=address.port, **who)
    )


def _recorded(downstream: "Downstream", upstream: "Upstream", record: "RecordOptions") -> int:
    """The exit status, when all is over."""
    from mcp_trio._proxy.bridge import run_bridge
    from mcp_trio.errors import ConnectionLost

    listen = downstream.listen
    listens_at = None if downstream.kind == "stdio" else where(host=listen.host, port=listen.port)
    try:
        with listening(listens_at, "recording") as attempt:
            return run_bridge(downstream, upstream, record=record, report_url=attempt.told)
    except ConnectionLost as error:
        echo_error(str(error))
        return NOT_EXECUTABLE_STATUS


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
@host_check_options("From http:// and ws://")
@cors_option("From http://, unless TO is http(s)://")
@click.option(
    "--open",
    "is_open",
    is_flag=True,
    help=("From tcp://: allow an address that other machines can reach, without authentication."),
)
@click.argument("source", metavar="FROM")
@click.argument("url", metavar="TO", required=False)
@click.pass_context
def bridge_command(
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
        raise click.UsageError("recording options need --record PATH")
    options = None if record is None else record_options(record, choices)
    upstream = _upstream(context, url, headers)
    said = {
        "token": token,
        "hosts": hosts,
        "origins": origins,
        "allows_cors": allows_cors,
        "is_open": is_open,
    }
    try:
        downstream = _downstream(source, upstream, said)
        with listening(None if downstream.kind == "stdio" else source, "listening at") as attempt:
            status = _told_of_loss(
                upstream,
                partial(run_bridge, downstream, upstream, record=options, report_url=attempt.told),
            )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    context.exit(status)


def _told_of_loss(upstream: "Upstream", run: Callable[[], int]) -> int:
    """The status; that a command cannot be started is one, as with `record`."""
    from mcp_trio.errors import ConnectionLost

    try:
        return run()
    except ConnectionLost as error:
        if isinstance(upstream.target, str):
            raise naming_header(error) from error
        echo_error(str(error))
        return NOT_EXECUTABLE_STATUS


def _upstream(context: click.Context, url: str | None, headers: Mapping[str, str]) -> "Upstream":
    from mcp_trio._proxy.bridge import Upstream, check_server_url

    command = command_behind(context)
    if (url is None) is (command is None):
        raise click.UsageError("name one server: its URL, or its COMMAND after --")
    reject_headers(headers, url)
    if command is not None:
        check_program(context, command[0])
        return Upstream(target=command)
    assert url is not None
    try:
        check_server_url(url)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return Upstream(target=url, headers=headers)


def _downstream(source: str, upstream: "Upstream", said: Mapping[str, Any]) -> "Downstream":
    """See `parse_downstream`; with who may come."""
    import attrs

    from mcp_trio._client.connect import has_url
    from mcp_trio._proxy.bridge import parse_downstream

    downstream = parse_downstream(source)
    who = told_to(downstream.kind, said)
    if "allows_cors" in who and has_url(upstream.target):
        raise click.UsageError(CORS_IS_THEIRS)
    is_open = who.pop("is_open", False)
    return attrs.evolve(downstream, listen=attrs.evolve(downstream.listen, **who), is_open=is_open)
