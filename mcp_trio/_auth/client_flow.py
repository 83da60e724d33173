"""The state machine with which a client gets a token for one server, without I/O.

A flow starts when a server rejects a request, before a token expires, or when a token is dropped,
which is then revoked. It returns actions: an HTTP request to send, a page to open, client
information to store. Each result of an action goes to `ClientFlow.receive`, which returns the next
actions. `TRANSITIONS` has all steps: the current step and the outcome of what was received give the
next step.

A client does not know the protocol version of a server before it has a token. One flow serves the
four designs of authorization:

- 2025-03-26: the origin of the server is its authorization server, with default endpoints
- 2025-06-18: protected resource metadata name the authorization server (RFC 9728, RFC 8414)
- 2025-11-25: also OpenID Connect Discovery, scopes in challenges, and client metadata documents
- 2026-07-28: also issuer checks of metadata and of authorization responses (RFC 9207)

The protected resource metadata are tried first; only a server that has none is taken for one of
2025-03-26.

https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization
"""

import base64
import hmac
import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, ClassVar, Final, Literal, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode, urljoin, urlsplit

import attrs
import msgspec

from mcp_trio._auth.challenges import BEARER, DPOP, INSUFFICIENT_SCOPE, USE_DPOP_NONCE, Challenge
from mcp_trio._auth.metadata import (
    AUTHORIZATION_SERVER,
    AuthorizationServerMetadata,
    ProtectedResourceMetadata,
    authorization_server_urls,
    protected_resource_urls,
)
from mcp_trio._auth.urls import (
    UrlError,
    canonical_url,
    check_authorization_url,
    check_url,
    is_loopback_host,
    is_resource_of,
    origin_of,
    with_query,
)
from mcp_trio._protocol.security import sha256_base64url
from mcp_trio.errors import AuthorizationError

# Settings, actions and events ---------------------------------------------------------------------


AuthMethod: TypeAlias = Literal[
    "none", "client_secret_basic", "client_secret_post", "private_key_jwt"
]
"""A method of a client to authenticate at a token endpoint."""

GrantKind: TypeAlias = Literal[
    "authorization_code", "client_credentials", "jwt_bearer", "id_jag", "token_exchange"
]
"""The grant: a user's login, or one of those by which a program gets a token by itself."""

AUTHORIZATION_CODE: Final = "authorization_code"
REFRESH_TOKEN: Final = "refresh_token"  # noqa: S105  no secret
JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105  no secret
ID_JAG: Final = "urn:ietf:params:oauth:token-type:id-jag"
ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105  no secret
CLIENT_ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

OFFLINE_ACCESS: Final = "offline_access"
S256: Final = "S256"

# The version of the server is not known yet.
_HEADERS_OF_DISCOVERY: Final = {
    "Accept": "application/json",
    "MCP-Protocol-Version": "2026-07-28",
}


# These classes hold secrets, which their `repr` leaves out. Structs of msgspec show all fields.


@attrs.frozen(kw_only=True)
class ClientInformation:
    """A client that an authorization server knows.

    Attributes:
        issuer: The authorization server that knows it; None if that is not known yet.
        secret_expires_at: The time at which the secret expires, in seconds since 1970; 0 for never.
        auth_method: How the client authenticates; None if the metadata of the server decide.
    """

    issuer: str | None = None
    client_id: str
    client_secret: str | None = attrs.field(default=None, repr=False)
    secret_expires_at: float = 0
    auth_method: AuthMethod | None = None
    redirect_uri: str | None = None


@attrs.frozen(kw_only=True)
class TokenSet:
    """A token for a server, and the facts that are needed to renew it.

    Attributes:
        resource: The resource for which the token was issued.
        issuer: The authorization server that has issued it.
        auth_methods: The methods by which its clients may authenticate; None if it named none.
        expires_at: The time at which it expires, in seconds since 1970; None if that is not known.
        renew_at: The time from which on it is to be renewed.
        scopes: The granted scopes; None if the authorization server named none.
        requested_scopes: All scopes that were requested for this server.
        dpop_key: The private key (a JWK) to which the tokens are bound.
    """

    server: str
    resource: str
    issuer: str
    token_endpoint: str
    revocation_endpoint: str | None = None
    auth_methods: list[str] | None = None
    client: ClientInformation
    access_token: str = attrs.field(repr=False)
    token_type: Literal["Bearer", "DPoP"] = "Bearer"  # noqa: S105  no secret
    expires_at: float | None = None
    renew_at: float | None = None
    refresh_token: str | None = attrs.field(default=None, repr=False)
    scopes: list[str] | None = None
    requested_scopes: list[str] = attrs.field(factory=list[str])
    dpop_key: dict[str, Any] | None = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True)
class FlowSettings:
    """The settings of a flow, which `mcp_trio.auth` documents.

    Attributes:
        client: A client that was registered before, with the issuer that knows it, if given.
        issuer: The only authorization server that may be used; None leaves it to the server.
        metadata_url: The URL of the client's metadata document: its id, if the server accepts that.
        provider: For "id_jag": the client at the identity provider; its issuer is not used.
        provider_token_endpoint: For "id_jag": the token endpoint of the identity provider.
        subject_token_type: For "id_jag" and "token_exchange": the type of the subject token.
        renew_before_seconds: The time before its expiry at which a token is renewed.
    """

    grant: GrantKind = AUTHORIZATION_CODE
    scopes: Sequence[str] | None = None
    client: ClientInformation | None = None
    issuer: str | None = None
    metadata_url: str | None = None
    client_name: str = "mcp_trio"
    is_interactive: bool = True
    assumes_pkce: bool = False
    trusted_hosts: frozenset[str] = frozenset()
    provider: ClientInformation | None = None
    provider_token_endpoint: str | None = None
    subject_token_type: str = ACCESS_TOKEN
    renew_before_seconds: float = 60.0


# Actions


@attrs.frozen(kw_only=True)
class SendRequest:
    """Send an HTTP request without following redirects; receive a `ResponseReceived`.

    Attributes:
        url: The URL, which has been checked.
        is_for_token: Whether the request is for a token, or revokes one. Such a request needs a
            DPoP proof if tokens are bound to a key. Cancellation must not interrupt it: it uses up
            a token or a code, and the new token in the response would be lost.
    """

    method: Literal["GET", "POST"]
    url: str
    headers: Mapping[str, str] = attrs.field(repr=False)
    body: bytes | None = attrs.field(default=None, repr=False)
    is_for_token: bool = False


