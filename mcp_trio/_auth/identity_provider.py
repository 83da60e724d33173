"""Login by an existing identity provider: the authorization server as a proxy in front of it.

The user logs in at the provider (OpenID Connect, or OAuth), which sends its tokens to this server
alone. They identify the user; then they are discarded, or kept for calls to APIs of the provider.
Clients get tokens of this server, and only after the user has allowed that on the consent page of
this server, before the redirect to the provider: without it, a client could use the consent that
the user has given this server at the provider (a *confused deputy*).

https://openid.net/specs/openid-connect-core-1_0.html#CodeFlowAuth
https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization/security-considerations
"""

import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec

from mcp_trio._auth.consent_page import cookie_of, set_cookie
from mcp_trio._auth.fetching import (
    Fetcher,
    FetchError,
    authenticated_form,
    check_secure_url,
    decoded,
)
from mcp_trio._auth.issuers import Issuer, VerifierUnavailableError
from mcp_trio._auth.metadata import AuthorizationServerMetadata
from mcp_trio._auth.oauth_clients import sha256_hex
from mcp_trio._auth.provider_tokens import (
    ProviderError,
    ProviderToken,
    ProviderTokens,
    TokenResponse,
    token_auth,
)
from mcp_trio._auth.urls import with_query
from mcp_trio._auth.verification import (
    ALGORITHMS,
    checked_subject,
    jws_registry,
    signed_by_issuer,
)
from mcp_trio._jsonrpc.channel_messages import AuthInfo
from mcp_trio._protocol.http_headers import HttpRequest
from mcp_trio._protocol.security import sha256_base64url
from mcp_trio.errors import AccessDenied

if TYPE_CHECKING:
    import httpx2

    from mcp_trio._auth.authorization_server import AuthorizationServer

CALLBACK: Final = "/callback"

# The claim of access tokens that has the id of their grant.
GRANT_ID: Final = "grant_id"

_SESSION_COOKIE: Final = "mcp-session"

# The kinds of records in the storage of the authorization server.
_SESSION: Final = "session"
_LOGIN: Final = "login"

LOGIN_SECONDS: Final = 600.0
_LEEWAY_SECONDS: Final = 60


@attrs.frozen(kw_only=True, repr=False)
class PendingLogin:
    """A login that the user has begun at the provider, by consent on a page of this server.

    `auth_request` is the authorization request that the user has allowed, in JSON; the nonce is
    that of the ID token, the verifier that of PKCE, and the cookie that of the browser.
    """

    nonce: str
    verifier: str
    auth_request: msgspec.Raw
    cookie_digest: str


class LoginSession(msgspec.Struct, frozen=True, kw_only=True):
    """A logged-in user; `login_id` is the login whose tokens are kept, None if none are."""

    subject: str
    login_id: str | None = None


def _sub_of(claims: Mapping[str, Any]) -> str:
    if not claims.get("sub"):  # All users without a name would be the same user.
        raise KeyError("sub")
    return str(claims["sub"])


