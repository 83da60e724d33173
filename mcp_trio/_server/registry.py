"""The registry of a server: tools, resources, prompts, completions and methods, and their lists.

Registering is cheap: schemas and decoders are built on first use, and each page of a list is
encoded once per protocol version and kept until something is registered or removed.

Handlers in threads may register and remove as well. Therefore each change of a table is one atomic
operation, and a table is copied before it is iterated. A change replaces the dict of encoded pages;
a page that another thread is encoding meanwhile is put into the old dict, which is no longer read.
"""

import base64
import functools
import hashlib
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, cast, get_args

import attrs
import msgspec

from mcp_trio import types
from mcp_trio._journal.records import LISTED_KINDS
from mcp_trio._protocol.compat import downgraded
from mcp_trio._protocol.metadata import check_keys
from mcp_trio._protocol.methods import METHODS, Method, Role, SessionTrigger, custom_method
from mcp_trio._protocol.suggestions import did_you_mean
from mcp_trio._protocol.uri_templates import UriTemplate
from mcp_trio._protocol.versions import ProtocolVersion
from mcp_trio._server.access import AccessRule, Selection, Unregistered, Visibility, joined_rule
from mcp_trio._server.introspection import function_label, is_async, name_of, plain_function
from mcp_trio._server.mounts import Mount, Origin
from mcp_trio._server.results import JsonWriter, OutputSchema, output_schema_of
from mcp_trio._server.signatures import RawSignature, Signature, param_headers_of
from mcp_trio._session.call_sites import signature_of
from mcp_trio.errors import INVALID_PARAMS, RequestError
from mcp_trio.limits import Limits

if TYPE_CHECKING:
    from mcp_trio._server.remote_mounts import RemoteMount
    from mcp_trio._server.server import Server
    from mcp_trio._server.transforms import ToolTransform

logger = logging.getLogger("mcp_trio")

# The lists that a server may have, and the capability that each declares.
LIST_CAPABILITIES: Final[dict[str, Any]] = {
    "prompts": types.PromptsCapability(list_changed=True),
    "resources": types.ResourcesCapability(subscribe=True, list_changed=True),
    "tools": types.ToolsCapability(list_changed=True),
}
CAPABILITIES: Final[dict[str, Any]] = {"completions": {}, **LIST_CAPABILITIES}


@attrs.frozen
class CacheHints:
    """Hints for clients: the time to cache a result, and the scope in which it may be shared.

    https://modelcontextprotocol.io/specification/2026-07-28/server/utilities/caching
    """

    ttl_seconds: float = attrs.field(default=0.0, validator=attrs.validators.ge(0))
    cache_scope: types.CacheScope = attrs.field(
        default="private", validator=attrs.validators.in_(get_args(types.CacheScope))
    )

    def members(self) -> dict[str, Any]:
        """Return the hints as members of a result."""
        return {"ttl_ms": round(self.ttl_seconds * 1000), "cache_scope": self.cache_scope}


# Checks of attributes -----------------------------------------------------------------------------
#
# A client decodes a page of a list as a whole, so one wrong member would hide all entries in it.


def check_text(_owner: object, field: "attrs.Attribute[Any]", text: object) -> None:
    """Check that an attribute is a string, or None if that is its default."""
    if not (isinstance(text, str) or text is field.default is None):
        raise TypeError(f"{field.alias}={text!r} has to be a string")


def check_icons(_owner: object, _field: object, icons: Any) -> None:
    """Check a list of icons, each of which may also be a dict."""
    if icons is None:
        return
    try:
        msgspec.convert(msgspec.to_builtins(icons), list[types.Icon])
    except (TypeError, msgspec.ValidationError) as error:
        example = '[Icon(src="https://example.com/icon.png")]'
        raise TypeError(
            f"icons={icons!r} has to be a list of icons, such as {example}: {error}"
        ) from error


def _check_size(_resource: object, _field: object, size: Any) -> None:
    if not (isinstance(size, int) or size is None):
        raise TypeError(f"size={size!r} has to be a number of bytes")


def _check_meta(_entry: object, _field: object, meta: Any) -> None:
    if meta is None:
        return
    if not isinstance(meta, Mapping):
        raise TypeError(f"meta={meta!r} has to be a dict")
    check_keys(cast("Mapping[str, Any]", meta))


def _check_timeout(tool: "RegisteredTool", _field: object, timeout: Any) -> None:
    if timeout is None:
        return
    if not isinstance(timeout, int | float) or not timeout > 0:
        raise ValueError(
            f"timeout={timeout!r} of {tool.name!r} is not a positive number of seconds"
        )
    if not (tool.runs_in_thread or is_async(tool.signature.handler)):
        raise ValueError(
            f"timeout={timeout!r} cannot end {tool.name!r}, which runs in the event loop: make it"
            " `async def`, or leave out thread=False"
        )


