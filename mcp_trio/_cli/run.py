"""`mcp-trio run`: serve somebody's server."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Unpack

import click

from mcp_trio._cli.recording_options import RecordingChoices, record_options, recording_options

if TYPE_CHECKING:
    from mcp_trio import Server
    from mcp_trio._recorder.options import RecordOptions


class Served(NamedTuple):
    """What is served, and how; `place` is for http."""

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
    from mcp_trio._server.http.running import run_http

    run_http(served.load(), told=_tell_url, record=served.record, **served.place)


def _tell_url(url: str) -> None:
    click.echo(f"serving {url}", err=True)


TRANSPORTS: Final[Mapping[str, Callable[[Served], None]]] = {
    "stdio": _serve_stdio,
    "http": _serve_http,
}


def _known_transport(_: click.Context, __: click.Parameter, name: str) -> str:
    if name not in TRANSPORTS:
        raise click.BadParameter(
            f"{name!r}: this version serves over {' and '.join(TRANSPORTS)} only"
        )
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
SIGINT or SIGTERM; what the server prints goes to stderr. Over http it ends on a signal.

\b
Exit status: 0; 2 TARGET names no server; 128 plus the number of a signal.

\b
Examples:
  mcp-trio run server.py
  mcp-trio run package.module:server --record recordings/
  mcp-trio run server.py --transport http --port 8000
  mcp-trio run server.py --transport http --workers 4
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
@click.option("--host", metavar="NAME", help="For http: the interface; 127.0.0.1 by default.")
@click.option("--port", type=click.IntRange(0, 65535), help="For http: 8000 by default; 0 any.")
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
    server: str | None,
    workers: int | None,
    revisions: Sequence[str],
    record: str | None,
    *,
    strict: bool,
    **choices: Unpack[RecordingChoices],
) -> None:
    """Serve the server TARGET, file.py[:object] or package.module[:object]."""
    if record is None and (strict or any(choices.values())):
        raise click.UsageError("what is said of the recording needs --record PATH")
    options = None if record is None else record_options(record, choices, strict=strict)
    said = {"host": host, "port": port, "server": server, "workers": workers}
    place = {name: value for name, value in said.items() if value is not None}
    if place and transport == "stdio":
        raise click.UsageError(f"--{next(iter(place))} is not for stdio")
    TRANSPORTS[transport](Served(target, options, revisions, place))
