"""`mcp-trio record` and `bridge`: forward messages between clients and a server."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

import attrs
import click
import msgspec

from mcp_trio._cli.options import (
    TakesServerCommand,
    check_headers,
    check_tcp_host,
    command_after_dashes,
    cors_option,
    given_options,
    header_option,
    host_check_options,
    listen_address,
    listening,
    recording_options,
    set_up_telemetry,
    take_recording,
    telemetry_option,
    token_option,
    with_header_hint,
)
from mcp_trio._cli.output import echo_error
from mcp_trio._version import __version__
from mcp_trio.errors import ConnectionLost

if TYPE_CHECKING:
    from mcp_trio._proxy.bridge import Downstream, Upstream
    from mcp_trio._recorder.options import RecordOptions


# The exit statuses by which a shell reports a command that it cannot run.
NOT_FOUND_STATUS: Final = 127
NOT_EXECUTABLE_STATUS: Final = 126

CORS_WITH_HTTP_SERVER: Final = (
    "--allow-cors cannot be used with a server over HTTP: that server sends its own CORS headers"
)


def check_program(context: click.Context, program: str) -> None:
    """End the command, with a shell's exit status, if a program does not exist.

    This happens before a recording is created, which would stay empty.
    """
    if shutil.which(program):
        return
    if shutil.which(program, os.F_OK) or Path(program).is_dir():
        click.echo(f"cannot start {program!r}: it is not executable", err=True)
        context.exit(NOT_EXECUTABLE_STATUS)
    click.echo(f"cannot start {program!r}: not found", err=True)
    context.exit(NOT_FOUND_STATUS)


def _run(
    context: click.Context,
    downstream: "Downstream",
    upstream: "Upstream",
    *,
    address: str | None,
    label: str,
    record: "RecordOptions | None",
    telemetry: bool,
) -> NoReturn:
    """Run the bridge until it ends, and end the command with its exit status."""
    from mcp_trio._proxy.bridge import run_bridge

    tracer = None
    if telemetry:
        set_up_telemetry(f"mcp-trio {context.info_name}")
        from opentelemetry.trace import get_tracer

        tracer = get_tracer("mcp_trio", __version__)
    try:
        with listening(address, label) as attempt:
            status = run_bridge(
                downstream,
                upstream,
                record=record,
                report_url=attempt.report_url,
                tracer=tracer,
            )
    except ConnectionLost as error:
        if isinstance(upstream.target, str):
            raise with_header_hint(error) from error
        echo_error(str(error))
        status = NOT_EXECUTABLE_STATUS
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    context.exit(status)


# `mcp-trio record`.


def _address(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _colon, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004  the highest port
        raise click.BadParameter(f"{text!r} is not HOST:PORT with a port from 0 to 65535")
    return host.strip("[]") or "127.0.0.1", int(port)


@click.command(
    short_help="Record the messages between clients and a server.",
    epilog="""\b
Put this command before the server's command in the host's settings; with --listen, give clients
the URL that this command prints. Messages are forwarded unchanged; with --telemetry, requests
have the trace context of this command's spans. The stderr and the exit status of COMMAND are
passed on, and so are SIGINT, SIGTERM and SIGHUP.

\b
Over HTTP, messages are recorded, but no headers. A folder gets one file for each session, and one
for messages outside of sessions; a single file gets all of them. With --listen, COMMAND is
started for each session, and once for all stateless requests.

\b
With one of --keep-… and --max-…, FILE is a folder, which is created if need be, and secrets are
redacted. Recordings are compressed and put into a catalogue: see `mcp-trio find`. --keep-header
needs --listen and --to; --keep-user cannot be used, because the server authenticates the users.

\b
Exit status: that of COMMAND, or 128 plus the number of the signal that ended it or this command;
1 the server at URL ended the session; 126 COMMAND cannot be started, 127 it is not found; 2 FILE
exists or cannot be created, or the address cannot be used.

\b
Examples:
  mcp-trio record -o trip.mcprec.jsonl -- python server.py
  mcp-trio record -o recordings/ --listen 127.0.0.1:9000 --to http://127.0.0.1:8000/mcp
  mcp-trio record -o recordings/ --listen 127.0.0.1:9000 -- python server.py
  mcp-trio record -o trip.mcprec.jsonl --to https://server.example/mcp
  mcp-trio record -o trip.mcprec.jsonl --telemetry -- python server.py
  mcp-trio record -o kept/ --keep-rate 0.01 --max-days 30 -- python server.py
