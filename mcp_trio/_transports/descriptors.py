"""Non-blocking reads and writes of file descriptors through Trio.

An inherited descriptor, such as a server's stdin, shares its *open file description* with the
parent, with other children and with the user's shell, and with it the flag O_NONBLOCK. Setting the
flag would break those programs, so it is never set on such a description. Instead, by kind of file:

    a pipe          is opened once more under /proc, which gives a description of its own
    a socket        is read and written with MSG_DONTWAIT
    a regular file  never blocks for long, and epoll does not accept it
    all others      (a terminal; a pipe that cannot be opened again; a named pipe to read) are asked
                    by poll(2) first, and written in pieces of PIPE_BUF, for which a writable pipe
                    has room

For poll(2) a file that epoll does not accept, such as /dev/null, is always ready.

Windows has none of this: there threads read and write everything but regular files and sockets.
"""

import contextlib
import errno
import os
import select
import socket
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
import outcome
import trio

from mcp_trio.limits import DEFAULT_LIMITS

if sys.platform != "win32":
    import fcntl

_CLOSED: Final = -1
_PIPE_BYTES: Final = 1 << 20

# The functions of Python itself. A recorded session replaces them, in their modules, by functions
# that first check whether a handler calls them, which takes time.
_write: Final = os.write
_socket_send: Final = socket.socket.send
_socket_receive: Final = socket.socket.recv


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
        """Write all of `data`; if this is cancelled, a part of it may have been written."""
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


if sys.platform == "win32":
    _DONT_WAIT: Final = 0  # the socket itself does not block
else:
    _DONT_WAIT: Final = socket.MSG_DONTWAIT


@attrs.define(kw_only=True, eq=False, repr=False)
class SocketDescriptor(Descriptor):
    """A socket whose description may be shared with other processes."""

    _socket: socket.socket = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        # A default timeout, which a library may have set, would set O_NONBLOCK, and a read would
        # block for as long.
        is_blocking = sys.platform == "win32" or os.get_blocking(self.fd)
        self._socket = socket.socket(fileno=self.fd)
        if sys.platform == "win32":
            self._socket.settimeout(0)
        elif self._socket.gettimeout() is not None:
            self._socket.settimeout(None)
            os.set_blocking(self.fd, is_blocking)

    def write_nowait(self, data: bytes | memoryview, /) -> int:
        """Write without blocking; see `ByteSink.write_nowait`."""
        return _socket_send(self._socket, data, _DONT_WAIT)

    @property
    def is_readable(self) -> bool:
        """True if a read returns at once, with bytes, end of file or an error."""
        try:
            self._socket.recv(1, socket.MSG_PEEK | _DONT_WAIT)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def _read(self) -> bytes:
        try:
            return _socket_receive(self._socket, self.chunk_bytes, _DONT_WAIT)
        except ConnectionResetError:  # a local peer closed before it had read everything
            return b""

    def _close(self) -> None:
        self._socket.close()


if sys.platform != "win32":

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


_CLOSE_SECONDS: Final = 1.0


