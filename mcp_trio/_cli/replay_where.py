"""`mcp-trio replay DIR TARGET --where QUERY`, and `mcp-trio test`."""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.etree.ElementTree import Element, SubElement, tostring

import click

from mcp_trio._cli.catalogue import opened_catalogue, update
from mcp_trio._cli.completion import complete_recordings, complete_targets
from mcp_trio._cli.options import (
    check_overwrites_nothing,
    errors_naming,
    overwrite_option,
    segments_of,
)
from mcp_trio._cli.output import Column, Line, counted, echo_json, echo_text, print_table

if TYPE_CHECKING:
    from mcp_trio._replay.in_parallel import ReplayedFile
    from mcp_trio._replay.replay import Mode

_FILES_MAX: Final = 5


def replay_where(
    folder: str,
    target: str,
    query: str,
    *,
    mode: "Mode",
    processes: int | None,
    junit: str | None,
    markdown: str | None,
    as_json: bool,
) -> int:
    """Replay the recordings of servers in a folder that a query finds; return the exit status.

    Raises:
        click.UsageError: The query is invalid, or a report cannot be written.
    """
    import msgspec

    from mcp_trio._cli.options import TargetError
    from mcp_trio._replay import targets
    from mcp_trio._replay.in_parallel import replay_in_parallel

    with opened_catalogue(folder) as catalogue:
        update(catalogue)
        rows = catalogue.find(f"{query} role:server", oldest_first=True)
    files = [row.file for row in rows]
    if not files:
        click.echo("no recording of a server matches", err=True)
        return 1
    outcomes: list[ReplayedFile] = []
    try:
        with counted("replaying", len(files)) as advance:
            for outcome in replay_in_parallel(files, target, mode=mode, processes=processes):
                outcomes.append(outcome)
                advance()
    except targets.TargetError as error:
        raise TargetError(str(error)) from error
    if junit is not None:
        _write(junit, tostring(_junit(outcomes), encoding="unicode", xml_declaration=True) + "\n")
    if markdown is not None:
        _write(markdown, _markdown(outcomes, folder, query))
    if as_json:
        echo_json(b"".join(msgspec.json.encode(each) + b"\n" for each in outcomes), nl=False)
    else:
        _print(outcomes)
    return 0 if all(each.status == "same" for each in outcomes) else 1


def _write(file: str, text: str) -> None:
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"cannot write {file}: {error.strerror}") from error


def _by_cause(outcomes: "Sequence[ReplayedFile]") -> "list[tuple[str, list[ReplayedFile]]]":
    """Return the recordings that are not the same by cause, the most frequent cause first."""
    causes: dict[str, list[ReplayedFile]] = {}
    for outcome in outcomes:
        if outcome.status != "same":
            causes.setdefault(outcome.cause, []).append(outcome)
    return sorted(causes.items(), key=lambda item: (-len(item[1]), item[0]))


def _summary(outcomes: "Sequence[ReplayedFile]") -> str:
    same = sum(each.status == "same" for each in outcomes)
    requests = sum(each.requests for each in outcomes)
    text = f"{same} of {len(outcomes)} recordings replay the same, with {requests} requests"
    causes = len(_by_cause(outcomes))
    if not causes:
        return text
    return f"{text}; the others have {'one cause' if causes == 1 else f'{causes} causes'}"


def _print(outcomes: "Sequence[ReplayedFile]") -> None:
    echo_text(_summary(outcomes))
    causes = _by_cause(outcomes)
    if causes:
        columns = (Column("recordings", "right"), Column("status"), Column("cause"))
        lines = [
            Line(
                (str(len(found)), found[0].status, cause),
                colour="red",
                below="mcp-trio replay " + found[0].file,
            )
            for cause, found in causes
        ]
        print_table(columns, lines)


def _junit(outcomes: "Sequence[ReplayedFile]") -> Element:
    """Return a report in the XML of JUnit, with a test case for each recording."""
    failures = [each for each in outcomes if each.status in ("diverged", "nothing")]
    errors = [each for each in outcomes if each.status == "unusable"]
    suite = Element(
        "testsuite",
        name="mcp-trio replay",
        tests=str(len(outcomes)),
        failures=str(len(failures)),
        errors=str(len(errors)),
        time=f"{sum(each.seconds for each in outcomes):.3f}",
    )
    for each in outcomes:
        case = SubElement(
            suite, "testcase", classname="replay", name=each.file, time=f"{each.seconds:.3f}"
        )
        if each.status != "same":
            kind = "error" if each.status == "unusable" else "failure"
            problem = SubElement(case, kind, message=_xml_text(each.cause), type=each.status)
            problem.text = _xml_text(each.text)
    return suite


