"""From an annotation to one that msgspec can read.

What msgspec does not know, or refuses, is given a stand-in. A type of our own is a row in
`_CUSTOM`; unions, constraints and classes that hold such things follow. What is left may be known
to people's own converter.
"""

import decimal
import enum
import functools
import importlib
import inspect
import itertools
import operator
import pathlib
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol, cast

import annotated_types as at
import attrs
import msgspec
import msgspec.inspect

from mcp_trio._protocol.json_schema import step
from mcp_trio._server.introspection import (
    Faults,
    Field,
    bare,
    class_of,
    fields_of,
    fit,
    has_fields,
    is_array,
    is_closed,
    is_named_tuple,
    is_union,
    plain_function,
    reachable,
    resolved_hint,
    tag_of,
    unaliased,
)

if TYPE_CHECKING:
    from cattrs import Converter
    from cattrs.errors import ForbiddenExtraKeysError


# --------------------
# Classes that stand in an annotation for what msgspec cannot read, and tell how to read it.
#
# msgspec meets a `StandIn` as a type that it does not know, and asks `structure` for the value. How
# that is made is the stand-in's `reading`: by way of a type that msgspec does know, or of several.


class Reading(Protocol):
    """How the values of a stand-in are read; `inner` are the readable types that this takes."""

    @property
    def inner(self) -> Sequence[Any]: ...

    def read(self, value: Any, /, *, strict: bool) -> Any:
        """The value, from plain JSON.

        Raises:
            ValueError: it does not fit; the text may end in a path, as those of msgspec do.
        """

    def likeliest(self, value: Any, /) -> Any | None:
        """The inner type that `value` was probably meant for; None if no other tells more."""

    def schema(
        self, inner: Sequence[dict[str, Any]], definitions: dict[str, Any], /
    ) -> dict[str, Any]:
        """Its JSON Schema, made of those of the inner types; new definitions are added."""
        ...


class StandIn(type):
    """A class that stands for whatever its `reading` returns."""

    reading: Reading

    def __instancecheck__(cls, instance: Any) -> bool:
        """For msgspec, which asks whether it got what it wanted."""
        return True


def stand_in(name: str, reading: Reading) -> Any:
    """A new stand-in; `name` is what errors call it."""
    return StandIn(name, (), {"reading": reading})


def structure(kind: Any, value: Any, *, strict: bool = True) -> Any:
    """The value of a stand-in, from plain JSON: the `dec_hook` of msgspec.

    Raises:
        ValueError: it does not fit.
    """
    try:
        return kind.reading.read(value, strict=strict)
    except msgspec.ValidationError as error:
        # msgspec adds the path that led here to any other `ValueError`.
        raise ValueError(*error.args) from error


_structure_text: Final = functools.partial(structure, strict=False)


def convert(value: Any, hint: Any, *, strict: bool = True) -> Any:
    """The value of a readable type, from plain JSON; text may stand for numbers if not `strict`.

    Raises:
        msgspec.ValidationError: it does not fit.
    """
    hook = structure if strict else _structure_text
    return msgspec.convert(value, hint, strict=strict, str_keys=True, dec_hook=hook)


# Readings ---------------------------------------------------------------------------------------


class ByOne:
    """What readings have in common that go by way of one inner type: its schema is theirs."""

    __slots__ = ()

    def likeliest(self: Reading, _value: Any) -> Any | None:
        """That type."""
        return self.inner[0]

    def schema(self, inner: Sequence[dict[str, Any]], _definitions: object) -> dict[str, Any]:
        """That of the type."""
        return inner[0]


@attrs.frozen(eq=False)
class Made(ByOne):
    """A value of one inner type, out of which `make` makes another, or refuses it."""

    hint: Any
    make: Callable[[Any], Any]

    @property
    def inner(self) -> Sequence[Any]:
        return (self.hint,)

    def read(self, value: Any, *, strict: bool) -> Any:
        return self.make(convert(value, self.hint, strict=strict))


