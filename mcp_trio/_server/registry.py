"""The registry: tools, resources, templates and prompts, and their lists.

Registering costs next to nothing. Schemas and decoders are built at first need, and each page of a
list is encoded once for each revision, and kept until something is registered or removed.

Handlers in threads register and remove as well. So a table is changed by one operation that no
thread can come between, and copied before anybody walks through it; and the pages are thrown away
together with their dict, so that one which is being made meanwhile is kept where nobody looks.
"""

import base64
import functools
import hashlib
import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from typing import Any, ClassVar, Final, TypeAlias, cast, get_args

import attrs
import msgspec

from mcp_trio import types
from mcp_trio._protocol.compat import downgraded
from mcp_trio._protocol.metadata import check_keys
from mcp_trio._protocol.methods import METHODS, Method, Role, SessionTrigger, custom_method
from mcp_trio._protocol.versions import ProtocolVersion
from mcp_trio._server.results import JsonWriter, OutputSchema, output_schema_of
from mcp_trio._server.signatures import RawSignature, Signature, param_headers_of
from mcp_trio._server.uri_templates import UriTemplate
from mcp_trio.errors import INVALID_PARAMS, RequestError
from mcp_trio.limits import Limits
from mcp_trio.types import (
    CompleteParams,
    CompleteResult,
    Completion,
    EmptyResult,
    PromptReference,
    Reference,
    Result,
)

# --------------------
# What stands behind each name that a server offers, and how it is listed.
#
# Rows are made for the newest revision; what an older one does not have is left out when a page of
# them is encoded.


@attrs.frozen
class CacheHints:
    """For how long a client may keep a result, and whether others may have it too (CACHE-01)."""

    ttl_seconds: float = attrs.field(default=0.0, validator=attrs.validators.ge(0))
    cache_scope: types.CacheScope = attrs.field(
        default="private", validator=attrs.validators.in_(get_args(types.CacheScope))
    )

    def members(self) -> dict[str, Any]:
        """The same as members of a result."""
        return {"ttl_ms": round(self.ttl_seconds * 1000), "cache_scope": self.cache_scope}


@attrs.frozen(kw_only=True, eq=False)
class Registered:
    """A handler with its name; one that may block runs in a thread."""

    name: str
    signature: Signature
    runs_in_thread: bool

    @property
    def key(self) -> str:
        """What it is registered under."""
        return self.name


def _check_meta(_entry: object, _field: object, meta: Mapping[str, Any] | None) -> None:
    check_keys(meta or ())


@attrs.frozen(kw_only=True, eq=False)
class RegisteredEntry(Registered):
    """What has a row in a list, with what that says besides the name."""

    given_description: str | None = attrs.field(default=None, alias="description")
    title: str | None = None
    icons: Sequence[types.Icon] | None = None
    meta: Mapping[str, Any] | None = attrs.field(default=None, validator=_check_meta)
    resumable: bool | str = False

    def state_version(self, server_version: str) -> str | None:
        """What the states of a resumable handler are good for; None if it is none."""
        if self.resumable is False:
            return None
        return server_version if self.resumable is True else self.resumable

    @property
    def description(self) -> str | None:
        """What was given at registration, else the first part of the docstring."""
        return self.given_description or self.signature.docstring.description or None

    def shown(self) -> dict[str, Any]:
        """The members that the rows of all lists have."""
        return {
            "name": self.name,
            "description": self.description,
            "title": self.title,
            "icons": None if self.icons is None else list(self.icons),
            "meta": None if self.meta is None else dict(self.meta),
        }


