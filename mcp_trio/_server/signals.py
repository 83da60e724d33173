"""Serving until a signal arrives, and the forced exit of a process that does not end after it.

A thread forces the exit, so that it works even if a handler blocks the event loop, or is shielded
from its cancellation. Before that it prints where handlers keep the process from ending.
"""

import gc
import itertools
import logging
import math
import os
import select
import selectors
import signal
import sys
import threading
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import CodeType, FrameType
from typing import Any, Final, NoReturn, TypeAlias

import trio

from mcp_trio._recorder.clock import TickClock
from mcp_trio._server.effects import CURRENT_CONTEXT
from mcp_trio._server.threads import CALLING_THREAD
from mcp_trio._session.call_sites import owner_of
from mcp_trio._session.exceptions import raise_unchanged, sole_exception
from mcp_trio._session.handlers import Handling
from mcp_trio._session.lanes import await_frames
from mcp_trio._system import SIGHUP, open_process_end

logger = logging.getLogger("mcp_trio")

SIGNAL_STATUS_BASE: Final = 128
"""Added to the number of the signal that ended the process, this is its exit status."""


# Serving until a signal arrives -----------------------------------------------------------------

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

OnServing: TypeAlias = Callable[[str], None]
_Serve: TypeAlias = Callable[..., Awaitable[None]]


def log_serving(url: str) -> None:
    """Log the URL at which a server accepts requests."""
    logger.info("serving %s", url)


def run_until_signal(
    serve: _Serve,
    *,
    exit_seconds: float,
    on_serving: Callable[[Any], object] = log_serving,
    stop: Callable[[Any], None] | None = None,
    parent_pid: int | None = None,
    **options: Any,
) -> None:
    """Call `trio.run` with `serve` and these options, until it returns or a signal arrives.

    `serve_until_signal` describes the other arguments.

    Raises:
        SystemExit: After a signal, with status 128 plus the number of the signal.
        Exception: The error that `serve` raised, not in an exception group.
    """
    run = partial(
        serve_until_signal,
        partial(serve, **options),
        on_serving,
        exit_seconds,
        stop=stop,
        parent_pid=parent_pid,
    )
    number = trio.run(run, clock=TickClock())
    if number:
        raise SystemExit(SIGNAL_STATUS_BASE + number)


async def serve_until_signal(
    serve: _Serve,
    on_serving: Callable[[Any], object],
    exit_seconds: float,
    signals: Collection[int] = SIGNALS,
    until: Callable[[], Awaitable[None]] = trio.sleep_forever,
    *,
    stop: Callable[[Any], None] | None = None,
    parent_pid: int | None = None,
) -> int:
    """Serve until a signal arrives, and return its number; return 0 if serving ends before.

    Args:
        serve: Serves until cancelled or `stop` is called; it reports what it serves.
        on_serving: Called with what `serve` reports.
        exit_seconds: The seconds between a signal and the forced exit; see `forced_exit`.
        signals: The numbers of the signals that end it.
        until: Serving ends when this returns.
        stop: Called with what `serve` has reported when a signal arrives. Without it, and before
            `serve` has reported, `serve` is cancelled.
        parent_pid: The parent process, whose end forces the exit as well.

    Raises:
        Exception: The error that `serve` raised, not in an exception group.
    """
    received: list[int] = []
    reported: list[Any] = []
    serving = trio.CancelScope()

    async def watch(receiver: AsyncIterator[int]) -> None:
        async for number in receiver:
            received.append(number)
            if stop is None or not reported:
                serving.cancel()
            else:
                stop(reported[0])

    async def wait() -> None:
        await until()
        serving.cancel()

    with (
        trio.open_signal_receiver(*signals) as receiver,
        forced_exit(signals, seconds=exit_seconds, parent_pid=parent_pid),
        ExitStack() as until_end,
    ):
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch, receiver)
                nursery.start_soon(wait)
                with serving:
                    async with trio.open_nursery() as inner:
                        reported.append(await inner.start(serve))
                        until_end.enter_context(_frozen_heap())
                        on_serving(reported[0])
                nursery.cancel_scope.cancel()
        except ExceptionGroup as error:
            raise_unchanged(sole_exception(error))
    return received[0] if received else 0


_FROZEN_BY_PYTHON_MAX: Final = 1_000  # CPython 3.12 freezes 375 objects when it starts.


@contextmanager
def _frozen_heap() -> Generator[None]:
    """Let garbage collections ignore what is alive now: modules, functions, registered entries.

    These stay until the process ends. A full collection would visit them all, for some 25 ms, in
    the middle of a request. An application that has called `gc.freeze` itself keeps its choice.
    """
    if gc.get_freeze_count() > _FROZEN_BY_PYTHON_MAX:
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


# The forced exit --------------------------------------------------------------------------------

_LINES_MAX: Final = 20
_PRINT_SECONDS_MAX: Final = 1.0
_WAIT_SECONDS_MAX: Final = 3600.0
_TRIO_RUN: Final[CodeType] = trio.run.__code__


