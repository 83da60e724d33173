"""What a handler knows and may do while its request runs.

Two classes with the same words: `Context` for `async def` handlers, `ThreadContext` for `def`
handlers, which run in a thread and whose calls block until the loop has done them.
"""

import functools
from typing import Any, Final

import attrs
import trio

from mcp_trio._engine import Handling
from mcp_trio._protocol import announced
from mcp_trio._schema import (
    ClientCapabilities,
    CreateMessageParams,
    CreateMessageResult,
    EmptyParams,
    Implementation,
    LoggingLevel,
    LoggingMessageParams,
    Root,
)
from mcp_trio._server.threads import Bridge

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
class LogGate:
    """Which log messages a session's client wants; everything until it says."""

    level: LoggingLevel = "debug"

    def lets(self, level: LoggingLevel) -> bool:
        """Whether a message of `level` is severe enough."""
        return _SEVERITY[level] >= _SEVERITY[self.level]


@attrs.define(eq=False)
class _Facts:
    """What both kinds of context know without asking anybody.

    `lifespan` is what the server's lifespan yielded; None without one.
    """

    _handling: Handling
    _gate: LogGate
    lifespan: Any

    @property
    def request_id(self) -> int | str:
        """The id that the client gave to this request."""
        return self._handling.request.id

    @property
    def revision(self) -> str:
        """The revision of the protocol that the session speaks; empty before the handshake."""
        revision = self._handling.session.connection.revision
        return "" if revision is None else revision.name

    @property
    def client_info(self) -> Implementation | None:
        """The name and version of the client; None before the handshake."""
        return self._handling.session.connection.peer_info

    @property
    def client_capabilities(self) -> ClientCapabilities | None:
        """What the client can do; None before the handshake."""
        capabilities = self._handling.session.connection.peer_capabilities
        return capabilities if isinstance(capabilities, ClientCapabilities) else None

    def client_can(self, path: str) -> bool:
        """Whether the client announced a capability, such as `roots.listChanged`."""
        return announced(self.client_capabilities, path)


@attrs.define(eq=False)
class Context(_Facts):
    """The context of an `async def` handler. Every call is a cancellation check."""

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for this request any more."""
        return self._handling.is_cancelled

    async def progress(self, progress: float, total: float | None = None) -> None:
        """Tell the client how far this request has come.

        Nothing is sent if the client did not ask, or if `progress` has not grown (PROG-06).
        """
        await self._handling.progress(progress, total)

    async def log(self, level: LoggingLevel, data: Any, *, logger: str | None = None) -> None:
        """Send a log message to the client, unless it asked for more severe ones only."""
        if self._gate.lets(level):
            params = LoggingMessageParams(level=level, data=data, logger=logger)
            await self._handling.notify("notifications/message", params)
        else:
            await trio.lowlevel.checkpoint_if_cancelled()

    async def debug(self, data: Any) -> None:
        """Log at level `debug`."""
        await self.log("debug", data)

    async def info(self, data: Any) -> None:
        """Log at level `info`."""
        await self.log("info", data)

    async def warning(self, data: Any) -> None:
        """Log at level `warning`."""
        await self.log("warning", data)

    async def error(self, data: Any) -> None:
        """Log at level `error`."""
        await self.log("error", data)

    async def list_roots(self) -> list[Root]:
        """Ask the client for its roots.

        Raises:
            LocalProtocolError: The client did not announce `roots`.
            RequestError, RequestTimeout, ConnectionLost: The client did not answer.
        """
        result = await self._handling.ask("roots/list", EmptyParams())
        roots: list[Root] = result.roots
        return roots

    async def sample(self, params: CreateMessageParams) -> CreateMessageResult:
        """Ask the client for a message of its language model.

        Raises:
            LocalProtocolError: The client did not announce `sampling`.
            RequestError, RequestTimeout, ConnectionLost: The client did not answer; code -1 means
                that the user refused.
        """
        result: CreateMessageResult = await self._handling.ask("sampling/createMessage", params)
        return result


@attrs.define(eq=False)
class ThreadContext(_Facts):
    """The context of a `def` handler: the words of `Context`, but each call blocks the thread.

    Each call raises `RequestAbandoned` once the request is over. A thread cannot be cancelled, so
    a long handler looks at `is_cancelled` now and then.
    """

    _bridge: Bridge

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for this request any more."""
        return self._bridge.is_abandoned

    @property
    def _context(self) -> Context:
        return Context(self._handling, self._gate, self.lifespan)

    def progress(self, progress: float, total: float | None = None) -> None:
        """See `Context.progress`."""
        self._bridge.call(self._context.progress, progress, total)

    def log(self, level: LoggingLevel, data: Any, *, logger: str | None = None) -> None:
        """See `Context.log`."""
        self._bridge.call(functools.partial(self._context.log, level, data, logger=logger))

    def debug(self, data: Any) -> None:
        """Log at level `debug`."""
        self.log("debug", data)

    def info(self, data: Any) -> None:
        """Log at level `info`."""
        self.log("info", data)

    def warning(self, data: Any) -> None:
        """Log at level `warning`."""
        self.log("warning", data)

    def error(self, data: Any) -> None:
        """Log at level `error`."""
        self.log("error", data)

    def list_roots(self) -> list[Root]:
        """See `Context.list_roots`."""
        return self._bridge.call(self._context.list_roots)

    def sample(self, params: CreateMessageParams) -> CreateMessageResult:
        """See `Context.sample`."""
        return self._bridge.call(self._context.sample, params)
