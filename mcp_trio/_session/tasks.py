"""The tasks of a session, and exceptions in groups.

A session has no task that waits for work. The dispatcher starts tasks in the nursery of the session
as they are needed: a handler for each request (`leader_followers.py`), a callback for each
notification, and the session's own **actors**:

- the reader, if the channel does not deliver messages by itself;
- the writer and its watcher, while messages wait to be written;
- background tasks of the application;
- pings, if they are enabled.

An idle session over HTTP thus has no task at all. All actors have ended before the channel is
closed, even if the user's handlers in the same nursery go on.
"""

import random
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context
from functools import partial
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, TypeAlias, TypeVar, cast

import attrs
import trio

from mcp_trio._protocol.suggestions import option_advice
from mcp_trio._session.call_sites import owner_of
from mcp_trio._session.leader_followers import Job, Leader, TaskPool
from mcp_trio._transports.concurrency import Wakeup, call_when_cancelled
from mcp_trio.errors import MCPError

# Exceptions in groups ---------------------------------------------------------------------------

_Error = TypeVar("_Error", Exception, BaseException)


def sole_exception(error: _Error) -> _Error:
    """Return the only exception in a group, or in nested groups; otherwise the error itself.

    A nursery in a handler wraps the handler's exception in such a group.
    """
    inside = _members(error)
    return sole_exception(inside[0]) if len(inside) == 1 else error


def split_group(group: BaseExceptionGroup) -> tuple[Exception | None, BaseException]:
    """Split a group into its errors and the rest, such as `Cancelled`."""
    errors, rest = group.split(Exception)
    assert rest is not None  # Otherwise the group would be an ExceptionGroup.
    return None if errors is None else sole_exception(errors), rest


def from_users_code(
    error: BaseException,
) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return an exception for a log, with a traceback that begins in the user's code.

    The frames before that, which call a handler, are the same for every handler. An error that this
    package raises on purpose needs none of its frames, so its traceback also ends in that code. If
    no frame is the user's, the traceback stays as it is.
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
_UNEXPECTED: Final = re.compile(
    r"(?:Thread)?Context\.(\w+)\(\) got an unexpected keyword argument '(\w+)'"
)


def one_line_about(error: BaseException) -> str:
    """Return class, text, notes and place of an exception: "KeyError: 'a' (desk.py:12)".

    The place is the last line of the user's code in its traceback. The exceptions in a group follow
    in brackets.
    """
    notes: Sequence[str] = getattr(error, "__notes__", ())
    text = " ".join(" ".join([str(error), *notes]).split())
    place = ""
    traceback = error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if owner_of(file) == "user":
            place = f" ({Path(file).name}:{traceback.tb_lineno})"
        traceback = traceback.tb_next
    hint = next((hint for start, hint in _HINTS.items() if text.startswith(start)), "")
    if found := _UNEXPECTED.match(text):
        hint = option_advice("Context", *found.groups())
    members = "; ".join(map(one_line_about, _members(error)))
    return f"{type(error).__name__}{text and ': '}{text}{members and f' [{members}]'}{place}{hint}"


def exception_to_raise(group: BaseExceptionGroup) -> BaseException:
    """Return the exception to raise from an internal nursery: an error, even beside `Cancelled`.

    Return the group itself if it has no error, or an exception that is neither an error nor
    `Cancelled`.
    """
    if isinstance(group, ExceptionGroup):
        return sole_exception(cast("Exception", group))
    _, others = group.split((Exception, trio.Cancelled))
    error, _ = split_group(group)
    return group if error is None or others is not None else error


def _members(error: _Error) -> Sequence[_Error]:
    if not isinstance(error, BaseExceptionGroup):
        return ()
    group = cast("BaseExceptionGroup[BaseException]", error)
    return cast("Sequence[_Error]", group.exceptions)


# Concurrent calls -------------------------------------------------------------------------------

Key = TypeVar("Key")
Answer = TypeVar("Answer")


async def together(
    keys: Iterable[Key],
    ask: Callable[[Key], Awaitable[Answer]],
    *,
    note: str | None = None,
) -> dict[Key, Answer]:
    """Call `ask` for all keys at once, and return its results in the order of the keys.

    An error cancels the other calls and is raised without a group, with a `note` that names its
    key. Of several errors, the first in the order of the keys is raised. An error takes precedence
    over a cancellation of the calling task, which Trio delivers again. A `KeyboardInterrupt` is
    raised without a group.
    """
    answers = dict[Key, Answer]()
    failures = dict[Key, Exception]()

    async def ask_one(key: Key) -> None:
        try:
            answers[key] = await ask(key)
        except Exception as error:
            if note is not None:
                error.add_note(note.format(key))
            failures[key] = error
            nursery.cancel_scope.cancel()

    keys = list(keys)
    try:
        async with trio.open_nursery() as nursery:
            for key in keys:
                nursery.start_soon(ask_one, key)
    except BaseExceptionGroup as group:  # This has other exceptions than those of the calls.
        if group.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from None
        if not failures or group.split(trio.Cancelled)[1] is not None:
            raise
    if failures:
        raise failures[min(failures, key=keys.index)]
    return {key: answers[key] for key in keys}


