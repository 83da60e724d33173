"""Cells of the table that stay empty, each with the reason; no other may."""

from collections.abc import Sequence
from typing import Final

import attrs
from peers import Role
from tally import ERROR_ANSWER

MODERN: Final = ("2026-07-28",)


@attrs.frozen(kw_only=True)
class Excuse:
    """Why a row is empty; a member that is None stands for all."""

    reason: str
    rows: Sequence[str]
    sender: str
    revisions: Sequence[str]
    peer: str | None = None
    role: Role | None = None

    def covers(self, name: str, sender: str, revision: str, peer: str, role: Role) -> bool:
        """Whether a cell is one of these."""
        return (
            name in self.rows
            and sender == self.sender
            and revision in self.revisions
            and self.peer in (None, peer)
            and self.role in (None, role)
        )


EXCUSES: Final = (
    Excuse(
        reason="a client without a session gets no requests: it has none to answer or report on",
        rows=(ERROR_ANSWER, "notifications/progress"),
        sender="client",
        revisions=MODERN,
    ),
    Excuse(
        reason="a server without a session sends no requests that it could give up",
        rows=("notifications/cancelled",),
        sender="server",
        revisions=MODERN,
    ),
)
