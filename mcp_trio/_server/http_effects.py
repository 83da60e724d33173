"""`EffectTransport`: the HTTP requests of handlers as effects.

The record of a request holds the method, the URL without user and password, the body, and the
headers in `REQUEST_HEADERS`. The record of a response holds the status, the decoded body, and the
headers in `RESPONSE_HEADERS`. So credentials and cookies are not recorded. The handler's response
is made from these members, whether or not anything is recorded.
"""

import base64
import functools
import zlib
from collections.abc import Callable, Container
from http.cookiejar import Cookie, CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, Final

import httpx2
import msgspec
import trio

from mcp_trio._auth.provider_tokens import CREDENTIALS
from mcp_trio._journal.records import HTTP, HTTP_CLOSE, encode_body
from mcp_trio._server.effects import OPAQUE, active_context, perform_plain
from mcp_trio._session.effects import Effect, perform
from mcp_trio._transports.http_client_requests import default_ssl_context
from mcp_trio._transports.http_libraries import (
    converted_auth,
    errors_converted_to,
    library_of,
    send,
)
from mcp_trio.limits import MIB

REQUEST_HEADERS: Final = frozenset({"accept", "content-type"})
RESPONSE_HEADERS: Final = frozenset(
    {
        *("allow", "cache-control", "content-disposition", "content-language", "content-type"),
        *("date", "etag", "expires", "last-modified", "link", "location", "retry-after", "vary"),
    }
)

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})  # RFC 9110, section 9.2.1


class Base64Body(msgspec.Struct, frozen=True):
    """A body that is not UTF-8."""

    base64: str


class RecordedHttpRequest(msgspec.Struct, frozen=True):
    """The recorded members of a request; a body over the limit is not recorded."""

    method: str
    url: str
    headers: list[tuple[str, str]]
    body: str | Base64Body


class RecordedHttpResponse(msgspec.Struct, frozen=True):
    """The recorded members of a response; a handler gets no others."""

    status: int
    headers: list[tuple[str, str]]
    body: str | Base64Body


if TYPE_CHECKING:
    import httpx

    from mcp_trio._session.observing import Observation

    # A client of either library takes the transport; neither checks its class.
    class _Transport(httpx2.AsyncBaseTransport, httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: Any) -> Any: ...

else:
    _Transport = httpx2.AsyncBaseTransport


