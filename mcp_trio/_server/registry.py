"""What a server offers: tools, resources, templates and prompts, and the lists of them.

Registering costs next to nothing. Schemas and decoders are built at first need, and each page of a
list is encoded once and kept until something is registered.
"""

import base64
import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs
import msgspec

from mcp_trio import _schema as s
from mcp_trio._errors import INVALID_PARAMS, RequestError
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._server.context import ThreadContext
from mcp_trio._server.signatures import Signature
from mcp_trio._server.templates import UriTemplate

_encode: Final = msgspec.json.Encoder().encode


@attrs.frozen(kw_only=True, eq=False)
class Registered:
    """A handler with its name."""

    name: str
    signature: Signature
    given_description: str | None = None

    @property
    def description(self) -> str | None:
        """What was given at registration, else the first part of the docstring."""
        return self.given_description or self.signature.docstring.description or None

    @property
    def runs_in_thread(self) -> bool:
        """Whether it may block, so that it must not run in the loop."""
        return self.signature.context_type is ThreadContext


@attrs.frozen(kw_only=True, eq=False)
class RegisteredTool(Registered):
    """A function that the model may call."""

    def definition(self) -> s.Tool:
        """Its row in `tools/list`."""
        return s.Tool(
            name=self.name, description=self.description, input_schema=self.signature.schema
        )


@attrs.frozen(kw_only=True, eq=False)
class RegisteredPrompt(Registered):
    """A template of messages."""

    def definition(self) -> s.Prompt:
        """Its row in `prompts/list`."""
        described = self.signature.docstring.parameters
        arguments = [
            s.PromptArgument(
                name=parameter.name,
                description=described.get(parameter.name),
                required=parameter.is_required,
            )
            for parameter in self.signature.parameters.values()
        ]
        return s.Prompt(name=self.name, description=self.description, arguments=arguments or None)


@attrs.frozen(kw_only=True, eq=False)
class RegisteredResource(Registered):
    """Something to read: at one URI, or at every URI that its template matches."""

    template: UriTemplate
    mime_type: str | None = None

    @property
    def is_static(self) -> bool:
        """Whether the URI has no variables."""
        return not self.template.variables

    def resource(self) -> s.Resource:
        """Its row in `resources/list`."""
        return s.Resource(
            uri=self.template.text,
            name=self.name,
            description=self.description,
            mime_type=self.mime_type,
        )

    def resource_template(self) -> s.ResourceTemplate:
        """Its row in `resources/templates/list`."""
        return s.ResourceTemplate(
            uri_template=self.template.text,
            name=self.name,
            description=self.description,
            mime_type=self.mime_type,
        )


