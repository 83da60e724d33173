"""The stdio transport: the streams of a server's own process, and servers as subprocesses.

At the server, only messages may reach the real stdout. So descriptors 0 and 1 are redirected before
the user's code is imported: a `print`, a write to descriptor 1 or the output of a child process
goes to stderr.

At the client, each subprocess leads its own process group. One system task for each subprocess
reads its stderr, waits for its exit and reaps it. Only this task reaps the subprocess: once the
leader of a group is reaped, another group may get the same number, so a signal to the number would
be unsafe. Between exit and reaping, the task always kills the rest of the group. A subprocess ends
by a signal, or when the task is cancelled; the task then sets `ChildProcess.ended`.

https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#stdio
https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#shutdown
"""

import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import attrs
import trio

from mcp_trio._system import SIGKILL, open_process_end
from mcp_trio._transports.descriptors import (
    Descriptor,
    open_descriptor,
    open_own_pipe_end,
    widen_pipe,
)
from mcp_trio._transports.lines import LineChannel
from mcp_trio.errors import ConnectionLost
from mcp_trio.limits import DEFAULT_LIMITS, Limits

logger = logging.getLogger("mcp_trio")

# The server's own process

_STDIN: Final = 0
_STDOUT: Final = 1
_STDERR: Final = 2


def divert_stdio() -> tuple[int, int]:
    """Take stdin and stdout for a channel; return their private descriptors, in that order.

    Afterwards descriptor 0 reads /dev/null and descriptor 1 writes to stderr, for this program and
    its children. Text that was printed before and not flushed goes to stderr, too. Call this once.
    """
    fd_in, fd_out = _duplicate(_STDIN), _duplicate(_STDOUT)
    _replace(_STDIN, by=_open_null())
    _replace(_STDOUT, by=_duplicate(_STDERR))
    with suppress(AttributeError, ValueError, OSError):  # stdout is None or closed
        sys.stdout.flush()
    return fd_in, fd_out


def _duplicate(fd: int) -> int:
    """Return a duplicate that children do not inherit, or /dev/null if `fd` is not open.

    The duplicate has a number above 2, so it never takes the place of a standard stream.
    """
    lower: list[int] = []
    try:
        while (duplicate := os.dup(fd)) <= _STDERR:
            lower.append(duplicate)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return _open_null()
    finally:
        for each in lower:
            os.close(each)
    return duplicate


def _open_null() -> int:
    lowest = os.open(os.devnull, os.O_RDWR)
    private = _duplicate(lowest)
    os.close(lowest)
    return private


def _replace(fd: int, *, by: int) -> None:
    os.dup2(by, fd)
    os.close(by)


def open_stdio_channel(fd_in: int, fd_out: int, *, limits: Limits = DEFAULT_LIMITS) -> LineChannel:
    """Return a channel that reads `fd_in` and writes `fd_out`, such as those of `divert_stdio`.

    The descriptors may be pipes, sockets, terminals or regular files, but not the same descriptor.
    The channel owns both, and changes no flag that other processes share with them.
    """
    return LineChannel(
        source=open_descriptor(fd_in, chunk_bytes=limits.messages.chunk_bytes),
        sink=open_descriptor(fd_out, chunk_bytes=limits.messages.chunk_bytes),
        transport="stdio",
        limits=limits,
    )


async def wait_parent_death(*, parent_pid: int, limits: Limits) -> None:
    """Wait until the parent process has ended.

    Args:
        parent_pid: The result of `os.getppid()` when the program started, so that a parent that
            ended before this call is noticed.
        limits: On systems other than Linux, the parent is polled every
            `limits.shutdown.parent_poll_seconds`. On Windows this waits for ever, since the id of
            the parent does not change when the parent ends; the end of stdin has to do.
    """
    if sys.platform == "win32":
        await trio.sleep_forever()
    parent_end = open_process_end(parent_pid)
    if parent_end is None:
        while os.getppid() == parent_pid:  # noqa: ASYNC110  (there is no event to wait for)
            await trio.sleep(limits.shutdown.parent_poll_seconds)
        return
    try:
        # If the parent ended before, its process id may belong to another process now.
        if os.getppid() == parent_pid:
            await trio.lowlevel.wait_readable(parent_end)
    finally:
        os.close(parent_end)


