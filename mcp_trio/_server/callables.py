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
    """What the annotation means; resolved alone, for only so can an error name the parameter.

    Raises:
        TypeError: naming function, parameter and annotation.
    """
    if parameter.annotation is inspect.Parameter.empty:
        return Any
    alone = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        return typing.get_type_hints(alone, function.__globals__, include_extras=True)["it"]
    except Exception as error:
        raise TypeError(
            f"{place(function, parameter.name)}: the annotation {parameter.annotation!r} "
            f"cannot be resolved in module {function.__module__}: {error}"
        ) from error
