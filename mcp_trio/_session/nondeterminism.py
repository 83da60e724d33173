"""Stray nondeterminism: what a handler reads or does beside its context, found at the call.

A replay gives a handler the same answers as when it was recorded, but only to what it asks through
its context. A clock that it reads by itself, a random number, a socket, a thread are strays. A
profile function on the loop's thread, and on the threads of `def` handlers, looks at every call: by
name, by module or as a bound method, it is the same function that is called in the end. Which ones,
`untracked_call_calls` says.

Only what people's code does in a lane counts. An effect's function runs without a lane, and is
there to do just this. Since looking at a call costs as much as many calls do, the loop's thread has
the profile function only while a task in a lane, or one that may get a lane now, makes a step.

Python drops a profile function that raises. So until its next step, the task that was stopped is
not looked at. A profiler written in C cannot be called on from here; while one runs, nothing is
watched, and that is logged.

The garbage collector calls what it likes, in whichever task happens to run: nothing that begins in
there is that task's doing.
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

# --------------------
# Which calls are strays, and who did them: the tables behind `untracked_calls`.
#
# A call counts as that of the nearest code of people below it on the stack. Standard library code
# in between does what it does for its caller, with the exceptions that are in the tables: a log
# record's time, for one, is nobody's input.


class UntrackedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call beside the context: what was called, where ("at desk.py:12"), and what to use instead.

    `is_outside` tells the worse kind: one that reaches the outside world, and would do so again in
    a replay.
    """

    call: str
    site: str
    lane: str
    instead: str
    is_outside: bool = False

    def __str__(self) -> str:
        return f"{self.call}() {self.site} in lane {self.lane}: use {self.instead}"


# The tables.


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

# Functions by their public names; one that this Python or system lacks is passed over.
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

# What a socket that was there before must not do either, such as one of a pool.
SOCKET_METHODS: Final = frozenset(
    {"_accept", "bind", "connect", "connect_ex", "listen", "send", "sendall", "sendmsg", "sendto"}
    | {"recv", "recv_into", "recvfrom", "recvfrom_into", "recvmsg", "recvmsg_into"}
)

# For what a module does there may be a better word than for how it does it.
_BY_MODULE: Final[Mapping[str, _Rule]] = {
    "uuid": _UUID,
    "secrets": _SECRET,
    "trio._subprocess": _PROCESS,
}

# Whose reading of a clock or a random number is that of its caller.
_HANDS_ON: Final = frozenset({"datetime", "_pydatetime", "random", "secrets", "uuid"})

# Who measures for itself: what it measures is not what it returns.
_MEASURES: Final = frozenset({"anyio", "httpcore", "httpcore2", "httpx", "httpx2"})

# Who may do what it wants: no handler learns of it.
_QUIET: Final = frozenset({"logging"})

# Where code is.

_Owner: TypeAlias = Literal["people", "library", "standard", "trio", "ours"]

_OURS: Final = str(Path(__file__).resolve().parent.parent) + os.sep
_EXAMPLES: Final = _OURS + "examples" + os.sep
_TRIO: Final = str(Path(trio.__file__).resolve().parent) + os.sep
_STANDARD: Final = str(Path(inspect.__file__).resolve().parent) + os.sep
_LIBRARY_FOLDERS: Final = ("site-packages", "dist-packages")

# The first row that fits counts.
_OWNERS: Final[tuple[tuple[str | tuple[str, ...], _Owner], ...]] = (
    (_EXAMPLES, "people"),
    (_OURS, "ours"),
    (_TRIO, "trio"),
    ("<frozen ", "standard"),
    ("<", "library"),
    (tuple(_STANDARD + folder for folder in _LIBRARY_FOLDERS), "library"),
    (_STANDARD, "standard"),
)


