"""A client that says again what a recorded client said, to a live server.

It walks over the recorded conversation. What the client said is sent; at what the server said it
waits until that has come again. So whatever was sent after something had come is sent after that
again, and what was concurrent stays concurrent.

No wait is endless. An answer has the budget of a request; what nobody asked for has that as well
while a request is open, and else `drive_unasked_seconds`, once for each kind: a server that has
ceased to say something delays nothing more. If a server asks in another order than the recorded
one did, and everything stands still, the recorded replies are sent ahead of their place.

Over HTTP one answer can be lost and others come: then that one is not waited for. Who cannot be
asked at all any more is lost as a whole.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs
import trio

from mcp_trio._client.targets import Served
from mcp_trio._engine import bare
from mcp_trio._errors import ConnectionLost, OutcomeUnknown
from mcp_trio._journal.conversation import Conversation, Said, members
from mcp_trio._limits import Limits
from mcp_trio._protocol import DISCOVER, PING
from mcp_trio._replay.correspondence import Correspondence, Key, key_of
from mcp_trio._replay.saying import index_of
from mcp_trio._replay.wire import Wire
from mcp_trio._transports.channel import Channel
from mcp_trio._wire import ErrorResponse, Lost, Message, Response, encode_request

_LAST_PING: Final = "the last ping"

# So many answers in a row fail to come while nothing at all is heard: then nobody is there.
_SILENCES_MAX: Final = 2


@attrs.define(kw_only=True, eq=False)
class Driver:
    """Drives one live server.

    `lost` is why the server could not be driven to the end, if it could not, and `unreached` is the
    same if it took not even the first request; `late` are the requests whose answers did not come
    in time, by index.
    """

    played: Correspondence
    channel: Channel
    limits: Limits
    lost: str | None = attrs.field(default=None, init=False)
    unreached: ConnectionLost | None = attrs.field(default=None, init=False)
    late: set[int] = attrs.field(factory=set[int], init=False)
    _wire: Wire = attrs.field(init=False)
    _heard: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _heard_count: int = attrs.field(default=0, init=False)
    _is_pinged: bool = attrs.field(default=False, init=False)
    _silences: int = attrs.field(default=0, init=False)
    _given_up: set[Key] = attrs.field(factory=set[Key], init=False)

    def __attrs_post_init__(self) -> None:
        self._wire = Wire(self.channel, self.limits)

    async def run(self, served: Served | None = None) -> None:
        """Says everything, and hears the server out; closes the channel.

        What becomes of the server raises nothing: it is `lost`.
        """
        try:
            async with trio.open_nursery() as nursery:
                if served is not None:
                    nursery.start_soon(self._serve, served)
                nursery.start_soon(self._wire.write)
                nursery.start_soon(self._listen)
                await self._play()
                nursery.cancel_scope.cancel()
        finally:
            await self.channel.aclose()

    # The script.

    async def _play(self) -> None:
        for said in self.played.recorded.said:
            if self.lost is not None:
                return
            if said.sender == "client":
                self._send([self.played.frame(said)])
            else:
                await self._wait_for(said)
                self._send(self.played.due_replies(before=said.index))
        await self._hear_out()

    def _send(self, frames: Iterable[bytes | None]) -> None:
        for frame in frames:
            if frame is not None:
                self._wire.say(frame)

    async def _wait_for(self, said: Said) -> None:
        key = key_of(said)
        if self.played.never_comes(said):
            return
        if said.is_answer:
            await self._wait_for_answer(said)
        elif key not in self._given_up and not await self._comes(said):
            self._given_up.add(key)

    async def _wait_for_answer(self, said: Said) -> None:
        heard_before = self._heard_count
        if await self._comes(said):
            self._silences = 0
        elif said.about is not None and self.played.may_come(said):
            self.late.add(said.about)
            self._silences = self._silences + 1 if heard_before == self._heard_count else 0
            if self._silences >= _SILENCES_MAX:
                self._lose(f"it has left {_SILENCES_MAX} requests without a word")

    async def _comes(self, said: Said) -> bool:
        """Whether the live server says it in time."""
        played, limits = self.played, self.limits
        seconds = min(limits.drive_unasked_seconds, limits.request_idle_seconds)
        await self._until(lambda: played.has_come(said), seconds)
        if not played.has_come(said) and played.may_come(said):
            rest_seconds = limits.request_idle_seconds - seconds
            await self._until(lambda: self._comes_after_replies(said), rest_seconds)
        return played.has_come(said)

    def _comes_after_replies(self, said: Said) -> bool:
        """Whether it has come, or never will; sends what the server may be waiting for."""
        self._send(self.played.due_replies())
        return self.played.has_come(said) or not self.played.may_come(said)

    async def _until(self, is_so: Callable[[], bool], seconds: float) -> None:
        with trio.move_on_after(seconds):
            while not is_so() and self.lost is None:
                await self._heard.park()

    async def _hear_out(self) -> None:
        """What the server says before it answers a ping is heard; the ping is no difference."""
        self._send([_last_ping(self.played.recorded)])
        await self._until(lambda: self._is_pinged, self.limits.drive_unasked_seconds)

    # The server.

    async def _listen(self) -> None:
        try:
            await self._wire.listen(self._hear)
            self._lose("it has closed the connection")
        except ConnectionLost as error:
            self._lose(str(error))

    def _hear(self, message: Message | Lost) -> None:
        if isinstance(message, Response | ErrorResponse | Lost) and message.id == _LAST_PING:
            self._is_pinged = True
        elif isinstance(message, Lost):
            self._hear_loss(message)
        else:
            self._send([self.played.hear(message)])
        self._heard_count += 1
        self._heard.unpark_all()

    def _hear_loss(self, message: Lost) -> None:
        """An answer will not come; if the request was not even taken, no other will be either."""
        error = message.error
        if isinstance(error, ConnectionLost) and not isinstance(error, OutcomeUnknown):
            self.unreached = None if self.played.has_heard else error
            self._lose(str(error))
        self.played.lose(index_of(message.id), str(error))

    async def _serve(self, served: Served) -> None:
        try:
            await served.server.serve(served.channel)
        except Exception as error:
            self._lose(f"the server object failed: {bare(error)!r}")
        finally:
            await served.channel.aclose()

    def _lose(self, reason: str) -> None:
        self.lost = self.lost or reason
        self._heard.unpark_all()


def _last_ping(recorded: Conversation) -> bytes:
    """A request that every server answers at once; modern ones have no other than discovery."""
    modern = recorded.modern_request
    if modern is None:
        return encode_request(_LAST_PING, PING)
    meta: dict[str, Any] = members(modern.body)["_meta"]
    meta.pop("progressToken", None)
    return encode_request(_LAST_PING, DISCOVER, {"_meta": meta})
