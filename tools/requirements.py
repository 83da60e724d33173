"""Trace requirements to tests: `python tools/requirements.py [--uncovered] [--gate] …`.

`requirements.tsv` beside this file holds the specification as numbered rows, `traps.tsv` where it
misleads, `requirement_exceptions.tsv` the rows that no test ticks and why. A test ticks ids with
`@pytest.mark.requirement("BASE-02")`. Ticks are read from the source, so no test has to run.
The script prints how much is covered, by area, revision and level, and exits 1 on any problem.
"""

import argparse
import ast
import csv
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

TOOLS: Final = Path(__file__).resolve().parent
TESTS: Final = TOOLS.parent / "tests"

PROTOCOL_VERSIONS: Final = {
    "A": "2024-11-05",
    "B": "2025-03-26",
    "C": "2025-06-18",
    "D": "2025-11-25",
    "E": "2026-07-28",
}
LEVELS: Final = ("MUST", "SHOULD", "MAY")
REASONS: Final = ("host's duty", "later issue", "other role")
EXCEPTIONS_PER_CENT_MAX: Final = 5

# What has to be complete, in every revision; a later issue adds areas.
GATED_AREAS: Final = (
    *("BASE", "ERR", "META", "TRACE", "LIFE", "TIME", "VER", "DISC", "STATE", "EXT", "TRAN"),
    *("STDIO", "CANC", "PROG", "PING", "TOOL", "RES", "PROM", "COMP", "LOG", "PAG", "CACHE"),
    *("ROOT", "SAMP", "ELIC", "MRTR", "SUB", "ICON", "JSCH", "SSE", "HTTP", "MHTTP", "HDR", "SEC"),
)
GATES: Final = dict.fromkeys(PROTOCOL_VERSIONS.values(), GATED_AREAS)

# The traps of the other areas, with tasks or with tokens; all the rest need a test.
TRAPS_LATER: Final = frozenset(f"TRAP-{number:02}" for number in range(109, 128))

ID: Final = re.compile(r"[A-Z]+-\d{2,3}")
REFERENCE: Final = re.compile(r"\b[A-Z]{2,7}-\d{2,3}\b")
FOREIGN_REFERENCE: Final = re.compile(r"(?:RFC|SEP|UTF|SHA|ID)-\d+")
FIELDS: Final = {
    "id": ID,
    "protocol_versions": re.compile(r"(?!\.{5})[A.][B.][C.][D.][E.]"),
    "who": re.compile(r"B|C|S|AS|I|host"),
    "level": re.compile(r"(?:MUST|SHOULD)(?: NOT)?|MAY"),
    "text": re.compile(r".+"),
    "source": re.compile(r".+"),
}


class Requirement(NamedTuple):
    """One rule of the specification; `protocol_versions` has a letter for each that has it."""

    id: str
    area: str
    protocol_versions: str
    who: str
    level: str
    text: str
    source: str

    @property
    def strength(self) -> str:
        """The level, prohibitions counted with their duties."""
        return self.level.removesuffix(" NOT")

    def holds_in(self, protocol_version: str) -> bool:
        """Tell whether the rule holds in a revision, given by its date."""
        return any(
            PROTOCOL_VERSIONS.get(letter) == protocol_version for letter in self.protocol_versions
        )


class Trap(NamedTuple):
    """A place where the specification misleads, and the course that this project takes."""

    id: str
    kind: str
    trap: str
    what_happens: str
    what_to_do: str


class Untested(NamedTuple):
    """A rule that no test ticks, with a reason from the closed list."""

    id: str
    reason: str
    note: str


class Tick(NamedTuple):
    """An id that a test ticks, and where; an empty id when it cannot be read."""

    id: str
    where: str


def read_rows(name: str) -> list[list[str]]:
    """Read one of the tables beside this script, without its heading."""
    with (TOOLS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]


def read_requirements() -> list[Requirement]:
    """Read all rules."""
    return [Requirement(*row) for row in read_rows("requirements.tsv")]


