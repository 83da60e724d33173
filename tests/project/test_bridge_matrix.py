"""The matrix of bridges says what the tests said."""

import bridge_matrix

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
