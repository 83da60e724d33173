"""The stdio channel of a server: redirected descriptors, and the end of the parent process.

Only messages may reach the real stdout. So descriptors 0 and 1 are redirected before the user's
code is imported: a `print`, a write to descriptor 1 or the output of a child process goes to
stderr.
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
    """Take stdin and stdout for a channel; return their private descriptors, in that order.

    Afterwards descriptor 0 reads /dev/null and descriptor 1 writes to stderr, for this program and
    its children. Text that was printed before and not flushed goes to stderr, too. Call this once.
    """
    fd_in, fd_out = _private(_STDIN), _private(_STDOUT)
    _replace(_STDIN, by=_null())
    _replace(_STDOUT, by=_private(_STDERR))
    with contextlib.suppress(AttributeError, ValueError, OSError):  # stdout is None or closed
        sys.stdout.flush()
    return fd_in, fd_out


def _private(fd: int) -> int:
    """Return a duplicate that children do not inherit, or /dev/null if `fd` was never open."""
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
    """Return a channel that reads `fd_in` and writes `fd_out`, such as those of `divert_stdio`.

    Any kind of file will do: a pipe, socket, terminal or regular file. The channel owns both
    descriptors, which must be two, and changes no flag that other processes share with them.
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
    """Wait until the parent process has ended.

    Args:
        parent_pid: The result of `os.getppid()` when the program started. Without it, a parent that
            ended before this call goes unnoticed.
        limits: On systems without pidfd, that is other than Linux, the parent is polled every
            `limits.shutdown.parent_poll_seconds`.
    """
    parent_pid = os.getppid() if parent_pid is None else parent_pid
    try:
        pidfd = os.pidfd_open(parent_pid)
    except (AttributeError, OSError):  # not Linux, forbidden by a sandbox, or already ended
        while os.getppid() == parent_pid:  # noqa: ASYNC110  (there is no event to wait for)
            await trio.sleep(limits.shutdown.parent_poll_seconds)
        return
    try:
        # If the number was reused before it was opened, it is not that of the parent any more.
        if os.getppid() == parent_pid:
            await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)
