"""A server as an OAuth resource server: which requests it accepts, and how it challenges others.

`ResourceServer` has the settings. `ProtectedResource` is the same bound to the URLs of a listener
or an application: it authenticates each HTTP request and WebSocket handshake, makes the challenges,
and has the protected resource metadata.

https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization
"""

import hmac
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from http import HTTPStatus
from inspect import iscoroutinefunction
from typing import Any, Final, TypeAlias, cast
from urllib.parse import parse_qs, urlsplit

import attrs
import msgspec

from mcp_trio._auth.challenges import (
    BEARER,
    DPOP,
    INSUFFICIENT_SCOPE,
    INVALID_REQUEST,
    INVALID_TOKEN,
    WWW_AUTHENTICATE,
    checked_scopes,
    format_challenge,
)
from mcp_trio._auth.issuers import VerifierUnavailableError
from mcp_trio._auth.metadata import PROTECTED_RESOURCE, ProtectedResourceMetadata
from mcp_trio._auth.verification import (
    DPOP_HEADER,
    NONCE_HEADER,
    DPoP,
    Introspection,
    InvalidProofError,
    InvalidTokenError,
    JWTVerifier,
    TokenVerifier,
    checked_subject,
)
from mcp_trio._jsonrpc.channel_messages import AuthInfo
from mcp_trio._protocol.http_headers import HttpRequest
from mcp_trio._protocol.http_requests import RETRY_SECONDS, RejectedError, Rejection
from mcp_trio._protocol.stores import StateStore
from mcp_trio.errors import FORBIDDEN, SERVER_BUSY

logger = logging.getLogger("mcp_trio")

VerifyRequest: TypeAlias = Callable[[HttpRequest], Awaitable[AuthInfo | str | None]]
"""Returns the facts about the sender of a request, or a name.

None, or an empty name, rejects the request.
"""

AuthSetting: TypeAlias = "str | TokenVerifier | VerifyRequest | ResourceServer"
"""The value of `Server(auth=…)`: an issuer, a verifier, a function, or all settings."""

# The members of the claim `cnf` (RFC 9449, section 6.1, and RFC 8705, section 3.1).
_DPOP_KEY: Final = "jkt"
_CERTIFICATE: Final = "x5t#S256"

_CERTIFICATES_NEEDED: Final = (
    "serve it with client_cafile= and our own listener, or with an HTTP server for ASGI that has"
    " the TLS extension; and end TLS in no proxy before it"
)

_CREDENTIALS: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) +([!-~]+)")

# The characters that an `error_description` must not have (RFC 6750, section 3).
_NOT_IN_DESCRIPTION: Final = re.compile(r"[^ !#-\[\]-~]")

# OpenID Connect has this scope for refresh tokens, which a resource server never sees:
# https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization
_OFFLINE_ACCESS: Final = "offline_access"


def _verifier_of(value: Any) -> Any:
    return JWTVerifier(value) if isinstance(value, str) else value


def _check_verifier(_server: object, _field: object, verifier: Any) -> None:
    verify = getattr(verifier, "verify", verifier)
    if not iscoroutinefunction(getattr(verify, "func", verify)):
        raise TypeError(
            "auth= takes the URL of an issuer, an object with `async def verify(self, token)`, or"
            f" an async function of the request, not {type(verifier).__name__}"
        )


def _check_resource(_server: object, _field: object, resource: str | None) -> None:
    if resource is None:
        return
    parts = urlsplit(resource)
    if parts.scheme not in {"http", "https"} or not parts.netloc or "#" in resource:
        text = "resource= has to be the URL of the MCP endpoint, without #…"
        raise ValueError(f"{text}, not {resource!r}")


def _scopes_of_resource(scopes: Iterable[str]) -> tuple[str, ...]:
    found = checked_scopes(scopes)
    if _OFFLINE_ACCESS in found:
        raise ValueError(
            f"a server cannot need the scope {_OFFLINE_ACCESS}: clients ask the authorization"
            " server for it"
        )
    return found


