"""What a server offers, as people register and remove it: by decorators, at any time.

Every method here may be called from any task and any thread, handlers' own among them. While
sessions are open, each change of a list is announced to their clients.
"""

from collections.abc import Callable, Collection, Mapping
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

from mcp_trio import _schema as s
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._server.announcements import RESOURCE_UPDATED, Audience, list_changed
from mcp_trio._server.callables import is_async, name_of
from mcp_trio._server.effect_results import EffectResults
from mcp_trio._server.given_schema import GivenSchema
from mcp_trio._server.locks import Locks
from mcp_trio._server.methods import RegisteredMethod, check_name, row_of
from mcp_trio._server.ordering import JsonWriter
from mcp_trio._server.registered import (
    Registered,
    RegisteredPrompt,
    RegisteredResource,
    RegisteredTool,
)
from mcp_trio._server.registry import Registry
from mcp_trio._server.signatures import Signature
from mcp_trio._server.templates import UriTemplate
from mcp_trio._server.whole import WholeSignature

if TYPE_CHECKING:
    from cattrs import Converter

# Whatever is declared may change, and clients are told when it does.
_DECLARED: Final[dict[str, Any]] = {
    "prompts": s.PromptsCapability(list_changed=True),
    "resources": s.ResourcesCapability(subscribe=True, list_changed=True),
    "tools": s.ToolsCapability(list_changed=True),
}
F = TypeVar("F", bound=Callable[..., Any])
Handler: TypeAlias = Callable[..., Any]


class PromptOptions(TypedDict, total=False):
    """How a prompt is registered, if not as its function says."""

    name: str | None
    description: str | None
    thread: bool


class ToolOptions(PromptOptions, total=False):
    """How a tool is registered, if not as its function says."""

    input_schema: Mapping[str, Any] | None


def _check_kinds(_offering: object, _field: object, offers: Collection[str]) -> None:
    unknown = set(offers) - _DECLARED.keys()
    if unknown:
        raise ValueError(f"unknown offers {sorted(unknown)}: choose from {', '.join(_DECLARED)}")


