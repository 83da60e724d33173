"""Effects: the decorator `@effect`, calls of functions as effects, and their results as JSON.

A replay does not enter the server's lifespan. `ReplayLifespan` stands for the value of the lifespan
there, and for its attributes.
"""

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    NoReturn,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)
from weakref import WeakKeyDictionary

import attrs
import msgspec

from mcp_trio._journal.records import encode_body
from mcp_trio._server.introspection import (
    SCALARS,
    called_function,
    name_of,
    plain_function,
    resolved_return,
    returns_awaitable,
)
from mcp_trio._server.results import JsonWriter
from mcp_trio._server.threads import ThreadBridge
from mcp_trio._server.type_adapters import TypeAdapter, json_schema, structure
from mcp_trio._session.call_sites import signature_of
from mcp_trio._session.effects import (
    Effect,
    perform,
    perform_in_thread,
    perform_without_waiting,
)
from mcp_trio._session.handlers import RUNNING_EFFECT, EffectCaller
from mcp_trio.errors import BlockedInReplay
from mcp_trio.limits import Limits

if TYPE_CHECKING:
    from cattrs import Converter

    from mcp_trio._server.handlers import ServedSession

# The stand-in for the lifespan ------------------------------------------------------------------

LIFESPAN: Final = "ctx.lifespan"

_ENCODED_STAND_IN: Final = rf'<{re.escape(LIFESPAN)}(\.\w+|\["[^"]*"\])*>'

# The special methods that raise. A stand-in can only be passed on, have its attributes and items
# read, and be shown by `repr`.
_REJECTED: Final = (
    *("__await__", "__aenter__", "__aexit__", "__enter__", "__exit__", "__call__"),
    *("__iter__", "__next__", "__aiter__", "__anext__", "__reversed__", "__len__"),
    *("__contains__", "__setitem__", "__delitem__", "__setattr__", "__delattr__"),
    *("__bool__", "__int__", "__float__", "__index__", "__bytes__", "__str__", "__format__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__fspath__"),
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__"),
    *("__floordiv__", "__mod__", "__and__", "__or__", "__xor__", "__neg__", "__invert__"),
    *("__reduce_ex__", "__copy__", "__deepcopy__"),
)


class ReplayLifespan:
    """A stand-in for the lifespan's value or a part of it, which may be passed to effects.

    Any other use calls `on_use` with the path of the stand-in, such as `ctx.lifespan.db`, and the
    advice what to write instead, and then raises `BlockedInReplay`.
    """

    __slots__ = ("_on_use", "_path")

    _path: str
    _on_use: Callable[[str, str], None]

    def __init__(
        self,
        path: str = LIFESPAN,
        *,
        on_use: Callable[[str, str], None] = lambda _path, _advice: None,
    ) -> None:
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_on_use", on_use)

    def __getattr__(self, name: str) -> "ReplayLifespan":
        """Return a stand-in for an attribute, except for Python's special attributes."""
        if name.startswith("__"):
            raise AttributeError(name)
        return ReplayLifespan(f"{self._path}.{name}", on_use=self._on_use)

    def __getitem__(self, key: object) -> "ReplayLifespan":
        """Return a stand-in for an item of a dict; other keys are rejected."""
        if not isinstance(key, str) or '"' in key:
            reject_use(self)
        return ReplayLifespan(f'{self._path}["{key}"]', on_use=self._on_use)

    def __repr__(self) -> str:
        """Return a text with the path."""
        return f"<{self._path}, which a replay does not have>"


def reject_use(stand_in: ReplayLifespan, *_: Any, **__: Any) -> NoReturn:
    """Reject a use of a stand-in with `BlockedInReplay`."""
    path: str = object.__getattribute__(stand_in, "_path")
    effect = "use" if path == LIFESPAN else re.findall(r"\w+", path)[-1]
    advice = (
        f"`@effect async def {effect}(lifespan, ...)` that uses it, and pass it ctx.lifespan; or"
        " replay(lifespan=...) with a lifespan that may be entered"
    )
    object.__getattribute__(stand_in, "_on_use")(path, advice)
    raise BlockedInReplay(
        f"{path} was used outside of an effect, but a replay does not enter the lifespan: write"
        f" {advice}"
    )


for _name in _REJECTED:
    setattr(ReplayLifespan, _name, reject_use)


