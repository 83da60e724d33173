"""What stands for `ctx.lifespan` in a replay, which does not enter the lifespan."""

import re
from collections.abc import Callable
from typing import Any, Final, NoReturn

import msgspec

from mcp_trio._errors import BlockedInReplay

ROOT: Final = "ctx.lifespan"

_PLACE: Final = re.compile(rf"<{re.escape(ROOT)}(\.\w+)*>")

# Whatever Python does with an object beside passing it on, asking for its attributes, and showing
# it by `repr`.
_REFUSED: Final = (
    *("__await__", "__aenter__", "__aexit__", "__enter__", "__exit__", "__call__"),
    *("__iter__", "__next__", "__aiter__", "__anext__", "__reversed__", "__len__"),
    *("__contains__", "__getitem__", "__setitem__", "__delitem__", "__setattr__", "__delattr__"),
    *("__bool__", "__int__", "__float__", "__index__", "__bytes__", "__str__", "__format__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__fspath__"),
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__"),
    *("__floordiv__", "__mod__", "__and__", "__or__", "__xor__", "__neg__", "__invert__"),
    *("__reduce_ex__", "__copy__", "__deepcopy__"),
)


def _untold(_place: str, _instead: str) -> None:
    """Who raises says it."""


class LifespanStandIn:
    """Stands for the lifespan's value, or for an attribute of it; may only be passed to effects.

    `on_use` is called with its place, and what to use instead, when it is used otherwise.
    """

    __slots__ = ("_on_use", "_path")

    _path: str
    _on_use: Callable[[str, str], None]

    def __init__(self, path: str = ROOT, *, on_use: Callable[[str, str], None] = _untold) -> None:
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_on_use", on_use)

    def __getattr__(self, name: str) -> "LifespanStandIn":
        """Another stand-in, for what Python does not ask for by itself."""
        if name.startswith("__"):
            raise AttributeError(name)
        return LifespanStandIn(f"{self._path}.{name}", on_use=self._on_use)

    def __repr__(self) -> str:
        """Where it comes from."""
        return f"<{self._path}, which a replay does not have>"


def refuse(stand_in: LifespanStandIn, *_: Any, **__: Any) -> NoReturn:
    """Whatever was done with a stand-in.

    Raises:
        BlockedInReplay: Always.
    """
    path: str = object.__getattribute__(stand_in, "_path")
    name = path.rpartition(".")[2]
    effect = name if path != ROOT else "use"
    instead = (
        f"`@effect async def {effect}(lifespan, ...)` that uses it, and pass it ctx.lifespan; or"
        " replay(lifespan=...) with one that may be entered"
    )
    object.__getattribute__(stand_in, "_on_use")(path, instead)
    raise BlockedInReplay(
        f"{path} was used outside of an effect, but a replay does not enter the lifespan: write"
        f" {instead}"
    )


def place_of(stand_in: LifespanStandIn) -> str:
    """How an effect's arguments tell that this is one of them."""
    path: str = object.__getattribute__(stand_in, "_path")
    return f"<{path}>"


def with_recorded_places(body: bytes, recorded: bytes | None) -> bytes:
    """The JSON of a replay, with what was recorded where it has a stand-in's place.

    A text of the lifespan was recorded as what it said, an object perhaps as opaque: of what it was
    then a replay knows nothing, but that it came from there.
    """
    if recorded is None or f"<{ROOT}".encode() not in body:
        return body
    return msgspec.json.encode(_filled(msgspec.json.decode(body), msgspec.json.decode(recorded)))


def _filled(value: Any, recorded: Any) -> Any:
    kind = value.__class__
    if kind is str and _PLACE.fullmatch(value):
        return recorded
    if kind is not recorded.__class__:
        return value
    if kind is list:
        pairs = zip(value, recorded, strict=False)
        return [*(_filled(*pair) for pair in pairs), *value[len(recorded) :]]
    if kind is dict:
        return {name: _filled(it, recorded.get(name)) for name, it in value.items()}
    return value


for _name in _REFUSED:
    setattr(LifespanStandIn, _name, refuse)
