"""The queue of received notifications, which the user's callbacks handle one at a time, in order.

A replay has to know when a callback starts, because handlers may have gone on since the
notification was received. Each notification therefore has a lane, `n` and the number of its `in`
record: a mark when its callback starts, or `cxl` if the session ended before. The callback acts in
that lane, so that its clocks are captured, and a replay rejects its changes of the outside.
"""

import logging
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
import trio

from mcp_trio._protocol.connection import NotificationReceived
from mcp_trio._session.exceptions import exc_info_from_users_code, split_group
from mcp_trio._session.journal import Sequencer
from mcp_trio._session.lanes import LANE, Lane, drive, enter_lane
from mcp_trio._session.tasks import Tasks
from mcp_trio._transports.concurrency import Wakeup
from mcp_trio._transports.peer_log import PeerLog

if TYPE_CHECKING:
    from mcp_trio._session.handlers import Application

logger = logging.getLogger("mcp_trio")

DROPPED: Final = "notifications dropped"
NOTIFIED: Final = "notified"

_Queue: TypeAlias = deque[tuple[NotificationReceived, Lane | None]]


@attrs.define(eq=False, repr=False)
class NotificationQueue:
    """A bounded queue of notifications, and the task that passes them to the callbacks.

    The dispatcher never waits for a callback: a notification that does not fit is dropped and
    counted, and the first one is logged. Queue and task exist only while notifications wait.
    """

    application: "Application"
    sequencer: Sequencer
    tasks: Tasks
    queued_max: int
    counts: Counter[str]
    peer_log: PeerLog
    _queue: _Queue | None = attrs.field(default=None, init=False)
    _delivering: trio.CancelScope | None = attrs.field(default=None, init=False)
    _done: Wakeup | None = attrs.field(default=None, init=False)

    def put(self, event: NotificationReceived, number: int | str) -> None:
        """Queue the notification of an `in` record, if the application handles its method."""
        if not self.application.handles_notification(event.method):
            return
        if self._queue is None:
            self._queue, self._delivering = _Queue(), trio.CancelScope()
            self.tasks.start(self._deliver, self._queue, self._delivering)
        if len(self._queue) < self.queued_max:
            lane, sequencer = None, self.sequencer
            if sequencer.has_lanes:
                lane = Lane(f"n{number}", sequencer, has_steps=sequencer.has_steps)
            self._queue.append((event, lane))
            return
        self.counts[DROPPED] += 1
        if self.counts[DROPPED] == 1:
            logger.warning(
                "%s dropped: callbacks are slower than the peer"
                " (limits.messages.notifications_queued_max=%d)",
                event.method.name,
                self.queued_max,
            )

    async def done(self) -> None:
        """Wait until the last notification has been handled; any number of tasks may wait."""
        if self._done is None:
            self._done = Wakeup()
        while self._queue is not None:
            await self._done.wait()

    def abandon(self) -> None:
        """Drop the notifications that are left."""
        for _, lane in self._queue or ():
            if lane is not None:
                self.sequencer.ended(lane, unstarted=True)
        if self._queue is not None and self._delivering is not None:
            self._queue.clear()
            self._delivering.cancel()

    async def _deliver(self, queue: _Queue, scope: trio.CancelScope) -> None:
        """Pass the notifications to their callbacks until the queue is empty."""
        with scope:
            while queue:
                await trio.lowlevel.checkpoint()
                _, lane = queue[0]
                lanes = () if lane is None or not lane.has_steps else (lane,)
                await drive(self._deliver_next(queue), lanes)
        self._queue = self._delivering = None
        if self._done is not None:
            self._done.wake()

    async def _deliver_next(self, queue: _Queue) -> None:
        event, lane = queue[0]
        if lane is not None:
            self.sequencer.marked(NOTIFIED, event.method.name, lane)
        queue.popleft()
        outer = LANE.get()
        if lane is not None:
            enter_lane(lane)
        try:
            await self.application.notified(event.method, event.params)
        except Exception as error:  # The user's code may raise anything; delivery continues.
            self._log(event, error)
        except BaseExceptionGroup as group:
            errors, rest = split_group(group)
            if errors is not None:
                self._log(event, errors)
            raise rest from None
        finally:
            LANE.set(outer)

    def _log(self, event: NotificationReceived, error: Exception) -> None:
        name = event.method.name
        self.peer_log.report(
            f"callback for {name}",
            f"the callback for {name} failed",
            level=logging.ERROR,
            error=exc_info_from_users_code(error),
        )
