"""`mcp-trio replay DIR TARGET --where QUERY`: replay many recordings, and sum them up by cause."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.etree.ElementTree import Element, SubElement, tostring

import click

from mcp_trio._cli.catalogue import opened_catalogue, update_catalogue
from mcp_trio._cli.output import Column, Line, counting_bar, echo_json, echo_text, print_table

if TYPE_CHECKING:
    from mcp_trio._replay.many_replays import ReplayedFile
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
    from mcp_trio._replay.many_replays import replay_in_parallel

    with opened_catalogue(folder) as catalogue:
        update_catalogue(catalogue, only_new=True)
        rows = catalogue.find(query, oldest_first=True)
    files = [row.file for row in rows if row.role == "server"]
    if not files:
        click.echo("no recording of a server matches", err=True)
        return 1
    outcomes: list[ReplayedFile] = []
    try:
        with counting_bar("replaying", len(files)) as advance:
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
