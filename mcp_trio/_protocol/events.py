"""What a received frame turned out to be: facts for the engine, one per frame."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from mcp_trio._errors import OutcomeUnknown, RemoteProtocolError
from mcp_trio._protocol.methods import Method
from mcp_trio._protocol.peers import Peer
from mcp_trio._protocol.requests import OurRequest, RequestId, TheirRequest
from mcp_trio._wire import ErrorObject, Message


class RequestToRun(msgspec.Struct, gc=False):
    """A valid request for a handler."""

    request: TheirRequest


class BatchArrived(msgspec.Struct, gc=False):
    """Several messages in one frame, each for `Connection.take`, when those before it are done.

    `size_bytes` is what one of them takes, on average.
    """

    messages: Sequence[Message]
    size_bytes: int


class NotificationArrived(msgspec.Struct, gc=False):
    """A valid notification; `request` is the open subscription of ours that it belongs to."""

    method: Method
    params: Any
    request: OurRequest | None = None


class RequestCancelled(msgspec.Struct, gc=False):
    """The peer no longer wants the answer of a request that is not finished."""

    request: TheirRequest
    reason: str | None


class ProgressArrived(msgspec.Struct, gc=False):
    """The peer reports about an open request of ours, which is a sign of life for its budget."""

    request: OurRequest
    params: Any


class AnswerArrived(msgspec.Struct, gc=False):
    """An open request of ours has ended: one of `result` (raw JSON) and `error` is there."""

    request: OurRequest
    result: msgspec.Raw | None
    error: ErrorObject | None


class AnswerUnreadable(msgspec.Struct, gc=False):
    """An open request of ours has ended: its answer is too large, or no message."""

    request: OurRequest
    error: RemoteProtocolError | OutcomeUnknown
    counted: str = "unreadable answer"


class Reply(msgspec.Struct, gc=False):
    """The protocol itself answers: `frame` goes out now.

    `counted` names the fault that it answers, if it is one; `negotiated` tells that the handshake
    has just settled revision, peer and capabilities. `peer` is who has sent a modern request. `id`
    is that of the request, if it could be read.
    """

    frame: bytes
    id: RequestId | None = None
    counted: str | None = None
    text: str | None = None
    negotiated: bool = False
    peer: Peer | None = None


class Ignored(msgspec.Struct, gc=False):
    """Nothing is to be done and nothing may be answered; `counted` and `text` are for the log."""

    counted: str
    text: str


Event: TypeAlias = (
    RequestToRun
    | BatchArrived
    | NotificationArrived
    | RequestCancelled
    | ProgressArrived
    | AnswerArrived
    | AnswerUnreadable
    | Reply
    | Ignored
)
