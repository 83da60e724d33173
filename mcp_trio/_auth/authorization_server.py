"""An authorization server for tests and small installations.

Users create an `AuthorizationServer`, which has the settings, the keys that sign tokens, and the
rates of requests, and answers the requests to its endpoints. The clock, the random values, the
storage and the login of users are settings, so every rule is tested without a socket.

A user's approval makes a *grant*. Its code, and then each of its refresh tokens, can be used once.
If one of them is used twice, it was stolen, and the grant ends, with all its tokens.

https://datatracker.ietf.org/doc/draft-ietf-oauth-v2-1/
https://www.rfc-editor.org/rfc/rfc8414 (metadata)
https://www.rfc-editor.org/rfc/rfc7009 (revocation)
https://www.rfc-editor.org/rfc/rfc9700 (security)
"""

import base64
import hmac
import logging
import math
import os
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, TypeVar
from urllib.parse import parse_qs, parse_qsl, unquote_plus, urlsplit

import attrs
import msgspec
import trio

from mcp_trio._auth.authorization_storage import AuthorizationStorage, SqliteStorage
from mcp_trio._auth.challenges import checked_scopes
from mcp_trio._auth.consent_page import (
    HttpResponse,
    consent_page,
    cookie_of,
    error_page,
    set_cookie,
)
from mcp_trio._auth.enterprises import (
    ID_JAG_PROFILE,
    Enterprise,
    InvalidAssertionError,
    issuer_in,
)
from mcp_trio._auth.identity_provider import (
    CALLBACK,
    GRANT_ID,
    LOGIN_SECONDS,
    IdentityProvider,
    LoginSession,
)
from mcp_trio._auth.issuers import VerifierUnavailableError
from mcp_trio._auth.metadata import (
    AUTHORIZATION_SERVER,
    OPENID_CONFIGURATION,
    AuthorizationServerMetadata,
)
from mcp_trio._auth.oauth_clients import (
    AUTH_METHODS,
    JWT_BEARER,
    UNAVAILABLE,
    ClientDocuments,
    InvalidClientError,
    OAuthClient,
    is_document_url,
    registered_client,
    sha256_hex,
)
from mcp_trio._auth.provider_tokens import ProviderError
from mcp_trio._auth.urls import with_query
from mcp_trio._auth.verification import (
    InvalidTokenError,
    auth_of_claims,
    check_claims,
    checked_subject,
)
from mcp_trio._jsonrpc.channel_messages import AuthInfo
from mcp_trio._protocol.http_headers import JSON, HttpRequest, media_type_of
from mcp_trio._protocol.security import LOOPBACK, sha256_base64url
from mcp_trio._protocol.shares import Rate, TokenBuckets, network_of

if TYPE_CHECKING:
    import httpx2
    from joserfc.jwk import Key, KeyParameters

logger = logging.getLogger("mcp_trio")

T = TypeVar("T")
OneTime = TypeVar("OneTime", "Code", "RefreshToken")

AUTHORIZE: Final = "/authorize"
TOKEN: Final = "/token"  # noqa: S105  no secret
REGISTER: Final = "/register"
REVOKE: Final = "/revoke"
JWKS: Final = "/jwks"

ALGORITHM: Final = "ES256"

BODY_BYTES_MAX: Final = 64 * 1024

# How long an authorization request waits for the user's decision, and how long a code is valid.
PENDING_SECONDS: Final = 600.0
CODE_SECONDS: Final = 60.0

# The kind of the storage's records of assertions that were used.
_ASSERTION: Final = "assertion"

# The cookie that binds the consent page to a browser.
_COOKIE: Final = "mcp-authorization"

_PARAMETERS_MAX: Final = 50
_FORM: Final = "application/x-www-form-urlencoded"
_VERIFIER: Final = re.compile(r"[A-Za-z0-9._~-]{43,128}")

# The HTTP status for each error code: RFC 6749, sections 4.1.2.1 and 5.2, RFC 7591, section 3.2.2,
# RFC 8707, section 2.
_STATUSES: Final[Mapping[str, int]] = {
    "invalid_request": 400,
    "invalid_client": 401,
    "invalid_grant": 400,
    "unauthorized_client": 400,
    "unsupported_grant_type": 400,
    "unsupported_response_type": 400,
    "invalid_scope": 400,
    "invalid_target": 400,
    "invalid_redirect_uri": 400,
    "invalid_client_metadata": 400,
    "access_denied": 403,
    UNAVAILABLE: 503,
}
# No user can correct the credentials of a client, so a page does not ask for them with status 401.
_PAGE_STATUSES: Final = {**_STATUSES, "invalid_client": 400}


class OAuthError(Exception):
    """A request is answered with an OAuth error; the code is one of `_STATUSES`."""

    def __init__(self, code: str, description: str) -> None:
        super().__init__(description)
        self.code = code
        self.description = description


