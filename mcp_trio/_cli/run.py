"""`mcp-trio run`: serve somebody's server."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Unpack

import click

from mcp_trio._cli.recording_options import RecordingChoices, record_options, recording_options

if TYPE_CHECKING:
    from mcp_trio._recorder.options import RecordOptions

Serve = Callable[[str, "RecordOptions | None", Sequence[str]], None]


def _serve_stdio(target: str, record: "RecordOptions | None", revisions: Sequence[str]) -> None:
    from mcp_trio._transports.stdio_server import divert_stdio

    # Before anything of theirs is imported: what it prints must not meet the messages.
    descriptors = divert_stdio()

    from mcp_trio._cli.targets import load_server
    from mcp_trio._engine import bare
    from mcp_trio._server.stdio import run_stdio

    server = load_server(target)
    if revisions:
        server.revisions = revisions
    try:
        run_stdio(server, record=record, descriptors=descriptors)
    except Exception as error:
        raise bare(error) from None


TRANSPORTS: Final[Mapping[str, Serve]] = {"stdio": _serve_stdio}


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
Ends when the client closes stdin or stops reading, with the parent process, and on SIGINT or
SIGTERM. What the server prints goes to stderr.

\b
Exit status: 0; 2 TARGET names no server; 128 plus the number of a signal.

\b
Examples:
  mcp-trio run server.py
  mcp-trio run package.module:server --record recordings/
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
def run(
    target: str,
    transport: str,
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
    TRANSPORTS[transport](target, options, revisions)