""",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    required=True,
    help="A new file, or an existing folder for one file per session; "
    "compressed if the name ends in .zst.",
)
@click.option("--to", "url", metavar="URL", help="The server's URL, http:// or https://.")
@click.option(
    "--listen",
    "address",
    metavar="HOST:PORT",
    callback=_address,
    help="Accept clients over HTTP at this address, instead of one over stdio; port 0 is any "
    "free port.",
)
@host_check_options("With --listen")
@cors_option("With --listen and COMMAND")
@header_option
@recording_options
@telemetry_option
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def record_command(
    context: click.Context,
    /,
    output: str,
    url: str | None,
    address: tuple[str, int] | None,
    hosts: Sequence[str],
    origins: Sequence[str],
    headers: Mapping[str, str],
    command: tuple[str, ...],
    *,
    allows_cors: bool,
    telemetry: bool,
    **chosen: Any,
) -> None:
    """Record the messages between clients and a server, COMMAND or the one at URL, to FILE."""
    if (url is not None) == bool(command):  # both, or neither
        raise click.UsageError("name one server: --to URL, or its COMMAND after --")
    if address is None and (hosts or origins or allows_cors):
        raise click.UsageError("--allow-host, --allow-origin and --allow-cors need --listen")
    if url is not None and allows_cors:
        raise click.UsageError(CORS_WITH_HTTP_SERVER)
    if headers and (url is None or address is not None):
        raise click.UsageError(
            "--header needs --to, and cannot be used with --listen: HTTP clients send their own"
            " headers"
        )
    options = take_recording(chosen, output)
    if url is not None:
        from mcp_trio._transports.http_client_requests import parsed_url

        try:
            parsed_url(url)
        except ValueError as error:  # its text does not repeat the URL, which may hold a secret
            raise click.UsageError(str(error)) from None
    if command:
        check_program(context, command[0])

    from mcp_trio._proxy.bridge import Downstream, Upstream
    from mcp_trio._proxy.http import ListenOptions

    upstream = Upstream(target=command if url is None else url, headers=headers)
    downstream, listens_at = Downstream(), None
    if address is not None:
        host, port = address
        listen = ListenOptions(
            host=host,
            port=port,
            hosts=hosts or None,
            origins=origins or None,
            allows_cors=allows_cors,
        )
        downstream = Downstream(kind="http", listen=listen)
        listens_at = listen_address(host=host, port=port)
    _run(
        context,
        downstream,
        upstream,
        address=listens_at,
        label="recording",
        record=options,
        telemetry=telemetry,
    )


# `mcp-trio bridge`.


class BridgeCommand(TakesServerCommand):
    """`mcp-trio bridge [OPTIONS] FROM TO`; the server is TO, the argument at index 2."""

    server_index: ClassVar[int] = 2


@click.command(
    cls=BridgeCommand,
    short_help="Connect clients of one transport to a server on another.",
    epilog="""\b
FROM is where clients connect:
  -                      one client, on stdin and stdout
  http://HOST:PORT/PATH  Streamable HTTP; PATH is mcp by default
  ws://HOST:PORT/PATH    WebSocket; PATH is empty by default
  tcp://HOST:PORT        TCP, one message per line
  unix:PATH              a Unix socket for this user alone (0600), one message per line
TO is the server: http://, https://, ws://, wss://, tcp://HOST:PORT, unix:PATH, or its command.

\b
Each client session gets its own server session: a connection, or a process. Messages are
forwarded unchanged, for stateless and legacy protocol versions alike; with --telemetry, requests
have the trace context of this command's spans. When one side closes a
session, the bridge closes the other.

\b
With one of --keep-… and --max-…, --record PATH is a folder, as for `mcp-trio record`.
--keep-header needs http:// clients and a server at http(s)://.

\b
Exit status: with FROM -, that of COMMAND, 126 if it cannot be started, 127 if it is not found; or
with a URL, 0 the client has ended, 1 a connection was lost; 2 the address cannot be used, or the
recording cannot be created; 128 plus the number of a signal.

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
    help="Record the messages to a new file, or each session to its own file in an existing "
    "folder; compressed if the name ends in .zst.",
)
@recording_options
@telemetry_option
@header_option
@token_option("From http:// and ws://")
@host_check_options("From http:// and ws://")
@cors_option("From http://, unless TO is http(s)://")
@click.option(
    "--open",
    "is_open",
    is_flag=True,
    help="From tcp://: allow an address that other machines can reach, without authentication.",
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
    *,
    telemetry: bool,
    **chosen: Any,
) -> None:
    """Connect clients at FROM to the server at TO, each client session to a server session."""
    from mcp_trio._client.connect import is_http_target
    from mcp_trio._proxy.bridge import Upstream, check_server_url, parse_downstream

    options = take_recording(chosen, record)

    command = command_after_dashes(context)
    if (url is None) == (command is None):  # both, or neither
        raise click.UsageError("name one server: its URL, or its COMMAND after --")
    check_headers(headers, url)
    if command is not None:
        check_program(context, command[0])
        upstream = Upstream(target=command)
    else:
        assert url is not None
        try:
            check_server_url(url)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        upstream = Upstream(target=url, headers=headers)

    try:
        downstream = parse_downstream(source)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    given = given_options(downstream.kind, chosen)
    if "allows_cors" in given and is_http_target(upstream.target):
        raise click.UsageError(CORS_WITH_HTTP_SERVER)
    is_open = given.pop("is_open", False)
    if downstream.kind == "tcp":
        check_tcp_host(downstream.listen.host, is_open=is_open)
    listen = attrs.evolve(downstream.listen, **given)
    downstream = msgspec.structs.replace(downstream, listen=listen, is_open=is_open)
    _run(
        context,
        downstream,
        upstream,
        address=None if downstream.kind == "stdio" else source,
        label="listening at",
        record=options,
        telemetry=telemetry,
    )