@attrs.frozen(kw_only=True, eq=False, slots=False)  # as of a `Signature`
class RegisteredTool(RegisteredEntry):
    """A function that the model may call."""

    annotations: types.ToolAnnotations | None = None
    given_output: OutputSchema | None = None
    structured: bool | None = None

    @functools.cached_property
    def output(self) -> OutputSchema | None:
        """The data that it returns beside its content, made at first need."""
        return self.given_output or output_schema_of(self.signature, structured=self.structured)

    @functools.cached_property
    def param_headers(self) -> Mapping[str, tuple[str, ...]]:
        """The paths of arguments that clients mirror in an HTTP request's head, by the field.

        Raises:
            TypeError: The schema cannot be made.
            ValueError: See `param_headers_of`.
        """
        return param_headers_of(self.signature.schema)

    def definition(self) -> types.Tool:
        """Its row in `tools/list`."""
        return types.Tool(
            **self.shown(),
            input_schema=self.signature.schema,
            output_schema=None if self.output is None else self.output.schema,
            annotations=self.annotations,
        )


@attrs.frozen(kw_only=True, eq=False)
class RegisteredPrompt(RegisteredEntry):
    """A template of messages."""

    @property
    def arguments(self) -> Collection[str]:
        """The names of what fills it in."""
        return self.signature.parameters.keys()

    def definition(self) -> types.Prompt:
        """Its row in `prompts/list`."""
        described = self.signature.docstring.parameters
        arguments = [
            types.PromptArgument(
                name=parameter.name,
                description=described.get(parameter.name),
                required=parameter.is_required,
            )
            for parameter in self.signature.parameters.values()
        ]
        return types.Prompt(**self.shown(), arguments=arguments or None)


@attrs.frozen(kw_only=True, eq=False)
class RegisteredResource(RegisteredEntry):
    """Something to read: at one URI, or at every URI that its template matches."""

    template: UriTemplate
    mime_type: str | None = None
    size: int | None = None
    annotations: types.Annotations | None = None
    hints: CacheHints

    @property
    def key(self) -> str:
        """Its URI, or the text of its template."""
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
        """Its row in `resources/list`."""
        return types.Resource(
            **self.shown(),
            uri=self.template.text,
            mime_type=self.mime_type,
            size=self.size,
            annotations=self.annotations,
        )

    def resource_template(self) -> types.ResourceTemplate:
        """Its row in `resources/templates/list`."""
        return types.ResourceTemplate(
            **self.shown(),
            uri_template=self.template.text,
            mime_type=self.mime_type,
            annotations=self.annotations,
        )


# --------------------
# Handlers that people give to methods themselves, known to the protocol or not.


_OF_THE_ENGINE: Final = frozenset(
    {SessionTrigger.INITIALIZE, SessionTrigger.PING, SessionTrigger.REFERENCE}
)


@attrs.frozen(kw_only=True, eq=False)
class RegisteredMethod(Registered):
    """The handler of a method, and the method's row, whose params are what the handler takes."""

    row: Method


def check_name(name: str) -> None:
    """Refuse a method that no handler of a server's can ever get.

    Raises:
        ValueError: The engine itself answers it, or clients do not send it.
    """
    known = METHODS.get(name)
    if known is not None and known.trigger in _OF_THE_ENGINE:
        raise ValueError(f"{name} is the engine's own affair")
    if known is not None and Role.CLIENT not in known.senders:
        raise ValueError(f"a client does not send {name}")


def row_of(name: str, signature: RawSignature) -> Method:
    """The row of a method, with the params that its handler is annotated with.

    Raises:
        TypeError: The annotation cannot be resolved or decoded; or the handler of a notification
            wants a context, which only requests have.
    """
    known, kind = METHODS.get(name), signature.raw_type
    kind = known.params if known is not None and kind is Any else kind
    row = custom_method(name, params=kind)
    if not row.is_request and signature.context_parameter is not None:
        raise TypeError(f"{name} is a notification: its handler gets no context")
    return row


def method_result(value: Any, writer: JsonWriter) -> msgspec.Struct | msgspec.Raw:
    """The result of a method whose handler returned `value`: None is an empty object.

    Raises:
        TypeError: It has no JSON form, or is no object there.
    """
    if value is None:
        return EmptyResult()
    if isinstance(value, Result):
        return value
    encoded = writer.encode(value)
    if not encoded.startswith(b"{"):
        raise TypeError(f"a result is an object, and not a {type(value).__name__}")
    return msgspec.Raw(encoded)


