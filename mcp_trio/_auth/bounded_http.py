"""HTTP requests of an authorization server, whose responses are read up to a number of bytes."""

from typing import TYPE_CHECKING, Any

from mcp_trio._protocol.http_headers import JSON

if TYPE_CHECKING:
    import httpx2


async def send_bounded(
    http: "httpx2.AsyncClient | None", method: str, url: str, *, bytes_max: int, **request: Any
) -> "tuple[int, httpx2.Headers, bytes | None]":
    """Send a request; return the status, the headers, and the body, or None if it is too large.

    Redirects are not followed, and the body is not decompressed. If this is cancelled, the
    connection is closed.

    Args:
        http: The HTTP client; None makes one for this request.
        method: The HTTP method.
        url: The URL.
        bytes_max: The maximum size of the body.
        request: Further arguments of `httpx2.AsyncClient.request`.

    Raises:
        httpx2.HTTPError: There is no response.
    """
    if http is None:
        import httpx2

        from mcp_trio._transports.http_client_requests import default_ssl_context

        async with httpx2.AsyncClient(verify=default_ssl_context()) as made:
            return await send_bounded(made, method, url, bytes_max=bytes_max, **request)
    headers = {"Accept": JSON, "Accept-Encoding": "identity", **request.pop("headers", {})}
    body = bytearray()
    async with http.stream(
        method, url, headers=headers, follow_redirects=False, **request
    ) as response:
        if response.is_stream_consumed:  # by the transport of the given client
            body += response.content
        else:
            await _read(response, body, bytes_max)
    is_large = len(body) > bytes_max
    return response.status_code, response.headers, None if is_large else bytes(body)


async def _read(response: "httpx2.Response", body: bytearray, bytes_max: int) -> None:
    """Read the body of a response, up to the piece with which it is too large."""
    import httpx2

    try:
        async for piece in response.aiter_raw():
            if len(body) <= bytes_max:
                body += piece
                if len(body) > bytes_max:
                    # The loop goes on until the closed stream ends by itself: Python warns of an
                    # async generator that is left earlier.
                    await response.aclose()
    except httpx2.TransportError:
        if len(body) <= bytes_max:
            raise
