"""Rules for the requests of a server to its client: elicitation forms, and tools in sampling.

Both sides check an elicitation's values: the client before it sends them, the server when it
receives them. Only what the specification allows in a form is checked. A form comes from a peer and
may contain anything, so keywords with unexpected values are ignored.

https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation
https://modelcontextprotocol.io/specification/2025-11-25/client/sampling
"""

import math
import re
from calendar import monthrange
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final, TypeAlias, TypeGuard, cast
from urllib.parse import urlsplit

import attrs

from mcp_trio import types

# URL elicitations.


@attrs.define(eq=False, repr=False)
class OpenElicitations:
    """The ids of one session's URL elicitations whose completion may still be reported.

    Args:
        ids_max: Ids that are remembered; older ones are forgotten.
    """

    ids_max: int
    # The values have no meaning: a dict keeps the order of its keys, a set does not.
    _ids: dict[str, None] = attrs.field(factory=dict[str, None], init=False)

    def begin(self, elicitation_id: str) -> None:
        """Add an elicitation, because the client is asked."""
        self._ids[elicitation_id] = None
        if len(self._ids) > self.ids_max:
            del self._ids[next(iter(self._ids))]

    def end(self, elicitation_id: str) -> bool:
        """Remove an elicitation; return whether it was open."""
        if elicitation_id not in self._ids:
            return False
        del self._ids[elicitation_id]
        return True


# Elicitation forms.

Schema: TypeAlias = Mapping[str, Any]

_COMMON: Final = frozenset({"type", "title", "description", "default"})
_KEYWORDS: Final = {
    "string": _COMMON | {"minLength", "maxLength", "format", "enum", "enumNames", "oneOf"},
    "number": _COMMON | {"minimum", "maximum"},
    "integer": _COMMON | {"minimum", "maximum"},
    "boolean": _COMMON,
    "array": _COMMON | {"minItems", "maxItems", "items"},
}
"""The types of a form's fields, and the keywords that each type may have."""

_EMAIL: Final = r"[^@\s]+@[^@\s]+"
_DATE: Final = r"(?a)(\d{4})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_DATE_TIME: Final = (
    _DATE + r"[Tt ]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):?[0-5]\d)?"
)


def _is_uri(text: str) -> bool:
    try:
        return bool(urlsplit(text).scheme) and not any(map(str.isspace, text))
    except ValueError:
        return False


def _has_date(pattern: str, text: str) -> bool:
    found = re.fullmatch(pattern, text)
    if found is None:
        return False
    year, month, day = map(int, found.groups()[:3])
    return day <= monthrange(year, month)[1]


FORMATS: Final[dict[str, Callable[[str], bool]]] = {
    "email": lambda text: re.fullmatch(_EMAIL, text) is not None,
    "uri": _is_uri,
    "date": partial(_has_date, _DATE),
    "date-time": partial(_has_date, _DATE_TIME),
}
"""The formats of a form's texts, with a function that checks each."""


def check_form(schema: Schema) -> None:
    """Check that a schema is a form: a flat object of simple values.

    Raises:
        ValueError: It is not a flat object, or requires a field that it lacks, or a field has a
            type or keyword that forms do not have; the text names the field.
    """
    properties = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, Mapping):
        raise ValueError('a form needs "type": "object" and "properties"')
    members, required = form_members(schema), schema.get("required", [])
    if not (_is_list_of_texts(required) and set(required) <= members.keys()):
        raise ValueError(f'"required" must be a list of names of fields, not {required!r}')
    for name, member in members.items():
        kind = member.get("type")
        known = _KEYWORDS.get(str(kind))
        if known is None:
            types_known = ", ".join(_KEYWORDS)
            raise ValueError(
                f"{name}: the type of a field must be one of {types_known}, not {kind!r}"
            )
        unknown = sorted(map(str, set(member) - known))
        if unknown:
            raise ValueError(
                f"{name}: a field of type {kind} in a form cannot have {', '.join(unknown)}"
            )
        if "format" in member and str(member["format"]) not in FORMATS:
            formats = ", ".join(FORMATS)
            raise ValueError(f"{name}: a form has no format {member['format']!r}, only {formats}")
        if kind == "array" and choices_of(member.get("items")) is None:
            raise ValueError(f"{name}: a list in a form must be a list of choices")
        given = _object(member.get("items")) if kind == "array" else member
        if not all(_is_list_of_texts(given.get(keyword, [])) for keyword in ("enum", "enumNames")):
            raise ValueError(f"{name}: the choices of a form must be texts")
        if not all(_are_titled(given.get(keyword, [])) for keyword in ("oneOf", "anyOf")):
            raise ValueError(
                f"{name}: a choice of oneOf or anyOf must have a const and a title, both texts"
            )


def _are_titled(choices: Any) -> bool:
    return isinstance(choices, list) and all(
        isinstance(_object(choice).get(word), str)
        for choice in cast("Sequence[Any]", choices)
        for word in ("const", "title")
    )