def with_recorded_lifespan(body: bytes, recorded: bytes | None) -> bytes:
    """Return the JSON of a replay, with the recorded value wherever it has a stand-in.

    A replay cannot compare such a value: it only knows that the value comes from the lifespan.
    """
    if recorded is None or f"<{LIFESPAN}".encode() not in body:
        return body
    return msgspec.json.encode(
        _with_recorded(msgspec.json.decode(body), msgspec.json.decode(recorded))
    )


def _with_recorded(value: Any, recorded: Any) -> Any:
    kind = value.__class__
    if kind is str and re.fullmatch(_ENCODED_STAND_IN, value):
        return recorded
    if kind is not recorded.__class__:
        return value
    if kind is list:
        pairs = zip(value, recorded, strict=False)
        return [*(_with_recorded(*pair) for pair in pairs), *value[len(recorded) :]]
    if kind is dict:
        return {name: _with_recorded(it, recorded.get(name)) for name, it in value.items()}
    return value


# The running handler ----------------------------------------------------------------------------


class CurrentContext(msgspec.Struct, eq=False):
    """The running handler or lifespan, for code that has no `Context`.

    Attributes:
        caller: The handler or the lifespan run.
        served: The `ServedSession` of its server.
        bridge: Calls functions in the event loop for a handler in a thread; None for any other.
    """

    caller: EffectCaller
    served: "ServedSession"
    bridge: ThreadBridge | None = None


CURRENT_CONTEXT: Final[ContextVar[CurrentContext | None]] = ContextVar(
    "mcp_trio_current_context", default=None
)


def active_context() -> CurrentContext | None:
    """Return the context of the running handler or lifespan; None elsewhere, and in effects."""
    current_context = CURRENT_CONTEXT.get()
    inside = RUNNING_EFFECT.get()
    if current_context is None or (inside is not None and inside.caller is current_context.caller):
        return None
    return current_context


# Calls as effects -------------------------------------------------------------------------------


class Opaque:
    """A base class of values that are never recorded: as arguments they are `OPAQUE`."""

    __slots__ = ()


# The recorded form of an argument that has no JSON form.
OPAQUE: Final = "<opaque>"
_OPAQUE: Final = encode_body(OPAQUE)

# The depth up to which arguments are searched for opaque values and values of the lifespan.
_SEARCHED_LEVELS: Final = 3


def effect_of(
    served: "ServedSession",
    function: Callable[..., Any],
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    *,
    run: Callable[[], Any] | None = None,
    known: "KnownFunction | None" = None,
    is_repeatable: bool = False,
) -> Effect[Any]:
    """Return the effect of a call of `function`; `run`, if given, makes the call.

    `known` has the facts about the function that each call needs, if the caller keeps them.

    Raises:
        TypeError: The return annotation cannot be resolved, or has no JSON form.
        BlockedInReplay: The function is a method of the lifespan's value, in a replay.
    """
    if known is None:
        known = KnownFunction(name_of(function), called_function(function))
        if isinstance(known.called, ReplayLifespan):
            reject_use(known.called)
    codec = served.shared.effect_codecs.of(known.called)
    return Effect(
        name=known.name,
        arguments=functools.partial(
            _encoded_arguments, served, known, function, args, keywords, codec.bytes_max
        ),
        run=run or functools.partial(function, *args, **keywords),
        codec=codec,
        is_counted=True,
        is_repeatable=is_repeatable,
    )


def _encoded_arguments(
    served: "ServedSession",
    known: "KnownFunction",
    function: Callable[..., Any],
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    bytes_max: int,
) -> bytes:
    parameters = known.parameters
    if parameters is None and isinstance(function, types.FunctionType):
        with suppress(TypeError, ValueError):  # `_arguments_by_name` knows what to do.
            parameters = known.parameters = _parameters_of(function)
    if parameters is not None and not keywords:
        body = parameters.encoded(args)
        if body is not None and len(body) <= bytes_max:
            return body
    named = _arguments_by_name(function, args, keywords)
    if _are_plain(named.values()):
        with suppress(Exception):  # `_encoded` replaces the argument that has no JSON form
            body = encode_body(named)
            if len(body) <= bytes_max:
                return body
    return encode_body({name: msgspec.Raw(_encoded(it, served)) for name, it in named.items()})