@attrs.frozen
class PrepareRedirect:
    """Listen for the redirect of the browser; receive a `RedirectReady`.

    `preferred` is the redirect URI with which the client is registered already, if it is.
    """

    preferred: str | None


@attrs.frozen
class AskForClient:
    """Ask the user for a client that the authorization server knows; receive a `ClientGiven`."""

    issuer: str


@attrs.frozen
class StoreClient:
    """Store a client that was registered; there is no event."""

    client: ClientInformation


@attrs.frozen
class Authorize:
    """Open a page of the issuer in the user's browser; receive a `Redirected`."""

    url: str = attrs.field(repr=False)
    redirect_uri: str
    issuer: str


@attrs.frozen
class MakeAssertion:
    """Make or fetch a token by which the client identifies itself; receive an `AssertionMade`.

    It is a signed client assertion (RFC 7523, section 2.2), or the JWT that is the grant or is
    exchanged for it (RFC 8693). `audience` is the issuer of the authorization server.
    """

    audience: str


@attrs.frozen
class Finish:
    """The flow is over: store and use this token; None after a revocation."""

    tokens: TokenSet | None


Action: TypeAlias = (
    SendRequest | PrepareRedirect | AskForClient | StoreClient | Authorize | MakeAssertion | Finish
)


# Events