@attrs.frozen(eq=False)
class FirstFit:
    """A union that msgspec refuses: the first member that fits, except that `str` comes last.

    An object is first tried as the member that knows the most of its keys. `members` are pairs of
    what people wrote and what is readable.
    """

    members: Sequence[tuple[Any, Any]]

    @property
    def inner(self) -> Sequence[Any]:
        return [readable for _, readable in self.members]

    def read(self, value: Any, *, strict: bool) -> Any:
        faults: list[msgspec.ValidationError] = []
        for _, readable in self._in_turn(value):
            try:
                return convert(value, readable, strict=strict)
            except msgspec.ValidationError as fault:
                faults.append(fault)
        if self.likeliest(value) is not None:
            raise faults[0]
        raise ValueError(f"Expected `{' | '.join(name_of(hint) for hint, _ in self.members)}`")

    def _in_turn(self, value: Any) -> list[tuple[Any, Any]]:
        if isinstance(value, str):
            return sorted(self.members, key=lambda member: bare(member[0]) is str)
        return sorted(self.members, key=lambda member: -fit(member[0], value))

    def likeliest(self, value: Any) -> Any | None:
        likely, readable = self._in_turn(value)[0]
        return readable if fit(likely, value) > 0 else None

    def schema(self, inner: Sequence[dict[str, Any]], _definitions: object) -> dict[str, Any]:
        return {"anyOf": [*inner]}


def name_of(hint: Any) -> str:
    """What errors call a type."""
    if isinstance(hint, type) and not typing.get_args(hint):
        return "null" if hint is type(None) else hint.__name__
    return re.sub(r"(?:[\w<>]+\.)+", "", str(hint))


@attrs.define(eq=False)
class Built(ByOne):
    """A class with fields, of which msgspec cannot read some: read as a struct, and then built."""

    kind: Any
    readable: Callable[[Any], Any]

    @property
    def inner(self) -> Sequence[Any]:
        return (self._struct,)

    @functools.cached_property
    def _struct(self) -> type[msgspec.Struct]:
        # Made at first need, for the class may hold itself.
        tag, tag_field = tag_of(self.kind)
        origin = class_of(self.kind)
        is_tuple = is_named_tuple(origin)
        return msgspec.defstruct(
            name_of(self.kind),
            [self._row(field) for field in self._fields],
            module=origin.__module__,
            namespace={"__qualname__": origin.__qualname__, "__doc__": _doc_of(origin)},
            kw_only=not is_array(origin),
            tag=tag,
            tag_field=tag_field or None,
            array_like=is_array(origin),
            forbid_unknown_fields=is_tuple or is_closed(origin),
        )

    @functools.cached_property
    def _fields(self) -> tuple[Field, ...]:
        return fields_of(self.kind)

    def _row(self, field: Field) -> tuple[str, Any, Any]:
        default: dict[str, Any] = {}
        if field.default is not msgspec.NODEFAULT:
            default = {"default": field.default}
        elif not field.is_required:
            default = {"default_factory": lambda: msgspec.UNSET}
        readable = self.readable(field.hint)
        return field.name, readable, msgspec.field(name=field.wire_name, **default)

    def read(self, value: Any, *, strict: bool) -> Any:
        struct = convert(value, self._struct, strict=strict)
        return self.kind(**_members(struct))


def _doc_of(kind: type) -> str | None:
    """What people wrote about a class; dataclasses without a docstring have their signature."""
    text = kind.__doc__
    return None if text is None or text.startswith(f"{kind.__name__}(") else text


def _members(struct: msgspec.Struct) -> Mapping[str, Any]:
    members = msgspec.structs.asdict(struct)
    return {name: value for name, value in members.items() if value is not msgspec.UNSET}


# --------------------
# The constraints of `annotated-types`: told to msgspec in its own words, or checked after it.
#
# A row in `_RULES` is a constraint: its member, the keyword of `msgspec.Meta` that it becomes, and
# for types where msgspec has none, the check and its text. What has no row is refused, for a
# constraint that nobody checks is worse than none.


@attrs.frozen
class Rule:
    """One kind of constraint; without `holds`, only msgspec can check it."""

    member: str
    keyword: str
    text: str = ""
    holds: Callable[[Any, Any], bool] | None = None


_RULES: Final[dict[type, Rule]] = {
    at.Ge: Rule("ge", "ge", ">= {}", operator.ge),
    at.Gt: Rule("gt", "gt", "> {}", operator.gt),
    at.Le: Rule("le", "le", "<= {}", operator.le),
    at.Lt: Rule("lt", "lt", "< {}", operator.lt),
    at.MultipleOf: Rule(
        "multiple_of",
        "multiple_of",
        "that's a multiple of {}",
        lambda value, unit: not value % unit,
    ),
    at.MinLen: Rule("min_length", "min_length"),
    at.MaxLen: Rule("max_length", "max_length"),
}
_NUMBERS: Final = (int, float, decimal.Decimal)


