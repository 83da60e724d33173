"""Recorded messages as frames of a live session, and the ids that their requests have there.

The id of a request, and its progress token, is its index in the recorded conversation plus 1.
"""

from typing import Any

import msgspec

from mcp_trio._journal.conversation import (
    REFERENCES,
    SUBSCRIPTION,
    Id,
    Said,
    members,
    subscription_of,
    token_of,
)
from mcp_trio._wire import (
    ErrorObject,
    encode_error,
    encode_notification,
    encode_request,
    encode_response,
)


def id_of(index: int) -> int:
    """The live id and token of a recorded request."""
    return index + 1


def index_of(id: Id | None) -> int | None:  # noqa: A002  the specification's word
    """The index of the recorded request with this live id or token; None if it can be none."""
    return id - 1 if isinstance(id, int) else None


def request_frame(said: Said, params: dict[str, Any]) -> bytes:
    """A recorded request with its `params` as they are now."""
    if token_of(said.body) is not None:
        params["_meta"]["progressToken"] = id_of(said.index)
    return encode_request(id_of(said.index), said.method, None if said.body is None else params)


def notification_frame(said: Said, params: dict[str, Any], reference: Id | None) -> bytes | None:
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


def answer_frame(said: Said, request_id: Id) -> bytes:
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
