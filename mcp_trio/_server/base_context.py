"""The part that `Context` and `ThreadContext` share: the properties of a request."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from mcp_trio._jsonrpc.messages import AuthInfo
from mcp_trio._protocol.metadata import Peer
from mcp_trio._protocol.suggestions import missing_attribute
from mcp_trio._session.handlers import Handling, InputResponse
from mcp_trio.types import ClientCapabilities, Implementation, LoggingLevel

if TYPE_CHECKING:
    from mcp_trio._server.handlers import ServedSession
    from mcp_trio._server.server import Server


@attrs.define(eq=False, repr=False)
class BaseContext:
    """The properties of a request and of its session, which need no waiting."""

    _handling: Handling
    _served: "ServedSession"

    if not TYPE_CHECKING:  # for a type checker it would give the class every attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(type(self).__name__, self, name)

    @property
    def server(self) -> "Server":
        """The server that has the handler; it may register and remove, and announce changes."""
        return self._served.server

    @property
    def lifespan(self) -> Any:
        """The value that the server's lifespan yielded; None without a lifespan."""
        return self._served.lifespan

    @property
    def state(self) -> dict[str, Any]:
        """A dict in which handlers and middleware keep what belongs to the session.

        Servers that are mounted into the server of the session have the same dict. It is empty when
        the session begins. A replay runs all requests of the session, and so fills it in the same
        way. Each stateless request over HTTP has its own.
        """
        return self._served.state

    @property
    def request_id(self) -> int | str:
        """The id of this request."""
        return self._handling.request.id

    @property
    def method(self) -> str:
        """The method of this request, such as `tools/call`."""
        return self._handling.request.method.name

    @property
    def progress_token(self) -> int | str | None:
        """The client's token for progress notifications; None if it asked for none."""
        return self._handling.request.progress_token

    @property
    def log_level(self) -> LoggingLevel | None:
        """The least severe level of log messages that the client receives; None: it receives none.

        A stateless request contains the level. Otherwise `logging/setLevel` sets it for the
        session, which begins with "debug".
        """
        peer = self._peer
        return peer.log_level if peer.protocol_version.is_stateless else self._served.log_level

    @property
    def protocol_version(self) -> str:
        """The protocol version of this request."""
        return self._peer.protocol_version.name

    @property
    def client_info(self) -> Implementation | None:
        """The name and version of the client, if it sent them; they are not verified."""
        return self._peer.info

    @property
    def client_capabilities(self) -> ClientCapabilities:
        """The capabilities that the client declared."""
        capabilities = self._peer.capabilities
        assert isinstance(capabilities, ClientCapabilities)
        return capabilities

    def client_can(self, path: str) -> bool:
        """Return whether the client declared a capability, such as "elicitation.url"."""
        return self._peer.can(path)

    @property
    def auth(self) -> AuthInfo | None:
        """The verified facts about the sender of this request; None without authentication."""
        return self._served.auth_of(self._handling)

    @property
    def principal(self) -> str | None:
        """The name of the user or client that is authenticated; None without authentication."""
        auth = self.auth
        return None if auth is None else auth.principal

    @property
    def trace(self) -> Mapping[str, str]:
        """The trace context of the request: `traceparent`, `tracestate` and `baggage`."""
        return self._peer.trace

    @property
    def input_responses(self) -> Mapping[str, InputResponse]:
        """The client's answers by key, if this is a retry after an `InputRequiredResult`."""
        return self._handling.input_responses

    @property
    def request_state(self) -> str | None:
        """The `request_state` of that result; None if this is no retry, or it had none."""
        return self._handling.request_state

    @property
    def _peer(self) -> Peer:
        return self._handling.request.peer
