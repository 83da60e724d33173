"""What the state of a modern request is bound to, and the one way to refuse it.

The client brings a state back with its answers, or somebody else brings one that he has found or
made up. So it counts only for the request that it was made for, and who brings a bad one learns
nothing of what is wrong with it.
"""

import hashlib
from typing import Any, Final, cast

import msgspec

from mcp_trio._errors import INVALID_PARAMS, RequestError

PARKED: Final = "parked."
"""How the state of a handler begins that waits here; any other was sealed, or is none of ours."""

# What a retry brings anew, or has besides what it repeats.
_NOT_REPEATED: Final = ("_meta", "inputResponses", "requestState")

_encode: Final = msgspec.json.Encoder(order="sorted").encode


def invalid_state() -> RequestError:
    """The answer to a state that fails any check."""
    return RequestError(INVALID_PARAMS, "the request state is not valid")


def digest_of(method: str, params: Any) -> bytes:
    """A digest of what a retry repeats: its method and its params, however these are spelled.

    Params that hold what no value here can be, such as a number without end, count as they are
    spelled.
    """
    text = msgspec.json.encode(params)
    try:
        members = cast("dict[str, Any]", msgspec.json.decode(text))
        repeated = {name: value for name, value in members.items() if name not in _NOT_REPEATED}
        text = _encode(repeated)
    except (msgspec.ValidationError, RecursionError):
        pass
    return hashlib.sha256(_encode([method, len(text)]) + text).digest()
