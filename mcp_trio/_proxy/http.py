"""A transparent proxy over HTTP, between clients and a server at a URL.

Clients and server should not be able to notice the proxy, except for its address:

- Requests of every path and method are forwarded with their headers and body. `Host` becomes the
  server's, and hop-by-hop headers are not forwarded. `Accept-Encoding` becomes `identity`, since
  the proxy could not read compressed responses.
- Statuses and bodies are forwarded unchanged. Each piece of a stream is forwarded when it arrives,
  after the records of the events that it completes; only the pieces of the first event wait for
  one another where it may be an `endpoint` (2024-11-05), whose URL becomes one of the proxy. Other
  bodies are buffered until they are complete, or `limits.messages.bytes_max` long.
- When a client disconnects, its request to the server is cancelled. When a response breaks off, the
  response to the client breaks off. If the server does not respond, the client gets a 502.
- Only messages are recorded: no headers except the ids of sessions and events, no credentials, and
  no bodies that are not MCP. A POST of messages gets no other record if its response is a message,
  a stream of messages or a 202. Any other exchange gets a mark `http`, with its method and its
  status, media type or error, but not its content.

Each session has a recording of its own, from its `initialize` on; the session id that the server
chose identifies it. All other exchanges go to common recordings: stateless requests, those of a
server that gives no session ids, and those of sessions that began before the proxy. Clients choose
request ids freely, so a request whose id or progress token is already in flight in one common
recording goes to another one; no two requests in one recording can be confused.

The check of `Host` and `Origin` comes before all of this.
"""

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import attrs
import httpx2
import trio

from mcp_trio._journal.conversation import CANCELLED, progress_token_of, protocol_version_of
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._jsonrpc.messages import (
    Decoder,
    ErrorResponse,
    Message,
    Request,
    Response,
    decoder_for,
    encode_notification,
)
from mcp_trio._jsonrpc.sse import Event, EventParser
from mcp_trio._protocol.http_headers import (
    EVENT_STREAM,
    JSON,
    OUTER_SPACE,
    Headers,
    HttpRequest,
    encoded_headers,
    media_type_of,
)
from mcp_trio._protocol.http_requests import LAST_EVENT_ID, SESSION_ID, Rejection
from mcp_trio._protocol.methods import INITIALIZE
from mcp_trio._protocol.security import HostCheck, host_check_for
from mcp_trio._protocol.websocket import checked_token, has_token
from mcp_trio._proxy.journal import (
    Cause,
    MakeSpans,
    MessageJournal,
    recording_for_sessions,
    start_message_journal,
)
from mcp_trio._proxy.stdio import until_signal
from mcp_trio._recorder.options import RecordOptions
from mcp_trio._transports.http_client_requests import (
    EndpointClient,
    body_pieces,
    client_for,
    content_encoding,
    is_event_stream,
    parsed_url,
)
from mcp_trio._transports.http_response import BodyTooLargeError, Exchange, run_while_connected
from mcp_trio._transports.http_server import serve_native
from mcp_trio._transports.sockets import netloc, open_tcp_listeners
from mcp_trio.errors import SERVER_BUSY, RecordingError
from mcp_trio.limits import DEFAULT_LIMITS, Limits

logger = logging.getLogger("mcp_trio")

# Headers.


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

# The request headers that the proxy sets itself.
_REPLACED_IN_REQUESTS: Final = frozenset({"host", "content-length", "expect", "accept-encoding"})
_UNCOMPRESSED: Final = (b"accept-encoding", b"identity")

# The response headers that the HTTP listener sets itself.
_REPLACED_IN_RESPONSES: Final = frozenset({"content-length", "date"})


def _forwarded(headers: Iterable[tuple[str, str]], *, replaced: frozenset[str]) -> Headers:
    """Return the headers to forward: without hop-by-hop headers, and those that are replaced."""
    headers = list(headers)
    options = ",".join(value for name, value in headers if name == "connection")
    named = {name.strip(OUTER_SPACE).lower() for name in options.split(",")}
    dropped = _HOP_BY_HOP | named | replaced
    return [(name, value) for name, value in headers if name not in dropped]


# Recordings.


_IdOrToken: TypeAlias = tuple[str, int | str]
"""The id of a request, or its progress token, after the word "id" or "token"."""

