"""The exceptions of effects: their records, and the exceptions that a replay raises from them.

An exception is rebuilt without a call of its class's Python code: the built-in base class makes it
from the recorded arguments, and it gets the recorded attributes, notes, cause and context. If the
module of its class is not imported yet, it is imported. If the class is not found, or the rebuilt
exception has another text, a `ReplayedError` replaces it. An exception group remains a group in any
case, because handlers split it.

Arguments and attributes have a JSON form. A JSON object with the single key `$` and a name stands
for a value that JSON lacks, such as `{"$bytes": "a"}` for bytes. An object of the user with such a
key is itself wrapped, as `{"$dict": {...}}`, so the two cannot be confused. Bytes are recorded as
the text that Latin-1 decodes from them, because redaction searches texts.

The record of an exception that cannot be rebuilt names what prevents it and what to do (`lost`).
The first such exception of each class is logged as well.
"""

import contextlib
import contextvars
import datetime as dt
import decimal
import enum
import functools
import importlib
import logging
import math
import sys
import types
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar, cast

import msgspec

from mcp_trio._journal.records import ErrorBody, encode_body
from mcp_trio._session.exceptions import group_members
from mcp_trio.errors import ReplayedError

logger = logging.getLogger("mcp_trio")

_CUT_TEXT_CHARS: Final = 300
_CACHED_CLASSES_MAX: Final = 256
_LINKS_MAX: Final = 8
_LEVELS_MAX: Final = 32
_INTEGER_MIN: Final = -(2**63)
_INTEGER_MAX: Final = 2**63 - 1

# Attributes of built-in exceptions that only help to word a message.
_WITHOUT_MEANING: Final = frozenset({(AttributeError, "obj"), (BaseExceptionGroup, "exceptions")})

# The names of the module that a process started with: that of Python, and of `mcp-trio FILE.py`.
_MAIN_MODULES: Final = ("__main__", "__mcp_main__")

# The classes whose exceptions an effect may end with. `Cancelled` and `GeneratorExit` are no
# outcome: a replay brings them about in its own way.
_RECORDED: Final = (Exception, SystemExit, KeyboardInterrupt)

# An exception is logged once for each class and reason, up to this number in a process.
_LOGGED_MAX: Final = 256
_logged: Final[set[str]] = set()

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _cached(function: _Function) -> _Function:
    """Keep the results for the classes that were used last; type checkers see no `Hashable`."""
    return cast("_Function", functools.lru_cache(_CACHED_CLASSES_MAX)(function))


# The texts of `ErrorBody.lost`, which complete "A replay ...".
_STAND_IN: Final = "raises ReplayedError in its place, because "
_LOCAL: Final = (
    "its class is defined inside a function: define the class at the top level of a module"
)
_ARGUMENTS: Final = (
    "its arguments hold a value of type {}, which has no JSON form: raise it with texts, numbers,"
    " bytes, lists and dicts"
)
_TEXT: Final = (
    "its text would be another one: let `__str__` of its class depend on the arguments and"
    " attributes only"
)
_CHANGED: Final = (
    "its text is another one here: the class was changed since, or the record was redacted"
)
_CLASS: Final = (
    "its class cannot be made from the recorded arguments: let the effect catch the exception, and"
    " raise one of your own classes"
)
_SIZE: Final = (
    "it has {} bytes, more than limits.requests.effect_bytes_max={}: raise it with shorter"
    " arguments, or raise the limit"
)
_MODULE: Final = (
    "the module {} cannot be imported here ({}): install it, or add its folder to sys.path"
)
_NAME: Final = (
    "its module has no exception of this name: keep the class under its own name at the top level"
    " of the module"
)
_ATTRIBUTES: Final = (
    "raises it without {}, which has no JSON form: let the effect catch the exception, and return"
    " or raise what the handler needs of it"
)


def is_recordable(error: BaseException) -> bool:
    """Return whether an exception is an outcome of an effect, and not the end of its task."""
    members = group_members(error)
    return all(map(is_recordable, members)) if members else isinstance(error, _RECORDED)


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
            lost=_STAND_IN + _SIZE.format(len(encoded), bytes_max),
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
            error.__context__ = context
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
    return [f"{type_name}: {reason}" for type_name, reason in found.items()]


# Recording ----------------------------------------------------------------------------------------


class _NoJsonForm(Exception):  # noqa: N818  it leads to another way to record a value
    """A value has no JSON form; the argument is the name of its type."""