# Registered handlers ------------------------------------------------------------------------------
#
# Their list entries are made for the newest protocol version; members that an older version lacks
# are removed when a page is encoded.


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Registered:
    """A handler and its name.

    Attributes:
        name: The name, for requests or for error texts.
        signature: The handler, with the means to decode its arguments.
        runs_in_thread: Whether the handler is a `def` function that may block.
        origin: The mounted server that has the handler; None for a handler of the server itself.
    """

    name: str = attrs.field(validator=check_text)
    signature: Signature
    runs_in_thread: bool
    origin: Origin | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class RegisteredEntry(Registered):
    """A handler with an entry in a list; `Server.tool` documents the attributes."""

    kind: ClassVar[str]
    """The registry's table: "tools", "resources" or "prompts"."""

    given_description: str | None = attrs.field(
        default=None, alias="description", validator=check_text
    )
    title: str | None = attrs.field(default=None, validator=check_text)
    icons: Sequence[types.Icon] | None = attrs.field(default=None, validator=check_icons)
    tags: frozenset[str] = frozenset()
    meta: Mapping[str, Any] | None = attrs.field(default=None, validator=_check_meta)
    resumable: bool | str = False
    rule: AccessRule | None = None

    @property
    def key(self) -> str:
        """The key in the registry's table."""
        return self.name

    @property
    def needs_check(self) -> bool:
        """Return whether `check`, which takes longer, could fail."""
        return self.signature.needs_check

    def check(self) -> None:
        """Check that the entry can be listed and called.

        Raises:
            TypeError: An annotation cannot be resolved or decoded; its cause is a `NameError` if a
                name is not defined (yet).
        """
        self.signature.check()

    def state_version(self, server_version: str) -> str | None:
        """Return the version in sealed states of this handler; None if it is not resumable."""
        if self.resumable is False:
            return None
        return server_version if self.resumable is True else self.resumable

    def kept_version(self, server: "Server") -> str | None:
        """Return the version of calls that another instance can continue; None if there are none.

        Calls of a resumable handler can be continued, and those of all handlers of a replayable
        server. A handler of a mounted server also needs that server to be replayable. A `def`
        handler in the event loop cannot be continued, because it cannot wait for the store.
        """
        if not (self.runs_in_thread or is_async(self.signature.handler)):
            return None
        if self.resumable is not False:
            return self.state_version(server.version)
        entry: Registered = self
        while server.replayable and entry.origin is not None:
            server, entry = entry.origin.mount.inner.server, entry.origin.entry
        return server.version if server.replayable else None

    @property
    def description(self) -> str | None:
        """The description given at registration, else the first part of the docstring."""
        return self.given_description or self.signature.docstring.description or None

    def common_members(self) -> dict[str, Any]:
        """Return the members that the entries of all lists have."""
        meta = None if self.meta is None else dict(self.meta)
        if self.tags:
            meta = {"fastmcp": {"tags": sorted(self.tags)}} | (meta or {})
        return {
            "name": self.name,
            "description": self.description,
            "title": self.title,
            "icons": None if self.icons is None else list(self.icons),
            "meta": meta,
        }


@attrs.frozen(
    kw_only=True, eq=False, slots=False, repr=False
)  # slots would exclude cached_property
class RegisteredTool(RegisteredEntry):
    """A function that the model may call; `Server.tool` documents most attributes.

    Attributes:
        transform: The transform by which the tool was made of another one; None for other tools.
    """

    kind: ClassVar[str] = "tools"

    transform: "ToolTransform | None" = None
    annotations: types.ToolAnnotations | None = None
    timeout: float | None = attrs.field(default=None, validator=_check_timeout)
    given_output: OutputSchema | None = None
    structured: bool | None = None

    @property
    def needs_check(self) -> bool:
        """Return whether `check`, which takes longer, could fail."""
        return bool(self.structured) or self.signature.needs_check

    def check(self) -> None:
        """Check that the tool can be listed and called, as `RegisteredEntry.check` does."""
        self.signature.check()
        _ = self.structured and self.output

    @functools.cached_property
    def is_timed_or_transformed(self) -> bool:
        """True if calls have a time limit, or the tool is made from another one."""
        return self.timeout is not None or self.transform is not None

    @functools.cached_property
    def output(self) -> OutputSchema | None:
        """The structured output; None if the tool returns content only."""
        transform = self.transform
        if transform is not None:
            wrapper = None if transform.wrapper is None else transform.wrapper.signature
            if wrapper is None or wrapper.returns is Any:
                return transform.base.output
            return output_schema_of(wrapper, structured=self.structured)
        return self.given_output or output_schema_of(self.signature, structured=self.structured)

    @functools.cached_property
    def param_headers(self) -> Mapping[str, tuple[str, ...]]:
        """The paths of arguments that HTTP requests repeat in headers, by header."""
        return param_headers_of(self.signature.schema)

    def definition(self) -> types.Tool:
        """Return the entry in `tools/list`."""
        return types.Tool(
            **self.common_members(),
            input_schema=self.signature.schema,
            output_schema=None if self.output is None else self.output.schema,
            annotations=self.annotations,
        )


