"""What hypercorn's WebSockets lack: the peer's close code, and a bound to what they keep.

Hypercorn closes the connection for a message that is too large, goes on keeping what comes behind
it, and tells every end as one that was broken off. It would agree to compression, too, by which a
small frame becomes a large message, and whose library loses its place when a ping comes in between
two frames of one (wsproto#205).
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
    """The stream that hypercorn has made for a scope, if it is one of a WebSocket."""
    streams = [protocol.stream] if isinstance(protocol, H11Protocol) else protocol.streams.values()
    found = (each for each in streams if isinstance(each, WSStream) and each.scope is scope)
    return next(found, None)


@attrs.define(eq=False)
class ToldWebSocket:
    """A WebSocket of hypercorn, of which more is told."""

    _stream: WSStream
    _limits: Limits
    _said: CloseConnection | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._stream.buffer = cast("Any", BoundedBuffer(self._limits.messages.bytes_max))
        self._stream.handshake.extensions = None  # whatever the client offers

    def sending(self, send: Send) -> Send:
        """`send`, which looks at the connection that is made when it accepts."""

        async def send_and_look(message: Message) -> None:
            await send(message)
            if message["type"] == "websocket.accept":
                self._look()

        return send_and_look

    def _look(self) -> None:
        connection = self._stream.connection
        events: Callable[[], Generator[Event]] = connection.events

        def noted() -> Generator[Event]:
            for event in events():
                if isinstance(event, CloseConnection) and connection.state in _CLOSED_BY_PEER:
                    self._said = event
                yield event

        cast("Any", connection).events = noted

    def receiving(self, receive: Receive) -> Receive:
        """`receive`, which tells what the peer has said at the end."""

        async def receive_told() -> Message:
            message = await receive()
            if message["type"] == "websocket.disconnect" and self._said is not None:
                return {**message, "code": int(self._said.code), "reason": self._said.reason}
            return message

        return receive_told


@attrs.define(eq=False)
class BoundedBuffer:
    """The pieces of a message, in the place of hypercorn's; what is over the limit is dropped.

    Enough is kept to see that it was.
    """

    bytes_max: int
    _pieces: list[str] = attrs.field(factory=list[str], init=False)
    _chars: int = attrs.field(default=0, init=False)
    _is_binary: bool = attrs.field(default=False, init=False)

    def extend(self, event: TextMessage | BytesMessage) -> None:
        """One more piece."""
        if isinstance(event, BytesMessage):
            self._is_binary = True
        elif self._chars <= self.bytes_max:
            self._pieces.append(event.data)
            self._chars += len(event.data)

    def to_message(self) -> Message:
        """The message, as ASGI has it."""
        if self._is_binary:
            return {"type": "websocket.receive", "bytes": b"", "text": None}
        return {"type": "websocket.receive", "bytes": None, "text": "".join(self._pieces)}

    def clear(self) -> None:
        """It was taken."""
        self._pieces.clear()
        self._chars, self._is_binary = 0, False
