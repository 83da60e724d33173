"""The scopes of tasks, and taking shields away from those that are to end now.

A task that waits for ever under a shield cannot be ended by Trio's means, and a replay has to end.
The scopes that a task has entered stand in its frames; `gc` shows them, locals or not.
"""

import gc
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import AsyncGeneratorType, CoroutineType, GeneratorType, MethodType
from typing import Final

import trio

# What leads from a frame to a scope that was entered in it.
_WAYS: Final = (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncGeneratorType,
    CoroutineType,
    GeneratorType,
    MethodType,
)


def unshield(task: trio.lowlevel.Task) -> None:
    """Take the shields from a task and from all tasks below it."""
    for scope in entered_scopes(task):
        scope.shield = False
    for nursery in task.child_nurseries:
        nursery.cancel_scope.shield = False
        for child in nursery.child_tasks:
            unshield(child)


def entered_scopes(task: trio.lowlevel.Task) -> Iterator[trio.CancelScope]:
    """The scopes that a task is in, if it waits now; not those of its nurseries' tasks."""
    seen = {id(task.coro)}
    found: list[object] = [task.coro]
    while found:
        for inner in gc.get_referents(found.pop()):
            if isinstance(inner, trio.CancelScope) and inner.is_relative is None:
                yield inner
            elif _leads_on(inner) and id(inner) not in seen:
                seen.add(id(inner))
                found.append(inner)


def _leads_on(value: object) -> bool:
    return isinstance(value, _WAYS)
