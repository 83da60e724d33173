"""The stdio channel of a server: its descriptors, and how it notices the parent's end.

Only messages may reach the real stdout. So descriptors 0 and 1 are redirected before the user's
code is imported: a `print`, a write to descriptor 1 or the output of a child process goes to
stderr.
"""

import contextlib
import errno
import os
import sys
from typing import Final

import trio

from mcp_trio._system import open_process_end
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
    fd_in, fd_out = _duplicate(_STDIN), _duplicate(_STDOUT)
    _replace(_STDIN, by=_open_null())
    _replace(_STDOUT, by=_duplicate(_STDERR))
    with contextlib.suppress(AttributeError, ValueError, OSError):  # stdout is None or closed
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


async def wait_parent_death(
    *, parent_pid: int | None = None, limits: Limits = DEFAULT_LIMITS
) -> None:
    """Wait until the parent process has ended.

    Args:
        parent_pid: The result of `os.getppid()` when the program started. Without it, a parent that
            ended before this call goes unnoticed.
        limits: On systems other than Linux, the parent is polled every
            `limits.shutdown.parent_poll_seconds`. On Windows this waits for ever, since the id of
            the parent does not change when the parent ends; the end of stdin has to do.
    """
    if sys.platform == "win32":
        await trio.sleep_forever()
    parent_pid = os.getppid() if parent_pid is None else parent_pid
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
