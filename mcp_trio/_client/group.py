"""`ClientGroup`: the clients of several servers, with prefixed names of tools and prompts.

The tool or prompt `plan` of the server `weather` is called `weather_plan` in the group. No prefix
may be the beginning of another one, so that a name always belongs to one server. URIs of resources
stay as they are: the group asks its servers which of them has the resource.

Each server has a `Client` with its own session, so that the loss of one does not affect the others.
Lists are read from all servers at the same time. A server whose connection is lost is left out and
logged.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar, Unpack, cast, overload

import msgspec
import trio

from mcp_trio import types
from mcp_trio._client.client import CallOptions, Client, ClientOptions, GroupOptions
from mcp_trio._client.config import ConfigSource, read_config
from mcp_trio._client.connect import Target, is_http_target, spawn_in_system_task, starts_command
from mcp_trio._client.results import reference
from mcp_trio._session.exceptions import call_concurrently
from mcp_trio.errors import ConnectionLost, LocalProtocolError, RequestError

logger = logging.getLogger("mcp_trio")

Named = TypeVar("Named", types.Tool, types.Prompt)
Item = TypeVar("Item")
Result = TypeVar("Result")
T = TypeVar("T")

# The note that names the server in an error.
_NOTE: Final = "this was the server {!r}"

# The capability with which a server announces a list, by the method that reads the list.
_CAPABILITIES: Final[dict[Callable[..., object], str]] = {
    Client.list_tools: "tools",
    Client.list_prompts: "prompts",
    Client.list_resources: "resources",
    Client.list_resource_templates: "resources",
}


class ClientGroup:
    """Clients of several servers: `async with ClientGroup({"weather": target, …}) as group:`.

    `group["weather"]` is the client of one server. Tools and prompts have the server's name and the
    separator as their prefix.

    A group object opens once. Methods for calls raise the errors of `Client`, and `LookupError` if
    no server has the name or URI.

    Args:
        servers: The targets by name; see `Client` for what a target can be. Use a `ServerConfig`
            for a command with its own environment or working directory.
        separator: The text between the name of a server and the name of its tool or prompt.
        **options: The options of `Client`. Callbacks, and functions for `roots` and `trace`, get
            the name of the server as their first argument. `record` must be a folder or a
            `SharedRecording`. `auth` is "oauth" for all servers at HTTP URLs, or a function that
            returns the `auth` of the server with a name.

    Raises:
        ValueError: The name of a server is empty, or its prefix is the beginning of another one.
    """

    def __init__(
        self,
        servers: Mapping[str, Target],
        *,
        separator: str = "_",
        **options: Unpack[GroupOptions],
    ) -> None:
        self.servers: Mapping[str, Target] = dict(servers)
        self.separator = separator
        self._options = options
        self._clients: dict[str, Client] = {}
        self._closing: set[Client] = set()
        self._is_opened_once = self._is_open = False
        names = list(servers)
        for position, name in enumerate(names):
            self._check_name(name, names[:position])

    @classmethod
    def from_config(
        cls, source: ConfigSource, *, separator: str = "_", **options: Unpack[GroupOptions]
    ) -> Self:
        """Return a group of the servers in a configuration file, without the disabled ones.

        Raises:
            ConfigError: The file is invalid; see `read_config`.
            ValueError: As the constructor.
        """
        servers = read_config(source)
        enabled = {name: config for name, config in servers.items() if not config.disabled}
        return cls(enabled, separator=separator, **options)

    async def __aenter__(self) -> Self:
        """Connect to all servers at the same time.

        If one server cannot be reached, the other clients are closed, and its error is raised with
        a note that names the server. A cancellation takes effect at once; `aclose` waits for
        the commands that were started.

        Raises:
            MCPError: As entering a `Client`.
        """
        if self._is_opened_once:
            raise RuntimeError("a ClientGroup opens once: create another ClientGroup")
        self._is_opened_once = self._is_open = True
        try:
            for name, target in self.servers.items():
                self._clients[name] = self._new_client(name, target)
            clients = dict(self._clients)
            await call_concurrently(clients, lambda name: clients[name].__aenter__(), note=_NOTE)
        except Exception:
            await self.aclose()
            raise
        except BaseException:
            self._is_open = False
            for client in self._clients.values():
                # A part of `aclose`, without the wait.
                client._begin_close()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            raise
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all clients at the same time; see `Client.aclose`."""
        self._is_open = False
        with trio.CancelScope(shield=True):
            await call_concurrently(
                [*self._clients.values(), *self._closing], Client.aclose, note=_NOTE
            )

    async def add(self, name: str, target: Target) -> Client:
        """Connect to one more server and return its client.

        If this fails or is cancelled, the group is unchanged. A cancellation takes effect at once;
        `aclose` waits for a command that was started.

        Raises:
            ValueError: The name is empty or taken, or its prefix is ambiguous.
            LocalProtocolError: The group is not open.
            ConnectionLost: The group was closed, or the server could not be reached.
            MCPError: As entering a `Client`.
        """
        self._check_opened()
        if not self._is_open:
            raise ConnectionLost("the group was closed")
        self._check_name(name, self._clients)
        client = self._clients[name] = self._new_client(name, target)
        try:
            return await client.__aenter__()
        except BaseException:
            if self._clients.get(name) is client:
                del self._clients[name]
            self._closing.add(client)
            spawn_in_system_task(partial(self._close_client, client))
            raise

    async def remove(self, name: str) -> None:
        """Close the client of a server and remove it; its calls in flight raise `ConnectionLost`.

        Raises:
            LookupError: The group has no server with this name.
        """
        client = self._clients.pop(self._checked_name(name))
        self._closing.add(client)
        await self._close_client(client)

    def __repr__(self) -> str:
        state = "open" if self._is_open else "not open"
        return f"<{type(self).__name__} of {', '.join(self._clients) or 'nothing'}, {state}>"

    def __getitem__(self, name: str) -> Client:
        """Return the client of a server.

        Raises:
            LookupError: The group has no server with this name.
        """
        return self._clients[self._checked_name(name)]

    @property
    def clients(self) -> Mapping[str, Client]:
        """The clients by server name, including those that are connecting or have ended."""
        return MappingProxyType(self._clients)

    async def list_tools(self, **options: Unpack[CallOptions]) -> list[types.Tool]:
        """Return the tools of all servers, with the names that `call_tool` takes."""
        return self._renamed(await self._read_lists(Client.list_tools, options))

    async def list_prompts(self, **options: Unpack[CallOptions]) -> list[types.Prompt]:
        """Return the prompts of all servers, with the names that `get_prompt` takes."""
        return self._renamed(await self._read_lists(Client.list_prompts, options))

    async def list_resources(self, **options: Unpack[CallOptions]) -> list[types.Resource]:
        """Return the resources of all servers."""
        return _joined(await self._read_lists(Client.list_resources, options))

    async def list_resource_templates(
        self, **options: Unpack[CallOptions]
    ) -> list[types.ResourceTemplate]:
        """Return the resource templates of all servers."""
        return _joined(await self._read_lists(Client.list_resource_templates, options))

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
        """Call a tool of a server by its prefixed name; see `Client.call_tool`."""
        client, own_name = self._owner(name)
        return await client.call_tool(own_name, arguments, **options)

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        **options: Unpack[CallOptions],
    ) -> types.GetPromptResult:
        """Return a prompt of a server by its prefixed name; see `Client.get_prompt`."""
        client, own_name = self._owner(name)
        return await client.get_prompt(own_name, arguments, **options)

    async def read_resource(
        self, uri: str, *, server: str | None = None, **options: Unpack[CallOptions]
    ) -> types.ReadResourceResult:
        """Return the contents of a resource.

        Without `server`, the group lists the resources of all servers to find it. If no server
        lists the URI, the group looks for resource templates that could match it: the URI begins
        like the template, up to its first variable. It asks the servers of these templates one
        after the other, until one has the resource. Timeouts apply to each request.

        Raises:
            LookupError: No server lists the resource, or a matching template.
            ValueError: Several servers list the resource: pass `server`.
        """
        return await self._first_result(
            await self._servers_that_may_have(uri, server, options),
            lambda client: client.read_resource(uri, **options),
        )

    async def complete(
        self,
        ref: types.Reference | str,
        argument: str,
        value: str,
        *,
        context: Mapping[str, str] | None = None,
        server: str | None = None,
        **options: Unpack[CallOptions],
    ) -> types.CompleteResult:
        """Return completions for an argument of a prompt or resource template.

        A prompt has its prefixed name. The server of a template is found as by `read_resource`.
        See `Client.complete` for the arguments.
        """
        ref = reference(ref)
        if isinstance(ref, types.PromptReference):
            client, own_name = self._owner(ref.name)
            own_ref = types.PromptReference(name=own_name)
            return await client.complete(own_ref, argument, value, context=context, **options)
        return await self._first_result(
            await self._servers_that_may_have(ref.uri, server, options),
            lambda client: client.complete(ref, argument, value, context=context, **options),
        )

    def _check_name(self, name: str, others: Collection[str]) -> None:
        if not name:
            raise ValueError("the name of a server must not be empty")
        if name in others:
            raise ValueError(f"the group already has a server {name!r}")
        prefix = self._prefix(name)
        for other in others:
            if prefix.startswith(self._prefix(other)) or self._prefix(other).startswith(prefix):
                raise ValueError(
                    f"the prefixes {prefix!r} and {self._prefix(other)!r} begin alike, so that a"
                    " name could belong to both servers: use another name or separator"
                )

    def _prefix(self, server: str) -> str:
        return server + self.separator

    def _check_opened(self) -> None:
        if not self._is_opened_once:
            raise LocalProtocolError("the group is not open: use `async with`")

    def _checked_name(self, name: str) -> str:
        """Return the name of a server; raise an error if the group has no such server."""
        self._check_opened()
        if name not in self._clients:
            raise LookupError(
                f"the group has no server {name!r}; its servers: {_comma_separated(self._clients)}"
            )
        return name

    def _owner(self, name: str) -> tuple[Client, str]:
        """Return the client that a prefixed name belongs to, and the name without the prefix."""
        self._check_opened()
        for server, client in self._clients.items():
            if name.startswith(self._prefix(server)):
                return client, name.removeprefix(self._prefix(server))
        prefixes = _comma_separated(map(self._prefix, self._clients))
        raise LookupError(
            f"{name!r} begins with the prefix of no server in the group; the prefixes: {prefixes}"
        )

    def _renamed(self, lists: Mapping[str, list[Named]]) -> list[Named]:
        return [
            msgspec.structs.replace(item, name=self._prefix(server) + item.name)
            for server, items in lists.items()
            for item in items
        ]

    async def _read_lists(
        self, read: Callable[..., Awaitable[list[Item]]], options: CallOptions
    ) -> dict[str, list[Item]]:
        """Read a list from all servers that announce it, at the same time."""
        self._check_opened()
        capability = _CAPABILITIES[read]
        asked: dict[str, Client] = {}
        for name, client in self._clients.items():
            has_list = True  # while a client connects again, its list has to wait
            with suppress(LocalProtocolError):  # raised before the handshake
                has_list = client.server_can(capability)
            if has_list:
                asked[name] = client

        async def read_from(name: str) -> list[Item]:
            try:
                return await read(asked[name], **options)
            except LocalProtocolError:  # it connects for the first time, or has no such list now
                return []
            except ConnectionLost as error:
                if not self._is_open:
                    raise
                logger.warning("the list lacks the server %r: %s", name, error.reason)
                return []

        return await call_concurrently(asked, read_from, note=_NOTE)

    async def _servers_that_may_have(
        self, uri: str, server: str | None, options: CallOptions
    ) -> list[str]:
        """Return the names of the servers that may have a resource or template, the best first."""
        if server is not None:
            return [self._checked_name(server)]
        resources = await self._read_lists(Client.list_resources, options)
        templates = await self._read_lists(Client.list_resource_templates, options)
        uri_templates = [
            (template.uri_template, name) for name, items in templates.items() for template in items
        ]
        exact = {name for uri_template, name in uri_templates if uri_template == uri}
        exact |= {name for name, items in resources.items() if any(r.uri == uri for r in items)}
        if len(exact) > 1:
            raise ValueError(
                f"several servers list {uri!r}, {sorted(exact)}: choose one with server="
            )
        names = list(exact)
        if not names:
            # The servers whose templates begin like the URI, the longest common part first.
            prefixes = [(template.partition("{")[0], name) for template, name in uri_templates]
            matching = sorted(
                (-len(prefix), name) for prefix, name in prefixes if uri.startswith(prefix)
            )
            names = list(dict.fromkeys(name for _, name in matching))
        if not names:
            lost = [name for name, client in self._clients.items() if not client.is_open]
            raise LookupError(
                f"no server of the group lists {uri!r}, or a template that begins like it"
                + (f"; not connected: {_comma_separated(lost)}" if lost else "")
            )
        return names

    async def _first_result(
        self, names: list[str], ask: Callable[[Client], Awaitable[Result]]
    ) -> Result:
        """Ask servers one after the other; return the first result, or raise the last error."""
        *others, last = names
        for name in others:
            try:
                return await ask(self[name])
            except RequestError as error:
                logger.debug("the server %r answered with an error: %s", name, error)
        return await ask(self[last])

    def _new_client(self, name: str, target: Target) -> Client:
        options: dict[str, Any] = {
            option: partial(value, name) if callable(value) else value
            for option, value in self._options.items()
        }
        if not starts_command(target):
            options.pop("stderr", None)
        auth = options.pop("auth", None)
        if callable(auth):  # `partial` has bound the name.
            options["auth"] = auth()
        elif is_http_target(target):
            options["auth"] = auth
        return Client(target, **cast("ClientOptions", options))

    async def _close_client(self, client: Client) -> None:
        """Close a client that is not in the group any more, but for which `aclose` waits."""
        try:
            await client.aclose()
        finally:
            self._closing.discard(client)


def _joined(lists: Mapping[str, list[Item]]) -> list[Item]:
    return [item for items in lists.values() for item in items]


def _comma_separated(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
