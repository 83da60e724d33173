"""Parameters and results of calls: pages, display names, tool hints, structured results."""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

import attrs
import msgspec

from mcp_trio import types
from mcp_trio._protocol.json_schema import SchemaValidator
from mcp_trio.errors import (
    INVALID_PARAMS,
    RESOURCE_NOT_FOUND,
    RemoteProtocolError,
    RequestError,
    SchemaError,
    Unencodable,
)
from mcp_trio.limits import DEFAULT_LIMITS, Limits
from mcp_trio.types import (
    CallToolResult,
    Cursor,
    Icon,
    ModelHint,
    ModelPreferences,
    PaginatedParams,
    PaginatedResult,
    Prompt,
    Resource,
    ResourceTemplate,
    TextContent,
    Tool,
    ToolAnnotations,
)

# --------------------
# What people give to a call, as the protocol's params.


def call_tool_params(name: str, arguments: Mapping[str, Any] | None) -> types.CallToolParams:
    """A tool's name and its arguments, which become JSON here.

    Raises:
        Unencodable: The arguments cannot be written as JSON.
    """
    if arguments is None:
        return types.CallToolParams(name=name)
    try:
        return types.CallToolParams(
            name=name, arguments=msgspec.Raw(msgspec.json.encode(arguments))
        )
    except Exception as error:  # people's values fail in many ways
        raise Unencodable(f"the arguments cannot be sent as JSON: {error}") from error


def get_prompt_params(name: str, arguments: Mapping[str, Any] | None) -> types.GetPromptParams:
    """A prompt's name and its arguments.

    Raises:
        TypeError: An argument is not text (PROM-04).
    """
    for argument, value in (arguments or {}).items():
        if not isinstance(value, str):
            raise TypeError(f"the arguments of a prompt are text, unlike {argument}={value!r}")
    return types.GetPromptParams(
        name=name, arguments=None if arguments is None else dict(arguments)
    )


def complete_params(
    ref: types.Reference | str, argument: str, value: str, context: Mapping[str, str] | None = None
) -> types.CompleteParams:
    """What is completed, the name of the argument, what stands there so far, and in the others."""
    return types.CompleteParams(
        ref=reference(ref),
        argument=types.CompletionArgument(name=argument, value=value),
        context=None if context is None else types.CompletionContext(arguments=dict(context)),
    )


def reference(ref: types.Reference | str) -> types.Reference:
    """Text names the URI (template) of a resource, known by its "://", or else a prompt."""
    if not isinstance(ref, str):
        return ref
    return types.ResourceReference(uri=ref) if "://" in ref else types.PromptReference(name=ref)


# --------------------
# Lists that come in pages, read to their end.


Fetch: TypeAlias = Callable[[str, PaginatedParams], Awaitable[Any]]


async def read_pages(
    fetch: Fetch, method: str, items_of: Callable[[Any], list[Any]], *, pages_max: int
) -> list[Any]:
    """The items of all pages of a list, in order.

    Raises:
        RemoteProtocolError: The server gave a cursor twice, or more than
            `limits.requests.pages_max` pages.
    """
    items: list[Any] = []
    cursors: set[Cursor | None] = set()
    cursor: Cursor | None = None
    while len(cursors) < pages_max:
        page: PaginatedResult = await fetch(method, PaginatedParams(cursor=cursor))
        items += items_of(page)
        cursors.add(cursor)
        cursor = page.next_cursor
        if cursor is None:
            return items
        if cursor in cursors:
            raise RemoteProtocolError(f"{method}: the server gave the cursor {cursor!r} twice")
    raise RemoteProtocolError(
        f"{method}: the list has more than {pages_max} pages (limits.requests.pages_max)"
    )


# --------------------
# What errors and failed results say to whoever looks closer.


class _Elicitations(msgspec.Struct):
    elicitations: list[types.ElicitParams]


def elicitation_ids(data: Any) -> list[str]:
    """The visits to URLs that an error names, which its server will say to be over."""
    try:
        named = msgspec.convert(data, _Elicitations).elicitations
    except msgspec.ValidationError:
        return []
    return [params.elicitation_id for params in named if params.elicitation_id is not None]


