"""Serving over HTTP: in the caller's nursery, in a process of its own, or in several workers.

With several workers the parent process forks, and waits: it runs no event loop, and no user code
except the code that made the server. So each worker, also one that replaces another later, begins
with the same server and the same keys. All workers accept from the same sockets, which the parent
keeps open: an idle worker accepts the next client, and clients that wait to be accepted are not
lost with a worker that dies.

A worker that ends by itself is replaced, after a pause that grows. A worker that ends before all of
them have served indicates an error of the configuration, and stops all of them.
"""

import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import attrs
import msgspec
import trio

from mcp_trio._protocol.security import host_check_for
from mcp_trio._protocol.suggestions import check_option_names
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio._recorder.clock import TickClock
from mcp_trio._recorder.options import RecordTarget, SharedRecording, holds_many_sessions
from mcp_trio._server.http_app import HttpApp, WebSocketEndpoint
from mcp_trio._server.http_sessions import HttpStores, RestartBackoff, Runtime, Stores
from mcp_trio._server.instances import MemoryInstances
from mcp_trio._server.monitoring import METRICS, metrics_of, serve_metrics
from mcp_trio._server.routes import bind_authorization_server, is_authorization_in_memory
from mcp_trio._server.sealed_state import MemoryStore
from mcp_trio._server.sessions import SessionSource, sessions_of
from mcp_trio._server.signals import (
    SIGNAL_STATUS_BASE,
    SIGNALS,
    OnServing,
    log_serving,
    run_until_signal,
    serve_until_signal,
)
from mcp_trio._server.sockets import AccessOptions, HandshakeCheck, protected_resource, tls_context
from mcp_trio._session.exceptions import exception_to_raise, raise_unchanged
from mcp_trio._session.leader_followers import TaskPool
from mcp_trio._transports.concurrency import call_when_cancelled
from mcp_trio._transports.sockets import explaining_bind_errors, netloc, open_tcp_listeners
from mcp_trio._transports.stdio import wait_parent_death
from mcp_trio.limits import Limits

if TYPE_CHECKING:
    from mcp_trio._server.server import Server

logger = logging.getLogger("mcp_trio")

# Serving in the caller's nursery -----------------------------------------------------------------

HostKind: TypeAlias = Literal["native", "hypercorn"]
"""The HTTP server: the native listener, for HTTP/1.1, or hypercorn, for HTTP/2 as well."""


class HttpOptions(AccessOptions, total=False):
    """Options of the HTTP application; `Server.serve_http` documents them."""

    path: str
    allows_cors: bool
    streams_answers: bool
    has_sse: bool
    has_websocket: bool
    ws_path: str
    record: RecordTarget | None
    stores: Stores


class RunHttpOptions(HttpOptions, total=False):
    """Options of `Server.serve_http`, and the number of processes of `Server.run`."""

    host: str
    port: int
    server: HostKind
    workers: int
    certfile: str | None
    keyfile: str | None
    client_cafile: str | None
    metrics_port: int | None
    metrics_host: str


def app_of(
    server: SessionSource,
    options: HttpOptions,
    bound: Sequence[tuple[str, int]],
    address: "HttpAddress | None" = None,
) -> HttpApp:
    """Return the application for the addresses that are bound; its runtime is not started.

    `address` is the one that was asked for.
    """
    if "workers" in options:
        raise TypeError("an HTTP server got the option 'workers': only run(\"http\") takes it")
    check_option_names("an HTTP server", options, HttpOptions.__annotations__)
    if not holds_many_sessions(options.get("record")):
        raise ValueError(
            "over HTTP, record to a folder or a SharedRecording: there are several sessions"
        )
    host_check = host_check_for(
        bound,
        hosts=options.get("hosts"),
        origins=options.get("origins"),
        allows_cors=options.get("allows_cors", False),
    )
    runtime = Runtime(server, options.get("record"), options.get("stores") or HttpStores())
    path = options.get("path", "/mcp")
    protected = protected_resource(
        server.auth,
        options.get("token"),
        path=path,
        bound=bound if address is None else [(address.host, bound[0][1]), *bound],
        is_tls=address is not None and address.certfile is not None,
        has_certificates=address is not None and address.client_cafile is not None,
        scopes=server.scopes,
    )
    if protected is not None:
        bind_authorization_server(protected, scopes=server.scopes)
    websocket = None
    if options.get("has_websocket", True):
        handshake_check = HandshakeCheck(
            host_check=host_check, path=options.get("ws_path", "/ws"), protected=protected
        )
        websocket = WebSocketEndpoint(runtime=runtime, handshake_check=handshake_check)
    return HttpApp(
        runtime=runtime,
        host_check=host_check,
        path=path,
        protected=protected,
        streams_answers=options.get("streams_answers", False),
        has_sse=options.get("has_sse", True),
        websocket=websocket,
    )