@attrs.define(eq=False)
class Registry:
    """Everything that was registered, by name or URI."""

    limits: Limits = DEFAULT_LIMITS
    tools: dict[str, RegisteredTool] = attrs.field(factory=dict[str, Any], init=False)
    prompts: dict[str, RegisteredPrompt] = attrs.field(factory=dict[str, Any], init=False)
    resources: dict[str, RegisteredResource] = attrs.field(factory=dict[str, Any], init=False)
    _pages: dict[tuple[str, str | None], msgspec.Raw] = attrs.field(
        factory=dict[Any, msgspec.Raw], init=False
    )

    def add_tool(self, tool: RegisteredTool) -> None:
        """Offer a tool.

        Raises:
            ValueError: Its name is taken.
        """
        self._add(self.tools, tool.name, tool)

    def add_prompt(self, prompt: RegisteredPrompt) -> None:
        """Offer a prompt.

        Raises:
            ValueError: Its name is taken.
        """
        self._add(self.prompts, prompt.name, prompt)

    def add_resource(self, resource: RegisteredResource) -> None:
        """Offer a resource or a template.

        Raises:
            ValueError: Its URI is taken.
        """
        self._add(self.resources, resource.template.text, resource)

    def _add(self, table: dict[str, Any], key: str, row: Registered) -> None:
        if key in table:
            raise ValueError(f"{key!r} is registered already")
        table[key] = row
        self._pages.clear()

    def find_resource(self, uri: str) -> tuple[RegisteredResource, dict[str, str]] | None:
        """What is read at `uri`, with the values of the template's variables.

        A static resource comes before templates, these in the order in which they were registered.

        Raises:
            UriError: It is too long, or a value could lead out of its place.
        """
        static = self.resources.get(uri)
        if static is not None and static.is_static:
            return static, {}
        for resource in self.resources.values():
            if not resource.is_static:
                values = resource.template.match(uri, uri_chars_max=self.limits.uri_chars_max)
                if values is not None:
                    return resource, values
        return None

    def page(self, method: str, cursor: str | None) -> msgspec.Raw:
        """One encoded page of the list that `method` asks for, a row of `LISTS`.

        Raises:
            RequestError: The cursor is none of ours (invalid params).
            TypeError: Something in it cannot be listed; a note names it.
        """
        kept = self._pages.get((method, cursor))
        if kept is None:
            kept = msgspec.Raw(_encode(self._make_page(LISTS[method], method, cursor)))
            self._pages[method, cursor] = kept
        return kept

    def _make_page(self, made: "Listing", method: str, cursor: str | None) -> msgspec.Struct:
        rows = list(made.rows(self))
        items_max = self.limits.page_items_max
        start = 0 if cursor is None else _start(method, cursor, range(0, len(rows), items_max))
        end = start + items_max
        items = [_defined(made.define, row) for row in rows[start:end]]
        return made.result(items, _cursor(method, end) if end < len(rows) else None)

    def tools_digest(self) -> str | None:
        """A digest of all tools as they are listed; None if one cannot be listed."""
        digest = hashlib.sha256()
        try:
            for tool in self.tools.values():
                digest.update(_encode(tool.definition()))
        except TypeError:
            return None  # who asks for the list will hear of it
        return digest.hexdigest()[:_DIGEST_CHARS]


_DIGEST_CHARS: Final = 16


# Lists ------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Listing:
    """How one of the lists is made: its rows, what each becomes, the result that holds a page."""

    rows: Callable[[Registry], Iterable[Registered]]
    define: Callable[[Any], Any]
    result: Callable[[list[Any], str | None], msgspec.Struct]


LISTS: Final = {
    "tools/list": Listing(
        rows=lambda registry: registry.tools.values(),
        define=RegisteredTool.definition,
        result=lambda items, after: s.ListToolsResult(tools=items, next_cursor=after),
    ),
    "prompts/list": Listing(
        rows=lambda registry: registry.prompts.values(),
        define=RegisteredPrompt.definition,
        result=lambda items, after: s.ListPromptsResult(prompts=items, next_cursor=after),
    ),
    "resources/list": Listing(
        rows=lambda registry: (row for row in registry.resources.values() if row.is_static),
        define=RegisteredResource.resource,
        result=lambda items, after: s.ListResourcesResult(resources=items, next_cursor=after),
    ),
    "resources/templates/list": Listing(
        rows=lambda registry: (row for row in registry.resources.values() if not row.is_static),
        define=RegisteredResource.resource_template,
        result=lambda items, after: s.ListResourceTemplatesResult(
            resource_templates=items, next_cursor=after
        ),
    ),
}


def _defined(define: Callable[[Any], Any], row: Registered) -> Any:
    try:
        return define(row)
    except TypeError as error:
        error.add_note(f"{row.name!r} cannot be listed, and neither can the others")
        raise


def _cursor(method: str, start: int) -> str:
    return base64.urlsafe_b64encode(f"{method} from {start}".encode()).decode()


def _start(method: str, cursor: str, starts: Iterable[int]) -> int:
    """Where the page of a cursor starts; only those that we gave are known, so none is guessed."""
    for start in starts:
        if start and _cursor(method, start) == cursor:
            return start
    raise RequestError(INVALID_PARAMS, "invalid cursor")
