"""A transparent proxy over stdio, between the host on stdin and stdout and a server subprocess.

Host and server should not be able to notice the proxy:

- Bytes are forwarded unchanged and at once, one read of at most `limits.messages.chunk_bytes` at a
  time and each direction by itself; the next read follows when the last chunk is written. The proxy
  does not wait for a complete line before it forwards. It hands the record of a line to the
  operating system before it forwards the last byte, so if the proxy is killed, no line is missing
  that a peer received. An incomplete line, which no peer takes for a message, is recorded when its
  direction ends.
- A closed pipe on one side is closed on the other. An end of file follows the last byte. When a
  reader is gone, the proxy stops reading, and the writer gets EPIPE.
- The server inherits the environment, the folder, stderr and all open descriptors of the proxy.
- The server may go on for any time after the end of its stdin, and with its stdout closed, until
  the host sends a signal. The proxy sends the signal on to the server, waits
  `limits.shutdown.close_seconds`, sends SIGTERM, waits `limits.shutdown.terminate_seconds` and
  sends SIGKILL. It does the same, after an end of file, when its parent process dies.
- When the server has exited and all its output is forwarded, the proxy exits with its status.

The server leads a session and process group of its own. So it receives a signal to the proxy's
group (from a terminal, or from a host that ends whole groups) once, from the proxy, and not twice:
many programs take a second signal for "exit at once". The proxy ends the group when the server has
exited.
"""

import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs
import trio

from mcp_trio._proxy.journal import (
    Direction,
    LineJournal,
    recording_for_sessions,
    start_line_journal,
)
from mcp_trio._recorder.options import RecordOptions
from mcp_trio._server.signals import SIGNAL_STATUS_BASE
from mcp_trio._session.exceptions import raise_unchanged, sole_exception
from mcp_trio._system import SIGKILL
from mcp_trio._transports.descriptors import Descriptor, open_descriptor
from mcp_trio._transports.stdio import ChildProcess, divert_stdio, start_child, wait_parent_death
from mcp_trio.errors import ConnectionLost
from mcp_trio.limits import DEFAULT_LIMITS, Limits

if sys.platform == "win32":
    _ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
else:
    _ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def not_ignored(signals: Iterable[int]) -> list[int]:
    """Return the signals that the process does not ignore; `nohup` makes it ignore SIGHUP."""
    return [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]


async def until_signal(
    serve: Callable[[], Awaitable[int]], *, on_signal: Callable[[], None]
) -> int:
    """Run `serve` until it returns or a signal cancels it; return the exit status.

    The exit status is what `serve` returns, or 128 plus the number of the signal. `on_signal` is
    called before `serve` is cancelled. A second signal ends the process at once. The other proxies
    use this function; `StdioProxy` does not, as it forwards signals to the server.

    Raises:
        Exception: The exception that `serve` raises, not in a group.
    """
    received: list[int] = []
    status = 0

    async def watch(signals: AsyncIterator[int]) -> None:
        async for number in signals:
            if received:
                os._exit(SIGNAL_STATUS_BASE + number)
            received.append(number)
            on_signal()
            serving.cancel()

    with trio.open_signal_receiver(*not_ignored(_ENDING_SIGNALS)) as signals:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch, signals)
                with trio.CancelScope() as serving:
                    status = await serve()
                nursery.cancel_scope.cancel()
        except ExceptionGroup as error:
            raise_unchanged(sole_exception(error))
    return SIGNAL_STATUS_BASE + received[0] if received else status


# The method by which each signal is forwarded: to the server's process, or to its process group.
# That is how the server would get the signal without a proxy: a terminal sends its signals to a
# whole process group, `kill` sends to one process. Programs that start others (npx, uv) rely on it:
# they forward SIGTERM, but expect their children to get SIGINT from the terminal.
_FORWARDED_SIGNALS: Final[Mapping[int, Callable[[ChildProcess, int], None]]] = {
    number: ChildProcess.send_signal
    if number == signal.SIGTERM
    else ChildProcess.send_signal_to_group
    for number in _ENDING_SIGNALS
}


