"""Forms for elicitation, made from Python types: a schema, and a function that reads the content.

The schema is that of the newest protocol version. For a client of an older version, keywords that
the version does not have are removed when the request is encoded.

https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation#requested-schema
"""

import datetime as dt
import enum
import functools
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, cast

import attrs
import msgspec

from mcp_trio._journal.secret_names import DEFAULT_SECRET_NAMES, SecretNames
from mcp_trio._protocol.client_features import FORMATS, check_form, form_errors, form_members
from mcp_trio._server.introspection import (
    Field,
    class_of,
    fields_of,
    has_fields,
    is_array_type,
    is_union,
    strip_metadata,
)
from mcp_trio._server.type_adapters import (
    DEFINITIONS,
    InvalidValue,
    PydanticDecoder,
    TypeAdapter,
    convert,
    description_in,
    error_line,
    is_finite,
    json_schema,
    type_name,
)
from mcp_trio.errors import LocalProtocolError

VALUE: Final = "value"
"""The name of the field in a form for a single value."""

# The names of secrets, which neither a form nor the query of a URL may contain.
SECRETS: Final = SecretNames(DEFAULT_SECRET_NAMES)

_LINK: Final = re.compile(r"\bhttps?://", re.IGNORECASE)

# The keywords of JSON Schema that a form may have. Other constraints of the type are checked when
# the answer is decoded.
_TEXT_KEYWORDS: Final[tuple[str, ...]] = ("title", "description")
_LIMIT_KEYWORDS: Final[dict[Any, tuple[str, ...]]] = {
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "boolean": (),
    "array": ("minItems", "maxItems"),
}
# The format of a type, whatever its JSON Schema says.
_FORMAT_OF_TYPE: Final[dict[Any, str]] = {dt.datetime: "date-time", dt.date: "date"}


