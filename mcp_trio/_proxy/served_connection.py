"""A server of one connection behind clients over HTTP: its frames, and the streams they go to.

What a frame does not say, and a stream needs to know, is which request a message belongs to. An
answer, progress and a subscription's news name theirs. Anything else is said to belong to the one
that was asked last and is open, or to none.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeAlias

import attrs
import trio

from mcp_trio._errors import METHOD_NOT_FOUND, SERVER_BUSY, ConnectionLost
from mcp_trio._journal.conversation import (
    CANCELLED,
    LISTEN,
    PROGRESS,
    members,
    reference_of,
    subscription_of,
    token_of,
)
from mcp_trio._journal.messages import messages_in
from mcp_trio._limits import Limits
from mcp_trio._protocol import ALL_REVISIONS, REVISIONS, Revision, whose_answer, whose_large_answer
from mcp_trio._protocol.methods import INITIALIZE
from mcp_trio._proxy.journal import FrameJournal
from mcp_trio._transports.bell import Milestone
from mcp_trio._transports.channel import Channel, Received
from mcp_trio._transports.http.client_frames import agreed_version
from mcp_trio._transports.http.session_channel import SessionChannel
from mcp_trio._transports.http.stateless_channel import StatelessChannel
from mcp_trio._wire import (
    Addressed,
    ErrorResponse,
    Malformed,
    Message,
    Notification,
    Oversized,
    Request,
    Response,
    encode_request,
    malformed,
)
from mcp_trio._wire.lines import one_line

_Id = int | str

# How streams are where a revision was agreed on that nobody here knows.
_LIKELIEST: Final = next(REVISIONS[name] for name in ALL_REVISIONS if REVISIONS[name].has_handshake)

_HUNG_UP: Final = "the server has closed the connection"

Clients: TypeAlias = SessionChannel | StatelessChannel


@attrs.define(eq=False)
class Agreed:
    """What a server and its client have agreed on; `revision` is None before the handshake."""

    revision: Revision | None = None
    negotiated: Milestone = attrs.field(factory=Milestone, init=False)

    @property
    def peer_info(self) -> None:
        """Who the client is does not matter between it and its server."""

    @property
    def peer_capabilities(self) -> None:
        """What the client can do, as little."""


@attrs.define(kw_only=True, eq=False)
class ServedConnection:
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
    journal: FrameJournal
    agreed: Agreed
    limits: Limits
    is_modern: bool
    _taken: deque[Received] = attrs.field(factory=deque[Received], init=False)
    _open: dict[_Id, Request] = attrs.field(factory=dict[_Id, Request], init=False)
    _why: str = attrs.field(default="the proxy has stopped the server", init=False)
    _saying: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def run(self, first: Sequence[Received]) -> None:
        """Passes both ways until the clients are done, or the server has exited.

        What is open then is answered by an error. Cancelled: the same, and the server's end is
        closed, in bounded time.
        """
        self._taken.extend(first)
        try:
            async with trio.open_nursery() as nursery:
                for pass_all in (self._pass_answers, self._pass_requests):
                    nursery.start_soon(self._while_there, pass_all, nursery.cancel_scope)
        finally:
            while self._taken:
                self._next_line()
            fail(self.clients, self.journal, self._open, self._why)
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
        while self._taken:
            while self._taken:
                await self._say(self._next_line())
            self._taken.extend(await self.clients.receive())

    def _next_line(self) -> bytes:
        """What clients have said next, and is recorded now; its requests are open."""
        frame = self._taken.popleft()
        assert isinstance(frame, bytes)
        line = one_line(bytes(frame))
        messages = self.journal.read(line)
        for message in messages:
            if isinstance(message, Request):
                line = self._without_taken_token(message, line)
                self._open[message.id] = message
            elif isinstance(message, Notification) and message.method == CANCELLED:
                self._forget(reference_of(message))
        self.journal.passes("in", line, messages=messages)
        self.journal.flush()
        return line

    def _without_taken_token(self, request: Request, line: bytes) -> bytes:
        """The line; who chose the token of another's open request goes without progress."""
        token = token_of(request.params) if self.is_modern else None
        if token is None or self._asked_with(token) is None:
            return line
        params = members(request.params)
        del params["_meta"]["progressToken"]
        return encode_request(request.id, request.method, params)

    def _asked_with(self, token: _Id) -> _Id | None:
        """The open request whose progress has this token."""
        named = (each.id for each in self._open.values() if token_of(each.params) == token)
        return next(named, None)

    async def _say(self, line: bytes) -> None:
        seconds = self.limits.write_stall_seconds
        async with self._saying:
            try:
                with trio.move_on_after(seconds) as stall:
                    await self.server.send([line])
            except trio.BrokenResourceError as error:
                raise ConnectionLost(_HUNG_UP) from error
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
        raise ConnectionLost(_HUNG_UP)

    def _drop(self, item: Oversized) -> None:
        self.journal.discards("out", item)
        text = f"an answer over frame_bytes_max ({self.limits.frame_bytes_max})"
        waiting = [each.id for each in self._open.values() if each.method != LISTEN]
        self._fail(whose_large_answer(malformed(item.head, SERVER_BUSY, text), waiting), text)

    def _fail(self, request_id: _Id | None, why: str) -> None:
        request = self._forget(request_id)
        if request is not None:
            fail(self.clients, self.journal, (request.id,), why)

    async def _pass_answer(self, line: bytes) -> None:
        messages = self.journal.passes("out", line)
        self.journal.flush()
        parts = [line] if len(messages) == 1 else messages_in(line)
        for message, part in zip(messages, parts, strict=True):
            if isinstance(message, Request) and self.is_modern:
                await self._refuse(message)
            elif isinstance(message, Malformed):
                self._fail(whose_answer(message), f"an answer that is {message.message}")
            else:
                self.clients.send_nowait([self._addressed(message, part)])

    async def _refuse(self, request: Request) -> None:
        text = "a modern client takes no requests"
        answer = self.journal.answer(request.id, METHOD_NOT_FOUND, text)
        self.journal.passes("in", answer)
        self.journal.flush()
        await self._say(answer)

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
            self.agreed.revision = REVISIONS.get(version, _LIKELIEST)
            self.agreed.negotiated.set()

    def _about(self, message: Request | Notification) -> _Id | None:
        subscription = subscription_of(message.params)
        if subscription is not None:
            return subscription
        if isinstance(message, Notification) and message.method == PROGRESS:
            token = reference_of(message)
            return None if token is None else self._asked_with(token)
        open_ = (each.id for each in reversed(self._open.values()) if each.method != LISTEN)
        return next(open_, None)


def fail(clients: Clients, journal: FrameJournal, requests: Iterable[_Id], why: str) -> None:
    """Answers these requests instead of the server."""
    for request_id in requests:
        answer = journal.answer(request_id, SERVER_BUSY, why)
        clients.send_nowait([Addressed(answer, request_id, is_answer=True)])
    journal.flush()
