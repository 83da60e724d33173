"""The table of `tools/proof/properties.py` names existing tests, and a control for each."""

import re
from pathlib import Path

import pytest
from proof.properties import PROPERTIES

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
DEFINED = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)


def defined_in(path):
    return set(DEFINED.findall(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", PROPERTIES)
def test_every_property_has_tests_that_exist_and_a_control(name):
    proofs = PROPERTIES[name]
    assert {proof.is_control for proof in proofs} == {True, False}
    for proof in proofs:
        file, _, test = proof.test.partition("::")
        assert test in defined_in(TESTS / file), proof.test


def test_every_property_test_is_in_the_table():
    here = {
        f"properties/{path.name}::{test}"
        for path in TESTS.glob("properties/test_p*.py")
        for test in defined_in(path)
    }
    assert here <= {proof.test for proofs in PROPERTIES.values() for proof in proofs}


def test_the_table_has_ten_properties():
    assert [name.split()[0] for name in PROPERTIES] == [str(number) for number in range(1, 11)]
