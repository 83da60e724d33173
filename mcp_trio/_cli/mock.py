"""`mcp-trio mock`: stand in for the server or the client of a recording."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import click

from mcp_trio._cli.behind import command_behind
from mcp_trio._cli.inputs import LiveServerCommand, driven
from mcp_trio._cli.listening_options import flag_of, place_options, placed
from mcp_trio._cli.urls import header_option

if TYPE_CHECKING:
    from mcp_trio._replay.mock import MockServer


def _serve_stdio(server: "MockServer") -> int:
    from mcp_trio._replay.mock_stdio import run_mock

    return run_mock(server)


def _listen(
    serve_of: Callable[["MockServer"], Callable[..., Awaitable[None]]],
    server: "MockServer",
    **place: Any,
) -> int:
    from mcp_trio._errors import ConfigError
    from mcp_trio._server.http.running import run_until_signal

    try:
        run_until_signal(partial(serve_of(server), **place), told=_tell_url)
    except SystemExit as ended:  # by a signal, which it says by its status
        return int(ended.code or 0)
    except OSError as error:
        raise ConfigError(f"cannot listen: {error.strerror or error}") from error
    return 0


def _tell_url(url: str) -> None:
    click.echo(f"serving {url}", err=True)


class Transport(NamedTuple):
    """How a mock is served over one of them, and of which options it is told."""

    serve: Callable[..., int]
    options: Collection[str] = ()


TRANSPORTS: Final[Mapping[str, Transport]] = {
    "stdio": Transport(_serve_stdio),
    "http": Transport(partial(_listen, attrgetter("serve_http")), ("host", "port")),
    "websocket": Transport(partial(_listen, attrgetter("serve_websocket")), ("host", "port")),
    "unix": Transport(partial(_listen, attrgetter("serve_unix")), ("path",)),
    "tcp": Transport(partial(_listen, attrgetter("serve_tcp")), ("host", "port", "is_open")),
}


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
@place_options
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
    given = [name for name, value in of_server.items() if value is not None and value is not False]
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
    **said: str | int | bool | None,
) -> None:
    from mcp_trio._cli.recordings import naming
    from mcp_trio._replay.mock import mock_server

    name = transport or "stdio"
    place = placed(name, TRANSPORTS[name].options, said)
    with naming(file):
        server = mock_server(file, strict=strict, pace=pace, channel=channel)
    status = TRANSPORTS[name].serve(server, **place)
    if strict:
        server.check()
    for miss in server.misses:
        click.echo(miss, err=True)
    context.exit(status)
