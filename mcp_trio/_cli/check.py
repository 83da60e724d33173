"""`mcp-trio check`: whether a recording is whole."""

from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from mcp_trio._journal.reader import CheckReport

# What the kinds of flaws mean for the file as a whole; the worst comes first.
VERDICTS: Final = {
    "damaged": "damaged: something in the middle was changed or lost",
    "digest": "damaged: something in the middle was changed or lost",
    "numbering": "damaged: something in the middle was changed or lost",
    "torn": "cut in its last line: everything before it is whole",
    "unknown-kind": "written by a later version: not everything in it is known here",
    "unknown-key": "written by a later version: not everything in it is known here",
}


@click.command(
    short_help="Whether a recording is whole.",
    epilog="""\b
Exit status: 0 complete and without flaws; 1 flawed, cut, or with a loss; 2 not a recording.

\b
Examples:
  mcp-trio check recordings/trip.mcprec.jsonl
  mcp-trio check recordings/trip.mcprec.jsonl.zst && echo whole
""",
)
@click.argument("file")
@click.pass_context
def check(context: click.Context, file: str) -> None:
    """Verify the recording FILE: its records, numbers and digests, and whether it was closed."""
    from mcp_trio._cli.recordings import lines_of, naming
    from mcp_trio._journal.reader import check

    with naming(file):
        report = check(lines_of(file))
    click.echo(f"{file}: {verdict(report)}")
    kinds = ", ".join(f"{count} {kind}" for kind, count in report.kinds.items())
    click.echo(f"{report.records} records: {kinds}")
    for flaw in report.flaws:
        click.echo(f"line {flaw.line}: {flaw.kind}: {flaw.text}")
    context.exit(0 if is_whole(report) else 1)


def is_whole(report: "CheckReport") -> bool:
    """Whether everything that happened stands in the recording, unchanged."""
    return report.complete and not report.flaws and not report.has_loss


def verdict(report: "CheckReport") -> str:
    """The state of a recording in a sentence."""
    found = {flaw.kind for flaw in report.flaws}
    for kind, text in VERDICTS.items():
        if kind in found:
            return text
    whole = "whole" if report.complete else "cut between two lines: the session was not closed"
    if report.has_loss:
        return f"{whole}, but with a gap: what could not be written there is missing"
    if "gap" in report.kinds:
        return f"{whole}, with a gap that lost nothing"
    return whole
