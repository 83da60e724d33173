"""Servers as subprocesses: start, stderr, exit, and the stdio client channel."""

import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import ClassVar, Final, Literal, TypeAlias

import attrs
import trio

from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._transports.descriptors import Descriptor
from mcp_trio._transports.lines import LineChannel
from mcp_trio.errors import ConnectionLost
from mcp_trio.limits import DEFAULT_LIMITS, Limits

# --------------------
# What a subprocess says on stderr: the end is kept for error texts, lines are forwarded.


_log = logging.getLogger(__name__)


def write_to_stderr(line: str) -> None:
    """Forwards a line to this program's own stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


@attrs.define(kw_only=True)
class StderrTail:
    """The last `bytes_max` bytes, and a consumer of whole lines.

    A line longer than `bytes_max` is forwarded in pieces. A consumer that raises is logged and not
    called again: what the subprocess says must never end the session.
    """

    bytes_max: int
    forward: Callable[[str], None] | None = None
    _tail: bytes = attrs.field(default=b"", init=False)
    _is_cut: bool = attrs.field(default=False, init=False)
    _line: bytes = attrs.field(default=b"", init=False)

    @property
    def text(self) -> str:
        """What was kept, in whole lines where something was cut away."""
        tail = self._tail
        if self._is_cut:
            tail = tail.partition(b"\n")[2] or tail
        return tail.decode(errors="replace").rstrip()

    def feed(self, chunk: bytes) -> None:
        """Takes what was read."""
        kept = self._tail + chunk
        self._is_cut = self._is_cut or len(kept) > self.bytes_max
        self._tail = kept[-self.bytes_max :]
        if self.forward is not None:
            *lines, self._line = (self._line + chunk).split(b"\n")
            for line in lines:
                self._forward(line)
            while len(self._line) > self.bytes_max:
                self._forward(self._line[: self.bytes_max])
                self._line = self._line[self.bytes_max :]

    def finish(self) -> None:
        """Forwards a last line that has no end."""
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
            _log.exception("the consumer of a subprocess's stderr failed; it is not called again")


# --------------------
# A subprocess that leads its own process group, watched from its start to the group's end.
#
# One system task per subprocess reads its stderr and waits for its exit. It alone reaps, because
# the group may be signalled safely only while nobody has: until then the number of the group cannot
# belong to anybody else. So the group is swept with SIGKILL in the moment between exit and reaping,
# always, and whoever wants the subprocess gone signals it or cancels the task, and waits.


Folder = str | os.PathLike[str]
Command: TypeAlias = Sequence[str | os.PathLike[str]]
Pipe: TypeAlias = tuple[int, int]


@attrs.define(kw_only=True, eq=False)
class ChildProcess:
    """Owns the subprocess and its stderr; made by `start_child`.

    `stdin` and `stdout` are the caller's to use and to close. When the subprocess exits, so does
    its whole group: what it left behind is killed. What was written until then can still be read,
    and behind it is the end. An inherited `stderr` is None, and `tail` stays empty.
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

    def watch(self) -> None:
        """Starts the system task; `ended` is set when it has reaped and read everything."""
        trio.lowlevel.spawn_system_task(
            self._live, name=f"{__name__}.{self.process.pid}", context=copy_context()
        )

    def send_signal(self, number: int) -> None:
        """Sends a signal to the subprocess alone; after its end to nobody."""
        if self.exit_status is None:
            os.kill(self.process.pid, number)  # Popen's own way would reap it

    def send_signal_to_group(self, number: int) -> None:
        """Sends a signal to the group; after the subprocess's end to nobody."""
        if self.exit_status is None:
            with suppress(ProcessLookupError, PermissionError):  # it is empty, or only zombies
                os.killpg(self.process.pid, number)

    def terminate(self) -> None:
        """Sends SIGTERM to the group."""
        self.send_signal_to_group(signal.SIGTERM)

    def kill(self) -> None:
        """Have the group killed and reaped; `ended` follows in `limits.shutdown.kill_seconds`."""
        self._scope.cancel()

    async def _live(self) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    if self.stderr is not None:
                        nursery.start_soon(self._read_stderr, self.stderr)
                    await self._outlive()
        except Exception:  # a system task that raises would end the whole run
            _log.exception("watching a subprocess failed")
        finally:
            if self.stderr is not None:
                self.stderr.close()
            self.ended.set()

    async def _read_stderr(self, stderr: Descriptor) -> None:
        while chunk := await stderr.read():
            self.tail.feed(chunk)
        self.tail.finish()

    async def _outlive(self) -> None:
        """Waits for the exit; cancelled (also by the end of the run), brings it about."""
        try:
            await self._wait_exit()
        finally:
            self.send_signal_to_group(signal.SIGKILL)
            with trio.move_on_after(self.limits.shutdown.kill_seconds, shield=True):
                self.exit_status = await self.process.wait()
            self.stdout.end()
            if self.stderr is not None:
                self.stderr.end()

    async def _wait_exit(self) -> None:
        try:
            pidfd = os.pidfd_open(self.process.pid)
        except (AttributeError, OSError):  # not Linux, or forbidden by a sandbox
            await self.process.wait()  # reaps: the sweep follows at once
            return
        try:
            await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)