@attrs.define(kw_only=True, eq=False, repr=False)
class StdioProxy:
    """A proxy that owns the host's two descriptors, the server process and the journal."""

    host_in: Descriptor
    host_out: Descriptor
    server: ChildProcess
    journal: LineJournal
    limits: Limits
    _end_requested: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def run(self, signals: AsyncIterator[int], *, parent_pid: int) -> None:
        """Forward both streams, and signals, until the server has exited and its output is sent.

        Cancelled, it closes the journal and all four descriptors.
        """
        server = self.server
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._forward, "in", self.host_in, server.stdin)
                nursery.start_soon(self._forward_signals, signals)
                nursery.start_soon(self._watch_parent, parent_pid)
                nursery.start_soon(self._end_server_when_requested, nursery.cancel_scope)
                await self._forward("out", server.stdout, self.host_out)
                await server.ended.wait()
                self.journal.messages.server_ended("the server has exited")
                nursery.cancel_scope.cancel()
        finally:
            self.journal.close(server.exit_status)
            for end in (self.host_in, self.host_out, server.stdin, server.stdout):
                end.close()

    async def _forward(self, direction: Direction, source: Descriptor, sink: Descriptor) -> None:
        with suppress(OSError):  # the reader is gone, or reading fails
            while chunk := await source.read():
                self.journal.record(direction, chunk)
                await sink.write(chunk)
            self.journal.end(direction)
        source.close()
        sink.close()

    async def _forward_signals(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            self.journal.messages.record_cause("signal")
            _FORWARDED_SIGNALS[number](self.server, number)
            self._end_requested.set()

    async def _watch_parent(self, parent_pid: int) -> None:
        await wait_parent_death(parent_pid=parent_pid, limits=self.limits)
        self.journal.messages.record_cause("lost")
        self.host_in.end()
        self._end_requested.set()

    async def _end_server_when_requested(self, scope: trio.CancelScope) -> None:
        """Give the server time to exit after a signal or the parent's death; then end it."""
        await self._end_requested.wait()
        await trio.sleep(self.limits.shutdown.close_seconds)
        self.server.terminate()
        await trio.sleep(self.limits.shutdown.terminate_seconds)
        self.server.kill()
        await trio.sleep(self.limits.shutdown.kill_seconds)
        scope.cancel()


async def run_stdio_proxy(command: Sequence[str], record: RecordOptions | None) -> int:
    """Run `command` as the server for the host on stdin and stdout, and record both.

    Owns the signals SIGINT, SIGTERM and SIGHUP, and descriptors 0 and 1. `record` has a new or
    empty file, or a folder, in which this session gets a file; None records nothing.

    Returns:
        The exit status of the command; 128 plus the number of the signal that killed it.

    Raises:
        RecordingError: The file cannot be created, or is not empty, or the folder of the policy
            cannot be used; the command was not started.
        ConnectionLost: The command could not be started; the text says why.
        ValueError: The policy has a rule that a proxy cannot follow.
    """
    parent_pid, limits = os.getppid(), DEFAULT_LIMITS
    async with recording_for_sessions(record, is_sole=True) as recording:
        journal = start_line_journal(recording, command, limits=limits)
        host_in, host_out = (
            open_descriptor(fd, chunk_bytes=limits.messages.chunk_bytes) for fd in divert_stdio()
        )
        with trio.open_signal_receiver(*not_ignored(_FORWARDED_SIGNALS)) as signals:
            try:
                server = await start_child(
                    command,
                    env=_inherited_environment(),
                    inherits_stderr=True,
                    inherits_descriptors=True,
                    limits=limits,
                )
            except ConnectionLost:
                journal.messages.record_cause("lost")
                journal.close(None)
                raise
            proxy = StdioProxy(
                host_in=host_in, host_out=host_out, server=server, journal=journal, limits=limits
            )
            await proxy.run(signals, parent_pid=parent_pid)
    return shell_status(server.exit_status)


def shell_status(exit_status: int | None) -> int:
    """Return the exit status as a shell reports it; None is a process that could not be killed."""
    if exit_status is None:
        return SIGNAL_STATUS_BASE + SIGKILL
    return exit_status if exit_status >= 0 else SIGNAL_STATUS_BASE - exit_status


def _inherited_environment() -> dict[str, str]:
    """Return the environment of the proxy, without LC_CTYPE if Python has set that."""
    environment = dict(os.environ)
    with suppress(OSError):  # without /proc, the server may get the LC_CTYPE of Python
        at_start = Path("/proc/self/environ").read_bytes()
        if b"\0LC_CTYPE=" not in b"\0" + at_start:
            environment.pop("LC_CTYPE", None)
    return environment