@contextmanager
def forced_exit(
    signals: Collection[int], *, seconds: float, parent_pid: int | None = None
) -> Generator[None]:
    """Within this context, exit `seconds` after a signal, and at once after a second signal.

    With `parent_pid`, also exit `seconds` after the end of the parent process, on Linux; the exit
    status is then that of SIGHUP. On Windows nothing is forced: a thread cannot wait for a signal.

    Has to be entered in a Trio run, within `trio.open_signal_receiver` for the same signals. Before
    a forced exit, the places in the users' code that held the process are printed to stderr. The
    exit status is `SIGNAL_STATUS_BASE` plus the number of the signal, no clean-up is run, and
    recordings end as after a crash.
    """
    if sys.platform == "win32":
        yield
        return
    reader_fd, writer_fd = os.pipe()
    os.set_blocking(writer_fd, False)
    # Python runs its handlers of signals between two instructions of the main thread, which may
    # block for any time. It writes the numbers of signals to this descriptor at once.
    trio_fd = signal.set_wakeup_fd(writer_fd, warn_on_full_buffer=False)
    root_task = trio.lowlevel.current_root_task()
    parent_fd = None if parent_pid is None else open_process_end(parent_pid)
    watch = partial(
        _watch_signals, reader_fd, trio_fd, frozenset(signals), seconds, parent_fd, root_task
    )
    thread = threading.Thread(target=watch, name="mcp_trio exit", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(trio_fd)
        os.close(writer_fd)  # ends the thread
        thread.join()
        os.close(reader_fd)
        if parent_fd is not None:
            os.close(parent_fd)


def _watch_signals(
    reader_fd: int,
    trio_fd: int,
    signals: frozenset[int],
    seconds: float,
    parent_fd: int | None,
    root_task: trio.lowlevel.Task | None,
) -> None:
    """Read the numbers of signals from `reader_fd`, pass them on to `trio_fd`, and force the exit.

    The thread of `forced_exit` runs this until the other end of `reader_fd` is closed.
    """
    if sys.platform == "win32":  # `forced_exit` starts no thread there
        return
    first, exit_at, cause = 0, math.inf, ""
    selector = selectors.PollSelector()  # `select.select` takes no descriptor above 1023
    selector.register(reader_fd, selectors.EVENT_READ)
    if parent_fd is not None:
        selector.register(parent_fd, selectors.EVENT_READ)
    while True:
        left_seconds = min(max(0.0, exit_at - time.monotonic()), _WAIT_SECONDS_MAX)
        ready = {key.fd for key, _ in selector.select(left_seconds)}
        if not ready and time.monotonic() >= exit_at:
            _exit(first or SIGHUP, _report(cause, seconds, root_task))
        if parent_fd is not None and parent_fd in ready:
            selector.unregister(parent_fd)
            if math.isinf(exit_at):  # no signal has come before
                exit_at, cause = time.monotonic() + seconds, "the end of its parent"
        if reader_fd not in ready:
            continue
        data = os.read(reader_fd, select.PIPE_BUF)
        if not data:
            return
        with suppress(OSError):  # it is full, so that Trio wakes anyway
            os.write(trio_fd, data)
        for number in signals.intersection(data):
            if first or data.count(number) > 1:
                _exit(number)
            first, exit_at = number, time.monotonic() + seconds
            cause = signal.Signals(number).name


def _exit(number: int, lines: Iterable[str] = ()) -> NoReturn:
    """Print lines, and end the process with the status for the signal of this number."""

    def print_lines() -> None:
        text = "".join(f"{line}\n" for line in lines)
        os.write(2, text.encode(errors="backslashreplace"))

    try:
        # If stderr is a full pipe that the parent does not read, printing never returns.
        printing = threading.Thread(target=print_lines, daemon=True)
        printing.start()
        printing.join(_PRINT_SECONDS_MAX)
    finally:
        os._exit(SIGNAL_STATUS_BASE + number)


def _report(cause: str, seconds: float, root_task: trio.lowlevel.Task | None) -> Iterator[str]:
    """Yield the lines to print before a forced exit."""
    yield (
        f"mcp_trio: the process has not ended within {seconds:g} s after {cause}"
        " (limits.shutdown.exit_seconds), and is ended now. It was held by:"
    )
    places = list(itertools.islice(_user_places(root_task), _LINES_MAX))
    yield from (f"  {place}" for place in places or ["nothing in a handler"])


def _user_places(root_task: trio.lowlevel.Task | None) -> Iterator[str]:
    """Yield a line for each place in users' code that runs, or at which a task waits."""
    frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  documented
    blocking = _innermost_user_frame(frames.get(threading.main_thread().ident or 0))
    if blocking is not None:
        yield f"the event loop, which is blocked {_location(blocking, blocking.f_lineno)}"
    pending = [] if root_task is None else [root_task]
    while pending:
        task = pending.pop()
        pending += (child for nursery in task.child_nurseries for child in nursery.child_tasks)
        thread = task.context.get(CALLING_THREAD)
        if thread is not None and thread in frames:
            frame = _innermost_user_frame(frames[thread])
            place = "" if frame is None else f" {_location(frame, frame.f_lineno)}"
            yield f"{_request_label(task)}in a thread{place}"
            continue
        try:
            waiting = [
                (frame, line)
                for frame, line in await_frames(task)
                if owner_of(frame.f_code.co_filename) == "user"
            ]
        except Exception:  # noqa: S112  the task goes on meanwhile
            continue
        if waiting:
            yield f"{_request_label(task)}a task that waits {_location(*waiting[-1])}"


def _innermost_user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of a user, within `trio.run`."""
    while frame is not None and frame.f_code is not _TRIO_RUN:
        if owner_of(frame.f_code.co_filename) == "user":
            return frame
        frame = frame.f_back
    return None


def _request_label(task: trio.lowlevel.Task) -> str:
    """Return the method of the request that a task handles, and the name of its tool or prompt."""
    context = task.context.get(CURRENT_CONTEXT)
    if context is None:
        return ""
    if not isinstance(context.caller, Handling):
        return "the lifespan: "
    request = context.caller.request
    name = getattr(request.params, "name", None)
    return f"{request.method.name}{f' {name!r}' if isinstance(name, str) else ''}: "


def _location(frame: FrameType, line: int) -> str:
    return f"at {frame.f_code.co_filename}:{line}, in {frame.f_code.co_qualname}"
