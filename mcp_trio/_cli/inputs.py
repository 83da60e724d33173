"""`mcp-trio replay FILE URL`, `-- COMMAND...`: drive a live server as a recorded client did."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from mcp_trio._cli.behind import TakesCommand, command_behind
from mcp_trio._cli.parameters import together
from mcp_trio._cli.urls import header_option, is_url, naming_header, refuse_headers

if TYPE_CHECKING:
    from mcp_trio._client.targets import Target
    from mcp_trio._limits import Limits
    from mcp_trio._replay.inputs_report import InputDifference, InputsReport

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
        help="Talk to TARGET as the recorded client did, as to a command, and compare answers.",
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
        help="With the same: how long to wait for an answer.",
    ),
    click.option(
        "--channel",
        metavar="N",
        type=int,
        help="With the same: which session, in a recording of several.",
    ),
    click.option(
        "--revision",
        metavar="REV",
        help="With the same: the revision to speak, of the era that was recorded.",
    ),
    click.option("--json", "as_json", is_flag=True, help="With the same: a JSON object a line."),
)


def drive_inputs(
    ctx: click.Context,
    file: str,
    target: str | None,
    *,
    headers: Mapping[str, str],
    ignore: Sequence[str] = (),
    channel: int | None = None,
    revision: str | None = None,
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
        revision=revision,
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
    revision: str | None = None,
    timeout: float | None = None,
) -> "InputsReport":
    """What became of the recorded requests at TARGET or URL, or at the command behind `--`.

    Raises:
        click.UsageError: Neither is there, or both; or a path to ignore or a URL is none, or a
            revision does not fit what was recorded; or there are headers for no URL.
        RecordingError: The file is no recording.
    """
    from mcp_trio._cli.progress import patience
    from mcp_trio._cli.recordings import naming
    from mcp_trio._cli.terminal import echo_error
    from mcp_trio._errors import ConnectionLost
    from mcp_trio._replay.inputs import drive

    # A server in this process prints where it likes, but stdout is for what differs.
    with contextlib.redirect_stdout(sys.stderr), naming(file), patience("asking the server"):
        server, is_command = _server(ctx, target)
        refuse_headers(headers, server if isinstance(server, str) else None)
        try:
            return drive(
                file,
                server,
                ignore=ignore,
                channel=channel,
                revision=revision,
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
        raise click.UsageError("name one server: TARGET or URL, or its command behind --")
    if command is not None:
        return command, True
    from mcp_trio._cli.targets import load_server

    assert target is not None
    return target if is_url(target) else load_server(target), False


def _limits(timeout: float | None) -> "Limits":
    import attrs

    from mcp_trio._limits import DEFAULT_LIMITS

    if timeout is None:
        return DEFAULT_LIMITS
    return attrs.evolve(DEFAULT_LIMITS, request_idle_seconds=timeout)


def _print(report: "InputsReport") -> None:
    from mcp_trio._cli.tables import Column, Line, print_table

    if report.differences:
        columns = (
            Column(""),
            Column("record", "right"),
            Column("what"),
            Column("path"),
            Column("recorded"),
            Column("live"),
        )
        lines = [Line(_cells(each), _COLOURS[each.what]) for each in report.differences]
        print_table(columns, lines)
        click.echo()
    click.echo(report.summary)


def _cells(difference: "InputDifference") -> tuple[str, ...]:
    from mcp_trio._cli.terminal import printable
    from mcp_trio._replay.inputs_report import value_texts

    number = "" if difference.record is None else str(difference.record)
    values = value_texts(difference) if difference.path else ("", difference.live or "")
    cells = (difference.about, difference.path, *values)
    return difference.what, number, *map(printable, cells)
