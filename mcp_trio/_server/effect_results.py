"""Results of effects: from the returned value to JSON in the recording, and back.

Every result goes through JSON, recorded or not, and is decoded as the type that the function's
annotation names, like the arguments of tools. So a handler gets an equal value in a replay. A
result that JSON would change is rejected.
"""

import functools
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn
from weakref import WeakKeyDictionary

import attrs
import msgspec

from mcp_trio._server.introspection import called_function, plain_function, resolved_return
from mcp_trio._server.results import JsonWriter
from mcp_trio._server.type_adapters import TypeReader, json_schema, structure
from mcp_trio._session.effects import Codec
from mcp_trio.limits import Limits

if TYPE_CHECKING:
    from cattrs import Converter


_Reader = Callable[[bytes], Any]

_ANYTHING: Final = (Any, object, list, dict, tuple)

_decode_plain = msgspec.json.Decoder().decode


@attrs.frozen(eq=False)
class _Results:
    """The `Codec` for the results of one function."""

    name: str
    hint: Any
    writer: JsonWriter
    bytes_max: int
    _decode: _Reader

    def converted(self, value: Any) -> tuple[Any, bytes]:
        """Return the value as a replay will get it, and its JSON.

        Raises:
            TypeError: The value has no JSON form, is too large, or is changed by JSON.
        """
        try:
            body = self.writer.encode(value)
        except Exception as error:  # Users' types and hooks may raise any exception.
            self._reject("has no JSON form", error)
        if len(body) > self.bytes_max:
            self._reject(
                f"has {len(body)} bytes as JSON (limits.requests.effect_bytes_max={self.bytes_max})"
            )
        result = self.decoded(body)
        if not self._is_kept(value, body, result):
            self._reject(f"is not the same after going through JSON: {self._advice()}")
        return result, body

    def decoded(self, body: bytes) -> Any:
        """Return the value that the JSON encodes.

        Raises:
            TypeError: The JSON does not fit the annotation.
        """
        try:
            return self._decode(body)
        except Exception as error:  # The same.
            self._reject(f"is not what it is annotated with, {self.hint}", error)

    def _is_kept(self, value: Any, body: bytes, result: Any) -> bool:
        if _is_open(self.hint):
            return bool(result == value)
        again = self.writer.encode(result)
        return again == body or _decode_plain(again) == _decode_plain(body)

    def _advice(self) -> str:
        if self.hint is Any:
            return "annotate what the function returns"
        return f"as {self.hint} it would lose something"

    def _reject(self, why: str, cause: Exception | None = None) -> NoReturn:
        reason = "" if cause is None else f": {cause}"
        raise TypeError(f"the result of the effect {self.name} {why}{reason}") from cause


@attrs.define(eq=False)
class EffectResults:
    """The codecs for results by function; each is created when the function is first called.

    Decoders are cached by annotation as well, because a local function is a new object in each call
    of the function around it.
    """

    converter: "Converter | None"
    writer: JsonWriter
    limits: Limits
    _codecs: WeakKeyDictionary[Any, _Results] = attrs.field(
        factory=WeakKeyDictionary[Any, _Results], init=False
    )
    _cached_reader: Callable[[Any], _Reader] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._cached_reader = functools.lru_cache(self._new_reader)

    def of(self, function: Any) -> Codec[Any]:
        """Return the codec for results of a function.

        Raises:
            TypeError: Its annotation cannot be resolved, or cannot be decoded from JSON.
        """
        function = called_function(function)
        if not isinstance(function, types.FunctionType):
            return self._new_codec(function)
        if function not in self._codecs:
            self._codecs[function] = self._new_codec(function)
        return self._codecs[function]

    def _new_codec(self, function: Any) -> _Results:
        name, hint = _annotated(function)
        try:
            decode = self._reader(hint)
        except Exception as error:
            raise TypeError(f"the result of the effect {name}: {error}") from error
        return _Results(name, hint, self.writer, self.limits.requests.effect_bytes_max, decode)

    def _reader(self, hint: Any) -> _Reader:
        try:
            return self._cached_reader(hint)
        except TypeError:  # The annotation may not be hashable.
            return self._new_reader(hint)

    def _new_reader(self, hint: Any) -> _Reader:
        readable = TypeReader(self.converter).readable(hint)
        json_schema(readable)  # Rejects types that msgspec would reject only when it decodes.
        return msgspec.json.Decoder(readable, dec_hook=structure).decode


def _is_open(hint: Any) -> bool:
    """Return whether a part may be of any type, so that decoding cannot restore its type."""
    return hint in _ANYTHING or any(map(_is_open, typing.get_args(hint)))


def _annotated(function: Any) -> tuple[str, Any]:
    """Return the name of a function and the annotation of its result."""
    try:
        plain = plain_function(function)
    except TypeError:  # A class or a builtin has no such annotation.
        return repr(function), Any
    return f"{plain.__module__}.{plain.__qualname__}", resolved_return(plain)