class EffectTransport(_Transport):
    """A transport that makes the requests of an HTTP client effects of the handler that sends them.

        httpx2.AsyncClient(transport=mcp_trio.http.EffectTransport())

    The client may be one of httpx2 or of httpx. Outside of handlers, and inside of other effects,
    the transport only forwards. In a handler, a response is read completely, up to
    `limits.requests.http_effect_bytes_max`, and has only its status, its body and some headers;
    cookies and extensions are dropped. The body may be compressed with gzip, and in no other way.
    If an observer has a trace context, as `Telemetry`, it is sent in the headers, and not recorded.
    """

    def __init__(
        self, inner: "httpx2.AsyncBaseTransport | httpx.AsyncBaseTransport | None" = None
    ) -> None:
        """Forward requests to `inner`, which is closed when the client is closed.

        Args:
            inner: A transport of either library. By default an `httpx2.AsyncHTTPTransport` is made
                when it is first needed.
        """
        self._inner = inner

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request, and wait for the response.

        Args:
            request: An `httpx2.Request` or an `httpx.Request`.

        Returns:
            The response, of the library of the request.

        Raises:
            httpx2.TransportError: There was no response, or in a handler a response with too large
                a body. A request of httpx fails with an `httpx.TransportError`.
            httpx2.DecodingError: In a handler, the body is encoded in another way than with gzip.
        """
        context = active_context()
        if context is None:
            return await send(self._inner_transport(), await _with_credentials(request))
        shared = context.served.shared
        bytes_max = shared.limits.requests.http_effect_bytes_max
        body = await request.aread()
        recorded = RecordedHttpRequest(
            request.method,
            str(request.url.copy_with(userinfo=b"")),
            _allowed(request.headers, REQUEST_HEADERS),
            _encoded_body(body) if len(body) <= bytes_max else OPAQUE,
        )
        effect: Effect[RecordedHttpResponse] = Effect(
            name=HTTP,
            arguments=functools.partial(encode_body, recorded),
            run=functools.partial(
                _send_and_read,
                self._inner_transport,
                request,
                bytes_max,
                context.caller.observation,
            ),
            codec=shared.effect_codecs.of(_send_and_read),
            is_counted=True,
            is_repeatable=request.method in _SAFE_METHODS,
        )
        library = library_of(request)
        # The error may have been recorded by a handler that used the other library.
        with errors_converted_to(library):
            response = await perform(context.caller, effect)
        given = response.body
        content = given.encode() if isinstance(given, str) else base64.b64decode(given.base64)
        return library.Response(
            response.status, headers=response.headers, content=content, request=request
        )

    async def aclose(self) -> None:
        """Close the inner transport, if there is one.

        In a handler that is an effect, because a replay has no connections that it could wait for.
        It is not cancelled: connections are closed in any case.
        """
        context = active_context()
        if context is None:
            await self._close_inner()
            return
        with trio.CancelScope(shield=True):
            await perform_plain(context.caller, HTTP_CLOSE, None, self._close_inner)

    async def _close_inner(self) -> None:
        if self._inner is not None:
            await self._inner.aclose()

    def _inner_transport(self) -> Any:
        if self._inner is None:
            self._inner = httpx2.AsyncHTTPTransport(verify=default_ssl_context())
        return self._inner


class _NoCookiesOfResponses(DefaultCookiePolicy):
    def set_ok(self, cookie: Cookie, request: Any) -> bool:  # noqa: ARG002
        return False


class EffectClient(httpx2.AsyncClient):
    """The HTTP client of handlers, `Context.http`: its requests are effects.

    The handlers of all users share it, so it keeps no cookies that responses set: it would send the
    cookie of one user with the requests of the others.
    """

    def __init__(self) -> None:
        cookies = CookieJar(_NoCookiesOfResponses())
        super().__init__(transport=EffectTransport(), cookies=cookies)

    async def send(
        self, request: httpx2.Request, *, auth: Any = httpx2.USE_CLIENT_DEFAULT, **options: Any
    ) -> httpx2.Response:
        """Send a request; `auth` may be an `httpx.Auth`."""
        if library_of(auth) not in {None, httpx2}:
            auth = converted_auth(httpx2, auth)
        return await super().send(request, auth=auth, **options)


async def _send_and_read(
    sender: Callable[[], Any], request: Any, bytes_max: int, observation: "Observation | None"
) -> RecordedHttpResponse:
    accepted = request.headers.get("accept-encoding", "")
    request.headers["Accept-Encoding"] = "gzip" if "gzip" in accepted.lower() else "identity"
    if observation is not None:
        for name, value in observation.trace_context().items():
            request.headers.setdefault(name, value)
    response = await send(sender(), await _with_credentials(request))
    try:
        body = await _read(response, request, bytes_max)
    finally:
        await response.aclose()
    headers = _allowed(response.headers, RESPONSE_HEADERS)
    return RecordedHttpResponse(response.status_code, headers, _encoded_body(body))


async def _with_credentials(request: Any) -> Any:
    """Return a request with the credentials that its extension adds, if it has one."""
    with_token = request.extensions.get(CREDENTIALS)
    return request if with_token is None else await with_token(request)


async def _read(response: Any, request: Any, bytes_max: int) -> bytes:
    """Return the decoded body, or raise an error of `EffectTransport.handle_async_request`."""
    library = library_of(request)
    too_large = library.ReadError(
        f"the response has more than {bytes_max} bytes (limits.requests.http_effect_bytes_max)"
    )
    if response.is_stream_consumed:  # by its transport, and decoded
        if len(response.content) > bytes_max:
            raise too_large
        return bytes(response.content)
    decompressor: Any = None
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding == "gzip":
        decompressor = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    elif encoding not in ("", "identity"):
        text = f"the response has Content-Encoding {encoding!r}; handlers decode only gzip"
        raise library.DecodingError(text)
    body = bytearray()
    is_over = False
    failure: Exception | None = None
    try:
        async for piece in response.aiter_raw():
            if is_over:
                break  # the stream goes on although it was closed
            try:
                if decompressor is None:
                    body += piece
                else:
                    await _decompress(decompressor, piece, body, bytes_max)
            except zlib.error as error:
                failure = library.DecodingError(f"the response cannot be decoded: {error}")
            if len(body) > bytes_max:
                failure = too_large
            # The decompressor would keep all that follows the end of the compressed data.
            has_trailing = decompressor is not None and bool(decompressor.unused_data)
            is_over = failure is not None or has_trailing
            if is_over:
                # The loop goes on until the closed stream ends by itself. Python warns of an async
                # generator that is left earlier.
                await response.aclose()
    except library.TransportError:
        if not is_over:
            raise
    if failure is not None:
        raise failure
    return bytes(body)


async def _decompress(decompressor: Any, piece: bytes, body: bytearray, bytes_max: int) -> None:
    """Append the decompressed piece to the body, until that is longer than `bytes_max`."""
    rest = piece
    while rest and len(body) <= bytes_max:
        body += decompressor.decompress(rest, MIB)
        rest = decompressor.unconsumed_tail
        if rest:
            await trio.lowlevel.checkpoint()


def _allowed(headers: Any, names: Container[str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.multi_items() if name in names]


def _encoded_body(body: bytes) -> str | Base64Body:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return Base64Body(base64.b64encode(body).decode())
