"""From a function and what it is called with to an effect."""

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import attrs
import msgspec

from mcp_trio._engine import Effect
from mcp_trio._journal.records import encode_body
from mcp_trio._server.callables import behind, name_of
from mcp_trio._server.facts import Facts, ServedSession
from mcp_trio._server.lifespan_stand_in import LifespanStandIn, place_of, refuse

# What is recorded of an argument that JSON cannot say.
OPAQUE: Final = "<opaque>"
_OPAQUE: Final = encode_body(OPAQUE)

# Values that are what they say, wherever they come from.
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
_TEXT: Final = frozenset({str})

# How deep in an argument something opaque, or of the lifespan, is looked for.
_WALKED_LEVELS: Final = 3

_Run = Callable[[], Any]
_Signatures = WeakKeyDictionary[types.FunctionType, inspect.Signature]

# Of functions as they are, and of those that are bound to an object.
_FREE: Final = _Signatures()
_BOUND: Final = _Signatures()


def effect_of(
    served: ServedSession,
    function: Callable[..., Any],
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    *,
    run: _Run | None = None,
) -> Effect[Any]:
    """A call of `function` as an effect; `run` makes it in another way than to call it here.

    Raises:
        TypeError: Its annotation cannot be resolved, or what it returns has no JSON form.
        BlockedInReplay: It is a method of the lifespan's value, which a replay does not have.
    """
    if isinstance(called := behind(function), LifespanStandIn):
        refuse(called)
    return Effect(
        name=name_of(function),
        arguments=functools.partial(_arguments, served, function, args, keywords),
        run=run or functools.partial(function, *args, **keywords),
        codec=served.server.effect_results.of(function),
    )


def _arguments(
    served: ServedSession,
    function: Callable[..., Any],
    args: Sequence[Any],
    keywords: Mapping[str, Any],
) -> bytes:
    keep = _Keeper(served)
    named = _named(function, args, keywords)
    return encode_body({name: msgspec.Raw(keep.kept(value)) for name, value in named.items()})


def _named(function: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments by the names of their parameters; by their places if they have none.

    So it is with builtins that do not tell, and when the call is going to fail.
    """
    while isinstance(function, functools.partial):
        args = (*function.args, *args)
        keywords = {**function.keywords, **keywords}
        function = function.func
    try:
        bound = _signature(function).bind(*args, **keywords)
    except (TypeError, ValueError):
        return {**{str(place): value for place, value in enumerate(args)}, **keywords}
    return {name: value for name, value in bound.arguments.items() if name != "self"}


def _signature(function: Any) -> inspect.Signature:
    plain = behind(function)
    if not isinstance(plain, types.FunctionType):
        return inspect.signature(function)
    known = _FREE if plain is function else _BOUND
    if plain not in known:
        known[plain] = inspect.signature(function)
    return known[plain]


@attrs.frozen
class _Keeper:
    """Writes arguments, each by itself: one without a JSON form does not hide the others.

    Nor does one in a list or dict, as far as `_WALKED_LEVELS` goes.
    """

    served: ServedSession

    def kept(self, value: Any, levels: int = _WALKED_LEVELS) -> bytes:
        if isinstance(value, LifespanStandIn):
            return encode_body(place_of(value))
        if isinstance(value, Facts) or self._is_of_lifespan(value):
            return _OPAQUE
        server = self.served.server
        try:
            text = self._walked(value, levels - 1) if levels else server.writer.encode(value)
        except Exception:  # people's types and hooks may raise anything
            return _OPAQUE
        return text if len(text) <= server.limits.effect_bytes_max else _OPAQUE

    def _walked(self, value: Any, levels: int) -> bytes:
        kind = value.__class__
        if (kind is list or kind is tuple) and not _are_plain(value):
            return encode_body([msgspec.Raw(self.kept(it, levels)) for it in value])
        if kind is dict and not _are_plain(value.values()) and _TEXT.issuperset(map(type, value)):
            return encode_body(
                {name: msgspec.Raw(self.kept(it, levels)) for name, it in value.items()}
            )
        return self.served.server.writer.encode(value)

    def _is_of_lifespan(self, value: Any) -> bool:
        """Whether a stand-in takes its place in a replay; a text or number has no identity."""
        lifespan = self.served.lifespan
        if lifespan is None or value.__class__ in _PLAIN:
            return False
        return value is lifespan or any(value is it for it in _attributes(lifespan))


def _are_plain(values: Iterable[object]) -> bool:
    return _PLAIN.issuperset(map(type, values))


def _attributes(owner: object) -> Iterator[Any]:
    slots = (name for kind in type(owner).__mro__ for name in getattr(kind, "__slots__", ()))
    return (getattr(owner, name, None) for name in (*getattr(owner, "__dict__", ()), *slots))
