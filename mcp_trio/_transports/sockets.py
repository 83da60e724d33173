"""Unix domain sockets and TCP, one message a line, both ends.

Whoever connects to a TCP port is nobody in particular: it may be a browser, which any web page can
have send its own lines to this machine inside of an HTTP request. So a server's end looks at the
first byte, and cuts off what does not begin as JSON.
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
import trio

from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._jsonrpc.messages import with_principal
from mcp_trio._transports.channel import text_with_cause
from mcp_trio._transports.lines import LineChannel
from mcp_trio._transports.lock_file import locked_path
from mcp_trio._transports.socket_bytes import SocketEnds
from mcp_trio.errors import ConnectionLost
from mcp_trio.limits import DEFAULT_LIMITS, Limits

logger = logging.getLogger("mcp_trio")

SocketPath: TypeAlias = str | os.PathLike[str]

_BEGINS_OF_JSON: Final = b"{[ \t\r\n\xef"  # white space, or a byte order mark, may stand before it
_WAITING_MAX: Final = 1024
_OWNER_ONLY_UMASK: Final = 0o177


@attrs.frozen(kw_only=True)
class PeerCredentials:
    """Who is at the other end, as far as the system knows; None: it does not.

    Attributes:
        address: Over TCP: the number of its interface.
        pid: Its process, when it connected. That may have ended, and its number be another's.
        uid: Its user.
        gid: Its group.
    """

    address: str | None = None
    pid: int | None = None
    uid: int | None = None
    gid: int | None = None


@attrs.define(kw_only=True, eq=False)
class SocketChannel(LineChannel):
    """A line channel over a connected socket.

    Attributes:
        name: Who is at the other end.
        peer: What the system knows of it.
        principal: At a server's end: who it was found to be.
        has_begun: It is settled that the peer speaks JSON.
    """

    ends: SocketEnds
    name: str
    peer: PeerCredentials
    principal: str | None = None
    has_begun: bool = True
    _is_leaving: bool = attrs.field(default=False, init=False)
    _left: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def receive(self) -> Sequence[bytes | Oversized]:
        """See `Channel.receive`."""
        frames = await super().receive()
        if self.principal is None:
            return frames
        return [
            with_principal(each, self.principal) if isinstance(each, bytes) else each
            for each in frames
        ]

    def _read(self) -> bytes:
        chunk = super()._read()
        if not self.has_begun and chunk:
            self.has_begun = True
            if chunk[0] not in _BEGINS_OF_JSON:
                raise ConnectionLost(
                    f"{self.name} does not speak MCP: it began with {chunk[:20]!r}"
                )
        return chunk

    def mark_going_away(self) -> None:
        """See `NamedChannel.mark_going_away`: lines have no words for it."""

    async def aclose(self) -> None:
        """See `Channel.aclose`: says that nothing more comes, and waits for theirs.

        A socket that is closed while something comes in would take back what it has sent.
        """
        with trio.CancelScope(shield=True):
            if self._is_leaving:
                await self._left.wait()
            else:
                self._is_leaving = True
                await self._leave()
        await trio.lowlevel.checkpoint()

    async def _leave(self) -> None:
        self.reject()
        self.ends.interrupt()
        self.ends.shut_writing()
        try:
            with (
                trio.move_on_after(self.limits.shutdown.close_seconds),
                contextlib.suppress(OSError),
            ):
                while not self._is_ended and await self.ends.read():
                    pass
        finally:
            self.ends.close()
            self._left.set()


def _channel(
    stream: trio.SocketStream, *, transport: str, name: str, limits: Limits
) -> SocketChannel:
    peer = _credentials(stream.socket)
    ends = SocketEnds(fd=stream.socket.detach(), chunk_bytes=limits.messages.chunk_bytes)
    return SocketChannel(
        source=ends, sink=ends, ends=ends, transport=transport, name=name, peer=peer, limits=limits
    )


def _credentials(connected: trio.socket.SocketType) -> PeerCredentials:
    try:
        if connected.family == socket.AF_UNIX:
            return _unix_credentials(connected)
        return PeerCredentials(address=connected.getpeername()[0])
    except (OSError, struct.error):  # it has gone already, or the system tells in another way
        return PeerCredentials()


# Linux: pid, uid, gid.
_UCRED: Final = struct.Struct("3i")

# macOS: a version, the uid, how many groups, and these, of which the first counts; the process
# is asked for by itself.
_SOL_LOCAL: Final = 0
_LOCAL_PEERCRED: Final = 1
_LOCAL_PEERPID: Final = 2
_XUCRED: Final = struct.Struct("@IIh16I")
_XUCRED_VERSION: Final = 0
_PID: Final = struct.Struct("@i")


def _linux_credentials(connected: trio.socket.SocketType) -> PeerCredentials:
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(told)
    return PeerCredentials(pid=pid, uid=uid, gid=gid)


def _macos_credentials(connected: trio.socket.SocketType) -> PeerCredentials:
    told = connected.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED.size)
    version, uid, _count, gid, *_others = _XUCRED.unpack(told)
    if version != _XUCRED_VERSION:
        return PeerCredentials()
    (pid,) = _PID.unpack(connected.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, _PID.size))
    return PeerCredentials(pid=pid, uid=uid, gid=gid)


_UNIX_CREDENTIALS: Final = {"linux": _linux_credentials, "darwin": _macos_credentials}


def _unix_credentials(connected: trio.socket.SocketType) -> PeerCredentials:
    tell = _UNIX_CREDENTIALS.get(sys.platform)
    return PeerCredentials() if tell is None else tell(connected)


# A client's end -----------------------------------------------------------------------------------


async def open_unix_channel(path: SocketPath, *, limits: Limits = DEFAULT_LIMITS) -> SocketChannel:
    """A channel to the server that listens at a socket file.

    Raises:
        ConnectionLost: Nobody does, or we may not connect.
    """
    name = f"unix:{os.fspath(path)}"
    with _connecting(name):
        stream = await trio.open_unix_socket(path)
    return _channel(stream, transport="unix", name=name, limits=limits)


async def open_tcp_channel(
    host: str, port: int, *, limits: Limits = DEFAULT_LIMITS
) -> SocketChannel:
    """A channel to the server that listens at a TCP port; nothing is encrypted.

    Raises:
        ConnectionLost: Nobody does.
    """
    name = f"tcp://{netloc(host, port)}"
    with _connecting(name):
        stream = await trio.open_tcp_stream(host, port)
    return _channel(stream, transport="tcp", name=name, limits=limits)


@contextlib.contextmanager
def _connecting(name: str) -> Generator[None, None, None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # the latter: no Unix sockets on this system
        raise ConnectionLost(f"cannot connect to {name}: {text_with_cause(error)}") from error


def netloc(host: str, port: int) -> str:
    """Host and port, as a URL has them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# A server's end -----------------------------------------------------------------------------------

