"""The stdio server channel: redirected descriptors, and the death of the parent.

Nothing but messages may reach the real stdout. So descriptors 0 and 1 are taken away from the
program before people's code runs, and a stray `print`, a write to descriptor 1 or a child process
meets stderr instead.
"""

import contextlib
import errno
import fcntl
import os
import sys
from typing import Final

import trio

from mcp_trio._transports.descriptors import open_descriptor
from mcp_trio._transports.lines import LineChannel
from mcp_trio.limits import DEFAULT_LIMITS, Limits

_STDIN: Final = 0
_STDOUT: Final = 1
_STDERR: Final = 2


def divert_stdio() -> tuple[int, int]:
    """Takes stdin and stdout for the channel; returns their private descriptors, in that order.

    Afterwards descriptor 0 reads /dev/null and descriptor 1 writes to stderr, for this program and
    its children. What was printed before and not yet flushed goes to stderr too. To be called once.
    """
    fd_in, fd_out = _private(_STDIN), _private(_STDOUT)
    _replace(_STDIN, by=_null())
    _replace(_STDOUT, by=_private(_STDERR))
    with contextlib.suppress(AttributeError, ValueError, OSError):  # no stdout, or one that is shut
        sys.stdout.flush()
    return fd_in, fd_out


def _private(fd: int) -> int:
    """A duplicate that children do not inherit; /dev/null for a descriptor that was never open."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return _null()


def _null() -> int:
    lowest = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    private = fcntl.fcntl(lowest, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1)
    os.close(lowest)
    return private


def _replace(fd: int, *, by: int) -> None:
    os.dup2(by, fd)
    os.close(by)


def open_stdio_channel(fd_in: int, fd_out: int, *, limits: Limits = DEFAULT_LIMITS) -> LineChannel:
    """A channel that reads `fd_in` and writes `fd_out`, such as those of `divert_stdio`.

    Any kind of file will do: pipe, socket, terminal, regular file. The channel owns both (they are
    two numbers) and leaves the flags of what they share with other processes alone.
    """
    return LineChannel(
        source=open_descriptor(fd_in, chunk_bytes=limits.messages.chunk_bytes),
        sink=open_descriptor(fd_out, chunk_bytes=limits.messages.chunk_bytes),
        transport="stdio",
        limits=limits,
    )


async def wait_parent_death(
    *, parent_pid: int | None = None, limits: Limits = DEFAULT_LIMITS
) -> None:
    """Returns when the parent is gone.

    `parent_pid` is `os.getppid()` as it was when the program started; without it, a parent that
    died before this call goes unnoticed. Linux tells at once, other systems are asked every
    `limits.shutdown.parent_poll_seconds`.
    """
    parent_pid = os.getppid() if parent_pid is None else parent_pid
    try:
        pidfd = os.pidfd_open(parent_pid)
    except (AttributeError, OSError):  # not Linux, forbidden by a sandbox, or dead already
        await _poll_parent(parent_pid, limits.shutdown.parent_poll_seconds)
        return
    try:
        # The number may have been reused before it was opened; then it is nobody's parent.
        if os.getppid() == parent_pid:
            await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


async def _poll_parent(parent_pid: int, seconds: float) -> None:
    while os.getppid() == parent_pid:  # noqa: ASYNC110 (nobody announces it)
        await trio.sleep(seconds)
