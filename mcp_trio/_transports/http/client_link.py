"""One server's URL over httpx: what goes along with each request, and how it refuses."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Final, TypeAlias

import attrs
import httpx
import trio

from mcp_trio._errors import ConnectionLost, OutcomeUnknown
from mcp_trio._limits import Limits
from mcp_trio._protocol.http.heads import EVENT_STREAM, JSON, Headers, media_type_of
from mcp_trio._protocol.http.mirrored import PROTOCOL_VERSION
from mcp_trio._protocol.http.verdicts import LAST_EVENT_ID, SESSION_ID
from mcp_trio._transports.faults import words_of
from mcp_trio._transports.http.trust import authorities
from mcp_trio._wire.lines import Oversized

NOT_FOUND: Final = 404
SERVER_ERROR: Final = 500
BOTH_FORMS: Final = f"{JSON}, {EVENT_STREAM}"

# An answer that is compressed could be a thousand times as large as what we have read of it.
_UNCOMPRESSED: Final = ("Accept-Encoding", "identity")
_PORTS: Final = {"http": 80, "https": 443}
_VISIBLE: Final = frozenset(map(chr, range(0x21, 0x7F)))

# Nothing of the request has left when one of these is raised.
_UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)

_LOSSES: Final[Sequence[tuple[tuple[type[Exception], ...], str, type[ConnectionLost]]]] = (
    (_UNSENT, "cannot connect to", ConnectionLost),
    ((httpx.RequestError,), "the connection broke to", OutcomeUnknown),
)
_OTHER_LOSS: Final = ("the request failed at", ConnectionLost)


HasLeft: TypeAlias = Callable[[int], object]
"""Is told how many bytes of a body have left, again and again, until all have."""


def _told_nobody(_bytes: int) -> None:
    """Nobody wants to know."""


@attrs.frozen(eq=False)
class _Body(httpx.AsyncByteStream):
    """A body in pieces, so that its progress is seen.

    That of httpx is a generator, of which Trio warns when its request was cancelled in the middle.
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


class Refused(Exception):  # noqa: N818  named for what happened
    """The server answered a request with a status that is no success, or with another media type.

    `body` is the begin of its body, `location` where it sends us instead.
    """

    def __init__(self, response: httpx.Response, body: bytes) -> None:
        super().__init__(response.status_code)
        self.status = response.status_code
        self.phrase = response.reason_phrase
        self.body = body
        self.location = response.headers.get("location")

    @property
    def is_client_error(self) -> bool:
        """Whether it is a 4xx that tells nothing of who we are."""
        return self.status // 100 == 4 and self.status not in (401, 403)  # noqa: PLR2004

    def loss(self, link: "Link") -> ConnectionLost:
        """What a caller gets to hear of it."""
        text = " ".join(self.body.decode(errors="replace").split())
        said = [f"{link.name} answered HTTP {self.status} {self.phrase}".rstrip()]
        if self.location is not None:
            said.append(f"it is at {self.location}: connect to that URL if you trust it")
        if text:
            said.append(text[: link.limits.fault_text_chars_max])
        kind = OutcomeUnknown if self.status >= SERVER_ERROR else ConnectionLost
        return kind(": ".join(said), http_status=self.status)


def own_client(url: httpx.URL) -> httpx.AsyncClient:
    """A client for one server; how long an answer may take is for those to say who wait for it."""
    return httpx.AsyncClient(
        verify=authorities() if url.scheme == "https" else False,  # which reads none
        timeout=httpx.Timeout(None, connect=10.0),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
    )


