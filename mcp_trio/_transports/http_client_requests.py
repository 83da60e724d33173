"""HTTP requests to one MCP server, and the event streams that a client reads."""

import functools
import math
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from types import AsyncGeneratorType
from typing import Any, Final, TypeAlias, cast

import attrs
import httpx2
import trio

from mcp_trio._journal.texts import shortened
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._jsonrpc.sse import Event, EventParser
from mcp_trio._protocol.http_headers import (
    EVENT_STREAM,
    JSON,
    PROTOCOL_VERSION,
    Headers,
    encoded_headers,
    media_type_of,
)
from mcp_trio._protocol.http_requests import LAST_EVENT_ID, SESSION_ID, text_of_body
from mcp_trio._transports.channel import text_with_cause
from mcp_trio._transports.connections import RandomSource, ReportedState, pause_seconds
from mcp_trio._transports.http_libraries import (
    Library,
    converted_auth,
    converted_stream,
    errors_converted_to,
    library_of,
)
from mcp_trio.errors import ConfigError, ConnectionLost, OutcomeUnknown
from mcp_trio.limits import Limits

# The HTTP client ----------------------------------------------------------------------------------


@functools.cache
def default_ssl_context() -> ssl.SSLContext:
    """Return the TLS settings that httpx2 uses by default; they must not be changed.

    Trusted certificates come from `SSL_CERT_FILE`, from `SSL_CERT_DIR`, or from the system. Reading
    them is slow, so they are read once per process, when they are first needed.

    Raises:
        ConfigError: The certificates cannot be read.
    """
    try:
        return httpx2.create_ssl_context()
    except OSError as error:
        text = f"SSL_CERT_FILE, SSL_CERT_DIR: no certificates: {error.strerror or error}"
        raise ConfigError(text) from error


_PORT_MAX: Final = 65_535


def parsed_url(url: str) -> httpx2.URL:
    """Return the parsed URL of a server.

    Raises:
        ValueError: `url` is not an HTTP URL.
    """
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise ValueError(f"the URL is invalid: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError("the URL of a server has to begin with http:// or https:// and its host")
    try:
        # As the lookup of the host encodes it, whose error would be taken for a fault of this code.
        parsed.raw_host.decode("ascii").encode("idna")
    except UnicodeError:
        raise ValueError(
            "the host in the URL of a server has an empty label, or one that is too long"
        ) from None
    if parsed.port is not None and not 0 <= parsed.port <= _PORT_MAX:
        # The system would take the remainder, and connect to another port.
        raise ValueError(f"the port in the URL of a server is not between 0 and {_PORT_MAX}")
    return parsed


def client_for(url: httpx2.URL) -> httpx2.AsyncClient:
    """Return a new HTTP client for one server.

    It has no read timeout: callers limit how long they wait for a response.
    """
    return httpx2.AsyncClient(
        verify=default_ssl_context() if url.scheme == "https" else False,
        timeout=httpx2.Timeout(None, connect=10.0),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
    )


# Request bodies -----------------------------------------------------------------------------------


OnProgress: TypeAlias = Callable[[int], object]
"""Called with the number of body bytes that were sent since the last call."""


@attrs.define(eq=False, repr=False)
class _RequestBody(httpx2.AsyncByteStream):
    """A request body that is sent in chunks, so that its progress is seen.

    The body streams of httpx2 are async generators, which would be left unfinished when a request
    is cancelled; Trio warns of that.
    """

    data: bytes
    chunk_bytes: int
    on_progress: OnProgress | None
    _position: int = attrs.field(default=0, init=False)
    _requested_bytes: int = attrs.field(default=0, init=False)

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._position = self._requested_bytes = 0  # `auth` may send the request again
        return self

    async def __anext__(self) -> bytes:
        # The next chunk is requested after the previous one has been sent.
        if self.on_progress is not None:
            self.on_progress(self._requested_bytes)
        chunk = self.data[self._position : self._position + self.chunk_bytes]
        self._requested_bytes = len(chunk)
        self._position += len(chunk)
        if not chunk:
            raise StopAsyncIteration
        return chunk


# Requests and responses ---------------------------------------------------------------------------


NOT_FOUND: Final = 404
TOO_MANY_REQUESTS: Final = 429
SERVER_ERROR: Final = 500
JSON_OR_EVENT_STREAM: Final = f"{JSON}, {EVENT_STREAM}"

# A compressed body could expand to a million times the bytes that were received.
_UNCOMPRESSED: Final = ("Accept-Encoding", "identity")
_PORTS: Final = {"http": 80, "https": 443}
_VISIBLE_ASCII: Final = frozenset(map(chr, range(0x21, 0x7F)))

# No byte of the request has been sent when one of these is raised.
_NOT_SENT: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
)


