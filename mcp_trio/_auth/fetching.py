"""Requests to authorization servers, which may be slow, broken or hostile.

Documents and keys are read up to a number of bytes and for a number of seconds, redirects are not
followed, and bodies are not decompressed.
"""

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import attrs
import msgspec
import trio

from mcp_trio._protocol.http_headers import JSON
from mcp_trio._protocol.security import is_loopback

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

_OK: Final = 200


class _ErrorResponse(msgspec.Struct):
    error: Annotated[str, msgspec.Meta(pattern=r"\A[a-z_]{1,40}\Z")]


class FetchError(Exception):
    """An authorization server gave no usable response.

    Attributes:
        reason: The reason, without the URL.
        status: The HTTP status of the response; None if there was none.
        oauth_error: The error code in the response (RFC 6749, section 5.2), if it has one.
    """

    def __init__(
        self, url: str, reason: str, status: int | None = None, oauth_error: str | None = None
    ) -> None:
        super().__init__(f"{url}: {reason}")
        self.reason = reason
        self.status = status
        self.oauth_error = oauth_error


def check_secure_url(url: str) -> None:
    """Check the URL of an authorization server: https, or http on this machine.

    Raises:
        ValueError: It has another scheme, a user name, or a fragment.
    """
    parts = urlsplit(url)  # raises a ValueError as well
    host = parts.hostname or ""
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
    if not is_safe or not host:
        raise ValueError(f"not an https URL, or an http URL of this machine: {url!r}")
    if "@" in parts.netloc or "#" in url:
        raise ValueError(f"a user name, or a fragment, is not allowed in {url!r}")


@attrs.frozen
class Fetched:
    """A complete response: its status, its headers by names in lower case, and its body."""

    status: int
    headers: Mapping[str, str] = attrs.field(repr=False)
    body: bytes = attrs.field(repr=False)


@attrs.frozen(kw_only=True, repr=False)
class Fetcher:
    """Sends HTTP requests whose responses are limited in size and time.

    Attributes:
        bytes_max: The maximum size of the body of a response.
        seconds_max: The maximum time of a request, from the name lookup to the end of the body.
        client: The HTTP client, for proxies or certificates of one's own; by default, one that is
            made for each request, since such requests are rare. A given one is not closed.
    """

    bytes_max: int = 256 * 1024
    seconds_max: float = 10.0
    client: "httpx2.AsyncClient | None" = None

    async def get_json(self, url: str, kind: type[T]) -> T:
        """Return a JSON document, decoded to `kind`.

        Raises:
            FetchError: The URL is not allowed; or there was no response with status 200 whose body
                is such a document, within the limits.
        """
        return decoded(url, await self.send("GET", url), kind)

    async def send(self, method: str, url: str, **request: Any) -> Fetched:
        """Send a request, and return the complete response, whatever its status is.

        If this is cancelled, the connection is closed.

        Raises:
            FetchError: The URL is not allowed; or there was no complete response within the limits.
        """
        from mcp_trio._transports.http_client_requests import bounded_body, default_ssl_context

        try:
            check_secure_url(url)
        except ValueError as error:
            raise FetchError(url, str(error)) from None
        import httpx2

        headers = {"Accept": JSON, "Accept-Encoding": "identity", **request.pop("headers", {})}
        request |= {"headers": headers, "follow_redirects": False, "timeout": self.seconds_max}
        try:
            with trio.fail_after(self.seconds_max):
                client = (
                    httpx2.AsyncClient(verify=default_ssl_context())
                    if self.client is None
                    else nullcontext(self.client)
                )
                async with client as http, http.stream(method, url, **request) as response:
                    body = await bounded_body(response, self.bytes_max)
        except trio.TooSlowError:
            raise FetchError(url, f"no response within {self.seconds_max} seconds") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise FetchError(url, str(error) or type(error).__name__) from error
        if body is None:
            text = f"the body has more than {self.bytes_max} bytes"
            raise FetchError(url, text, response.status_code)
        fields = {name.lower(): value for name, value in response.headers.items()}
        return Fetched(response.status_code, fields, body)


def decoded(url: str, fetched: Fetched, kind: type[T]) -> T:
    """Return the JSON document in a response, decoded to `kind`.

    Raises:
        FetchError: The status is not 200, or the body is not such a document.
    """
    if fetched.status != _OK:
        raise _error_of(url, fetched, f"HTTP status {fetched.status}")
    if fetched.headers.get("content-encoding", "").strip().lower() not in {"", "identity"}:
        raise FetchError(url, "a compressed response, which was not asked for", fetched.status)
    try:
        return msgspec.json.decode(fetched.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # GitHub sends error responses with status 200.
        raise _error_of(url, fetched, f"not a valid document: {error}") from error


def _error_of(url: str, fetched: Fetched, reason: str) -> FetchError:
    """Return the error about a response, with the OAuth error code in its body, if there is one."""
    code = None
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        code = msgspec.json.decode(fetched.body, type=_ErrorResponse).error
        reason += f", {code}"
    return FetchError(url, reason, fetched.status, code)


def authenticated_form(
    form: Mapping[str, str], client_id: str, client_secret: str, *, is_basic: bool
) -> dict[str, Any]:
    """Return the arguments of `Fetcher.send` for a form, by which a client authenticates itself.

    https://www.rfc-editor.org/rfc/rfc6749#section-2.3.1

    `is_basic` sends the id and the secret by the method "client_secret_basic", in a header;
    otherwise they are sent by "client_secret_post", in the form.
    """
    if is_basic:  # The RFC requires that both are form-encoded first.
        return {"data": form, "auth": (quote(client_id, safe=""), quote(client_secret, safe=""))}
    return {"data": {**form, "client_id": client_id, "client_secret": client_secret}}
