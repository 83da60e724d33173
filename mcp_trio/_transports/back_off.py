"""How long whoever lost its server waits before it comes back."""

from collections.abc import Callable
from typing import TypeAlias

from mcp_trio._limits import Limits

Dice: TypeAlias = Callable[[], float]
"""Gives numbers from 0 to 1, so that clients that were cut off together do not come back so."""


def pause_seconds(failures: int, limits: Limits, dice: Dice) -> float:
    """The pause behind so many failures in a row: longer and longer, up to a bound."""
    first_seconds = limits.http_retry_ms / 1000
    doubled = doubled_seconds(failures, first_seconds, limits.http_reconnect_seconds_max)
    return doubled * (1 + dice()) / 2


def doubled_seconds(failures: int, first_seconds: float, seconds_max: float) -> float:
    """The same without chance, from any first pause to any bound."""
    return min(first_seconds * 2.0 ** min(failures, 16), seconds_max)
