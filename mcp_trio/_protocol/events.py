"""The events that received messages become; see `Connection.receive`."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from mcp_trio._jsonrpc.messages import ErrorObject, Message
from mcp_trio._protocol.metadata import Peer
from mcp_trio._protocol.methods import Method
from mcp_trio._protocol.requests import IncomingRequest, OutgoingRequest
from mcp_trio.errors import OutcomeUnknown, RemoteProtocolError
from mcp_trio.types import RequestId


class RequestReceived(msgspec.Struct, gc=False):
    """A valid request for a handler."""

    request: IncomingRequest


class BatchReceived(msgspec.Struct, gc=False):
    """Several messages. Pass each to `Connection.receive_batched` after handling the one before.

    `size_bytes` is the average size of the messages.
    """

    messages: Sequence[Message]
    size_bytes: int


class NotificationReceived(msgspec.Struct, gc=False):
    """A valid notification; `request` is the open subscription that it belongs to, if any."""

    method: Method
    params: Any
    request: OutgoingRequest | None = None


class RequestCancelled(msgspec.Struct, gc=False):
    """The peer has cancelled a request that is not finished."""

    request: IncomingRequest
    reason: str | None


class ProgressReceived(msgspec.Struct, gc=False):
    """The peer has reported progress on an open request of this side."""

    request: OutgoingRequest
    params: Any


class ResponseReceived(msgspec.Struct, gc=False):
    """A request of this side has ended; either `result` (raw JSON) or `error` is set."""

    request: OutgoingRequest
    result: Raw | None
    error: ErrorObject | None


class ResponseUnreadable(msgspec.Struct, gc=False):
    """A request of this side has ended, because its response is too large or malformed."""

    request: OutgoingRequest
    error: RemoteProtocolError | OutcomeUnknown
    counter: str = "unreadable answer"


class ImmediateResponse(msgspec.Struct, gc=False):
    """A response of the protocol itself, to be sent now.

    Attributes:
        message: The encoded response.
        id: The id of the request; None if it could not be read.
        counter: The name of the counter, if the response is an error.
        text: The text of that error.
        negotiated: Whether the handshake has just set the protocol version, peer and capabilities.
        peer: The sender of a stateless request.
        method: The method of the request; empty if it could not be read.
        params: The typed params of the request; None if it was rejected.
    """

    message: bytes
    id: RequestId | None = None
    counter: str | None = None
    text: str | None = None
    negotiated: bool = False
    peer: Peer | None = None
    method: str = ""
    params: Any = None


class Ignored(msgspec.Struct, gc=False):
    """A message without effect; `counter` names its counter, and `text` is for the log."""

    counter: str
    text: str


Event: TypeAlias = (
    RequestReceived
    | BatchReceived
    | NotificationReceived
    | RequestCancelled
    | ProgressReceived
    | ResponseReceived
    | ResponseUnreadable
    | ImmediateResponse
    | Ignored
)
