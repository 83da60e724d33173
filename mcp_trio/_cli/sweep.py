"""`mcp-trio sweep`: run a server's handlers under many schedules, to find races."""

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from mcp_trio._replay.sweep import SweepReport

_DIFFERENCES_SHOWN_MAX: Final = 10


@click.command(
    short_help="Look for races in handlers.",
    epilog="""\b
Each schedule has a seed, which decides in which order tasks run and how long effects take.
An answer that may well depend on who comes first differs too: judge for yourself.

\b
Exit status: 0 every schedule came to what is recorded; 1 some did not: their seeds are shown;
2 unusable, such as a recording of a client.

\b
Examples:
  mcp-trio sweep recordings/trip.mcprec.jsonl server.py
  mcp-trio sweep recordings/trip.mcprec.jsonl server.py --seed 17
""",
)
@click.argument("file")
@click.argument("target")
@click.option(
    "--schedules",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="How many schedules to run.",
)
@click.option("--seed", type=int, help="Run only the schedule of this seed.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def sweep(
    ctx: click.Context, *, file: str, target: str, schedules: int, seed: int | None, as_json: bool
) -> None:
    """Run the handlers of TARGET against the inputs of the recording FILE, in many orders."""
    import msgspec

    from mcp_trio._cli.recordings import naming
    from mcp_trio._cli.targets import load_server
    from mcp_trio._replay.sweep import sweep_forked

    with redirect_stdout(sys.stderr), naming(file):  # what people print is no part of the report
        server = load_server(target)
        report = sweep_forked(file, server, schedules=schedules, seed=seed)
    click.echo(msgspec.json.encode(report).decode() if as_json else swept(report, file, target))
    ctx.exit(0 if report.is_clean else 1)


def swept(report: "SweepReport", file: str, target: str) -> str:
    """What to say of a sweep."""
    counts = ", ".join(
        f"{count} {noun}{'' if count == 1 else 's'}"
        for count, noun in ((report.schedules, "schedule"), (report.outcomes, "different end"))
    )
    lines = [
        f"{counts}, in {report.seconds:.2f} s: {_verdict(report)}",
        *map(str, report.differences[:_DIFFERENCES_SHOWN_MAX]),
    ]
    more = len(report.differences) - _DIFFERENCES_SHOWN_MAX
    if more > 0:
        lines.append(f"and {more} more")
    lines += [f"stray: {stray}" for stray in report.strays]
    if not report.is_clean:
        first = report.failing_seeds[0]
        lines.append(f"one of them alone: mcp-trio sweep {file} {target} --seed {first}")
    return "\n".join(lines)


def _verdict(report: "SweepReport") -> str:
    if report.is_clean:
        return "every request came to what is recorded"
    count = len(report.failing_seeds)
    return f"{count} of them differ{'s' if count == 1 else ''} from the recording"
