"""`mcp-trio replay`: run a server's handlers against a recording."""

import time
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mcp_trio._replay import ReplayReport


@click.command(
    short_help="Run handlers against a recording.",
    epilog="""\b
Exit status: 0 the same, byte for byte; 1 diverged: the first record that differs is shown;
2 unusable, such as a recording of a client.

\b
Examples:
  mcp-trio replay recordings/trip.mcprec.jsonl server.py
  mcp-trio replay recordings/trip.mcprec.jsonl.zst package.module:server
""",
)
@click.argument("file")
@click.argument("target")
def replay(file: str, target: str) -> None:
    """Run the handlers of TARGET against the recording FILE, and compare every byte they send."""
    from mcp_trio._cli.progress import patience
    from mcp_trio._cli.recordings import naming
    from mcp_trio._cli.targets import load_server
    from mcp_trio._replay import replay

    server = load_server(target)
    begin = time.perf_counter()
    with naming(file), patience("replaying"):
        report = replay(file, server)
    click.echo(replayed(report, time.perf_counter() - begin))


def replayed(report: "ReplayReport", seconds: float) -> str:
    """What to say of a replay that did what was recorded, and took `seconds`."""
    played = f"{report.records} records, {report.requests} requests handled"
    ending = "" if report.is_complete else ", up to where the recording was cut"
    lines = [
        f"the same, byte for byte: {played}{ending}",
        f"recorded in {report.recorded_seconds:.3f} s, replayed in {seconds * 1000:.1f} ms",
        *(f"note: {note}" for note in report.notes),
    ]
    return "\n".join(lines)
