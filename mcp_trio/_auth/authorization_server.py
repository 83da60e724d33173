"""An authorization server for tests and small installations: its settings, keys and limits.

Users create an `AuthorizationServer`. This module has its settings, the clock, the random numbers,
the keys that sign tokens, and the rates of requests. `authorization_endpoints.py` has the
endpoints.
"""

import math
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

import attrs
import msgspec
import trio

from mcp_trio._auth.authorization_endpoints import (
    AUTHORIZE,
    ENDPOINTS,
    JWKS,
    PAGES,
    REGISTER,
    REVOKE,
    TOKEN,
    Endpoints,
    Login,
    OAuthError,
    error_response,
)
from mcp_trio._auth.authorization_storage import AuthorizationStorage, SqliteStorage
from mcp_trio._auth.challenges import checked_scopes
from mcp_trio._auth.consent_page import HttpResponse, error_page
from mcp_trio._auth.enterprises import Enterprise
from mcp_trio._auth.identity_provider import CALLBACK, GRANT_ID, IdentityProvider
from mcp_trio._auth.metadata import AUTHORIZATION_SERVER, OPENID_CONFIGURATION
from mcp_trio._auth.oauth_clients import ClientDocuments, OAuthClient
from mcp_trio._auth.verification import InvalidTokenError, auth_of_claims, check_claims
from mcp_trio._jsonrpc.channel_messages import AuthInfo
from mcp_trio._protocol.http_headers import HttpRequest
from mcp_trio._protocol.security import LOOPBACK
from mcp_trio._protocol.shares import Rate, TokenBuckets, network_of

if TYPE_CHECKING:
    import httpx2
    from joserfc.jwk import Key, KeyParameters

ALGORITHM: Final = "ES256"

BODY_BYTES_MAX: Final = 64 * 1024

# By path: the rate of requests from one address. A client id may have ten times the rate, from all
# addresses together.
RATES: Final[Mapping[str, Rate]] = {
    AUTHORIZE: Rate(60, 30),
    CALLBACK: Rate(60, 30),
    TOKEN: Rate(120, 60),
    REGISTER: Rate(10, 20),
    REVOKE: Rate(60, 30),
    JWKS: Rate(600, 100),
    AUTHORIZATION_SERVER: Rate(600, 100),
    OPENID_CONFIGURATION: Rate(600, 100),
}

# The kind and the key of the record with the signing keys in the storage.
_KEYS: Final = ("signing keys", "current")

# A key is published for this time before it signs; servers that verify tokens fetch the published
# keys more often. Processes that share a storage read it often enough to know each key by then.
_KEY_NOTICE_SECONDS: Final = 900.0
_KEYS_READ_SECONDS: Final = 60.0


@attrs.frozen
class SigningKey:
    """A key that signs tokens from a time on, until the next one does.

    `jwk` is the private key; `signs_from` is a Unix time.
    """

    jwk: dict[str, Any] = attrs.field(repr=False)
    signs_from: float