@attrs.define(eq=False)
class Offering:
    """Tools, resources, prompts, completions and low-level methods: the contents of a `Server`."""

    limits: Limits = attrs.field(default=DEFAULT_LIMITS, kw_only=True, repr=False)
    offers: Collection[str] = attrs.field(default=(), kw_only=True, validator=_check_kinds)
    capabilities: s.ServerCapabilities | None = attrs.field(default=None, kw_only=True)
    methods: Mapping[str, Handler] = attrs.field(factory=dict[str, Handler], kw_only=True)
    converter: "Converter | None" = attrs.field(default=None, kw_only=True, repr=False)
    writer: JsonWriter = attrs.field(init=False, repr=False)
    effect_results: EffectResults = attrs.field(init=False, repr=False)
    locks: Locks = attrs.field(factory=Locks, init=False, repr=False)
    _registry: Registry = attrs.field(init=False, repr=False)
    _audience: Audience = attrs.field(factory=Audience, init=False, repr=False)

    # Those of `async def` handlers and of handlers in threads, in this order.
    _contexts: ClassVar[tuple[type[Any], type[Any]]]

    def __attrs_post_init__(self) -> None:
        self.writer = JsonWriter(self.converter)
        self.effect_results = EffectResults(self.converter, self.writer, self.limits)
        self._registry = Registry(self.limits, self.list_changed)
        for name, handler in self.methods.items():
            self.method(name)(handler)

    # Tools.

    @overload
    def tool(self, handler: F, /) -> F: ...

    @overload
    def tool(self, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...

    def tool(
        self,
        handler: Any = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        thread: bool = True,
        input_schema: Mapping[str, Any] | None = None,
    ) -> Any:
        """Offer a function as a tool; to be used bare or called.

        The arguments' schema comes from the signature, descriptions from the docstring. With an
        `input_schema` of your own, a JSON Schema that is listed as it is, the arguments are checked
        by it and arrive as one dict. A `def` handler runs in a thread, unless `thread=False` says
        that it is trivial and never blocks.

        Raises:
            TypeError: The function cannot be called by argument names.
            ValueError: The name is taken, or the schema is not that of an object.
        """

        def register(handler: F) -> F:
            signature: dict[str, Any] = {}
            if input_schema is not None:
                signature = {"kind": GivenSchema, "given": input_schema}
            made = self._made(handler, name, description, thread=thread, **signature)
            tool = RegisteredTool(**made)
            self._registry.add("tools", tool.name, tool)
            return handler

        return register if handler is None else register(handler)

    def remove_tool(self, name: str) -> None:
        """Offer a tool no longer; calls that run go on.

        Raises:
            LookupError: There is none of this name.
        """
        self._registry.remove("tools", name)

    # Resources.

    def resource(
        self,
        uri: str,
        *,
        name: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        thread: bool = True,
    ) -> Callable[[F], F]:
        """Offer a function as the reader of `uri`: one, or each that an RFC 6570 template matches.

        The function's parameters are the template's variables. Values that could lead out of their
        place (`..`, backslashes, encoded slashes) are refused before it runs.

        Raises:
            TypeError: The function cannot be called by argument names.
            ValueError: The URI is taken, the template is malformed, or parameters and variables
                differ.
        """
        template = UriTemplate.parse(uri)

        def register(handler: F) -> F:
            made = self._made(handler, name, description, thread=thread)
            resource = RegisteredResource(**made, template=template, mime_type=mime_type)
            template.check_parameters(resource.signature.parameters)
            self._registry.add("resources", uri, resource)
            return handler

        return register

    def remove_resource(self, uri: str) -> None:
        """Offer a resource, or a template, no longer.

        Raises:
            LookupError: There is none with this URI or template text.
        """
        self._registry.remove("resources", uri)

    def resource_updated(self, uri: str) -> None:
        """Tell every client that has subscribed to `uri` that what it reads there has changed."""
        self._audience.tell((RESOURCE_UPDATED, uri))

    # Prompts.

    @overload
    def prompt(self, handler: F, /) -> F: ...

    @overload
    def prompt(self, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...

    def prompt(
        self,
        handler: Any = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        thread: bool = True,
    ) -> Any:
        """Offer a function as a prompt; to be used bare or called. See `tool`.

        Raises:
            TypeError: The function cannot be called by argument names.
            ValueError: The name is taken.
        """

        def register(handler: F) -> F:
            prompt = RegisteredPrompt(**self._made(handler, name, description, thread=thread))
            self._registry.add("prompts", prompt.name, prompt)
            return handler

        return register if handler is None else register(handler)

    def remove_prompt(self, name: str) -> None:
        """Offer a prompt no longer.

        Raises:
            LookupError: There is none of this name.
        """
        self._registry.remove("prompts", name)

    # Completions.

    def completion(
        self, target: str | Handler, argument: str, *, thread: bool = True
    ) -> Callable[[F], F]:
        """Offer a function that proposes values for an argument of a prompt or template.

        `target` is the function behind it, a prompt's name, or a resource's URI or template. What
        was typed so far is the function's first parameter. It returns texts, the best first, or a
        `Completion`; of more than 100 the client gets the first 100, and how many there are.

        Raises:
            LookupError: The target is not registered; or its function is, more than once.
            TypeError: The function takes no text.
            ValueError: The target has no such argument, or that is completed already.
        """
        found = self._registry.find_target(target)
        self._registry.check_argument(found, argument)

        def register(handler: F) -> F:
            name = f"{argument} of {found[1]}"
            made = self._made(handler, name, None, thread=thread, kind=WholeSignature)
            self._registry.add_completion(found, argument, Registered(**made))
            return handler

        return register

    def remove_completion(self, target: str | Handler, argument: str) -> None:
        """Propose values for an argument no longer.

        Raises:
            LookupError: There is no such target, or nothing completes that argument.
        """
        self._registry.remove_completion(self._registry.find_target(target), argument)

    # Methods.

    def method(self, name: str, *, thread: bool = True) -> Callable[[F], F]:
        """Let a function handle a method itself: a new one, or instead of what is built in.

        Its first parameter gets the params, decoded to the type that it is annotated with; what it
        returns becomes an object, None an empty one. A name that begins with `notifications/` is a
        notification's, whose handler gets no context.

        Raises:
            TypeError: The params cannot be decoded to the annotation, or more is asked for.
            ValueError: Clients do not send the method, or the engine answers it itself.
        """
        check_name(name)

        def register(handler: F) -> F:
            made = self._made(handler, name, None, thread=thread, kind=WholeSignature)
            method = RegisteredMethod(**made, row=row_of(name, made["signature"]))
            self._registry.add_method(method)
            return handler

        return register

    # What all of them need.

    def list_changed(self, kind: str) -> None:
        """Tell every client that a list has changed: "tools", "resources" or "prompts".

        Registering and removing do that by themselves; lists that a `method` of yours answers need
        it.

        Raises:
            ValueError: There is no such list.
        """
        if kind not in _DECLARED:
            raise ValueError(f"unknown list {kind!r}: choose from {', '.join(_DECLARED)}")
        self._audience.tell(list_changed(kind))

    def declared(self) -> s.ServerCapabilities:
        """The capabilities: those that were given, else of what is offered now."""
        if self.capabilities is not None:
            return self.capabilities
        kinds = self._registry.kinds.union(self.offers)
        declared = {kind: full for kind, full in _DECLARED.items() if kind in kinds}
        return s.ServerCapabilities(logging={}, **declared)

    def _made(
        self,
        handler: Handler,
        name: str | None,
        description: str | None,
        *,
        thread: bool,
        kind: type[Signature] = Signature,
        **options: Any,
    ) -> dict[str, Any]:
        """The members that all kinds of `Registered` have."""
        runs_in_thread = thread and not is_async(handler)
        own, foreign = reversed(self._contexts) if runs_in_thread else self._contexts
        signature = kind(
            handler=handler,
            context_type=own,
            foreign_context_types=(foreign,),
            limits=self.limits,
            converter=self.converter,
            **options,
        )
        return {
            "name": name or name_of(handler),
            "signature": signature,
            "runs_in_thread": runs_in_thread,
            "given_description": description,
        }
