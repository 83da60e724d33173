"""Pairs of channels over every transport, for the checks of the contract: one table.

The first of each pair is the client's end, the second the server's. Where the transport is one of
a server's hosts, that host really runs, on a socket of this machine; only what would be a session
is handed out as a channel.
"""

import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import Context
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

import attrs
import trio

from mcp_trio import Limits
from mcp_trio._jsonrpc.messages import encode_notification, encode_request, encode_response
from mcp_trio._protocol.metadata import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from mcp_trio._protocol.methods import DISCOVER, INITIALIZE, LISTEN
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS, PROTOCOL_VERSIONS, ProtocolVersion
from mcp_trio._server.http_serve import HostKind, HttpAddress, serve_http
from mcp_trio._server.lifespan import EnteredLifespan
from mcp_trio._server.sockets import bound_websocket
from mcp_trio._server.subscriptions import ChangeNotifier
from mcp_trio._testing.channel_contract import BOTH_ENDS, TIMEOUT_SECONDS, End, MakePair
from mcp_trio._transports.concurrency import LightEvent
from mcp_trio._transports.descriptors import PolledDescriptor
from mcp_trio._transports.http_channels import SessionChannel
from mcp_trio._transports.sockets import SocketHost, serve_sockets, unix_listener
from mcp_trio.examples.named_pipes import NamedPipes, open_named_pipes
from mcp_trio.limits import MIB, MessageLimits, ShutdownLimits
from mcp_trio.transports import (
    Channel,
    LineChannel,
    Received,
    RelatedMessage,
    memory_pair,
    open_http_channel,
    open_process_channel,
    open_stdio_channel,
    open_tcp_channel,
    open_unix_channel,
    open_websocket_channel,
)
from tests.processes import python

LIMITS: Final = Limits(
    messages=MessageLimits(bytes_max=2 * MIB), shutdown=ShutdownLimits(close_seconds=0.1)
)

_HOST: Final = "127.0.0.1"
_PROTOCOL_VERSION: Final = "2025-11-25"
_STATELESS: Final = {
    "_meta": {PROTOCOL_VERSION: "2026-07-28", CLIENT_CAPABILITIES: dict[str, Any]()}
}
_WAITING_MAX: Final = 1000

Excuses: TypeAlias = Mapping[tuple[str, End], str]
"""Why a check has nothing to look at, from that end."""

Pair: TypeAlias = tuple[Channel, Channel]


@attrs.frozen(kw_only=True)
class Transport:
    """The functions that make pairs of one transport.

    Attributes:
        begin: Makes what all of its pairs need, in a nursery and an empty folder, and returns what
            gives a pair.
        limits: Those of its channels.
        excuses: What the checks cannot ask of it.
        timeout_seconds: For how long a check may take.
    """

    begin: Callable[[trio.Nursery, Path], Awaitable[MakePair]]
    limits: Limits = LIMITS
    excuses: Excuses = attrs.field(factory=dict[tuple[str, End], str])
    timeout_seconds: float = TIMEOUT_SECONDS

    def ends(self, check: str) -> tuple[End, ...]:
        """Return the ends at which a check applies."""
        return tuple(end for end in BOTH_ENDS if (check, end) not in self.excuses)


# In memory, over pipes, with a process ------------------------------------------------------------


def _simple_transport(
    make: Callable[[], Pair],
) -> Callable[[trio.Nursery, Path], Awaitable[MakePair]]:
    """Return a transport whose pairs need nothing in common."""

    async def make_pair() -> Pair:
        return make()

    async def begin(_nursery: trio.Nursery, _folder: Path) -> MakePair:
        return make_pair

    return begin


def _in_memory() -> Pair:
    return memory_pair(limits=LIMITS)


def _in_small_pieces() -> Pair:
    return memory_pair(limits=LIMITS, buffer_bytes_max=3000, chunk_bytes=1000)


def _over_pipes(end: Callable[[int, int], Channel]) -> Pair:
    (there_read, there_write), (back_read, back_write) = os.pipe(), os.pipe()
    return end(back_read, there_write), end(there_read, back_write)


def _stdio(fd_in: int, fd_out: int) -> Channel:
    return open_stdio_channel(fd_in, fd_out, limits=LIMITS)


def _polled(fd_in: int, fd_out: int) -> Channel:
    source, sink = PolledDescriptor(fd=fd_in), PolledDescriptor(fd=fd_out)
    return LineChannel(source=source, sink=sink, transport="stdio", limits=LIMITS)


def _stdio_on_socket(end: socket.socket) -> Channel:
    fd = end.detach()
    return _stdio(fd, os.dup(fd))