# How often sessions are checked for expiry within `limits.http.session_idle_seconds`.
_CHECKS_PER_EXPIRY = 10


@attrs.define(eq=False, repr=False)
class OpenRecording:
    """A recording that is being written.

    Attributes:
        is_common: Whether it takes exchanges that belong to no session.
        key: The session id, or the URL of a session of 2024-11-05; None before there is one, and
            for a common recording.
        is_over: Whether its session has ended.
        exchanges: The number of exchanges in progress.
        events: The ids of the latest events.
        ids: The ids and progress tokens of the requests that are in flight.
        used_at: The time at which the last exchange ended.
    """

    journal: MessageJournal
    is_common: bool = False
    key: str | None = attrs.field(default=None, init=False)
    is_over: bool = attrs.field(default=False, init=False)
    exchanges: int = attrs.field(default=0, init=False)
    events: dict[str, None] = attrs.field(factory=dict[str, None], init=False)
    ids: set[_IdOrToken] = attrs.field(factory=set[_IdOrToken], init=False)
    used_at: float = attrs.field(factory=trio.current_time, init=False)


@attrs.define(kw_only=True, eq=False, repr=False)
class OpenRecordings:
    """The recordings of a proxy's exchanges; `start_journal` begins another one.

    At most `limits.http.sessions_max` recordings of sessions are open at a time, and at most
    `limits.http.streams_max` common recordings.
    """

    start_journal: Callable[[], MessageJournal]
    limits: Limits
    _sessions: dict[str, OpenRecording] = attrs.field(factory=dict[str, OpenRecording], init=False)
    _common: list[OpenRecording] = attrs.field(factory=list[OpenRecording], init=False)
    _new: set[OpenRecording] = attrs.field(factory=set[OpenRecording], init=False)
    _server_gives_no_ids: bool = attrs.field(default=False, init=False)

    @contextmanager
    def for_exchange(
        self, key: str | None, messages: Sequence[Message]
    ) -> Generator[OpenRecording]:
        """Yield the recording for an exchange with these messages; the block is its duration.

        Raises:
            RecordingError: A new recording cannot be created.
        """
        requests = [each for each in messages if isinstance(each, Request)]
        tokens = (progress_token_of(each.params) for each in requests)
        ids: list[_IdOrToken] = [("id", each.id) for each in requests]
        ids += (("token", token) for token in tokens if token is not None)
        recording = self._recording_for(key, messages, ids)
        recording.ids.update(ids)
        recording.exchanges += 1
        try:
            yield recording
        finally:
            recording.ids.difference_update(ids)
            recording.exchanges -= 1
            recording.used_at = trio.current_time()
            self._close_if_over(recording)

    def has_session(self, key: str) -> bool:
        """Return whether a session with this key is open."""
        return key in self._sessions

    def _recording_for(
        self, key: str | None, messages: Sequence[Message], ids: Collection[_IdOrToken]
    ) -> OpenRecording:
        if key is not None and key in self._sessions:
            return self._sessions[key]
        is_opening = any(
            isinstance(each, Request) and each.method == INITIALIZE for each in messages
        )
        has_room = len(self._sessions) + len(self._new) < self.limits.http.sessions_max
        if is_opening and key is None and has_room and not self._server_gives_no_ids:
            return self._begin()
        found = next((each for each in self._common if each.ids.isdisjoint(ids)), None)
        if found is not None and not found.exchanges:
            found.journal.renew_if_due()
        if found is None and len(self._common) < self.limits.http.streams_max:
            found = OpenRecording(self.start_journal(), is_common=True)
            self._common.append(found)
        return found or self._common[-1]

    def _begin(self) -> OpenRecording:
        recording = OpenRecording(self.start_journal())
        self._new.add(recording)
        return recording

    def set_key(self, recording: OpenRecording, key: str) -> OpenRecording:
        """Give a new session its key; return the recording of that session."""
        if recording not in self._new:  # the exchange went to a common recording, or has its own
            recording = self._begin()
        self._new.discard(recording)
        replaced = self._sessions.pop(key, None)
        self._sessions[key] = recording
        recording.key = key
        if replaced is not None:
            self.end(replaced)
        return recording

    def make_common_if_without_id(self, recording: OpenRecording) -> None:
        """After a handshake without a session id, make the recording a common one.

        The requests that follow have no session id either.
        """
        if recording in self._new and recording.journal.is_negotiated:
            self._new.discard(recording)
            self._server_gives_no_ids = recording.is_common = True
            self._common.insert(0, recording)

    def end(self, recording: OpenRecording) -> None:
        """End a session; its recording closes when its last exchange is over."""
        if recording.key is None:
            return
        if self._sessions.get(recording.key) is recording:
            del self._sessions[recording.key]
        recording.is_over = True
        self._close_if_over(recording)

    def _close_if_over(self, recording: OpenRecording) -> None:
        """Close a recording without exchanges if its session is over, or never got a key."""
        if not recording.exchanges and (recording.is_over or recording in self._new):
            self._new.discard(recording)
            recording.journal.close()

    async def expire(self) -> None:
        """End sessions that are idle for `limits.http.session_idle_seconds`, until cancelled."""
        seconds = self.limits.http.session_idle_seconds
        while True:
            await trio.sleep(seconds / _CHECKS_PER_EXPIRY)
            for recording in [*self._sessions.values()]:
                if not recording.exchanges and recording.used_at <= trio.current_time() - seconds:
                    self.end(recording)

    def record_cause(self, cause: Cause) -> None:
        """Record why all sessions close; only the first call counts."""
        for recording in self._all():
            recording.journal.record_cause(cause)

    def close(self) -> None:
        """Close all recordings."""
        for recording in self._all():
            recording.journal.close()

    def _all(self) -> Iterable[OpenRecording]:
        return (*self._sessions.values(), *self._common, *self._new)


