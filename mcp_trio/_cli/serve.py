"""`mcp-trio run` and `mock`: serve a server or a recording."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack

import click

from mcp_trio._cli.options import (
    TRANSPORTS,
    Attempt,
    RecordingChoices,
    command_behind,
    flag_of,
    header_option,
    is_said,
    listening,
    placed,
    record_options,
    recording_options,
    serving_options,
    where,
)
from mcp_trio._cli.output import echo_error
from mcp_trio._cli.replay import LiveServerCommand, driven

if TYPE_CHECKING:
    from mcp_trio._recorder.writer import RecordOptions
    from mcp_trio._replay.mock import MockServer
    from mcp_trio._server.server import Server


# --------------------
# `mcp-trio mock`: stand in for the server or the client of a recording.


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
    help="The side to imitate; a client needs a server to connect to.",
)
@click.option("--pace", is_flag=True, help="Respond with the recorded delays instead of at once.")
@click.option(
    "--strict", is_flag=True, help="Fail unless the client sends exactly the recorded requests."
)
@click.option(
    "--transport", type=click.Choice(list(TRANSPORTS)), help="For a server: stdio by default."
)
@serving_options
@header_option
@click.option(
    "--channel", type=int, metavar="N", help="The session to use, in a recording of several."
)
@click.pass_context
def mock_command(
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
        _reject(of_server)
        report = driven(context, file, target, ignore=("$",), channel=channel, headers=headers)
        click.echo(report.summary)
        context.exit(0 if report.answered else 1)
    if target is not None or command_behind(context) is not None or headers:
        raise click.UsageError("a server is named with --as client only")
    _mock_server(context, file, channel=channel, **of_server)


def _reject(of_server: Mapping[str, Any]) -> None:
    given = [name for name, value in of_server.items() if is_said(value)]
    if given:
        raise click.UsageError(f"{flag_of(given[0])} cannot be used with --as client")


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
    for line in server.unrecorded:
        echo_error(line)
    context.exit(status)


def _served_over_stdio(server: "MockServer") -> int:
    from mcp_trio._replay.mock import run_mock

    return run_mock(server)


def _served(server: "MockServer", transport: str, place: Mapping[str, Any]) -> int:
    """The exit status, which is that of the signal which ended it."""
    from mcp_trio._server.server import RUNNERS

    status = 0
    try:
        with listening(where(**place), "serving") as attempt:
            RUNNERS[transport](server, told=attempt.told, **place)
    except SystemExit as ended:
        status = int(ended.code or 0)
    return status


class Served(NamedTuple):
    """What is served, and how; `place` is what a transport is told, by the names of options."""

    target: str
    record: "RecordOptions | None"
    protocol_versions: Sequence[str]
    transport: str
    place: Mapping[str, Any]

    def load(self) -> "Server":
        """The server, which people's code makes."""
        from mcp_trio._cli.targets import load_server

        server = load_server(self.target)
        if self.protocol_versions:
            server.protocol_versions = self.protocol_versions
        return server


def _serve_stdio(served: Served) -> None:
    from mcp_trio._transports.stdio import divert_stdio

    # Before anything of theirs is imported: what it prints must not meet the messages.
    descriptors = divert_stdio()

    from mcp_trio._server.stdio import run_stdio
    from mcp_trio._session.tasks import bare

    server = served.load()
    try:
        run_stdio(server, record=served.record, descriptors=descriptors)
    except Exception as error:
        raise bare(error) from None


def _serve_listening(served: Served) -> None:
    from mcp_trio._server.server import RUNNERS

    server, place = served.load(), served.place
    _check_workers(server, place.get("workers", 1))
    with listening(where(**place), "serving") as attempt:
        _keep_lifespan_apart(server, attempt)
        RUNNERS[served.transport](server, told=attempt.told, record=served.record, **place)


def _check_workers(server: "Server", workers: int) -> None:
    from mcp_trio._server.http_serve import check_for_workers

    if workers > 1:
        try:
            check_for_workers(server, {}, workers)
        except ValueError as error:
            raise click.UsageError(str(error)) from error


def _keep_lifespan_apart(server: "Server", attempt: Attempt) -> None:
    """It begins when somebody listens already: what people's code raises there is its own."""
    lifespan = server.lifespan
    if lifespan is None:
        return

    def begin(server: "Server") -> AbstractAsyncContextManager[Any]:
        attempt.is_over = True
        return lifespan(server)

    server.lifespan = begin


