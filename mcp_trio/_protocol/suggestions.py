"""Errors for unknown names, which suggest known ones."""

import functools
from collections.abc import Callable, Collection, Iterable
from types import FunctionType
from typing import Any, Final, TypeVar

T = TypeVar("T")

# With the default of difflib, 0.6, "sweep" would be close to "serve".
_SIMILARITY_MIN: Final = 0.7


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error text, such as `; did you mean 'port'?`; empty if none is close."""
    import difflib  # only an error needs it

    close = difflib.get_close_matches(name, known, 1, _SIMILARITY_MIN)
    return f"; did you mean {close[0]!r}?" if close else ""


def missing_attribute(class_name: str, owner: object, name: str) -> AttributeError:
    """Return the error for an attribute that an object lacks; its text says what to write instead.

    `class_name` is a key of `other_sdk_names.ATTRIBUTES`.
    """
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if name.startswith("_"):
        return AttributeError(text)
    from mcp_trio._protocol.other_sdk_names import ATTRIBUTES

    advice = ATTRIBUTES.get(class_name, {}).get(name)
    known = (each for each in dir(type(owner)) if not each.startswith("_"))
    hint = f"; {advice}" if advice else did_you_mean(name, known)
    # With `obj`, Python would add a suggestion of its own to the traceback.
    return AttributeError(text + hint, name=name, obj=None)


def check_option_names(subject: str, options: Iterable[str], known: Collection[str]) -> None:
    """Raise a `TypeError` for an unknown option; its text suggests the known one that is close.

    `subject` begins the text, such as "a WebSocket server".
    """
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known)
            raise TypeError(f"{subject} got an unexpected option {name!r}{hint}")


def unknown_option(
    class_name: str, method: str, name: str, known: Iterable[str], *, otherwise: str = ""
) -> TypeError:
    """Return the error for an unknown argument of a method; its text says what to write instead.

    `class_name` is a key of `other_sdk_names.OPTIONS`, and `method` is `__init__` for the class
    itself. `otherwise` is the advice for a name that is neither there nor close to a known one.
    """
    hint = option_advice(class_name, method, name) or did_you_mean(name, known)
    hint = hint or (otherwise and f"; {otherwise}")
    call = class_name if method == "__init__" else f"{class_name}.{method}"
    return TypeError(f"{call}() got an unexpected argument {name!r}{hint}")


def option_advice(class_name: str, method: str, name: str) -> str:
    """Return what to write in place of an argument of FastMCP or the official SDK, or "".

    The text is the end of an error text. The arguments are those of `unknown_option`.
    """
    from mcp_trio._protocol.other_sdk_names import OPTIONS

    advice = OPTIONS[class_name].get(method, {}).get(name)
    return f"; {advice}" if advice else ""


def checks_options(class_name: str, *methods: str) -> Callable[[type[T]], type[T]]:
    """Return a class decorator that makes methods raise `unknown_option` for unknown arguments.

    The `TypeError` of Python does not say what to write instead.

    `class_name` is a key of `other_sdk_names.OPTIONS`.
    """

    def checked(function: FunctionType) -> Callable[..., Any]:
        # `co_varnames` begins with the parameters, of which the first is `self`.
        code = function.__code__
        known = frozenset(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            for name in options:
                if name not in known:
                    raise unknown_option(class_name, function.__name__, name, known)
            return function(*args, **options)

        return call

    def decorate(decorated: type[T]) -> type[T]:
        for method in methods:
            setattr(decorated, method, checked(vars(decorated)[method]))
        return decorated

    return decorate