# Exchanges.


HTTP_MARK: Final = "http"
_GONE: Final = {"gone": True}
# What ends an event or a comment of a stream.
_EMPTY_LINES: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
_FINAL_STATUSES: Final = range(200, 600)


@attrs.define(kw_only=True, eq=False, repr=False)
class ProxiedExchange:
    """One exchange that is forwarded, after its request body was received.

    Attributes:
        url: The URL at the server.
        headers: The headers to forward.
        messages: The messages in the body, if the URL is that of the MCP endpoint.
        is_endpoint: Whether the URL is that of the MCP endpoint.
        recordings: All recordings, which have to know when sessions begin and end.
    """

    exchange: Exchange
    url: httpx2.URL
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
    messages: Sequence[Message]
    is_endpoint: bool
    recording: OpenRecording
    recordings: OpenRecordings
    endpoint_client: EndpointClient
    _unanswered: dict[int | str, Request] = attrs.field(init=False)
    _response_has_begun: bool = attrs.field(default=False, init=False)
    # The server has accepted the messages alone, or the client may resume the stream.
    _is_answered_elsewhere: bool = attrs.field(default=False, init=False)
    _sse_session: OpenRecording | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._unanswered = {each.id: each for each in self.messages if isinstance(each, Request)}

    async def run(self) -> None:
        """Forward the request and its response, until one of both sides disconnects."""
        if self.messages:
            self.recording.journal.counts["in_bytes"] += len(self.body)
            self.body = self.recording.journal.record_received(self.body, self.messages)
        try:
            if not await run_while_connected(self.exchange, self._forward):
                # A client that disconnects cancels its stateless requests.
                journal = self.recording.journal
                self._mark(error="the client went away")
                for request in self._unanswered.values():
                    if protocol_version_of(request.params) is not None:
                        params = {"requestId": request.id, "reason": "the client went away"}
                        journal.record("in", encode_notification(CANCELLED, params), envelope=_GONE)
                journal.flush()
        finally:
            # Only in a session, the response may still come on another stream.
            if self.recording.key is None or not self._is_answered_elsewhere:
                self._give_up(None)
            if self._sse_session is not None:
                self.recordings.end(self._sse_session)

    async def _forward(self) -> None:
        given = self.endpoint_client.http.timeout
        timeout = httpx2.Timeout(
            None,
            connect=given.connect,
            pool=given.pool,
            write=self.endpoint_client.limits.messages.write_stall_seconds,
        )
        request = httpx2.Request(
            self.exchange.request.method,
            self.url,
            headers=[*self.headers],
            content=self.body or None,
            extensions={"timeout": timeout.as_dict()},
        )
        try:
            response = await self.endpoint_client.http.send(request, stream=True)
        except httpx2.RequestError as error:
            await self._reject(str(self.endpoint_client.loss_from(error)))
            return
        try:
            await self._forward_response(response)
        finally:
            await response.aclose()

    async def _reject(self, reason: str) -> None:
        """Send the client a 502, which the proxy makes itself."""
        request_id = next(iter(self._unanswered), None)
        text = f"the proxy got no response from the server: {reason}"
        status = HTTPStatus.BAD_GATEWAY
        rejection = Rejection(status=status, code=SERVER_BUSY, text=text, id=request_id)
        self._give_up(reason)
        self._mark(status=status, error=reason)
        await self.exchange.answer(status, [("Content-Type", JSON)], rejection.body())

    async def _forward_response(self, response: httpx2.Response) -> None:
        try:
            headers = self._headers_for_client(response)
        except ValueError as error:
            await self._reject(
                f"{self.endpoint_client.name} sent a response that is not valid HTTP: {error}"
            )
            return

        # The headers begin or end a session.
        request, session_id = self.exchange.request, response.headers.get(SESSION_ID)
        if request.header(SESSION_ID) is not None:
            is_deleted = request.method == "DELETE" and response.is_success
            if is_deleted or response.status_code == HTTPStatus.NOT_FOUND:
                self.recordings.end(self.recording)
        elif (
            session_id is not None
            and response.is_success
            and any(each.method == INITIALIZE for each in self._unanswered.values())
        ):
            self.recording = self.recordings.set_key(self.recording, session_id)

        try:
            if is_event_stream(response):
                await self._forward_stream(response, headers)
            else:
                await self._forward_body(response, headers)
            if response.is_error:
                # The other errors ask for a token or another session: no call has failed.
                status = response.status_code
                self._give_up(f"HTTP {status}" if response.is_server_error else None)
        except httpx2.RequestError as error:
            loss = str(self.endpoint_client.loss_from(error))
            # A response that has begun breaks off, so that the client notices the failure.
            if self._response_has_begun:
                self._mark(error=loss)
            else:
                await self._reject(loss)

    def _headers_for_client(self, response: httpx2.Response) -> Headers:
        """Return the headers of a response to forward, with a `Location` at the proxy.

        Raises:
            ValueError: The status or a header is not valid in HTTP.
        """
        if response.status_code not in _FINAL_STATUSES:
            raise ValueError(f"HTTP {response.status_code}")
        raw = response.headers.raw
        read = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw]
        forwarded = _forwarded(read, replaced=_REPLACED_IN_RESPONSES)
        encoded_headers(forwarded)  # raises ValueError
        headers: list[tuple[str, str]] = []
        for name, value in forwarded:
            url = self.endpoint_client.same_origin(value) if name == "location" else None
            headers.append((name, value if url is None else url.raw_path.decode()))
        return headers

    def _give_up(self, reason: str | None) -> None:
        """Note that the server will not answer the requests; with a reason, they have failed."""
        for request_id in self._unanswered:
            self.recording.journal.give_up(request_id, reason)
        self.recording.journal.flush()

    def _mark(self, **facts: Any) -> None:
        """Record the mark `http` with these facts about the exchange."""
        self.recording.journal.mark(HTTP_MARK, {"method": self.exchange.request.method, **facts})
        self.recording.journal.flush()

    async def _forward_body(self, response: httpx2.Response, headers: Headers) -> None:
        held = bytearray()
        parts = 0
        async with body_pieces(response) as pieces:
            async for piece in pieces:
                held += piece
                if len(held) > self.endpoint_client.limits.messages.bytes_max:
                    parts += 1
                    await self._forward_part(response, headers, bytes(held), parts)
                    held.clear()
        if parts:
            await self._forward_part(response, headers, bytes(held), parts + 1)
            await self.exchange.end()
        else:
            body, status = bytes(held), response.status_code
            self._is_answered_elsewhere = status == HTTPStatus.ACCEPTED
            is_message = bool(body) and self._may_be_message(response)
            if is_message:
                self._record_message(body)
            # The records of the messages explain such a response; any other one gets a mark.
            is_explained = self.messages and (
                status == HTTPStatus.ACCEPTED or (status == HTTPStatus.OK and is_message)
            )
            if self.exchange.request.method != "POST" or not is_explained:
                facts = {} if not body or is_message else {"type": _media_type(response)}
                self._mark(status=status, **facts)
            await self.exchange.answer(status, headers, body)

    async def _forward_part(
        self,
        response: httpx2.Response,
        headers: Headers,
        part: bytes,
        number: int,
    ) -> None:
        """Forward and record a part of a body that is too large to be buffered."""
        if not self._response_has_begun:
            self._response_has_begun = True
            self._mark(status=response.status_code, type=_media_type(response))
            await self.exchange.start(response.status_code, headers)
        if self._may_be_message(response):
            self.recording.journal.record_bytes("out", part, envelope={"part": number})
            self.recording.journal.flush()
        await self.exchange.send(part)

    def _may_be_message(self, response: httpx2.Response) -> bool:
        return (
            bool(self.messages) and _media_type(response) == JSON and not content_encoding(response)
        )

    async def _forward_stream(self, response: httpx2.Response, headers: Headers) -> None:
        # A stream that is not the plain response to a POST gets a mark.
        request = self.exchange.request
        last_id = request.header(LAST_EVENT_ID)
        facts = {} if last_id is None else {"last_event_id": last_id}
        if content_encoding(response):
            facts["type"] = f"{EVENT_STREAM}, {response.headers['content-encoding']}"
        if facts or request.method != "POST":
            self._mark(status=response.status_code, **facts)
        parser = EventParser(data_bytes_max=self.endpoint_client.limits.messages.bytes_max)
        is_plain = not content_encoding(response)
        self._response_has_begun = True
        await self.exchange.start(response.status_code, headers)
        # The first event may be the endpoint of a session of 2024-11-05. Until it is complete, its
        # pieces are held back, since its URL may have to be replaced.
        awaits_endpoint = (
            is_plain and request.method == "GET" and request.header(SESSION_ID) is None
        )
        held_max = self.endpoint_client.limits.messages.uri_chars_max
        held = b""
        async with body_pieces(response) as pieces:
            async for piece in pieces:
                held += piece
                events = parser.feed(piece) if is_plain else ()
                if events:
                    awaits_endpoint = False
                elif awaits_endpoint and len(held) <= held_max and not held.endswith(_EMPTY_LINES):
                    continue
                await self.exchange.send(self._record_events(events, held))
                held = b""
        if held:
            await self.exchange.send(held)
        await self.exchange.end()

    def _record_events(self, events: Sequence[Event | Oversized], piece: bytes) -> bytes:
        """Record events; return the piece of the stream to forward to the client."""
        for event in events:
            if isinstance(event, Event) and event.id is not None:
                self._is_answered_elsewhere = True
            if isinstance(event, Event) and event.name == "endpoint" and self._sse_session is None:
                # A session of 2024-11-05 begins; it ends with its stream, and its URL is its key.
                url = self.endpoint_client.same_origin(event.data.decode(errors="replace"))
                if url is None:
                    continue
                key = url.raw_path
                self._sse_session = self.recording = self.recordings.set_key(
                    self.recording, key.decode()
                )
                if event.data.startswith(b"http"):
                    # The client gets the path alone, since the server's URL would bypass the proxy.
                    piece = piece.replace(event.data, key, 1)
            elif self.is_endpoint or self._sse_session is not None:
                if isinstance(event, Oversized):
                    self.recording.journal.record_oversized("out", event)
                elif event.data and event.name == "message" and not self._is_repeated(event):
                    self._record_message(event.data)
        self.recording.journal.flush()
        return piece

    def _is_repeated(self, event: Event) -> bool:
        """Return whether an event is sent again to a client that resumes a stream."""
        if event.id is None:
            return False
        is_resumed = self.exchange.request.header(LAST_EVENT_ID) is not None
        if is_resumed and event.id in self.recording.events:
            self._mark(repeated=event.id)
            return True
        self.recording.events[event.id] = None
        if len(self.recording.events) > self.endpoint_client.limits.http.events_kept_max:
            del self.recording.events[next(iter(self.recording.events))]
        return False

    def _record_message(self, encoded: bytes) -> None:
        """Record a message of the server, before its bytes are forwarded."""
        self.recording.journal.counts["out_bytes"] += len(encoded)
        for message in self.recording.journal.record("out", encoded):
            if isinstance(message, Response | ErrorResponse) and message.id is not None:
                self._unanswered.pop(message.id, None)
        self.recordings.make_common_if_without_id(self.recording)
        self.recording.journal.flush()


