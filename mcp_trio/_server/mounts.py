"""Servers that are mounted into another server, and their names there.

The entries of a mounted server are registered at the outer server as well, under the names that a
`Prefix` gives them. Each of them has an `Origin`: the mount, and the entry at the mounted server.
`ServedSession._forward_to_mount` passes a request for it to the mounted server, in the session of
the outer one, with the names that the mounted server has registered. A remote server has a
`RemoteMount` (`remote_mounts.py`) instead, and its entries are not registered.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from mcp_trio import types
from mcp_trio._server.access import AccessRule

if TYPE_CHECKING:
    from mcp_trio._server.registry import Registered
    from mcp_trio._server.sessions import ServerSessions
    from mcp_trio._server.subscriptions import Change

# The characters of a tool's name, which a host name in a URI may have as well.
# https://modelcontextprotocol.io/specification/2025-11-25/server/tools#tool-names
_PREFIX: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,126}"

# A scheme and what follows it; in a template, variables may stand for the scheme.
_SCHEME: Final = r"(?:[A-Za-z0-9+.-]|\{[A-Za-z0-9_]+\})+:(?://)?"


class Prefix(msgspec.Struct, frozen=True):
    """The names of a mounted server's tools, prompts and resources at the outer server.

    Tools and prompts get the prefix and an underscore. In a URI the prefix is the first part after
    the scheme: `data://info` becomes `data://weather/info`, and `urn:info` `urn:weather/info`. With
    an empty prefix, names and URIs stay as they are.

    Raises:
        ValueError: The prefix has a character that a tool's name must not have.
    """

    text: str

    def __post_init__(self) -> None:
        if self.text and not re.fullmatch(_PREFIX, self.text):
            raise ValueError(
                f"{self.text!r} is not a valid prefix: use the letters A to Z and a to z, digits,"
                " '_', '-' and '.', and begin with a letter, a digit or '_'; None merges the names"
            )

    @property
    def label(self) -> str:
        """The end of a text that names a mount, such as "with the prefix 'weather'"."""
        return f"with the prefix {self.text!r}" if self.text else "without a prefix"

    def outer_name(self, inner_name: str) -> str:
        """Return the name of a tool or prompt at the outer server."""
        return f"{self.text}_{inner_name}" if self.text else inner_name

    def inner_name(self, name: str) -> str | None:
        """Return the name at the mounted server; None if the name does not have the prefix."""
        if not self.text:
            return name
        start = f"{self.text}_"
        return name.removeprefix(start) if name.startswith(start) else None

    def outer_uri(self, inner_uri: str) -> str:
        """Return the URI, or template, of a resource at the outer server.

        Raises:
            ValueError: The text does not begin with a scheme.
        """
        if not self.text:
            return inner_uri
        scheme = re.match(_SCHEME, inner_uri)
        if scheme is None:
            raise ValueError(
                f"the prefix {self.text!r} stands after the scheme of a URI, and {inner_uri!r} has"
                " no scheme"
            )
        return f"{scheme[0]}{self.text}/{inner_uri[scheme.end() :]}"

    def inner_uri(self, uri: str) -> str | None:
        """Return the URI at the mounted server; None if the URI does not have the prefix."""
        if not self.text:
            return uri
        scheme = re.match(_SCHEME, uri)
        start = f"{self.text}/"
        if scheme is None or not uri.startswith(start, scheme.end()):
            return None
        return scheme[0] + uri[scheme.end() + len(start) :]

    def outer_key(self, kind: str, inner_key: str) -> str:
        """Return the key at the outer server of an entry of this kind."""
        if kind == "resources":
            return self.outer_uri(inner_key)
        return self.outer_name(inner_key)

    def inner_key(self, kind: str, key: str) -> str | None:
        """Return the key at the mounted server; None if the key does not have the prefix."""
        return self.inner_uri(key) if kind == "resources" else self.inner_name(key)

    def inner_reference(self, reference: types.Reference) -> types.Reference:
        """Return the mounted server's reference for one of the outer server."""
        if isinstance(reference, types.PromptReference):
            return replace(reference, name=self.inner_name(reference.name))
        return replace(reference, uri=self.inner_uri(reference.uri))

    def outer_item(self, item: Any) -> Any:
        """Return the entry of a list of the mounted server as the outer server lists it."""
        if isinstance(item, types.Resource):
            return replace(item, uri=self.outer_uri(item.uri))
        if isinstance(item, types.ResourceTemplate):
            return replace(item, uri_template=self.outer_uri(item.uri_template))
        return replace(item, name=self.outer_name(item.name))

    def outer_result(
        self, result: Any, owns_uri: Callable[[str], bool], read_uri: str | None
    ) -> Any:
        """Return a result of the mounted server with the URIs of the outer server.

        These are the URIs in resource links, embedded resources and contents. Those that only the
        mounted server can read change (`owns_uri`); the others stay as they are. `read_uri` is the
        URI that was read, if the result contains the contents of a resource.
        """
        if not self.text:
            return result

        def outer_uri(uri: str) -> str:
            return self.outer_uri(uri) if uri == read_uri or owns_uri(uri) else uri

        def contents(each: types.ResourceContents) -> types.ResourceContents:
            return replace(each, uri=outer_uri(each.uri))

        def content(block: types.Content) -> types.Content:
            if isinstance(block, types.ResourceLink):
                return replace(block, uri=outer_uri(block.uri))
            if isinstance(block, types.EmbeddedResource):
                return replace(block, resource=contents(block.resource))
            return block

        if isinstance(result, types.CallToolResult):
            return replace(result, content=[content(each) for each in result.content])
        if isinstance(result, types.GetPromptResult):
            messages = [replace(each, content=content(each.content)) for each in result.messages]
            return replace(result, messages=messages)
        if isinstance(result, types.ReadResourceResult):
            return replace(result, contents=[contents(each) for each in result.contents])
        return result


class Mount(msgspec.Struct, frozen=True, eq=False):
    """A server that is mounted into another one."""

    prefix: Prefix
    outer: "ServerSessions"
    inner: "ServerSessions"
    rule: AccessRule | None

    @property
    def label(self) -> str:
        """The text in errors that names the mounted server."""
        return f"the server {self.inner.server.name!r}, mounted {self.prefix.label}"

    def relay(self, change: "Change") -> None:
        """Report a change of the mounted server to the clients of the outer one."""
        method, uri = change
        if uri is not None:
            try:
                uri = self.prefix.outer_uri(uri)
            except ValueError:  # No client can have subscribed to it here.
                return
        self.outer.change_notifier.notify((method, uri))

    def owns_uri(self, uri: str) -> bool:
        """Return whether a URI in a result is that of a resource of the mounted server."""
        return self.inner.has_resource(uri)


class Origin(msgspec.Struct, frozen=True, eq=False):
    """The place from which an entry of a registry comes: a mount, and the entry there.

    Attributes:
        rule: The rule of the mount, with all scopes that the entry needs as well, so that one
            challenge names them all; None if the mount has no rule.
    """

    mount: Mount
    entry: "Registered"
    rule: AccessRule | None = None
