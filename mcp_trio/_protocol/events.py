"""What a received frame turned out to be: facts for the engine, one per frame."""

from typing import Any, TypeAlias

import msgspec

from mcp_trio._protocol.methods import Method
from mcp_trio._protocol.requests import OurRequest, TheirRequest
from mcp_trio._wire import ErrorObject


class RequestToRun(msgspec.Struct, gc=False):
    """A valid request for a handler."""

    request: TheirRequest


class NotificationArrived(msgspec.Struct, gc=False):
    """A valid notification that is not about a request."""

    method: Method
    params: Any


class RequestCancelled(msgspec.Struct, gc=False):
    """The peer no longer wants the answer of a request that is not finished."""

    request: TheirRequest
    reason: str | None


class ProgressArrived(msgspec.Struct, gc=False):
    """The peer reports about an open request of ours."""

    request: OurRequest
    params: Any


class AnswerArrived(msgspec.Struct, gc=False):
    """An open request of ours has ended: one of `result` (raw JSON) and `error` is there."""

    request: OurRequest
    result: msgspec.Raw | None
    error: ErrorObject | None


class Reply(msgspec.Struct, gc=False):
    """The protocol itself answers: `frame` goes out now.

    `counted` names the fault that it answers, if it is one; `negotiated` tells that the handshake
    has just settled revision, peer and capabilities.
    """

    frame: bytes
    counted: str | None = None
    text: str | None = None
    negotiated: bool = False


class Ignored(msgspec.Struct, gc=False):
    """Nothing is to be done and nothing may be answered; `counted` and `text` are for the log."""

    counted: str
    text: str


Event: TypeAlias = (
    RequestToRun
    | NotificationArrived
    | RequestCancelled
    | ProgressArrived
    | AnswerArrived
    | Reply
    | Ignored
)
