"""What the other side has said of itself."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import attrs

from mcp_trio import _schema as s
from mcp_trio._protocol.methods import announced
from mcp_trio._protocol.revisions import OLDEST, Revision

Capabilities: TypeAlias = s.ClientCapabilities | s.ServerCapabilities


@attrs.frozen(kw_only=True, eq=False)
class Peer:
    """The other side, by its own words: in the handshake, or in the very request that it sends.

    Attributes:
        revision: What is spoken with it.
        capabilities: What it can do.
        info: Its name; nothing may depend on that (META-19).
        log_level: The least severe level that it wants to hear of, if the request itself says so.
        trace: Of the request's metadata what belongs to a distributed trace.
        principal: Who it is, as the transport has made sure; None where it cannot.
    """

    revision: Revision
    capabilities: Capabilities
    info: s.Implementation | None = None
    log_level: s.LoggingLevel | None = None
    trace: Mapping[str, str] = MappingProxyType({})
    principal: str | None = None

    def can(self, capability: str) -> bool:
        """Whether it has announced a capability: "roots", say, or "elicitation.url"."""
        return announced(self.capabilities, capability)


STRANGER: Final = Peer(revision=OLDEST, capabilities=s.ClientCapabilities())
"""Who has said nothing yet."""
