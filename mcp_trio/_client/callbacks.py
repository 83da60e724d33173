"""What a client does when its server asks or tells something: people's callbacks."""

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Any, Final, TypeAlias

import attrs
import msgspec

from mcp_trio._engine import Handling
from mcp_trio._protocol import Method
from mcp_trio._schema import (
    ClientCapabilities,
    CreateMessageParams,
    CreateMessageResult,
    EmptyParams,
    ListRootsResult,
    LoggingMessageParams,
    ResourceUpdatedParams,
    Root,
    RootsCapability,
)

LogCallback: TypeAlias = Callable[[LoggingMessageParams], Awaitable[None] | None]
ResourceUpdatedCallback: TypeAlias = Callable[[ResourceUpdatedParams], Awaitable[None] | None]

ListChangedCallback: TypeAlias = Callable[[str], Awaitable[None] | None]
"""Called with the kind of the list: "tools", "resources" or "prompts"."""

SamplingCallback: TypeAlias = Callable[[CreateMessageParams], Awaitable[CreateMessageResult]]

RootList: TypeAlias = Sequence[Root | str]
Roots: TypeAlias = RootList | Callable[[], RootList | Awaitable[RootList]]
"""Roots or their `file://` URIs; a list is read, and a function called, whenever a server asks."""

_LISTS: Final = ("tools", "resources", "prompts")
_ROOT_SCHEME: Final = "file://"


@attrs.frozen(kw_only=True)
class Callbacks:
    """The `Application` of a client's session.

    The engine hands in one notification after the other and logs what a callback raises. Each
    request runs in a task of its own; what its callback raises is the answer: a `RequestError` as
    it is, anything else as an internal error.
    """

    log: LogCallback | None = None
    resource_updated: ResourceUpdatedCallback | None = None
    list_changed: ListChangedCallback | None = None
    roots: Roots | None = None
    sampling: SamplingCallback | None = None

    def capabilities(self) -> ClientCapabilities:
        """What the client announces: that for which it has a callback."""
        return ClientCapabilities(
            roots=None if self.roots is None else RootsCapability(list_changed=True),
            sampling=None if self.sampling is None else {},
        )

    async def handle(self, handling: Handling) -> msgspec.Struct:
        """The answer to a request; what was not announced never comes here."""
        request = handling.request
        return await _REQUESTS[request.method.name](self, request.params)

    async def notified(self, method: Method, params: Any) -> None:
        """Hand a notification to its callback, if there is one."""
        await _settled(_NOTIFICATIONS[method.name](self, params))

    async def list_roots(self, _params: EmptyParams) -> ListRootsResult:
        """The answer to `roots/list`.

        Raises:
            ValueError: The URI of a root is not a `file://` one (ROOT-05).
        """
        roots: RootList = await _settled(self.roots() if callable(self.roots) else self.roots)
        return ListRootsResult(roots=[_root(root) for root in roots])

    async def create_message(self, params: CreateMessageParams) -> CreateMessageResult:
        """The answer to `sampling/createMessage`.

        Raises:
            TypeError: The callback returned something else.
        """
        assert self.sampling is not None
        result: Any = await self.sampling(params)
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


_REQUESTS: Final[dict[str, Callable[[Callbacks, Any], Awaitable[msgspec.Struct]]]] = {
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


def _root(root: Root | str) -> Root:
    root = Root(uri=root) if isinstance(root, str) else root
    if not root.uri.startswith(_ROOT_SCHEME):
        raise ValueError(f"the URI of a root starts with {_ROOT_SCHEME}, unlike {root.uri!r}")
    return root
