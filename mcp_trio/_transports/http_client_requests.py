"""Requests of the HTTP client, and the event streams that it reads."""

import functools
import math
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Final, TypeAlias

import attrs
import httpx2
import trio

from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._jsonrpc.sse import Event, EventParser
from mcp_trio._protocol.http_headers import (
    EVENT_STREAM,
    JSON,
    PROTOCOL_VERSION,
    Headers,
    media_type_of,
)
from mcp_trio._protocol.http_requests import LAST_EVENT_ID, SESSION_ID
from mcp_trio._transports.channel import text_with_cause
from mcp_trio._transports.connections import RandomSource, ReportedState, pause_seconds
from mcp_trio._transports.http_libraries import errors_of, library_of, stream_of
from mcp_trio.errors import ConfigError, ConnectionLost, OutcomeUnknown
from mcp_trio.limits import Limits

# --------------------
# Whom TLS trusts where nobody has said anything else.


@functools.cache
def authorities() -> ssl.SSLContext:
    """As httpx2 finds them, `SSL_CERT_FILE` and `SSL_CERT_DIR` first; not to be changed.

    To read their certificates takes a while: they are read at first need, once in a process.

    Raises:
        ConfigError: They cannot be read.
    """
    try:
        return httpx2.create_ssl_context()
    except OSError as error:
        text = f"SSL_CERT_FILE, SSL_CERT_DIR: no certificates: {error.strerror or error}"
        raise ConfigError(text) from error


# --------------------
# One server's URL over httpx2: what goes along with each request, and how it refuses.


NOT_FOUND: Final = 404
SERVER_ERROR: Final = 500
BOTH_FORMS: Final = f"{JSON}, {EVENT_STREAM}"

# An answer that is compressed could be a thousand times as large as what we have read of it.
_UNCOMPRESSED: Final = ("Accept-Encoding", "identity")
_PORTS: Final = {"http": 80, "https": 443}
_VISIBLE: Final = frozenset(map(chr, range(0x21, 0x7F)))

# Nothing of the request has left when one of these is raised.
_UNSENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)

_LOSSES: Final[Sequence[tuple[tuple[type[Exception], ...], str, type[ConnectionLost]]]] = (
    (_UNSENT, "cannot connect to", ConnectionLost),
    ((httpx2.RequestError,), "the connection broke to", OutcomeUnknown),
)
_OTHER_LOSS: Final = ("the request failed at", ConnectionLost)


HasLeft: TypeAlias = Callable[[int], object]
"""Is told how many bytes of a body have left, again and again, until all have."""


def _told_nobody(_bytes: int) -> None:
    """Nobody wants to know."""


@attrs.frozen(eq=False)
class _Body(httpx2.AsyncByteStream):
    """A body in pieces, so that its progress is seen.

    That of httpx2 is a generator, of which Trio warns when its request was cancelled in the middle.
    """

    data: bytes
    chunk_bytes: int
    has_left: HasLeft

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _Pieces(memoryview(self.data), self.chunk_bytes, self.has_left)


@attrs.define(eq=False)
class _Pieces(AsyncIterator[bytes]):
    rest: memoryview
    chunk_bytes: int
    has_left: HasLeft
    leaving: int = 0

    async def __anext__(self) -> bytes:
        self.has_left(self.leaving)
        piece, self.rest = self.rest[: self.chunk_bytes], self.rest[self.chunk_bytes :]
        self.leaving = len(piece)
        if not piece:
            raise StopAsyncIteration
        return bytes(piece)


class SessionOver(Exception):  # noqa: N818  an event, and no fault of anybody
    """The server does not know our session any more (HTTP-51)."""


class Rejected(Exception):  # noqa: N818  named for what happened
    """The server answered a request with a status that is no success, or with another media type.

    `body` is the begin of its body, `location` where it sends us instead.
    """

    def __init__(self, response: httpx2.Response, body: bytes) -> None:
        super().__init__(response.status_code)
        self.status = response.status_code
        self.phrase = response.reason_phrase
        self.body = body
        self.location = response.headers.get("location")

    @property
    def is_client_error(self) -> bool:
        """Return whether it is a 4xx that tells nothing of who we are."""
        return self.status // 100 == 4 and self.status not in (401, 403)  # noqa: PLR2004

    def loss(self, link: "Link") -> ConnectionLost:
        """What a caller gets to hear of it."""
        text = " ".join(self.body.decode(errors="replace").split())
        said = [f"{link.name} answered HTTP {self.status} {self.phrase}".rstrip()]
        if self.location is not None:
            said.append(f"it is at {self.location}: connect to that URL if you trust it")
        if text:
            said.append(text[: link.limits.messages.error_text_chars_max])
        kind = OutcomeUnknown if self.status >= SERVER_ERROR else ConnectionLost
        return kind(": ".join(said), http_status=self.status)


