"""What a mock says to a client that begins otherwise than the recorded one.

A client finds out which era a server is of; some ask for it first, and some do not. So who asks a
recorded modern server for what it is, or a legacy one, gets the answer that this server would have
given, recorded or not.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from mcp_trio._errors import METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION
from mcp_trio._journal.conversation import Conversation, members, revision_of
from mcp_trio._protocol import DISCOVER, INITIALIZE, PING, SERVER_INFO
from mcp_trio._wire import Request, encode_error, encode_response

_Answer = Callable[[Conversation, Request], bytes | None]

# The capability that goes with the methods of each name before the slash.
_CAPABILITIES: Final = {
    "tools": "tools",
    "prompts": "prompts",
    "resources": "resources",
    "completion": "completions",
}


def answer_of_era(recorded: Conversation, request: Request) -> bytes | None:
    """The answer to a request that is no part of what was recorded, but of its era.

    None if it is neither: it is a miss.
    """
    answer = _ANSWERS.get(request.method)
    return None if answer is None else answer(recorded, request)


def _ping(_: Conversation, request: Request) -> bytes:
    return encode_response(request.id, {})


def _initialize(recorded: Conversation, request: Request) -> bytes | None:
    """A modern server shakes no hands."""
    revision = _modern_revision(recorded)
    if revision is None:
        return None
    requested = members(request.params).get("protocolVersion")
    data = {"supported": [revision], "requested": requested}
    text = "this is a mock: only a modern session was recorded"
    return encode_error(request.id, UNSUPPORTED_PROTOCOL_VERSION, text, data)


def _discover(recorded: Conversation, request: Request) -> bytes:
    """A legacy server does not know the word, and a modern one has to."""
    revision = _modern_revision(recorded)
    if revision is None:
        text = "this is a mock: only a legacy session was recorded"
        return encode_error(request.id, METHOD_NOT_FOUND, text)
    discovered = {
        "resultType": "complete",
        "supportedVersions": [revision],
        "capabilities": _capabilities(recorded),
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": _server_info(recorded),
    }
    return encode_response(request.id, discovered)


def _modern_revision(recorded: Conversation) -> str | None:
    request = recorded.modern_request
    return None if request is None else revision_of(request.body)


def _capabilities(recorded: Conversation) -> Mapping[str, Any]:
    """What a server must have announced that was asked such things."""
    asked = (said.method.partition("/")[0] for said in recorded.of("client", "request"))
    return {_CAPABILITIES[name]: {} for name in asked if name in _CAPABILITIES}


def _server_info(recorded: Conversation) -> Mapping[str, Any]:
    """Who the server is, in what it has said with any result."""
    for said in recorded.of("server", "result"):
        meta: Any = members(said.body).get("_meta")
        if isinstance(meta, dict) and SERVER_INFO in meta:
            return {SERVER_INFO: meta[SERVER_INFO]}
    return {}


_ANSWERS: Final[Mapping[str, _Answer]] = {
    PING: _ping,
    INITIALIZE: _initialize,
    DISCOVER: _discover,
}
