"""The list of rules that can be switched off stays true; `tools/mutate.py` then runs it."""

import functools
import subprocess
import sys

import mutate
import pytest
import requirements

pytestmark = pytest.mark.slow

MUTATIONS = mutate.read_mutations()


@functools.cache
def text_of(path):
    return (mutate.HOME / path).read_text(encoding="utf-8")


@functools.cache
def ids_ticked_in(path):
    return {mark.id for mark in requirements.marked_ids_in(text_of(path), path)}


def complaints(mutation):
    """Return the conditions that a row does not meet."""
    path, _, name = mutation.test.partition("::")
    held = {
        "its text is found once": text_of(mutation.file).count(mutation.source) == 1,
        "it changes something": mutation.source != mutation.replacement,
        "its test file ticks the id": mutation.id in ids_ticked_in(path),
        "its test is there": f"def {name.partition('[')[0]}(" in text_of(path),
    }
    return [what for what, holds in held.items() if not holds]


def test_each_mutation_finds_its_text_once_and_names_a_test_file_that_ticks_its_id():
    found = {(row.id, row.source): complaints(row) for row in MUTATIONS}
    assert {row: wrong for row, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"source": "no such text"}, "its text is found once"),
        ({"replacement": MUTATIONS[0].source}, "it changes something"),
        ({"id": "BASE-99"}, "its test file ticks the id"),
        ({"test": MUTATIONS[0].test + "_there"}, "its test is there"),
    ],
)
def test_an_outdated_mutation_is_reported(changed, complaint):
    assert complaints(MUTATIONS[0]._replace(**changed)) == [complaint]


def test_more_ids_than_the_issue_draws_can_be_switched_off():
    assert len({mutation.id for mutation in MUTATIONS}) >= 20


def run(*arguments):
    command = [sys.executable, str(mutate.HOME / "tools" / "mutate.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.timeout(300)  # it copies the package and runs tests in other processes
def test_a_rule_that_is_switched_off_turns_its_test_red():
    done = run("--ids", "PROG-01")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 of 1 red" in done.stdout


def test_an_id_without_a_mutation_is_reported():
    done = run("--ids", "BASE-99")
    assert done.returncode == 1
    assert "no mutation for BASE-99" in done.stderr
