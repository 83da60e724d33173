"""Progress tokens, and which reports may leave.

The sender of a request chooses its token (PROG-02); ours is the request's id, so that one table
serves both. A null in place of a token reads as none, as everywhere.
"""

import math
from typing import Any

import msgspec

from mcp_trio import _schema as s
from mcp_trio._errors import LocalProtocolError
from mcp_trio._protocol.metadata import (
    PROGRESS_MEMBER,
    check_keys,
    checked_token,
    meta_of,
    with_meta,
)
from mcp_trio._protocol.methods import Method, ParamsToSend
from mcp_trio._protocol.requests import RequestId, TheirRequest
from mcp_trio._protocol.states import TheirState


class _Carrier(s.Params, kw_only=True):
    """What the params of every request may hold, whatever else they are."""


def token_of(method: Method, params: Any, raw: msgspec.Raw | None) -> RequestId | None:
    """The token that a received request asks progress with; None when it asks for none.

    `params` are those that were decoded from `raw`, for a `method` of people's own to any type.

    Raises:
        msgspec.ValidationError: It is neither a string nor an integer (PROG-01).
    """
    if method.hands_on_params and not isinstance(params, s.Params):
        params = msgspec.json.decode(raw or b"{}", type=_Carrier)
    return checked_token(params.meta) if params.meta else None


def with_token(params: ParamsToSend | None, token: int) -> ParamsToSend:
    """The params of a request of ours that asks for progress."""
    return with_meta(params, {PROGRESS_MEMBER: token})


def check_reserved(params: ParamsToSend | None) -> None:
    """Refuse what a caller put into `_meta`, where only the engine may (META-10), or nobody.

    Raises:
        LocalProtocolError: There is a token, or a key that is malformed or reserved.
    """
    meta = meta_of(params)
    if PROGRESS_MEMBER in meta:
        raise LocalProtocolError(f"_meta.{PROGRESS_MEMBER} is reserved: ask with wants_progress")
    try:
        check_keys(meta)
    except ValueError as error:
        raise LocalProtocolError(str(error)) from None


def _is_timely(request: TheirRequest, progress: float) -> bool:
    """Whether the request is still running (PROG-05, PROG-09), and the value grows (PROG-06)."""
    if request.state is not TheirState.RUNNING:
        return False
    return request.progress_last is None or progress > request.progress_last


def report(
    request: TheirRequest, progress: float, total: float | None, message: str | None
) -> s.ProgressParams | None:
    """What to tell about a request of theirs; None if nobody asked, or it is not the time for it.

    Raises:
        LocalProtocolError: A number is NaN or infinite, for which JSON has no word.
    """
    for number in (progress, total):
        if number is not None and not -math.inf < number < math.inf:
            raise LocalProtocolError(f"progress is told in finite numbers, not {number}")
    if request.progress_token is None or not _is_timely(request, progress):
        return None
    request.progress_last = progress
    return s.ProgressParams(
        progress_token=request.progress_token, progress=progress, total=total, message=message
    )