@functools.lru_cache(maxsize=4096)
def owner_of(file: str) -> _Owner:
    """Whose code a file holds; `library`: people have installed it, or it was generated."""
    for start, owner in _OWNERS:
        if file.startswith(start):
            return owner
    is_library = any(folder in Path(file).parts for folder in _LIBRARY_FOLDERS)
    return "library" if is_library else "people"


def _module(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__")
    return name if isinstance(name, str) else ""


def _hands_on(frame: FrameType, owner: _Owner, rule: _Rule) -> bool:
    """Return whether a call by a library frame is attributed to the caller of the library."""
    top = _module(frame).partition(".")[0]
    if top in _QUIET or owner == "ours":
        return False
    return rule.is_outside or top in _HANDS_ON


def _callers(frame: FrameType | None, rule: _Rule) -> tuple[FrameType, FrameType | None] | None:
    """The frame of people that did it, and what it called; None if it was nobody of them."""
    called = None
    while frame is not None:
        owner = owner_of(frame.f_code.co_filename)
        if owner in {"people", "library"}:
            measures = _module(frame).partition(".")[0] in _MEASURES and not rule.is_outside
            return None if measures else (frame, called)
        if not _hands_on(frame, owner, rule):
            return None
        called, frame = frame, frame.f_back
    return None


def _site(frame: FrameType) -> str:
    """File and line of people's own code, if it is on the way; else of the library's."""
    shown: FrameType | None = frame
    while shown is not None and (owner := owner_of(shown.f_code.co_filename)) != "ours":
        if owner == "people":
            frame = shown
            break
        shown = shown.f_back
    return f"at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _public_name(frame: FrameType) -> str:
    names = [part for part in _module(frame).split(".") if not part.startswith("_")]
    name = frame.f_code.co_qualname.removesuffix(".__init__").rpartition("<locals>.")[2]
    return ".".join([*names, name.lstrip("_")])


# What is looked for.


@attrs.frozen
class Row:
    """The public name of a function, and its rule."""

    name: str
    rule: _Rule


def _rows() -> dict[object, Row]:
    """The table by what the profile function gets: a function in C, or the id of Python code."""
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
    """The row of a function in C that is about to be called; None if it is harmless."""
    name = function.__name__
    if name in SOCKET_METHODS and isinstance(function.__self__, _CONNECTION):
        return Row(f"socket.{name}", _NETWORK)
    return _ROWS.get(function)


def row_of_code(frame: FrameType) -> Row | None:
    """The row of a function in Python whose frame has just been made."""
    code = id(frame.f_code)
    if code == _SEED and frame.f_locals.get("a") is not None:
        return None  # a seed of one's own: the same numbers in every run
    return _ROWS.get(code)


def untracked_call_of(frame: FrameType, row: Row, lane: str) -> UntrackedCall | None:
    """Judge a call by who does it; `frame` calls what the row names. None: it is no stray."""
    found = _callers(frame, row.rule)
    if found is None:
        return None
    doer, called = found
    rule = row.rule if called is None else _BY_MODULE.get(_module(called), row.rule)
    return UntrackedCall(
        call=row.name if called is None else _public_name(called),
        site=_site(doer),
        lane=lane,
        instead=rule.instead,
        is_outside=row.rule.is_outside,
    )


logger = logging.getLogger("mcp_trio")


@attrs.define(eq=False, kw_only=True)
class UntrackedCallWatch:
    """Calls `on_untracked_call` at each stray call of the tasks that begin while it is entered.

    A context manager, entered inside a Trio run; several may be, by different tasks. What
    `on_untracked_call` raises is raised at the call, which is not done then.

    With `blocks`, a call that reaches the outside raises `BlockedInReplay` afterwards.
    """

    on_untracked_call: Callable[[UntrackedCall], None]
    blocks: bool = False
    _token: "Token[UntrackedCallWatch | None] | None" = attrs.field(default=None, init=False)

    def __enter__(self) -> Self:
        """Watch from now on."""
        _install()
        self._token = _WATCH.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Watch no more."""
        assert self._token is not None
        _WATCH.reset(self._token)
        _uninstall()

    def see(self, untracked_call: UntrackedCall) -> None:
        """A stray call is about to be done.

        Raises:
            BlockedInReplay: See the class.
        """
        self.on_untracked_call(untracked_call)
        if self.blocks and untracked_call.is_outside:
            raise BlockedInReplay(
                f"{untracked_call.call}() {untracked_call.site} would reach outside of the replay:"
                f" use {untracked_call.instead}, so that its result is recorded"
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
    """The watch of a strict recording: every stray call raises `UntrackedNondeterminism`."""
    return UntrackedCallWatch(on_untracked_call=_reject)


def _reject(untracked_call: UntrackedCall) -> None:
    raise UntrackedNondeterminism(f"a replay of this would differ: {untracked_call}")


@contextmanager
def watching_thread() -> Generator[None, None, None]:
    """Look at a handler's thread too, if its session is watched; for the thread to enter."""
    if _WATCH.get() is None:
        yield
        return
    hook = _Hook()
    hook.arm()
    _look_for_collections()
    try:
        yield
    finally:
        _forget_collections()
        hook.disarm()


# The profile function of a thread.

_WATCH: Final[ContextVar[UntrackedCallWatch | None]] = ContextVar("mcp_trio_strays", default=None)
_ProfileFunction = Callable[[FrameType, str, Any], object]


@attrs.define(eq=False)
class _Hook:
    """The profile function of a thread; `previous` is called first, as if we were not there."""

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
            self._look(caller, row)

    def _look(self, frame: FrameType, row: Row) -> None:
        if _THREAD.collects:
            return
        watch, lane = _WATCH.get(), LANE.get()
        if watch is None or lane is None:
            return
        untracked_call = untracked_call_of(frame, row, lane.name)
        if untracked_call is not None:
            watch.see(untracked_call)

    def arm(self) -> None:
        """Look from now on, unless a profiler is there that cannot be called from here."""
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
    """The one of a loop's thread, however many watches; armed step by step."""

    watches: int = 0
    _new_tasks: set[trio.lowlevel.Task] = attrs.field(factory=set[trio.lowlevel.Task], init=False)

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        """A handler gets its lane in its first step."""
        self._new_tasks.add(task)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Look at a step in a lane, or one in which the task may get its lane."""
        if task.context.get(LANE) is not None or task in self._new_tasks:
            self._new_tasks.discard(task)
            self.arm()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002  Trio's signature
        """Look at nothing between the steps."""
        self.disarm()


class _Thread(threading.local):
    hook: _LoopHook | None = None
    collects: bool = False


_THREAD: Final = _Thread()


def _collection_begins(phase: str, _: object) -> None:
    if phase == "start":
        _THREAD.collects = True


def _collection_ends(phase: str, _: object) -> None:
    if phase == "stop":
        _THREAD.collects = False


def _look_for_collections() -> None:
    gc.callbacks.insert(0, _collection_begins)
    gc.callbacks.append(_collection_ends)


def _forget_collections() -> None:
    gc.callbacks.remove(_collection_begins)
    gc.callbacks.remove(_collection_ends)


def _install() -> None:
    """One more watch of the loop's thread."""
    hook = _THREAD.hook
    if hook is None:
        hook = _THREAD.hook = _LoopHook()
        trio.lowlevel.add_instrument(hook)
        _look_for_collections()
        profiler: Any = sys.getprofile()
        if not (profiler is None or callable(profiler)):
            logger.warning("a profiler runs: strays are not looked for")
    hook.watches += 1


def _uninstall() -> None:
    """One watch less."""
    hook = _THREAD.hook
    assert hook is not None
    hook.watches -= 1
    if not hook.watches:
        _THREAD.hook = None
        trio.lowlevel.remove_instrument(hook)
        _forget_collections()
        hook.disarm()
