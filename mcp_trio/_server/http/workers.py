"""Several processes that serve one address: a parent, and the workers that it forks.

The parent forks, and waits: it runs no event loop and nothing of people's but what made the server.
So each worker, also one that takes another's place later, begins with the same server and the same
keys. All of them accept from the same sockets, which the parent holds: who is free takes the next
client, and none is lost with a worker that dies.

A worker that ends by itself is replaced, after a pause that grows. One that ends before all of them
served for the first time is a fault of the set-up, and ends everything.
"""

import logging
import signal
import socket
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Final

import attrs

from mcp_trio._limits import Limits
from mcp_trio._server.http.restarts import Restarts
from mcp_trio._server.stdio import SIGNALS

logger = logging.getLogger("mcp_trio")

_SERVING: Final = b"serving"
_SIGNALS_MAX: Final = 64
_WAITING_MAX: Final = 0xFFFF  # the system has a lower bound of its own


class WorkerFailedError(Exception):
    """A worker has ended before all of them had served; it has said why."""


@attrs.define(eq=False)
class _Place:
    """One of the workers, whichever process it is at the time."""

    restarts: Restarts
    process: ForkProcess | None = None
    tells: Connection | None = None
    changed_at: float = 0.0
    is_serving: bool = False


@attrs.define(kw_only=True, eq=False)
class Workers:
    """The parent; see the module.

    Attributes:
        number: How many there are.
        work: What each of them does, until SIGTERM; it calls what it is given when it serves.
        serving: Is called when all of them serve for the first time.
        limits: How long a stop may take, and what lies between restarts.
    """

    number: int
    work: Callable[[Callable[[], None]], None]
    serving: Callable[[], None]
    limits: Limits
    _places: Sequence[_Place] = attrs.field(init=False)
    _have_served: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._places = [_Place(Restarts(self.limits)) for _ in range(self.number)]

    def run(self) -> int:
        """Hold the workers until SIGINT or SIGTERM comes, which ends them; returns its number.

        They have `workers_stop_seconds` for that; those that are left then, or when a second signal
        comes, are killed.

        Raises:
            WorkerFailedError: One has ended before all of them had served; the others are stopped.
        """
        with _signals() as signals:
            try:
                return self._hold(signals)
            finally:
                self._stop(signals)

    def _hold(self, signals: socket.socket) -> int:
        while True:
            for place in self._places:
                self._look_after(place)
            if not self._have_served and all(place.is_serving for place in self._places):
                self._have_served = True
                self.serving()
            number = self._next_signal(signals, self._next_change())
            if number is not None:
                return number

    def _look_after(self, place: _Place) -> None:
        """Whatever is due at one place."""
        if place.process is None:
            if time.monotonic() >= place.changed_at:
                self._begin(place)
        elif place.process.exitcode is not None:
            self._replace(place, place.process)
        elif place.tells is not None and not place.is_serving:
            place.is_serving = _has_told(place.tells)

    def _begin(self, place: _Place) -> None:
        place.tells, tells = get_context("fork").Pipe(duplex=False)
        place.process = get_context("fork").Process(target=self._work, args=(tells,))
        # A signal between the fork and the worker's own handlers would be lost.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            place.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        tells.close()
        place.changed_at, place.is_serving = time.monotonic(), False

    def _work(self, tells: Connection) -> None:
        """All that a worker's process does.

        SIGINT goes to all processes of a terminal, of which the parent alone heeds it.
        """
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        self.work(partial(tells.send_bytes, _SERVING))

    def _replace(self, place: _Place, process: ForkProcess) -> None:
        """A worker has ended by itself.

        Raises:
            WorkerFailedError: And that before all of them had served.
        """
        number, status = process.pid, process.exitcode
        self._close(place)
        if not self._have_served:
            raise WorkerFailedError(f"worker {number} ended with status {status}, and never served")
        now = time.monotonic()
        pause_seconds = place.restarts.pause_seconds(now - place.changed_at)
        place.changed_at = now + pause_seconds
        text = "worker %s ended with status %s; another one begins in %g s"
        logger.error(text, number, status, pause_seconds)

    def _close(self, place: _Place) -> None:
        assert place.process is not None
        assert place.tells is not None
        place.process.close()
        place.tells.close()
        place.process = place.tells = None

    # Waiting.

    def _next_change(self) -> float | None:
        """When the next worker is to begin; None if all are there."""
        return min((each.changed_at for each in self._places if each.process is None), default=None)

    def _next_signal(self, signals: socket.socket, at: float | None) -> int | None:
        """Wait until a worker has news, or until a moment; a signal's number if there was one."""
        told = [each.tells for each in self._places if each.tells and not each.is_serving]
        seconds = None if at is None else max(0.0, at - time.monotonic())
        happened = wait([signals, *self._sentinels(), *told], seconds)
        return _number(signals) if signals in happened else None

    def _sentinels(self) -> Iterable[int]:
        return [each.process.sentinel for each in self._places if each.process is not None]

    # The end.

    def _stop(self, signals: socket.socket) -> None:
        for process in self._alive():
            process.terminate()
        stopped_at = time.monotonic() + self.limits.workers_stop_seconds
        while (alive := self._alive()) and time.monotonic() < stopped_at:
            seconds = max(0.0, stopped_at - time.monotonic())
            happened = wait([signals, *(each.sentinel for each in alive)], seconds)
            if signals in happened and _number(signals) is not None:
                break
        for process in self._alive():
            logger.error("worker %s is killed: it did not stop", process.pid)
            process.kill()
        for place in self._places:
            if place.process is not None:
                place.process.join()
                self._close(place)

    def _alive(self) -> list[ForkProcess]:
        processes = [each.process for each in self._places if each.process is not None]
        return [process for process in processes if process.is_alive()]


@contextmanager
def _signals() -> Generator[socket.socket]:
    """What becomes readable when a signal comes, which does nothing else meanwhile."""
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.settimeout(0)
        writer.settimeout(0)
        before = {number: signal.signal(number, _do_nothing) for number in SIGNALS}
        woken = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)


def _has_told(tells: Connection) -> bool:
    """Whether a worker says that it serves; one that is ending says nothing."""
    try:
        return tells.poll() and tells.recv_bytes() == _SERVING
    except EOFError:
        return False


def _do_nothing(*_: object) -> None:
    """What is done about a signal is up to who waits for it."""


def _number(signals: socket.socket) -> int | None:
    """The first signal that came; None if it was another one than those that end us."""
    numbers = signals.recv(_SIGNALS_MAX)
    return next((number for number in numbers if number in SIGNALS), None)


@contextmanager
def bound_sockets(host: str, port: int) -> Generator[Sequence[socket.socket]]:
    """Sockets that listen at an address, for all workers; closed at the end.

    Raises:
        OSError: It cannot be bound.
    """
    kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
    found = socket.getaddrinfo(host, port, type=kind, flags=flags)
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                socket.create_server(where[:2], family=family, backlog=_WAITING_MAX)
            )
            for family, *_, where in found
        ]
