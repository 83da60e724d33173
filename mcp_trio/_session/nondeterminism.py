"""Untracked calls: nondeterminism that a handler uses without its context, found at the call.

A replay returns recorded values for what a handler asks of its context. A clock that the handler
reads itself, a random number, a socket or a thread is an *untracked call*. A profile function, on
the loop's thread and on the threads of `def` handlers, sees each call of the functions in
`FUNCTIONS`, under whatever name they are called.

Only calls of users' code in a lane count. The function of an effect runs without a lane, because
its result is recorded. A profile function makes every call slower, so the loop's thread has it only
during the steps of tasks that are in a lane, or that may get their lane in this step.

Python removes a profile function that raises an exception, so a task in which an untracked call was
rejected is not watched until its next step. A profiler that is written in C cannot be called from
Python; while one runs nothing is watched, and a warning is logged.

The garbage collector runs finalizers in whichever task happens to run. Calls during a collection
are not attributed to that task.
"""

import functools
import gc
import importlib
import inspect
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar, Token
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, Self, TypeAlias

import attrs
import msgspec
import trio

from mcp_trio._session.journal import LANE
from mcp_trio.errors import BlockedInReplay, UntrackedNondeterminism


class UntrackedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a user's code that a replay cannot repeat.

    Attributes:
        call: The public name of the function.
        location: The position in the user's code, such as "at desk.py:12".
        lane: The name of the lane.
        instead: The replacement that a replay can repeat.
        is_outside: Whether the call reaches the outside world, as a replay of it would again.
    """

    call: str
    location: str
    lane: str
    instead: str
    is_outside: bool = False

    def __str__(self) -> str:
        return f"{self.call}() {self.location} in lane {self.lane}: use {self.instead}"


# The tables ---------------------------------------------------------------------------------------


@attrs.frozen
class _Rule:
    """A rule for calls: the replacement, and whether the call reaches the outside."""

    instead: str
    is_outside: bool = False


_NOW: Final = _Rule("ctx.now()")
_MONOTONIC: Final = _Rule("ctx.monotonic()")
_RANDOM: Final = _Rule("ctx.random")
_UUID: Final = _Rule("ctx.uuid4()")
_SECRET: Final = _Rule("ctx.random, or an @effect if it has to stay secret")
_SLEEP: Final = _Rule("ctx.sleep()", is_outside=True)
_THREAD_RULE: Final = _Rule("ctx.to_thread()", is_outside=True)
_PROCESS: Final = _Rule("an @effect that runs it", is_outside=True)
_NETWORK: Final = _Rule("ctx.http, or an @effect that does it", is_outside=True)

# Functions by their public names. Those that this Python or this system lacks are skipped.
FUNCTIONS: Final[Mapping[str, _Rule]] = {
    "time.time": _NOW,
    "time.time_ns": _NOW,
    "datetime.datetime.now": _NOW,
    "datetime.datetime.utcnow": _NOW,
    "datetime.datetime.today": _NOW,
    "datetime.date.today": _NOW,
    "time.monotonic": _MONOTONIC,
    "time.monotonic_ns": _MONOTONIC,
    "time.perf_counter": _MONOTONIC,
    "time.perf_counter_ns": _MONOTONIC,
    "time.process_time": _MONOTONIC,
    "time.process_time_ns": _MONOTONIC,
    "time.thread_time": _MONOTONIC,
    "time.thread_time_ns": _MONOTONIC,
    "random.random": _RANDOM,
    "random.getrandbits": _RANDOM,
    "random.Random.seed": _RANDOM,
    "uuid._generate_time_safe": _UUID,
    "os.urandom": _SECRET,
    "os.getrandom": _SECRET,
    "time.sleep": _SLEEP,
    "trio.to_thread.run_sync": _THREAD_RULE,
    "_thread.start_new_thread": _THREAD_RULE,
    "_thread.start_joinable_thread": _THREAD_RULE,
    "subprocess.Popen.__init__": _PROCESS,
    "_posixsubprocess.fork_exec": _PROCESS,
    "os.fork": _PROCESS,
    "os.forkpty": _PROCESS,
    "os.posix_spawn": _PROCESS,
    "os.posix_spawnp": _PROCESS,
    "os.system": _PROCESS,
    "socket.socket.__init__": _NETWORK,
    "_socket.getaddrinfo": _NETWORK,
    "_socket.gethostbyaddr": _NETWORK,
    "_socket.gethostbyname": _NETWORK,
    "_socket.gethostbyname_ex": _NETWORK,
    "_socket.getnameinfo": _NETWORK,
}

# Methods of sockets, which may have been opened earlier, such as those of a connection pool.
SOCKET_METHODS: Final = frozenset(
    {"_accept", "bind", "connect", "connect_ex", "listen", "send", "sendall", "sendmsg", "sendto"}
    | {"recv", "recv_into", "recvfrom", "recvfrom_into", "recvmsg", "recvmsg_into"}
)

# Rules of modules in whose name a function is called: `uuid.uuid4` calls `os.urandom`, for example.
_BY_MODULE: Final[Mapping[str, _Rule]] = {
    "uuid": _UUID,
    "secrets": _SECRET,
    "trio._subprocess": _PROCESS,
}

# Modules that return the clock or random number that they read to their caller.
_RETURNS_READING: Final = frozenset({"datetime", "_pydatetime", "random", "secrets", "uuid"})

# Libraries that read the clock for their own time limits, and do not return it.
_READS_FOR_ITSELF: Final = frozenset({"anyio", "httpcore", "httpcore2", "httpx", "httpx2"})

# Modules whose calls do not influence the handler.
_WITHOUT_INFLUENCE: Final = frozenset({"logging"})

# The owners of code ------------------------------------------------------------------------------

_Owner: TypeAlias = Literal["user", "library", "standard", "trio", "mcp_trio"]

_OURS: Final = str(Path(__file__).resolve().parent.parent) + os.sep
_EXAMPLES: Final = _OURS + "examples" + os.sep
_TRIO: Final = str(Path(trio.__file__).resolve().parent) + os.sep
_STANDARD: Final = str(Path(inspect.__file__).resolve().parent) + os.sep
_LIBRARY_FOLDERS: Final = ("site-packages", "dist-packages")

# The owner of a file: the first row whose beginning matches.
_OWNERS: Final[tuple[tuple[str | tuple[str, ...], _Owner], ...]] = (
    (_EXAMPLES, "user"),
    (_OURS, "mcp_trio"),
    (_TRIO, "trio"),
    ("<frozen ", "standard"),
    ("<", "library"),
    (tuple(_STANDARD + folder for folder in _LIBRARY_FOLDERS), "library"),
    (_STANDARD, "standard"),
)


@functools.lru_cache(maxsize=4096)
def owner_of(file: str) -> _Owner:
    """Return the owner of a file's code; generated code belongs to a library."""
    for start, owner in _OWNERS:
        if file.startswith(start):
            return owner
    is_library = any(folder in Path(file).parts for folder in _LIBRARY_FOLDERS)
    return "library" if is_library else "user"


