"""The endpoints of an authorization server: from a request to a response, by the rules of OAuth.

`Endpoints.respond` looks the path and the method up in `ENDPOINTS`. The `AuthorizationServer` has
the clock, the random values, the storage and the login of users. So every rule is tested without a
socket.

A user's approval makes a *grant*. Its code, and then each of its refresh tokens, can be used once.
If one of them is used twice, it was stolen, and the grant ends, with all its tokens.

https://datatracker.ietf.org/doc/draft-ietf-oauth-v2-1/
https://www.rfc-editor.org/rfc/rfc8414 (metadata)
https://www.rfc-editor.org/rfc/rfc7009 (revocation)
https://www.rfc-editor.org/rfc/rfc9700 (security)
"""

import base64
import binascii
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from urllib.parse import parse_qsl, unquote_plus

import attrs
import msgspec

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
    ClientDocuments,
    InvalidClientError,
    OAuthClient,
    is_document_url,
    registered_client,
    sha256_hex,
)
from mcp_trio._auth.provider_tokens import ProviderError
from mcp_trio._auth.urls import with_query
from mcp_trio._protocol.http_headers import JSON, HttpRequest, media_type_of
from mcp_trio._protocol.security import sha256_base64url

if TYPE_CHECKING:
    from mcp_trio._auth.authorization_server import AuthorizationServer, SigningKeys

logger = logging.getLogger("mcp_trio")

T = TypeVar("T")
OneTime = TypeVar("OneTime", "Code", "RefreshToken")

AUTHORIZE: Final = "/authorize"
TOKEN: Final = "/token"  # noqa: S105  no secret
REGISTER: Final = "/register"
REVOKE: Final = "/revoke"
JWKS: Final = "/jwks"

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

# The HTTP status for some error codes of RFC 6749, section 5.2; 400 for all others.
_STATUSES: Final = {"invalid_client": 401, "access_denied": 403, "temporarily_unavailable": 503}


class OAuthError(Exception):
    """A request is answered with an error code of RFC 6749, RFC 7591 or RFC 8707."""

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


# Requests -----------------------------------------------------------------------------------------


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


Login: TypeAlias = Callable[[HttpRequest], Awaitable[str | HttpResponse | None]]
"""Returns the user who sent a request; a response, such as a redirect to a login page; or None.

It is called for the authorization request, and for the form of the consent page. A login page
returns to the URL of the authorization request.
"""


