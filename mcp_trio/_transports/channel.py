"""`Channel`: the interface of transports.

A transport is any class with the three methods of `Channel`; nothing is inherited or registered.
Setting up the connection is the transport's own affair: it hands out a channel that is ready.
From then on each frame is the bytes of exactly one JSON-RPC message, without LF or CR, and frames
arrive whole, unchanged and in order. One task sends and one receives, at the same time.

Seven more members are used if they are there:

`transport: str`
    The name that recordings carry, such as "memory" or "stdio".

`send_nowait(frames: Sequence[bytes]) -> int`
    Takes as many whole frames as can go now, without waiting, and returns how many. A frame that
    was begun but not finished counts as taken: the channel finishes it before anything else in the
    next `send` or `send_nowait` (`send([])` finishes it and sends nothing more). Called only while
    no `send` runs; raises like `send`. With it, an answer needs no second task to leave.

`is_unfinished: bool`
    Comes with `send_nowait`: whether a frame was begun and not finished, so that a `send` is due.

`bytes_sent: int`
    Grows while a `send` makes progress, so that a slow peer is told from one that never reads.

`is_addressed: bool`
    Whether the frames that it sends are `RelatedMessage`s, so that each can take the way of the
    peer's request that it belongs to.

`reports_losses: bool`
    Whether it says of each request itself, by a `Lost`, that no answer will come, and whether it
    was sent: what is open when such a channel ends was not. Of others that is not known.

`deliver_to(take: Callable[[Sequence[Received]], None]) -> None`
    From now on each batch is given to `take` when it arrives, and nobody calls `receive`: then a
    session that rests needs no task. `take` neither waits nor raises. Nothing stops such a channel
    while answers fill a queue; so it has room for all of them, and its `send_nowait` takes
    everything.

`mcp_trio.testing.check_channel` verifies all of this for any transport.
"""

from collections.abc import Sequence
from typing import Protocol, TypeAlias, cast

from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._jsonrpc.messages import Lost

# --------------------
# What went wrong with a connection, in words.


def text_with_cause(error: BaseException) -> str:
    """What an exception says, and what the system said if it was wrapped again and again."""
    first = error
    while (earlier := first.__cause__ or first.__context__) is not None:
        first = earlier
    while isinstance(first, BaseExceptionGroup):
        first = cast("BaseExceptionGroup[BaseException]", first).exceptions[0]
    words = str(error) or type(error).__name__
    if not isinstance(first, OSError) or str(first) in words:
        return words
    return f"{words} ({first})"


Received: TypeAlias = bytes | Oversized | Lost
"""What a channel gives: a message, the begin of one that is too large, or the loss of an answer."""


class Channel(Protocol):
    """A connection that carries whole messages in both directions.

    Each `send`, and each `receive` that brings something, is a checkpoint of Trio, also where it
    need not wait.
    """

    async def send(self, frames: Sequence[bytes]) -> None:
        """Returns when all frames were handed to the system; waits while the peer does not read.

        No frames: nothing is sent. Cancelled: some of the frames have gone and some have not. If
        one is unfinished, the channel may refuse everything but `aclose` from then on; nothing
        stands behind what was torn.

        Raises:
            trio.BrokenResourceError: The peer is gone.
            ConnectionLost: The peer is gone, and the channel knows more about it.
            trio.ClosedResourceError: This side was closed, before the call or during it.
        """
        ...

    async def receive(self) -> Sequence[Received]:
        """The messages that arrived, at least one; empty when the peer closed.

        A frame over the limit comes as `Oversized`, and the channel goes on behind it. A request
        that will have no answer, though others will, comes as `Lost`. Cancelled: nothing is lost,
        the next call returns what this one would have.

        Raises:
            ConnectionLost: The channel ended, and a reason is known.
            trio.ClosedResourceError: This side was closed, before the call or during it.
        """
        ...

    async def aclose(self) -> None:
        """Closes this side, in bounded time, from any task and any number of times.

        Cancelled: closes all the same. What was sent and not yet read by the peer still arrives.
        """
        ...
