"""Results of calls: errors, structured results and their schemas."""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

import msgspec

from mcp_trio import types
from mcp_trio._journal.calls import INTERNAL_ERROR_PREFIX
from mcp_trio._protocol.json_schema import SchemaValidator
from mcp_trio.errors import (
    INVALID_PARAMS,
    RESOURCE_NOT_FOUND,
    RemoteProtocolError,
    RequestError,
    ResultTypeError,
    SchemaError,
)
from mcp_trio.limits import Limits
from mcp_trio.types import CallToolResult, Tool

logger = logging.getLogger("mcp_trio")

T = TypeVar("T")


def reference(ref: types.Reference | str) -> types.Reference:
    """Return a typed reference; a string with "://" is a resource's URI, any other a prompt."""
    if not isinstance(ref, str):
        return ref
    return types.ResourceReference(uri=ref) if "://" in ref else types.PromptReference(name=ref)


class _Elicitations(msgspec.Struct):
    elicitations: list[types.ElicitParams]


def required_elicitations(data: Any) -> list[types.ElicitParams]:
    """Return the elicitations in the data of a "URL elicitation required" error."""
    try:
        return msgspec.convert(data, _Elicitations).elicitations
    except msgspec.ValidationError:
        return []


def is_resource_not_found(error: RequestError) -> bool:
    """Return whether a server answered that there is no resource with the URI.

    Servers of older protocol versions have a code for it. Newer ones answer "invalid params" with
    the URI in the error's data.
    """
    if error.code == INVALID_PARAMS:
        data: Any = error.data
        return isinstance(data, dict) and "uri" in data
    return error.code == RESOURCE_NOT_FOUND


def is_internal_error(result: CallToolResult) -> bool:
    """Return whether a tool failed by an exception, as the text of a server of mcp_trio says."""
    match result.content:
        case [types.TextContent(text=text)]:
            return text.startswith(INTERNAL_ERROR_PREFIX)
        case _:
            return False


def error_text(name: str, result: CallToolResult) -> str:
    """Return the texts of a failed tool call's result, for the message of `ToolError`."""
    texts = [part.text for part in result.content if isinstance(part, types.TextContent)]
    return "\n".join(texts) or f"the tool {name} failed without an error text"


class OutputSchemas:
    """The output schemas of the listed tools, against which results of calls are checked.

    A schema that cannot be used (an unknown dialect, a `$ref` to another document) is logged once;
    the results of its tool are not checked.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._listed: dict[str, dict[str, Any]] = {}
        # None for a schema that cannot be used.
        self._validators: dict[str, SchemaValidator | None] = {}
        # The tools of which the log has a result that takes too long to check.
        self._unchecked: set[str] = set()

    def learn(self, tools: Iterable[Tool]) -> None:
        """Replace the known schemas with those of a new list of tools."""
        listed = {tool.name: tool.output_schema for tool in tools if tool.output_schema is not None}
        if listed != self._listed:
            self.forget()
            self._listed = listed

    def forget(self) -> None:
        """Forget all schemas, because the list of tools has changed."""
        self._listed, self._validators, self._unchecked = {}, {}, set()

    def check(self, name: str, result: CallToolResult) -> None:
        """Check the structured content of a result against the schema of its tool, if known.

        A result with `isError` is not checked: its content describes the error.

        Raises:
            RemoteProtocolError: The structured content is missing, or does not match the schema.
        """
        validator = None if result.is_error else self._validator(name)
        if validator is None:
            return
        if result.structured_content is msgspec.UNSET:
            raise RemoteProtocolError(
                f"the tool {name} has an output schema, but its result has no structuredContent"
            )
        errors = validator.check_result(result.structured_content)
        if errors is None and name not in self._unchecked:
            self._unchecked.add(name)
            text = "a result of the tool %s is not checked: it %s"
            logger.warning(text, name, validator.too_long)
        if errors:
            raise RemoteProtocolError(
                f"the result of the tool {name} does not match its output schema:"
                f" {'; '.join(errors)}"
            )

    def _validator(self, name: str) -> SchemaValidator | None:
        if name not in self._validators and name in self._listed:
            try:
                self._validators[name] = SchemaValidator(
                    self._listed[name], name="result", limits=self.limits
                )
            except SchemaError as error:
                logger.warning("results of the tool %s are not checked: %s", name, error)
                self._validators[name] = None
        return self._validators.get(name)


def decode_as(name: str, result: CallToolResult, result_type: type[T]) -> T:
    """Return the result of the tool `name` as a value of `result_type`.

    The value is the structured content, or its only member `result`: before 2026-07-28 servers wrap
    values that are not objects. Servers whose protocol version has no structured content send it as
    text: that is decoded as JSON, or returned as it is if `result_type` is `str`.

    Raises:
        ResultTypeError: The result cannot be converted to `result_type`.
    """
    try:
        if result.structured_content is not msgspec.UNSET:
            return _converted(result.structured_content, result_type)
        texts = [part.text for part in result.content if isinstance(part, types.TextContent)]
        if len(texts) != 1:
            raise msgspec.ValidationError(
                f"it has no structured content, and {len(texts)} text contents instead of one"
            )
        if result_type is str:
            return msgspec.convert(texts[0], result_type)
        return msgspec.json.decode(texts[0], type=result_type, dec_hook=_pydantic_model)
    except (msgspec.MsgspecError, RecursionError) as error:
        type_name = getattr(result_type, "__name__", result_type)
        raise ResultTypeError(
            f"the result of the tool {name} does not fit result_type={type_name}: {error}"
        ) from error


def _converted(content: Any, result_type: type[T]) -> T:
    """Return the structured content, or its only member `result`, as a value of `result_type`.

    A type without a member `result` may ignore it. That is not taken for the value, because each of
    its fields would silently have its default.
    """
    convert: Callable[[Any], T] = partial(
        msgspec.convert, type=result_type, dec_hook=_pydantic_model
    )
    if not isinstance(content, dict) or cast("dict[str, Any]", content).keys() != {"result"}:
        return convert(content)
    try:
        value = convert(content)
    except msgspec.ValidationError:
        return convert(content["result"])
    with suppress(msgspec.ValidationError):
        if value == convert({}):
            return convert(content["result"])
    return value


def _pydantic_model(kind: Any, value: Any) -> Any:
    """Return an instance of a pydantic model, a type that msgspec does not know."""
    if not hasattr(kind, "model_validate"):
        raise msgspec.ValidationError(f"values of {kind!r} cannot be made from JSON")
    return kind.model_validate(value)  # pydantic's error is a ValueError, which msgspec converts
