"""From a type to a form that a client's user fills in, and from what they said to a value of it.

A form is made at first use, and refused then if the type is not flat. Its schema is that of the
newest revision; what older clients do not know is taken out on the way to them.
"""

import datetime as dt
import enum
import functools
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, cast

import attrs
import msgspec

from mcp_trio._errors import LocalProtocolError
from mcp_trio._journal.redaction.names import DEFAULT_SECRET_NAMES, SecretNames
from mcp_trio._protocol.forms import FORMATS, check_form, members_of, mistakes_in
from mcp_trio._server.custom_types import TypeReader
from mcp_trio._server.fields import Field, class_of, fields_of, has_fields
from mcp_trio._server.hints import bare, is_array, is_union
from mcp_trio._server.json_schemas import json_schema
from mcp_trio._server.mistakes import line
from mcp_trio._server.stand_ins import convert, name_of

VALUE: Final = "value"
"""The member of a form that asks for one value alone."""

SECRETS: Final = SecretNames(DEFAULT_SECRET_NAMES)
"""What a form never asks for, and no URL carries, by its name (ELIC-25, ELIC-42)."""

_LINK: Final = re.compile(r"\bhttps?://", re.IGNORECASE)
_DEFINITIONS: Final = "#/$defs/"

# What of a JSON Schema a form can say too; the rest is checked when the answer is here.
_WORDS: Final[tuple[str, ...]] = ("title", "description")
_LIMITS: Final[dict[Any, tuple[str, ...]]] = {
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "boolean": (),
    "array": ("minItems", "maxItems"),
}
_FORMATS: Final[dict[Any, str]] = {dt.datetime: "date-time", dt.date: "date"}


