"""What is on its way to a client on one stream, whether an HTTP answer carries it now or not."""

from collections.abc import Iterable, Sequence

import msgspec
import trio

from mcp_trio._limits import Limits
from mcp_trio._protocol import RequestId
from mcp_trio._transports.bell import Bell
from mcp_trio._transports.http.patience import Patience


class Sent(msgspec.Struct, eq=False, gc=False):
    """A frame on a stream; its event id, where streams can be resumed."""

    frame: bytes
    event_id: str | None
    is_answer: bool


class AnswerStream(msgspec.Struct, eq=False):
    """The frames of one stream that nobody has carried away yet, in order.

    It has ended when the answers to all that it `awaits` were put, or by `end`. One that awaits
    nothing ends by `end` only. Of one that nobody carries, the oldest frames are dropped for newer
    ones; one whose client has gone away holds nothing, for whoever comes back is given again what
    is kept elsewhere.

    Attributes:
        limits: How much may wait.
        number: Where the session's events are counted; None while nothing can be resumed.
        first_id: The id of an event without a message, which came before all others.
        awaits: The requests whose answers go here.
        is_narrow: The client takes nothing but the one answer.
        carrier: What takes the frames away, as events; None while nobody does.
    """

    limits: Limits
    number: int | None = None
    first_id: str | None = None
    awaits: frozenset[RequestId] = frozenset()
    is_narrow: bool = False
    carrier: trio.CancelScope | None = None
    is_ended: bool = False
    is_overrun: bool = False
    is_left: bool = False
    dropped: int = 0
    _waiting: list[Sent] = []
    _bytes: int = 0
    _news: Bell = msgspec.field(default_factory=Bell)

    @property
    def answers(self) -> Sequence[bytes] | None:
        """All answers, if the stream has ended with them and holds nothing else."""
        if not self.is_ended:
            return None
        frames: list[bytes] = []
        for sent in self._waiting:
            if not sent.is_answer:
                return None
            frames.append(sent.frame)
        return frames

    @property
    def is_carried(self) -> bool:
        """Whether somebody takes the frames away, and tells their ids."""
        return self.carrier is not None

    @property
    def has_waiting(self) -> bool:
        """Whether there is something to carry."""
        return bool(self._waiting)

    @property
    def has_news(self) -> bool:
        """Whether there is something to carry, or nothing more to wait for."""
        return bool(self._waiting) or self.is_ended or self.is_overrun

    def put(self, sent: Sent) -> None:
        """One more frame; over the bounds, who carries is too slow, and is given up."""
        if self.is_left:
            return
        self._waiting.append(sent)
        self._bytes += len(sent.frame)
        while self._is_over():
            if self.is_carried:
                self.is_overrun = True
                self.take()
            else:
                self._bytes -= len(self._waiting.pop(0).frame)
                self.dropped += 1
        self._news.ring()

    def _is_over(self) -> bool:
        """What waits before the newest frame counts: nobody is slow for one that is large."""
        if not self._waiting:
            return False
        is_many = len(self._waiting) > self.limits.http_events_kept_max
        before = self._bytes - len(self._waiting[-1].frame)
        return before > self.limits.http_write_bytes_max or (is_many and not self.is_carried)

    def put_again(self, events: Sequence[Sent]) -> None:
        """What a client missed goes before everything else; it is back."""
        self.is_left = False
        known = {sent.event_id for sent in events}
        self._waiting = [*events, *(sent for sent in self._waiting if sent.event_id not in known)]
        self._bytes = sum(len(sent.frame) for sent in self._waiting)
        self._news.ring()

    @property
    def frames(self) -> Sequence[bytes]:
        """Those that wait."""
        return [sent.frame for sent in self._waiting]

    def name_all(self, ids: Iterable[str]) -> None:
        """Give each frame that waits its id."""
        for sent, event_id in zip(self._waiting, ids, strict=True):
            sent.event_id = event_id

    def answered(self, request_id: RequestId) -> None:
        """One request needs no answer any more; after the last one the stream has ended."""
        self.awaits -= {request_id}
        if not self.awaits:
            self.end()

    def carry(self, carrier: trio.CancelScope) -> None:
        """The frames are this carrier's from now on; an earlier one is ended."""
        before, self.carrier = self.carrier, carrier
        if before is not None:
            before.cancel()
        self.is_overrun = False

    def put_down(self, carrier: trio.CancelScope) -> None:
        """A carrier takes no more; nothing happens if another one has taken the stream over."""
        if self.carrier is carrier:
            self.carrier = None

    def leave(self) -> None:
        """The client has gone away, and will be given all again if it comes back."""
        self.is_left = True
        self.take()

    def end(self) -> None:
        """Nothing more comes."""
        self.is_ended = True
        self._news.ring()

    def take(self) -> Sequence[Sent]:
        """All that waits, which is somebody else's now."""
        taken, self._waiting, self._bytes = self._waiting, [], 0
        return taken

    async def ended(self) -> None:
        """Wait until nothing more comes; a checkpoint in any case."""
        await trio.lowlevel.checkpoint()
        while not self.is_ended:
            await self._news.wait()

    async def soon(self, seconds: float) -> None:
        """Wait for news, but not longer; a checkpoint in any case."""
        with trio.move_on_after(seconds):
            await self.news()

    async def soon_by(self, patience: Patience) -> None:
        """The same, by the time of many; where there are news, a check for cancellation."""
        if self.has_news:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await patience.wait(self._news)

    async def news(self) -> None:
        """Wait until there is some; a checkpoint in any case."""
        if self.has_news:
            await trio.lowlevel.checkpoint()
        while not self.has_news:
            await self._news.wait()