def own_client(url: httpx2.URL) -> httpx2.AsyncClient:
    """A client for one server; how long an answer may take is for those to say who wait for it."""
    return httpx2.AsyncClient(
        verify=authorities() if url.scheme == "https" else False,  # which reads none
        timeout=httpx2.Timeout(None, connect=10.0),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
    )


@attrs.define(kw_only=True, eq=False, repr=False)
class Link:
    """The server at `url`.

    `session_id` and `version` are those of a legacy session, and go along with everything in it
    (HTTP-48, HTTP-55).
    """

    http: httpx2.AsyncClient
    url: httpx2.URL
    headers: Mapping[str, str]
    limits: Limits
    session_id: str | None = attrs.field(default=None, init=False)
    version: str | None = attrs.field(default=None, init=False)
    _base: httpx2.Headers = attrs.field(init=False)
    _timeout: Mapping[str, float | None] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._base = httpx2.Headers([_UNCOMPRESSED, *self.headers.items()])
        given = self.http.timeout
        self._timeout = {
            "connect": given.connect,
            "read": None,
            "write": given.write,
            "pool": given.pool,
        }

    @property
    def name(self) -> str:
        """The URL without what may be secret in it."""
        return f"{self.url.scheme}://{self.url.netloc.decode()}{self.url.path}"

    # What is sent.

    def post(
        self,
        frame: bytes,
        headers: Headers,
        *,
        url: httpx2.URL | None = None,
        has_left: HasLeft = _told_nobody,
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        """A message on its way, and what answers it."""
        own = [("Accept", BOTH_FORMS), ("Content-Type", JSON), *headers]
        return self._request("POST", own, content=frame, url=url, has_left=has_left)

    def listen(self, last_id: str | None = None) -> AbstractAsyncContextManager[httpx2.Response]:
        """A stream, or the rest of one behind an event (HTTP-28, HTTP-40)."""
        own = [("Accept", EVENT_STREAM), ("Cache-Control", "no-store"), *self.of_session()]
        if last_id is not None:
            own.append((LAST_EVENT_ID, last_id))
        return self._request("GET", own)

    async def delete(self) -> None:
        """The server may forget the session; it need not (HTTP-53, HTTP-54)."""
        async with self._request("DELETE", self.of_session()) as response:
            await self.begin_of(response)

    def of_session(self) -> list[tuple[str, str]]:
        """What goes along with everything in a legacy session."""
        known = ((SESSION_ID, self.session_id), (PROTOCOL_VERSION, self.version))
        return [(name, value) for name, value in known if value is not None]

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        headers: Headers,
        *,
        content: bytes | None = None,
        url: httpx2.URL | None = None,
        has_left: HasLeft = _told_nobody,
    ) -> AsyncGenerator[httpx2.Response, None]:
        sent = httpx2.Headers(self._base, encoding="utf-8")
        for name, value in headers:
            sent[name] = value  # the id of an event is as the server likes
        request = self.http.build_request(
            method,
            str(self.url if url is None else url),
            content=content,
            headers=sent.raw,
            extensions={"timeout": self._timeout},
        )
        if content is not None:
            body = _Body(content, self.limits.messages.chunk_bytes, has_left)
            request.stream = stream_of(library_of(request), body)
        with errors_of(httpx2):
            response = await self.http.send(request, stream=True, follow_redirects=False)
        try:
            yield response
        finally:
            await response.aclose()

    # What comes back.

    async def check(self, response: httpx2.Response) -> None:
        """Pass what is a success.

        Raises:
            SessionOver: The server does not know the session that the request named.
            Refused: It is none for another reason.
        """
        if response.is_success:
            return
        if response.status_code == NOT_FOUND and SESSION_ID in response.request.headers:
            raise SessionOver
        raise Rejected(response, await self.begin_of(response))

    async def begin_of(self, response: httpx2.Response) -> bytes:
        """As much of a body as can be told of."""
        body = await self.body(response, bytes_max=self.limits.messages.chunk_bytes)
        return body.prefix if isinstance(body, Oversized) else body

    async def body(self, response: httpx2.Response, *, bytes_max: int) -> bytes | Oversized:
        """The whole body, or the begin of one that is too large."""
        held = bytearray()
        async with pieces_of(response) as pieces:
            async for piece in pieces:
                held += piece
                if len(held) > bytes_max:
                    head = bytes(held[: min(bytes_max, self.limits.messages.chunk_bytes)])
                    return Oversized(len(held), head)
        return bytes(held)

    def same_origin(self, reference: str) -> httpx2.URL | None:
        """A URL that the server named; None if it leads elsewhere, or is none (TRAP-43)."""
        try:
            url = self.url.join(reference)
        except (httpx2.InvalidURL, ValueError):
            return None
        return url if origin(url) == origin(self.url) else None

    def loss_of(self, error: Exception) -> ConnectionLost:
        """What a caller gets to hear of what went wrong with a request."""
        if isinstance(error, ConnectionLost):
            return error
        if isinstance(error, Rejected):
            return error.loss(self)
        rows = ((what, kind) for causes, what, kind in _LOSSES if isinstance(error, causes))
        what, kind = next(rows, _OTHER_LOSS)
        loss = kind(f"{what} {self.name}: {text_with_cause(error)}")
        loss.__cause__ = error
        return loss


