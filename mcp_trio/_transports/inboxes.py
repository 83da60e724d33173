"""What the streams of a client have heard, and its session has not yet taken."""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import attrs
import trio

from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._jsonrpc.messages import Lost
from mcp_trio._transports.channel import Received
from mcp_trio._transports.concurrency import Wakeup

# --------------------
# What HTTP requests bring to a session.


Take: TypeAlias = Callable[[Sequence[Received]], None]


@attrs.define(eq=False)
class RequestInbox:
    """A channel's receiving side: what is put there is taken at once, or waits to be received."""

    _take: Take | None = attrs.field(default=None, init=False)
    _waiting: tuple[Received, ...] = attrs.field(default=(), init=False)
    _has_eof: bool = attrs.field(default=False, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)
    _news: Wakeup = attrs.field(factory=Wakeup, init=False)

    def deliver_to(self, take: Take) -> None:
        """See `Channel`; what waits is taken now."""
        self._take = take
        waiting, self._waiting = self._waiting, ()
        if waiting:
            take(waiting)
        if self._has_eof:
            take([])

    def put(self, frame: bytes) -> None:
        """One more."""
        if self._is_closed:
            return
        if self._take is not None:
            self._take([frame])
        else:
            self._waiting = (*self._waiting, frame)
            self._news.ring()

    def end(self) -> None:
        """The peer sends no more."""
        self._has_eof = True
        self._news.ring()
        if self._take is not None:
            self._take([])

    def close(self) -> None:
        """Nothing is taken any more; who took it learns that."""
        self._is_closed = True
        self.end()

    async def receive(self) -> Sequence[Received]:
        """See `Channel.receive`."""
        await trio.lowlevel.checkpoint()
        while not (self._waiting or self._has_eof or self._is_closed):
            await self._news.wait()
        if self._is_closed:
            raise trio.ClosedResourceError
        taken, self._waiting = self._waiting, ()
        return taken


Item: TypeAlias = bytes | Oversized | Lost

# What an item takes besides its bytes, about: a flood of small ones must not be cheaper.
_ITEM_BYTES: Final = 128


@attrs.define(eq=False)
class ReceivedQueue:
    """Many streams put in, one session takes out; never an item is lost on the way.

    Putting never waits, so that no cancellation comes between hearing and keeping. Whoever has put
    something waits for `room` before it reads more: at most one message a stream is over the bound.
    """

    bytes_max: int
    _items: list[Item] = attrs.field(factory=list[Item], init=False)
    _bytes: int = attrs.field(default=0, init=False)
    _is_ended: bool = attrs.field(default=False, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)
    _filled: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _emptied: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def put(self, item: Item) -> None:
        """Keep an item for `take`; what comes behind the end is dropped."""
        if self._is_ended:
            return
        self._items.append(item)
        self._bytes += _size(item)
        self._filled.unpark_all()

    async def room(self) -> None:
        """Return when something more may be read."""
        while self._bytes >= self.bytes_max and not self._is_closed:
            await self._emptied.park()

    async def take(self) -> list[Item]:
        """All that is there, at least one item; empty at the end.

        The end is told at once, without letting another task run: whoever hears that a request is
        lost with its session then finds that ended already.

        Cancelled: nothing is lost.

        Raises:
            trio.ClosedResourceError: It was closed, before or meanwhile.
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
        """Nothing more will come; what is there can still be taken."""
        self._is_ended = True
        self._filled.unpark_all()

    def close(self) -> None:
        """Nobody will take anything any more."""
        self._is_closed = True
        self._items.clear()
        self._filled.unpark_all()
        self._emptied.unpark_all()


def _size(item: Item) -> int:
    if isinstance(item, bytes):
        return len(item) + _ITEM_BYTES
    return _ITEM_BYTES if isinstance(item, Lost) else len(item.head) + _ITEM_BYTES