def _media_type(response: httpx2.Response) -> str:
    return media_type_of(response.headers.get("content-type"))


@attrs.frozen(kw_only=True)
class ListenOptions:
    """The address on which a proxy listens, and the clients that it accepts.

    Attributes:
        host: The name or address of an interface.
        port: The port; 0 for any that is free.
        path: The path of its endpoint; None is that of the server, if the server is at a URL.
        hosts: Values of `Host` that are accepted besides the address that it is bound to.
        origins: Values of `Origin` that are accepted besides its own.
        allows_cors: Whether responses allow browsers to read them; if the server is at an HTTP URL,
            the server decides instead.
        token: The bearer token that clients have to send; None accepts all.
    """

    host: str = "127.0.0.1"
    port: int = 0
    path: str | None = None
    hosts: Collection[str] | None = None
    origins: Collection[str] | None = None
    allows_cors: bool = False
    token: str | None = None


@attrs.define(kw_only=True, eq=False, repr=False)
class HttpProxy:
    """An HTTP application that forwards each exchange to the server.

    Attributes:
        path: The path of the proxy's endpoint; None is the path of the server's endpoint.
        token: The bearer token that clients have to send, which is not forwarded; None accepts all.
    """

    endpoint_client: EndpointClient
    host_check: HostCheck
    recordings: OpenRecordings
    path: str | None = None
    token: str | None = None
    _decoder: Decoder = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._decoder = decoder_for(self.endpoint_client.limits.messages)

    async def respond(self, exchange: Exchange) -> None:
        """Forward one exchange; reject it if a check fails or its body is too large."""
        request, bytes_max = exchange.request, self.endpoint_client.limits.messages.bytes_max
        with suppress(trio.BrokenResourceError):
            rejection = self.host_check.rejection(request)
            # A browser sends the OPTIONS of a CORS preflight without credentials.
            is_accepted = (
                self.token is None or request.is_preflight or has_token(request, self.token)
            )
            if rejection is None and not is_accepted:
                rejection = Rejection(
                    status=401,
                    text="the request has no valid bearer token (token)",
                    headers=[("WWW-Authenticate", "Bearer")],
                )
            if rejection is None:
                try:
                    url = self._server_url(request)
                    body = await exchange.body(bytes_max)
                except httpx2.InvalidURL:  # such as the one of `OPTIONS *`
                    rejection = Rejection(status=400, text="the request target is not a path")
                except BodyTooLargeError:
                    text = f"the body is larger than limits.messages.bytes_max ({bytes_max})"
                    rejection = Rejection(status=413, text=text)
                else:
                    try:
                        await self._forward(exchange, url, body)
                    except RecordingError as error:
                        # The listener answers with 500, or breaks off a response that has begun.
                        logger.error("a request is not forwarded: %s", error)  # noqa: TRY400
                    return
            with self.recordings.for_exchange(None, ()) as recording:
                facts = {"method": request.method, "status": rejection.status}
                recording.journal.mark(HTTP_MARK, facts | {"error": rejection.text})
                recording.journal.flush()
                await exchange.answer(*rejection.response())

    async def _forward(self, exchange: Exchange, url: httpx2.URL, body: bytes) -> None:
        request, target = exchange.request, url.raw_path.decode("ascii")
        is_sse_session = self.recordings.has_session(target)
        # A server may take any spelling of its path, such as /%6Dcp, for its endpoint.
        endpoint_path = self.endpoint_client.url.path.rstrip("/")
        is_endpoint = is_sse_session or url.path.rstrip("/") == endpoint_path
        messages = self._decoder.messages(body) if is_endpoint and body else ()
        with self.recordings.for_exchange(
            target if is_sse_session else request.header(SESSION_ID), messages
        ) as recording:
            recording.journal.note_headers(request.headers)
            # The proxy's own headers for the server replace the client's.
            added = encoded_headers([*self.endpoint_client.headers.items()])
            replaced = {name for name, _ in added}
            if self.token is not None:
                replaced.add(b"authorization")
            forwarded = _forwarded(request.headers.items(), replaced=_REPLACED_IN_REQUESTS)
            written = [(name.encode("ascii"), value.encode("latin-1")) for name, value in forwarded]
            passed = [each for each in (*written, _UNCOMPRESSED) if each[0] not in replaced]
            proxied_exchange = ProxiedExchange(
                exchange=exchange,
                url=url,
                headers=[*passed, *added],
                body=body,
                messages=messages,
                is_endpoint=is_endpoint,
                recording=recording,
                recordings=self.recordings,
                endpoint_client=self.endpoint_client,
            )
            await proxied_exchange.run()

    def _server_url(self, request: HttpRequest) -> httpx2.URL:
        """Return the URL at the server.

        Raises:
            httpx2.InvalidURL: The request is for no path.
        """
        path, query = request.path, request.query
        if self.path is not None and path.rstrip("/") == self.path.rstrip("/"):
            path, _, own_query = self.endpoint_client.url.raw_path.decode("ascii").partition("?")
            query = "&".join(filter(None, (own_query, query)))
        target = f"{path}?{query}" if query else path
        return self.endpoint_client.url.copy_with(raw_path=target.encode("ascii"))


