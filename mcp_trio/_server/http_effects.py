"""`EffectTransport`: HTTP requests of handlers as effects."""

import base64
import functools
from collections.abc import Callable, Container
from typing import Final

import httpx
import msgspec

from mcp_trio._journal.records import HTTP, encode_body
from mcp_trio._server.effects import OPAQUE, at_work
from mcp_trio._session.effects import Effect, perform
from mcp_trio._transports.http_client_requests import authorities

# --------------------
# HTTP as an effect: a transport for httpx, around the one that really sends.
#
# A record holds the method, the URL, the body and the headers of `REQUEST_HEADERS`; of the response
# the status, the decoded body and the headers of `RESPONSE_HEADERS`. So no credentials and no
# cookies get there. The handler's response is made of what the record holds, whether or not there
# is one.


REQUEST_HEADERS: Final = frozenset({"accept", "content-type"})
RESPONSE_HEADERS: Final = frozenset(
    {
        *("allow", "cache-control", "content-disposition", "content-language", "content-type"),
        *("date", "etag", "expires", "last-modified", "link", "location", "retry-after", "vary"),
    }
)


class Base64Body(msgspec.Struct, frozen=True):
    """A body that is no UTF-8."""

    base64: str


class RecordedHttpRequest(msgspec.Struct, frozen=True):
    """What is recorded of a request; a body over the limit is opaque."""

    method: str
    url: str
    headers: list[tuple[str, str]]
    body: str | Base64Body


class HttpResponse(msgspec.Struct, frozen=True):
    """What is recorded of a response, and all that a handler sees of it."""

    status: int
    headers: list[tuple[str, str]]
    body: str | Base64Body


class EffectTransport(httpx.AsyncBaseTransport):
    """Makes the requests of an `httpx.AsyncClient` effects of the handler that sends them.

        httpx.AsyncClient(transport=mcp_trio.http.EffectTransport())

    Outside of handlers, and inside of other effects, it does nothing by itself. In a handler
    responses are read whole, up to `limits.requests.http_effect_bytes_max`; what they hold beside
    status, body and some plain headers, such as cookies, is dropped, and so are extensions. `inner`
    sends: by default an `httpx.AsyncHTTPTransport` of its own, made when it is first needed.
    """

    def __init__(self, inner: httpx.AsyncBaseTransport | None = None) -> None:
        """Close the client, and `inner` is closed."""
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and wait for the response.

        Raises:
            httpx.TransportError: There was none; in a handler also if its body is too large.
        """
        current_context = at_work()
        if current_context is None:
            return await self._sender().handle_async_request(request)
        server = current_context.served.server
        bytes_max = server.limits.requests.http_effect_bytes_max
        told = _request(request, await request.aread(), bytes_max)
        effect: Effect[HttpResponse] = Effect(
            name=HTTP,
            arguments=functools.partial(encode_body, told),
            run=functools.partial(_send, self._sender, request, bytes_max),
            codec=server.effect_results.of(_send),
        )
        return _response(await perform(current_context.handling, effect), request)

    async def aclose(self) -> None:
        """Close what sends, if anything was sent."""
        if self._inner is not None:
            await self._inner.aclose()

    def _sender(self) -> httpx.AsyncBaseTransport:
        if self._inner is None:
            self._inner = httpx.AsyncHTTPTransport(verify=authorities())
        return self._inner


async def _send(
    sender: Callable[[], httpx.AsyncBaseTransport], request: httpx.Request, bytes_max: int
) -> HttpResponse:
    response = await sender().handle_async_request(request)
    try:
        body = await _read(response, request, bytes_max)
    finally:
        await response.aclose()
    headers = _allowed(response.headers, RESPONSE_HEADERS)
    return HttpResponse(response.status_code, headers, _told(body))


async def _read(response: httpx.Response, request: httpx.Request, bytes_max: int) -> bytes:
    """The decoded body.

    Raises:
        httpx.ReadError: It is too large.
    """
    body = bytearray()
    try:
        async for piece in response.aiter_bytes():
            if len(body) > bytes_max:
                break  # though it was closed
            body += piece
            if len(body) > bytes_max:
                # What is abandoned half-way, Python complains of; a closed stream ends by itself.
                await response.aclose()
    except httpx.TransportError:
        if len(body) <= bytes_max:
            raise
    if len(body) > bytes_max:
        text = (
            f"the response has more than {bytes_max} bytes (limits.requests.http_effect_bytes_max)"
        )
        raise httpx.ReadError(text, request=request)
    return bytes(body)


def _request(request: httpx.Request, body: bytes, bytes_max: int) -> RecordedHttpRequest:
    url = request.url.copy_with(userinfo=b"")
    headers = _allowed(request.headers, REQUEST_HEADERS)
    told = _told(body) if len(body) <= bytes_max else OPAQUE
    return RecordedHttpRequest(request.method, str(url), headers, told)


def _response(told: HttpResponse, request: httpx.Request) -> httpx.Response:
    content = _bytes(told.body)
    return httpx.Response(told.status, headers=told.headers, content=content, request=request)


def _allowed(headers: httpx.Headers, names: Container[str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.multi_items() if name in names]


def _told(body: bytes) -> str | Base64Body:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return Base64Body(base64.b64encode(body).decode())


def _bytes(body: str | Base64Body) -> bytes:
    return body.encode() if isinstance(body, str) else base64.b64decode(body.base64)