@attrs.frozen(kw_only=True, eq=False, repr=False)
class RegisteredPrompt(RegisteredEntry):
    """A function that makes messages from arguments."""

    kind: ClassVar[str] = "prompts"

    @property
    def arguments(self) -> Collection[str]:
        """The names of the arguments."""
        return self.signature.parameters.keys()

    def definition(self) -> types.Prompt:
        """Return the entry in `prompts/list`."""
        properties = self.signature.schema["properties"]
        arguments = [
            types.PromptArgument(
                name=parameter.name,
                description=properties[parameter.name].get("description"),
                required=parameter.is_required,
            )
            for parameter in self.signature.parameters.values()
        ]
        return types.Prompt(**self.common_members(), arguments=arguments or None)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class RegisteredResource(RegisteredEntry):
    """A function that reads the resource at one URI, or at all URIs that a template matches."""

    kind: ClassVar[str] = "resources"

    template: UriTemplate
    mime_type: str | None = attrs.field(default=None, validator=check_text)
    size: int | None = attrs.field(default=None, validator=_check_size)
    annotations: types.Annotations | None = None
    hints: CacheHints

    @property
    def key(self) -> str:
        """The URI, or the text of the template."""
        return self.template.text

    @property
    def arguments(self) -> Collection[str]:
        """The names of the template's variables."""
        return self.template.variables

    @property
    def is_static(self) -> bool:
        """Return whether the URI has no variables."""
        return not self.template.variables

    def resource(self) -> types.Resource:
        """Return the entry in `resources/list`."""
        return types.Resource(
            **self.common_members(),
            uri=self.template.text,
            mime_type=self.mime_type,
            size=self.size,
            annotations=self.annotations,
        )

    def resource_template(self) -> types.ResourceTemplate:
        """Return the entry in `resources/templates/list`."""
        return types.ResourceTemplate(
            **self.common_members(),
            uri_template=self.template.text,
            mime_type=self.mime_type,
            annotations=self.annotations,
        )


# Methods of users --------------------------------------------------------------------------------

# The methods that the session answers itself, and no handler may replace.
_RESERVED: Final = frozenset(
    {SessionTrigger.INITIALIZE, SessionTrigger.PING, SessionTrigger.REFERENCE}
)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class RegisteredMethod(Registered):
    """The user's handler of a method."""

    method: Method


def check_method_name(name: str) -> None:
    """Check that a server's handler can receive a method."""
    known = METHODS.get(name)
    if known is not None and known.trigger in _RESERVED:
        raise ValueError(f"{name} is handled by mcp_trio itself and cannot have another handler")
    if known is not None and Role.CLIENT not in known.senders:
        raise ValueError(f"a client does not send {name}")


def method_with_params(name: str, signature: RawSignature) -> Method:
    """Return the description of a method, with the params of its handler's annotation."""
    known, kind = METHODS.get(name), signature.raw_type
    kind = known.params if known is not None and kind is Any else kind
    method = custom_method(name, params=kind)
    if not method.is_request and signature.context_parameter is not None:
        raise TypeError(f"{name} is a notification: its handler gets no context")
    return method


def method_result(value: Any, writer: JsonWriter) -> msgspec.Struct | msgspec.Raw:
    """Return the result of a method whose handler returned `value`; None is an empty object."""
    if value is None:
        return types.EmptyResult()
    if isinstance(value, types.Result):
        return value
    encoded = writer.encode(value)
    if not encoded.startswith(b"{"):
        raise TypeError(f"a result must be a JSON object, not {type(value).__name__}")
    return msgspec.Raw(encoded)


# Completions -------------------------------------------------------------------------------------

# The maximum number of values in one result, which the specification sets:
# https://modelcontextprotocol.io/specification/2025-11-25/server/utilities/completion
_COMPLETION_VALUES_MAX: Final = 100

Target: TypeAlias = tuple[str, str]
"""A registered entry: its table, "prompts" or "resources", and its key in that table."""


class CompletionSignature(RawSignature):
    """The signature of a completion: the text so far, and perhaps the arguments already given."""

    values_max: ClassVar[int] = 2

    def bind(self, arguments: Any, context: Any) -> dict[str, Any]:
        """Return the keywords to call the function with, from the params of the request."""
        params: types.CompleteParams = arguments
        given = None if params.context is None else params.context.arguments
        return self._keywords((params.argument.value, given or {}), context)


def target_of(reference: types.Reference) -> Target:
    """Return the target that a reference in a request names."""
    if isinstance(reference, types.PromptReference):
        return "prompts", reference.name
    return "resources", reference.uri


def completion_result(value: Any) -> types.CompleteResult:
    """Return the result of a completion whose function returned `value`.

    A `Completion` is used as it is, None has no values, a set is sorted. Of more than 100 values
    the result contains the first 100, and the total if it is known.
    """
    if isinstance(value, types.Completion):
        values, total = value.values, value.total
        if len(values) <= _COMPLETION_VALUES_MAX:
            return types.CompleteResult(completion=value)
        total = len(values) if total is None else total
    else:
        proposed: Iterable[Any] = () if value is None else value
        if isinstance(proposed, str):
            raise TypeError("a completion returns a list of strings, not one string")
        if isinstance(proposed, set | frozenset):
            proposed = sorted(cast("Iterable[Any]", proposed))
        values = list(itertools.islice(proposed, _COMPLETION_VALUES_MAX + 1))
        for text in values:
            if not isinstance(text, str):
                raise TypeError(f"a completion returns strings, not {type(text).__name__}")
        values = [*map(str.__str__, values)]  # they may be of a subclass
        if len(values) <= _COMPLETION_VALUES_MAX:
            return types.CompleteResult(completion=types.Completion(values=values))
        total = len(proposed) if isinstance(proposed, Sized) else None
    first = types.Completion(values=values[:_COMPLETION_VALUES_MAX], total=total, has_more=True)
    return types.CompleteResult(completion=first)