async def serve_http_proxy(
    listen: ListenOptions,
    endpoint_client: EndpointClient,
    recordings: OpenRecordings,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the proxy until cancelled; report its URL through `task_status`.

    Raises:
        OSError: The address cannot be bound.
        ValueError: An option for the host check or the token is invalid.
    """
    listeners = await open_tcp_listeners(listen.host, listen.port)
    try:
        bound = [listener.socket.getsockname()[:2] for listener in listeners]
        host_check = host_check_for(
            bound, hosts=listen.hosts, origins=listen.origins, allows_cors=True
        )
        proxy = HttpProxy(
            endpoint_client=endpoint_client,
            host_check=host_check,
            recordings=recordings,
            path=listen.path,
            token=None if listen.token is None else checked_token(listen.token),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recordings.expire)
            serve = partial(serve_native, proxy.respond, listeners, limits=endpoint_client.limits)
            await nursery.start(serve)
            path = endpoint_client.url.raw_path.decode() if listen.path is None else listen.path
            task_status.started(f"http://{netloc(listen.host, bound[0][1])}{path}")
    finally:
        recordings.close()
        for listener in listeners:
            listener.socket.close()  # without a checkpoint, which could replace the exception


async def run_http_proxy(
    listen: ListenOptions,
    server_url: str,
    record: RecordOptions | None,
    report_url: Callable[[str], None],
    headers: Mapping[str, str],
    make_spans: MakeSpans | None,
) -> int:
    """Run a proxy to the server at `server_url`, and record it, until a signal arrives.

    `headers` replace those of the same name in each request. A folder gets a file for each session,
    a single file gets all of them. `report_url` is called with the URL of the proxy. `make_spans`
    returns the spans of the requests of one recording, with telemetry.

    Returns:
        The exit status: 128 plus the number of the signal.

    Raises:
        RecordingError: The file is not empty.
        OSError: The address cannot be bound.
        ValueError: An option for the host check or the token is invalid, or `server_url` is no HTTP
            URL.
    """
    url = parsed_url(server_url)
    limits = DEFAULT_LIMITS
    endpoint_client = EndpointClient(http=client_for(url), url=url, headers=headers, limits=limits)
    async with (
        endpoint_client.http,
        recording_for_sessions(record, has_http_headers=True) as recording,
    ):
        start_journal = partial(
            start_message_journal,
            recording,
            transport="http",
            name=url.host,
            limits=limits,
            make_spans=make_spans,
        )
        recordings = OpenRecordings(start_journal=start_journal, limits=limits)

        async def serve() -> int:
            async with trio.open_nursery() as nursery:
                report_url(
                    await nursery.start(serve_http_proxy, listen, endpoint_client, recordings)
                )
            return 0

        return await until_signal(serve, on_signal=partial(recordings.record_cause, "signal"))
