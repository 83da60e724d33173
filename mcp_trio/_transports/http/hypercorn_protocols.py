"""What hypercorn's protocols do that does not suit us, mended from outside; and what they keep.

HTTP/1.1 would go on as HTTP/2 in plain text for a client that asks for it by `Upgrade: h2c`. That
is obsolete (RFC 9113, 3.1), no host of ours promises it, and a proxy that has passed the wish on
without a thought would pass on all that follows without a look. A server may ignore it (RFC 9110,
7.8).

HTTP/2 forgets a stream that was answered, and fails if more comes for it. One that its client has
reset it remembers, and has room for a thousand of them; and one that it has refused by itself.
"""

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, cast

import h11
import trio
from h2.errors import ErrorCodes
from h2.events import RequestReceived
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H11Protocol

_H11Event: TypeAlias = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]

_UPGRADE: Final = b"upgrade"
_WEBSOCKET: Final = b"websocket"


def stay_in_http1(hypercorn: ProtocolWrapper, *, head_bytes_max: int) -> None:
    """To be called before anything was received; does nothing to HTTP/2."""
    if isinstance(hypercorn.protocol, H11Protocol):
        hypercorn.protocol.connection = _PlainConnection(
            h11.SERVER, max_incomplete_event_size=head_bytes_max
        )


class _PlainConnection(h11.Connection):
    """One whose requests ask for no other protocol than WebSocket."""

    def next_event(self) -> _H11Event:
        """See h11; which would hold back all that comes, the end too, until a wish was answered."""
        event = super().next_event()
        if isinstance(event, h11.Request) and _asks_for_another(event):
            self._cstate.pending_switch_proposals.clear()  # it has no other way to say no
            return _without_upgrade(event)
        return event


def _asks_for_another(request: h11.Request) -> bool:
    return dict(request.headers).get(_UPGRADE, _WEBSOCKET).lower() != _WEBSOCKET


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


def forgive(protocol: H2Protocol) -> None:
    """What comes for a stream that was answered is dropped, and a strange request ends its own."""
    if not isinstance(protocol.streams, _Streams):
        protocol.streams = _Streams(protocol.streams)
        hypercorn = cast("Any", protocol)
        create = hypercorn._create_stream  # noqa: SLF001  what fails is in there
        hypercorn._create_stream = functools.partial(  # noqa: SLF001  the same
            _create_stream, protocol, create
        )


async def _create_stream(
    protocol: H2Protocol,
    create: Callable[[RequestReceived], Awaitable[None]],
    request: RequestReceived,
) -> None:
    """Hypercorn ends the connection for a method or a path that is no ASCII."""
    if all(value.isascii() for name, value in request.headers if name.startswith(b":")):
        await create(request)
    else:
        protocol.connection.reset_stream(request.stream_id, ErrorCodes.PROTOCOL_ERROR)


def forget_refused(protocol: H2Protocol) -> None:
    """No application was run for these, which wanted to be WebSockets; so nobody closes them."""
    forgive(protocol)
    for number in [each for each, stream in protocol.streams.items() if stream.closed]:
        del protocol.streams[number]


def number_behind(send: object) -> int:
    """The number of the stream that hypercorn has made a `send` for."""
    return cast("int", cast("Any", send).__self__.stream_id)


async def end_unended(protocol: H2Protocol, number: int) -> None:
    """End a stream of which something is still to come, as far as hypercorn knows.

    Its task that sends then finds that nothing can be sent there, and forgets it.
    """
    buffer = protocol.stream_buffers.get(number)
    if buffer is None or buffer.complete:
        return
    if not _is_closed(protocol, number):
        protocol.connection.reset_stream(number, ErrorCodes.INTERNAL_ERROR)
    await buffer.close()
    protocol.priority.unblock(number)
    await protocol.has_data.set()


def has_unsent_ends(protocol: H2Protocol) -> bool:
    """Whether the last bytes of an answer have not left yet; those broken off have none."""
    return any(
        cast("Any", buffer)._complete and not _is_closed(protocol, number)  # noqa: SLF001  it tells
        for number, buffer in protocol.stream_buffers.items()  # that by no other
    )


def _is_closed(protocol: H2Protocol, number: int) -> bool:
    stream = protocol.connection.streams.get(number)
    return stream is None or stream.closed


def bytes_held_back(protocol: H2Protocol) -> int:
    """What waits for an HTTP/2 client to open its window."""
    return sum(len(each.buffer) for each in protocol.stream_buffers.values())
