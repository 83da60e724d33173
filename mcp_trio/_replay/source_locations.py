"""Source locations of users' code, for reports."""

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

import msgspec
import trio

from mcp_trio._server.handlers import Serving
from mcp_trio._server.introspection import plain_function
from mcp_trio._server.registry import Registered, Registry, target_of
from mcp_trio._server.threads import CALLING_THREAD
from mcp_trio._session.handlers import Application
from mcp_trio._session.nondeterminism import owner_of
from mcp_trio.errors import MCPError
from mcp_trio.types import CompleteParams


def site_here() -> str:
    """File and line of the people's code that runs in this task; empty if there is none."""
    thread = CALLING_THREAD.get()
    if thread is not None:
        return _site_in_thread(thread)
    outermost = getattr(trio.lowlevel.current_task().coro, "cr_frame", None)
    return _site_above(inspect.currentframe(), outermost)


def site_of_caller() -> str:
    """File and line of the people's code that runs, in a task or in a thread."""
    return _site_above(inspect.currentframe(), None)


def site_of(task: trio.lowlevel.Task) -> str:
    """File and line of the people's code in which a task waits; empty if there is none."""
    if not is_alive(task):
        return ""
    sites = [_site(f.f_code, line) for f, line in task.iter_await_frames() if _is_peoples(f.f_code)]
    thread = task.context.get(CALLING_THREAD)
    if not sites and thread is not None:
        return _site_in_thread(thread)
    return sites[-1] if sites else ""


def _site_in_thread(thread: int) -> str:
    """The line of a handler's thread that waits for the loop."""
    return _site_above(sys._current_frames().get(thread), None)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  documented


def _site_above(frame: FrameType | None, outermost: object) -> str:
    while frame is not None and frame is not outermost:
        if _is_peoples(frame.f_code):
            return _site(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return ""


def site_of_error(error: BaseException) -> str:
    """File and line of the people's code that raised; empty if it was not theirs."""
    site = ""
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        if _is_peoples(traceback.tb_frame.f_code):
            site = _site(traceback.tb_frame.f_code, traceback.tb_lineno)
        traceback = traceback.tb_next
    return site


def is_alive(task: trio.lowlevel.Task) -> bool:
    """Return whether a task has something left to run."""
    return inspect.getcoroutinestate(task.coro) != inspect.CORO_CLOSED


def _is_peoples(code: CodeType) -> bool:
    return owner_of(code.co_filename) == "people"


def _site(code: CodeType, line: int) -> str:
    return f"at {_file_name(code.co_filename)}:{line}"


@functools.lru_cache(maxsize=4096)
def _file_name(path: str) -> str:
    return Path(path).name


# Where a handler is defined.


class _Message(msgspec.Struct):
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")


class _Named(msgspec.Struct):
    name: str = ""
    uri: str = ""


def definition_site(application: Application, message: bytes) -> str:
    """Name, file and line of the handler that a message to a server calls; empty if none does."""
    if not isinstance(application, Serving):
        return ""
    try:
        found = _handler(application.registry, msgspec.json.decode(message, type=_Message))
    except (ValueError, MCPError):  # no such message, no such URI
        return ""
    if found is None:
        return ""
    code = plain_function(found.signature.handler).__code__
    return f"in {found.name} {_site(code, code.co_firstlineno)}"


def _handler(registry: Registry, message: _Message) -> Registered | None:
    own = registry.methods.get(message.method)
    if own is not None or message.method not in _FINDERS:
        return own
    kind, find = _FINDERS[message.method]
    return find(registry, msgspec.json.decode(message.params, type=kind))


def _find_resource(registry: Registry, params: _Named) -> Registered | None:
    found = registry.find_resource(params.uri)
    return None if found is None else found[0]


def _find_completion(registry: Registry, params: CompleteParams) -> Registered | None:
    return registry.completions.get((target_of(params.ref), params.argument.name))


_FINDERS: Final[dict[str, tuple[Any, Callable[[Registry, Any], Registered | None]]]] = {
    "tools/call": (_Named, lambda registry, params: registry.tools.get(params.name)),
    "prompts/get": (_Named, lambda registry, params: registry.prompts.get(params.name)),
    "resources/read": (_Named, _find_resource),
    "completion/complete": (CompleteParams, _find_completion),
}