@attrs.define(kw_only=True, eq=False, repr=False)
class ThreadDescriptor(Descriptor):
    """A blocking descriptor that threads read and write, on a system that cannot wait for it.

    Nothing can interrupt a thread that reads. It ends when something arrives, or the other end is
    closed, and then closes the descriptor if that was asked for. It does not keep the process
    alive.

    The thread that writes holds one piece of up to `chunk_bytes`, as a pipe's buffer would. `close`
    waits for this piece, for at most a second.
    """

    _received: bytes | None = attrs.field(default=None, init=False)
    _failure: OSError | None = attrs.field(default=None, init=False)
    _waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _interrupts: int = attrs.field(default=0, init=False)
    # The thread sets `_has_finished` when its call has ended; the event loop ends `_is_busy` later,
    # when it takes the result.
    _is_busy: bool = attrs.field(default=False, init=False)
    _has_finished: threading.Event = attrs.field(factory=threading.Event, init=False)
    _is_sink: bool = attrs.field(default=False, init=False)  # set by the first write
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _closes_when_finished: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._has_finished.set()

    def write_nowait(self, data: bytes | memoryview, /) -> int:
        """Pass a piece to the thread; see `ByteSink.write_nowait`."""
        if self._failure is not None:
            raise self._failure
        if self._is_busy:
            raise BlockingIOError
        fd, piece = self.fd, bytes(data[: self.chunk_bytes])

        def write_all() -> bytes:
            rest = memoryview(piece)
            while rest:
                rest = rest[_write(fd, rest) :]
            return b""

        self._is_sink = True
        self._start(write_all)
        return len(piece)

    async def wait_readable(self) -> None:
        """Wait until there is something to read, or the end is reached."""
        if self._received is None and self._failure is None:
            fd, size = self.fd, self.chunk_bytes
            if not self._is_busy:
                self._start(lambda: os.read(fd, size))
            await self._wait_change()
        else:
            await trio.lowlevel.checkpoint()

    async def wait_writable(self) -> None:
        """Wait until the thread has written its piece."""
        if self._is_busy:
            await self._wait_change()
        else:
            await trio.lowlevel.checkpoint()

    def end(self) -> None:
        """Do nothing: the thread reads up to the end, which comes when the writer exits."""

    def interrupt(self) -> None:
        """Raise `trio.ClosedResourceError` in the tasks that wait; nothing is closed."""
        self._interrupts += 1
        self._waiting.unpark_all()

    def _read(self) -> bytes:
        if self._failure is not None:
            raise self._failure
        if self._received is None:
            raise BlockingIOError
        chunk, self._received = self._received, None
        return chunk

    def _close(self) -> None:
        if self._is_sink:
            self._has_finished.wait(_CLOSE_SECONDS)
        with self._lock:
            self._closes_when_finished = not self._has_finished.is_set()
            if not self._closes_when_finished:
                os.close(self.fd)

    async def _wait_change(self) -> None:
        interrupts = self._interrupts
        await self._waiting.park()
        if self._interrupts != interrupts:
            raise trio.ClosedResourceError("this end was closed")

    def _start(self, call: Callable[[], bytes]) -> None:
        fd, token = self.fd, trio.lowlevel.current_trio_token()
        self._is_busy = True
        self._has_finished.clear()

        def deliver(result: outcome.Outcome[bytes]) -> None:
            with self._lock:
                self._has_finished.set()
                if self._closes_when_finished:
                    os.close(fd)
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(self._take, result)

        trio.lowlevel.start_thread_soon(call, deliver, name="mcp_trio descriptor")

    def _take(self, result: outcome.Outcome[bytes]) -> None:
        self._is_busy = False
        try:
            chunk = result.unwrap()
        except OSError as error:
            self._failure = error
        else:
            self._received = None if self._is_sink else chunk
        self._waiting.unpark_all()


def widen_pipe(fd: int) -> None:
    """Let a pipe hold 1 MiB, where the system allows that; Linux gives it 64 KiB.

    A large message then takes fewer system calls, and fewer context switches.
    """
    if sys.platform == "linux":
        # The C library is old, or the user has too many wide pipes.
        with contextlib.suppress(AttributeError, OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def open_descriptor(
    fd: int, *, chunk_bytes: int = DEFAULT_LIMITS.messages.chunk_bytes
) -> Descriptor:
    """Return a source and sink for `fd`, which it owns.

    A pipe is opened once more if the system allows that; then `fd` is closed at once. No flag of
    the description of `fd` is changed.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return FileDescriptor(fd=fd, chunk_bytes=chunk_bytes)
    if sys.platform == "win32":
        return ThreadDescriptor(fd=fd, chunk_bytes=chunk_bytes)
    else:  # noqa: RET505  (type checkers look at one of the two)
        if stat.S_ISSOCK(mode):
            return SocketDescriptor(fd=fd, chunk_bytes=chunk_bytes)
        if stat.S_ISFIFO(mode):
            access, link = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE, f"/proc/self/fd/{fd}"
            try:
                # A named pipe (the others have no absolute path) whose writers are gone, opened
                # again, would never be readable, and the reader would wait for the end for ever.
                if access == os.O_RDONLY and Path(link).readlink().is_absolute():
                    return PolledDescriptor(fd=fd, chunk_bytes=chunk_bytes)
                own = os.open(link, access | os.O_NONBLOCK)
            except OSError:  # there is no /proc, or the pipe is another user's, or has no reader
                return PolledDescriptor(fd=fd, chunk_bytes=chunk_bytes)
            os.close(fd)
            widen_pipe(own)
            return Descriptor(fd=own, chunk_bytes=chunk_bytes)
        return PolledDescriptor(fd=fd, chunk_bytes=chunk_bytes)


def open_own_pipe_end(
    fd: int, *, chunk_bytes: int = DEFAULT_LIMITS.messages.chunk_bytes
) -> Descriptor:
    """Return a source or sink for the end of a pipe that only this process has, and owns then."""
    if sys.platform == "win32":
        return ThreadDescriptor(fd=fd, chunk_bytes=chunk_bytes)
    os.set_blocking(fd, False)
    return Descriptor(fd=fd, chunk_bytes=chunk_bytes)
