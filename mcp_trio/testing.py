"""What people test with: the contract of a channel, as checks for any transport."""

from mcp_trio._testing.channel_contract import (
    CHANNEL_CHECKS,
    check_channel,
    check_channel_for,
)

__all__ = ["CHANNEL_CHECKS", "check_channel", "check_channel_for"]
