"""Source locations of users' code for reports: file name and line, such as `at prices.py:16`.

If no code of a user is involved, locations are empty texts, and lists of frames are empty.
"""

import functools
import inspect
import linecache
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

import msgspec
import trio

from mcp_trio._server.handlers import ServedSession
from mcp_trio._server.introspection import plain_function
from mcp_trio._server.registry import Registered, Registry, target_of
from mcp_trio._server.threads import CALLING_THREAD
from mcp_trio._session.call_sites import module_of, owner_of
from mcp_trio._session.handlers import Application
from mcp_trio._session.lanes import DRIVER, await_frames
from mcp_trio.errors import MCPError
from mcp_trio.types import CompleteParams

# The private packages of this project, without the examples, which are users' code.
_OWN_MODULES: Final = "mcp_trio._"

# Running code -------------------------------------------------------------------------------------


def current_location() -> str:
    """Return the location of the user's code that runs in this task, or in a thread for it.

    Frames outside of the task do not count, such as those of a program that calls `trio.run`.
    """
    thread = CALLING_THREAD.get()
    if thread is not None:
        return _thread_location(thread)
    outermost = getattr(trio.lowlevel.current_task().coro, "cr_frame", None)
    return _innermost_location(inspect.currentframe(), outermost)


def caller_location() -> str:
    """Return the location of the innermost user's code on the stack of this thread."""
    return _innermost_location(inspect.currentframe(), None)


def task_location(task: trio.lowlevel.Task) -> str:
    """Return the location of the user's code at which a task waits."""
    if not is_alive(task):
        return ""
    locations = [
        _location(frame.f_code, line)
        for frame, line in await_frames(task)
        if _is_user_code(frame.f_code)
    ]
    thread = task.context.get(CALLING_THREAD)
    if not locations and thread is not None:
        return _thread_location(thread)
    return locations[-1] if locations else ""


def user_frames(task: trio.lowlevel.Task) -> list[tuple[FrameType, int]]:
    """Return the frames of the user's code of a waiting task, or of the thread that it acts for.

    The list begins with the outermost frame. Frames of libraries between two of the user's frames
    are included.
    """
    thread = task.context.get(CALLING_THREAD)
    if thread is not None:
        return _cut_to_users(_outer_frames(_frame_of_thread(thread)))
    return _cut_to_users(await_frames(task))


def current_user_frames() -> list[tuple[FrameType, int]]:
    """Return the frames of the user's code that runs in this task, or in a thread for it."""
    thread = CALLING_THREAD.get()
    frame = inspect.currentframe() if thread is None else _frame_of_thread(thread)
    return _cut_to_users(_outer_frames(frame))


def _outer_frames(frame: FrameType | None) -> list[tuple[FrameType, int]]:
    """Return a frame and those that called it, up to the driver or the beginning of the task."""
    frames: list[tuple[FrameType, int]] = []
    outermost = getattr(trio.lowlevel.current_task().coro, "cr_frame", None)
    while frame is not None and frame is not outermost and frame.f_code is not DRIVER:
        frames.append((frame, frame.f_lineno))
        frame = frame.f_back
    return frames[::-1]


def _cut_to_users(frames: Iterable[tuple[FrameType, int]]) -> list[tuple[FrameType, int]]:
    """Return the frames from the first of a user's to the last."""
    cut = [*frames]
    while cut and not _is_user_code(cut[-1][0].f_code):
        del cut[-1]
    first = next((at for at, (each, _) in enumerate(cut) if _is_user_code(each.f_code)), 0)
    return cut[first:]


def error_location(error: BaseException) -> str:
    """Return the location of the user's code that raised an error."""
    location = ""
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        if _is_user_code(traceback.tb_frame.f_code):
            location = _location(traceback.tb_frame.f_code, traceback.tb_lineno)
        traceback = traceback.tb_next
    return location


def is_alive(task: trio.lowlevel.Task) -> bool:
    """Return whether a task has not finished."""
    return inspect.getcoroutinestate(task.coro) != inspect.CORO_CLOSED


def _thread_location(thread: int) -> str:
    """Return the location at which a handler's thread waits for the event loop."""
    return _innermost_location(_frame_of_thread(thread), None)


