"""Stray nondeterminism: what a handler reads or does beside its context, found at the call.

A replay gives a handler the same answers as when it was recorded, but only to what it asks through
its context. A clock that it reads by itself, a random number, a socket, a thread are strays. A
profile function on the loop's thread, and on the threads of `def` handlers, looks at every call: by
name, by module or as a bound method, it is the same function that is called in the end. Which ones,
`stray_calls` says.

Only what people's code does in a lane counts. An effect's function runs without a lane, and is
there to do just this. Since looking at a call costs as much as many calls do, the loop's thread has
the profile function only while a task in a lane, or one that may get a lane now, makes a step.

Python drops a profile function that raises. So until its next step, the task that was stopped is
not looked at. A profiler written in C cannot be called on from here; while one runs, nothing is
watched, and that is logged.

The garbage collector calls what it likes, in whichever task happens to run: nothing that begins in
there is that task's doing.
"""

import gc
import logging
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar, Token
from types import FrameType
from typing import Any, Final, Self

import attrs
import trio

from mcp_trio._engine.lanes import LANE
from mcp_trio._engine.stray_calls import Row, Stray, row_of_code, row_of_function, stray_of
from mcp_trio._errors import BlockedInReplay, StrayNondeterminism

logger = logging.getLogger("mcp_trio")


@attrs.define(eq=False, kw_only=True)
class StrayWatch:
    """Calls `on_stray` at each stray call of the tasks that begin while it is entered.

    A context manager, entered inside a Trio run; several may be, by different tasks. What
    `on_stray` raises is raised at the call, which is not done then.

    With `blocks`, a call that reaches the outside raises `BlockedInReplay`, after `on_stray`.
    """

    on_stray: Callable[[Stray], None]
    blocks: bool = False
    _token: "Token[StrayWatch | None] | None" = attrs.field(default=None, init=False)

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

    def see(self, stray: Stray) -> None:
        """A stray call is about to be done.

        Raises:
            BlockedInReplay: See the class.
        """
        self.on_stray(stray)
        if self.blocks and stray.is_outside:
            raise BlockedInReplay(
                f"{stray.call}() {stray.site} reaches the outside world, which a replay has none"
                f" of: use {stray.instead}, so that its result is recorded"
            )


def is_watched(context: Context) -> bool:
    """Whether what begins with these variables is watched: it has to begin in a step of its own."""
    return context.get(_WATCH) is not None


def strict_watch() -> StrayWatch:
    """The watch of a strict recording: every stray call raises `StrayNondeterminism`."""
    return StrayWatch(on_stray=_refuse)


def _refuse(stray: Stray) -> None:
    raise StrayNondeterminism(f"a replay of this would differ: {stray}")


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

_WATCH: Final[ContextVar[StrayWatch | None]] = ContextVar("mcp_trio_strays", default=None)
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
        stray = stray_of(frame, row, lane.name)
        if stray is not None:
            watch.see(stray)

    def arm(self) -> None:
        """Look from now on, unless a profiler is there that cannot be called from here."""
        previous: Any = sys.getprofile()
        if previous is None or callable(previous):
            self.previous = previous
            sys.setprofile(self)

    def disarm(self) -> None:
        """What was there before comes back, unless somebody else has taken the place since."""
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
