"""Forwarding messages between a client's channel and a server's, and recording them.

`ConnectionForwarder` joins two channels of one session each. A task for each direction receives a
message, sends it, and only then receives the next one, so that a slow reader slows the sender down.
When one side ends, the other is closed too, with the reason if its transport can carry one.

`HttpForwarder` does the same for a server at an HTTP URL. It sends each message in a POST of its
own. If a POST fails, its request is answered with an error; if the server ends the session, the
forwarder ends. Two kinds of lines cannot be sent unchanged: a batch becomes one POST for each of
its messages, which are answered one by one, and a line that is no message is answered with an error
if it may be a request.

`UpstreamConnection` joins the clients of an HTTP application to a server of one connection. The
application has to know which request each message of the server belongs to, to choose the stream to
send it on. Responses, progress and notifications of a subscription name their request. Any other
message is sent with the newest open request, or with none.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

import attrs
import trio

from mcp_trio._journal.conversation import (
    CANCELLED,
    LISTEN,
    PROGRESS,
    members_of,
    progress_token_of,
    reference_of,
    subscription_of,
)
from mcp_trio._journal.records import messages_in
from mcp_trio._jsonrpc.channel_messages import Lost, RelatedMessage
from mcp_trio._jsonrpc.lines import Oversized, one_line
from mcp_trio._jsonrpc.messages import (
    ErrorResponse,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
    encode_error,
    encode_request,
    malformed,
)
from mcp_trio._protocol.methods import INITIALIZE
from mcp_trio._protocol.requests import oversized_response_id, response_id_of
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS, PROTOCOL_VERSIONS, ProtocolVersion
from mcp_trio._protocol.websocket import CloseCode
from mcp_trio._proxy.journal import MessageJournal
from mcp_trio._transports.channel import Channel, Received
from mcp_trio._transports.concurrency import LightEvent
from mcp_trio._transports.http_channels import SessionChannel, StatelessChannel
from mcp_trio._transports.http_client import agreed_version
from mcp_trio._transports.stdio import ProcessChannel, wait_parent_death
from mcp_trio._transports.websocket import WebSocketChannel
from mcp_trio.errors import INVALID_REQUEST, METHOD_NOT_FOUND, SERVER_BUSY, ConnectionLost
from mcp_trio.limits import Limits
from mcp_trio.types import RequestId

logger = logging.getLogger("mcp_trio")

# Exit statuses of the proxy: the client's input ended, or one side was lost.
ENDED: Final = 0
LOST: Final = 1

# The errors of a channel whose peer has closed the connection, or which was closed here.
_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


def send_close_reason(channel: Channel, loss: ConnectionLost | None) -> None:
    """Tell the peer why its channel will be closed, if the transport can carry a reason."""
    if loss is not None and isinstance(channel, WebSocketChannel):
        channel.fail(ConnectionLost(loss.reason), CloseCode.INTERNAL_ERROR)


async def send_if_text(channel: Channel, encoded: bytes) -> None:
    """Send a message, unless it is not UTF-8: then it is no JSON, and some transports reject it."""
    with suppress(UnicodeDecodeError):
        await channel.send([encoded])


def _unforwardable_response(
    item: Oversized, waiting: list[RequestId], limits: Limits
) -> tuple[RequestId | None, str]:
    """Return the id of the request whose response is too large, and a text about the response."""
    text = f"a response over limits.messages.bytes_max ({limits.messages.bytes_max})"
    return oversized_response_id(malformed(item.prefix, SERVER_BUSY, text), waiting), text


def exit_status_of(server: Channel) -> int | None:
    """Return the exit status of a server's process; None if it has no process, or that runs."""
    return server.exit_status if isinstance(server, ProcessChannel) else None