@attrs.frozen(eq=False, repr=False)
class ResourceServer:
    """The settings of a server that accepts only requests with valid credentials.

    `Server(auth="https://issuer.example")` and `Server(auth=JWTVerifier(…))` make one with the
    defaults.

    Attributes:
        verifier: The verifier of tokens; the URL of an issuer of JSON Web Tokens; or an async
            function that returns the `AuthInfo` or the name of the user for a request, given its
            headers, where a gateway has authenticated the user.
        resource: The public URL of the MCP endpoint, which is the audience of its tokens. By
            default the URL that is bound; behind a proxy, for all addresses of a machine, and for
            an ASGI application it has to be given.
        audiences: Further accepted values of `aud`.
        authorization_servers: The issuers that the metadata name; by default, the verifier's.
        scopes: The scopes that every request needs.
        scopes_supported: The scopes that the metadata list; by default `scopes`, and all scopes
            that tools, resources and prompts need.
        includes: Returns the scopes that a granted scope includes, for hierarchies:
            `{"notes:write": {"notes:read"}}.get`; None for none.
        dpop: The settings for tokens that are bound to a key (RFC 9449), which are always checked.
        local: The facts about clients of transports without credentials: stdio, sockets without
            `authorize=`, and channels. Without it such a client may use only what needs no scopes.
        name: The name of the server in the metadata.
        documentation_url: The URL of a page for developers in the metadata.
        now: Returns the Unix time.

    Raises:
        TypeError: The verifier has no async method or is no async function.
        ValueError: A URL or a scope is invalid.
    """

    verifier: TokenVerifier | VerifyRequest = attrs.field(
        converter=_verifier_of, validator=_check_verifier
    )
    resource: str | None = attrs.field(default=None, kw_only=True, validator=_check_resource)
    audiences: Collection[str] = attrs.field(default=(), kw_only=True)
    authorization_servers: Sequence[str] = attrs.field(default=(), kw_only=True)
    scopes: Collection[str] = attrs.field(default=(), kw_only=True, converter=_scopes_of_resource)
    scopes_supported: Collection[str] | None = attrs.field(
        default=None, kw_only=True, converter=attrs.converters.optional(_scopes_of_resource)
    )
    includes: Callable[[str], Iterable[str] | None] | None = attrs.field(default=None, kw_only=True)
    dpop: DPoP = attrs.field(factory=DPoP, kw_only=True)
    local: AuthInfo | None = attrs.field(default=None, kw_only=True)
    name: str | None = attrs.field(default=None, kw_only=True)
    documentation_url: str | None = attrs.field(default=None, kw_only=True)
    now: Callable[[], float] = attrs.field(default=time.time, kw_only=True)
    _granted: dict[frozenset[str], frozenset[str]] = attrs.field(
        factory=dict[frozenset[str], frozenset[str]], init=False
    )

    @classmethod
    def of(cls, setting: AuthSetting) -> "ResourceServer":
        """Return the settings for a value of `Server(auth=…)`."""
        return setting if isinstance(setting, cls) else cls(setting)

    def use_store(self, store: StateStore | None) -> None:
        """Share used proofs and looked-up tokens with the other instances by this store."""
        self.dpop.store = store
        if isinstance(self.verifier, Introspection):
            self.verifier.store = store

    @property
    def issuers(self) -> list[str]:
        """The issuers that the metadata name."""
        issuer = getattr(self.verifier, "issuer", None)
        default = [] if issuer is None else [issuer]
        return [*self.authorization_servers] or default

    def granted(self, auth: AuthInfo | None) -> frozenset[str]:
        """Return the scopes that a sender has, with all that they include."""
        if auth is None:
            return frozenset()
        if self.includes is None:
            return auth.scopes
        found = self._granted.get(auth.scopes)
        if found is None:
            reached: set[str] = set()
            waiting = [*auth.scopes]
            while waiting:
                scope = waiting.pop()
                if scope not in reached:
                    reached.add(scope)
                    waiting += self.includes(scope) or ()
            found = frozenset(reached)
            if len(self._granted) >= _GRANTED_MAX:
                self._granted.clear()
            self._granted[auth.scopes] = found
        return found


