"""Channels over Unix domain sockets and TCP, one message per line: the client's and server's ends.

A browser can connect to a TCP port: any web page may send lines of its own inside of an HTTP
request. So the server's end checks the first byte, and closes connections that do not start with
JSON.
"""

import contextlib
import errno
import logging
import os
import socket
import stat
import struct
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from pathlib import Path
from typing import Final, NoReturn, TypeAlias

import attrs
import msgspec
import trio

from mcp_trio._jsonrpc.channel_messages import AuthInfo, with_sender
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._protocol.shares import Shares, network_of, shares_of
from mcp_trio._transports.buffered_sockets import ConnectedSocket, ip_address_of
from mcp_trio._transports.channel import text_with_cause
from mcp_trio._transports.http_response import (
    TooManyBodiesError,
    UnfinishedBody,
    shares_of_bodies,
)
from mcp_trio._transports.lines import LineChannel
from mcp_trio._transports.lock_file import locked_path
from mcp_trio._transports.peer_log import PeerLog
from mcp_trio.errors import ConnectionLost
from mcp_trio.limits import DEFAULT_LIMITS, Limits

SocketPath: TypeAlias = str | os.PathLike[str]

_FIRST_BYTES_OF_JSON: Final = b"{[ \t\r\n\xef"  # with white space, or a byte order mark
_BACKLOG: Final = 1024
_OWNER_ONLY_UMASK: Final = 0o177


class PeerCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the peer of a connection, as far as the operating system knows them.

    Attributes:
        address: The IP address of a TCP peer.
        pid: The process that connected. It may have ended, and its number be reused.
        uid: The user id of the process.
        gid: The group id of the process.
    """

    address: str | None = None
    pid: int | None = None
    uid: int | None = None
    gid: int | None = None


@attrs.define(kw_only=True, eq=False, repr=False)
class SocketChannel(LineChannel):
    """A line channel over a connected socket.

    Attributes:
        name: The name of the peer for error texts.
        auth: At the server's end: the client as `authorize` has authenticated it.
        is_first_byte_checked: Whether the first byte was checked, as a server does.
        network: At the server's end: the network of the client; None for a Unix socket.
        unfinished: At the server's end: counts the bytes of the incomplete message.
    """

    socket: ConnectedSocket
    name: str
    peer: PeerCredentials
    auth: AuthInfo | None = None
    is_first_byte_checked: bool = True
    network: str | None = attrs.field(default=None, init=False)
    unfinished: UnfinishedBody | None = attrs.field(default=None, init=False)

    async def receive(self) -> Sequence[bytes | Oversized]:
        """Return the messages that have arrived, with their sender if it is known."""
        messages = await super().receive()
        self._count_unfinished()
        if self.auth is None:
            return messages
        return [
            with_sender(message, self.auth) if isinstance(message, bytes) else message
            for message in messages
        ]

    def _count_unfinished(self) -> None:
        if self.unfinished is not None:
            try:
                self.unfinished.count(self._splitter.pending_bytes)
            except TooManyBodiesError as error:
                raise ConnectionLost(
                    f"the connection with {self.name} is closed: {error}"
                ) from None

    def _read(self) -> bytes:
        self._count_unfinished()
        chunk = super()._read()
        if not self.is_first_byte_checked and chunk:
            self.is_first_byte_checked = True
            if chunk[0] not in _FIRST_BYTES_OF_JSON:
                raise ConnectionLost(
                    f"{self.name} does not send MCP messages: its first bytes are {chunk[:20]!r}"
                )
        return chunk

    def mark_going_away(self) -> None:
        """Do nothing: a line protocol cannot express it."""

    async def _finish(self) -> None:
        """Shut down writing, and wait until the peer closes.

        A socket that is closed with unread data in it would discard what was sent.
        """
        self.socket.interrupt()
        self.socket.shut_writing()
        with (
            trio.move_on_after(self.limits.shutdown.close_seconds),
            contextlib.suppress(OSError),
        ):
            while not self._is_ended and await self.socket.read():
                pass


def _channel(
    stream: trio.SocketStream, *, transport: str, name: str, limits: Limits
) -> SocketChannel:
    peer, connected = PeerCredentials(), stream.socket
    with contextlib.suppress(OSError, struct.error):
        # These errors mean that the peer is gone, or that the system has another format.
        if sys.platform != "win32" and connected.family == socket.AF_UNIX:
            peer = _unix_credentials(connected)
        else:
            peer = PeerCredentials(address=connected.getpeername()[0])
    owned = ConnectedSocket(fd=stream.socket.detach(), chunk_bytes=limits.messages.chunk_bytes)
    return SocketChannel(
        source=owned,
        sink=owned,
        socket=owned,
        transport=transport,
        name=name,
        peer=peer,
        limits=limits,
    )


_UCRED: Final = struct.Struct("3i")  # Linux: pid, uid, gid

# macOS: a version, the uid, the number of groups, and the groups, of which the first is the gid.
# The pid is a second option.
_SOL_LOCAL: Final = 0
_LOCAL_PEERCRED: Final = 1
_LOCAL_PEERPID: Final = 2
_XUCRED: Final = struct.Struct("@IIh16I")
_XUCRED_VERSION: Final = 0
_PID: Final = struct.Struct("@i")


def _unix_credentials(connected: trio.socket.SocketType) -> PeerCredentials:
    if sys.platform == "linux":
        option = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        pid, uid, gid = _UCRED.unpack(option)
        return PeerCredentials(pid=pid, uid=uid, gid=gid)
    if sys.platform == "darwin":
        option = connected.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED.size)
        version, uid, _count, gid, *_others = _XUCRED.unpack(option)
        if version == _XUCRED_VERSION:
            (pid,) = _PID.unpack(connected.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, _PID.size))
            return PeerCredentials(pid=pid, uid=uid, gid=gid)
    return PeerCredentials()


async def open_unix_channel(path: SocketPath, *, limits: Limits = DEFAULT_LIMITS) -> SocketChannel:
    """Connect to the server that listens at a socket file.

    Raises:
        ConnectionLost: No server listens there, or connecting is not allowed.
    """
    name = f"unix:{os.fspath(path)}"
    if sys.platform == "win32":
        raise ConnectionLost(f"cannot connect to {name}: {_NO_UNIX_SOCKETS}")
    with _connecting(name):
        stream = await trio.open_unix_socket(path)
    return _channel(stream, transport="unix", name=name, limits=limits)


async def open_tcp_channel(
    host: str, port: int, *, limits: Limits = DEFAULT_LIMITS
) -> SocketChannel:
    """Connect to the server that listens at a TCP port; the connection is not encrypted.

    Raises:
        ConnectionLost: No server listens there.
    """
    name = f"tcp://{netloc(host, port)}"
    with _connecting(name):
        stream = await trio.open_tcp_stream(host, port)
    return _channel(stream, transport="tcp", name=name, limits=limits)


@contextlib.contextmanager
def _connecting(name: str) -> Generator[None, None, None]:
    try:
        yield
    except OSError as error:
        raise ConnectionLost(f"cannot connect to {name}: {text_with_cause(error)}") from error


def netloc(host: str, port: int) -> str:
    """Return host and port as they are written in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


