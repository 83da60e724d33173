"""Additions to hypercorn's WebSockets: the peer's close code, and a bound on received messages.

hypercorn closes the connection for a too large message, but keeps buffering the data that follow.
It reports every close as an abnormal one. And it would negotiate compression, with which a small
frame can become a large message, and which fails in wsproto when a ping arrives between two frames
of a message (wsproto issue 205); so compression is switched off here.
"""

from collections.abc import Callable, Generator
from typing import Any, Final, cast

import attrs
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.ws_stream import WSStream
from wsproto.connection import ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Event, TextMessage

from mcp_trio._transports.asgi import Message, Receive, Scope, Send
from mcp_trio.limits import Limits

_CLOSED_BY_PEER: Final = frozenset({ConnectionState.REMOTE_CLOSING, ConnectionState.CLOSED})


def stream_of(protocol: H11Protocol | H2Protocol, scope: Scope) -> WSStream | None:
    """Return hypercorn's WebSocket stream of a scope, if it has one."""
    streams = [protocol.stream] if isinstance(protocol, H11Protocol) else protocol.streams.values()
    found = (each for each in streams if isinstance(each, WSStream) and each.scope is scope)
    return next(found, None)


@attrs.define(eq=False)
class BoundedWebSocket:
    """A wrapper of one hypercorn WebSocket that bounds its buffer and reports its close code."""

    _stream: WSStream
    _limits: Limits
    _close_event: CloseConnection | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._stream.buffer = cast("Any", BoundedBuffer(self._limits.messages.bytes_max))
        self._stream.handshake.extensions = None  # no compression

    def sending(self, send: Send) -> Send:
        """Wrap `send`: observe the WebSocket's events from the accept message on."""

        async def send_and_observe(message: Message) -> None:
            await send(message)
            if message["type"] == "websocket.accept":
                self._observe_events()

        return send_and_observe

    def _observe_events(self) -> None:
        connection = self._stream.connection
        events: Callable[[], Generator[Event]] = connection.events

        def noted() -> Generator[Event]:
            for event in events():
                if isinstance(event, CloseConnection) and connection.state in _CLOSED_BY_PEER:
                    self._close_event = event
                yield event

        cast("Any", connection).events = noted

    def receiving(self, receive: Receive) -> Receive:
        """Wrap `receive`: add the peer's close code and reason to the disconnect message."""

        async def receive_with_close_code() -> Message:
            message = await receive()
            if message["type"] == "websocket.disconnect" and self._close_event is not None:
                return {
                    **message,
                    "code": int(self._close_event.code),
                    "reason": self._close_event.reason,
                }
            return message

        return receive_with_close_code


@attrs.define(eq=False)
class BoundedBuffer:
    """The buffer of a message's pieces, in place of hypercorn's.

    Once the message is longer than `bytes_max`, further pieces are dropped, so that the receiver
    gets enough of the message to see that it is too long.
    """

    bytes_max: int
    _pieces: list[str] = attrs.field(factory=list[str], init=False)
    _chars: int = attrs.field(default=0, init=False)
    _is_binary: bool = attrs.field(default=False, init=False)

    def extend(self, event: TextMessage | BytesMessage) -> None:
        """Append a piece."""
        if isinstance(event, BytesMessage):
            self._is_binary = True
        elif self._chars <= self.bytes_max:
            self._pieces.append(event.data)
            self._chars += len(event.data)

    def to_message(self) -> Message:
        """Return the ASGI message."""
        if self._is_binary:
            return {"type": "websocket.receive", "bytes": b"", "text": None}
        return {"type": "websocket.receive", "bytes": None, "text": "".join(self._pieces)}

    def clear(self) -> None:
        """Empty the buffer for the next message."""
        self._pieces.clear()
        self._chars, self._is_binary = 0, False
