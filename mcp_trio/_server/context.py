"""What a handler knows and may do while its request runs.

Two classes with the same words: `Context` for `async def` handlers, `ThreadContext` for `def`
handlers, which run in a thread and whose calls block until the loop has done them.
"""

import functools
from typing import Any, Final, Protocol, Unpack

import attrs
import trio

from mcp_trio._engine import Handling, ProgressCallback
from mcp_trio._protocol import announced
from mcp_trio._schema import (
    ClientCapabilities,
    CreateMessageResult,
    EmptyParams,
    Implementation,
    LoggingLevel,
    LoggingMessageParams,
    ReadResourceResult,
    ResourceContents,
    Root,
)
from mcp_trio._server.offering import Offering
from mcp_trio._server.sampling import Question, SamplingOptions, sampling_params
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
        """Whether a message of `level` is severe enough.

        Raises:
            ValueError: There is no such level.
        """
        severity = _SEVERITY.get(level)
        if severity is None:
            raise ValueError(f"unknown level {level!r}: choose from {', '.join(LEVELS)}")
        return severity >= _SEVERITY[self.level]


class ServedSession(Protocol):
    """The server's side of the session that a request came by."""

    server: Offering
    lifespan: Any
    gate: LogGate

    async def read(
        self, handling: Handling, uri: str, *, limiter: trio.CapacityLimiter | None = None
    ) -> ReadResourceResult:
        """What a resource of the server's own holds; `limiter` is for handlers in threads."""
        ...


@attrs.define(eq=False)
class _Facts:
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
    def log_level(self) -> LoggingLevel:
        """The least severe level that the client wants to hear of."""
        return self._served.gate.level

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

    _limiter: trio.CapacityLimiter | None = None

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
        """Send a log message to the client, unless it asked for more severe ones only.

        Raises:
            ValueError: There is no such level.
        """
        if self._served.gate.lets(level):
            params = LoggingMessageParams(level=level, data=data, logger=logger)
            await self._handling.notify("notifications/message", params)
        else:
            await trio.lowlevel.checkpoint_if_cancelled()

    async def debug(self, data: Any, *, logger: str | None = None) -> None:
        """Log at level `debug`."""
        await self.log("debug", data, logger=logger)

    async def info(self, data: Any, *, logger: str | None = None) -> None:
        """Log at level `info`."""
        await self.log("info", data, logger=logger)

    async def warning(self, data: Any, *, logger: str | None = None) -> None:
        """Log at level `warning`."""
        await self.log("warning", data, logger=logger)

    async def error(self, data: Any, *, logger: str | None = None) -> None:
        """Log at level `error`."""
        await self.log("error", data, logger=logger)

    async def ping(self) -> None:
        """Wait for a sign of life from the client.

        Raises:
            RequestError, RequestTimeout, ConnectionLost: There was none.
        """
        await self._handling.ask("ping")

    async def read_resource(self, uri: str) -> list[ResourceContents]:
        """What a resource of this server holds; its handler runs here, as part of this request.

        Raises:
            RequestError: There is none, or the URI is refused; unless it is caught, the request is
                answered so.
            Exception: What its handler raises.
        """
        result = await self._served.read(self._handling, uri, limiter=self._limiter)
        return result.contents

    async def list_roots(self) -> list[Root]:
        """Ask the client for its roots.

        Raises:
            LocalProtocolError: The client did not announce `roots`.
            RequestError, RequestTimeout, ConnectionLost: The client did not answer.
        """
        result = await self._handling.ask("roots/list", EmptyParams())
        roots: list[Root] = result.roots
        return roots

    async def sample(
        self,
        question: Question,
        *,
        progress: ProgressCallback | None = None,
        **options: Unpack[SamplingOptions],
    ) -> CreateMessageResult:
        """Ask the client for a message of its language model.

        The question is a text, a conversation (a list of texts, contents and messages), or all
        params; options such as `max_tokens` and `system_prompt` win over these. `progress` is
        called with the client's reports, in this task.

        Raises:
            LocalProtocolError: The client did not announce `sampling`.
            RequestError, RequestTimeout, ConnectionLost: The client did not answer; code -1 means
                that the user refused.
        """
        params = sampling_params(question, options)
        result: CreateMessageResult = await self._handling.ask(
            "sampling/createMessage", params, on_progress=progress
        )
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
        return Context(self._handling, self._served)

    def progress(self, progress: float, total: float | None = None) -> None:
        """See `Context.progress`."""
        self._bridge.call(self._context.progress, progress, total)

    def log(self, level: LoggingLevel, data: Any, *, logger: str | None = None) -> None:
        """See `Context.log`."""
        self._bridge.call(functools.partial(self._context.log, level, data, logger=logger))

    def debug(self, data: Any, *, logger: str | None = None) -> None:
        """Log at level `debug`."""
        self.log("debug", data, logger=logger)

    def info(self, data: Any, *, logger: str | None = None) -> None:
        """Log at level `info`."""
        self.log("info", data, logger=logger)

    def warning(self, data: Any, *, logger: str | None = None) -> None:
        """Log at level `warning`."""
        self.log("warning", data, logger=logger)

    def error(self, data: Any, *, logger: str | None = None) -> None:
        """Log at level `error`."""
        self.log("error", data, logger=logger)

    def ping(self) -> None:
        """See `Context.ping`."""
        self._bridge.call(self._context.ping)

    def read_resource(self, uri: str) -> list[ResourceContents]:
        """See `Context.read_resource`."""
        # This thread keeps its place while the resource's handler, or one below, may need another.
        limiter = trio.CapacityLimiter(1)
        read = functools.partial(self._served.read, limiter=limiter)
        return self._bridge.call(read, self._handling, uri).contents

    def list_roots(self) -> list[Root]:
        """See `Context.list_roots`."""
        return self._bridge.call(self._context.list_roots)

    def sample(self, question: Question, **options: Unpack[SamplingOptions]) -> CreateMessageResult:
        """See `Context.sample`; reports of progress are not handed on."""
        return self._bridge.call(functools.partial(self._context.sample, question, **options))