@attrs.frozen(kw_only=True)
class HttpAddress:
    """The address and the HTTP server of a listener, as `Server.serve_http` documents them."""

    host: str = "127.0.0.1"
    port: int = 8000
    server: HostKind = "native"
    certfile: str | None = None
    keyfile: str | None = None
    client_cafile: str | None = None
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"

    def __attrs_post_init__(self) -> None:
        if self.server not in ("native", "hypercorn"):
            raise ValueError(f"unknown server={self.server!r}: native or hypercorn")
        for name in ("keyfile", "client_cafile"):
            if getattr(self, name) is not None and self.certfile is None:
                raise ValueError(f"{name}= needs certfile=")
        if self.client_cafile is not None and self.server != "native":
            raise ValueError(
                'client_cafile= needs server="native": hypercorn does not pass certificates of'
                " clients on"
            )

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS settings for HTTP/1.1; None without a certificate."""
        return tls_context(self.certfile, self.keyfile, self.client_cafile)

    def url(self, port: int, path: str) -> str:
        """Return the URL of a path, given the port that was bound."""
        scheme = "http" if self.certfile is None else "https"
        return f"{scheme}://{netloc(self.host, port)}{path}"


async def serve_http(
    server: SessionSource,
    address: HttpAddress,
    options: HttpOptions,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; `Server.serve_http` documents the options and errors."""
    listeners = await open_tcp_listeners(address.host, address.port)
    await serve_bound(server, listeners, address, options, task_status=task_status)


async def serve_bound(
    server: SessionSource,
    listeners: Sequence[trio.SocketListener],
    address: HttpAddress,
    options: HttpOptions,
    *,
    is_followed: bool = False,
    task_status: trio.TaskStatus[str],
) -> None:
    """Serve, as `serve_http` does, on listeners that are bound already; close them at the end.

    If this is cancelled, the sessions close, and with them their streams. The listeners close when
    the last response has been sent, or after `limits.shutdown.close_seconds` more.

    With `is_followed`, another process serves the same sockets afterwards. Then the listeners, and
    the connections without a request, close before the sessions do, so that clients wait for that
    process.
    """
    metrics, metrics_listeners = None, list[trio.SocketListener]()
    try:
        tls = address.tls_context()
        if address.metrics_port is not None:
            metrics = metrics_of(server)
            metrics_listeners = await open_tcp_listeners(address.metrics_host, address.metrics_port)
        bound = [listener.socket.getsockname()[:2] for listener in listeners]
        app = app_of(server, options, bound, address)
        url = address.url(bound[0][1], app.path)
        async with trio.open_nursery() as outer:
            stopping = trio.Event()
            outer.start_soon(call_when_cancelled, stopping.set)
            with trio.CancelScope() as closing:
                async with trio.open_nursery() as nursery:
                    await nursery.start(app.runtime.run)
                    # From now on, sessions may exist. A cancellation only sets `stopping`, so that
                    # they are closed before the tasks are cancelled.
                    closing.shield = True
                    if metrics is not None:
                        await nursery.start(serve_metrics, app.runtime, metrics, metrics_listeners)
                        port = metrics_listeners[0].socket.getsockname()[1]
                        metrics_url = f"http://{netloc(address.metrics_host, port)}{METRICS}"
                        logger.info("serving %s", metrics_url)
                    drained = trio.Event()
                    await nursery.start(
                        partial(_accept_connections, app, listeners, address, tls, drained)
                    )
                    task_status.started(url)
                    await stopping.wait()
                    await app.runtime.hand_over()
                    if app.runtime.leaving.is_set():
                        await drained.wait()
                        await app.finish_requests()
                    elif is_followed:
                        app.runtime.leaving.set()
                        await drained.wait()
                    app.runtime.close()
                    await app.runtime.ended.wait()
                    with trio.move_on_after(server.limits.shutdown.close_seconds):
                        await app.all_answered()
                    nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise_unchanged(exception_to_raise(group))
    finally:
        for listener in (*listeners, *metrics_listeners):
            listener.socket.close()  # `aclose` would add a checkpoint, and could hide the error.


