"""People's own types, read by the converter of cattrs that they gave to their server.

cattrs is imported here only when a converter has refused something, so that it is there already.
"""

import functools
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import attrs
import msgspec.inspect

from mcp_trio._protocol.mistakes import step
from mcp_trio._server.callables import plain_function, resolved_hint
from mcp_trio._server.faults import Faults
from mcp_trio._server.fields import class_of, has_fields
from mcp_trio._server.stand_ins import ByOne, convert, name_of

if TYPE_CHECKING:
    from cattrs import Converter
    from cattrs.errors import ForbiddenExtraKeysError


def no_json_form(kind: Any) -> TypeError:
    """The error about a type that nobody here can read or write."""
    return TypeError(
        f"the type {kind!r} has no JSON form: a cattrs Converter with hooks for it, "
        "Server(converter=...), would give it one"
    )


def has_hook(converter: "Converter", hint: Any) -> bool:
    """Whether a hint is a class that msgspec does not know, and that the converter can make."""
    if not _is_unknown(hint):
        return False
    from cattrs.errors import StructureHandlerNotFoundError

    try:
        converter.get_structure_hook(hint)
    except StructureHandlerNotFoundError:
        return False
    return True


def _is_unknown(hint: Any) -> bool:
    kind = class_of(hint)
    if kind in (object, Annotated) or not inspect.isclass(kind) or has_fields(hint):
        return False
    try:
        return isinstance(msgspec.inspect.type_info(hint), msgspec.inspect.CustomType)
    except TypeError:  # a class that msgspec knows and refuses, such as an enum of mixed values
        return False


def input_of(converter: "Converter", hint: Any) -> Any:
    """What the hook for a type says that it takes: its first annotation, `Any` if it has none."""
    hook: Any = converter.get_structure_hook(hint)
    try:
        function = plain_function(hook)
        first = next(iter(inspect.signature(hook).parameters.values()))
        return resolved_hint(function, first)
    except TypeError:
        return Any


@attrs.frozen(eq=False)
class ConverterReading(ByOne):
    """Reads what only the converter knows, out of what its hook takes."""

    hint: Any
    converter: "Converter"
    taken: Any

    @property
    def inner(self) -> Sequence[Any]:
        return (self.taken,)

    def read(self, value: Any, *, strict: bool) -> Any:
        """The value that the hook makes.

        Raises:
            Faults: with everything that is wrong. An error that bad input does not explain is the
                hook's own, and comes as it is.
        """
        taken = convert(value, self.taken, strict=strict)
        try:
            return self.converter.structure(taken, self.hint)
        except Exception as error:
            if not _is_refusal(error):
                raise
            raise Faults([*_faults(error, value, self.hint, "")]) from error


# Its errors -------------------------------------------------------------------------------------

# What code that takes a value apart raises, when that is not of the form it expects.
_REFUSALS: Final = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
# Texts that Python itself gives to a `ValueError`, and that mean nothing to the caller.
_JARGON: Final = re.compile(
    "invalid literal for |could not convert |(?:not enough|too many) values to unpack"
)


@functools.cache
def _extra_keys_error() -> "type[ForbiddenExtraKeysError]":
    from cattrs import errors

    return errors.ForbiddenExtraKeysError


def _is_refusal(error: Exception) -> bool:
    if isinstance(error, ExceptionGroup):
        inner = cast("ExceptionGroup[Exception]", error).exceptions
        return all(map(_is_refusal, inner))
    return isinstance(error, (*_REFUSALS, _extra_keys_error()))


def _faults(error: Any, value: Any, hint: Any, path: str) -> Iterator[tuple[str, str]]:
    """One fault for each error in a group, else one; `value` is what was read as `hint`."""
    if isinstance(error, _extra_keys_error()):
        for key in sorted(error.extra_fields):
            yield path + step(key), "unknown field"
    elif _is_about_missing(error, value):
        yield path + step(error.args[0]), "missing"
    elif hasattr(error, "group_exceptions"):
        yield from _faults_of_group(error, value, hint, path)
    else:
        yield path, _text(error, hint)


def _faults_of_group(group: Any, value: Any, hint: Any, path: str) -> Iterator[tuple[str, str]]:
    noted, others = group.group_exceptions()
    for error, note in noted:
        if _is_about_missing(error, value):
            yield from _faults(error, value, hint, path)
        else:
            key = getattr(note, "name", None) or note.index
            yield from _faults(error, _member(value, key), note.type, path + step(key))
    for error in others:
        yield from _faults(error, value, hint, path)


def _is_about_missing(error: Exception, value: Any) -> bool:
    match error:
        case KeyError(args=(str(key),)):
            return isinstance(value, Mapping) and key not in value
        case _:
            return False


def _member(value: Any, key: str | int) -> Any:
    """What stands there; None if the hooks have read something else than what was sent."""
    try:
        return value[key]
    except (LookupError, TypeError):
        return None


def _text(error: Exception, hint: Any) -> str:
    said = str(error) if isinstance(error, ValueError) else ""
    return f"Expected `{name_of(hint)}`" if _JARGON.match(said) or not said else said
