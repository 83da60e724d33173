"""Call sites: the owner of the code that makes a call, and the user's line that is responsible.

A call of the standard library or of Trio counts as one of the user or library that called it. Calls
of this package do not count, except for those of its clients and channels. Neither do those of the
modules in `_WITHOUT_INFLUENCE`, which do not change what a handler does: logging, the import
system, debuggers.

The garbage collector runs finalizers in whichever task happens to run. While
`is_collecting_garbage` returns True, calls are not attributed to that task.
"""

import functools
import gc
import inspect
import logging
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, TypeAlias

import outcome
import trio

Owner: TypeAlias = Literal["user", "library", "standard", "trio", "mcp_trio"]

_OURS: Final = str(Path(__file__).resolve().parent.parent) + os.sep
_EXAMPLES: Final = _OURS + "examples" + os.sep
_TRIO: Final = tuple(
    str(Path(inspect.getfile(module)).resolve().parent) + os.sep for module in (trio, outcome)
)
_STANDARD: Final = str(Path(inspect.__file__).resolve().parent) + os.sep
_LIBRARY_FOLDERS: Final = ("site-packages", "dist-packages")

# The owner of a file: the first row whose beginning matches.
_OWNERS: Final[tuple[tuple[str | tuple[str, ...], Owner], ...]] = (
    (_EXAMPLES, "user"),
    (_OURS, "mcp_trio"),
    (_TRIO, "trio"),
    ("<frozen ", "standard"),
    ("<", "library"),
    (tuple(_STANDARD + folder for folder in _LIBRARY_FOLDERS), "library"),
    (_STANDARD, "standard"),
)

# Modules whose files, clocks and calls do not influence the handler that uses them.
_WITHOUT_INFLUENCE: Final = frozenset(
    {"logging", "importlib", "lazy_loader", "linecache", "traceback", "inspect", "warnings"}
    | {"pkgutil", "zipimport", "encodings", "zoneinfo", "_strptime", "gettext"}
    | {"bdb", "pdb", "coverage", "debugpy", "pydevd", "_pydevd_bundle"}
)

# The module with which Trio wakes its event loop, as for the finalizer of an async generator.
_WAKES_LOOP: Final = "trio._core._wakeup_socketpair"

# The module that drives the tasks of handlers: what it calls was passed to Trio by a handler.
_DRIVES_TASKS: Final = "mcp_trio._session.lanes"

# The module of `trio.Path`, and the variable in its methods that has the function for the thread.
_WRAPS_PATHS: Final = "trio._path"
_WRAPPED: Final = "fn"

# Modules of this package whose changes of the outside count as the caller's: a handler may open a
# client or a channel by itself.
_OUTGOING: Final = ("mcp_trio._client.", "mcp_trio._transports.")

# Modules that read clocks for time limits of their own, and do not return what they read.
_READS_FOR_ITSELF: Final = frozenset(
    {"anyio", "httpcore", "httpcore2", "httpx", "httpx2"}
    | {"asyncio", "concurrent", "multiprocessing", "queue", "sched", "selectors", "socket", "ssl"}
    | {"subprocess", "threading", "unittest"}
)


def signature_of(function: Any) -> inspect.Signature:
    """Return the signature of a callable; a name in an annotation need not be defined (yet).

    Python 3.14 evaluates annotations here, and puts a `ForwardRef` in the place of such a name.

    Raises:
        TypeError, ValueError: The signature is unknown, as of some builtins.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


@functools.lru_cache(maxsize=4096)
def owner_of(file: str) -> Owner:
    """Return the owner of a file's code; generated code belongs to a library."""
    for start, owner in _OWNERS:
        if file.startswith(start):
            return owner
    is_library = any(folder in Path(file).parts for folder in _LIBRARY_FOLDERS)
    return "library" if is_library else "user"


def module_of(frame: FrameType) -> str:
    """Return the name of the module whose code a frame runs; empty if it has none."""
    name = frame.f_globals.get("__name__")
    return name if isinstance(name, str) else ""


