"""Notifications on their way to people's code, which looks at them one at a time, in order."""

import logging
from collections import Counter

import attrs
import trio

from mcp_trio._engine.answering import apart
from mcp_trio._engine.application import Application
from mcp_trio._protocol import NotificationArrived

logger = logging.getLogger("mcp_trio")

DROPPED = "notifications dropped"


@attrs.define(eq=False)
class Deliveries:
    """A bounded queue, and the actor that empties it: the dispatcher never waits for a callback.

    What does not fit is dropped, counted and, the first time, logged.
    """

    application: Application
    queued_max: int
    counts: Counter[str]
    done: trio.Event = attrs.field(factory=trio.Event, init=False)
    _put: trio.MemorySendChannel[NotificationArrived] = attrs.field(init=False)
    _queue: trio.MemoryReceiveChannel[NotificationArrived] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._put, self._queue = trio.open_memory_channel[NotificationArrived](self.queued_max)

    def put(self, event: NotificationArrived) -> None:
        """Queue a notification."""
        try:
            self._put.send_nowait(event)
        except trio.WouldBlock:
            self.counts[DROPPED] += 1
            if self.counts[DROPPED] == 1:
                logger.warning(
                    "%s dropped: callbacks are slower than the peer (notifications_queued_max=%d)",
                    event.method.name,
                    self.queued_max,
                )

    def close(self) -> None:
        """No more will come; `done` is set when the last one was looked at."""
        self._put.close()

    async def run(self) -> None:
        """The actor."""
        async for event in self._queue:
            await self._deliver(event)
        self.done.set()

    async def _deliver(self, event: NotificationArrived) -> None:
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
