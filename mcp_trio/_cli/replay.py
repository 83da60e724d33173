"""`mcp-trio replay`: run a server's handlers against a recording."""

import time
from typing import TYPE_CHECKING, Any

import click

from mcp_trio._cli.behind import command_behind
from mcp_trio._cli.inputs import LiveServerCommand, drive_inputs, inputs_parameters
from mcp_trio._cli.urls import is_url

if TYPE_CHECKING:
    from mcp_trio._replay import ReplayReport
    from mcp_trio._replay.replay import Mode


@click.command(
    cls=LiveServerCommand,
    short_help="Run handlers against a recording.",
    epilog="""\b
With --inputs, or with a command behind --, a server is started, and somebody says to it what the
client in FILE said, as to one at a URL: a recording of any role and any transport will do. Ids,
tokens, cursors and times do not count.

\b
Exit status: 0 the same, byte for byte; 1 diverged: the first record that differs is shown, and of
a live server all that differs; 2 unusable, such as a recording of a client, or nobody at URL.

\b
Examples:
  mcp-trio replay recordings/trip.mcprec.jsonl server.py
  mcp-trio replay recordings/trip.mcprec.jsonl.zst package.module:server
  mcp-trio replay recordings/trip.mcprec.jsonl --ignore '$.result._meta' -- npx -y some-server
  mcp-trio replay recordings/trip.mcprec.jsonl http://127.0.0.1:8000/mcp
""",
)
@click.argument("file")
@click.argument("target", required=False)
@click.option(
    "--mode",
    type=click.Choice(["strict", "outbound"]),
    default="strict",
    show_default=True,
    help="outbound: compare only what is sent; effects may come in another order.",
)
@click.option("--key", metavar="FILE", help="The key with which FILE was redacted.")
@inputs_parameters
@click.pass_context
def replay(
    context: click.Context,
    /,
    file: str,
    target: str | None,
    *,
    mode: "Mode",
    key: str | None,
    inputs: bool,
    **choices: Any,
) -> None:
    """Run the handlers of TARGET against the recording FILE, and compare every byte they send."""
    is_live = command_behind(context) is not None or (target is not None and is_url(target))
    if inputs or is_live:
        drive_inputs(context, file, target, **choices)
    elif target is None:
        raise click.UsageError("name a TARGET or a URL, or a COMMAND behind --")
    elif any(choices.values()):
        raise click.UsageError(
            "--header, --ignore, --timeout, --channel, --revision and --json go with --inputs"
        )
    else:
        _replay(file, target, mode, key)


def _replay(file: str, target: str, mode: "Mode", key: str | None) -> None:
    from mcp_trio._cli.progress import patience
    from mcp_trio._cli.recording_options import read_key
    from mcp_trio._cli.recordings import naming
    from mcp_trio._cli.targets import load_server
    from mcp_trio._replay import replay

    server = load_server(target)
    secret = None if key is None else read_key(key)
    begin = time.perf_counter()
    with naming(file), patience("replaying"):
        report = replay(file, server, mode=mode, key=secret)
    click.echo(replayed(report, time.perf_counter() - begin))


def replayed(report: "ReplayReport", seconds: float) -> str:
    """What to say of a replay that did what was recorded, and took `seconds`."""
    played = f"{report.records} records, {report.requests} requests handled"
    ending = "" if report.is_complete else ", up to where the recording was cut"
    lines = [
        f"the same, byte for byte: {played}{ending}",
        f"recorded in {report.recorded_seconds:.3f} s, replayed in {seconds * 1000:.1f} ms",
        *(f"note: {note}" for note in report.notes),
        *(f"stray: {stray}" for stray in report.strays),
        *(f"beyond the cut: lane {lane} {site}" for lane, site in report.beyond.items()),
    ]
    return "\n".join(lines)
