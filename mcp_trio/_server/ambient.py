"""The handler that is at work, for code that was not given its context."""

from contextvars import ContextVar
from typing import Final

import msgspec

from mcp_trio._engine import INSIDE, Handling
from mcp_trio._server.facts import ServedSession
from mcp_trio._server.threads import Bridge


class Ambient(msgspec.Struct, eq=False):
    """A handler's request and session; `bridge` leads to the loop from a handler in a thread."""

    handling: Handling
    served: ServedSession
    bridge: Bridge | None = None


AMBIENT: Final[ContextVar[Ambient | None]] = ContextVar("mcp_trio_ambient", default=None)


def at_work() -> Ambient | None:
    """The handler in which the caller runs; None outside of handlers, and inside of effects."""
    ambient = AMBIENT.get()
    inside = INSIDE.get()
    if ambient is None or (inside is not None and inside.handling is ambient.handling):
        return None
    return ambient
