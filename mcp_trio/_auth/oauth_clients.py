"""The clients of an authorization server: their metadata, redirect URIs and secrets.

A client is known in one of three ways: the operator has registered it, it has registered itself
(RFC 7591), or its client id is the URL of its metadata document, which `ClientDocuments` fetches.

https://www.rfc-editor.org/rfc/rfc7591
https://datatracker.ietf.org/doc/draft-ietf-oauth-client-id-metadata-document/
https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization
"""

import hashlib
import hmac
import ipaddress
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast
from urllib.parse import unquote, urlsplit

import attrs
import msgspec
import trio

from mcp_trio._auth.fetching import Fetcher, FetchError
from mcp_trio._auth.urls import IPAddress, closeness_of_address, literal_address
from mcp_trio._protocol.http_headers import is_json_type
from mcp_trio._protocol.security import LOOPBACK
from mcp_trio._protocol.shares import Rate, TokenBuckets, network_of

if TYPE_CHECKING:
    import httpx2

AuthMethod: TypeAlias = Literal["none", "client_secret_basic", "client_secret_post"]
"""A method of a client to authenticate at the token endpoint, by its name in RFC 8414."""

AUTH_METHODS: Final[Sequence[AuthMethod]] = ("none", "client_secret_basic", "client_secret_post")

GrantType: TypeAlias = Literal[
    "authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:jwt-bearer"
]
JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"

# The grants of all clients. Those that the operator has registered with a secret may use assertions
# as well: the assertion of another client would need its secret.
GRANT_TYPES: Final[Sequence[GrantType]] = ("authorization_code", "refresh_token")

_URIS_MAX: Final = 20
_URI_CHARS_MAX: Final = 2000
_NAME_CHARS_MAX: Final = 80

# Schemes of applications have other names (RFC 8252, section 7.1). Some browsers run or open what
# follows one of these.
_SCHEMES_REJECTED: Final = frozenset(
    {"about", "blob", "chrome", "content", "data", "file", "filesystem", "ftp", "intent"}
    | {"javascript", "mailto", "resource", "vbscript", "view-source", "ws", "wss"}
)
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")
_URI: Final = re.compile(r"[!$%&'()*+,./0-9:;=?@A-Z\[\]_a-z~-]+")

# Characters that are not shown, or change the direction of the text around them.
_HIDDEN: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]+"
)


UNAVAILABLE: Final = "temporarily_unavailable"


class InvalidClientError(ValueError):
    """The metadata of a client are not valid, or cannot be fetched.

    Attributes:
        code: The error code of RFC 7591, section 3.2.2; `UNAVAILABLE` if the metadata document of
            the client cannot be fetched now.
    """

    def __init__(self, text: str, code: str = "invalid_client_metadata") -> None:
        super().__init__(text)
        self.code = code


