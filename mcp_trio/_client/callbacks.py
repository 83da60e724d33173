"""What a client does when its server asks or tells something: people's callbacks."""

from collections.abc import Awaitable, Callable
from inspect import isawaitable, signature
from typing import Any, Final, Protocol, TypeAlias

import attrs
import msgspec

from mcp_trio._client.roots import RootList, Roots, wire_roots
from mcp_trio._engine import AccompaniedSession, Handling
from mcp_trio._protocol import Method
from mcp_trio._schema import (
    ClientCapabilities,
    CreateMessageParams,
    CreateMessageResult,
    ListRootsResult,
    LoggingMessageParams,
    ResourceUpdatedParams,
    RootsCapability,
)

LogCallback: TypeAlias = Callable[[LoggingMessageParams], Awaitable[None] | None]
ResourceUpdatedCallback: TypeAlias = Callable[[ResourceUpdatedParams], Awaitable[None] | None]

ListChangedCallback: TypeAlias = Callable[[str], Awaitable[None] | None]
"""Called with the kind of the list: "tools", "resources" or "prompts"."""


class Report(Protocol):
    """Tells the server how far a request of its own has come; nothing if it did not ask for that.

    The progress grows with each report. A cancellation check.
    """

    async def __call__(self, progress: float, total: float | None = None) -> None:
        """Reports."""
        ...


Sampled: TypeAlias = CreateMessageResult | Awaitable[CreateMessageResult]
SamplingCallback: TypeAlias = (
    Callable[[CreateMessageParams], Sampled] | Callable[[CreateMessageParams, Report], Sampled]
)
"""Asks a model; with a second parameter it can say how far that has come."""

_LISTS: Final = ("tools", "resources", "prompts")


def _check_given_roots(_callbacks: object, _field: object, roots: Roots | None) -> None:
    if roots is not None and not callable(roots):
        wire_roots(roots)


@attrs.define(kw_only=True, eq=False)
class Callbacks:
    """The `Application` of a client's session.

    The engine hands in one notification after the other and logs what a callback raises. Each
    request runs in a task of its own; what its callback raises is the answer: a `RequestError` as
    it is, anything else as an internal error. `roots` may be replaced at any time.

    Raises:
        TypeError, ValueError: The roots are no function, and not what `wire_roots` takes.
    """

    log: LogCallback | None
    resource_updated: ResourceUpdatedCallback | None
    list_changed: ListChangedCallback | None
    roots: Roots | None = attrs.field(validator=_check_given_roots)
    sampling: SamplingCallback | None

    def capabilities(self) -> ClientCapabilities:
        """What the client announces: that for which it has a callback."""
        return ClientCapabilities(
            roots=None if self.roots is None else RootsCapability(list_changed=True),
            sampling=None if self.sampling is None else {},
        )

    async def handle(self, handling: Handling) -> msgspec.Struct:
        """The answer to a request; what was not announced never comes here."""
        return await _REQUESTS[handling.request.method.name](self, handling)

    def hears(self, method: Method) -> bool:
        """Whether there may be a callback for a notification."""
        return method.name in _NOTIFICATIONS

    async def notified(self, method: Method, params: Any) -> None:
        """Hand a notification to its callback, if there is one."""
        await _settled(_NOTIFICATIONS[method.name](self, params))

    async def accompany(self, session: AccompaniedSession) -> None:
        """A client does nothing by itself."""

    async def list_roots(self, _handling: Handling) -> ListRootsResult:
        """The answer to `roots/list`.

        Raises:
            TypeError, ValueError: What was given are no roots; see `wire_roots`.
        """
        roots: RootList = await _settled(self.roots() if callable(self.roots) else self.roots)
        return ListRootsResult(roots=wire_roots(roots))

    async def create_message(self, handling: Handling) -> CreateMessageResult:
        """The answer to `sampling/createMessage`.

        Raises:
            TypeError: The callback returned something else.
        """
        sampling: Any = self.sampling
        given = [handling.request.params, handling.progress]
        result: Any = await _settled(sampling(*given[: 2 if _wants_report(sampling) else 1]))
        if not isinstance(result, CreateMessageResult):
            raise TypeError(f"a sampling callback returns a CreateMessageResult, not {result!r}")
        return result

    def logged(self, params: LoggingMessageParams) -> Awaitable[None] | None:
        """The server wrote to its log."""
        return None if self.log is None else self.log(params)

    def updated(self, params: ResourceUpdatedParams) -> Awaitable[None] | None:
        """A resource that was subscribed to has changed."""
        return None if self.resource_updated is None else self.resource_updated(params)

    def changed(self, kind: str) -> Awaitable[None] | None:
        """One of the server's lists has changed."""
        return None if self.list_changed is None else self.list_changed(kind)


def _list_changed(kind: str) -> Callable[[Callbacks, Any], Awaitable[None] | None]:
    return lambda callbacks, _params: callbacks.changed(kind)


_REQUESTS: Final[dict[str, Callable[[Callbacks, Handling], Awaitable[msgspec.Struct]]]] = {
    "roots/list": Callbacks.list_roots,
    "sampling/createMessage": Callbacks.create_message,
}

_NOTIFICATIONS: Final[dict[str, Callable[[Callbacks, Any], Awaitable[None] | None]]] = {
    "notifications/message": Callbacks.logged,
    "notifications/resources/updated": Callbacks.updated,
    **{f"notifications/{kind}/list_changed": _list_changed(kind) for kind in _LISTS},
}


async def _settled(value: Any) -> Any:
    """The value that a callback gave, at once or to whoever awaits it."""
    return await value if isawaitable(value) else value


def _wants_report(sampling: Callable[..., object]) -> bool:
    """Whether one argument is not enough; a second parameter with a default is somebody's own."""
    try:
        signature(sampling).bind(None)
    except TypeError:
        return True
    return False
