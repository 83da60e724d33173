"""`Channel`: the interface of transports.

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
    raises the errors of `send`. With it, an answer needs no second task.

`is_unfinished: bool`
    Comes with `send_nowait`: whether a part of a message is left to be sent.

`bytes_sent: int`
    Grows while a `send` makes progress, which tells a slow peer from one that does not read.

`is_addressed: bool`
    Whether messages to send have to be `RelatedMessage`s, so that each can go to the request of
    the peer that it belongs to.

`reports_losses: bool`
    Whether the channel reports each request that will get no answer, as `Lost`, and whether it was
    sent. When such a channel ends, requests without a report were not sent. For other channels
    that is unknown.

`deliver_to(take: Callable[[Sequence[Received]], None]) -> None`
    Makes the channel call `take` with each batch as it arrives, in place of `receive`, so that an
    idle session needs no task. `take` neither waits nor raises. A full queue of answers does not
    stop such a channel; so its `send_nowait` always sends everything.

`mcp_trio.testing.check_channel` checks all of this for any transport.
"""

from collections.abc import Sequence
from typing import Protocol, TypeAlias, cast

from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._jsonrpc.messages import Lost

Received: TypeAlias = bytes | Oversized | Lost
"""An encoded message, the beginning of one over the size limit, or the loss of an answer."""


class Channel(Protocol):
    """A connection that carries complete messages in both directions.

    Each `send`, and each `receive` that returns something, is a checkpoint of Trio, even if it does
    not have to wait.
    """

    async def send(self, messages: Sequence[bytes], /) -> None:
        """Return when all messages were passed to the system; wait while the peer does not read.

        An empty sequence sends nothing. Cancelled: some of the messages were sent. If one of them
        was sent in part, the channel may reject all calls but `aclose` from then on; it never
        continues after a torn message.

        Raises:
            trio.BrokenResourceError: The peer is gone.
            ConnectionLost: The peer is gone, and the channel knows the reason.
            trio.ClosedResourceError: This side was closed, before the call or during it.
        """
        ...

    async def receive(self) -> Sequence[Received]:
        """Return the messages that have arrived, at least one; an empty sequence at the end.

        A message over the size limit is returned as `Oversized`, and the channel continues after
        it. A request that will get no answer, while others will, is returned as `Lost`. Cancelled:
        no message is lost, the next call returns it.

        Raises:
            ConnectionLost: The channel ended, and the reason is known.
            trio.ClosedResourceError: This side was closed, before the call or during it.
        """
        ...

    async def aclose(self) -> None:
        """Close this side, in bounded time, from any task and any number of times.

        What was sent still reaches a peer that reads it. Cancelled: closes all the same.
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