def over_stdio() -> Pair:
    """Return the two ends of stdio, over operating system pipes."""
    return _over_pipes(_stdio)


def _over_a_socket() -> Pair:
    one, other = socket.socketpair()
    return _stdio_on_socket(one), _stdio_on_socket(other)


_RELAY: Final = """
import os, socket, sys, threading
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])

def answers():
    try:
        while data := peer.recv(65536):
            while data:
                data = data[os.write(1, data):]
    finally:
        os._exit(0)

threading.Thread(target=answers, daemon=True).start()
while data := os.read(0, 65536):
    peer.sendall(data)
peer.close()
os._exit(0)
"""


# A busy process gets the time to pass on what was sent before the close.
_PROCESS_LIMITS: Final = Limits(messages=LIMITS.messages, shutdown=ShutdownLimits(close_seconds=3))


async def _with_process(_nursery: trio.Nursery, folder: Path) -> MakePair:
    """Start a process whose stdin and stdout are a socket, and return the other end."""
    numbers = count()

    async def make_pair() -> Pair:
        path = os.fspath(folder / f"relay{next(numbers)}")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            channel = await open_process_channel(python(_RELAY, path), limits=_PROCESS_LIMITS)
            accepted, _ = await trio.to_thread.run_sync(listener.accept)
        return channel, _stdio_on_socket(accepted)

    return make_pair


async def named_pipes_in(folder: Path) -> Pair:
    """Return the two ends of named pipes in an empty folder, from the example."""
    for name in ("to-server", "to-client"):
        os.mkfifo(folder / name, 0o600)
    ends: dict[bool, NamedPipes] = {}

    async def open_end(*, is_server: bool) -> None:
        ends[is_server] = await open_named_pipes(folder, is_server=is_server)

    async with trio.open_nursery() as nursery:
        for is_server in (False, True):
            nursery.start_soon(partial(open_end, is_server=is_server))
    return ends[False], ends[True]


async def _named_pipes(_nursery: trio.Nursery, folder: Path) -> MakePair:
    numbers = count()

    async def make_pair() -> Pair:
        own = folder / f"pipes{next(numbers)}"
        own.mkdir()
        return await named_pipes_in(own)

    return make_pair


# Connections --------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _AcceptedChannels:
    """The channels of a server, each held until it is closed."""

    _into: "trio.MemorySendChannel[Channel]" = attrs.field(init=False)
    _out: "trio.MemoryReceiveChannel[Channel]" = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._into, self._out = trio.open_memory_channel[Channel](_WAITING_MAX)

    async def handle(self, channel: Channel) -> None:
        """Accept a channel, and return when it is closed."""
        self._into.send_nowait(channel)
        await trio.sleep_forever()

    def hand_out(self, channel: Channel) -> None:
        """Accept a channel that its owner does not close."""
        self._into.send_nowait(channel)

    async def next(self) -> Channel:
        return await self._out.receive()


def _connecting(arrivals: _AcceptedChannels, connect: Callable[[], Awaitable[Channel]]) -> MakePair:
    async def make_pair() -> Pair:
        return await connect(), await arrivals.next()

    return make_pair


async def _unix(nursery: trio.Nursery, folder: Path) -> MakePair:
    path, arrivals = folder / "socket", _AcceptedChannels()
    host = SocketHost(transport="unix", authorize=None, handle=arrivals.handle, limits=LIMITS)

    async def listen(*, task_status: trio.TaskStatus[Any]) -> None:
        async with unix_listener(path) as listener:
            await serve_sockets([listener], host, task_status=task_status)

    await nursery.start(listen)
    return _connecting(arrivals, partial(open_unix_channel, path, limits=LIMITS))


async def _tcp(nursery: trio.Nursery, _folder: Path) -> MakePair:
    arrivals = _AcceptedChannels()
    host = SocketHost(transport="tcp", authorize=None, handle=arrivals.handle, limits=LIMITS)
    listeners = await trio.open_tcp_listeners(0, host=_HOST)
    await nursery.start(serve_sockets, listeners, host)
    port = listeners[0].socket.getsockname()[1]
    return _connecting(arrivals, partial(open_tcp_channel, _HOST, port, limits=LIMITS))


async def _websocket(nursery: trio.Nursery, _folder: Path) -> MakePair:
    arrivals = _AcceptedChannels()

    async def listen(*, task_status: trio.TaskStatus[str]) -> None:
        async with bound_websocket({}, host=_HOST, port=0) as bound:
            task_status.started(bound.url)
            await bound.serve(arrivals.handle, LIMITS)

    url: str = await nursery.start(listen)
    return _connecting(arrivals, partial(open_websocket_channel, url, limits=LIMITS))