Authorize: TypeAlias = Callable[[PeerCredentials], Awaitable[AuthInfo | str | None]]
"""Returns a name for a peer, or more facts about it; None rejects the connection."""

Handle: TypeAlias = Callable[[SocketChannel], Awaitable[None]]
"""Serves a channel, which is closed afterwards."""


_NO_UNIX_SOCKETS: Final = (
    "Windows has no Unix sockets for Python: use a TCP port (tcp://HOST:PORT), HTTP or stdio"
)


@contextlib.asynccontextmanager
async def unix_listener(path: SocketPath) -> AsyncGenerator[trio.SocketListener, None]:
    """Listen at a socket file, which only its owner may use (mode 0600) from its creation on.

    The socket file of a server that has ended is replaced. At the end the file is removed, unless
    another process has replaced it.

    Raises:
        OSError: The file cannot be created, is no socket, or another server listens there; or this
            is Windows, which has no Unix sockets.
    """
    if sys.platform == "win32":
        raise OSError(errno.EAFNOSUPPORT, _NO_UNIX_SOCKETS, os.fspath(path))
    text = os.fspath(path)
    # Only for the removal: a relative path may be the only one that is short enough to be bound.
    absolute = os.path.abspath(text)  # noqa: ASYNC240, PTH100 - it reads no file
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bound:
        with locked_path(text):
            _remove_stale(text, bound.family)
            umask = os.umask(_OWNER_ONLY_UMASK)
            try:  # the file has its final mode at once: before a `chmod` other users could connect
                bound.bind(text)
            except OSError as error:  # a path that is too long has no number, and is not named
                number, reason = error.errno or errno.ENAMETOOLONG, error.strerror or str(error)
                raise OSError(number, reason, text) from error
            finally:
                os.umask(umask)
            made = os.lstat(text)
            # Under the lock: without `listen` another process would take the file for a stale one.
            bound.listen(_BACKLOG)
        try:
            yield trio.SocketListener(trio.socket.from_stdlib_socket(bound))
        finally:
            _remove_own(absolute, made)