def is_of_missing_resource(error: RequestError) -> bool:
    """Return whether it says that there is nothing at a URI.

    Its code is one of its own, or, the newer way, that of bad params with the URI.
    """
    if error.code == INVALID_PARAMS:
        data: Any = error.data
        return isinstance(data, dict) and "uri" in data
    return error.code == RESOURCE_NOT_FOUND


def error_text(name: str, result: types.CallToolResult) -> str:
    """Why a tool failed, in its own words."""
    texts = [part.text for part in result.content if isinstance(part, types.TextContent)]
    return "\n".join(texts) or f"the tool {name} failed and did not say why"


# --------------------
# Which of a server's icons may be shown: a host asks before it fetches any.


_TYPES: Final = {"image/png", "image/jpeg", "image/jpg", "image/svg+xml", "image/webp"}


def showable_icons(
    icons: Iterable[Icon] | None,
    *,
    hosts: Collection[str] = (),
    limits: Limits = DEFAULT_LIMITS,
) -> list[Icon]:
    """The icons that a host may show, in their order.

    They are PNG, JPEG, SVG or WebP (ICON-02, ICON-03, ICON-06), and either a `data:` URI of at most
    `limits.messages.icon_chars_max` characters, or at `https:` on one of `hosts`: the server's own,
    and those that are trusted (ICON-04, ICON-07). What an icon says of its type is the server's
    word for it.

    Nothing is fetched here. Whoever does that sends no credentials, follows no redirect to another
    host, bounds what it reads, and goes by the bytes; an SVG is shown as an image, never as a page
    (ICON-05, ICON-06).
    """
    return [icon for icon in icons or () if _is_showable(icon, hosts, limits)]


def _is_showable(icon: Icon, hosts: Collection[str], limits: Limits) -> bool:
    try:
        uri = urlsplit(icon.src)
    except ValueError:
        return False
    if icon.mime_type is not None and icon.mime_type.lower() not in _TYPES:
        return False
    if uri.scheme == "data":
        kind = uri.path.partition(",")[0].partition(";")[0].lower()
        return kind in _TYPES and len(icon.src) <= limits.messages.icon_chars_max
    is_anonymous = "@" not in uri.netloc
    return uri.scheme == "https" and uri.hostname in hosts and is_anonymous


# --------------------
# Which of a host's models a server's preferences speak for.


@attrs.frozen(kw_only=True)
class ModelTraits:
    """What a model is like, each from 0 (least) to 1 (most).

    Attributes:
        cheapness: How little it costs.
        speed: How fast it answers.
        intelligence: How much it can do.
        stands_for: Models of other providers that it may be taken for.
    """

    cheapness: float = 0.5
    speed: float = 0.5
    intelligence: float = 0.5
    stands_for: Sequence[str] = ()


def choose_model(models: Mapping[str, ModelTraits], preferences: ModelPreferences | None) -> str:
    """The name of the model that fits a request for sampling best; for `sampling` callbacks.

    The first hint that is a part of a model's name, or of one that it stands for, leaves only such
    models (SAMP-13); among them, or among all when no hint fits, the priorities decide (SAMP-14),
    and then the order of `models`.

    Raises:
        ValueError: There are no models.
    """
    preferences = preferences or ModelPreferences()
    candidates = _hinted(models, preferences.hints or []) or list(models)
    if not candidates:
        raise ValueError("there are no models to choose from")
    return max(candidates, key=lambda name: _worth(models[name], preferences))


def _hinted(models: Mapping[str, ModelTraits], hints: Sequence[ModelHint]) -> list[str]:
    for part in [hint.name for hint in hints if hint.name]:
        fitting = [
            name
            for name, traits in models.items()
            if any(part in known for known in (name, *traits.stands_for))
        ]
        if fitting:
            return fitting
    return []


def _worth(traits: ModelTraits, preferences: ModelPreferences) -> float:
    return (
        traits.cheapness * (preferences.cost_priority or 0)
        + traits.speed * (preferences.speed_priority or 0)
        + traits.intelligence * (preferences.intelligence_priority or 0)
    )


logger = logging.getLogger("mcp_trio")

Named: TypeAlias = Tool | Prompt | Resource | ResourceTemplate
T = TypeVar("T")

_NO_ANNOTATIONS: Final = ToolAnnotations()


