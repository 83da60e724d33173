"""What a tool's listing means: the name that people see, its hints, and what its results hold."""

import logging
from collections.abc import Iterable
from typing import Any, Final, TypeAlias, TypeVar

import attrs
import msgspec

from mcp_trio._errors import RemoteProtocolError, SchemaError
from mcp_trio._limits import Limits
from mcp_trio._protocol.json_schema import Schema
from mcp_trio._schema import (
    CallToolResult,
    Prompt,
    Resource,
    ResourceTemplate,
    TextContent,
    Tool,
    ToolAnnotations,
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
    _ready: dict[str, Schema | None] = attrs.field(factory=dict[str, Schema | None], init=False)

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

    def _schema(self, name: str) -> Schema | None:
        if name not in self._ready and name in self._listed:
            self._ready[name] = self._usable(name)
        return self._ready.get(name)

    def _usable(self, name: str) -> Schema | None:
        try:
            return Schema(self._listed[name], of="result", limits=self.limits)
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
