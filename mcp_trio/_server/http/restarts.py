"""How long is waited before what ended by itself is begun again."""

import attrs

from mcp_trio._limits import Limits
from mcp_trio._transports.back_off import doubled_seconds


@attrs.define(eq=False)
class Restarts:
    """The pauses before one thing begins again: each twice as long, until it has lived for a while.

    They lie between `http_restart_seconds` and `http_restart_seconds_max`; what has lived for as
    long as the longest pause was sound.
    """

    limits: Limits
    _failures: int = attrs.field(default=0, init=False)

    def pause_seconds(self, lived_seconds: float) -> float:
        """How long to wait, now that it has ended after so many seconds."""
        longest_seconds = self.limits.http_restart_seconds_max
        if lived_seconds >= longest_seconds:
            self._failures = 0
        pause_seconds = doubled_seconds(
            self._failures, self.limits.http_restart_seconds, longest_seconds
        )
        self._failures += 1
        return pause_seconds
