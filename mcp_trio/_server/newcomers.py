"""Connections whose client says nothing that counts: they do not keep their places for ever.

A client that counts has said who it is, by a handshake or by a modern request. How long a head or a
handshake of HTTP takes is bounded elsewhere: this is what comes behind it, or in its place.
"""

import logging
from collections.abc import Callable
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

# However long somebody may be silent: those who have left are forgotten sooner.
_PAUSE_SECONDS_MAX: Final = 10.0


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


@attrs.frozen(eq=False)
class Newcomer:
    """A connection whose session is there, and since when."""

    channel: Channel
    session: Introduced
    came_at: float

    @property
    def is_waited_for(self) -> bool:
        """Whether it has not begun, and not ended either."""
        return not (self.session.has_begun or self.session.closing.is_set())

    def send_away(self, seconds: float) -> None:
        """It has had so long to begin."""
        text = f"the client has asked nothing for {seconds:g} s (first_request_seconds)"
        if isinstance(self.channel, Telling):  # the client is told why, and the session hears of it
            self.channel.fail(ConnectionLost(text), CloseCode.FAILED)
        else:
            logger.warning("a connection is closed: %s", text)
            self.session.shut("lost")


@attrs.frozen(eq=False)
class Welcomed:
    """A connection whose session is awaited; a `trio.TaskStatus` of that.

    The client's time begins with the session: before, nobody listens, and it may be somebody else
    who is slow, such as the server that a bridge connects to for this client.
    """

    _channel: Channel
    _wait_for: Callable[[Newcomer], object]

    def started(self, session: Introduced) -> None:
        """See `trio.TaskStatus`."""
        self._wait_for(Newcomer(self._channel, session, trio.current_time()))


@attrs.define(eq=False)
class Newcomers:
    """Those that have not begun yet, or are not known to have."""

    limits: Limits
    _waiting: list[Newcomer] = attrs.field(factory=list[Newcomer], init=False)

    def welcome(self, channel: Channel) -> Welcomed:
        """One more."""
        return Welcomed(channel, self._wait_for)

    def _wait_for(self, newcomer: Newcomer) -> None:
        self._waiting.append(newcomer)

    async def see_off(self) -> NoReturn:
        """Send away who has not begun for `first_request_seconds`.

        One look at all of them every now and then costs less than a timer for each.
        """
        seconds = self.limits.first_request_seconds
        while True:
            await trio.sleep(min(seconds / _LOOKS, _PAUSE_SECONDS_MAX))
            since = trio.current_time() - seconds
            waiting = [each for each in self._waiting if each.is_waited_for]
            for each in waiting:
                if each.came_at <= since:
                    each.send_away(seconds)
            self._waiting = [each for each in waiting if each.came_at > since]