class OAuthClient(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client of the authorization server.

    Attributes:
        client_id: The client id.
        redirect_uris: The redirect URIs. A loopback URI without a port stands for all ports (RFC
            8252, section 7.3); all others have to be equal to the one in a request.
        name: The name to display; the client has chosen it, unless the operator has registered it.
        secret_digest: The SHA-256 digest of the secret; None for a client without a secret.
        auth_method: How the client authenticates at the token endpoint.
        grant_types: The grants that the client may use.
        is_trusted: Whether the operator has registered the client.
        created_at: The Unix time of the registration.
    """

    client_id: str
    redirect_uris: Sequence[str] = ()
    name: str | None = None
    secret_digest: str | None = None
    auth_method: AuthMethod = "none"
    grant_types: Sequence[GrantType] = GRANT_TYPES
    is_trusted: bool = False
    created_at: float = 0

    def accepts_redirect(self, uri: str) -> bool:
        """Return whether a redirect URI is one of the client's."""
        if uri in self.redirect_uris:
            return True
        if not _is_redirect_uri(uri) or not is_loopback_redirect(uri):
            return False
        parts = urlsplit(uri)
        if parts.port is None:
            return False
        without_port = parts._replace(netloc=parts.netloc.rpartition(":")[0]).geturl()
        return without_port in self.redirect_uris

    def has_secret(self, secret: str) -> bool:
        """Return whether this is the secret of the client, in a time that does not tell."""
        digest = self.secret_digest or ""
        return hmac.compare_digest(digest.encode(), sha256_hex(secret).encode())


def sha256_hex(secret: str) -> str:
    """Return the SHA-256 digest in hexadecimal, under which secrets are stored.

    The secrets have 256 random bits, and so need no salt.
    """
    return hashlib.sha256(secret.encode()).hexdigest()


def trusted_client(
    client_id: str,
    redirect_uris: Sequence[str],
    *,
    secret: str | None = None,
    name: str | None = None,
) -> OAuthClient:
    """Return a client that the operator registers, for `AuthorizationServer(clients=…)`.

    Args:
        client_id: The client id, of visible ASCII characters.
        redirect_uris: The redirect URIs.
        secret: The secret of a client that can keep one; it is not kept, only its digest.
        name: The name to display; by default the client id.

    Raises:
        ValueError: The client id or a redirect URI is not valid.
    """
    if not re.fullmatch(r"[!-~]+", client_id):
        raise ValueError(f"a client id has visible ASCII characters only: not {client_id!r}")
    return OAuthClient(
        client_id=client_id,
        redirect_uris=checked_redirect_uris(redirect_uris),
        name=name or client_id,
        secret_digest=None if secret is None else sha256_hex(secret),
        auth_method="none" if secret is None else "client_secret_basic",
        grant_types=GRANT_TYPES if secret is None else (*GRANT_TYPES, JWT_BEARER),
        is_trusted=True,
    )


def checked_redirect_uris(uris: Any) -> list[str]:
    """Return redirect URIs that clients may register.

    Raises:
        InvalidClientError: There are none or too many; or one is neither https, nor http on this
            machine, nor of an application's own scheme, or has a fragment or a user name.
    """
    code = "invalid_redirect_uri"
    if not isinstance(uris, list | tuple) or not 0 < len(cast("Sequence[Any]", uris)) <= _URIS_MAX:
        raise InvalidClientError(f"redirect_uris has to be a list of 1 to {_URIS_MAX} URIs", code)
    checked: list[str] = []
    for uri in cast("Sequence[Any]", uris):
        if not isinstance(uri, str) or not _is_redirect_uri(uri):
            raise InvalidClientError(
                f"{str(uri)[:200]!r} is not a redirect URI: it has to be https, http on this"
                " machine, or have the scheme of an application, without a fragment",
                code,
            )
        checked.append(uri)
    return checked


def _is_redirect_uri(uri: str) -> bool:
    if len(uri) > _URI_CHARS_MAX or not _URI.fullmatch(uri):
        return False
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if "@" in parts.netloc or not _SCHEME.fullmatch(parts.scheme):
        return False
    if parts.scheme == "https":
        return bool(host)
    if parts.scheme == "http":
        return host in LOOPBACK
    return parts.scheme not in _SCHEMES_REJECTED and uri.startswith(f"{parts.scheme}:/")


def is_loopback_redirect(uri: str) -> bool:
    """Return whether a redirect URI leads to a program on the user's machine."""
    parts = urlsplit(uri)
    return parts.scheme == "http" and parts.hostname in LOOPBACK


def shown_name(text: Any) -> str | None:
    """Return a name that a client has chosen, as it is displayed: short, and as plain text."""
    if not isinstance(text, str):
        return None
    name = " ".join(_HIDDEN.sub(" ", text).split())
    return f"{name[:_NAME_CHARS_MAX]}…" if len(name) > _NAME_CHARS_MAX else name or None


def _grant_types(metadata: Mapping[str, Any]) -> list[GrantType]:
    asked = metadata.get("grant_types", ["authorization_code"])
    if not isinstance(asked, list) or "authorization_code" not in asked:
        raise InvalidClientError("grant_types has to be a list with authorization_code")
    return [each for each in GRANT_TYPES if each in asked]


def registered_client(
    metadata: Mapping[str, Any], client_id: str, secret: str, *, now: float
) -> tuple[OAuthClient, dict[str, Any]]:
    """Return a client that registers itself, and the response to it (RFC 7591).

    `client_id` and `secret` are new; the secret is for a client that asks for one.

    Raises:
        InvalidClientError: The metadata are not valid.
    """
    method = metadata.get("token_endpoint_auth_method", "client_secret_basic")
    if method not in AUTH_METHODS:
        raise InvalidClientError(
            f"token_endpoint_auth_method has to be one of {', '.join(AUTH_METHODS)}"
        )
    if metadata.get("response_types", ["code"]) != ["code"]:
        raise InvalidClientError('response_types has to be ["code"]')
    has_secret = method != "none"
    client = OAuthClient(
        client_id=client_id,
        redirect_uris=checked_redirect_uris(metadata.get("redirect_uris")),
        name=shown_name(metadata.get("client_name")),
        secret_digest=sha256_hex(secret) if has_secret else None,
        auth_method=method,
        grant_types=_grant_types(metadata),
        created_at=now,
    )
    response = {
        "client_id": client_id,
        "client_id_issued_at": int(now),
        "redirect_uris": client.redirect_uris,
        "grant_types": client.grant_types,
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
    }
    if client.name is not None:
        response["client_name"] = client.name
    if has_secret:
        response |= {"client_secret": secret, "client_secret_expires_at": 0}
    return client, response


# Metadata documents -------------------------------------------------------------------------------


def is_document_url(client_id: str) -> bool:
    """Return whether a client id is the URL of a metadata document.

    It is an https URL with a path, and without a fragment, a user name and dot segments.
    """
    if not client_id.startswith("https://") or len(client_id) > _URI_CHARS_MAX:
        return False
    try:
        parts = urlsplit(client_id)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    return (
        _URI.fullmatch(client_id) is not None
        and bool(host)
        and "@" not in parts.netloc
        and parts.path not in {"", "/"}
        and {".", ".."}.isdisjoint(map(unquote, parts.path.split("/")))
    )


def client_of_document(url: str, document: Mapping[str, Any]) -> OAuthClient:
    """Return the client that a metadata document describes.

    Raises:
        InvalidClientError: The document is not valid, is of another client, or needs a secret,
            which a public document cannot have.
    """
    if document.get("client_id") != url:
        raise InvalidClientError(
            "the client_id in the client's metadata document is not the document's URL"
        )
    if document.get("token_endpoint_auth_method", "none") != "none":
        raise InvalidClientError(
            'token_endpoint_auth_method in the client\'s metadata document is not "none"'
        )
    if "client_secret" in document:
        raise InvalidClientError("the client's metadata document has a client_secret")
    return OAuthClient(
        client_id=url,
        redirect_uris=checked_redirect_uris(document.get("redirect_uris")),
        name=shown_name(document.get("client_name")),
        # Refresh tokens are rotated, so that a client without a secret may have them.
        grant_types=_grant_types({"grant_types": list(GRANT_TYPES), **document}),
    )


# Fetching metadata documents ----------------------------------------------------------------------
#
# Anyone can choose the client id in an authorization request, and it may be a URL, so a server that
# fetches it could be made to send requests to services of its own network (SSRF). Therefore the
# name is resolved here, each of its addresses has to be public, and the connection is made to one
# of the addresses that were checked. Redirects are not followed; size and time are bounded.

BYTES_MAX: Final = 16 * 1024
SECONDS_MAX: Final = 5.0
FRESH_SECONDS: Final = 300.0
FAILED_SECONDS: Final = 10.0
STALE_SECONDS: Final = 86_400.0

_KEPT_MAX: Final = 1_000
_AT_ONCE: Final = 8
_RATE_PER_HOST: Final = Rate(per_minute=30, burst=10)
_RATE_PER_SENDER: Final = Rate(per_minute=20, burst=5)  # so it never takes all of `_AT_ONCE`
_PORT: Final = 443

# All public IPv6 addresses (RFC 4291, section 2.4). Others, such as those of NAT64 (RFC 6052), may
# lead to the IPv4 address in their last four bytes.
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")

Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
"""Returns the addresses of a host name and a port."""


def is_public(address: IPAddress) -> bool:
    """Return whether an address is public, and not an IPv4 address in another form."""
    if isinstance(address, ipaddress.IPv6Address):
        is_tunnel = address.sixtofour is not None or address.teredo is not None
        if is_tunnel or address not in _GLOBAL_UNICAST:
            return False
    return closeness_of_address(address) == 0


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host name, as the system resolves it.

    Raises:
        OSError: The name has no address.
    """
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


@attrs.frozen
class _KeptOutcome:
    """The outcome of a fetch; it is used until `fresh_until`, without another fetch.

    A document is used until `stale_until` while it cannot be fetched again.
    """

    outcome: OAuthClient | InvalidClientError
    fresh_until: float
    stale_until: float

    @property
    def client(self) -> OAuthClient:
        """The client; a copy of the error is raised if the outcome is one."""
        if isinstance(self.outcome, InvalidClientError):
            raise InvalidClientError(str(self.outcome), self.outcome.code)
        return self.outcome


@attrs.define(kw_only=True, eq=False, repr=False)
class ClientDocuments:
    """A fetcher of clients' metadata documents, with a cache.

    Attributes:
        http: The HTTP client; by default one is made for each request.
        allows: Returns whether an address may be connected to.
    """

    http: "httpx2.AsyncClient | None" = None
    resolve: Resolve = resolve
    allows: Callable[[IPAddress], bool] = is_public
    # By URL; failures are first, so that they displace no document.
    _kept: OrderedDict[str, _KeptOutcome] = attrs.field(
        factory=OrderedDict[str, _KeptOutcome], init=False
    )
    # By URL: the end of the fetch that runs, for which all requests for this document wait.
    _fetching: dict[str, trio.Event] = attrs.field(factory=dict[str, trio.Event], init=False)
    _buckets: TokenBuckets = attrs.field(factory=TokenBuckets, init=False)
    _limiter: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(_AT_ONCE), init=False
    )

    async def fetch(self, url: str, sender: str | None = None) -> OAuthClient:
        """Return the client that the document at a URL describes.

        A document is used for `FRESH_SECONDS`, a failure for `FAILED_SECONDS`. A document that
        cannot be fetched again is used for `STALE_SECONDS`: senders can use up the rate of its host
        with URLs of documents that do not exist. One `sender`, an address, can use up only a part
        of that rate, and of the fetches at a time.

        Raises:
            InvalidClientError: The document cannot be fetched, or is not valid.
        """
        while (fetched := self._fetching.get(url)) is not None:
            await fetched.wait()
        now = trio.current_time()
        kept = self._kept.get(url)
        if kept is None or kept.fresh_until <= now:
            host = urlsplit(url).hostname or ""
            if self._buckets.take(
                ("sender", network_of(sender)), _RATE_PER_SENDER, now
            ) or self._buckets.take(("host", host), _RATE_PER_HOST, now):
                if kept is not None and now < kept.stale_until:
                    return kept.client
                text = f"too many metadata documents were asked for, of {host} or by one address"
                raise InvalidClientError(text, UNAVAILABLE)
            fetched = self._fetching[url] = trio.Event()
            try:
                client = await self._fetch(url)
                kept = _KeptOutcome(client, now + FRESH_SECONDS, now + STALE_SECONDS)
            except InvalidClientError as error:
                if error.code != UNAVAILABLE or kept is None or kept.stale_until <= now:
                    kept = _KeptOutcome(error, now, now)
                kept = attrs.evolve(kept, fresh_until=now + FAILED_SECONDS)
            finally:
                del self._fetching[url]
                fetched.set()
            self._kept[url] = kept
            self._kept.move_to_end(url, last=isinstance(kept.outcome, OAuthClient))
            if len(self._kept) > _KEPT_MAX:
                self._kept.popitem(last=False)
        return kept.client

    async def _fetch(self, url: str) -> OAuthClient:
        """Fetch a document within the limit of time, and return its client."""
        try:
            with trio.fail_after(SECONDS_MAX):
                async with self._limiter:
                    return client_of_document(url, await self._document(url))
        except trio.TooSlowError:
            text = f"no response within {SECONDS_MAX:g} s"
        except FetchError as error:
            text = error.reason
        except (OSError, UnicodeError) as error:  # UnicodeError: a part of the name is too long
            text = str(error)
        text = f"the client's metadata document cannot be fetched: {text}"
        raise InvalidClientError(text, UNAVAILABLE)

    async def _document(self, url: str) -> Mapping[str, Any]:
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
            text = f"the client's metadata document has the HTTP status {fetched.status}"
            if fetched.status == HTTPStatus.TOO_MANY_REQUESTS or fetched.status // 100 == 5:  # noqa: PLR2004
                raise InvalidClientError(text, UNAVAILABLE)
            raise InvalidClientError(text)
        if not is_json_type(fetched.headers.get("content-type")):
            raise InvalidClientError("the client's metadata document is not sent as JSON")
        try:
            return msgspec.json.decode(fetched.body, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise InvalidClientError(
                "the client's metadata document is not a JSON object"
            ) from None

    async def _address_of(self, url: str) -> str:
        """Return an address of the host of a URL, if all of its addresses are allowed."""
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
