"""All modern requests over HTTP as one channel, so that one session serves them.

Clients number their requests as they like. So each request gets a number of ours on its way in, and
its own one back on its way out; it stands there for a stream, on which all about it leaves. A
client that goes away has cancelled its request (MHTTP-22), which the session hears as it would hear
it on any other transport.
"""

from collections.abc import Iterable
from itertools import count
from typing import Any

import attrs
import msgspec

from mcp_trio._protocol import CANCELLED, LISTEN, RequestId
from mcp_trio._protocol.metadata import SUBSCRIPTION_ID
from mcp_trio._schema import CancelledParams
from mcp_trio._transports.http.answer_stream import AnswerStream, Sent
from mcp_trio._transports.http.routed import RoutedChannel
from mcp_trio._wire import (
    Addressed,
    Notification,
    Request,
    Understood,
    encode_notification,
    encode_request,
    from_principal,
    renumbered,
)
from mcp_trio._wire.lines import has_line_end


@attrs.define(eq=False)
class Slot:
    """One exchange: the number of its request here, the client's own id, and the stream."""

    number: int
    id: RequestId
    method: str
    stream: AnswerStream


@attrs.define(eq=False)
class StatelessChannel(RoutedChannel):
    """See the module."""

    _slots: dict[RequestId, Slot] = attrs.field(factory=dict[RequestId, Slot], init=False)
    _numbers: "count[int]" = attrs.field(factory=lambda: count(1), init=False)

    # What clients send.

    def deliver(
        self, request: Request, principal: str | None = None, *, is_narrow: bool = False
    ) -> Slot:
        """The session hears this request now; `principal` is who sends it, if that is known.

        Its stream `is_narrow` if the client takes nothing but the one answer.
        """
        number, depth_max = next(self._numbers), self.limits.json_depth_max
        frame = encode_request(number, request.method, request.params, json_depth_max=depth_max)
        stream = AnswerStream(self.limits, awaits=frozenset((number,)), is_narrow=is_narrow)
        slot = self._slots[number] = Slot(number, request.id, request.method, stream)
        if request.params is None or not has_line_end(bytes(request.params)):
            message = Request(number, request.method, request.params)
            self._inbox.put(Understood(frame, message, principal))
        else:  # the frame has other space in it, and what is decoded is to be what is recorded
            self._inbox.put(from_principal(frame, principal))
        return slot

    def notify(self, notification: Notification) -> None:
        """The session hears this notification now.

        Not so a cancellation: over HTTP there is none but to go away (MHTTP-13), and what it named
        would be the number of somebody else's request.
        """
        if notification.method == CANCELLED:
            return
        self._inbox.put(encode_notification(notification.method, notification.params))

    def abandon(self, slot: Slot) -> None:
        """The client has gone away: nothing more leaves for its request (MHTTP-24)."""
        if self._slots.pop(slot.number, None) is not None:
            params = CancelledParams(request_id=slot.number, reason="the client closed the stream")
            self._inbox.put(encode_notification(CANCELLED, params))

    @property
    def is_resting(self) -> bool:
        """Whether nobody waits for an answer."""
        return not self._slots

    # What the session sends.

    def _route(self, frame: bytes) -> None:
        """What is about a request that nobody waits for, or about none, goes nowhere (MHTTP-16)."""
        assert isinstance(frame, Addressed)
        slot = None if frame.about is None else self._slots.get(frame.about)
        if slot is None:
            return
        if frame.is_answer:
            del self._slots[slot.number]
            text = renumbered(_tagged(frame, slot), slot.id)
            slot.stream.put(Sent(text, None, is_answer=True))
            slot.stream.answered(slot.number)
        elif not slot.stream.is_narrow:
            slot.stream.put(Sent(_tagged(frame, slot), None, is_answer=False))

    # The end.

    def _open_streams(self) -> Iterable[AnswerStream]:
        return [slot.stream for slot in self._slots.values()]


def _tagged(frame: bytes, slot: Slot) -> bytes:
    """The frame; all that goes to a subscription names it by the client's own id (SUB-08)."""
    if slot.method != LISTEN:
        return bytes(frame)
    message: dict[str, Any] = msgspec.json.decode(frame)
    meta = message.get("params", message.get("result", {})).get("_meta", {})
    if SUBSCRIPTION_ID in meta:
        meta[SUBSCRIPTION_ID] = slot.id
    return msgspec.json.encode(message)
