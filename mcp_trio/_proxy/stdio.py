"""A proxy over stdio: a host on our own stdin and stdout, a server as a subprocess.

What the two notice of it should be nothing. So

- Bytes go on as they came and when they came, one read of at most `chunk_bytes` at a time and in
  each direction by itself; the next is read when the last was taken. No line is waited for: whoever
  writes half of one and waits is heard by the other side. The record of a line is with the system
  before the line's last byte goes on. So of what a peer saw as a line none is missing if the proxy
  is killed; half a line, which no peer may take for a message, is recorded when its direction ends.
- What happens to one end of a pipe happens to the other. An end of file goes on behind the last
  byte. When a reader is gone, we stop to read, and the writer gets its EPIPE.
- The server has our environment, our folder, our stderr and what else we were given open.
- The server may take all the time it wants after the end of its stdin, and with its stdout closed:
  when its host has enough, the host sends a signal. The signal goes on to the server, and from then
  on time is short: `close_seconds`, SIGTERM, `terminate_seconds`, SIGKILL. Likewise when the parent
  process dies, behind an end of file.
- The server's exit is our exit, with its status, when everything that it wrote has been sent on.

The server leads a session and a group of its own, so that a signal to our group (from a terminal,
or from a host that ends whole groups) comes to it once, through us, and never twice: a second one
means "at once" to many programs. In return its group is ours to sweep when it has exited.
"""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs
import trio

from mcp_trio._proxy.journal import Direction, LineJournal, start_line_journal
from mcp_trio._recorder.writer import RecordOptions
from mcp_trio._session.tasks import bare
from mcp_trio._transports.descriptors import Descriptor, open_descriptor
from mcp_trio._transports.process import ChildProcess, start_child
from mcp_trio._transports.stdio import divert_stdio, wait_parent_death
from mcp_trio.errors import ConnectionLost
from mcp_trio.limits import DEFAULT_LIMITS, Limits

# --------------------
# A proxy that no server's exit ends: it ends with its peers, or with a signal.


SIGNAL_STATUS_BASE: Final = 128

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def not_ignored(signals: Iterable[int]) -> list[int]:
    """Those that were not ignored when we were started: `nohup` has to mean something."""
    return [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]


async def until_signal(serve: Callable[[], Awaitable[int]], *, shut: Callable[[], None]) -> int:
    """The exit status that `serve` returns, or that of the signal which has cancelled it.

    `shut` is called before it is cancelled. A second signal ends the process at once.

    Raises:
        Exception: What `serve` raises, bare.
    """
    received: list[int] = []
    status = 0

    async def watch(signals: AsyncIterator[int]) -> None:
        async for number in signals:
            if received:
                os._exit(SIGNAL_STATUS_BASE + number)
            received.append(number)
            shut()
            serving.cancel()

    with trio.open_signal_receiver(*not_ignored(_SIGNALS)) as signals:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch, signals)
                with trio.CancelScope() as serving:
                    status = await serve()
                nursery.cancel_scope.cancel()
        except ExceptionGroup as error:
            raise bare(error) from None
    return SIGNAL_STATUS_BASE + received[0] if received else status


# Terminals send to a whole group what `kill` sends to one process, and programs that start others
# (npx, uv) rely on it: they pass SIGTERM on, and let SIGINT come to their children by itself.
SIGNALS: Final[Mapping[int, Callable[[ChildProcess, int], None]]] = {
    signal.SIGINT: ChildProcess.send_signal_to_group,
    signal.SIGHUP: ChildProcess.send_signal_to_group,
    signal.SIGTERM: ChildProcess.send_signal,
}


