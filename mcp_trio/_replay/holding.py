"""Deadlines that are held back: whether they had passed before a record was made, no file can tell.

What falls due at the very time of a record came before it or after it. If a lane was cancelled then
and no call of its own followed, it was cancelled where it stood: woken before, it would have come
to a call that it never made, shielded perhaps, or to the end of its work.
"""

import math
from collections.abc import Iterable

import attrs
import trio

from mcp_trio._replay.shields import entered_scopes


@attrs.define(eq=False)
class Held:
    """Cancel scopes whose deadlines are put off, and what these were."""

    _deadlines: dict[trio.CancelScope, float] = attrs.field(
        factory=dict[trio.CancelScope, float], init=False
    )

    @property
    def next_deadline(self) -> float:
        """The first of those held back; infinite if none is."""
        return min(self._deadlines.values(), default=math.inf)

    def hold(self, tasks: Iterable[trio.lowlevel.Task], until: float) -> bool:
        """Put off what wakes any of the tasks up to a time; returns whether anything does."""
        due = {
            scope: scope.deadline
            for task in tasks
            for scope in entered_scopes(task)
            if scope.deadline <= until and not scope.cancel_called
        }
        for scope in due:
            scope.deadline = math.inf
        self._deadlines |= due
        return bool(due)

    def release(self, before: float = math.inf) -> bool:
        """Put back what was due before a time; returns whether anything was."""
        due = [scope for scope, deadline in self._deadlines.items() if deadline < before]
        for scope in due:
            scope.deadline = min(scope.deadline, self._deadlines.pop(scope))
        return bool(due)
