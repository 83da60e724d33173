"""Results of effects: from a returned value to its record, and back.

A result goes through JSON always, recorded or not, and comes back as what the function's annotation
says, by the machinery that reads tools' arguments. So a handler sees the same in a replay. What
would come back as something else is refused, and not changed in silence.
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
    """The results of one function; each error names it."""

    name: str
    hint: Any
    writer: JsonWriter
    bytes_max: int
    _decode: _Reader

    def converted(self, value: Any) -> tuple[Any, bytes]:
        """See `Codec`."""
        try:
            body = self.writer.encode(value)
        except Exception as error:  # people's types and hooks may raise anything
            self._reject("has no JSON form", error)
        if len(body) > self.bytes_max:
            self._reject(
                f"has {len(body)} bytes as JSON (limits.requests.effect_bytes_max={self.bytes_max})"
            )
        result = self.decoded(body)
        if not self._is_kept(value, body, result):
            self._reject(f"is not the same after a way through JSON: {self._advice()}")
        return result, body

    def decoded(self, body: bytes) -> Any:
        """See `Codec`."""
        try:
            return self._decode(body)
        except Exception as error:  # as above
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
    """How the results of each function are kept, made when it is first an effect.

    What an annotation means is remembered as well: local functions are new ones at each call.
    """

    converter: "Converter | None"
    writer: JsonWriter
    limits: Limits
    _known: WeakKeyDictionary[Any, _Results] = attrs.field(
        factory=WeakKeyDictionary[Any, _Results], init=False
    )
    _known_reader: Callable[[Any], _Reader] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._known_reader = functools.lru_cache(self._new_reader)

    def of(self, function: Any) -> Codec[Any]:
        """The codec of a function's results.

        Raises:
            TypeError: Its annotation cannot be resolved, or not be read.
        """
        function = called_function(function)
        if not isinstance(function, types.FunctionType):
            return self._made(function)
        if function not in self._known:
            self._known[function] = self._made(function)
        return self._known[function]

    def _made(self, function: Any) -> _Results:
        name, hint = _annotated(function)
        try:
            decode = self._reader(hint)
        except Exception as error:
            raise TypeError(f"the result of the effect {name}: {error}") from error
        return _Results(name, hint, self.writer, self.limits.requests.effect_bytes_max, decode)

    def _reader(self, hint: Any) -> _Reader:
        try:
            return self._known_reader(hint)
        except TypeError:  # also that of a hint without a hash
            return self._new_reader(hint)

    def _new_reader(self, hint: Any) -> _Reader:
        readable = TypeReader(self.converter).readable(hint)
        json_schema(readable)  # refuses what msgspec would meet only when it decodes
        return msgspec.json.Decoder(readable, dec_hook=structure).decode


def _is_open(hint: Any) -> bool:
    """Return whether parts of it may be anything: no type says then what JSON has made of these."""
    return hint in _ANYTHING or any(map(_is_open, typing.get_args(hint)))


def _annotated(function: Any) -> tuple[str, Any]:
    """The name of what is called, and what it says that it returns."""
    try:
        plain = plain_function(function)
    except TypeError:  # a class or a builtin, which say nothing
        return repr(function), Any
    return f"{plain.__module__}.{plain.__qualname__}", resolved_return(plain)
