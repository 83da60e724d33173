"""A proxy over HTTP: clients that were given our address, and a server at a URL.

What the two notice of it should be nothing but that address. So

- Every path and method passes, with its head and its body; `Host` becomes the server's, and what
  belongs to one connection stays there. `Accept-Encoding` alone is changed, to `identity`: what a
  server would compress, nobody between could read.
- Statuses and bodies come back as they are, and streams as they come: see `proxied_exchange`.
- What happens to one side happens to the other. A client that goes away takes its request with it;
  an answer that breaks off breaks off; a server that does not answer is a 502 that says so.
- Nothing but messages is recorded: no header but the ids of sessions and events, no credentials,
  nothing of a body that is none of the protocol's.

The gate for `Host` and `Origin` stands before all of it.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import attrs
import httpx
import trio

from mcp_trio._journal.conversation import CANCELLED, protocol_version_of, token_of
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._jsonrpc.messages import (
    Decoder,
    ErrorResponse,
    Message,
    Request,
    Response,
    encode_notification,
)
from mcp_trio._jsonrpc.sse import Event, EventParser
from mcp_trio._protocol.http_headers import (
    EVENT_STREAM,
    JSON,
    OUTER_SPACE,
    Head,
    Headers,
    encoded,
    media_type_of,
)
from mcp_trio._protocol.http_requests import LAST_EVENT_ID, SESSION_ID, Rejection
from mcp_trio._protocol.methods import INITIALIZE
from mcp_trio._protocol.security import HostCheck, host_check_for, is_preflight
from mcp_trio._protocol.websocket import checked_token, has_token
from mcp_trio._proxy.journal import (
    Cause,
    MessageJournal,
    recording_for_sessions,
    start_message_journal,
)
from mcp_trio._proxy.stdio import until_signal
from mcp_trio._recorder.writer import RecordOptions
from mcp_trio._transports.http_client import parsed_url
from mcp_trio._transports.http_client_requests import Link, is_stream, own_client, pieces_of
from mcp_trio._transports.http_response import BodyTooLargeError, Exchange, until_gone
from mcp_trio._transports.http_server import serve_native
from mcp_trio._transports.sockets import netloc
from mcp_trio.errors import SERVER_BUSY
from mcp_trio.limits import DEFAULT_LIMITS, Limits

# --------------------
# Which header fields a proxy passes on.
#
# All of them, in both directions and as they came, but for those that belong to one connection and
# not to what is said over it (RFC 9110, section 7.6.1).


_HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)

# Told anew to the server. What it would compress, nobody between could read.
_REPLACED_IN_REQUESTS: Final = frozenset({"host", "content-length", "expect", "accept-encoding"})
_UNCOMPRESSED: Final = (b"accept-encoding", b"identity")

# Told anew to the client, by the host.
_REPLACED_IN_RESPONSES: Final = frozenset({"content-length", "date"})


def request_headers(head: Head) -> list[tuple[bytes, bytes]]:
    """Those of a client's request; the length, and the server's name, are still to be added."""
    passed = _passed(head.headers.items(), replaced=_REPLACED_IN_REQUESTS)
    written = [(name.encode("ascii"), value.encode("latin-1")) for name, value in passed]
    return [*written, _UNCOMPRESSED]


def response_headers(response: httpx.Response) -> Headers:
    """Those of a server's answer.

    Raises:
        ValueError: One of them cannot stand in a head.
    """
    raw = response.headers.raw
    read = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw]
    passed = _passed(read, replaced=_REPLACED_IN_RESPONSES)
    encoded(passed)
    return passed


def _passed(fields: Iterable[tuple[str, str]], *, replaced: frozenset[str]) -> Headers:
    fields = list(fields)
    said = ",".join(value for name, value in fields if name == "connection")
    named = {name.strip(OUTER_SPACE).lower() for name in said.split(",")}
    dropped = _HOP_BY_HOP | named | replaced
    return [(name, value) for name, value in fields if name not in dropped]


# --------------------
# Which recording the exchanges of an HTTP proxy go to.
#
# Each session has one of its own, from its `initialize` on, by the id that the server gave it. What
# belongs to no session goes to one that all have in common: modern requests, those of a server that
# gives no ids, and those of sessions that began elsewhere. Clients number their requests as they
# like: so one that has an id, or a progress token, of a request that is still open there goes to
# another recording, and in none of them two requests can be taken for each other.


_Name: TypeAlias = tuple[str, int | str]

# How often it is looked whether a session has not been used for too long.
_LOOKS_PER_EXPIRY = 10


@attrs.define(eq=False)
class OpenRecording:
    """One recording while it is written.

    Attributes:
        journal: What is written.
        key: By what its session is known; None as long as it has no id, or if it needs none.
        is_common: Whether it takes what belongs to no session.
        is_over: Whether its session has ended.
        passages: How many exchanges are being recorded in it.
        events: The ids of the events that passed last.
    """

    journal: MessageJournal
    key: str | None = None
    is_common: bool = False
    is_over: bool = False
    exchanges: int = attrs.field(default=0, init=False)
    events: dict[str, None] = attrs.field(factory=dict[str, None], init=False)
    _open: set[_Name] = attrs.field(factory=set[_Name], init=False)
    _used_at: float = attrs.field(factory=trio.current_time, init=False)

    def has_room_for(self, names: Collection[_Name]) -> bool:
        """Whether none of these requests could be taken for one that is open."""
        return self._open.isdisjoint(names)

    @contextmanager
    def holding(self, names: Collection[_Name]) -> Generator[None]:
        """While an exchange with these requests passes."""
        self._open.update(names)
        self.exchanges += 1
        try:
            yield
        finally:
            self._open.difference_update(names)
            self.exchanges -= 1
            self._used_at = trio.current_time()

    def is_idle(self, seconds: float) -> bool:
        """Whether nobody has used it for so long."""
        return not self.exchanges and self._used_at <= trio.current_time() - seconds


@attrs.define(kw_only=True, eq=False)
class OpenRecordings:
    """See the module; `start` begins another recording.

    Of as many sessions as `http_sessions_max` a recording is held open, and of as many recordings
    in common as `http_streams_max`.
    """

    start: Callable[[], MessageJournal]
    limits: Limits
    _sessions: dict[str, OpenRecording] = attrs.field(factory=dict[str, OpenRecording], init=False)
    _common: list[OpenRecording] = attrs.field(factory=list[OpenRecording], init=False)
    _new: set[OpenRecording] = attrs.field(factory=set[OpenRecording], init=False)
    _gives_no_ids: bool = attrs.field(default=False, init=False)

    @contextmanager
    def used(self, key: str | None, messages: Sequence[Message]) -> Generator[OpenRecording]:
        """The recording for an exchange that brings these messages, while it passes.

        Raises:
            RecordingError: It cannot be begun.
        """
        names = _names_of(messages)
        recording = self._found(key, messages, names)
        try:
            with recording.holding(names):
                yield recording
        finally:
            self._close_if_over(recording)

    def knows(self, key: str) -> bool:
        """Whether there is a session of this key."""
        return key in self._sessions

    def _found(
        self, key: str | None, messages: Sequence[Message], names: Collection[_Name]
    ) -> OpenRecording:
        if key is not None and key in self._sessions:
            return self._sessions[key]
        is_opening = any(
            isinstance(each, Request) and each.method == INITIALIZE for each in messages
        )
        has_place = len(self._sessions) + len(self._new) < self.limits.http_sessions_max
        if is_opening and key is None and has_place and not self._gives_no_ids:
            return self._begun()
        return self._in_common(names)

    def _begun(self) -> OpenRecording:
        recording = OpenRecording(self.start())
        self._new.add(recording)
        return recording

    def _in_common(self, names: Collection[_Name]) -> OpenRecording:
        fitting = (each for each in self._common if each.has_room_for(names))
        found = next(fitting, None)
        if found is None and len(self._common) < self.limits.http_streams_max:
            found = OpenRecording(self.start(), is_common=True)
            self._common.append(found)
        return found or self._common[-1]

    # What the server's answers tell.

    def name(self, recording: OpenRecording, key: str) -> OpenRecording:
        """The session that is being opened has this key; returns its recording."""
        if recording not in self._new:  # another stream of it tells so, or it begins in the middle
            recording = self._begun()
        self._new.discard(recording)
        replaced = self._sessions.pop(key, None)
        self._sessions[key] = recording
        recording.key = key
        if replaced is not None:
            self.end(replaced)
        return recording

    def settle(self, recording: OpenRecording) -> None:
        """A handshake has passed: one without an id is followed by requests without one."""
        if recording in self._new and recording.journal.is_negotiated:
            self._new.discard(recording)
            self._gives_no_ids = recording.is_common = True
            self._common.insert(0, recording)

    def end(self, recording: OpenRecording) -> None:
        """The session is over; its recording is, as soon as nothing passes any more."""
        if recording.key is None:
            return
        if self._sessions.get(recording.key) is recording:
            del self._sessions[recording.key]
        recording.is_over = True
        self._close_if_over(recording)

    def _close_if_over(self, recording: OpenRecording) -> None:
        """One that was never named has come to nothing."""
        if not recording.exchanges and (recording.is_over or recording in self._new):
            self._new.discard(recording)
            recording.journal.close()

    # The end.

    async def expire(self) -> None:
        """Ends sessions that nobody has used for `http_session_idle_seconds`."""
        seconds = self.limits.http_session_idle_seconds
        while True:
            await trio.sleep(seconds / _LOOKS_PER_EXPIRY)
            for recording in [*self._sessions.values()]:
                if recording.is_idle(seconds):
                    self.end(recording)

    def shut(self, cause: Cause) -> None:
        """Records why all sessions end."""
        for recording in self._all():
            recording.journal.shut(cause)

    def close(self) -> None:
        """Ends all recordings."""
        for recording in self._all():
            recording.journal.close()

    def _all(self) -> Iterable[OpenRecording]:
        return (*self._sessions.values(), *self._common, *self._new)


def _names_of(messages: Sequence[Message]) -> Collection[_Name]:
    requests = [each for each in messages if isinstance(each, Request)]
    tokens = (token_of(each.params) for each in requests)
    ids: list[_Name] = [("id", each.id) for each in requests]
    return [*ids, *(("token", token) for token in tokens if token is not None)]


# --------------------
# One HTTP exchange on its way through a proxy: the request, and what the server answers.
#
# Bodies pass as they are. Of a stream each piece goes on when it has come, behind the records of
# the events that it completes; any other body is held until it is whole, or `frame_bytes_max` long.
# What is no message of the protocol, or no plain answer to one, leaves a mark `http` that tells no
# content: a status, a media type, what went wrong.


HTTP_MARK: Final = "http"
_GONE: Final = {"gone": True}
_OK: Final = 200
_ACCEPTED: Final = 202
_STATUSES: Final = range(200, 600)
_NOT_FOUND: Final = 404
_BAD_GATEWAY: Final = 502


@attrs.define(kw_only=True, eq=False)
class ProxiedExchange:
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
    recording: OpenRecording
    recordings: OpenRecordings
    link: Link
    limits: Limits
    _open: dict[int | str, Request] = attrs.field(init=False)
    _has_begun: bool = attrs.field(default=False, init=False)
    _own: OpenRecording | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._open = {each.id: each for each in self.messages if isinstance(each, Request)}

    async def run(self) -> None:
        """Passes all of it, unless one of both sides goes away, of which the other is told so."""
        if self.messages:
            self.recording.journal.counts["in_bytes"] += len(self.body)
            self.recording.journal.record("in", self.body, messages=self.messages)
            self.recording.journal.flush()
        try:
            if not await until_gone(self.exchange, self._pass):
                self._note_gone()
        finally:
            if self._own is not None:
                self.recordings.end(self._own)

    def _note_gone(self) -> None:
        """A modern client that goes away has cancelled what it asked for (MHTTP-22)."""
        journal = self.recording.journal
        self._note(error="the client went away")
        for request in self._open.values():
            if protocol_version_of(request.params) is not None:
                params = {"requestId": request.id, "reason": "the client went away"}
                journal.record("in", encode_notification(CANCELLED, params), envelope=_GONE)
        journal.flush()

    # There and back.

    async def _pass(self) -> None:
        try:
            response = await self.link.http.send(self._request(), stream=True)
        except httpx.RequestError as error:
            await self._reject(str(self.link.loss_of(error)))
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

    async def _reject(self, why: str) -> None:
        """Answers instead of the server."""
        request_id = next(iter(self._open), None)
        text = f"the proxy has no answer of its server: {why}"
        rejection = Rejection(status=_BAD_GATEWAY, code=SERVER_BUSY, text=text, id=request_id)
        self._note(status=_BAD_GATEWAY, error=why)
        await self.exchange.answer(_BAD_GATEWAY, [("Content-Type", JSON)], rejection.body())

    async def _pass_answer(self, response: httpx.Response) -> None:
        try:
            fields = self._fields(response)
        except ValueError as error:
            await self._reject(f"{self.link.name} answered what cannot be passed on: {error}")
            return
        self._follow_session(response)
        try:
            passing = self._pass_stream if is_stream(response) else self._pass_body
            await passing(response, fields)
        except httpx.RequestError as error:
            await self._break_off(str(self.link.loss_of(error)))

    def _fields(self, response: httpx.Response) -> Headers:
        """Those of the answer that its client gets; a `ValueError` if there is no such answer."""
        if response.status_code not in _STATUSES:
            raise ValueError(f"HTTP {response.status_code}")
        fields = response_headers(response)
        return [(name, self._own_location(name, value)) for name, value in fields]

    def _own_location(self, name: str, value: str) -> str:
        """Where the server sends a client to itself, that is to us."""
        url = self.link.same_origin(value) if name == "location" else None
        return value if url is None else url.raw_path.decode()

    async def _break_off(self, why: str) -> None:
        """Half an answer without its end shows the client that it is none."""
        if self._has_begun:
            self._note(error=why)
        else:
            await self._reject(why)

    def _follow_session(self, response: httpx.Response) -> None:
        """What the head of an answer tells of sessions."""
        head, session_id = self.exchange.head, response.headers.get(SESSION_ID)
        is_over = response.status_code == _NOT_FOUND or (
            head.method == "DELETE" and response.is_success
        )
        if head.header(SESSION_ID) is not None:
            if is_over:
                self.recordings.end(self.recording)
        elif session_id is not None and response.is_success and self._is_opening():
            self.recording = self.recordings.name(self.recording, session_id)

    def _is_opening(self) -> bool:
        return any(request.method == INITIALIZE for request in self._open.values())

    def _note(self, **facts: Any) -> None:
        self.recording.journal.mark(HTTP_MARK, {"method": self.exchange.head.method, **facts})
        self.recording.journal.flush()

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
            self._record_body(response, bytes(held))
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
            self.recording.journal.record_part("out", part, envelope={"part": number})
            self.recording.journal.flush()
        await self.exchange.send(part)

    def _record_body(self, response: httpx.Response, body: bytes) -> None:
        method, status = self.exchange.head.method, response.status_code
        is_message = bool(body) and self._may_be_message(response)
        if is_message:
            self._record_message(body)
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
                await self.exchange.send(self._record_events(events, piece))
        await self.exchange.end()

    def _record_events(self, events: Sequence[Event | Oversized], piece: bytes) -> bytes:
        """Records events; returns the piece of the stream as the client has to get it."""
        for event in events:
            if isinstance(event, Event) and event.name == "endpoint" and self._own is None:
                piece = self._begin_sse_session(event, piece)
            elif self.is_endpoint or self._own is not None:
                self._record_event(event)
        self.recording.journal.flush()
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

    def _record_event(self, event: Event | Oversized) -> None:
        if isinstance(event, Oversized):
            self.recording.journal.record_oversized("out", event)
        elif event.data and event.name == "message" and not self._is_repeated(event):
            self._record_message(event.data)

    def _is_repeated(self, event: Event) -> bool:
        """Whether a client that came back is given what had passed already."""
        if event.id is None:
            return False
        is_resumed = self.exchange.head.header(LAST_EVENT_ID) is not None
        if is_resumed and event.id in self.recording.events:
            self._note(repeated=event.id)
            return True
        self.recording.events[event.id] = None
        if len(self.recording.events) > self.limits.http_events_kept_max:
            del self.recording.events[next(iter(self.recording.events))]
        return False

    def _begin_sse_session(self, event: Event, piece: bytes) -> bytes:
        """A session of 2024-11-05, which lives as long as its stream; posts name it by their URL.

        A URL of the server's would lead the client past us.
        """
        url = self.link.same_origin(event.data.decode(errors="replace"))
        if url is None:
            return piece
        self._own = self.recording = self.recordings.name(self.recording, url.raw_path.decode())
        if not event.data.startswith(b"http"):
            return piece
        return piece.replace(event.data, url.raw_path, 1)

    def _record_message(self, frame: bytes) -> None:
        """Records a message of the server's; its bytes may be sent on then."""
        self.recording.journal.counts["out_bytes"] += len(frame)
        for message in self.recording.journal.record("out", frame):
            if isinstance(message, Response | ErrorResponse) and message.id is not None:
                self._open.pop(message.id, None)
        self.recordings.settle(self.recording)
        self.recording.journal.flush()


