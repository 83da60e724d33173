"""The table of protocol versions."""

import pytest

from mcp_trio._protocol.versions import checked_protocol_versions

STATELESS = "2026-07-28"


def test_protocol_versions_are_sorted_from_the_newest():
    assert checked_protocol_versions({"2024-11-05", STATELESS, "2025-06-18"}) == (
        STATELESS,
        "2025-06-18",
        "2024-11-05",
    )


@pytest.mark.parametrize("names", [(), ("2024-11-05", "yesterday")])
def test_unknown_protocol_versions_are_rejected(names):
    with pytest.raises(ValueError, match="choose from 2026-07-28, 2025-11-25"):
        checked_protocol_versions(names)
