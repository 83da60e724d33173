"""Types of pydantic, read and written by its own rules, for people who bring it along.

pydantic is imported here only after a type of its own has been seen, so that it is there already.
"""

import functools
import importlib
import inspect
import itertools
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, Final

import attrs
import msgspec

from mcp_trio._protocol.mistakes import step
from mcp_trio._server.faults import Faults
from mcp_trio._server.fields import class_of

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
        except _refusal() as error:
            raise Faults([*_faults(error, value)]) from error

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
def _refusal() -> type[Exception]:
    refusal: type[Exception] = importlib.import_module("pydantic").ValidationError
    return refusal


@functools.cache
def _generator() -> Any:
    """A generator of schemas that makes no titles out of the names of fields."""
    base: Any = importlib.import_module("pydantic.json_schema").GenerateJsonSchema
    return type("Untitled", (base,), {"field_title_should_be_set": _has_no_title})


def _has_no_title(_generator: object, _schema: object) -> bool:
    return False


# Its errors -------------------------------------------------------------------------------------

_TEXTS: Final = {"missing": "missing", "extra_forbidden": "unknown field"}
_JARGON: Final = re.compile(r"\A(?:Input|Value error,|Assertion failed,) ")


def _faults(error: Any, value: Any) -> Iterator[tuple[str, str]]:
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        kind, place = fault["type"], fault["loc"]
        text = _TEXTS.get(kind) or _JARGON.sub("", fault["msg"])
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
