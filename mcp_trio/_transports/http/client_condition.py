"""How a client's connection to its server stands, for those who want to look or be told."""

import logging
from collections.abc import Callable
from typing import Literal, TypeAlias

import attrs

logger = logging.getLogger("mcp_trio")

State: TypeAlias = Literal["connecting", "open", "retrying", "closed"]
OnState: TypeAlias = Callable[[str, str], None]


@attrs.define(eq=False)
class Condition:
    """The state and, if it is a bad one, why.

    "connecting": nothing was heard yet. "open": the server answered last. "retrying": it could not
    be reached, or a stream broke; the next try is due, with the next call at the latest. "closed":
    the session is over. `on_state` is told of every other state, must not wait, and hurts nobody if
    it raises.
    """

    on_state: OnState | None = None
    state: State = attrs.field(default="connecting", init=False)
    reason: str = attrs.field(default="", init=False)

    def become(self, state: State, reason: str = "") -> None:
        """The state is this from now on; "closed" is the last."""
        if self.state in (state, "closed"):
            return
        self.state, self.reason = state, reason
        if self.on_state is None:
            return
        try:
            self.on_state(state, reason)
        except Exception:
            logger.exception("on_state failed")
