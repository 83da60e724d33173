"""Elicitation forms: flat objects of simple values, and their validation.

Both sides check an answer: the client before it is sent, the server when it arrives. Only what the
specification lets a form say is looked at; a schema that says more, or nonsense, comes from a peer
and must not do harm: what is not understood is not checked.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeGuard, cast
from urllib.parse import urlsplit

import attrs

# --------------------
# Visits of URLs that one side has asked the other for, until they are over.


@attrs.define(eq=False)
class OpenElicitations:
    """The ids of those whose end may still be told, at most `ids_max`, the newest.

    Each session has its own, so that nobody hears of what another client has started (ELIC-32).
    """

    ids_max: int
    _ids: dict[str, Any] = attrs.field(factory=dict[str, Any], init=False)

    def begin(self, elicitation_id: str) -> None:
        """The client was asked."""
        self._ids[elicitation_id] = None
        if len(self._ids) > self.ids_max:
            del self._ids[next(iter(self._ids))]

    def end(self, elicitation_id: str) -> bool:
        """The visit is over; False if it was before, or if the client was never asked."""
        if elicitation_id not in self._ids:
            return False
        del self._ids[elicitation_id]
        return True


Schema: TypeAlias = Mapping[str, Any]
_Check: TypeAlias = Callable[[Any, Schema], str | None]

_WORDS: Final = frozenset({"type", "title", "description", "default"})
_KEYWORDS: Final = {
    "string": _WORDS | {"minLength", "maxLength", "format", "enum", "enumNames", "oneOf"},
    "number": _WORDS | {"minimum", "maximum"},
    "integer": _WORDS | {"minimum", "maximum"},
    "boolean": _WORDS,
    "array": _WORDS | {"minItems", "maxItems", "items"},
}
"""What a member of a form may be, and what may be said of it (ELIC-10, ELIC-12)."""

_EMAIL: Final = re.compile(r"[^@\s]+@[^@\s]+")
_DAY: Final = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_DATE: Final = re.compile(_DAY, re.ASCII)
_MOMENT: Final = re.compile(
    _DAY + r"[Tt ]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?([Zz]|[+-]\d\d:?\d\d)?", re.ASCII
)


def check_form(schema: Schema) -> None:
    """Refuse a schema that is no form.

    Raises:
        ValueError: It is no flat object, or a member is none that a form may have; which is named
            (ELIC-09).
    """
    properties = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, Mapping):
        raise ValueError('a form has "type": "object" and "properties"')
    for name, member in form_members(schema).items():
        fault = _fault_of_member(member)
        if fault is not None:
            raise ValueError(f"{name}: {fault}")


def _fault_of_member(member: Schema) -> str | None:
    kind = member.get("type")
    known = _KEYWORDS.get(str(kind))
    if known is None:
        return f"a form has texts, numbers, booleans and choices, and no {kind or 'other things'}"
    odd = sorted(map(str, set(member) - known))
    if odd:
        return f"a form cannot say {', '.join(odd)} of a member of type {kind}"
    if str(member.get("format", "uri")) not in FORMATS:
        return f"a form has no format {member['format']!r}, only {', '.join(FORMATS)}"
    if kind == "array" and choices_of(member.get("items")) is None:
        return "a list in a form is of choices"
    return _fault_of_choices(_object(member.get("items")) if kind == "array" else member)


def _fault_of_choices(given: Schema) -> str | None:
    if not all(_is_list_of_texts(given.get(word, [])) for word in ("enum", "enumNames")):
        return "the choices of a form are texts"
    if not all(_are_titled(given.get(word, [])) for word in ("oneOf", "anyOf")):
        return "a choice of oneOf or anyOf has a const and a title, both texts"
    return None


def _are_titled(choices: Any) -> bool:
    return isinstance(choices, list) and all(
        isinstance(_object(it).get(word), str)
        for it in cast("Sequence[Any]", choices)
        for word in ("const", "title")
    )


def choices_of(schema: Any) -> list[Any] | None:
    """What may be chosen; None if anything may be said."""
    given = _object(schema)
    for keyword in ("oneOf", "anyOf"):
        titled = given.get(keyword)
        if isinstance(titled, list):
            return [_object(it).get("const") for it in cast("Sequence[Any]", titled)]
    values = given.get("enum")
    return [*cast("Sequence[Any]", values)] if isinstance(values, list) else None


def with_defaults(content: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """The content, and the defaults of the members that it leaves out (ELIC-14)."""
    defaults = {
        name: member["default"]
        for name, member in form_members(schema).items()
        if "default" in member and name not in content
    }
    return {**content, **defaults}


def form_errors(content: Mapping[str, Any], schema: Schema) -> list[str]:
    """A short line for each member that does not fit the form; none if all do (ELIC-16)."""
    members = form_members(schema)
    required = schema.get("required")
    lines = [
        f"{name}: missing"
        for name in cast("Sequence[Any]", required if isinstance(required, list) else ())
        if name not in content
    ]
    for name, value in content.items():
        fault = _fault(value, members.get(name, {}))
        if fault is not None:
            lines.append(f"{name}: {fault}")
    return lines


def form_members(schema: Schema) -> dict[str, Schema]:
    """What a form says of each of its members; what it should not say is like nothing."""
    return {name: _object(it) for name, it in _object(schema.get("properties")).items()}


def _object(value: Any) -> Schema:
    """What a peer sent where an object belongs; anything else is like an empty one."""
    return cast("Schema", value) if isinstance(value, Mapping) else {}


def _fault(value: Any, member: Schema) -> str | None:
    return _CHECKS.get(str(member.get("type")), _fault_of_any)(value, member)


# Kinds of members -------------------------------------------------------------------------------


def _fault_of_text(value: Any, member: Schema) -> str | None:
    if not isinstance(value, str):
        return "not a string"
    choices = choices_of(member)
    if choices is not None and value not in choices:
        return "none of the choices"
    fault = _fault_of_size(len(value), member, "minLength", "maxLength")
    if fault is not None:
        return f"{fault} characters"
    is_right = FORMATS.get(str(member.get("format")))
    return f"not of the format {member['format']}" if is_right and not is_right(value) else None


def _fault_of_number(value: Any, member: Schema) -> str | None:
    if not _is_number(value):
        return "not a number"
    return _fault_of_size(value, member, "minimum", "maximum")


def _fault_of_integer(value: Any, member: Schema) -> str | None:
    if not _is_number(value) or value != math.floor(value):
        return "not an integer"
    return _fault_of_number(value, member)


def _fault_of_boolean(value: Any, _: Schema) -> str | None:
    return None if isinstance(value, bool) else "not a boolean"


def _fault_of_list(value: Any, member: Schema) -> str | None:
    if not _is_list_of_texts(value):
        return "not a list of strings"
    choices = choices_of(member.get("items"))
    if choices is not None and any(it not in choices for it in value):
        return "not only choices"
    fault = _fault_of_size(len(value), member, "minItems", "maxItems")
    return None if fault is None else f"{fault} items"


def _fault_of_any(value: Any, _: Schema) -> str | None:
    """What a form can hold at all (ELIC-18, ELIC-19)."""
    if isinstance(value, str | bool) or _is_number(value) or _is_list_of_texts(value):
        return None
    return "neither a string, a number, a boolean, nor a list of strings"


def _fault_of_size(size: float, member: Schema, least: str, most: str) -> str | None:
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


_CHECKS: Final[dict[str, _Check]] = {
    "string": _fault_of_text,
    "number": _fault_of_number,
    "integer": _fault_of_integer,
    "boolean": _fault_of_boolean,
    "array": _fault_of_list,
}


# Formats ----------------------------------------------------------------------------------------


def _is_email(text: str) -> bool:
    return _EMAIL.fullmatch(text) is not None


def _is_uri(text: str) -> bool:
    try:
        return bool(urlsplit(text).scheme) and not any(map(str.isspace, text))
    except ValueError:
        return False


FORMATS: Final[dict[str, Callable[[str], bool]]] = {
    "email": _is_email,
    "uri": _is_uri,
    "date": lambda text: _DATE.fullmatch(text) is not None,
    "date-time": lambda text: _MOMENT.fullmatch(text) is not None,
}