def read_traps() -> list[Trap]:
    """Read all traps."""
    return [Trap(*row) for row in read_rows("traps.tsv")]


def read_exceptions() -> list[Untested]:
    """Read the rules that no test ticks."""
    return [Untested(*row) for row in read_rows("requirement_exceptions.tsv")]


def ticks_in(source: str, where: str) -> Iterator[Tick]:
    """Yield each id ticked in one test file: by decorator, `pytestmark` or a parameter's marks."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and is_tick(node.func):
            for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                is_text = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                written = ast.literal_eval(argument) if is_text else ""
                yield Tick(written, f"{where}:{argument.lineno}")


def is_tick(called: ast.expr) -> bool:
    """Tell whether it is the mark; of most calls the last name says that they are not, and soon."""
    is_named_so = isinstance(called, ast.Attribute) and called.attr == "requirement"
    return is_named_so and ast.unparse(called).endswith("mark.requirement")


def read_ticks(tests: Path) -> list[Tick]:
    """Read every tick under a folder of tests."""
    return [
        tick
        for path in sorted(tests.rglob("test_*.py"))
        for tick in ticks_in(path.read_text(encoding="utf-8"), str(path.relative_to(tests.parent)))
    ]


def bad_fields(requirements: Iterable[Requirement]) -> Iterator[str]:
    """Find rows whose fields are malformed."""
    for requirement in requirements:
        for name, pattern in FIELDS.items():
            value = getattr(requirement, name)
            if not pattern.fullmatch(value):
                yield f"{requirement.id}: {name} {value!r}"
        if requirement.area != requirement.id.rpartition("-")[0]:
            yield f"{requirement.id}: area {requirement.area!r}"


def bad_ids(requirements: list[Requirement], traps: list[Trap]) -> Iterator[str]:
    """Find ids used twice, and references to rows that do not exist."""
    rows: list[Requirement | Trap] = [*requirements, *traps]
    used = Counter(row.id for row in rows)
    yield from (f"{id_}: used {times} times" for id_, times in used.items() if times > 1)
    for row in rows:
        for reference in REFERENCE.findall(" ".join(row[1:])):
            if reference not in used and not FOREIGN_REFERENCE.fullmatch(reference):
                yield f"{row.id}: refers to unknown {reference}"


def bad_exceptions(exceptions: list[Untested], known: set[str], ticked: set[str]) -> Iterator[str]:
    """Find exceptions for unknown or ticked ids, and reasons that are not on the list."""
    for exception in exceptions:
        if exception.id not in known:
            yield f"{exception.id}: an exception for an unknown id"
        if exception.id in ticked:
            yield f"{exception.id}: an exception, although a test ticks it"
        if exception.reason not in REASONS:
            yield f"{exception.id}: reason {exception.reason!r} is not one of {', '.join(REASONS)}"


def bad_ticks(ticks: Iterable[Tick], known: set[str]) -> Iterator[str]:
    """Find ticks of ids that do not exist or cannot be read."""
    for tick in ticks:
        if not tick.id:
            yield f"{tick.where}: the ids of a tick must be written out"
        elif tick.id not in known:
            yield f"{tick.where}: {tick.id!r} is no requirement"


def gaps_at_the_gate(
    requirements: list[Requirement], ticked: set[str], exceptions: list[Untested]
) -> Iterator[str]:
    """Find duties at the gate that nobody ticks, and more exceptions than are allowed."""
    excepted = {exception.id for exception in exceptions}
    for protocol_version, areas in GATES.items():
        duties = {
            row.id: row
            for row in requirements
            if row.area in areas and row.strength != "MAY" and row.holds_in(protocol_version)
        }
        for row in duties.values():
            if row.id not in ticked | excepted:
                yield f"{row.id}: {row.level}, {protocol_version}, not ticked: {row.text}"
        allowed = len(duties) * EXCEPTIONS_PER_CENT_MAX // 100
        count = len(excepted & duties.keys())
        if count > allowed:
            text = f"{count} exceptions, {allowed} allowed for {len(duties)} duties"
            yield f"{protocol_version}: {text}"


def traps_at_the_gate(traps: Iterable[Trap], ticked: set[str]) -> Iterator[str]:
    """Find traps of the areas at the gate that no test walks into."""
    for trap in traps:
        if trap.id not in ticked | TRAPS_LATER:
            yield f"{trap.id}: a trap without a test: {trap.trap}"


def share(rows: Iterable[Requirement], ticked: set[str]) -> str:
    """Say how many of some rows are ticked."""
    ids = [row.id for row in rows]
    return f"{sum(id_ in ticked for id_ in ids)}/{len(ids)}" if ids else "-"


def coverage_table(requirements: list[Requirement], ticked: set[str]) -> Iterator[str]:
    """Yield a line an area: ticked of all, by revision and by level."""
    columns = [*PROTOCOL_VERSIONS.values(), *LEVELS, "all"]
    yield f"{'area':8}" + "".join(f"{column:>12}" for column in columns)
    areas = list(dict.fromkeys(row.area for row in requirements))
    for area in [*areas, "total"]:
        rows = [row for row in requirements if area in {row.area, "total"}]
        parts = [
            *([row for row in rows if row.holds_in(date)] for date in PROTOCOL_VERSIONS.values()),
            *([row for row in rows if row.strength == level] for level in LEVELS),
            rows,
        ]
        yield f"{area:8}" + "".join(f"{share(part, ticked):>12}" for part in parts)


def uncovered_lines(
    requirements: list[Requirement], ticked: set[str], exceptions: list[Untested]
) -> Iterator[str]:
    """Yield a line for each rule that no test ticks."""
    reasons = {exception.id: f" [{exception.reason}]" for exception in exceptions}
    for row in requirements:
        if row.id not in ticked:
            reason = reasons.get(row.id, "")
            yield f"{row.id} {row.protocol_versions} {row.who} {row.level}{reason}: {row.text}"


def read_options(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Trace requirements to tests.")
    parser.add_argument("--area", action="append", help="only this area; may be given again")
    parser.add_argument(
        "--protocol-version", choices=PROTOCOL_VERSIONS.values(), help="only what holds in it"
    )
    parser.add_argument("--level", choices=LEVELS, help="only this level, prohibitions included")
    parser.add_argument("--uncovered", action="store_true", help="list what no test ticks")
    parser.add_argument("--check", action="store_true", help="no table: only check the data files")
    parser.add_argument("--gate", action="store_true", help="fail when a duty is not ticked")
    parser.add_argument("--tests", type=Path, default=TESTS, help="the folder of tests to read")
    return parser.parse_args(arguments)


def chosen(requirements: list[Requirement], options: argparse.Namespace) -> list[Requirement]:
    """Keep the rows that the options ask for."""
    return [
        row
        for row in requirements
        if (not options.area or row.area in options.area)
        and (not options.protocol_version or row.holds_in(options.protocol_version))
        and (not options.level or row.strength == options.level)
    ]


def main(arguments: list[str]) -> int:
    """Print the report; return the exit status."""
    options = read_options(arguments)
    requirements, traps, exceptions = read_requirements(), read_traps(), read_exceptions()
    ticks = read_ticks(options.tests)
    ticked = {tick.id for tick in ticks}
    known = {row.id for row in requirements} | {trap.id for trap in traps}
    if not options.check:
        rows = chosen(requirements, options)
        print(*coverage_table(rows, ticked), sep="\n")
        if options.uncovered:
            print(*uncovered_lines(rows, ticked, exceptions), sep="\n")
    problems = [
        *bad_fields(requirements),
        *bad_ids(requirements, traps),
        *bad_exceptions(exceptions, known, ticked),
        *bad_ticks(ticks, known),
        *(gaps_at_the_gate(requirements, ticked, exceptions) if options.gate else ()),
        *(traps_at_the_gate(traps, ticked) if options.gate else ()),
    ]
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"{len(requirements)} requirements, {len(traps)} traps, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
