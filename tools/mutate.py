"""Turn rules off one by one, and check that their tests fail: `python tools/mutate.py [--ids …]`.

`tests/mutations.tsv` has for each requirement the text of the package that holds its rule, the text
that replaces it to turn the rule off, and the test that must fail; a backslash and an n are the end
of a line. Package and tests are copied to a temporary folder, so the working tree is not changed.
The tests are first run unchanged, as a test that always fails proves nothing. Prints id, test and
red or green; exits 1 when any test stays green, cannot run at all, or a text is not found exactly
once.
"""

import argparse
import csv
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

HOME: Final = Path(__file__).resolve().parent.parent
MUTATIONS: Final = HOME / "tests" / "mutations.tsv"
COPIED: Final = ("mcp_trio", "tests", "tools", "pyproject.toml")

# The meaning of pytest's exit statuses; with any other the tests could not run.
RESULTS: Final = {0: "green", 1: "red"}
ESCAPED: Final = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}


class Mutation(NamedTuple):
    """A change that turns a rule off, and the test that has to fail."""

    id: str
    file: str
    source: str
    replacement: str
    test: str


def main() -> int:
    options = read_options()
    mutations = chosen(read_mutations(), options)
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        home = Path(folder)
        copy_project(home)
        tests = sorted({mutation.test for mutation in mutations})
        if (result := run_tests(home, tests)) != "green":
            print(f"the tests are {result} before anything is changed")
            return 1
        verdicts = [report(mutation, try_out(home, mutation)) for mutation in mutations]
    print(f"{verdicts.count('red')} of {len(verdicts)} red")
    return 0 if set(verdicts) <= {"red"} else 1


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ids", nargs="+", help="only the rules of these requirements")
    parser.add_argument("--draw", type=int, metavar="N", help="only N ids, drawn at random")
    parser.add_argument("--seed", type=int, help="of the draw; printed when it is not given")
    return parser.parse_args()


def read_mutations() -> list[Mutation]:
    with MUTATIONS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [Mutation(**{name: unescape(text) for name, text in row.items()}) for row in rows]


def unescape(text: str) -> str:
    return re.sub(r"\\[nt\\]", lambda escape: ESCAPED[escape[0]], text)


def chosen(mutations: Sequence[Mutation], options: argparse.Namespace) -> list[Mutation]:
    """Return the mutations of these ids; exit if an id has none."""
    known = sorted({mutation.id for mutation in mutations})
    wanted = set(options.ids or known)
    if unknown := sorted(wanted.difference(known)):
        raise SystemExit(f"no mutation for {', '.join(unknown)}")
    if options.draw is not None:
        wanted = set(draw(sorted(wanted), options))
    return [mutation for mutation in mutations if mutation.id in wanted]


def draw(ids: Sequence[str], options: argparse.Namespace) -> list[str]:
    if options.draw > len(ids):
        raise SystemExit(f"cannot draw {options.draw} of {len(ids)} ids")
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"drawn with --seed {seed}")
    return random.Random(seed).sample(ids, options.draw)


def copy_project(home: Path) -> None:
    leave_out = shutil.ignore_patterns(".*")
    for name in COPIED:
        if (HOME / name).is_dir():
            shutil.copytree(HOME / name, home / name, ignore=leave_out)
        else:
            shutil.copy2(HOME / name, home / name)


def try_out(home: Path, mutation: Mutation) -> str:
    """Return the test's result while the rule is off; the copy is restored afterwards."""
    path = home / mutation.file
    original = path.read_text(encoding="utf-8")
    if (count := original.count(mutation.source)) != 1:
        return f"its text occurs {count} times in {mutation.file}"
    path.write_text(original.replace(mutation.source, mutation.replacement), encoding="utf-8")
    try:
        return run_tests(home, [mutation.test])
    finally:
        path.write_text(original, encoding="utf-8")


def run_tests(home: Path, tests: Iterable[str]) -> str:
    """Run them against the copy: its folder comes before the installed package.

    Byte code is not written, since a file changed twice within a second would not be seen; nor is
    coverage, of files that are gone when it is reported.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    environment = kept | {"PYTHONPATH": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-x", "-q", "-p", "no:cacheprovider", "--assert=plain"]  # the details are not shown
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    result = RESULTS.get(done.returncode)
    return result or f"not run, pytest says {done.returncode}:\n{done.stdout}{done.stderr}"


def report(mutation: Mutation, result: str) -> str:
    print(f"{mutation.id:9} {mutation.test}  {result}", flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
