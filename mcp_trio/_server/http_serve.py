"""Processes that serve HTTP until a signal comes: one, or a parent with several workers."""

import logging
import os
import signal
import socket
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Sequence,
)
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, Final, NoReturn, Protocol, TypeAlias, cast

import attrs
import trio

from mcp_trio._protocol.security import host_check_for
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio._recorder.writer import SharedRecording, holds_many_sessions
from mcp_trio._server.http_app import HttpApp, WebSocketEndpoint
from mcp_trio._server.http_options import HostKind, HttpOptions, HttpStores
from mcp_trio._server.http_sessions import Restarts, Runtime, ServesSessions
from mcp_trio._server.sealed_state import MemoryStore, StateStore
from mcp_trio._server.sockets import Door, verify_of
from mcp_trio._server.stdio import SIGNAL_STATUS_BASE, SIGNALS
from mcp_trio._session.leader_followers import TaskPool
from mcp_trio._session.tasks import bare, foremost
from mcp_trio._transports.concurrency import tell_when_cancelled
from mcp_trio._transports.sockets import netloc
from mcp_trio._transports.stdio import wait_parent_death
from mcp_trio.limits import Limits

# --------------------
# Several processes that serve one address: a parent, and the workers that it forks.
#
# The parent forks, and waits: it runs no event loop and nothing of people's but what made the
# server. So each worker, also one that takes another's place later, begins with the same server and
# the same keys. All of them accept from the same sockets, which the parent holds: who is free takes
# the next client, and none is lost with a worker that dies.
#
# A worker that ends by itself is replaced, after a pause that grows. One that ends before all of
# them served for the first time is a fault of the set-up, and ends everything.


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

        They have `limits.shutdown.workers_seconds` for that; those that are left then, or when a
        second signal comes, are killed.

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
        stopped_at = time.monotonic() + self.limits.shutdown.workers_seconds
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


# --------------------
# Serving a server over HTTP, in the caller's nursery.


def app_of(
    server: ServesSessions, options: HttpOptions, bound: Sequence[tuple[str, int]]
) -> HttpApp:
    """The application, for where it is bound; its runtime runs nowhere yet.

    Raises:
        TypeError: There is no such option.
        ValueError: Sessions cannot be recorded so, as they would replace each other; or the gate's
            settings are none; or there are both `token` and `verify`.
    """
    unknown = options.keys() - HttpOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f'not an option here: {", ".join(sorted(unknown))} (workers= is for "run")')
    if not holds_many_sessions(options.get("record")):
        raise ValueError("over HTTP, record to a folder or a SharedRecording: sessions are many")
    host_check = host_check_for(
        bound,
        hosts=options.get("hosts"),
        origins=options.get("origins"),
        allows_cors=options.get("allows_cors", False),
    )
    runtime = Runtime(server, options.get("record"), options.get("stores") or HttpStores())
    verify = verify_of(options.get("token"), options.get("verify"))
    door = Door(host_check=host_check, path=options.get("ws_path", "/ws"), verify=verify)
    has_websocket = options.get("has_websocket", True)
    return HttpApp(
        runtime=runtime,
        host_check=host_check,
        path=options.get("path", "/mcp"),
        verify=verify,
        streams_answers=options.get("streams_answers", False),
        has_sse=options.get("has_sse", True),
        websocket=WebSocketEndpoint(runtime=runtime, door=door) if has_websocket else None,
    )


@attrs.frozen(kw_only=True)
class Address:
    """Where a server listens, and who holds its connections.

    Attributes:
        host: The name or number of an interface; the default is reached from this machine only.
        port: 0 for any that is free.
        holder: The kind of host.
        certfile: A certificate, in PEM, for TLS; with `keyfile`, and by hypercorn only.
        keyfile: Its key.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    holder: HostKind = "native"
    certfile: str | None = None
    keyfile: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.holder not in ("native", "hypercorn"):
            raise ValueError(f"unknown host {self.holder!r}: native or hypercorn")
        if self.holder == "native" and (self.certfile or self.keyfile):
            raise ValueError('TLS is for server="hypercorn"')

    def url(self, port: int, path: str) -> str:
        """What is there under the port that was bound."""
        scheme = "http" if self.certfile is None else "https"
        return f"{scheme}://{netloc(self.host, port)}{path}"


async def serve_http(
    server: ServesSessions,
    address: Address,
    options: HttpOptions,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled, which ends every stream in its protocol's way, in bounded time.

    Reports the URL of the MCP endpoint, with the port that was bound.

    Raises:
        OSError: The address cannot be bound.
        Exception: What the lifespan raises, bare.
    """
    listeners = await trio.open_tcp_listeners(address.port, host=address.host)
    await serve_bound(server, listeners, address, options, task_status=task_status)