def signal_name(number: int) -> str:
    """The name of a signal, or its number: most real-time signals have no name."""
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
    """Starts `command` in a session and group of its own and watches it; its environment is `env`.

    Lines of its stderr go to `forward`, unless it inherits ours. With `inherits_descriptors` it
    gets what we were given beyond stdin, stdout and stderr; nothing that we opened ourselves.

    Raises:
        ConnectionLost: It could not be started; the text says why, the cause is an OSError.
    """
    name = os.fspath(command[0])
    (to_read, stdin), (stdout, to_write), *stderr = _open_pipes(name, 2 if inherits_stderr else 3)
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
            start_new_session=True,
            close_fds=not inherits_descriptors,
        )
    except OSError as error:
        _close_all(ours)
        reason = _why_not_started(error, name, cwd, env)
        raise ConnectionLost(f"cannot start {name!r}: {reason}") from error
    except BaseException:
        _close_all(ours)
        raise
    finally:
        _close_all(theirs)
    return _watched(process, ours, forward, limits)


def _watched(
    process: trio.Process,
    fds: Sequence[int],
    forward: Callable[[str], None] | None,
    limits: Limits,
) -> ChildProcess:
    stdin, stdout, *stderr = (_own_end(fd, limits) for fd in fds)
    child = ChildProcess(
        process=process,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr[0] if stderr else None,
        tail=StderrTail(bytes_max=limits.shutdown.stderr_tail_bytes, forward=forward),
        limits=limits,
    )
    child.watch()
    return child


def _own_end(fd: int, limits: Limits) -> Descriptor:
    os.set_blocking(fd, False)  # ours alone: the subprocess has the other end
    return Descriptor(fd=fd, chunk_bytes=limits.messages.chunk_bytes)


def _open_pipes(name: str, count: int) -> list[Pipe]:
    pipes: list[Pipe] = []
    try:
        for _ in range(count):
            pipes.append(os.pipe())  # noqa: PERF401  the next one may fail, and these be closed
    except OSError as error:
        _close_all([fd for pipe in pipes for fd in pipe])
        raise ConnectionLost(f"cannot start {name!r}: {error.strerror}") from error
    return pipes


def _why_not_started(
    error: OSError, program: str, cwd: Folder | None, env: Mapping[str, str]
) -> str:
    if cwd is not None and not Path(cwd).is_dir():
        return f"there is no folder {os.fspath(cwd)!r} to start it in"
    if isinstance(error, FileNotFoundError) and "/" not in program:
        return f"not found on PATH ({env.get('PATH', os.defpath)})"
    return error.strerror or str(error)


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


# What a program needs to find its files and its language; never a token or a key.
INHERITED_VARIABLES: Final = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}
)
_INHERITED_PREFIX: Final = "LC_"