@attrs.define(kw_only=True, eq=False, repr=False)
class ConnectionForwarder:
    """A forwarder between two channels, which closes both when one side has ended.

    The caller closes the journal. `has_begun` is True after the client's first request; `closing`
    is set when the forwarder starts to close the channels.
    """

    client: Channel
    server: Channel
    journal: MessageJournal
    limits: Limits
    has_begun: bool = attrs.field(default=False, init=False)
    closing: LightEvent = attrs.field(factory=LightEvent, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _open: dict[RequestId, str] = attrs.field(factory=dict[RequestId, str], init=False)
    _open_changed: trio.lowlevel.ParkingLot = attrs.field(
        factory=trio.lowlevel.ParkingLot, init=False
    )
    _send_lock: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    # The first loss of a side, which may have caused others.
    _loss: ConnectionLost | None = attrs.field(default=None, init=False)

    async def run(self, *, parent_pid: int | None = None) -> int:
        """Forward both ways until one side or the parent process ends; return the exit status.

        After the end of the client's input, the server has `limits.shutdown.drain_seconds` to
        answer open requests. If this is cancelled, it closes both channels.
        """
        status = LOST
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    if parent_pid is not None:
                        nursery.start_soon(self._watch_parent, parent_pid)
                    nursery.start_soon(self._pass_responses)
                    if await self._pass_requests():
                        status = ENDED
                        with trio.move_on_after(self.limits.shutdown.drain_seconds):
                            while self._waiting:
                                await self._open_changed.park()
                    nursery.cancel_scope.cancel()
        finally:
            self.closing.set()
            if self._loss is not None:
                logger.warning("%s", self._loss.reason)
            with trio.CancelScope(shield=True):
                # Both at the same time, since each may take a while.
                async with trio.open_nursery() as nursery:
                    for channel in (self.client, self.server):
                        send_close_reason(channel, self._loss)
                        nursery.start_soon(channel.aclose)
        return status

    def shut(self, cause: str) -> None:  # noqa: ARG002  as `Session.shut`
        """Close both sides, because one of them is lost."""
        self.journal.record_cause("lost")
        self._scope.cancel()

    async def _watch_parent(self, parent_pid: int) -> None:
        await wait_parent_death(parent_pid=parent_pid, limits=self.limits)
        self.shut("lost")

    async def _pass_requests(self) -> bool:
        """Forward the client's messages; return whether its input ended, and no side was lost."""
        try:
            while received := await self.client.receive():
                for item in received:
                    await self._receive(item)
        except ConnectionLost as loss:
            self._loss = self._loss or loss
        except _GONE:
            pass
        else:
            self.journal.record_cause("eof")
            return True
        self.journal.record_cause("lost")
        return False

    async def _receive(self, item: Received) -> None:
        if isinstance(item, Oversized):
            self.journal.record_oversized("in", item)
            text = f"larger than limits.messages.bytes_max ({self.limits.messages.bytes_max})"
            await self._reject_malformed(malformed(item.prefix, INVALID_REQUEST, text))
            return
        assert isinstance(item, bytes)
        self.journal.counts["in_bytes"] += len(item)
        messages = self.journal.read(item)
        await self._pass(self.journal.record_received(item, messages), messages)

    async def _pass(self, item: bytes, messages: Sequence[Message]) -> None:
        """Send a message or batch of the client to the server."""
        for message in messages:
            self._note(message)
        await send_if_text(self.server, item)

    def _note(self, message: Message) -> None:
        """Add a request to the open ones, or remove the request that a notification cancels."""
        self.has_begun = self.has_begun or isinstance(message, Request)
        if isinstance(message, Request) and len(self._open) < self.limits.requests.queued_max:
            self._open[message.id] = message.method
        elif isinstance(message, Notification) and message.method == CANCELLED:
            self._forget_request(reference_of(message))

    async def _reject_malformed(self, message: Malformed) -> None:
        """Answer a malformed message that may be a request with an error."""
        if message.is_request and message.id is not None:
            await self._answer(message.id, message.code, message.message)

    async def _pass_responses(self) -> None:
        try:
            with suppress(*_GONE):
                while received := await self.server.receive():
                    for item in received:
                        await self._pass_response(item)
                self.journal.server_ended(_CONNECTION_CLOSED)
        except ConnectionLost as loss:
            self.journal.server_ended(loss.reason)
            self._loss = self._loss or loss
        self.shut("lost")

    async def _pass_response(self, item: Received) -> None:
        if isinstance(item, Lost):
            await self._fail(item.id, str(item.error))
        elif isinstance(item, Oversized):
            self.journal.record_oversized("out", item)
            await self._fail_oversized(item)
        else:
            self.journal.counts["out_bytes"] += len(item)
            messages = self.journal.record("out", item)
            await self._send(item)
            for message in messages:
                if isinstance(message, Response | ErrorResponse):
                    self._forget_request(message.id)

    async def _fail_oversized(self, item: Oversized) -> None:
        """Fail the request whose response is too large to be forwarded."""
        request_id, text = _unforwardable_response(item, self._waiting, self.limits)
        if request_id in self._open:
            await self._fail(request_id, text)

    async def _fail(self, request_id: RequestId, reason: str) -> None:
        await self._answer(request_id, SERVER_BUSY, reason)
        self._forget_request(request_id)

    async def _answer(self, request_id: RequestId, code: int, text: str) -> None:
        """Answer a request with an error of the proxy."""
        await self._send(self.journal.answer(request_id, code, text))

    async def _send(self, encoded: bytes) -> None:
        self.journal.flush()
        async with self._send_lock:
            await send_if_text(self.client, encoded)

    def _forget_request(self, request_id: RequestId | None) -> None:
        if request_id is not None:
            self._open.pop(request_id, None)
        self._open_changed.unpark_all()

    @property
    def _waiting(self) -> list[RequestId]:
        """The ids of the open requests that are no subscriptions."""
        return [request_id for request_id, method in self._open.items() if method != LISTEN]


@attrs.define(kw_only=True, eq=False, repr=False)
class HttpForwarder(ConnectionForwarder):
    """A forwarder to a server at an HTTP URL, which gets each message by itself."""

    async def _pass(self, item: bytes, messages: Sequence[Message]) -> None:
        parts = [item] if len(messages) == 1 else messages_in(item)
        for message, part in zip(messages, parts, strict=True):
            if isinstance(message, Request):
                await self._forward_request(message, part)
            elif isinstance(message, Malformed):
                await self._reject_malformed(message)
            else:
                await self.server.send([part])
                self._note(message)

    async def _forward_request(self, request: Request, encoded: bytes) -> None:
        """Forward a request; reject it if its id is in use, or too many requests are open."""
        if request.id in self._open:
            text = f"an unfinished request has the same id: {request.id!r}"
            await self._answer(request.id, INVALID_REQUEST, text)
        elif len(self._open) >= self.limits.requests.queued_max:
            text = "too many requests wait for responses (limits.requests.queued_max)"
            await self._answer(request.id, SERVER_BUSY, text)
        else:
            self._note(request)
            await self.server.send([encoded])
            if request.method == INITIALIZE:
                # The response to `initialize` has the session id for the next messages.
                with trio.move_on_after(self.limits.requests.initialize_seconds):
                    while request.id in self._open:
                        await self._open_changed.park()

    async def _fail_oversized(self, item: Oversized) -> None:
        """Do nothing: the HTTP channel itself reports the request as lost."""


# The newest version with a handshake: streams behave as in this one if the negotiated protocol
# version is unknown.
_FALLBACK_VERSION: Final = next(
    PROTOCOL_VERSIONS[name]
    for name in ALL_PROTOCOL_VERSIONS
    if PROTOCOL_VERSIONS[name].has_handshake
)

_CONNECTION_CLOSED: Final = "the server has closed the connection"

ClientsChannel: TypeAlias = SessionChannel | StatelessChannel
"""The channel of an HTTP application: to the client of one session, or to all stateless clients."""


@attrs.define(eq=False, repr=False)
class NegotiatedVersion:
    """The result of a handshake, in place of a `Connection` of this package.

    The HTTP application reads these attributes of a session's connection. `protocol_version` is
    None before the handshake.
    """

    protocol_version: ProtocolVersion | None = None
    negotiated: LightEvent = attrs.field(factory=LightEvent, init=False)


@attrs.define(kw_only=True, eq=False, repr=False)
class UpstreamConnection:
    """A connection to a server of one session, such as a process, that serves HTTP clients.

    Attributes:
        clients: The channel of the application.
        server: The channel of the server; closed at the end.
        journal: The journal of the messages of both channels.
        negotiated_version: Updated when the server answers a handshake.
        limits: The limits. A server that reads nothing for `limits.messages.write_stall_seconds` is
            disconnected.
        is_stateless: Whether the clients are stateless: they take no requests, and choose progress
            tokens independently of each other.
    """

    clients: ClientsChannel
    server: Channel
    journal: MessageJournal
    negotiated_version: NegotiatedVersion
    limits: Limits
    is_stateless: bool
    _received: deque[Received] = attrs.field(factory=deque[Received], init=False)
    _open: dict[RequestId, Request] = attrs.field(factory=dict[RequestId, Request], init=False)
    _reason: str = attrs.field(default="the proxy has stopped the server", init=False)
    _send_lock: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def run(self, first: Sequence[Received]) -> None:
        """Forward `first` and all later messages, until the clients are done or the server is lost.

        Then requests that are still open are answered with an error, and the connection to the
        server is closed in bounded time, also if this is cancelled.
        """
        self._received.extend(first)

        async def forward(pass_all: Callable[[], Awaitable[None]]) -> None:
            """Forward one direction; cancel the other when it ends."""
            try:
                await pass_all()
            except ConnectionLost as loss:
                self.journal.record_cause("lost")
                self._reason = str(loss)
            nursery.cancel_scope.cancel()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(forward, self._pass_responses)
                nursery.start_soon(forward, self._pass_requests)
        finally:
            while self._received:  # Requests that were not sent are answered with an error, too.
                self._next_line()
            fail_requests(self.clients, self.journal, self._open, self._reason)
            await self.server.aclose()

    async def _pass_requests(self) -> None:
        while self._received:
            while self._received:
                await self._send(self._next_line())
            self._received.extend(await self.clients.receive())

    def _next_line(self) -> bytes:
        """Record and return the next message of the clients, and remember its requests as open."""
        encoded = self._received.popleft()
        assert isinstance(encoded, bytes)
        line = one_line(bytes(encoded))
        if self.is_stateless and not self._open:
            self.journal.renew_if_due()
        messages = self.journal.read(line)
        for message in messages:
            if isinstance(message, Request):
                token = progress_token_of(message.params) if self.is_stateless else None
                if token is not None and self._request_with_token(token) is not None:
                    # Another open request uses this progress token, so it is removed.
                    params = members_of(message.params)
                    del params["_meta"]["progressToken"]
                    depth_max = self.limits.messages.json_depth_max
                    line = encode_request(
                        message.id, message.method, params, json_depth_max=depth_max
                    )
                self._open[message.id] = message
            elif isinstance(message, Notification) and message.method == CANCELLED:
                self._forget(reference_of(message))
        return self.journal.record_received(line, messages)

    def _request_with_token(self, token: RequestId) -> RequestId | None:
        """Return the id of the open request with this progress token."""
        named = (each.id for each in self._open.values() if progress_token_of(each.params) == token)
        return next(named, None)

    async def _send(self, line: bytes) -> None:
        seconds = self.limits.messages.write_stall_seconds
        async with self._send_lock:
            try:
                with trio.move_on_after(seconds) as stall:
                    await self.server.send([line])
            except trio.BrokenResourceError as error:
                raise ConnectionLost(_CONNECTION_CLOSED) from error
        if stall.cancelled_caught:
            raise ConnectionLost(f"the server has read nothing for {seconds} seconds")

    async def _pass_responses(self) -> None:
        while items := await self.server.receive():
            for item in items:
                if isinstance(item, Oversized):
                    self._fail_oversized(item)
                else:
                    assert isinstance(item, bytes)
                    await self._pass_response(item)
        raise ConnectionLost(_CONNECTION_CLOSED)

    def _fail_oversized(self, item: Oversized) -> None:
        self.journal.record_oversized("out", item)
        waiting = [each.id for each in self._open.values() if each.method != LISTEN]
        self._fail(*_unforwardable_response(item, waiting, self.limits))

    def _fail(self, request_id: RequestId | None, reason: str) -> None:
        request = self._forget(request_id)
        if request is not None:
            fail_requests(self.clients, self.journal, (request.id,), reason)

    async def _pass_response(self, line: bytes) -> None:
        messages = self.journal.record("out", line)
        self.journal.flush()
        parts = [line] if len(messages) == 1 else messages_in(line)
        for message, part in zip(messages, parts, strict=True):
            if isinstance(message, Request) and self.is_stateless:
                text = "a stateless client takes no requests"
                answer = encode_error(message.id, METHOD_NOT_FOUND, text)
                self.journal.record("in", answer)
                self.journal.flush()
                await self._send(answer)
            elif isinstance(message, Malformed):
                self._fail(response_id_of(message), f"a response that is {message.message}")
            elif isinstance(message, Response | ErrorResponse):
                request = self._forget(message.id)
                is_handshake = request is not None and request.method == INITIALIZE
                if is_handshake and isinstance(message, Response):
                    version = agreed_version(message.result) or ""
                    self.negotiated_version.protocol_version = PROTOCOL_VERSIONS.get(
                        version, _FALLBACK_VERSION
                    )
                    self.negotiated_version.negotiated.set()
                self.clients.send_nowait([RelatedMessage(part, message.id, is_response=True)])
            else:
                self.clients.send_nowait([RelatedMessage(part, self._related_request(message))])

    def _forget(self, request_id: RequestId | None) -> Request | None:
        return None if request_id is None else self._open.pop(request_id, None)

    def _related_request(self, message: Request | Notification) -> RequestId | None:
        """Return the id of the request on whose stream the message is sent; None for no request."""
        subscription = subscription_of(message.params)
        if subscription is not None:
            return subscription
        if isinstance(message, Notification) and message.method == PROGRESS:
            token = reference_of(message)
            return None if token is None else self._request_with_token(token)
        newest = (each.id for each in reversed(self._open.values()) if each.method != LISTEN)
        return next(newest, None)


def fail_requests(
    clients: ClientsChannel, journal: MessageJournal, requests: Iterable[RequestId], reason: str
) -> None:
    """Answer requests with an error of the proxy that gives the reason."""
    for request_id in requests:
        answer = journal.answer(request_id, SERVER_BUSY, reason)
        clients.send_nowait([RelatedMessage(answer, request_id, is_response=True)])
    journal.flush()