def is_constrained(metadata: Iterable[Any]) -> bool:
    """Whether there is anything that msgspec would overlook."""
    return any(
        isinstance(item, at.BaseMetadata | at.GroupedMetadata | at.DocInfo) for item in metadata
    )


def constrained(hint: Any, metadata: Iterable[Any]) -> Any:
    """A readable type with its metadata, as msgspec can read it.

    Raises:
        TypeError: A constraint is unknown, or makes no sense for the type.
    """
    limits: list[Any] = []
    kept: list[Any] = []
    for item in _ungrouped(metadata):
        if isinstance(item, at.DocInfo):
            kept.append(msgspec.Meta(description=item.documentation))
        else:
            (limits if isinstance(item, at.BaseMetadata) else kept).append(item)
    limited = _limited(hint, limits) if limits else hint
    return annotated(limited, kept)


def annotated(hint: Any, metadata: Sequence[Any]) -> Any:
    """`Annotated`, if there is anything to annotate; old metadata come after the new."""
    special: Any = Annotated
    if typing.get_origin(hint) is Annotated:
        return special[(hint.__origin__, *metadata, *hint.__metadata__)]
    return special[(hint, *metadata)] if metadata else hint


def _ungrouped(metadata: Iterable[Any]) -> Iterator[Any]:
    for item in metadata:
        if isinstance(item, at.GroupedMetadata):
            yield from _ungrouped(cast("Iterable[Any]", item))
        else:
            yield item


def _limited(hint: Any, limits: Sequence[Any]) -> Any:
    if is_union(hint):  # a limit of a union is that of each member, and None has none
        union: Any = typing.Union
        members = typing.get_args(hint)
        return union[tuple(it if it is types.NoneType else _limited(it, limits) for it in members)]
    known: dict[str, Any] = {}
    checks: list[Callable[[Any], None]] = []
    for limit in limits:
        keywords = _keywords(limit)
        if keywords and _is_constraint_accepted(hint, known | keywords):
            known |= keywords
        else:
            checks.append(_check(hint, limit))
    hint = annotated(hint, [msgspec.Meta(**known)] if known else [])
    make = functools.partial(_checked, checks)
    return stand_in(name_of(bare(hint)), Made(hint, make)) if checks else hint


def _keywords(limit: Any) -> dict[str, Any]:
    if isinstance(limit, at.Timezone) and (limit.tz is None or limit.tz is ...):
        return {"tz": limit.tz is not None}
    rule = _RULES.get(limit.__class__)
    return {rule.keyword: getattr(limit, rule.member)} if rule else {}


def _is_constraint_accepted(hint: Any, keywords: dict[str, Any]) -> bool:
    try:
        msgspec.json.Decoder(annotated(hint, [msgspec.Meta(**keywords)]))
    except (TypeError, ValueError):
        return False
    return True


# Checks that msgspec cannot make ----------------------------------------------------------------


def _checked(checks: Iterable[Callable[[Any], None]], value: Any) -> Any:
    for check in checks:
        check(value)
    return value


def _check(hint: Any, limit: Any) -> Callable[[Any], None]:
    name = name_of(bare(hint))
    if isinstance(limit, at.Predicate):
        called = getattr(limit.func, "__name__", "<lambda>")
        text = f"another `{name}`" if called == "<lambda>" else f"`{name}` that `{called}` accepts"
        return functools.partial(_hold, limit.func, f"Expected {text}")
    rule = _RULES.get(limit.__class__)
    if rule is None:
        raise TypeError(f"the constraint {limit!r} is not supported")
    bound = getattr(limit, rule.member)
    if rule.holds is None or not _compares(bare(hint), bound):
        raise TypeError(f"the constraint {limit!r} does not fit {name}")
    holds = functools.partial(_turned, rule.holds, bound)
    return functools.partial(_hold, holds, f"Expected `{name}` {rule.text.format(bound)}")


def _compares(kind: Any, bound: Any) -> bool:
    if type(kind) is not type:  # a stand-in, or `Any`: who knows what that is
        return False
    return isinstance(bound, _NUMBERS if kind in _NUMBERS else kind)