def _check_sessions(record: "RecordOptions | None", transport: str) -> None:
    from mcp_trio._recorder.writer import holds_many_sessions

    if not holds_many_sessions(record):
        raise click.UsageError(
            f"over {transport} sessions are many: --record takes a folder that is there already"
        )


def _protocol_versions(_: click.Context, __: click.Parameter, words: str | None) -> Sequence[str]:
    from mcp_trio._protocol.versions import checked_protocol_versions

    try:
        return () if words is None else checked_protocol_versions(words.split(","))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(
    short_help="Serve a server.",
    epilog="""\b
Over stdio it ends when the client closes stdin or stops reading, with the parent process, and on
SIGINT or SIGTERM; what the server prints goes to stderr. Over anything else it ends on a signal.
With http there is WebSocket as well, at /ws of the same port; websocket is that alone. Over unix
and tcp messages are lines, as over stdio. Over all but stdio, --record takes a folder.

\b
A browser lets pages of other origins read what is answered over http with --allow-cors only; to
open a WebSocket they need --allow-origin alone.

\b
Write --token '${TOKEN}' in single quotes: what the environment holds does not stand in the list
of processes then.

\b
Exit status: 0; 1 one of several workers ended before all of them served; 2 TARGET names no
server, options contradict each other, or nobody can listen there; 128 plus a signal's number.

\b
Examples:
  mcp-trio run server.py
  mcp-trio run package.module:server --record recordings/
  mcp-trio run server.py --transport http --port 8000
  mcp-trio run server.py --transport http --workers 4
  mcp-trio run server.py --transport http --host 0.0.0.0 --certfile cert.pem --keyfile key.pem
  mcp-trio run server.py --transport http --allow-origin https://app.example --allow-cors
  mcp-trio run server.py --transport websocket --token '${TOKEN}'
  mcp-trio run server.py --transport unix --socket ~/.server.sock
  mcp-trio run server.py --record trip.mcprec.jsonl.zst --redact --segment-mib 64
""",
)
@click.argument("target")
@click.option(
    "--transport",
    type=click.Choice(list(TRANSPORTS)),
    default="stdio",
    show_default=True,
    help="How clients are connected.",
)
@serving_options
@click.option(
    "--certfile",
    metavar="PATH",
    type=click.Path(exists=True, dir_okay=False),
    help="For http, websocket: use TLS with this certificate, in PEM.",
)
@click.option(
    "--keyfile",
    metavar="PATH",
    type=click.Path(exists=True, dir_okay=False),
    help="For http, websocket: the certificate's private key, in PEM; by default, in its file.",
)
@click.option(
    "--server",
    type=click.Choice(["native", "hypercorn"]),
    help="For http: the server implementation; native by default, hypercorn for HTTP/2.",
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(1),
    help=(
        "For http: the number of worker processes; more than 1 serves "
        "stateless clients only; 1 by default."
    ),
)
@click.option(
    "--protocol-versions",
    metavar="REV,...",
    callback=_protocol_versions,
    help="Offer only these protocol versions.",
)
@click.option(
    "--record",
    metavar="PATH",
    help="Record the session: to a file, or to a file of its own in an existing folder; "
    "compressed if the name ends in .zst.",
)
@recording_options
@click.option(
    "--strict",
    is_flag=True,
    help=("Raise an error when a handler calls what no replay can repeat, such as time.time()."),
)
def run_command(
    target: str,
    transport: str,
    host: str | None,
    port: int | None,
    path: str | None,
    token: str | None,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
    certfile: str | None,
    keyfile: str | None,
    server: str | None,
    workers: int | None,
    protocol_versions: Sequence[str],
    record: str | None,
    *,
    allows_cors: bool,
    is_open: bool,
    strict: bool,
    **choices: Unpack[RecordingChoices],
) -> None:
    """Serve the server TARGET, file.py[:object] or package.module[:object]."""
    if record is None and (strict or any(choices.values())):
        raise click.UsageError("recording options need --record PATH")
    if keyfile is not None and certfile is None:
        raise click.UsageError("--keyfile needs --certfile")
    options = None if record is None else record_options(record, choices, strict=strict)
    said = {
        "host": host,
        "port": port,
        "path": path,
        "is_open": is_open,
        "token": token,
        "hosts": hosts,
        "origins": origins,
        "allows_cors": allows_cors,
        "certfile": certfile,
        "keyfile": keyfile,
        "server": server,
        "workers": workers,
    }
    served = Served(target, options, protocol_versions, transport, placed(transport, said))
    if transport == "stdio":
        _serve_stdio(served)
    else:
        _check_sessions(options, transport)
        _serve_listening(served)
