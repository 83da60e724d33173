"""Many waits that take the same time at most, ended by one timer."""

from itertools import takewhile

import attrs
import trio

from mcp_trio._transports.bell import Bell


@attrs.define(eq=False)
class Patience:
    """Rings for who has waited for `seconds`, while the wait goes on.

    A scope with a deadline for each wait would cost more than all else that is done to carry an
    answer. The task behind this begins with a wait, and ends when it finds none.
    """

    seconds: float
    # By the ends, since all last equally long.
    _ends: dict[Bell, float] = attrs.field(factory=dict[Bell, float], init=False)
    _is_running: bool = attrs.field(default=False, init=False)

    async def wait(self, bell: Bell) -> None:
        """Wait until it is rung by others, or until that has taken too long."""
        self._ends[bell] = trio.current_time() + self.seconds
        if not self._is_running:
            self._is_running = True
            trio.lowlevel.spawn_system_task(self._run)
        try:
            await bell.wait()
        finally:
            self._ends.pop(bell, None)

    async def _run(self) -> None:
        try:
            while self._ends:
                await trio.sleep_until(next(iter(self._ends.values())))
                self._ring(trio.current_time())
        finally:
            self._is_running = False

    def _ring(self, now: float) -> None:
        due = list(takewhile(lambda bell: self._ends[bell] <= now, self._ends))
        for bell in due:
            del self._ends[bell]
            bell.ring()