# Servers as subprocesses


def write_to_stderr(line: str) -> None:
    """Write a line to the stderr of this process."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


@attrs.define(kw_only=True)
class StderrTail:
    """The last `bytes_max` bytes of a subprocess's stderr, and a function that gets each line.

    A line longer than `bytes_max` is passed in pieces; if that is 0, one longer than the limit's
    default. If the function raises, the exception is logged and the function is not called again,
    so that it cannot end the session.
    """

    bytes_max: int
    forward: Callable[[str], None] | None = None
    _tail: bytes = attrs.field(default=b"", init=False)
    _is_cut: bool = attrs.field(default=False, init=False)
    _line: bytes = attrs.field(default=b"", init=False)

    @property
    def text(self) -> str:
        """The last bytes as text, without a first line that was cut."""
        tail = self._tail
        if self._is_cut:
            tail = tail.partition(b"\n")[2] or tail
        return tail.decode(errors="replace").rstrip()

    def feed(self, chunk: bytes) -> None:
        """Add bytes that were read from stderr."""
        kept = self._tail + chunk
        self._is_cut = self._is_cut or len(kept) > self.bytes_max
        self._tail = kept[max(len(kept) - self.bytes_max, 0) :]
        if self.forward is not None:
            line_bytes_max = self.bytes_max or DEFAULT_LIMITS.shutdown.stderr_tail_bytes
            *lines, self._line = (self._line + chunk).split(b"\n")
            for line in lines:
                self._forward(line)
            while len(self._line) > line_bytes_max:
                self._forward(self._line[:line_bytes_max])
                self._line = self._line[line_bytes_max:]

    def finish(self) -> None:
        """Pass a last line that has no line end to the function."""
        if self._line:
            self._forward(self._line)
            self._line = b""

    def _forward(self, line: bytes) -> None:
        if self.forward is None:
            return
        try:
            self.forward(line.decode(errors="replace").removesuffix("\r"))
        except Exception:
            self.forward = None
            logger.exception("the function for lines of stderr failed; it is not called again")


Folder: TypeAlias = str | os.PathLike[str]
Command: TypeAlias = Sequence[str | os.PathLike[str]]


@attrs.define(kw_only=True, eq=False, repr=False)
class ChildProcess:
    """A subprocess and its stderr; made by `start_child`.

    The caller uses and closes `stdin` and `stdout`. When the subprocess exits, the rest of its
    group is killed. Bytes that were written before can still be read; the end follows after them.
    If stderr is inherited, `stderr` is None and `tail` stays empty.
    """

    process: trio.Process
    stdin: Descriptor
    stdout: Descriptor
    stderr: Descriptor | None
    tail: StderrTail
    limits: Limits
    exit_status: int | None = attrs.field(default=None, init=False)
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def send_signal(self, number: int) -> None:
        """Send a signal to the subprocess alone; does nothing after its end."""
        if self.exit_status is None:
            os.kill(self.process.pid, number)  # `Popen.send_signal` would reap it

    def send_signal_to_group(self, number: int) -> None:
        """Send a signal to the group; does nothing after the end of the subprocess.

        Windows has no such signals: there the group gets Ctrl-Break, and SIGKILL ends the
        subprocess alone.
        """
        if self.exit_status is not None:
            return
        if sys.platform != "win32":
            with suppress(ProcessLookupError, PermissionError):  # only zombies are left
                os.killpg(self.process.pid, number)
        elif number == SIGKILL:
            self.process.kill()
        else:
            with suppress(OSError):  # it has no console
                os.kill(self.process.pid, signal.CTRL_BREAK_EVENT)

    def terminate(self) -> None:
        """Send SIGTERM to the group."""
        self.send_signal_to_group(signal.SIGTERM)

    def kill(self) -> None:
        """Kill and reap the group; `ended` is set within `limits.shutdown.kill_seconds`."""
        self._scope.cancel()

    async def run(self) -> None:
        """Read stderr, wait for the exit, kill the rest of the group, and reap the subprocess.

        A system task runs this. It sets `ended` after the exit and the end of stderr.
        """

        async def read(stderr: Descriptor) -> None:
            while chunk := await stderr.read():
                self.tail.feed(chunk)
            self.tail.finish()

        async def wait_exit() -> None:
            end = open_process_end(self.process.pid)
            if end is None:
                await self.process.wait()  # reaps; the group is killed right after
                return
            try:
                await trio.lowlevel.wait_readable(end)
            finally:
                os.close(end)

        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    if self.stderr is not None:
                        nursery.start_soon(read, self.stderr)
                    # If this is cancelled, also by the end of the Trio run, it kills the group.
                    try:
                        await wait_exit()
                    finally:
                        self.send_signal_to_group(SIGKILL)
                        with trio.move_on_after(self.limits.shutdown.kill_seconds, shield=True):
                            self.exit_status = await self.process.wait()
                        self.stdout.end()
                        if self.stderr is not None:
                            self.stderr.end()
        except Exception:  # a system task that raises would end the Trio run
            logger.exception("watching a subprocess failed")
        finally:
            if self.stderr is not None:
                self.stderr.close()
            self.ended.set()


def signal_name(number: int) -> str:
    """Return the name of a signal, or "signal 35": most real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def start_child(
    command: Command,
    *,
    env: Mapping[str, str],
    cwd: Folder | None = None,
    forward: Callable[[str], None] | None = None,
    inherits_stderr: bool = False,
    inherits_descriptors: bool = False,
    limits: Limits,
) -> ChildProcess:
    """Start `command` in its own session and process group, and watch it; `env` is complete.

    With `inherits_descriptors` the subprocess gets the inheritable descriptors beyond stdin, stdout
    and stderr: those that this process was started with.

    Raises:
        ConnectionLost: The command could not be started; the cause is an OSError.
    """
    name = os.fspath(command[0])
    group: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        group = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        # By itself, Windows finds `npx.exe` for "npx", and not `npx.cmd`.
        command = [shutil.which(name, path=env.get("PATH")) or name, *command[1:]]
    pipes: list[tuple[int, int]] = []  # each with the end to read and the end to write
    try:
        for _ in range(2 if inherits_stderr else 3):
            pipes.append(os.pipe())  # noqa: PERF401  (if one fails, the others are closed)
    except OSError as error:
        _close_all([fd for pipe in pipes for fd in pipe])
        raise ConnectionLost(f"cannot start {name!r}: {error.strerror}") from error
    # The subprocess reads `to_read` and writes `to_write`; this process has the other ends.
    (to_read, stdin), (stdout, to_write), *stderr = pipes
    ours = [stdin, stdout, *(read for read, _ in stderr)]
    theirs = [to_read, to_write, *(write for _, write in stderr)]
    try:
        process = await trio.lowlevel.open_process(
            command,
            stdin=to_read,
            stdout=to_write,
            stderr=stderr[0][1] if stderr else None,
            cwd=cwd,
            env=env,
            close_fds=not inherits_descriptors,
            **group,
        )
    except OSError as error:
        _close_all(ours)
        reason = _start_failure(error, name, cwd, env)
        raise ConnectionLost(f"cannot start {name!r}: {reason}") from error
    except BaseException:
        _close_all(ours)
        raise
    finally:
        _close_all(theirs)
    for fd in ours[:2]:
        widen_pipe(fd)
    child_stdin, child_stdout, *child_stderr = (
        open_own_pipe_end(fd, chunk_bytes=limits.messages.chunk_bytes) for fd in ours
    )
    child = ChildProcess(
        process=process,
        stdin=child_stdin,
        stdout=child_stdout,
        stderr=child_stderr[0] if child_stderr else None,
        tail=StderrTail(bytes_max=limits.shutdown.stderr_tail_bytes, forward=forward),
        limits=limits,
    )
    trio.lowlevel.spawn_system_task(
        child.run, name=f"{__name__}.{process.pid}", context=copy_context()
    )
    return child


