"""DPoP: tokens that are bound to a key, and the proofs that the client has the key (RFC 9449).

A stolen token is of no use without the key. Each request has a proof of its own: a JSON Web Token
that the client signs, with the method and URL of the request and a digest of the token.

https://www.rfc-editor.org/rfc/rfc9449
"""

import base64
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import attrs

from mcp_trio._auth.issuers import VerifierUnavailableError
from mcp_trio._auth.urls import authority_of
from mcp_trio._auth.verification import ALGORITHMS, check_algorithms, jws_registry
from mcp_trio._protocol.security import sha256_base64url
from mcp_trio._protocol.stores import StateStore
from mcp_trio.errors import RequestError

if TYPE_CHECKING:
    from joserfc.jws import JWSRegistry

DPOP_HEADER: Final = "DPoP"
NONCE_HEADER: Final = "DPoP-Nonce"

_PROOF_TYPE: Final = "dpop+jwt"
_ID_CHARS_MAX: Final = 256
_TIME_BYTES: Final = 8
_MAC_BYTES: Final = 16
_USED_BEFORE: Final = "the proof was used before"


class InvalidProofError(Exception):
    """The proof is not valid; the client receives the text, which has the reason."""


class NonceNeededError(Exception):
    """The proof has no valid nonce: the client is sent one, and repeats the request."""


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
    algorithms: Collection[str] = attrs.field(default=ALGORITHMS, validator=check_algorithms)
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
        self, proof: str, *, method: str, url: str, token: str, thumbprint: str
    ) -> None:
        """Check the proof of a request to a URL without a query, and remember it as used.

        `thumbprint` is that of the key to which the token is bound.

        Raises:
            InvalidProofError: The proof is not valid, or was used before.
            NonceNeededError: The proof lacks a valid nonce.
            VerifierUnavailableError: The shared store of used proofs does not answer.
        """
        from joserfc import jwk, jws, jwt
        from joserfc.errors import JoseError

        registry = self._registry = self._registry or jws_registry(self.algorithms)
        try:
            header = jws.extract_compact(proof.encode("ascii"), registry=registry).headers()
            if header.get("typ") != _PROOF_TYPE:
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
        if not hmac.compare_digest(key.thumbprint(), thumbprint):
            raise InvalidProofError("the token is bound to another key")
        issued_at, proof_id = claims.get("iat"), claims.get("jti")
        now = self.now()
        if claims.get("htm") != method:
            raise InvalidProofError("the proof is for another method")
        named = claims.get("htu")
        if not isinstance(named, str) or _compared_parts(named) != _compared_parts(url):
            raise InvalidProofError("the proof is for another URL")
        if claims.get("ath") != sha256_base64url(token.encode("ascii")):
            raise InvalidProofError("the proof is for another token")
        if not isinstance(issued_at, int | float) or not abs(now - issued_at) <= self.seconds_max:
            raise InvalidProofError("the proof is too old, or from the future")
        if not isinstance(proof_id, str) or not 0 < len(proof_id) <= _ID_CHARS_MAX:
            raise InvalidProofError("the proof has no jti")
        if self.uses_nonces and not self._is_valid_nonce(claims.get("nonce")):
            raise NonceNeededError
        proof_hash = hashlib.sha256(f"{thumbprint} {proof_id}".encode())
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

        Raises:
            InvalidProofError: It was used before.
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
        made_at = int(self.now()).to_bytes(_TIME_BYTES, "big")
        nonce = made_at + self._mac(made_at)
        return base64.urlsafe_b64encode(nonce).decode().rstrip("=")

    def _is_valid_nonce(self, nonce: Any) -> bool:
        try:
            data = base64.b64decode(f"{nonce}{'=' * (-len(nonce) % 4)}", b"-_", validate=True)
        except (ValueError, TypeError):
            return False
        made_at, mac = data[:_TIME_BYTES], data[_TIME_BYTES:]
        age = self.now() - int.from_bytes(made_at, "big")
        return hmac.compare_digest(mac, self._mac(made_at)) and age <= self.seconds_max

    def _mac(self, data: bytes) -> bytes:
        return hmac.digest(self.nonce_key, data, "sha256")[:_MAC_BYTES]


def _compared_parts(url: str) -> tuple[object, ...]:
    """Return the parts of a URL in which that of a proof has to equal that of the request.

    https://www.rfc-editor.org/rfc/rfc9449#section-4.3
    """
    try:
        parts = urlsplit(url)
        return *authority_of(parts), parts.path or "/"
    except ValueError:
        return ()
