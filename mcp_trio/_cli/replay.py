"""`mcp-trio replay`, `mock` and `sweep`: run what a recording holds again."""

import contextlib
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal

import click
import msgspec
from click.core import ParameterSource

from mcp_trio._cli.catalogue import opened_catalogue
from mcp_trio._cli.completion import (
    complete_recordings,
    complete_recordings_and_targets,
    complete_targets,
)
from mcp_trio._cli.options import (
    POSITIVE,
    STDIN,
    TRANSPORTS,
    TakesServerCommand,
    check_headers,
    command_after_dashes,
    errors_naming,
    flag_of,
    given_serving_options,
    header_option,
    is_given,
    is_url,
    listen_address,
    listening,
    load_server,
    parse_token,
    read_key,
    recordings_on_stdin,
    serving_options,
    target_errors,
    with_header_hint,
    write_report,
)
from mcp_trio._cli.output import (
    Column,
    Line,
    busy_bar,
    counting_bar,
    echo_error,
    echo_json,
    echo_text,
    items_with_bar,
    print_table,
    prints_to_stderr,
)
from mcp_trio.errors import ConnectionLost, NothingCompared, ReplayDivergence
from mcp_trio.limits import DEFAULT_LIMITS, RequestLimits

if TYPE_CHECKING:
    from mcp_trio._client.connect import Target
    from mcp_trio._replay.live_replay import InputsReport
    from mcp_trio._replay.many_replays import ReplayJob, ReplayOutcome
    from mcp_trio._replay.replay import Mode, ReplayReport
    from mcp_trio._replay.schedules import Schedule
    from mcp_trio._replay.sweep import SweepReport
    from mcp_trio._server.server import Server


# `mcp-trio replay`.

_WITH_A_LIVE_SERVER: Final = "With --inputs, URL or COMMAND"

# The ways to replay, as errors name them, and the options that each of them takes.
_LIVE: Final = "a live server (--inputs, a URL or a COMMAND)"
_PARALLEL: Final = "a replay in parallel (-, --where, --jobs, --junit or --markdown)"
_SEVERAL: Final = "a replay of several recordings, or with --repeat"
_ONE: Final = "a replay of one recording"
_OPTIONS: Final[Mapping[str, Collection[str]]] = {
    _LIVE: {
        *("inputs", "headers", "ignore", "timeout", "channel", "protocol_version"),
        *("allow_damaged", "as_json"),
    },
    _PARALLEL: {"where", "jobs", "junit", "markdown", "mode", "as_json"},
    "--schedule": {"schedule", "as_json"},
    "--until": {"until", "key", "allow_damaged"},
    "--break": {"break_at", "key", "allow_damaged"},
    _SEVERAL: {"repeat", "mode", "key", "allow_damaged", "all_divergences"},
    _ONE: {"mode", "key", "allow_damaged", "all_divergences", "as_json"},
}

# The members of the JSON object of a divergence.
_DIVERGENCE_MEMBERS: Final = (
    *("record", "lane", "kind", "ordinal", "offset_seconds", "recorded", "replayed"),
    *("causes", "hint", "follows", "suspended"),
)