@attrs.define(kw_only=True, eq=False, repr=False)
class SigningKeys:
    """The keys that sign access tokens; each is replaced after some time.

    A key stays published, and verifies, until all tokens that it has signed have expired.

    Attributes:
        storage: The storage, which processes may share.
        key_seconds: The time for which a key signs.
        token_seconds: The lifetime of tokens.
    """

    storage: AuthorizationStorage
    now: Callable[[], float]
    key_seconds: float
    token_seconds: float
    _stored: Sequence[SigningKey] = attrs.field(default=(), init=False)
    _keys: "Sequence[Key]" = attrs.field(default=(), init=False)
    _read_at: float = attrs.field(default=-math.inf, init=False)

    async def published(self) -> "Sequence[Key]":
        """Return the keys that verify tokens, the oldest first."""
        now = self.now()
        if now - self._read_at >= _KEYS_READ_SECONDS or self._needs_key(self._stored, now):
            await self._update(lambda keys: self._rotated(keys, now), now)
        return self._keys

    async def sign(self, claims: Mapping[str, Any]) -> str:
        """Return an access token with these claims, signed with the key that signs now."""
        from joserfc import jwt

        keys, now = await self.published(), self.now()
        started = sum(each.signs_from <= now for each in self._stored)
        key = keys[max(started - 1, 0)]
        return jwt.encode({"alg": ALGORITHM, "typ": "at+jwt", "kid": key.kid}, dict(claims), key)

    async def claims_in(self, token: str) -> Mapping[str, Any] | None:
        """Return the claims of a token that one of the keys has signed, even if it has expired."""
        from joserfc import errors, jwt
        from joserfc.jwk import KeySet

        try:
            keys = KeySet([*await self.published()])
            return jwt.decode(token, keys, algorithms=[ALGORITHM]).claims
        except (errors.JoseError, ValueError, TypeError):
            return None

    async def replace(self) -> None:
        """Make a key that signs at once, and forget the others."""
        now = self.now()
        await self._update(lambda _: [self._new_key(now)], now)

    def _needs_key(self, keys: Sequence[SigningKey], now: float) -> bool:
        """Return whether another key has to be made, to sign after the last of these."""
        return not keys or now >= keys[-1].signs_from + self.key_seconds

    def _rotated(self, keys: Sequence[SigningKey], now: float) -> Sequence[SigningKey]:
        """Return the keys without those that have signed no valid token, and with the next one."""
        ends = [each.signs_from for each in keys[1:]]
        kept = [
            each
            for each, end in zip(keys, [*ends, math.inf], strict=False)
            if end + self.token_seconds > now
        ]
        if self._needs_key(kept, now):
            kept.append(self._new_key(now + _KEY_NOTICE_SECONDS if kept else now))
        return kept

    @staticmethod
    def _new_key(signs_from: float) -> SigningKey:
        from joserfc.jwk import ECKey

        parameters: KeyParameters = {"use": "sig", "alg": ALGORITHM}
        key = ECKey.generate_key("P-256", parameters, private=True, auto_kid=True)
        return SigningKey(dict(key.as_dict(private=True)), signs_from)

    async def _update(
        self, change: Callable[[Sequence[SigningKey]], Sequence[SigningKey]], now: float
    ) -> None:
        """Read the keys, and store the changed ones unless another process has changed them."""
        from joserfc.jwk import ECKey

        while True:
            stored = await self.storage.get(*_KEYS, now=now)
            before = () if stored is None else msgspec.json.decode(stored, type=list[SigningKey])
            after = change(before)
            if after == before or await self.storage.swap(
                *_KEYS, stored, msgspec.json.encode(after), now=now
            ):
                break
        self._stored, self._read_at = after, now
        self._keys = [ECKey.import_key(each.jwk) for each in after]


@attrs.frozen
class DevelopmentLogin:
    """A login for development: everyone is the user `subject`, and confirms each access by hand.

    The consent page has a warning about it. It is rejected unless the issuer is on this machine.
    """

    subject: str = "developer"

    async def __call__(self, _request: HttpRequest) -> str:
        """Return the user."""
        return self.subject


def _storage_of(
    value: AuthorizationStorage | str | os.PathLike[str] | None,
) -> AuthorizationStorage:
    if value is None or isinstance(value, str | os.PathLike):
        return SqliteStorage(value)
    return value


def _checked_issuer(issuer: str | None) -> str | None:
    if issuer is None:
        return None
    parts = urlsplit(issuer)
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)
    if not is_safe or not parts.hostname or "?" in issuer or "#" in issuer or "@" in parts.netloc:
        raise ValueError(
            "issuer= has to be an https URL, or an http URL of this machine, without a query and a"
            f" fragment, not {issuer!r}"
        )
    return issuer.rstrip("/")


def _scope_texts(scopes: Mapping[str, str] | Collection[str] | None) -> Mapping[str, str] | None:
    if scopes is None:
        return None
    checked_scopes(scopes)
    return {**scopes} if isinstance(scopes, Mapping) else dict.fromkeys(scopes, "")