def _xml_text(text: str) -> str:
    """Return the text without the characters that XML 1.0 does not allow."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "�", text)


def _markdown(outcomes: "Sequence[ReplayedFile]", folder: str, query: str) -> str:
    """Return a report for a pull request."""
    where = f" (`{query}`)" if query else ""
    lines = [f"### Replay of `{folder}`{where}", "", f"{_summary(outcomes)}.", ""]
    causes = _by_cause(outcomes)
    if causes:
        lines += ["| recordings | cause |", "|--:|---|"]
        lines += [f"| {len(found)} | {_cell(cause)} |" for cause, found in causes]
    for cause, found in causes:
        names = [f"- `{each.file}`" for each in found[:_FILES_MAX]]
        if len(found) > _FILES_MAX:
            names.append(f"- and {len(found) - _FILES_MAX} more")
        title = f"<summary>{_cell(cause)}</summary>"
        fence = "```"
        lines += ["", f"<details>{title}", "", *names, "", f"{fence}text", found[0].text, fence]
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Return a text for a cell of a table, in which `|` and `<` have no meaning."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


# `mcp-trio test`.

_TEST: Final = '''"""{what}"""

import pytest

{imported}


@pytest.mark.mcp_recording("recordings/{recording}")
def test_{name}(mcp_replay):
    mcp_replay({server})
'''


@click.command(
    short_help="Write a test that keeps a recording.",
    epilog="""\b
The recording is copied into a folder `recordings` beside the test. The test imports TARGET:
package.module[:object], or file.py[:object] of a file in the folder in which pytest runs.

\b
Exit status: 0 success; 2 FILE is not a recording, or a file exists.

\b
Examples:
  mcp-trio test recordings/shop-20261128T101500Z-1-7.mcprec.jsonl shop:server
  mcp-trio test trip.mcprec.jsonl server.py -o tests/test_taken_seat.py
""",
)
@click.argument("file", shell_complete=complete_recordings)
@click.argument("target", shell_complete=complete_targets)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="The test; by default tests/test_NAME.py with the name of the recording.",
)
@overwrite_option
def test_command(file: str, target: str, output: str | None, *, overwrite: bool) -> None:
    """Write a pytest file that replays the recording FILE against TARGET, and copy FILE to it."""
    from mcp_trio._catalogue.summary import summarize
    from mcp_trio._recorder.files import open_recording

    module, _, name = target.partition(":")
    module = module.removesuffix(".py").replace(os.sep, ".")
    if not all(part.isidentifier() for part in (*module.split("."), name or "server")):
        raise click.UsageError(
            f"{target} cannot be imported by a test: write package.module:object"
        )
    with errors_naming(file):
        summary = summarize(open_recording(file))
    title = re.sub(r"\W+", "_", Path(file).name.partition(".mcprec")[0]).strip("_").lower()
    test = Path(output or f"tests/test_{title}.py")
    recordings = test.parent / "recordings"
    copies = {name: recordings / Path(name).name for name in segments_of(file)}
    for path in (test, *copies.values()):
        check_overwrites_nothing(os.fspath(path), overwrite=overwrite)
    tools = sorted({call.name or call.method for call in summary.calls})
    errors = sorted({call.error for call in summary.calls if call.error})
    what = f"A session of {summary.opening.started[:10]} with {', '.join(tools) or 'no calls'}"
    what += f", and errors: {', '.join(errors)}." if errors else "."
    text = _TEST.format(
        what=what.replace("\\", "\\\\").replace('"', "'"),
        imported=f"from {module} import {name or 'server'}",
        server=name or "server",
        recording=Path(file).name,
        name=title,
    )
    try:
        recordings.mkdir(parents=True, exist_ok=True)
        for source, copy in copies.items():
            shutil.copyfile(source, copy)
        test.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"cannot write {test}: {error.strerror}") from error
    click.echo(f"wrote {test} and {recordings / Path(file).name}")