# Records ------------------------------------------------------------------------------------------


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A user's approval: the client, the scopes and the resource for which it gets tokens.

    Attributes:
        has_refresh: Whether the client also gets refresh tokens.
        ends_at: The Unix time at which the grant ends, however often it was refreshed.
        login_id: The login at the identity provider whose tokens this server keeps; the grant ends
            with it. None if no tokens are kept.
    """

    subject: str
    client_id: str
    scopes: Sequence[str]
    resource: str
    has_refresh: bool
    ends_at: float
    login_id: str | None = None


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """An authorization code, stored under its digest."""

    grant_id: str
    client_id: str
    redirect_uri: str
    challenge: str
    is_used: bool = False


class RefreshToken(msgspec.Struct, frozen=True, kw_only=True):
    """A refresh token, stored under its digest."""

    grant_id: str
    client_id: str
    is_used: bool = False


class AuthorizationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A valid authorization request, which waits for the decision of the user.

    The subject is None while the user has not logged in at the identity provider.
    """

    client_id: str
    redirect_uri: str
    state: str | None
    challenge: str
    scopes: Sequence[str]
    resource: str
    subject: str | None = None
    login_id: str | None = None
    cookie_digest: str = ""

    def consent_key(self) -> str:
        """Return the key of the user's consent to one client, redirect URI and resource."""
        parts = (self.subject, self.client_id, self.redirect_uri, self.resource)
        return sha256_hex(msgspec.json.encode(parts).decode())


class Consent(msgspec.Struct, frozen=True, kw_only=True):
    """The scopes that a user has allowed a client before."""

    scopes: Sequence[str]


# The kind of each record in the storage.
KINDS: Final[Mapping[type[Any], str]] = {
    OAuthClient: "client",
    Grant: "grant",
    Code: "code",
    RefreshToken: "refresh token",
    AuthorizationRequest: "authorization request",
    Consent: "consent",
}


# Requests and logins ------------------------------------------------------------------------------


def _parameters(text: str) -> dict[str, str]:
    """Return the parameters; RFC 6749, section 3.1: an empty one counts as absent."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_PARAMETERS_MAX)
    except ValueError:
        raise OAuthError("invalid_request", "there are too many parameters") from None
    parameters: dict[str, str] = {}
    for name, value in pairs:
        if name in parameters:
            raise OAuthError("invalid_request", f"the parameter {name[:100]} occurs twice")
        parameters[name] = value
    return {name: value for name, value in parameters.items() if value}


def _form_in(request: HttpRequest, body: bytes) -> dict[str, str]:
    """Return the parameters in the body of a request."""
    if media_type_of(request.header("content-type")) != _FORM:
        raise OAuthError("invalid_request", f"the body has to be {_FORM}")
    try:
        return _parameters(body.decode())
    except UnicodeDecodeError:
        raise OAuthError("invalid_request", "the body is not UTF-8") from None


_Endpoint: TypeAlias = Callable[[Any, HttpRequest, bytes], Awaitable[HttpResponse]]

Login: TypeAlias = Callable[[HttpRequest], Awaitable[str | HttpResponse | None]]
"""Returns the user who sent a request; a response, such as a redirect to a login page; or None.