class FormError(ValueError):
    """The content of a form is invalid; `lines` has a short line for each validation error."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = list(lines)


class Form(msgspec.Struct, frozen=True, eq=False):
    """A form: the schema for the client, and the function that makes a value from valid content."""

    schema: dict[str, Any]
    build: Callable[[Mapping[str, Any]], Any]

    def read(self, content: Mapping[str, Any]) -> Any:
        """Return the value for the content that the user has filled in.

        Raises:
            FormError: The content is invalid.
        """
        errors = form_errors(content, self.schema)
        if errors:
            raise FormError(errors)
        return self.build(content)


def form_of(kind: Any) -> Form:
    """Return the form for a class with fields, the type of one value, or a JSON Schema.

    The form for None has no fields: the user can only confirm it. A list of strings is a choice.

    Raises:
        TypeError: A field has a type that a form cannot have, such as a nested object; the text
            names the field.
        ValueError: A form cannot have this schema; the text names the field.
        LocalProtocolError: A field asks for a secret, which the protocol allows by URL only, or its
            text contains a link.
    """
    if isinstance(kind, Mapping):
        schema = dict(cast("Mapping[str, Any]", kind))
        for name, member in form_members(schema).items():
            _check_field(name, member)
        check_form(schema)
        return Form(schema, dict)
    if isinstance(kind, list | tuple) and all(isinstance(it, str) for it in cast("Any", kind)):
        kind = Literal[tuple(cast("Sequence[str]", kind))]
    return _form_of_class(kind) if isinstance(kind, type) else _form_of_hint(kind)


def _form_of_hint(kind: Any) -> Form:
    if kind is None or kind is types.NoneType:
        return Form(_object_schema({}, ()), lambda _: None)
    # A root model of pydantic has no fields: it is a single value.
    is_model = getattr(kind, "__pydantic_root_model__", True) is False
    if not is_model and not has_fields(kind):
        single_field = _FormField(owner="a form", name=VALUE, hint=kind)
        return Form(
            _object_schema(
                {VALUE: single_field.schema()}, () if single_field.is_optional else (VALUE,)
            ),
            lambda content: single_field.read(content[VALUE]) if VALUE in content else None,
        )
    # Each field of the class, with that of the form.
    if is_model:
        fields = [*_fields_of_model(kind)]
    else:
        field_of = functools.partial(_FormField, owner=type_name(kind))
        fields = [(it, field_of(name=it.wire_name, hint=it.hint)) for it in fields_of(kind)]
    properties: dict[str, Any] = {}
    required: list[str] = []
    for field, form_field in fields:
        schema = properties[field.wire_name] = form_field.schema()
        if field.default not in (msgspec.NODEFAULT, None) and is_finite(field.default):
            schema["default"] = msgspec.to_builtins(field.default)
        if field.is_required and not form_field.is_optional:
            required.append(field.wire_name)
    read = _read_model if is_model else _read_fields
    return Form(_object_schema(properties, required), functools.partial(read, kind, fields))


# Only the forms of classes are cached. Other hints can be equal and yet differ, such as two
# Literals with the same values in another order.
_form_of_class: Final = functools.lru_cache(_form_of_hint)


def _read_fields(
    kind: Any, fields: Sequence[tuple[Field, "_FormField"]], content: Mapping[str, Any]
) -> Any:
    errors: list[str] = []
    values: dict[str, Any] = {}
    for field, form_field in fields:
        if field.wire_name in content:
            try:
                values[field.name] = form_field.read(content[field.wire_name])
            except FormError as error:
                errors += error.lines
        elif field.is_required:  # The type allows None, so the form does not require the field.
            values[field.name] = None
    if errors:
        raise FormError(errors)
    try:
        return class_of(kind)(**values)
    except (TypeError, ValueError) as error:  # A validator of the class rejects the values.
        raise FormError([str(error)]) from error


# Models of pydantic. A model checks the complete content, because a validator may need all fields.
# Therefore each field only has a schema, and does not read its value.


def _fields_of_model(kind: Any) -> Iterator[tuple[Field, "_FormField"]]:
    owner = type_name(kind)
    try:
        schema = _flat_schema(json_schema(TypeAdapter().decodable(kind)))
    except Exception as error:  # pydantic raises `RuntimeError` for a type without a JSON form
        reason = str(error).partition("\n")[0]
        raise TypeError(f"{owner}: {reason}") from error
    for name, info in kind.model_fields.items():
        # An alias may be a choice of several, of which the schema has the first.
        alias = getattr(info.validation_alias, "choices", [info.validation_alias])[0]
        key = alias if isinstance(alias, str) else name
        if key in schema["properties"]:
            # Type checkers reject an `Annotated` that is made at run time.
            special: Any = Annotated
            hint = special[(info.annotation, *info.metadata)] if info.metadata else info.annotation
            given = schema["properties"][key] | {"$defs": schema["$defs"]}
            form_field = _FormField(owner=owner, name=key, hint=hint, given_schema=given)
            default = form_field.json_schema.get("default", msgspec.NODEFAULT)
            required = info.is_required()
            yield (
                Field(name=name, wire_name=key, hint=hint, is_required=required, default=default),
                form_field,
            )


def _read_model(
    kind: Any, fields: Sequence[tuple[Field, "_FormField"]], content: Mapping[str, Any]
) -> Any:
    # A required field whose type allows None is not required in the form.
    values: dict[str, Any] = {field.wire_name: None for field, _ in fields if field.is_required}
    names = [field.wire_name for field, _ in fields if field.wire_name in content]
    values |= {name: content[name] for name in names}
    try:
        return PydanticDecoder(kind).read(values, strict=True)
    except InvalidValue as error:
        lines = [
            f"{path.removeprefix('.')}: {text}" if path else text for path, text in error.errors
        ]
        raise FormError(lines) from error


def _object_schema(properties: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return {**schema, "required": [*required]} if required else schema


def _check_field(name: str, schema: Mapping[str, Any]) -> None:
    # The protocol forbids both: users must not type secrets into a client's form, nor follow a link
    # whose target the client has not shown them.
    if schema.get("format") == "password" or SECRETS.covers(name):
        raise LocalProtocolError(f"{name}: a form must not ask for secrets: use elicit_url")
    for text in _subset(schema, _TEXT_KEYWORDS).values():
        reject_link(text)


def reject_link(text: str) -> None:
    """Check that a text of a form contains no link.

    Raises:
        LocalProtocolError: It contains one.
    """
    if _LINK.search(text):
        raise LocalProtocolError(f"a form must not contain links: use elicit_url for {text!r}")


@attrs.define(kw_only=True, eq=False, repr=False)
class _FormField:
    """One field of a form.

    Attributes:
        owner: The name of the class, for errors.
        name: The name of the field.
        hint: The annotation.
        given_schema: The JSON Schema that pydantic makes for a field of a model, whose value
            pydantic decodes. None for any other field.
        decoded_type: The type that msgspec decodes, in place of `hint`. Not for a field of a model.
        core: The type without None and without metadata.
        json_schema: The JSON Schema of the type, of which a form may have only a part.
        is_optional: True if the type allows None.
    """

    owner: str
    name: str
    hint: Any
    given_schema: dict[str, Any] | None = None
    decoded_type: Any = attrs.field(init=False)
    core: Any = attrs.field(init=False)
    json_schema: Mapping[str, Any] = attrs.field(init=False)
    is_optional: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.core, self.is_optional = strip_metadata(self.hint), False
        if is_union(self.core):
            members = typing.get_args(self.core)
            others = [it for it in members if it is not types.NoneType]
            self.is_optional = len(others) < len(members)
            if len(others) == 1:
                self.core = strip_metadata(others[0])
        if self.given_schema is not None:
            self.json_schema = _flat_schema(self.given_schema)
            return
        try:
            self.decoded_type = TypeAdapter().decodable(self.hint)
            self.json_schema = _flat_schema(json_schema(self.decoded_type))
        except TypeError as error:
            raise self._rejection(str(error)) from error

    def read(self, value: Any) -> Any:
        """Return the value for the content of the field.

        Raises:
            FormError: The content is invalid.
        """
        if self.json_schema.get("type") == "integer":
            value = int(value)  # 3.0 is an integer in JSON Schema, and has been checked by that.
        try:
            return convert(value, self.decoded_type)
        except msgspec.ValidationError as error:
            raise FormError([error_line(error, f".{self.name}")]) from error

    def schema(self) -> dict[str, Any]:
        """Return the schema of the field in the form.

        Raises:
            TypeError: A form cannot have a field of the type.
            LocalProtocolError: The field asks for a secret, or its text contains a link.
        """
        text = description_in(self.hint)
        described = ({} if text is None else {"description": text}) | {**self.json_schema}
        _check_field(self.name, described)
        schema = _subset(described, _TEXT_KEYWORDS)
        choices = _choices(self.core)
        if choices is None and "enum" in self.json_schema:  # of a root model of pydantic
            choices = dict.fromkeys(self.json_schema["enum"])
        if choices is not None:
            return {**schema, "type": "string", **self._choice_schema(choices, "oneOf")}
        kind = self.json_schema.get("type")
        if kind not in _LIMIT_KEYWORDS:
            raise self._rejection(f"a form is flat and cannot have a {type_name(self.core)}")
        schema |= {"type": kind, **_subset(self.json_schema, _LIMIT_KEYWORDS[kind])}
        # Forms have no exclusive limits, but those of an integer have inclusive equivalents.
        if kind == "integer" and "exclusiveMinimum" in self.json_schema:
            schema["minimum"] = self.json_schema["exclusiveMinimum"] + 1
        if kind == "integer" and "exclusiveMaximum" in self.json_schema:
            schema["maximum"] = self.json_schema["exclusiveMaximum"] - 1
        if kind != "array":
            format_name = _FORMAT_OF_TYPE.get(self.core, self.json_schema.get("format"))
            return {**schema, "format": format_name} if format_name in FORMATS else schema
        inner, *others = typing.get_args(self.core) or (Any,)
        # `tuple[X, ...]` has any number of items, as a list has; other tuples have a fixed number.
        has_any_length = others in ([], [...])
        can_have_choices = is_array_type(self.core) and has_any_length
        choices = _choices(strip_metadata(inner)) if can_have_choices else None
        if choices is None:
            raise self._rejection(
                "a list in a form has to be a list of choices, a Literal or an Enum"
            )
        items = self._choice_schema(choices, "anyOf")
        return {**schema, "items": items if "anyOf" in items else {"type": "string", **items}}

    def _choice_schema(self, choices: Mapping[Any, str | None], keyword: str) -> dict[str, Any]:
        if not all(isinstance(value, str) for value in choices):
            raise self._rejection("the choices of a form have to be strings")
        if None in choices.values():
            return {"enum": [*choices]}
        return {keyword: [{"const": it, "title": title} for it, title in choices.items()]}

    def _rejection(self, text: str) -> TypeError:
        return TypeError(f"{self.owner}, {self.name}: {text}")


def _choices(hint: Any) -> dict[Any, str | None] | None:
    """Return the choices of a Literal or Enum with their titles, None for any other type.

    A member of an Enum has its name as title, because its value is meant for programs.
    """
    if typing.get_origin(hint) is Literal:
        return dict.fromkeys(typing.get_args(hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {it.value: it.name.replace("_", " ").capitalize() for it in hint}
    return None


def _flat_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without `null` and references.

    Keywords beside a reference, such as a description, override those of its definition.
    """
    beside = {
        keyword: value for keyword, value in schema.items() if keyword not in ("anyOf", "$ref")
    }
    alternatives = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(alternatives) == 1:
        return _flat_schema({**alternatives[0], **beside})
    if "$ref" in schema:
        definition = schema["$defs"][schema["$ref"].removeprefix(DEFINITIONS)]
        return _flat_schema({**definition, **beside})  # a root model may refer to another
    return schema


def _subset(schema: Mapping[str, Any], keywords: Sequence[str]) -> dict[str, Any]:
    return {keyword: schema[keyword] for keyword in keywords if keyword in schema}