async def serve_bound(
    server: ServesSessions,
    listeners: Sequence[trio.SocketListener],
    address: Address,
    options: HttpOptions,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """The same at an address that is bound already, by listeners that are closed at the end.

    Cancelled: the sessions wind down, and with them their streams; when the last frames have left,
    or after `limits.shutdown.close_seconds` more, the listeners close.

    Raises:
        Exception: What the lifespan raises, bare.
    """
    try:
        bound = [listener.socket.getsockname()[:2] for listener in listeners]
        app = app_of(server, options, bound)
        url = address.url(bound[0][1], app.path)
        async with trio.open_nursery() as outer:
            stopping = trio.Event()
            outer.start_soon(tell_when_cancelled, stopping.set)
            with trio.CancelScope() as winding:
                async with trio.open_nursery() as nursery:
                    await nursery.start(app.runtime.run)
                    winding.shield = True  # before, there is nothing yet that has to wind down
                    await nursery.start(partial(_hold, app, listeners, address))
                    task_status.started(url)
                    await stopping.wait()
                    app.runtime.close()
                    await app.runtime.ended.wait()
                    with trio.move_on_after(server.limits.shutdown.close_seconds):
                        await app.all_answered()
                    nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise foremost(group) from None
    finally:
        for listener in listeners:
            listener.socket.close()  # no checkpoint, which would hide what is being raised


async def _hold(
    app: HttpApp,
    listeners: Sequence[trio.SocketListener],
    address: Address,
    *,
    task_status: trio.TaskStatus[object],
) -> None:
    limits = app.runtime.server.limits
    if address.holder == "native":
        from mcp_trio._transports.http_server import serve_native

        await serve_native(
            app.respond,
            listeners,
            limits=limits,
            upgraded=app.upgraded,
            tasks_in=TaskPool,
            task_status=task_status,
        )
    else:
        from mcp_trio._transports.asgi import AsgiHost
        from mcp_trio._transports.hypercorn import serve_hypercorn

        await serve_hypercorn(
            AsgiHost(app.respond, limits=limits, upgraded=app.upgraded),
            listeners,
            limits=limits,
            certfile=address.certfile,
            keyfile=address.keyfile,
            task_status=task_status,
        )


_OF_ADDRESS: Final = ("host", "port", "certfile", "keyfile")

Told: TypeAlias = Callable[[str], None]
_Serve: TypeAlias = Callable[..., Awaitable[None]]
_Wait: TypeAlias = Callable[[], Awaitable[None]]


class ServesProcesses(ServesSessions, Protocol):
    """A server, as far as a process needs it that is its own."""

    states: StateStore | None

    @property
    def serve_http(self) -> _Serve:
        """Serves in one process, until cancelled; reports the URL."""
        ...

    def speak_stateless_only(self) -> None:
        """There are no sessions here."""
        ...


def _log(url: str) -> None:
    logger.info("serving %s", url)


def run_http(
    server: ServesProcesses, /, *, told: Told = _log, workers: int = 1, **options: Any
) -> NoReturn:
    """A Trio run of its own round the server's `serve_http`, ended by SIGINT and SIGTERM.

    `told` is called with the URL of the MCP endpoint. A second signal ends the process at once.
    With several `workers`, each is a process with a run of its own, and this one is their parent.

    Raises:
        SystemExit: After a signal, with status 128 plus its number; with status 1, and a text, if
            a worker has ended before all of them served.
        ValueError: Options that contradict each other; or the server cannot have several workers.
        Exception: What `serve_http` raises, bare.
    """
    if workers == 1:
        run_until_signal(server.serve_http, told=told, **options)
    place = {name: options.pop(name) for name in _OF_ADDRESS if name in options}
    address = Address(holder=options.pop("server", "native"), **place)
    how = cast("HttpOptions", options)
    raise SystemExit(SIGNAL_STATUS_BASE + _run_workers(server, address, how, told, workers))


def run_until_signal(serve: _Serve, *, told: Told = _log, **options: Any) -> NoReturn:
    """A Trio run of its own round `serve`, given these options, ended by SIGINT and SIGTERM.

    `told` is called with the URL that `serve` reports. A second signal ends the process at once.

    Raises:
        SystemExit: After a signal, with status 128 plus its number.
        Exception: What `serve` raises, bare.
    """
    raise SystemExit(SIGNAL_STATUS_BASE + trio.run(_run, partial(serve, **options), told))


async def _run(
    serve: _Serve,
    told: Told,
    numbers: Collection[int] = SIGNALS,
    over: _Wait = trio.sleep_forever,
) -> int:
    """Serve until one of these signals comes, or until it is `over`: then the number is 0."""
    received: list[int] = []

    async def watch(signals: AsyncIterator[int], serving: trio.CancelScope) -> None:
        async for number in signals:
            if received:
                os._exit(SIGNAL_STATUS_BASE + number)
            received.append(number)
            serving.cancel()

    async def wait(serving: trio.CancelScope) -> None:
        await over()
        serving.cancel()

    with trio.open_signal_receiver(*numbers) as signals:
        try:
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as serving:
                    nursery.start_soon(watch, signals, serving)
                    nursery.start_soon(wait, serving)
                    await _serve(serve, told)
                nursery.cancel_scope.cancel()
        except ExceptionGroup as error:
            raise bare(error) from None
    return received[0] if received else 0


async def _serve(serve: _Serve, told: Told) -> None:
    async with trio.open_nursery() as nursery:
        told(await nursery.start(serve))


# Several workers.


def _run_workers(
    server: ServesProcesses, address: Address, options: HttpOptions, told: Told, number: int
) -> int:

    check_for_workers(server, options, number)
    with bound_sockets(address.host, address.port) as sockets:
        parent_pid = os.getpid()
        app = app_of(server, options, [each.getsockname()[:2] for each in sockets])
        url = address.url(sockets[0].getsockname()[1], app.path)

        def work(serving: Callable[[], None]) -> None:
            _become_worker(server)
            wait = partial(wait_parent_death, parent_pid=parent_pid, limits=server.limits)

            def told_by_worker(_url: str) -> None:
                serving()

            serve = partial(_serve_on, sockets, server, address, options)
            trio.run(_run, serve, told_by_worker, [signal.SIGTERM], wait)

        workers = Workers(
            number=number, work=work, serving=partial(told, url), limits=server.limits
        )
        try:
            return workers.run()
        except WorkerFailedError as error:
            raise SystemExit(str(error)) from None


def check_for_workers(server: ServesProcesses, options: HttpOptions, number: int) -> None:
    """Refuse what several processes cannot do together.

    Raises:
        ValueError: It says what.
    """
    rejections = {
        "there is at least one of workers": number < 1,
        "workers serve stateless protocol versions only; protocol_versions= names none": not any(
            PROTOCOL_VERSIONS[name].is_stateless for name in server.spoken
        ),
        "states=MemoryStore() is of one process: workers need another store": isinstance(
            server.states, MemoryStore
        ),
        "a SharedRecording is of one process: workers record to a folder": isinstance(
            options.get("record"), SharedRecording
        ),
    }
    for text, is_so in rejections.items():
        if is_so:
            raise ValueError(text)


def _become_worker(server: ServesProcesses) -> None:
    """No client is routed to who knows it: there are no sessions, and no handler waits for one."""
    server.speak_stateless_only()
    server.limits = attrs.evolve(
        server.limits, requests=attrs.evolve(server.limits.requests, suspended_max=0)
    )


async def _serve_on(
    sockets: Sequence[socket.socket],
    server: ServesProcesses,
    address: Address,
    options: HttpOptions,
    *,
    task_status: trio.TaskStatus[str],
) -> None:
    listeners = [
        trio.SocketListener(trio.socket.from_stdlib_socket(each.dup())) for each in sockets
    ]
    await serve_bound(server, listeners, address, options, task_status=task_status)
