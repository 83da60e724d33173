"""`@effect`: functions that are effects wherever they are called in a handler."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from mcp_trio._engine import perform, perform_in_passing, perform_in_thread
from mcp_trio._server.ambient import at_work
from mcp_trio._server.callables import returns_awaitable
from mcp_trio._server.effect_calls import effect_of

F = TypeVar("F", bound=Callable[..., Any])


def effect(function: F, /) -> F:
    """Make a function an effect: a replay does not run it, and gives what it returned.

    So code that handlers call needs no context. In a handler a call is what `Context.effect` makes
    of it, except that a `def` function called in an `async def` handler cannot wait: it runs in
    place. Outside of handlers, and inside of other effects, it is the function as it is; and so it
    is in handlers of notifications, which have no context: there a replay runs it, too.

    Raises:
        TypeError: The function is a generator, which does more than to return one value.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function!r} is a generator: an effect returns one value")
    make = _waiting if returns_awaitable(function) else _blocking
    return cast("F", make(function))


def _waiting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **keywords: Any) -> Any:
        ambient = at_work()
        if ambient is None:
            return await function(*args, **keywords)
        made = effect_of(ambient.served, function, args, keywords)
        return await perform(ambient.handling, made)

    return call


def _blocking(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        ambient = at_work()
        if ambient is None:
            return function(*args, **keywords)
        made = effect_of(ambient.served, function, args, keywords)
        if ambient.bridge is None:
            return perform_in_passing(ambient.handling, made)
        return perform_in_thread(ambient.bridge.call, ambient.handling, made)

    return call
