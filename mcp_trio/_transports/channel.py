"""`Channel`: the interface of transports, a queue for what they receive, and texts of their errors.

A transport is any class with the three methods of `Channel`; nothing is inherited or registered.
How a connection is opened is up to the transport: it returns a channel that is ready for use.
From then on each element of `send` and `receive` is one encoded JSON-RPC message, without LF or CR.
Messages arrive complete, unchanged and in order. One task sends and one task receives, at the same
time.

Seven more members are used where they exist:

`transport: str`
    The name of the transport in recordings, such as "memory" or "stdio".

`send_nowait(messages: Sequence[bytes]) -> int`
    Sends as many messages as can be sent without waiting, and returns how many. A message of which
    only a part could be sent counts as sent: the next `send` or `send_nowait` finishes it first
    (`send([])` finishes it and sends nothing more). It is called only while no `send` runs, and
    raises the errors of `send`. With it, a response needs no second task.

`is_unfinished: bool`
    Comes with `send_nowait`: whether a part of a message is left to be sent.

`bytes_sent: int`
    Grows while a `send` makes progress, which tells a slow peer from one that does not read.

`takes_related_messages: bool`
    Whether messages to send have to be `RelatedMessage`s, so that each can go to the request of
    the peer that it belongs to.

`reports_losses: bool`
    Whether the channel reports each request that will get no response, as `Lost`, and whether it
    was sent. When such a channel ends, requests without a report were not sent. For other channels
    that is unknown.

`deliver_to(on_received: Callable[[Sequence[Received]], None]) -> None`
    Makes the channel call `on_received` with messages as they arrive, in place of `receive`, so
    that an idle session needs no task. `on_received` neither waits nor raises. A full queue of
    responses does not stop such a channel; so its `send_nowait` always sends everything.

`mcp_trio.testing.check_channel` checks all of this for any transport.
"""

from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias, cast

import attrs
import trio

from mcp_trio._jsonrpc.channel_messages import Lost
from mcp_trio._jsonrpc.lines import Oversized

CLOSED_TEXT: Final = "this side of the channel was closed"
"""The text of the `trio.ClosedResourceError` of a closed channel."""

Received: TypeAlias = bytes | Oversized | Lost
"""An encoded message, the beginning of one over the size limit, or the loss of a response."""


class Channel(Protocol):
    """A connection that carries complete messages in both directions.

    Each `send`, and each `receive` that returns something, is a checkpoint of Trio, even if it does
    not have to wait.
    """

    async def send(self, messages: Sequence[bytes], /) -> None:
        """Return when all messages were passed to the system; wait while the peer does not read.

        An empty sequence sends nothing. If this is cancelled, some of the messages may have been
        sent. If one of them was sent in part, the channel may reject all calls but `aclose` from
        then on; it never continues after an incomplete message.

        Raises:
            trio.BrokenResourceError: The peer is gone.
            ConnectionLost: The peer is gone, and the channel knows the reason.
            trio.ClosedResourceError: This side was closed, before the call or during it.
        """
        ...

    async def receive(self) -> Sequence[Received]:
        """Return the messages that have arrived, at least one; an empty sequence at the end.

        A message over the size limit is returned as `Oversized`, and the channel continues after
        it. A request that will get no response, while others will, is returned as `Lost`. If this
        is cancelled, no message is lost: the next call returns it.

        Raises:
            ConnectionLost: The channel ended, and the reason is known.
            trio.ClosedResourceError: This side was closed, before the call or during it.
        """
        ...

    async def aclose(self) -> None:
        """Close this side, in bounded time, from any task and any number of times.

        Messages that were sent still reach a peer that reads them. If this is cancelled, it closes
        all the same.
        """
        ...


def text_with_cause(error: BaseException) -> str:
    """Return the text of an exception, with that of the system error that caused it, if any."""
    cause = error
    while (earlier := cause.__cause__ or cause.__context__) is not None:
        cause = earlier
    while isinstance(cause, BaseExceptionGroup):
        cause = cast("BaseExceptionGroup[BaseException]", cause).exceptions[0]
    text = str(error) or type(error).__name__
    if not isinstance(cause, OSError) or str(cause) in text:
        return text
    return f"{text} ({cause})"


# The approximate memory of an item beside its bytes. It counts towards the bound, so that a flood
# of tiny items is bounded, too.
_ITEM_BYTES: Final = 128


@attrs.define(eq=False, repr=False)
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
        self._bytes += _ITEM_BYTES
        if isinstance(item, bytes):
            self._bytes += len(item)
        elif isinstance(item, Oversized):
            self._bytes += len(item.prefix)
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
            raise trio.ClosedResourceError(CLOSED_TEXT)
        items, self._items = self._items, []
        self._bytes = 0
        self._emptied.unpark_all()
        return items

    def end(self) -> None:
        """Accept no more items; `take` still returns those that are queued."""
        self._is_ended = True
        self._filled.unpark_all()

    def close(self) -> None:
        """Drop all items, those to come, too, and end every wait in `take` and `room`."""
        self._is_closed = self._is_ended = True
        self._items.clear()
        self._filled.unpark_all()
        self._emptied.unpark_all()
