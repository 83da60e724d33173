"""The constraints of `annotated-types`, told to msgspec in its own words.

A row in `_KEYWORDS` is a constraint's member, and the keyword of `msgspec.Meta` that it becomes.
What has no row is refused, for a constraint that nobody checks is worse than none.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Final, Literal, cast

import annotated_types as at
import attrs
import msgspec

_KEYWORDS: Final[dict[type, tuple[str, str]]] = {
    at.Ge: ("ge", "ge"),
    at.Gt: ("gt", "gt"),
    at.Le: ("le", "le"),
    at.Lt: ("lt", "lt"),
    at.MultipleOf: ("multiple_of", "multiple_of"),
    at.MinLen: ("min_length", "min_length"),
    at.MaxLen: ("max_length", "max_length"),
    at.DocInfo: ("documentation", "description"),
}
_UNIONS: Final = (typing.Union, types.UnionType)
_HAVE_FIELDS: Final[tuple[Callable[[Any], bool], ...]] = (
    dataclasses.is_dataclass,
    typing.is_typeddict,
    attrs.has,
    lambda kind: hasattr(kind, "__struct_fields__"),
    lambda kind: hasattr(kind, "_fields"),
)


def with_meta(hint: Any) -> Any:
    """The annotation with a `msgspec.Meta` in place of each constraint, also inside of generics.

    Raises:
        TypeError: A constraint has no counterpart, or a value that msgspec does not take; or it
            stands at a field of a class, where only msgspec reads.
    """
    return _with_meta(hint, set())


def _with_meta(hint: Any, seen: set[Any]) -> Any:
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return hint
    if origin is Annotated:
        base, *metadata = members
        annotated: Any = Annotated
        return annotated[(_with_meta(base, seen), *_translated(metadata))]
    _refuse_at_fields(origin or hint, seen)
    inner = tuple(_with_meta(member, seen) for member in members)
    if inner == members:
        return hint
    generic: Any = typing.Union if origin in _UNIONS else origin
    return generic[inner]


def _translated(metadata: Iterable[Any]) -> Iterator[Any]:
    keywords: dict[str, Any] = {}
    for item in _ungrouped(metadata):
        if type(item) in _KEYWORDS:
            member, keyword = _KEYWORDS[type(item)]
            keywords[keyword] = getattr(item, member)
        elif isinstance(item, at.BaseMetadata):
            raise TypeError(f"the constraint {item!r} is not supported")
        else:
            yield item
    if keywords:
        yield msgspec.Meta(**keywords)


def _ungrouped(metadata: Iterable[Any]) -> Iterator[Any]:
    for item in metadata:
        if isinstance(item, at.GroupedMetadata):
            yield from _ungrouped(cast("Iterable[Any]", item))
        else:
            yield item


def _refuse_at_fields(kind: Any, seen: set[Any]) -> None:
    if kind in seen or not any(has_fields(kind) for has_fields in _HAVE_FIELDS):
        return
    seen.add(kind)
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        if _with_meta(hint, seen) != hint:
            raise TypeError(
                f"{kind.__name__}.{name}: constrain the fields of classes by msgspec.Meta"
            )
