"""Log lines that peers cause, at a limited rate."""

import logging
import math
from types import TracebackType
from typing import Final, TypeAlias

import attrs
import msgspec
import trio

from mcp_trio._protocol.empty import NO_ITEMS

PERIOD_SECONDS: Final = 1.0
"""The time that has to pass between two lines of one kind."""

KINDS_MAX: Final = 64
"""The number of kinds of lines that have a rate of their own; all others share one."""

_OTHERS: Final = "others"

logger = logging.getLogger("mcp_trio")

Error: TypeAlias = BaseException | tuple[type[BaseException], BaseException, TracebackType | None]
"""An exception, or one with another traceback than its own, as `sys.exc_info` gives it."""


class _Kind(msgspec.Struct, eq=False):
    """The state of one kind of line since the last one that was logged."""

    next_at: float  # the time from which the next line may be logged
    level: int
    text: str = ""  # of the last line that was left out
    left_out: int = 0


@attrs.define(eq=False, repr=False)
class PeerLog:
    """A log of one peer's errors: at most one line a second for each kind, with a count.

    Without it, a peer that sends nothing but malformed messages would fill the disk of the log.
    Each session has one for its peer. A listener has one for errors before there is a session.
    """

    # Each session has a log, and most of them never log: they share one empty dict.
    _kinds: dict[str, _Kind] = attrs.field(default=NO_ITEMS, init=False)

    def report(
        self,
        kind: str,
        text: str,
        *,
        level: int = logging.WARNING,
        error: Error | None = None,
    ) -> None:
        """Log a line, unless the last one of the same kind is less than a second old.

        Args:
            kind: The kind of error. Beyond `KINDS_MAX` kinds, all others count as one, so that a
                peer gains little from names that it invents.
            text: The line. The number of lines left out before it is appended.
            level: The level of the line.
            error: An exception whose traceback is logged, too.
        """
        if not logger.isEnabledFor(level):
            return
        now = trio.current_time()
        if kind not in self._kinds and len(self._kinds) >= KINDS_MAX:
            self._forget(now)
            if len(self._kinds) >= KINDS_MAX:
                kind = _OTHERS
        state = self._kinds.get(kind)
        if state is not None and now < state.next_at:
            state.left_out += 1
            state.text = text
            return
        left_out = 0 if state is None else state.left_out
        if self._kinds is NO_ITEMS:
            self._kinds = {}
        self._kinds[kind] = _Kind(now + PERIOD_SECONDS, level)
        more = f" (and {left_out} more like this before)" if left_out else ""
        logger.log(level, "%s%s", text, more, exc_info=error, stacklevel=2)

    def close(self) -> None:
        """Log how many lines were left out since the last one of each kind."""
        self._forget(math.inf)

    def _forget(self, now: float) -> None:
        """Forget the kinds that may be logged again, after a line about those left out."""
        for kind, state in [*self._kinds.items()]:
            if now < state.next_at:
                continue
            del self._kinds[kind]
            if state.left_out:
                more = f"and {state.left_out} more like this"
                logger.log(state.level, "%s (%s)", state.text, more, stacklevel=3)
