"""`ClientGroup`: several servers behind one object, with prefixed names.

A tool or prompt `plan` of the server `weather` is `weather_plan` here. No prefix may begin another,
so that a name means one server, whatever the servers call their things. Resources keep their URIs,
which are not ours to change: who has one is asked.

Each server has a `Client` with a session of its own, so that what happens to one does not touch the
others. Lists, for which all are asked at once, leave a server out that has ended; the log says so.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar, Unpack, cast, overload

import attrs
import msgspec
import trio

from mcp_trio import types
from mcp_trio._client.client import CallOptions, Client, ClientOptions, GroupOptions
from mcp_trio._client.config import ConfigSource, read_config
from mcp_trio._client.connect import Target, in_system_task, starts_command
from mcp_trio._client.results import reference
from mcp_trio._session.tasks import together
from mcp_trio.errors import ConnectionLost, LocalProtocolError, RequestError

logger = logging.getLogger("mcp_trio")

Named = TypeVar("Named", types.Tool, types.Prompt)
Item = TypeVar("Item")
Answer = TypeVar("Answer")
T = TypeVar("T")

_NOTE: Final = "this was the server {!r}"
_KINDS: Final[dict[Callable[..., object], str]] = {
    Client.list_tools: "tools",
    Client.list_prompts: "prompts",
    Client.list_resources: "resources",
    Client.list_resource_templates: "resources",
}


@attrs.define(init=False, eq=False, repr=False)
class ClientGroup:
    """Clients of several servers; `async with ClientGroup({"weather": target, …}) as group:`.

    `group["weather"]` is the client of one. Options are those of `Client`, but that a callback, and
    a function that gives roots, gets the server's name as its first argument. `record` is a folder,
    or a `SharedRecording`. How commands are started is said for each, by a `ServerConfig`. A group
    opens once.

    Attributes:
        servers: What is connected when the group opens, by name.
        separator: What stands between the name of a server and that of its tool or prompt.

    Raises:
        ValueError: A server's name is empty, or the prefix that it makes begins another's.
    """

    servers: Mapping[str, Target]
    separator: str
    _options: GroupOptions
    _clients: dict[str, Client]
    _leaving: set[Client]
    _is_opened_once: bool
    _is_open: bool

    def __init__(
        self,
        servers: Mapping[str, Target],
        *,
        separator: str = "_",
        **options: Unpack[GroupOptions],
    ) -> None:
        self.servers = dict(servers)
        self.separator = separator
        self._options = options
        self._clients, self._leaving = {}, set()
        self._is_opened_once = self._is_open = False
        names = list(servers)
        for position, name in enumerate(names):
            self._check_name(name, names[:position])

    @classmethod
    def from_config(
        cls, source: ConfigSource, *, separator: str = "_", **options: Unpack[GroupOptions]
    ) -> Self:
        """A group of the servers of a configuration file, without those that are disabled.

        Raises:
            ConfigError: See `read_config`.
            ValueError: See the class.
        """
        servers = read_config(source)
        enabled = {name: config for name, config in servers.items() if not config.disabled}
        return cls(enabled, separator=separator, **options)

    # Connecting and closing.

    async def __aenter__(self) -> Self:
        """Connect to all servers at the same time.

        If one cannot be reached the others are closed, and its error arrives as it is, with a note
        that names the server. Cancelled: returns at once; `aclose` waits for what was started.

        Raises:
            MCPError: As entering a `Client`.
        """
        if self._is_opened_once:
            raise RuntimeError("a group opens once: make another")
        self._is_opened_once = self._is_open = True
        try:
            for name, target in self.servers.items():
                self._clients[name] = self._client(name, target)
            clients = dict(self._clients)
            await together(clients, lambda name: clients[name].__aenter__(), note=_NOTE)
        except Exception:
            await self.aclose()
            raise
        except BaseException:
            self._shut()
            raise
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all clients at the same time; otherwise like `Client.aclose`."""
        self._is_open = False
        with trio.CancelScope(shield=True):
            await together([*self._clients.values(), *self._leaving], Client.aclose, note=_NOTE)

    async def add(self, name: str, target: Target) -> Client:
        """Connect to one more server; failed, or cancelled, the group is as it was.

        Cancelled: returns at once; `aclose` waits for what was started.

        Raises:
            ValueError: The name is empty or taken, or its prefix and another one begin alike.
            LocalProtocolError: The group was not opened.
            ConnectionLost: It was closed, or the server could not be reached.
            MCPError: As entering a `Client`.
        """
        self._check_opened()
        if not self._is_open:
            raise ConnectionLost("the group was closed")
        self._check_name(name, self._clients)
        client = self._clients[name] = self._client(name, target)
        try:
            return await client.__aenter__()
        except BaseException:
            if self._clients.get(name) is client:
                del self._clients[name]
            self._leaving.add(client)
            in_system_task(partial(self._see_off, client))
            raise

    async def remove(self, name: str) -> None:
        """Close the client of a server, and forget it; its calls in flight end as lost.

        Raises:
            LookupError: There is no such server.
        """
        client = self._clients.pop(self._known(name))
        self._leaving.add(client)
        await self._see_off(client)

    # What is in the group.

    def __repr__(self) -> str:
        state = "open" if self._is_open else "not open"
        return f"<{type(self).__name__} of {', '.join(self._clients) or 'nothing'}, {state}>"

    def __getitem__(self, name: str) -> Client:
        """The client of one server.

        Raises:
            LookupError: There is no such server.
        """
        return self._clients[self._known(name)]

    @property
    def clients(self) -> Mapping[str, Client]:
        """The client of each server, by name; those too that still connect or have ended."""
        return MappingProxyType(self._clients)

    # Calls. Each raises what that of `Client` raises, and LookupError when no server is meant.

    async def list_tools(self, **options: Unpack[CallOptions]) -> list[types.Tool]:
        """All tools of all servers, under the names by which `call_tool` knows them."""
        return self._renamed(await self._lists(Client.list_tools, options))

    async def list_prompts(self, **options: Unpack[CallOptions]) -> list[types.Prompt]:
        """All prompts of all servers, under the names by which `get_prompt` knows them."""
        return self._renamed(await self._lists(Client.list_prompts, options))

    async def list_resources(self, **options: Unpack[CallOptions]) -> list[types.Resource]:
        """All resources of all servers."""
        return _joined(await self._lists(Client.list_resources, options))

    async def list_resource_templates(
        self, **options: Unpack[CallOptions]
    ) -> list[types.ResourceTemplate]:
        """All resource templates of all servers."""
        return _joined(await self._lists(Client.list_resource_templates, options))

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        raise_tool_errors: bool | None = None,
        **options: Unpack[CallOptions],
    ) -> types.CallToolResult: ...

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        result_type: type[T],
        **options: Unpack[CallOptions],
    ) -> T: ...

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """What the tool of a server gave back; with `result_type` a value of that type."""
        client, own_name = self._owner(name)
        return await client.call_tool(own_name, arguments, **options)

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        **options: Unpack[CallOptions],
    ) -> types.GetPromptResult:
        """A prompt of a server, filled in."""
        client, own_name = self._owner(name)
        return await client.get_prompt(own_name, arguments, **options)

    async def read_resource(
        self, uri: str, *, server: str | None = None, **options: Unpack[CallOptions]
    ) -> types.ReadResourceResult:
        """The contents of a resource of `server`, or else of the one that has it.

        To find that one, all are asked for their lists. If none lists the URI, those are asked for
        it, one after the other, whose templates begin like it. The budgets hold for each request.

        Raises:
            LookupError: None lists it or a template that it could come from.
            ValueError: Several list it: say which one is meant.
        """
        return await self._first(
            await self._holders(uri, server, options),
            lambda client: client.read_resource(uri, **options),
        )

    async def complete(
        self,
        ref: types.Reference | str,
        argument: str,
        value: str,
        *,
        server: str | None = None,
        **options: Unpack[CallOptions],
    ) -> types.CompleteResult:
        """How an argument could go on; who has a resource template is found like a resource."""
        ref = reference(ref)
        if isinstance(ref, types.PromptReference):
            client, own_name = self._owner(ref.name)
            own_ref = types.PromptReference(name=own_name)
            return await client.complete(own_ref, argument, value, **options)
        return await self._first(
            await self._holders(ref.uri, server, options),
            lambda client: client.complete(ref, argument, value, **options),
        )

    # Names.

    def _check_name(self, name: str, others: Collection[str]) -> None:
        if not name:
            raise ValueError("a server of a group needs a name")
        if name in others:
            raise ValueError(f"the group has a server {name!r} already")
        prefix = self._prefix(name)
        for other in others:
            if prefix.startswith(self._prefix(other)) or self._prefix(other).startswith(prefix):
                raise ValueError(
                    f"{prefix!r} and {self._prefix(other)!r} begin alike, so that names would mean"
                    " two servers: take another name, or another separator"
                )

    def _prefix(self, server: str) -> str:
        return server + self.separator

    def _check_opened(self) -> None:
        if not self._is_opened_once:
            raise LocalProtocolError("the group is not open: use `async with`")

    def _known(self, name: str) -> str:
        self._check_opened()
        if name not in self._clients:
            raise LookupError(
                f"no server of the group is called {name!r}; there is {_listed(self._clients)}"
            )
        return name

    def _owner(self, name: str) -> tuple[Client, str]:
        """The client that a name means, and what its server calls the same thing."""
        self._check_opened()
        for server, client in self._clients.items():
            if name.startswith(self._prefix(server)):
                return client, name.removeprefix(self._prefix(server))
        prefixes = _listed(map(self._prefix, self._clients))
        raise LookupError(
            f"no server of the group has a prefix that {name!r} begins with; there is {prefixes}"
        )

    def _renamed(self, lists: Mapping[str, list[Named]]) -> list[Named]:
        return [
            msgspec.structs.replace(item, name=self._prefix(server) + item.name)
            for server, items in lists.items()
            for item in items
        ]

    # Who is asked.

    async def _lists(
        self, read: Callable[..., Awaitable[list[Item]]], options: CallOptions
    ) -> dict[str, list[Item]]:
        """The items of each server that can have such."""
        self._check_opened()

        async def ask(name: str) -> list[Item]:
            try:
                return await read(asked[name], **options)
            except ConnectionLost as error:
                if not self._is_open:
                    raise
                logger.warning("the server %r is left out: %s", name, error.reason)
                return []

        kind = _KINDS[read]
        asked = {name: client for name, client in self._clients.items() if _offers(client, kind)}
        return await together(asked, ask, note=_NOTE)

    async def _holders(self, uri: str, server: str | None, options: CallOptions) -> list[str]:
        """The servers to ask for a URI, or for a template by its text, one after the other."""
        if server is not None:
            return [self._known(server)]
        resources = await self._lists(Client.list_resources, options)
        templates = await self._lists(Client.list_resource_templates, options)
        heads = [
            (template.uri_template, name) for name, items in templates.items() for template in items
        ]
        exact = {name for text, name in heads if text == uri}
        exact |= {name for name, items in resources.items() if any(r.uri == uri for r in items)}
        if len(exact) > 1:
            raise ValueError(
                f"{uri!r} is listed by {sorted(exact)}: say which is meant by `server`"
            )
        names = list(exact) or _by_head(uri, heads)
        if not names:
            gone = [name for name, client in self._clients.items() if not client.is_open]
            raise LookupError(
                f"no server of the group lists {uri!r}, or a template that begins like it"
                + (f"; not connected: {_listed(gone)}" if gone else "")
            )
        return names

    async def _first(self, names: list[str], ask: Callable[[Client], Awaitable[Answer]]) -> Answer:
        """The first answer that is no error; the last error when all are."""
        *others, last = names
        for name in others:
            try:
                return await ask(self[name])
            except RequestError as error:
                logger.debug("the server %r has not got it: %s", name, error)
        return await ask(self[last])

    # Clients.

    def _client(self, name: str, target: Target) -> Client:
        options: dict[str, Any] = {
            option: partial(value, name) if callable(value) else value
            for option, value in self._options.items()
        }
        if not starts_command(target):
            options.pop("stderr", None)
        return Client(target, **cast("ClientOptions", options))

    async def _see_off(self, client: Client) -> None:
        """Close a client that is `_leaving`: forgotten, but not yet gone."""
        try:
            await client.aclose()
        finally:
            self._leaving.discard(client)

    def _shut(self) -> None:
        self._is_open = False
        for client in self._clients.values():
            # Its class is a part of the group.
            client._shut()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def _offers(client: Client, kind: str) -> bool:
    """False, too, for one that has not shaken hands."""
    try:
        return client.server_can(kind)
    except LocalProtocolError:
        return False


def _joined(lists: Mapping[str, list[Item]]) -> list[Item]:
    return [item for items in lists.values() for item in items]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _by_head(uri: str, templates: Iterable[tuple[str, str]]) -> list[str]:
    """The servers with a template that begins like the URI, the longest such beginning first."""
    heads = [(text.partition("{")[0], name) for text, name in templates]
    fitting = sorted((-len(head), name) for head, name in heads if uri.startswith(head))
    return list(dict.fromkeys(name for _, name in fitting))
