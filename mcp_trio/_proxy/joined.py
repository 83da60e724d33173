"""A client's channel and a server's, joined: each frame of one goes to the other as it is.

One frame at a time and in each direction by itself: the next is received when the last was taken,
so whoever reads slowly slows the other one down. Whichever side ends first ends both, and says to
the other what is known of the reason, if its transport has words for that.
"""

import logging
from contextlib import suppress
from typing import Final

import attrs
import trio

from mcp_trio._errors import INVALID_REQUEST, SERVER_BUSY, ConnectionLost
from mcp_trio._journal.conversation import CANCELLED, LISTEN, reference_of
from mcp_trio._limits import Limits
from mcp_trio._protocol import whose_large_answer
from mcp_trio._protocol.websocket import CloseCode
from mcp_trio._proxy.journal import FrameJournal
from mcp_trio._transports.bell import Milestone
from mcp_trio._transports.channel import Channel, Received
from mcp_trio._transports.stdio_client import ProcessChannel
from mcp_trio._transports.stdio_server import wait_parent_death
from mcp_trio._transports.websocket.channel import WebSocketChannel
from mcp_trio._wire import (
    ErrorResponse,
    Lost,
    Malformed,
    Message,
    Notification,
    Oversized,
    Request,
    Response,
    malformed,
)

logger = logging.getLogger("mcp_trio")

ENDED: Final = 0
LOST: Final = 1

Id = int | str
_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


def part(channel: Channel, loss: ConnectionLost | None) -> None:
    """Says why a channel that is closed next is closed, where that can be said."""
    if loss is not None and isinstance(channel, WebSocketChannel):
        channel.fail(ConnectionLost(loss.reason), CloseCode.FAILED)


async def carry(channel: Channel, frame: bytes) -> None:
    """Sends a frame; what is no UTF-8 is no message, and no text message can carry it."""
    with suppress(UnicodeDecodeError):
        await channel.send([frame])


def exit_status_of(server: Channel) -> int | None:
    """How a process has ended; None is no process, or one that has not."""
    return server.exit_status if isinstance(server, ProcessChannel) else None


@attrs.define(kw_only=True, eq=False)
class Joined:
    """Owns both channels, until one of both sides has ended; the journal is its caller's.

    The client `has_begun` when it has asked something; `closing` is set when the end has come.
    """

    client: Channel
    server: Channel
    journal: FrameJournal
    limits: Limits
    has_begun: bool = attrs.field(default=False, init=False)
    closing: Milestone = attrs.field(factory=Milestone, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _open: dict[Id, str] = attrs.field(factory=dict[Id, str], init=False)
    _settled: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _saying: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _loss: ConnectionLost | None = attrs.field(default=None, init=False)

    async def run(self, *, parent_pid: int | None = None) -> int:
        """Passes both ways until one side ends, or the parent; returns the exit status.

        Behind the client's last word, open requests have `drain_seconds` to be answered.
        """
        status = LOST
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    if parent_pid is not None:
                        nursery.start_soon(self._watch_parent, parent_pid)
                    nursery.start_soon(self._pass_answers)
                    if await self._pass_requests():
                        status = ENDED
                        with trio.move_on_after(self.limits.drain_seconds):
                            await self._all_settled()
                    nursery.cancel_scope.cancel()
        finally:
            self.closing.set()
            with trio.CancelScope(shield=True):
                await self._close()
        return status

    def shut(self, cause: str) -> None:  # noqa: ARG002  there is but one when this is called
        """Ends both sides: one of them is lost."""
        self.journal.shut("lost")
        self._scope.cancel()

    async def _watch_parent(self, parent_pid: int) -> None:
        await wait_parent_death(parent_pid=parent_pid, limits=self.limits)
        self.shut("lost")

    async def _close(self) -> None:
        """Both at once: each may take a while."""
        if self._loss is not None:
            logger.warning("%s", self._loss.reason)
        async with trio.open_nursery() as nursery:
            for channel in (self.client, self.server):
                part(channel, self._loss)
                nursery.start_soon(channel.aclose)

    def _lose(self, loss: ConnectionLost) -> None:
        """The first reason counts."""
        self._loss = self._loss or loss

    # From the client.

    async def _pass_requests(self) -> bool:
        """Whether the client has said all that it had to say; else one of both sides is gone."""
        try:
            while received := await self.client.receive():
                for item in received:
                    await self._hear(item)
        except ConnectionLost as loss:
            self._lose(loss)
        except _GONE:
            pass
        else:
            self.journal.shut("eof")
            return True
        self.journal.shut("lost")
        return False

    async def _hear(self, item: Received) -> None:
        if isinstance(item, Oversized):
            self.journal.discards("in", item)
            text = f"larger than frame_bytes_max ({self.limits.frame_bytes_max})"
            await self.refuse(malformed(item.head, INVALID_REQUEST, text))
            return
        assert isinstance(item, bytes)
        self.journal.counts["in_bytes"] += len(item)
        messages = self.journal.passes("in", item)
        self.journal.flush()
        for message in messages:
            self._note(message)
        await carry(self.server, item)

    def _note(self, message: Message) -> None:
        """Which requests are waited for at the end."""
        self.has_begun = self.has_begun or isinstance(message, Request)
        if isinstance(message, Request) and len(self._open) < self.limits.requests_queued_max:
            self._open[message.id] = message.method
        elif isinstance(message, Notification) and message.method == CANCELLED:
            self._settle(reference_of(message))

    async def refuse(self, message: Malformed, _: bytes = b"") -> None:
        """Answer what is no message, if it may wait for that."""
        if message.is_request and message.id is not None:
            await self._answer(message.id, message.code, message.message)

    # From the server.

    async def _pass_answers(self) -> None:
        try:
            with suppress(*_GONE):
                while received := await self.server.receive():
                    for item in received:
                        await self._pass_answer(item)
        except ConnectionLost as loss:
            self._lose(loss)
        self.shut("lost")

    async def _pass_answer(self, item: Received) -> None:
        if isinstance(item, Lost):
            await self._fail(item.id, str(item.error))
        elif isinstance(item, Oversized):
            self.journal.discards("out", item)
            await self._drop(item)
        else:
            self.journal.counts["out_bytes"] += len(item)
            messages = self.journal.passes("out", item)
            await self._say(item)
            for message in messages:
                if isinstance(message, Response | ErrorResponse):
                    self._settle(message.id)

    async def _drop(self, item: Oversized) -> None:
        """An answer that cannot pass fails its request."""
        text = f"an answer over frame_bytes_max ({self.limits.frame_bytes_max})"
        request_id = whose_large_answer(malformed(item.head, SERVER_BUSY, text), self._waiting)
        if request_id in self._open:
            await self._fail(request_id, text)

    async def _fail(self, request_id: Id, why: str) -> None:
        await self._answer(request_id, SERVER_BUSY, why)
        self._settle(request_id)

    async def _answer(self, request_id: Id, code: int, text: str) -> None:
        """Answers instead of the server."""
        await self._say(self.journal.answer(request_id, code, text))

    async def _say(self, frame: bytes) -> None:
        self.journal.flush()
        async with self._saying:
            await carry(self.client, frame)

    def _settle(self, request_id: Id | None) -> None:
        if request_id is not None:
            self._open.pop(request_id, None)
        self._settled.unpark_all()

    @property
    def _waiting(self) -> list[Id]:
        """The open requests that are to be settled; a subscription never is."""
        return [request_id for request_id, method in self._open.items() if method != LISTEN]

    async def _all_settled(self) -> None:
        while self._waiting:
            await self._settled.park()
