"""From an annotation to one that msgspec can read.

What msgspec does not know, or refuses, is given a stand-in. A type of our own is a row in
`_CUSTOM`; unions, constraints and classes that hold such things follow. What is left may be known
to people's own converter.
"""

import enum
import functools
import pathlib
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import attrs
import msgspec

from mcp_trio._server.constraints import constrained, is_constrained
from mcp_trio._server.converter_types import ConverterReading, has_hook, input_of
from mcp_trio._server.fields import has_fields
from mcp_trio._server.hints import is_union, reachable, unaliased
from mcp_trio._server.json_schemas import json_schema
from mcp_trio._server.pydantic_types import PydanticReading, is_pydantic
from mcp_trio._server.stand_ins import Built, FirstFit, Made, Reading, name_of, stand_in

if TYPE_CHECKING:
    from cattrs import Converter

_REFUSES_UNIONS: Final = "Type unions"


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
        return is_union(hint) and not _is_taken(hint)

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
    if _is_taken(found):
        return found
    if hint in reachable(members):
        raise TypeError(f"{name_of(hint)} holds itself: make its members structs with a tag")
    return stand_in(name_of(hint), FirstFit([*zip(members, inner, strict=True)]))


def _is_taken(union: Any) -> bool:
    try:
        msgspec.json.Decoder(union)
    except TypeError as error:
        return not str(error).startswith(_REFUSES_UNIONS)
    return True


# Types of our own -------------------------------------------------------------------------------


def _flag(kind: Any) -> Reading:
    bits = functools.reduce(lambda one, other: one | other.value, kind, 0)
    return Made(Annotated[int, msgspec.Meta(ge=0, le=bits)], kind)


def _path(kind: Any) -> Reading:
    return Made(str, kind)


_CUSTOM: Final[dict[type, Callable[[Any], Reading]]] = {
    enum.Flag: _flag,
    pathlib.PurePath: _path,
}
