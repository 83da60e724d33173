"""What a session asks of the side above it: a server's registry, a client's callbacks."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from mcp_trio._engine.handling import Handling, HandlingSession
from mcp_trio._protocol import Method
from mcp_trio._transports.bell import Milestone


class AccompaniedSession(HandlingSession, Protocol):
    """The session, as far as its application needs it outside of requests."""

    @property
    def initialized(self) -> Milestone:
        """Set when the handshake is complete on both sides."""
        ...

    def act(self, actor: Callable[[], Awaitable[None]]) -> None:
        """Begin a task that is cancelled when the session ends; what it raises is logged."""
        ...


class Application(Protocol):
    """The handlers of one side. The session calls it in tasks of its own, never in the reader."""

    def handle(self, handling: Handling) -> Awaitable[msgspec.Struct | msgspec.Raw]:
        """The result of a request; runs in the request's own task and cancel scope.

        A `RequestError` is answered as it is, a `CapabilityMissing` as its revision says that, a
        `ToolError` as an internal error with its text; any other exception is logged and answered
        as an internal error without.
        """
        ...

    def hears(self, method: Method) -> bool:
        """Whether `notified` would do anything with a notification of this method."""
        ...

    async def notified(self, method: Method, params: Any) -> None:
        """A notification arrived; one at a time, in order. An exception is logged.

        It acts in no lane, but when it begins is recorded.
        """
        ...

    def accompany(self, session: AccompaniedSession) -> None:
        """The session begins; called once, before anything arrives, and never raises.

        What the application does by itself while the session lives is an actor, see `act`. What
        that sends has to wait for `initialized`, and for the turn of a lane of its own.
        """
        ...

    def depart(self) -> None:
        """The session is wound down; its actors are cancelled now. Never raises."""
        ...
