"""Patterns, multi round-trip requests: a server asks by a result, the client answers by a retry."""

from typing import Any

import msgspec

from mcp_trio._schema.base import Model, Params, Result


class InputRequest(Model, kw_only=True):
    """One question to the client: a request of the server without envelope.

    On sending `params` is the struct of the method's row; on receipt it is what JSON gave, which
    that row reads.
    """

    method: str
    params: Any = None


class InputRequiredResult(Result, kw_only=True):
    """The request can go on when its questions are answered, each under its key.

    `request_state` comes back with the answers as it was. At least one of the two is there.
    """

    input_requests: dict[str, InputRequest] | None = None
    request_state: str | None = None


class InputResponseParams(Params, kw_only=True):
    """The base of requests that may be retries: with answers by key, and the state as it came."""

    input_responses: dict[str, msgspec.Raw] | None = None
    request_state: str | None = None