# --------------------
# Completion: which argument of which prompt or template is meant, and what is proposed.


# What one answer may hold; the specification's number, not a limit of ours (COMP-05).
VALUES_MAX: Final = 100

Target: TypeAlias = tuple[str, str]
"""What is completed: "prompts" or "resources", and the name or URI template in there."""


class CompletionSignature(RawSignature):
    """What a completion takes: the text so far, and perhaps the arguments that are settled."""

    values_max: ClassVar[int] = 2

    def bind(self, arguments: Any, context: Any) -> dict[str, Any]:
        """The keywords to call it with, from the params of the request."""
        params: CompleteParams = arguments
        settled = None if params.context is None else params.context.arguments
        return self._keywords((params.argument.value, settled or {}), context)


def target_of(reference: Reference) -> Target:
    """What a request's reference means."""
    if isinstance(reference, PromptReference):
        return "prompts", reference.name
    return "resources", reference.uri


def completion_result(value: Any) -> CompleteResult:
    """The result of a completion whose function returned `value`.

    A `Completion` is itself, None proposes nothing, a set is put in order. Beyond the first 100
    values only their number is told, if it is known.

    Raises:
        TypeError: The values are not texts.
    """
    return CompleteResult(
        completion=_clipped(value) if isinstance(value, Completion) else _of(value)
    )


def _clipped(completion: Completion) -> Completion:
    values = completion.values
    if len(values) <= VALUES_MAX:
        return completion
    total = len(values) if completion.total is None else completion.total
    return Completion(values=values[:VALUES_MAX], total=total, has_more=True)


def _of(value: Any) -> Completion:
    proposed: Iterable[Any] = () if value is None else value
    if isinstance(proposed, str):
        raise TypeError("a completion proposes several texts, and not one")
    if isinstance(proposed, set | frozenset):
        proposed = sorted(cast("Iterable[Any]", proposed))
    values = list(itertools.islice(proposed, VALUES_MAX + 1))
    for text in values:
        if not isinstance(text, str):
            raise TypeError(f"a completion proposes texts, and not a {type(text).__name__}")
    if len(values) <= VALUES_MAX:
        return Completion(values=values)
    total = len(proposed) if isinstance(proposed, Sized) else None
    return Completion(values=values[:VALUES_MAX], total=total, has_more=True)


_encode: Final = msgspec.json.Encoder().encode


