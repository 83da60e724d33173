"""Messages of a recording in a live session: their encoding, and the peer that receives them.

A recorded request is sent with a new id, its *live id*, which is its index in the recorded
conversation, plus 1. Its progress token is the same number.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import trio

from mcp_trio._journal.conversation import (
    REFERENCES,
    SUBSCRIPTION_ID,
    Id,
    RecordedMessage,
    members_of,
    progress_token_of,
    subscription_of,
)
from mcp_trio._jsonrpc.channel_messages import (
    AuthInfo,
    Lost,
    PrincipalMessage,
    RelatedMessage,
)
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._jsonrpc.messages import (
    ErrorObject,
    Malformed,
    Message,
    decoder_for,
    encode_error,
    encode_notification,
    encode_request,
    encode_response,
    malformed,
)
from mcp_trio._protocol.requests import oversized_response_id, response_id_of
from mcp_trio._transports.channel import Channel, Received
from mcp_trio.errors import INVALID_REQUEST, ConnectionLost, OutcomeUnknown
from mcp_trio.limits import Limits
from mcp_trio.types import RequestId

# While more messages than this wait to be sent, no messages are received, because the handler of a
# received message may put further ones into the queue.
_UNSENT_MAX: Final = 1024


def live_id(index: int) -> int:
    return index + 1


def recorded_index(id: Id | None) -> int | None:  # noqa: A002  the specification's word
    """Return the index to which a live id or token belongs; None if it is not a number.

    There need not be a recorded request with this index: a live peer can send any number.
    """
    return id - 1 if isinstance(id, int) else None


def encode_recorded_request(message: RecordedMessage, params: dict[str, Any]) -> bytes:
    """Encode a recorded request with the live `params`."""
    if progress_token_of(message.body) is not None:
        params["_meta"]["progressToken"] = live_id(message.index)
    request_id = live_id(message.index)
    return encode_request(request_id, message.method, None if message.body is None else params)


def encode_recorded_notification(
    message: RecordedMessage, params: dict[str, Any], reference: Id | None
) -> bytes | None:
    """Encode a recorded notification with the live `params`.

    `reference` is the live id or token of the request to which it refers, or of the request of its
    subscription. Return None if the notification needs a reference and there is none.
    """
    is_of_subscription = subscription_of(message.body) is not None
    if message.method in REFERENCES or is_of_subscription:
        if reference is None:
            return None
        if message.method in REFERENCES:
            params[REFERENCES[message.method]] = reference
        if is_of_subscription:
            params["_meta"][SUBSCRIPTION_ID] = reference
    return encode_notification(message.method, None if message.body is None else params)


def encode_recorded_response(message: RecordedMessage, request_id: Id) -> bytes:
    """Encode a recorded result or error as the response to a live request."""
    assert message.body is not None
    if message.kind == "result":
        if subscription_of(message.body) is None:
            return encode_response(request_id, message.body)
        result = members_of(message.body)
        result["_meta"][SUBSCRIPTION_ID] = request_id
        return encode_response(request_id, result)
    error = msgspec.json.decode(message.body, type=ErrorObject)
    return encode_error(request_id, error.code, error.message, error.data)


class LivePeer:
    """The peer in a live session: its channel, and a queue of messages to send.

    `write` runs in a task of its own and sends the queue; `read` receives until the peer closes.
    After the peer has stopped reading, messages to it are dropped.
    """

    def __init__(self, channel: Channel, limits: Limits) -> None:
        self.channel = channel
        self.limits = limits
        self._unsent: deque[bytes] = deque()
        self._is_writable = True
        self._changed = trio.lowlevel.ParkingLot()
        self._decoder = decoder_for(limits.messages)
        self._takes_related_messages: bool = getattr(channel, "takes_related_messages", False)

    def put(
        self, message: bytes, related_id: int | str | None = None, *, is_response: bool = False
    ) -> None:
        """Queue a message; `related_id` is the id of the peer's request to which it belongs.

        `is_response`: whether it is the response to that request.
        """
        if not self._is_writable:
            return
        if self._takes_related_messages:
            message = RelatedMessage(message, related_id, is_response=is_response)
        self._unsent.append(message)
        self._changed.unpark_all()

    async def write(self) -> None:
        """Send queued messages; return when the connection is lost."""
        try:
            while True:
                while not self._unsent:
                    await self._changed.park()
                messages = [*self._unsent]
                await self.channel.send(messages)
                # Removed after the send, because `drain` waits until they are sent.
                for _ in messages:
                    self._unsent.popleft()
                self._changed.unpark_all()
        except (ConnectionLost, trio.BrokenResourceError):
            self._is_writable = False
            self._unsent.clear()
            self._changed.unpark_all()

    async def drain(self) -> None:
        while self._unsent:
            await self._changed.park()

    async def read(self, handle: Callable[[Message | Lost, AuthInfo | None], None]) -> None:
        """Call `handle` with each message, and each lost request; return when the peer closes.

        The second argument is the sender of the message, if the transport has authenticated it.

        Raises:
            ConnectionLost: The connection was lost for a known reason.
        """
        while received := await self.channel.receive():
            for data in received:
                sender: AuthInfo | None = None
                if isinstance(data, PrincipalMessage):
                    sender = data.auth
                for message in self._decode(data):
                    handle(message, sender)
            while len(self._unsent) > _UNSENT_MAX:
                await self._changed.park()

    def _decode(self, data: Received) -> Sequence[Message | Lost]:
        """Return the messages in received data.

        A response that cannot be decoded is followed by a `Lost` for its request.
        """
        if isinstance(data, Lost):
            return (data,)
        if isinstance(data, Oversized):
            message = malformed(data.prefix, INVALID_REQUEST, "over limits.messages.bytes_max")
            return [message, *_lost_of(message, oversized_response_id(message, ()))]
        messages = self._decoder.messages(data)
        lost = [
            each
            for message in messages
            if isinstance(message, Malformed)
            for each in _lost_of(message, response_id_of(message))
        ]
        return [*messages, *lost]


def _lost_of(malformed_response: Malformed, request_id: RequestId | None) -> Sequence[Lost]:
    """Return the `Lost` of the request whose response is malformed, if its id is known."""
    if request_id is None:
        return ()
    return (Lost(request_id, OutcomeUnknown(f"the response is {malformed_response.message}")),)