def _turned(holds: Callable[[Any, Any], bool], bound: Any, value: Any) -> bool:
    return holds(value, bound)


def _hold(holds: Callable[[Any], Any], text: str, value: Any) -> None:
    if not holds(value):
        raise ValueError(text)


# --------------------
# People's own types, read by the converter of cattrs that they gave to their server.
#
# cattrs is imported here only when a converter has refused something, so that it is there already.


def no_json_form(kind: Any) -> TypeError:
    """The error about a type that nobody here can read or write."""
    return TypeError(
        f"the type {kind!r} has no JSON form: a cattrs Converter with hooks for it, "
        "Server(converter=...), would give it one"
    )


def has_hook(converter: "Converter", hint: Any) -> bool:
    """Whether a hint is a class that msgspec does not know, and that the converter can make."""
    if not _is_unknown(hint):
        return False
    from cattrs.errors import StructureHandlerNotFoundError

    try:
        converter.get_structure_hook(hint)
    except StructureHandlerNotFoundError:
        return False
    return True


def _is_unknown(hint: Any) -> bool:
    kind = class_of(hint)
    if kind in (object, Annotated) or not inspect.isclass(kind) or has_fields(hint):
        return False
    try:
        return isinstance(msgspec.inspect.type_info(hint), msgspec.inspect.CustomType)
    except TypeError:  # a class that msgspec knows and refuses, such as an enum of mixed values
        return False


def input_of(converter: "Converter", hint: Any) -> Any:
    """What the hook for a type says that it takes: its first annotation, `Any` if it has none."""
    hook: Any = converter.get_structure_hook(hint)
    try:
        function = plain_function(hook)
        first = next(iter(inspect.signature(hook).parameters.values()))
        return resolved_hint(function, first)
    except TypeError:
        return Any


@attrs.frozen(eq=False)
class ConverterReading(ByOne):
    """Reads what only the converter knows, out of what its hook takes."""

    hint: Any
    converter: "Converter"
    taken: Any

    @property
    def inner(self) -> Sequence[Any]:
        return (self.taken,)

    def read(self, value: Any, *, strict: bool) -> Any:
        """The value that the hook makes.

        Raises:
            Faults: with everything that is wrong. An error that bad input does not explain is the
                hook's own, and comes as it is.
        """
        taken = convert(value, self.taken, strict=strict)
        try:
            return self.converter.structure(taken, self.hint)
        except Exception as error:
            if not _is_rejection(error):
                raise
            raise Faults([*_cattrs_errors(error, value, self.hint, "")]) from error


# Its errors -------------------------------------------------------------------------------------

# What code that takes a value apart raises, when that is not of the form it expects.
_REJECTIONS: Final = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
# Texts that Python itself gives to a `ValueError`, and that mean nothing to the caller.
_CATTRS_JARGON: Final = re.compile(
    "invalid literal for |could not convert |(?:not enough|too many) values to unpack"
)


@functools.cache
def _extra_keys_error() -> "type[ForbiddenExtraKeysError]":
    from cattrs import errors

    return errors.ForbiddenExtraKeysError


def _is_rejection(error: Exception) -> bool:
    if isinstance(error, ExceptionGroup):
        inner = cast("ExceptionGroup[Exception]", error).exceptions
        return all(map(_is_rejection, inner))
    return isinstance(error, (*_REJECTIONS, _extra_keys_error()))


def _cattrs_errors(error: Any, value: Any, hint: Any, path: str) -> Iterator[tuple[str, str]]:
    """One fault for each error in a group, else one; `value` is what was read as `hint`."""
    if isinstance(error, _extra_keys_error()):
        for key in sorted(error.extra_fields):
            yield path + step(key), "unknown field"
    elif _is_about_missing(error, value):
        yield path + step(error.args[0]), "missing"
    elif hasattr(error, "group_exceptions"):
        yield from _faults_of_group(error, value, hint, path)
    else:
        yield path, _text(error, hint)


def _faults_of_group(group: Any, value: Any, hint: Any, path: str) -> Iterator[tuple[str, str]]:
    noted, others = group.group_exceptions()
    for error, note in noted:
        if _is_about_missing(error, value):
            yield from _cattrs_errors(error, value, hint, path)
        else:
            key = getattr(note, "name", None) or note.index
            yield from _cattrs_errors(error, _member(value, key), note.type, path + step(key))
    for error in others:
        yield from _cattrs_errors(error, value, hint, path)


