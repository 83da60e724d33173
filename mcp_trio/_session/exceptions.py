"""Take exceptions out of the groups that nurseries make, and format those of users' code for a log.

A nursery puts the exceptions of its tasks into a group, even if there is only one. Users of this
package then see the exception itself.
"""

import math
import re
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import Final, NoReturn, TypeVar, cast

import trio

from mcp_trio._protocol.suggestions import option_advice
from mcp_trio._session.call_sites import owner_of
from mcp_trio._session.lanes import Abort
from mcp_trio.errors import MCPError

_Error = TypeVar("_Error", Exception, BaseException)


def sole_exception(error: _Error) -> _Error:
    """Return the only exception in a group, or in nested groups; otherwise the error itself.

    A nursery in a handler wraps the handler's exception in such a group.
    """
    inside = group_members(error)
    return sole_exception(inside[0]) if len(inside) == 1 else error


def raise_unchanged(error: BaseException) -> NoReturn:
    """Raise an exception from a group, with the cause and the context that it has.

    In the `except` block of the group, `raise error` would replace the context by the group, and
    `raise error from None` would remove the cause as well.
    """
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
        del error, context  # The traceback has this frame, which would keep the error alive.


# The exceptions with which code ends on purpose, and the one that ends it when a replay is over.
_EXITS: Final = (trio.Cancelled, KeyboardInterrupt, SystemExit, GeneratorExit, Abort)
# The modules of exceptions that belong to the test that runs the code, as `pytest.fail` raises.
_TEST_MODULES: Final = ("_pytest.", "hypothesis.")

_KEPT_CANCELLATION: Final = (
    "a trio.Cancelled was raised after its cancel scope had ended: do not keep exceptions"
)


