"""What a handler may do while its request runs.

Two classes with the same words: `Context` for `async def` handlers, `ThreadContext` for `def`
handlers, which run in a thread and whose calls block until the loop has done them.
"""

import functools
from typing import Any

import attrs
import trio

from mcp_trio._schema import LoggingLevel, LoggingMessageParams, ResourceContents
from mcp_trio._server.asking import Asking, ThreadAsking


@attrs.define(eq=False)
class Context(Asking):
    """The context of an `async def` handler. Whatever is awaited is a cancellation check."""

    _limiter: trio.CapacityLimiter | None = None

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for this request any more."""
        return self._handling.is_cancelled

    async def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Tell the client how far this request has come, and in words where it takes them.

        Nothing is sent if the client did not ask, or if `progress` has not grown (PROG-06).
        """
        await self._handling.progress(progress, total, message)

    async def log(self, level: LoggingLevel, data: Any, *, logger: str | None = None) -> None:
        """Send a log message to the client, unless it asked for more severe ones only.

        Raises:
            ValueError: There is no such level.
        """

        def make() -> LoggingMessageParams | None:
            if not self._gate.lets(level):
                return None
            return LoggingMessageParams(level=level, data=data, logger=logger)

        await self._handling.notify_if("notifications/message", make)

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


@attrs.define(eq=False)
class ThreadContext(ThreadAsking):
    """The context of a `def` handler: the words of `Context`, but each call blocks the thread.

    Each call for the loop to do raises `RequestAbandoned` once the request is over. A thread cannot
    be cancelled, so a long handler looks at `is_cancelled` now and then.
    """

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for this request any more."""
        return self._bridge.is_abandoned

    @property
    def _context(self) -> Context:
        return Context(self._handling, self._served)

    def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """See `Context.progress`."""
        self._bridge.call(self._context.progress, progress, total, message)

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
