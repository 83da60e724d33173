"""Exceptions in groups: which of them are people's faults, and which go on."""

from collections.abc import Sequence
from typing import TypeVar, cast

import trio

_Error = TypeVar("_Error", Exception, BaseException)


def bare(error: _Error) -> _Error:
    """The one exception inside groups of one: what people's own nursery wrapped."""
    inside = _members(error)
    return bare(inside[0]) if len(inside) == 1 else error


def apart(group: BaseExceptionGroup) -> tuple[Exception | None, BaseException]:
    """People's faults in a group, and what is none and goes on, such as `Cancelled`."""
    faults, rest = group.split(Exception)
    assert rest is not None  # or it were an ExceptionGroup
    return None if faults is None else bare(faults), rest


def foremost(group: BaseExceptionGroup) -> BaseException:
    """What leaves a nursery that nobody is to know of: a fault bare, even beside a cancellation.

    The group itself, if there is no fault in it, or something besides that is neither.
    """
    if isinstance(group, ExceptionGroup):
        return bare(cast("Exception", group))
    _, others = group.split((Exception, trio.Cancelled))
    fault, _ = apart(group)
    return group if fault is None or others is not None else fault


def _members(error: _Error) -> Sequence[_Error]:
    if not isinstance(error, BaseExceptionGroup):
        return ()
    group = cast("BaseExceptionGroup[BaseException]", error)
    return cast("Sequence[_Error]", group.exceptions)
