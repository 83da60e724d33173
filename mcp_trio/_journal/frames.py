"""Where two frames differ, as JSON."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")

Place = tuple[str, Any, Any]
"""A path such as `$.result.content[0].text`, and what stands there left and right."""


def _value(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text


def _is_same(a: object, b: object) -> bool:
    return type(a) is type(b) and a == b


def step_to(name: str) -> str:
    """The end of a path that leads to the member of that name."""
    is_plain = _PLAIN_NAME.fullmatch(name)
    return f".{name}" if is_plain else f"[{msgspec.json.encode(name).decode()}]"


def _members(path: str, a: dict[str, Any], b: dict[str, Any]) -> Iterator[Place]:
    for name in a | b:
        yield path + step_to(name), a.get(name, UNSET), b.get(name, UNSET)


def _items(path: str, a: list[Any], b: list[Any]) -> Iterator[Place]:
    for index in range(max(len(a), len(b))):
        yield (
            f"{path}[{index}]",
            a[index] if index < len(a) else UNSET,
            b[index] if index < len(b) else UNSET,
        )


_INNER_PLACES: Final[Mapping[tuple[type, type], Callable[[str, Any, Any], Iterator[Place]]]] = {
    (dict, dict): _members,
    (list, list): _items,
}


def json_difference(left: bytes, right: bytes) -> list[Place]:
    """Every place where two JSON texts differ, in the order of the left one; UNSET: nothing there.

    Whitespace, escapes and the order of members do not count; the type of a number does. Bytes that
    are not JSON are compared as a whole, at `$`.
    """
    places: list[Place] = []
    # A stack, since frames may be nested deeper than Python cares to recurse.
    open_places: list[Place] = [("$", _value(left), _value(right))]
    while open_places:
        path, a, b = open_places.pop()
        if (type(a), type(b)) in _INNER_PLACES:
            inner = _INNER_PLACES[type(a), type(b)](path, a, b)
            open_places += reversed(list(inner))
        elif not _is_same(a, b):
            places.append((path, a, b))
    return places