def _start_failure(error: OSError, program: str, cwd: Folder | None, env: Mapping[str, str]) -> str:
    if cwd is not None and not Path(cwd).is_dir():
        return f"there is no working directory {os.fspath(cwd)!r}"
    if isinstance(error, FileNotFoundError) and Path(program).name == program:
        return f"not found on PATH ({env.get('PATH', os.defpath)})"
    return error.strerror or str(error)


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


# The variables that programs need to find their files and language; none holds a token or a key.
INHERITED_VARIABLES: Final = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}
    # Windows starts few programs without these.
    | {"APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROGRAMDATA"}
    | {"PROGRAMFILES", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE"}
    | {"WINDIR"}
)


@attrs.define(kw_only=True, eq=False, repr=False)
class ProcessChannel(LineChannel):
    """The channel to a server subprocess; made by `open_process_channel`.

    When the subprocess exits, its process group is killed, and `receive` and `send` raise
    `ConnectionLost` with the exit status and the last lines of its stderr, even after a clean exit.
    """

    _name: str = attrs.field(alias="name")
    _child: ChildProcess = attrs.field(alias="child")

    @property
    def exit_status(self) -> int | None:
        """The exit status; None while it runs, -N if the signal N killed it."""
        return self._child.exit_status

    @property
    def stderr_tail(self) -> str:
        """The last lines of its stderr."""
        return self._child.tail.text

    async def send(self, messages: Sequence[bytes]) -> None:
        """Send all messages; see `Channel.send`. `send_nowait` does not say why a server ended."""
        try:
            await super().send(messages)
        except trio.BrokenResourceError:
            raise await self._connection_lost() from None

    async def _check_end(self) -> None:
        raise await self._connection_lost()

    async def _finish(self) -> None:
        """Stop the server: close its stdin, wait, send SIGTERM, wait, and kill its group.

        Takes at most `limits.shutdown.close_seconds`, `limits.shutdown.terminate_seconds` and
        `limits.shutdown.kill_seconds`, and leaves no process and no zombie.
        """
        child, shutdown = self._child, self.limits.shutdown
        steps: tuple[tuple[Callable[[], None], float], ...] = (
            (child.stdin.close, shutdown.close_seconds),
            (child.terminate, shutdown.terminate_seconds),
            (child.kill, shutdown.kill_seconds),
        )
        child.stdout.interrupt()  # ends a `receive`, before `discard_stdout` reads in its place

        async def discard_stdout() -> None:
            # A server that waits until its output is read can then notice the end of its stdin.
            while await child.stdout.read():
                pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(discard_stdout)
            for step, seconds in steps:
                if not child.ended.is_set():
                    step()
                    with trio.move_on_after(seconds):
                        await child.ended.wait()
            nursery.cancel_scope.cancel()

    async def _connection_lost(self) -> ConnectionLost:
        """Return the error for a lost server, after a short wait for exit status and last lines."""
        with trio.move_on_after(self.limits.shutdown.exit_status_seconds):
            await self._child.ended.wait()
        status = self.exit_status
        if status is None:
            end = "closed its stdout but still runs"
        elif status < 0:
            end = f"was killed by {signal_name(-status)}"
        else:
            end = f"exited with status {status}"
        return ConnectionLost(
            f"{self._name} {end}",
            exit_status=status,
            stderr_tail=self.stderr_tail,
        )


