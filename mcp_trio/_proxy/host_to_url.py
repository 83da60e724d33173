"""A client of one connection, such as a host that speaks stdio, and a server at a URL of HTTP.

The client's frames are the messages of one session, and our client's channel says them over HTTP:
in a session or each for itself, as the message has it, with the headers that are due. What goes
wrong with one request is its answer, an error; a server that has ended the session ends us, as the
exit of a server over stdio would. What a line over stdio can be and no POST can:

- A batch goes as one POST for each of its messages; the answers come one by one.
- What is no message goes nowhere: if it may be a request, an error answers it.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import attrs
import trio

from mcp_trio._errors import INVALID_REQUEST, SERVER_BUSY
from mcp_trio._journal.messages import messages_in
from mcp_trio._protocol.methods import INITIALIZE
from mcp_trio._proxy.joined import Id, Joined
from mcp_trio._transports.channel import Received
from mcp_trio._wire import (
    ErrorResponse,
    Malformed,
    Message,
    Notification,
    Oversized,
    Request,
    Response,
)


@attrs.define(kw_only=True, eq=False)
class UrlProxy(Joined):
    """The same, for a server that is told each message by itself."""

    async def _hear(self, item: Received) -> None:
        if not isinstance(item, bytes):
            await super()._hear(item)
            return
        self.journal.counts["in_bytes"] += len(item)
        messages = self.journal.passes("in", item)
        self.journal.flush()
        frames = [item] if len(messages) == 1 else messages_in(item)
        for message, frame in zip(messages, frames, strict=True):
            await _TO_SERVER[type(message)](self, message, frame)

    async def ask(self, request: Request, frame: bytes) -> None:
        """Pass a request; one too many, or one that could be taken for an open one, is refused."""
        if request.id in self._open:
            text = f"an unfinished request has the same id: {request.id!r}"
            await self._answer(request.id, INVALID_REQUEST, text)
        elif len(self._open) >= self.limits.requests_queued_max:
            text = "too many requests wait for answers (requests_queued_max)"
            await self._answer(request.id, SERVER_BUSY, text)
        else:
            self._note(request)
            await self.server.send([frame])
            if request.method == INITIALIZE:
                await self._session_begun(request.id)

    async def _session_begun(self, request_id: Id) -> None:
        """What the client says next needs the id of its session, which comes with the answer."""
        with trio.move_on_after(self.limits.initialize_seconds):
            while request_id in self._open:
                await self._settled.park()

    async def tell(self, message: Notification, frame: bytes) -> None:
        """Pass a notification; what it cancels is not waited for."""
        await self.server.send([frame])
        self._note(message)

    async def reply(self, _: Response | ErrorResponse, frame: bytes) -> None:
        """Pass what the client answers to the server."""
        await self.server.send([frame])

    async def _drop(self, item: Oversized) -> None:
        """Its request is lost, which comes by itself."""


_TO_SERVER: Final[Mapping[type[Message], Callable[..., Awaitable[None]]]] = {
    Request: UrlProxy.ask,
    Notification: UrlProxy.tell,
    Response: UrlProxy.reply,
    ErrorResponse: UrlProxy.reply,
    Malformed: UrlProxy.refuse,
}
