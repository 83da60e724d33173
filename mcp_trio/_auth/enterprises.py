"""Assertions of an enterprise (ID-JAG), which an authorization server exchanges for tokens.

The identity provider of the enterprise decides which of its users may use this server with which
client, and signs that. The client presents it; the user sees no page.

https://modelcontextprotocol.io/extensions/auth/enterprise-managed-authorization
https://datatracker.ietf.org/doc/draft-ietf-oauth-identity-assertion-authz-grant/
https://www.rfc-editor.org/rfc/rfc7523#section-3
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec

from mcp_trio._auth.fetching import Fetcher
from mcp_trio._auth.issuers import Issuer
from mcp_trio._auth.verification import (
    ALGORITHMS,
    checked_subject,
    jws_registry,
    signed_by_issuer,
)

if TYPE_CHECKING:
    import httpx2
    from joserfc.jws import CompactSignature
    from joserfc.jwt import Token

ID_JAG_PROFILE: Final = "urn:ietf:params:oauth:grant-profile:id-jag"

_TYPES: Final = frozenset({"oauth-id-jag+jwt", "application/oauth-id-jag+jwt"})
_LEEWAY_SECONDS: Final = 60

# The id of an assertion is kept until it has expired, so none may be valid for ever.
_LIFETIME_SECONDS_MAX: Final = 3600


class InvalidAssertionError(Exception):
    """An assertion is not valid; the client receives the text, which has the reason."""


class Assertion(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of a valid assertion.

    Attributes:
        subject: The name of the user at this server.
        scopes: The scopes that the enterprise allows; None if it restricts none.
        assertion_id: The id, which is unique for the issuer.
        keep_until: The Unix time until which the id has to be kept, so that it is used once.
    """

    subject: str
    client_id: str
    resource: str
    scopes: Sequence[str] | None
    assertion_id: str
    keep_until: float


class _Claims(msgspec.Struct, frozen=True, kw_only=True):
    """The claims that are checked, with their types."""

    iss: str
    sub: str
    aud: str | list[str]
    client_id: str
    resource: str
    jti: str
    exp: float
    iat: float
    nbf: float | None = None
    scope: str | None = None


class _Issued(msgspec.Struct):
    iss: str


@attrs.define(kw_only=True, eq=False, repr=False)
class Enterprise:
    """An enterprise that decides about its users, for `AuthorizationServer(enterprises=…)`.

    Attributes:
        issuer: The issuer of its identity provider, whose metadata name the URL of its keys.
        jwks_uri: The URL of the keys, for a provider without metadata.
        subject_of: Returns the name of the user at this server for the claims of an assertion; None
            rejects the user. By default it is the issuer and `sub`, as two enterprises may have the
            same `sub`, or that of a user who logs in here.
        http_client: The HTTP client, with its proxies and certificates.

    Raises:
        ValueError: A URL is neither https nor http of this machine.
    """

    issuer: str
    jwks_uri: str | None = None
    subject_of: Callable[[Mapping[str, Any]], str | None] | None = None
    http_client: "httpx2.AsyncClient | None" = None
    _issuer: Issuer = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        fetcher = Fetcher(client=self.http_client)
        self._issuer = Issuer(url=self.issuer, jwks_uri=self.jwks_uri, fetcher=fetcher)

    async def verified(self, assertion: str, *, audience: str, now: float) -> Assertion:
        """Return the claims of an assertion that the enterprise has signed for the audience.

        Raises:
            InvalidAssertionError: It is not valid.
            VerifierUnavailableError: The keys of the issuer cannot be fetched.
        """
        token = await self._signed(assertion)
        if str(token.header.get("typ", "")).lower() not in _TYPES:
            raise InvalidAssertionError("the type (typ) of the assertion is not oauth-id-jag+jwt")
        try:
            claims = msgspec.convert(token.claims, _Claims)
        except msgspec.ValidationError as error:
            raise InvalidAssertionError(f"the claims of the assertion: {error}") from None
        if claims.iss != self.issuer:
            raise InvalidAssertionError("the assertion is of another issuer")
        if claims.aud not in (audience, [audience]):
            raise InvalidAssertionError("the assertion is for another authorization server")
        not_before = claims.iat if claims.nbf is None else claims.nbf
        if not_before - _LEEWAY_SECONDS > now:
            raise InvalidAssertionError("the assertion is not valid yet")
        if claims.exp + _LEEWAY_SECONDS <= now:
            raise InvalidAssertionError("the assertion has expired")
        if claims.exp > now + _LIFETIME_SECONDS_MAX:
            raise InvalidAssertionError("the assertion is valid for more than an hour")
        subject = f"{self.issuer}|{claims.sub}"
        if self.subject_of is not None:
            try:
                found = checked_subject(self.subject_of(token.claims), "subject_of=")
            except KeyError as error:
                raise InvalidAssertionError(f"the assertion has no claim {error}") from None
            if found is None:
                raise InvalidAssertionError("the user may not use this server")
            subject = found
        return Assertion(
            subject=subject,
            client_id=claims.client_id,
            resource=claims.resource,
            scopes=None if claims.scope is None else claims.scope.split(),
            assertion_id=claims.jti,
            keep_until=claims.exp + _LEEWAY_SECONDS,
        )

    async def _signed(self, assertion: str) -> "Token":
        """Return the header and claims of an assertion that a key of the enterprise has signed."""
        signed = await signed_by_issuer(assertion, self._issuer, jws_registry(ALGORITHMS))
        if signed is None:
            raise InvalidAssertionError("the assertion is signed by no key of the enterprise")
        return signed


def issuer_in(assertion: str) -> str | None:
    """Return the issuer that an assertion names, unverified.

    Raises:
        InvalidAssertionError: It is not a JSON Web Token.
    """
    try:
        return msgspec.json.decode(_unverified(assertion).payload, type=_Issued).iss
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _unverified(assertion: str) -> "CompactSignature":
    """Return the header, payload and signature of an assertion, unverified.

    Raises:
        InvalidAssertionError: It is not a JSON Web Token.
    """
    from joserfc import errors, jws

    try:
        return jws.extract_compact(assertion.encode("ascii"), registry=jws_registry(ALGORITHMS))
    except (errors.JoseError, ValueError, KeyError, TypeError, RecursionError):
        raise InvalidAssertionError("the assertion is not a JSON Web Token") from None