class FormError(ValueError):
    """What was filled in does not fit the form; `lines` has one short line for each mistake."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = list(lines)


@attrs.frozen(eq=False)
class Form:
    """A form: what the client is told, and what makes a value of its answer."""

    schema: dict[str, Any]
    build: Callable[[Mapping[str, Any]], Any]

    def read(self, content: Mapping[str, Any]) -> Any:
        """The value that a user has given.

        Raises:
            FormError: It does not fit (ELIC-23).
        """
        mistakes = mistakes_in(content, self.schema)
        if mistakes:
            raise FormError(mistakes)
        return self.build(content)


def form_of(kind: Any) -> Form:
    """The form for a class, for one value alone, for a schema, or (None) for a confirmation.

    Raises:
        TypeError: The type is not flat; the member is named (ELIC-09).
        ValueError: The schema is none of a form; the member is named.
        LocalProtocolError: A member is a secret, which is asked for by URL (ELIC-25, ELIC-26).
    """
    if isinstance(kind, Mapping):
        return _form_by_schema(dict(cast("Mapping[str, Any]", kind)))
    return _form_of_class(kind) if isinstance(kind, type) else _form_of_hint(kind)


# Only classes: hints can be equal without being the same, as Literals in another order.
@functools.lru_cache
def _form_of_class(kind: type) -> Form:
    return _form_of_hint(kind)


def _form_of_hint(kind: Any) -> Form:
    if kind is None or kind is types.NoneType:
        return Form(_object({}, ()), lambda _: None)
    return _Members(kind).form() if has_fields(kind) else _form_of_value(kind)


def _form_by_schema(schema: dict[str, Any]) -> Form:
    for name, member in members_of(schema).items():
        _refuse_unfit(name, member)
    check_form(schema)
    return Form(schema, dict)


def _form_of_value(hint: Any) -> Form:
    member = _Member(owner="a form", name=VALUE, hint=hint)
    return Form(
        _object({VALUE: member.schema()}, () if member.is_optional else (VALUE,)),
        lambda content: member.read(content[VALUE]) if VALUE in content else None,
    )


def _object(properties: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return {**schema, "required": [*required]} if required else schema


def refuse_link(text: str) -> None:
    """Refuse a text of a form that leads elsewhere (ELIC-43).

    Raises:
        LocalProtocolError: It does.
    """
    if _LINK.search(text):
        raise LocalProtocolError(f"a form has no links: ask by elicit_url instead of {text!r}")


def _refuse_unfit(name: str, member: Mapping[str, Any]) -> None:
    if member.get("format") == "password" or SECRETS.covers(name):
        raise LocalProtocolError(f"{name}: a form asks for no secrets: ask by elicit_url")
    for words in _kept(member, _WORDS).values():
        refuse_link(words)


# The members of a class -------------------------------------------------------------------------


@attrs.define(eq=False)
class _Members:
    """The members of a class, each with what reads it."""

    kind: Any
    members: Sequence[tuple[Field, "_Member"]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        owner = name_of(self.kind)
        self.members = [
            (field, _Member(owner=owner, name=field.wire_name, hint=field.hint))
            for field in fields_of(self.kind)
        ]

    def form(self) -> Form:
        """Their form."""
        required = [
            field.wire_name
            for field, member in self.members
            if field.is_required and not member.is_optional
        ]
        properties = {field.wire_name: _with_default(field, it) for field, it in self.members}
        return Form(_object(properties, required), self.build)

    def build(self, content: Mapping[str, Any]) -> Any:
        """The object; what a validator of its class refuses is a mistake, too."""
        mistakes: list[str] = []
        values = dict(self._values(content, mistakes))
        if mistakes:
            raise FormError(mistakes)
        try:
            return class_of(self.kind)(**values)
        except (TypeError, ValueError) as error:
            raise FormError([str(error)]) from error

    def _values(self, content: Mapping[str, Any], mistakes: list[str]) -> Iterator[tuple[str, Any]]:
        for field, member in self.members:
            if field.wire_name in content:
                try:
                    yield field.name, member.read(content[field.wire_name])
                except FormError as error:
                    mistakes += error.lines
            elif field.is_required:  # and optional, or the form would have missed it
                yield field.name, None


def _with_default(field: Field, member: "_Member") -> dict[str, Any]:
    schema = member.schema()
    if field.default in (msgspec.NODEFAULT, None):
        return schema
    return {**schema, "default": msgspec.to_builtins(field.default)}


# One member -------------------------------------------------------------------------------------


@attrs.define(kw_only=True, eq=False)
class _Member:
    """One member of a form; `owner` and `name` say in errors which.

    `core` is its type without None and without metadata, and `told` its JSON Schema.
    """

    owner: str
    name: str
    hint: Any
    readable: Any = attrs.field(init=False)
    core: Any = attrs.field(init=False)
    told: Mapping[str, Any] = attrs.field(init=False)
    is_optional: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.core, self.is_optional = _without_none(self.hint)
        try:
            self.readable = TypeReader().readable(self.hint)
            self.told = _flat(json_schema(self.readable))
        except TypeError as error:
            raise self._refusal(str(error)) from error

    def read(self, value: Any) -> Any:
        """The value, from what was filled in."""
        try:
            return convert(value, self.readable)
        except msgspec.ValidationError as error:
            raise FormError([line(error, f".{self.name}")]) from error

    def schema(self) -> dict[str, Any]:
        """What the form says of it."""
        _refuse_unfit(self.name, self.told)
        return {**_kept(self.told, _WORDS), **self._shape()}

    def _shape(self) -> dict[str, Any]:
        told = self.told
        choices = _choices(self.core)
        if choices is not None:
            return {"type": "string", **self._chosen(choices, "oneOf")}
        kind = told.get("type")
        if kind not in _LIMITS:
            raise self._refusal(f"a form is flat, and has no {name_of(self.core)}")
        shape = {"type": kind, **_limits(told, _LIMITS[kind])}
        if kind == "array":
            return {**shape, "items": self._items()}
        named = _FORMATS.get(self.core, told.get("format"))
        return {**shape, "format": named} if named in FORMATS else shape

    def _items(self) -> dict[str, Any]:
        inner, *others = typing.get_args(self.core) or (Any,)
        is_row = others not in ([], [...])
        choices = None if is_row or not is_array(self.core) else _choices(bare(inner))
        if choices is None:
            raise self._refusal("a list in a form is of choices: of Literal or Enum")
        chosen = self._chosen(choices, "anyOf")
        return chosen if "anyOf" in chosen else {"type": "string", **chosen}

    def _chosen(self, choices: Mapping[Any, str | None], titled: str) -> dict[str, Any]:
        if not all(isinstance(value, str) for value in choices):
            raise self._refusal("the choices of a form are texts")
        if None in choices.values():
            return {"enum": [*choices]}
        return {titled: [{"const": it, "title": title} for it, title in choices.items()]}

    def _refusal(self, text: str) -> TypeError:
        return TypeError(f"{self.owner}, {self.name}: {text}")


def _without_none(hint: Any) -> tuple[Any, bool]:
    """What a type is besides None, without metadata, and whether it may be None."""
    found = bare(hint)
    if not is_union(found):
        return found, False
    others = [it for it in typing.get_args(found) if it is not types.NoneType]
    is_optional = len(others) < len(typing.get_args(found))
    return (bare(others[0]) if len(others) == 1 else found), is_optional


def _choices(hint: Any) -> dict[Any, str | None] | None:
    """What may be chosen, with titles if it is an Enum; None if the type is no choice.

    The values of an Enum are for programs, and so it is shown by its names.
    """
    if typing.get_origin(hint) is Literal:
        return dict.fromkeys(typing.get_args(hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {it.value: it.name.replace("_", " ").capitalize() for it in hint}
    return None


def _flat(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without `null` and references; what stands around them wins, as descriptions."""
    around = {keyword: it for keyword, it in schema.items() if keyword not in ("anyOf", "$ref")}
    others = [it for it in schema.get("anyOf", ()) if it != {"type": "null"}]
    if len(others) == 1:
        return _flat({**others[0], **around})
    if "$ref" in schema:
        return {**schema["$defs"][schema["$ref"].removeprefix(_DEFINITIONS)], **around}
    return schema


def _limits(told: Mapping[str, Any], keywords: Sequence[str]) -> dict[str, Any]:
    """The limits that a form can say; those of an integer can always be said."""
    limits = _kept(told, keywords)
    if told.get("type") == "integer":
        if "exclusiveMinimum" in told:
            limits["minimum"] = told["exclusiveMinimum"] + 1
        if "exclusiveMaximum" in told:
            limits["maximum"] = told["exclusiveMaximum"] - 1
    return limits


def _kept(schema: Mapping[str, Any], keywords: Sequence[str]) -> dict[str, Any]:
    return {keyword: schema[keyword] for keyword in keywords if keyword in schema}
