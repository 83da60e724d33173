"""How a client's connection to its server stands, for those who want to look or be told."""

import logging
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import attrs

logger = logging.getLogger("mcp_trio")

State: TypeAlias = Literal["connecting", "open", "retrying", "closed"]
OnState: TypeAlias = Callable[[State, str], None]
"""Hears how a connection stands; and why."""

# What may follow on what; "retrying" on itself brings another reason, of which nobody is told.
_TRANSITIONS: Final[frozenset[tuple[State, State]]] = frozenset(
    {
        ("connecting", "open"),
        ("connecting", "retrying"),
        ("connecting", "closed"),
        ("open", "retrying"),
        ("open", "closed"),
        ("retrying", "open"),
        ("retrying", "retrying"),
        ("retrying", "closed"),
    }
)


@attrs.define(eq=False)
class Condition:
    """The state and, if it is a bad one, why.

    "connecting": nothing was heard yet. "open": the server answered last. "retrying": it could not
    be reached, or a stream broke; the next try is due, with the next call at the latest. "closed":
    the session is over. `on_state` is told of each state, must not wait, and hurts nobody if it
    raises.
    """

    on_state: OnState | None = None
    state: State = attrs.field(default="connecting", init=False)
    reason: str = attrs.field(default="", init=False)

    def begin(self) -> None:
        """Tell that it is "connecting"."""
        self._tell()

    def become(self, state: State, reason: str = "") -> None:
        """The state is this from now on, if it may follow on what it was; "closed" is the last."""
        if (self.state, state) not in _TRANSITIONS:
            return
        is_other = state != self.state
        self.state, self.reason = state, reason
        if is_other:
            self._tell()

    def _tell(self) -> None:
        if self.on_state is None:
            return
        try:
            self.on_state(self.state, self.reason)
        except Exception:
            logger.exception("on_state failed")
