"""`mcp-trio replay` and `sweep`."""

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, Final

import click

from mcp_trio._cli.options import (
    TakesCommand,
    command_behind,
    header_option,
    is_url,
    naming_header,
    reject_headers,
    together,
)
from mcp_trio.limits import RequestLimits

if TYPE_CHECKING:
    from mcp_trio._client.connect import Target
    from mcp_trio._replay.live import InputDifference, InputsReport
    from mcp_trio._replay.replay import Mode, ReplayReport
    from mcp_trio._replay.sweep import SweepReport
    from mcp_trio.limits import Limits


# --------------------
# `mcp-trio replay FILE URL`, `-- COMMAND...`: drive a live server as a recorded client did.


_COLOURS: Final = {
    "changed": "yellow",
    "missing": "red",
    "extra": "green",
    "late": "red",
    "lost": "red",
}


class LiveServerCommand(TakesCommand):
    """A command that takes TARGET or a URL, or the command of a live server behind `--`."""

    server_place = -1


# `--inputs`, and what `drive_inputs` takes.
inputs_parameters: Final = together(
    click.option(
        "--inputs",
        is_flag=True,
        help=("Start TARGET, send it the recorded client's messages, and compare its responses."),
    ),
    header_option,
    click.option(
        "--ignore",
        metavar="PATH",
        multiple=True,
        help="With --inputs, URL or command: what may differ, as '$.result.content[*].text'.",
    ),
    click.option(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(min=0, min_open=True),
        help=("With --inputs, URL or command: how long to wait for a response."),
    ),
    click.option(
        "--channel",
        metavar="N",
        type=int,
        help=("With --inputs, URL or command: the session to replay, in a recording of several."),
    ),
    click.option(
        "--protocol-version",
        metavar="REV",
        help=(
            "With --inputs, URL or command: the protocol version to use; "
            "stateless or legacy as recorded."
        ),
    ),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="With --inputs, URL or command: print one JSON object per line.",
    ),
)


def drive_inputs(
    ctx: click.Context,
    file: str,
    target: str | None,
    *,
    headers: Mapping[str, str],
    ignore: Sequence[str] = (),
    channel: int | None = None,
    protocol_version: str | None = None,
    timeout: float | None = None,
    as_json: bool = False,
) -> None:
    """Say to the server what the client in FILE said; prints what differs, and ends the command."""
    report = driven(
        ctx,
        file,
        target,
        headers=headers,
        ignore=ignore,
        channel=channel,
        protocol_version=protocol_version,
        timeout=timeout,
    )
    if as_json:
        import msgspec

        click.echo(msgspec.json.Encoder().encode_lines(report.differences), nl=False)
    else:
        _print(report)
    ctx.exit(0 if report.is_same else 1)


def driven(
    ctx: click.Context,
    file: str,
    target: str | None,
    *,
    headers: Mapping[str, str],
    ignore: Sequence[str] = (),
    channel: int | None = None,
    protocol_version: str | None = None,
    timeout: float | None = None,
) -> "InputsReport":
    """What became of the recorded requests at TARGET or URL, or at the command behind `--`.

    Raises:
        click.UsageError: Neither is there, or both; or a path to ignore or a URL is none, or a
            revision does not fit what was recorded; or there are headers for no URL.
        RecordingError: The file is no recording.
    """
    from mcp_trio._cli.output import echo_error
    from mcp_trio._cli.progress import patience
    from mcp_trio._cli.recordings import naming
    from mcp_trio._replay.live import drive
    from mcp_trio.errors import ConnectionLost

    # A server in this process prints where it likes, but stdout is for what differs.
    with contextlib.redirect_stdout(sys.stderr), naming(file), patience("asking the server"):
        server, is_command = _server(ctx, target)
        reject_headers(headers, server if isinstance(server, str) else None)
        try:
            return drive(
                file,
                server,
                ignore=ignore,
                channel=channel,
                protocol_version=protocol_version,
                limits=_limits(timeout),
                inherit_env=is_command,
                headers=headers,
            )
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        except ConnectionLost as error:  # it could not even be started, or reached
            echo_error(str(naming_header(error)))
            ctx.exit(2)


def _server(ctx: click.Context, target: str | None) -> "tuple[Target, bool]":
    command = command_behind(ctx)
    if (command is None) is (target is None):
        raise click.UsageError("name one server: TARGET or URL, or its command after --")
    if command is not None:
        return command, True
    from mcp_trio._cli.targets import load_server

    assert target is not None
    return target if is_url(target) else load_server(target), False


def _limits(timeout: float | None) -> "Limits":
    import attrs

    from mcp_trio.limits import DEFAULT_LIMITS

    if timeout is None:
        return DEFAULT_LIMITS
    return attrs.evolve(DEFAULT_LIMITS, requests=RequestLimits(idle_seconds=timeout))


def _print(report: "InputsReport") -> None:
    from mcp_trio._cli.output import Column, Line, print_table

    if report.differences:
        columns = (
            Column(""),
            Column("record", "right"),
            Column("what"),
            Column("path"),
            Column("recorded"),
            Column("live"),
        )
        lines = [Line(_cells(each), _COLOURS[each.kind]) for each in report.differences]
        print_table(columns, lines)
        click.echo()
    click.echo(report.summary)


def _cells(difference: "InputDifference") -> tuple[str, ...]:
    from mcp_trio._cli.output import printable
    from mcp_trio._replay.live import value_texts

    number = "" if difference.record is None else str(difference.record)
    values = value_texts(difference) if difference.path else ("", difference.live or "")
    cells = (difference.subject, difference.path, *values)
    return difference.kind, number, *map(printable, cells)


# --------------------
# `mcp-trio replay`: run a server's handlers against a recording.


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
def replay_command(
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
        raise click.UsageError("name a TARGET or a URL, or a COMMAND after --")
    elif any(choices.values()):
        raise click.UsageError(
            "--header, --ignore, --timeout, --channel, --protocol-version and --json"
            " go with --inputs"
        )
    else:
        _replay(file, target, mode, key)


def _replay(file: str, target: str, mode: "Mode", key: str | None) -> None:
    from mcp_trio._cli.options import read_key
    from mcp_trio._cli.progress import patience
    from mcp_trio._cli.recordings import naming
    from mcp_trio._cli.targets import load_server
    from mcp_trio._replay.replay import replay

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
        *(f"stray: {untracked_call}" for untracked_call in report.untracked_calls),
        *(f"beyond the cut: lane {lane} {site}" for lane, site in report.continuing.items()),
    ]
    return "\n".join(lines)


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
def sweep_command(
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
    lines += [f"stray: {untracked_call}" for untracked_call in report.untracked_calls]
    if not report.is_clean:
        first = report.failing_seeds[0]
        lines.append(f"one of them alone: mcp-trio sweep {file} {target} --seed {first}")
    return "\n".join(lines)


def _verdict(report: "SweepReport") -> str:
    if report.is_clean:
        return "every request came to what is recorded"
    count = len(report.failing_seeds)
    return f"{count} of them differ{'s' if count == 1 else ''} from the recording"