# The parts of a server's HTTP application ---------------------------------------------------------


@attrs.define(eq=False)
class _Session:
    """A stand-in for a session, which only hands out its channel."""

    channel: Channel
    on_ended: Callable[[], None]
    closing: LightEvent = attrs.field(factory=LightEvent, init=False)
    negotiated: LightEvent = attrs.field(factory=LightEvent, init=False)
    has_begun: bool = attrs.field(default=True, init=False)
    protocol_version: ProtocolVersion = attrs.field(
        default=PROTOCOL_VERSIONS[_PROTOCOL_VERSION], init=False
    )
    peer_info: None = attrs.field(default=None, init=False)
    peer_capabilities: None = attrs.field(default=None, init=False)

    @property
    def connection(self) -> "_Session":
        return self

    def shut(self, cause: str) -> None:  # noqa: ARG002  the reason makes no difference
        if isinstance(self.channel, SessionChannel):
            self.channel.end_input()
        self.end()

    def end(self) -> None:
        self.closing.set()
        self.on_ended()


@attrs.define(eq=False)
class _ServerEnd:
    """A session's channel, whose closing also ends the session."""

    session: _Session

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session.channel, name)

    async def aclose(self) -> None:
        self.session.end()
        await self.session.channel.aclose()


@attrs.define(kw_only=True, eq=False)
class _ChannelApplication:
    """A stand-in for a server in an HTTP application, which hands out channels."""

    arrivals: _AcceptedChannels
    protocol_versions: tuple[str, ...]
    limits: Limits = LIMITS
    change_notifier: ChangeNotifier = attrs.field(factory=ChangeNotifier, init=False)
    auth: None = None
    routes: None = None
    stores: list[Any] = attrs.field(factory=list[Any])

    def scopes(self) -> tuple[str, ...]:
        return ()

    def enter_lifespan(self, *_: Any, **__: Any) -> AbstractAsyncContextManager[EnteredLifespan]:
        return nullcontext(EnteredLifespan())

    def param_header_paths(self, tool: str) -> None: ...

    def begin_session(
        self,
        channel: Channel,
        _warm: object,
        _variables: Context,
        *,
        on_ended: Callable[[], None],
        **_: Any,
    ) -> _Session:
        session = _Session(channel, on_ended)
        end: Any = _ServerEnd(session)
        self.arrivals.hand_out(end)
        return session


async def _served(
    nursery: trio.Nursery, host: HostKind, *, is_stateless: bool = False
) -> tuple[_AcceptedChannels, str]:
    """Return the accepted channels, and the URL."""
    arrivals = _AcceptedChannels()
    protocol_versions = tuple(
        name
        for name in ALL_PROTOCOL_VERSIONS
        if PROTOCOL_VERSIONS[name].is_stateless is is_stateless
    )
    server = _ChannelApplication(arrivals=arrivals, protocol_versions=protocol_versions)
    address = HttpAddress(host=_HOST, port=0, server=host)
    url: str = await nursery.start(serve_http, server, address, {})
    return arrivals, url


async def _websocket_at(host: HostKind, nursery: trio.Nursery, _folder: Path) -> MakePair:
    arrivals, url = await _served(nursery, host)
    websocket_url = url.replace("http:", "ws:").replace("/mcp", "/ws")
    return _connecting(arrivals, partial(open_websocket_channel, websocket_url, limits=LIMITS))


async def _http_at(host: HostKind, nursery: trio.Nursery, _folder: Path) -> MakePair:
    arrivals, url = await _served(nursery, host)
    return partial(_initialized, arrivals, partial(open_http_channel, url, limits=LIMITS))


async def _sse(nursery: trio.Nursery, _folder: Path) -> MakePair:
    arrivals, url = await _served(nursery, "native")
    sse_url = url.replace("/mcp", "/sse")
    opened = partial(open_http_channel, sse_url, limits=LIMITS, tries_http_sse_first=True)
    return partial(_initialized, arrivals, opened)


async def _initialized(
    arrivals: _AcceptedChannels, connect: Callable[[], Awaitable[Channel]]
) -> Pair:
    """Initialize, without which there is no session over HTTP."""
    ours = await connect()
    await ours.send([encode_request(0, INITIALIZE, {"protocolVersion": _PROTOCOL_VERSION})])
    theirs: Any = await arrivals.next()
    await theirs.receive()
    theirs.session.negotiated.set()
    answer = encode_response(0, {"protocolVersion": _PROTOCOL_VERSION})
    await theirs.send([RelatedMessage(answer, 0, is_response=True)])
    await ours.receive()
    await ours.send([encode_notification("notifications/initialized", None)])
    await theirs.receive()
    return ours, theirs


