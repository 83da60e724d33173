"""The facts of a request and its session, which a context offers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs
import trio

from mcp_trio._protocol.forms import OpenElicitations
from mcp_trio._protocol.metadata import Peer
from mcp_trio._server.registration import Offering
from mcp_trio._session.handlers import Handling, InputResponse
from mcp_trio.types import ClientCapabilities, Implementation, LoggingLevel, ReadResourceResult

if TYPE_CHECKING:
    import httpx2


# From the least to the most severe, as in RFC 5424.
LEVELS: Final[tuple[LoggingLevel, ...]] = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)
_SEVERITY: Final = {level: severity for severity, level in enumerate(LEVELS)}


@attrs.define
class LogLevelFilter:
    """Which log messages a client wants; everything until it says, and nothing for None."""

    level: LoggingLevel | None = "debug"

    def lets(self, level: LoggingLevel) -> bool:
        """Return whether a message of `level` is severe enough.

        Raises:
            ValueError: There is no such level.
        """
        severity = _SEVERITY.get(level)
        if severity is None:
            raise ValueError(f"unknown level {level!r}: choose from {', '.join(LEVELS)}")
        return self.level is not None and severity >= _SEVERITY[self.level]


class HttpOwner(Protocol):
    """Who keeps the session's HTTP client."""

    @property
    def client(self) -> "httpx2.AsyncClient":
        """The client, made at first need."""
        ...


class ServedSession(Protocol):
    """The server's side of the session that a request came by."""

    server: Offering
    lifespan: Any
    log_level_filter: LogLevelFilter

    @property
    def elicitations(self) -> OpenElicitations:
        """The visits of URLs that its client was asked for."""
        ...

    @property
    def http(self) -> HttpOwner:
        """What `ctx.http` comes from."""
        ...

    async def read(
        self, handling: Handling, uri: str, *, limiter: trio.CapacityLimiter | None = None
    ) -> ReadResourceResult:
        """What a resource of the server's own holds; `limiter` is for handlers in threads."""
        ...


@attrs.define(eq=False)
class Facts:
    """What both kinds of context know without asking anybody."""

    _handling: Handling
    _served: ServedSession

    @property
    def server(self) -> Offering:
        """The server: to register, to remove, and to tell what has changed."""
        return self._served.server

    @property
    def lifespan(self) -> Any:
        """What the server's lifespan yielded; None without one."""
        return self._served.lifespan

    @property
    def _peer(self) -> Peer:
        return self._handling.request.peer

    @property
    def _log_level_filter(self) -> LogLevelFilter:
        """A modern request says itself what it wants to hear of, and else hears of nothing."""
        peer = self._peer
        return (
            LogLevelFilter(peer.log_level)
            if peer.protocol_version.is_stateless
            else self._served.log_level_filter
        )

    @property
    def log_level(self) -> LoggingLevel | None:
        """The least severe level that the client wants to hear of; None: it wants none."""
        return self._log_level_filter.level

    @property
    def request_id(self) -> int | str:
        """The id that the client gave to this request."""
        return self._handling.request.id

    @property
    def method(self) -> str:
        """The method of this request, such as `tools/call`."""
        return self._handling.request.method.name

    @property
    def progress_token(self) -> int | str | None:
        """What the client asked for progress with; None if it did not ask."""
        return self._handling.request.progress_token

    @property
    def protocol_version(self) -> str:
        """The revision of the protocol that the client speaks."""
        return self._peer.protocol_version.name

    @property
    def client_info(self) -> Implementation | None:
        """The name and version of the client, if it has said them; nothing may depend on them."""
        return self._peer.info

    @property
    def client_capabilities(self) -> ClientCapabilities:
        """What the client can do."""
        capabilities = self._peer.capabilities
        assert isinstance(capabilities, ClientCapabilities)
        return capabilities

    def client_can(self, path: str) -> bool:
        """Return whether the client announced a capability, such as `elicitation.url`."""
        return self._peer.can(path)

    @property
    def principal(self) -> str | None:
        """Who sends this request, as its transport has made sure; None where nobody verifies."""
        return self._peer.principal

    @property
    def trace(self) -> Mapping[str, str]:
        """What the request says of a distributed trace: `traceparent`, `tracestate`, `baggage`."""
        return self._peer.trace

    @property
    def input_responses(self) -> Mapping[str, InputResponse]:
        """The client's answers, if this is a retry after an `InputRequiredResult`, by key."""
        return self._handling.input_responses

    @property
    def request_state(self) -> str | None:
        """What that result said that is to come back; None if this is no retry."""
        return self._handling.request_state
