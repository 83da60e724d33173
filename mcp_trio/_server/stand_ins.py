"""Classes that stand in an annotation for what msgspec cannot read, and tell how to read it.

msgspec meets a `StandIn` as a type that it does not know, and asks `structure` for the value. How
that is made is the stand-in's `reading`: by way of a type that msgspec does know, or of several.
"""

import functools
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import attrs
import msgspec

from mcp_trio._server.fields import (
    Field,
    class_of,
    fields_of,
    is_closed,
    is_named_tuple,
    tag_of,
)
from mcp_trio._server.hints import bare, fit, is_array


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
