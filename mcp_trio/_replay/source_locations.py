"""Source locations of users' code for reports: file name and line, such as `at prices.py:16`.

If no code of a user is involved, locations are empty texts, and lists of frames are empty.
"""

import functools
import inspect
import linecache
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Final

import msgspec
import trio

from mcp_trio._replay.trace import message_fields
from mcp_trio._server.handlers import ServedSession
from mcp_trio._server.introspection import plain_function
from mcp_trio._server.registry import Registered, target_of
from mcp_trio._server.threads import CALLING_THREAD
from mcp_trio._session.call_sites import module_of, owner_of
from mcp_trio._session.handlers import Application
from mcp_trio._session.lanes import DRIVER, LANE, await_frames
from mcp_trio._session.untracked_calls import UntrackedCall
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
        return _innermost_location(_frame_of_thread(thread), None)
    outermost = getattr(trio.lowlevel.current_task().coro, "cr_frame", None)
    return _innermost_location(inspect.currentframe(), outermost)


def lifespan_use(attribute: str, instead: str) -> UntrackedCall:
    """Return the untracked call for a use of a lifespan's `attribute`, at the user's code."""
    lane = LANE.get()
    return UntrackedCall(
        call=attribute,
        location=_innermost_location(inspect.currentframe(), None),
        lane="" if lane is None else lane.name,
        instead=instead,
        changes_outside=True,
    )


def task_location(task: trio.lowlevel.Task) -> str:
    """Return the location of the user's code at which a task waits."""
    frames = user_frames(task) if is_alive(task) else []
    return _location(frames[-1][0].f_code, frames[-1][1]) if frames else ""


def user_frames(task: trio.lowlevel.Task) -> list[tuple[FrameType, int]]:
    """Return the frames of the user's code of a waiting task, or of the thread that it acts for.

    The list begins with the outermost frame. Frames of libraries between two of the user's frames
    are included.
    """
    thread = task.context.get(CALLING_THREAD)
    if thread is not None:
        return _trimmed_to_user_code(_outer_frames(_frame_of_thread(thread)))
    return _trimmed_to_user_code(await_frames(task))


def current_user_frames() -> list[tuple[FrameType, int]]:
    """Return the frames of the user's code that runs in this task, or in a thread for it."""
    thread = CALLING_THREAD.get()
    frame = inspect.currentframe() if thread is None else _frame_of_thread(thread)
    return _trimmed_to_user_code(_outer_frames(frame))


def _outer_frames(frame: FrameType | None) -> list[tuple[FrameType, int]]:
    """Return a frame and those that called it, outermost first.

    The first is the one that `drive` of `_session/lanes.py` has called, which runs the steps of a
    handler, or else the one that the task began with.
    """
    frames: list[tuple[FrameType, int]] = []
    outermost = getattr(trio.lowlevel.current_task().coro, "cr_frame", None)
    while frame is not None and frame is not outermost and frame.f_code is not DRIVER:
        frames.append((frame, frame.f_lineno))
        frame = frame.f_back
    return frames[::-1]


def _trimmed_to_user_code(frames: Iterable[tuple[FrameType, int]]) -> list[tuple[FrameType, int]]:
    """Return the frames without those before the first and after the last of the user's code."""
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
    return inspect.getcoroutinestate(task.coro) != inspect.CORO_CLOSED


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


# The name of a file may contain spaces.
_LOCATION: Final = re.compile(r"(?:.* )?at (?P<name>.+):(?P<line>[0-9]+)")


def source_of(location: str) -> str:
    """Return a location with the text of its line, or the location alone.

    The text is left out if it cannot be read, or if it differs between files of the same name.
    """
    match = _LOCATION.match(location)
    paths = () if match is None else _PATHS.get(match["name"], ())
    texts = {linecache.getline(path, int(match["line"])).strip() for path in paths if match}
    text = texts.pop() if len(texts) == 1 else ""
    return f"{location}: {text}" if text else location


# Handlers -----------------------------------------------------------------------------------------


def handler_location(application: Application, message: bytes) -> str:
    """Return name and location of the handler that a message calls: `in greet at server.py:7`."""
    if (found := _handler_of(application, message)) is None:
        return ""
    code = plain_function(found.signature.handler).__code__
    return f"in {found.name} {_location(code, _line_of_def(code))}"


def handler_entry(application: Application, message: bytes) -> tuple[str, int] | None:
    """Return the file and the first line in the body of the handler that a message calls."""
    if (found := _handler_of(application, message)) is None:
        return None
    code = plain_function(found.signature.handler).__code__
    begin = _line_of_def(code)
    body = (line for _, _, line in code.co_lines() if line and line > begin)
    return code.co_filename, min(body, default=begin)


def _handler_of(application: Application, message: bytes) -> Registered | None:
    if not isinstance(application, ServedSession):
        return None
    registry, call = application.registry, message_fields(message)
    # A handler that the user registered for the method itself comes first.
    if call.method in registry.methods:
        return registry.methods[call.method]
    try:
        match call.method, call.params:
            case "tools/call", {"name": str(name)}:
                return registry.tools.get(name)
            case "prompts/get", {"name": str(name)}:
                return registry.prompts.get(name)
            case "resources/read", {"uri": str(uri)}:
                found = registry.find_resource(uri)
                return None if found is None else found[0]
            case "completion/complete", params:
                completed = msgspec.convert(params, CompleteParams)
                return registry.completions.get((target_of(completed.ref), completed.argument.name))
            case _:
                return None
    except (ValueError, MCPError):  # invalid params, or an unknown URI
        return None


def _line_of_def(code: CodeType) -> int:
    """Return the line at which a function is defined; its first line may be a decorator's."""
    first = code.co_firstlineno
    last = max((line for _, _, line in code.co_lines() if line), default=first)
    for line in range(first, last + 1):
        if linecache.getline(code.co_filename, line).lstrip().startswith(("def ", "async def ")):
            return line
    return first