Authorize: TypeAlias = Callable[[PeerCredentials], Awaitable[str | None]]
"""Who somebody is, by what the system knows of them; None sends them away."""

Handle: TypeAlias = Callable[[SocketChannel], Awaitable[None]]
"""What is done with a channel; it is closed afterwards."""


@contextlib.asynccontextmanager
async def unix_listener(path: SocketPath) -> AsyncGenerator[trio.SocketListener, None]:
    """A listener at a socket file, for its owner alone (0600) from the first moment.

    A socket at which nobody listens any more is replaced. At the end the file is removed, unless
    somebody else has put another in its place.

    Raises:
        OSError: The file cannot be made, is something else, or somebody listens there.
    """
    text = os.fspath(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bound:
        with locked_path(text):
            _remove_stale(text)
            _bind_privately(bound, text)
            made = os.lstat(text)
            bound.listen(_WAITING_MAX)  # before, it would seem to be that of a dead server
        try:
            yield trio.SocketListener(trio.socket.from_stdlib_socket(bound))
        finally:
            _remove_own(text, made)


def _remove_own(path: str, made: os.stat_result) -> None:
    with contextlib.suppress(OSError), locked_path(path):
        found = os.lstat(path)
        # The number of a file that was removed may be given to the next one at once.
        if os.path.samestat(made, found) and made.st_ctime_ns == found.st_ctime_ns:
            Path(path).unlink()


def _bind_privately(unbound: socket.socket, path: str) -> None:
    """The file is made with the rights that it keeps: nobody else can be faster than a chmod."""
    umask = os.umask(_OWNER_ONLY_UMASK)
    try:
        unbound.bind(path)
    finally:
        os.umask(umask)


def _remove_stale(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "there is a file that is no socket", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
            return
        except BlockingIOError:  # many wait there to be taken
            pass
    raise OSError(errno.EADDRINUSE, "somebody listens at this socket", path)


@attrs.define(kw_only=True, eq=False)
class SocketHost:
    """The connections to one listener; no fault of one of them hurts the others.

    Attributes:
        transport: "unix" or "tcp".
        authorize: Who somebody is; without it nobody is anybody, and all may come.
        handle: What is done with a channel.
        limits: Those of each session, and how many connections there may be.
    """

    transport: str
    authorize: Authorize | None
    handle: Handle
    limits: Limits
    _count: int = attrs.field(default=0, init=False)

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve a fresh connection until it ends, and close it."""
        if self._count >= self.limits.http.connections_max:
            logger.warning("there are too many connections (limits.http.connections_max)")
            await trio.aclose_forcefully(stream)
            return
        channel = _channel(stream, transport=self.transport, name="the client", limits=self.limits)
        channel.has_begun = False
        self._count += 1
        try:
            if await self._is_authorized(channel):
                await self.handle(channel)
        except Exception:
            logger.exception("a connection failed")
        finally:
            self._count -= 1
            await channel.aclose()

    async def _is_authorized(self, channel: SocketChannel) -> bool:
        if self.authorize is None:
            return True
        channel.principal = await self.authorize(channel.peer)
        if channel.principal is None:
            logger.warning("refused by authorize=: %s", channel.peer)
        return channel.principal is not None


async def serve_sockets(
    listeners: Sequence[trio.SocketListener],
    host: SocketHost,
    *,
    task_status: trio.TaskStatus[list[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Serve whoever connects, until it is cancelled; closes the listeners.

    Cancelled: no more connections are taken, and each `handle` is cancelled; returns when these
    have returned and their channels are closed.
    """
    async with trio.open_nursery() as nursery:
        await trio.serve_listeners(
            host.serve, list(listeners), handler_nursery=nursery, task_status=task_status
        )
