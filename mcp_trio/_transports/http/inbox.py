"""What HTTP requests bring to a session."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs
import trio

from mcp_trio._transports.bell import Bell
from mcp_trio._transports.channel import Received

Take: TypeAlias = Callable[[Sequence[Received]], None]


@attrs.define(eq=False)
class Inbox:
    """A channel's receiving side: what is put there is taken at once, or waits to be received."""

    _take: Take | None = attrs.field(default=None, init=False)
    _waiting: tuple[Received, ...] = attrs.field(default=(), init=False)
    _has_eof: bool = attrs.field(default=False, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)
    _news: Bell = attrs.field(factory=Bell, init=False)

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
