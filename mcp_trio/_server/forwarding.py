"""Requests that reach an instance which does not own their session.

The instance *forwards* the request to the owner, and relays the response: the owner answers it as
one of its own, through a `ForwardedExchange`. If the owner is lost, or has handed the session over,
the instance takes the session and answers itself. An instance never forwards a forwarded request,
so a request reaches two instances at most.

A request whose owner is lost is repeated on another instance only if the owner has never taken it
from the store. Otherwise its outcome is unknown, and the client gets an error that says so.
"""

import enum
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Final, TypeAlias

import attrs
import msgspec
import trio

from mcp_trio._protocol.http_headers import Headers, HttpRequest
from mcp_trio._server.instances import Instance, SessionFacts, StoreUnavailableError
from mcp_trio._transports.concurrency import Wakeup
from mcp_trio._transports.http_response import (
    BodyTooLargeError,
    CompleteResponse,
    Exchange,
    ResponseState,
    run_while_connected,
)
from mcp_trio.limits import Limits

logger = logging.getLogger("mcp_trio")

# When an instance is lost, another one takes its sessions. That one may be lost as well, and so on.
_OWNERS_MAX: Final = 8

# A request is large if it has more than this part of `limits.http.unconfirmed_bytes_max`.
_LARGE_PART: Final = 32

_OWNERS_REMEMBERED_MAX: Final = 10_000
_OWNER_CHANGES_SECONDS: Final = 0.05

_NO_SESSION: Final = ""  # in the place of the owner, for a session that does not exist

UNKNOWN_OUTCOME: Final = "the instance that ran this request was lost: its outcome is unknown"
# Not JSON-RPC: clients take that for a response to the request.
UNKNOWN_OUTCOME_RESPONSE: Final[CompleteResponse] = (
    502,
    [("Content-Type", "text/plain; charset=utf-8")],
    UNKNOWN_OUTCOME.encode(),
)


class InstanceUnavailableError(Exception):
    """No instance can answer a request now; its client may repeat it."""


# Messages between instances. `number` is that of the request at the instance that forwards it.


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    number: int


class _Forwarded(_Message, frozen=True):
    """A request, whose body has been read and whose client has been authenticated."""

    request: HttpRequest
    body: bytes


class _Gone(_Message, frozen=True):
    """The client has disconnected."""


class _Read(_Message, frozen=True):
    """The instance has sent so many more bytes to the client; the owner may send as many again."""

    size: int


class _Unknown(_Message, frozen=True):
    """The instance to which the request was forwarded does not own the session."""