@attrs.define(eq=False)
class Registry:
    """Everything that was registered, by name or URI.

    `changed` is called with the kind of the list after each change of "tools", "resources" or
    "prompts". `offers` are kinds that count as offered though nothing stands there. `rows` are the
    methods that a session knows, people's own among them.
    """

    limits: Limits
    changed: Callable[[str], None]
    hints: CacheHints
    offers: frozenset[str]
    tools: dict[str, RegisteredTool] = attrs.field(factory=dict[str, Any], init=False)
    prompts: dict[str, RegisteredPrompt] = attrs.field(factory=dict[str, Any], init=False)
    resources: dict[str, RegisteredResource] = attrs.field(factory=dict[str, Any], init=False)
    completions: dict[tuple[Target, str], Registered] = attrs.field(
        factory=dict[Any, Registered], init=False
    )
    methods: dict[str, RegisteredMethod] = attrs.field(factory=dict[str, Any], init=False)
    rows: dict[str, Method] = attrs.field(factory=lambda: dict(METHODS), init=False)
    _tables: Mapping[str, dict[str, Any]] = attrs.field(init=False)
    _pages: dict[tuple[str, str | None, ProtocolVersion], msgspec.Raw] = attrs.field(
        factory=dict[Any, msgspec.Raw], init=False
    )
    _kinds: frozenset[str] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._tables = {
            "tools": self.tools,
            "resources": self.resources,
            "prompts": self.prompts,
        }

    @property
    def kinds(self) -> frozenset[str]:
        """The lists in which something stands, or whose methods have people's own handlers."""
        kinds = self._kinds
        if kinds is None:
            kinds = self._kinds = self._kinds_now()
        return kinds

    def _kinds_now(self) -> frozenset[str]:
        needs = (method.row.required_capability for method in tuple(self.methods.values()))
        heads = {need.path.partition(".")[0] for need in needs if need is not None}
        tables = {**self._tables, "completions": self.completions}
        return self.offers.union(kind for kind, table in tables.items() if table or kind in heads)

    def add(self, kind: str, key: str, row: Registered) -> None:
        """Offer something.

        Raises:
            ValueError: The name, or the URI, is taken.
        """
        if self._tables[kind].setdefault(key, row) is not row:
            raise ValueError(f"{key!r} is registered already")
        self._change(kind)

    def remove(self, kind: str, key: str) -> None:
        """Offer something no longer, nor what completes its arguments.

        Raises:
            LookupError: It is not there.
        """
        if self._tables[kind].pop(key, None) is None:
            raise LookupError(f"no {kind.removesuffix('s')} {key!r} is registered")
        for target, argument in tuple(self.completions):
            if target == (kind, key):
                self.completions.pop((target, argument), None)
        self._change(kind)

    def _change(self, kind: str) -> None:
        self._pages = {}
        self._kinds = None
        self.changed(kind)

    def add_method(self, method: RegisteredMethod) -> None:
        """Let a handler have a method, also one that had another before."""
        self.methods[method.name] = method
        self.rows[method.name] = method.row
        self._kinds = None

    # Completion.

    def find_target(self, target: object) -> Target:
        """What somebody means by a name, a URI, or the function behind a prompt or resource.

        Raises:
            LookupError: Nothing of it is registered, or a function more than once.
        """
        found = [
            (kind, key)
            for kind in ("prompts", "resources")
            for key, row in tuple(self._tables[kind].items())
            if target in (key, row.signature.handler)
        ]
        if len(found) != 1:
            what = "no prompt or resource" if not found else "more than one prompt or resource"
            raise LookupError(f"{what} is registered for {target!r}")
        return found[0]

    def arguments_of(self, target: Target) -> Iterable[str] | None:
        """The names of what can be completed there; None if there is no such thing."""
        kind, key = target
        row = self._tables[kind].get(key)
        return None if row is None else row.arguments

    def check_argument(self, target: Target, argument: str) -> None:
        """Refuse to complete what is no argument; types are not looked at yet.

        Raises:
            ValueError: There is no such argument.
        """
        kind, key = target
        names = inspect.signature(self._tables[kind][key].signature.handler).parameters
        if argument not in names:
            raise ValueError(f"{key!r} has no argument {argument!r}")

    def add_completion(self, target: Target, argument: str, completion: Registered) -> None:
        """Complete an argument.

        Raises:
            ValueError: It is completed already.
        """
        if self.completions.setdefault((target, argument), completion) is not completion:
            raise ValueError(f"{argument!r} of {target[1]!r} is completed already")
        self._kinds = None

    def remove_completion(self, target: Target, argument: str) -> None:
        """Complete an argument no longer.

        Raises:
            LookupError: It is not completed.
        """
        if self.completions.pop((target, argument), None) is None:
            raise LookupError(f"{argument!r} of {target[1]!r} is not completed")
        self._kinds = None

    # Reading.

    def find_resource(self, uri: str) -> tuple[RegisteredResource, dict[str, str]] | None:
        """What is read at `uri`, with the values of the template's variables.

        A static resource comes before templates, these in the order in which they were registered.

        Raises:
            UriError: It is too long, or a value could lead out of its place.
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

    def resources_that(self, *, is_static: bool) -> list[RegisteredResource]:
        """The resources at one URI, or the templates."""
        return [row for row in tuple(self.resources.values()) if row.is_static is is_static]

    def page(
        self, method: str, cursor: str | None, protocol_version: ProtocolVersion
    ) -> msgspec.Raw:
        """One encoded page of the list that `method` asks for, a row of `LISTS`.

        Raises:
            RequestError: The cursor is none of ours, or follows what is gone (invalid params).
            TypeError: Something in it cannot be listed; a note names it.
        """
        pages = self._pages
        kept = pages.get((method, cursor, protocol_version))
        if kept is None:
            rows = list(LISTS[method].rows(self))
            start = 0 if cursor is None else _start(method, cursor, rows)
            made = self._make_page(method, rows, start)
            kept = msgspec.Raw(_encode(downgraded(made, protocol_version)))
            if (
                start % self.limits.requests.page_items_max == 0
            ):  # what clients make up costs no memory
                pages[method, cursor, protocol_version] = kept
        return kept

    def _make_page(
        self, method: str, rows: Sequence[Registered], start: int
    ) -> types.CacheableResult:
        made, end = LISTS[method], start + self.limits.requests.page_items_max
        return made.result(
            **{made.member: [_defined(made.define, row) for row in rows[start:end]]},
            next_cursor=_cursor(method, rows[end - 1]) if end < len(rows) else None,
            **self.hints.members(),
        )

    def tools_digest(self) -> str | None:
        """A digest of all tools as they are listed; None if one cannot be listed."""
        digest = hashlib.sha256()
        try:
            for tool in tuple(self.tools.values()):
                digest.update(_encode(tool.definition()))
        except TypeError:
            return None  # who asks for the list will hear of it
        return digest.hexdigest()[:_DIGEST_CHARS]

    def param_header_paths(self, tool: str) -> Mapping[str, tuple[str, ...]] | None:
        """Which arguments of a tool stand in the head of an HTTP request too, and in which field.

        None: there is no such tool.
        """
        registered = self.tools.get(tool)
        return None if registered is None else registered.param_headers

    def tool_schemas(self) -> dict[str, Any]:
        """The schemas of the tools' arguments, by name; without those that cannot be listed."""
        schemas: dict[str, Any] = {}
        for name, tool in tuple(self.tools.items()):
            with suppress(TypeError):
                schemas[name] = tool.signature.schema
        return schemas