@attrs.define(eq=False, repr=False)
class _Parameters:
    """The signature of a function.

    Attributes:
        names: The names of all parameters; None if a call cannot give each of them by position.
        counts: The possible numbers of arguments of a call that gives them by position.
    """

    signature: inspect.Signature
    names: Sequence[str] | None = attrs.field(init=False)
    counts: range = attrs.field(init=False)
    _struct: Callable[..., msgspec.Struct] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        parameters = self.signature.parameters.values()
        required = sum(each.default is each.empty for each in parameters)
        are_positional = all(each.kind in _POSITIONAL for each in parameters)
        names = [*self.signature.parameters]
        self.names = names if are_positional and "self" not in names else None
        self.counts = range(0) if self.names is None else range(required, len(names) + 1)

    def encoded(self, args: Sequence[Any]) -> bytes | None:
        """Return plain positional arguments as a JSON object; None if these are not such."""
        if len(args) not in self.counts:
            return None
        for value in args:
            if type(value) not in SCALARS:
                return None
        try:
            if self._struct is None:
                self._struct = _struct_of(tuple(self.names or ()))
            return encode_body(self._struct(*args))
        except Exception:  # An argument has no JSON form, such as a number with too many digits.
            return None


@functools.lru_cache
def _struct_of(names: tuple[str, ...]) -> Callable[..., msgspec.Struct]:
    """Return a struct with these members, which can be made in a tenth of the time of a dict."""
    return msgspec.defstruct("Arguments", [(name, Any, msgspec.UNSET) for name in names])


class KnownFunction(msgspec.Struct, eq=False):
    """The facts about a function that each of its calls as an effect needs.

    Attributes:
        name: Its name in records.
        called: The function itself, as `called_function` returns it.
        parameters: Its parameters; None before they are needed, and for other callables than plain
            functions.
    """

    name: str
    called: Any
    parameters: _Parameters | None = None


_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

# By function: the parameters of plain functions, and those of methods, which lack the first one.
_PARAMETERS_OF_FUNCTIONS: Final = WeakKeyDictionary[types.FunctionType, _Parameters]()
_PARAMETERS_OF_METHODS: Final = WeakKeyDictionary[types.FunctionType, _Parameters]()


def _parameters_of(function: Any) -> _Parameters:
    """Return the parameters of a function; those of plain functions and methods are kept.

    Raises:
        TypeError, ValueError: They are unknown, as of some builtins.
    """
    plain, cache = function, _PARAMETERS_OF_FUNCTIONS
    if not isinstance(function, types.FunctionType):
        plain, cache = called_function(function), _PARAMETERS_OF_METHODS
    if not isinstance(plain, types.FunctionType):
        return _Parameters(signature_of(function))
    parameters = cache.get(plain)
    if parameters is None:
        parameters = cache[plain] = _Parameters(signature_of(function))
    return parameters


