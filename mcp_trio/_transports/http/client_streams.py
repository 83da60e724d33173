"""A stream of events that a client reads, over as many connections as the server makes of it."""

import math
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import attrs
import httpx
import trio

from mcp_trio._errors import ConnectionLost
from mcp_trio._transports.back_off import Dice, pause_seconds
from mcp_trio._transports.condition import Condition
from mcp_trio._transports.http.client_link import SERVER_ERROR, Link, Refused, is_stream, pieces_of
from mcp_trio._wire.event_stream import Event, EventParser
from mcp_trio._wire.lines import Oversized

Take: TypeAlias = Callable[[bytes | Oversized], Awaitable[None]]

# A server that asks to be polled at once is not polled in a busy loop.
_PAUSE_SECONDS_MIN: Final = 0.05


@attrs.define(kw_only=True, eq=False)
class EventStream:
    """What the server says on one stream, from its first event to its last.

    Each message is given to `take`, which may wait. `last_id` is the id to go on behind, `failures`
    how many connections in a row brought nothing, and `trouble` what ended the last one. After the
    first of those there are `away_seconds` for one that does; while one is there, they do not run.
    It `has_begun` when the server has let us listen once, is `decided` when it has, or will not or
    could not yet, and `is_cut` when a message was too large.
    """

    link: Link
    take: Take
    dice: Dice
    condition: Condition
    away_seconds: float = math.inf
    has_begun: bool = attrs.field(default=False, init=False)
    last_id: str | None = attrs.field(default=None, init=False)
    trouble: str = attrs.field(default="", init=False)
    failures: int = attrs.field(default=0, init=False)
    is_cut: bool = attrs.field(default=False, init=False)
    decided: trio.Event = attrs.field(factory=trio.Event, init=False)
    _retry_ms: int | None = attrs.field(default=None, init=False)
    _away_until: float = attrs.field(default=math.inf, init=False)

    @property
    def is_lost(self) -> bool:
        """Whether to stop coming back, after so many times in vain, or so long."""
        return bool(self.reached)

    @property
    def reached(self) -> str:
        """The limit behind which nobody comes back, as text; empty before."""
        limits = self.link.limits
        if self.failures > limits.http_reconnects_max:
            return f"http_reconnects_max={limits.http_reconnects_max}"
        is_over = trio.current_time() >= self._away_until
        return f"http_resume_seconds={self.away_seconds:g}" if is_over else ""

    async def read(self, response: httpx.Response) -> None:
        """Take everything that comes on this connection; one that breaks ends like any other."""
        self.trouble = "the stream ended"
        since = trio.current_time()
        has_heard = False
        parser = EventParser(event_bytes_max=self.link.limits.frame_bytes_max)
        try:
            async with pieces_of(response) as pieces:
                async for piece in pieces:
                    for event in parser.feed(piece):
                        has_heard = True
                        await self._hear(event)
                    self.last_id = parser.last_id or self.last_id
        except httpx.RequestError as error:
            self.trouble = f"the stream broke: {str(error) or type(error).__name__}"
        is_old = trio.current_time() - since >= self.link.limits.http_reconnect_seconds_max
        if has_heard or is_old:
            self.failures, self._away_until = 0, math.inf
        else:
            self._away_until += trio.current_time() - since  # meanwhile it was there
            self._count()

    async def _hear(self, event: Event | Oversized) -> None:
        """Events without data only bring ids and times (TRAP-37); other names are not for us."""
        if isinstance(event, Oversized):
            self.is_cut = True
            await self.take(event)
            return
        if event.id is not None:
            self.last_id = event.id or None
        if event.retry_ms is not None:
            self._retry_ms = event.retry_ms
        if event.data and event.name == "message":
            await self.take(event.data)

    async def resume(self) -> None:
        """Wait as long as the server wants, and `connect` again."""
        self.condition.become("retrying", self.trouble)
        await trio.sleep(self._pause_seconds())
        await self.connect()

    async def connect(self) -> None:
        """Read what is behind the last event, or all (HTTP-41).

        A server that cannot be reached, or fails, is one of the `failures`.

        Raises:
            SessionOver: It does not know the session any more.
            Refused: It does not let us go on.
            ConnectionLost: What it answers is no stream.
        """
        try:
            async with self.link.listen(self.last_id) as response:
                await self.link.check(response)
                check_stream(response)
                self.has_begun = True
                self.decided.set()
                self.condition.become("open")
                await self.read(response)
        except httpx.RequestError as error:
            self._fail(str(error) or type(error).__name__)
        except Refused as refused:
            if refused.status < SERVER_ERROR:
                raise
            self._fail(f"HTTP {refused.status} {refused.phrase}")
        finally:
            self.decided.set()

    def _fail(self, trouble: str) -> None:
        self.trouble = trouble
        self._count()

    def _count(self) -> None:
        if not self.failures:
            self._away_until = trio.current_time() + self.away_seconds
        self.failures += 1

    def _pause_seconds(self) -> float:
        """At least what the server said (HTTP-18), and longer and longer after failures.

        The last try is made when it has been away for as long as it may.
        """
        asked_seconds = None if self._retry_ms is None else self._retry_ms / 1000
        if asked_seconds is not None and not self.failures:
            return max(asked_seconds, _PAUSE_SECONDS_MIN)
        left_seconds = self._away_until - trio.current_time()
        pause = pause_seconds(self.failures, self.link.limits, self.dice)
        return max(min(pause, left_seconds), asked_seconds or 0.0)


def check_stream(response: httpx.Response) -> None:
    """Pass a stream of events.

    Raises:
        ConnectionLost: It is none.
    """
    if not is_stream(response):
        kind = response.headers.get("content-type", "nothing")
        raise ConnectionLost(f"the server answered with {kind} where a stream of events is due")