@attrs.frozen(kw_only=True)
class ResponseReceived:
    """The response to a `SendRequest`; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=False)
    body: bytes = attrs.field(default=b"", repr=False)


@attrs.frozen
class Challenged:
    """The server rejected a request with status 401 or 403.

    The challenge is the one for the scheme Bearer or DPoP; None if there was none.
    """

    status: int
    challenge: Challenge | None


@attrs.frozen
class Expiring:
    """The token expires soon, or has expired."""


@attrs.frozen
class Dropped:
    """The client will not use the token any more."""


@attrs.frozen
class RedirectReady:
    """The client listens at this redirect URI."""

    redirect_uri: str


@attrs.frozen
class ClientGiven:
    """The user has named a client."""

    client: ClientInformation


@attrs.frozen
class Redirected:
    """The browser was redirected to this URL."""

    url: str = attrs.field(repr=False)


@attrs.frozen
class AssertionMade:
    """The token that `MakeAssertion` asked for."""

    token: str = attrs.field(repr=False)


Event: TypeAlias = (
    ResponseReceived
    | Challenged
    | Expiring
    | Dropped
    | RedirectReady
    | ClientGiven
    | Redirected
    | AssertionMade
)


# Steps --------------------------------------------------------------------------------------------


class Step(Enum):
    """The steps of a flow."""

    IDLE = auto()
    RESOURCE_METADATA = auto()  # of the server (RFC 9728)
    AUTHORIZATION_SERVER_METADATA = auto()  # of the server's authorization server (RFC 8414)
    ORIGIN_METADATA = auto()  # of a server of 2025-03-26, at its own origin
    GRANT = auto()
    RENEWAL = auto()  # a refresh before the token expires
    REFRESH = auto()  # a refresh after the server rejected the token
    REDIRECT = auto()
    REGISTRATION = auto()
    CLIENT_QUESTION = auto()
    AUTHORIZATION = auto()
    ASSERTION = auto()  # the client makes or fetches the token that it sends as its grant
    PROVIDER = auto()  # the identity provider exchanges that token for an ID-JAG
    TOKEN = auto()
    REVOCATION = auto()  # of a token that was dropped (RFC 7009)
    FINISHED = auto()


class Outcome(Enum):
    """The outcome of an event, or of the choice of a grant. Failures are raised."""

    CHALLENGED = auto()
    EXPIRING = auto()  # the token of a program expires: the program requests another one
    RENEWABLE = auto()  # the token of a user expires: its refresh token renews it
    DROPPED = auto()
    FOUND = auto()
    NOT_FOUND = auto()  # no document at this URL: the next one is tried
    REDIRECTED = auto()  # by HTTP, to another URL of the document
    NO_DOCUMENT = auto()  # at none of the URLs
    REFRESHABLE = auto()
    NEEDS_USER = auto()
    NEEDS_ASSERTION = auto()
    HAS_CREDENTIALS = auto()
    REGISTERED = auto()
    NEEDS_REGISTRATION = auto()
    NO_REGISTRATION = auto()  # the authorization server registers no clients: the user is asked
    AUTHORIZED = auto()  # with a code
    ASSERTION_MADE = auto()
    NEEDS_EXCHANGE = auto()  # of the assertion, at the identity provider
    CLIENT_ASSERTION_MADE = auto()  # which authenticates the client (`private_key_jwt`)
    NEEDS_NONCE = auto()
    GRANTED = auto()
    REJECTED = auto()
    REVOKED = auto()


TRANSITIONS: Final[Mapping[tuple[Step, Outcome], Step]] = {
    (Step.IDLE, Outcome.CHALLENGED): Step.RESOURCE_METADATA,
    (Step.IDLE, Outcome.RENEWABLE): Step.RENEWAL,
    (Step.IDLE, Outcome.EXPIRING): Step.GRANT,
    (Step.IDLE, Outcome.DROPPED): Step.REVOCATION,
    (Step.RESOURCE_METADATA, Outcome.NOT_FOUND): Step.RESOURCE_METADATA,
    (Step.RESOURCE_METADATA, Outcome.REDIRECTED): Step.RESOURCE_METADATA,
    (Step.RESOURCE_METADATA, Outcome.FOUND): Step.AUTHORIZATION_SERVER_METADATA,
    (Step.RESOURCE_METADATA, Outcome.NO_DOCUMENT): Step.ORIGIN_METADATA,
    (Step.AUTHORIZATION_SERVER_METADATA, Outcome.NOT_FOUND): Step.AUTHORIZATION_SERVER_METADATA,
    (Step.AUTHORIZATION_SERVER_METADATA, Outcome.REDIRECTED): Step.AUTHORIZATION_SERVER_METADATA,
    (Step.AUTHORIZATION_SERVER_METADATA, Outcome.FOUND): Step.GRANT,
    (Step.ORIGIN_METADATA, Outcome.REDIRECTED): Step.ORIGIN_METADATA,
    (Step.ORIGIN_METADATA, Outcome.FOUND): Step.GRANT,
    (Step.ORIGIN_METADATA, Outcome.NO_DOCUMENT): Step.GRANT,
    (Step.GRANT, Outcome.REFRESHABLE): Step.REFRESH,
    (Step.GRANT, Outcome.NEEDS_USER): Step.REDIRECT,
    (Step.GRANT, Outcome.NEEDS_ASSERTION): Step.ASSERTION,
    (Step.GRANT, Outcome.HAS_CREDENTIALS): Step.TOKEN,
    (Step.RENEWAL, Outcome.CLIENT_ASSERTION_MADE): Step.RENEWAL,
    (Step.RENEWAL, Outcome.NEEDS_NONCE): Step.RENEWAL,
    (Step.RENEWAL, Outcome.GRANTED): Step.FINISHED,
    (Step.REFRESH, Outcome.CLIENT_ASSERTION_MADE): Step.REFRESH,
    (Step.REFRESH, Outcome.NEEDS_NONCE): Step.REFRESH,
    (Step.REFRESH, Outcome.GRANTED): Step.FINISHED,
    (Step.REFRESH, Outcome.REJECTED): Step.REDIRECT,
    (Step.REDIRECT, Outcome.REGISTERED): Step.AUTHORIZATION,
    (Step.REDIRECT, Outcome.NEEDS_REGISTRATION): Step.REGISTRATION,
    (Step.REDIRECT, Outcome.NO_REGISTRATION): Step.CLIENT_QUESTION,
    (Step.REGISTRATION, Outcome.REGISTERED): Step.AUTHORIZATION,
    (Step.CLIENT_QUESTION, Outcome.REGISTERED): Step.AUTHORIZATION,
    (Step.AUTHORIZATION, Outcome.AUTHORIZED): Step.TOKEN,
    (Step.ASSERTION, Outcome.ASSERTION_MADE): Step.TOKEN,
    (Step.ASSERTION, Outcome.NEEDS_EXCHANGE): Step.PROVIDER,
    (Step.PROVIDER, Outcome.GRANTED): Step.TOKEN,
    (Step.TOKEN, Outcome.CLIENT_ASSERTION_MADE): Step.TOKEN,
    (Step.TOKEN, Outcome.NEEDS_NONCE): Step.TOKEN,
    (Step.TOKEN, Outcome.GRANTED): Step.FINISHED,
    (Step.REVOCATION, Outcome.CLIENT_ASSERTION_MADE): Step.REVOCATION,
    (Step.REVOCATION, Outcome.REVOKED): Step.FINISHED,
}


# The documents of token and registration endpoints ------------------------------------------------


@attrs.frozen(repr=False)
class _TokenResponse:
    """A response of a token endpoint (RFC 6749, section 5.1)."""

    access_token: str
    token_type: str
    expires_in: float | str | None = None
    refresh_token: str | None = None
    scope: str | None = None
    issued_token_type: str | None = None


class _ErrorResponse(msgspec.Struct, frozen=True):
    """An error response of RFC 6749, section 5.2, or of RFC 7591, section 3.2.2."""

    error: str
    error_description: str | None = None


@attrs.frozen(repr=False)
class _RegistrationResponse:
    """A registered client (RFC 7591, section 3.2.1)."""

    client_id: str
    client_secret: str | None = None
    client_secret_expires_at: float | None = None
    token_endpoint_auth_method: str | None = None


_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_REDIRECTS_MAX: Final = 3
_TOKEN_CHARACTERS: Final = frozenset(map(chr, range(0x21, 0x7F)))
_TEXT_CHARS_MAX: Final = 300
# The methods of a client that is registered here, the preferred one first: a program on a user's
# computer cannot keep a secret, and has no key that the server knows.
_REGISTERED_METHODS: Final[Sequence[AuthMethod]] = (
    "none",
    "client_secret_basic",
    "client_secret_post",
)


@attrs.define(kw_only=True, eq=False, repr=False)
class ClientFlow:
    """One attempt to get a token; see the module.

    Args:
        server: The URL of the server, as the user gave it.
        tokens: The token that the client has had so far, if any.
        clients: The clients that earlier flows have registered, by issuer.
        state: A random text, which the authorization response repeats.
        verifier: A random text of 43 characters or more, the PKCE code verifier.

    Attributes:
        requires_dpop: Whether the server accepts only tokens that are bound to a key.
    """

    server: str
    settings: FlowSettings
    tokens: TokenSet | None
    clients: Mapping[str, ClientInformation]
    state: str
    verifier: str
    step: Step = attrs.field(default=Step.IDLE, init=False)
    requires_dpop: bool = attrs.field(default=False, init=False)

    _challenge: Challenge | None = attrs.field(default=None, init=False)
    _is_step_up: bool = attrs.field(default=False, init=False)
    _urls: list[str] = attrs.field(factory=list[str], init=False)
    _reasons: list[str] = attrs.field(factory=list[str], init=False)
    _redirects: int = attrs.field(default=0, init=False)
    _resource: str = attrs.field(default="", init=False)
    _resource_scopes: Sequence[str] | None = attrs.field(default=None, init=False)
    _issuer: str = attrs.field(default="", init=False)
    # Set by each step before the first one that needs it.
    _metadata: AuthorizationServerMetadata = attrs.field(init=False)
    _client: ClientInformation = attrs.field(init=False)
    _scopes: Sequence[str] | None = attrs.field(default=None, init=False)
    _is_client_unknown: bool = attrs.field(default=False, init=False)
    _redirect_uri: str = attrs.field(default="", init=False)
    _code: str = attrs.field(default="", init=False)
    _assertion: str = attrs.field(default="", init=False)
    _client_assertion: str | None = attrs.field(default=None, init=False)
    _had_nonce: bool = attrs.field(default=False, init=False)
    _result: TokenSet | None = attrs.field(default=None, init=False)
    _to_store: list[Action] = attrs.field(factory=list[Action], init=False)

    def receive(self, event: Event, now: float) -> list[Action]:
        """Take an event at the Unix time `now`; return the actions that follow from it.

        Raises:
            AuthorizationError: The flow has failed, and is over.
        """
        take = self._TAKE_EVENT.get((self.step, type(event)))
        if take is None:
            raise RuntimeError(f"{type(event).__name__} cannot be received in {self.step.name}")
        try:
            result: Outcome | Action = take(self, event, now)
            while isinstance(result, Outcome):
                self.step = TRANSITIONS[self.step, result]
                result = self._BEGIN_STEP[self.step](self, now)
        except UrlError as error:
            raise self.error(str(error)) from None
        actions, self._to_store = [*self._to_store, result], []
        return actions

    def error(self, text: str, code: str | None = None) -> AuthorizationError:
        """Return an error that names the server without the parts of its URL that may be secret."""
        parts = urlsplit(self.server)
        server = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        return AuthorizationError(f"no token for {server}: {text}", code=code)

    def _checked_url(self, url: str, name: str) -> str:
        check_url(url, name, server=self.server, trusted_hosts=self.settings.trusted_hosts)
        return url

    def _endpoint(self, name: str) -> str:
        """Return the URL of an endpoint of the authorization server, as its metadata name it."""
        url: str | None = getattr(self._metadata, name)
        if url is None:
            raise self.error(f"{self._issuer} has no {name}")
        return self._checked_url(url, f"the {name}")

    # The start

    def _take_challenge(self, event: Challenged, _now: float) -> Outcome:
        challenge = self._challenge = event.challenge
        self._is_step_up = (
            challenge is not None
            and challenge.error == INSUFFICIENT_SCOPE
            and self.tokens is not None
        )
        self.requires_dpop = challenge is not None and challenge.is_for(DPOP)
        named = None if challenge is None else challenge.resource_metadata
        self._urls = protected_resource_urls(self.server)
        if named is not None:
            self._urls = [named, *(url for url in self._urls if url != named)]
        return Outcome.CHALLENGED

    def _take_expiry(self, _event: Expiring, _now: float) -> Outcome:
        tokens = self._resume()
        self.requires_dpop = tokens.token_type == DPOP
        self._scopes = tokens.requested_scopes or None
        is_user = self.settings.grant == AUTHORIZATION_CODE
        return Outcome.RENEWABLE if is_user else Outcome.EXPIRING

    def _take_drop(self, _event: Dropped, _now: float) -> Outcome:
        self._resume()
        return Outcome.DROPPED

    def _resume(self) -> TokenSet:
        """Continue with the authorization server and the client of the token; return the token."""
        tokens = self.tokens
        assert tokens is not None
        self._resource, self._issuer = tokens.resource, tokens.issuer
        self._client = self._client_of(tokens)
        self._metadata = AuthorizationServerMetadata(
            issuer=tokens.issuer,
            token_endpoint=tokens.token_endpoint,
            revocation_endpoint=tokens.revocation_endpoint,
            token_endpoint_auth_methods_supported=tokens.auth_methods,
        )
        return tokens

    # Discovery

    def _request_document(self, _now: float) -> SendRequest:
        url = self._checked_url(self._urls[0], "the URL of a metadata document")
        return SendRequest(method="GET", url=url, headers=_HEADERS_OF_DISCOVERY)

    def _document(self, response: ResponseReceived, kind: Any) -> Any:
        """Return a metadata document of type `kind`, or the outcome of a response without one.

        After an error of the server, or too many requests, the flow fails: to go on with another
        design of authorization would let an attacker who makes the server fail choose the design.
        """
        url = self._urls.pop(0)
        location = response.headers.get("location")
        if response.status in _REDIRECTS and location is not None:
            self._redirects += 1
            if self._redirects > _REDIRECTS_MAX:
                raise self.error(f"{url} redirects more than {_REDIRECTS_MAX} times")
            try:
                self._urls.insert(0, urljoin(url, location))
            except ValueError:
                raise UrlError(f"{url} redirects to no URL: {location[:200]!r}") from None
            return Outcome.REDIRECTED
        if response.status == HTTPStatus.TOO_MANY_REQUESTS or response.status // 100 == 5:  # noqa: PLR2004
            raise self.error(f"{url} answered HTTP {response.status}; try again later")
        if response.status != 200:  # noqa: PLR2004
            self._reasons.append(f"{url} answered HTTP {response.status}")
            return Outcome.NOT_FOUND
        try:
            return msgspec.json.decode(response.body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # Some servers answer each unknown path with the same page.
            self._reasons.append(f"{url} has no metadata document")
            return Outcome.NOT_FOUND

    def _take_resource_metadata(self, response: ResponseReceived, _now: float) -> Outcome:
        is_last = len(self._urls) == 1
        document = self._document(response, ProtectedResourceMetadata)
        if isinstance(document, Outcome):
            if document is not Outcome.NOT_FOUND or not is_last:
                return document
            if self._challenge is not None and self._challenge.resource_metadata is not None:
                raise self.error("; ".join(self._reasons))
            return Outcome.NO_DOCUMENT
        if not is_resource_of(document.resource, self.server):
            raise self.error(
                f"its metadata are for another resource, {document.resource[:_TEXT_CHARS_MAX]!r}"
            )
        self._resource = document.resource
        self._resource_scopes = document.scopes_supported
        if document.dpop_bound_access_tokens_required:
            self.requires_dpop = True
        issuers = document.authorization_servers
        if not issuers:
            raise self.error("its metadata name no authorization server")
        self._issuer = self._chosen_issuer(issuers)
        self._urls = authorization_server_urls(self._checked_url(self._issuer, "the issuer"))
        self._reasons.clear()
        return Outcome.FOUND

    def _chosen_issuer(self, issuers: Sequence[str]) -> str:
        """Return the issuer of the settings, or one that knows the client, or the first."""
        if self.settings.issuer is not None:
            self._check_named_issuer(issuers)
            return self.settings.issuer
        configured, tokens = self.settings.client, self.tokens
        if configured is not None:
            expected = configured.issuer
            if expected is None and tokens and tokens.client.client_id == configured.client_id:
                expected = tokens.issuer
            if expected is not None and expected not in issuers:
                raise self.error(
                    f"the client {configured.client_id!r} is registered at {expected}, but the"
                    f" server names {', '.join(issuers)[:_TEXT_CHARS_MAX]}; register a client there"
                )
            if expected is not None:
                return expected
        known = (tokens.issuer,) if tokens is not None else ()
        return next((each for each in (*known, *self.clients) if each in issuers), issuers[0])

    def _check_named_issuer(self, issuers: Sequence[str]) -> None:
        """Check that the server uses the issuer that the settings name.

        A final slash makes no difference here, since some servers add one to the issuers that they
        name. The metadata of the issuer have to be exactly of the one in the settings.
        """
        named = self.settings.issuer
        if named is not None and named.rstrip("/") not in (each.rstrip("/") for each in issuers):
            raise self.error(
                f"the settings name the authorization server {named}, but the server uses"
                f" {', '.join(issuers)[:_TEXT_CHARS_MAX]}"
            )

    def _take_authorization_server_metadata(
        self, response: ResponseReceived, _now: float
    ) -> Outcome:
        url, is_last = self._urls[0], len(self._urls) == 1
        document = self._document(response, AuthorizationServerMetadata)
        if document is Outcome.REDIRECTED:
            return Outcome.REDIRECTED
        if isinstance(document, AuthorizationServerMetadata):
            if document.issuer == self._issuer:
                self._metadata = document
                return Outcome.FOUND
            issuer = document.issuer[:_TEXT_CHARS_MAX]
            self._reasons.append(f"{url} is of another issuer, {issuer!r}")
        if is_last:
            reasons = "; ".join(self._reasons)
            raise self.error(f"no metadata of the authorization server {self._issuer}: {reasons}")
        return Outcome.NOT_FOUND

    def _request_origin_metadata(self, now: float) -> SendRequest:
        if not self._urls:  # otherwise the one of a redirect
            self._resource = canonical_url(self.server)
            self._issuer = origin_of(self.server)
            self._check_named_issuer([self._issuer])
            self._urls = [f"{self._issuer}{AUTHORIZATION_SERVER}"]
        return self._request_document(now)

    def _take_origin_metadata(self, response: ResponseReceived, _now: float) -> Outcome:
        document = self._document(response, AuthorizationServerMetadata)
        if document is Outcome.REDIRECTED:
            return Outcome.REDIRECTED
        origin = self._issuer
        if isinstance(document, AuthorizationServerMetadata):
            # No document has named the issuer: it is the origin, in either of its spellings.
            if document.issuer not in (origin, f"{origin}/"):
                raise self.error(f"its metadata are of another issuer, {document.issuer!r}")
            self._issuer = document.issuer
            self._metadata = document
            return Outcome.FOUND
        self._metadata = AuthorizationServerMetadata(
            issuer=origin,
            authorization_endpoint=f"{origin}/authorize",
            token_endpoint=f"{origin}/token",
            registration_endpoint=f"{origin}/register",
            code_challenge_methods_supported=[S256],
            token_endpoint_auth_methods_supported=["none", "client_secret_post"],
        )
        return Outcome.NO_DOCUMENT

    # The grant

    def _choose_grant(self, _now: float) -> Outcome:
        grant, tokens = self.settings.grant, self.tokens
        if self._scopes is None:  # otherwise they are those of the token that expires
            self._scopes = self._scopes_to_request()
        if grant == AUTHORIZATION_CODE:
            if (
                tokens is not None
                and tokens.refresh_token is not None
                and tokens.issuer == self._issuer
                and not self._is_step_up
                and set(self._scopes or ()) <= {*tokens.requested_scopes}
            ):
                self._client = self._client_of(tokens)
                return Outcome.REFRESHABLE
            return Outcome.NEEDS_USER
        self._client = self._configured_client()
        has_credentials = grant == "client_credentials"
        return Outcome.HAS_CREDENTIALS if has_credentials else Outcome.NEEDS_ASSERTION

    def _client_of(self, tokens: TokenSet) -> ClientInformation:
        """Return the client of a token; the secret of a configured client is not stored with it."""
        configured = self.settings.client
        if configured is None or configured.client_id != tokens.client.client_id:
            return tokens.client
        return self._configured_client()

    def _configured_client(self) -> ClientInformation:
        """Return the client of the settings, which the chosen authorization server has to know."""
        client = self.settings.client
        assert client is not None
        if client.issuer is not None and client.issuer != self._issuer:
            raise self.error(
                f"the client {client.client_id!r} is registered at {client.issuer}, but the server"
                f" uses {self._issuer}; register a client there"
            )
        return attrs.evolve(client, issuer=self._issuer)

    def _scopes_to_request(self) -> Sequence[str] | None:
        """Return the scopes to request; None requests none in particular.

        The scopes of the challenge are authoritative; without them all scopes that the server
        lists are requested. Scopes that were requested before are requested again, so that a token
        does not lose them.

        https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization#scope-selection-strategy
        """
        challenged = None if self._challenge is None else self._challenge.scopes
        given = self.settings.scopes
        chosen: list[str] = [*(given or ()), *(challenged or ())]
        if given is None and challenged is None and self._resource_scopes is not None:
            chosen = [*self._resource_scopes]
        if self.tokens is not None and self.tokens.issuer == self._issuer:
            chosen = [*self.tokens.requested_scopes, *chosen]
        offered = self._metadata.scopes_supported or ()
        is_user = self.settings.grant == AUTHORIZATION_CODE
        if OFFLINE_ACCESS not in (given or ()):
            chosen = [scope for scope in chosen if scope != OFFLINE_ACCESS]
            if chosen and is_user and OFFLINE_ACCESS in offered:
                chosen.append(OFFLINE_ACCESS)
        return tuple(dict.fromkeys(chosen)) or None

    # A user's login

    def _prepare_redirect(self, now: float) -> Action:
        if not self.settings.is_interactive:
            raise self.error("a user has to log in", code="login_required")
        if self._metadata.authorization_endpoint is None or self._metadata.token_endpoint is None:
            raise self.error(f"{self._issuer} has no authorization_endpoint or token_endpoint")
        methods = self._metadata.code_challenge_methods_supported
        if methods is None and not self.settings.assumes_pkce:
            raise self.error(
                f"the metadata of {self._issuer} do not say that it supports PKCE"
                " (code_challenge_methods_supported); OAuth(assume_pkce=True) takes it to do so"
            )
        if methods is not None and S256 not in methods:
            raise self.error(f"{self._issuer} does not support PKCE with S256")
        stored = self._stored_client(now)
        return PrepareRedirect(None if stored is None else stored.redirect_uri)

    def _stored_client(self, now: float) -> ClientInformation | None:
        """Return the client that was registered at this issuer, unless its secret has expired."""
        is_other = self.settings.client is not None or self._uses_metadata_document
        if is_other or self._is_client_unknown:
            return None
        client = self.clients.get(self._issuer)
        if client is None or 0 < client.secret_expires_at <= now:
            return None
        return client

    @property
    def _uses_metadata_document(self) -> bool:
        is_supported = bool(self._metadata.client_id_metadata_document_supported)
        return is_supported and self.settings.metadata_url is not None

    def _take_redirect_uri(self, event: RedirectReady, now: float) -> Outcome:
        """Choose how the client gets its id.

        https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization/client-registration
        """
        self._redirect_uri = event.redirect_uri
        if self.settings.client is not None:
            self._client = self._configured_client()
            return Outcome.REGISTERED
        if self._uses_metadata_document:
            assert self.settings.metadata_url is not None
            self._client = ClientInformation(
                issuer=self._issuer, client_id=self.settings.metadata_url, auth_method="none"
            )
            return Outcome.REGISTERED
        stored = self._stored_client(now)
        if stored is not None and stored.redirect_uri in (None, event.redirect_uri):
            self._client = stored
            return Outcome.REGISTERED
        has_endpoint = self._metadata.registration_endpoint is not None
        return Outcome.NEEDS_REGISTRATION if has_endpoint else Outcome.NO_REGISTRATION

    def _register(self, _now: float) -> SendRequest:
        host = urlsplit(self._redirect_uri).hostname or ""
        document: dict[str, Any] = {
            "client_name": self.settings.client_name,
            "redirect_uris": [self._redirect_uri],
            "grant_types": [AUTHORIZATION_CODE, REFRESH_TOKEN],
            "response_types": ["code"],
            "token_endpoint_auth_method": self._method_to_register(),
            "application_type": "native" if is_loopback_host(host) else "web",
        }
        # No `scope`: it would be the limit of what the client can ask for later.
        if self.requires_dpop:
            document["dpop_bound_access_tokens"] = True
        return SendRequest(
            method="POST",
            url=self._endpoint("registration_endpoint"),
            headers={"Accept": "application/json", "Content-Type": "application/json"},
            body=msgspec.json.encode(document),
        )

    def _method_to_register(self) -> str:
        methods = self._metadata.token_endpoint_auth_methods_supported or ()
        return next((each for each in _REGISTERED_METHODS if each in methods), "none")

    def _take_registration(self, response: ResponseReceived, _now: float) -> Outcome:
        if response.status // 100 != 2:  # noqa: PLR2004
            hint = (
                f"; it does not accept the redirect URI {self._redirect_uri}: register a client"
                " there and pass its id with client_id=, or choose another one with redirect="
            )
            failed = f"{self._issuer} did not register the client"
            raise self._rejection(failed, response, invalid_redirect_uri=hint)
        try:
            registered = msgspec.json.decode(response.body, type=_RegistrationResponse)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise self.error(f"{self._issuer} registered the client without a client_id") from None
        method = registered.token_endpoint_auth_method or self._method_to_register()
        if registered.client_secret is not None and method == "none":
            method = self._method_with_secret()
        self._client = ClientInformation(
            issuer=self._issuer,
            client_id=registered.client_id,
            client_secret=registered.client_secret,
            secret_expires_at=registered.client_secret_expires_at or 0,
            auth_method=next((each for each in _REGISTERED_METHODS if each == method), None),
            redirect_uri=self._redirect_uri,
        )
        self._to_store.append(StoreClient(self._client))
        return Outcome.REGISTERED

    def _take_given_client(self, event: ClientGiven, _now: float) -> Outcome:
        self._client = attrs.evolve(
            event.client, issuer=self._issuer, redirect_uri=self._redirect_uri
        )
        self._to_store.append(StoreClient(self._client))
        return Outcome.REGISTERED

    def _authorize(self, _now: float) -> Authorize:
        endpoint = self._endpoint("authorization_endpoint")
        check_authorization_url(endpoint)
        query = {
            "response_type": "code",
            "client_id": self._client.client_id,
            "redirect_uri": self._redirect_uri,
            "state": self.state,
            "code_challenge": sha256_base64url(self.verifier.encode()),
            "code_challenge_method": S256,
            "resource": self._resource,
        }
        if self._scopes:
            query["scope"] = " ".join(self._scopes)
            # Without it, OpenID Connect has a provider ignore `offline_access` (Core, section 11).
            if OFFLINE_ACCESS in self._scopes:
                query["prompt"] = "consent"
        return Authorize(with_query(endpoint, query), self._redirect_uri, self._issuer)

    def _take_authorization(self, event: Redirected, _now: float) -> Outcome:
        """Check the authorization response; its issuer before anything else in it is believed.

        https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization#authorization-response-validation
        """
        pairs = parse_qsl(urlsplit(event.url).query, keep_blank_values=True)
        parameters = dict(pairs)
        if len(parameters) != len(pairs):
            raise self.error("the authorization response has a parameter twice")
        if not hmac.compare_digest(parameters.get("state", "").encode(), self.state.encode()):
            raise self.error("the authorization response has another state: it is of another login")
        issuer = parameters.get("iss")
        if issuer is None and self._metadata.authorization_response_iss_parameter_supported:
            raise self.error(f"the authorization response does not say that {self._issuer} sent it")
        if issuer is not None and issuer != self._issuer:
            raise self.error(f"the authorization response is not from {self._issuer}")
        if "error" in parameters:
            error = _ErrorResponse(parameters["error"], parameters.get("error_description"))
            raise self.error(
                f"{self._issuer} did not authorize the client: {_shown(error)}", code=error.error
            )
        if not parameters.get("code"):
            raise self.error("the authorization response has no code")
        self._code = parameters["code"]
        return Outcome.AUTHORIZED

    # Tokens by which a program gets a token

    def _take_assertion(self, event: AssertionMade, _now: float) -> Outcome:
        self._assertion = event.token
        is_exchanged = self.settings.grant == "id_jag"
        return Outcome.NEEDS_EXCHANGE if is_exchanged else Outcome.ASSERTION_MADE

    def _exchange_at_provider(self, _now: float) -> Action:
        """Exchange the identity assertion for an ID-JAG, which the identity provider signs."""
        settings, provider = self.settings, self.settings.provider
        assert provider is not None
        assert settings.provider_token_endpoint is not None
        parameters = {
            "grant_type": TOKEN_EXCHANGE,
            "requested_token_type": ID_JAG,
            "audience": self._issuer,
            "resource": self._resource,
            "subject_token": self._assertion,
            "subject_token_type": settings.subject_token_type,
        }
        if self._scopes:
            parameters["scope"] = " ".join(self._scopes)
        has_secret = provider.client_secret is not None
        method: AuthMethod = "client_secret_basic" if has_secret else "none"
        # The user names the identity provider, so its address is not that of an attacker.
        return self._form_request(settings.provider_token_endpoint, parameters, provider, method)

    def _take_id_jag(self, response: ResponseReceived, _now: float) -> Outcome:
        granted = self._token_response(response, "the identity provider")
        if granted.issued_token_type not in (None, ID_JAG):
            raise self.error(f"the identity provider issued a {granted.issued_token_type!r}")
        self._assertion = granted.access_token
        return Outcome.GRANTED

    # The token endpoint

    def _request_token(self, _now: float) -> Action:
        grant = self.settings.grant
        parameters: dict[str, str]
        if grant == AUTHORIZATION_CODE:
            parameters = {
                "grant_type": AUTHORIZATION_CODE,
                "code": self._code,
                "redirect_uri": self._redirect_uri,
                "code_verifier": self.verifier,
            }
        elif grant in ("jwt_bearer", "id_jag"):
            parameters = {"grant_type": JWT_BEARER, "assertion": self._assertion}
        elif grant == "token_exchange":
            parameters = {
                "grant_type": TOKEN_EXCHANGE,
                "subject_token": self._assertion,
                "subject_token_type": self.settings.subject_token_type,
                "requested_token_type": ACCESS_TOKEN,
            }
        else:
            parameters = {"grant_type": "client_credentials"}
        if grant != AUTHORIZATION_CODE and self._scopes:
            parameters["scope"] = " ".join(self._scopes)
        parameters["resource"] = self._resource
        return self._authenticated_request("token_endpoint", parameters)

    def _request_refresh(self, _now: float) -> Action:
        assert self.tokens is not None
        if self.tokens.refresh_token is None:
            raise self.error("the token expires, and there is no refresh token")
        parameters = {
            "grant_type": REFRESH_TOKEN,
            "refresh_token": self.tokens.refresh_token,
            "resource": self._resource,
        }
        return self._authenticated_request("token_endpoint", parameters)

    def _request_revocation(self, _now: float) -> Action:
        """Revoke the refresh token, and with it all tokens of its grant, or else the access token.

        https://www.rfc-editor.org/rfc/rfc7009#section-2.1
        """
        tokens = self.tokens
        assert tokens is not None
        parameters = {"token": tokens.access_token, "token_type_hint": "access_token"}
        if tokens.refresh_token is not None:
            parameters = {"token": tokens.refresh_token, "token_type_hint": REFRESH_TOKEN}
        return self._authenticated_request("revocation_endpoint", parameters)

    def _authenticated_request(self, endpoint: str, parameters: dict[str, str]) -> Action:
        """Return a request with the client's authentication.

        If the client authenticates with an assertion and has none yet, the action makes that first.
        """
        url = self._endpoint(endpoint)
        method: AuthMethod | None = self._client.auth_method
        if method is None:
            method = "none" if self._client.client_secret is None else self._method_with_secret()
        if method == "private_key_jwt" and self._client_assertion is None:
            return MakeAssertion(self._issuer)
        return self._form_request(url, parameters, self._client, method)

    def _method_with_secret(self) -> AuthMethod:
        # A server that lists no methods has "client_secret_basic" (RFC 8414).
        methods = self._metadata.token_endpoint_auth_methods_supported or ()
        has_post_only = "client_secret_post" in methods and "client_secret_basic" not in methods
        return "client_secret_post" if has_post_only else "client_secret_basic"

    def _form_request(
        self, url: str, parameters: dict[str, str], client: ClientInformation, method: AuthMethod
    ) -> SendRequest:
        """Return a POST to a token endpoint, with the authentication of the client.

        https://www.rfc-editor.org/rfc/rfc6749#section-2.3
        """
        headers = {
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        if method == "private_key_jwt":
            assert self._client_assertion is not None
            parameters["client_assertion_type"] = CLIENT_ASSERTION
            parameters["client_assertion"] = self._client_assertion
        elif method == "client_secret_basic":
            pair = f"{quote(client.client_id, '')}:{quote(client.client_secret or '', '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            parameters["client_id"] = client.client_id
            if method == "client_secret_post":
                parameters["client_secret"] = client.client_secret or ""
        return SendRequest(
            method="POST",
            url=url,
            headers=headers,
            body=urlencode(parameters).encode(),
            is_for_token=True,
        )

    def _take_client_assertion(self, event: AssertionMade, _now: float) -> Outcome:
        self._client_assertion = event.token
        return Outcome.CLIENT_ASSERTION_MADE

    def _take_token(self, response: ResponseReceived, now: float) -> Outcome:
        error = _error_in(response)
        code = None if error is None else error.error
        if code == USE_DPOP_NONCE and not self._had_nonce:  # RFC 9449, section 8
            self._had_nonce = True
            self._client_assertion = None  # an assertion is used once
            return Outcome.NEEDS_NONCE
        # The server rejects the refresh token: the user logs in. GitHub does so with status 200.
        is_rejected = response.status in (400, 401) or (response.status == 200 and code)  # noqa: PLR2004
        if self.step is Step.REFRESH and is_rejected:
            self._is_client_unknown = code == "invalid_client"
            return Outcome.REJECTED
        self._result = self._tokens_from(self._token_response(response, self._issuer), now)
        return Outcome.GRANTED

    def _take_revoked(self, response: ResponseReceived, _now: float) -> Outcome:
        if response.status != 200:  # noqa: PLR2004
            raise self._rejection(f"{self._issuer} did not revoke the token", response)
        return Outcome.REVOKED

    def _token_response(self, response: ResponseReceived, name: str) -> _TokenResponse:
        if response.status != 200:  # noqa: PLR2004
            raise self._rejection(f"{name} issued no token", response)
        try:
            granted = msgspec.json.decode(response.body, type=_TokenResponse)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            if _error_in(response) is not None:
                raise self._rejection(f"{name} issued no token", response) from None
            text = f"{name} answered without an access_token and a token_type"
            raise self.error(text) from None
        texts = (granted.access_token, granted.refresh_token or "")
        if not granted.access_token or not _TOKEN_CHARACTERS.issuperset("".join(texts)):
            raise self.error(f"{name} issued a token with characters that no token may have")
        return granted

    def _rejection(
        self, failed: str, response: ResponseReceived, **hints: str
    ) -> AuthorizationError:
        """Return the error about a response; `hints` has what to add for some error codes."""
        error = _error_in(response)
        if error is None:
            return self.error(f"{failed}: HTTP {response.status}")
        text = f"{failed}: {_shown(error)}{hints.get(error.error, '')}"
        return self.error(text, code=error.error)

    def _tokens_from(self, granted: _TokenResponse, now: float) -> TokenSet:
        metadata, before = self._metadata, self.tokens
        assert metadata.token_endpoint is not None
        kinds: Mapping[str, Literal["Bearer", "DPoP"]] = {"bearer": BEARER, "dpop": DPOP}
        kind = kinds.get(granted.token_type.lower())
        if kind is None:
            raise self.error(f"{self._issuer} issued a token whose type is neither Bearer nor DPoP")
        if self.requires_dpop and kind != DPOP:
            raise self.error(f"{self._issuer} issued a token that is not bound to a key (DPoP)")
        is_refresh = self.step in (Step.RENEWAL, Step.REFRESH)
        refresh_token, scopes = granted.refresh_token, self._scopes
        if is_refresh:
            assert before is not None
            # A server that does not rotate refresh tokens sends none.
            refresh_token = refresh_token or before.refresh_token
            scopes = before.scopes
        if granted.scope is not None:
            scopes = granted.scope.split()
        expires_at = renew_at = None
        seconds = _lifetime(granted.expires_in)
        if seconds is not None:
            expires_at = now + seconds
            renew_at = expires_at - min(self.settings.renew_before_seconds, seconds / 5)
        client = self._client
        if self.settings.client is not None:  # its secret stays in the settings
            client = attrs.evolve(client, client_secret=None)
        return TokenSet(
            server=self.server,
            resource=self._resource,
            issuer=self._issuer,
            token_endpoint=metadata.token_endpoint,
            revocation_endpoint=metadata.revocation_endpoint,
            auth_methods=metadata.token_endpoint_auth_methods_supported,
            client=client,
            access_token=granted.access_token,
            token_type=kind,
            expires_at=expires_at,
            renew_at=renew_at,
            refresh_token=refresh_token,
            scopes=None if scopes is None else [*scopes],
            requested_scopes=[*(self._scopes or ())],
        )

    # The method that takes an event in a step, and the method that begins a step.

    _TAKE_EVENT: ClassVar[Mapping[tuple[Step, type], Callable[[Any, Any, float], Outcome]]] = {
        (Step.IDLE, Challenged): _take_challenge,
        (Step.IDLE, Expiring): _take_expiry,
        (Step.IDLE, Dropped): _take_drop,
        (Step.RESOURCE_METADATA, ResponseReceived): _take_resource_metadata,
        (Step.AUTHORIZATION_SERVER_METADATA, ResponseReceived): _take_authorization_server_metadata,
        (Step.ORIGIN_METADATA, ResponseReceived): _take_origin_metadata,
        (Step.RENEWAL, AssertionMade): _take_client_assertion,
        (Step.RENEWAL, ResponseReceived): _take_token,
        (Step.REFRESH, AssertionMade): _take_client_assertion,
        (Step.REFRESH, ResponseReceived): _take_token,
        (Step.REDIRECT, RedirectReady): _take_redirect_uri,
        (Step.REGISTRATION, ResponseReceived): _take_registration,
        (Step.CLIENT_QUESTION, ClientGiven): _take_given_client,
        (Step.AUTHORIZATION, Redirected): _take_authorization,
        (Step.ASSERTION, AssertionMade): _take_assertion,
        (Step.PROVIDER, ResponseReceived): _take_id_jag,
        (Step.TOKEN, AssertionMade): _take_client_assertion,
        (Step.TOKEN, ResponseReceived): _take_token,
        (Step.REVOCATION, AssertionMade): _take_client_assertion,
        (Step.REVOCATION, ResponseReceived): _take_revoked,
    }

    _BEGIN_STEP: ClassVar[Mapping[Step, Callable[[Any, float], Outcome | Action]]] = {
        Step.RESOURCE_METADATA: _request_document,
        Step.AUTHORIZATION_SERVER_METADATA: _request_document,
        Step.ORIGIN_METADATA: _request_origin_metadata,
        Step.GRANT: _choose_grant,
        Step.RENEWAL: _request_refresh,
        Step.REFRESH: _request_refresh,
        Step.REDIRECT: _prepare_redirect,
        Step.REGISTRATION: _register,
        Step.CLIENT_QUESTION: lambda self, _now: AskForClient(self._issuer),
        Step.AUTHORIZATION: _authorize,
        Step.ASSERTION: lambda self, _now: MakeAssertion(self._issuer),
        Step.PROVIDER: _exchange_at_provider,
        Step.TOKEN: _request_token,
        Step.REVOCATION: _request_revocation,
        Step.FINISHED: lambda self, _now: Finish(self._result),
    }


def _lifetime(expires_in: float | str | None) -> float | None:
    """Return the lifetime of a token in seconds; some servers send the number as a string."""
    try:
        seconds = math.nan if expires_in is None else float(expires_in)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _error_in(response: ResponseReceived) -> _ErrorResponse | None:
    try:
        return msgspec.json.decode(response.body, type=_ErrorResponse)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _shown(error: _ErrorResponse) -> str:
    """Return an error on one line; a server chose its text."""
    text = error.error
    if error.error_description:
        text += f" ({error.error_description})"
    shown = "".join(each if each.isprintable() else " " for each in text)
    return shown[:_TEXT_CHARS_MAX]
