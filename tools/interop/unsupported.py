"""Combinations that a peer does not support, each with the reason."""

from collections.abc import Sequence
from typing import Final

import attrs
from method_counts import ERROR_ANSWER
from peers import Role

STATELESS: Final = ("2026-07-28",)


@attrs.frozen(kw_only=True)
class Excuse:
    """Why a row is empty; a member that is None stands for all."""

    reason: str
    rows: Sequence[str]
    sender: str
    protocol_versions: Sequence[str]
    peer: str | None = None
    role: Role | None = None

    def covers(self, name: str, sender: str, protocol_version: str, peer: str, role: Role) -> bool:
        """Whether a cell is one of these."""
        return (
            name in self.rows
            and sender == self.sender
            and protocol_version in self.protocol_versions
            and self.peer in (None, peer)
            and self.role in (None, role)
        )


EXCUSES: Final = (
    Excuse(
        reason="a client without a session gets no requests: it has none to answer or report on",
        rows=(ERROR_ANSWER, "notifications/progress"),
        sender="client",
        protocol_versions=STATELESS,
    ),
    Excuse(
        reason="a server without a session sends no requests that it could give up",
        rows=("notifications/cancelled",),
        sender="server",
        protocol_versions=STATELESS,
    ),
)