def _module(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__")
    return name if isinstance(name, str) else ""


def _is_done_for_caller(frame: FrameType, owner: _Owner, rule: _Rule) -> bool:
    """Return whether a call by a frame of the standard library or Trio counts as its caller's."""
    top = _module(frame).partition(".")[0]
    if top in _WITHOUT_INFLUENCE or owner == "mcp_trio":
        return False
    return rule.is_outside or top in _RETURNS_READING


def _responsible_frame(
    frame: FrameType | None, rule: _Rule
) -> tuple[FrameType, FrameType | None] | None:
    """Return the frame of a user or library that is responsible for a call, and what it called.

    None: the call does not count, or no code of users and libraries made it.
    """
    called = None
    while frame is not None:
        owner = owner_of(frame.f_code.co_filename)
        if owner in {"user", "library"}:
            is_internal = _module(frame).partition(".")[0] in _READS_FOR_ITSELF
            return None if is_internal and not rule.is_outside else (frame, called)
        if not _is_done_for_caller(frame, owner, rule):
            return None
        called, frame = frame, frame.f_back
    return None


def _location(frame: FrameType) -> str:
    """Return file and line of the nearest caller in a user's code, or of the library's."""
    caller: FrameType | None = frame
    while caller is not None and (owner := owner_of(caller.f_code.co_filename)) != "mcp_trio":
        if owner == "user":
            frame = caller
            break
        caller = caller.f_back
    return f"at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _public_name(frame: FrameType) -> str:
    names = [part for part in _module(frame).split(".") if not part.startswith("_")]
    name = frame.f_code.co_qualname.removesuffix(".__init__").rpartition("<locals>.")[2]
    return ".".join([*names, name.lstrip("_")])


# The functions that the profile function looks for ------------------------------------------------


@attrs.frozen
class Row:
    """The public name of a function, and its rule."""

    name: str
    rule: _Rule


def _rows() -> dict[object, Row]:
    """Return the rows by what a profile function gets: a C function, or the id of Python code."""
    rows: dict[object, Row] = {}
    for name, rule in FUNCTIONS.items():
        function = _found(name)
        if function is not None:
            code = getattr(inspect.unwrap(function), "__code__", None)
            key = function if code is None else id(code)
            rows[key] = Row(name.removesuffix(".__init__"), rule)
    return rows


def _found(name: str) -> Any:
    module, _, path = name.partition(".")
    try:
        found: Any = importlib.import_module(module)
    except ImportError:
        return None
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


_ROWS: Final = _rows()
_SEED: Final = id(_found("random.Random.seed").__code__)
_CONNECTION: Final = socket.socket.__base__ or socket.socket


def row_of_function(function: Any) -> Row | None:
    """Return the row of a C function that is about to be called; None if it has none."""
    name = function.__name__
    if name in SOCKET_METHODS and isinstance(function.__self__, _CONNECTION):
        return Row(f"socket.{name}", _NETWORK)
    return _ROWS.get(function)


def row_of_code(frame: FrameType) -> Row | None:
    """Return the row of the Python function whose frame was just created; None if it has none."""
    code = id(frame.f_code)
    if code == _SEED and frame.f_locals.get("a") is not None:
        return None  # The handler gave a seed: the numbers are the same in every run.
    return _ROWS.get(code)


def untracked_call_of(frame: FrameType, row: Row, lane: str) -> UntrackedCall | None:
    """Return the untracked call that `frame` makes by calling the function of `row`.

    None: the call belongs to no code of users and libraries, or has no influence on the handler.
    """
    found = _responsible_frame(frame, row.rule)
    if found is None:
        return None
    responsible, called = found
    rule = row.rule if called is None else _BY_MODULE.get(_module(called), row.rule)
    return UntrackedCall(
        call=row.name if called is None else _public_name(called),
        location=_location(responsible),
        lane=lane,
        instead=rule.instead,
        is_outside=row.rule.is_outside,
    )


# Watches ------------------------------------------------------------------------------------------

logger = logging.getLogger("mcp_trio")


@attrs.define(eq=False, kw_only=True)
class UntrackedCallWatch:
    """A context manager that reports the untracked calls of tasks that begin inside it.

    It is entered inside a Trio run; tasks may enter several. An exception of `on_untracked_call` is
    raised at the call, which then does not happen.

    Attributes:
        on_untracked_call: Called with each untracked call before it happens.
        blocks: Whether a call that reaches the outside world raises `BlockedInReplay`.
    """

    on_untracked_call: Callable[[UntrackedCall], None]
    blocks: bool = False
    _token: "Token[UntrackedCallWatch | None] | None" = attrs.field(default=None, init=False)

    def __enter__(self) -> Self:
        _install()
        self._token = _WATCH.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _WATCH.reset(self._token)
        _uninstall()

    def report(self, untracked_call: UntrackedCall) -> None:
        """Report an untracked call that is about to happen.

        Raises:
            BlockedInReplay: It reaches the outside world, and this watch blocks such calls.
        """
        self.on_untracked_call(untracked_call)
        if self.blocks and untracked_call.is_outside:
            raise BlockedInReplay(
                f"{untracked_call.call}() {untracked_call.location} would reach outside of the"
                f" replay: use {untracked_call.instead}, so that its result is recorded"
            )


def first_step_hook(context: Context) -> "_Hook | None":
    """Return the hook to arm while a leader runs the first step of a handler with these variables.

    None: the session is not watched, or the hook is armed already. Steps of a task in a lane are
    watched from their beginning; a leader runs a handler's first step within a step of its own.
    """
    if context.get(_WATCH) is None:
        return None
    hook = _THREAD.hook
    return None if hook is None or sys.getprofile() is hook else hook


def strict_watch() -> UntrackedCallWatch:
    """Return the watch of a strict recording, where untracked calls raise an error."""
    return UntrackedCallWatch(on_untracked_call=_reject)


def _reject(untracked_call: UntrackedCall) -> None:
    raise UntrackedNondeterminism(f"a replay of this would differ: {untracked_call}")


@contextmanager
def watching_thread() -> Generator[None, None, None]:
    """Watch the thread of a handler that enters this, if its session is watched."""
    if _WATCH.get() is None:
        yield
        return
    hook = _Hook()
    hook.arm()
    _note_collections()
    try:
        yield
    finally:
        _stop_noting_collections()
        hook.disarm()


# The profile function of a thread -----------------------------------------------------------------

_WATCH: Final[ContextVar[UntrackedCallWatch | None]] = ContextVar("mcp_trio_watch", default=None)
_ProfileFunction = Callable[[FrameType, str, Any], object]


@attrs.define(eq=False)
class _Hook:
    """A thread's profile function. It calls `previous`, which was there before, first."""

    previous: _ProfileFunction | None = attrs.field(default=None, init=False)

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if self.previous is not None:
            self.previous(frame, event, arg)
        caller: FrameType | None = frame
        if event == "c_call":
            row = row_of_function(arg)
        elif event == "call":
            row, caller = row_of_code(frame), frame.f_back
        else:
            return
        if row is not None and caller is not None:
            self._report(caller, row)

    def _report(self, frame: FrameType, row: Row) -> None:
        if _THREAD.is_collecting:
            return
        watch, lane = _WATCH.get(), LANE.get()
        if watch is None or lane is None:
            return
        untracked_call = untracked_call_of(frame, row, lane.name)
        if untracked_call is not None:
            watch.report(untracked_call)

    def arm(self) -> None:
        """Install this function, unless a profiler written in C is installed."""
        previous: Any = sys.getprofile()
        if previous is None or callable(previous):
            self.previous = previous
            sys.setprofile(self)

    def disarm(self) -> None:
        """Restore the previous profile function, unless another one was installed meanwhile."""
        if sys.getprofile() in {self, None}:
            sys.setprofile(self.previous)


@attrs.define(eq=False)
class _LoopHook(_Hook, trio.abc.Instrument):
    """The profile function of the loop's thread, for all watches, armed step by step."""

    watches: int = 0
    _new_tasks: set[trio.lowlevel.Task] = attrs.field(factory=set[trio.lowlevel.Task], init=False)

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        """Note a new task: it may be a handler, which gets its lane in its first step."""
        self._new_tasks.add(task)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Watch a step in a lane, or one in which the task may get its lane."""
        if task.context.get(LANE) is not None or task in self._new_tasks:
            self._new_tasks.discard(task)
            self.arm()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002  Trio's signature
        """Stop watching until the next step."""
        self.disarm()


class _Thread(threading.local):
    hook: _LoopHook | None = None
    is_collecting: bool = False


_THREAD: Final = _Thread()


def _collection_begins(phase: str, _: object) -> None:
    if phase == "start":
        _THREAD.is_collecting = True


def _collection_ends(phase: str, _: object) -> None:
    if phase == "stop":
        _THREAD.is_collecting = False


def _note_collections() -> None:
    gc.callbacks.insert(0, _collection_begins)
    gc.callbacks.append(_collection_ends)


def _stop_noting_collections() -> None:
    gc.callbacks.remove(_collection_begins)
    gc.callbacks.remove(_collection_ends)


def _install() -> None:
    """Add a watch of the loop's thread; the first one installs the hook."""
    hook = _THREAD.hook
    if hook is None:
        hook = _THREAD.hook = _LoopHook()
        trio.lowlevel.add_instrument(hook)
        _note_collections()
        profiler: Any = sys.getprofile()
        if not (profiler is None or callable(profiler)):
            logger.warning("a profiler is running, so untracked calls are not reported")
    hook.watches += 1


def _uninstall() -> None:
    """Remove a watch of the loop's thread; the last one removes the hook."""
    hook = _THREAD.hook
    assert hook is not None
    hook.watches -= 1
    if not hook.watches:
        _THREAD.hook = None
        trio.lowlevel.remove_instrument(hook)
        _stop_noting_collections()
        hook.disarm()
