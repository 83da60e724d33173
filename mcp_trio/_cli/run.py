"""`mcp-trio run`: serve somebody's server."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import click

from mcp_trio._cli.listening_options import (
    TRANSPORTS,
    Attempt,
    listening,
    placed,
    serving_options,
    where,
)
from mcp_trio._cli.recording_options import RecordingChoices, record_options, recording_options

if TYPE_CHECKING:
    from mcp_trio import Server
    from mcp_trio._recorder.options import RecordOptions


class Served(NamedTuple):
    """What is served, and how; `place` is what a transport is told, by the names of options."""

    target: str
    record: "RecordOptions | None"
    revisions: Sequence[str]
    transport: str
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


def _serve_listening(served: Served) -> None:
    from mcp_trio._server.runners import RUNNERS

    server, place = served.load(), served.place
    _check_workers(server, place.get("workers", 1))
    with listening(where(**place), "serving") as attempt:
        _keep_lifespan_apart(server, attempt)
        RUNNERS[served.transport](server, told=attempt.told, record=served.record, **place)


def _check_workers(server: "Server", workers: int) -> None:
    from mcp_trio._server.http.running import check_for_workers

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
    from mcp_trio._recorder.options import keeps_each_session

    if not keeps_each_session(record):
        raise click.UsageError(
            f"over {transport} sessions are many: --record takes a folder that is there already"
        )


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
    allows_cors: bool,
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
        "hosts": hosts,
        "origins": origins,
        "allows_cors": allows_cors,
        "server": server,
        "workers": workers,
    }
    served = Served(target, options, revisions, transport, placed(transport, said))
    if transport == "stdio":
        _serve_stdio(served)
    else:
        _check_sessions(options, transport)
        _serve_listening(served)