def choices_of(schema: Any) -> list[Any] | None:
    """Return the values that may be chosen; None if the field has no choices."""
    given = _object(schema)
    for keyword in ("oneOf", "anyOf"):
        titled = given.get(keyword)
        if isinstance(titled, list):
            return [_object(choice).get("const") for choice in cast("Sequence[Any]", titled)]
    values = given.get("enum")
    return [*cast("Sequence[Any]", values)] if isinstance(values, list) else None


def with_defaults(content: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return the content with the defaults of the fields that it lacks; null is no default."""
    defaults = {
        name: member["default"]
        for name, member in form_members(schema).items()
        if member.get("default") is not None and name not in content
    }
    return {**content, **defaults}


def form_errors(content: Mapping[str, Any], schema: Schema) -> list[str]:
    """Return a line of text for each value that does not match its field, and for missing ones."""
    members = form_members(schema)
    required = schema.get("required")
    lines = [
        f"{name}: missing"
        for name in cast("Sequence[Any]", required if isinstance(required, list) else ())
        if isinstance(name, str) and name not in content
    ]
    for name, value in content.items():
        error = _error_in_value(value, members.get(name, {}))
        if error is not None:
            lines.append(f"{name}: {error}")
    return lines


def form_members(schema: Schema) -> dict[str, Schema]:
    """Return the fields of a form, by name."""
    return {name: _object(it) for name, it in _object(schema.get("properties")).items()}


def _object(value: Any) -> Schema:
    # Where a peer sends something else instead of an object, that counts as an empty object.
    return cast("Schema", value) if isinstance(value, Mapping) else {}


def _error_in_value(value: Any, member: Schema) -> str | None:
    match member.get("type"):
        case "string":
            if not isinstance(value, str):
                return "not a string"
            choices = choices_of(member)
            if choices is not None and value not in choices:
                return "none of the choices"
            error = _size_error(len(value), member, "minLength", "maxLength")
            if error is not None:
                return f"{error} characters"
            matches_format = FORMATS.get(str(member.get("format")))
            if matches_format is not None and not matches_format(value):
                return f"not of the format {member['format']}"
            return None
        case "number" | "integer" as kind:
            if not _is_number(value) or (kind == "integer" and value != math.floor(value)):
                return "not an integer" if kind == "integer" else "not a number"
            return _size_error(value, member, "minimum", "maximum")
        case "boolean":
            return None if isinstance(value, bool) else "not a boolean"
        case "array":
            if not _is_list_of_texts(value):
                return "not a list of strings"
            choices = choices_of(member.get("items"))
            if choices is not None and any(it not in choices for it in value):
                return "contains a value that is none of the choices"
            error = _size_error(len(value), member, "minItems", "maxItems")
            return None if error is None else f"{error} items"
        case _:  # The form lacks this field, or its type. Every value of a form is still simple.
            if isinstance(value, str | bool) or _is_number(value) or _is_list_of_texts(value):
                return None
            return "neither a string, a number, a boolean, nor a list of strings"


def _size_error(size: float, member: Schema, least: str, most: str) -> str | None:
    low, high = member.get(least), member.get(most)
    if _is_number(low) and size < low:
        return f"less than {low}"
    if _is_number(high) and size > high:
        return f"more than {high}"
    return None


def _is_number(value: Any) -> TypeGuard[float]:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(it, str) for it in cast("Sequence[Any]", value)
    )


# Tools in sampling.


def unbalanced_tool_use(messages: Sequence[types.SamplingMessage]) -> str | None:
    """Return the first error in the order of tool uses and tool results; None if it is valid.

    The message after one with tool uses must have a result for each of them, and a message with
    tool results must contain nothing else.
    """
    # An empty message before the first and after the last lets the loop check these two as well.
    nothing = types.SamplingMessage(role="user", content=[])
    for before, message in pairwise([nothing, *messages, nothing]):
        used = {it.id for it in _blocks(before) if isinstance(it, types.ToolUseContent)}
        blocks = _blocks(message)
        answered = [it.tool_use_id for it in blocks if isinstance(it, types.ToolResultContent)]
        if answered and len(answered) < len(blocks):
            return "a message with tool results must contain tool results only"
        missing, unknown = used - set(answered), set(answered) - used
        if missing:
            return f"the next message has no result for the tool use {min(missing)!r}"
        if unknown:
            return f"there is a result of an unknown tool use {min(unknown)!r}"
    return None


def forbidden_tool_use(
    params: types.CreateMessageParams, result: types.CreateMessageResult
) -> str | None:
    """Return the rule that a model's choice of tools violates; None if it is valid."""
    used = {it.name for it in _blocks(result) if isinstance(it, types.ToolUseContent)}
    mode = None if params.tool_choice is None else params.tool_choice.mode
    known = {tool.name for tool in params.tools or () if mode != "none"}
    if used - known:
        return f"it uses {min(used - known)!r}, which it was not given"
    return "it had to use a tool" if mode == "required" and not used else None


def _blocks(
    message: types.SamplingMessage | types.CreateMessageResult,
) -> Sequence[types.SamplingBlock]:
    return message.content if isinstance(message.content, list) else [message.content]