_DIGEST_CHARS: Final = 16


# Lists ------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Listing:
    """How one of the lists is made: its rows, what each becomes, the result that holds a page."""

    rows: Callable[[Registry], Iterable[Registered]]
    define: Callable[[Any], Any]
    result: Callable[..., types.CacheableResult]
    member: str


LISTS: Final = {
    "tools/list": Listing(
        rows=lambda registry: tuple(registry.tools.values()),
        define=RegisteredTool.definition,
        result=types.ListToolsResult,
        member="tools",
    ),
    "prompts/list": Listing(
        rows=lambda registry: tuple(registry.prompts.values()),
        define=RegisteredPrompt.definition,
        result=types.ListPromptsResult,
        member="prompts",
    ),
    "resources/list": Listing(
        rows=lambda registry: registry.resources_that(is_static=True),
        define=RegisteredResource.resource,
        result=types.ListResourcesResult,
        member="resources",
    ),
    "resources/templates/list": Listing(
        rows=lambda registry: registry.resources_that(is_static=False),
        define=RegisteredResource.resource_template,
        result=types.ListResourceTemplatesResult,
        member="resource_templates",
    ),
}


def _defined(define: Callable[[Any], Any], row: Registered) -> Any:
    try:
        return define(row)
    except TypeError as error:
        error.add_note(f"{row.name!r} cannot be listed, and neither can the others")
        raise


def _cursor(method: str, last: Registered) -> str:
    """The cursor of the page after `last`, whatever is removed before that."""
    return base64.urlsafe_b64encode(f"{method} after {last.key}".encode()).decode()


def _start(method: str, cursor: str, rows: Iterable[Registered]) -> int:
    for start, last in enumerate(rows, 1):
        if _cursor(method, last) == cursor:
            return start
    raise RequestError(INVALID_PARAMS, "invalid cursor")
