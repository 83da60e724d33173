"""JSON-RPC messages to bytes and back, and bytes to lines. Pure."""

from mcp_trio._wire.addressed import Addressed, FromPrincipal, Lost, from_principal
from mcp_trio._wire.envelope import (
    Batch,
    Decoder,
    ErrorObject,
    ErrorResponse,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
    Unencodable,
    encode_error,
    encode_notification,
    encode_request,
    encode_response,
    malformed,
    readdressed,
)
from mcp_trio._wire.lines import LineSplitter, Oversized, join_lines

__all__ = [
    "Addressed",
    "Batch",
    "Decoder",
    "ErrorObject",
    "ErrorResponse",
    "FromPrincipal",
    "LineSplitter",
    "Lost",
    "Malformed",
    "Message",
    "Notification",
    "Oversized",
    "Request",
    "Response",
    "Unencodable",
    "encode_error",
    "encode_notification",
    "encode_request",
    "encode_response",
    "from_principal",
    "join_lines",
    "malformed",
    "readdressed",
]
