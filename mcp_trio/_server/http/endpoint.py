"""The MCP endpoint: what is done for each kind of verdict."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeVar

import attrs
import trio

from mcp_trio._engine import Led, lead
from mcp_trio._errors import SERVER_BUSY
from mcp_trio._protocol.http.heads import Head
from mcp_trio._protocol.http.verdicts import (
    SESSION_ID,
    STATUS_OF_ERROR,
    Ending,
    Listening,
    Opening,
    Refusal,
    Stateless,
    ToSession,
)
from mcp_trio._protocol.requests import RequestId
from mcp_trio._server.http.asked import Asked, RefusedError
from mcp_trio._server.http.runtime import Runtime
from mcp_trio._server.http.sessions import HttpSession, TooManySessionsError
from mcp_trio._transports.http.answer_stream import AnswerStream
from mcp_trio._transports.http.carrying import Carrier, carried, until_gone
from mcp_trio._transports.http.patience import Patience
from mcp_trio._transports.http.session_channel import (
    DuplicateIdError,
    SessionChannel,
    TooManyStreamsError,
)
from mcp_trio._wire import Notification

T = TypeVar("T")

_ELSEWHERE: Final = f"this session lives in another process: route requests by {SESSION_ID}"


@attrs.define(eq=False)
class McpEndpoint:
    """One path for both eras; see the module.

    Attributes:
        runtime: The sessions.
        streams_answers: Answers in sessions are streams also where they could be JSON.
    """

    runtime: Runtime
    streams_answers: bool = attrs.field(kw_only=True, default=False)
    _patience: Patience = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._patience = Patience(self.runtime.server.limits.http_watch_after_seconds)

    async def respond(self, asked: Asked) -> None:
        """Answer one request.

        Raises:
            RefusedError: It is refused.
            trio.BrokenResourceError: The client is gone.
        """
        body = await asked.body() if asked.head.method == "POST" else b""
        if self.runtime.is_closing:
            raise RefusedError(closing())
        verdict = self.runtime.endpoint.judge(asked.head, body)
        await _EFFECTS[type(verdict)](self, asked, verdict, body)

    async def refuse(self, asked: Asked, refusal: Refusal, _body: bytes) -> None:
        """Nothing else happens; but a session that lives elsewhere has not ended (HTTP-51)."""
        if refusal.status == HTTPStatus.NOT_FOUND and await self._is_elsewhere(asked.head):
            refusal = attrs.evolve(refusal, status=HTTPStatus.MISDIRECTED_REQUEST, text=_ELSEWHERE)
        await asked.refuse(refusal)

    async def _is_elsewhere(self, head: Head) -> bool:
        session_id = head.header(SESSION_ID)
        if session_id is None:
            return False
        return await self.runtime.sessions.is_elsewhere(session_id, head.principal)

    # Sessions.

    async def open(self, asked: Asked, opening: Opening, body: bytes) -> None:
        """Begin a session, whose id goes out with the first answer (HTTP-44)."""
        begun = begun_session(self.runtime, asked, opening.request.id)
        is_told = False
        try:
            stream = begun.channel.deliver(
                body,
                opening.request,
                [opening.request.id],
                is_narrow=not asked.head.takes_streams,
            )
            assert stream is not None
            await stream.news()  # a session that was refused has no id
            if begun.is_negotiated:
                self.runtime.sessions.agreed(begun)
            is_told = await self._carry(asked, begun, stream) and begun.is_negotiated
        finally:
            if not is_told:  # the client has no id to come back with
                begun.close()

    def deliver(self, asked: Asked, verdict: ToSession, body: bytes) -> Awaitable[object]:
        """Give a message to its session; what is returned carries what is answered to it."""
        begun = self.runtime.sessions.used(verdict.session)
        channel, awaited = begun.channel, verdict.awaited
        if not awaited:
            channel.deliver(body, verdict.message)
            return asked.answer(202, _named(begun))
        narrow = not asked.head.takes_streams
        try:
            stream, led = self._delivered(
                asked, lambda: channel.deliver(body, verdict.message, awaited, is_narrow=narrow)
            )
        except (DuplicateIdError, TooManyStreamsError) as error:
            raise RefusedError(_undeliverable(error, awaited[0])) from None
        assert stream is not None
        return self._carry(asked, begun, stream, awaited[0], led)

    def _delivered(self, asked: Asked, deliver: Callable[[], T]) -> tuple[T, Led | None]:
        """What `deliver` returns; and a handler that it started, if that is ours to lead."""
        if asked.exchange.may_lead:
            return self.runtime.warm.first_of(deliver)
        return deliver(), None

    async def _carry(
        self,
        asked: Asked,
        begun: HttpSession,
        stream: AnswerStream,
        request_id: RequestId | None = None,
        led: Led | None = None,
    ) -> bool:
        """Carry what is answered; returns whether the client stayed to the end."""
        carrier = self._carrier(asked, begun, stream, partial(_ended, begun, request_id))
        has_stayed = is_answered = False
        try:
            if led is not None:
                await lead(led)
            is_answered = stream.is_ended
            has_stayed = await carried(asked.exchange, carrier, stream, self._patience)
        finally:
            if not is_answered:  # else it has been used just now
                begun.used_at = trio.current_time()
            if not has_stayed:
                begun.channel.left(stream)
        return has_stayed

    async def listen(self, asked: Asked, verdict: Listening, _body: bytes) -> None:
        """Carry what belongs to no request, or what was broken off (HTTP-27, HTTP-41)."""
        begun = self.runtime.sessions.used(verdict.session)
        stream = _listened_to(begun.channel, verdict.last_event_id)
        carrier = self._carrier(asked, begun, stream)
        try:
            await until_gone(asked.exchange, partial(carrier.stream, asked.exchange, stream))
        finally:
            begun.used_at = trio.current_time()
            begun.channel.left(stream)

    async def end(self, asked: Asked, verdict: Ending, _body: bytes) -> None:
        """The client is done with its session (HTTP-53)."""
        begun = self.runtime.sessions.used(verdict.session)
        begun.close()
        self.runtime.sessions.forget(begun)
        await asked.answer(200)

    def _carrier(
        self,
        asked: Asked,
        begun: HttpSession,
        stream: AnswerStream,
        why_unanswered: Callable[[], Refusal | None] = lambda: None,
    ) -> Carrier:
        channel, primes = begun.channel, begun.primes_streams
        return Carrier(
            limits=self.runtime.server.limits,
            headers=[*_named(begun), *asked.headers],
            begin=partial(channel.begin if primes else channel.begin_unseen, stream),
            last_id=partial(channel.last_id, stream) if primes else None,
            wants_stream=self.streams_answers,
            why_unanswered=why_unanswered,
        )

    # Modern requests.

    async def answer(self, asked: Asked, verdict: Stateless, _body: bytes) -> None:
        """Answer a modern message; its client's going away cancels it (MHTTP-22)."""
        self.runtime.renew_modern()
        channel, limits = self.runtime.stateless, self.runtime.server.limits
        if not self.runtime.has_modern:
            raise RefusedError(_lost(getattr(verdict.message, "id", None)))
        if isinstance(verdict.message, Notification):
            channel.notify(verdict.message)
            await asked.answer(202)
            return
        message, principal = verdict.message, asked.head.principal
        narrow = not asked.head.takes_streams
        slot, led = self._delivered(
            asked, lambda: channel.deliver(message, principal, is_narrow=narrow)
        )
        carrier = Carrier(
            limits=limits,
            headers=asked.headers,
            status_of=_bad if verdict.is_incomplete else _status_of,
            why_unanswered=partial(self._why_unanswered, slot.id),
        )
        try:
            if led is not None:
                await lead(led)
            await carried(asked.exchange, carrier, slot.stream, self._patience)
        finally:
            channel.abandon(slot)

    def _why_unanswered(self, request_id: RequestId) -> Refusal:
        return (closing if self.runtime.is_closing else _lost)(request_id)


