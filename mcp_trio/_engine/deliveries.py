"""Notifications on their way to people's code, which looks at them one at a time, in order.

When people's code begins to look at one is a fact that a replay needs: other handlers may have gone
on since it came. So each has a lane, `n` and the number of its `in` record, with one record: a mark
when it is looked at, or `cxl` if the session ended before.
"""

import logging
from collections import Counter, deque
from typing import Final, TypeAlias

import attrs
import trio

from mcp_trio._engine.answering import apart
from mcp_trio._engine.application import Application
from mcp_trio._engine.lanes import Lane
from mcp_trio._engine.sequencer import Sequencer, take_turn
from mcp_trio._protocol import NotificationArrived

logger = logging.getLogger("mcp_trio")

DROPPED: Final = "notifications dropped"
NOTIFIED: Final = "notified"

_Queue: TypeAlias = deque[tuple[NotificationArrived, Lane | None]]


@attrs.define(eq=False)
class Deliveries:
    """A bounded queue, and the actor that empties it: the dispatcher never waits for a callback.

    What does not fit is dropped, counted and, the first time, logged.
    """

    application: Application
    sequencer: Sequencer
    queued_max: int
    counts: Counter[str]
    done: trio.Event = attrs.field(factory=trio.Event, init=False)
    _queue: _Queue = attrs.field(factory=_Queue, init=False)
    _news: trio.Event = attrs.field(factory=trio.Event, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)

    def put(self, event: NotificationArrived, number: int | str) -> None:
        """Queue the notification of an `in` record, if anybody hears it."""
        if not self.application.hears(event.method):
            return
        if len(self._queue) < self.queued_max:
            lane = Lane(f"n{number}", self.sequencer) if self.sequencer.has_lanes else None
            self._queue.append((event, lane))
            self._news.set()
            return
        self.counts[DROPPED] += 1
        if self.counts[DROPPED] == 1:
            logger.warning(
                "%s dropped: callbacks are slower than the peer (notifications_queued_max=%d)",
                event.method.name,
                self.queued_max,
            )

    def close(self) -> None:
        """No more will come; `done` is set when the last one was looked at."""
        self._is_closed = True
        self._news.set()

    def abandon(self) -> None:
        """Nobody looks at what is left."""
        for _, lane in self._queue:
            if lane is not None:
                self.sequencer.ended(lane, unstarted=True)
        self._queue.clear()

    async def run(self) -> None:
        """The actor."""
        while self._queue or not self._is_closed:
            if self._queue:
                await trio.lowlevel.checkpoint()
                await self._deliver_next()
            else:
                self._news = trio.Event()
                await self._news.wait()
        self.done.set()

    async def _deliver_next(self) -> None:
        event, lane = self._queue[0]
        if lane is not None:
            await take_turn(self.sequencer, lane)
            self.sequencer.marked(NOTIFIED, event.method.name, lane)
        self._queue.popleft()
        try:
            await self.application.notified(event.method, event.params)
        except Exception as error:  # people's own: logged, and the next one is looked at
            _log(event, error)
        except BaseExceptionGroup as group:
            faults, rest = apart(group)
            if faults is not None:
                _log(event, faults)
            raise rest from None


def _log(event: NotificationArrived, error: Exception) -> None:
    logger.error("the callback for %s failed", event.method.name, exc_info=error)
