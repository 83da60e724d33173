"""Login by an existing identity provider: the authorization server as a proxy in front of it.

The user logs in at the provider (OpenID Connect), which sends its tokens to this server alone. They
are used once, to identify the user, and discarded. Clients get tokens of this server, after the
user has seen its consent page: without it, a client could use the consent that the user has given
this server at the provider (a *confused deputy*).

https://openid.net/specs/openid-connect-core-1_0.html#CodeFlowAuth
https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization/security-considerations
"""

import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

import attrs
import msgspec

from mcp_trio._auth.authorization_storage import AuthorizationStorage
from mcp_trio._auth.consent_page import HttpResponse, cookie_of, error_page, set_cookie
from mcp_trio._auth.fetching import Fetcher, FetchError, check_url, decoded
from mcp_trio._auth.issuers import Issuer, VerifierUnavailableError
from mcp_trio._auth.metadata import AuthorizationServerMetadata
from mcp_trio._auth.oauth_clients import digest_of
from mcp_trio._protocol.http_headers import HttpRequest
from mcp_trio._protocol.security import digest_text

if TYPE_CHECKING:
    import httpx2
    from joserfc.jwk import Key

logger = logging.getLogger("mcp_trio")

CALLBACK: Final = "/callback"

# With a shared secret, or without a signature, an ID token proves nothing here.
_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "ES512", "Ed25519")

_SESSION_COOKIE: Final = "mcp-session"
_LOGIN_COOKIE: Final = "mcp-login"
_SESSION: Final = "session"
_LOGIN: Final = "login"

_LOGIN_SECONDS: Final = 600.0
_LEEWAY_SECONDS: Final = 60


class ProviderError(Exception):
    """The identity provider gave no usable answer; the text is for the log."""


class _PendingLogin(msgspec.Struct, frozen=True, kw_only=True):
    """A login that has begun: its secrets, and where the user goes on afterwards."""

    nonce: str
    verifier: str
    query: str
    cookie_digest: str


class _TokenResponse(msgspec.Struct, frozen=True):
    id_token: str


def _subject_in(claims: Mapping[str, Any]) -> str | None:
    return str(claims["sub"])


