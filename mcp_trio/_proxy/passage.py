"""One HTTP exchange on its way through a proxy: the request, and what the server answers.

Bodies pass as they are. Of a stream each piece goes on when it has come, behind the records of the
events that it completes; any other body is held until it is whole, or `frame_bytes_max` long. What
is no message of the protocol, or no plain answer to one, leaves a mark `http` that tells no
content: a status, a media type, what went wrong.
"""

from collections.abc import Sequence
from typing import Any, Final

import attrs
import httpx

from mcp_trio._errors import SERVER_BUSY
from mcp_trio._journal.conversation import CANCELLED, revision_of
from mcp_trio._limits import Limits
from mcp_trio._protocol.http.heads import EVENT_STREAM, JSON, Headers, media_type_of
from mcp_trio._protocol.http.verdicts import LAST_EVENT_ID, SESSION_ID, Refusal
from mcp_trio._protocol.methods import INITIALIZE
from mcp_trio._proxy.http_fields import fields_to_client
from mcp_trio._proxy.http_journals import Journals, Kept
from mcp_trio._transports.http.carrying import until_gone
from mcp_trio._transports.http.client_link import Link, is_stream, pieces_of
from mcp_trio._transports.http.exchange import Exchange
from mcp_trio._wire import ErrorResponse, Message, Oversized, Request, Response, encode_notification
from mcp_trio._wire.event_stream import Event, EventParser

HTTP_MARK: Final = "http"
_GONE: Final = {"gone": True}
_OK: Final = 200
_ACCEPTED: Final = 202
_STATUSES: Final = range(200, 600)
_NOT_FOUND: Final = 404
_BAD_GATEWAY: Final = 502