def begun_session(
    runtime: Runtime, asked: Asked, request_id: RequestId | None = None, *, transport: str = "http"
) -> HttpSession:
    """A session of who asks.

    Raises:
        RefusedError: There is no place for it.
    """
    if runtime.is_closing:
        raise RefusedError(closing(request_id))
    try:
        return runtime.begin_session(asked.head.principal, transport=transport)
    except TooManySessionsError:
        raise RefusedError(too_many_sessions(request_id)) from None


def too_many_sessions(request_id: RequestId | None = None) -> Refusal:
    """The refusal of a session for which there is no place."""
    text = "there are too many sessions (http_sessions_max)"
    return Refusal(status=503, code=SERVER_BUSY, text=text, id=request_id)


def _listened_to(channel: SessionChannel, last_event_id: str | None) -> AnswerStream:
    """The stream that a GET is for; only who names an event takes over what another one carries.

    Raises:
        RefusedError: There is none, or nothing would come on it.
    """
    if not last_event_id:
        if channel.unasked.is_carried:
            text = "this stream is open already, on another connection"
            raise RefusedError(Refusal(status=409, text=text))
        return channel.unasked
    try:
        stream = channel.resumed(last_event_id)
    except LookupError as error:
        raise RefusedError(Refusal(status=400, text=str(error))) from None
    if stream.is_ended and not stream.has_waiting:
        raise RefusedError(_nothing_behind(last_event_id))
    return stream


