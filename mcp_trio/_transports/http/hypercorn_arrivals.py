"""What has come for the application, and over HTTP/2, how much more may come.

Hypercorn lets a client send more as soon as the application has room for what has come, and reads
nothing before. So the streams of an HTTP/2 connection wait for the one that nobody reads; and where
that sends before it reads, the news that its client has made room stands behind what it does not
read, for ever. Here the connection may go on at once, and a stream when the application has taken
all that waited: what waits of a body is at most one window, of messages `_BESIDE_OTHERS_MAX`.
"""

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, cast

import attrs
from h2.connection import H2Connection
from h2.exceptions import ProtocolError

from mcp_trio._transports.bell import Bell
from mcp_trio._transports.http.asgi import Message

Flush: TypeAlias = Callable[[bytes], Awaitable[None]]

_ALONE_MAX: Final = 10
_BESIDE_OTHERS_MAX: Final = 1024
_DISCONNECTS: Final = frozenset({"http.disconnect", "websocket.disconnect"})


@attrs.define(eq=False)
class Arrivals:
    """What has come for one run of the application, which takes it one after the other.

    Who brings more than the application takes, by `waiting_max` messages, waits for it, but not for
    one that has returned.
    """

    waiting_max: int = _ALONE_MAX
    _waiting: deque[Message] = attrs.field(factory=deque[Message], init=False)
    _news: Bell = attrs.field(factory=Bell, init=False)
    _room: Bell = attrs.field(factory=Bell, init=False)
    _is_over: bool = attrs.field(default=False, init=False)

    def is_waiting(self) -> bool:
        """Whether `take` returns at once."""
        return bool(self._waiting)

    async def put(self, message: Message) -> None:
        """One more; that the client is gone is said without waiting."""
        while len(self._waiting) >= self.waiting_max and message["type"] not in _DISCONNECTS:
            if self._is_over:
                return
            await self._room.wait()
        self._waiting.append(message)
        self._news.ring()

    async def take(self) -> Message:
        """The next one."""
        while not self._waiting:
            await self._news.wait()
        self._room.ring()
        return self._waiting.popleft()

    def end(self) -> None:
        """Nobody takes any more."""
        self._is_over = True
        self._room.ring()


@attrs.define(kw_only=True, eq=False)
class StreamArrivals(Arrivals):
    """What has come on one stream of HTTP/2, of whose window `held_bytes` are not opened again."""

    windows: "Windows"
    number: int
    held_bytes: int = attrs.field(default=0, init=False)

    async def take(self) -> Message:
        """The next one; the window is opened when no other waits."""
        message = await super().take()
        if self.held_bytes and not self.is_waiting():
            opened, self.held_bytes = self.held_bytes, 0
            await self.windows.open_again(opened, self.number)
        return message

    def end(self) -> None:
        """Nobody takes any more."""
        super().end()
        self.windows.forget(self.number)


@attrs.define(eq=False)
class Windows:
    """The windows of one HTTP/2 connection, which are opened in hypercorn's place."""

    _http: H2Connection
    _flush: Flush
    _acknowledge: Callable[[int, int], None] = attrs.field(init=False)
    _arrivals: dict[int, StreamArrivals] = attrs.field(
        factory=dict[int, StreamArrivals], init=False
    )

    def __attrs_post_init__(self) -> None:
        self._acknowledge = self._http.acknowledge_received_data
        cast("Any", self._http).acknowledge_received_data = self.acknowledge

    def begin(self, number: int) -> StreamArrivals:
        """What comes on a stream, until its end."""
        arrivals = StreamArrivals(waiting_max=_BESIDE_OTHERS_MAX, windows=self, number=number)
        self._arrivals[number] = arrivals
        return arrivals

    def forget(self, number: int) -> None:
        """Nobody takes any more of a stream."""
        del self._arrivals[number]

    def acknowledge(self, size: int, number: int) -> None:
        """Hypercorn has given away `size` bytes that came on a stream."""
        arrivals = self._arrivals.get(number)
        if arrivals is None or not arrivals.is_waiting():
            self._acknowledge(size, number)
        elif size:
            arrivals.held_bytes += size
            self._open(size, None)

    async def open_again(self, size: int, number: int) -> None:
        """A stream has room for `size` bytes more; its client is told."""
        self._open(size, number)
        await self._flush(self._http.data_to_send())

    def _open(self, size: int, number: int | None) -> None:
        with contextlib.suppress(ProtocolError):  # what is over needs none
            self._http.increment_flow_control_window(size, number)