class SessionNotFound(Exception):  # noqa: N818  the session has ended, which is not an error
    """The server answered 404 to a request with a session id: it does not know the session.

    https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#session-management
    """


class UnexpectedResponse(Exception):  # noqa: N818  describes the response
    """An HTTP response with an unsuccessful status, or with the wrong media type.

    Attributes:
        body: The beginning of the body.
        location: The `Location` header, which is reported but not followed.
    """

    def __init__(self, response: httpx2.Response, body: bytes) -> None:
        super().__init__(response.status_code)
        self.status = response.status_code
        self.phrase = response.reason_phrase
        self.body = body
        self.location = response.headers.get("location")

    @property
    def is_client_error(self) -> bool:
        """True if the status is 4xx, but asks neither for other credentials nor to wait."""
        return self.status // 100 == 4 and self.status not in (401, 403, TOO_MANY_REQUESTS)  # noqa: PLR2004

    def loss(self, endpoint_client: "EndpointClient") -> ConnectionLost:
        """Return the error for the caller whose request got this response."""
        parts = [f"{endpoint_client.name} answered HTTP {self.status} {self.phrase}".rstrip()]
        if self.location is not None:
            location = shortened(
                self.location, endpoint_client.limits.messages.error_text_chars_max
            )
            parts.append(f"it redirects to {location}: connect to that URL if you trust it")
        text = text_of_body(self.body)
        if text:
            parts.append(text[: endpoint_client.limits.messages.error_text_chars_max])
        kind = OutcomeUnknown if self.status >= SERVER_ERROR else ConnectionLost
        return kind(": ".join(parts), http_status=self.status)


class _OpenResponse:
    """A context that sends a request, and closes the response at its end.

    As an async generator it would take several times as long, since Trio watches over these.
    """

    __slots__ = ("_response", "_send")

    def __init__(self, send: Callable[[], Awaitable[httpx2.Response]]) -> None:
        self._send = send
        self._response: httpx2.Response

    async def __aenter__(self) -> httpx2.Response:
        with errors_converted_to(httpx2):
            self._response = await self._send()
        return self._response

    async def __aexit__(self, *_: object) -> None:
        await self._response.aclose()


