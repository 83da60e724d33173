"""Connections whose client says nothing that counts: they do not keep their places for ever.

A client that counts has said who it is, by a handshake or by a modern request. How long a head or a
handshake of HTTP takes is bounded elsewhere: this is what comes behind it, or in its place.
"""

import logging
from typing import Final, NoReturn, Protocol, runtime_checkable

import attrs
import trio

from mcp_trio._errors import ConnectionLost
from mcp_trio._limits import Limits
from mcp_trio._protocol.websocket import CloseCode
from mcp_trio._transports.bell import Milestone
from mcp_trio._transports.channel import Channel

logger = logging.getLogger("mcp_trio")

_LOOKS: Final = 8


class Introduced(Protocol):
    """A session, as far as it is needed here; `closing` is set when it begins to end."""

    closing: Milestone

    @property
    def has_begun(self) -> bool:
        """Whether the client has said who it is."""
        ...

    def shut(self, cause: str) -> None:
        """Begin to end it; see `Session.shut`."""
        ...


@runtime_checkable
class Telling(Protocol):
    """A channel that can tell its client why it ends, as a WebSocket can."""

    def fail(self, loss: ConnectionLost, code: CloseCode) -> None:
        """End it; see `WebSocketChannel.fail`."""
        ...


@attrs.define(eq=False)
class Newcomer:
    """A connection, and its session once that is there; a `trio.TaskStatus` of it."""

    channel: Channel
    came_at: float
    session: Introduced | None = attrs.field(default=None, init=False)

    def started(self, session: Introduced) -> None:
        """See `trio.TaskStatus`."""
        self.session = session

    @property
    def is_waited_for(self) -> bool:
        """Whether it has not begun, and not ended either."""
        session = self.session
        return session is None or not (session.has_begun or session.closing.is_set())

    def send_away(self, seconds: float) -> None:
        """It has had so long to begin."""
        text = f"the client has asked nothing for {seconds:g} s (first_request_seconds)"
        if isinstance(self.channel, Telling):  # the client is told why, and the session hears of it
            self.channel.fail(ConnectionLost(text), CloseCode.FAILED)
        elif self.session is not None:
            logger.warning("a connection is closed: %s", text)
            self.session.shut("lost")


@attrs.define(eq=False)
class Newcomers:
    """Those that have not begun yet, or are not known to have."""

    limits: Limits
    _waiting: list[Newcomer] = attrs.field(factory=list[Newcomer], init=False)

    def welcome(self, channel: Channel) -> Newcomer:
        """One more."""
        newcomer = Newcomer(channel, trio.current_time())
        self._waiting.append(newcomer)
        return newcomer

    async def see_off(self) -> NoReturn:
        """Send away who has not begun for `first_request_seconds`.

        One look at all of them every now and then costs less than a timer for each.
        """
        seconds = self.limits.first_request_seconds
        while True:
            await trio.sleep(seconds / _LOOKS)
            since = trio.current_time() - seconds
            waiting = [each for each in self._waiting if each.is_waited_for]
            for each in waiting:
                if each.came_at <= since:
                    each.send_away(seconds)
            self._waiting = [each for each in waiting if each.came_at > since]