def _remove_own(path: str, made: os.stat_result) -> None:
    """Remove the socket file that this process has made, unless another one has replaced it."""
    with contextlib.suppress(OSError), locked_path(path):
        found = os.lstat(path)
        # The inode number of a removed file may be reused at once, so its time is compared, too.
        if os.path.samestat(made, found) and made.st_ctime_ns == found.st_ctime_ns:
            Path(path).unlink()


_PORT_MAX: Final = 65_535


async def open_tcp_listeners(host: str, port: int) -> list[trio.SocketListener]:
    """Bind a TCP address, and listen; the errors are those of `explaining_bind_errors`."""
    with explaining_bind_errors(host, port):
        return await trio.open_tcp_listeners(port, host=host)


@contextlib.contextmanager
def explaining_bind_errors(host: str, port: int) -> Generator[None]:
    """Enter a block that binds a TCP address.

    Raises:
        OSError: The address cannot be bound; the text says why, and what to do.
        ValueError: The number of the port is out of range.
    """
    if not 0 <= port <= _PORT_MAX:  # The system would take the remainder.
        raise ValueError(f"port={port} is not a TCP port: choose one up to {_PORT_MAX}")
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            text = "the port is in use: choose another one, or 0 for any free one"
        elif error.errno == errno.EACCES:
            text = "the port needs privileges: choose one from 1024 on"
        else:
            raise
        raise OSError(error.errno, text, f"{host}:{port}") from None


def _remove_stale(path: str, family: int) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "the file exists and is not a socket", path)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
            return
        except BlockingIOError:  # the backlog of a live server is full
            pass
    raise OSError(errno.EADDRINUSE, "another server listens at this socket", path)


@attrs.define(kw_only=True, eq=False, repr=False)
class SocketHost:
    """The connections of one listener; an error of one does not affect the others.

    Attributes:
        authorize: Returns a name for a client; without it all connections are accepted.
    """

    transport: str
    authorize: Authorize | None
    handle: Handle
    limits: Limits
    _shares: Shares = attrs.field(init=False)
    # The bytes of the unfinished messages of all clients.
    _bodies: Shares = attrs.field(init=False)
    log: PeerLog = attrs.field(factory=PeerLog, init=False)

    def __attrs_post_init__(self) -> None:
        self._shares = shares_of("limits.http.connections_max", self.limits)
        self._bodies = shares_of_bodies(self.limits)

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve a new connection until it ends, and close it."""
        network = network_of(ip_address_of(stream))
        exceeded = self._shares.exceeded(network)
        if exceeded is not None:
            self.log.report("too many", f"connection rejected: too many connections{exceeded}")
            await trio.aclose_forcefully(stream)
            return
        channel = _channel(stream, transport=self.transport, name="the client", limits=self.limits)
        channel.is_first_byte_checked, channel.network = False, network
        channel.unfinished = UnfinishedBody(self._bodies, network)
        self._shares.take(network)
        try:
            await self._serve(channel)
        finally:
            self._shares.give_back(network)
            channel.unfinished.release()

    async def _serve(self, channel: SocketChannel) -> None:
        try:
            if self.authorize is not None:
                auth = await self.authorize(channel.peer)
                channel.auth = AuthInfo(subject=auth) if isinstance(auth, str) else auth
                if channel.auth is None:
                    text = f"connection rejected by authorize=: {channel.peer}"
                    self.log.report("rejected", text)
                    return
            await self.handle(channel)
        except Exception as error:
            self.log.report("failed", "a connection failed", level=logging.ERROR, error=error)
        finally:
            await channel.aclose()


async def serve_sockets(
    listeners: Sequence[trio.SocketListener],
    host: SocketHost,
    *,
    task_status: trio.TaskStatus[list[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Serve all connections until cancelled, and close the listeners.

    Cancelled: no more connections are accepted, each `handle` is cancelled, and this returns when
    all of them have returned and their channels are closed.
    """
    with contextlib.closing(host.log):
        async with trio.open_nursery() as nursery:
            await trio.serve_listeners(
                host.serve, list(listeners), handler_nursery=nursery, task_status=task_status
            )