async def _accept_connections(
    app: HttpApp,
    listeners: Sequence[trio.SocketListener],
    address: HttpAddress,
    tls: ssl.SSLContext | None,
    drained: trio.Event,
    *,
    task_status: trio.TaskStatus[object],
) -> None:
    limits = app.runtime.server.limits
    if address.server == "native":
        from mcp_trio._transports.http_server import serve_native

        await serve_native(
            app.respond,
            listeners,
            limits=limits,
            tls=tls,
            serve_upgrade=app.serve_upgrade,
            leaders_in=lambda nursery: TaskPool(nursery).start_leader,
            draining=app.runtime.leaving,
            drained=drained,
            task_status=task_status,
        )
    else:
        from mcp_trio._transports.asgi import AsgiHost
        from mcp_trio._transports.hypercorn import serve_hypercorn

        drained.set()  # Hypercorn itself closes its connections.
        await serve_hypercorn(
            AsgiHost(app.respond, limits=limits, serve_upgrade=app.serve_upgrade),
            listeners,
            limits=limits,
            certfile=address.certfile,
            keyfile=address.keyfile,
            task_status=task_status,
        )


# Worker processes --------------------------------------------------------------------------------

_SERVING: Final = b"serving"
_SIGNALS_MAX: Final = 64  # read at once
_BACKLOG: Final = 0xFFFF  # The operating system caps the backlog at its own, lower maximum.


@attrs.define(eq=False, repr=False)
class _WorkerSlot:
    """One of the workers, which is a new process after each restart.

    Attributes:
        process: The process; None before the first start and in the pause before a restart.
        report_pipe: The pipe on which the worker reports that it serves.
        changed_at: The time at which the process was started; without a process, the time of the
            next start.
        is_serving: True if the worker has reported that it serves.
    """

    restarts: RestartBackoff
    process: BaseProcess | None = None
    report_pipe: Connection | None = None
    changed_at: float = 0.0
    is_serving: bool = False


_NO_FORK: Final = (
    "Windows cannot fork workers: serve with workers=1, or start servers at several ports"
)