@asynccontextmanager
async def pieces_of(
    response: httpx2.Response, *, is_raw: bool = False
) -> AsyncGenerator[AsyncIterator[bytes]]:
    """The body as it arrives, raw if wanted; leaving before its end breaks the connection off.

    It comes through a tower of async generators, which is taken down in order only by what is
    raised at its bottom: so whoever leaves reads on, under a cancellation.
    """
    pieces = response.aiter_raw() if is_raw else response.aiter_bytes()
    try:
        with errors_of(httpx2):
            yield pieces
    finally:
        with (
            trio.CancelScope() as leaving,
            suppress(httpx2.HTTPError, httpx2.StreamError),
            errors_of(httpx2),
        ):
            leaving.cancel()
            async for _ in pieces:
                pass


def is_stream(response: httpx2.Response) -> bool:
    """Return whether events come."""
    return media_type_of(response.headers.get("content-type")) == EVENT_STREAM


def origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    """Scheme, host and port."""
    return url.scheme, url.host, url.port or _PORTS.get(url.scheme)


def session_id_of(response: httpx2.Response) -> str | None:
    """The id that the server assigns.

    Raises:
        ConnectionLost: It can be none, and would be refused, or worse, when sent back (HTTP-46).
    """
    session_id: str | None = response.headers.get(SESSION_ID)
    if session_id is not None and not (session_id and _VISIBLE.issuperset(session_id)):
        raise ConnectionLost(f"the server's {SESSION_ID} is no visible ASCII")
    return session_id


# --------------------
# A stream of events that a client reads, over as many connections as the server makes of it.


Take: TypeAlias = Callable[[bytes | Oversized], Awaitable[None]]

# A server that asks to be polled at once is not polled in a busy loop.
_PAUSE_SECONDS_MIN: Final = 0.05


@attrs.define(kw_only=True, eq=False)
class EventStream:
    """What the server says on one stream, from its first event to its last.

    Each message is given to `take`, which may wait. `last_id` is the id to go on behind, `failures`
    how many connections in a row brought nothing, and `trouble` what ended the last one. After the
    first of those there are `away_seconds` for one that does; while one is there, they do not run.
    It `has_begun` when the server has let us listen once, is `decided` when it has, or will not or
    could not yet, and `is_cut` when a message was too large.
    """

    link: Link
    take: Take
    random_source: RandomSource
    condition: ReportedState
    away_seconds: float = math.inf
    has_begun: bool = attrs.field(default=False, init=False)
    last_id: str | None = attrs.field(default=None, init=False)
    trouble: str = attrs.field(default="", init=False)
    failures: int = attrs.field(default=0, init=False)
    is_cut: bool = attrs.field(default=False, init=False)
    decided: trio.Event = attrs.field(factory=trio.Event, init=False)
    _retry_ms: int | None = attrs.field(default=None, init=False)
    _away_until: float = attrs.field(default=math.inf, init=False)

    @property
    def is_lost(self) -> bool:
        """Return whether to stop coming back, after so many times in vain, or so long."""
        return bool(self.reached)

    @property
    def reached(self) -> str:
        """The limit behind which nobody comes back, as text; empty before."""
        limits = self.link.limits
        if self.failures > limits.http.reconnects_max:
            return f"limits.http.reconnects_max={limits.http.reconnects_max}"
        is_over = trio.current_time() >= self._away_until
        return f"limits.http.resume_seconds={self.away_seconds:g}" if is_over else ""

    async def read(self, response: httpx2.Response) -> None:
        """Take everything that comes on this connection; one that breaks ends like any other."""
        self.trouble = "the stream ended"
        since = trio.current_time()
        has_heard = False
        parser = EventParser(data_bytes_max=self.link.limits.messages.bytes_max)
        try:
            async with pieces_of(response) as pieces:
                async for piece in pieces:
                    for event in parser.feed(piece):
                        has_heard = True
                        await self._hear(event)
                    self.last_id = parser.last_id or self.last_id
        except httpx2.RequestError as error:
            self.trouble = f"the stream broke: {str(error) or type(error).__name__}"
        is_old = trio.current_time() - since >= self.link.limits.http.reconnect_seconds_max
        if has_heard or is_old:
            self.failures, self._away_until = 0, math.inf
        else:
            self._away_until += trio.current_time() - since  # meanwhile it was there
            self._count()

    async def _hear(self, event: Event | Oversized) -> None:
        """Events without data only bring ids and times (TRAP-37); other names are not for us."""
        if isinstance(event, Oversized):
            self.is_cut = True
            await self.take(event)
            return
        if event.id is not None:
            self.last_id = event.id or None
        if event.retry_ms is not None:
            self._retry_ms = event.retry_ms
        if event.data and event.name == "message":
            await self.take(event.data)

    async def resume(self) -> None:
        """Wait as long as the server wants, and `connect` again."""
        self.condition.become("retrying", self.trouble)
        await trio.sleep(self._pause_seconds())
        await self.connect()

    async def connect(self) -> None:
        """Read what is behind the last event, or all (HTTP-41).

        A server that cannot be reached, or fails, is one of the `failures`.

        Raises:
            SessionOver: It does not know the session any more.
            Refused: It does not let us go on.
            ConnectionLost: What it answers is no stream.
        """
        try:
            async with self.link.listen(self.last_id) as response:
                await self.link.check(response)
                check_stream(response)
                self.has_begun = True
                self.decided.set()
                self.condition.become("open")
                await self.read(response)
        except httpx2.RequestError as error:
            self._fail(str(error) or type(error).__name__)
        except Rejected as rejected:
            if rejected.status < SERVER_ERROR:
                raise
            self._fail(f"HTTP {rejected.status} {rejected.phrase}")
        finally:
            self.decided.set()

    def _fail(self, trouble: str) -> None:
        self.trouble = trouble
        self._count()

    def _count(self) -> None:
        if not self.failures:
            self._away_until = trio.current_time() + self.away_seconds
        self.failures += 1

    def _pause_seconds(self) -> float:
        """At least what the server said (HTTP-18), and longer and longer after failures.

        The last try is made when it has been away for as long as it may.
        """
        asked_seconds = None if self._retry_ms is None else self._retry_ms / 1000
        if asked_seconds is not None and not self.failures:
            return max(asked_seconds, _PAUSE_SECONDS_MIN)
        left_seconds = self._away_until - trio.current_time()
        pause = pause_seconds(self.failures, self.link.limits, self.random_source)
        return max(min(pause, left_seconds), asked_seconds or 0.0)


