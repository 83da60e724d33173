"""A recorded client's requests under another revision, of the era that they were made in."""

from collections.abc import Sequence
from typing import Any

from mcp_trio._journal.conversation import VERSION, Conversation, Said, revision_of
from mcp_trio._protocol import ALL_REVISIONS, INITIALIZE, REVISIONS

AGREED = "$.result.protocolVersion"
"""Where a handshake's answer says the revision."""


def check_revision(recorded: Conversation, revision: str) -> None:
    """Refuse a revision under which a recorded client cannot say what it said.

    Raises:
        ValueError: It is unknown, or of an era in which the client has asked nothing.
    """
    fitting = revisions_of(recorded)
    if revision not in fitting:
        known = ", ".join(fitting) or "none"
        raise ValueError(f"what was recorded cannot be said under {revision}, but under: {known}")


def revisions_of(recorded: Conversation) -> Sequence[str]:
    """The revisions of the eras that a recorded client spoke, from the newest."""
    requests = recorded.of("client", "request")
    has_handshake = any(each.method == INITIALIZE for each in requests)
    is_modern = recorded.modern_request is not None
    eras = {*([True] if has_handshake else ()), *([False] if is_modern else ())}
    return [name for name in ALL_REVISIONS if REVISIONS[name].has_handshake in eras]


def under_revision(said: Said, params: dict[str, Any], revision: str) -> dict[str, Any]:
    """The params of a recorded message with another revision, where they say one of its era."""
    has_handshake = REVISIONS[revision].has_handshake
    if said.method == INITIALIZE and has_handshake:
        params["protocolVersion"] = revision
    if revision_of(said.body) is not None and not has_handshake:
        params["_meta"][VERSION] = revision
    return params
