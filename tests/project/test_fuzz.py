"""Every parser takes the corpus of its fuzzer, which has the inputs of former findings."""

import runpy
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[2] / "tools" / "fuzz"
TARGETS = runpy.run_path(str(FUZZ / "targets.py"))["TARGETS"]
FILES = sorted((FUZZ / "corpus").glob("*/*"))


def test_each_parser_has_a_corpus():
    assert {file.parent.name for file in FILES} == set(TARGETS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.name}")
def test_a_parser_takes_its_corpus(file):
    TARGETS[file.parent.name](file.read_bytes())


def test_each_planted_fault_has_its_place():
    planted = runpy.run_path(str(FUZZ / "planted_faults.py"))["PLANTED"]
    package = FUZZ.parents[1] / "mcp_trio"
    for fault in planted:
        assert (package / fault.file).read_text(encoding="utf-8").count(fault.text) == 1, fault