@attrs.define(kw_only=True, eq=False)
class Passage:
    """One exchange, from its body on.

    Attributes:
        exchange: The client's.
        target: What of the server's it asks for.
        fields: The header fields that go along.
        body: What it sent.
        messages: What that is, if it is for us to read.
        is_endpoint: Whether what is said here is of the protocol.
        kept: Where the exchange is recorded.
        journals: Who has to know of sessions that begin and end.
        link: The server.
        limits: How much is held.
    """

    exchange: Exchange
    target: str
    fields: Sequence[tuple[bytes, bytes]]
    body: bytes
    messages: Sequence[Message]
    is_endpoint: bool
    kept: Kept
    journals: Journals
    link: Link
    limits: Limits
    _open: dict[int | str, Request] = attrs.field(init=False)
    _has_begun: bool = attrs.field(default=False, init=False)
    _own: Kept | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._open = {each.id: each for each in self.messages if isinstance(each, Request)}

    async def run(self) -> None:
        """Passes all of it, unless one of both sides goes away, of which the other is told so."""
        if self.messages:
            self.kept.journal.counts["in_bytes"] += len(self.body)
            self.kept.journal.passes("in", self.body, messages=self.messages)
            self.kept.journal.flush()
        try:
            if not await until_gone(self.exchange, self._pass):
                self._note_gone()
        finally:
            if self._own is not None:
                self.journals.end(self._own)

    def _note_gone(self) -> None:
        """A modern client that goes away has cancelled what it asked for (MHTTP-22)."""
        journal = self.kept.journal
        self._note(error="the client went away")
        for request in self._open.values():
            if revision_of(request.params) is not None:
                params = {"requestId": request.id, "reason": "the client went away"}
                journal.passes("in", encode_notification(CANCELLED, params), envelope=_GONE)
        journal.flush()

    # There and back.

    async def _pass(self) -> None:
        try:
            response = await self.link.http.send(self._request(), stream=True)
        except httpx.RequestError as error:
            await self._refuse(str(self.link.loss_of(error)))
            return
        try:
            await self._pass_answer(response)
        finally:
            await response.aclose()

    def _request(self) -> httpx.Request:
        head = self.exchange.head
        given = self.link.http.timeout
        timeout = httpx.Timeout(
            None, connect=given.connect, pool=given.pool, write=self.limits.write_stall_seconds
        )
        return httpx.Request(
            head.method,
            self.link.url.copy_with(raw_path=self.target.encode("ascii")),
            headers=[*self.fields],
            content=self.body or None,
            extensions={"timeout": timeout.as_dict()},
        )

    async def _refuse(self, why: str) -> None:
        """Answers instead of the server."""
        request_id = next(iter(self._open), None)
        text = f"the proxy has no answer of its server: {why}"
        refusal = Refusal(status=_BAD_GATEWAY, code=SERVER_BUSY, text=text, id=request_id)
        self._note(status=_BAD_GATEWAY, error=why)
        await self.exchange.answer(_BAD_GATEWAY, [("Content-Type", JSON)], refusal.body())

    async def _pass_answer(self, response: httpx.Response) -> None:
        try:
            fields = self._fields(response)
        except ValueError as error:
            await self._refuse(f"{self.link.name} answered what cannot be passed on: {error}")
            return
        self._learn(response)
        try:
            passing = self._pass_stream if is_stream(response) else self._pass_body
            await passing(response, fields)
        except httpx.RequestError as error:
            await self._break_off(str(self.link.loss_of(error)))

    def _fields(self, response: httpx.Response) -> Headers:
        """Those of the answer that its client gets; a `ValueError` if there is no such answer."""
        if response.status_code not in _STATUSES:
            raise ValueError(f"HTTP {response.status_code}")
        fields = fields_to_client(response)
        return [(name, self._as_ours(name, value)) for name, value in fields]

    def _as_ours(self, name: str, value: str) -> str:
        """Where the server sends a client to itself, that is to us."""
        url = self.link.same_origin(value) if name == "location" else None
        return value if url is None else url.raw_path.decode()

    async def _break_off(self, why: str) -> None:
        """Half an answer without its end shows the client that it is none."""
        if self._has_begun:
            self._note(error=why)
        else:
            await self._refuse(why)

    def _learn(self, response: httpx.Response) -> None:
        """What the head of an answer tells of sessions."""
        head, session_id = self.exchange.head, response.headers.get(SESSION_ID)
        is_over = response.status_code == _NOT_FOUND or (
            head.method == "DELETE" and response.is_success
        )
        if head.header(SESSION_ID) is not None:
            if is_over:
                self.journals.end(self.kept)
        elif session_id is not None and response.is_success and self._is_opening():
            self.kept = self.journals.name(self.kept, session_id)

    def _is_opening(self) -> bool:
        return any(request.method == INITIALIZE for request in self._open.values())

    def _note(self, **facts: Any) -> None:
        self.kept.journal.mark(HTTP_MARK, {"method": self.exchange.head.method, **facts})
        self.kept.journal.flush()

    # Whole bodies.

    async def _pass_body(self, response: httpx.Response, fields: Headers) -> None:
        held = bytearray()
        parts = 0
        async with pieces_of(response, is_raw=True) as pieces:
            async for piece in pieces:
                held += piece
                if len(held) > self.limits.frame_bytes_max:
                    parts += 1
                    await self._pass_part(response, fields, bytes(held), parts)
                    held.clear()
        if parts:
            await self._pass_part(response, fields, bytes(held), parts + 1)
            await self.exchange.end()
        else:
            self._tell_body(response, bytes(held))
            await self.exchange.answer(response.status_code, fields, bytes(held))

    async def _pass_part(
        self,
        response: httpx.Response,
        fields: Headers,
        part: bytes,
        number: int,
    ) -> None:
        """Something too large to be held is passed, and recorded, in parts."""
        if not self._has_begun:
            self._has_begun = True
            self._note(status=response.status_code, type=_type_of(response))
            await self.exchange.start(response.status_code, fields)
        if self._may_be_message(response):
            self.kept.journal.passes_part("out", part, envelope={"part": number})
            self.kept.journal.flush()
        await self.exchange.send(part)

    def _tell_body(self, response: httpx.Response, body: bytes) -> None:
        method, status = self.exchange.head.method, response.status_code
        is_message = bool(body) and self._may_be_message(response)
        if is_message:
            self._tell(body)
        is_usual = bool(self.messages) and (status == _ACCEPTED or (status == _OK and is_message))
        if method != "POST" or not is_usual:
            facts = {} if not body or is_message else {"type": _type_of(response)}
            self._note(status=status, **facts)

    def _may_be_message(self, response: httpx.Response) -> bool:
        return bool(self.messages) and _type_of(response) == JSON and _is_plain(response)

    # Streams.

    async def _pass_stream(self, response: httpx.Response, fields: Headers) -> None:
        self._note_stream(response)
        parser = EventParser(event_bytes_max=self.limits.frame_bytes_max)
        is_plain = _is_plain(response)
        self._has_begun = True
        await self.exchange.start(response.status_code, fields)
        async with pieces_of(response, is_raw=True) as pieces:
            async for piece in pieces:
                events = parser.feed(piece) if is_plain else ()
                await self.exchange.send(self._heard(events, piece))
        await self.exchange.end()

    def _heard(self, events: Sequence[Event | Oversized], piece: bytes) -> bytes:
        """Records events; returns the piece of the stream as the client has to get it."""
        for event in events:
            if isinstance(event, Event) and event.name == "endpoint" and self._own is None:
                piece = self._begin_old(event, piece)
            elif self.is_endpoint or self._own is not None:
                self._hear(event)
        self.kept.journal.flush()
        return piece

    def _note_stream(self, response: httpx.Response) -> None:
        """One that answers a request needs no word."""
        head = self.exchange.head
        last_id = head.header(LAST_EVENT_ID)
        facts = {} if last_id is None else {"last_event_id": last_id}
        if not _is_plain(response):
            facts["type"] = f"{EVENT_STREAM}, {response.headers['content-encoding']}"
        if facts or head.method != "POST":
            self._note(status=response.status_code, **facts)

    def _hear(self, event: Event | Oversized) -> None:
        if isinstance(event, Oversized):
            self.kept.journal.discards("out", event)
        elif event.data and event.name == "message" and not self._is_repeated(event):
            self._tell(event.data)

    def _is_repeated(self, event: Event) -> bool:
        """Whether a client that came back is given what had passed already."""
        if event.id is None:
            return False
        is_resumed = self.exchange.head.header(LAST_EVENT_ID) is not None
        if is_resumed and event.id in self.kept.events:
            self._note(repeated=event.id)
            return True
        self.kept.events[event.id] = None
        if len(self.kept.events) > self.limits.http_events_kept_max:
            del self.kept.events[next(iter(self.kept.events))]
        return False

    def _begin_old(self, event: Event, piece: bytes) -> bytes:
        """A session of 2024-11-05, which lives as long as its stream; posts name it by their URL.

        A URL of the server's would lead the client past us.
        """
        url = self.link.same_origin(event.data.decode(errors="replace"))
        if url is None:
            return piece
        self._own = self.kept = self.journals.name(self.kept, url.raw_path.decode())
        if not event.data.startswith(b"http"):
            return piece
        return piece.replace(event.data, url.raw_path, 1)

    def _tell(self, frame: bytes) -> None:
        """Records a message of the server's; its bytes may be sent on then."""
        self.kept.journal.counts["out_bytes"] += len(frame)
        for message in self.kept.journal.passes("out", frame):
            if isinstance(message, Response | ErrorResponse) and message.id is not None:
                self._open.pop(message.id, None)
        self.journals.settle(self.kept)
        self.kept.journal.flush()


def _type_of(response: httpx.Response) -> str:
    return media_type_of(response.headers.get("content-type"))


def _is_plain(response: httpx.Response) -> bool:
    """Whether it can be read: the server was asked for what is not compressed."""
    return response.headers.get("content-encoding") in (None, "identity")