@attrs.define(kw_only=True, eq=False, repr=False)
class Workers:
    """A parent process that forks workers, replaces those that end, and stops them on a signal.

    Attributes:
        work: The main function of a worker, which runs until SIGTERM; it calls its argument when
            the worker serves.
        serving: Called when all workers serve for the first time.
    """

    number: int
    work: Callable[[Callable[[], None]], None]
    serving: Callable[[], None]
    limits: Limits
    _slots: Sequence[_WorkerSlot] = attrs.field(init=False)
    _have_served: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._slots = [_WorkerSlot(RestartBackoff(self.limits)) for _ in range(self.number)]

    def run(self) -> int:
        """Run the workers until SIGINT or SIGTERM arrives, stop them, and return its number.

        The workers have `limits.shutdown.workers_seconds` to stop. Workers that still run then, or
        when a second signal arrives, are killed.

        Raises:
            SystemExit: A worker ended before all had served; the others are stopped.
        """
        with _signal_socket() as signals:
            try:
                return self._supervise(signals)
            finally:
                self._stop(signals)

    def _supervise(self, signals: socket.socket) -> int:
        """Start and replace workers until a signal arrives that stops the server; return it."""
        while True:
            for slot in self._slots:
                if slot.process is None:
                    if time.monotonic() >= slot.changed_at:
                        self._start(slot)
                elif slot.process.exitcode is not None:
                    self._schedule_restart(slot, slot.process)
                elif slot.report_pipe is not None and not slot.is_serving:
                    with suppress(EOFError):  # A worker that ends closes its pipe.
                        pipe = slot.report_pipe
                        slot.is_serving = pipe.poll() and pipe.recv_bytes() == _SERVING
            if not self._have_served and all(slot.is_serving for slot in self._slots):
                self._have_served = True
                self.serving()
            running = [slot.process for slot in self._slots if slot.process is not None]
            reports = [
                slot.report_pipe for slot in self._slots if slot.report_pipe and not slot.is_serving
            ]
            seconds = None
            if len(running) < len(self._slots):
                next_start = min(slot.changed_at for slot in self._slots if slot.process is None)
                seconds = max(0.0, next_start - time.monotonic())
            happened = wait([signals, *(each.sentinel for each in running), *reports], seconds)
            if signals in happened and (number := _received_signal(signals)) is not None:
                return number

    def _start(self, slot: _WorkerSlot) -> None:
        if sys.platform == "win32":
            raise NotImplementedError(_NO_FORK)
        slot.report_pipe, pipe = get_context("fork").Pipe(duplex=False)

        def work() -> None:
            # A terminal sends SIGINT to the parent and all workers; only the parent handles it.
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            self.work(partial(pipe.send_bytes, _SERVING))

        slot.process = get_context("fork").Process(target=work)
        # A signal between the fork and the worker's own handlers would be lost.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            slot.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        pipe.close()
        slot.changed_at, slot.is_serving = time.monotonic(), False

    def _schedule_restart(self, slot: _WorkerSlot, process: BaseProcess) -> None:
        """Schedule the replacement of a worker that has ended by itself."""
        number, status = process.pid, process.exitcode
        self._close(slot)
        if not self._have_served:
            raise SystemExit(f"worker {number} ended with status {status}, and never served")
        now = time.monotonic()
        pause_seconds = slot.restarts.pause_seconds(now - slot.changed_at)
        slot.changed_at = now + pause_seconds
        text = "worker %s ended with status %s; a new worker starts in %g s"
        logger.error(text, number, status, pause_seconds)

    def _close(self, slot: _WorkerSlot) -> None:
        assert slot.process is not None
        assert slot.report_pipe is not None
        slot.process.close()
        slot.report_pipe.close()
        slot.process = slot.report_pipe = None

    def _stop(self, signals: socket.socket) -> None:
        for process in self._alive():
            process.terminate()
        stopped_at = time.monotonic() + self.limits.shutdown.workers_seconds
        while (alive := self._alive()) and time.monotonic() < stopped_at:
            seconds = max(0.0, stopped_at - time.monotonic())
            happened = wait([signals, *(each.sentinel for each in alive)], seconds)
            if signals in happened and _received_signal(signals) is not None:
                break
        for process in self._alive():
            logger.error("worker %s did not stop in time and is killed", process.pid)
            process.kill()
        for slot in self._slots:
            if slot.process is not None:
                slot.process.join()
                self._close(slot)

    def _alive(self) -> list[BaseProcess]:
        processes = [each.process for each in self._slots if each.process is not None]
        return [process for process in processes if process.is_alive()]


@contextmanager
def _signal_socket() -> Generator[socket.socket]:
    """Yield a socket that becomes readable when a signal arrives; signals have no other effect."""
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.settimeout(0)
        writer.settimeout(0)
        before = {number: signal.signal(number, lambda _number, _frame: None) for number in SIGNALS}
        woken = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)


def _received_signal(signals: socket.socket) -> int | None:
    """Return the first signal received that stops the server; None for any other signal."""
    numbers = signals.recv(_SIGNALS_MAX)
    return next((number for number in numbers if number in SIGNALS), None)


@contextmanager
def bound_sockets(host: str, port: int) -> Generator[Sequence[socket.socket]]:
    """Yield the sockets, shared by all workers, that listen at an address; close them at the end.

    The errors are those of `explaining_bind_errors`.
    """
    kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
    with ExitStack() as stack:
        with explaining_bind_errors(host, port):
            found = socket.getaddrinfo(host, port, type=kind, flags=flags)
            sockets = [
                stack.enter_context(
                    socket.create_server(where[:2], family=family, backlog=_BACKLOG)
                )
                for family, *_, where in found
            ]
        yield sockets


# Serving in a process of its own, or in several workers ------------------------------------------


