"""What hypercorn's protocols do that does not suit us, mended from outside; and what they keep.

HTTP/1.1 would go on as HTTP/2 in plain text for a client that asks for it by `Upgrade: h2c`. That
is obsolete (RFC 9113, 3.1), no host of ours promises it, and a proxy that has passed the wish on
without a thought would pass on all that follows without a look. A server may ignore it (RFC 9110,
7.8).

HTTP/2 forgets a stream that was answered, and fails if more comes for it.
"""

from typing import Any, Final, TypeAlias, cast

import h11
import trio
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H11Protocol

_H11Event: TypeAlias = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]

_UPGRADE: Final = b"upgrade"
_H2C: Final = b"h2c"


def stay_in_http1(hypercorn: ProtocolWrapper, *, head_bytes_max: int) -> None:
    """To be called before anything was received; does nothing to HTTP/2."""
    if isinstance(hypercorn.protocol, H11Protocol):
        hypercorn.protocol.connection = _PlainConnection(
            h11.SERVER, max_incomplete_event_size=head_bytes_max
        )


class _PlainConnection(h11.Connection):
    """One whose requests ask for no HTTP/2."""

    def next_event(self) -> _H11Event:
        """See h11."""
        event = super().next_event()
        if isinstance(event, h11.Request) and _asks_for_http2(event):
            return _without_upgrade(event)
        return event


def _asks_for_http2(request: h11.Request) -> bool:
    return dict(request.headers).get(_UPGRADE, b"").lower() == _H2C


def _without_upgrade(request: h11.Request) -> h11.Request:
    fields = [field for field in request.headers.raw_items() if field[0].lower() != _UPGRADE]
    return h11.Request(
        method=request.method,
        target=request.target,
        headers=fields,
        http_version=request.http_version,
    )


class _Answered:
    """A stream of HTTP/2 that was answered before all of its body had come."""

    async def handle(self, _event: object) -> None:
        """Nobody waits for it."""
        await trio.lowlevel.checkpoint()


class _Streams(dict[int, Any]):
    """Hypercorn's, which has something to take what comes too late."""

    def __missing__(self, _number: int) -> _Answered:
        return _Answered()


def forgive_late_data(protocol: H2Protocol) -> None:
    """What comes for a stream that was answered is dropped."""
    if not isinstance(protocol.streams, _Streams):
        protocol.streams = _Streams(protocol.streams)


def has_unsent_ends(protocol: H2Protocol) -> bool:
    """Whether the last bytes of an answer have not left yet; those broken off have none."""
    buffers = [cast("Any", each) for each in protocol.stream_buffers.values()]
    return any(each._complete for each in buffers)  # noqa: SLF001  hypercorn tells it by no other


def bytes_held_back(protocol: H2Protocol) -> int:
    """What waits for an HTTP/2 client to open its window."""
    return sum(len(each.buffer) for each in protocol.stream_buffers.values())