def _arguments_by_name(
    function: Any, args: Sequence[Any], keywords: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the arguments by the names of their parameters.

    Positional arguments have their position as name if the signature is unknown, as of some
    builtins, or if the call does not match it and is going to fail.
    """
    while isinstance(function, functools.partial):
        args = (*function.args, *args)
        keywords = {**function.keywords, **keywords}
        function = function.func
    try:
        parameters = _parameters_of(function)
        names = parameters.names
        if names is not None and not keywords and len(args) in parameters.counts:
            return dict(zip(names, args, strict=False))  # `bind` would take ten times as long
        bound = parameters.signature.bind(*args, **keywords)
    except (TypeError, ValueError):
        return {**{str(position): value for position, value in enumerate(args)}, **keywords}
    return {name: value for name, value in bound.arguments.items() if name != "self"}


def _encoded(value: Any, served: "ServedSession", levels: int = _SEARCHED_LEVELS) -> bytes:
    """Return the JSON of an argument, in which only the values without a JSON form are replaced.

    The items of lists and dicts are encoded one by one for that, down to `_SEARCHED_LEVELS`.
    """
    if isinstance(value, ReplayLifespan):
        return encode_body(f"<{object.__getattribute__(value, '_path')}>")
    shared, lifespan, kind = served.shared, served.lifespan, value.__class__
    is_of_lifespan = (
        lifespan is not None
        and kind not in SCALARS  # These have no identity.
        and (value is lifespan or any(value is it for it in _members(lifespan)))
    )
    if isinstance(value, Opaque) or is_of_lifespan:
        return _OPAQUE
    try:
        if levels and (kind is list or kind is tuple) and not _are_plain(value):
            items = [msgspec.Raw(_encoded(it, served, levels - 1)) for it in value]
            body = encode_body(items)
        elif (
            levels
            and kind is dict
            and not _are_plain(value.values())
            and all(type(name) is str for name in value)
        ):
            members = {
                name: msgspec.Raw(_encoded(it, served, levels - 1)) for name, it in value.items()
            }
            body = encode_body(members)
        else:
            body = shared.writer.encode(value)
    except Exception:  # Users' types and hooks may raise anything.
        return _OPAQUE
    return body if len(body) <= shared.limits.requests.effect_bytes_max else _OPAQUE


def _are_plain(values: Iterable[object]) -> bool:
    for value in values:  # noqa: SIM110 - a loop takes half of the time of `all` or `issuperset`
        if type(value) not in SCALARS:
            return False
    return True


def _members(owner: object) -> Iterable[Any]:
    """Return the items of a dict, or the attributes of another object."""
    if isinstance(owner, dict):
        return cast("dict[str, Any]", owner).values()
    slots = (name for kind in type(owner).__mro__ for name in getattr(kind, "__slots__", ()))
    return (getattr(owner, name, None) for name in (*getattr(owner, "__dict__", ()), *slots))


F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


@overload
def effect(function: F, /, *, repeatable: bool = ...) -> F: ...


@overload
def effect(*, repeatable: bool = ...) -> Callable[[F], F]: ...


def effect(function: F | None = None, /, *, repeatable: bool = False) -> F | Callable[[F], F]:
    """Make a function an effect: a replay does not run it, but returns the recorded result.

    Code that handlers call thus needs no context. In a handler, a call has the effect of
    `Context.effect`, except that a `def` function called in an `async def` handler cannot wait and
    runs in place. The same holds in the lifespan and the tasks that it starts, if a recording holds
    all sessions of the lifespan. Elsewhere, and inside of other effects, the function runs as
    usual. So it does in handlers of notifications, which have no context: a replay runs it there.

    Args:
        function: The function.
        repeatable: Whether it does no harm if the function runs twice with the same arguments. When
            an instance of a server dies while a resumable handler runs an effect, another instance
            runs it again, or else raises `OutcomeUnknown` in the handler.

    Raises:
        TypeError: This is no function, or a generator; an effect returns one value.
    """
    if function is None:
        return cast("Callable[[F], F]", functools.partial(effect, repeatable=repeatable))
    if not callable(function):
        raise TypeError(f"@effect takes a function, not {function!r}; write it below @classmethod")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function!r} is a generator, but an effect has to return one value")

    known = KnownFunction(name_of(function), called_function(function))
    make = functools.partial(effect_of, known=known, is_repeatable=repeatable)

    @functools.wraps(function)
    async def call_async(*args: Any, **keywords: Any) -> Any:
        current = active_context()
        if current is None:
            return await function(*args, **keywords)
        return await perform(current.caller, make(current.served, function, args, keywords))

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        current = active_context()
        if current is None:
            return function(*args, **keywords)
        made = make(current.served, function, args, keywords)
        if current.bridge is None:
            return perform_without_waiting(current.caller, made)
        return perform_in_thread(current.bridge.call, current.caller, made)

    return cast("F", call_async if returns_awaitable(function) else call)


# Results of effects -----------------------------------------------------------------------------
#
# Every result goes through JSON, recorded or not, and is decoded as the type that the function's
# annotation names, like the arguments of tools. So a handler gets an equal value in a replay. A
# result that JSON would change is rejected.


class JsonCodec(msgspec.Struct, Generic[T], frozen=True):
    """The codec for effects whose results are plain JSON, or structs of msgspec, of type `kind`."""

    kind: Any

    def converted(self, value: T) -> tuple[T, bytes]:
        return value, encode_body(value)

    def decoded(self, body: bytes) -> T:
        value: T = msgspec.json.decode(body, type=self.kind)
        return value


NO_RESULT: Final = JsonCodec[None](None)


def no_arguments() -> bytes:
    """Return no arguments, for an effect whose arguments follow from earlier records."""
    return b"{}"


async def perform_plain(caller: EffectCaller, name: str, kind: Any, run: Callable[[], Any]) -> Any:
    """Perform an effect without arguments; `kind` is the type of its result, as for `JsonCodec`."""
    codec = JsonCodec[Any](kind)
    return await perform(caller, Effect(name=name, arguments=no_arguments, run=run, codec=codec))


_Decode: TypeAlias = Callable[[bytes], Any]

_UNTYPED: Final = (Any, object, list, dict, tuple)

# A value of one of these types does not change when it is encoded as JSON and decoded again. So it
# is returned as it is, if its type is that of the annotation. `float` is left out, because JSON has
# no NaN.
_UNCHANGED: Final[tuple[Any, ...]] = (str, int, bool, types.NoneType)

_decode_plain = msgspec.json.Decoder().decode


@attrs.frozen(eq=False, repr=False)
class _ResultCodec:
    """The `Codec` for the results of one function."""

    name: str
    hint: Any
    writer: JsonWriter
    bytes_max: int
    _decode: _Decode
    # These follow from the annotation, and every call of an effect needs them.
    _is_partly_untyped: bool
    _unchanged_class: type | None

    def converted(self, value: Any) -> tuple[Any, bytes]:
        """Return the value as a replay will get it, and its JSON."""
        try:
            body = self.writer.encode(value)
        except Exception as error:  # Users' types and hooks may raise any exception.
            self._reject("has no JSON form", error)
        if len(body) > self.bytes_max:
            self._reject(
                f"has {len(body)} bytes as JSON (limits.requests.effect_bytes_max={self.bytes_max})"
            )
        if value.__class__ is self._unchanged_class:
            return value, body
        result = self.decoded(body)
        if self._is_partly_untyped:
            is_same = bool(result == value)
        else:
            again = self.writer.encode(result)
            is_same = again == body or _decode_plain(again) == _decode_plain(body)
        if not is_same:
            advice = f"as {self.hint} it would lose something"
            if self.hint is Any:
                advice = "annotate what the function returns"
            self._reject(f"is not the same after going through JSON: {advice}")
        return result, body

    def decoded(self, body: bytes) -> Any:
        try:
            return self._decode(body)
        except Exception as error:  # Users' types and hooks may raise any exception.
            self._reject(f"does not have the annotated type, {self.hint}", error)

    def _reject(self, why: str, cause: Exception | None = None) -> NoReturn:
        reason = "" if cause is None else f": {cause}"
        raise TypeError(f"the result of the effect {self.name} {why}{reason}") from cause


@attrs.define(eq=False, repr=False)
class EffectCodecs:
    """The codecs for results of effects, by function; the first call of a function makes its codec.

    Decoders are cached by annotation as well, because a local function is a new object in each call
    of the function around it.
    """

    converter: "Converter | None"
    writer: JsonWriter
    limits: Limits
    _codecs: WeakKeyDictionary[Any, _ResultCodec] = attrs.field(
        factory=WeakKeyDictionary[Any, _ResultCodec], init=False
    )
    _cached_decoder: Callable[[Any], _Decode] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._cached_decoder = functools.lru_cache(self._new_decoder)

    def of(self, function: Any) -> _ResultCodec:
        """Return the codec for results of a function, as `called_function` returns it."""
        if not isinstance(function, types.FunctionType):
            return self._new_codec(function)
        codec = self._codecs.get(function)
        if codec is None:
            codec = self._codecs[function] = self._new_codec(function)
        return codec

    def _new_codec(self, function: Any) -> _ResultCodec:
        try:
            plain = plain_function(function)
        except TypeError:  # A class or a builtin has no such annotation.
            name, hint = repr(function), Any
        else:
            name, hint = f"{plain.__module__}.{plain.__qualname__}", resolved_return(plain)
        try:
            try:
                decode = self._cached_decoder(hint)
            except TypeError:  # The annotation may not be hashable.
                decode = self._new_decoder(hint)
        except Exception as error:
            raise TypeError(f"the result of the effect {name}: {error}") from error
        unchanged_class: Any = hint if self.converter is None and hint in _UNCHANGED else None
        return _ResultCodec(
            name,
            hint,
            self.writer,
            self.limits.requests.effect_bytes_max,
            decode,
            _is_partly_untyped(hint),
            unchanged_class,
        )

    def _new_decoder(self, hint: Any) -> _Decode:
        decodable = TypeAdapter(self.converter).decodable(hint)
        json_schema(decodable)  # Rejects types that msgspec would reject only when it decodes.
        return msgspec.json.Decoder(decodable, dec_hook=structure).decode


def _is_partly_untyped(hint: Any) -> bool:
    """Return whether a part of a type is untyped, so that decoding cannot restore its values."""
    return hint in _UNTYPED or any(map(_is_partly_untyped, typing.get_args(hint)))
