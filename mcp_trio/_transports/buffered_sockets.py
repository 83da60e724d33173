"""Buffered reads and bounded writes of one connected socket, plain or over TLS.

A cancel scope costs about as much as all that Python does for a small request. So the fast path of
a plain connection has none: it reads bytes that have arrived, and writes bytes that the kernel
accepts at once.
"""

import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Final

import attrs
import trio

from mcp_trio._protocol.security import sha256_base64url
from mcp_trio._transports.concurrency import FairSemaphore, IdleConnection
from mcp_trio._transports.descriptors import SocketDescriptor
from mcp_trio.limits import Limits

IP_FAMILIES: Final = frozenset({socket.AF_INET, socket.AF_INET6})
"""The address families of sockets that have an IP address and a port."""


def ip_address_of(stream: trio.abc.Stream) -> str | None:
    """Return the IP address of the peer; None for other address families and for a gone peer."""
    if not isinstance(stream, trio.SocketStream) or stream.socket.family not in IP_FAMILIES:
        return None
    try:
        address: str = stream.socket.getpeername()[0]
    except OSError:  # the peer has disconnected already
        return None
    return address


@attrs.define(kw_only=True, eq=False, repr=False)
class ConnectedSocket(SocketDescriptor):
    """A connected socket as a byte source and sink; this object owns the socket.

    Attributes:
        network: The network of the client; None if it is not needed.
        idle: The connection as a poller sees it, for `wait_idle`.
    """

    network: str | None = None
    idle: IdleConnection = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.idle = IdleConnection(self.fd, self.network)

    def shut_writing(self) -> None:
        """Send end of file to the peer; reading goes on."""
        with contextlib.suppress(OSError):  # the peer has disconnected already
            self._socket.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """Make reads return end of file; this also ends a wait in `wait_idle`."""
        super().end()
        with contextlib.suppress(OSError):  # the peer has disconnected already
            self._socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Remove the socket from its poller, and close it."""
        self.idle.end()
        super().close()


@attrs.define(kw_only=True, eq=False, repr=False)
class BufferedSocket:
    """A connected socket with a read buffer, whose writes have a time limit.

    Writing raises `trio.BrokenResourceError` if the peer has disconnected, or has read nothing for
    `limits.messages.write_stall_seconds`, or if another task has called `end` or `close`.

    Attributes:
        limits: The time without progress after which a write fails, and the sizes of reads.
        received: Bytes that have arrived and are not consumed yet.
        has_ended: The end of file has been read.
        is_broken: Nothing more can be sent: the peer has disconnected, or a write was cut short.
        is_last: Whether the connection closes after the next response.
    """

    socket: ConnectedSocket
    limits: Limits
    received: bytearray = attrs.field(factory=bytearray, init=False)
    has_ended: bool = attrs.field(default=False, init=False)
    is_broken: bool = attrs.field(default=False, init=False)
    is_last: bool = attrs.field(default=False, init=False)

    async def receive(self) -> bool:
        """Wait until more bytes have arrived; return False at end of file, and ever after."""
        while not self.has_ended:
            await self.socket.wait_readable()
            if self.receive_nowait():
                return not self.has_ended
        await trio.lowlevel.checkpoint()
        return False

    def receive_nowait(self) -> bool:
        """Receive what has arrived, bytes or the end of file; return False if nothing has."""
        try:
            chunk = self.socket.read_nowait()
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        self.received += chunk
        self.has_ended = not chunk
        return True

    async def receive_until(self, is_complete: Callable[[], bool], *, seconds: float) -> bool:
        """Receive until `is_complete()`; return False when `seconds` pass without progress.

        The time starts again with each `limits.messages.chunk_bytes` that arrive.

        Raises:
            trio.BrokenResourceError: The peer sent end of file first.
        """
        with trio.move_on_after(seconds) as limit:
            progress = 0  # the bytes that arrived since the time began
            while not is_complete():
                before = len(self.received)
                if not await self.receive():
                    raise trio.BrokenResourceError("the peer has disconnected")
                progress += len(self.received) - before
                if progress >= self.limits.messages.chunk_bytes:
                    progress = 0
                    limit.deadline = trio.current_time() + seconds
            return True
        return False

    def take(self, length: int) -> bytes:
        """Remove and return the first `length` received bytes."""
        taken = bytes(self.received[:length])
        del self.received[:length]
        return taken

    async def write(self, data: bytes) -> None:
        """Write all of `data`. Cancelled in the middle, this leaves the connection broken."""
        await trio.lowlevel.checkpoint_if_cancelled()
        rest = self.begin_write(data)
        if rest:
            await self.write_rest(rest)

    def begin_write(self, data: bytes) -> memoryview | None:
        """Write without waiting; return the rest, if any, which is for `write_rest`."""
        if self.is_broken:
            raise trio.BrokenResourceError("the connection is broken")
        written = self.write_nowait(data)
        return None if written == len(data) else memoryview(data)[written:]

    async def write_rest(self, rest: memoryview) -> None:
        """Write the rest of a `begin_write`; cancellation is that of `write`."""
        self.is_broken = True  # until all is written: a cancelled write leaves half a message
        seconds = self.limits.messages.write_stall_seconds
        while rest:
            with trio.move_on_after(seconds) as limit:
                try:
                    await self.socket.wait_writable()
                except trio.ClosedResourceError as error:
                    raise trio.BrokenResourceError("the connection was closed") from error
            if limit.cancelled_caught:
                raise trio.BrokenResourceError(
                    f"the peer has read nothing for {seconds:g} seconds"
                    " (limits.messages.write_stall_seconds)"
                )
            rest = rest[self.write_nowait(rest) :]
        self.is_broken = False

    def write_nowait(self, data: bytes | memoryview) -> int:
        """Write what the kernel accepts at once; return the number of bytes, which may be 0."""
        try:
            return self.socket.write_nowait(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.is_broken = True
            raise trio.BrokenResourceError("the peer has disconnected") from error

    async def linger(self) -> None:
        """Send end of file, and drop input until the peer closes.

        Closing a socket that holds unread bytes would reset the connection, and the peer might lose
        the last response. This takes at most `limits.shutdown.close_seconds`.
        """
        if self.is_broken:
            return
        self.socket.shut_writing()
        with trio.move_on_after(self.limits.shutdown.close_seconds):
            while await self.receive():
                self.received.clear()

    def as_stream(self) -> trio.abc.Stream:
        """Return the connection as a Trio stream, for WebSocket."""
        return BufferedSocketStream(self)

    def end(self) -> None:
        """Make `receive` return False once the bytes that have arrived are read."""
        self.socket.end()

    def close(self) -> None:
        """Close the socket at once, which ends every wait for it."""
        self.is_broken = self.has_ended = True
        self.socket.close()


@attrs.frozen(eq=False, repr=False)
class BufferedSocketStream(trio.abc.HalfCloseableStream):
    """A `BufferedSocket` as a Trio stream that can also write without waiting."""

    _socket: BufferedSocket

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all data; this fails if the peer reads nothing for `write_stall_seconds`."""
        await self._socket.write(bytes(data))
        await trio.lowlevel.cancel_shielded_checkpoint()  # `write` has none on its fast path

    def write_nowait(self, data: bytes) -> int:
        """Write as `BufferedSocket.write_nowait` does; do not call this during a `send_all`."""
        return self._socket.write_nowait(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the socket is writable."""
        await self._socket.socket.wait_writable()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return received bytes; empty at end of file."""
        received = self._socket.received
        if received:
            await trio.lowlevel.checkpoint()
        else:
            await self._socket.receive()
        return self._socket.take(len(received) if max_bytes is None else max_bytes)

    async def send_eof(self) -> None:
        """Send end of file; reading goes on."""
        self._socket.socket.shut_writing()
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Close the socket at once, which ends every wait for it."""
        self._socket.close()
        await trio.lowlevel.checkpoint()


@attrs.define(kw_only=True, eq=False, repr=False)
class TlsSocket(BufferedSocket):
    """A `BufferedSocket` with TLS, by Trio's `SSLStream`; `do_handshake` comes first.

    A plain `BufferedSocket` below the `SSLStream` limits the time of writes, and does the closing.

    Attributes:
        context: The server's certificate, and the TLS versions and ciphers that it accepts.
        client_certificate: The thumbprint of the client's certificate, which the handshake has
            verified: its SHA-256 digest in Base64URL (RFC 8705, section 3.1). None if the client
            was not asked for one, or has none.
    """

    context: ssl.SSLContext
    client_certificate: str | None = attrs.field(default=None, init=False)
    _plain: BufferedSocket = attrs.field(init=False)
    _secured: trio.SSLStream[BufferedSocketStream] = attrs.field(init=False)
    _receiving: trio.CancelScope | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._plain = BufferedSocket(socket=self.socket, limits=self.limits)

    async def do_handshake(self, handshakes: FairSemaphore) -> bool:
        """Do the TLS handshake; return False if the client fails or takes too long.

        The handshake may take `limits.http.headers_seconds`. After a failed one, `linger` and
        `close` end the connection. OpenSSL takes about 50 KiB for a connection, so it gets none
        before the client has sent a byte, and its turn has come.

        Args:
            handshakes: Limits the handshakes of each client, and of all clients of the listener.
        """
        network = self.socket.network
        with (
            contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError),
            trio.move_on_after(self.limits.http.headers_seconds),
        ):
            await self.socket.wait_readable()
            await handshakes.acquire(network)
            try:
                await trio.lowlevel.checkpoint_if_cancelled()  # its turn may come too late
                stream = BufferedSocketStream(self._plain)
                secured = trio.SSLStream(stream, self.context, server_side=True)
                try:
                    await secured.do_handshake()
                except BaseException:
                    # The stream is part of a reference cycle; without this, OpenSSL's memory of
                    # each failed connection would be held until the collector finds it.
                    vars(secured).clear()
                    raise
            finally:
                handshakes.release(network)
            self._secured = secured  # Unset after a failure, so that `linger` does not use it.
            certificate: bytes | None = secured.getpeercert(binary_form=True)
            if certificate is not None:
                self.client_certificate = sha256_base64url(certificate)
            return True
        self.is_broken = True  # nothing can be sent that the client could decrypt
        return False

    async def receive(self) -> bool:
        """Wait until more bytes have arrived; return False at end of file, and ever after.

        A client that closes the connection without a TLS closure alert (RFC 8446, section 6.1) is
        treated as if it had sent one: every HTTP message has a length of its own.
        """
        if self.has_ended:
            await trio.lowlevel.checkpoint()
            return False
        chunk: bytes | bytearray = b""
        with trio.CancelScope() as self._receiving:
            try:
                chunk = await self._secured.receive_some(self.limits.messages.chunk_bytes)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.is_broken = True
        self._receiving = None
        self.received += chunk
        self.has_ended = not chunk
        return not self.has_ended

    def begin_write(self, data: bytes) -> memoryview:
        """Return all of `data`, which the caller passes to `write_rest`."""
        if self.is_broken:
            raise trio.BrokenResourceError("the connection is broken")
        return memoryview(data)

    async def write_rest(self, rest: memoryview) -> None:
        """Encrypt and write `rest`; cancellation is that of `write`."""
        self.is_broken = True  # until all is written: a cancelled write leaves half a record
        step = self.limits.messages.chunk_bytes
        try:
            for first in range(0, len(rest), step):
                await self._secured.send_all(rest[first : first + step])
        except trio.ClosedResourceError as error:
            raise trio.BrokenResourceError("the connection was closed") from error
        self.is_broken = False

    async def linger(self) -> None:
        """Send a TLS closure alert and end of file, and drop input until the client closes.

        This takes at most `limits.shutdown.close_seconds`.
        """
        with trio.move_on_after(self.limits.shutdown.close_seconds):
            if not self.is_broken:
                with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._secured.unwrap()
            await self._plain.linger()

    def as_stream(self) -> trio.abc.Stream:
        """Return the `SSLStream`; bytes in `received` are not read from it again."""
        return self._secured

    def end(self) -> None:
        """Make a `receive` that is waiting return False."""
        if self._receiving is not None:
            self._receiving.cancel()
