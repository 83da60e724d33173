"""Middleware: users' functions round every request and notification that a server handles.

`Server.middleware` documents the order and what a middleware may do. A middleware runs in the task
of the handler, inside of its lane: what it does with the context of the request is recorded, and
replayed, like what the handler does.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, cast

import attrs
import msgspec

from mcp_trio._protocol.methods import METHODS
from mcp_trio._server.context import Context
from mcp_trio._server.introspection import name_of
from mcp_trio.errors import ToolError
from mcp_trio.types import CallToolParams, CallToolResult

logger = logging.getLogger("mcp_trio")


@attrs.frozen(kw_only=True, eq=False)
class MiddlewareRequest:
    """A request, or a notification, on its way to its handler.

    Attributes:
        method: The method, such as "tools/call".
        params: The typed params of the method, such as `CallToolParams`.
        context: The context of the request; None for a notification.
    """

    method: str
    params: Any
    context: Context | None

    @property
    def name(self) -> str | None:
        """The `name` or `uri` in the params: of the tool, prompt or resource; None without one."""
        name: object = getattr(self.params, "name", None) or getattr(self.params, "uri", None)
        return name if isinstance(name, str) else None

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of a tool or prompt as plain Python objects, not validated yet.

        Raises:
            msgspec.DecodeError: The arguments of the tool cannot be decoded.
        """
        arguments: Any = getattr(self.params, "arguments", None)
        if isinstance(arguments, msgspec.Raw):
            arguments = msgspec.json.decode(arguments)
        return cast("Mapping[str, Any]", arguments or {})

    def with_arguments(self, arguments: Mapping[str, Any]) -> "MiddlewareRequest":
        """Return the same request with other arguments, for `call_next`.

        Raises:
            TypeError: The method has no arguments, or they cannot be encoded as JSON.
        """
        if not hasattr(self.params, "arguments"):
            raise TypeError(f"{self.method} has no arguments")
        given: Any = dict(arguments)
        if isinstance(self.params, CallToolParams):
            given = msgspec.Raw(msgspec.json.encode(given))
        return attrs.evolve(self, params=msgspec.structs.replace(self.params, arguments=given))


CallNext: TypeAlias = Callable[[MiddlewareRequest], Awaitable[Any]]
"""Runs the next middleware, or the handler; returns the typed result, None for a notification."""

Middleware: TypeAlias = Callable[[MiddlewareRequest, CallNext], Awaitable[Any]]


async def run_through(
    middleware: Sequence[Middleware], request: MiddlewareRequest, last: CallNext
) -> Any:
    """Run the middleware round `last`, the first one outermost, and return the result."""
    call_next = last
    for each in reversed(middleware):
        call_next = partial(_call_middleware, each, call_next)
    return await call_next(request)


async def _call_middleware(
    middleware: Middleware, call_next: CallNext, request: MiddlewareRequest
) -> Any:
    """Call a middleware, and check that it returned a result for a request."""
    result = await middleware(request, call_next)
    if request.context is not None and not isinstance(result, msgspec.Struct | msgspec.Raw):
        raise TypeError(
            f"the middleware {name_of(middleware)!r} returned {result!r} for {request.method}:"
            " return the result of call_next(request), or another result of the method"
        )
    return result


def typed_result(method: str, result: msgspec.Struct | msgspec.Raw) -> msgspec.Struct | msgspec.Raw:
    """Return an encoded result, such as a page of a list, as the type of its method."""
    if not isinstance(result, msgspec.Raw) or method not in METHODS:
        return result
    return cast("msgspec.Struct", METHODS[method].decode_result(result))


# Middleware that users can add ------------------------------------------------------------------


@attrs.define(eq=False)
class LogRequests:
    """A middleware that logs one line for each request, with its outcome and its duration.

    For structured logs, the log record has the attributes `method`, `target` (the name or URI),
    `outcome` ("ok", "failed", "cancelled" or the class of an exception) and `milliseconds`.
    """

    level: int = logging.INFO

    async def __call__(self, request: MiddlewareRequest, call_next: CallNext) -> Any:
        """Run the request, and log it."""
        outcome, begin = "cancelled", time.perf_counter()
        try:
            result = await call_next(request)
            is_failure = isinstance(result, CallToolResult) and result.is_error
            outcome = "failed" if is_failure else "ok"
        except Exception as error:
            outcome = type(error).__name__
            raise
        finally:
            milliseconds = round((time.perf_counter() - begin) * 1000, 3)
            logger.log(
                self.level,
                "%s %r: %s in %.1f ms",  # the client chooses the name: %r escapes line breaks
                request.method,
                request.name,
                outcome,
                milliseconds,
                extra={
                    "method": request.method,
                    "target": request.name,
                    "outcome": outcome,
                    "milliseconds": milliseconds,
                },
            )
        return result


