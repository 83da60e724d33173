"""Buffers between the connections that receive messages and the session that takes them."""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import attrs
import trio

from mcp_trio._jsonrpc.messages import Lost
from mcp_trio._transports.channel import Received
from mcp_trio._transports.concurrency import Wakeup

Take: TypeAlias = Callable[[Sequence[Received]], None]
"""The session's synchronous receiver; an empty sequence means that the channel has ended."""


@attrs.define(eq=False)
class RequestInbox:
    """The receiving side of an HTTP server's channel, filled by the exchanges of its clients.

    A session that has called `deliver_to` gets each message synchronously, within `put`. Otherwise
    the message is kept until `receive` or `deliver_to` is called.
    """

    _take: Take | None = attrs.field(default=None, init=False)
    _waiting: tuple[Received, ...] = attrs.field(default=(), init=False)
    _has_eof: bool = attrs.field(default=False, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)
    _news: Wakeup = attrs.field(factory=Wakeup, init=False)

    def deliver_to(self, take: Take) -> None:
        """Pass the messages that are kept, and all later ones, to `take`."""
        self._take = take
        waiting, self._waiting = self._waiting, ()
        if waiting:
            take(waiting)
        if self._has_eof:
            take([])

    def put(self, message: bytes) -> None:
        """Pass one message to the session, or keep it; a closed inbox drops it."""
        if self._is_closed:
            return
        if self._take is not None:
            self._take([message])
        else:
            self._waiting = (*self._waiting, message)
            self._news.wake()

    def end(self) -> None:
        """Report the end of input to the session."""
        self._has_eof = True
        self._news.wake()
        if self._take is not None:
            self._take([])

    def close(self) -> None:
        """Drop all later messages, and report the end of input to the session."""
        self._is_closed = True
        self.end()

    async def receive(self) -> Sequence[Received]:
        """Return the messages that are kept, at least one; an empty sequence at the end of input.

        Cancellation loses no message.

        Raises:
            trio.ClosedResourceError: The inbox is closed.
        """
        await trio.lowlevel.checkpoint()
        while not (self._waiting or self._has_eof or self._is_closed):
            await self._news.wait()
        if self._is_closed:
            raise trio.ClosedResourceError
        taken, self._waiting = self._waiting, ()
        return taken


# The approximate memory of an item beside its bytes. It counts towards the bound, so that a flood
# of tiny items is bounded, too.
_ITEM_BYTES: Final = 128


@attrs.define(eq=False)
class ReceivedQueue:
    """A queue of received messages that is bounded by bytes: many producers, one consumer.

    `put` never waits, so that cancellation cannot lose a message between reading and queueing. A
    producer awaits `room` after `put` and before it reads on: the queue exceeds `bytes_max` by at
    most one message for each producer.
    """

    bytes_max: int
    _items: list[Received] = attrs.field(factory=list[Received], init=False)
    _bytes: int = attrs.field(default=0, init=False)
    _is_ended: bool = attrs.field(default=False, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)
    _filled: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _emptied: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def put(self, item: Received) -> None:
        """Append an item; after `end`, drop it."""
        if self._is_ended:
            return
        self._items.append(item)
        self._bytes += _size(item)
        self._filled.unpark_all()

    async def room(self) -> None:
        """Wait until the queue holds fewer than `bytes_max` bytes, or is closed."""
        while self._bytes >= self.bytes_max and not self._is_closed:
            await self._emptied.park()

    async def take(self) -> list[Received]:
        """Remove and return all items, at least one; return an empty list at the end.

        The end is returned without yielding to another task: a caller that learns from it that its
        session is lost must find that session ended already. Cancellation loses no item.

        Raises:
            trio.ClosedResourceError: The queue is closed, also while this waits.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._items:
            await trio.lowlevel.cancel_shielded_checkpoint()
        while not (self._items or self._is_ended or self._is_closed):
            await self._filled.park()
        if self._is_closed:
            raise trio.ClosedResourceError("this side of the channel was closed")
        items, self._items = self._items, []
        self._bytes = 0
        self._emptied.unpark_all()
        return items

    def end(self) -> None:
        """Accept no more items; `take` still returns those that are queued."""
        self._is_ended = True
        self._filled.unpark_all()

    def close(self) -> None:
        """Drop all items, and end every wait in `take` and `room`."""
        self._is_closed = True
        self._items.clear()
        self._filled.unpark_all()
        self._emptied.unpark_all()


def _size(item: Received) -> int:
    if isinstance(item, bytes):
        return len(item) + _ITEM_BYTES
    return _ITEM_BYTES if isinstance(item, Lost) else len(item.prefix) + _ITEM_BYTES