def _frame_of_thread(thread: int) -> FrameType | None:
    return sys._current_frames().get(thread)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  documented


def _innermost_location(frame: FrameType | None, outermost: object) -> str:
    while frame is not None and frame is not outermost:
        # Each use of `f_code` raises an audit event. Most frames are this package's, and the
        # module's name is enough to pass over them.
        if not module_of(frame).startswith(_OWN_MODULES) and _is_user_code(frame.f_code):
            return _location(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return ""


def _is_user_code(code: CodeType) -> bool:
    return owner_of(code.co_filename) == "user"


def _location(code: CodeType, line: int) -> str:
    return f"at {_file_name(code.co_filename)}:{line}"


# The paths of the files in locations, by their names. Two files may have the same name.
_PATHS: Final[dict[str, set[str]]] = {}


@functools.lru_cache(maxsize=4096)
def _file_name(path: str) -> str:
    name = Path(path).name
    _PATHS.setdefault(name, set()).add(path)
    return name


_PLACE: Final = re.compile(r"(?P<name>[^\s:]+):(?P<line>[0-9]+)")


def source_of(location: str) -> str:
    """Return a location with the text of its line, if the text can be read and is the only one."""
    match = _PLACE.search(location)
    paths = () if match is None else _PATHS.get(match["name"], ())
    texts = {linecache.getline(path, int(match["line"])).strip() for path in paths if match}
    text = texts.pop() if len(texts) == 1 else ""
    return f"{location}: {text}" if text else location


# Handlers -----------------------------------------------------------------------------------------


class _Message(msgspec.Struct):
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")


class _TargetParams(msgspec.Struct):
    name: str = ""
    uri: str = ""


def handler_location(application: Application, message: bytes) -> str:
    """Return name and location of the handler that a message calls: `in greet at server.py:7`."""
    found = _handler_of(application, message)
    if found is None:
        return ""
    code = plain_function(found.signature.handler).__code__
    return f"in {found.name} {_location(code, _line_of_def(code))}"


def handler_entry(application: Application, message: bytes) -> tuple[str, int] | None:
    """Return the file and the first line in the body of the handler that a message calls."""
    found = _handler_of(application, message)
    if found is None:
        return None
    code = plain_function(found.signature.handler).__code__
    lines = {line for _, _, line in code.co_lines() if line}
    body = [line for line in lines if line > _line_of_def(code)]
    return code.co_filename, min(body, default=_line_of_def(code))


def _handler_of(application: Application, message: bytes) -> Registered | None:
    if not isinstance(application, ServedSession):
        return None
    registry = application.registry
    try:
        call = msgspec.json.decode(message, type=_Message)
        # A handler that the user registered for the method itself comes first.
        of_method = registry.methods.get(call.method)
        if of_method is not None or call.method not in _FINDERS:
            return of_method
        params_type, find = _FINDERS[call.method]
        return find(registry, msgspec.json.decode(call.params, type=params_type))
    except (ValueError, MCPError):  # an invalid message, or an unknown URI
        return None


def _line_of_def(code: CodeType) -> int:
    """Return the line at which a function is defined; its first line may be a decorator's."""
    first = code.co_firstlineno
    last = max((line for _, _, line in code.co_lines() if line), default=first)
    for line in range(first, last):
        if linecache.getline(code.co_filename, line).lstrip().startswith(("def ", "async def ")):
            return line
    return first


def _find_resource(registry: Registry, params: _TargetParams) -> Registered | None:
    found = registry.find_resource(params.uri)
    return None if found is None else found[0]


# By the method of the protocol: the type of its params, and a function that finds the handler.
_FINDERS: Final[dict[str, tuple[Any, Callable[[Registry, Any], Registered | None]]]] = {
    "tools/call": (_TargetParams, lambda registry, params: registry.tools.get(params.name)),
    "prompts/get": (_TargetParams, lambda registry, params: registry.prompts.get(params.name)),
    "resources/read": (_TargetParams, _find_resource),
    "completion/complete": (
        CompleteParams,
        lambda registry, params: registry.completions.get(
            (target_of(params.ref), params.argument.name)
        ),
    ),
}