# The sets of scopes for which the included ones are remembered.
_GRANTED_MAX: Final = 1024


@attrs.define(kw_only=True, eq=False, repr=False)
class ProtectedResource:
    """A resource server at the URLs at which a listener or an application is reached.

    Attributes:
        resources: The URLs of the MCP endpoint, which are accepted audiences: several on a
            loopback address, which has several names. Empty if they are not known.
        path: The path of the MCP endpoint, without the prefix of a mounted application.
        scopes_supported: Returns the scopes of everything that is registered.
        has_certificates: Whether clients can prove certificates of their own over TLS.
    """

    settings: ResourceServer
    resources: Sequence[str]
    path: str
    scopes_supported: Callable[[], Iterable[str]] = tuple
    has_certificates: bool = False
    _has_warned: bool = attrs.field(default=False, init=False)
    _audiences: frozenset[str] = attrs.field(init=False)
    _leeway_seconds: float = attrs.field(init=False)
    # None if the verifier is a function of the request.
    _verify_token: Callable[[str], Awaitable[AuthInfo | None]] | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        accepted = {*self.resources, *self.settings.audiences}
        # Some authorization servers add a slash, or remove it: the resource is the same.
        accepted |= {f"{each}/" for each in accepted} | {each.rstrip("/") for each in accepted}
        self._audiences = frozenset(accepted)
        self._leeway_seconds = getattr(self.settings.verifier, "leeway_seconds", 0)
        self._verify_token = getattr(self.settings.verifier, "verify", None)

    # The metadata.

    @property
    def has_metadata(self) -> bool:
        """Return whether there are metadata: they name the issuers whose tokens are accepted."""
        return bool(self.resources and self.settings.issuers)

    @property
    def metadata_paths(self) -> Sequence[str]:
        """The paths of the metadata: with the path of the endpoint inserted, and the root."""
        return (f"{PROTECTED_RESOURCE}{self.path.rstrip('/')}", PROTECTED_RESOURCE)

    def metadata(self, request: HttpRequest) -> bytes:
        """Return the protected resource metadata, encoded, for the host that a request names."""
        settings = self.settings
        supported = settings.scopes_supported
        if supported is None:
            supported = sorted({*settings.scopes, *self.scopes_supported()})
        document = ProtectedResourceMetadata(
            resource=self._resource(request),
            authorization_servers=settings.issuers or None,
            scopes_supported=[*supported] or None,
            bearer_methods_supported=["header"],
            tls_client_certificate_bound_access_tokens=self.has_certificates or None,
            dpop_signing_alg_values_supported=[*settings.dpop.algorithms],
            dpop_bound_access_tokens_required=settings.dpop.is_required or None,
            resource_name=settings.name,
            resource_documentation=settings.documentation_url,
        )
        return msgspec.json.encode(document)

    def _resource(self, request: HttpRequest) -> str:
        """Return the URL of the endpoint for the host that a request names."""
        host = request.headers.get("host", "").lower()
        of_host = (each for each in self.resources if urlsplit(each).netloc == host)
        return next(of_host, self.resources[0] if self.resources else f"http://{host}{self.path}")

    def _origin_and_prefix(self, request: HttpRequest) -> tuple[str, str]:
        """Return the origin of the server, and the prefix of a mounted application."""
        parts = urlsplit(self._resource(request))
        path, own_path = parts.path.rstrip("/"), self.path.rstrip("/")
        prefix = path.removesuffix(own_path) if path.endswith(own_path) else ""
        return f"{parts.scheme}://{parts.netloc}", prefix

    # Challenges.

    def step_up(self, request: HttpRequest, scopes: Iterable[str]) -> tuple[str, str]:
        """Return the `WWW-Authenticate` header of a response with status 403.

        It names all scopes that the request needs: `scopes`, and those that every request needs.
        """
        return self._challenge(request, INSUFFICIENT_SCOPE, "the token lacks a scope", scopes)

    def _challenge(
        self,
        request: HttpRequest,
        error: str | None,
        description: str | None,
        scopes: Iterable[str] = (),
        *,
        scheme: str | None = None,
    ) -> tuple[str, str]:
        if scheme is None:
            scheme = DPOP if self.settings.dpop.is_required else BEARER
        needed = sorted({*self.settings.scopes, *scopes})
        # The prefix of a mounted application stays in front, so that the application itself gets
        # the request; RFC 9728, section 5.1, allows any URL in a challenge.
        origin, prefix = self._origin_and_prefix(request)
        metadata_url = f"{origin}{prefix}{self.metadata_paths[0]}"
        if description is not None:
            description = _NOT_IN_DESCRIPTION.sub("?", description.replace('"', "'"))
        parameters = {
            "error": error,
            "error_description": description,
            "scope": " ".join(needed) or None,
            "resource_metadata": metadata_url if self.has_metadata else None,
        }
        given = {name: value for name, value in parameters.items() if value is not None}
        if scheme == DPOP:
            given["algs"] = " ".join(self.settings.dpop.algorithms)
        return WWW_AUTHENTICATE, format_challenge(scheme, given)

    def _unauthenticated(
        self, request: HttpRequest, description: str | None = None
    ) -> RejectedError:
        error = None if description is None else INVALID_TOKEN
        header = self._challenge(request, error, description)
        reason = description or "the request has no access token"
        return RejectedError(
            Rejection(
                status=HTTPStatus.UNAUTHORIZED,
                text=f"{reason} (the server has token= or auth=)",
                headers=[header],
            )
        )

    def _malformed(self, request: HttpRequest, text: str) -> RejectedError:
        header = self._challenge(request, INVALID_REQUEST, text)
        return RejectedError(Rejection(status=HTTPStatus.BAD_REQUEST, text=text, headers=[header]))

    # Authenticating.

    async def authenticate(self, request: HttpRequest) -> AuthInfo | Rejection:
        """Return the facts about the sender of a request, or the rejection to answer with.

        A rejected request has no valid credentials (401), is malformed (400), lacks a scope that
        every request needs (403), or cannot be verified now (503).
        """
        try:
            return await self._authenticate(request)
        except InvalidTokenError as error:
            return self._unauthenticated(request, str(error)).rejection
        except RejectedError as error:
            return error.rejection
        except VerifierUnavailableError as error:
            logger.warning("a request is answered with 503: %s", error)
            return Rejection(
                status=HTTPStatus.SERVICE_UNAVAILABLE,
                code=SERVER_BUSY,
                text="tokens cannot be verified now: the authorization server or the store of used"
                " proofs is unavailable",
                headers=[("Retry-After", RETRY_SECONDS)],
            )

    async def _authenticate(self, request: HttpRequest) -> AuthInfo:
        if "access_token" in request.query and "access_token" in parse_qs(
            request.query, keep_blank_values=True
        ):
            text = "an access token must not be in the URL, which proxies log"
            raise self._malformed(request, text)
        settings = self.settings
        auth: AuthInfo | None
        if self._verify_token is not None:
            scheme, token = self._credentials(request)
            auth = await self._verify_token(token)
            if auth is not None:
                await self._check_binding(request, auth, scheme, token)
        else:
            found = await cast("VerifyRequest", settings.verifier)(request)
            if isinstance(found, AuthInfo):
                auth = found
            else:
                subject = checked_subject(found, "auth=")
                auth = None if subject is None else AuthInfo(subject=subject)
        if auth is None:
            if "authorization" not in request.headers:
                raise self._unauthenticated(request)
            raise InvalidTokenError("the token is unknown, or has expired")
        self._check_audience_and_expiry(auth)
        if settings.scopes and not settings.granted(auth).issuperset(settings.scopes):
            raise RejectedError(
                Rejection(
                    status=HTTPStatus.FORBIDDEN,
                    code=FORBIDDEN,
                    text="the token lacks a scope that every request needs",
                    headers=[self.step_up(request, ())],
                )
            )
        return auth

    def _credentials(self, request: HttpRequest) -> tuple[str, str]:
        """Return the scheme, in lower case, and the token of a request."""
        sent = request.headers.get("authorization")
        if sent is None:
            raise self._unauthenticated(request)
        if "authorization" in request.repeated:
            raise self._malformed(request, "the header Authorization must be sent once")
        credentials = _CREDENTIALS.fullmatch(sent)
        scheme = "" if credentials is None else credentials[1].lower()
        if credentials is None or scheme not in {BEARER.lower(), DPOP.lower()}:
            raise self._unauthenticated(request)
        return scheme, credentials[2]

    async def _check_binding(
        self, request: HttpRequest, auth: AuthInfo, scheme: str, token: str
    ) -> None:
        """Check that the sender of a token has the keys to which it is bound, if it is bound.

        A token may be bound to a key by DPoP (RFC 9449), and to a certificate of the client, which
        the listener has verified (RFC 8705, section 3).
        """
        dpop = self.settings.dpop
        confirmation = auth.claims.get("cnf")
        bound: dict[str, str] = {}
        if confirmation is not None:
            with suppress(msgspec.ValidationError):
                bound = msgspec.convert(confirmation, dict[str, str])
            if not bound or not bound.keys() <= {_DPOP_KEY, _CERTIFICATE}:
                raise InvalidTokenError(
                    "the token is bound in another way than by DPoP or to a client certificate"
                )
        if _CERTIFICATE in bound and not hmac.compare_digest(
            bound[_CERTIFICATE].encode(), (request.certificate or "").encode()
        ):
            text = "the token is bound to a client certificate that the connection does not have"
            if request.certificate is None and not self.has_certificates:
                text = f"{text}, as no certificates of clients reach this server"
                if not self._has_warned:
                    self._has_warned = True
                    logger.warning("%s: %s", text, _CERTIFICATES_NEEDED)
            raise InvalidTokenError(text)
        if _DPOP_KEY not in bound:
            if dpop.is_required or scheme == DPOP.lower():
                raise InvalidTokenError("the token is not bound to a key")
            return
        if scheme != DPOP.lower():
            raise InvalidTokenError("the token is bound to a key, and needs a proof of it")
        is_repeated = DPOP_HEADER.lower() in request.repeated
        origin, prefix = self._origin_and_prefix(request)
        try:
            await dpop.check(
                None if is_repeated else request.header(DPOP_HEADER),
                method=request.method,
                url=f"{origin}{prefix}{request.path}",
                token=token,
                thumbprint=bound[_DPOP_KEY],
            )
        except InvalidProofError as error:
            text = str(error)
            headers = [self._challenge(request, error.code, text, scheme=DPOP)]
            if dpop.uses_nonces:
                headers.append((NONCE_HEADER, dpop.nonce()))
            raise RejectedError(
                Rejection(status=HTTPStatus.UNAUTHORIZED, text=text, headers=headers)
            ) from None

    def _check_audience_and_expiry(self, auth: AuthInfo) -> None:
        """Check what no verifier has to check by itself."""
        audience = auth.claims.get("aud")
        if audience is not None:
            try:
                named = msgspec.convert(audience, str | list[str])
            except msgspec.ValidationError:
                raise InvalidTokenError("the claim aud is not a string or a list") from None
            if self._audiences.isdisjoint([named] if isinstance(named, str) else named):
                raise InvalidTokenError("the token is for another server")
        if (
            auth.expires_at is not None
            and auth.expires_at + self._leeway_seconds <= self.settings.now()
        ):
            raise InvalidTokenError("the token has expired")