@attrs.define(kw_only=True, eq=False, repr=False)
class IdentityProvider:
    """A login by an identity provider, for `AuthorizationServer(login=IdentityProvider(…))`.

    Register this server there as a client, with the redirect URI `ISSUER/callback`.

    Attributes:
        issuer: The issuer of the provider, whose metadata name its endpoints and keys.
        client_id: The client id of this server at the provider.
        client_secret: Its secret.
        scopes: The scopes to ask the provider for. With "openid" an ID token names the user, and
            without it the response of the `userinfo_endpoint`.
        parameters: Further parameters of the login page, such as `{"prompt": "consent"}`.
        metadata: The endpoints of a provider that publishes no metadata.
        subject_of: Returns the name of the user for the claims of an ID token, such as
            `lambda claims: claims["email"] if claims.get("email_verified") else None`; None rejects
            the user. By default all users of the provider are accepted, by their `sub`.
        session_seconds: The time after which a user has to log in again.
        keeps_tokens: Whether the provider's tokens are kept for `auth_of` and `token_of`. They are
            encrypted with a key that is derived from `client_secret`.
        http_client: The HTTP client, with its proxies and certificates.

    Raises:
        ValueError: The issuer is neither an https URL nor an http URL of this machine.
    """

    issuer: str
    client_id: str
    client_secret: str
    scopes: Sequence[str] = ("openid",)
    parameters: Mapping[str, str] = attrs.field(factory=dict[str, str])
    metadata: AuthorizationServerMetadata | None = None
    subject_of: Callable[[Mapping[str, Any]], str | None] = _sub_of
    session_seconds: float = 8 * 3600.0
    keeps_tokens: bool = False
    http_client: "httpx2.AsyncClient | None" = None
    # Set by `bind`.
    _server: "AuthorizationServer" = attrs.field(default=None, init=False)
    _own_issuer: str = attrs.field(default="", init=False)
    _login_of: Callable[[str], Awaitable[str | None]] = attrs.field(default=None, init=False)
    _tokens: ProviderTokens | None = attrs.field(default=None, init=False)
    _provider: Issuer = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._provider = Issuer(
            url=self.issuer,
            jwks_uri=None if self.metadata is None else self.metadata.jwks_uri,
            fetcher=Fetcher(client=self.http_client),
        )

    def bind(
        self, server: "AuthorizationServer", login_of: Callable[[str], Awaitable[str | None]]
    ) -> None:
        """Become the login of an authorization server, and use its storage and its clock.

        Args:
            server: The authorization server, which has an issuer by now.
            login_of: Returns the id of the login for the id of a grant; None if it has ended.
        """
        assert server.issuer is not None
        self._server, self._own_issuer, self._login_of = server, server.issuer, login_of
        if self.keeps_tokens:
            self._tokens = ProviderTokens(
                issuer=self.issuer,
                secret=self.client_secret,
                storage=server.storage,
                random=server.random,
                now=server.now,
                renew=self._renew,
                # A grant may begin at the end of a session.
                seconds=self.session_seconds + server.grant_seconds,
            )

    # Logins.

    async def session(self, request: HttpRequest) -> LoginSession | None:
        """Return the logged-in user of the browser that sent a request."""
        cookie = cookie_of(request, _SESSION_COOKIE, self._own_issuer)
        if cookie is None:
            return None
        found = await self._server.storage.get(_SESSION, sha256_hex(cookie), now=self._server.now())
        session = None if found is None else msgspec.json.decode(found, type=LoginSession)
        if session is None:
            return None
        if session.login_id is None and self.keeps_tokens:
            return None  # it is of an earlier run without `keeps_tokens`, and has no tokens
        return session if await self.is_alive(session.login_id) else None

    async def is_alive(self, login_id: str | None) -> bool:
        """Return whether a login has not ended; it ends with its tokens if they are kept."""
        if self._tokens is None or login_id is None:
            return True
        return await self._tokens.has_login(login_id)

    async def begin(self, auth_request: msgspec.Raw, cookie_digest: str) -> str:
        """Return the URL of the provider's login page, for a request that the user has allowed.

        Raises:
            ProviderError: The metadata of the provider are not usable.
        """
        metadata = await self._metadata()
        state, nonce, verifier = self._server.random(), self._server.random(), self._server.random()
        pending = PendingLogin(
            nonce=nonce, verifier=verifier, auth_request=auth_request, cookie_digest=cookie_digest
        )
        await self._add(_LOGIN, state, pending, LOGIN_SECONDS)
        parameters = {
            **self.parameters,
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": f"{self._own_issuer}{CALLBACK}",
            "scope": " ".join(self.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": sha256_base64url(verifier.encode()),
            "code_challenge_method": "S256",
        }
        return with_query(metadata.authorization_endpoint or "", parameters)

    async def _add(self, kind: str, secret: str, record: Any, seconds: float) -> None:
        """Store a record under the digest of a secret, for so many seconds."""
        now, stored = self._server.now(), msgspec.json.encode(record)
        key, expires_at = sha256_hex(secret), now + seconds
        await self._server.storage.swap(kind, key, None, stored, now=now, expires_at=expires_at)

    async def take(self, state: str, cookie: str) -> PendingLogin | None:
        """Return the login that a browser has begun, and forget it, as a state is used once."""
        key, now = sha256_hex(state), self._server.now()
        stored = await self._server.storage.get(_LOGIN, key, now=now)
        pending = None if stored is None else msgspec.json.decode(stored, type=PendingLogin)
        if pending is None or not hmac.compare_digest(pending.cookie_digest, sha256_hex(cookie)):
            return None
        is_taken = await self._server.storage.swap(_LOGIN, key, stored, None, now=now)
        return pending if is_taken else None

    async def finish(
        self, pending: PendingLogin, parameters: Mapping[str, str]
    ) -> tuple[LoginSession, tuple[str, str]] | None:
        """Open a session for the user of a redirect from the provider.

        Returns:
            The session, and the header that sets its cookie; None if `subject_of` rejects the user.

        Raises:
            ProviderError: The login has failed.
        """
        metadata = await self._metadata()
        # RFC 9207: the response could be that of another provider. Only a provider that announces
        # the parameter has to send it.
        has_iss = metadata.authorization_response_iss_parameter_supported
        if parameters.get("iss", None if has_iss else self.issuer) != self.issuer:
            raise ProviderError("the response is of another issuer, or names none")
        code = parameters.get("code")
        if code is None:
            error = parameters.get("error", "no code")[:100]
            raise ProviderError(f"the provider answers {error!r}", error)
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": f"{self._own_issuer}{CALLBACK}",
            "code_verifier": pending.verifier,
        }
        response = await self._redeem(metadata, form)
        claims = await self._claims(metadata, response, pending.nonce)
        try:
            subject = checked_subject(self.subject_of(claims), "subject_of=")
        except KeyError as error:
            raise ProviderError(f"the provider has sent no claim {error} of the user") from None
        if subject is None:
            return None
        login_id = None
        if self._tokens is not None:
            login_id = self._server.random()
            await self._tokens.keep(login_id, response)
        session, cookie = LoginSession(subject=subject, login_id=login_id), self._server.random()
        seconds = self.session_seconds
        await self._add(_SESSION, cookie, session, seconds)
        return session, set_cookie(_SESSION_COOKIE, cookie, self._own_issuer, seconds)

    # Tokens for handlers.

    def auth_of(self, auth: AuthInfo | None) -> Any:
        """Return `auth=` for a request to an API of the provider, with the token of a user.

            await ctx.http.get("https://api.example/files", auth=provider.auth_of(ctx.auth))

        The token is added inside of the effect, and is not recorded; a replay needs none. It is
        for `ctx.http`, and for other clients with an `mcp_trio.http.EffectTransport`. After a
        redirect to another origin the request has no token.

        Args:
            auth: The facts about the sender of the request that the handler answers.

        Raises:
            ValueError: `keeps_tokens` is not set.

        The request raises what `token_of` raises, and a ValueError for a URL that is neither
        https nor http of this machine.
        """
        self._check_keeps_tokens()

        async def value() -> str:
            return (await self.token_of(auth)).value

        return token_auth(value, check_secure_url)

    async def token_of(self, auth: AuthInfo | None) -> ProviderToken:
        """Return the provider's token of a user; call it inside of an effect.

        The token is renewed if it expires soon. Pass it to the API of the provider alone.

        Args:
            auth: The facts about the sender of the request that the handler answers.

        Raises:
            ValueError: `keeps_tokens` is not set.
            AccessDenied: The user has not logged in at the provider, or the login has ended.
            RequestError: The provider gives no token now.
        """
        self._check_keeps_tokens()
        grant_id = None if auth is None else auth.claims.get(GRANT_ID)
        login_id = None
        if isinstance(grant_id, str) and self._tokens is not None:
            login_id = await self._login_of(grant_id)
        if login_id is None or self._tokens is None:
            raise AccessDenied(f"the sender of this request is not logged in at {self.issuer}")
        return ProviderToken(await self._tokens.current(login_id))

    def _check_keeps_tokens(self) -> None:
        if not self.keeps_tokens:
            raise ValueError("no tokens are kept: write IdentityProvider(…, keeps_tokens=True)")

    # Requests to the provider.

    async def _metadata(self) -> AuthorizationServerMetadata:
        """Return the metadata of the provider, after a check of the endpoints for a login."""
        try:
            metadata = self.metadata or await self._provider.metadata()
            for url in (metadata.authorization_endpoint, metadata.token_endpoint):
                check_secure_url(url or "")
        except (VerifierUnavailableError, ValueError) as error:
            raise ProviderError(f"its metadata are not usable: {error}") from None
        return metadata

    async def _redeem(
        self, metadata: AuthorizationServerMetadata, form: dict[str, str]
    ) -> TokenResponse:
        """Send a token request, and return the tokens."""
        methods = metadata.token_endpoint_auth_methods_supported
        is_basic = methods is None or "client_secret_basic" in methods
        sent = authenticated_form(form, self.client_id, self.client_secret, is_basic=is_basic)
        url = metadata.token_endpoint
        assert url is not None
        try:
            fetched = await self._provider.fetcher.send("POST", url, **sent)
            return decoded(url, fetched, TokenResponse)
        except FetchError as error:
            # The error that caused it could quote the request.
            raise ProviderError(str(error), error.oauth_error) from None

    async def _renew(self, refresh_token: str) -> TokenResponse:
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token}
        return await self._redeem(await self._metadata(), form)

    async def _claims(
        self, metadata: AuthorizationServerMetadata, response: TokenResponse, nonce: str
    ) -> Mapping[str, Any]:
        """Return the claims about the user: of the ID token, or of the userinfo endpoint."""
        try:
            if "openid" in self.scopes:
                if response.id_token is None:
                    raise ProviderError("the response has no ID token")
                return await self._claims_of_id_token(response.id_token, nonce)
            if metadata.userinfo_endpoint is None:
                raise ProviderError(
                    'nothing names the user: add "openid" to scopes=, or userinfo_endpoint= to'
                    " metadata="
                )
            headers = {"Authorization": f"Bearer {response.access_token}"}
            url = metadata.userinfo_endpoint
            fetched = await self._provider.fetcher.send("GET", url, headers=headers)
            return decoded(url, fetched, dict[str, Any])
        except (FetchError, VerifierUnavailableError) as error:
            raise ProviderError(str(error)) from None

    async def _claims_of_id_token(self, id_token: str, nonce: str) -> Mapping[str, Any]:
        """Return the claims of an ID token, whose signature and standard claims are verified."""
        from joserfc import errors, jwt

        signed = await signed_by_issuer(id_token, self._provider, jws_registry(ALGORITHMS))
        if signed is None:
            raise ProviderError("the ID token is signed by no key of the provider")
        claims = signed.claims
        rules = jwt.JWTClaimsRegistry(
            now=int(self._server.now()),
            leeway=_LEEWAY_SECONDS,
            iss={"essential": True, "value": self.issuer},
            aud={"essential": True, "value": self.client_id},
            exp={"essential": True},
            sub={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        try:
            rules.validate(claims)
        except errors.JoseError as error:
            raise ProviderError(f"the ID token is not valid: {error}") from error
        if claims.get("azp", self.client_id) != self.client_id:
            raise ProviderError("the ID token is for another client")
        return claims
