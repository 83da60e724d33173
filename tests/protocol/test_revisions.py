"""Which revisions one side speaks."""

import pytest

from mcp_trio._protocol.versions import checked_revisions

MODERN = "2026-07-28"


def test_revisions_are_spoken_from_the_newest():
    assert checked_revisions({"2024-11-05", MODERN, "2025-06-18"}) == (
        MODERN,
        "2025-06-18",
        "2024-11-05",
    )


@pytest.mark.parametrize("names", [(), ("2024-11-05", "yesterday")])
def test_revisions_that_nobody_speaks_are_refused(names):
    with pytest.raises(ValueError, match="choose from 2026-07-28, 2025-11-25"):
        checked_revisions(names)
