"""Non-blocking reads and writes of file descriptors through Trio.

An inherited descriptor, such as a server's stdin, shares its *open file description* with the
parent, with other children and with the user's shell, and with it the flag O_NONBLOCK. Setting the
flag would break those programs, so it is never set on such a description. Instead, by kind of file:

    a pipe          is opened once more under /proc, which gives a description of its own
    a socket        is read and written with MSG_DONTWAIT
    a regular file  never blocks for long, and epoll does not accept it
    all others      (a terminal; a pipe that cannot be opened again) are asked by poll(2) first, and
                    written in pieces of PIPE_BUF, for which a writable pipe has room

For poll(2) a file that epoll does not accept, such as /dev/null, is always ready.
"""

import errno
import fcntl
import os
import select
import socket
import stat
from contextlib import suppress
from typing import Final

import attrs
import trio

from mcp_trio.limits import DEFAULT_LIMITS

_CLOSED: Final = -1
_PIPE_BYTES: Final = 1 << 20

# The original function. In a recorded session, `os.write` checks whether a handler calls it, which
# takes time.
_write: Final = os.write


@attrs.define(kw_only=True, eq=False, repr=False)
class Descriptor:
    """A `ByteSource` or `ByteSink` over a descriptor whose description is not shared."""

    fd: int
    chunk_bytes: int = DEFAULT_LIMITS.messages.chunk_bytes
    _is_ended: bool = attrs.field(default=False, init=False)

    def read_nowait(self) -> bytes:
        """Return at most `chunk_bytes` bytes; see `ByteSource.read_nowait`."""
        try:
            return self._read()
        except BlockingIOError:
            if self._is_ended:
                return b""
            raise

    def write_nowait(self, data: bytes | memoryview, /) -> int:
        """Write as many bytes as there is room for; see `ByteSink.write_nowait`."""
        return _write(self.fd, data)

    async def wait_readable(self) -> None:
        """Wait until there is something to read, or the end is reached."""
        try:
            await trio.lowlevel.wait_readable(self.fd)
        except trio.ClosedResourceError:
            if not self._is_ended:
                raise

    async def wait_writable(self) -> None:
        """Wait until there is room, or no reader is left."""
        await trio.lowlevel.wait_writable(self.fd)

    async def read(self) -> bytes:
        """Wait for bytes and return them; an empty bytes object at the end."""
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return self.read_nowait()
            except BlockingIOError:
                await self.wait_readable()

    async def write(self, data: bytes) -> None:
        """Write all of `data`. Cancelled: a part of it may have been written."""
        await trio.lowlevel.checkpoint()
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self.write_nowait(rest) :]
            except BlockingIOError:
                await self.wait_writable()

    def end(self) -> None:
        """Report the end after the bytes that have arrived, without waiting for more.

        Used when the process that should write has exited, while another process may still have the
        other end open.
        """
        self._is_ended = True
        self.interrupt()

    def interrupt(self) -> None:
        """Raise `trio.ClosedResourceError` in the tasks that wait; nothing is closed."""
        if self.fd != _CLOSED:
            trio.lowlevel.notify_closing(self.fd)

    def close(self) -> None:
        """Close, and raise `trio.ClosedResourceError` in the tasks that wait."""
        if self.fd != _CLOSED:
            self.interrupt()
            self._close()
            self.fd = _CLOSED

    def _read(self) -> bytes:
        return os.read(self.fd, self.chunk_bytes)

    def _close(self) -> None:
        os.close(self.fd)


@attrs.define(kw_only=True, eq=False, repr=False)
class FileDescriptor(Descriptor):
    """A regular file, which is always ready, and which epoll does not accept."""

    async def wait_readable(self) -> None:
        """Return at once, after a checkpoint."""
        await trio.lowlevel.checkpoint()


@attrs.define(kw_only=True, eq=False, repr=False)
class SocketDescriptor(Descriptor):
    """A socket whose description may be shared with other processes."""

    _socket: socket.socket = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._socket = socket.socket(fileno=self.fd)

    def write_nowait(self, data: bytes | memoryview, /) -> int:
        """Write without blocking; see `ByteSink.write_nowait`."""
        return self._socket.send(data, socket.MSG_DONTWAIT)

    def _read(self) -> bytes:
        try:
            return self._socket.recv(self.chunk_bytes, socket.MSG_DONTWAIT)
        except ConnectionResetError:  # a local peer closed before it had read everything
            return b""

    def _close(self) -> None:
        self._socket.close()


@attrs.define(kw_only=True, eq=False, repr=False)
class PolledDescriptor(Descriptor):
    """A shared description that has to be asked by poll(2) before each call."""

    def write_nowait(self, data: bytes | memoryview, /) -> int:
        """Write without blocking; see `ByteSink.write_nowait`."""
        self._check_ready(select.POLLOUT)
        return _write(self.fd, data[: select.PIPE_BUF])

    def _read(self) -> bytes:
        self._check_ready(select.POLLIN)
        try:
            return os.read(self.fd, self.chunk_bytes)
        except OSError as error:
            if error.errno == errno.EIO:  # the terminal was closed
                return b""
            raise

    def _check_ready(self, event: int) -> None:
        poll = select.poll()
        poll.register(self.fd, event)
        if not poll.poll(0):
            raise BlockingIOError


def widen_pipe(fd: int) -> None:
    """Let a pipe hold 1 MiB, where the system allows that; Linux gives it 64 KiB.

    A large message then takes fewer system calls, and fewer changes between the two processes.
    """
    with suppress(AttributeError, OSError):  # not Linux, or the user has too many wide pipes
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def open_descriptor(
    fd: int, *, chunk_bytes: int = DEFAULT_LIMITS.messages.chunk_bytes
) -> Descriptor:
    """Return a source and sink for `fd`, which it owns; a pipe gets another number.

    No flag of the description of `fd` is changed.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISSOCK(mode):
        return SocketDescriptor(fd=fd, chunk_bytes=chunk_bytes)
    if stat.S_ISREG(mode):
        return FileDescriptor(fd=fd, chunk_bytes=chunk_bytes)
    if stat.S_ISFIFO(mode):
        access = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
        try:
            own = os.open(f"/proc/self/fd/{fd}", access | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # there is no /proc, or the pipe is another user's, or has no reader
            return PolledDescriptor(fd=fd, chunk_bytes=chunk_bytes)
        os.close(fd)
        widen_pipe(own)
        return Descriptor(fd=own, chunk_bytes=chunk_bytes)
    return PolledDescriptor(fd=fd, chunk_bytes=chunk_bytes)
