"""What an "everything" server says: servers send it, clients compare; JavaScript reads it, too."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Final

FACTS: Final = SimpleNamespace(
    **json.loads(Path(__file__).with_name("facts.json").read_text(encoding="utf-8"))
)


ERAS: Final = ("legacy", "both", "stateless")
"""What of the two eras one side speaks: with a session, without, or either."""


TOUR: Final = "tour:"
"""In front of a revision: a client takes the tour, see `mount_checks.py`."""


HUB: Final = "hub"
"""In front of a command: the server that it starts is told a URL, to which it dials."""


def is_url(server: str) -> bool:
    """Whether a server is told by its URL: otherwise by the command that starts it."""
    return server.startswith(("http://", "ws://"))


def is_websocket(url: str) -> bool:
    """Whether WebSocket is spoken at a URL."""
    return url.startswith("ws://")


def is_sse(url: str) -> bool:
    """Whether HTTP+SSE is spoken at a URL: otherwise Streamable HTTP."""
    return url.endswith("/sse")


def has(protocol_version: str, feature: str) -> bool:
    """Whether a revision has something that not all have.

    Raises:
        KeyError: There is no such feature.
        ValueError: There is no such revision.
    """
    first, last = map(FACTS.protocol_versions.index, FACTS.features[feature])
    return bool(first <= FACTS.protocol_versions.index(protocol_version) <= last)