def reads_for_handler(frame: FrameType) -> bool:
    """Return whether a clock or random number that this frame reads may influence a handler."""
    reader: FrameType | None = frame
    while reader is not None:
        owner = owner_of(reader.f_code.co_filename)
        if owner == "user":
            return True
        top = module_of(reader).partition(".")[0]
        if owner in {"trio", "mcp_trio"} or top in _WITHOUT_INFLUENCE or top in _READS_FOR_ITSELF:
            return False
        if owner == "library":
            return True
        reader = reader.f_back
    return False


def responsible_frame(
    frame: FrameType | None, *, changes_outside: bool
) -> tuple[FrameType, FrameType | None] | None:
    """Return the frame of a user or library that is responsible for a call, and what it called.

    `frame` made the call; `changes_outside` is True if the call changes the outside. Returns None
    if the call does not count, or if no code of users and libraries made it.
    """
    called = None
    while frame is not None:
        owner = owner_of(frame.f_code.co_filename)
        if owner == "user":
            return frame, called
        module = module_of(frame)
        if module == _DRIVES_TASKS:
            return None if called is None else (called, called)
        is_outgoing = changes_outside and module.startswith(_OUTGOING)
        is_internal = owner == "mcp_trio" and not is_outgoing
        is_internal |= module == _WAKES_LOOP
        is_without_influence = module.partition(".")[0] in _WITHOUT_INFLUENCE
        if is_internal or (is_without_influence and not _sets_up_log(frame)):
            return None
        if owner == "library":
            return frame, called
        called, frame = frame, frame.f_back
    return None


# Functions of `logging` by which a program chooses its log files; others write into the log.
_SET_UP: Final = frozenset({"__init__", "basicConfig", "dictConfig", "fileConfig"})


def _sets_up_log(frame: FrameType) -> bool:
    """Return whether a frame of `logging` opens a file because the program sets its log up."""
    outer: FrameType | None = frame
    name = ""
    while outer is not None and module_of(outer).partition(".")[0] == logging.__name__:
        name, outer = outer.f_code.co_name, outer.f_back
    return name in _SET_UP


def location(frame: FrameType) -> str:
    """Return file and line of the nearest caller in a user's code, or of the library's."""
    caller: FrameType | None = frame
    while caller is not None and (owner := owner_of(caller.f_code.co_filename)) != "mcp_trio":
        if owner == "user":
            frame = caller
            break
        caller = caller.f_back
    return f"at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def public_name(frame: FrameType) -> str:
    """Return the name by which a user calls the function that a frame runs."""
    if module_of(frame) == _WRAPS_PATHS and (function := _path_method(frame)):
        return f"trio.Path.{function}"
    names = [part for part in module_of(frame).split(".") if not part.startswith("_")]
    name = frame.f_code.co_qualname.removesuffix(".__init__").rpartition("<locals>.")[2]
    return ".".join([*names, name.lstrip("_")])


def _path_method(frame: FrameType) -> str:
    """Return the name of the method of `pathlib.Path` that a method of `trio.Path` calls.

    All these methods are wrappers that have the wrapped function in a variable; empty if a later
    Trio has no such variable.
    """
    function = frame.f_locals.get(_WRAPPED)
    while function is not None:
        inner = inspect.getclosurevars(function).nonlocals.get(_WRAPPED)
        if inner is None:
            return str(getattr(function, "__name__", ""))
        function = inner
    return ""


# Finalizers ---------------------------------------------------------------------------------------


class _Thread(threading.local):
    is_collecting_garbage: bool = False


_THREAD: Final = _Thread()


def is_collecting_garbage() -> bool:
    """Return whether the garbage collector runs finalizers in this thread."""
    return _THREAD.is_collecting_garbage


def _collection_begins(phase: str, _: object) -> None:
    if phase == "start":
        _THREAD.is_collecting_garbage = True
        if gc.callbacks[0] is not _collection_begins or gc.callbacks[-1] is not _collection_ends:
            note_garbage_collections()


def _collection_ends(phase: str, _: object) -> None:
    if phase == "stop":
        _THREAD.is_collecting_garbage = False


def note_garbage_collections() -> None:
    """Make `is_collecting_garbage` report collections from now on; repeated calls do nothing.

    Calls in the callbacks of others are not the task's either, so ours are put first and last.
    """
    others = [each for each in gc.callbacks if each not in (_collection_begins, _collection_ends)]
    gc.callbacks[:] = [_collection_begins, *others, _collection_ends]
