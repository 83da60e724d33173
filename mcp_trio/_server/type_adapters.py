"""Type adapters: turn the annotations of handlers into types that msgspec can decode.

`TypeAdapter.decodable` walks through an annotation and returns it with every type that msgspec does
not support replaced by a `CustomType`. For a value of a type that it does not know, msgspec calls
its `dec_hook`, here `structure`, which calls the `CustomDecoder` of the type. There is one for each
kind of type:

- `DerivedDecoder`: a type made from a simpler one (flags, paths, types with constraints);
- `UnionDecoder`: a union whose members msgspec cannot tell apart;
- `ClassDecoder`: a class with a field of an unsupported type;
- `ConverterDecoder`: a class that the user's cattrs `Converter` supports;
- `PydanticDecoder`: a class of pydantic, or a type with pydantic's `Field`.

`convert` decodes a value, `error_lines` returns a line for each validation error in one, and
`json_schema` returns the JSON Schema of a type that `decodable` returned. cattrs and pydantic are
optional. They and annotated-types are imported only when a type or constraint of theirs is used.
"""

import decimal
import enum
import functools
import importlib
import inspect
import itertools
import math
import operator
import pathlib
import re
import sys
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import attrs
import msgspec
import msgspec.inspect

from mcp_trio._protocol.error_lines import path_step, shortened
from mcp_trio._server.introspection import (
    class_of,
    declared_parameters,
    fields_of,
    has_fields,
    is_array_type,
    is_closed,
    is_named_tuple,
    is_object_type,
    is_typed_dict,
    is_union,
    key_counter,
    plain_function,
    reachable,
    resolved_hint,
    strip_metadata,
    tag_of,
    unaliased,
)
from mcp_trio.limits import Limits

if TYPE_CHECKING:
    from cattrs import Converter


class InvalidValue(ValueError):  # noqa: N818 - the name says what is invalid
    """A value is invalid; `errors` has a pair of a path inside the value and a text for each error.

    The text of this error is that of the first of `errors`, in the form of msgspec's texts.
    """

    def __init__(self, errors: Sequence[tuple[str, str]]) -> None:
        path, text = errors[0]
        super().__init__(f"{text} - at `${path}`" if path else text)
        self.errors = errors


# Custom types -----------------------------------------------------------------------------------