It is called for the authorization request, and for the form of the consent page. A login page
returns to the URL of the authorization request.
"""


@attrs.frozen
class DevelopmentLogin:
    """A login for development: everyone is the user `subject`, and confirms each access by hand.

    The consent page has a warning about it. It is rejected unless the issuer is on this machine.
    """

    subject: str = "developer"

    async def __call__(self, _request: HttpRequest) -> str:
        """Return the user."""
        return self.subject


# The keys -----------------------------------------------------------------------------------------

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

    A key signs for `key_seconds`. It stays published, and verifies, until all tokens that it has
    signed have expired.
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


PAGES: Final = frozenset({AUTHORIZE, CALLBACK})
"""The paths that a user sees, whose errors are pages."""

# By path: the rate of requests from one address. A client id may have ten times the rate, from all
# addresses together. In `unused_seconds` one address can register fewer clients than
# `registrations_max`.
RATES: Final[Mapping[str, Rate]] = {
    AUTHORIZE: Rate(60, 30),
    CALLBACK: Rate(60, 30),
    TOKEN: Rate(120, 60),
    REGISTER: Rate(5, 20),
    REVOKE: Rate(60, 30),
    JWKS: Rate(600, 100),
    AUTHORIZATION_SERVER: Rate(600, 100),
    OPENID_CONFIGURATION: Rate(600, 100),
}


def redirect_to(url: str, *headers: tuple[str, str]) -> HttpResponse:
    """Return a redirect that the browser follows by GET, without the form that it has sent."""
    location = [("Location", url), ("Cache-Control", "no-store"), *headers]
    return HttpResponse(HTTPStatus.SEE_OTHER, location)


def json_response(value: Any, *, status: int = HTTPStatus.OK) -> HttpResponse:
    """Return a response with a JSON body that no cache keeps."""
    headers = [("Content-Type", JSON), ("Cache-Control", "no-store")]
    return HttpResponse(status, headers, msgspec.json.encode(value))


def error_response(error: OAuthError, request: HttpRequest) -> HttpResponse:
    """Return the response of an endpoint for clients that reports an error (RFC 6749, 5.2)."""
    body = {"error": error.code, "error_description": error.description}
    response = json_response(body, status=_STATUSES[error.code])
    if error.code != "invalid_client" or "authorization" not in request.headers:
        return response
    challenge = ("WWW-Authenticate", 'Basic realm="token"')
    return attrs.evolve(response, headers=[*response.headers, challenge])


def _basic_credentials(request: HttpRequest) -> tuple[str, str] | None:
    """Return the client id and secret in a header; both are form-encoded (RFC 6749, 2.3.1)."""
    value = request.header("authorization")
    if value is None:
        return None
    scheme, _, encoded = value.partition(" ")
    try:
        text = base64.b64decode(encoded, validate=True).decode()
    except ValueError:  # not Base64, or not UTF-8
        text = ""
    client_id, colon, secret = text.partition(":")
    if scheme.lower() != "basic" or not colon:
        raise OAuthError("invalid_client", "the Authorization header has to be Basic")
    return unquote_plus(client_id), unquote_plus(secret)


# The server ---------------------------------------------------------------------------------------


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
    _keys: SigningKeys = attrs.field(init=False)
    _buckets: TokenBuckets = attrs.field(factory=TokenBuckets, init=False)
    _documents: ClientDocuments = attrs.field(init=False)
    _has_given_issuer: bool = attrs.field(init=False)
    # Set by `bind`. The first resource is the default.
    _trusted: Mapping[str, OAuthClient] = attrs.field(init=False)
    _enterprises: Mapping[str, Enterprise] = attrs.field(init=False)
    _resources: Sequence[str] = attrs.field(default=(), init=False)
    _known_scopes: Callable[[], Collection[str]] = attrs.field(default=tuple, init=False)

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
        self._trusted = {client.client_id: client for client in self.clients}
        self._enterprises = {each.issuer: each for each in self.enterprises}
        self._resources = resources
        described = self.scopes or {}
        self._known_scopes = lambda: {*described, *scopes()}

    @property
    def _bound_issuer(self) -> str:
        """The issuer, without a slash at its end; a RuntimeError before the server listens."""
        if self.issuer is None or not self._resources:
            raise RuntimeError("this authorization server is not served yet")
        return self.issuer

    @property
    def methods(self) -> Mapping[str, Collection[str]]:
        """The HTTP methods of the endpoints, by path."""
        has_callback = isinstance(self.login, IdentityProvider)
        return {
            path: [*methods]
            for path, methods in self._ENDPOINTS.items()
            if path != CALLBACK or has_callback
        }

    async def respond(self, request: HttpRequest, body: bytes) -> HttpResponse:
        """Return the response to a request with a body of at most `BODY_BYTES_MAX` bytes.

        Too many requests from one address or for one client are answered with 429.
        """
        seconds = math.ceil(self._seconds_to_wait(request, body))
        if not seconds:
            return await self._respond(request, body)
        text = f"too many requests: try again in {seconds} s"
        retry = ("Retry-After", str(seconds))
        status = HTTPStatus.TOO_MANY_REQUESTS
        if request.path in PAGES:
            return error_page(text, status=status, headers=[retry])
        response = error_response(OAuthError(UNAVAILABLE, text), request)
        return HttpResponse(status, [*response.headers, retry], response.body)

    async def _respond(self, request: HttpRequest, body: bytes) -> HttpResponse:
        """Return the response to a request for a path of `_ENDPOINTS`."""
        methods = self._ENDPOINTS[request.path]
        endpoint = methods.get(request.method)
        if endpoint is None:
            allow = ("Allow", ", ".join(methods))
            return HttpResponse(HTTPStatus.METHOD_NOT_ALLOWED, [allow])
        try:
            return await endpoint(self, request, body)
        except OAuthError as error:
            if request.path in PAGES:
                return error_page(error.description, status=_PAGE_STATUSES[error.code])
            return error_response(error, request)

    def _seconds_to_wait(self, request: HttpRequest, body: bytes) -> float:
        path, now = request.path, trio.current_time()
        rate = self.rates.get(path) or RATES[path]
        seconds = self._buckets.take((path, "address", network_of(request.client)), rate, now)
        text = request.query if request.method == "GET" else body.decode("latin-1")
        client_ids = parse_qs(text[:BODY_BYTES_MAX]).get("client_id")  # unverified
        if seconds or not client_ids:
            return seconds
        # Clients with a metadata document share their id among all users.
        rate = attrs.evolve(rate, per_minute=rate.per_minute * 10, burst=rate.burst * 10)
        return self._buckets.take((path, "client", client_ids[0]), rate, now)

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
        grant = await self._grant(grant_id)
        return None if grant is None else grant.login_id

    async def verify(self, token: str) -> AuthInfo:
        """Return the facts about a valid access token; this makes the object a `TokenVerifier`.

        Raises:
            InvalidTokenError: The token is not one of this server, has expired, or is revoked.
        """
        claims = await self._keys.claims_in(token)
        if claims is None:
            raise InvalidTokenError("the token is signed by no key of this server")
        check_claims(claims, issuer=self._bound_issuer, now=self.now())
        if await self._grant(str(claims.get(GRANT_ID))) is None:
            raise InvalidTokenError("the token is revoked")
        return auth_of_claims(claims)

    # Records.

    async def _get(self, kind: type[T], key: str) -> tuple[T, bytes] | None:
        """Return a record, decoded and as it is stored."""
        stored = await self.storage.get(KINDS[kind], key, now=self.now())
        return None if stored is None else (msgspec.json.decode(stored, type=kind), stored)

    async def _store(
        self, key: str, record: Any, *, seconds: float, old: bytes | None = None
    ) -> bool:
        """Store a record in place of `old`; return False if another request was faster.

        Without `old`, the record is new. Only a consent has a key that is not random.
        """
        kind, stored, now = KINDS[type(record)], msgspec.json.encode(record), self.now()
        return await self.storage.swap(kind, key, old, stored, now=now, expires_at=now + seconds)

    async def _end_grant(self, grant_id: str) -> None:
        """End a grant: none of its tokens is valid any more."""
        storage, kind, now = self.storage, KINDS[Grant], self.now()
        while (found := await self._get(Grant, grant_id)) is not None:
            if await storage.swap(kind, grant_id, found[1], None, now=now):
                return

    async def _grant(self, grant_id: str) -> Grant | None:
        """Return a grant; None if it has ended."""
        found = await self._get(Grant, grant_id)
        if found is None:
            return None
        login = self.login
        if isinstance(login, IdentityProvider) and not await login.is_alive(found[0].login_id):
            return None
        return found[0]

    async def _client(self, client_id: str, request: HttpRequest) -> OAuthClient | None:
        """Return the client that a request names: of the operator, a document or a registration."""
        trusted = self._trusted.get(client_id)
        if trusted is not None:
            return trusted
        if self.has_documents and is_document_url(client_id):
            try:
                return await self._documents.fetch(client_id, request.client)
            except InvalidClientError as error:
                # A client discards its tokens after `invalid_client`.
                code = error.code if error.code == UNAVAILABLE else "invalid_client"
                raise OAuthError(code, str(error)) from None
        found = await self._get(OAuthClient, client_id)
        return None if found is None else found[0]

    async def _prolong_registration(self, client: OAuthClient) -> None:
        """Let the registration of a client expire later than the code or tokens it has just got."""
        found = await self._get(OAuthClient, client.client_id)
        if found is not None:
            seconds = self.refresh_token_seconds + self.unused_seconds
            await self._store(client.client_id, client, seconds=seconds, old=found[1])

    # The authorization endpoint.

    async def _authorize(self, request: HttpRequest, _body: bytes) -> HttpResponse:
        """Answer an authorization request with the consent page, or with a code.

        Errors are shown to the user. They are sent by a redirect only to a client that the operator
        has registered, because any other client could use that redirect to send the users of this
        server to any URL (RFC 9700, section 4.11.2).
        """
        parameters = _parameters(request.query)
        client_id = parameters.get("client_id")
        client = None if client_id is None else await self._client(client_id, request)
        if client is None:
            text = "The application is not known here, or not any more: let it register again."
            return error_page(text)
        redirect_uri = parameters.get("redirect_uri")
        if redirect_uri is None or not client.accepts_redirect(redirect_uri):
            return error_page("The application has not registered the address to return to.")
        try:
            auth_request = self._valid_request(client, redirect_uri, parameters)
        except OAuthError as error:
            values = {"error": error.code, "error_description": error.description}
            url = self._redirect_url(redirect_uri, parameters.get("state"), values)
            if client.is_trusted:
                return redirect_to(url)
            return error_page(error.description, back=url)
        user = await self._user(request)
        if isinstance(user, HttpResponse):
            return user
        if user is not None:
            auth_request = msgspec.structs.replace(
                auth_request, subject=user.subject, login_id=user.login_id
            )
            if await self._has_consent(auth_request):
                return await self._redirect_with_code(client, auth_request)
        elif not isinstance(self.login, IdentityProvider):
            return error_page("You are not signed in.", status=HTTPStatus.FORBIDDEN)
        return await self._ask_for_consent(client, auth_request, request)

    async def _user(self, request: HttpRequest) -> LoginSession | HttpResponse | None:
        """Return the user of a request, or a login page, or None if there is no login."""
        if isinstance(self.login, IdentityProvider):
            return await self.login.session(request)
        user = await self.login(request)
        if isinstance(user, HttpResponse):
            return user
        subject = checked_subject(user, "login=")
        return None if subject is None else LoginSession(subject=subject)

    def _valid_request(
        self, client: OAuthClient, redirect_uri: str, parameters: Mapping[str, str]
    ) -> AuthorizationRequest:
        """Return the authorization request in parameters."""
        if parameters.get("response_type") != "code":
            raise OAuthError("unsupported_response_type", "response_type has to be code")
        challenge = parameters.get("code_challenge")
        if challenge is None or not _VERIFIER.fullmatch(challenge):
            raise OAuthError("invalid_request", "code_challenge is missing or malformed (PKCE)")
        if parameters.get("code_challenge_method") != "S256":
            raise OAuthError("invalid_request", "code_challenge_method has to be S256")
        return AuthorizationRequest(
            client_id=client.client_id,
            redirect_uri=redirect_uri,
            state=parameters.get("state"),
            challenge=challenge,
            scopes=self._scopes_in(parameters, self._known_scopes()),
            resource=self._resource_in(parameters),
        )

    def _scopes_in(self, parameters: Mapping[str, str], known: Collection[str]) -> Sequence[str]:
        """Return the known scopes that are asked for; all, if none are named."""
        scope_text = parameters.get("scope")
        if scope_text is None:
            return sorted(known)
        scopes = [scope for scope in dict.fromkeys(scope_text.split(" ")) if scope in known]
        if known and not scopes:
            raise OAuthError("invalid_scope", "none of the scopes is known here")
        return scopes

    def _resource_in(self, parameters: Mapping[str, str]) -> str:
        """Return the resource that is named (RFC 8707), or the default."""
        url = parameters.get("resource")
        if url is None:
            return self._resources[0]
        for resource in self._resources:
            if resource.rstrip("/") == url.rstrip("/"):
                return resource
        raise OAuthError("invalid_target", "no tokens are issued here for this resource")

    async def _has_consent(self, auth_request: AuthorizationRequest) -> bool:
        """Return whether the user has allowed this before, and need not be asked again.

        Without https the redirect may reach another program than before (RFC 8252, section 8.6).
        """
        is_development = isinstance(self.login, DevelopmentLogin)
        if is_development or not auth_request.redirect_uri.startswith("https:"):
            return False
        found = await self._get(Consent, auth_request.consent_key())
        return found is not None and set(auth_request.scopes) <= set(found[0].scopes)

    async def _ask_for_consent(
        self, client: OAuthClient, auth_request: AuthorizationRequest, request: HttpRequest
    ) -> HttpResponse:
        """Return the consent page, whose form is accepted from this browser only."""
        cookie = cookie_of(request, _COOKIE, self._bound_issuer) or self.random()
        request_id = self.random()
        auth_request = msgspec.structs.replace(auth_request, cookie_digest=sha256_hex(cookie))
        key = sha256_hex(request_id)
        await self._store(key, auth_request, seconds=PENDING_SECONDS)
        return consent_page(
            client,
            auth_request,
            self,
            action=f"{self._bound_issuer}{AUTHORIZE}",
            request_id=request_id,
            is_development=isinstance(self.login, DevelopmentLogin),
            headers=[set_cookie(_COOKIE, cookie, self._bound_issuer, PENDING_SECONDS)],
        )

    async def _decide(self, request: HttpRequest, body: bytes) -> HttpResponse:
        """Answer the form of the consent page with a redirect to the client or to the provider.

        A form from another site has neither the secret id of the request nor the cookie.
        """
        form = _form_in(request, body)
        key = sha256_hex(form.get("request", ""))
        found = await self._get(AuthorizationRequest, key)
        cookie = cookie_of(request, _COOKIE, self._bound_issuer) or ""
        if found is None or not hmac.compare_digest(found[0].cookie_digest, sha256_hex(cookie)):
            text = "This page has expired, or belongs to another browser. Start again."
            return error_page(text, status=HTTPStatus.FORBIDDEN)
        auth_request, stored = found
        user = await self._user(request)
        subject = user.subject if isinstance(user, LoginSession) else None
        if auth_request.subject is not None and subject != auth_request.subject:
            text = "You are not signed in as before. Start again."
            return error_page(text, status=HTTPStatus.FORBIDDEN)
        kind = KINDS[AuthorizationRequest]
        if not await self.storage.swap(kind, key, stored, None, now=self.now()):
            return error_page("This page was used before. Start again.")
        client = await self._client_of(auth_request, request)
        if form.get("decision") != "allow":
            return redirect_to(
                self._error_url(auth_request, "access_denied", "the user has denied access")
            )
        if isinstance(self.login, IdentityProvider) and auth_request.subject is None:
            try:
                url = await self.login.begin(
                    msgspec.Raw(msgspec.json.encode(auth_request)), auth_request.cookie_digest
                )
            except ProviderError as error:
                return self._failed_login_page(auth_request, error)
            # The cookie lasts as long as the login may take.
            return redirect_to(url, set_cookie(_COOKIE, cookie, self._bound_issuer, LOGIN_SECONDS))
        await self._remember_consent(auth_request)
        return await self._redirect_with_code(client, auth_request)

    async def _client_of(
        self, auth_request: AuthorizationRequest, request: HttpRequest
    ) -> OAuthClient:
        """Return the client of an authorization request."""
        client = await self._client(auth_request.client_id, request)
        if client is None or not client.accepts_redirect(auth_request.redirect_uri):
            text = "The application is not known here any more."
            raise OAuthError("invalid_request", text)
        return client

    def _error_url(self, auth_request: AuthorizationRequest, code: str, description: str) -> str:
        """Return the URL that reports an error to the client."""
        values = {"error": code, "error_description": description}
        return self._redirect_url(auth_request.redirect_uri, auth_request.state, values)

    def _failed_login_page(
        self, auth_request: AuthorizationRequest, error: ProviderError
    ) -> HttpResponse:
        """Return the page about a login that has failed, with a link that reports it to the client.

        No text of the provider is shown, as anyone can make a URL of this server with one.
        """
        logger.warning("a login at the identity provider failed: %s", error)
        code, text = "server_error", "the login at the identity provider failed"
        if error.code == "access_denied":
            code, text = "access_denied", "the identity provider has denied the login"
        back = self._error_url(auth_request, code, text)
        text = (
            f"{text[0].upper()}{text[1:]}. The operator of this server finds the reason in its log."
        )
        return error_page(text, status=HTTPStatus.BAD_GATEWAY, back=back)

    async def _remember_consent(self, auth_request: AuthorizationRequest) -> None:
        """Remember the consent of the user, together with the scopes that were allowed before."""
        key = auth_request.consent_key()
        found = await self._get(Consent, key)
        before, old = ((), None) if found is None else (found[0].scopes, found[1])
        consent = Consent(scopes=sorted({*before, *auth_request.scopes}))
        await self._store(key, consent, seconds=self.consent_seconds, old=old)

    async def _redirect_with_code(
        self, client: OAuthClient, auth_request: AuthorizationRequest
    ) -> HttpResponse:
        """Return the redirect to the client with a code, after storing the grant."""
        assert auth_request.subject is not None
        grant_id, code = self.random(), self.random()
        grant = Grant(
            subject=auth_request.subject,
            client_id=auth_request.client_id,
            scopes=auth_request.scopes,
            resource=auth_request.resource,
            has_refresh="refresh_token" in client.grant_types,
            ends_at=self.now() + self.grant_seconds,
            login_id=auth_request.login_id,
        )
        await self._store(grant_id, grant, seconds=CODE_SECONDS)
        record = Code(
            grant_id=grant_id,
            client_id=auth_request.client_id,
            redirect_uri=auth_request.redirect_uri,
            challenge=auth_request.challenge,
        )
        await self._store(sha256_hex(code), record, seconds=CODE_SECONDS)
        await self._prolong_registration(client)
        return redirect_to(
            self._redirect_url(auth_request.redirect_uri, auth_request.state, {"code": code})
        )

    def _redirect_url(self, redirect_uri: str, state: str | None, values: Mapping[str, str]) -> str:
        """Return the URL of the authorization response, which names the issuer (RFC 9207)."""
        sent = {} if state is None else {"state": state}
        return with_query(redirect_uri, {**values, **sent, "iss": self._bound_issuer})

    # The token endpoint.

    async def _token(self, request: HttpRequest, body: bytes) -> HttpResponse:
        """Answer a token request."""
        form = _form_in(request, body)
        client = await self._authenticated(request, form)
        grant_type = form.get("grant_type")
        if grant_type is None:
            raise OAuthError("invalid_request", "grant_type is missing")
        if grant_type not in self._grant_types:
            raise OAuthError(
                "unsupported_grant_type",
                f"grant_type has to be one of {', '.join(self._grant_types)}",
            )
        if grant_type not in client.grant_types:
            raise OAuthError("unauthorized_client", "the client has not registered this grant_type")
        return await self._GRANTS[grant_type](self, client, form)

    @property
    def _grant_types(self) -> Sequence[str]:
        """The grants of this server: assertions only if an enterprise is known."""
        return [each for each in self._GRANTS if each != JWT_BEARER or self.enterprises]

    async def _authenticated(self, request: HttpRequest, form: Mapping[str, str]) -> OAuthClient:
        """Return the client that has sent a request."""
        client_id, secret = form.get("client_id"), form.get("client_secret")
        basic = _basic_credentials(request)
        if basic is not None:
            if secret is not None or client_id not in {None, basic[0]}:
                raise OAuthError("invalid_request", "the client authenticates in two ways")
            client_id, secret = basic
        if client_id is None:
            raise OAuthError("invalid_client", "client_id is missing")
        client = await self._client(client_id, request)
        if client is None:
            raise OAuthError("invalid_client", "the client is not known here, or not any more")
        # A client may send its secret in the header or in the form, whichever it has registered.
        if client.secret_digest is None:
            if secret:
                raise OAuthError("invalid_client", "this client has no secret")
        elif secret is None or not client.has_secret(secret):
            raise OAuthError("invalid_client", "the client's secret is missing or wrong")
        return client

    async def _redeem_code(self, client: OAuthClient, form: Mapping[str, str]) -> HttpResponse:
        """Redeem a code (OAuth 2.1, section 4.1.3)."""
        code, verifier = form.get("code"), form.get("code_verifier")
        if code is None or verifier is None:
            raise OAuthError("invalid_request", "code or code_verifier is missing")
        record, stored = await self._unused(Code, code, client)
        if form.get("redirect_uri", record.redirect_uri) != record.redirect_uri:
            raise OAuthError("invalid_grant", "redirect_uri differs from the authorization request")
        computed = sha256_base64url(verifier.encode())  # RFC 7636, section 4.6
        if not _VERIFIER.fullmatch(verifier) or not hmac.compare_digest(computed, record.challenge):
            raise OAuthError("invalid_grant", "code_verifier is wrong (PKCE)")
        # The used code is kept as long as the token that it gave could be used.
        seconds = self.access_token_seconds
        return await self._redeem(client, code, record, stored, form, seconds=seconds)

    async def _refresh(self, client: OAuthClient, form: Mapping[str, str]) -> HttpResponse:
        """Redeem a refresh token, which is replaced by another one (RFC 9700, section 4.14)."""
        token = form.get("refresh_token")
        if token is None:
            raise OAuthError("invalid_request", "refresh_token is missing")
        record, stored = await self._unused(RefreshToken, token, client)
        seconds = self.refresh_token_seconds
        return await self._redeem(client, token, record, stored, form, seconds=seconds)

    async def _unused(
        self, kind: type[OneTime], secret: str, client: OAuthClient
    ) -> tuple[OneTime, bytes]:
        """Return a code or refresh token, decoded and as it is stored."""
        found = await self._get(kind, sha256_hex(secret))
        if found is None or found[0].client_id != client.client_id:
            text = f"the {KINDS[kind]} is unknown, has expired or is another client's"
            raise OAuthError("invalid_grant", text)
        if found[0].is_used:
            raise await self._reused(found[0])
        return found

    async def _redeem(
        self,
        client: OAuthClient,
        secret: str,
        record: Code | RefreshToken,
        stored: bytes,
        form: Mapping[str, str],
        *,
        seconds: float,
    ) -> HttpResponse:
        """Mark a code or refresh token as used; keep the mark for `seconds`. Return new tokens."""
        grant = await self._grant(record.grant_id)
        if grant is None:
            raise OAuthError("invalid_grant", "the grant has ended")
        scope_text = form.get("scope")
        scopes = grant.scopes if scope_text is None else [*dict.fromkeys(scope_text.split(" "))]
        if not set(scopes) <= set(grant.scopes):
            raise OAuthError("invalid_scope", "the user has not allowed one of the scopes")
        if "resource" in form and self._resource_in(form) != grant.resource:
            raise OAuthError("invalid_target", "the user has allowed another resource")
        used = msgspec.structs.replace(record, is_used=True)
        if not await self._store(sha256_hex(secret), used, seconds=seconds, old=stored):
            raise await self._reused(record)
        now = self.now()
        return await self._token_response(client, record.grant_id, grant, scopes, now)

    async def _reused(self, record: Code | RefreshToken) -> OAuthError:
        await self._end_grant(record.grant_id)
        text = f"the {KINDS[type(record)]} was used before: its tokens are revoked"
        return OAuthError("invalid_grant", text)

    async def _exchange_assertion(
        self, client: OAuthClient, form: Mapping[str, str]
    ) -> HttpResponse:
        """Exchange the assertion of an enterprise (ID-JAG) for a token, without a refresh token."""
        assertion = form.get("assertion")
        if assertion is None:
            raise OAuthError("invalid_request", "assertion is missing")
        now = self.now()
        try:
            enterprise = self._enterprises.get(issuer_in(assertion) or "")
            if enterprise is None:
                raise OAuthError("invalid_grant", "the issuer of the assertion is not known here")
            found = await enterprise.verified(assertion, audience=self._bound_issuer, now=now)
        except InvalidAssertionError as error:
            raise OAuthError("invalid_grant", str(error)) from None
        except VerifierUnavailableError:
            text = "the keys of the enterprise cannot be fetched now"
            raise OAuthError(UNAVAILABLE, text) from None
        if found.client_id != client.client_id:
            raise OAuthError("invalid_grant", "the assertion is for another client")
        resource = self._resource_in({"resource": found.resource})
        if "resource" in form and self._resource_in(form) != resource:
            raise OAuthError("invalid_target", "the assertion is for another resource")
        known = self._known_scopes()
        if found.scopes is not None:
            known = set(known).intersection(found.scopes)
        scopes = self._scopes_in(form, known)
        # RFC 7523, section 3: the id of an assertion is accepted once.
        key = sha256_hex(msgspec.json.encode((enterprise.issuer, found.assertion_id)).decode())
        if not await self.storage.swap(
            _ASSERTION, key, None, b"used", now=now, expires_at=found.keep_until
        ):
            raise OAuthError("invalid_grant", "the assertion was used before")
        grant = Grant(
            subject=found.subject,
            client_id=client.client_id,
            scopes=scopes,
            resource=resource,
            has_refresh=False,
            ends_at=now + self.access_token_seconds,
        )
        grant_id = self.random()
        await self._store(grant_id, grant, seconds=self.access_token_seconds)
        return await self._token_response(client, grant_id, grant, scopes, now)

    async def _token_response(
        self, client: OAuthClient, grant_id: str, grant: Grant, scopes: Sequence[str], now: float
    ) -> HttpResponse:
        """Return the response with new tokens of a grant, and store the grant until they expire."""
        remaining = grant.ends_at - now
        token_seconds = min(self.access_token_seconds, remaining)
        lifetime = token_seconds
        if grant.has_refresh:
            lifetime = min(max(lifetime, self.refresh_token_seconds), remaining)
        # The grant is replaced by itself, so that it expires later. That fails if it has ended.
        stored = msgspec.json.encode(grant)
        if not await self._store(grant_id, grant, seconds=lifetime, old=stored):
            raise OAuthError("invalid_grant", "the grant has ended")
        claims = {
            "iss": self._bound_issuer,
            "sub": grant.subject,
            "aud": grant.resource,
            "client_id": client.client_id,
            "scope": " ".join(scopes),
            "iat": int(now),
            "exp": int(now + token_seconds),
            "jti": self.random(),
            GRANT_ID: grant_id,
        }
        response = {
            "access_token": await self._keys.sign(claims),
            "token_type": "Bearer",
            "expires_in": int(token_seconds),
            "scope": " ".join(scopes),
        }
        if grant.has_refresh:
            refresh_token = response["refresh_token"] = self.random()
            record = RefreshToken(grant_id=grant_id, client_id=client.client_id)
            key, seconds = sha256_hex(refresh_token), self.refresh_token_seconds
            await self._store(key, record, seconds=seconds)
        await self._prolong_registration(client)
        return json_response(response)

    # The other endpoints.

    async def _register(self, _request: HttpRequest, body: bytes) -> HttpResponse:
        """Register a client (RFC 7591)."""
        if not self.has_registration:
            raise OAuthError("access_denied", "clients cannot register themselves here")
        try:
            metadata = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise OAuthError("invalid_client_metadata", "the body is not a JSON object") from None
        client_id, secret, now = self.random(), self.random(), self.now()
        try:
            client, response = registered_client(metadata, client_id, secret, now=now)
        except InvalidClientError as error:
            raise OAuthError(error.code, str(error)) from None
        count = await self.storage.count(KINDS[OAuthClient], now=now)
        if count >= self.registrations_max:
            raise OAuthError(UNAVAILABLE, "there are too many registered clients")
        await self._store(client.client_id, client, seconds=self.unused_seconds)
        return json_response(response, status=HTTPStatus.CREATED)

    async def _revoke(self, request: HttpRequest, body: bytes) -> HttpResponse:
        """End the grant of a token (RFC 7009); a token that is not known is no error."""
        form = _form_in(request, body)
        client = await self._authenticated(request, form)
        token = form.get("token")
        if token is None:
            raise OAuthError("invalid_request", "token is missing")
        found = await self._get(RefreshToken, sha256_hex(token))
        if found is not None:
            grant_id = found[0].grant_id
        else:
            grant_id = (await self._keys.claims_in(token) or {}).get(GRANT_ID, "")
        grant = await self._grant(grant_id)
        if grant is not None and grant.client_id == client.client_id:
            await self._end_grant(grant_id)
        return HttpResponse(HTTPStatus.OK, [("Cache-Control", "no-store")])

    async def _callback(self, request: HttpRequest, _body: bytes) -> HttpResponse:
        """Answer the redirect of the identity provider with a redirect to the client.

        The user has allowed the access before, in the same browser.
        """
        if not isinstance(self.login, IdentityProvider):
            return HttpResponse(HTTPStatus.NOT_FOUND)
        parameters = _parameters(request.query)
        cookie = cookie_of(request, _COOKIE, self._bound_issuer) or ""
        pending = await self.login.take(parameters.get("state", ""), cookie)
        if pending is None:
            text = (
                "This login has expired, was finished, or belongs to another browser. Start again."
            )
            return error_page(text, status=HTTPStatus.FORBIDDEN)
        auth_request = msgspec.json.decode(pending.auth_request, type=AuthorizationRequest)
        client = await self._client_of(auth_request, request)
        try:
            finished = await self.login.finish(pending, parameters)
        except ProviderError as error:
            return self._failed_login_page(auth_request, error)
        if finished is None:
            text = "the user may not use this server"
            back = self._error_url(auth_request, "access_denied", text)
            text = "You may not use this server."
            return error_page(text, status=HTTPStatus.FORBIDDEN, back=back)
        session, session_cookie = finished
        auth_request = msgspec.structs.replace(
            auth_request, subject=session.subject, login_id=session.login_id
        )
        await self._remember_consent(auth_request)
        response = await self._redirect_with_code(client, auth_request)
        return attrs.evolve(response, headers=[*response.headers, session_cookie])

    async def _metadata(self, _request: HttpRequest, _body: bytes) -> HttpResponse:
        """Return the metadata of the authorization server (RFC 8414)."""
        document = AuthorizationServerMetadata(
            issuer=self._bound_issuer,
            authorization_endpoint=f"{self._bound_issuer}{AUTHORIZE}",
            token_endpoint=f"{self._bound_issuer}{TOKEN}",
            jwks_uri=f"{self._bound_issuer}{JWKS}",
            registration_endpoint=f"{self._bound_issuer}{REGISTER}"
            if self.has_registration
            else None,
            scopes_supported=sorted(self._known_scopes()) or None,
            response_types_supported=["code"],
            response_modes_supported=["query"],
            grant_types_supported=[*self._grant_types],
            authorization_grant_profiles_supported=[ID_JAG_PROFILE] if self.enterprises else None,
            token_endpoint_auth_methods_supported=[*AUTH_METHODS],
            revocation_endpoint=f"{self._bound_issuer}{REVOKE}",
            revocation_endpoint_auth_methods_supported=[*AUTH_METHODS],
            code_challenge_methods_supported=["S256"],
            authorization_response_iss_parameter_supported=True,
            client_id_metadata_document_supported=self.has_documents,
        )
        return json_response(document)

    async def _public_keys(self, _request: HttpRequest, _body: bytes) -> HttpResponse:
        """Return the keys that verify access tokens (RFC 7517)."""
        return json_response(await self.jwks())

    # The endpoints by path below the issuer and by method, and the grants by `grant_type`.

    _ENDPOINTS: ClassVar[Mapping[str, Mapping[str, _Endpoint]]] = {
        AUTHORIZE: {"GET": _authorize, "POST": _decide},
        TOKEN: {"POST": _token},
        REGISTER: {"POST": _register},
        REVOKE: {"POST": _revoke},
        CALLBACK: {"GET": _callback},
        JWKS: {"GET": _public_keys},
        AUTHORIZATION_SERVER: {"GET": _metadata},
        OPENID_CONFIGURATION: {"GET": _metadata},
    }

    _GRANTS: ClassVar[Mapping[str, Callable[..., Awaitable[HttpResponse]]]] = {
        "authorization_code": _redeem_code,
        "refresh_token": _refresh,
        JWT_BEARER: _exchange_assertion,
    }