# Entries of mounted servers ----------------------------------------------------------------------

_TOOL_NAME_CHARS_MAX: Final = 128


def _mounted_entry(mount: Mount, entry: RegisteredEntry) -> RegisteredEntry:
    """Return the entry of the outer server for an entry of a mounted one.

    Raises:
        ValueError: The prefix would make the name too long, or cannot stand in the URI; or a tool
            is destructive and resumable, and the outer server has no `states`.
    """
    joined, rule = joined_rule(mount.rule, entry.rule), mount.rule
    if rule is not None and joined is not None:
        # The mounted server checks the entry's own conditions, but one challenge has to name the
        # scopes of both rules.
        rule = AccessRule(joined.scopes, rule.conditions)
    changed: dict[str, Any] = {"rule": joined, "origin": Origin(mount, entry, rule)}
    if isinstance(entry, RegisteredResource):
        changed["template"] = UriTemplate.parse(mount.prefix.outer_uri(entry.key))
    else:
        changed["name"] = name = mount.prefix.outer_name(entry.name)
        if isinstance(entry, RegisteredTool) and len(name) > _TOOL_NAME_CHARS_MAX:
            raise ValueError(
                f"{name!r} is longer than the {_TOOL_NAME_CHARS_MAX} characters that the name of a"
                " tool may have: mount the server with a shorter prefix"
            )
    if isinstance(entry, RegisteredTool):
        check_states(entry, mount.outer.server.states, owner=f" of {mount.label}")
    if entry.resumable is True:
        changed["resumable"] = mount.inner.server.version
    return attrs.evolve(entry, **changed)


def check_states(tool: RegisteredTool, states: object, *, owner: str = "") -> None:
    """Check that the sealed states of a destructive tool can be used only once."""
    is_destructive = tool.annotations is not None and tool.annotations.destructive_hint
    if tool.resumable and is_destructive and states is None:
        raise ValueError(
            f"{tool.name!r}{owner} is destructive and resumable: give the server `states`, so that"
            " a sealed state is used only once"
        )


def _label(entry: Registered) -> str:
    """Return the function and line of an entry, and the mounted server that has it, for errors."""
    handler = entry.signature.handler
    try:
        text = function_label(plain_function(handler))
    except TypeError:  # A class or a builtin.
        text = name_of(handler)
    return text if entry.origin is None else f"{text} of {entry.origin.mount.label}"


# The registry ------------------------------------------------------------------------------------

_encode: Final = msgspec.json.Encoder().encode

_DIGEST_CHARS: Final = 8

# The maximum number and size of the encoded pages that are kept: clients with different scopes see
# other lists. An entry that a page leaves out counts as the memory that its key takes in a set.
_PAGES_MAX: Final = 4096
_PAGES_BYTES_MAX: Final = 64 * 1024 * 1024
_HIDDEN_BYTES: Final = 64

# The method, the cursor, the protocol version, and the keys of hidden entries.
_PageKey: TypeAlias = tuple[str, str | None, ProtocolVersion, frozenset[str] | None]

# A list with more entries than this has one digest in a recording, not one for each entry.
_DIGESTS_MAX: Final = 1000


