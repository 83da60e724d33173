"""Recorded messages for a live session, and the channel that carries them."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import msgspec
import trio

from mcp_trio._journal.conversation import (
    REFERENCES,
    SUBSCRIPTION,
    Id,
    RecordedMessage,
    members,
    subscription_of,
    token_of,
)
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._jsonrpc.messages import (
    Decoder,
    ErrorObject,
    Lost,
    Malformed,
    Message,
    RelatedMessage,
    encode_error,
    encode_notification,
    encode_request,
    encode_response,
    malformed,
)
from mcp_trio._protocol.requests import RequestId, oversized_response_id, response_id_of
from mcp_trio._transports.channel import Channel, Received
from mcp_trio.errors import INVALID_REQUEST, ConnectionLost, OutcomeUnknown
from mcp_trio.limits import Limits

# --------------------
# Recorded messages as frames of a live session, and the ids that their requests have there.
#
# The id of a request, and its progress token, is its index in the recorded conversation plus 1.


def id_of(index: int) -> int:
    """The live id and token of a recorded request."""
    return index + 1


def index_of(id: Id | None) -> int | None:  # noqa: A002  the specification's word
    """The index of the recorded request with this live id or token; None if it can be none."""
    return id - 1 if isinstance(id, int) else None


def request_frame(said: RecordedMessage, params: dict[str, Any]) -> bytes:
    """A recorded request with its `params` as they are now."""
    if token_of(said.body) is not None:
        params["_meta"]["progressToken"] = id_of(said.index)
    return encode_request(id_of(said.index), said.method, None if said.body is None else params)


def notification_frame(
    said: RecordedMessage, params: dict[str, Any], reference: Id | None
) -> bytes | None:
    """A recorded notification; `reference` is the live id or token of the request it is about.

    That may be the request of its subscription. None if there has to be one and there is none.
    """
    is_of_subscription = subscription_of(said.body) is not None
    if said.method in REFERENCES or is_of_subscription:
        if reference is None:
            return None
        if said.method in REFERENCES:
            params[REFERENCES[said.method]] = reference
        if is_of_subscription:
            params["_meta"][SUBSCRIPTION] = reference
    return encode_notification(said.method, None if said.body is None else params)


def answer_frame(said: RecordedMessage, request_id: Id) -> bytes:
    """A recorded result or error, for a live request."""
    assert said.body is not None
    if said.kind == "result" and subscription_of(said.body) is not None:
        result = members(said.body)
        result["_meta"][SUBSCRIPTION] = request_id
        return encode_response(request_id, result)
    if said.kind == "result":
        return encode_response(request_id, said.body)
    error = msgspec.json.decode(said.body, type=ErrorObject)
    return encode_error(request_id, error.code, error.message, error.data)


# Who does not read what is said is not listened to either.
_FRAMES_WAITING_MAX: Final = 1024


@attrs.define(eq=False)
class Wire:
    """The channel to a live peer. Run `write` in a task of its own; `listen` says when it ends."""

    channel: Channel
    limits: Limits
    _waiting: deque[bytes] = attrs.field(factory=deque[bytes], init=False)
    _has_reader: bool = attrs.field(default=True, init=False)
    _changed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _decoder: Decoder = attrs.field(init=False)
    _is_addressed: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._is_addressed = getattr(self.channel, "is_addressed", False)
        self._decoder = Decoder(json_depth_max=self.limits.messages.json_depth_max)

    def say(self, frame: bytes, about: int | str | None = None, *, is_answer: bool = False) -> None:
        """Sends a frame behind those that wait; `about` is the peer's request it belongs to."""
        if self._is_addressed:
            frame = RelatedMessage(frame, about, is_answer=is_answer)
        self._waiting.append(frame)
        self._changed.unpark_all()

    async def write(self) -> None:
        """Takes frames to the channel; returns when nobody is there to take them."""
        try:
            while True:
                while not self._waiting:
                    await self._changed.park()
                await self._send([*self._waiting])
        except (ConnectionLost, trio.BrokenResourceError):
            self._has_reader = False
            self._changed.unpark_all()

    async def _send(self, frames: list[bytes]) -> None:
        await self.channel.send(frames)
        for _ in frames:
            self._waiting.popleft()
        self._changed.unpark_all()

    async def drain(self) -> None:
        """Returns when everything was taken, or nobody is there to take it."""
        while self._waiting and self._has_reader:
            await self._changed.park()

    async def listen(self, hear: Callable[[Message | Lost], None]) -> None:
        """Calls `hear` with each message, or what is lost; returns when the peer has closed.

        Raises:
            ConnectionLost: The channel ended, and a reason is known.
        """
        while frames := await self.channel.receive():
            for frame in frames:
                for message in self._messages(frame):
                    hear(message)
            while len(self._waiting) > _FRAMES_WAITING_MAX and self._has_reader:
                await self._changed.park()

    def _messages(self, frame: Received) -> Sequence[Message | Lost]:
        if isinstance(frame, Lost):
            return (frame,)
        if isinstance(frame, Oversized):
            begin = malformed(frame.prefix, INVALID_REQUEST, "over limits.messages.bytes_max")
            return [begin, *_lost_by(begin, oversized_response_id(begin, ()))]
        messages: list[Message | Lost] = [*self._decoder.messages(frame)]
        for bad in [each for each in messages if isinstance(each, Malformed)]:
            messages += _lost_by(bad, response_id_of(bad))
        return messages


def _lost_by(bad: Malformed, answered: RequestId | None) -> Sequence[Lost]:
    """What cannot be read loses the request that it was to answer."""
    if answered is None:
        return ()
    return (Lost(answered, OutcomeUnknown(f"the answer is {bad.message}")),)