def _named(begun: HttpSession) -> list[tuple[str, str]]:
    return [(SESSION_ID, begun.id)] if begun.is_negotiated else []


def _ended(begun: HttpSession, request_id: RequestId | None) -> Refusal | None:
    """Why a request was not answered; None: the client has cancelled it.

    No 404: that would say that nothing of it was done, and to try again in a new session.
    """
    if not begun.is_closed:
        return None
    text = "the session was closed before this was answered"
    return Refusal(status=503, code=SERVER_BUSY, text=text, id=request_id)


def closing(request_id: RequestId | None = None) -> Refusal:
    """The refusal of whatever comes too late."""
    return Refusal(status=503, code=SERVER_BUSY, text="the server is closing", id=request_id)


def _lost(request_id: RequestId | None) -> Refusal:
    text = "the session of modern requests was lost, and another one is about to begin"
    return Refusal(status=503, code=SERVER_BUSY, text=text, id=request_id)


def _nothing_behind(event_id: str) -> Refusal:
    """An empty stream would have the TypeScript SDK come back again and again."""
    text = f"the stream of event {event_id!r} has ended: nothing comes behind it"
    return Refusal(status=405, text=text, headers=[("Allow", "POST, DELETE")])


def _status_of(code: int) -> int:
    return STATUS_OF_ERROR.get(code, 200)


def _bad(_code: int) -> int:
    """What was incomplete is a bad request, whatever the error says."""
    return 400


def _undeliverable(error: Exception, request_id: RequestId) -> Refusal:
    if isinstance(error, DuplicateIdError):
        text = f"an unfinished request has the same id: {request_id!r}"
        return Refusal(status=400, text=text, id=request_id)
    text = "too many requests of this session wait for answers (http_streams_max)"
    return Refusal(status=429, code=SERVER_BUSY, text=text, id=request_id)


_EFFECTS: Final[Mapping[type[Any], Callable[..., Awaitable[object]]]] = {
    Refusal: McpEndpoint.refuse,
    Opening: McpEndpoint.open,
    ToSession: McpEndpoint.deliver,
    Listening: McpEndpoint.listen,
    Ending: McpEndpoint.end,
    Stateless: McpEndpoint.answer,
}
