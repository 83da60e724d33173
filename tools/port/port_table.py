"""Run each row of the port table with FastMCP and with mcp_trio, and print how they compare.

`python tools/port/port_table.py [ROW…] [--fastmcp PYTHON] [--page]`. Without `--fastmcp`, the
interpreter of an environment that has FastMCP, that environment is made with uv at the version that
`tools/hosts` uses. At the end, each public name of FastMCP's classes is looked up in ours and in
`mcp_trio/_protocol/other_sdk_names.py`. `--page` writes the tables of
`docs/how-to/from-fastmcp.md` and `docs/reference/fastmcp-names.md`, and runs nothing. Status 1: a
row does not compare as `port_rows.py` says, or a name is unknown.
"""

import argparse
import inspect
import json
import logging
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import trio

import mcp_trio

sys.path += [str(Path(__file__).resolve().parents[1] / "hosts")]

import fastmcp_names
from port_rows import GROUPS, ROWS, Row

HERE: Final = Path(__file__).resolve().parent
PAGE: Final = fastmcp_names.DOCS / "how-to" / "from-fastmcp.md"
ROW_SECONDS: Final = 30


# The page.


def page_with_tables(page: str) -> str:
    """Return the text of the page, with the tables of the rows as they are now."""
    return fastmcp_names.with_tables(page, fastmcp_names.BEGIN, tables(), fastmcp_names.END)


def tables() -> str:
    return "\n\n".join(f"## {title}\n\n{_table(rows)}" for title, rows in GROUPS.items()) + "\n"


def _table(rows: Sequence[Row]) -> str:
    head = ["| feature | FastMCP | mcp_trio | compared |", "|---|---|---|---|"]
    return "\n".join([*head, *map(_line, rows)])


def _line(row: Row) -> str:
    compared = f"**{row.verdict}**" + (f": {row.reason}" if row.reason else "")
    return f"| {row.feature} | {_code(row.fastmcp)} | {_code(row.ours)} | {compared} |"


def _code(lines: Sequence[str]) -> str:
    return "<br>".join(f"`{line}`" for line in lines) or "none"


# Running.


@attrs.frozen
class Outcome:
    """What a function of a row returned, and the seconds that it took."""

    facts: Mapping[str, Any]
    seconds: float


def run_fastmcp(python: str, names: Sequence[str]) -> dict[str, Outcome]:
    """Run rows with FastMCP, in one process of its interpreter."""
    done = subprocess.run(
        [python, str(HERE / "in_fastmcp.py"), *names],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"in_fastmcp.py failed with status {done.returncode}:\n{done.stderr[-2000:]}")
    answers = map(json.loads, done.stdout.splitlines())
    return {each["row"]: Outcome(each["facts"], each["seconds"]) for each in answers}


def run_mcp_trio(name: str) -> Outcome | None:
    """Run a row with mcp_trio; None if it has no function, because the feature is missing."""
    import in_mcp_trio
    import same_rows

    function = getattr(in_mcp_trio, name, None) or getattr(same_rows, name, None)
    if function is None:
        return None

    async def run() -> Any:
        with trio.fail_after(ROW_SECONDS):
            return await function()

    begin = time.monotonic()
    try:
        facts = json.loads(json.dumps(trio.run(run), default=str))
    except Exception as error:  # a row that fails is reported, and the others run
        facts = {"failed": f"{type(error).__name__}: {error}"}
    return Outcome(facts, time.monotonic() - begin)


def has(path: str) -> bool:
    """Return whether `mcp_trio` has an attribute, or a parameter: "Server.tool(timeout)"."""
    path, _, parameter = path.rstrip(")").partition("(")
    found: Any = mcp_trio
    for name in path.split("."):
        try:
            found = getattr(found, name, None)
        except ImportError:  # mcp_trio raises it for names of FastMCP, and names its own
            return False
    if found is None or not parameter:
        return found is not None
    return parameter in inspect.signature(found).parameters


def problems(row: Row, theirs: Outcome, ours: Outcome | None) -> list[str]:
    """Return where the outcomes do not compare as the row says."""
    if "failed" in theirs.facts:
        return [f"FastMCP: {theirs.facts['failed']}"]
    if row.absent and has(row.absent):
        return [f"mcp_trio has {row.absent} now"]
    if ours is None:
        return []
    if "failed" in ours.facts:
        return [f"mcp_trio: {ours.facts['failed']}"]
    found: list[str] = []
    for name in sorted({*theirs.facts, *ours.facts}):
        their_fact, our_fact = theirs.facts.get(name), ours.facts.get(name)
        if (their_fact != our_fact) is not (name in row.differs):
            kind = "no difference any more" if name in row.differs else "differs"
            found.append(f"{name}: {kind}: FastMCP {their_fact!r}, mcp_trio {our_fact!r}")
    return found


def python_with_fastmcp() -> str:
    """Make the environment of FastMCP, unless it exists, and return its interpreter."""
    from run_hosts import ENVIRONMENTS, framework

    return framework(ENVIRONMENTS, "fastmcp").python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="only these rows")
    parser.add_argument("--fastmcp", metavar="PYTHON", help="an interpreter that has FastMCP")
    parser.add_argument("--page", action="store_true", help="write the tables of the page")
    options = parser.parse_args()
    if options.page:
        pages = ((PAGE, page_with_tables), (fastmcp_names.PAGE, fastmcp_names.page_with_names))
        for page, text_of in pages:
            page.write_text(text_of(page.read_text(encoding="utf-8")), encoding="utf-8")
        return
    if unknown := set(options.rows) - ROWS.keys():
        parser.error(f"unknown rows: {', '.join(sorted(unknown))}")
    python = options.fastmcp or python_with_fastmcp()
    logging.disable()  # the rows raise errors on purpose
    all_theirs = run_fastmcp(python, options.rows or list(ROWS))
    print(f"{'row':22} {'verdict':12} {'FastMCP':>9} {'mcp_trio':>9}")
    counts: dict[str, int] = {}
    for name in options.rows or ROWS:
        row, theirs, ours = ROWS[name], all_theirs[name], run_mcp_trio(name)
        found = problems(row, theirs, ours)
        verdict = "WRONG" if found else row.verdict
        counts[verdict] = counts.get(verdict, 0) + 1
        our_time = f"{ours.seconds:7.2f} s" if ours else "none"
        mark = " but differs" if row.differs and verdict == "same" else ""
        print(f"{name:22} {verdict:12} {theirs.seconds:7.2f} s {our_time:>9}{mark}", flush=True)
        for problem in found:
            print(f"    {problem}")
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    found_names = fastmcp_names.Names(python)
    print(
        f"public names and arguments of FastMCP: {len(found_names.same)} the same,"
        f" {len(found_names.listed)} with what to write instead, {len(found_names.unknown)} unknown"
    )
    for name in found_names.unknown:
        print(f"    {name}")
    sys.exit(1 if "WRONG" in counts or found_names.unknown else 0)


if __name__ == "__main__":
    main()