# Seeded scheduling ------------------------------------------------------------------------------
#
# Trio runs tasks that are ready at the same time in random order, and has no public way to seed it.
# This is the only use of the private flag and random source that Trio's own tests use for that.

_FLAG: Final = "_ALLOW_DETERMINISTIC_SCHEDULING"


@contextmanager
def seeded_schedule(seed: int | str) -> Generator[None]:
    """Enter a context in which `trio.run` runs its tasks in an order that follows from `seed`.

    The seed is global to the process, and must not be used while other threads run Trio.

    Raises:
        RuntimeError: This version of Trio has no such flag.
    """
    scheduler = getattr(getattr(trio, "_core", None), "_run", None)
    random_source = getattr(scheduler, "_r", None)
    if not (isinstance(random_source, random.Random) and hasattr(scheduler, _FLAG)):
        text = f"Trio {trio.__version__} has no seed for the order in which tasks run"
        raise RuntimeError(text)
    assert isinstance(scheduler, ModuleType)
    flag, state = getattr(scheduler, _FLAG), random_source.getstate()
    setattr(scheduler, _FLAG, True)
    random_source.seed(seed)
    try:
        yield
    finally:
        setattr(scheduler, _FLAG, flag)
        random_source.setstate(state)


# Tasks ------------------------------------------------------------------------------------------

Actor: TypeAlias = Callable[[], Awaitable[None]]


@asynccontextmanager
async def open_shielded_pool(on_cancelled: Callable[[], None]) -> AsyncGenerator[TaskPool]:
    """Open a pool of tasks that the caller's cancellation does not cancel.

    `on_cancelled` is called when the caller is cancelled, and at the end of the block.
    """
    async with trio.open_nursery() as outer:
        outer.start_soon(call_when_cancelled, on_cancelled)
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as inner:
                pool = TaskPool(inner)
                try:
                    yield pool
                finally:
                    pool.close()
        outer.cancel_scope.cancel()


@attrs.define(eq=False, repr=False)
class Tasks:
    """The tasks of a session; those started before `open` begin then.

    `on_error` is called with an error that an actor raises together with a cancellation.
    """

    on_error: Callable[[Exception], None] | None
    _pool: TaskPool | None = attrs.field(default=None, init=False)
    _context: Context | None = attrs.field(default=None, init=False)
    _early: tuple[Callable[[], None], ...] = attrs.field(default=(), init=False)
    _actors: tuple[trio.CancelScope | Leader, ...] = attrs.field(default=(), init=False)
    _actor_ended: Wakeup | None = attrs.field(default=None, init=False)

    def open(self, pool: TaskPool, context: Context) -> None:
        """Start all tasks in `pool` from now on, with the context variables `context`.

        Otherwise a handler that waited for a slot would inherit those of the handler that freed it.
        """
        self._pool, self._context = pool, context
        early, self._early = self._early, ()
        for start in early:
            start()

    def start(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Start a task that ends by itself, or that its starter cancels."""
        if self._pool is None or self._context is None:
            self._early = (*self._early, partial(self.start, function, *arguments))
        else:
            self._context.run(self._pool.nursery.start_soon, function, *arguments)

    def start_job(self, job: Job) -> None:
        """Start a handler: a leader collects it, or a task of the pool runs it."""
        if self._pool is None or self._context is None:
            self._early = (*self._early, partial(self.start_job, job))
        else:
            self._pool.start_job(job, self._context)

    def start_leader(self, actor: Actor) -> Leader:
        """Start an actor that leads handlers, after `open`."""
        assert self._pool is not None
        assert self._context is not None

        async def run() -> None:
            try:
                await self._run_reported(actor)
            finally:
                self._remove_actor(leader)

        leader = self._context.run(self._pool.start_leader, run)
        self._actors = (*self._actors, leader)
        return leader

    def start_actor(self, actor: Actor) -> None:
        """Start an actor."""
        scope = trio.CancelScope()
        self._actors = (*self._actors, scope)
        self.start(self._run_actor, actor, scope)

    async def _run_actor(self, actor: Actor, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await self._run_reported(actor)
        finally:
            self._remove_actor(scope)

    async def _run_reported(self, actor: Actor) -> None:
        """Run an actor; an error of its transport beside a cancellation goes to `on_error`."""
        try:
            await actor()
        except BaseExceptionGroup as group:
            error, rest = split_group(group)
            if error is not None and self.on_error is not None:
                self.on_error(error)
            raise rest from None

    def _remove_actor(self, actor: "trio.CancelScope | Leader") -> None:
        self._actors = tuple(each for each in self._actors if each is not actor)
        if self._actor_ended is not None:
            self._actor_ended.wake()

    async def end_actors(self) -> None:
        """Cancel the actors, and wait for their end, shielded."""
        for actor in self._actors:
            actor.cancel()
        self._actor_ended = Wakeup()
        with trio.CancelScope(shield=True):
            while self._actors:
                await self._actor_ended.wait()
        self.on_error = None  # It refers to the session, which refers to these tasks.
