"""Access rules: the scopes that a tool, resource or prompt needs, and users' own conditions.

A rule is checked when a list is made, which leaves out what the caller may not use, and when the
entry is used. The decision is recorded, so a replay with another rule diverges at that request.
"""

from collections.abc import Callable, Collection
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from mcp_trio._auth.challenges import checked_scopes
from mcp_trio.errors import AccessDenied

if TYPE_CHECKING:
    from mcp_trio._server.context import Context

Access: TypeAlias = Callable[["Context"], Any]
"""Returns whether the sender of a request may use an entry; `def` without blocking, or `async`."""

ALLOWED_MARK: Final = "access allowed"
DENIED_MARK: Final = "access denied"


@attrs.frozen(eq=False, repr=False)
class AccessRule:
    """The conditions under which the sender of a request may use an entry.

    Attributes:
        scopes: The scopes, all of which are needed.
        access: A further condition.
    """

    scopes: tuple[str, ...]
    access: Access | None

    async def denial(self, granted: frozenset[str], context: "Context") -> AccessDenied | None:
        """Return the error for a sender with these scopes; None if the sender is allowed.

        Raises:
            Exception: The condition failed.
        """
        if not granted.issuperset(self.scopes):
            return AccessDenied("the token lacks a scope that this needs", scopes=self.scopes)
        if self.access is not None:
            try:
                allowed = self.access(context)
                if isawaitable(allowed):
                    allowed = await allowed
            except AccessDenied as error:
                return error
            if not allowed:
                return AccessDenied()
        return None


def access_rule(scopes: Collection[str], access: Access | None) -> AccessRule | None:
    """Return the rule for arguments of a decorator; None if they demand nothing.

    Raises:
        TypeError: The scopes are one string, or the condition cannot be called.
        ValueError: A scope is invalid.
    """
    if access is not None and not callable(access):
        raise TypeError(f"access= takes a function of the context, not {type(access).__name__}")
    checked = checked_scopes(scopes)
    return AccessRule(checked, access) if checked or access is not None else None