@attrs.define(eq=False, repr=False)
class Registry:
    """Everything that is registered at a server, by name or URI.

    Attributes:
        on_changed: Called after each change of a list, with "tools", "resources" or "prompts".
        offers: The capabilities that are declared even while nothing is registered.
        resources: The resources by URI or template text.
        tables: The tools, the resources and the prompts, by their kind.
        known_methods: All methods that a session knows, by method name.
        mounts: The servers of this process that are mounted into this one.
        remotes: The mounts of *remote* servers, those of which this server is a client.
        mounted_as: The mounts of this server into others, which get each of its changes.
    """

    limits: Limits
    on_changed: Callable[[str], None]
    hints: CacheHints
    offers: frozenset[str]
    tools: dict[str, RegisteredTool] = attrs.field(factory=dict[str, Any], init=False)
    prompts: dict[str, RegisteredPrompt] = attrs.field(factory=dict[str, Any], init=False)
    resources: dict[str, RegisteredResource] = attrs.field(factory=dict[str, Any], init=False)
    completions: dict[tuple[Target, str], Registered] = attrs.field(
        factory=dict[Any, Registered], init=False
    )
    methods: dict[str, RegisteredMethod] = attrs.field(factory=dict[str, Any], init=False)
    known_methods: dict[str, Method] = attrs.field(factory=lambda: dict(METHODS), init=False)
    mounts: list[Mount] = attrs.field(factory=list[Mount], init=False)
    remotes: "list[RemoteMount]" = attrs.field(factory=list[Any], init=False)
    mounted_as: list[Mount] = attrs.field(factory=list[Mount], init=False)
    visibility: Visibility = attrs.field(factory=Visibility, init=False)
    tables: Mapping[str, dict[str, Any]] = attrs.field(init=False)
    _pages: dict[_PageKey, msgspec.Raw] = attrs.field(factory=dict[Any, msgspec.Raw], init=False)
    _restricted: dict[str, Sequence[RegisteredEntry]] = attrs.field(
        factory=dict[str, Sequence[RegisteredEntry]], init=False
    )
    _capabilities: types.ServerCapabilities | None = attrs.field(default=None, init=False)
    _list_digests: Mapping[str, Sequence[str]] | None = attrs.field(default=None, init=False)
    _unchecked: list[RegisteredEntry] = attrs.field(factory=list[RegisteredEntry], init=False)

    def __attrs_post_init__(self) -> None:
        self.tables = {"tools": self.tools, "resources": self.resources, "prompts": self.prompts}

    def capabilities(self) -> types.ServerCapabilities:
        """Return the capabilities that follow from `offers` and from what is registered."""
        # A handler in a thread may reset `_capabilities` meanwhile.
        capabilities = self._capabilities
        if capabilities is None:
            handled = tuple(self.methods.values())
            required = (each.method.required_capability for each in handled)
            needed = {each.path.partition(".")[0] for each in required if each is not None}
            declarable = {**self.tables, "completions": self.completions}
            kinds = self.all_offers().union(
                kind for kind, table in declarable.items() if table or kind in needed
            )
            declared = {kind: full for kind, full in CAPABILITIES.items() if kind in kinds}
            capabilities = types.ServerCapabilities(logging={}, **declared)
            self._capabilities = capabilities
        return capabilities

    def all_offers(self) -> frozenset[str]:
        """Return the offers of the server, and of all servers that are mounted into it.

        A remote server may offer anything; its offers are known only when it is connected.
        """
        if self.remotes:
            return frozenset(CAPABILITIES)
        return self.offers.union(*(each.inner.registry.all_offers() for each in self.mounts))

    @property
    def reaches_remotes(self) -> bool:
        """Return whether this server, or one that is mounted into it, mounts a remote server."""
        return bool(self._mounts_of_remotes())

    def _mounts_of_remotes(self) -> "list[Mount | RemoteMount]":
        """Return the mounts of remote servers, and of servers that mount a remote server."""
        reaching = (each for each in self.mounts if each.inner.registry.reaches_remotes)
        return [*self.remotes, *reaching]

    def find_mount(self, kind: str, key: str) -> "tuple[Mount | RemoteMount, str] | None":
        """Return the mount that may have an entry that is not registered, and its key there.

        Only remote servers have such entries. Of several prefixes, the longest one counts.
        """
        found: list[tuple[Mount | RemoteMount, str]] = []
        for mount in self._mounts_of_remotes():
            inner_key = mount.prefix.inner_key(kind, key)
            if inner_key is not None:
                found.append((mount, inner_key))
        return max(found, key=lambda it: len(it[0].prefix.text), default=None)

    # Registering and removing.

    def mount_remote(self, mount: "RemoteMount") -> None:
        """Add a remote server."""
        self._check_prefix(mount)
        self.remotes.append(mount)
        self.forget_lists()

    def _check_prefix(self, mount: "Mount | RemoteMount") -> None:
        """Check that an unregistered name can belong to one remote server only, here and above."""
        for other in self._mounts_of_remotes():
            if other is mount:
                continue
            first, second = (each.prefix.outer_name("") for each in (mount, other))
            is_alike = first.startswith(second) or second.startswith(first)
            if is_alike and bool(first) is bool(second):
                raise ValueError(
                    f"the names of {mount.label} could be those of {other.label}: use prefixes of"
                    " which none is the beginning of the other"
                )
        for outer_mount in self.mounted_as:
            outer_mount.outer.registry._check_prefix(outer_mount)  # noqa: SLF001

    def add(self, entry: RegisteredEntry, *, replaces: str | None = None) -> None:
        """Add an entry to its table, perhaps in place of the one with the key `replaces`.

        An annotation with a name that is not defined yet is checked when the server starts.

        Raises:
            TypeError: The entry cannot be listed or called.
            ValueError: The name or URI is registered already, here or at a server into which this
                one is mounted.
        """
        kind, key = entry.kind, entry.key
        if entry.needs_check:
            try:
                entry.check()
            except TypeError as error:
                if not isinstance(error.__cause__, NameError):
                    raise
                self._unchecked.append(entry)
        self.insert(entry, is_replacement=replaces == key)
        if replaces is not None and replaces != key:
            self.discard(kind, replaces)
            self._rename(kind, replaces, key)
        self.on_changed(kind)

    def _rename(self, kind: str, old: str, new: str) -> None:
        """Apply the decisions of `disable` about an entry's old name to its new name."""
        self.visibility.rename(kind, old, new)
        for mount in tuple(self.mounted_as):
            outer_old, outer_new = (mount.prefix.outer_key(kind, key) for key in (old, new))
            mount.outer.registry._rename(kind, outer_old, outer_new)  # noqa: SLF001

    def insert(self, entry: RegisteredEntry, *, is_replacement: bool = False) -> None:
        """Add an entry here and at the servers that mount this one; at all of them, or at none.

        A replacement takes the place of the entry with the same key.
        """
        table, key = self.tables[entry.kind], entry.key
        present = table.setdefault(key, entry)
        if is_replacement:
            table[key] = entry
        elif present is not entry:
            text = f"{key!r} is registered already"
            if present.origin is not None or entry.origin is not None:
                text += (
                    f", by {_label(present)}; {_label(entry)} cannot have the same name: use"
                    " another name, or mount the server with another prefix"
                )
            raise ValueError(text)
        try:
            for mount in tuple(self.mounted_as):
                derived = _mounted_entry(mount, entry)
                mount.outer.registry.insert(derived, is_replacement=is_replacement)
        except ValueError:
            if is_replacement:
                self.insert(present, is_replacement=True)
            else:
                self.discard(entry.kind, key)
            raise
        self.forget_lists()

    def discard(self, kind: str, key: str) -> None:
        """Remove an entry and its completions, here and at the servers that mount this one."""
        table = self.tables[kind]
        removed = table.pop(key, None)
        for target, argument in tuple(self.completions):
            if target == (kind, key):
                self.completions.pop((target, argument), None)
        for mount in tuple(self.mounted_as):
            outer = mount.outer.registry
            for outer_key, entry in tuple(outer.tables[kind].items()):
                origin = entry.origin
                if origin is not None and origin.mount is mount and origin.entry is removed:
                    outer.discard(kind, outer_key)
        self.forget_lists()

    def mount(self, mount: Mount) -> None:
        """Add the entries of a mounted server, and follow its changes; all of it, or nothing."""
        inner = mount.inner.registry
        if inner.reaches_remotes:
            self._check_prefix(mount)
        added: list[RegisteredEntry] = []
        try:
            for table in inner.tables.values():
                for entry in tuple(table.values()):
                    derived = _mounted_entry(mount, entry)
                    self.insert(derived)
                    added.append(derived)
            for (target, argument), completion in tuple(inner.completions.items()):
                self.add_mounted_completion(mount, target, argument, completion)
        except ValueError:
            for each in added:
                self.discard(each.kind, each.key)
            raise
        self.mounts.append(mount)
        inner.mounted_as.append(mount)
        self.forget_lists()
        for kind in dict.fromkeys(each.kind for each in added):
            self.on_changed(kind)

    def add_mounted_completion(
        self, mount: Mount, target: Target, argument: str, completion: Registered
    ) -> None:
        """Add the completion of a mounted server."""
        kind, key = target
        derived = attrs.evolve(completion, origin=Origin(mount, completion))
        self.add_completion((kind, mount.prefix.outer_key(kind, key)), argument, derived)

    def check(self) -> None:
        """Check the entries whose annotations had names that were not defined at registration."""
        while self._unchecked:
            self._unchecked[-1].check()
            self._unchecked.pop()

    def remove(self, kind: str, key: str) -> None:
        """Remove an entry from a table, and the completions of its arguments."""
        entry = self.tables[kind].get(key)
        if entry is None or entry.origin is not None:
            reason = "" if entry is None else f" here: it is that of {_label(entry)}"
            raise LookupError(f"no {kind.removesuffix('s')} {key!r} is registered{reason}")
        self.discard(kind, key)
        self.on_changed(kind)

    def show_or_hide(self, selection: Selection, *, shows: bool) -> None:
        """Show or hide the entries of a selection in all sessions."""
        for kind in self.change_visibility(
            selection, self.visibility, self.is_visible, shows=shows
        ):
            self.forget_lists()
            self.on_changed(kind)

    def change_visibility(
        self,
        selection: Selection,
        visibility: Visibility,
        is_visible: Callable[[RegisteredEntry | Unregistered], bool],
        *,
        shows: bool,
    ) -> list[str]:
        """Show or hide the entries of a selection, and return the kinds whose lists have changed.

        The decision is added to `visibility`, by which `is_visible` tells what clients see.
        """
        entries = [entry for kind in selection.kinds for entry in tuple(self.tables[kind].values())]
        missing = sorted(selection.names.difference(entry.key for entry in entries))
        if missing:
            nouns = " or ".join(sorted(kind.removesuffix("s") for kind in selection.kinds))
            hint = did_you_mean(missing[0], (entry.key for entry in entries))
            if self.reaches_remotes:
                hint += "; those of remote servers can be chosen by kinds= only"
            raise LookupError(f"no {nouns} {missing[0]!r} is registered{hint}")
        unregistered = map(Unregistered, selection.kinds) if self.reaches_remotes else ()
        seen: list[RegisteredEntry | Unregistered] = [*entries, *unregistered]
        before = [is_visible(entry) for entry in seen]
        visibility.decide(selection, shows=shows)
        pairs = zip(seen, before, strict=True)
        return sorted({entry.kind for entry, shown in pairs if is_visible(entry) is not shown})

    def is_visible(self, entry: RegisteredEntry | Unregistered) -> bool:
        """Return whether clients see an entry, unless their session decides otherwise.

        An entry of a mounted server is hidden if either server hides it.
        """
        if self.visibility.decision(entry) is False:
            return False
        origin = entry.origin
        if origin is None:
            return True
        return origin.mount.inner.registry.is_visible(cast("RegisteredEntry", origin.entry))

    def forget_lists(self) -> None:
        """Forget everything that was computed from the tables, here and where they are mounted."""
        self._pages = {}
        self._list_digests = None
        self._restricted = {}
        self._capabilities = None
        for mount in tuple(self.mounted_as):
            mount.outer.registry.forget_lists()

    def add_method(self, registered: RegisteredMethod) -> None:
        """Set the handler of a method."""
        self.methods[registered.name] = registered
        self.known_methods[registered.name] = registered.method
        self._capabilities = None

    def find_target(
        self, target: object, kinds: Sequence[str] = ("prompts", "resources")
    ) -> Target:
        """Return the entry of these kinds that a name, a URI or a handler function identifies."""
        found = [
            (kind, key)
            for kind in kinds
            for key, entry in tuple(self.tables[kind].items())
            if target in (key, entry.signature.handler)
        ]
        if len(found) != 1:
            nouns = " or ".join(kind.removesuffix("s") for kind in kinds)
            number = "no" if not found else "more than one"
            names = [] if found else [name for kind in kinds for name in self.tables[kind]]
            hint = did_you_mean(str(target), names)
            raise LookupError(f"{number} {nouns} is registered for {target!r}{hint}")
        return found[0]

    def entry(self, target: Target) -> RegisteredPrompt | RegisteredResource | None:
        """Return the prompt or resource of a target; None if there is no such target."""
        kind, key = target
        return self.tables[kind].get(key)

    def check_argument(self, target: Target, argument: str) -> None:
        """Check that a target has an argument, without resolving its annotations."""
        kind, key = target
        names = signature_of(self.tables[kind][key].signature.handler).parameters
        if argument not in names:
            raise ValueError(f"{key!r} has no argument {argument!r}")

    def add_completion(self, target: Target, argument: str, completion: Registered) -> None:
        """Add the completion of an argument.

        Raises:
            ValueError: The argument has a completion already, here or at a server into which this
                one is mounted.
        """
        if self.completions.setdefault((target, argument), completion) is not completion:
            raise ValueError(f"{argument!r} of {target[1]!r} has a completion already")
        try:
            for mount in tuple(self.mounted_as):
                mount.outer.registry.add_mounted_completion(mount, target, argument, completion)
        except ValueError:
            self.discard_completion(target, argument)
            raise
        self.forget_lists()

    def discard_completion(self, target: Target, argument: str) -> Registered | None:
        """Remove a completion, here and at the servers that mount this one."""
        removed = self.completions.pop((target, argument), None)
        kind, key = target
        for mount in tuple(self.mounted_as):
            outer, outer_target = mount.outer.registry, (kind, mount.prefix.outer_key(kind, key))
            present = outer.completions.get((outer_target, argument))
            origin = None if present is None else present.origin
            if origin is not None and origin.entry is removed:
                outer.discard_completion(outer_target, argument)
        self.forget_lists()
        return removed

    def remove_completion(self, target: Target, argument: str) -> None:
        """Remove the completion of an argument."""
        if self.discard_completion(target, argument) is None:
            raise LookupError(f"{argument!r} of {target[1]!r} has no completion")

    # Reading.

    def find_resource(self, uri: str) -> tuple[RegisteredResource, dict[str, str]] | None:
        """Return the resource that is read at `uri`, and the values of its template's variables.

        A static resource has precedence over templates, and an earlier template over a later one.

        Raises:
            UriError: The URI is too long, or a value could lead out of its path segment.
        """
        static = self.resources.get(uri)
        if static is not None and static.is_static:
            return static, {}
        for resource in tuple(self.resources.values()):
            if not resource.is_static:
                values = resource.template.match(
                    uri, uri_chars_max=self.limits.messages.uri_chars_max
                )
                if values is not None:
                    return resource, values
        return None

    def resources_where(self, *, is_static: bool) -> list[RegisteredResource]:
        """Return the resources at one URI, or those with a template."""
        return [entry for entry in tuple(self.resources.values()) if entry.is_static is is_static]

    def restricted(self, method: str) -> Sequence[RegisteredEntry]:
        """Return the entries of a list, a key of `LISTS`, that have an access rule."""
        found = self._restricted.get(method)
        if found is None:
            found = [each for each in LISTS[method].entries(self) if each.rule is not None]
            self._restricted[method] = found
        return found

    def scopes(self) -> set[str]:
        """Return the scopes that entries and mounts need."""
        rules = [each.rule for method in LISTS for each in self.restricted(method)]
        rules += [each.rule for each in self.mounts]
        rules += [each.rule for each in self.remotes]
        found = {scope for rule in rules if rule is not None for scope in rule.scopes}
        return found.union(*(each.inner.registry.scopes() for each in self.mounts))

    def page(
        self,
        method: str,
        cursor: str | None,
        protocol_version: ProtocolVersion,
        hidden: frozenset[str] | None = None,
    ) -> msgspec.Raw:
        """Return one encoded page of the list that `method`, a key of `LISTS`, asks for.

        The entries whose keys are `hidden` are left out; if that is None, those that the server
        hides from all clients. An entry that cannot be listed is logged and left out, so that the
        others can be listed; `check` finds nearly all such entries earlier.

        Raises:
            RequestError: The cursor is invalid, or the entry that it names was removed.
        """
        pages = self._pages
        cached = pages.get((method, cursor, protocol_version, hidden))
        if cached is None:
            entries = [
                entry
                for entry in LISTS[method].entries(self)
                if (self.is_visible(entry) if hidden is None else entry.key not in hidden)
            ]
            start, end, next_cursor = self._bounds(method, [each.key for each in entries], cursor)
            definitions = self.definitions(method, entries[start:end], protocol_version)
            cached = self._encoded_page(method, definitions, next_cursor, protocol_version)
            # Only pages that `next_cursor` leads to are kept, so that cursors which a client
            # computes itself do not use memory.
            is_reachable = start % self.limits.requests.page_items_max == 0
            if is_reachable and len(pages) < _PAGES_MAX and _size_of(pages) < _PAGES_BYTES_MAX:
                pages[method, cursor, protocol_version, hidden] = cached
        return cached

    def page_of(
        self,
        method: str,
        definitions: Sequence[Any],
        cursor: str | None,
        protocol_version: ProtocolVersion,
    ) -> msgspec.Raw:
        """Return one encoded page of a list with these definitions; see `page`."""
        start, end, next_cursor = self._bounds(method, [*map(item_key, definitions)], cursor)
        return self._encoded_page(method, definitions[start:end], next_cursor, protocol_version)

    def definitions(
        self, method: str, entries: Iterable[RegisteredEntry], protocol_version: ProtocolVersion
    ) -> list[Any]:
        """Return the definitions of entries in a list; see `page` for those that are left out."""
        definitions: list[Any] = []
        for entry in entries:
            try:
                definition = LISTS[method].define(entry)
                _encode(definition)  # its `meta` may have a value without a JSON form
            except (TypeError, ValueError) as error:
                logger.error("%s leaves out %r: %s", method, entry.key, error)  # noqa: TRY400
                continue
            if isinstance(entry, RegisteredTool) and entry.output is not None:
                definition.output_schema = entry.output.schema_for(protocol_version)
            definitions.append(definition)
        return definitions

    def _bounds(
        self, method: str, keys: Sequence[str], cursor: str | None
    ) -> tuple[int, int, str | None]:
        """Return the bounds of the page at a cursor in a list of keys, and the next cursor."""
        start = 0
        if cursor is not None:
            ends = (end for end, key in enumerate(keys, 1) if _cursor(method, key) == cursor)
            start = next(ends, 0)
            if not start:
                raise RequestError(INVALID_PARAMS, "invalid cursor")
        end = start + self.limits.requests.page_items_max
        return start, end, _cursor(method, keys[end - 1]) if end < len(keys) else None

    def _encoded_page(
        self,
        method: str,
        definitions: Sequence[Any],
        next_cursor: str | None,
        protocol_version: ProtocolVersion,
    ) -> msgspec.Raw:
        listing = LISTS[method]
        page = listing.result(
            **{listing.member: definitions}, next_cursor=next_cursor, **self.hints.members()
        )
        return msgspec.Raw(_encode(downgraded(page, protocol_version)))

    def list_digests(self) -> Mapping[str, Sequence[str]]:
        """Return a line for each entry of each list, for a recording: its digest and its key.

        An entry that cannot be listed has hyphens in place of the digest.
        """
        if self._list_digests is not None:
            return self._list_digests
        listed: dict[str, Sequence[str]] = {}
        for kind, listing in zip(LISTED_KINDS, LISTS.values(), strict=True):
            lines: list[str] = []
            for entry in filter(self.is_visible, listing.entries(self)):
                digest = "-" * _DIGEST_CHARS
                with suppress(TypeError, ValueError):
                    digest = _digest(_encode(listing.define(entry)))
                lines.append(f"{digest} {entry.key}")
            if len(lines) > _DIGESTS_MAX:
                lines = [f"{_digest(''.join(lines).encode())} "]
            if lines:
                listed[kind] = lines
        self._list_digests = listed
        return listed

    def tool_schemas(self) -> dict[str, Any]:
        """Return the input schemas of the tools that can be listed, by name."""
        schemas: dict[str, Any] = {}
        for name, tool in tuple(self.tools.items()):
            with suppress(TypeError):
                schemas[name] = tool.signature.schema
        return schemas