@attrs.define(eq=False)
class ResultLimit:
    """A middleware that replaces results of tools beyond a size by an error that the model reads.

    Attributes:
        bytes_max: The size of the encoded result.
    """

    bytes_max: int = attrs.field(validator=attrs.validators.gt(0))

    async def __call__(self, request: MiddlewareRequest, call_next: CallNext) -> Any:
        """Run the request, and check the size of its result.

        Raises:
            ToolError: The result is too large.
        """
        result = await call_next(request)
        if request.method == "tools/call":
            size = len(msgspec.json.encode(result))
            if size > self.bytes_max:
                raise ToolError(
                    f"the result has {size} bytes, more than {self.bytes_max}: ask for less"
                )
        return result


_CACHED_MAX: Final = 1_000
_CACHED_BYTES_MAX: Final = 16 * 1024 * 1024


def _checked_tools(tools: Collection[str]) -> Collection[str]:
    if isinstance(tools, str):
        raise TypeError(f"tools are a set of names: write {{{tools!r}}}")
    return tools


@attrs.define(eq=False)
class CacheResults:
    """A middleware that keeps the results of tools for a time, for each client and its rights.

    A client gets a kept result only if it may call the tool at that time.
    A result that was found is recorded, so that a replay of one session repeats it. The newest
    1,000 results are kept, as far as they and their arguments have at most 16 MiB together.

    Attributes:
        tools: The names of the tools. Their results should depend on the arguments only.
        seconds: The time for which a result is kept.
    """

    tools: Collection[str] = attrs.field(converter=_checked_tools)
    seconds: float = attrs.field(validator=attrs.validators.gt(0))
    # The JSON text of each result, and the time until which it is kept; and the size of all texts.
    _kept: dict[bytes, tuple[bytes, float]] = attrs.field(factory=dict[Any, Any], init=False)
    _size_bytes: int = attrs.field(default=0, init=False)

    async def __call__(self, request: MiddlewareRequest, call_next: CallNext) -> Any:
        """Return the kept result of such a call, or run it and keep its result."""
        context = request.context
        if context is None or request.method != "tools/call" or request.name not in self.tools:
            return await call_next(request)
        # The rights of a client can depend on all facts about it. Servers may share this object.
        # The result depends on the protocol version: before 2026-07-28 it wraps values that are not
        # objects.
        auth = None if context.auth is None else context.auth.members()
        server, version = context.server.name, context.protocol_version
        parts = [auth, server, version, request.name, request.arguments]
        key = msgspec.json.encode(parts, order="sorted")
        found = await context.effect(self._find, key.decode())
        served, handling = context._served, context._handling  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if found is not None and await served.may_call(handling, request.params.name):
            return METHODS[request.method].decode_result(msgspec.Raw(found.encode()))
        result = await call_next(request)
        if isinstance(result, CallToolResult) and not result.is_error:
            text = msgspec.json.encode(result)
            self._drop(key)  # a new result of an old key becomes the newest
            size = len(key) + len(text)
            if size > _CACHED_BYTES_MAX:
                return result
            self._kept[key] = text, time.monotonic() + self.seconds
            self._size_bytes += size
            while len(self._kept) > _CACHED_MAX or self._size_bytes > _CACHED_BYTES_MAX:
                self._drop(next(iter(self._kept)))
        return result

    def _drop(self, key: bytes) -> None:
        if key in self._kept:
            text, _ = self._kept.pop(key)
            self._size_bytes -= len(key) + len(text)

    async def _find(self, key: str) -> str | None:
        """Return the JSON text of a kept result."""
        text, until = self._kept.get(key.encode(), (b"", 0.0))
        return text.decode() if time.monotonic() < until else None
