"""The matrix of bridges says what the tests said."""

import subprocess

import bridge_matrix
import pytest

pytestmark = pytest.mark.slow

REPORT = """
PASSED tests/proxy/test_bridge.py::test_every_pair[stdio-command]
PASSED tests/proxy/test_bridge.py::test_every_pair[tcp-command]
FAILED tests/proxy/test_bridge.py::test_every_pair[stdio-http] - AssertionError
PASSED tests/proxy/test_bridge.py::test_something_else
"""


def test_each_pair_has_its_cell():
    assert list(bridge_matrix.rows(bridge_matrix.results(REPORT))) == [
        "from \\ to   command     http",
        "stdio       yes         NO",
        "tcp         yes         -",
    ]


@pytest.mark.parametrize(("report", "status"), [(REPORT, 0), ("", 1)])
def test_without_a_pair_nothing_is_shown(monkeypatch, report, status):
    done = subprocess.CompletedProcess([], 0, stdout=report)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert bridge_matrix.main() == status