class CustomDecoder(ABC):
    """A decoder for the values of a custom type.

    It decodes a value as one of its inner types first. The defaults of `likeliest` and `schema` are
    for a decoder with one inner type.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def inner(self) -> Sequence[Any]:
        """The inner types."""

    @abstractmethod
    def read(self, value: Any, *, strict: bool) -> Any:
        """Return the value, decoded from plain JSON.

        Raises:
            ValueError: The value does not fit; the text may end in a path, as msgspec's texts do.
                An `InvalidValue` holds all validation errors.
        """

    def likeliest(self, _value: Any, /) -> Any | None:
        """Return the inner type that an invalid value was probably meant for; None if unknown."""
        return self.inner[0]

    def schema(
        self, inner: Sequence[dict[str, Any]], _definitions: dict[str, Any], /
    ) -> dict[str, Any]:
        """Return the JSON Schema, given the schemas of the inner types; add new definitions."""
        return inner[0]


class CustomType(type):
    """A metaclass of types whose values their `decoder` returns."""

    decoder: CustomDecoder

    def __instancecheck__(cls, instance: Any) -> bool:
        """Return True: msgspec checks the type of each value that its `dec_hook` returns."""
        return True


def _custom_type(name: str, decoder: CustomDecoder) -> Any:
    """Return a new custom type; `name` is its name in errors."""
    return CustomType(name, (), {"decoder": decoder})


def structure(kind: Any, value: Any, *, strict: bool = True) -> Any:
    """Return the value of a custom type, decoded from plain JSON; the `dec_hook` for msgspec."""
    try:
        return kind.decoder.read(value, strict=strict)
    except msgspec.ValidationError as error:
        # msgspec adds the path that led here to any other `ValueError`.
        raise ValueError(*error.args) from error


_structure_text: Final = functools.partial(structure, strict=False)


def convert(value: Any, hint: Any, *, strict: bool = True) -> Any:
    """Return a value of a decodable type, decoded from plain JSON, or raise `ValidationError`.

    If not `strict`, text is accepted for numbers.
    """
    hook = structure if strict else _structure_text
    return msgspec.convert(value, hint, strict=strict, str_keys=True, dec_hook=hook)


# Decoders of custom types -----------------------------------------------------------------------


@attrs.frozen(eq=False, repr=False)
class DerivedDecoder(CustomDecoder):
    """A decoder that passes the value of its inner type to `make`, which may raise `ValueError`."""

    hint: Any
    make: Callable[[Any], Any]

    @property
    def inner(self) -> Sequence[Any]:
        return (self.hint,)

    def read(self, value: Any, *, strict: bool) -> Any:
        return self.make(convert(value, self.hint, strict=strict))


@attrs.frozen(eq=False, repr=False)
class UnionDecoder(CustomDecoder):
    """A decoder of a union that msgspec rejects: it tries the members until one fits.

    The members are tried in their order, `str` last. An object is tried first as the member that
    has the most of its keys. `members` are pairs of the member as written and as decodable.
    """

    members: Sequence[tuple[Any, Any]]

    @functools.cached_property
    def _counters(self) -> Sequence[Callable[[Any], int]]:
        return [key_counter(hint) for hint, _ in self.members]

    @functools.cached_property
    def _str_last(self) -> Sequence[Any]:
        pairs = sorted(self.members, key=lambda member: strip_metadata(member[0]) is str)
        return [decodable for _, decodable in pairs]

    @property
    def inner(self) -> Sequence[Any]:
        return [decodable for _, decodable in self.members]

    def read(self, value: Any, *, strict: bool) -> Any:
        errors: list[msgspec.ValidationError] = []
        for decodable in self._likeliest_first(value):
            try:
                return convert(value, decodable, strict=strict)
            except msgspec.ValidationError as error:
                errors.append(error)
        if self.likeliest(value) is not None:  # `errors[0]` is that of this member.
            raise errors[0]
        raise ValueError(f"Expected `{' | '.join(type_name(hint) for hint, _ in self.members)}`")

    def _likeliest_first(self, value: Any) -> Sequence[Any]:
        if isinstance(value, str):
            return self._str_last
        counts = [count(value) for count in self._counters]
        order = sorted(range(len(counts)), key=lambda index: -counts[index])
        return [self.members[index][1] for index in order]

    def likeliest(self, value: Any, /) -> Any | None:
        """Return the first member to try if it has at least one key of the object, else None."""
        if max(count(value) for count in self._counters) <= 0:
            return None
        return self._likeliest_first(value)[0]

    def schema(self, inner: Sequence[dict[str, Any]], _definitions: object, /) -> dict[str, Any]:
        return {"anyOf": [*inner]}


def type_name(hint: Any) -> str:
    """Return the name of a type in errors."""
    if isinstance(hint, type) and not typing.get_args(hint):
        return "null" if hint is type(None) else hint.__name__
    return re.sub(r"(?:[\w<>]+\.)+", "", str(hint))


@attrs.define(eq=False, repr=False)
class ClassDecoder(CustomDecoder):
    """A decoder of a class with fields that msgspec does not support.

    It decodes a struct with the same fields, and passes the values to the class.
    """

    kind: Any
    decodable: Callable[[Any], Any]

    @property
    def inner(self) -> Sequence[Any]:
        return (self._struct,)

    @functools.cached_property
    def _struct(self) -> type[msgspec.Struct]:
        # The struct is made on first use, because the class may refer to itself.
        rows: list[tuple[str, Any, Any]] = []
        # A key of a typed dict need not be an identifier, so the fields are numbered.
        for index, field in enumerate(fields_of(self.kind)):
            default: dict[str, Any] = {}
            if field.default is not msgspec.NODEFAULT:
                default = {"default": field.default}
            elif not field.is_required:
                default = {"default_factory": lambda: msgspec.UNSET}
            member = msgspec.field(name=field.wire_name, **default)
            rows.append((f"field_{index}", self.decodable(field.hint), member))
        tag, tag_field = tag_of(self.kind)
        origin = class_of(self.kind)
        doc = origin.__doc__
        if doc is not None and doc.startswith(f"{origin.__name__}("):
            doc = None  # A dataclass without a docstring has its signature in that place.
        return msgspec.defstruct(
            type_name(self.kind),
            rows,
            module=origin.__module__,
            namespace={"__qualname__": origin.__qualname__, "__doc__": doc},
            kw_only=not is_array_type(origin),
            tag=tag,
            tag_field=tag_field or None,
            array_like=is_array_type(origin),
            forbid_unknown_fields=is_named_tuple(origin) or is_closed(origin),
        )

    def read(self, value: Any, *, strict: bool) -> Any:
        struct = convert(value, self._struct, strict=strict)
        members = zip(fields_of(self.kind), msgspec.structs.astuple(struct), strict=True)
        return self.kind(**{field.name: it for field, it in members if it is not msgspec.UNSET})


# Constraints of `annotated-types` ---------------------------------------------------------------
#
# A constraint becomes a keyword of `msgspec.Meta` where msgspec supports that for the type, and
# else a check after decoding. A constraint without a row in `_constraint_kinds` is an error, since
# users would rely on a check that does not happen.


@functools.cache
def _constraint_kinds() -> dict[type, tuple[str, str, Callable[[Any, Any], bool] | None]]:
    """Return the classes of constraints with a bound.

    Each has the name of the bound, as an attribute of the constraint and in `msgspec.Meta`; the end
    of the error text; and a comparison of a value with the bound, or None if only msgspec can check
    the constraint.
    """
    import annotated_types as at

    return {
        at.Ge: ("ge", ">= {}", operator.ge),
        at.Gt: ("gt", "> {}", operator.gt),
        at.Le: ("le", "<= {}", operator.le),
        at.Lt: ("lt", "< {}", operator.lt),
        at.MultipleOf: (
            "multiple_of",
            "that's a multiple of {}",
            lambda value, unit: not value % unit,
        ),
        at.MinLen: ("min_length", "", None),
        at.MaxLen: ("max_length", "", None),
    }


_NUMBERS: Final = (int, float, decimal.Decimal)


def _is_constrained(metadata: Iterable[Any]) -> bool:
    """Return whether the metadata have a constraint or a text that msgspec would ignore."""
    # annotated-types is not imported for this check: its import takes as long as the definition of
    # 20 classes. While no code has imported it, no metadata can be of its classes.
    at = sys.modules.get("annotated_types")
    return at is not None and any(
        isinstance(item, at.BaseMetadata | at.GroupedMetadata | at.DocInfo) for item in metadata
    )


def _with_metadata(hint: Any, metadata: Iterable[Any]) -> Any:
    """Return a decodable type with its constraints in a form that msgspec supports."""
    import annotated_types as at

    constraints: list[Any] = []
    others: list[Any] = []
    for item in _ungrouped(metadata):
        if isinstance(item, at.DocInfo):
            others.append(msgspec.Meta(description=item.documentation))
        else:
            (constraints if isinstance(item, at.BaseMetadata) else others).append(item)
    return annotated(_with_constraints(hint, constraints) if constraints else hint, others)


def annotated(hint: Any, metadata: Sequence[Any]) -> Any:
    """Return the hint annotated with metadata, which come before those it already has."""
    special: Any = Annotated  # Type checkers reject an `Annotated` with computed arguments.
    if typing.get_origin(hint) is Annotated:
        return special[(hint.__origin__, *metadata, *hint.__metadata__)]
    return special[(hint, *metadata)] if metadata else hint


def _ungrouped(metadata: Iterable[Any]) -> Iterator[Any]:
    import annotated_types as at

    for item in metadata:
        if isinstance(item, at.GroupedMetadata):
            yield from _ungrouped(cast("Iterable[Any]", item))
        else:
            yield item


def _with_constraints(hint: Any, constraints: Sequence[Any]) -> Any:
    import annotated_types as at

    if is_union(hint):  # A constraint of a union applies to each member but None.
        union: Any = typing.Union
        members = typing.get_args(hint)
        return union[
            tuple(
                it if it is types.NoneType else _with_constraints(it, constraints) for it in members
            )
        ]
    accepted: dict[str, Any] = {}
    checks: list[tuple[Callable[[Any], Any], str]] = []
    for constraint in constraints:
        keywords: dict[str, Any] = {}
        if isinstance(constraint, at.Timezone) and (constraint.tz is None or constraint.tz is ...):
            keywords = {"tz": constraint.tz is not None}
        elif kind := _constraint_kinds().get(constraint.__class__):
            keywords = {kind[0]: getattr(constraint, kind[0])}
        if keywords and _is_constraint_accepted(hint, accepted | keywords):
            accepted |= keywords
        else:
            checks.append(_check_for(hint, constraint))
    hint = annotated(hint, [msgspec.Meta(**accepted)] if accepted else [])
    if not checks:
        return hint

    def make(value: Any) -> Any:
        for holds, text in checks:
            try:
                is_valid = holds(value)
            except ArithmeticError:  # A `Decimal` can be NaN, or too large for a remainder.
                is_valid = False
            if not is_valid:
                raise ValueError(text)
        return value

    return _custom_type(type_name(strip_metadata(hint)), DerivedDecoder(hint, make))


def _is_constraint_accepted(hint: Any, keywords: dict[str, Any]) -> bool:
    try:
        msgspec.json.Decoder(annotated(hint, [msgspec.Meta(**keywords)]))
    except (TypeError, ValueError):
        return False
    return True


def _check_for(hint: Any, constraint: Any) -> tuple[Callable[[Any], Any], str]:
    """Return the check of a constraint that msgspec cannot check, and its error text."""
    import annotated_types as at

    kind = strip_metadata(hint)
    name = type_name(kind)
    if isinstance(constraint, at.Predicate):
        called = getattr(constraint.func, "__name__", "<lambda>")
        text = f"another `{name}`" if called == "<lambda>" else f"`{name}` that `{called}` accepts"
        return constraint.func, f"Expected {text}"
    if constraint.__class__ not in _constraint_kinds():
        raise TypeError(f"the constraint {constraint!r} is not supported")
    bound_name, ending, holds = _constraint_kinds()[constraint.__class__]
    bound = getattr(constraint, bound_name)
    # Only classes are compared: the values of a custom type and of `Any` are not known.
    is_comparable = type(kind) is type and isinstance(bound, _NUMBERS if kind in _NUMBERS else kind)
    if holds is None or not is_comparable:
        raise TypeError(f"the constraint {constraint!r} does not fit {name}")
    return lambda value: holds(value, bound), f"Expected `{name}` {ending.format(bound)}"


# Types that the user's cattrs converter supports ------------------------------------------------


def no_json_form(kind: Any) -> TypeError:
    """Return the error about a type that has no JSON form."""
    if kind in (types.CoroutineType, types.AsyncGeneratorType):
        return TypeError(f"a {kind.__name__} has no JSON form: `await` may be missing before it")
    return TypeError(
        f"the type {kind!r} has no JSON form: make it an attrs class or a dataclass, or give the"
        " server a cattrs Converter with hooks for it, Server(converter=...)"
    )


def _has_hook(converter: "Converter", hint: Any) -> bool:
    """Return whether a hint is a class that the converter supports, and msgspec does not."""
    kind = class_of(hint)
    if kind in (object, Annotated) or not inspect.isclass(kind) or has_fields(hint):
        return False
    try:
        if not isinstance(msgspec.inspect.type_info(hint), msgspec.inspect.CustomType):
            return False
    except TypeError:  # msgspec knows the class and rejects it, such as an enum of mixed values.
        return False
    from cattrs.errors import StructureHandlerNotFoundError

    try:
        converter.get_structure_hook(hint)
    except StructureHandlerNotFoundError:
        return False
    return True


def _hook_input_type(converter: "Converter", hint: Any) -> Any:
    """Return the annotation of the first parameter of the hook for a type, `Any` if it has none."""
    hook: Any = converter.get_structure_hook(hint)
    try:
        return resolved_hint(plain_function(hook), declared_parameters(hook)[0])
    except TypeError:
        return Any


@attrs.frozen(eq=False, repr=False)
class ConverterDecoder(CustomDecoder):
    """A decoder of the type that a converter's hook takes, which then calls the converter."""

    hint: Any
    converter: "Converter"
    input_type: Any

    @property
    def inner(self) -> Sequence[Any]:
        return (self.input_type,)

    def read(self, value: Any, *, strict: bool) -> Any:
        hook_input = convert(value, self.input_type, strict=strict)
        try:
            return self.converter.structure(hook_input, self.hint)
        except Exception as error:
            if not _is_rejection(error):
                raise  # Invalid input does not explain it.
            raise InvalidValue([*_cattrs_errors(error, value, self.hint, "")]) from error


