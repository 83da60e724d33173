"""Verifiers of access tokens (JSON Web Tokens, introspection, fixed tokens), and of DPoP proofs.

A verifier returns the user, the client and the scopes of a token. `ProtectedResource` checks for
all verifiers that the token is for this server, has not expired, and was sent by the holder of its
key, which `DPoP` verifies.
"""

import base64
import hashlib
import hmac
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol
from urllib.parse import urlsplit

import attrs
import msgspec

from mcp_trio._auth.challenges import INVALID_DPOP_PROOF, USE_DPOP_NONCE
from mcp_trio._auth.fetching import (
    Fetcher,
    FetchError,
    authenticated_form,
    check_secure_url,
    decoded,
)
from mcp_trio._auth.issuers import (
    Issuer,
    JsonWebKeySet,
    VerifierUnavailableError,
    public_keys,
)
from mcp_trio._auth.urls import authority_of
from mcp_trio._jsonrpc.channel_messages import AuthInfo
from mcp_trio._protocol.security import sha256_base64url
from mcp_trio._protocol.stores import StateStore
from mcp_trio._protocol.websocket import checked_token
from mcp_trio.errors import RequestError

if TYPE_CHECKING:
    import httpx2
    from joserfc.jwk import Key
    from joserfc.jws import JWSRegistry
    from joserfc.jwt import Token

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "Ed25519"),
)
"""The algorithms of signatures with a public key.

Those with a shared secret are left out: a server that can verify such a signature could forge it.
"""

# RFC 9068, section 4, requires one of the first; many authorization servers send one of the second.
_ACCESS_TOKEN_TYPES: Final = frozenset({"at+jwt", "application/at+jwt"})
_GENERIC_TYPES: Final = frozenset({"jwt", ""})

_HEADER_BYTES_MAX: Final = 8192


class InvalidTokenError(Exception):
    """The token is not valid; the client receives the text, which has the reason."""


class TokenVerifier(Protocol):
    """A verifier of access tokens."""

    async def verify(self, token: str) -> AuthInfo | None:
        """Return the facts about a valid token; None if the token is unknown.

        `aud` and `cnf` in the claims, and the time of expiry, are checked again afterwards.

        Raises:
            InvalidTokenError: The token is not valid; the text says why.
            VerifierUnavailableError: It cannot be verified now.
        """
        ...


@attrs.define(eq=False, repr=False)
class TokenCache:
    """Verified tokens, by a digest with a key that only this object has.

    Attributes:
        tokens_max: The maximum number of tokens; the least recently used one is dropped.
    """

    seconds_max: float
    tokens_max: int
    now: Callable[[], float]
    _key: bytes = attrs.field(factory=lambda: secrets.token_bytes(32), init=False)
    _kept: OrderedDict[bytes, tuple[float, AuthInfo]] = attrs.field(
        factory=OrderedDict[bytes, tuple[float, AuthInfo]], init=False
    )

    def get(self, token: str) -> AuthInfo | None:
        """Return the facts about a token; None if it is not kept, or not any more."""
        digest = self._digest(token)
        found = self._kept.get(digest)
        if found is None:
            return None
        until, auth = found
        if self.now() >= until:
            del self._kept[digest]
            return None
        self._kept.move_to_end(digest)
        return auth

    def keep(self, token: str, auth: AuthInfo, until: float = math.inf) -> None:
        """Keep a verified token until `until` or `end_of(auth)`, whichever comes first."""
        self._kept[self._digest(token)] = min(until, self.end_of(auth)), auth
        if len(self._kept) > self.tokens_max:
            self._kept.popitem(last=False)

    def end_of(self, auth: AuthInfo) -> float:
        """Return the Unix time until which a token that is verified now is kept.

        It is kept until it expires, but not longer than `seconds_max`.
        """
        until = self.now() + self.seconds_max
        return until if auth.expires_at is None else min(until, auth.expires_at)

    def _digest(self, token: str) -> bytes:
        return hashlib.blake2b(token.encode(), key=self._key, digest_size=32).digest()