@click.command(
    cls=TakesServerCommand,
    short_help="Run handlers against a recording.",
    epilog="""\b
With a TARGET, its handlers run in this process, and nothing else is started or contacted; with
several recordings, it is imported anew for each. With --where, --jobs, --junit or --markdown, or
a FILE of -, which stands for the recordings that stdin names, recordings are replayed in parallel
processes, and differences are summed up by cause. With --inputs, a URL or a COMMAND, a live
server gets the messages of the recorded client. Any recording will do then; ids, tokens, cursors
and times in the responses are not compared.

\b
Exit status: 0 no difference, or none before the record at which --until or a debugger ended the
replay; 1 a difference: the first one for a TARGET without --all, all of them for a live server;
or no request was compared, or stdin names no recording; 2 the recording cannot be used, such as
one of a client or a damaged one, or the server cannot be reached.

\b
Examples:
  mcp-trio replay recordings/trip.mcprec.jsonl server.py
  mcp-trio replay recordings/trip.mcprec.jsonl server.py --all
  mcp-trio replay recordings/trip.mcprec.jsonl server.py --break 42
  mcp-trio replay recordings/ server.py --repeat 20
  mcp-trio replay recordings/ server.py --where 'tool:book after:2026-11-01' --markdown pr.md
  mcp-trio find recordings/ error:timeout --json | mcp-trio replay - server.py
  mcp-trio replay recordings/trip.mcprec.jsonl.zst package.module:server
  mcp-trio replay recordings/trip.mcprec.jsonl --ignore '$.result._meta' -- npx -y some-server
  mcp-trio replay recordings/trip.mcprec.jsonl http://127.0.0.1:8000/mcp
""",
)
@click.argument(
    "files", metavar="FILE...", nargs=-1, shell_complete=complete_recordings_and_targets
)
@click.argument("target", required=False, shell_complete=complete_targets)
@click.option(
    "--repeat",
    metavar="N",
    type=click.IntRange(min=1),
    help="Replay each FILE under N seeds of the scheduler, each with two seeds of Python's hashes.",
)
@click.option(
    "--mode",
    type=click.Choice(["strict", "outbound"]),
    default="strict",
    show_default=True,
    help="outbound: compare only the messages sent; effects may occur in another order.",
)
@click.option(
    "--schedule",
    type=click.File("rb"),
    metavar="FILE",
    help="Run a schedule that mcp-trio sweep has written, instead of the recorded order.",
)
@click.option(
    "--all",
    "all_divergences",
    is_flag=True,
    help="Go on after a difference, and report the first one of each request.",
)
@click.option(
    "--until",
    metavar="N",
    type=int,
    help="Stop at record N, and print which line is about to make it, and where other tasks wait.",
)
@click.option(
    "--break",
    "break_at",
    metavar="N",
    type=int,
    help="Print the same, and open the debugger in the task that is about to make record N.",
)
@click.option("--key", metavar="FILE", help="The key with which FILE was redacted.")
@click.option(
    "--allow-damaged",
    is_flag=True,
    help="Replay a recording in which lines were changed or lost, as far as it can be read.",
)
@click.option(
    "--inputs",
    is_flag=True,
    help="Start TARGET, send it the recorded client's messages, and compare its responses.",
)
@header_option
@click.option(
    "--ignore",
    metavar="PATH",
    multiple=True,
    help=f"{_WITH_A_LIVE_SERVER}: ignore differences at this path, such as "
    "'$.result.content[*].text'.",
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=POSITIVE,
    help=f"{_WITH_A_LIVE_SERVER}: how long to wait for a response.",
)
@click.option(
    "--channel",
    metavar="N",
    type=int,
    help=f"{_WITH_A_LIVE_SERVER}: the session to replay, in a recording of several.",
)
@click.option(
    "--protocol-version",
    metavar="VERSION",
    help=f"{_WITH_A_LIVE_SERVER}: the protocol version to use; stateless or legacy as recorded.",
)
@click.option(
    "--where",
    metavar="QUERY",
    help="FILE is a folder: replay the recordings that QUERY finds, such as 'tool:book "
    "after:2026-11-01', in parallel, and sum the differences up by cause; see `mcp-trio find`.",
)
@click.option(
    "--jobs", metavar="N", type=click.IntRange(1), help="Replay in parallel, in N processes."
)
@click.option(
    "--junit", metavar="FILE", help="Replay in parallel, and write a report in JUnit's XML."
)
@click.option(
    "--markdown", metavar="FILE", help="Replay in parallel, and write a report in Markdown."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per difference, and nothing else; in parallel, per recording.",
)
@click.pass_context
def replay_command(
    context: click.Context,
    /,
    files: tuple[str, ...],
    target: str | None,
    *,
    where: str | None,
    jobs: int | None,
    junit: str | None,
    markdown: str | None,
    repeat: int | None,
    mode: "Mode",
    schedule: BinaryIO | None,
    all_divergences: bool,
    until: int | None,
    break_at: int | None,
    key: str | None,
    allow_damaged: bool,
    inputs: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run the handlers of TARGET against the recording FILE, and compare every byte they send.

    Each FILE may also be a folder, which stands for all recordings of servers in it, or - for
    those that stdin names.
    """
    has_command = command_after_dashes(context) is not None
    if target is not None and (has_command or not files):  # click takes the last FILE for TARGET
        files, target = (*files, target), None
    if not files:
        raise click.UsageError("name a FILE, and a TARGET or a URL, or a COMMAND after --")
    file = files[0]
    is_one_file = len(files) == 1 and file != STDIN and not Path(file).is_dir()
    if inputs or has_command or (target is not None and is_url(target)):
        way = _LIVE
    elif where is not None or STDIN in files or jobs or junit or markdown:
        way = _PARALLEL
    elif schedule is not None:
        way = "--schedule"
    elif until is not None:
        way = "--until"
    elif break_at is not None:
        way = "--break"
    else:
        way = _ONE if is_one_file and repeat is None else _SEVERAL
    _check_options(context, way)
    if not (is_one_file or way in (_PARALLEL, _SEVERAL)):
        raise click.UsageError(f"{way} takes one FILE")

    if way == _LIVE:
        report = _replay_to_live_server(
            context, file, target, allow_damaged=allow_damaged, **options
        )
        _print_inputs_report(report, as_json=as_json)
        context.exit(0 if report.is_same else 1)
    if target is None:
        raise click.UsageError("name a TARGET or a URL, or a COMMAND after --")
    if way == _PARALLEL:
        if where is not None and (len(files) != 1 or not Path(file).is_dir()):
            raise click.UsageError("--where takes one folder and a TARGET")
        status = _replay_and_sum_up(
            files,
            target,
            where,
            mode=mode,
            processes=jobs,
            junit=junit,
            markdown=markdown,
            as_json=as_json,
        )
        context.exit(status)
    if schedule is not None:
        context.exit(_replay_schedule(file, target, schedule, as_json=as_json))

    secret = None if key is None else read_key(key)
    if way == _SEVERAL:
        from mcp_trio._replay.many_replays import ReplayJob

        recordings = list(dict.fromkeys(each for file in files for each in _recordings(file)))
        job = ReplayJob(
            files=recordings,
            target=target,
            repeat=repeat or 0,
            mode=mode,
            key=secret,
            allow_damaged=allow_damaged,
            all_divergences=all_divergences,
        )
        outcomes = _replay_many(job)
        _print_outcomes(recordings, outcomes)
        context.exit(max(_EXIT_STATUSES[outcome.status] for outcome in outcomes))

    if way in ("--until", "--break"):
        _replay_to_stop(
            file, target, until=until, break_at=break_at, key=secret, allow_damaged=allow_damaged
        )
        return

    status = _replay_one(
        file,
        target,
        as_json=as_json,
        mode=mode,
        key=secret,
        allow_damaged=allow_damaged,
        all_divergences=all_divergences,
    )
    context.exit(status)


def _check_options(context: click.Context, way: str) -> None:
    """Check that a way to replay takes all options that were given.

    Raises:
        click.UsageError: It does not; the text names the ways that take the option.
    """
    for option in context.command.params:
        name = str(option.name)
        ways = [each for each, names in _OPTIONS.items() if name in names]
        source = context.get_parameter_source(name)
        if way in ways or source is not ParameterSource.COMMANDLINE:
            continue
        if isinstance(option, click.Option):
            raise click.UsageError(
                f"{option.opts[0]} cannot be used with {way}, but with {' or '.join(ways)}"
            )


def _replay_one(file: str, target: str, *, as_json: bool, **options: Any) -> int:
    """Replay one recording, and print the report; return the exit status.

    Raises:
        ReplayDivergence: The replay differs, and the difference is not printed as JSON.
    """
    from mcp_trio._replay.replay import replay

    try:
        with prints_to_stderr(), errors_naming(file):
            server = _load_noting_imports(target)
            start = time.perf_counter()
            with busy_bar("replaying"):
                report = replay(file, server, **options)
    except ReplayDivergence as divergence:
        if not as_json:
            raise
        for each in (divergence, *divergence.later):
            members = {name: getattr(each, name) for name in _DIVERGENCE_MEMBERS}
            echo_json(msgspec.json.encode(members))
        return 1
    if not as_json:
        echo_text(replay_summary(report, time.perf_counter() - start))
    return 0


def _replay_schedule(file: str, target: str, schedule: BinaryIO, *, as_json: bool) -> int:
    """Run a schedule of a sweep, and print its differences; return the exit status."""
    from mcp_trio._replay.schedules import decode_schedule

    with errors_naming(schedule.name):
        decoded = decode_schedule(schedule.read())
    report = _sweep(file, target, schedule=decoded)
    if as_json:
        echo_json(msgspec.json.encode(report))
    else:
        texts = [difference.text for difference in report.differences]
        echo_text("\n".join(_schedule_lines("this schedule", decoded, texts)))
    return 0 if report.is_clean else 1


def _load_noting_imports(target: str) -> "Server":
    """Import the server; a divergence names what its modules have read meanwhile."""
    from mcp_trio._session.untracked_calls import noting_imports

    with noting_imports():
        return load_server(target)


def _replay_to_stop(
    file: str, target: str, *, until: int | None, break_at: int | None, **options: Any
) -> None:
    """Replay, and print the state at a record; end there, or open the debugger."""
    from mcp_trio._replay.replay import run_replay
    from mcp_trio._replay.replayer import Stop, StoppedReplay

    terminal, number = sys.stdout, until if break_at is None else break_at
    assert number is not None

    def on_stop(stopped: StoppedReplay) -> None:
        with contextlib.redirect_stdout(terminal):
            echo_text(str(stopped))
            if break_at is None:
                stopped.end()
                return
            from mcp_trio._replay.debugger import open_debugger

            open_debugger(stopped)

    stop = Stop(number, on_stop, needs_task=break_at is not None)
    start = time.perf_counter()
    with prints_to_stderr(), errors_naming(file):
        report = run_replay(file, _load_noting_imports(target), stop=stop, **options)
    if report is not None:
        echo_text(replay_summary(report, time.perf_counter() - start))
        if not stop.has_stopped:
            click.echo(f"the replay has passed record {number} without stopping")
    elif break_at is not None:
        click.echo("the replay was ended in the debugger")


def _recordings(file: str) -> Sequence[str]:
    """Return the file, or the recordings of servers in a folder.

    Raises:
        NothingCompared: The folder holds none.
    """
    from mcp_trio._recorder.files import recordings_in

    found = recordings_in(file, role="server") if Path(file).is_dir() else [file]
    if not found:
        raise NothingCompared(f"nothing was compared: {file} holds no recording of a server")
    return found


def _replay_many(job: "ReplayJob") -> "list[ReplayOutcome]":
    from mcp_trio._replay.many_replays import HASH_SEEDS, replay_here, replay_under_hash_seeds

    with prints_to_stderr(), target_errors():
        if not job.repeat:
            return list(items_with_bar(replay_here(job), "replaying", len(job.files)))
        total = len(job.files) * job.repeat * len(HASH_SEEDS)
        with counting_bar("replaying", total) as advance:
            return replay_under_hash_seeds(job, on_outcome=lambda _: advance())


_OUTCOME_TEXTS: Final = {
    "same": "the same",
    "diverged": "diverged",
    "nothing": "nothing compared",
    "unusable": "unusable",
}
_EXIT_STATUSES: Final = {"same": 0, "diverged": 1, "nothing": 1, "unusable": 2}


def _print_outcomes(files: Sequence[str], outcomes: "Sequence[ReplayOutcome]") -> None:
    """Print a row for each recording, and below the table the first error of each."""
    columns = (
        Column("recording"),
        Column("records", "right"),
        Column("requests", "right"),
        Column("replays", "right"),
        Column("result"),
    )
    by_file: dict[str, list[ReplayOutcome]] = {file: [] for file in files}
    for outcome in outcomes:
        by_file[outcome.file].append(outcome)
    lines: list[Line] = []
    below: list[str] = []
    for file, of_file in by_file.items():
        failed = [outcome for outcome in of_file if outcome.status != "same"]
        longest = max(of_file, key=lambda outcome: outcome.records)
        result = "the same"
        if failed:
            counts = Counter(_OUTCOME_TEXTS[outcome.status] for outcome in failed)
            result = ", ".join(
                text if count == len(of_file) else f"{text}: {count} of {len(of_file)}"
                for text, count in counts.items()
            )
            first = failed[0]
            seeds = ""
            if first.hash_seed is not None:
                seeds = f" (scheduler seed {first.seed}, hash seed {first.hash_seed})"
            below.append(f"{file}{seeds}: {first.text}")
        remarks = dict.fromkeys(remark for outcome in of_file for remark in outcome.remarks)
        below += [f"{file}: {remark}" for remark in remarks]
        numbers = (str(longest.records), str(longest.requests), str(len(of_file)))
        lines.append(Line((file, *numbers, result), "red" if failed else None))
    print_table(columns, lines)
    if below:
        echo_text("\n" + "\n".join(below))


def replay_summary(report: "ReplayReport", seconds: float) -> str:
    """Return the text for a replay without a difference, which took `seconds`."""
    from mcp_trio._replay.many_replays import remarks_of

    requests = "1 request" if report.requests == 1 else f"{report.requests} requests"
    counts = f"{report.records} records, {requests} handled"
    ending = "" if report.is_complete else ", up to where the recording was cut"
    lines = [
        f"the same, byte for byte: {counts}{ending}",
        f"recorded in {report.recorded_seconds:.3f} s, replayed in {seconds * 1000:.1f} ms",
        *remarks_of(report),
        *(
            (f"lane {lane} would continue after the cut" + (f", at {location}" if location else ""))
            for lane, location in report.continuing.items()
        ),
    ]
    return "\n".join(lines)


# Many recordings, in parallel.

_FILES_OF_CAUSE_MAX: Final = 5

# The members of the JSON object of a recording.
_RECORDING_MEMBERS: Final = ("file", "status", "seconds", "requests", "text", "cause")


def _replay_and_sum_up(
    files: Sequence[str],
    target: str,
    query: str | None,
    *,
    mode: "Mode",
    processes: int | None,
    junit: str | None,
    markdown: str | None,
    as_json: bool,
) -> int:
    """Replay recordings of servers, and sum differences up by cause; return the exit status.

    Args:
        files: Recordings, folders, and `-` for the recordings that stdin names; with a query one
            folder.
        target: The server.
        query: The query that finds the recordings in the folder.
        mode: As of `replay`.
        processes: The number of processes; by default one for each processor.
        junit: The file for a report in JUnit's XML.
        markdown: The file for a report in Markdown.
        as_json: Whether to print an object for each recording in place of the summary.

    Raises:
        click.UsageError: The query is invalid, or a report cannot be written.
        TargetUsageError: The target names no server, or cannot be imported.
    """
    from mcp_trio._replay.many_replays import replay_in_parallel

    if query is not None:
        with opened_catalogue(files[0], updates=True) as catalogue:
            rows = catalogue.find(query, oldest_first=True)
        files_found = [row.file for row in rows if row.role == "server"]
    else:
        files_found = list[str]()
        for file in files:
            if file == STDIN:
                named = recordings_on_stdin()
                files_found += [each.file for each in named if each.role in ("", "server")]
            else:
                files_found += _recordings(file)
    recordings = list(dict.fromkeys(files_found))
    if not recordings:
        click.echo("no recording of a server matches", err=True)
        return 1
    with target_errors():
        replays = replay_in_parallel(recordings, target, mode=mode, processes=processes)
        outcomes = list(items_with_bar(replays, "replaying", len(recordings)))
    by_cause: dict[str, list[ReplayOutcome]] = {}
    for outcome in outcomes:
        if outcome.status != "same":
            by_cause.setdefault(outcome.cause, []).append(outcome)
    causes = sorted(by_cause.items(), key=lambda item: (-len(item[1]), item[0]))
    same = sum(each.status == "same" for each in outcomes)
    requests = sum(each.requests for each in outcomes)
    summary = f"{same} of {len(outcomes)} recordings replay the same, with {requests} requests"
    if causes:
        number = "one cause" if len(causes) == 1 else f"{len(causes)} causes"
        summary += f"; the others have {number}"

    if junit is not None:
        write_report(junit, _junit(outcomes))
    if markdown is not None:
        of = f"of `{', '.join(files)}`" if STDIN not in files else "of recordings"
        where = f" (`{query}`)" if query else ""
        heading = f"### Replay {of}{where}\n\n{summary}.\n"
        write_report(markdown, "\n".join([heading, *_markdown_lines(causes)]) + "\n")
    if as_json:
        from mcp_trio._session.json_forms import encodable

        for each in outcomes:
            members = {name: getattr(each, name) for name in _RECORDING_MEMBERS}
            for name in ("file", "text", "cause"):  # the name of a file may be any bytes
                members[name] = encodable(members[name])
            echo_json(msgspec.json.encode(members))
        return 1 if causes else 0
    echo_text(summary)
    lines = [
        Line(
            (str(len(failed)), failed[0].status, cause),
            colour="red",
            below=shlex.join(["mcp-trio", "replay", failed[0].file, target]),
        )
        for cause, failed in causes
    ]
    if lines:
        print_table((Column("recordings", "right"), Column("status"), Column("cause")), lines)
    return 1 if causes else 0


def _junit(outcomes: "Sequence[ReplayOutcome]") -> str:
    """Return a report in the XML of JUnit, with a test case for each recording."""
    from xml.etree.ElementTree import Element, SubElement, tostring

    errors = sum(each.status == "unusable" for each in outcomes)
    failures = sum(each.status in ("diverged", "nothing") for each in outcomes)
    suite = Element(
        "testsuite",
        name="mcp-trio replay",
        tests=str(len(outcomes)),
        failures=str(failures),
        errors=str(errors),
        time=f"{sum(each.seconds for each in outcomes):.3f}",
    )
    for each in outcomes:
        case = SubElement(
            suite, "testcase", classname="replay", name=each.file, time=f"{each.seconds:.3f}"
        )
        if each.status != "same":
            kind = "error" if each.status == "unusable" else "failure"
            problem = SubElement(case, kind, message=each.cause, type=each.status)
            problem.text = each.text
    text = tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
    # XML 1.0 does not allow all characters.
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "�", text)


def _markdown_lines(causes: "Sequence[tuple[str, Sequence[ReplayOutcome]]]") -> "Iterator[str]":
    """Yield the lines of a report for a pull request: a table of the causes, and their files."""
    # In a cell of a table, `|` and `<` must have no meaning.
    cells = [
        cause.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ") for cause, _ in causes
    ]
    if causes:
        yield from ("| recordings | cause |", "|--:|---|")
    for cell, (_, found) in zip(cells, causes, strict=True):
        yield f"| {len(found)} | {cell} |"
    for cell, (_, found) in zip(cells, causes, strict=True):
        yield from ("", f"<details><summary>{cell}</summary>", "")
        yield from (f"- `{each.file}`" for each in found[:_FILES_OF_CAUSE_MAX])
        if len(found) > _FILES_OF_CAUSE_MAX:
            yield f"- and {len(found) - _FILES_OF_CAUSE_MAX} more"
        yield from ("", "```text", found[0].text, "```", "", "</details>")


# A live server, for `replay` and for `mock --as client`.


def _replay_to_live_server(
    context: click.Context,
    file: str,
    target: str | None,
    *,
    headers: Mapping[str, str],
    ignore: Sequence[str] = (),
    channel: int | None = None,
    protocol_version: str | None = None,
    timeout: float | None = None,
    allow_damaged: bool,
) -> "InputsReport":
    """Send the recorded client's messages to a live server, and compare its responses.

    Raises:
        click.UsageError: There is no server, or there are two; a path to ignore or a URL is
            invalid; the protocol version does not fit the recording; or there are headers without a
            URL that takes them.
        RecordingError: The file is not a recording.
    """
    from mcp_trio._replay.live_replay import replay_live

    limits = DEFAULT_LIMITS
    if timeout is not None:
        limits = msgspec.structs.replace(limits, requests=RequestLimits(idle_seconds=timeout))
    with (
        prints_to_stderr(),
        errors_naming(file),
        busy_bar("waiting for the server"),
    ):
        command = command_after_dashes(context)
        if (command is None) == (target is None):  # both, or neither
            raise click.UsageError("name one server: TARGET or URL, or its COMMAND after --")
        server: Target
        if command is not None:
            server = command
        else:
            assert target is not None
            server = target if is_url(target) else load_server(target)
        check_headers(headers, server if isinstance(server, str) else None)
        try:
            return replay_live(
                file,
                server,
                ignore=ignore,
                channel=channel,
                protocol_version=protocol_version,
                limits=limits,
                inherit_env=target is None,
                headers=headers,
                allow_damaged=allow_damaged,
            )
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        except ConnectionLost as error:  # the server could not be started or reached
            echo_error(str(with_header_hint(error)))
            context.exit(2)


_DIFFERENCE_COLOURS: Final = {
    "changed": "yellow",
    "missing": "red",
    "extra": "green",
    "late": "red",
    "lost": "red",
}


def _print_inputs_report(report: "InputsReport", *, as_json: bool) -> None:
    from mcp_trio._replay.live_replay import value_texts

    if as_json:
        echo_json(msgspec.json.Encoder().encode_lines(report.differences), nl=False)
        return
    if report.differences:
        columns = (
            Column(""),
            Column("record", "right"),
            Column("what"),
            Column("path"),
            Column("recorded"),
            Column("live"),
        )
        lines: list[Line] = []
        for each in report.differences:
            number = "" if each.record is None else str(each.record)
            values = value_texts(each) if each.path else ("", each.live or "")
            cells = (each.kind, number, each.subject, each.path, *values)
            lines.append(Line(cells, _DIFFERENCE_COLOURS[each.kind]))
        print_table(columns, lines)
        click.echo()
    echo_text(report.summary)


# `mcp-trio mock`.


def _users(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the argument `user` or `tokens` of `mock_server`. Errors do not repeat a token."""
    tokens: dict[str, str] = {}
    for text in texts:
        name, equals, token = text.partition("=")
        if not equals:
            if len(texts) > 1:
                raise click.BadParameter("several users need tokens: NAME=TOKEN")
            return {"user": name}
        token = parse_token(token, f"the token of {name}")
        if token in tokens:
            raise click.BadParameter(f"{tokens[token]} and {name} have the same token")
        tokens[token] = name
    return {"tokens": tokens} if tokens else {}


@click.command(
    cls=TakesServerCommand,
    short_help="Stand in for a recorded server or client.",
    epilog="""\b
As a server over stdio, use this command wherever a host expects the server's command. Over the
other transports it serves any number of clients until a signal ends it; http includes WebSocket
at /ws.

\b
A request gets the recorded response of the same request, with its notifications and with the
server's own requests. A request that was not recorded gets an error that names the nearest one,
and is listed on stderr at the end. Lists and pings may be repeated, and so may any request of
stateless clients over http, unless --strict is given. In a redacted recording, a value also
matches if it has the shape of the recorded one. The users of a server with authentication are
told apart only with --user.

\b
Exit status: 0 success; 1 with --strict: the requests were not those recorded; with --as client:
the server answered no request; 2 FILE cannot be used, or the server cannot be started or reached;
128 plus the number of a signal.

\b
Examples:
  mcp-trio mock recordings/trip.mcprec.jsonl
  mcp-trio mock recordings/trip.mcprec.jsonl --transport http --port 8000
  mcp-trio mock shop.mcprec.jsonl --transport http --user ada=token-1 --user ben=token-2
  mcp-trio call forecast city=Oslo -- mcp-trio mock recordings/trip.mcprec.jsonl
  mcp-trio mock recordings/trip.mcprec.jsonl --as client -- npx -y some-server
""",
)
@click.argument("file", shell_complete=complete_recordings)
@click.argument("target", required=False, shell_complete=complete_targets)
@click.option(
    "--as",
    "role",
    type=click.Choice(("server", "client")),
    default="server",
    show_default=True,
    help="The side to stand in for; a client needs a server to connect to.",
)
@click.option("--pace", is_flag=True, help="Respond with the recorded delays instead of at once.")
@click.option(
    "--strict", is_flag=True, help="Fail unless the client sends exactly the recorded requests."
)
@click.option(
    "--transport", type=click.Choice(list(TRANSPORTS)), help="For a server: stdio by default."
)
@serving_options
@header_option
@click.option(
    "--channel", type=int, metavar="N", help="The session to use, in a recording of several."
)
@click.option(
    "--user",
    "users",
    multiple=True,
    metavar="NAME[=TOKEN]",
    callback=_users,
    help="Give clients what this user of the recording got, instead of what any user got. For http"
    " and websocket, repeated with tokens: the user whose token the client sends; ${VAR} is"
    " replaced by the environment variable.",
)
@click.pass_context
def mock_command(
    context: click.Context,
    /,
    file: str,
    target: str | None,
    role: Literal["server", "client"],
    *,
    headers: Mapping[str, str],
    channel: int | None,
    pace: bool,
    strict: bool,
    transport: str | None,
    users: Mapping[str, Any],
    **options: Any,
) -> None:
    """Stand in for the server of the recording FILE, or for its client."""
    if role == "client":
        server_options = {"pace": pace, "strict": strict, "transport": transport, "user": users}
        for name, value in {**server_options, **options}.items():
            if is_given(value):
                raise click.UsageError(f"{flag_of(name)} cannot be used with --as client")
        # Any readable recording will do: only the number of responses is reported.
        report = _replay_to_live_server(
            context,
            file,
            target,
            ignore=("$",),
            channel=channel,
            headers=headers,
            allow_damaged=True,
        )
        echo_text(report.summary)
        context.exit(0 if report.answered else 1)
    if target is not None or command_after_dashes(context) is not None or headers:
        raise click.UsageError("TARGET, URL, COMMAND and --header need --as client")

    from mcp_trio._replay.mock import mock_server, run_mock

    transport = transport or "stdio"
    given = given_serving_options(transport, options)
    if "tokens" in users and transport not in {"http", "websocket"}:
        raise click.UsageError("--user NAME=TOKEN needs --transport http or websocket")
    if "tokens" in users and given.get("token") is not None:
        raise click.UsageError("--token cannot be used with --user NAME=TOKEN")
    with errors_naming(file):
        try:
            server = mock_server(file, strict=strict, pace=pace, channel=channel, **users)
        except ValueError as error:  # the user is not in the recording
            raise click.BadParameter(str(error), param_hint="--user") from None
    status = 0
    if transport == "stdio":
        status = run_mock(server)
    else:
        from mcp_trio._server.server import RUNNERS

        try:
            with listening(listen_address(**given), "serving") as attempt:
                RUNNERS[transport](server, on_serving=attempt.report_url, **given)
        except SystemExit as exit_:  # a signal has ended the server
            status = int(exit_.code or 0)
    if strict:
        server.check()
    for line in server.unrecorded:
        echo_error(line)
    context.exit(status)


# `mcp-trio sweep`.

_DIFFERENCES_SHOWN_MAX: Final = 10


@click.command(
    short_help="Look for races in handlers.",
    epilog="""\b
A schedule decides in which order tasks go on, effects end and messages arrive; the first one has
the recorded order. A response also differs if it may legitimately depend on that order: not every
difference is a bug. The shortest schedule found that goes wrong is written to a file, which
mcp-trio replay --schedule repeats.

\b
Exit status: 0 every schedule led to the recorded responses; 1 some did not, or the recording has
no response to compare; 2 the recording cannot be used, such as one of a client.

\b
Examples:
  mcp-trio sweep recordings/trip.mcprec.jsonl server.py
  mcp-trio sweep recordings/trip.mcprec.jsonl server.py --strategy depth-first --schedules 1000
  mcp-trio sweep recordings/trip.mcprec.jsonl server.py --seed 17
""",
)
@click.argument("file", shell_complete=complete_recordings)
@click.argument("target", shell_complete=complete_targets)
@click.option(
    "--schedules",
    type=click.IntRange(min=1),
    metavar="N",
    default=100,
    show_default=True,
    help="How many schedules to run.",
)
@click.option(
    "--strategy",
    type=click.Choice(("random", "pct", "depth-first")),
    default="random",
    show_default=True,
    help="random: any order. pct: few changes of random priorities, for races that need a certain"
    " order. depth-first: every schedule of a small session, those nearest to the recording first.",
)
@click.option(
    "--bound",
    type=click.IntRange(min=1),
    metavar="N",
    default=3,
    show_default=True,
    help="For pct: how many changes of the order a race may need.",
)
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Run only schedule N.")
@click.option(
    "--output",
    metavar="FILE",
    help="The file for the shortest schedule that goes wrong, instead of one in the current folder"
    " named like the recording.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the report as JSON, and write no file."
)
@click.pass_context
def sweep_command(
    context: click.Context,
    /,
    file: str,
    target: str,
    output: str | None,
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """Run the handlers of TARGET on the inputs of the recording FILE, under many schedules."""
    if as_json and output is not None:
        raise click.UsageError("--json writes no file: leave out --output")
    report = _sweep(file, target, **options)
    if as_json:
        echo_json(msgspec.json.encode(report))
    else:
        written = None
        if report.shortest is not None:
            written = output or f"{Path(file).name.partition('.')[0]}.schedule.json"
            try:
                Path(written).write_bytes(report.shortest.encoded())
            except OSError as error:
                raise click.UsageError(f"cannot write the schedule: {error}") from error
        echo_text(sweep_summary(report, file, target, written))
    context.exit(0 if report.is_clean else 1)


def _sweep(file: str, target: str, **options: Any) -> "SweepReport":
    from mcp_trio._replay.sweep import SweepOptions, sweep_forked

    try:
        sweep_options = SweepOptions(**options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    with prints_to_stderr(), errors_naming(file):
        server = load_server(target)
        total = sweep_options.schedules
        # The bar must not have a thread: a process that is forked from one with threads may hang.
        with counting_bar("sweeping", total, in_thread=False) as advance:
            return sweep_forked(file, server, sweep_options, on_result=advance)


def sweep_summary(
    report: "SweepReport", file: str, target: str, schedule_file: str | None = None
) -> str:
    """Return the text for a sweep: counts, the first differences, and how to repeat one.

    `schedule_file` is the file to which the shortest schedule was written.
    """
    schedules = f"{report.schedules} schedule{'' if report.schedules == 1 else 's'}"
    outcomes = f"{report.outcomes} outcome{'' if report.outcomes == 1 else 's'}"
    failing = len(report.failing_schedules)
    result = "every response is the recorded one"
    if failing:
        first = f"the first is schedule {report.failing_schedules[0]}"
        differs = "differs" if failing == 1 else f"differ, {first}"
        result = f"{failing} of them {differs}"
    lines = [
        f"{schedules}, {outcomes}, in {report.seconds:.2f} s: {result}",
        *([report.coverage] if report.coverage else []),
        *map(str, report.differences[:_DIFFERENCES_SHOWN_MAX]),
    ]
    hidden = len(report.differences) - _DIFFERENCES_SHOWN_MAX
    if hidden > 0:
        lines.append(f"and {hidden} more")
    lines += [f"untracked call: {call}" for call in report.untracked_calls]
    lines += [f"note: {note}" for note in report.notes]
    if report.shortest is not None:
        lines += _schedule_lines(
            "the shortest schedule found", report.shortest, report.shortest.differences
        )
    if schedule_file is not None:
        command = ["mcp-trio", "replay", file, target, "--schedule", schedule_file]
        lines.append(f"to repeat it: {shlex.join(command)}")
    return "\n".join(lines)


def _schedule_lines(name: str, schedule: "Schedule", differences: Sequence[str]) -> list[str]:
    """Return the lines for a schedule and for what it leads to."""
    if not schedule.deviations:
        return [
            "the recorded order itself goes wrong: replay the recording to see where",
            "if the replay is the same, a deadline and an effect came within the same millisecond",
        ]
    count = len(schedule.deviations)
    changes = "change" if count == 1 else "changes"
    return [
        f"{name} has {count} {changes} to the recorded order:",
        *(f"  {deviation}" for deviation in schedule.deviations),
        "it leads to:" if differences else "it leads to the recorded responses",
        *(f"  {difference}" for difference in differences),
    ]
