"""A message stream that notes request ids, for the Python SDK 1.

That SDK sends no cancellation when a request's task is cancelled, and does not expose its id.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import anyio
from mcp import types
from mcp.shared.message import SessionMessage
from mcp.shared.session import BaseSession


class RequestIdStream:
    """A stream that keeps the id of the last request of each method."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._ids: dict[str, types.RequestId] = {}

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stream.__aexit__(*error)

    async def send(self, message: SessionMessage) -> None:
        if isinstance(request := message.message.root, types.JSONRPCRequest):
            self._ids[request.method] = request.id
        await self._stream.send(message)

    @asynccontextmanager
    async def cancelling(self, session: BaseSession, method: str) -> AsyncIterator[None]:
        """Cancel the last request of this method at the peer if the block is cancelled."""
        try:
            yield
        except anyio.get_cancelled_exc_class():
            params = types.CancelledNotificationParams(requestId=self._ids[method])
            with anyio.CancelScope(shield=True):
                await session.send_notification(types.CancelledNotification(params=params))
            raise