def _error_body(error: BaseException, seen: frozenset[int] = frozenset()) -> ErrorBody:
    """Return the body of an exception; `seen` are the exceptions that refer to it."""
    kind, members = type(error), group_members(error)
    inner = seen | {id(error)}
    args: list[Any] | None = None
    attributes: dict[str, Any] = {}
    left_out: list[str] = []
    try:
        given = error.args[:1] if members else error.args
        if isinstance(error, OSError):  # its `args` lack the names of the files
            reduced: Any = OSError.__reduce__(error)
            given = reduced[1]
        args = [_json_form(arg, inner) for arg in given]
    except _NoJsonForm as problem:
        lost = _STAND_IN + _ARGUMENTS.format(problem.args[0])
    else:
        made = _made(kind, args, members)
        for name, value in _attributes(error, made):
            try:
                attributes[name] = _json_form(value, inner)
            except _NoJsonForm:
                left_out.append(name)
        obstacle = _obstacle_of_class(kind)
        if not obstacle and made is None:
            obstacle = _CLASS
        elif not obstacle and made is not None:
            _set_attributes(made, attributes)
            is_rebuilt = group_members(error) or _text(made) == _text(error)
            obstacle = "" if is_rebuilt else _TEXT
        lost = _STAND_IN + obstacle if obstacle else ""
    if left_out and not lost:
        lost = _ATTRIBUTES.format(" and ".join(left_out))
    return ErrorBody(
        type=_type_name(kind),
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
        return _LOCAL
    return "" if _found_class(_type_name(kind)) is kind else _NAME


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
    return [_encodable(note) for note in cast("list[object]", notes) if isinstance(note, str)]


def _text(error: BaseException) -> str:
    """Return the text of an error, with characters that UTF-8 cannot encode escaped."""
    try:
        return _encodable(str(error))
    except Exception:  # The `__str__` of a user's class may raise anything.
        return ""


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _log_once(error: BaseException, part: ErrorBody) -> None:
    """Log the part of an exception that a replay cannot rebuild, and the line that raised it."""
    entry = f"{part.type} {part.lost}"
    if entry in _logged or len(_logged) >= _LOGGED_MAX:
        return
    _logged.add(entry)
    location = ""
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        location = f" at {Path(code.co_filename).name}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    logger.warning("an effect raised %s%s: a replay %s", part.type, location, part.lost)


# Rebuilding ---------------------------------------------------------------------------------------


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
                found, obstacle = None, _CHANGED
    if found is None:
        reason = body.lost or _STAND_IN + (obstacle or _CLASS)
        if members:
            found = BaseExceptionGroup(f"{body.type}: {body.text}", members)
        else:
            found = ReplayedError(body.type, body.text, f"a replay {reason}")
    for note in body.notes or ():
        found.add_note(note)
    if body.cause is not None:
        found.__cause__ = _rebuilt(body.cause)
    if body.context is not None:
        found.__context__ = _rebuilt(body.context)
    found.__suppress_context__ = body.suppresses_context
    return found


def _made(
    kind: type[BaseException], forms: Sequence[Any], members: Sequence[BaseException]
) -> BaseException | None:
    """Return an exception of this class without a call of its Python code; None if that fails."""
    try:
        args = [*map(_value, forms), *([list(members)] if members else ())]
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
                slots[name].__set__(error, _value(form))
            else:
                vars(error)[name] = _value(form)


def _with_handled(
    context: BaseException | None, handled: BaseException | None
) -> BaseException | None:
    """Return a rebuilt context with the exception that the handler handles in its recorded place.

    The context of an exception that an effect raised in an `except` block of the handler ends with
    the exception of that block, which the handler has itself raised again in this replay.
    """
    link = context
    if handled is None or context is None or _is_like(context, handled):
        return handled if context is not None and handled is not None else context
    while link is not None and link.__context__ is not None:
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


@_cached
def _type_name(kind: type) -> str:
    return f"{_module_name(kind.__module__)}.{kind.__qualname__}"


def _module_name(name: str) -> str:
    """Return the name under which a module can be imported, also if the process started with it."""
    module = sys.modules.get(name)
    if name not in _MAIN_MODULES or module is None:
        return name
    if module.__spec__ is not None and module.__spec__.name not in _MAIN_MODULES:
        return module.__spec__.name
    return name if getattr(module, "__file__", None) is None else Path(str(module.__file__)).stem


def _found_class(name: str) -> type[Any] | None:
    """Return the class of this name in the modules that are imported already.

    Errors of this package are found by their class name alone, because a recording outlives the
    module that held them when it was made. An error of httpx is found in its successor httpx2, if
    httpx is not imported.
    """
    names = name.split(".")
    if names[0] == "mcp_trio":
        own = _in_module("mcp_trio.errors", names[-1:])
        if own is not None:
            return own
    elif names[0] == "httpx" and "httpx" not in sys.modules:
        names[0] = "httpx2"
    for main in _MAIN_MODULES:
        prefix = f"{_module_name(main)}."
        found = (
            _in_module(main, name.removeprefix(prefix).split("."))
            if name.startswith(prefix)
            else None
        )
        if found is not None:
            return found
    for count in range(len(names) - 1, 0, -1):
        found = _in_module(".".join(names[:count]), names[count:])
        if found is not None:
            return found
    return None


def _in_module(module: str, path: Sequence[str]) -> type[Any] | None:
    found: Any = sys.modules.get(module)
    for step in path:
        found = getattr(found, step, None)
    if isinstance(found, type) and issubclass(found, (*_RECORDED, BaseExceptionGroup, enum.Enum)):
        return cast("type[Any]", found)
    return None


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
            return _MODULE.format(module, error)
        except (Exception, SystemExit) as error:
            return _MODULE.format(module, f"{type(error).__name__}: {error}")
    return _found_class(name) or _NAME


# JSON forms ---------------------------------------------------------------------------------------


def _json_form(value: Any, seen: frozenset[int], levels: int = _LEVELS_MAX) -> Any:
    """Return a form of a value that JSON can express, and from which `_value` makes it again.

    Raises:
        _NoJsonForm: There is none, because of the type of the value or of one inside it.
    """
    kind = cast("type[object]", type(value))
    if not levels:
        raise _NoJsonForm(f"{kind.__name__} in {_LEVELS_MAX} others")
    if value is None or kind is bool or (kind is str and _is_encodable(value)):
        return value
    if kind is int and _INTEGER_MIN <= value <= _INTEGER_MAX:
        return value
    if kind is float and math.isfinite(value):
        return value
    if kind is list:
        return [_json_form(item, seen, levels - 1) for item in value]
    if kind is dict:
        items = [[_json_form(item, seen, levels - 1) for item in pair] for pair in value.items()]
        if not all(type(key) is str and _is_encodable(key) for key in value):
            return {"$items": items}
        form = dict(items)
        return {"$dict": form} if _tag(form) is not None else form
    if kind in _SEQUENCES:
        return {_SEQUENCES[kind]: [_json_form(item, seen, levels - 1) for item in value]}
    if kind in _SCALARS:
        tag, to_form, _ = _SCALARS[kind]
        return {tag: to_form(value)}
    if isinstance(value, enum.Enum) and _found_class(_type_name(kind)) is kind and value.name:
        return {"$enum": [_type_name(kind), value.name]}
    if isinstance(value, BaseException) and (linked := _linked(value, seen)) is not None:
        return {"$error": msgspec.to_builtins(linked)}
    raise _NoJsonForm(kind.__name__)


def _value(form: Any) -> Any:
    """Return the value of a JSON form."""
    if isinstance(form, list):
        return [_value(item) for item in cast("Iterable[Any]", form)]
    if not isinstance(form, dict):
        return form
    members = cast("dict[str, Any]", form)
    tag = _tag(members)
    if tag is None:
        return {name: _value(inner) for name, inner in members.items()}
    return _FROM_FORMS[tag](members[tag])


def _tag(members: Mapping[str, Any]) -> str | None:
    """Return the name of the type for which a JSON object stands; None if it stands for itself."""
    name = next(iter(members)) if len(members) == 1 else ""
    return name if name.startswith("$") else None


def _is_encodable(text: str) -> bool:
    return text.isascii() or _encodable(text) == text


def _enum_member(form: Sequence[str]) -> Any:
    kind = _found_class(form[0]) or _imported_class(form[0])
    return cast("Any", kind)[form[1]]


def _from_datetime(value: dt.datetime) -> tuple[str, int]:
    if value.tzinfo is not None and type(value.tzinfo) is not dt.timezone:
        raise _NoJsonForm(type(value.tzinfo).__name__)
    return value.isoformat(), value.fold


_SEQUENCES: Final[dict[type, str]] = {tuple: "$tuple", set: "$set", frozenset: "$frozenset"}

# For each type: its tag, the form of a value, and the value of a form.
_SCALARS: Final[dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]]] = {
    bytes: ("$bytes", lambda value: value.decode("latin-1"), lambda form: form.encode("latin-1")),
    bytearray: (
        "$bytearray",
        lambda value: value.decode("latin-1"),
        lambda form: bytearray(form, "latin-1"),
    ),
    str: (
        "$str",
        lambda value: value.encode("utf-8", "surrogatepass").decode("latin-1"),
        lambda form: form.encode("latin-1").decode("utf-8", "surrogatepass"),
    ),
    int: ("$int", hex, lambda form: int(form, 16)),
    float: ("$float", repr, float),
    complex: ("$complex", repr, complex),
    decimal.Decimal: ("$decimal", str, decimal.Decimal),
    uuid.UUID: ("$uuid", str, uuid.UUID),
    dt.datetime: (
        "$datetime",
        _from_datetime,
        lambda form: dt.datetime.fromisoformat(form[0]).replace(fold=form[1]),
    ),
    dt.date: ("$date", dt.date.isoformat, dt.date.fromisoformat),
    dt.timedelta: (
        "$timedelta",
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda form: dt.timedelta(*form),
    ),
    type(Path()): ("$path", str, Path),
}

_FROM_FORMS: Final[dict[str, Callable[[Any], Any]]] = {
    "$dict": lambda form: {name: _value(inner) for name, inner in form.items()},
    "$items": lambda form: {_value(name): _value(inner) for name, inner in form},
    "$enum": _enum_member,
    "$error": lambda form: _rebuilt(msgspec.convert(form, ErrorBody)),
    "$tuple": lambda form: tuple(map(_value, form)),
    "$set": lambda form: set(map(_value, form)),
    "$frozenset": lambda form: frozenset(map(_value, form)),
    **{tag: from_form for tag, _, from_form in _SCALARS.values()},
}
