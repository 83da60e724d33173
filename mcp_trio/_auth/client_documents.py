"""Metadata documents of clients, fetched from public addresses only.

The client id in an authorization request is a URL that anyone can choose, so a server that fetches
it could be made to send requests to services of its own network (SSRF). Therefore the name is
resolved here, each of its addresses has to be public, and the connection is made to one of the
addresses that were checked. Redirects are not followed; size and time are bounded.

https://datatracker.ietf.org/doc/draft-ietf-oauth-client-id-metadata-document/ (section 6.5)
https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

import attrs
import msgspec
import trio

from mcp_trio._auth.fetching import Fetcher, FetchError
from mcp_trio._auth.oauth_clients import InvalidClientError, OAuthClient, client_of_document
from mcp_trio._auth.urls import Address, closeness_of_address, literal_address
from mcp_trio._protocol.http_headers import is_json_type
from mcp_trio._protocol.rate_limits import Rate, TokenBuckets

if TYPE_CHECKING:
    import httpx2

BYTES_MAX: Final = 16 * 1024
SECONDS_MAX: Final = 5.0
FRESH_SECONDS: Final = 300.0
FAILED_SECONDS: Final = 10.0

_KEPT_MAX: Final = 1_000
_AT_ONCE: Final = 8
_RATE_PER_HOST: Final = Rate(per_minute=30, burst=10)
_PORT: Final = 443

# IPv6 addresses that lead to the IPv4 address in their last four bytes (RFC 6052).
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")

Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
"""Returns the addresses of a host name and a port."""


def is_public(address: Address) -> bool:
    """Return whether an address is public, and not an IPv4 address in another form."""
    if isinstance(address, ipaddress.IPv6Address):
        is_tunnel = address.sixtofour is not None or address.teredo is not None
        if is_tunnel or address.is_site_local or address in _NAT64:
            return False
    return closeness_of_address(address) == 0


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host name, as the system resolves it.

    Raises:
        OSError: The name has no address.
    """
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


@attrs.define(kw_only=True, eq=False, repr=False)
class ClientDocuments:
    """A fetcher of clients' metadata documents, with a cache.

    Attributes:
        http: The HTTP client; by default one is made for each request.
        resolve: Returns the addresses of a host name.
        allows: Returns whether an address may be connected to.
    """

    http: "httpx2.AsyncClient | None" = None
    resolve: Resolve = resolve
    allows: Callable[[Address], bool] = is_public
    # By URL: the time until which the outcome is used, and the outcome.
    _kept: OrderedDict[str, tuple[float, OAuthClient | InvalidClientError]] = attrs.field(
        factory=OrderedDict[str, tuple[float, OAuthClient | InvalidClientError]], init=False
    )
    _buckets: TokenBuckets = attrs.field(factory=TokenBuckets, init=False)
    _turn: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(_AT_ONCE), init=False
    )

    async def fetch(self, url: str) -> OAuthClient:
        """Return the client that the document at a URL describes.

        A document is used for `FRESH_SECONDS`, a failure for `FAILED_SECONDS`.

        Args:
            url: The client id: an https URL, which `is_document_url` accepts.

        Raises:
            InvalidClientError: The document cannot be fetched, or is not valid.
        """
        now = trio.current_time()
        kept = self._kept.get(url)
        if kept is None or kept[0] <= now:
            outcome: OAuthClient | InvalidClientError
            try:
                outcome = client_of_document(url, await self._document(url, now))
            except InvalidClientError as error:
                outcome = error
            is_valid = isinstance(outcome, OAuthClient)
            kept = (now + (FRESH_SECONDS if is_valid else FAILED_SECONDS), outcome)
            self._kept[url] = kept
            self._kept.move_to_end(url)
            if len(self._kept) > _KEPT_MAX:
                self._kept.popitem(last=False)
        if isinstance(kept[1], InvalidClientError):
            raise InvalidClientError(str(kept[1]))
        return kept[1]

    async def _document(self, url: str, now: float) -> Any:
        host = urlsplit(url).hostname or ""
        if self._buckets.take(host, _RATE_PER_HOST, now):
            raise InvalidClientError(f"too many metadata documents of {host} were asked for")
        try:
            with trio.fail_after(SECONDS_MAX):
                async with self._turn:
                    return await self._get(url)
        except trio.TooSlowError:
            text = f"no answer within {SECONDS_MAX:g} s"
        except FetchError as error:
            text = error.reason
        except OSError as error:
            text = str(error)
        raise InvalidClientError(f"the client's metadata document cannot be fetched: {text}")

    async def _get(self, url: str) -> Any:
        address = await self._address_of(url)
        parts = urlsplit(url)
        netloc = f"[{address}]" if ":" in address else address
        if parts.port is not None:
            netloc += f":{parts.port}"
        # The certificate has to be one for the name, although the address is connected to.
        fetched = await Fetcher(bytes_max=BYTES_MAX, client=self.http).send(
            "GET",
            parts._replace(netloc=netloc).geturl(),
            headers={"Host": parts.netloc},
            extensions={"sni_hostname": parts.hostname},
        )
        if fetched.status != HTTPStatus.OK:
            raise InvalidClientError(
                f"the client's metadata document has the HTTP status {fetched.status}"
            )
        if not is_json_type(fetched.headers.get("content-type")):
            raise InvalidClientError("the client's metadata document is not sent as JSON")
        try:
            return msgspec.json.decode(fetched.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise InvalidClientError("the client's metadata document is not JSON") from None

    async def _address_of(self, url: str) -> str:
        """Return an address of the host of a URL.

        Raises:
            InvalidClientError: One of the addresses is not allowed.
            OSError: The name has no address.
        """
        parts = urlsplit(url)
        host = parts.hostname or ""
        found = [host]
        if literal_address(host) is None:
            found = await self.resolve(host, parts.port or _PORT)
        for each in found:
            address = literal_address(each)
            if address is None or not self.allows(address):
                # The address itself would tell the sender about this network.
                raise InvalidClientError(
                    f"the client's metadata document is not fetched: {host} has an address that is"
                    " not public"
                )
        return found[0]