@attrs.define(kw_only=True, eq=False, repr=False)
class Endpoints:
    """The endpoints of an authorization server.

    Each of them raises `OAuthError` for a request that is not valid; `respond` answers with it.

    Attributes:
        server: The authorization server: its settings, storage, login, clock and random values.
        issuer: The issuer: the URL of the server, without a slash at its end.
        resources: The URLs of the servers for which tokens are issued; the first is the default.
        keys: The keys that sign access tokens.
        documents: The metadata documents of clients; None if no client may have one.
        clients: The clients that the operator has registered, by id.
        enterprises: The enterprises whose assertions are accepted, by issuer.
        scopes: Returns all known scopes.
        is_development: Whether there is no login; then the consent page is shown for each request.
    """

    server: "AuthorizationServer"
    issuer: str
    resources: Sequence[str]
    keys: "SigningKeys"
    documents: ClientDocuments | None
    clients: Mapping[str, OAuthClient]
    enterprises: Mapping[str, Enterprise]
    scopes: Callable[[], Collection[str]]
    is_development: bool

    async def respond(self, request: HttpRequest, body: bytes) -> HttpResponse:
        """Return the response to a request for one of the paths in `ENDPOINTS`."""
        methods = ENDPOINTS[request.path]
        endpoint = methods.get(request.method)
        if endpoint is None:
            allow = ("Allow", ", ".join(methods))
            return HttpResponse(HTTPStatus.METHOD_NOT_ALLOWED, [allow])
        try:
            return await endpoint(self, request, body)
        except OAuthError as error:
            if request.path in PAGES:
                # No user can correct the credentials of a client, so a page has no status 401.
                status = 400 if error.code == "invalid_client" else _STATUSES.get(error.code, 400)
                return error_page(error.description, status=status)
            return error_response(error, request)

    # Records.

    async def _get(self, kind: type[T], key: str) -> tuple[T, bytes] | None:
        """Return a record, decoded and as it is stored."""
        stored = await self.server.storage.get(KINDS[kind], key, now=self.server.now())
        return None if stored is None else (msgspec.json.decode(stored, type=kind), stored)

    async def _store(
        self, key: str, record: Any, *, seconds: float, old: bytes | None = None
    ) -> bool:
        """Store a record in place of `old`; return False if another request was faster.

        Without `old`, the record is new. Only a consent has a key that is not random.
        """
        kind, stored, now = KINDS[type(record)], msgspec.json.encode(record), self.server.now()
        return await self.server.storage.swap(
            kind, key, old, stored, now=now, expires_at=now + seconds
        )

    async def end_grant(self, grant_id: str) -> None:
        """End a grant: none of its tokens is valid any more."""
        storage, kind, now = self.server.storage, KINDS[Grant], self.server.now()
        while (found := await self._get(Grant, grant_id)) is not None:
            if await storage.swap(kind, grant_id, found[1], None, now=now):
                return

    async def grant(self, grant_id: str) -> Grant | None:
        """Return a grant; None if it has ended."""
        found = await self._get(Grant, grant_id)
        if found is None:
            return None
        login = self.server.login
        if isinstance(login, IdentityProvider) and not await login.is_alive(found[0].login_id):
            return None
        return found[0]

    async def _client(self, client_id: str) -> OAuthClient | None:
        """Return a client of the operator, of a document or of a registration, or None."""
        trusted = self.clients.get(client_id)
        if trusted is not None:
            return trusted
        if self.documents is not None and is_document_url(client_id):
            try:
                return await self.documents.fetch(client_id)
            except InvalidClientError as error:
                raise OAuthError("invalid_client", str(error)) from None
        found = await self._get(OAuthClient, client_id)
        return None if found is None else found[0]

    async def _prolong_registration(self, client: OAuthClient) -> None:
        """Let the registration of a client expire later than the code or tokens it has just got."""
        found = await self._get(OAuthClient, client.client_id)
        if found is not None:
            seconds = self.server.refresh_token_seconds + self.server.unused_seconds
            await self._store(client.client_id, client, seconds=seconds, old=found[1])

    # The authorization endpoint.

    async def authorize(self, request: HttpRequest, _body: bytes) -> HttpResponse:
        """Answer an authorization request with the consent page, or with a code.

        Errors are shown to the user. They are sent by a redirect only to a client that the operator
        has registered, because any other client could use that redirect to send the users of this
        server to any URL (RFC 9700, section 4.11.2).
        """
        parameters = _parameters(request.query)
        client_id = parameters.get("client_id")
        client = None if client_id is None else await self._client(client_id)
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
        elif not isinstance(self.server.login, IdentityProvider):
            return error_page("You are not signed in.", status=HTTPStatus.FORBIDDEN)
        return await self._ask_for_consent(client, auth_request, request)

    async def _user(self, request: HttpRequest) -> LoginSession | HttpResponse | None:
        """Return the user of a request, or a login page, or None if there is no login."""
        if isinstance(self.server.login, IdentityProvider):
            return await self.server.login.session(request)
        user = await self.server.login(request)
        return LoginSession(subject=user) if isinstance(user, str) else user

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
            scopes=self._scopes_in(parameters, self.scopes()),
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
            return self.resources[0]
        for resource in self.resources:
            if resource.rstrip("/") == url.rstrip("/"):
                return resource
        raise OAuthError("invalid_target", "no tokens are issued here for this resource")

    async def _has_consent(self, auth_request: AuthorizationRequest) -> bool:
        """Return whether the user has allowed this before, and need not be asked again.

        Without https the redirect may reach another program than before (RFC 8252, section 8.6).
        """
        if self.is_development or not auth_request.redirect_uri.startswith("https:"):
            return False
        found = await self._get(Consent, auth_request.consent_key())
        return found is not None and set(auth_request.scopes) <= set(found[0].scopes)

    async def _ask_for_consent(
        self, client: OAuthClient, auth_request: AuthorizationRequest, request: HttpRequest
    ) -> HttpResponse:
        """Return the consent page, whose form is accepted from this browser only."""
        cookie = cookie_of(request, _COOKIE, self.issuer) or self.server.random()
        request_id = self.server.random()
        auth_request = msgspec.structs.replace(auth_request, cookie_digest=sha256_hex(cookie))
        key = sha256_hex(request_id)
        await self._store(key, auth_request, seconds=PENDING_SECONDS)
        return consent_page(
            client,
            auth_request,
            self.server,
            action=f"{self.issuer}{AUTHORIZE}",
            request_id=request_id,
            is_development=self.is_development,
            headers=[set_cookie(_COOKIE, cookie, self.issuer, PENDING_SECONDS)],
        )

    async def decide(self, request: HttpRequest, body: bytes) -> HttpResponse:
        """Answer the form of the consent page with a redirect to the client or to the provider.

        A form from another site has neither the secret id of the request nor the cookie.
        """
        form = _form_in(request, body)
        key = sha256_hex(form.get("request", ""))
        found = await self._get(AuthorizationRequest, key)
        cookie = cookie_of(request, _COOKIE, self.issuer) or ""
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
        if not await self.server.storage.swap(kind, key, stored, None, now=self.server.now()):
            return error_page("This page was used before. Start again.")
        client = await self._client_of(auth_request)
        if form.get("decision") != "allow":
            return redirect_to(
                self._error_url(auth_request, "access_denied", "the user has denied access")
            )
        if isinstance(self.server.login, IdentityProvider) and auth_request.subject is None:
            try:
                url = await self.server.login.begin(
                    msgspec.Raw(msgspec.json.encode(auth_request)), auth_request.cookie_digest
                )
            except ProviderError as error:
                return self._failed_login_page(auth_request, error)
            # The cookie lasts as long as the login may take.
            return redirect_to(url, set_cookie(_COOKIE, cookie, self.issuer, LOGIN_SECONDS))
        await self._remember_consent(auth_request)
        return await self._redirect_with_code(client, auth_request)

    async def _client_of(self, auth_request: AuthorizationRequest) -> OAuthClient:
        """Return the client of an authorization request."""
        client = await self._client(auth_request.client_id)
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
        await self._store(key, consent, seconds=self.server.consent_seconds, old=old)

    async def _redirect_with_code(
        self, client: OAuthClient, auth_request: AuthorizationRequest
    ) -> HttpResponse:
        """Return the redirect to the client with a code, after storing the grant."""
        assert auth_request.subject is not None
        grant_id, code = self.server.random(), self.server.random()
        grant = Grant(
            subject=auth_request.subject,
            client_id=auth_request.client_id,
            scopes=auth_request.scopes,
            resource=auth_request.resource,
            has_refresh="refresh_token" in client.grant_types,
            ends_at=self.server.now() + self.server.grant_seconds,
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
        parameters = {**values, **({} if state is None else {"state": state}), "iss": self.issuer}
        return with_query(redirect_uri, parameters)

    # The token endpoint.

    async def token(self, request: HttpRequest, body: bytes) -> HttpResponse:
        """Answer a token request."""
        form = _form_in(request, body)
        client = await self._authenticated(request, form)
        grant_type = form.get("grant_type")
        if grant_type is None:
            raise OAuthError("invalid_request", "grant_type is missing")
        if grant_type not in self.grant_types:
            raise OAuthError(
                "unsupported_grant_type",
                f"grant_type has to be one of {', '.join(self.grant_types)}",
            )
        if grant_type not in client.grant_types:
            raise OAuthError("unauthorized_client", "the client has not registered this grant_type")
        return await _GRANTS[grant_type](self, client, form)

    @property
    def grant_types(self) -> Sequence[str]:
        """The grants of this server: assertions only if an enterprise is known."""
        return [each for each in _GRANTS if each != JWT_BEARER or self.enterprises]

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
        client = await self._client(client_id)
        if client is None:
            raise OAuthError("invalid_client", "the client is not known here, or not any more")
        # A client may send its secret in the header or in the form, whichever it has registered.
        if client.secret_digest is None:
            if secret:
                raise OAuthError("invalid_client", "this client has no secret")
        elif secret is None or not client.has_secret(secret):
            raise OAuthError("invalid_client", "the client's secret is missing or wrong")
        return client

    async def redeem_code(self, client: OAuthClient, form: Mapping[str, str]) -> HttpResponse:
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
        seconds = self.server.access_token_seconds
        return await self._redeem(client, code, record, stored, form, seconds=seconds)

    async def refresh(self, client: OAuthClient, form: Mapping[str, str]) -> HttpResponse:
        """Redeem a refresh token, which is replaced by another one (RFC 9700, section 4.14)."""
        token = form.get("refresh_token")
        if token is None:
            raise OAuthError("invalid_request", "refresh_token is missing")
        record, stored = await self._unused(RefreshToken, token, client)
        seconds = self.server.refresh_token_seconds
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
        grant = await self.grant(record.grant_id)
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
        now = self.server.now()
        return await self._token_response(client, record.grant_id, grant, scopes, now)

    async def _reused(self, record: Code | RefreshToken) -> OAuthError:
        await self.end_grant(record.grant_id)
        text = f"the {KINDS[type(record)]} was used before: its tokens are revoked"
        return OAuthError("invalid_grant", text)

    async def exchange_assertion(
        self, client: OAuthClient, form: Mapping[str, str]
    ) -> HttpResponse:
        """Exchange the assertion of an enterprise (ID-JAG) for a token, without a refresh token."""
        assertion = form.get("assertion")
        if assertion is None:
            raise OAuthError("invalid_request", "assertion is missing")
        now = self.server.now()
        try:
            enterprise = self.enterprises.get(issuer_in(assertion) or "")
            if enterprise is None:
                raise OAuthError("invalid_grant", "the issuer of the assertion is not known here")
            found = await enterprise.verified(assertion, audience=self.issuer, now=now)
        except InvalidAssertionError as error:
            raise OAuthError("invalid_grant", str(error)) from None
        except VerifierUnavailableError:
            text = "the keys of the enterprise cannot be fetched now"
            raise OAuthError("temporarily_unavailable", text) from None
        if found.client_id != client.client_id:
            raise OAuthError("invalid_grant", "the assertion is for another client")
        resource = self._resource_in({"resource": found.resource})
        if "resource" in form and self._resource_in(form) != resource:
            raise OAuthError("invalid_target", "the assertion is for another resource")
        known = self.scopes()
        if found.scopes is not None:
            known = set(known).intersection(found.scopes)
        scopes = self._scopes_in(form, known)
        # RFC 7523, section 3: the id of an assertion is accepted once.
        key = sha256_hex(msgspec.json.encode((enterprise.issuer, found.assertion_id)).decode())
        if not await self.server.storage.swap(
            _ASSERTION, key, None, b"used", now=now, expires_at=found.keep_until
        ):
            raise OAuthError("invalid_grant", "the assertion was used before")
        grant = Grant(
            subject=found.subject,
            client_id=client.client_id,
            scopes=scopes,
            resource=resource,
            has_refresh=False,
            ends_at=now + self.server.access_token_seconds,
        )
        grant_id = self.server.random()
        await self._store(grant_id, grant, seconds=self.server.access_token_seconds)
        return await self._token_response(client, grant_id, grant, scopes, now)

    async def _token_response(
        self, client: OAuthClient, grant_id: str, grant: Grant, scopes: Sequence[str], now: float
    ) -> HttpResponse:
        """Return the response with new tokens of a grant, and store the grant until they expire."""
        remaining = grant.ends_at - now
        token_seconds = min(self.server.access_token_seconds, remaining)
        lifetime = token_seconds
        if grant.has_refresh:
            lifetime = min(max(lifetime, self.server.refresh_token_seconds), remaining)
        # The grant is replaced by itself, so that it expires later. That fails if it has ended.
        stored = msgspec.json.encode(grant)
        if not await self._store(grant_id, grant, seconds=lifetime, old=stored):
            raise OAuthError("invalid_grant", "the grant has ended")
        claims = {
            "iss": self.issuer,
            "sub": grant.subject,
            "aud": grant.resource,
            "client_id": client.client_id,
            "scope": " ".join(scopes),
            "iat": int(now),
            "exp": int(now + token_seconds),
            "jti": self.server.random(),
            GRANT_ID: grant_id,
        }
        response = {
            "access_token": await self.keys.sign(claims),
            "token_type": "Bearer",
            "expires_in": int(token_seconds),
            "scope": " ".join(scopes),
        }
        if grant.has_refresh:
            refresh_token = response["refresh_token"] = self.server.random()
            record = RefreshToken(grant_id=grant_id, client_id=client.client_id)
            key, seconds = sha256_hex(refresh_token), self.server.refresh_token_seconds
            await self._store(key, record, seconds=seconds)
        await self._prolong_registration(client)
        return json_response(response)

    # The other endpoints.

    async def register(self, _request: HttpRequest, body: bytes) -> HttpResponse:
        """Register a client (RFC 7591)."""
        if not self.server.has_registration:
            raise OAuthError("access_denied", "clients cannot register themselves here")
        try:
            metadata = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise OAuthError("invalid_client_metadata", "the body is not a JSON object") from None
        client_id, secret, now = self.server.random(), self.server.random(), self.server.now()
        try:
            client, response = registered_client(metadata, client_id, secret, now=now)
        except InvalidClientError as error:
            raise OAuthError(error.code, str(error)) from None
        count = await self.server.storage.count(KINDS[OAuthClient], now=now)
        if count >= self.server.registrations_max:
            raise OAuthError("temporarily_unavailable", "there are too many registered clients")
        await self._store(client.client_id, client, seconds=self.server.unused_seconds)
        return json_response(response, status=HTTPStatus.CREATED)

    async def revoke(self, request: HttpRequest, body: bytes) -> HttpResponse:
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
            grant_id = (await self.keys.claims_in(token) or {}).get(GRANT_ID, "")
        grant = await self.grant(grant_id)
        if grant is not None and grant.client_id == client.client_id:
            await self.end_grant(grant_id)
        return HttpResponse(HTTPStatus.OK, [("Cache-Control", "no-store")])

    async def callback(self, request: HttpRequest, _body: bytes) -> HttpResponse:
        """Answer the redirect of the identity provider with a redirect to the client.

        The user has allowed the access before, in the same browser.
        """
        if not isinstance(self.server.login, IdentityProvider):
            return HttpResponse(HTTPStatus.NOT_FOUND)
        parameters = _parameters(request.query)
        cookie = cookie_of(request, _COOKIE, self.issuer) or ""
        pending = await self.server.login.take(parameters.get("state", ""), cookie)
        if pending is None:
            text = (
                "This login has expired, was finished, or belongs to another browser. Start again."
            )
            return error_page(text, status=HTTPStatus.FORBIDDEN)
        auth_request = msgspec.json.decode(pending.auth_request, type=AuthorizationRequest)
        client = await self._client_of(auth_request)
        try:
            finished = await self.server.login.finish(pending, parameters)
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

    async def metadata(self, _request: HttpRequest, _body: bytes) -> HttpResponse:
        """Return the metadata of the authorization server (RFC 8414)."""
        document = AuthorizationServerMetadata(
            issuer=self.issuer,
            authorization_endpoint=f"{self.issuer}{AUTHORIZE}",
            token_endpoint=f"{self.issuer}{TOKEN}",
            jwks_uri=f"{self.issuer}{JWKS}",
            registration_endpoint=f"{self.issuer}{REGISTER}"
            if self.server.has_registration
            else None,
            scopes_supported=sorted(self.scopes()) or None,
            response_types_supported=["code"],
            response_modes_supported=["query"],
            grant_types_supported=[*self.grant_types],
            authorization_grant_profiles_supported=[ID_JAG_PROFILE] if self.enterprises else None,
            token_endpoint_auth_methods_supported=[*AUTH_METHODS],
            revocation_endpoint=f"{self.issuer}{REVOKE}",
            revocation_endpoint_auth_methods_supported=[*AUTH_METHODS],
            code_challenge_methods_supported=["S256"],
            authorization_response_iss_parameter_supported=True,
            client_id_metadata_document_supported=self.documents is not None,
        )
        return json_response(document)

    async def public_keys(self, _request: HttpRequest, _body: bytes) -> HttpResponse:
        """Return the keys that verify access tokens (RFC 7517)."""
        return json_response(await self.server.jwks())


_Endpoint: TypeAlias = Callable[[Endpoints, HttpRequest, bytes], Awaitable[HttpResponse]]

ENDPOINTS: Final[Mapping[str, Mapping[str, _Endpoint]]] = {
    AUTHORIZE: {"GET": Endpoints.authorize, "POST": Endpoints.decide},
    TOKEN: {"POST": Endpoints.token},
    REGISTER: {"POST": Endpoints.register},
    REVOKE: {"POST": Endpoints.revoke},
    CALLBACK: {"GET": Endpoints.callback},
    JWKS: {"GET": Endpoints.public_keys},
    AUTHORIZATION_SERVER: {"GET": Endpoints.metadata},
    OPENID_CONFIGURATION: {"GET": Endpoints.metadata},
}
"""By path below the issuer, and by method."""

PAGES: Final = frozenset({AUTHORIZE, CALLBACK})
"""The paths that a user sees, whose errors are pages."""

_GRANTS: Final[Mapping[str, Callable[..., Awaitable[HttpResponse]]]] = {
    "authorization_code": Endpoints.redeem_code,
    "refresh_token": Endpoints.refresh,
    JWT_BEARER: Endpoints.exchange_assertion,
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
    response = json_response(body, status=_STATUSES.get(error.code, 400))
    if error.code != "invalid_client" or "authorization" not in request.headers:
        return response
    challenge = ("WWW-Authenticate", 'Basic realm="token"')
    return attrs.evolve(response, headers=[*response.headers, challenge])


def _basic_credentials(request: HttpRequest) -> tuple[str, str] | None:
    """Return the client id and secret in a header; both are form-encoded (RFC 6749, 2.3.1).

    Raises:
        OAuthError: The header has no such credentials.
    """
    value = request.header("authorization")
    if value is None:
        return None
    scheme, _, encoded = value.partition(" ")
    try:
        text = base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        text = ""
    client_id, colon, secret = text.partition(":")
    if scheme.lower() != "basic" or not colon:
        raise OAuthError("invalid_client", "the Authorization header has to be Basic")
    return unquote_plus(client_id), unquote_plus(secret)