@attrs.define(kw_only=True, eq=False)
class StdioProxy:
    """Owns the host's two descriptors, the server and the journal, until all of them have ended."""

    host_in: Descriptor
    host_out: Descriptor
    server: ChildProcess
    journal: LineJournal
    limits: Limits
    _end_requested: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def run(self, signals: AsyncIterator[int], *, parent_pid: int) -> None:
        """Forwards both ways, and signals, until the server has exited and has been heard out."""
        server = self.server
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._forward, "in", self.host_in, server.stdin)
                nursery.start_soon(self._forward_signals, signals)
                nursery.start_soon(self._watch_parent, parent_pid)
                nursery.start_soon(self._end_in_time, nursery.cancel_scope)
                await self._forward("out", server.stdout, self.host_out)
                await server.ended.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.journal.close(server.exit_status)
            for end in (self.host_in, self.host_out, server.stdin, server.stdout):
                end.close()

    async def _forward(self, direction: Direction, source: Descriptor, sink: Descriptor) -> None:
        with suppress(OSError):  # nobody reads any more, or nothing can be read
            while chunk := await source.read():
                self.journal.record(direction, chunk)
                await sink.write(chunk)
            self.journal.ends(direction)
        source.close()
        sink.close()

    async def _forward_signals(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            self.journal.shut("signal")
            SIGNALS[number](self.server, number)
            self._end_requested.set()

    async def _watch_parent(self, parent_pid: int) -> None:
        await wait_parent_death(parent_pid=parent_pid, limits=self.limits)
        self.journal.shut("lost")
        self.host_in.end()
        self._end_requested.set()

    async def _end_in_time(self, scope: trio.CancelScope) -> None:
        await self._end_requested.wait()
        await trio.sleep(self.limits.close_seconds)
        self.server.terminate()
        await trio.sleep(self.limits.terminate_seconds)
        self.server.kill()
        await trio.sleep(self.limits.kill_seconds)
        scope.cancel()


def run_stdio_proxy(
    command: Sequence[str],
    *,
    record: str | os.PathLike[str] | RecordOptions | None,
    limits: Limits = DEFAULT_LIMITS,
) -> int:
    """Runs `command` as the server of whoever is at our stdin and stdout, and records both.

    Owns a Trio run, the signals SIGINT, SIGTERM and SIGHUP, and descriptors 0 and 1. `record` is a
    new or empty file, or a folder, which gets a file for this session; with options or without;
    None records nothing.

    Returns:
        The exit status of the command; 128 plus the number of the signal that killed it.

    Raises:
        RecordingError: The file cannot be made, or holds something; nothing was started.
        ConnectionLost: The command could not be started; the text says why.
    """
    return shell_status(trio.run(_run, command, record, limits))


def shell_status(exit_status: int | None) -> int:
    """What a shell makes of a subprocess's end; None is one that could not even be killed."""
    if exit_status is None:
        return SIGNAL_STATUS_BASE + signal.SIGKILL
    return exit_status if exit_status >= 0 else SIGNAL_STATUS_BASE - exit_status


async def _run(
    command: Sequence[str], record: str | os.PathLike[str] | RecordOptions | None, limits: Limits
) -> int | None:
    parent_pid = os.getppid()
    journal = start_line_journal(record, command, limits=limits)
    host_in, host_out = (
        open_descriptor(fd, chunk_bytes=limits.chunk_bytes) for fd in divert_stdio()
    )
    with trio.open_signal_receiver(*not_ignored(SIGNALS)) as signals:
        try:
            server = await start_child(
                command,
                env=_given_environment(),
                inherits_stderr=True,
                inherits_descriptors=True,
                limits=limits,
            )
        except ConnectionLost:
            journal.shut("lost")
            journal.close(None)
            raise
        proxy = StdioProxy(
            host_in=host_in, host_out=host_out, server=server, journal=journal, limits=limits
        )
        await proxy.run(signals, parent_pid=parent_pid)
    return server.exit_status


def _given_environment() -> dict[str, str]:
    """The environment as it was given to us: where it names no locale, Python adds LC_CTYPE."""
    environment = dict(os.environ)
    with suppress(OSError):  # no /proc: then the server sees what Python added
        given = Path("/proc/self/environ").read_bytes()
        if b"\0LC_CTYPE=" not in b"\0" + given:
            environment.pop("LC_CTYPE", None)
    return environment
