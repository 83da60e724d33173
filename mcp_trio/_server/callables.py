"""What stands behind a handler: its plain function, its parameters, what their annotations mean."""

import functools
import inspect
import types
import typing
from typing import Any, Final

_ODD_FLAGS: Final = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS

_REFUSED_KINDS: Final = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values (*)",
    inspect.Parameter.VAR_KEYWORD: "takes any names (**)",
}


def plain_function(handler: Any) -> types.FunctionType:
    """The function behind decorators, partials, methods and callable objects.

    Raises:
        TypeError: there is none: a class, a builtin, or nothing that can be called.
    """
    found = inspect.unwrap(handler)
    while isinstance(found, functools.partial):
        found = inspect.unwrap(found.func)
    if callable(found) and not inspect.isroutine(found):
        found = inspect.unwrap(type(found).__call__)
    function: Any = getattr(found, "__func__", found)
    if isinstance(function, types.FunctionType):
        return function
    raise TypeError(f"{handler!r} is not a Python function, method or callable object")


def behind(function: Any) -> Any:
    """What partials and bound methods call in the end."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__func__", function)


def name_of(handler: Any) -> str:
    """The name that a handler goes by: its function's, or that of its class."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    name: str | None = getattr(handler, "__name__", None)
    return name or type(handler).__name__


def is_async(handler: Any) -> bool:
    """Whether a call has to be awaited, as far as can be told without calling.

    A plain decorator around an `async def` function counts, if it tells by `functools.wraps`.
    """
    seen = (handler, getattr(handler, "__call__", None), plain_function(handler))  # noqa: B004
    return any(map(inspect.iscoroutinefunction, seen))


def returns_awaitable(function: Any) -> bool:
    """`is_async` for anything that can be called, also what has no Python function behind it."""
    try:
        return is_async(function)
    except TypeError:
        return False


def refuse_unnameable(handler: Any, function: types.FunctionType) -> None:
    """Refuse parameters that arguments by name can never fill.

    Raises:
        TypeError: naming function and parameter.
    """
    code = function.__code__
    # The flags clear nearly every handler, and spare it a whole `inspect.signature` for now.
    if not (code.co_flags & _ODD_FLAGS or code.co_posonlyargcount):
        return
    for parameter in inspect.signature(handler).parameters.values():
        if parameter.kind in _REFUSED_KINDS:
            raise TypeError(
                f"{place(function, parameter.name)} {_REFUSED_KINDS[parameter.kind]}, "
                "but arguments arrive by name; name each parameter"
            )


def place(function: types.FunctionType, parameter: str) -> str:
    """How errors name a parameter."""
    return f"{function.__module__}.{function.__qualname__}: parameter '{parameter}'"


def resolved_hint(function: types.FunctionType, parameter: inspect.Parameter) -> Any:
    """What the annotation of a parameter means.

    Raises:
        TypeError: naming function, parameter and annotation.
    """
    if parameter.annotation is inspect.Parameter.empty:
        return Any
    return _resolved(function, parameter.annotation, place(function, parameter.name))


def resolved_return(function: types.FunctionType) -> Any:
    """What the annotation of the result means; `Any` if there is none.

    Raises:
        TypeError: naming function and annotation.
    """
    where = f"{function.__module__}.{function.__qualname__}"
    return _resolved(function, function.__annotations__.get("return", Any), where)


def _resolved(function: types.FunctionType, annotation: Any, where: str) -> Any:
    """Resolved alone, for only so can an error name the place."""
    alone = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(alone, function.__globals__, include_extras=True)["it"]
    except Exception as error:
        raise TypeError(
            f"{where}: the annotation {annotation!r} "
            f"cannot be resolved in module {function.__module__}: {error}"
        ) from error