class _Answered(_Message, frozen=True):
    """A complete response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class _Started(_Message, frozen=True):
    """The headers of a response."""

    status: int
    headers: list[tuple[str, str]]


class _Piece(_Message, frozen=True):
    """A piece of a started response."""

    data: bytes


class _Ended(_Message, frozen=True):
    """The end of a started response; it is incomplete if the owner has failed."""

    is_complete: bool = True


_FromOwner: TypeAlias = _Unknown | _Answered | _Started | _Piece | _Ended
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Forwarded | _Gone | _Read | _FromOwner).decode


class Outcome(enum.Enum):
    """The outcome of a forwarded request."""

    ANSWERED = "the owner answered it, or the client has disconnected"
    UNKNOWN_SESSION = "the instance does not own the session"
    NOT_TAKEN = "the owner was lost before it took the request"
    LOST = "the owner was lost after it had taken the request"


@attrs.define(eq=False, repr=False)
class _SentRequest:
    """A request that this instance has forwarded.

    Attributes:
        owner: The name of the instance that answers it.
        encoded: The message by which it was forwarded.
        is_stream: Whether the response may go on for ever (GET).
        is_taken: Whether the owner has sent something about it.
        is_finished: Whether the owner sends no more about it.
    """

    number: int
    owner: str
    encoded: bytes
    is_stream: bool
    is_taken: bool = False
    is_lost: bool = False
    is_finished: bool = False
    _received: list[_FromOwner] = attrs.field(factory=list[_FromOwner], init=False)
    _changed: Wakeup = attrs.field(factory=Wakeup, init=False)

    def put(self, message: _FromOwner) -> None:
        self._received.append(message)
        self._changed.wake()

    def lose(self) -> None:
        self.is_lost = True
        self._changed.wake()

    async def receive(self) -> list[_FromOwner]:
        """Wait for messages and return them; return none if the owner is lost."""
        await trio.lowlevel.checkpoint()
        while not (self._received or self.is_lost):
            await self._changed.wait()
        received, self._received = self._received, []
        return received


@attrs.define(eq=False, repr=False)
class ForwardedExchange:
    """The `Exchange` of a request that another instance has forwarded to this one.

    Attributes:
        sender: The name of the instance that has forwarded it.
    """

    request: HttpRequest
    sender: str
    _number: int
    _body: bytes
    _instance: Instance
    _unread_bytes_max: int
    response_state: ResponseState = attrs.field(default=ResponseState.NOT_STARTED, init=False)
    _unread_bytes: int = attrs.field(default=0, init=False)
    _is_gone: bool = attrs.field(default=False, init=False)
    _changed: Wakeup = attrs.field(factory=Wakeup, init=False)

    @property
    def may_lead(self) -> bool:
        """Return False: the task that answers a forwarded request reads no others."""
        return False

    async def body(self, bytes_max: int) -> bytes:
        """Return the body, which the other instance has read."""
        await trio.lowlevel.checkpoint()
        if len(self._body) > bytes_max:
            raise BodyTooLargeError(bytes_max)
        return self._body

    def body_nowait(self, bytes_max: int) -> bytes | None:
        """Return the body, unless it is too large."""
        return self._body if len(self._body) <= bytes_max else None

    async def answer(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """Send a complete response."""
        await self._check_connected()
        # The body may be a subclass of bytes, which cannot be encoded.
        self._send(_Answered(self._number, status, list(headers), bytes(body)))
        self.response_state = ResponseState.COMPLETE

    async def start(self, status: int, headers: Headers) -> None:
        """Send the headers of a response whose length is unknown."""
        await self._check_connected()
        self.response_state = ResponseState.STARTED
        self._send(_Started(self._number, status, list(headers)))

    async def send(self, piece: bytes) -> None:
        """Send a piece of a started response; wait while the client has too many bytes to read."""
        await self._check_connected()
        while self._unread_bytes > self._unread_bytes_max:
            await self._changed.wait()
            await self._check_connected()
        self._unread_bytes += len(piece)
        self._send(_Piece(self._number, piece))

    async def end(self) -> None:
        """Complete a started response."""
        await self._check_connected()
        self.response_state = ResponseState.COMPLETE
        self._send(_Ended(self._number))

    async def gone(self) -> None:
        """Wait until the client disconnects, or the instance that it is connected to is lost."""
        while not self._is_gone:
            await self._changed.wait()

    def close_after_response(self) -> None:
        """Do nothing: the connection belongs to the other instance."""

    def answer_unknown(self) -> None:
        """Answer that this instance does not own the session."""
        self.response_state = ResponseState.COMPLETE
        self._send(_Unknown(self._number))

    def finish(self) -> None:
        """Break off the response, if it is not complete."""
        if self.response_state is ResponseState.NOT_STARTED:
            self._send(_Answered(self._number, 500, [], b""))
        elif self.response_state is ResponseState.STARTED:
            self._send(_Ended(self._number, is_complete=False))

    def mark_read(self, size: int) -> None:
        """Note that the client has been sent so many bytes."""
        self._unread_bytes -= size
        self._changed.wake()

    def mark_gone(self) -> None:
        """Note that the client is gone."""
        self._is_gone = True
        self._changed.wake()

    async def _check_connected(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._is_gone:
            raise trio.BrokenResourceError("the client of the forwarded request is gone")

    def _send(self, message: msgspec.Struct) -> None:
        if not self._is_gone:
            self._instance.send(self.sender, _encode(message))


@attrs.define(eq=False, repr=False)
class Forwarder:
    """The requests that this instance forwards to others, and those that others forward to it.

    It is the `InstanceHandler` of a served application. Its `async` methods raise
    `trio.BrokenResourceError` if the client is gone.

    Attributes:
        limits: The limits of the server; `limits.http.unsent_bytes_max` bounds a response's bytes
            that the client has not read yet.
        respond: Answers a forwarded request; this is the application.
        take_session: Continues a session of another instance here, and stores its facts; returns
            whether it exists.
        lose_session: Closes a session that another instance has taken.
        nursery: The nursery of the requests that others have forwarded.
        is_leaving: Whether this instance takes no more sessions.
        has_left: Whether this instance has left the others.
    """

    limits: Limits
    respond: Callable[[Exchange], Awaitable[None]]
    take_session: Callable[[str, SessionFacts, HttpRequest], Awaitable[bool]]
    lose_session: Callable[[str], None]
    instance: Instance = attrs.field(init=False)
    nursery: trio.Nursery = attrs.field(init=False)
    is_leaving: bool = attrs.field(default=False, init=False)
    has_left: bool = attrs.field(default=False, init=False)
    _numbers: "count[int]" = attrs.field(factory=lambda: count(1), init=False)
    _sent: dict[int, _SentRequest] = attrs.field(factory=dict[int, _SentRequest], init=False)
    # The bytes of those that the owner has not begun to answer, by owner.
    _untaken_bytes: Counter[str] = attrs.field(factory=Counter[str], init=False)
    _received: dict[tuple[str, int], ForwardedExchange] = attrs.field(
        factory=dict[tuple[str, int], ForwardedExchange], init=False
    )
    # The owners of sessions, with their principals; the oldest are forgotten.
    _owners: dict[str, tuple[str, str | None]] = attrs.field(
        factory=dict[str, tuple[str, str | None]], init=False
    )
    _taking: dict[str, trio.Event] = attrs.field(factory=dict[str, trio.Event], init=False)
    # The requests that are being answered here or by another instance, without streams.
    _unanswered: int = attrs.field(default=0, init=False)

    # Messages.

    def receive(self, sender: str, message: bytes) -> None:
        """Take a message of another instance; one about a finished request is dropped."""
        decoded = _decode(message)
        match decoded:
            case _Forwarded(number, request, body):
                exchange = ForwardedExchange(
                    request, sender, number, body, self.instance, self.limits.http.unsent_bytes_max
                )
                self._received[sender, number] = exchange
                self.nursery.start_soon(self._respond, exchange, number)
            case _Gone(number) | _Read(number):
                received = self._received.get((sender, number))
                if received is not None and isinstance(decoded, _Read):
                    received.mark_read(decoded.size)
                elif received is not None:
                    received.mark_gone()
            case _:
                sent = self._sent.get(decoded.number)
                if sent is not None:
                    sent.put(decoded)

    def lose(self, name: str) -> None:
        """End the requests to and from an instance that is lost."""
        for request in self._sent.values():
            if request.owner == name:
                request.lose()
        for exchange in self._received.values():
            if exchange.sender == name:
                exchange.mark_gone()

    def peers(self) -> Collection[str]:
        """Return the instances to or from which requests were forwarded that are not finished."""
        senders = {sender for sender, _ in self._received}
        return senders | {request.owner for request in self._sent.values()}

    async def _respond(self, exchange: ForwardedExchange, number: int) -> None:
        try:
            await self.respond(exchange)
        except Exception:
            text = "answering a forwarded %s %s failed"
            logger.exception(text, exchange.request.method, exchange.request.path)
        finally:
            del self._received[exchange.sender, number]
            exchange.finish()

    # Forwarding.

    async def answer(
        self,
        exchange: Exchange,
        request: HttpRequest,
        body: bytes,
        *,
        session_id: str,
        headers: Headers,
        answer_here: Callable[[], Awaitable[object]],
        answer_continued: Callable[[], Awaitable[bool]] | None,
    ) -> bool:
        """Answer a request whose session is not open on this instance.

        Args:
            exchange: The exchange, which receives the response.
            request: The request, with the authenticated client.
            body: The body of the request.
            session_id: The session that the request names.
            headers: Headers that this instance adds to the response of another one.
            answer_here: Answers the request if its session has been opened here meanwhile.
            answer_continued: Sends the response of the request if it goes on here, after its owner
                was lost; returns whether it does. None if no request of the session can go on.

        Returns:
            False if there is no such session; nothing was sent.

        Raises:
            InstanceUnavailableError: No instance can answer the request now.
            StoreUnavailableError: The store does not answer.
            RejectedError: The request is rejected.
            Exception: The error of `take_session`; the session waits for another instance.
        """
        with self._counted_as_unanswered(request):
            for attempt in range(_OWNERS_MAX):
                if attempt:
                    await trio.sleep(_OWNER_CHANGES_SECONDS)  # The new owner may not be stored yet.
                if isinstance(exchange, ForwardedExchange):
                    self._owners.pop(session_id, None)  # The other instance knows a newer owner.
                owner = await self._owner_of(session_id, request.principal)
                if owner == _NO_SESSION:
                    return False
                if owner == self.instance.name:
                    await answer_here()
                    return True
                if isinstance(exchange, ForwardedExchange):  # It is not forwarded again.
                    if self.is_leaving or not (owner is None or await self.instance.is_lost(owner)):
                        exchange.answer_unknown()
                        return True
                elif self.is_leaving and request.method == "GET":
                    raise InstanceUnavailableError("the server is closing: reconnect")
                elif owner is not None or self.is_leaving:
                    name = owner or next(iter(await self.instance.others()), None)
                    if name is None:
                        raise InstanceUnavailableError(
                            "the server is closing, and no other instance runs"
                        )
                    outcome = await self.forward(exchange, request, body, name, headers)
                    if outcome is Outcome.ANSWERED:
                        return True
                    self._owners.pop(session_id, None)
                    if outcome is Outcome.LOST:
                        await self._answer_after_loss(
                            exchange, request, session_id, owner, headers, answer_continued
                        )
                        return True
                    if outcome is Outcome.UNKNOWN_SESSION or self.is_leaving:
                        continue
                await self._take(session_id, owner, request)
            raise InstanceUnavailableError("the session changes its instance too often")

    async def open_elsewhere(
        self, exchange: Exchange, request: HttpRequest, body: bytes, headers: Headers
    ) -> bool:
        """Let another instance open a session, because this one is leaving.

        Returns:
            False if no other instance runs.
        """
        try:
            with self._counted_as_unanswered(request):
                for name in await self.instance.others():
                    outcome = await self.forward(exchange, request, body, name, headers)
                    if outcome is Outcome.ANSWERED:
                        return True
        except (StoreUnavailableError, InstanceUnavailableError) as error:
            logger.warning("a session cannot be opened on another instance: %s", error)
        return False

    async def _owner_of(self, session_id: str, principal: str | None) -> str | None:
        """Return the owner of the principal's session; `_NO_SESSION` if there is none."""
        taking = self._taking.get(session_id)
        if taking is not None:
            await taking.wait()
        known = self._owners.get(session_id)
        if known is None:
            if self.is_leaving:  # This instance may just have handed the session over.
                await self.instance.settle()
            stored = await self.instance.find(session_id)
            if stored is None or stored.facts.principal != principal:
                return _NO_SESSION
            if stored.owner is None or stored.owner == self.instance.name:
                return stored.owner
            if len(self._owners) >= _OWNERS_REMEMBERED_MAX:
                del self._owners[next(iter(self._owners))]
            known = self._owners[session_id] = (stored.owner, stored.facts.principal)
        owner, of_principal = known
        return owner if of_principal == principal else _NO_SESSION

    async def _take(self, session_id: str, former_owner: str | None, request: HttpRequest) -> None:
        """Become the owner of a session, and continue it, or end it if it cannot be moved.

        Raises:
            StoreUnavailableError: The store does not answer.
            Exception: The error of `take_session`; the session waits for another instance.
        """
        taking = self._taking.get(session_id)
        if taking is not None:
            await taking.wait()
            return
        taken = self._taking[session_id] = trio.Event()
        try:
            stored = await self.instance.find(session_id)
            # Another request may have let this instance take the session before.
            if stored is None or stored.owner == self.instance.name:
                return
            if not await self.instance.take(session_id, former_owner):
                return
            # The former owner may have been slow, not lost, and have stored newer facts meanwhile.
            stored = await self.instance.find(session_id) or stored
            facts, is_open = stored.facts, False
            try:
                if facts.is_movable:
                    is_open = await self.take_session(session_id, facts, request)
            except BaseException:
                self.instance.hand_over(session_id, facts)
                raise
            if not is_open:
                self.instance.forget(session_id)
                await self.instance.settle()
        finally:
            del self._taking[session_id]
            taken.set()

    async def _answer_after_loss(
        self,
        exchange: Exchange,
        request: HttpRequest,
        session_id: str,
        former_owner: str | None,
        headers: Headers,
        answer_continued: Callable[[], Awaitable[bool]] | None,
    ) -> None:
        """Answer a request whose owner is lost; if possible, its session continues here.

        An error is only logged: a response with status 500 or 503 would let the client repeat its
        request, whose outcome is unknown.
        """
        if not self.is_leaving:
            try:
                await self._take(session_id, former_owner, request)
            except Exception as error:
                logger.warning("a session of a lost instance cannot be continued: %s", error)
            if answer_continued is not None and await answer_continued():
                return
        status, lines, text = UNKNOWN_OUTCOME_RESPONSE
        await exchange.answer(status, [*lines, *headers], text)

    async def forward(
        self,
        exchange: Exchange,
        request: HttpRequest,
        body: bytes,
        name: str,
        headers: Headers,
    ) -> Outcome:
        """Let the instance with this name answer a request, and relay the response.

        The other instance is notified if the client disconnects, or if the task is cancelled.

        Raises:
            InstanceUnavailableError: The request is large, and so are others that the owner has not
                begun to answer; with too many bytes, the owner would count as lost.
        """
        number = next(self._numbers)
        encoded = _encode(_Forwarded(number, request.without_common(), body))
        waiting, bytes_max = self._untaken_bytes[name], self.limits.http.unconfirmed_bytes_max
        # The other half is for responses. Small requests are not rejected because of large ones.
        is_large = len(encoded) > bytes_max // _LARGE_PART
        if is_large and waiting and waiting + len(encoded) > bytes_max // 2:
            raise InstanceUnavailableError(
                "the requests to the instance of the session have too many bytes"
                f" (limits.http.unconfirmed_bytes_max={bytes_max})"
            )
        sent = _SentRequest(number, name, encoded, is_stream=request.method == "GET")
        outcomes: list[Outcome] = []

        async def relay() -> None:
            outcomes.append(await self._relay(exchange, sent, headers))

        self._sent[number] = sent
        self._untaken_bytes[name] += len(encoded)
        self.instance.send(name, encoded)
        try:
            is_connected = await run_while_connected(exchange, relay)
        finally:
            del self._sent[number]
            self._mark_taken(sent)
            if not sent.is_finished:
                self.instance.send(name, _encode(_Gone(number)))
        if not is_connected:
            raise trio.BrokenResourceError("the client is gone")
        return outcomes[0]

    def _mark_taken(self, sent: _SentRequest) -> None:
        """Count the bytes of a request no more."""
        if not sent.is_taken:
            sent.is_taken = True
            self._untaken_bytes[sent.owner] -= len(sent.encoded)
            if not self._untaken_bytes[sent.owner]:
                del self._untaken_bytes[sent.owner]

    async def _relay(self, exchange: Exchange, sent: _SentRequest, headers: Headers) -> Outcome:
        """Send the owner's response to the client."""
        is_started = False
        while True:
            for message in await sent.receive():
                self._mark_taken(sent)
                match message:
                    case _Unknown():
                        sent.is_finished = True
                        return Outcome.UNKNOWN_SESSION
                    case _Answered(_, status, own, body):
                        sent.is_finished = True
                        await exchange.answer(status, [*own, *headers], body)
                        return Outcome.ANSWERED
                    case _Started(_, status, own):
                        is_started = True
                        await exchange.start(status, [*own, *headers])
                    case _Piece(_, data):
                        await exchange.send(data)
                        self.instance.send(sent.owner, _encode(_Read(sent.number, len(data))))
                    case _Ended(_, is_complete):
                        sent.is_finished = True
                        if not is_started:  # `end_streams` has ended it.
                            return Outcome.UNKNOWN_SESSION
                        if is_complete:
                            await exchange.end()
                        return Outcome.ANSWERED
            if sent.is_lost:
                sent.is_finished = True
                if is_started:  # The host closes the connection of an incomplete response.
                    return Outcome.ANSWERED
                if sent.is_stream:  # A GET has no effects.
                    return Outcome.NOT_TAKEN
                is_unread = False  # also if the store does not answer
                with suppress(StoreUnavailableError):
                    is_unread = sent.encoded in await self.instance.unread(sent.owner)
                return Outcome.NOT_TAKEN if is_unread else Outcome.LOST

    @property
    def is_busy(self) -> bool:
        """Return whether this instance takes a session, or has an unanswered request except GET."""
        return bool(self._taking) or self._unanswered > 0

    @contextmanager
    def _counted_as_unanswered(self, request: HttpRequest) -> Generator[None]:
        """Count a request, except a GET, as unanswered within the context."""
        if request.method == "GET":
            yield
            return
        self._unanswered += 1
        try:
            yield
        finally:
            self._unanswered -= 1

    def end_streams(self) -> None:
        """End the streams of other instances, so that their clients reconnect elsewhere."""
        for request in self._sent.values():
            if request.is_stream and not request.is_finished:
                self.instance.send(request.owner, _encode(_Gone(request.number)))
                request.put(_Ended(request.number))
