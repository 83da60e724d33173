"""Registration of tools, resources, prompts, completions and methods.

Every method here may be called from any task and any thread, handlers' own among them. While
sessions are open, each change of a list is announced to their clients.
"""

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

import attrs

from mcp_trio import types
from mcp_trio._protocol.metadata import check_extension
from mcp_trio._protocol.methods import RESOURCE_UPDATED
from mcp_trio._server.effect_results import EffectResults
from mcp_trio._server.introspection import is_async, name_of
from mcp_trio._server.registry import (
    CacheHints,
    CompletionSignature,
    Registered,
    RegisteredMethod,
    RegisteredPrompt,
    RegisteredResource,
    RegisteredTool,
    Registry,
    check_name,
    row_of,
)
from mcp_trio._server.results import JsonWriter, OutputSchema, given_output_schema
from mcp_trio._server.sealed_state import KeyRing, StateStore
from mcp_trio._server.signatures import GivenSchema, RawSignature, Signature
from mcp_trio._server.subscriptions import ChangeNotifier, list_changed
from mcp_trio._server.threads import Locks
from mcp_trio._server.uri_templates import UriTemplate
from mcp_trio.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from cattrs import Converter


# Whatever is declared may change, and clients are told when it does.
_LISTS: Final[dict[str, Any]] = {
    "prompts": types.PromptsCapability(list_changed=True),
    "resources": types.ResourcesCapability(subscribe=True, list_changed=True),
    "tools": types.ToolsCapability(list_changed=True),
}
_DECLARED: Final[dict[str, Any]] = {"completions": {}, **_LISTS}