def _type_of(response: httpx.Response) -> str:
    return media_type_of(response.headers.get("content-type"))


def _is_plain(response: httpx.Response) -> bool:
    """Whether it can be read: the server was asked for what is not compressed."""
    return response.headers.get("content-encoding") in (None, "identity")


TRANSPORT: Final = "http"
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


@attrs.frozen(kw_only=True)
class ListenOptions:
    """Where a proxy listens, and who may come there; see `host_check_for`.

    Attributes:
        host: The name or number of an interface.
        port: 0 for any that is free.
        path: Where its endpoint is; None: where the server's is, if that is at a URL.
        hosts: Names under which clients may reach it, beside those that it is bound to.
        origins: Pages of these origins may use it, beside its own.
        allows_cors: Browsers are told that they may read what is answered; where the server behind
            is at a URL of HTTP, it is the one that says so, or not.
        token: Who brings it may come; None: all may.
    """

    host: str = "127.0.0.1"
    port: int = 0
    path: str | None = None
    hosts: Collection[str] | None = None
    origins: Collection[str] | None = None
    allows_cors: bool = False
    token: str | None = attrs.field(default=None, repr=False)


@attrs.define(kw_only=True, eq=False)
class HttpProxy:
    """The application that a host serves; its `respond` passes one exchange.

    Attributes:
        link: The server.
        gate: Who may come at all.
        journals: What is recorded.
        limits: How large a body may be.
        path: What stands for the path of the server's endpoint; None: that path.
        token: What clients have to bring, and the server does not get; None: they need none.
    """

    link: Link
    host_check: HostCheck
    recordings: OpenRecordings
    limits: Limits
    path: str | None = None
    token: str | None = attrs.field(default=None, repr=False)
    _decoder: Decoder = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._decoder = Decoder(json_depth_max=self.limits.json_depth_max)

    async def respond(self, exchange: Exchange) -> None:
        """Pass one exchange, unless the gate refuses it or its body is too large."""
        bytes_max = self.limits.frame_bytes_max
        with suppress(trio.BrokenResourceError):
            rejection = self.host_check.rejection(exchange.head) or self._check_token(exchange.head)
            if rejection is None:
                try:
                    body = await exchange.body(bytes_max)
                except BodyTooLargeError:
                    text = f"the body is larger than frame_bytes_max ({bytes_max})"
                    rejection = Rejection(status=413, text=text)
                else:
                    await self._pass(exchange, body)
                    return
            await self._reject(exchange, rejection)

    def _check_token(self, head: Head) -> Rejection | None:
        # A browser asks by OPTIONS what a page may send, and brings nothing with that.
        if self.token is None or is_preflight(head) or has_token(head, self.token):
            return None
        headers = [("WWW-Authenticate", "Bearer")]
        return Rejection(status=401, text="it is not known who sends this (token)", headers=headers)

    async def _reject(self, exchange: Exchange, rejection: Rejection) -> None:
        with self.recordings.used(None, ()) as recording:
            facts = {"method": exchange.head.method, "status": rejection.status}
            recording.journal.mark(HTTP_MARK, facts | {"error": rejection.text})
            recording.journal.flush()
            headers = [("Content-Type", JSON), *rejection.headers]
            await exchange.answer(rejection.status, headers, rejection.body())

    async def _pass(self, exchange: Exchange, body: bytes) -> None:
        head, target = exchange.head, self._target(exchange.head)
        is_sse_session = self.recordings.knows(target)
        path = target.partition("?")[0]
        is_endpoint = is_sse_session or path.rstrip("/") == self.link.url.path.rstrip("/")
        messages = self._decoder.messages(body) if is_endpoint and body else ()
        with self.recordings.used(
            target if is_sse_session else head.header(SESSION_ID), messages
        ) as recording:
            proxied_exchange = ProxiedExchange(
                exchange=exchange,
                target=target,
                fields=self._fields(head),
                body=body,
                messages=messages,
                is_endpoint=is_endpoint,
                recording=recording,
                recordings=self.recordings,
                link=self.link,
                limits=self.limits,
            )
            await proxied_exchange.run()

    def _target(self, head: Head) -> str:
        """What of the server's is asked for."""
        if self.path is None or head.path.rstrip("/") != self.path.rstrip("/"):
            return f"{head.path}?{head.query}" if head.query else head.path
        own, _, query = self.link.url.raw_path.decode("ascii").partition("?")
        queries = "&".join(filter(None, (query, head.query)))
        return f"{own}?{queries}" if queries else own

    def _fields(self, head: Head) -> list[tuple[bytes, bytes]]:
        """What goes along: what the client sends, and what we were given for the server."""
        own = encoded([*self.link.headers.items()])
        replaced = {name for name, _ in own}
        if self.token is not None:
            replaced.add(b"authorization")
        return [*(each for each in request_headers(head) if each[0] not in replaced), *own]