def display_name(thing: Named) -> str:
    """The name that people see: the title, that of a tool's annotations, or the name (TOOL-14)."""
    annotations = thing.annotations if isinstance(thing, Tool) else None
    return thing.title or (annotations and annotations.title) or thing.name


@attrs.frozen(kw_only=True)
class ToolHints:
    """What a server says of a tool, not more than that: whoever trusts it trusts the server.

    What was left out is as the specification has it (TOOL-13).

    Attributes:
        read_only: It changes nothing.
        destructive: It may destroy something, where it does change things.
        idempotent: Called again with the same arguments it changes nothing more.
        open_world: It reaches beyond what the server itself has.
    """

    read_only: bool
    destructive: bool
    idempotent: bool
    open_world: bool


def tool_hints(tool: Tool) -> ToolHints:
    """The hints of a tool, with the defaults of the specification (TOOL-13)."""
    said = tool.annotations or _NO_ANNOTATIONS
    return ToolHints(
        read_only=said.read_only_hint is True,
        destructive=said.destructive_hint is not False,
        idempotent=said.idempotent_hint is True,
        open_world=said.open_world_hint is not False,
    )


@attrs.define(eq=False)
class OutputSchemas:
    """The output schemas of the tools that were listed, for the results of their calls.

    One that cannot be used (an unknown dialect, a `$ref` to elsewhere) is named in the log, once,
    and nothing is checked against it.
    """

    limits: Limits
    _listed: dict[str, dict[str, Any]] = attrs.field(factory=dict[str, dict[str, Any]], init=False)
    _ready: dict[str, SchemaValidator | None] = attrs.field(
        factory=dict[str, SchemaValidator | None], init=False
    )

    def learn(self, tools: Iterable[Tool]) -> None:
        """Replace what is known by what was listed now."""
        listed = {tool.name: tool.output_schema for tool in tools if tool.output_schema is not None}
        if listed != self._listed:
            self.forget()
            self._listed = listed

    def forget(self) -> None:
        """The list has changed: until it is read again nothing is known."""
        self._listed, self._ready = {}, {}

    def check(self, name: str, result: CallToolResult) -> None:
        """Check what a tool gave back against its schema, if that is known (TOOL-25).

        A result that tells of an error has no shape to keep (TRAP-71).

        Raises:
            RemoteProtocolError: It has no structured content, or one that does not conform.
        """
        schema = None if result.is_error else self._schema(name)
        if schema is None:
            return
        if result.structured_content is msgspec.UNSET:
            raise RemoteProtocolError(
                f"the tool {name} has an output schema, but its result has no structuredContent"
            )
        faults = schema.check(result.structured_content)
        if faults:
            raise RemoteProtocolError(
                f"the result of the tool {name} does not conform to its output schema:"
                f" {'; '.join(faults)}"
            )

    def _schema(self, name: str) -> SchemaValidator | None:
        if name not in self._ready and name in self._listed:
            self._ready[name] = self._usable(name)
        return self._ready.get(name)

    def _usable(self, name: str) -> SchemaValidator | None:
        try:
            return SchemaValidator(self._listed[name], of="result", limits=self.limits)
        except SchemaError as error:
            logger.warning("results of the tool %s are not checked: %s", name, error)
            return None


def typed(name: str, result: CallToolResult, kind: type[T]) -> T:
    """What a tool gave back as a value of a type.

    It is the structured content. Where there is none, as with a server of a revision without it, it
    is the text: as JSON, or as it is for `str`.

    Raises:
        RemoteProtocolError: It is no such value.
    """
    try:
        if result.structured_content is not msgspec.UNSET:
            return msgspec.convert(result.structured_content, kind)
        return _typed_text(result, kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RemoteProtocolError(
            f"the result of the tool {name} does not fit {getattr(kind, '__name__', kind)}: {error}"
        ) from error


def _typed_text(result: CallToolResult, kind: type[T]) -> T:
    texts = [part.text for part in result.content if isinstance(part, TextContent)]
    if len(texts) != 1:
        raise msgspec.ValidationError("it has no structured content, and not one text")
    return (
        msgspec.convert(texts[0], kind) if kind is str else msgspec.json.decode(texts[0], type=kind)
    )