# Errors of cattrs ---------------------------------------------------------------------------------

# The errors that code usually raises when it takes apart a value of an unexpected form.
_REJECTIONS: Final = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
# Texts of Python's own `ValueError`s, which would tell the client nothing.
_TEXTS_OF_PYTHON: Final = (
    "invalid literal for |could not convert |(?:not enough|too many) values to unpack"
)


def _is_rejection(error: Exception) -> bool:
    from cattrs.errors import ForbiddenExtraKeysError

    if isinstance(error, ExceptionGroup):
        inner = cast("ExceptionGroup[Exception]", error).exceptions
        return all(map(_is_rejection, inner))
    return isinstance(error, (*_REJECTIONS, ForbiddenExtraKeysError))


def _cattrs_errors(error: Any, value: Any, hint: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of each error in a group, or of one error, about `value` as `hint`."""
    from cattrs.errors import ForbiddenExtraKeysError

    if isinstance(error, ForbiddenExtraKeysError):
        for key in sorted(error.extra_fields):
            yield path + path_step(key), "unknown field"
    elif _is_about_missing(error, value):
        yield path + path_step(error.args[0]), "missing"
    elif hasattr(error, "group_exceptions"):
        noted, others = error.group_exceptions()
        for inner, note in noted:
            if _is_about_missing(inner, value):
                yield from _cattrs_errors(inner, value, hint, path)
            else:
                key = getattr(note, "name", None) or note.index
                try:
                    member = value[key]
                except (LookupError, TypeError):
                    member = None  # The hooks have decoded a value that differs from the input.
                yield from _cattrs_errors(inner, member, note.type, path + path_step(key))
        for inner in others:
            yield from _cattrs_errors(inner, value, hint, path)
    else:
        text = str(error) if isinstance(error, ValueError) else ""
        if not text or re.match(_TEXTS_OF_PYTHON, text):
            text = f"Expected `{type_name(hint)}`"
        yield path, text


def _is_about_missing(error: Exception, value: Any) -> bool:
    match error:
        case KeyError(args=(str(key),)):
            return isinstance(value, Mapping) and key not in value
        case _:
            return False


# Types of pydantic ------------------------------------------------------------------------------


def is_pydantic(hint: Any) -> bool:
    """Return whether pydantic decodes the type: its classes, and types with its `Field`."""
    if typing.get_origin(hint) is Annotated:
        return any(is_pydantic_class(item.__class__) for item in hint.__metadata__)
    kind = class_of(hint)
    return inspect.isclass(kind) and (
        is_pydantic_class(kind) or hasattr(kind, "__pydantic_validator__")
    )


def description_in(hint: Any) -> str | None:
    """Return the description in an annotation: that of pydantic's `Field`, else its first text.

    `Annotated[str, "the city"]` has a text. A description by `msgspec.Meta`, or by `doc` of
    annotated-types, is part of the decodable type.
    """
    metadata = hint.__metadata__ if typing.get_origin(hint) is Annotated else ()
    fields = [
        getattr(it, "description", None) for it in metadata if is_pydantic_class(it.__class__)
    ]
    texts = [item for item in metadata if isinstance(item, str)]
    return next(filter(None, [*reversed(fields), *texts]), None)


def is_pydantic_class(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "pydantic"


def pydantic_to_plain(value: Any) -> Any:
    """Return the plain JSON of a pydantic value, with aliases as keys and sets as sorted lists."""
    dump = _pydantic_adapter(value.__class__).dump_python
    plain = dump(value, mode="json", by_alias=True)
    try:
        return _with_sorted_sets(plain, dump(value, by_alias=True))
    except TypeError:  # It has a set of models, which would become a set of dicts.
        return _with_sorted_sets(plain, value)


def _with_sorted_sets(plain: Any, value: Any) -> Any:
    """Return `plain` with each set of `value` sorted, since the hash seed decides their order."""
    kind = value.__class__
    is_set = kind in (set, frozenset)
    if plain.__class__ is list and (is_set or kind in (list, tuple)) and len(plain) == len(value):
        items = [*map(_with_sorted_sets, plain, value)]
        return sorted(items, key=msgspec.json.encode) if is_set else items
    if plain.__class__ is dict and hasattr(value, "model_fields_set"):
        fields: dict[str, Any] = value.__class__.model_fields
        aliases = {name: it.serialization_alias for name, it in fields.items()}
        members = {aliases.get(name) or name: member for name, member in value}
        return {key: _with_sorted_sets(it, members.get(key)) for key, it in plain.items()}
    if plain.__class__ is kind is dict and len(plain) == len(value):
        return dict(zip(plain, map(_with_sorted_sets, plain.values(), value.values()), strict=True))
    return plain


@functools.lru_cache
def _pydantic_adapter(hint: Any) -> Any:
    return importlib.import_module("pydantic").TypeAdapter(hint)


# Decoding by pydantic -----------------------------------------------------------------------------


@attrs.frozen(eq=False, repr=False)
class PydanticDecoder(CustomDecoder):
    """A decoder by pydantic, with the strictness of the model (lax by default).

    The `mode` decides of which values `schema` is the schema: of those that pydantic accepts, or of
    those that it writes, which may have other names and computed fields.
    """

    hint: Any
    mode: Literal["validation", "serialization"] = "validation"

    @property
    def inner(self) -> Sequence[Any]:
        return ()

    def read(self, value: Any, *, strict: bool) -> Any:  # noqa: ARG002 - its types are strict by their own rules
        try:
            # A strict model accepts a date or a tuple only from JSON text.
            return _pydantic_adapter(self.hint).validate_json(msgspec.json.encode(value))
        except importlib.import_module("pydantic").ValidationError as error:
            count = error.error_count()
            if count > _PYDANTIC_ERRORS_MAX:
                raise InvalidValue([("", f"has {count} validation errors")]) from None
            errors: list[tuple[str, str]] = []
            for each in error.errors(include_url=False, include_context=False, include_input=False):
                kind, text = each["type"], re.sub(_PYDANTIC_PREFIXES, "", each["msg"])
                path = _pydantic_path(each["loc"], value, is_missing=kind == "missing")
                errors.append((path, _TEXTS_BY_ERROR_TYPE.get(kind, text)))
            raise InvalidValue(errors) from error

    def likeliest(self, _value: Any, /) -> None:
        """Return None: pydantic reports all validation errors itself."""

    def schema(self, _inner: Sequence[Any], definitions: dict[str, Any], /) -> dict[str, Any]:
        """Return pydantic's schema; add its definitions to `definitions`, under unused names."""
        numbers = itertools.count(2)
        schema, own = self._schema("{model}")
        while any(definitions.get(name, it) != it for name, it in own.items()):
            schema, own = self._schema(f"{{model}}_{next(numbers)}")
        definitions.update(own)
        return schema

    def _schema(self, name_template: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the schema and its definitions, whose names are made from the template."""
        schema: dict[str, Any] = _pydantic_adapter(self.hint).json_schema(
            ref_template=f"#/$defs/{name_template}",
            schema_generator=_schema_generator(),
            mode=self.mode,
        )
        own = {name_template.format(model=name): it for name, it in schema.pop("$defs", {}).items()}
        if "title" in schema and isinstance(self.hint, type):
            name = name_template.format(model=re.sub(_UNUSUAL_IN_NAMES, "_", self.hint.__name__))
            own[name], schema = schema, {"$ref": f"#/$defs/{name}"}
        for definition in own.values():
            definition.pop("title", None)
        return schema, own


# Characters of the name of a generic model that a URI fragment such as a `$ref` must not contain;
# pydantic and msgspec replace them in the same way.
_UNUSUAL_IN_NAMES: Final = r"[^a-zA-Z0-9.\-_]"


@functools.cache
def _schema_generator() -> Any:
    """Return a schema generator that does not derive titles from the names of fields."""
    base: Any = importlib.import_module("pydantic.json_schema").GenerateJsonSchema

    def field_title_should_be_set(_generator: object, _schema: object) -> bool:
        return False

    return type("Untitled", (base,), {"field_title_should_be_set": field_title_should_be_set})


# Errors of pydantic -------------------------------------------------------------------------------

# pydantic makes either all texts or none, and those of a million errors take many seconds.
_PYDANTIC_ERRORS_MAX: Final = 1000
_TEXTS_BY_ERROR_TYPE: Final = {"missing": "missing", "extra_forbidden": "unknown field"}
_PYDANTIC_PREFIXES: Final = r"\A(?:Input|Value error,|Assertion failed,) "


def _pydantic_path(location: Sequence[str | int], value: Any, *, is_missing: bool) -> str:
    """Return the path in `value`, without the names of union members that pydantic adds."""
    path = ""
    for key in location:
        keys = range(len(value)) if value.__class__ is list else value
        if (value.__class__, type(key)) in ((dict, str), (list, int)) and key in keys:
            path += path_step(key)
            value = value[key]
    return path + path_step(location[-1]) if is_missing else path


# JSON Schemas -----------------------------------------------------------------------------------

DEFINITIONS: Final = "#/$defs/"


def json_schema(hint: Any) -> dict[str, Any]:
    """Return the JSON Schema of a decodable type, with the schemas of named types under `$defs`.

    Raises:
        TypeError: A type in it has no JSON form, or is not decodable.
    """
    # Each custom type has a temporary `$ref` until the schemas of its inner types are made.
    custom_types: dict[CustomType, str] = {}

    def temporary_schema(kind: Any) -> dict[str, Any]:
        if not isinstance(kind, CustomType):
            raise no_json_form(kind)
        return {"$ref": custom_types.setdefault(kind, f"custom-type:{len(custom_types)}")}

    hints: list[Any] = []
    wanted = [hint]
    schemas: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    # One call of msgspec gets all types, because names are unique only within a call. It is
    # repeated until it finds no further custom types.
    while len(wanted) > len(hints):
        hints = wanted
        for each in hints:
            msgspec.json.Decoder(each)  # This rejects a type that is not decodable.
        components, definitions = msgspec.json.schema_components(
            hints, schema_hook=temporary_schema, ref_template=DEFINITIONS + "{name}"
        )
        schemas = [*components]
        wanted = [hint, *(it for kind in custom_types for it in kind.decoder.inner)]
    schema, *others = schemas
    orders = _declared_orders(hints)
    for part in (schema, *others, *definitions.values()):
        _normalize(part, orders)
    for definition in definitions.values():
        definition.pop("title", None)
    replaced: dict[str, Any] = {}
    for kind, temporary_ref in custom_types.items():
        inner = [others.pop(0) for _ in kind.decoder.inner]
        replaced[temporary_ref] = kind.decoder.schema(inner, definitions)
    complete = schema | {"$defs": definitions} if definitions else schema
    resolved: dict[str, Any] = _with_refs_replaced(complete, replaced)
    return resolved


_plain_schemas: Final[dict[Any, dict[str, Any]]] = {}


def plain_schema(hint: Any) -> dict[str, Any] | None:
    """Return the JSON Schema of a type that consists of types of JSON itself, or None for others.

    Most parameters and results have such a type, and a thousand tools have few different ones. So
    each schema is made once; callers do not change it. msgspec decodes these types as they are.
    """
    if not is_plain(hint):
        return None
    # `int | None` and `None | int` are equal, but their schemas are not.
    key = hint if type(hint) is type else repr(hint)
    if key not in _plain_schemas:
        _plain_schemas[key] = json_schema(hint)
    return _plain_schemas[key]


def is_plain(hint: Any) -> bool:
    """Return whether a type consists of types of JSON itself, including null."""
    if type(hint) is type:
        return hint in _JSON_TYPES
    members = typing.get_args(hint)
    if not members:
        return False
    if is_union(hint):
        # msgspec cannot tell several arrays, or several objects, apart.
        compound = [it for it in members if typing.get_args(it)]
        return not compound[1:] and all(map(is_plain, members))
    origin = typing.get_origin(hint)
    return (origin is list and is_plain(members[0])) or (
        origin is dict and members[0] is str and is_plain(members[1])
    )


# The keys of a schema that hold one schema, or a list of schemas.
_ONE_SCHEMA: Final = ("items", "additionalProperties")
_SCHEMA_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")

_JSON_TYPES: Final[dict[type, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


def _declared_orders(hints: Iterable[Any]) -> dict[frozenset[Any], list[Any]]:
    """Return the values of each `Literal` and enum, and the keys of each `TypedDict`, in order."""
    orders: dict[frozenset[Any], list[Any]] = {}
    for hint in reachable(hints):
        if typing.get_origin(hint) is Literal:
            values = [*typing.get_args(hint)]
        elif isinstance(hint, enum.EnumType):
            members = cast("Iterable[enum.Enum]", hint)
            values = [member.value for member in members]
        elif is_typed_dict(class_of(hint)):
            values = [field.wire_name for field in fields_of(hint)]
        else:
            continue
        orders[_values_with_types(values)] = values
    return orders


def _values_with_types(values: Iterable[Any]) -> frozenset[Any]:
    """Return the values as a set in which 1 and True differ."""
    return frozenset((type(value), value) for value in values)


def _normalize(schema: dict[str, Any], orders: Mapping[frozenset[Any], list[Any]]) -> None:
    """Give a schema by msgspec the order of the declarations, and keywords that hosts depend on.

    msgspec sorts the values of an `enum` and the keys of a `TypedDict`. It leaves out the `type` of
    an `enum`, without which Gemini rejects all tools of a request, and the `items` of a list of
    anything. `"items": false` says the same as `maxItems`, but not every host knows it.
    """
    if "enum" in schema:
        values = orders.get(_values_with_types(schema["enum"]), schema["enum"])
        names = [*dict.fromkeys(_JSON_TYPES[type(value)] for value in values)]
        schema["enum"] = values
        schema.setdefault("type", names[0] if len(names) == 1 else names)
    if "properties" in schema:
        properties = schema["properties"]
        keys = orders.get(_values_with_types(properties), properties)
        schema["properties"] = {key: properties[key] for key in keys}
    if schema.get("type") == "array":
        if "prefixItems" not in schema:
            schema.setdefault("items", {})
        elif schema.get("items") is False and schema.get("maxItems") == len(schema["prefixItems"]):
            del schema["items"]
    inner = [schema[key] for key in _ONE_SCHEMA if isinstance(schema.get(key), dict)]
    for key in _SCHEMA_LISTS:
        inner += schema.get(key, ())
    for part in (*inner, *schema.get("properties", {}).values()):
        _normalize(part, orders)


def is_finite(value: Any) -> bool:
    """Return whether a plain value contains no infinity and no NaN, which JSON would turn to null.

    As a default or as a bound in a schema, such a null would be wrong.
    """
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(is_finite, cast("dict[str, Any]", value).values()))
    return not isinstance(value, list) or all(map(is_finite, cast("Sequence[Any]", value)))


def _with_refs_replaced(schema: Any, replaced: dict[str, Any]) -> Any:
    """Return the schema with each temporary `$ref` replaced; keys beside the `$ref` stay.

    Keywords whose value is infinity or NaN are left out.
    """
    if isinstance(schema, list):
        return [_with_refs_replaced(item, replaced) for item in cast("Sequence[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    given = cast("dict[str, Any]", schema)
    members = {
        key: _with_refs_replaced(it, replaced)
        for key, it in given.items()
        if not isinstance(it, float) or is_finite(it)
    }
    found = replaced.get(str(members.get("$ref")))
    if found is None:
        return members
    del members["$ref"]
    return _with_refs_replaced(found, replaced) | members


def with_keywords_at_root(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with the definition of its root `$ref` inlined.

    Older protocol versions require `"type": "object"` at the root of an output schema. The
    definition stays under `$defs` if anything else refers to it, such as a recursive type.
    """
    name = schema.get("$ref", "").removeprefix(DEFINITIONS)
    definitions: dict[str, Any] = schema.get("$defs", {})
    if name not in definitions:
        return schema
    own: dict[str, Any] = definitions[name]
    is_used = f'"{DEFINITIONS}{name}"'.encode() in msgspec.json.encode(definitions)
    remaining = {key: it for key, it in definitions.items() if key != name or is_used}
    siblings = {key: it for key, it in schema.items() if key not in ("$ref", "$defs")}
    return own | siblings | ({"$defs": remaining} if remaining else {})


# From annotations to decodable types -------------------------------------------------------------


@attrs.frozen(eq=False, repr=False)
class TypeAdapter:
    """Turns annotations into types that msgspec can decode.

    The custom type of a class with fields is made once and kept, so that the class may refer to
    itself. `pydantic_mode` is the mode of each `PydanticDecoder`.
    """

    converter: "Converter | None" = None
    pydantic_mode: Literal["validation", "serialization"] = "validation"
    _built: dict[Any, Any] = attrs.field(factory=dict[Any, Any], init=False)

    def decodable(self, hint: Any) -> Any:
        """Return the annotation, with a custom type for each type that msgspec does not support.

        Raises:
            TypeError: A constraint cannot be checked, or the members of a union cannot be
                distinguished.
        """
        custom = self._decoder_of(hint)
        if custom is not None:
            return _custom_type(type_name(hint), custom)
        if hint is object:
            return Any
        if has_fields(hint):
            if not any(map(self._needs_custom_type, reachable([hint]))):
                return hint
            if hint not in self._built:
                self._built[hint] = _custom_type(
                    type_name(hint), ClassDecoder(hint, self.decodable)
                )
            return self._built[hint]
        if typing.get_origin(hint) is Annotated:
            return _with_metadata(self.decodable(hint.__origin__), hint.__metadata__)
        aliased = unaliased(hint)
        if aliased is not hint:
            if hint in reachable([aliased]):
                raise TypeError(f"{type_name(hint)} is recursive: use Any, or a class with fields")
            return self.decodable(aliased)
        members = typing.get_args(hint)
        if typing.get_origin(hint) is Literal:
            return hint
        inner = tuple(map(self.decodable, members))
        if not is_union(hint):
            return hint if inner == members else typing.get_origin(hint)[inner]
        union: Any = typing.Union
        found = hint if inner == members else union[inner]
        if _is_union_accepted(found):
            return found
        if hint in reachable(members):
            raise TypeError(f"{type_name(hint)} is recursive: make its members structs with a tag")
        return _custom_type(type_name(hint), UnionDecoder([*zip(members, inner, strict=True)]))

    def may_be_mutable(self, value: Any) -> bool:
        """Return whether a value, which is no builtin container, may be mutable."""
        kind = value.__class__
        # Only classes in `_STANDARD_DECODERS`, whose values are immutable, have a `DerivedDecoder`.
        return has_fields(kind) or not isinstance(self._decoder_of(kind), DerivedDecoder | None)

    def _needs_custom_type(self, hint: Any) -> bool:
        """Return whether the hint itself, not a part of it, needs a custom type."""
        if hint is object or self._decoder_of(hint) is not None:
            return True
        if typing.get_origin(hint) is Annotated:
            return _is_constrained(hint.__metadata__)
        if is_typed_dict(class_of(hint)):
            return bool(getattr(class_of(hint), "__readonly_keys__", ()))
        return is_union(hint) and not _is_union_accepted(hint)

    def _decoder_of(self, hint: Any) -> CustomDecoder | None:
        if is_pydantic(hint):
            return PydanticDecoder(hint, self.pydantic_mode)
        for base in hint.__mro__ if isinstance(hint, type) else ():
            if base in _STANDARD_DECODERS:
                return _STANDARD_DECODERS[base](hint)
        if self.converter is None or not _has_hook(self.converter, hint):
            return None
        input_type = _hook_input_type(self.converter, hint)
        try:
            input_type = TypeAdapter().decodable(input_type)
            json_schema(input_type)
        except (TypeError, NameError):  # The hook's own type needs the converter.
            input_type = Any
        return ConverterDecoder(hint, self.converter, input_type)


def _is_union_accepted(union: Any) -> bool:
    try:
        msgspec.json.Decoder(union)
    except TypeError as error:
        # This is the beginning of the text if msgspec cannot tell the members apart.
        return not str(error).startswith("Type unions")
    return True


# Types of the standard library that msgspec does not support.
_STANDARD_DECODERS: Final[dict[type, Callable[[Any], CustomDecoder]]] = {
    enum.Flag: lambda kind: DerivedDecoder(
        Annotated[int, msgspec.Meta(ge=0, le=sum(member.value for member in kind))], kind
    ),
    pathlib.PurePath: lambda kind: DerivedDecoder(str, kind),
}


# Validation errors ------------------------------------------------------------------------------
#
# msgspec stops at the first validation error. To find the others, `_Walk` decodes the members of a
# value one by one, and descends into each member that fails. Every text is msgspec's own. The walk
# is bounded in depth and breadth; where it stops, one error stands for all errors below.

_BEFORE_PATH: Final = " - at "
_PATH: Final = r"(`key` in )?`\$([^`]*)`"


def error_line(error: Exception, path: str = "") -> str:
    """Return "Expected `int`, got `str` - at `$.days[0]`" as "days[0]: expected int, got str"."""
    prefix, inner, text = _split_path(str(error))
    # attrs' validators raise errors with further arguments; the first one is the text.
    cause = error.__cause__
    if isinstance(cause, TypeError | ValueError) and len(cause.args) > 1:
        text = cause.args[0] if cause.args[0] and isinstance(cause.args[0], str) else text
    return prefix + _format_line(path + inner, text)


def _split_path(text: str) -> tuple[str, str, str]:
    """Return "key in " for an error about a key (else ""), its path, and the rest of the text."""
    prefix = path = ""
    # The outermost path comes last.
    while found := re.fullmatch(_PATH, text.rpartition(_BEFORE_PATH)[2]):
        prefix = prefix or found[1] or ""
        path += found[2]
        text = text.rpartition(_BEFORE_PATH)[0]
    return prefix.replace("`", ""), path, text


def _format_line(path: str, text: str) -> str:
    plain = " ".join(text.replace("`", "").split())
    return f"{path.removeprefix('.') or 'arguments'}: {plain[:1].lower()}{plain[1:]}"


def error_lines(
    hint: Any, value: Any, *, read: Callable[[Any, Any], Any], limits: Limits
) -> list[str]:
    """Return a short line for each validation error in `value`, within `limits`.

    `read` decodes a value as a decodable type, or raises. The result may be empty, because JSON
    text can be invalid although the values in it are valid.
    """
    found = _Walk(read, limits).errors_inside(
        hint, value, "", limits.messages.validation_error_depth_max
    )
    return shortened(
        [*itertools.islice(found, limits.messages.validation_error_members_max)], limits
    )


class _Walk(msgspec.Struct, frozen=True):
    """A walk through a value; each method yields a line for each validation error found."""

    read: Callable[[Any, Any], Any]
    limits: Limits

    def errors_of(self, hint: Any, value: Any, path: str, depth: int) -> Iterator[str]:
        """Yield the errors of the value's members, or else the error of the value itself."""
        try:
            self.read(value, hint)
        except msgspec.ValidationError as error:
            inside = self.errors_inside(hint, value, path, depth) if depth else iter(())
            first = next(inside, None)
            if first is not None:
                yield first
                yield from inside
                return
            # An `InvalidValue` about this value has all of its errors; msgspec's error has one.
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, InvalidValue):
                cause = cause.__cause__
            if cause is None or str(cause) != str(error):
                yield error_line(error, path)
                return
            for inner, message in cause.errors:
                _, deeper, text = _split_path(message)
                yield _format_line(path + inner + deeper, text)

    def errors_inside(self, hint: Any, value: Any, path: str, depth: int) -> Iterator[str]:
        """Yield the errors of the members of the value."""
        hint = strip_metadata(hint)
        if isinstance(hint, CustomType):
            likely = hint.decoder.likeliest(value)
            return iter(()) if likely is None else self.errors_of(likely, value, path, depth)
        if is_union(hint):
            members = [it for it in typing.get_args(hint) if it is not types.NoneType]
            likely = max(members, key=lambda member: key_counter(member)(value))
            if len(members) > 1 and key_counter(likely)(value) < 0:
                return iter(())  # The value is of no member: the error of the union helps most.
            return self.errors_inside(likely, value, path, depth)
        if isinstance(value, dict) and is_object_type(hint):
            walk = self._fields if has_fields(hint) else self._members
            return walk(hint, cast("dict[str, Any]", value), path, depth - 1)
        if isinstance(value, list) and is_array_type(hint):
            return self._items(hint, cast("Sequence[Any]", value), path, depth - 1)
        return iter(())

    def _fields(self, hint: Any, value: Mapping[str, Any], path: str, depth: int) -> Iterator[str]:
        fields = {field.wire_name: field for field in fields_of(hint)}
        for name, field in fields.items():
            if name in value:
                yield from self.errors_of(field.hint, value[name], path + self._step(name), depth)
            elif field.is_required:
                yield _format_line(path + self._step(name), "missing")
        if is_closed(hint):
            noun = "field" if path else "argument"
            for name in value:
                if name not in fields and name != tag_of(hint)[1]:
                    yield _format_line(path + self._step(name), f"unknown {noun}")

    def _members(self, hint: Any, value: Mapping[str, Any], path: str, depth: int) -> Iterator[str]:
        _, member_hint = typing.get_args(hint) or (str, Any)
        for key, member in itertools.islice(
            value.items(), self.limits.messages.validation_error_members_max
        ):
            yield from self.errors_of(member_hint, member, path + self._step(key), depth)

    def _items(self, hint: Any, value: Sequence[Any], path: str, depth: int) -> Iterator[str]:
        item_hints: Iterable[Any]
        if has_fields(hint):
            item_hints = (field.hint for field in fields_of(hint))
        else:
            items = typing.get_args(hint) or (Any,)
            is_fixed_length = typing.get_origin(hint) is tuple and items[-1] is not ...
            item_hints = items if is_fixed_length else itertools.repeat(items[0])
        pairs = zip(item_hints, value, strict=False)
        for index, (item_hint, item) in enumerate(
            itertools.islice(pairs, self.limits.messages.validation_error_members_max)
        ):
            yield from self.errors_of(item_hint, item, f"{path}[{index}]", depth)

    def _step(self, key: str) -> str:
        """Return the path step for a key, which is shortened if it is long."""
        return path_step(key[: self.limits.messages.validation_error_chars_max])