def check_stream(response: httpx2.Response) -> None:
    """Pass a stream of events.

    Raises:
        ConnectionLost: It is none.
    """
    if not is_stream(response):
        kind = response.headers.get("content-type", "nothing")
        raise ConnectionLost(f"the server answered with {kind} where a stream of events is due")


@attrs.define(kw_only=True, eq=False)
class OldStream:
    """The stream of a server that knows nothing newer; `endpoint` is where messages are posted.

    `trouble` is why there is none, or why it has ended; one of them is `decided` in the end.
    """

    link: Link
    take: Take
    endpoint: httpx2.URL | None = attrs.field(default=None, init=False)
    trouble: str = attrs.field(default="", init=False)
    decided: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def run(self) -> None:
        """Read it to its end; the endpoint has to arrive in `limits.requests.probe_seconds`."""
        seconds = self.link.limits.requests.probe_seconds
        try:
            with trio.fail_after(seconds) as timer_queue:
                await self._read(timer_queue)
            self.trouble = "the server's stream ended"
        except trio.TooSlowError:
            self.trouble = f"no endpoint within limits.requests.probe_seconds ({seconds:g})"
        except Exception as error:
            self.trouble = str(self.link.loss_of(error))
        finally:
            self.decided.set()

    async def _read(self, timer_queue: trio.CancelScope) -> None:
        parser = EventParser(data_bytes_max=self.link.limits.messages.bytes_max)
        async with self.link.listen() as response:
            await self.link.check(response)
            check_stream(response)
            async with pieces_of(response) as pieces:
                async for piece in pieces:
                    for event in parser.feed(piece):
                        await self._hear(event, timer_queue)

    async def _hear(self, event: Event | Oversized, timer_queue: trio.CancelScope) -> None:
        if self.endpoint is None:
            self.endpoint = self._endpoint_of(event)
            timer_queue.deadline = math.inf
            self.decided.set()
        elif isinstance(event, Oversized):
            await self.take(event)
        elif event.name == "message" and event.data:  # SSE-04
            await self.take(event.data)

    def _endpoint_of(self, event: Event | Oversized) -> httpx2.URL:
        if isinstance(event, Oversized) or event.name != "endpoint":
            raise ConnectionLost("the first event of the server's stream is no endpoint")
        url = self.link.same_origin(event.data.decode(errors="replace"))
        if url is None:
            raise ConnectionLost("the endpoint that the server names is of another origin")
        return url
