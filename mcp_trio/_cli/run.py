"""`mcp-trio run`: serve somebody's server."""

from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Unpack

import click

from mcp_trio._cli.listening_options import gate_options, place_options, placed, token_option
from mcp_trio._cli.recording_options import RecordingChoices, record_options, recording_options

if TYPE_CHECKING:
    from mcp_trio import Server
    from mcp_trio._recorder.options import RecordOptions


class Served(NamedTuple):
    """What is served, and how; `place` is what a transport is told, by the names of options."""

    target: str
    record: "RecordOptions | None"
    revisions: Sequence[str]
    place: Mapping[str, Any]

    def load(self) -> "Server":
        """The server, which people's code makes."""
        from mcp_trio._cli.targets import load_server

        server = load_server(self.target)
        if self.revisions:
            server.revisions = self.revisions
        return server


def _serve_stdio(served: Served) -> None:
    from mcp_trio._transports.stdio_server import divert_stdio

    # Before anything of theirs is imported: what it prints must not meet the messages.
    descriptors = divert_stdio()

    from mcp_trio._engine import bare
    from mcp_trio._server.stdio import run_stdio

    server = served.load()
    try:
        run_stdio(server, record=served.record, descriptors=descriptors)
    except Exception as error:
        raise bare(error) from None


def _serve_http(served: Served) -> None:
    from mcp_trio._server.http.running import check_for_workers, run_http

    server = served.load()
    workers = served.place.get("workers", 1)
    if workers > 1:
        try:
            check_for_workers(server, {}, workers)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
    with _opening(server, served.place):
        run_http(server, told=_tell_url, record=served.record, **served.place)


def _serve_connections(
    serve_of: Callable[["Server"], Callable[..., Awaitable[None]]], served: Served
) -> None:
    from mcp_trio._server.http.running import run_until_signal

    server = served.load()
    serve = partial(serve_of(server), record=served.record, **served.place)
    with _opening(server, served.place):
        run_until_signal(serve, told=_tell_url)


@contextmanager
def _opening(server: "Server", place: Mapping[str, Any]) -> Generator[None]:
    """Within, that one cannot listen there is a text; what people's lifespan raises is none."""
    from mcp_trio._errors import ConfigError

    lifespan, has_begun = server.lifespan, False

    def begin(server: "Server") -> AbstractAsyncContextManager[Any]:
        nonlocal has_begun
        has_begun = True
        assert lifespan is not None
        return lifespan(server)

    if lifespan is not None:
        server.lifespan = begin
    try:
        yield
    except OSError as error:
        if has_begun:
            raise
        where = place.get("path") or f"{place.get('host', '127.0.0.1')}:{place.get('port', 8000)}"
        raise ConfigError(f"cannot listen at {where}: {error.strerror or error}") from error


def _tell_url(url: str) -> None:
    click.echo(f"serving {url}", err=True)


class Transport(NamedTuple):
    """How one of them is served, and of which options it is told."""

    serve: Callable[[Served], None]
    options: Collection[str] = ()


_WEB: Final = ("host", "port", "token", "hosts", "origins")

TRANSPORTS: Final[Mapping[str, Transport]] = {
    "stdio": Transport(_serve_stdio),
    "http": Transport(_serve_http, (*_WEB, "server", "workers")),
    "websocket": Transport(partial(_serve_connections, attrgetter("serve_websocket")), _WEB),
    "unix": Transport(partial(_serve_connections, attrgetter("serve_unix")), ("path",)),
    "tcp": Transport(
        partial(_serve_connections, attrgetter("serve_tcp")), ("host", "port", "is_open")
    ),
}

_FOR_THE_WEB: Final = "For http, websocket"


def _check_sessions(record: "RecordOptions | None", transport: str) -> None:
    from mcp_trio._recorder.options import keeps_each_session

    if not keeps_each_session(record):
        raise click.UsageError(
            f"over {transport} sessions are many: --record takes a folder, which ends with a slash"
            " or is there already"
        )


def _known_transport(_: click.Context, __: click.Parameter, name: str) -> str:
    if name not in TRANSPORTS:
        raise click.BadParameter(f"{name!r}: this version serves over {', '.join(TRANSPORTS)} only")
    return name


def _revisions(_: click.Context, __: click.Parameter, words: str | None) -> Sequence[str]:
    from mcp_trio._protocol import checked_revisions

    try:
        return () if words is None else checked_revisions(words.split(","))
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
Write --token '${TOKEN}' in single quotes: what the environment holds does not stand in the list
of processes then.

\b
Exit status: 0; 2 TARGET names no server, options contradict each other, or nobody can listen
there; 128 plus the number of a signal.

\b
Examples:
  mcp-trio run server.py
  mcp-trio run package.module:server --record recordings/
  mcp-trio run server.py --transport http --port 8000
  mcp-trio run server.py --transport http --workers 4
  mcp-trio run server.py --transport http --allow-origin https://app.example
  mcp-trio run server.py --transport websocket --token '${TOKEN}'
  mcp-trio run server.py --transport unix --socket ~/.server.sock
  mcp-trio run server.py --record trip.mcprec.jsonl.zst --redact --segment-mib 64
""",
)
@click.argument("target")
@click.option(
    "--transport",
    metavar="|".join(TRANSPORTS),
    default="stdio",
    show_default=True,
    callback=_known_transport,
    help="How the client is connected.",
)
@place_options
@token_option(_FOR_THE_WEB)
@gate_options(_FOR_THE_WEB)
@click.option(
    "--server",
    type=click.Choice(["native", "hypercorn"]),
    help="For http: who holds the connections; native by default.",
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(1),
    help="For http: so many processes, for modern clients only; 1 by default.",
)
@click.option(
    "--revisions",
    metavar="REV,...",
    callback=_revisions,
    help="Speak these revisions of the protocol only.",
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
    help="Refuse handlers what no replay could repeat, such as time.time().",
)
def run(  # noqa: PLR0917  click passes them by name
    target: str,
    transport: str,
    host: str | None,
    port: int | None,
    path: str | None,
    token: str | None,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
    server: str | None,
    workers: int | None,
    revisions: Sequence[str],
    record: str | None,
    *,
    is_open: bool,
    strict: bool,
    **choices: Unpack[RecordingChoices],
) -> None:
    """Serve the server TARGET, file.py[:object] or package.module[:object]."""
    if record is None and (strict or any(choices.values())):
        raise click.UsageError("what is said of the recording needs --record PATH")
    options = None if record is None else record_options(record, choices, strict=strict)
    said = {
        "host": host,
        "port": port,
        "path": path,
        "is_open": is_open,
        "token": token,
        "hosts": hosts or None,
        "origins": origins or None,
        "server": server,
        "workers": workers,
    }
    place = placed(transport, TRANSPORTS[transport].options, said)
    if transport != "stdio":
        _check_sessions(options, transport)
    TRANSPORTS[transport].serve(Served(target, options, revisions, place))
