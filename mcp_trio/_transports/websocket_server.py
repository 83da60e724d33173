"""WebSocket servers on Trio streams: the handshake, and a listener without an HTTP application."""

import logging
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from typing import NoReturn, TypeAlias

import attrs
import msgspec
import trio

from mcp_trio._protocol.http_headers import JSON, HttpRequest
from mcp_trio._protocol.http_requests import Rejection
from mcp_trio._protocol.shares import Shares, http_shares, network_of
from mcp_trio._transports.concurrency import FairSemaphore, call_when_cancelled
from mcp_trio._transports.http1 import (
    Rejected,
    encoded_rejection,
    encoded_response_headers,
    headers_length,
    parse_request,
)
from mcp_trio._transports.peer_log import PeerLog
from mcp_trio._transports.socket_bytes import SocketEnds, TlsWire, WireStream, client_of
from mcp_trio._transports.trio_websocket import (
    HandshakeFailed,
    TrioSocket,
    linger,
    over_wire,
    server_socket,
)
from mcp_trio._transports.websocket import WebSocketChannel, accept_websocket
from mcp_trio.limits import Limits


class StreamUpgrade(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The `Upgrade` of a handshake request that was read from a stream.

    Attributes:
        stream: The connection.
        request: The request, parsed.
        received: All bytes that were read from the stream, beginning with the request.
        limits: The limits of the WebSocket.
    """

    stream: trio.abc.Stream
    request: HttpRequest
    received: bytes | bytearray
    limits: Limits

    async def reject(self, rejection: Rejection) -> None:
        """Answer with an HTTP error, and wait until the client has closed the connection."""
        body = rejection.body()
        headers = [("Content-Type", JSON), *rejection.headers]
        framing = b"content-length: %d\r\n" % len(body)
        encoded = encoded_response_headers(rejection.status, headers, framing=framing, is_last=True)
        await respond_last(self.stream, encoded + body, self.limits)

    @asynccontextmanager
    async def opened(self, subprotocol: str | None) -> AsyncGenerator[TrioSocket, None]:
        """Accept the handshake; leaving the context closes the stream."""
        received = bytearray(self.received)
        length = headers_length(received, 0, bytes_max=self.limits.http.headers_bytes_max)
        opening = server_socket(
            self.stream,
            request=bytes(received[:length]),
            rest=bytes(received[length:]),
            subprotocol=subprotocol,
            limits=self.limits,
            client=network_of(self.request.client),
        )
        try:
            async with opening as socket:
                yield socket
        except HandshakeFailed as failure:
            raise trio.BrokenResourceError(str(failure)) from None


async def respond_last(stream: trio.abc.Stream, answer: bytes, limits: Limits) -> None:
    """Send the last response of a connection, and drop input until the client closes.

    This takes at most `limits.shutdown.close_seconds`.
    """
    with trio.move_on_after(limits.shutdown.close_seconds), suppress(trio.BrokenResourceError):
        await stream.send_all(answer)
        await linger(stream)


Admit: TypeAlias = Callable[[HttpRequest], Awaitable[HttpRequest | Rejection]]
"""Authenticate a request: return it with its sender, or the rejection to answer with."""

Handle: TypeAlias = Callable[[WebSocketChannel], Awaitable[None]]
"""Serve a channel, which the host closes afterwards."""


@attrs.define(kw_only=True, eq=False, repr=False)
class WebSocketHost:
    """The open connections of one WebSocket endpoint; an error ends one connection only.

    Attributes:
        admit: Authenticates a handshake request.
        handle: Serves an accepted channel.
        limits: The limits of a connection, and the number of connections.
        tls: The TLS settings; without them, connections are plain.
    """

    admit: Admit
    handle: Handle
    limits: Limits
    tls: ssl.SSLContext | None = None
    _handshakes: FairSemaphore = attrs.field(init=False)
    _places: Shares = attrs.field(init=False)
    # The connections beyond the limits that are being answered with 503. They cost memory, too: at
    # `limits.http.connections_max` of them, further ones are closed without a response.
    _rejecting: int = attrs.field(default=0, init=False)
    log: PeerLog = attrs.field(factory=PeerLog, init=False)
    _channels: set[WebSocketChannel] = attrs.field(factory=set[WebSocketChannel], init=False)

    def __attrs_post_init__(self) -> None:
        self._places = http_shares("connections_max", self.limits)
        self._handshakes = FairSemaphore(http_shares("handshakes_max", self.limits))

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Read the handshake from a new connection, serve it until it ends, and close it."""
        client = client_of(stream)
        network = network_of(client)
        exceeded = self._places.exceeded(network)
        wire = None
        if self.tls is not None:
            assert isinstance(stream, trio.SocketStream)
            chunk_bytes = self.limits.messages.chunk_bytes
            ends = SocketEnds(fd=stream.socket.detach(), chunk_bytes=chunk_bytes, client=network)
            wire = TlsWire(ends=ends, limits=self.limits, context=self.tls)
        stream = over_wire(stream, self.limits) if wire is None else WireStream(wire)
        try:
            if exceeded is not None:
                if wire is None:  # a rejection over TLS would cost a handshake
                    await self._reject(stream, f"there are too many connections{exceeded}")
                return
            self._places.take(network)
            try:
                if wire is not None:
                    if not await wire.shake_hands(self._handshakes):
                        return
                    stream = wire.as_stream()
                await self._serve(stream, client)
            finally:
                self._places.give_back(network)
        except trio.BrokenResourceError:
            pass  # the client has disconnected, which is a normal end of a connection
        except Exception as error:
            text = "a WebSocket connection failed"
            self.log.report("failed", text, level=logging.ERROR, error=error)
        finally:
            await trio.aclose_forcefully(stream)

    async def _reject(self, stream: trio.abc.Stream, text: str) -> None:
        if self._rejecting >= self._places.client_max:
            return
        self._rejecting += 1
        try:
            await respond_last(stream, encoded_rejection(Rejected(503, text)), self.limits)
        finally:
            self._rejecting -= 1

    async def _serve(self, stream: trio.abc.Stream, client: str | None) -> None:
        received = bytearray()
        try:
            request = await self._parse_request(stream, received, client)
        except Rejected as rejected:
            await respond_last(stream, encoded_rejection(rejected), self.limits)
            return
        await self.serve_upgrade(stream, request, received)

    async def _parse_request(
        self, stream: trio.abc.Stream, received: bytearray, client: str | None
    ) -> HttpRequest:
        length = searched = 0
        seconds, bytes_max = self.limits.http.headers_seconds, self.limits.http.headers_bytes_max
        with trio.move_on_after(seconds):
            while not length:
                chunk = await stream.receive_some(self.limits.messages.chunk_bytes)
                if not chunk:
                    raise trio.BrokenResourceError("the client has disconnected")
                received += chunk
                length = headers_length(received, searched, bytes_max=bytes_max)
                searched = len(received)
        if not length:
            raise Rejected(
                408, f"the headers took more than {seconds:g} seconds (limits.http.headers_seconds)"
            )
        scheme = "http" if self.tls is None else "https"
        parsed = parse_request(bytes(received[:length]), client, scheme)
        if parsed.body_bytes != 0:
            raise Rejected(400, "a WebSocket handshake cannot have a body")
        return parsed.request

    async def serve_upgrade(
        self, stream: trio.abc.Stream, request: HttpRequest, received: bytearray
    ) -> None:
        """Serve a connection whose handshake `request` was read already.

        `received` holds all bytes that were read, beginning with the request.

        Raises:
            trio.BrokenResourceError: The client has disconnected.
        """
        upgrade = StreamUpgrade(
            stream=stream, request=request, received=received, limits=self.limits
        )
        admitted = await self.admit(request)
        if isinstance(admitted, Rejection):
            await upgrade.reject(admitted)
            return
        channel = await accept_websocket(upgrade, admitted, self.limits)
        self._channels.add(channel)
        try:
            await self.handle(channel)
        finally:
            await channel.aclose()
            self._channels.discard(channel)

    def mark_going_away(self) -> None:
        """Close all channels with code 1001 (going away) later on, as the server is stopping."""
        for channel in self._channels:
            channel.mark_going_away()


async def serve_websocket(
    listeners: Sequence[trio.SocketListener],
    host: WebSocketHost,
    *,
    task_status: trio.TaskStatus[list[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Serve WebSocket connections on the listeners until cancelled.

    Cancellation closes the listeners, cancels each call of `handle`, and waits until these have
    returned and their channels are closed.
    """
    with closing(host.log):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call_when_cancelled, host.mark_going_away)
            await trio.serve_listeners(
                host.serve, list(listeners), handler_nursery=nursery, task_status=task_status
            )
