"""What a session asks of the side above it: a server's registry, a client's callbacks."""

from typing import Any, Protocol

import msgspec

from mcp_trio._engine.handling import Handling
from mcp_trio._protocol import Method


class Application(Protocol):
    """The handlers of one side. The session calls it in tasks of its own, never in the reader."""

    async def handle(self, handling: Handling) -> msgspec.Struct | msgspec.Raw:
        """The result of a request; runs in the request's own task and cancel scope.

        A `RequestError` is answered as it is; any other exception is logged and answered as an
        internal error, without its text.
        """
        ...

    async def notified(self, method: Method, params: Any) -> None:
        """A notification arrived; one at a time, in order. An exception is logged."""
        ...