@attrs.define(kw_only=True, eq=False, repr=False)
class AuthorizationServer:
    """An authorization server beside the MCP endpoint, for tests and small installations.

    It has the authorization code grant with PKCE, refresh tokens that are used once, registration
    of clients (RFC 7591), metadata documents of clients, and revocation. Its access tokens are
    JSON Web Tokens (RFC 9068), which any resource server can verify.

    Attributes:
        login: An async function that gets the request and returns the name of the user, or an
            `HttpResponse`, such as a redirect to a login page that returns to the URL of the
            request, or None; an `IdentityProvider`; for development, `DevelopmentLogin()`.
        issuer: The public URL of the server, such as "https://tools.example". By default the URL
            that is bound, which is for one machine alone.
        storage: The path of a SQLite file, which is created, or an `AuthorizationStorage`. By
            default all is kept in memory, and each start of the process has other keys.
        name: The name of the server on the consent page.
        scopes: The scopes, if there are more than those that tools, resources and prompts need;
            as a dict, with their descriptions for the consent page.
        clients: Clients that the operator has registered, made by `trusted_client`.
        enterprises: Enterprises whose identity provider decides about the access of their users
            (ID-JAG): clients of the operator with a secret exchange its assertions for tokens.
        has_registration: Whether clients may register themselves (RFC 7591).
        registrations_max: The maximum number of clients that have registered themselves.
        has_documents: Whether a client id may be the URL of a metadata document, which the server
            fetches, from public addresses only.
        http_client: The HTTP client for metadata documents, with its proxies and certificates.
        unused_seconds: The time after which a registration ends that has never been used.
        access_token_seconds: The lifetime of access tokens.
        refresh_token_seconds: The lifetime of a refresh token that is not used; a user who does
            not use a client for so long has to allow its access again.
        grant_seconds: The time after which a user has to log in again, however often a client has
            used its refresh tokens. A user whom an `IdentityProvider` does not know any more has
            access until then, unless the provider's tokens are kept.
        consent_seconds: The time for which the consent of a user is remembered.
        key_seconds: The time after which another key signs tokens; see `replace_keys`, too.
        rates: Rates of requests from one address, by path, in place of the defaults. One client id
            may have ten times the rate, from all addresses together.
        now: Returns the Unix time.
        random: Returns a new secret of 256 random bits, in Base64URL.

    Raises:
        ValueError: The issuer or a scope is not valid.
    """

    login: Login | IdentityProvider
    issuer: str | None = attrs.field(default=None, converter=_checked_issuer)
    storage: AuthorizationStorage = attrs.field(default=None, converter=_storage_of)
    name: str = "this server"
    scopes: Mapping[str, str] | None = attrs.field(default=None, converter=_scope_texts)
    clients: Sequence[OAuthClient] = ()
    enterprises: Sequence[Enterprise] = ()
    has_registration: bool = True
    registrations_max: int = 10_000
    has_documents: bool = True
    http_client: "httpx2.AsyncClient | None" = None
    unused_seconds: float = 86_400.0
    access_token_seconds: float = 900.0
    refresh_token_seconds: float = 30 * 86_400.0
    grant_seconds: float = 90 * 86_400.0
    consent_seconds: float = 365 * 86_400.0
    key_seconds: float = attrs.field(
        default=30 * 86_400.0, validator=attrs.validators.ge(2 * _KEY_NOTICE_SECONDS)
    )
    rates: Mapping[str, Rate] = attrs.field(factory=dict[str, Rate])
    now: Callable[[], float] = time.time
    random: Callable[[], str] = lambda: secrets.token_urlsafe(32)
    _endpoints: Endpoints | None = attrs.field(default=None, init=False)
    _keys: SigningKeys = attrs.field(init=False)
    _buckets: TokenBuckets = attrs.field(factory=TokenBuckets, init=False)
    _documents: ClientDocuments = attrs.field(init=False)
    _has_given_issuer: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._has_given_issuer = self.issuer is not None
        self._documents = ClientDocuments(http=self.http_client)
        self._keys = SigningKeys(
            storage=self.storage,
            now=self.now,
            key_seconds=self.key_seconds,
            token_seconds=self.access_token_seconds,
        )

    def bind(
        self,
        issuer: str,
        resources: Sequence[str],
        scopes: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """Set the issuer and the resources, which are known once the server listens.

        Args:
            issuer: The URL that is bound, for a server without `issuer=`.
            resources: The URLs of the MCP endpoint.
            scopes: Returns the scopes that tools, resources and prompts need.

        Raises:
            ValueError: `DevelopmentLogin` is not for an issuer that other machines can reach.
        """
        if self.issuer is None or not self._has_given_issuer:
            self.issuer = issuer
        is_development = isinstance(self.login, DevelopmentLogin)
        if is_development and urlsplit(self.issuer).hostname not in LOOPBACK:
            raise ValueError(
                f"DevelopmentLogin lets everyone in, and {self.issuer} is not on this machine: give"
                " another login="
            )
        if isinstance(self.login, IdentityProvider):
            self.login.bind(self, self._login_of)
        described = self.scopes or {}
        self._endpoints = Endpoints(
            server=self,
            issuer=self.issuer,
            resources=resources,
            keys=self._keys,
            documents=self._documents if self.has_documents else None,
            clients={client.client_id: client for client in self.clients},
            enterprises={each.issuer: each for each in self.enterprises},
            scopes=lambda: {*described, *scopes()},
            is_development=is_development,
        )

    @property
    def endpoints(self) -> Endpoints:
        """The endpoints.

        Raises:
            RuntimeError: The server does not listen yet.
        """
        if self._endpoints is None:
            raise RuntimeError("this authorization server is not served yet")
        return self._endpoints

    @property
    def methods(self) -> Mapping[str, Collection[str]]:
        """The HTTP methods of the endpoints, by path."""
        has_callback = isinstance(self.login, IdentityProvider)
        return {
            path: [*methods]
            for path, methods in ENDPOINTS.items()
            if path != CALLBACK or has_callback
        }

    async def respond(self, request: HttpRequest, body: bytes) -> HttpResponse:
        """Return the response to a request with a body of at most `BODY_BYTES_MAX` bytes.

        Too many requests from one address or for one client are answered with 429.
        """
        seconds = math.ceil(self._seconds_to_wait(request, body))
        if not seconds:
            return await self.endpoints.respond(request, body)
        text = f"too many requests: try again in {seconds} s"
        retry = ("Retry-After", str(seconds))
        status = HTTPStatus.TOO_MANY_REQUESTS
        if request.path in PAGES:
            return error_page(text, status=status, headers=[retry])
        response = error_response(OAuthError("temporarily_unavailable", text), request)
        return HttpResponse(status, [*response.headers, retry], response.body)

    def _seconds_to_wait(self, request: HttpRequest, body: bytes) -> float:
        path, now = request.path, trio.current_time()
        rate = self.rates.get(path) or RATES[path]
        seconds = self._buckets.take((path, "address", network_of(request.client)), rate, now)
        client_id = _client_id_in(request, body)
        if seconds or client_id is None:
            return seconds
        # Clients with a metadata document share their id among all users.
        rate = attrs.evolve(rate, per_minute=rate.per_minute * 10, burst=rate.burst * 10)
        return self._buckets.take((path, "client", client_id), rate, now)

    # The keys.

    async def replace_keys(self) -> None:
        """Sign tokens with a new key from now on, and end all earlier access tokens.

        Clients get new ones with their refresh tokens. Use it if a key has become known to others.
        Other processes with the same storage know the new key a minute later, at most.
        """
        await self._keys.replace()

    async def jwks(self) -> Mapping[str, Any]:
        """Return the public keys, as a JSON Web Key Set."""
        return {"keys": [key.as_dict(private=False) for key in await self._keys.published()]}

    async def _login_of(self, grant_id: str) -> str | None:
        grant = await self.endpoints.grant(grant_id)
        return None if grant is None else grant.login_id

    async def verify(self, token: str) -> AuthInfo:
        """Return the facts about a valid access token; this makes the object a `TokenVerifier`.

        Raises:
            InvalidTokenError: The token is not one of this server, has expired, or is revoked.
        """
        claims = await self._keys.claims_in(token)
        if claims is None:
            raise InvalidTokenError("the token is signed by no key of this server")
        check_claims(claims, issuer=self.endpoints.issuer, now=self.now())
        if await self.endpoints.grant(str(claims.get(GRANT_ID))) is None:
            raise InvalidTokenError("the token is revoked")
        return auth_of_claims(claims)


def _client_id_in(request: HttpRequest, body: bytes) -> str | None:
    """Return the client id that a request names, unverified."""
    text = request.query if request.method == "GET" else body.decode("latin-1")
    values = parse_qs(text[:BODY_BYTES_MAX]).get("client_id")
    return values[0] if values else None