def _size_of(pages: Mapping[_PageKey, msgspec.Raw]) -> int:
    return sum(len(page) + _HIDDEN_BYTES * len(key[3] or ()) for key, page in pages.items())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGEST_CHARS]


# Lists -------------------------------------------------------------------------------------------


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a list that clients can request.

    Attributes:
        member: The member of the result that contains the definitions.
    """

    entries: Callable[[Registry], Iterable[RegisteredEntry]]
    define: Callable[[Any], Any]
    result: Callable[..., types.CacheableResult]
    member: str


LISTS: Final = {
    "tools/list": Listing(
        entries=lambda registry: tuple(registry.tools.values()),
        define=RegisteredTool.definition,
        result=types.ListToolsResult,
        member="tools",
    ),
    "prompts/list": Listing(
        entries=lambda registry: tuple(registry.prompts.values()),
        define=RegisteredPrompt.definition,
        result=types.ListPromptsResult,
        member="prompts",
    ),
    "resources/list": Listing(
        entries=lambda registry: registry.resources_where(is_static=True),
        define=RegisteredResource.resource,
        result=types.ListResourcesResult,
        member="resources",
    ),
    "resources/templates/list": Listing(
        entries=lambda registry: registry.resources_where(is_static=False),
        define=RegisteredResource.resource_template,
        result=types.ListResourceTemplatesResult,
        member="resource_templates",
    ),
}


def _cursor(method: str, last: str) -> str:
    """Return the cursor of the page after the key `last`; it survives changes of other entries."""
    return base64.urlsafe_b64encode(f"{method} after {last}".encode()).decode()


def item_key(item: Any) -> str:
    """Return the key of an entry in a list: its URI or template, else its name."""
    key: str = getattr(item, "uri", None) or getattr(item, "uri_template", None) or item.name
    return key
