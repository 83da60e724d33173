"""The exceptions of effects: their records, and the exceptions that a replay raises from them.

An exception is rebuilt without a call of its class's Python code: the built-in base class makes it
from the recorded arguments, and it gets the recorded attributes, notes, cause and context. If the
module of its class is not imported yet, it is imported. If the class is not found, or the rebuilt
exception has another text, a `ReplayedError` replaces it. An exception group remains a group in any
case, because handlers split it.

Arguments and attributes have a JSON form (`json_forms.py`), also enumerations and exceptions.

The record of an exception that cannot be rebuilt names what prevents it and what to do (`lost`).
The first such exception of each class is logged as well.
"""

import contextlib
import contextvars
import enum
import functools
import importlib
import logging
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import Any, Final, NoReturn, TypeVar, cast

import msgspec

from mcp_trio._journal.records import ErrorBody, encode_body
from mcp_trio._session.exceptions import group_members
from mcp_trio._session.json_forms import (
    FormReader,
    NoJsonForm,
    class_in,
    encodable,
    found_class,
    json_form,
    type_name,
    value_of,
)
from mcp_trio.errors import ReplayedError

logger = logging.getLogger("mcp_trio")

_CUT_TEXT_CHARS: Final = 300
_CACHED_CLASSES_MAX: Final = 256
_LINKS_MAX: Final = 8

# Attributes of built-in exceptions that only help to word a message.
_WITHOUT_MEANING: Final = frozenset({(AttributeError, "obj"), (BaseExceptionGroup, "exceptions")})

# The classes whose exceptions an effect may end with. `Cancelled` and `GeneratorExit` are no
# outcome: a replay brings them about in its own way.
_RECORDABLE: Final = (Exception, SystemExit, KeyboardInterrupt)

# An exception is logged once for each class and reason, up to this number in a process.
_LOGGED_MAX: Final = 256
_logged: Final[set[str]] = set()

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _cached(function: _Function) -> _Function:
    """Keep the results for the classes that were used last.

    Type checkers keep the type of the function, whose arguments `lru_cache` declares as `Hashable`.
    """
    return cast("_Function", functools.lru_cache(_CACHED_CLASSES_MAX)(function))


# The texts of `ErrorBody.lost`, which complete "A replay ...".
_REPLACED: Final = "raises ReplayedError in its place, because "
_LOCAL_CLASS: Final = (
    "its class is defined inside a function: define the class at the top level of a module"
)
_NO_FORM_OF_ARGUMENT: Final = (
    "its arguments hold a value of type {}, which has no JSON form: raise it with texts, numbers,"
    " bytes, lists and dicts"
)
_OTHER_TEXT: Final = (
    "its text would be another one: let `__str__` of its class depend on the arguments and"
    " attributes only"
)
_CHANGED_TEXT: Final = (
    "its text is another one here: the class was changed since, or the record was redacted"
)
_NOT_MADE: Final = (
    "its class cannot be made from the recorded arguments: let the effect catch the exception, and"
    " raise one of your own classes"
)
_TOO_LARGE: Final = (
    "it has {} bytes, more than limits.requests.effect_bytes_max={}: raise it with shorter"
    " arguments, or raise the limit"
)
_NOT_IMPORTED: Final = (
    "the module {} cannot be imported here ({}): install it, or add its folder to sys.path"
)
_NOT_FOUND: Final = (
    "its module has no exception of this name: keep the class under its own name at the top level"
    " of the module"
)
_NO_FORM_OF_ATTRIBUTES: Final = (
    "raises it without {}, which has no JSON form: let the effect catch the exception, and return"
    " or raise what the handler needs of it"
)


def is_recordable(error: BaseException) -> bool:
    """Return whether an exception is an outcome of an effect, and not the end of its task."""
    members = group_members(error)
    return all(map(is_recordable, members)) if members else isinstance(error, _RECORDABLE)


