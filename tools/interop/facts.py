"""The content of all "everything" servers, which clients check; Node reads `facts.json`, too."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Final

FACTS: Final = SimpleNamespace(
    **json.loads(Path(__file__).with_name("facts.json").read_text(encoding="utf-8"))
)


VERSION_MODES: Final = ("legacy", "both", "stateless")
"""The protocol versions that one side supports: those with sessions, those without, or both."""


TOUR: Final = "tour:"
"""Before a protocol version: the client runs `mount_checks.py` instead of the scenario."""


SCRIPT: Final = "script:"
"""Before a folder: the client runs the request script of that name, at a server in the folder."""


HUB: Final = "hub"
"""Before a command: the client listens, and the command's server dials the client's URL."""


def is_url(server: str) -> bool:
    """Return whether the server is given by its URL, and not by the command that starts it."""
    return server.startswith(("http://", "ws://"))


def is_websocket(url: str) -> bool:
    return url.startswith("ws://")


def is_sse(url: str) -> bool:
    """Return whether the URL is of HTTP+SSE, and not of Streamable HTTP."""
    return url.endswith("/sse")


def has(protocol_version: str, feature: str) -> bool:
    """Return whether a protocol version has a feature that not all have."""
    first, last = map(FACTS.protocol_versions.index, FACTS.features[feature])
    return bool(first <= FACTS.protocol_versions.index(protocol_version) <= last)