async def serve_http_proxy(
    place: ListenOptions,
    link: Link,
    recordings: OpenRecordings,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; reports the URL that stands for the server's.

    Raises:
        OSError: The address cannot be bound.
        ValueError: The gate's settings are none.
    """
    listeners = await trio.open_tcp_listeners(place.port, host=place.host)
    try:
        bound = [listener.socket.getsockname()[:2] for listener in listeners]
        host_check = host_check_for(
            bound, hosts=place.hosts, origins=place.origins, allows_cors=True
        )
        proxy = HttpProxy(
            link=link,
            host_check=host_check,
            recordings=recordings,
            limits=link.limits,
            path=place.path,
            token=None if place.token is None else checked_token(place.token),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recordings.expire)
            serve = partial(serve_native, proxy.respond, listeners, limits=link.limits)
            await nursery.start(serve)
            path = link.url.raw_path.decode() if place.path is None else place.path
            task_status.started(f"http://{netloc(place.host, bound[0][1])}{path}")
    finally:
        recordings.close()
        for listener in listeners:
            listener.socket.close()  # no checkpoint, which would hide what is being raised


def run_http_proxy(
    place: ListenOptions,
    url: str,
    *,
    record: RecordOptions | None,
    report_url: Callable[[str], None],
    headers: Mapping[str, str] = NO_HEADERS,
    limits: Limits = DEFAULT_LIMITS,
) -> int:
    """Record what clients of ours and the server at `url` say, until a signal comes.

    `headers` go along with each request, in the place of those that clients send. A folder gets a
    file for each session, a file takes all of them. `report_url` is called with the URL that stands for
    the server's.

    Returns:
        The exit status: 128 plus the number of the signal.

    Raises:
        RecordingError: The file holds something already.
        OSError: The address cannot be bound.
        ValueError: The gate's settings are none, or `url` is no URL of HTTP.
    """
    parsed = parsed_url(url)
    return trio.run(_run, place, parsed, record, report_url, headers, limits)


async def _run(
    place: ListenOptions,
    url: httpx.URL,
    record: RecordOptions | None,
    report_url: Callable[[str], None],
    headers: Mapping[str, str],
    limits: Limits,
) -> int:
    link = Link(http=own_client(url), url=url, headers=headers, limits=limits)
    async with link.http:
        with recording_for_sessions(record) as recording:
            start = partial(start_message_journal, recording, transport=TRANSPORT, name=url.host)
            recordings = OpenRecordings(start=partial(start, limits=limits), limits=limits)

            async def serve() -> int:
                async with trio.open_nursery() as nursery:
                    report_url(await nursery.start(serve_http_proxy, place, link, recordings))
                return 0

            return await until_signal(serve, shut=partial(recordings.shut, "signal"))