# JSON Web Tokens ----------------------------------------------------------------------------------


def _check_algorithms(_verifier: object, _field: object, algorithms: Collection[str]) -> None:
    """Check a setting for algorithms, as a validator of attrs."""
    unknown = sorted(set(algorithms) - set(ALGORITHMS))
    if unknown or not algorithms:
        raise ValueError(f"unknown algorithms {unknown}: choose from {', '.join(ALGORITHMS)}")


@attrs.define(eq=False, repr=False)
class JWTVerifier:
    """A verifier of JSON Web Tokens (RFC 9068) that an authorization server has signed.

    The signature, `iss`, `exp`, `nbf` and `iat` are checked; `aud` and `sub` or a client have to be
    present. Verified tokens are cached.

    Attributes:
        issuer: The issuer, as it is in `iss`; its metadata name the URL of its keys.
        jwks_uri: The URL of the keys, for an issuer without metadata.
        keys: The keys themselves, as a JSON Web Key Set; then nothing is fetched.
        algorithms: The accepted algorithms of signatures.
        requires_token_type: Accept only tokens of the type `at+jwt`, as RFC 9068 demands; many
            authorization servers do not send it.
        leeway_seconds: The accepted difference between the clocks of issuer and server.
        cache_seconds: The time for which a verified token is not verified again.
        cache_tokens_max: The number of tokens that are cached.
        http_client: The HTTP client, for proxies or certificates of one's own.
        now: Returns the Unix time.

    Raises:
        ValueError: A URL or an algorithm is not allowed.
    """

    issuer: str
    jwks_uri: str | None = attrs.field(default=None, kw_only=True)
    keys: JsonWebKeySet | None = attrs.field(default=None, kw_only=True)
    algorithms: Collection[str] = attrs.field(
        default=ALGORITHMS, kw_only=True, validator=_check_algorithms
    )
    requires_token_type: bool = attrs.field(default=False, kw_only=True)
    leeway_seconds: int = attrs.field(default=30, kw_only=True)
    cache_seconds: float = attrs.field(default=300.0, kw_only=True)
    cache_tokens_max: int = attrs.field(default=10_000, kw_only=True)
    http_client: "httpx2.AsyncClient | None" = attrs.field(default=None, kw_only=True)
    now: Callable[[], float] = attrs.field(default=time.time, kw_only=True)
    _issuer: Issuer = attrs.field(init=False)
    _given_keys: "list[Key] | None" = attrs.field(default=None, init=False)
    _cache: TokenCache = attrs.field(init=False)
    _registry: "JWSRegistry | None" = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        fetcher = Fetcher(client=self.http_client)
        self._issuer = Issuer(url=self.issuer, jwks_uri=self.jwks_uri, fetcher=fetcher)
        self._cache = TokenCache(self.cache_seconds, self.cache_tokens_max, self.now)
        if self.keys is not None:
            self._given_keys = public_keys(self.keys)
            if not self._given_keys:
                raise ValueError("keys= has no key that can verify a signature")

    async def verify(self, token: str) -> AuthInfo:
        """Return the facts about a valid token.

        Raises:
            InvalidTokenError: The token is not valid.
            VerifierUnavailableError: The keys of the issuer cannot be fetched.
        """
        known = self._cache.get(token)
        if known is not None:
            return known
        from joserfc import errors, jws

        registry = self._registry = self._registry or jws_registry(self.algorithms)
        try:
            header = jws.extract_compact(token.encode("ascii"), registry=registry).headers()
            registry.check_header(header)
            registry.get_alg(header["alg"])
        except (errors.JoseError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidTokenError(
                "the token is not a JSON Web Token with an allowed algorithm"
            ) from error
        kind = header.get("typ", "")
        accepted = _ACCESS_TOKEN_TYPES
        if not self.requires_token_type:
            accepted |= _GENERIC_TYPES
        if not isinstance(kind, str) or kind.lower() not in accepted:
            raise InvalidTokenError("the type (typ) of the token is not that of an access token")
        key_id = header.get("kid")
        keys = self._given_keys
        if keys is None:
            keys = await self._issuer.keys(key_id if isinstance(key_id, str) else None)
        signed = signed_by(token, keys, registry)
        if signed is None:
            raise InvalidTokenError("the token is signed by no key of the issuer")
        claims = signed.claims
        check_claims(claims, issuer=self.issuer, now=self.now(), leeway_seconds=self.leeway_seconds)
        auth = auth_of_claims(claims)
        self._cache.keep(token, auth)
        return auth


async def signed_by_issuer(text: str, issuer: Issuer, registry: "JWSRegistry") -> "Token | None":
    """Return a token that a key of the issuer has signed; None for any other text.

    Raises:
        VerifierUnavailableError: The keys of the issuer cannot be fetched.
    """
    from joserfc import errors, jws

    try:
        header = jws.extract_compact(text.encode("ascii"), registry=registry).headers()
    except (errors.JoseError, ValueError, KeyError, TypeError):  # no JSON Web Token
        return None
    # A key that the issuer has added since the last fetch is found by its id.
    key_id = header.get("kid")
    keys = await issuer.keys(key_id if isinstance(key_id, str) else None)
    return signed_by(text, keys, registry)


def signed_by(text: str, keys: "Iterable[Key]", registry: "JWSRegistry") -> "Token | None":
    """Return a token that one of the keys has signed; None if none of them has."""
    from joserfc import errors, jwt

    for key in keys:
        # Another key has signed it, or this is a key for another algorithm.
        with suppress(errors.JoseError, ValueError, TypeError):
            return jwt.decode(text, key, registry=registry)
    return None


def check_claims(
    claims: Mapping[str, Any], *, issuer: str, now: float, leeway_seconds: int = 0
) -> None:
    """Check the issuer and the times of an access token, and that it has an audience.

    Raises:
        InvalidTokenError: One of them is missing or wrong, or the token has expired.
    """
    from joserfc import errors, jwt

    rules = jwt.JWTClaimsRegistry(
        now=int(now),
        leeway=leeway_seconds,
        iss={"essential": True, "value": issuer},
        aud={"essential": True},
        exp={"essential": True},
    )
    try:
        rules.validate(dict(claims))
    except errors.ExpiredTokenError:
        raise InvalidTokenError("the token has expired") from None
    except errors.JoseError as error:
        raise InvalidTokenError(str(error.description or error.error)) from None


def jws_registry(algorithms: Collection[str]) -> "JWSRegistry":
    """Return the algorithms and the bounds of signed tokens, for joserfc."""
    from joserfc.jws import JWSRegistry

    # Authorization servers add headers of their own; those in `crit` are rejected in any case.
    registry = JWSRegistry(algorithms=list(algorithms), strict_check_header=False)
    registry.max_header_length = _HEADER_BYTES_MAX
    return registry


def auth_of_claims(claims: Mapping[str, Any]) -> AuthInfo:
    """Return the facts in the claims of a token, or in an introspection response.

    Raises:
        InvalidTokenError: A claim has a wrong type, or is not Unicode; or neither a user nor a
            client is named.
    """
    subject = claims.get("sub")
    # RFC 9068 and RFC 7662 have `client_id`; OpenID Connect has `azp`, Okta has `cid`.
    client = next((claims[name] for name in ("client_id", "azp", "cid") if claims.get(name)), None)
    for name, value in (("sub", subject), ("client_id", client)):
        if value is not None and not isinstance(value, str):
            raise InvalidTokenError(f"the claim {name} is not a string")
    if not (subject or client):
        raise InvalidTokenError("the token has neither a subject nor a client")
    # RFC 9068 has `scope`, a string; others have `scp`, or a list.
    named = (claims[name] for name in ("scope", "scp") if claims.get(name) is not None)
    scopes: Any = next(named, "")
    if isinstance(scopes, str):
        scopes = scopes.split()
    try:
        granted = msgspec.convert(scopes, frozenset[str])
    except msgspec.ValidationError:
        raise InvalidTokenError("the claim scope is not a string") from None
    expires_at = claims.get("exp")
    if expires_at is not None and not _is_time(expires_at):
        raise InvalidTokenError("the claim exp is not a time")
    try:
        return AuthInfo(
            subject=subject,
            client=client,
            scopes=granted,
            claims=dict(claims),
            expires_at=expires_at,
        )
    except ValueError as error:
        raise InvalidTokenError(str(error)) from error


def checked_subject(subject: Any, setting: str) -> str | None:
    """Return the name of a user, as a function of the operator returned it; None if it is empty.

    Users without a name would all be the same user.

    Raises:
        TypeError: It is not a string; `setting` names the function.
    """
    if subject is not None and not isinstance(subject, str):
        raise TypeError(f"{setting} has to return a string or None, not {type(subject).__name__}")
    return subject or None


def _is_time(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


# Introspection ------------------------------------------------------------------------------------


@attrs.define(eq=False, repr=False)
class Introspection:
    """A verifier that asks the authorization server about each token (RFC 7662).

    Attributes:
        issuer: The authorization server; its metadata name the endpoint.
        client_id: The name of this server at the authorization server.
        client_secret: Its secret there.
        endpoint: The URL of the endpoint, for an issuer without metadata.
        auth_method: How the secret is sent, by the names of RFC 8414.
        requires_audience: Reject tokens about which the response has no `aud`. False accepts each
            token that the authorization server has issued, also those for other servers.
        cache_seconds: The time for which an active token is not looked up again; a token that is
            revoked meanwhile is still accepted.
        cache_tokens_max: The number of tokens that are cached.
        leeway_seconds: The accepted difference between the clocks of issuer and server.
        http_client: The HTTP client, for proxies or certificates of one's own.
        now: Returns the Unix time.
        store: The store of the responses that the instances of a server share, while they serve
            with one; a digest of the token is their key.

    Raises:
        ValueError: A URL is not allowed.
    """

    issuer: str
    client_id: str = attrs.field(kw_only=True)
    client_secret: str = attrs.field(kw_only=True)
    endpoint: str | None = attrs.field(default=None, kw_only=True)
    auth_method: Literal["client_secret_basic", "client_secret_post"] = attrs.field(
        default="client_secret_basic",
        kw_only=True,
        validator=attrs.validators.in_(("client_secret_basic", "client_secret_post")),
    )
    requires_audience: bool = attrs.field(default=True, kw_only=True)
    cache_seconds: float = attrs.field(default=60.0, kw_only=True)
    cache_tokens_max: int = attrs.field(default=10_000, kw_only=True)
    leeway_seconds: int = attrs.field(default=30, kw_only=True)
    http_client: "httpx2.AsyncClient | None" = attrs.field(default=None, kw_only=True)
    now: Callable[[], float] = attrs.field(default=time.time, kw_only=True)
    store: StateStore | None = attrs.field(default=None, init=False)
    _fetcher: Fetcher = attrs.field(init=False)
    _issuer: Issuer = attrs.field(init=False)
    _cache: TokenCache = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        if self.endpoint is not None:
            check_secure_url(self.endpoint)
        self._fetcher = Fetcher(client=self.http_client)
        self._issuer = Issuer(url=self.issuer, fetcher=self._fetcher)
        self._cache = TokenCache(self.cache_seconds, self.cache_tokens_max, self.now)

    async def verify(self, token: str) -> AuthInfo | None:
        """Return the facts about an active token; None if it is not active.

        Raises:
            InvalidTokenError: The token has expired, is not yet valid, or has no audience.
            VerifierUnavailableError: The authorization server is unavailable, or rejects this
                server.
        """
        known = self._cache.get(token)
        if known is not None:
            return known
        stored = await self._load_facts(token)
        if stored is not None:
            self._cache.keep(token, *stored)
            return stored[0]
        members = await self._introspect(token)
        if members.get("active") is not True:
            return None
        if "iss" in members and members["iss"] != self.issuer:
            raise InvalidTokenError("the token is of another issuer")
        if self.requires_audience and not members.get("aud"):
            raise InvalidTokenError("the token has no audience (aud)")
        not_before: Any = members.get("nbf")
        if _is_time(not_before) and not_before > self.now() + self.leeway_seconds:
            raise InvalidTokenError("the token is not yet valid")
        auth = auth_of_claims(members)
        if auth.expires_at is not None and auth.expires_at + self.leeway_seconds <= self.now():
            raise InvalidTokenError("the token has expired")
        self._cache.keep(token, auth)
        if self.store is not None:
            await self._store_facts(self.store, token, auth)
        return auth

    async def _store_facts(self, store: StateStore, token: str, auth: AuthInfo) -> None:
        """Give the facts about a token to the other instances, if the store can keep them now."""
        until, key = self._cache.end_of(auth), self._key(token)
        seconds = until - self.now()
        with suppress(RequestError):
            # A store may keep a value only under a key that was taken.
            await store.take(key, seconds=seconds, client=auth.principal)
            await store.keep(key, msgspec.json.encode((auth, until)), seconds=seconds)

    async def _load_facts(self, token: str) -> tuple[AuthInfo, float] | None:
        """Return the facts that another instance has stored about a token, and until when."""
        if self.store is None:
            return None
        try:
            facts = await self.store.kept(self._key(token))
        except RequestError:
            return None
        if facts is None:
            return None
        found = msgspec.json.decode(facts, type=tuple[AuthInfo, float])
        return found if self.now() < found[1] else None

    def _key(self, token: str) -> str:
        return hashlib.sha256(f"token {self.issuer} {token}".encode()).hexdigest()

    async def _introspect(self, token: str) -> dict[str, Any]:
        url = self.endpoint or (await self._issuer.metadata()).introspection_endpoint
        if url is None:
            raise VerifierUnavailableError(
                f"the metadata of {self.issuer} have no introspection_endpoint"
            )
        form = {"token": token, "token_type_hint": "access_token"}
        is_basic = self.auth_method == "client_secret_basic"
        sent = authenticated_form(form, self.client_id, self.client_secret, is_basic=is_basic)
        try:
            fetched = await self._fetcher.send("POST", url, **sent)
            return decoded(url, fetched, dict[str, Any])
        except FetchError as error:
            # The error that caused it could quote the request.
            raise VerifierUnavailableError(str(error)) from None


# Fixed tokens -------------------------------------------------------------------------------------


class StaticTokens:
    """A verifier of fixed tokens, for development and for machines that trust one another."""

    def __init__(self, tokens: Mapping[str, AuthInfo | str]) -> None:
        """Accept these tokens: `StaticTokens({"a-token": AuthInfo(subject="alice")})`.

        Args:
            tokens: For each token its `AuthInfo`, or the name of the user alone. Only digests of
                the tokens are kept.

        Raises:
            ValueError: A token is empty, or has other characters than visible ASCII.
        """
        self._key = secrets.token_bytes(32)
        self._known = [
            (
                self._digest(checked_token(token)),
                AuthInfo(subject=auth) if isinstance(auth, str) else auth,
            )
            for token, auth in tokens.items()
        ]

    async def verify(self, token: str) -> AuthInfo | None:
        """Return the facts given for a token; the time that this takes tells nothing about them."""
        digest, found = self._digest(token), None
        for each, auth in self._known:
            if hmac.compare_digest(each, digest):
                found = auth
        return found

    def _digest(self, token: str) -> bytes:
        return hashlib.blake2b(token.encode(), key=self._key).digest()


# Proofs of keys -----------------------------------------------------------------------------------
#
# A stolen token that is bound to a key is of no use without the key. Each request has a proof of
# its own: a JSON Web Token that the client signs, with the method and URL of the request and a
# digest of the token. https://www.rfc-editor.org/rfc/rfc9449

DPOP_HEADER: Final = "DPoP"
NONCE_HEADER: Final = "DPoP-Nonce"

_PROOF_ID_CHARS_MAX: Final = 256
_NONCE_TIME_BYTES: Final = 8
_NONCE_MAC_BYTES: Final = 16
_USED_BEFORE: Final = "the proof was used before"


class InvalidProofError(Exception):
    """The proof is not valid; the client receives the text, which has the reason."""

    code: ClassVar[str] = INVALID_DPOP_PROOF


class NonceNeededError(InvalidProofError):
    """The proof has no valid nonce: the client is sent one, and repeats the request."""

    code = USE_DPOP_NONCE


@attrs.define(kw_only=True, eq=False, repr=False)
class DPoP:
    """The settings for tokens that are bound to a key, and the proofs that were used.

    Attributes:
        is_required: Accept only tokens that are bound to a key.
        uses_nonces: Demand that each proof has a recent nonce of this server, so that proofs cannot
            be made in advance.
        algorithms: The accepted algorithms of proofs.
        seconds_max: The greatest age of a proof or a nonce, and the greatest difference between the
            clocks of a client and this server.
        proofs_max: The number of used proofs that are remembered; the oldest are forgotten first.
        nonce_key: The key of nonces, the same for all processes that serve together; by default a
            random one.
        now: Returns the Unix time.
        store: The store of used proofs that the instances of a server share; None without one, and
            before the server has opened it.

    Raises:
        ValueError: An algorithm is not allowed.
    """

    is_required: bool = False
    uses_nonces: bool = False
    algorithms: Collection[str] = attrs.field(default=ALGORITHMS, validator=_check_algorithms)
    seconds_max: float = 60.0
    proofs_max: int = 100_000
    nonce_key: bytes = attrs.field(factory=lambda: secrets.token_bytes(32))
    now: Callable[[], float] = time.time
    store: StateStore | None = attrs.field(default=None, init=False)
    # The digests of used proofs, with the time until which each is remembered.
    _used_until: OrderedDict[bytes, float] = attrs.field(
        factory=OrderedDict[bytes, float], init=False
    )
    _registry: "JWSRegistry | None" = attrs.field(default=None, init=False)

    async def check(
        self, proof: str | None, *, method: str, url: str, token: str, thumbprint: str
    ) -> None:
        """Check the proof of a request to a URL without a query, and remember it as used.

        `thumbprint` is that of the key to which the token is bound.

        Raises:
            InvalidProofError: The proof is None or not valid, was used before, or, as a
                `NonceNeededError`, lacks a valid nonce.
            VerifierUnavailableError: The shared store of used proofs does not answer.
        """
        from joserfc import jwk, jws, jwt
        from joserfc.errors import JoseError

        if proof is None:
            raise InvalidProofError("the header DPoP must be sent once")
        registry = self._registry = self._registry or jws_registry(self.algorithms)
        try:
            header = jws.extract_compact(proof.encode("ascii"), registry=registry).headers()
            if header.get("typ") != "dpop+jwt":
                raise InvalidProofError("the type (typ) of the proof is not dpop+jwt")
            given = dict(header["jwk"])
            if given.get("kty") == "oct":
                raise InvalidProofError("the proof has no public key")
            key: Any = jwk.import_key(given)
            if key.is_private:
                raise InvalidProofError("the proof has no public key")
            claims = jwt.decode(proof, key, registry=registry).claims
        except (JoseError, ValueError, TypeError, KeyError, RecursionError, Warning) as error:
            raise InvalidProofError("the proof is not signed by the key that it has") from error
        if not hmac.compare_digest(key.thumbprint().encode(), thumbprint.encode()):
            raise InvalidProofError("the token is bound to another key")
        issued_at: Any = claims.get("iat")
        proof_id = claims.get("jti")
        now = self.now()
        if claims.get("htm") != method:
            raise InvalidProofError("the proof is for another method")
        named = claims.get("htu")
        if not isinstance(named, str) or _compared_parts(named) != _compared_parts(url):
            raise InvalidProofError("the proof is for another URL")
        if claims.get("ath") != sha256_base64url(token.encode("ascii")):
            raise InvalidProofError("the proof is for another token")
        # Compared without arithmetic, as an integer in JSON may be too large for a float.
        if not (
            _is_time(issued_at) and now - self.seconds_max <= issued_at <= now + self.seconds_max
        ):
            raise InvalidProofError("the proof is too old, or from the future")
        if not isinstance(proof_id, str) or not 0 < len(proof_id) <= _PROOF_ID_CHARS_MAX:
            raise InvalidProofError("the proof has no jti")
        if self.uses_nonces and not self._is_valid_nonce(claims.get("nonce")):
            raise NonceNeededError("the proof needs a nonce")
        # JSON may have lone surrogates.
        proof_hash = hashlib.sha256(f"{thumbprint} {proof_id}".encode(errors="surrogatepass"))
        self._remember(proof_hash.digest(), now)
        if self.store is not None:
            key, seconds = f"proof {proof_hash.hexdigest()}", 2 * self.seconds_max
            try:
                is_new = await self.store.take(key, seconds=seconds, client=thumbprint)
            except RequestError as error:
                raise VerifierUnavailableError("the store of used proofs is unavailable") from error
            if not is_new:
                raise InvalidProofError(_USED_BEFORE)

    def _remember(self, proof_digest: bytes, now: float) -> None:
        """Remember a proof as used, for as long as it could be accepted.

        That is `2 * seconds_max`, since its time may be as much as `seconds_max` in the future.
        """
        while self._used_until:
            oldest = next(iter(self._used_until))
            if self._used_until[oldest] > now and len(self._used_until) < self.proofs_max:
                break
            del self._used_until[oldest]
        if proof_digest in self._used_until:
            raise InvalidProofError(_USED_BEFORE)
        self._used_until[proof_digest] = now + 2 * self.seconds_max

    def nonce(self) -> str:
        """Return a nonce, which is valid for `seconds_max`."""
        made_at = int(self.now()).to_bytes(_NONCE_TIME_BYTES, "big")
        nonce = made_at + self._mac(made_at)
        return base64.urlsafe_b64encode(nonce).decode().rstrip("=")

    def _is_valid_nonce(self, nonce: Any) -> bool:
        try:
            data = base64.b64decode(f"{nonce}{'=' * (-len(nonce) % 4)}", b"-_", validate=True)
        except (ValueError, TypeError):
            return False
        made_at, mac = data[:_NONCE_TIME_BYTES], data[_NONCE_TIME_BYTES:]
        age = self.now() - int.from_bytes(made_at, "big")
        return hmac.compare_digest(mac, self._mac(made_at)) and age <= self.seconds_max

    def _mac(self, data: bytes) -> bytes:
        return hmac.digest(self.nonce_key, data, "sha256")[:_NONCE_MAC_BYTES]


def _compared_parts(url: str) -> tuple[object, ...]:
    """Return the parts of a URL in which that of a proof has to equal that of the request.

    https://www.rfc-editor.org/rfc/rfc9449#section-4.3
    """
    try:
        parts = urlsplit(url)
        return *authority_of(parts), parts.path or "/"
    except ValueError:
        return ()
