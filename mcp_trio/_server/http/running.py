"""Processes that serve HTTP until a signal comes: one, or a parent with several workers."""

import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, Final, NoReturn, Protocol, TypeAlias, cast

import attrs
import trio

from mcp_trio._engine import bare
from mcp_trio._protocol import REVISIONS
from mcp_trio._recorder.options import SharedRecording
from mcp_trio._server.http.options import HttpOptions
from mcp_trio._server.http.runtime import ServesSessions
from mcp_trio._server.http.serving import Address, app_of, serve_bound
from mcp_trio._server.states import MemoryStore, StateStore
from mcp_trio._server.stdio import SIGNAL_STATUS_BASE, SIGNALS
from mcp_trio._transports.stdio_server import wait_parent_death

logger = logging.getLogger("mcp_trio")

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

    def speak_modern_only(self) -> None:
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
    from mcp_trio._server.http.workers import WorkerFailedError, Workers, bound_sockets

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
    refusals = {
        "there is at least one of workers": number < 1,
        "workers serve modern revisions only, and revisions= names none": not any(
            REVISIONS[name].is_modern for name in server.spoken
        ),
        "states=MemoryStore() is of one process: workers need another store": isinstance(
            server.states, MemoryStore
        ),
        "a SharedRecording is of one process: workers record to a folder": isinstance(
            options.get("record"), SharedRecording
        ),
    }
    for text, is_so in refusals.items():
        if is_so:
            raise ValueError(text)


def _become_worker(server: ServesProcesses) -> None:
    """No client is routed to who knows it: there are no sessions, and no handler waits for one."""
    server.speak_modern_only()
    server.limits = attrs.evolve(server.limits, handlers_parked_max=0)


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