def encoded_error(error: BaseException, *, bytes_max: int) -> bytes:
    """Return the body of an `err` record, and log what a replay cannot rebuild.

    If the body is too large, its cause and context are left out; if it still is, it has only the
    class and a shorter text.
    """
    error_body = _error_body(error)
    encoded = encode_body(error_body)
    if len(encoded) > bytes_max:
        error_body = msgspec.structs.replace(error_body, cause=None, context=None)
        encoded = encode_body(error_body)
    if len(encoded) > bytes_max:
        error_body = ErrorBody(
            type=error_body.type,
            text=error_body.text[:_CUT_TEXT_CHARS],
            lost=_REPLACED + _TOO_LARGE.format(len(encoded), bytes_max),
        )
        encoded = encode_body(error_body)
    for part in _parts(error_body):
        if part.lost:
            _log_once(error, part)
    return encoded


def rebuilt_error(body: bytes) -> BaseException:
    """Return the exception that the body of an `err` record describes."""
    return _rebuilt(msgspec.json.decode(body, type=ErrorBody))


def raise_rebuilt(body: bytes) -> NoReturn:
    """Raise the exception that the body of an `err` record describes, with its recorded context.

    Raises:
        BaseException: Always.
    """
    error = rebuilt_error(body)
    context = _with_handled(error.__context__, sys.exception())
    try:
        raise error
    finally:
        # `raise` has set the context to the exception that the handler handles.
        if context is not None:
            _set(error, "__context__", context)
        del error, context


def losses(body: bytes) -> list[str]:
    """Return a sentence for each class of exceptions in an `err` record that cannot be rebuilt."""
    found: dict[str, str] = {}
    for part in _parts(msgspec.json.decode(body, type=ErrorBody)):
        rebuilt = _rebuilt(part)
        reason = part.lost and f"a replay {part.lost}"
        if isinstance(rebuilt, ReplayedError) and rebuilt.type_name == part.type:
            reason = rebuilt.reason
        if reason:
            found[part.type] = reason
    return [f"{name}: {reason}" for name, reason in found.items()]


# Recording ----------------------------------------------------------------------------------------


def _error_body(error: BaseException, seen: frozenset[int] = frozenset()) -> ErrorBody:
    """Return the body of an exception; `seen` are the exceptions that refer to it."""
    kind, members = type(error), group_members(error)
    inner = seen | {id(error)}
    args: list[Any] | None = None
    attributes: dict[str, Any] = {}
    left_out: list[str] = []
    try:
        given = error.args[:1] if members else error.args  # the members have bodies of their own
        if isinstance(error, OSError):  # its `args` lack the names of the files
            reduced: Any = OSError.__reduce__(error)
            given = reduced[1]
        args = [json_form(arg, partial(_form_of_other_value, inner)) for arg in given]
    except NoJsonForm as problem:
        lost = _REPLACED + _NO_FORM_OF_ARGUMENT.format(problem.args[0])
    else:
        made = _made(kind, args, members)
        for name, value in _attributes(error, made):
            try:
                attributes[name] = json_form(value, partial(_form_of_other_value, inner))
            except NoJsonForm:
                left_out.append(name)
        obstacle = _obstacle_of_class(kind)
        if not obstacle and made is None:
            obstacle = _NOT_MADE
        elif not obstacle and made is not None:
            _set_attributes(made, attributes)
            is_rebuilt = members or _text(made) == _text(error)
            obstacle = "" if is_rebuilt else _OTHER_TEXT
        lost = _REPLACED + obstacle if obstacle else ""
    if left_out and not lost:
        lost = _NO_FORM_OF_ATTRIBUTES.format(" and ".join(left_out))
    return ErrorBody(
        type=type_name(kind),
        text=_text(error),
        args=args,
        attributes=attributes or None,
        members=[_error_body(member, inner) for member in members] or None,
        notes=_notes(error),
        cause=_linked(error.__cause__, inner),
        context=None if error.__suppress_context__ else _linked(error.__context__, inner),
        suppresses_context=error.__suppress_context__,
        lost=lost,
    )


@_cached
def _obstacle_of_class(kind: type[BaseException]) -> str:
    """Return the reason why a replay cannot find a class; an empty text if it can."""
    if "<locals>" in kind.__qualname__:
        return _LOCAL_CLASS
    return "" if _found_class(type_name(kind)) is kind else _NOT_FOUND


def _linked(error: BaseException | None, seen: frozenset[int]) -> ErrorBody | None:
    """Return the body of a cause or context, unless the chain is long or comes back to itself."""
    if error is None or id(error) in seen or len(seen) > _LINKS_MAX or not is_recordable(error):
        return None
    return _error_body(error, seen)


