"""A server of one connection behind clients over HTTP: its frames, and the streams they go to.

What a frame does not say, and a stream needs to know, is which request a message belongs to. An
answer, progress and a subscription's news name theirs. Anything else is said to belong to the one
that was asked last and is open, or to none.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

import attrs
import trio

from mcp_trio._journal.conversation import (
    CANCELLED,
    LISTEN,
    PROGRESS,
    members,
    reference_of,
    subscription_of,
    token_of,
)
from mcp_trio._journal.records import messages_in
from mcp_trio._jsonrpc.lines import Oversized, one_line
from mcp_trio._jsonrpc.messages import (
    Addressed,
    ErrorResponse,
    Lost,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
    encode_request,
    malformed,
)
from mcp_trio._protocol.methods import INITIALIZE
from mcp_trio._protocol.requests import whose_answer, whose_large_answer
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS, PROTOCOL_VERSIONS, ProtocolVersion
from mcp_trio._protocol.websocket import CloseCode
from mcp_trio._proxy.journal import MessageJournal
from mcp_trio._transports.channel import Channel, Received
from mcp_trio._transports.concurrency import LightEvent
from mcp_trio._transports.http_client import agreed_version
from mcp_trio._transports.http_sessions import SessionChannel, StatelessChannel
from mcp_trio._transports.process import ProcessChannel
from mcp_trio._transports.stdio import wait_parent_death
from mcp_trio._transports.websocket import WebSocketChannel
from mcp_trio.errors import INVALID_REQUEST, METHOD_NOT_FOUND, SERVER_BUSY, ConnectionLost
from mcp_trio.limits import Limits

# --------------------
# A client's channel and a server's, joined: each frame of one goes to the other as it is.
#
# One frame at a time and in each direction by itself: the next is received when the last was taken,
# so whoever reads slowly slows the other one down. Whichever side ends first ends both, and says to
# the other what is known of the reason, if its transport has words for that.


logger = logging.getLogger("mcp_trio")

ENDED: Final = 0
LOST: Final = 1

Id = int | str
_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


def part(channel: Channel, loss: ConnectionLost | None) -> None:
    """Says why a channel that is closed next is closed, where that can be said."""
    if loss is not None and isinstance(channel, WebSocketChannel):
        channel.fail(ConnectionLost(loss.reason), CloseCode.FAILED)


async def send_if_text(channel: Channel, frame: bytes) -> None:
    """Sends a frame; what is no UTF-8 is no message, and no text message can carry it."""
    with suppress(UnicodeDecodeError):
        await channel.send([frame])


def exit_status_of(server: Channel) -> int | None:
    """How a process has ended; None is no process, or one that has not."""
    return server.exit_status if isinstance(server, ProcessChannel) else None


@attrs.define(kw_only=True, eq=False)
class ConnectionForwarder:
    """Owns both channels, until one of both sides has ended; the journal is its caller's.

    The client `has_begun` when it has asked something; `closing` is set when the end has come.
    """

    client: Channel
    server: Channel
    journal: MessageJournal
    limits: Limits
    has_begun: bool = attrs.field(default=False, init=False)
    closing: LightEvent = attrs.field(factory=LightEvent, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _open: dict[Id, str] = attrs.field(factory=dict[Id, str], init=False)
    _settled: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _send_lock: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _loss: ConnectionLost | None = attrs.field(default=None, init=False)

    async def run(self, *, parent_pid: int | None = None) -> int:
        """Passes both ways until one side ends, or the parent; returns the exit status.

        Behind the client's last word, open requests have `drain_seconds` to be answered.
        """
        status = LOST
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    if parent_pid is not None:
                        nursery.start_soon(self._watch_parent, parent_pid)
                    nursery.start_soon(self._pass_answers)
                    if await self._pass_requests():
                        status = ENDED
                        with trio.move_on_after(self.limits.drain_seconds):
                            await self._all_settled()
                    nursery.cancel_scope.cancel()
        finally:
            self.closing.set()
            with trio.CancelScope(shield=True):
                await self._close()
        return status

    def shut(self, cause: str) -> None:  # noqa: ARG002  there is but one when this is called
        """Ends both sides: one of them is lost."""
        self.journal.shut("lost")
        self._scope.cancel()

    async def _watch_parent(self, parent_pid: int) -> None:
        await wait_parent_death(parent_pid=parent_pid, limits=self.limits)
        self.shut("lost")

    async def _close(self) -> None:
        """Both at once: each may take a while."""
        if self._loss is not None:
            logger.warning("%s", self._loss.reason)
        async with trio.open_nursery() as nursery:
            for channel in (self.client, self.server):
                part(channel, self._loss)
                nursery.start_soon(channel.aclose)

    def _lose(self, loss: ConnectionLost) -> None:
        """The first reason counts."""
        self._loss = self._loss or loss

    # From the client.

    async def _pass_requests(self) -> bool:
        """Whether the client has said all that it had to say; else one of both sides is gone."""
        try:
            while received := await self.client.receive():
                for item in received:
                    await self._receive(item)
        except ConnectionLost as loss:
            self._lose(loss)
        except _GONE:
            pass
        else:
            self.journal.shut("eof")
            return True
        self.journal.shut("lost")
        return False

    async def _receive(self, item: Received) -> None:
        if isinstance(item, Oversized):
            self.journal.record_oversized("in", item)
            text = f"larger than frame_bytes_max ({self.limits.frame_bytes_max})"
            await self.reject(malformed(item.head, INVALID_REQUEST, text))
            return
        assert isinstance(item, bytes)
        self.journal.counts["in_bytes"] += len(item)
        messages = self.journal.record("in", item)
        self.journal.flush()
        for message in messages:
            self._note(message)
        await send_if_text(self.server, item)

    def _note(self, message: Message) -> None:
        """Which requests are waited for at the end."""
        self.has_begun = self.has_begun or isinstance(message, Request)
        if isinstance(message, Request) and len(self._open) < self.limits.requests_queued_max:
            self._open[message.id] = message.method
        elif isinstance(message, Notification) and message.method == CANCELLED:
            self._forget_request(reference_of(message))

    async def reject(self, message: Malformed, _: bytes = b"") -> None:
        """Answer what is no message, if it may wait for that."""
        if message.is_request and message.id is not None:
            await self._answer(message.id, message.code, message.message)

    # From the server.

    async def _pass_answers(self) -> None:
        try:
            with suppress(*_GONE):
                while received := await self.server.receive():
                    for item in received:
                        await self._pass_answer(item)
        except ConnectionLost as loss:
            self._lose(loss)
        self.shut("lost")

    async def _pass_answer(self, item: Received) -> None:
        if isinstance(item, Lost):
            await self._fail(item.id, str(item.error))
        elif isinstance(item, Oversized):
            self.journal.record_oversized("out", item)
            await self._drop(item)
        else:
            self.journal.counts["out_bytes"] += len(item)
            messages = self.journal.record("out", item)
            await self._send(item)
            for message in messages:
                if isinstance(message, Response | ErrorResponse):
                    self._forget_request(message.id)

    async def _drop(self, item: Oversized) -> None:
        """An answer that cannot pass fails its request."""
        text = f"an answer over frame_bytes_max ({self.limits.frame_bytes_max})"
        request_id = whose_large_answer(malformed(item.head, SERVER_BUSY, text), self._waiting)
        if request_id in self._open:
            await self._fail(request_id, text)

    async def _fail(self, request_id: Id, why: str) -> None:
        await self._answer(request_id, SERVER_BUSY, why)
        self._forget_request(request_id)

    async def _answer(self, request_id: Id, code: int, text: str) -> None:
        """Answers instead of the server."""
        await self._send(self.journal.answer(request_id, code, text))

    async def _send(self, frame: bytes) -> None:
        self.journal.flush()
        async with self._send_lock:
            await send_if_text(self.client, frame)

    def _forget_request(self, request_id: Id | None) -> None:
        if request_id is not None:
            self._open.pop(request_id, None)
        self._settled.unpark_all()

    @property
    def _waiting(self) -> list[Id]:
        """The open requests that are to be settled; a subscription never is."""
        return [request_id for request_id, method in self._open.items() if method != LISTEN]

    async def _all_settled(self) -> None:
        while self._waiting:
            await self._settled.park()


# --------------------
# A client of one connection, such as a host that speaks stdio, and a server at a URL of HTTP.
#
# The client's frames are the messages of one session, and our client's channel says them over HTTP:
# in a session or each for itself, as the message has it, with the headers that are due. What goes
# wrong with one request is its answer, an error; a server that has ended the session ends us, as
# the exit of a server over stdio would. What a line over stdio can be and no POST can:
#
# - A batch goes as one POST for each of its messages; the answers come one by one.
# - What is no message goes nowhere: if it may be a request, an error answers it.


@attrs.define(kw_only=True, eq=False)
class HttpForwarder(ConnectionForwarder):
    """The same, for a server that is told each message by itself."""

    async def _receive(self, item: Received) -> None:
        if not isinstance(item, bytes):
            await super()._receive(item)
            return
        self.journal.counts["in_bytes"] += len(item)
        messages = self.journal.record("in", item)
        self.journal.flush()
        frames = [item] if len(messages) == 1 else messages_in(item)
        for message, frame in zip(messages, frames, strict=True):
            await _TO_SERVER[type(message)](self, message, frame)

    async def ask(self, request: Request, frame: bytes) -> None:
        """Pass a request; one too many, or one that could be taken for an open one, is refused."""
        if request.id in self._open:
            text = f"an unfinished request has the same id: {request.id!r}"
            await self._answer(request.id, INVALID_REQUEST, text)
        elif len(self._open) >= self.limits.requests_queued_max:
            text = "too many requests wait for answers (requests_queued_max)"
            await self._answer(request.id, SERVER_BUSY, text)
        else:
            self._note(request)
            await self.server.send([frame])
            if request.method == INITIALIZE:
                await self._session_begun(request.id)

    async def _session_begun(self, request_id: Id) -> None:
        """What the client says next needs the id of its session, which comes with the answer."""
        with trio.move_on_after(self.limits.initialize_seconds):
            while request_id in self._open:
                await self._settled.park()

    async def tell(self, message: Notification, frame: bytes) -> None:
        """Pass a notification; what it cancels is not waited for."""
        await self.server.send([frame])
        self._note(message)

    async def reply(self, _: Response | ErrorResponse, frame: bytes) -> None:
        """Pass what the client answers to the server."""
        await self.server.send([frame])

    async def _drop(self, item: Oversized) -> None:
        """Its request is lost, which comes by itself."""


_TO_SERVER: Final[Mapping[type[Message], Callable[..., Awaitable[None]]]] = {
    Request: HttpForwarder.ask,
    Notification: HttpForwarder.tell,
    Response: HttpForwarder.reply,
    ErrorResponse: HttpForwarder.reply,
    Malformed: HttpForwarder.reject,
}


_Id = int | str

# How streams are where a revision was agreed on that nobody here knows.
_FALLBACK_VERSION: Final = next(
    PROTOCOL_VERSIONS[name]
    for name in ALL_PROTOCOL_VERSIONS
    if PROTOCOL_VERSIONS[name].has_handshake
)

_CONNECTION_CLOSED: Final = "the server has closed the connection"

Clients: TypeAlias = SessionChannel | StatelessChannel


@attrs.define(eq=False)
class NegotiatedVersion:
    """What a server and its client have agreed on; `protocol_version` is None before the handshake."""

    protocol_version: ProtocolVersion | None = None
    negotiated: LightEvent = attrs.field(factory=LightEvent, init=False)

    @property
    def peer_info(self) -> None:
        """Who the client is does not matter between it and its server."""

    @property
    def peer_capabilities(self) -> None:
        """What the client can do, as little."""


@attrs.define(kw_only=True, eq=False)
class UpstreamConnection:
    """One connection to a server, or a process, from the first message for it to its end.

    Attributes:
        clients: Where messages come from and go to.
        server: The server; closed at the end.
        journal: Records both.
        agreed: Is told of a handshake.
        limits: How long the server may read nothing.
        is_modern: Whether its clients take no requests, and choose their tokens by themselves.
    """

    clients: Clients
    server: Channel
    journal: MessageJournal
    negotiated_version: NegotiatedVersion
    limits: Limits
    is_stateless: bool
    _received: deque[Received] = attrs.field(factory=deque[Received], init=False)
    _open: dict[_Id, Request] = attrs.field(factory=dict[_Id, Request], init=False)
    _why: str = attrs.field(default="the proxy has stopped the server", init=False)
    _send_lock: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def run(self, first: Sequence[Received]) -> None:
        """Passes both ways until the clients are done, or the server has exited.

        What is open then is answered by an error. Cancelled: the same, and the server's end is
        closed, in bounded time.
        """
        self._received.extend(first)
        try:
            async with trio.open_nursery() as nursery:
                for pass_all in (self._pass_answers, self._pass_requests):
                    nursery.start_soon(self._while_there, pass_all, nursery.cancel_scope)
        finally:
            while self._received:
                self._next_line()
            fail_requests(self.clients, self.journal, self._open, self._why)
            await self.server.aclose()

    async def _while_there(
        self, pass_all: Callable[[], Awaitable[None]], scope: trio.CancelScope
    ) -> None:
        """Whichever side ends first ends both."""
        try:
            await pass_all()
        except ConnectionLost as loss:
            self.journal.shut("lost")
            self._why = str(loss)
        scope.cancel()

    # From the clients.

    async def _pass_requests(self) -> None:
        while self._received:
            while self._received:
                await self._send(self._next_line())
            self._received.extend(await self.clients.receive())

    def _next_line(self) -> bytes:
        """What clients have said next, and is recorded now; its requests are open."""
        frame = self._received.popleft()
        assert isinstance(frame, bytes)
        line = one_line(bytes(frame))
        messages = self.journal.read(line)
        for message in messages:
            if isinstance(message, Request):
                line = self._without_taken_token(message, line)
                self._open[message.id] = message
            elif isinstance(message, Notification) and message.method == CANCELLED:
                self._forget(reference_of(message))
        self.journal.record("in", line, messages=messages)
        self.journal.flush()
        return line

    def _without_taken_token(self, request: Request, line: bytes) -> bytes:
        """The line; who chose the token of another's open request goes without progress."""
        token = token_of(request.params) if self.is_stateless else None
        if token is None or self._asked_with(token) is None:
            return line
        params = members(request.params)
        del params["_meta"]["progressToken"]
        return encode_request(request.id, request.method, params)

    def _asked_with(self, token: _Id) -> _Id | None:
        """The open request whose progress has this token."""
        named = (each.id for each in self._open.values() if token_of(each.params) == token)
        return next(named, None)

    async def _send(self, line: bytes) -> None:
        seconds = self.limits.write_stall_seconds
        async with self._send_lock:
            try:
                with trio.move_on_after(seconds) as stall:
                    await self.server.send([line])
            except trio.BrokenResourceError as error:
                raise ConnectionLost(_CONNECTION_CLOSED) from error
        if stall.cancelled_caught:
            raise ConnectionLost(f"the server has read nothing for {seconds} seconds")

    # From the server.

    async def _pass_answers(self) -> None:
        while items := await self.server.receive():
            for item in items:
                if isinstance(item, Oversized):
                    self._drop(item)
                else:
                    assert isinstance(item, bytes)
                    await self._pass_answer(item)
        raise ConnectionLost(_CONNECTION_CLOSED)

    def _drop(self, item: Oversized) -> None:
        self.journal.record_oversized("out", item)
        text = f"an answer over frame_bytes_max ({self.limits.frame_bytes_max})"
        waiting = [each.id for each in self._open.values() if each.method != LISTEN]
        self._fail(whose_large_answer(malformed(item.head, SERVER_BUSY, text), waiting), text)

    def _fail(self, request_id: _Id | None, why: str) -> None:
        request = self._forget(request_id)
        if request is not None:
            fail_requests(self.clients, self.journal, (request.id,), why)

    async def _pass_answer(self, line: bytes) -> None:
        messages = self.journal.record("out", line)
        self.journal.flush()
        parts = [line] if len(messages) == 1 else messages_in(line)
        for message, part in zip(messages, parts, strict=True):
            if isinstance(message, Request) and self.is_stateless:
                await self._reject(message)
            elif isinstance(message, Malformed):
                self._fail(whose_answer(message), f"an answer that is {message.message}")
            else:
                self.clients.send_nowait([self._addressed(message, part)])

    async def _reject(self, request: Request) -> None:
        text = "a modern client takes no requests"
        answer = self.journal.answer(request.id, METHOD_NOT_FOUND, text)
        self.journal.record("in", answer)
        self.journal.flush()
        await self._send(answer)

    def _addressed(self, message: Message, frame: bytes) -> Addressed:
        if isinstance(message, Response | ErrorResponse):
            request = self._forget(message.id)
            if request is not None and request.method == INITIALIZE:
                self._agree(message)
            return Addressed(frame, message.id, is_answer=True)
        assert isinstance(message, Request | Notification)
        return Addressed(frame, self._about(message))

    def _forget(self, request_id: _Id | None) -> Request | None:
        return None if request_id is None else self._open.pop(request_id, None)

    def _agree(self, answer: Response | ErrorResponse) -> None:
        if isinstance(answer, Response):
            version = agreed_version(answer.result) or ""
            self.negotiated_version.protocol_version = PROTOCOL_VERSIONS.get(
                version, _FALLBACK_VERSION
            )
            self.negotiated_version.negotiated.set()

    def _about(self, message: Request | Notification) -> _Id | None:
        subscription = subscription_of(message.params)
        if subscription is not None:
            return subscription
        if isinstance(message, Notification) and message.method == PROGRESS:
            token = reference_of(message)
            return None if token is None else self._asked_with(token)
        open_ = (each.id for each in reversed(self._open.values()) if each.method != LISTEN)
        return next(open_, None)


def fail_requests(
    clients: Clients, journal: MessageJournal, requests: Iterable[_Id], why: str
) -> None:
    """Answers these requests instead of the server."""
    for request_id in requests:
        answer = journal.answer(request_id, SERVER_BUSY, why)
        clients.send_nowait([Addressed(answer, request_id, is_answer=True)])
    journal.flush()
