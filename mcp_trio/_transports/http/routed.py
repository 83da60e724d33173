"""What the channels of a server over HTTP have in common: each frame goes its own way."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

import attrs
import trio

from mcp_trio._limits import Limits
from mcp_trio._transports.channel import Received
from mcp_trio._transports.http.answer_stream import AnswerStream
from mcp_trio._transports.http.inbox import Inbox, Take


@attrs.define(eq=False)
class RoutedChannel(ABC):
    """A channel to which requests deliver, and whose frames leave by their streams."""

    is_addressed: ClassVar[bool] = True

    limits: Limits
    transport: str = "http"
    _inbox: Inbox = attrs.field(factory=Inbox, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)

    @abstractmethod
    def _route(self, frame: bytes) -> None:
        """Put an `Addressed` frame on its stream, if it has one."""

    @abstractmethod
    def _open_streams(self) -> Iterable[AnswerStream]:
        """Those that end with the channel."""

    def finish(self) -> None:
        """Nothing more comes."""
        self._inbox.end()

    def send_nowait(self, frames: Sequence[bytes]) -> int:
        """See `Channel`: everything is taken, for its stream."""
        if self._is_closed:
            raise trio.ClosedResourceError("this side of the channel was closed")
        for frame in frames:
            self._route(frame)
        return len(frames)

    async def send(self, frames: Sequence[bytes]) -> None:
        """See `Channel`."""
        await trio.lowlevel.checkpoint()
        self.send_nowait(frames)

    def deliver_to(self, take: Take) -> None:
        """See `Channel`."""
        self._inbox.deliver_to(take)

    async def receive(self) -> Sequence[Received]:
        """See `Channel`."""
        return await self._inbox.receive()

    async def aclose(self) -> None:
        """See `Channel`: every stream ends."""
        self._is_closed = True
        self._inbox.close()
        for stream in self._open_streams():
            stream.end()
        await trio.lowlevel.cancel_shielded_checkpoint()