def _attributes(error: BaseException, made: BaseException | None) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that an exception made from the arguments alone does not have."""
    for name, value in vars(error).items():
        if name != "__notes__":
            yield name, value
    for name, descriptor in _slots(type(error)).items():
        value = None
        with contextlib.suppress(AttributeError):  # The class may not have set it.
            value = descriptor.__get__(error)
        if value is not None and not (made is not None and _is_same(descriptor, made, value)):
            yield name, value


@_cached
def _slots(kind: type[BaseException]) -> dict[str, Any]:
    """Return the descriptors of the attributes that an exception has outside of its `__dict__`."""
    return {
        name: descriptor
        for base in reversed(kind.__mro__)
        for name, descriptor in vars(base).items()
        if isinstance(descriptor, types.MemberDescriptorType)
        and not name.startswith("__")
        and (base, name) not in _WITHOUT_MEANING
    }


def _is_same(descriptor: Any, made: BaseException, value: Any) -> bool:
    try:
        other = descriptor.__get__(made)
        return type(other) is type(value) and bool(other == value)
    except Exception:  # The `==` of a user's class may raise anything.
        return False


def _notes(error: BaseException) -> list[str] | None:
    notes: object = getattr(error, "__notes__", None)
    if not isinstance(notes, list):  # Python lets a class set anything.
        return None
    return [encodable(note) for note in cast("list[object]", notes) if isinstance(note, str)]


def _text(error: BaseException) -> str:
    """Return the text of an error, with characters that UTF-8 cannot encode escaped."""
    try:
        return encodable(str(error))
    except Exception:  # The `__str__` of a user's class may raise anything.
        return ""


def _log_once(error: BaseException, part: ErrorBody) -> None:
    """Log the part of an exception that a replay cannot rebuild, and the line that raised it."""
    entry = f"{part.type} {part.lost}"
    if entry in _logged or len(_logged) >= _LOGGED_MAX:
        return
    _logged.add(entry)
    location = ""
    for frame, line in walk_tb(error.__traceback__):
        location = f" at {Path(frame.f_code.co_filename).name}:{line}"
    logger.warning("an effect raised %s%s: a replay %s", part.type, location, part.lost)


# Rebuilding ---------------------------------------------------------------------------------------

# Sets an attribute without the `__setattr__` of the class, which a frozen dataclass lets fail.
_set: Final = BaseException.__setattr__


def _rebuilt(body: ErrorBody) -> BaseException:
    members = [_rebuilt(member) for member in body.members or ()]
    obstacle = ""
    kind = _found_class(body.type) or _imported_class(body.type)
    found: BaseException | None = None
    if isinstance(kind, str):
        obstacle = kind
    elif body.args is not None:
        found = _made(kind, body.args, members)
        if found is not None:
            _set_attributes(found, body.attributes or {})
            if not members and _text(found) != body.text:
                found, obstacle = None, _CHANGED_TEXT
    if found is None:
        reason = body.lost or _REPLACED + (obstacle or _NOT_MADE)
        if members:
            found = BaseExceptionGroup(f"{body.type}: {body.text}", members)
        else:
            found = ReplayedError(body.type, body.text, f"a replay {reason}")
    for note in body.notes or ():
        found.add_note(note)
    if body.cause is not None:
        _set(found, "__cause__", _rebuilt(body.cause))
    if body.context is not None:
        _set(found, "__context__", _rebuilt(body.context))
    _set(found, "__suppress_context__", body.suppresses_context)
    return found


def _made(
    kind: type[BaseException], forms: Sequence[Any], members: Sequence[BaseException]
) -> BaseException | None:
    """Return an exception of this class without a call of its Python code; None if that fails."""
    try:
        args = [
            *(value_of(form, _FORM_READERS) for form in forms),
            *([list(members)] if members else ()),
        ]
        made: BaseException = _builtin(kind, "__new__", types.BuiltinFunctionType)(kind, *args)
    except Exception:
        return None
    with contextlib.suppress(Exception):  # The class may have called it with other arguments.
        _builtin(kind, "__init__", types.WrapperDescriptorType)(made, *args)
    return made if isinstance(made, kind) or members else None


@_cached
def _builtin(kind: type[BaseException], name: str, method_type: type) -> Any:
    """Return the method of the nearest base class that is not written in Python."""
    methods = (vars(base).get(name) for base in kind.__mro__)
    return next(method for method in methods if isinstance(method, method_type))


def _set_attributes(error: BaseException, forms: Mapping[str, Any]) -> None:
    slots = _slots(type(error))
    for name, form in forms.items():
        with contextlib.suppress(Exception):  # An attribute may be read-only here.
            if name in slots:
                slots[name].__set__(error, value_of(form, _FORM_READERS))
            else:
                vars(error)[name] = value_of(form, _FORM_READERS)


def _with_handled(
    context: BaseException | None, handled: BaseException | None
) -> BaseException | None:
    """Return a rebuilt context in which `handled` takes the place of the exception like it.

    If an effect was called in an `except` block of the handler, the recorded context of its
    exception ends with the exception of that block. In a replay, the handler raises and handles
    that exception itself.
    """
    if context is None or handled is None:
        return context
    if _is_like(context, handled):
        return handled
    link = context
    while link.__context__ is not None:
        if _is_like(link.__context__, handled):
            link.__context__ = handled
            break
        link = link.__context__
    return context


def _is_like(rebuilt: BaseException, error: BaseException) -> bool:
    return type(rebuilt) is type(error) and _text(rebuilt) == _text(error)


def _parts(body: ErrorBody) -> Iterator[ErrorBody]:
    """Yield an exception, its members and causes; a handler does not read contexts."""
    yield body
    for inner in (*(body.members or ()), *([body.cause] if body.cause is not None else ())):
        yield from _parts(inner)


# Classes ------------------------------------------------------------------------------------------


def _found_class(name: str) -> type[Any] | None:
    """Return the class of this name in the modules that are imported already.

    Errors of this package are found by their class name alone, because a recording outlives the
    module that held them when it was made. An error of httpx is found in its successor httpx2, if
    httpx is not imported.
    """
    module, _, rest = name.partition(".")
    if module == "mcp_trio":
        own = class_in("mcp_trio.errors", [name.rpartition(".")[2]], _is_recordable_class)
        if own is not None:
            return own
    elif module == "httpx" and "httpx" not in sys.modules:
        name = f"httpx2.{rest}"
    return found_class(name, _is_recordable_class)


def _is_recordable_class(kind: type) -> bool:
    """Return whether a class may be that of a recorded exception, or of an enumeration in one."""
    return issubclass(kind, (*_RECORDABLE, BaseExceptionGroup, enum.Enum))


def _imported_class(name: str) -> type[Any] | str:
    """Import the module of a class; return the class, or what keeps it from being found."""
    names = name.split(".")
    for count in range(1, len(names)):
        module = ".".join(names[:count])
        if module in sys.modules:
            continue
        if not all(map(str.isidentifier, names[:count])):
            break
        try:
            # Outside of the lane: what a module does at import is no operation of the handler.
            contextvars.Context().run(importlib.import_module, module)
        except ModuleNotFoundError as error:
            if count > 1 and error.name == module:
                break  # The other names are those of classes.
            return _NOT_IMPORTED.format(module, error)
        except (Exception, SystemExit) as error:
            return _NOT_IMPORTED.format(module, f"{type(error).__name__}: {error}")
    return _found_class(name) or _NOT_FOUND


# JSON forms ---------------------------------------------------------------------------------------


def _form_of_other_value(seen: frozenset[int], value: Any, _levels: int) -> Any:
    """Return the JSON form of a member of an enumeration, or of an exception."""
    kind = cast("type[object]", type(value))
    if isinstance(value, enum.Enum) and _found_class(type_name(kind)) is kind and value.name:
        return {"$enum": [type_name(kind), value.name]}
    if isinstance(value, BaseException) and (linked := _linked(value, seen)) is not None:
        return {"$error": msgspec.to_builtins(linked)}
    raise NoJsonForm(kind.__name__)


def _enum_member(form: Sequence[str]) -> Any:
    kind = _found_class(form[0]) or _imported_class(form[0])
    return cast("Any", kind)[form[1]]


_FORM_READERS: Final[Mapping[str, FormReader]] = {
    "$enum": _enum_member,
    "$error": lambda form: _rebuilt(msgspec.convert(form, ErrorBody)),
}
