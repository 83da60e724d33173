"""What `mcp-trio sweep` says of a sweep, whatever the numbers are."""

import pytest

from mcp_trio._cli.replay import sweep_summary
from mcp_trio.recording import SweepReport


@pytest.mark.parametrize(
    ("schedules", "outcomes", "words"),
    [
        (1, 1, "1 schedule, 1 outcome, in"),
        (100, 1, "100 schedules, 1 outcome, in"),
        (100, 2, "100 schedules, 2 outcomes, in"),
    ],
)
def test_one_is_said_otherwise_than_several(schedules, outcomes, words):
    report = SweepReport(
        schedules=schedules, outcomes=outcomes, differences=(), untracked_calls=(), seconds=0.5
    )
    assert sweep_summary(report, "trip", "server.py").startswith(words)