@attrs.define(kw_only=True, eq=False, repr=False)
class Link:
    """The server at `url`.

    `session_id` and `version` are those of a legacy session, and go along with everything in it
    (HTTP-48, HTTP-55).
    """

    http: httpx.AsyncClient
    url: httpx.URL
    headers: Mapping[str, str]
    limits: Limits
    session_id: str | None = attrs.field(default=None, init=False)
    version: str | None = attrs.field(default=None, init=False)
    _base: httpx.Headers = attrs.field(init=False)
    _timeout: httpx.Timeout = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._base = httpx.Headers([_UNCOMPRESSED, *self.headers.items()])
        given = self.http.timeout
        self._timeout = httpx.Timeout(
            connect=given.connect, write=given.write, pool=given.pool, read=None
        )

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
        url: httpx.URL | None = None,
        has_left: HasLeft = _told_nobody,
    ) -> AbstractAsyncContextManager[httpx.Response]:
        """A message on its way, and what answers it."""
        own = [("Accept", BOTH_FORMS), ("Content-Type", JSON), *headers]
        return self._request("POST", own, content=frame, url=url, has_left=has_left)

    def listen(self, last_id: str | None = None) -> AbstractAsyncContextManager[httpx.Response]:
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
        url: httpx.URL | None = None,
        has_left: HasLeft = _told_nobody,
    ) -> AsyncGenerator[httpx.Response, None]:
        sent = httpx.Headers(self._base, encoding="utf-8")
        for name, value in headers:
            sent[name] = value  # the id of an event is as the server likes
        request = self.http.build_request(
            method,
            self.url if url is None else url,
            content=content,
            headers=sent,
            timeout=self._timeout,
        )
        if content is not None:
            request.stream = _Body(content, self.limits.chunk_bytes, has_left)
        response = await self.http.send(request, stream=True, follow_redirects=False)
        try:
            yield response
        finally:
            await response.aclose()

    # What comes back.

    async def check(self, response: httpx.Response) -> None:
        """Pass what is a success.

        Raises:
            SessionOver: The server does not know the session that the request named.
            Refused: It is none for another reason.
        """
        if response.is_success:
            return
        if response.status_code == NOT_FOUND and SESSION_ID in response.request.headers:
            raise SessionOver
        raise Refused(response, await self.begin_of(response))

    async def begin_of(self, response: httpx.Response) -> bytes:
        """As much of a body as can be told of."""
        body = await self.body(response, bytes_max=self.limits.chunk_bytes)
        return body.head if isinstance(body, Oversized) else body

    async def body(self, response: httpx.Response, *, bytes_max: int) -> bytes | Oversized:
        """The whole body, or the begin of one that is too large."""
        held = bytearray()
        async with pieces_of(response) as pieces:
            async for piece in pieces:
                held += piece
                if len(held) > bytes_max:
                    head = bytes(held[: min(bytes_max, self.limits.chunk_bytes)])
                    return Oversized(len(held), head)
        return bytes(held)

    def same_origin(self, reference: str) -> httpx.URL | None:
        """A URL that the server named; None if it leads elsewhere, or is none (TRAP-43)."""
        try:
            url = self.url.join(reference)
        except (httpx.InvalidURL, ValueError):
            return None
        return url if origin(url) == origin(self.url) else None

    def loss_of(self, error: Exception) -> ConnectionLost:
        """What a caller gets to hear of what went wrong with a request."""
        if isinstance(error, ConnectionLost):
            return error
        if isinstance(error, Refused):
            return error.loss(self)
        rows = ((what, kind) for causes, what, kind in _LOSSES if isinstance(error, causes))
        what, kind = next(rows, _OTHER_LOSS)
        loss = kind(f"{what} {self.name}: {words_of(error)}")
        loss.__cause__ = error
        return loss


@asynccontextmanager
async def pieces_of(
    response: httpx.Response, *, is_raw: bool = False
) -> AsyncGenerator[AsyncIterator[bytes]]:
    """The body as it arrives, raw if wanted; leaving before its end breaks the connection off.

    It comes through a tower of async generators, which is taken down in order only by what is
    raised at its bottom: so whoever leaves reads on, under a cancellation.
    """
    pieces = response.aiter_raw() if is_raw else response.aiter_bytes()
    try:
        yield pieces
    finally:
        with trio.CancelScope() as leaving, suppress(httpx.HTTPError, httpx.StreamError):
            leaving.cancel()
            async for _ in pieces:
                pass


def is_stream(response: httpx.Response) -> bool:
    """Whether events come."""
    return media_type_of(response.headers.get("content-type")) == EVENT_STREAM


def origin(url: httpx.URL) -> tuple[str, str, int | None]:
    """Scheme, host and port."""
    return url.scheme, url.host, url.port or _PORTS.get(url.scheme)


def session_id_of(response: httpx.Response) -> str | None:
    """The id that the server assigns.

    Raises:
        ConnectionLost: It can be none, and would be refused, or worse, when sent back (HTTP-46).
    """
    session_id: str | None = response.headers.get(SESSION_ID)
    if session_id is not None and not (session_id and _VISIBLE.issuperset(session_id)):
        raise ConnectionLost(f"the server's {SESSION_ID} is no visible ASCII")
    return session_id