@attrs.define(kw_only=True, eq=False)
class ProcessChannel:
    """The channel to a server that we started; made by `open_process_channel`.

    The server is the subprocess itself: when it exits, the channel ends, whatever it left running
    is killed, and `receive` and `send` raise `ConnectionLost` with its exit status and the last
    lines of its stderr, also when it exited cleanly.
    """

    transport: ClassVar[str] = "stdio"

    _name: str = attrs.field(alias="name")
    _child: ChildProcess = attrs.field(alias="child")
    _lines: LineChannel = attrs.field(alias="lines")
    _limits: Limits = attrs.field(alias="limits")
    _is_closing: bool = attrs.field(default=False, init=False)
    _closed: trio.Event = attrs.field(factory=trio.Event, init=False)

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative: the number of the signal that killed it."""
        return self._child.exit_status

    @property
    def stderr_tail(self) -> str:
        """The last lines of its stderr so far."""
        return self._child.tail.text

    @property
    def bytes_sent(self) -> int:
        """See `mcp_trio.transports.Channel`."""
        return self._lines.bytes_sent

    @property
    def is_unfinished(self) -> bool:
        """See `mcp_trio.transports.Channel`."""
        return self._lines.is_unfinished

    async def send(self, frames: Sequence[bytes]) -> None:
        """See `Channel.send`."""
        try:
            await self._lines.send(frames)
        except trio.BrokenResourceError:
            raise await self._loss() from None

    def send_nowait(self, frames: Sequence[bytes]) -> int:
        """See `mcp_trio.transports.Channel`; only `receive` can tell why the server is gone."""
        return self._lines.send_nowait(frames)

    async def receive(self) -> Sequence[bytes | Oversized]:
        """See `Channel.receive`; never empty: the end raises `ConnectionLost`."""
        frames = await self._lines.receive()
        if frames:
            return frames
        raise await self._loss()

    async def aclose(self) -> None:
        """Stops the server: closes its stdin, waits, SIGTERM, waits, SIGKILL; then its group.

        Takes `limits.shutdown.close_seconds`, `limits.shutdown.terminate_seconds` and
        `limits.shutdown.kill_seconds` at most, and leaves no process and no zombie. Cancellation
        does not shorten it. A second call waits for the first.
        """
        with trio.CancelScope(shield=True):
            if self._is_closing:
                await self._closed.wait()
            else:
                self._is_closing = True
                await self._stop()
        await trio.lowlevel.checkpoint()

    async def _stop(self) -> None:
        child, limits = self._child, self._limits
        ladder: tuple[tuple[Callable[[], None], float], ...] = (
            (child.stdin.close, limits.shutdown.close_seconds),
            (child.terminate, limits.shutdown.terminate_seconds),
            (child.kill, limits.shutdown.kill_seconds),
        )
        self._lines.reject()
        child.stdout.interrupt()  # whoever receives must be gone before the rest is discarded
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._discard_stdout)
                for rung, seconds in ladder:
                    await self._climb(rung, seconds)
                nursery.cancel_scope.cancel()
        finally:
            await self._lines.aclose()
            self._closed.set()

    async def _climb(self, rung: Callable[[], None], seconds: float) -> None:
        if not self._child.ended.is_set():
            rung()
            with trio.move_on_after(seconds):
                await self._child.ended.wait()

    async def _discard_stdout(self) -> None:
        """A server that still has something to say could not see the end of its stdin otherwise."""
        while await self._child.stdout.read():
            pass

    async def _loss(self) -> ConnectionLost:
        """What is known of the end, after a short wait for the exit status and the last words."""
        with trio.move_on_after(self._limits.shutdown.exit_status_seconds):
            await self._child.ended.wait()
        return ConnectionLost(
            f"{self._name} {_ending(self.exit_status)}",
            exit_status=self.exit_status,
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
    """Starts `command` as a server and returns the channel to it; its `aclose` stops the server.

    Of our environment it gets INHERITED_VARIABLES and the locale, or all with `inherit_env`, and
    then `env`. Its stderr is always read: the end of it is kept for error texts, and each line goes
    to `stderr`, a function that must not wait, or to our own stderr with "inherit".

    Raises:
        ConnectionLost: It could not be started; the text says why.
    """
    if isinstance(command, str) or not command:
        raise TypeError("a command is a list: the program and its arguments")
    child = await start_child(
        command,
        env=_environment(env, inherits_all=inherit_env),
        cwd=cwd,
        forward=write_to_stderr if stderr == "inherit" else stderr,
        limits=limits,
    )
    return ProcessChannel(
        name=os.fspath(command[0]),
        child=child,
        lines=LineChannel(source=child.stdout, sink=child.stdin, transport="stdio", limits=limits),
        limits=limits,
    )


def _environment(env: Mapping[str, str] | None, *, inherits_all: bool) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if inherits_all or name in INHERITED_VARIABLES or name.startswith(_INHERITED_PREFIX)
    }
    return inherited | dict(env or {})


def _ending(exit_status: int | None) -> str:
    if exit_status is None:
        return "closed its end but still runs"
    if exit_status < 0:
        return f"was killed by {signal_name(-exit_status)}"
    return f"exited with status {exit_status}"