@attrs.define(kw_only=True, eq=False, repr=False)
class IdentityProvider:
    """A login by an identity provider, for `AuthorizationServer(login=IdentityProvider(…))`.

    Register this server there as a client, with the redirect URI `ISSUER/callback`.

    Attributes:
        issuer: The issuer of the provider, whose metadata name its endpoints and keys.
        client_id: The client id of this server at the provider.
        client_secret: Its secret.
        scopes: The scopes to ask the provider for.
        subject_of: Returns the name of the user for the claims of an ID token, such as
            `lambda claims: claims["email"] if claims.get("email_verified") else None`; None rejects
            the user. By default all users of the provider are accepted, by their `sub`.
        session_seconds: The time after which a user has to log in again.
        http_client: The HTTP client, with its proxies and certificates.

    Raises:
        ValueError: The issuer is neither an https URL nor an http URL of this machine.
    """

    issuer: str
    client_id: str
    client_secret: str
    scopes: Sequence[str] = ("openid",)
    subject_of: Callable[[Mapping[str, Any]], str | None] = _subject_in
    session_seconds: float = 8 * 3600.0
    http_client: "httpx2.AsyncClient | None" = None
    _own_issuer: str = attrs.field(default="", init=False)
    _storage: AuthorizationStorage = attrs.field(default=None, init=False)
    _random: Callable[[], str] = attrs.field(default=None, init=False)
    _now: Callable[[], float] = attrs.field(default=None, init=False)
    _provider: Issuer = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._provider = Issuer(url=self.issuer, fetcher=Fetcher(client=self.http_client))

    def bind(
        self,
        issuer: str,
        storage: AuthorizationStorage,
        random: Callable[[], str],
        now: Callable[[], float],
    ) -> None:
        """Take the issuer, storage, random values and clock of the authorization server."""
        self._own_issuer, self._storage, self._random, self._now = issuer, storage, random, now

    async def __call__(self, request: HttpRequest) -> str | HttpResponse | None:
        """Return the user of a request; a redirect to the provider if no user is logged in."""
        session = cookie_of(request, _SESSION_COOKIE, self._own_issuer)
        if session is not None:
            found = await self._storage.get(_SESSION, digest_of(session), now=self._now())
            if found is not None:
                return found.decode()
        if request.method != "GET":
            return None
        return await self._answer(self._begin(request))

    async def finish(self, request: HttpRequest, parameters: Mapping[str, str]) -> HttpResponse:
        """Answer the redirect from the provider: open a session, and go on where the login began.

        Args:
            request: The request.
            parameters: The parameters in its query.
        """
        return await self._answer(self._finish(request, parameters))

    async def _answer(self, response: Awaitable[HttpResponse]) -> HttpResponse:
        try:
            return await response
        except ProviderError as error:
            logger.warning("a login at %s failed: %s", self.issuer, error)
            text = "The login failed. The operator of this server finds the reason in its log."
            return error_page(text, status=HTTPStatus.BAD_GATEWAY)

    async def _begin(self, request: HttpRequest) -> HttpResponse:
        metadata = await self._metadata()
        cookie = cookie_of(request, _LOGIN_COOKIE, self._own_issuer) or self._random()
        state, nonce, verifier = self._random(), self._random(), self._random()
        pending = _PendingLogin(
            nonce=nonce,
            verifier=verifier,
            query=request.query,
            cookie_digest=digest_of(cookie),
        )
        now = self._now()
        await self._storage.swap(
            _LOGIN,
            digest_of(state),
            None,
            msgspec.json.encode(pending),
            now=now,
            expires_at=now + _LOGIN_SECONDS,
        )
        parameters = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": f"{self._own_issuer}{CALLBACK}",
            "scope": " ".join(self.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": digest_text(verifier.encode()),
            "code_challenge_method": "S256",
        }
        endpoint = metadata.authorization_endpoint or ""
        separator = "&" if urlsplit(endpoint).query else "?"
        return self._redirect(
            f"{endpoint}{separator}{urlencode(parameters, quote_via=quote)}",
            set_cookie(_LOGIN_COOKIE, cookie, self._own_issuer, _LOGIN_SECONDS),
        )

    async def _finish(self, request: HttpRequest, parameters: Mapping[str, str]) -> HttpResponse:
        key, now = digest_of(parameters.get("state", "")), self._now()
        stored = await self._storage.get(_LOGIN, key, now=now)
        cookie = cookie_of(request, _LOGIN_COOKIE, self._own_issuer) or ""
        pending = None if stored is None else msgspec.json.decode(stored, type=_PendingLogin)
        if pending is None or not hmac.compare_digest(pending.cookie_digest, digest_of(cookie)):
            text = "This login has expired, or belongs to another browser. Start again."
            return error_page(text, status=HTTPStatus.FORBIDDEN)
        if not await self._storage.swap(_LOGIN, key, stored, None, now=now):
            return error_page("This login was finished before. Start again.")
        metadata = await self._metadata()
        # RFC 9207: the response could be that of another provider.
        is_named = metadata.authorization_response_iss_parameter_supported
        if parameters.get("iss", None if is_named else self.issuer) != self.issuer:
            raise ProviderError("the response is of another issuer, or names none")
        code = parameters.get("code")
        if code is None:
            error = parameters.get("error", "no code")[:100]
            raise ProviderError(f"the provider answers {error!r}")
        subject = self.subject_of(await self._claims(metadata, pending, code))
        if subject is None:
            return error_page("You may not use this server.", status=HTTPStatus.FORBIDDEN)
        session = self._random()
        await self._storage.swap(
            _SESSION,
            digest_of(session),
            None,
            subject.encode(),
            now=now,
            expires_at=now + self.session_seconds,
        )
        return self._redirect(
            f"{self._own_issuer}/authorize?{pending.query}",
            set_cookie(_SESSION_COOKIE, session, self._own_issuer, self.session_seconds),
        )

    def _redirect(self, url: str, cookie: tuple[str, str]) -> HttpResponse:
        return HttpResponse(
            HTTPStatus.SEE_OTHER, [("Location", url), ("Cache-Control", "no-store"), cookie]
        )

    # Requests to the provider.

    async def _metadata(self) -> AuthorizationServerMetadata:
        """Return the metadata of the provider, which has all endpoints of a login.

        Raises:
            ProviderError: They cannot be fetched, are of another issuer, or lack an endpoint.
        """
        try:
            metadata = await self._provider.metadata()
            for url in (metadata.authorization_endpoint, metadata.token_endpoint):
                check_url(url or "")
        except (VerifierUnavailableError, ValueError) as error:
            raise ProviderError(f"its metadata are not usable: {error}") from None
        return metadata

    async def _claims(
        self, metadata: AuthorizationServerMetadata, pending: _PendingLogin, code: str
    ) -> Mapping[str, Any]:
        """Redeem a code of the provider, and return the claims of the ID token.

        Raises:
            ProviderError: The provider rejects the code, or the ID token is not valid.
        """
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": f"{self._own_issuer}{CALLBACK}",
            "code_verifier": pending.verifier,
        }
        request: dict[str, Any] = {}
        methods = metadata.token_endpoint_auth_methods_supported
        if methods is None or "client_secret_basic" in methods:
            # RFC 6749, section 2.3.1: both are form-encoded first.
            credentials = quote(self.client_id, safe=""), quote(self.client_secret, safe="")
            request["auth"] = credentials
        else:
            form |= {"client_id": self.client_id, "client_secret": self.client_secret}
        assert metadata.token_endpoint is not None
        fetcher, url = self._provider.fetcher, metadata.token_endpoint
        try:
            fetched = await fetcher.send("POST", url, data=form, **request)
            id_token = decoded(url, fetched, _TokenResponse).id_token
            return self._verified(id_token, await self._provider.keys(None), pending.nonce)
        except (FetchError, VerifierUnavailableError) as error:
            # The error that caused it could quote the request.
            raise ProviderError(str(error)) from None

    def _verified(self, id_token: str, keys: "list[Key]", nonce: str) -> Mapping[str, Any]:
        """Return the claims of an ID token.

        Raises:
            ProviderError: It is not valid, or not for this login.
        """
        from joserfc import errors, jwt
        from joserfc.jwk import KeySet

        rules = jwt.JWTClaimsRegistry(
            now=int(self._now()),
            leeway=_LEEWAY_SECONDS,
            iss={"essential": True, "value": self.issuer},
            aud={"essential": True, "value": self.client_id},
            exp={"essential": True},
            sub={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        try:
            claims = jwt.decode(id_token, KeySet(keys), algorithms=list(_ALGORITHMS)).claims
            rules.validate(claims)
        except (errors.JoseError, ValueError, TypeError, KeyError) as error:
            raise ProviderError(f"the ID token is not valid: {error}") from error
        if claims.get("azp", self.client_id) != self.client_id:
            raise ProviderError("the ID token is for another client")
        return claims
