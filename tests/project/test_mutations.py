"""The list of rules that can be switched off stays true; `tools/mutate.py` then runs it."""

import functools
import subprocess
import sys

import mutate
import pytest
import requirements

MUTATIONS = mutate.read_mutations()


@functools.cache
def text_of(path):
    return (mutate.HOME / path).read_text(encoding="utf-8")


@functools.cache
def ids_ticked_in(path):
    return {tick.id for tick in requirements.ticks_in(text_of(path), path)}


@pytest.mark.parametrize(
    "mutation", MUTATIONS, ids=lambda mutation: f"{mutation.id}-{mutation.source.strip()[:30]}"
)
def test_a_mutation_finds_its_text_once_and_names_a_test_file_that_ticks_its_id(mutation):
    assert text_of(mutation.file).count(mutation.source) == 1
    assert mutation.source != mutation.replacement
    path, _, name = mutation.test.partition("::")
    assert mutation.id in ids_ticked_in(path)
    assert f"def {name.partition('[')[0]}(" in text_of(path)


def test_more_ids_than_the_issue_draws_can_be_switched_off():
    assert len({mutation.id for mutation in MUTATIONS}) >= 20


def run(*arguments):
    command = [sys.executable, str(mutate.HOME / "tools" / "mutate.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_rule_that_is_switched_off_turns_its_test_red():
    done = run("--ids", "PROG-01")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 of 1 red" in done.stdout


def test_an_id_without_a_mutation_is_told():
    done = run("--ids", "BASE-99")
    assert done.returncode == 1
    assert "no mutation for BASE-99" in done.stderr
