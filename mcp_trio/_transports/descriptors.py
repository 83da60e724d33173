"""Non-blocking reads and writes of file descriptors through Trio.

A descriptor that was inherited (a server's stdin and stdout) shares its *description*, and with it
the flag O_NONBLOCK, with the parent, with other children and with the user's shell. Setting the
flag there breaks them, so it is never set on such a description. Instead, by what the file is:

    a pipe          is opened once more by its name under /proc: a description of our own
    a socket        takes MSG_DONTWAIT with each call
    a regular file  never makes anybody wait for long; the poller would refuse it
    anything else   (a terminal; a pipe where it cannot be reopened) is asked by poll(2) first,
                    and written in pieces of PIPE_BUF, which a ready pipe takes without blocking

A file that the poller refuses, such as /dev/null, is always ready for poll(2): nobody waits for it.
"""

import errno
import fcntl
import os
import select
import socket
import stat
from collections.abc import Callable
from typing import Final

import attrs
import trio

from mcp_trio.limits import DEFAULT_LIMITS

_CLOSED: Final = -1


@attrs.define(kw_only=True, eq=False)
class Descriptor:
    """One end, as a `ByteSource` or `ByteSink`: a description of our own."""

    fd: int
    chunk_bytes: int = DEFAULT_LIMITS.messages.chunk_bytes
    _is_ended: bool = attrs.field(default=False, init=False)

    def read_nowait(self) -> bytes:
        """What is there, at most `chunk_bytes`; empty at the end; else BlockingIOError."""
        try:
            return self._read()
        except BlockingIOError:
            if self._is_ended:
                return b""
            raise

    def write_nowait(self, data: bytes | memoryview, /) -> int:
        """How many bytes the system took; BlockingIOError when it has no room."""
        return os.write(self.fd, data)

    async def wait_readable(self) -> None:
        """Returns when there is something to read, the end included."""
        try:
            await trio.lowlevel.wait_readable(self.fd)
        except trio.ClosedResourceError:
            if not self._is_ended:
                raise

    async def wait_writable(self) -> None:
        """Returns when there is room, or nobody who could make some."""
        await trio.lowlevel.wait_writable(self.fd)

    async def read(self) -> bytes:
        """Waits for something to read, and reads it; empty at the end."""
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return self.read_nowait()
            except BlockingIOError:
                await self.wait_readable()

    async def write(self, data: bytes) -> None:
        """Waits until the system has taken all of `data`; cancelled, it may have taken a part."""
        await trio.lowlevel.checkpoint()
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self.write_nowait(rest) :]
            except BlockingIOError:
                await self.wait_writable()

    def end(self) -> None:
        """From now on what is there can be read, and behind it is the end.

        For the moment when nobody is left who should write, though somebody may hold the other end.
        """
        self._is_ended = True
        self.interrupt()

    def interrupt(self) -> None:
        """Whoever waits here gets `trio.ClosedResourceError`; nothing is closed."""
        if self.fd != _CLOSED:
            trio.lowlevel.notify_closing(self.fd)

    def close(self) -> None:
        """Closes, and wakes who waits with `trio.ClosedResourceError`."""
        if self.fd != _CLOSED:
            self.interrupt()
            self._close()
            self.fd = _CLOSED

    def _read(self) -> bytes:
        return os.read(self.fd, self.chunk_bytes)

    def _close(self) -> None:
        os.close(self.fd)


@attrs.define(kw_only=True, eq=False)
class FileDescriptor(Descriptor):
    """A regular file: always ready, and no poller takes it."""

    async def wait_readable(self) -> None:
        """See `Descriptor.wait_readable`."""
        await trio.lowlevel.checkpoint()


@attrs.define(kw_only=True, eq=False)
class SocketDescriptor(Descriptor):
    """A socket whose description may be shared."""

    _socket: socket.socket = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._socket = socket.socket(fileno=self.fd)

    def write_nowait(self, data: bytes | memoryview, /) -> int:
        """See `Descriptor.write_nowait`."""
        return self._socket.send(data, socket.MSG_DONTWAIT)

    def _read(self) -> bytes:
        try:
            return self._socket.recv(self.chunk_bytes, socket.MSG_DONTWAIT)
        except ConnectionResetError:  # a local peer that closed with something of ours unread
            return b""

    def _close(self) -> None:
        self._socket.close()


@attrs.define(kw_only=True, eq=False)
class PolledDescriptor(Descriptor):
    """A description that others share and that can only be asked."""

    def write_nowait(self, data: bytes | memoryview, /) -> int:
        """See `Descriptor.write_nowait`."""
        self._check_ready(select.POLLOUT)
        return os.write(self.fd, data[: select.PIPE_BUF])

    def _read(self) -> bytes:
        self._check_ready(select.POLLIN)
        try:
            return os.read(self.fd, self.chunk_bytes)
        except OSError as error:
            if error.errno == errno.EIO:  # how a terminal says that nobody is there any more
                return b""
            raise

    def _check_ready(self, event: int) -> None:
        poll = select.poll()
        poll.register(self.fd, event)
        if not poll.poll(0):
            raise BlockingIOError


def open_descriptor(
    fd: int, *, chunk_bytes: int = DEFAULT_LIMITS.messages.chunk_bytes
) -> Descriptor:
    """The end for `fd`, which it owns from now on; `fd` itself may be closed in favour of another.

    No flag of the description behind `fd` is changed.
    """
    mode = os.fstat(fd).st_mode
    opened = next((open_it for is_it, open_it in _KINDS if is_it(mode)), _open_polled)
    return opened(fd, chunk_bytes)


def _open_pipe(fd: int, chunk_bytes: int) -> Descriptor:
    access = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
    try:
        own = os.open(f"/proc/self/fd/{fd}", access | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # no /proc, another user's pipe, or nobody reads any more
        return _open_polled(fd, chunk_bytes)
    os.close(fd)
    return Descriptor(fd=own, chunk_bytes=chunk_bytes)


def _open_socket(fd: int, chunk_bytes: int) -> Descriptor:
    return SocketDescriptor(fd=fd, chunk_bytes=chunk_bytes)


def _open_file(fd: int, chunk_bytes: int) -> Descriptor:
    return FileDescriptor(fd=fd, chunk_bytes=chunk_bytes)


def _open_polled(fd: int, chunk_bytes: int) -> Descriptor:
    return PolledDescriptor(fd=fd, chunk_bytes=chunk_bytes)


_KINDS: Final[tuple[tuple[Callable[[int], bool], Callable[[int, int], Descriptor]], ...]] = (
    (stat.S_ISFIFO, _open_pipe),
    (stat.S_ISSOCK, _open_socket),
    (stat.S_ISREG, _open_file),
)
