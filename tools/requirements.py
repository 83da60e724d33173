"""Trace requirements to tests: `python tools/requirements.py [--uncovered] [--gate] …`.

`requirements.tsv` has the specification as numbered requirements, `traps.tsv` the points where the
specification misleads, and `requirement_exceptions.tsv` the requirements without a test and the
reasons. A test covers ids with `@pytest.mark.requirement("BASE-02")`. The marks are read from the
source, so no test has to run. The script prints how many requirements are covered, by area,
protocol version and level, and exits with 1 if there is a problem.
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

# The areas that have to be covered completely, in every protocol version.
GATED_AREAS: Final = (
    *("BASE", "ERR", "META", "TRACE", "LIFE", "TIME", "VER", "DISC", "STATE", "EXT", "TRAN"),
    *("STDIO", "CANC", "PROG", "PING", "TOOL", "RES", "PROM", "COMP", "LOG", "PAG", "CACHE"),
    *("ROOT", "SAMP", "ELIC", "MRTR", "SUB", "ICON", "JSCH", "SSE", "HTTP", "MHTTP", "HDR", "SEC"),
    *("AUTH", "AUTHX"),
)
GATES: Final = dict.fromkeys(PROTOCOL_VERSIONS.values(), GATED_AREAS)

# The traps of another area (tasks); all others need a test.
TRAPS_LATER: Final = frozenset(f"TRAP-{number:02}" for number in range(109, 118))

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
    """A rule of the specification; `protocol_versions` has a letter for each version with it."""

    id: str
    area: str
    protocol_versions: str
    who: str
    level: str
    text: str
    source: str

    @property
    def strength(self) -> str:
        """The level without NOT."""
        return self.level.removesuffix(" NOT")

    def holds_in(self, protocol_version: str) -> bool:
        """Return whether a protocol version has this requirement."""
        return any(
            PROTOCOL_VERSIONS.get(letter) == protocol_version for letter in self.protocol_versions
        )


class Trap(NamedTuple):
    """A point where the specification misleads, and what this project does about it."""

    id: str
    kind: str
    trap: str
    what_happens: str
    what_to_do: str


class Untested(NamedTuple):
    """A requirement without a test, with one of the reasons in `REASONS`."""

    id: str
    reason: str
    note: str


class MarkedId(NamedTuple):
    """An id in a mark of a test, with its file and line; the id is empty if it is not a literal."""

    id: str
    where: str


def read_rows(name: str) -> list[list[str]]:
    """Return the rows of a table in the folder of this script, without the heading."""
    with (TOOLS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]


def read_requirements() -> list[Requirement]:
    """Return all requirements."""
    return [Requirement(*row) for row in read_rows("requirements.tsv")]


def read_traps() -> list[Trap]:
    """Return all traps."""
    return [Trap(*row) for row in read_rows("traps.tsv")]


def read_exceptions() -> list[Untested]:
    """Return the requirements that need no test."""
    return [Untested(*row) for row in read_rows("requirement_exceptions.tsv")]


def marked_ids_in(source: str, where: str) -> Iterator[MarkedId]:
    """Yield each id that a test file covers by decorators, `pytestmark` or marks of parameters."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and is_mark(node.func):
            for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                is_text = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                written = ast.literal_eval(argument) if is_text else ""
                yield MarkedId(written, f"{where}:{argument.lineno}")


def is_mark(called: ast.expr) -> bool:
    """Return whether an expression is the mark."""
    # The cheap comparison first, because `ast.unparse` is slow.
    has_name = isinstance(called, ast.Attribute) and called.attr == "requirement"
    return has_name and ast.unparse(called).endswith("mark.requirement")


def read_marked_ids(tests: Path) -> list[MarkedId]:
    """Return all ids that the tests in a folder cover."""
    return [
        mark
        for path in sorted(tests.rglob("test_*.py"))
        for mark in marked_ids_in(
            path.read_text(encoding="utf-8"), str(path.relative_to(tests.parent))
        )
    ]


def bad_fields(requirements: Iterable[Requirement]) -> Iterator[str]:
    """Yield requirements with malformed fields."""
    for requirement in requirements:
        for name, pattern in FIELDS.items():
            value = getattr(requirement, name)
            if not pattern.fullmatch(value):
                yield f"{requirement.id}: {name} {value!r}"
        if requirement.area != requirement.id.rpartition("-")[0]:
            yield f"{requirement.id}: area {requirement.area!r}"


def bad_ids(requirements: list[Requirement], traps: list[Trap]) -> Iterator[str]:
    """Yield ids that are used twice, and references to unknown ids."""
    rows: list[Requirement | Trap] = [*requirements, *traps]
    used = Counter(row.id for row in rows)
    yield from (f"{id_}: used {times} times" for id_, times in used.items() if times > 1)
    for row in rows:
        for reference in REFERENCE.findall(" ".join(row[1:])):
            if reference not in used and not FOREIGN_REFERENCE.fullmatch(reference):
                yield f"{row.id}: refers to unknown {reference}"