def _is_about_missing(error: Exception, value: Any) -> bool:
    match error:
        case KeyError(args=(str(key),)):
            return isinstance(value, Mapping) and key not in value
        case _:
            return False


def _member(value: Any, key: str | int) -> Any:
    """What stands there; None if the hooks have read something else than what was sent."""
    try:
        return value[key]
    except (LookupError, TypeError):
        return None


def _text(error: Exception, hint: Any) -> str:
    said = str(error) if isinstance(error, ValueError) else ""
    return f"Expected `{name_of(hint)}`" if _CATTRS_JARGON.match(said) or not said else said


# --------------------
# Types of pydantic, read and written by its own rules, for people who bring it along.
#
# pydantic is imported here only after a type of its own has been seen, so that it is there already.


_encode: Final = msgspec.json.Encoder().encode


def is_pydantic(hint: Any) -> bool:
    """Whether pydantic reads such values: its classes, and all that its `Field` annotates."""
    if typing.get_origin(hint) is Annotated:
        return any(_is_own(item.__class__) for item in hint.__metadata__)
    kind = class_of(hint)
    return inspect.isclass(kind) and (_is_own(kind) or hasattr(kind, "__pydantic_validator__"))


def _is_own(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "pydantic"


def written(value: Any) -> Any:
    """The plain JSON of such a value, by its aliases; its sets become sorted lists."""
    dump = _adapter(value.__class__).dump_python
    return _in_order(dump(value, mode="json", by_alias=True), dump(value, by_alias=True))


def _in_order(plain: Any, value: Any) -> Any:
    """The JSON form of `value`, whose sets pydantic leaves to the hash seed."""
    row = _ROWS.get((plain.__class__, value.__class__))
    return plain if row is None or len(plain) != len(value) else row(plain, value)


def _dict(plain: dict[str, Any], value: dict[Any, Any]) -> dict[str, Any]:
    pairs = zip(plain.items(), value.values(), strict=True)
    return {key: _in_order(member, original) for (key, member), original in pairs}


def _list(plain: list[Any], value: Iterable[Any]) -> list[Any]:
    return [*map(_in_order, plain, value)]


def _set(plain: list[Any], _value: object) -> list[Any]:
    return sorted(plain, key=_encode)


_ROWS: Final[dict[tuple[type, type], Callable[[Any, Any], Any]]] = {
    (dict, dict): _dict,
    (list, list): _list,
    (list, tuple): _list,
    (list, set): _set,
    (list, frozenset): _set,
}


@functools.lru_cache
def _adapter(hint: Any) -> Any:
    return importlib.import_module("pydantic").TypeAdapter(hint)


# Reading ----------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class PydanticReading:
    """Reads what pydantic knows better, by the rules that it was given (lax, if by none)."""

    hint: Any
    inner: tuple[Any, ...] = ()

    def read(self, value: Any, *, strict: bool) -> Any:  # noqa: ARG002 - its types are strict by their own rules
        """The value of the annotated type.

        Raises:
            Faults: with everything that is wrong.
        """
        try:
            # As JSON, for only so does a strict model take a date or a tuple.
            return _adapter(self.hint).validate_json(_encode(value))
        except _rejection() as error:
            raise Faults([*_pydantic_errors(error, value)]) from error

    def likeliest(self, _value: Any) -> Any | None:
        """Nothing: its errors are complete."""
        return None

    def schema(self, _inner: Sequence[Any], definitions: dict[str, Any]) -> dict[str, Any]:
        """Its schema; what that refers to joins `definitions`, under names that are free."""
        numbers = itertools.count(2)
        schema, own = self._schema("{model}")
        while any(definitions.get(name, it) != it for name, it in own.items()):
            schema, own = self._schema(f"{{model}}_{next(numbers)}")
        definitions.update(own)
        return schema

    def _schema(self, names: str) -> tuple[dict[str, Any], dict[str, Any]]:
        schema: dict[str, Any] = _adapter(self.hint).json_schema(
            ref_template=f"#/$defs/{names}", schema_generator=_generator()
        )
        own = {names.format(model=name): it for name, it in schema.pop("$defs", {}).items()}
        if "title" in schema and isinstance(self.hint, type):
            name = names.format(model=self.hint.__name__)
            own[name], schema = schema, {"$ref": f"#/$defs/{name}"}
        for definition in own.values():
            definition.pop("title", None)
        return schema, own


@functools.cache
def _rejection() -> type[Exception]:
    rejection: type[Exception] = importlib.import_module("pydantic").ValidationError
    return rejection


@functools.cache
def _generator() -> Any:
    """A generator of schemas that makes no titles out of the names of fields."""
    base: Any = importlib.import_module("pydantic.json_schema").GenerateJsonSchema
    return type("Untitled", (base,), {"field_title_should_be_set": _has_no_title})


def _has_no_title(_generator: object, _schema: object) -> bool:
    return False


# Its errors -------------------------------------------------------------------------------------

_TEXTS: Final = {"missing": "missing", "extra_forbidden": "unknown field"}
_PYDANTIC_JARGON: Final = re.compile(r"\A(?:Input|Value error,|Assertion failed,) ")


def _pydantic_errors(error: Any, value: Any) -> Iterator[tuple[str, str]]:
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        kind, place = fault["type"], fault["loc"]
        text = _TEXTS.get(kind) or _PYDANTIC_JARGON.sub("", fault["msg"])
        yield _path(place, value, is_missing=kind == "missing"), text


def _path(place: Sequence[str | int], value: Any, *, is_missing: bool) -> str:
    """Where in `value` it is, leaving out what pydantic adds: the names of a union's members."""
    path = ""
    for key in place:
        if _KEYS.get(value.__class__) is type(key) and key in _keys(value):
            path += step(key)
            value = value[key]
    return path + step(place[-1]) if is_missing else path


# What leads from a value to one inside of it.
_KEYS: Final[dict[type, type]] = {dict: str, list: int}


def _keys(value: Any) -> Any:
    return range(len(value)) if value.__class__ is list else value


# --------------------
# The JSON Schemas of readable types, named ones under `$defs`.


_PLACE: Final = "#/$defs/"


def json_schema(hint: Any) -> dict[str, Any]:
    """The schema of a readable type; those of the types with names are under its `$defs`.

    Raises:
        TypeError: a type in it has no JSON form, or msgspec cannot read it.
    """
    found = _Found()
    (schema, *others), definitions = found.all_of(hint)
    for definition in definitions.values():
        definition.pop("title", None)
    replaced: dict[str, Any] = {}
    for number, kind in enumerate(found.stand_ins):
        inner = [others.pop(0) for _ in kind.reading.inner]
        replaced[_mark(number)] = kind.reading.schema(inner, definitions)
    whole = schema | {"$defs": definitions} if definitions else schema
    resolved: dict[str, Any] = _resolved(whole, replaced)
    return resolved


def _mark(number: int) -> str:
    """What a stand-in refers to, until all names are known."""
    return f"stand-in:{number}"


class _Found:
    """The stand-ins that were met, each once."""

    def __init__(self) -> None:
        self.stand_ins: list[StandIn] = []

    def all_of(self, hint: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The schema of `hint` and of all inner types of the stand-ins, and the definitions.

        One call of msgspec has to see them all, for only so are names unique.
        """
        hints: list[Any] = []
        wanted = [hint]
        schemas: Iterable[dict[str, Any]] = ()
        definitions: dict[str, Any] = {}
        while len(wanted) > len(hints):
            hints = wanted
            _reject_unreadable(hints)
            schemas, definitions = msgspec.json.schema_components(
                hints, schema_hook=self._hook, ref_template=_PLACE + "{name}"
            )
            wanted = [hint, *(it for kind in self.stand_ins for it in kind.reading.inner)]
        return [*schemas], definitions

    def _hook(self, kind: Any) -> dict[str, Any]:
        if not isinstance(kind, StandIn):
            raise no_json_form(kind)
        if kind not in self.stand_ins:
            self.stand_ins.append(kind)
        return {"$ref": _mark(self.stand_ins.index(kind))}


def _reject_unreadable(hints: Iterable[Any]) -> None:
    for hint in hints:
        msgspec.json.Decoder(hint)


def _resolved(schema: Any, replaced: dict[str, Any]) -> Any:
    """The schema with what stands for its stand-ins; their neighbours win, such as descriptions."""
    if isinstance(schema, list):
        return [_resolved(item, replaced) for item in cast("Sequence[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    given = cast("dict[str, Any]", schema)
    members = {key: _resolved(it, replaced) for key, it in given.items()}
    found = replaced.get(str(members.get("$ref")))
    if found is None:
        return members
    del members["$ref"]
    return _resolved(found, replaced) | members


_REJECTS_UNIONS: Final = "Type unions"


@attrs.frozen(eq=False)
class TypeReader:
    """Makes annotations readable; a class that holds itself has the same stand-in everywhere."""

    converter: "Converter | None" = None
    _built: dict[Any, Any] = attrs.field(factory=dict[Any, Any], init=False)

    def readable(self, hint: Any) -> Any:
        """The annotation with a stand-in wherever msgspec could not read it, or itself.

        Raises:
            TypeError: a constraint that nobody can check, or a union that nobody can tell apart.
        """
        custom = self._custom(hint)
        if custom is not None:
            return stand_in(name_of(hint), custom)
        if hint is object:
            return Any
        if has_fields(hint):
            return self._class(hint) if any(map(self._is_foreign, reachable([hint]))) else hint
        if typing.get_origin(hint) is Annotated:
            return constrained(self.readable(hint.__origin__), hint.__metadata__)
        known = unaliased(hint)
        if known is not hint:
            found = self.readable(known)
            return hint if found is known else found
        return self._generic(hint)

    def may_change(self, value: Any) -> bool:
        """Whether a handler could change an object; those of our own rows stay as they are."""
        kind = value.__class__
        return has_fields(kind) or not isinstance(self._custom(kind), Made | None)

    def _generic(self, hint: Any) -> Any:
        members = typing.get_args(hint)
        if typing.get_origin(hint) is Literal:
            return hint
        inner = tuple(map(self.readable, members))
        if is_union(hint):
            return _union(hint, inner)
        return hint if inner == members else typing.get_origin(hint)[inner]

    def _class(self, kind: Any) -> Any:
        if kind not in self._built:
            self._built[kind] = stand_in(name_of(kind), Built(kind, self.readable))
        return self._built[kind]

    def _is_foreign(self, hint: Any) -> bool:
        """Whether this very hint needs a stand-in, whatever is inside of it."""
        if hint is object or self._custom(hint) is not None:
            return True
        if typing.get_origin(hint) is Annotated:
            return is_constrained(hint.__metadata__)
        return is_union(hint) and not _is_union_accepted(hint)

    def _custom(self, hint: Any) -> Reading | None:
        if is_pydantic(hint):
            return PydanticReading(hint)
        for base in hint.__mro__ if isinstance(hint, type) else ():
            if base in _CUSTOM:
                return _CUSTOM[base](hint)
        if self.converter is None or not has_hook(self.converter, hint):
            return None
        return ConverterReading(hint, self.converter, _known(input_of(self.converter, hint)))


def _known(hint: Any) -> Any:
    """What a hook takes, as far as it can be read without the converter."""
    try:
        found = TypeReader().readable(hint)
        json_schema(found)
    except (TypeError, NameError):
        return Any
    return found


def _union(hint: Any, inner: tuple[Any, ...]) -> Any:
    members = typing.get_args(hint)
    union: Any = typing.Union
    found = hint if inner == members else union[inner]
    if _is_union_accepted(found):
        return found
    if hint in reachable(members):
        raise TypeError(f"{name_of(hint)} holds itself: make its members structs with a tag")
    return stand_in(name_of(hint), FirstFit([*zip(members, inner, strict=True)]))


def _is_union_accepted(union: Any) -> bool:
    try:
        msgspec.json.Decoder(union)
    except TypeError as error:
        return not str(error).startswith(_REJECTS_UNIONS)
    return True


# Types of our own -------------------------------------------------------------------------------


def _flag(kind: Any) -> Reading:
    bits = functools.reduce(lambda one, other: one | other.value, kind, 0)
    return Made(Annotated[int, msgspec.Meta(ge=0, le=bits)], kind)


def _path_reading(kind: Any) -> Reading:
    return Made(str, kind)


_CUSTOM: Final[dict[type, Callable[[Any], Reading]]] = {
    enum.Flag: _flag,
    pathlib.PurePath: _path_reading,
}
