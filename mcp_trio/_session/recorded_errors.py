"""The exceptions of effects: their records, and the exceptions that a replay raises from them.

An exception is rebuilt without a call of its `__init__`: it gets the recorded arguments and the
attributes that have a JSON form. Its class has to be in a module that is imported already. If the
class is not found, or the rebuilt exception has another text, a `ReplayedError` replaces it. An
exception group remains a group in any case, because handlers split it.
"""

import sys
from collections.abc import Iterator
from typing import Any, Final, cast

import msgspec

from mcp_trio._journal.records import ErrorBody, encode_body
from mcp_trio.errors import ReplayedError

_CUT_TEXT_CHARS: Final = 300


def encoded_error(error: Exception, *, bytes_max: int) -> bytes:
    """Return the body of an `err` record; if it is too large, only the class and a shorter text."""
    error_body = _error_body(error)
    encoded = encode_body(error_body)
    if len(encoded) <= bytes_max:
        return encoded
    return encode_body(ErrorBody(type=error_body.type, text=error_body.text[:_CUT_TEXT_CHARS]))


def rebuilt_error(body: bytes) -> Exception:
    """Return the exception that the body of an `err` record describes."""
    return _rebuilt(msgspec.json.decode(body, type=ErrorBody))


def _error_body(error: Exception) -> ErrorBody:
    kind = type(error)
    attributes = {name: value for name, value in vars(error).items() if _is_json(value)}
    members = [_error_body(member) for member in _members(error)]
    args = [error.args[0]] if members else list(_args(error))
    return ErrorBody(
        type=f"{kind.__module__}.{kind.__qualname__}",
        text=_text(error),
        args=args if _is_json(args) else None,
        attributes=attributes or None,
        members=members or None,
    )


def _rebuilt(body: ErrorBody) -> Exception:
    for kind in _classes(body.type):
        error = _rebuilt_as(kind, body)
        if error is not None:
            return error
    return ReplayedError(body.type, body.text)


def _rebuilt_as(kind: type[Exception], body: ErrorBody) -> Exception | None:
    if body.args is None:
        return None
    try:
        members = () if body.members is None else ([_rebuilt(member) for member in body.members],)
        error = kind.__new__(kind, *body.args, *members)
        vars(error).update(body.attributes or {})
    except Exception:  # A user's class may raise anything.
        return None
    return error if _text(error) == body.text else None


def _classes(name: str) -> Iterator[type[Exception]]:
    """Yield the exceptions of this name: from the innermost module that is imported and has one.

    Errors of this package are found by their class name alone, because a recording outlives the
    module that held them when it was made. An error of httpx is found in its successor httpx2, if
    httpx is not imported.
    """
    names = name.split(".")
    if names[0] == "mcp_trio":
        names = ["mcp_trio", "errors", names[-1]]
    elif names[0] == "httpx" and "httpx" not in sys.modules:
        names[0] = "httpx2"
    for count in range(len(names) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(names[:count]))
        for step in names[count:]:
            found = getattr(found, step, None)
        if isinstance(found, type) and issubclass(found, Exception):
            yield found


def _members(error: Exception) -> tuple[Exception, ...]:
    if not isinstance(error, ExceptionGroup):
        return ()
    return cast("ExceptionGroup[Exception]", error).exceptions


def _args(error: Exception) -> tuple[Any, ...]:
    """Return the constructor arguments; `OSError.args` lacks the file names."""
    if not isinstance(error, OSError):
        return error.args
    reduced: Any = error.__reduce__()
    args: tuple[Any, ...] = reduced[1]
    return args


def _text(error: Exception) -> str:
    """Return the text of an error, with characters that UTF-8 cannot encode escaped."""
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except Exception:  # The `__str__` of a user's class may raise anything.
        return ""


def _is_json(value: object) -> bool:
    """Return whether a value is unchanged by encoding it as JSON and decoding it."""
    try:
        return _is_same(msgspec.json.decode(msgspec.json.encode(value)), value)
    except Exception:  # The `==` of a user's class may raise anything.
        return False


def _is_same(read: Any, value: Any) -> bool:
    # Equality is not enough: an enum's member or a named tuple equals a value of another type.
    kind = read.__class__
    if kind is not value.__class__:
        return False
    if kind is list:
        return all(map(_is_same, read, value))
    if kind is dict:
        return read.keys() == value.keys() and all(_is_same(read[key], value[key]) for key in read)
    return bool(read == value)