def run_http(
    server: "Server", /, *, on_serving: OnServing = log_serving, workers: int = 1, **options: Any
) -> None:
    """Serve HTTP until a signal arrives, as `Server.run` documents.

    `on_serving` is called with the URL of the MCP endpoint. With several `workers`, each is a
    process with a Trio run of its own, and this is their parent.

    Raises:
        SystemExit: As `run_until_signal`; with status 1 and a text if a worker ended before all
            workers had served.
        TypeError: An option is unknown.
        ValueError: Options contradict each other; or the server cannot have several workers.
        Exception: The error that `serve_http` raised, not in an exception group.
    """
    check_option_names("Server.run()", options, RunHttpOptions.__annotations__)
    if workers == 1:
        exit_seconds = server.limits.shutdown.exit_seconds
        run_until_signal(
            server.serve_http, exit_seconds=exit_seconds, on_serving=on_serving, **options
        )
        return
    names = options.keys() & attrs.fields_dict(HttpAddress).keys()
    address = HttpAddress(**{name: options.pop(name) for name in names})
    http_options = cast("HttpOptions", options)
    check_for_workers(server, http_options, workers)
    if address.metrics_port is not None:
        raise ValueError("each worker has metrics of its own: metrics_port= needs workers=1")
    address.tls_context()  # an unreadable certificate is an error here, and not in each worker
    with bound_sockets(address.host, address.port) as sockets:
        bound = [each.getsockname()[:2] for each in sockets]
        path = app_of(sessions_of(server), http_options, bound, address).path
        serving = partial(on_serving, address.url(bound[0][1], path))
        work = partial(_run_worker, server, sockets, address, http_options, os.getpid())
        number = Workers(number=workers, work=work, serving=serving, limits=server.limits).run()
    raise SystemExit(SIGNAL_STATUS_BASE + number)


def _run_worker(
    server: "Server",
    sockets: Sequence[socket.socket],
    address: HttpAddress,
    options: HttpOptions,
    parent_pid: int,
    serving: Callable[[], None],
) -> None:
    """Serve in a worker process until SIGTERM arrives; call `serving` when it serves."""
    # The next request of a client may arrive at another worker. So a session needs stores, by which
    # the workers forward requests, and no handler is suspended until the next request of its
    # stateless client.
    if not _has_shared_stores(options):
        server.protocol_versions = [
            name for name in server.protocol_versions if PROTOCOL_VERSIONS[name].is_stateless
        ]
    server.limits = msgspec.structs.replace(
        server.limits,
        requests=msgspec.structs.replace(server.limits.requests, suspended_max=0),
    )

    async def serve(*, task_status: trio.TaskStatus[str]) -> None:
        listeners = [
            trio.SocketListener(trio.socket.from_stdlib_socket(each.dup())) for each in sockets
        ]
        await serve_bound(sessions_of(server), listeners, address, options, task_status=task_status)

    exit_seconds = server.limits.shutdown.exit_seconds
    run = partial(serve_until_signal, serve, lambda _url: serving(), exit_seconds)
    wait_parent = partial(wait_parent_death, parent_pid=parent_pid, limits=server.limits)
    trio.run(run, [signal.SIGTERM], wait_parent, clock=TickClock())


def _has_shared_stores(options: HttpOptions) -> bool:
    """Return whether the instances of the server share their sessions."""
    stores = options.get("stores")
    return stores is not None and not (isinstance(stores, HttpStores) and stores.instances is None)


def check_for_workers(server: "Server", options: HttpOptions, number: int) -> None:
    """Raise a `ValueError` if an option does not suit `number` worker processes."""
    from mcp_trio._observers.audit_log import AuditLog
    from mcp_trio._observers.request_log import RequestLog

    logs = [each.path for each in server.observers if isinstance(each, AuditLog | RequestLog)]
    shared_files = [os.fspath(path) for path in logs if path is not None]
    shared_files = [path for path in shared_files if "{pid}" not in path]
    has_stateless = any(PROTOCOL_VERSIONS[name].is_stateless for name in server.protocol_versions)
    stores = options.get("stores")
    problem = None
    if number < 1:
        problem = "workers= must be at least 1"
    elif sys.platform == "win32":
        problem = _NO_FORK
    elif shared_files:
        names = ", ".join(shared_files)
        problem = f"{names}: workers cannot share a file: put {{pid}} into its name"
    elif not (has_stateless or _has_shared_stores(options)):
        problem = (
            "workers serve stateless protocol versions only, unless they share stores="
            " (--redis); protocol_versions= names none"
        )
    elif isinstance(stores, HttpStores) and isinstance(stores.instances, MemoryInstances):
        problem = (
            "stores=HttpStores(instances=MemoryInstances()) are in one process only: workers need"
            " RedisStores"
        )
    elif isinstance(server.states, MemoryStore):
        problem = "states=MemoryStore() is in one process only: workers need another store"
    elif server.auth is not None and is_authorization_in_memory(server.auth):
        problem = (
            "an AuthorizationServer in memory is in one process only: workers need its storage="
        )
    elif isinstance(options.get("record"), SharedRecording):
        problem = "a SharedRecording belongs to one process: workers record to a folder"
    if problem is not None:
        raise ValueError(problem)
