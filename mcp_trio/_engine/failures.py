"""An effect's exception as a record, and the exception again.

The class is looked for among what is imported already, and its `__init__` is not called: the
exception gets its arguments and what it knew beside them, as far as JSON can say that. If it does
not come out with the same text, or is not found, `ReplayedError` stands for it. A group is a group
again, whatever stands for its members: handlers take it apart, and we do when nobody else does.
"""

import sys
from collections.abc import Iterator
from typing import Any, Final, cast

import msgspec

from mcp_trio._errors import ReplayedError
from mcp_trio._journal.records import ErrorBody, encode_body

_CUT_TEXT_CHARS: Final = 300


def encoded_error(error: Exception, *, bytes_max: int) -> bytes:
    """The body of an `err` record; of one that is too large, the class and how the text begins."""
    told = _told(error)
    body = encode_body(told)
    if len(body) <= bytes_max:
        return body
    return encode_body(ErrorBody(type=told.type, text=told.text[:_CUT_TEXT_CHARS]))


def rebuilt_error(body: bytes) -> Exception:
    """The exception that a body tells of."""
    return _found(msgspec.json.decode(body, type=ErrorBody))


def _told(error: Exception) -> ErrorBody:
    kind = type(error)
    attributes = {name: value for name, value in vars(error).items() if _is_json(value)}
    members = [_told(member) for member in _members(error)]
    args = [error.args[0]] if members else list(_args(error))
    return ErrorBody(
        type=f"{kind.__module__}.{kind.__qualname__}",
        text=_text(error),
        args=args if _is_json(args) else None,
        attributes=attributes or None,
        members=members or None,
    )


def _found(told: ErrorBody) -> Exception:
    for kind in _classes(told.type):
        error = _rebuilt(kind, told)
        if error is not None:
            return error
    return ReplayedError(told.type, told.text)


def _rebuilt(kind: type[Exception], told: ErrorBody) -> Exception | None:
    if told.args is None:
        return None
    try:
        members = () if told.members is None else ([_found(member) for member in told.members],)
        error = kind.__new__(kind, *told.args, *members)
        vars(error).update(told.attributes or {})
    except Exception:  # people's classes may do anything
        return None
    return error if _text(error) == told.text else None


def _classes(name: str) -> Iterator[type[Exception]]:
    """What goes by the name, in the innermost module that is imported and has such a class."""
    names = name.split(".")
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
    """What makes it; the system's errors keep the names of files apart, and would forget them."""
    if not isinstance(error, OSError):
        return error.args
    reduced: Any = error.__reduce__()
    args: tuple[Any, ...] = reduced[1]
    return args


def _text(error: Exception) -> str:
    """What it says, without what UTF-8 cannot say."""
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except Exception:  # the same
        return ""


def _is_json(value: object) -> bool:
    """Whether a value is the same after a way through JSON."""
    try:
        return _is_same(msgspec.json.decode(msgspec.json.encode(value)), value)
    except Exception:  # as above, for `==`
        return False


def _is_same(read: Any, value: Any) -> bool:
    """Equal, and of the same types: an enum's member or a named tuple would not come back."""
    kind = read.__class__
    if kind is not value.__class__:
        return False
    if kind is list:
        return all(map(_is_same, read, value))
    if kind is dict:
        return read.keys() == value.keys() and all(_is_same(read[key], value[key]) for key in read)
    return bool(read == value)
