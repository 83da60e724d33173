"""Basic, cancellation."""

from mcp_trio._schema.base import Params, RequestId


class CancelledParams(Params, kw_only=True):
    """The sender no longer waits for the answer to a request of its own."""

    request_id: RequestId
    reason: str | None = None
