"""Effects: `@effect`, and calls of functions as effects."""

import functools
import inspect
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, NoReturn, TypeVar, cast
from weakref import WeakKeyDictionary

import attrs
import msgspec

from mcp_trio._journal.records import encode_body
from mcp_trio._server.facts import Facts, ServedSession
from mcp_trio._server.introspection import called_function, name_of, returns_awaitable
from mcp_trio._server.threads import Bridge
from mcp_trio._session.effects import Effect, perform, perform_in_passing, perform_in_thread
from mcp_trio._session.handlers import INSIDE, Handling
from mcp_trio.errors import BlockedInReplay

# --------------------
# What stands for `ctx.lifespan` in a replay, which does not enter the lifespan.


ROOT: Final = "ctx.lifespan"

_PLACE: Final = re.compile(rf"<{re.escape(ROOT)}(\.\w+)*>")

# Whatever Python does with an object beside passing it on, asking for its attributes, and showing
# it by `repr`.
_REJECTED: Final = (
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


class ReplayLifespan:
    """Stands for the lifespan's value, or for an attribute of it; may only be passed to effects.

    `on_use` is called with its place, and what to use instead, when it is used otherwise.
    """

    __slots__ = ("_on_use", "_path")

    _path: str
    _on_use: Callable[[str, str], None]

    def __init__(self, path: str = ROOT, *, on_use: Callable[[str, str], None] = _untold) -> None:
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_on_use", on_use)

    def __getattr__(self, name: str) -> "ReplayLifespan":
        """Another stand-in, for what Python does not ask for by itself."""
        if name.startswith("__"):
            raise AttributeError(name)
        return ReplayLifespan(f"{self._path}.{name}", on_use=self._on_use)

    def __repr__(self) -> str:
        """Where it comes from."""
        return f"<{self._path}, which a replay does not have>"


def reject(stand_in: ReplayLifespan, *_: Any, **__: Any) -> NoReturn:
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


def place_of(stand_in: ReplayLifespan) -> str:
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


for _name in _REJECTED:
    setattr(ReplayLifespan, _name, reject)


# --------------------
# The handler that is at work, for code that was not given its context.


class CurrentContext(msgspec.Struct, eq=False):
    """A handler's request and session; `bridge` leads to the loop from a handler in a thread."""

    handling: Handling
    served: ServedSession
    bridge: Bridge | None = None


CURRENT_CONTEXT: Final[ContextVar[CurrentContext | None]] = ContextVar(
    "mcp_trio_ambient", default=None
)


def at_work() -> CurrentContext | None:
    """The handler in which the caller runs; None outside of handlers, and inside of effects."""
    current_context = CURRENT_CONTEXT.get()
    inside = INSIDE.get()
    if current_context is None or (
        inside is not None and inside.handling is current_context.handling
    ):
        return None
    return current_context


# --------------------
# From a function and what it is called with to an effect.


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
    if isinstance(called := called_function(function), ReplayLifespan):
        reject(called)
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
    plain = called_function(function)
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
        if isinstance(value, ReplayLifespan):
            return encode_body(place_of(value))
        if isinstance(value, Facts) or self._is_of_lifespan(value):
            return _OPAQUE
        server = self.served.server
        try:
            text = self._walked(value, levels - 1) if levels else server.writer.encode(value)
        except Exception:  # people's types and hooks may raise anything
            return _OPAQUE
        return text if len(text) <= server.limits.requests.effect_bytes_max else _OPAQUE

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


F = TypeVar("F", bound=Callable[..., Any])


def effect(function: F, /) -> F:
    """Make a function an effect: a replay does not run it, and gives what it returned.

    So code that handlers call needs no context. In a handler a call is what `Context.effect` makes
    of it, except that a `def` function called in an `async def` handler cannot wait: it runs in
    place. Outside of handlers, and inside of other effects, it is the function as it is; and so it
    is in handlers of notifications, which have no context: there a replay runs it, too.

    Raises:
        TypeError: The function is a generator, which does more than to return one value.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function!r} is a generator: an effect returns one value")
    make = _waiting if returns_awaitable(function) else _blocking
    return cast("F", make(function))


def _waiting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **keywords: Any) -> Any:
        current_context = at_work()
        if current_context is None:
            return await function(*args, **keywords)
        made = effect_of(current_context.served, function, args, keywords)
        return await perform(current_context.handling, made)

    return call


def _blocking(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        current_context = at_work()
        if current_context is None:
            return function(*args, **keywords)
        made = effect_of(current_context.served, function, args, keywords)
        if current_context.bridge is None:
            return perform_in_passing(current_context.handling, made)
        return perform_in_thread(current_context.bridge.call, current_context.handling, made)

    return call