@attrs.define(kw_only=True, eq=False, repr=False)
class EndpointClient:
    """An HTTP client for the MCP endpoint of one server.

    Attributes:
        headers: Additional headers of each request.
        auth: The authorization of each request, in place of that of the HTTP client.
        session_id: The id of the legacy session, once the server has assigned one.
        version: The protocol version of the legacy session, once it is negotiated.
    """

    http: httpx2.AsyncClient
    url: httpx2.URL
    headers: Mapping[str, str]
    limits: Limits
    auth: httpx2.Auth | None = None
    session_id: str | None = attrs.field(default=None, init=False)
    version: str | None = attrs.field(default=None, init=False)
    _common_headers: Sequence[tuple[bytes, bytes]] = attrs.field(init=False)
    _timeout: Mapping[str, float | None] = attrs.field(init=False)
    _library: Library = attrs.field(init=False)
    _auth_option: Mapping[str, Any] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._library = library_of(self.http)
        self._auth_option = {}
        if self.auth is not None:
            self._auth_option = {"auth": converted_auth(self._library, self.auth)}
        # As bytes, since httpx2 takes texts beyond ASCII for UTF-8, or rejects them.
        given = zip(self.headers, encoded_headers([*self.headers.items()]), strict=True)
        common = httpx2.Headers([(name.encode(), value) for name, (_, value) in given])
        common.update([_UNCOMPRESSED])
        self._common_headers = common.raw
        self._timeout = {**self.http.timeout.as_dict(), "read": None}

    @property
    def name(self) -> str:
        """The URL without user, password, query and fragment, which may be secret."""
        return f"{self.url.scheme}://{self.url.netloc.decode()}{self.url.path}"

    def post(
        self,
        message: bytes,
        headers: Headers,
        *,
        url: httpx2.URL | None = None,
        on_progress: OnProgress | None = None,
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        """POST a message, to the MCP endpoint or to `url`; yield the response, unread."""
        own = [("Accept", JSON_OR_EVENT_STREAM), ("Content-Type", JSON), *headers]
        return self._request("POST", own, content=message, url=url, on_progress=on_progress)

    @asynccontextmanager
    async def get_stream(
        self, last_event_id: str | None = None
    ) -> AsyncGenerator[httpx2.Response, None]:
        """GET an event stream, or the rest of one after an event; yield the response, unread.

        Raises:
            SessionNotFound: The server does not know the session.
            UnexpectedResponse: The server rejects the request.
            ConnectionLost: The response is not an event stream.
        """
        own = [("Accept", EVENT_STREAM), ("Cache-Control", "no-store"), *self.session_headers()]
        if last_event_id is not None:
            own.append((LAST_EVENT_ID, last_event_id))
        async with self._request("GET", own) as response:
            await self.check_success(response)
            if not is_event_stream(response):
                received = response.headers.get("content-type", "no media type")
                text = f"the server answered with {received} instead of {EVENT_STREAM}"
                raise ConnectionLost(text)
            yield response

    async def delete(self) -> None:
        """DELETE the session, which the server may reject."""
        async with self._request("DELETE", self.session_headers()) as response:
            await self.body_prefix(response)

    def session_headers(self) -> list[tuple[str, str]]:
        """Return the headers of each request in the legacy session."""
        known = ((SESSION_ID, self.session_id), (PROTOCOL_VERSION, self.version))
        return [(name, value) for name, value in known if value is not None]

    def _request(
        self,
        method: str,
        headers: Headers,
        *,
        content: bytes | None = None,
        url: httpx2.URL | None = None,
        on_progress: OnProgress | None = None,
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        """Send a request on entering the returned context, and close the response at its end."""
        # As UTF-8, since event ids, which servers choose freely, may contain any character.
        own = {name.lower().encode(): (name.encode(), value.encode()) for name, value in headers}
        common = [each for each in self._common_headers if each[0].lower() not in own]
        url = self.url if url is None else url
        request = self.http.build_request(
            method,
            # Parsing a text takes httpx2 a tenth of the whole request.
            url if self._library is httpx2 else str(url),
            content=content,
            headers=[*common, *own.values()],
            extensions={"timeout": self._timeout},
        )
        if content is not None:
            body = _RequestBody(content, self.limits.messages.chunk_bytes, on_progress)
            is_own = self._library is httpx2
            request.stream = body if is_own else converted_stream(self._library, body)
        return _OpenResponse(
            partial(
                self.http.send, request, stream=True, follow_redirects=False, **self._auth_option
            )
        )

    async def check_success(self, response: httpx2.Response) -> None:
        """Return if the status is 2xx.

        Raises:
            SessionNotFound: The status is 404, and the request named a session.
            UnexpectedResponse: The status is another one.
        """
        if response.is_success:
            return
        if response.status_code == NOT_FOUND and SESSION_ID in response.request.headers:
            raise SessionNotFound
        raise UnexpectedResponse(response, await self.body_prefix(response))

    async def body_prefix(self, response: httpx2.Response) -> bytes:
        """Return the body, at most its first `limits.messages.chunk_bytes` bytes.

        An encoded body counts as empty: the status of the response says enough.
        """
        if content_encoding(response):
            return b""
        body = await self.body(response, bytes_max=self.limits.messages.chunk_bytes)
        return body.prefix if isinstance(body, Oversized) else body

    async def body(self, response: httpx2.Response, *, bytes_max: int) -> bytes | Oversized:
        """Return the complete body, or an `Oversized` with its beginning.

        Raises:
            OutcomeUnknown: The body is encoded.
        """
        self.check_not_encoded(response)
        received = bytearray()
        async with body_pieces(response) as pieces:
            async for piece in pieces:
                received += piece
                if len(received) > bytes_max:
                    prefix_bytes = min(bytes_max, self.limits.messages.chunk_bytes)
                    return Oversized(len(received), bytes(received[:prefix_bytes]))
        return bytes(received)

    def check_not_encoded(self, response: httpx2.Response) -> None:
        """Raise `OutcomeUnknown` if the body is encoded, against the `Accept-Encoding` sent."""
        if encoding := content_encoding(response):
            raise OutcomeUnknown(
                f"{self.name} answered with Content-Encoding {encoding!r}, although the request"
                " has Accept-Encoding: identity; turn compression off there, or in a proxy before"
                " it",
                http_status=response.status_code,
            )

    def same_origin(self, reference: str) -> httpx2.URL | None:
        """Return the absolute URL of a reference; None if it is invalid or of another origin."""
        try:
            url = self.url.join(reference)
        except (httpx2.InvalidURL, ValueError):
            return None
        return url if _origin(url) == _origin(self.url) else None

    def loss_from(self, error: Exception) -> ConnectionLost:
        """Return the error for the caller whose request failed with `error`."""
        if isinstance(error, ConnectionLost):
            return error
        if isinstance(error, UnexpectedResponse):
            return error.loss(self)
        text, kind = "the request failed at", ConnectionLost
        if isinstance(error, _NOT_SENT):
            text = "cannot connect to"
        elif isinstance(error, httpx2.RequestError):
            text, kind = "the connection broke to", OutcomeUnknown
        loss = kind(f"{text} {self.name}: {text_with_cause(error)}")
        loss.__cause__ = error
        return loss


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or _PORTS.get(url.scheme)


@asynccontextmanager
async def body_pieces(response: httpx2.Response) -> AsyncGenerator[AsyncIterator[bytes]]:
    """Iterate over the body as it arrives; leaving early closes the connection.

    The pieces are raw, since decoding them would have no limit. Only a body that its transport has
    read already is decoded.

    The iterator is a stack of async generators, which are closed in the right order only by an
    exception from the innermost one. So an iterator that is left early is read on in a cancelled
    scope.
    """
    has_raw = not response.is_stream_consumed
    pieces = response.aiter_raw() if has_raw else response.aiter_bytes()
    try:
        with errors_converted_to(httpx2):
            yield pieces
    finally:
        if cast("AsyncGeneratorType[bytes]", pieces).ag_frame is not None:  # it has not ended
            with (
                trio.CancelScope() as leaving,
                suppress(httpx2.HTTPError, httpx2.StreamError),
                errors_converted_to(httpx2),
            ):
                leaving.cancel()
                async for _ in pieces:
                    pass


async def bounded_body(response: httpx2.Response, bytes_max: int) -> bytes | None:
    """Return the body by `body_pieces`; None if it has more than `bytes_max` bytes."""
    body = bytearray()
    async with body_pieces(response) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > bytes_max:
                await response.aclose()  # so that nothing more arrives
                return None
    return bytes(body)


def content_encoding(response: httpx2.Response) -> str:
    """Return the `Content-Encoding` of a body, in lower case; empty if the body has none."""
    value: str = response.headers.get("content-encoding", "")
    encoding = value.strip().lower()
    return "" if encoding == "identity" else encoding


def is_event_stream(response: httpx2.Response) -> bool:
    """Return whether the body is an event stream."""
    return media_type_of(response.headers.get("content-type")) == EVENT_STREAM


def session_id_of(response: httpx2.Response) -> str | None:
    """Return the session id that the server assigns in its response to `initialize`.

    Raises:
        ConnectionLost: The id is not made of visible ASCII characters, as the specification
            demands; sent back, it would be rejected or misread.
    """
    session_id: str | None = response.headers.get(SESSION_ID)
    if session_id is not None and not (session_id and _VISIBLE_ASCII.issuperset(session_id)):
        raise ConnectionLost(f"the server's {SESSION_ID} is not made of visible ASCII characters")
    return session_id


# Event streams ------------------------------------------------------------------------------------


OnMessage: TypeAlias = Callable[[bytes | Oversized], Awaitable[None]]
"""Called with each message of a stream; the stream is read on when it returns."""

# The minimum pause before a stream is resumed, even if the server asks for none.
_PAUSE_SECONDS_MIN: Final = 0.05


@attrs.define(kw_only=True, eq=False, repr=False)
class EventStream:
    """An event stream of Streamable HTTP, which several connections in a row may carry.

    https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#resumability-and-redelivery

    Attributes:
        random_source: Spreads the pauses between connections.
        resume_seconds: How long connections may fail in a row until the stream is given up.
        was_accepted: Whether the server has accepted at least one GET request.
        last_event_id: The id of the last event, after which the stream is resumed.
        failures: The number of connections in a row without an event.
        is_oversized: Whether a message was too large to be received.
        was_tried: Set when the first connection is accepted, or has failed.
    """

    endpoint_client: EndpointClient
    on_message: OnMessage
    random_source: RandomSource
    reported_state: ReportedState
    resume_seconds: float = math.inf
    was_accepted: bool = attrs.field(default=False, init=False)
    last_event_id: str | None = attrs.field(default=None, init=False)
    end_reason: str = attrs.field(default="", init=False)
    failures: int = attrs.field(default=0, init=False)
    is_oversized: bool = attrs.field(default=False, init=False)
    was_tried: trio.Event = attrs.field(factory=trio.Event, init=False)
    _retry_ms: int | None = attrs.field(default=None, init=False)
    _give_up_at: float = attrs.field(default=math.inf, init=False)

    @property
    def exceeded_limit(self) -> str:
        """The limit that forbids to resume the stream again, with its value; empty if none does."""
        limits = self.endpoint_client.limits
        if self.failures > limits.http.reconnects_max:
            return f"limits.http.reconnects_max={limits.http.reconnects_max}"
        is_late = trio.current_time() >= self._give_up_at
        return f"limits.http.resume_seconds={self.resume_seconds:g}" if is_late else ""

    async def read(self, response: httpx2.Response) -> None:
        """Receive the events of one connection until it ends or breaks."""
        self.end_reason = "the stream ended"
        self.endpoint_client.check_not_encoded(response)
        started_at = trio.current_time()
        has_events = False
        parser = EventParser(data_bytes_max=self.endpoint_client.limits.messages.bytes_max)
        try:
            async with body_pieces(response) as pieces:
                async for piece in pieces:
                    for event in parser.feed(piece):
                        has_events = True
                        await self._receive(event)
                    self.last_event_id = parser.last_id or self.last_event_id
        except httpx2.RequestError as error:
            self.end_reason = f"the stream broke: {str(error) or type(error).__name__}"
        open_seconds = trio.current_time() - started_at
        if has_events or open_seconds >= self.endpoint_client.limits.http.reconnect_seconds_max:
            self.failures, self._give_up_at = 0, math.inf
        else:
            self._give_up_at += open_seconds  # the server was reachable meanwhile
            self._count_failure()

    async def _receive(self, event: Event | Oversized) -> None:
        """Pass on the message of an event; an event without data only sets the id and the pause."""
        if isinstance(event, Oversized):
            self.is_oversized = True
            await self.on_message(event)
            return
        if event.id is not None:
            self.last_event_id = event.id or None
        if event.retry_ms is not None:
            self._retry_ms = event.retry_ms
        if event.data and event.name == "message":
            await self.on_message(event.data)

    async def resume(self) -> None:
        """Wait, then `connect` again.

        The pause is at least as long as the server asked for, and longer after failures. The last
        connection is tried when the stream would be given up.
        """
        self.reported_state.change("retrying", self.end_reason)
        asked_seconds = None if self._retry_ms is None else self._retry_ms / 1000
        if asked_seconds is not None and not self.failures:
            pause = max(asked_seconds, _PAUSE_SECONDS_MIN)
        else:
            left_seconds = self._give_up_at - trio.current_time()
            pause = pause_seconds(self.failures, self.endpoint_client.limits, self.random_source)
            pause = max(min(pause, left_seconds), asked_seconds or 0.0)
        await trio.sleep(pause)
        await self.connect()

    async def connect(self) -> None:
        """GET the stream, from its beginning or after the last event, and read it.

        A server that cannot be reached, or answers with a 5xx status or "too many requests", counts
        as one of `failures`; the other errors of `EndpointClient.get_stream` are raised.
        """
        try:
            async with self.endpoint_client.get_stream(self.last_event_id) as response:
                self.was_accepted = True
                self.was_tried.set()
                self.reported_state.change("open")
                await self.read(response)
        except httpx2.RequestError as error:
            self.end_reason = str(error) or type(error).__name__
            self._count_failure()
        except UnexpectedResponse as unexpected:
            if unexpected.status < SERVER_ERROR and unexpected.status != TOO_MANY_REQUESTS:
                raise
            self.end_reason = f"HTTP {unexpected.status} {unexpected.phrase}"
            self._count_failure()
        finally:
            self.was_tried.set()

    def _count_failure(self) -> None:
        if not self.failures:
            self._give_up_at = trio.current_time() + self.resume_seconds
        self.failures += 1


@attrs.define(kw_only=True, eq=False, repr=False)
class HttpSseStream:
    """The only event stream of a server with the transport of 2024-11-05, HTTP+SSE.

    https://modelcontextprotocol.io/specification/2024-11-05/basic/transports#http-with-sse

    Attributes:
        endpoint: The URL to POST messages to, which the first event names.
        end_reason: Why there is no endpoint, or why the stream has ended.
        was_tried: Set when there is an endpoint, or a reason why there is none.
    """

    endpoint_client: EndpointClient
    on_message: OnMessage
    endpoint: httpx2.URL | None = attrs.field(default=None, init=False)
    end_reason: str = attrs.field(default="", init=False)
    was_tried: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def run(self) -> None:
        """Read the stream to its end; the endpoint is due in `limits.requests.probe_seconds`."""
        seconds = self.endpoint_client.limits.requests.probe_seconds
        try:
            with trio.fail_after(seconds) as until_endpoint:
                await self._read(until_endpoint)
            self.end_reason = "the server's stream ended"
        except trio.TooSlowError:
            self.end_reason = (
                f"no `endpoint` event within limits.requests.probe_seconds ({seconds:g})"
            )
        except Exception as error:
            self.end_reason = str(self.endpoint_client.loss_from(error))
        finally:
            self.was_tried.set()

    async def _read(self, until_endpoint: trio.CancelScope) -> None:
        parser = EventParser(data_bytes_max=self.endpoint_client.limits.messages.bytes_max)
        async with self.endpoint_client.get_stream() as response:
            self.endpoint_client.check_not_encoded(response)
            async with body_pieces(response) as pieces:
                async for piece in pieces:
                    for event in parser.feed(piece):
                        await self._receive(event, until_endpoint)

    async def _receive(self, event: Event | Oversized, until_endpoint: trio.CancelScope) -> None:
        if self.endpoint is None:
            if isinstance(event, Oversized) or event.name != "endpoint":
                raise ConnectionLost("the first event of the server's stream is not `endpoint`")
            url = self.endpoint_client.same_origin(event.data.decode(errors="replace"))
            if url is None:
                raise ConnectionLost("the server's `endpoint` event names a URL of another origin")
            self.endpoint = url
            until_endpoint.deadline = math.inf
            self.was_tried.set()
        elif isinstance(event, Oversized):
            await self.on_message(event)
        elif event.name == "message" and event.data:
            await self.on_message(event.data)