async def open_process_channel(
    command: Command,
    *,
    env: Mapping[str, str] | None = None,
    inherit_env: bool = False,
    cwd: Folder | None = None,
    stderr: Callable[[str], None] | Literal["inherit"] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> ProcessChannel:
    """Start `command` as a server, and return the channel to it; closing it stops the server.

    Args:
        command: The program and its arguments.
        env: Environment variables, in addition to the inherited ones.
        inherit_env: Whether the server inherits all variables of this process. Otherwise it
            inherits only those that programs need to find their files and language.
        cwd: The working directory.
        stderr: A function for each line of the server's stderr, which must not wait, or "inherit"
            for the stderr of this process. The last lines are kept for error texts in any case.
        limits: The limits of the channel, and those for stopping the server.

    Raises:
        ConnectionLost: The command could not be started.
        TypeError: `command` is not a list, or is empty.
    """
    if isinstance(command, str) or not command:
        raise TypeError("a command is a list: the program and its arguments")
    inherited = {
        name: value
        for name, value in os.environ.items()
        if inherit_env or name in INHERITED_VARIABLES or name.startswith("LC_")
    }
    child = await start_child(
        command,
        env=inherited | dict(env or {}),
        cwd=cwd,
        forward=write_to_stderr if stderr == "inherit" else stderr,
        limits=limits,
    )
    return ProcessChannel(
        name=os.fspath(command[0]),
        child=child,
        source=child.stdout,
        sink=child.stdin,
        transport="stdio",
        limits=limits,
    )