@attrs.define(eq=False)
class _SubscriptionEnd:
    """The server's end of a stateless subscription, which can only send."""

    channel: Channel
    number: int

    transport: ClassVar[str] = "http"

    async def send(self, messages: Sequence[bytes]) -> None:
        await self.channel.send([RelatedMessage(each, self.number) for each in messages])

    async def receive(self) -> Sequence[Received]:
        return await self.channel.receive()

    async def aclose(self) -> None:
        await self.channel.aclose()


async def _stateless_http(nursery: trio.Nursery, _folder: Path) -> MakePair:
    """A transport over one open stateless request, which is the nearest to a connection."""

    async def make_pair() -> Pair:
        arrivals, url = await _served(nursery, "native", is_stateless=True)
        ours, end = await open_http_channel(url, limits=LIMITS), await arrivals.next()
        await ours.send([encode_request(1, DISCOVER, _STATELESS)])
        await end.receive()
        answer = encode_response(1, {"resultType": "complete"})
        await end.send([RelatedMessage(answer, 1, is_response=True)])
        await ours.receive()
        await ours.send([encode_request(2, LISTEN, {**_STATELESS, "notifications": {}})])
        await end.receive()
        return ours, _SubscriptionEnd(end, 2)

    return make_pair


# The table ----------------------------------------------------------------------------------------

_OF_HTTP: Final[Excuses] = {
    ("one_send_takes_many_messages", 0): "a POST each: so many take their time",
    ("an_oversized_message_is_reported", 0): "it is rejected with 413 before it is a message",
    ("a_full_channel_makes_the_sender_wait", 0): "the session takes all at once, and bounds it",
    (
        "a_full_channel_makes_the_sender_wait",
        1,
    ): "kept for the client up to limits.http.events_kept_max",
    ("progress_is_counted", 0): "it grows with each POST that was answered",
}

_NO_END: Final = "there is no connection: what ends is one request"
_NO_SUCH_NAME: Final = "no header Mcp-Method can repeat a method's name that is not ASCII"
_OF_STATELESS_HTTP: Final[Excuses] = {
    **_OF_HTTP,
    ("one_send_takes_many_messages", 1): "kept for the client up to limits.http.events_kept_max",
    ("messages_arrive_unchanged", 0): _NO_SUCH_NAME,
    ("messages_arrive_unchanged", 1): _NO_SUCH_NAME,
    **{
        (check, end): _NO_END
        for end in BOTH_ENDS
        for check in (
            "closing_is_seen_by_the_peer",
            "a_cancelled_close_closes",
            "a_cancelled_send_leaves_whole_messages",
        )
    },
}

TRANSPORTS: Final[Mapping[str, Transport]] = {
    "memory": Transport(begin=_simple_transport(_in_memory)),
    "memory, in pieces": Transport(begin=_simple_transport(_in_small_pieces)),
    "stdio": Transport(begin=_simple_transport(over_stdio)),
    "stdio, polled": Transport(begin=_simple_transport(partial(_over_pipes, _polled))),
    "stdio, sockets": Transport(begin=_simple_transport(_over_a_socket)),
    "stdio, process": Transport(begin=_with_process),
    "HTTP+SSE": Transport(begin=_sse, excuses=_OF_HTTP),
    "HTTP": Transport(begin=partial(_http_at, "native"), excuses=_OF_HTTP),
    "HTTP, hypercorn": Transport(begin=partial(_http_at, "hypercorn"), excuses=_OF_HTTP),
    "HTTP, stateless": Transport(begin=_stateless_http, excuses=_OF_STATELESS_HTTP),
    "WebSocket": Transport(begin=_websocket),
    "WebSocket, native": Transport(begin=partial(_websocket_at, "native")),
    # Hypercorn switches tasks several times for each of 20,000 messages.
    "WebSocket, ASGI": Transport(
        begin=partial(_websocket_at, "hypercorn"),
        excuses={
            (
                "an_oversized_message_is_reported",
                0,
            ): "hypercorn closes the connection with 1009 before the application sees the message"
        },
        timeout_seconds=60,
    ),
    "Unix": Transport(begin=_unix),
    "TCP": Transport(begin=_tcp),
    "named pipes": Transport(
        begin=_named_pipes, limits=Limits(messages=MessageLimits(bytes_max=4_000_000))
    ),
}
