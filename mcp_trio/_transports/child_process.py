"""A subprocess that leads its own process group, watched from its start to the group's end.

One system task per subprocess reads its stderr and waits for its exit. It alone reaps, because the
group may be signalled safely only while nobody has: until then the number of the group cannot
belong to anybody else. So the group is swept with SIGKILL in the moment between exit and reaping,
always, and whoever wants the subprocess gone signals it or cancels the task, and waits.
"""

import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import TypeAlias

import attrs
import trio

from mcp_trio._errors import ConnectionLost
from mcp_trio._limits import Limits
from mcp_trio._transports.descriptors import Descriptor
from mcp_trio._transports.stderr_tail import StderrTail

_log = logging.getLogger(__name__)

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
        """Has the group killed and reaped; `ended` follows within `kill_seconds`."""
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
            with trio.move_on_after(self.limits.kill_seconds, shield=True):
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
        tail=StderrTail(bytes_max=limits.stderr_tail_bytes, forward=forward),
        limits=limits,
    )
    child.watch()
    return child


def _own_end(fd: int, limits: Limits) -> Descriptor:
    os.set_blocking(fd, False)  # ours alone: the subprocess has the other end
    return Descriptor(fd=fd, chunk_bytes=limits.chunk_bytes)


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