def split_faults(raised: BaseException) -> tuple[Exception | None, BaseException | None]:
    """Split an exception that users' code has raised into its faults and the rest.

    The rest ends a task or the process on purpose, such as `Cancelled` or `SystemExit`. All other
    exceptions are faults. One that is no `Exception`, such as a panic of a library in Rust, is the
    cause of the `RuntimeError` that is returned. A `Cancelled` is a fault if the calling task is
    not cancelled: the code has kept it until its cancel scope had ended, so no scope expects it.
    """
    faults: BaseException | None
    rest: BaseException | None
    if isinstance(raised, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", raised)
        faults, rest = group.split(_is_fault)
    else:
        faults, rest = (raised, None) if _is_fault(raised) else (None, raised)
    fault = None if faults is None else _as_exception(sole_exception(faults))
    if rest is not None and _is_kept_cancellation(rest):
        fault = fault or RuntimeError(_KEPT_CANCELLATION).with_traceback(rest.__traceback__)
        rest = None
    return fault, rest


@contextmanager
def faults_as_exceptions() -> Generator[None]:
    """Enter a block that calls users' code for one request or connection.

    A fault that is no `Exception`, as `split_faults` describes it, is raised as a `RuntimeError`.
    Otherwise it would end the listener, with the connections of all clients.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as raised:
        fault, rest = split_faults(raised)
        if fault is None or rest is not None:
            raise
        raise_unchanged(fault)


def _is_fault(error: BaseException) -> bool:
    if isinstance(error, Exception):
        return True
    if isinstance(error, (*_EXITS, BaseExceptionGroup)):
        return False
    return not any(each.__module__.startswith(_TEST_MODULES) for each in type(error).__mro__)


def _is_kept_cancellation(error: BaseException) -> bool:
    others = BaseExceptionGroup("", [error]).split(trio.Cancelled)[1]
    return others is None and trio.current_effective_deadline() > -math.inf


def _as_exception(fault: BaseException) -> Exception:
    if isinstance(fault, Exception):
        return fault
    error = RuntimeError(f"{type(fault).__name__}: {fault}").with_traceback(fault.__traceback__)
    error.__cause__ = fault
    return error


def exc_info_from_users_code(
    error: BaseException,
) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return the `exc_info` of an exception for a log, with a traceback that begins in users' code.

    The frames before that, which call a handler, are the same for every handler. The traceback of
    an `MCPError` also ends in users' code, because this package raises it about a call of theirs.
    If no frame is a user's, the traceback stays as it is.
    """
    frames: list[TracebackType] = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    owners = [owner_of(each.tb_frame.f_code.co_filename) for each in frames]
    if "user" not in owners:
        return type(error), error, error.__traceback__
    end = len(frames)
    while isinstance(error, MCPError) and owners[end - 1] == "mcp_trio":
        end -= 1
    for each in reversed(frames[owners.index("user") : end]):
        traceback = TracebackType(traceback, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return type(error), error, traceback


# What to do about an error of another library, by the beginning of its text.
_HINTS: Final = {
    "no running event loop": "; asyncio does not run here: use trio, such as trio.sleep",
    "asyncio.run() cannot be called": "; asyncio does not run here: `await` the function",
    "SQLite objects created in a thread": (
        "; open it with check_same_thread=False, or use it in `async def` handlers only"
    ),
    "Context.log() got multiple values": "; write ctx.log(level, data)",
}
# An argument that a method of the context does not take.
_UNEXPECTED: Final = r"(?:Thread)?Context\.(\w+)\(\) got an unexpected keyword argument '(\w+)'"


def one_line_about(error: BaseException) -> str:
    """Return the class, text, notes and place of an exception: "KeyError: 'a' (desk.py:12)".

    The place is the last line of a user's code in the traceback. The exceptions in a group follow
    in brackets.
    """
    notes: Sequence[str] = getattr(error, "__notes__", ())
    text = " ".join(" ".join([str(error), *notes]).split())
    place = ""
    for frame, line in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if owner_of(file) == "user":
            place = f" ({Path(file).name}:{line})"
    hint = next((hint for start, hint in _HINTS.items() if text.startswith(start)), "")
    if found := re.match(_UNEXPECTED, text):
        hint = option_advice("Context", *found.groups())
    members = "; ".join(map(one_line_about, group_members(error)))
    return f"{type(error).__name__}{text and ': '}{text}{members and f' [{members}]'}{place}{hint}"


def exception_to_raise(group: BaseExceptionGroup) -> BaseException:
    """Return the exception to raise from an internal nursery, given the group that it has raised.

    It is the error in the group, or the group of its errors, if the group has nothing else but
    `Cancelled`; otherwise it is the group itself.
    """
    if isinstance(group, ExceptionGroup):
        return sole_exception(cast("Exception", group))
    _, others = group.split((Exception, trio.Cancelled))
    errors, _ = group.split(Exception)
    return group if errors is None or others is not None else sole_exception(errors)


def group_members(error: _Error) -> Sequence[_Error]:
    """Return the exceptions in a group; none for another exception."""
    if not isinstance(error, BaseExceptionGroup):
        return ()
    group = cast("BaseExceptionGroup[BaseException]", error)
    return cast("Sequence[_Error]", group.exceptions)


Key = TypeVar("Key")
Result = TypeVar("Result")


async def call_concurrently(
    keys: Iterable[Key],
    function: Callable[[Key], Awaitable[Result]],
    *,
    note: str | None = None,
) -> dict[Key, Result]:
    """Call `function` for all keys at once, and return its results in the order of the keys.

    An error cancels the other calls and is raised without a group, with a `note` that names its
    key. Of several errors, the first in the order of the keys is raised. An error takes precedence
    over a cancellation of the calling task, which Trio delivers again. A `KeyboardInterrupt` is
    raised without a group.
    """
    results = dict[Key, Result]()
    errors = dict[Key, Exception]()

    async def call(key: Key) -> None:
        try:
            results[key] = await function(key)
        except Exception as error:
            if note is not None:
                error.add_note(note.format(key))
            errors[key] = error
            nursery.cancel_scope.cancel()

    keys = list(keys)
    try:
        async with trio.open_nursery() as nursery:
            for key in keys:
                nursery.start_soon(call, key)
    except BaseExceptionGroup as group:  # It has no errors of calls, which are in `errors`.
        if group.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from None
        if not errors or group.split(trio.Cancelled)[1] is not None:
            raise
    if errors:
        raise errors[min(errors, key=keys.index)]
    return {key: results[key] for key in keys}