def bad_exceptions(exceptions: list[Untested], known: set[str], covered: set[str]) -> Iterator[str]:
    """Yield exceptions for unknown or covered ids, and reasons that are not in `REASONS`."""
    for exception in exceptions:
        if exception.id not in known:
            yield f"{exception.id}: an exception for an unknown id"
        if exception.id in covered:
            yield f"{exception.id}: an exception, but a test covers it"
        if exception.reason not in REASONS:
            yield f"{exception.id}: reason {exception.reason!r} is not one of {', '.join(REASONS)}"


def bad_marks(marks: Iterable[MarkedId], known: set[str]) -> Iterator[str]:
    """Yield marks with ids that are unknown or are not literals."""
    for mark in marks:
        if not mark.id:
            yield f"{mark.where}: the ids of a mark must be literals"
        elif mark.id not in known:
            yield f"{mark.where}: {mark.id!r} is not a requirement"


def uncovered_requirements(
    requirements: list[Requirement], covered: set[str], exceptions: list[Untested]
) -> Iterator[str]:
    """Yield requirements of the required areas that no test covers, and too many exceptions."""
    excepted = {exception.id for exception in exceptions}
    for protocol_version, areas in GATES.items():
        duties = {
            row.id: row
            for row in requirements
            if row.area in areas and row.strength != "MAY" and row.holds_in(protocol_version)
        }
        for row in duties.values():
            if row.id not in covered | excepted:
                yield f"{row.id}: {row.level}, {protocol_version}, not covered: {row.text}"
        allowed = len(duties) * EXCEPTIONS_PER_CENT_MAX // 100
        count = len(excepted & duties.keys())
        if count > allowed:
            text = f"{count} exceptions; {allowed} are allowed for {len(duties)} requirements"
            yield f"{protocol_version}: {text}"


def uncovered_traps(traps: Iterable[Trap], covered: set[str]) -> Iterator[str]:
    """Yield traps of the required areas without a test."""
    for trap in traps:
        if trap.id not in covered | TRAPS_LATER:
            yield f"{trap.id}: a trap without a test: {trap.trap}"


def share(rows: Iterable[Requirement], covered: set[str]) -> str:
    """Return how many of some requirements are covered, as `12/15`."""
    ids = [row.id for row in rows]
    return f"{sum(id_ in covered for id_ in ids)}/{len(ids)}" if ids else "-"


def coverage_table(requirements: list[Requirement], covered: set[str]) -> Iterator[str]:
    """Yield a line for each area: covered and all, by protocol version and level."""
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
        yield f"{area:8}" + "".join(f"{share(part, covered):>12}" for part in parts)


def uncovered_lines(
    requirements: list[Requirement], covered: set[str], exceptions: list[Untested]
) -> Iterator[str]:
    """Yield a line for each requirement that no test covers."""
    reasons = {exception.id: f" [{exception.reason}]" for exception in exceptions}
    for row in requirements:
        if row.id not in covered:
            reason = reasons.get(row.id, "")
            yield f"{row.id} {row.protocol_versions} {row.who} {row.level}{reason}: {row.text}"


def read_options(arguments: list[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Trace requirements to tests.")
    parser.add_argument("--area", action="append", help="only this area; can be repeated")
    parser.add_argument(
        "--protocol-version", choices=PROTOCOL_VERSIONS.values(), help="only its requirements"
    )
    parser.add_argument("--level", choices=LEVELS, help="only this level, with or without NOT")
    parser.add_argument(
        "--uncovered", action="store_true", help="list the requirements that no test covers"
    )
    parser.add_argument(
        "--check", action="store_true", help="only check the data files, without a table"
    )
    parser.add_argument("--gate", action="store_true", help="fail if a requirement is not covered")
    parser.add_argument("--tests", type=Path, default=TESTS, help="the folder of tests")
    return parser.parse_args(arguments)


def chosen(requirements: list[Requirement], options: argparse.Namespace) -> list[Requirement]:
    """Return the requirements that the options select."""
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
    marks = read_marked_ids(options.tests)
    covered = {mark.id for mark in marks}
    known = {row.id for row in requirements} | {trap.id for trap in traps}
    if not options.check:
        rows = chosen(requirements, options)
        print(*coverage_table(rows, covered), sep="\n")
        if options.uncovered:
            print(*uncovered_lines(rows, covered, exceptions), sep="\n")
    problems = [
        *bad_fields(requirements),
        *bad_ids(requirements, traps),
        *bad_exceptions(exceptions, known, covered),
        *bad_marks(marks, known),
        *(uncovered_requirements(requirements, covered, exceptions) if options.gate else ()),
        *(uncovered_traps(traps, covered) if options.gate else ()),
    ]
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"{len(requirements)} requirements, {len(traps)} traps, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
