"""What a server offers: tools, resources, templates and prompts, and the lists of them.

Registering costs next to nothing. Schemas and decoders are built at first need, and each page of a
list is encoded once for each revision, and kept until something is registered or removed.

Handlers in threads register and remove as well. So a table is changed by one operation that no
thread can come between, and copied before anybody walks through it; and the pages are thrown away
together with their dict, so that one which is being made meanwhile is kept where nobody looks.
"""

import base64
import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import attrs
import msgspec

from mcp_trio import _schema as s
from mcp_trio._errors import INVALID_PARAMS, RequestError
from mcp_trio._limits import Limits
from mcp_trio._protocol import METHODS, Method, Revision
from mcp_trio._protocol.fitting import fitted
from mcp_trio._server.completions import Target
from mcp_trio._server.methods import RegisteredMethod
from mcp_trio._server.registered import (
    CacheHints,
    Registered,
    RegisteredPrompt,
    RegisteredResource,
    RegisteredTool,
)

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
    _pages: dict[tuple[str, str | None, Revision], msgspec.Raw] = attrs.field(
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
        needs = (method.row.need for method in tuple(self.methods.values()))
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
                values = resource.template.match(uri, uri_chars_max=self.limits.uri_chars_max)
                if values is not None:
                    return resource, values
        return None

    def resources_that(self, *, is_static: bool) -> list[RegisteredResource]:
        """The resources at one URI, or the templates."""
        return [row for row in tuple(self.resources.values()) if row.is_static is is_static]

    def page(self, method: str, cursor: str | None, revision: Revision) -> msgspec.Raw:
        """One encoded page of the list that `method` asks for, a row of `LISTS`.

        Raises:
            RequestError: The cursor is none of ours, or follows what is gone (invalid params).
            TypeError: Something in it cannot be listed; a note names it.
        """
        pages = self._pages
        kept = pages.get((method, cursor, revision))
        if kept is None:
            rows = list(LISTS[method].rows(self))
            start = 0 if cursor is None else _start(method, cursor, rows)
            made = self._make_page(method, rows, start)
            kept = msgspec.Raw(_encode(fitted(made, revision)))
            if start % self.limits.page_items_max == 0:  # what clients make up costs no memory
                pages[method, cursor, revision] = kept
        return kept

    def _make_page(self, method: str, rows: Sequence[Registered], start: int) -> s.CacheableResult:
        made, end = LISTS[method], start + self.limits.page_items_max
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

    def mirrored_parameters(self, tool: str) -> Mapping[str, tuple[str, ...]] | None:
        """Which arguments of a tool stand in the head of an HTTP request too, and in which field.

        None: there is no such tool.
        """
        registered = self.tools.get(tool)
        return None if registered is None else registered.mirrored

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
    result: Callable[..., s.CacheableResult]
    member: str


LISTS: Final = {
    "tools/list": Listing(
        rows=lambda registry: tuple(registry.tools.values()),
        define=RegisteredTool.definition,
        result=s.ListToolsResult,
        member="tools",
    ),
    "prompts/list": Listing(
        rows=lambda registry: tuple(registry.prompts.values()),
        define=RegisteredPrompt.definition,
        result=s.ListPromptsResult,
        member="prompts",
    ),
    "resources/list": Listing(
        rows=lambda registry: registry.resources_that(is_static=True),
        define=RegisteredResource.resource,
        result=s.ListResourcesResult,
        member="resources",
    ),
    "resources/templates/list": Listing(
        rows=lambda registry: registry.resources_that(is_static=False),
        define=RegisteredResource.resource_template,
        result=s.ListResourceTemplatesResult,
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