_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|\{")
F = TypeVar("F", bound=Callable[..., Any])
Handler: TypeAlias = Callable[..., Any]


class PromptOptions(TypedDict, total=False):
    """How a prompt is registered, if not as its function says.

    Attributes:
        name: What requests call it.
        title: What people are shown instead of the name.
        description: What it does.
        icons: Pictures to show beside it.
        meta: What else its row in the list says, under names with a prefix.
        thread: Whether a `def` handler may block, and therefore runs in a thread.
        resumable: Whether it ends when it asks a modern client, and is begun anew with the answer,
            by any instance of the server; what it did by its context is not done again then. A text
            is its version, instead of the server's: what was begun with another one is over. Such a
            handler cannot ask behind a shield.
    """

    name: str | None
    title: str | None
    description: str | None
    icons: Sequence[types.Icon] | None
    meta: Mapping[str, Any] | None
    thread: bool
    resumable: bool | str


class ToolOptions(PromptOptions, total=False):
    """How a tool is registered, if not as its function says.

    Attributes:
        annotations: Hints of what it does to the world.
        input_schema: A JSON Schema of its arguments, which arrive as one dict.
        output_schema: A JSON Schema of the data that it returns.
        structured: Whether it returns data beside its content; None leaves that to the annotation.
    """

    annotations: types.ToolAnnotations | None
    input_schema: Mapping[str, Any] | None
    output_schema: Mapping[str, Any] | None
    structured: bool | None


class ResourceOptions(PromptOptions, total=False):
    """How a resource is registered, if not as its function says.

    Attributes:
        mime_type: Of what is read.
        size: Its bytes, if there is no variable in its URI.
        annotations: For whom it is meant, how much it matters, how old it is.
        ttl_seconds: For how long a client may keep what it has read; 0 unless given.
        cache_scope: Whether others than that client may have it too: "public"; or else "private".
    """

    mime_type: str | None
    size: int | None
    annotations: types.Annotations | None
    ttl_seconds: float
    cache_scope: types.CacheScope


@functools.cache
def _capabilities(kinds: frozenset[str]) -> types.ServerCapabilities:
    declared = {kind: full for kind, full in _DECLARED.items() if kind in kinds}
    return types.ServerCapabilities(logging={}, **declared)


def _check_kinds(_offering: object, _field: object, offers: Collection[str]) -> None:
    unknown = set(offers) - _DECLARED.keys()
    if unknown:
        raise ValueError(f"unknown offers {sorted(unknown)}: choose from {', '.join(_DECLARED)}")


def _check_extensions(
    _offering: object, _field: object, capabilities: types.ServerCapabilities | None
) -> None:
    for identifier in (capabilities and capabilities.extensions) or ():
        check_extension(identifier)


@attrs.define(eq=False)
class Offering:
    """Tools, resources, prompts, completions and low-level methods: the contents of a `Server`."""

    limits: Limits = attrs.field(default=DEFAULT_LIMITS, kw_only=True, repr=False)
    offers: Collection[str] = attrs.field(default=(), kw_only=True, validator=_check_kinds)
    capabilities: types.ServerCapabilities | None = attrs.field(
        default=None, kw_only=True, validator=_check_extensions
    )
    methods: Mapping[str, Handler] = attrs.field(factory=dict[str, Handler], kw_only=True)
    list_ttl_seconds: float = attrs.field(default=0.0, kw_only=True)
    cache_scope: types.CacheScope = attrs.field(default="private", kw_only=True)
    converter: "Converter | None" = attrs.field(default=None, kw_only=True, repr=False)
    keys: KeyRing = attrs.field(factory=KeyRing.random, kw_only=True, repr=False)
    states: StateStore | None = attrs.field(default=None, kw_only=True, repr=False)
    writer: JsonWriter = attrs.field(init=False, repr=False)
    effect_results: EffectResults = attrs.field(init=False, repr=False)
    locks: Locks = attrs.field(factory=Locks, init=False, repr=False)
    _registry: Registry = attrs.field(init=False, repr=False)
    _change_notifier: ChangeNotifier = attrs.field(factory=ChangeNotifier, init=False, repr=False)

    # Those of `async def` handlers and of handlers in threads, in this order.
    _contexts: ClassVar[tuple[type[Any], type[Any]]]

    def __attrs_post_init__(self) -> None:
        self.writer = JsonWriter(self.converter)
        self.effect_results = EffectResults(self.converter, self.writer, self.limits)
        hints = CacheHints(self.list_ttl_seconds, self.cache_scope)
        self._registry = Registry(self.limits, self.list_changed, hints, frozenset(self.offers))
        for name, handler in self.methods.items():
            self.method(name)(handler)

    # Tools.

    @overload
    def tool(self, handler: F, /) -> F: ...

    @overload
    def tool(self, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...

    def tool(self, handler: Any = None, /, **options: Unpack[ToolOptions]) -> Any:
        """Register a function as a tool, as a bare or called decorator.

        The arguments' schema comes from the signature, descriptions from the docstring. With an
        `input_schema` of your own, a JSON Schema that is listed as it is, the arguments are checked
        by it and arrive as one dict. A `def` handler runs in a thread, unless `thread=False` says
        that it is trivial and never blocks.

        What is annotated to return data (a class, a list, a number) has an output schema, and its
        results hold the data beside its text. They have to fit: else the call fails, and the log
        says why. With an `output_schema` of your own the same holds for any annotation. A handler
        that returns a `CallToolResult` says everything itself, and it is checked.

        Raises:
            SchemaError: A given schema cannot be used.
            TypeError: The function cannot be called by argument names; an option is unknown.
            ValueError: The name is taken or none for a tool, or the schema of the arguments is not
                that of an object.
        """

        def register(handler: F) -> F:
            made = self._made(handler, options, **_signature_of_tool(options))
            tool = RegisteredTool(**made, given_output=_output_of_tool(options, self.limits))
            _check_tool_name(tool.name)
            self._check_destruction(tool)
            self._registry.add("tools", tool.name, tool)
            return handler

        return register if handler is None else register(handler)

    def _check_destruction(self, tool: RegisteredTool) -> None:
        """Reject a destructive resumable tool whose state could be used twice."""
        is_destructive = tool.annotations is not None and tool.annotations.destructive_hint
        if tool.resumable and is_destructive and self.states is None:
            raise ValueError(
                f"{tool.name!r} is destructive and resumable: give the server `states`"
            )

    def remove_tool(self, name: str) -> None:
        """Remove a tool; calls that are running continue.

        Raises:
            LookupError: There is none of this name.
        """
        self._registry.remove("tools", name)

    # Resources.

    def resource(self, uri: str, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
        """Register a function as the reader of `uri`, or of all URIs of an RFC 6570 template.

        See `ResourceOptions`. Where there is nothing to read, the function raises
        `ResourceNotFound`.

        The function's parameters are the template's variables. Values that could lead out of their
        place (`..`, backslashes, encoded slashes) are refused before it runs.

        Raises:
            TypeError: The function cannot be called by argument names; an option is unknown.
            ValueError: The URI is taken or has no scheme, the template is malformed, or parameters
                and variables differ; an option has no meaning.
        """
        template = UriTemplate.parse(uri)
        if not _SCHEME.match(uri):
            raise ValueError(f"{uri!r} does not begin with a scheme, as RFC 3986 has it")

        def register(handler: F) -> F:
            hints = CacheHints(
                options.get("ttl_seconds", 0.0), options.get("cache_scope", "private")
            )
            made = self._made(handler, options)
            resource = RegisteredResource(**made, template=template, hints=hints)
            if resource.size is not None and not resource.is_static:
                raise ValueError(f"{uri!r} stands for many resources, which have no common size")
            template.check_parameters(resource.signature.parameters)
            self._registry.add("resources", uri, resource)
            return handler

        return register

    def remove_resource(self, uri: str) -> None:
        """Remove a resource or a template.

        Raises:
            LookupError: There is none with this URI or template text.
        """
        self._registry.remove("resources", uri)

    def resource_updated(self, uri: str) -> None:
        """Notify every client that has subscribed to `uri` that its contents have changed."""
        self._change_notifier.notify((RESOURCE_UPDATED, uri))

    # Prompts.

    @overload
    def prompt(self, handler: F, /) -> F: ...

    @overload
    def prompt(self, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...

    def prompt(self, handler: Any = None, /, **options: Unpack[PromptOptions]) -> Any:
        """Register a function as a prompt, as a bare or called decorator.

        Raises:
            TypeError: The function cannot be called by argument names; an option is unknown.
            ValueError: The name is taken.
        """

        def register(handler: F) -> F:
            prompt = RegisteredPrompt(**self._made(handler, options))
            self._registry.add("prompts", prompt.name, prompt)
            return handler

        return register if handler is None else register(handler)

    def remove_prompt(self, name: str) -> None:
        """Remove a prompt.

        Raises:
            LookupError: There is none of this name.
        """
        self._registry.remove("prompts", name)

    # Completions.

    def completion(
        self, target: str | Handler, argument: str, *, thread: bool = True
    ) -> Callable[[F], F]:
        """Register a function that proposes values for an argument of a prompt or template.

        `target` is the function behind it, a prompt's name, or a resource's URI or template. What
        was typed so far is the function's first parameter. A second one, if it has no default, gets
        the arguments that are settled already, as far as the client tells: a dict of texts. The
        function returns texts, the best first, or a `Completion`; of more than 100 the client gets
        the first 100, and how many there are.

        Raises:
            LookupError: The target is not registered; or its function is, more than once.
            TypeError: The function takes no text.
            ValueError: The target has no such argument, or that is completed already.
        """
        found = self._registry.find_target(target)
        self._registry.check_argument(found, argument)

        def register(handler: F) -> F:
            options: PromptOptions = {"name": f"{argument} of {found[1]}", "thread": thread}
            made = self._made(handler, options, kind=CompletionSignature)
            self._registry.add_completion(found, argument, Registered(**made))
            return handler

        return register

    def remove_completion(self, target: str | Handler, argument: str) -> None:
        """Stop proposing values for an argument.

        Raises:
            LookupError: There is no such target, or nothing completes that argument.
        """
        self._registry.remove_completion(self._registry.find_target(target), argument)

    # Methods.

    def method(self, name: str, *, thread: bool = True) -> Callable[[F], F]:
        """Register a function as the handler of a method, new or in place of the built-in one.

        Its first parameter gets the params, decoded to the type that it is annotated with; what it
        returns becomes an object, None an empty one. A name that begins with `notifications/` is a
        notification's, whose handler gets no context.

        Raises:
            TypeError: The params cannot be decoded to the annotation, or more is asked for.
            ValueError: Clients do not send the method, or the engine answers it itself.
        """
        check_name(name)

        def register(handler: F) -> F:
            options: PromptOptions = {"name": name, "thread": thread}
            made = self._made(handler, options, kind=RawSignature)
            method = RegisteredMethod(**made, row=row_of(name, made["signature"]))
            self._registry.add_method(method)
            return handler

        return register

    # What all of them need.

    def list_changed(self, kind: str) -> None:
        """Notify every client that a list has changed: "tools", "resources" or "prompts".

        Registering and removing do that by themselves; lists that a `method` of yours answers need
        it.

        Raises:
            ValueError: There is no such list.
        """
        if kind not in _LISTS:
            raise ValueError(f"unknown list {kind!r}: choose from {', '.join(_LISTS)}")
        self._change_notifier.notify(list_changed(kind))

    def declared(self) -> types.ServerCapabilities:
        """Return the capabilities: the given ones, else those of what is registered now."""
        if self.capabilities is not None:
            return self.capabilities
        return _capabilities(self._registry.kinds)

    def _made(
        self,
        handler: Handler,
        options: Mapping[str, Any],
        kind: type[Signature] = Signature,
        **details: Any,
    ) -> dict[str, Any]:
        """Return the fields that all kinds of `Registered` have."""
        runs_in_thread = options.get("thread", True) and not is_async(handler)
        own, foreign = reversed(self._contexts) if runs_in_thread else self._contexts
        signature = kind(
            handler=handler,
            context_type=own,
            foreign_context_types=(foreign,),
            limits=self.limits,
            converter=self.converter,
            **details,
        )
        return {
            **{name: it for name, it in options.items() if name not in _TAKEN_APART},
            "name": options.get("name") or name_of(handler),
            "signature": signature,
            "runs_in_thread": runs_in_thread,
        }


# Options that are no members of what is registered by the same name.
_TAKEN_APART: Final = frozenset(
    {"thread", "input_schema", "output_schema", "ttl_seconds", "cache_scope"}
)


def _signature_of_tool(options: ToolOptions) -> dict[str, Any]:
    given = options.get("input_schema")
    return {} if given is None else {"kind": GivenSchema, "given": given}


def _output_of_tool(options: ToolOptions, limits: Limits) -> OutputSchema | None:
    given = options.get("output_schema")
    if given is None:
        return None
    if options.get("structured") is False:
        raise ValueError("an output schema has no meaning with structured=False")
    return given_output_schema(given, limits)


def _check_tool_name(name: str) -> None:
    """Refuse what no client need understand (TOOL-09, TOOL-10)."""
    if not _TOOL_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is no name for a tool, which has 1 to 128 of the letters A to Z and a to z, "
            "digits, '_', '-' and '.': choose one by name="
        )
