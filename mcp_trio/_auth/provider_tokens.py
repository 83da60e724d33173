"""The tokens of an identity provider, kept on the server for the users who have logged in there.

They are encrypted in the storage, renewed before they expire, and never given to clients. A handler
uses the token of its user for a call to an API of the provider.

https://modelcontextprotocol.io/specification/2025-03-26/basic/authorization#third-party-authorization-flow
https://www.rfc-editor.org/rfc/rfc6749#section-6
"""

import base64
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec
import trio

from mcp_trio.errors import SERVER_BUSY, AccessDenied, RequestError

if TYPE_CHECKING:
    from mcp_trio._auth.authorization_storage import AuthorizationStorage

logger = logging.getLogger("mcp_trio")

_TOKENS: Final = "provider tokens"

# A token is renewed this long before it expires, so that it is valid when it arrives at the API.
_RENEWAL_SECONDS: Final = 60.0

# A token without a lifetime is used until the login ends.
_UNLIMITED_SECONDS: Final = 1e9

# A process claims the renewal of the tokens of a login for this time; if it has not finished then,
# another process claims it.
_CLAIM_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.1

# The error codes for a refresh token that is not valid any more; the second one is GitHub's.
_REJECTED: Final = frozenset({"invalid_grant", "bad_refresh_token"})

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


class ProviderError(Exception):
    """The identity provider gave no usable response; the text is for the log.

    Attributes:
        code: The OAuth error code in its response; None if it has none.
    """

    def __init__(self, text: str, code: str | None = None) -> None:
        super().__init__(text)
        self.code = code


# A Struct would show its fields in `repr`.
@attrs.frozen(kw_only=True, repr=False)
class TokenResponse:
    """The response of the provider's token endpoint (RFC 6749, section 5.1)."""

    access_token: str
    token_type: str = "Bearer"  # noqa: S105  no secret
    expires_in: float | None = None
    refresh_token: str | None = None
    id_token: str | None = None


@attrs.frozen(kw_only=True, repr=False)
class _KeptTokens:
    """The tokens of a login, with Unix times.

    Attributes:
        renew_at: The time from which the tokens are renewed.
        expires_at: The time at which the access token expires.
        claimed_until: The time until which one process alone renews the tokens.
    """

    access_token: str
    refresh_token: str | None
    renew_at: float
    expires_at: float
    claimed_until: float = 0.0

    @classmethod
    def of(cls, response: TokenResponse, refresh_token: str | None, now: float) -> "_KeptTokens":
        """Return the tokens of a response; a provider may leave the refresh token as it was."""
        seconds = _UNLIMITED_SECONDS if response.expires_in is None else response.expires_in
        refresh_token = response.refresh_token or refresh_token
        early = 0 if refresh_token is None else min(_RENEWAL_SECONDS, seconds / 2)
        return cls(
            access_token=response.access_token,
            refresh_token=refresh_token,
            renew_at=now + seconds - early,
            expires_at=now + seconds,
        )


class ProviderToken:
    """An access token of the identity provider.

    It has no JSON form, so an effect that returns it fails, and no recording has it. Its `repr`
    does not show it.

    Attributes:
        value: The token, for the provider's API alone.
    """

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value: str = value


@attrs.define(kw_only=True, eq=False, repr=False)
class ProviderTokens:
    """The kept tokens of an identity provider, by login.

    All processes that share the storage and the secret can read them. A login ends when the
    provider does not renew its tokens any more.

    Attributes:
        issuer: The issuer of the provider.
        secret: The secret from which the encryption key is derived.
        random: Returns 256 random bits in Base64URL.
        renew: Redeems a refresh token at the provider.
        seconds: The time for which tokens are kept after a login.
    """

    issuer: str
    secret: str
    storage: "AuthorizationStorage"
    random: Callable[[], str]
    now: Callable[[], float]
    renew: Callable[[str], Awaitable[TokenResponse]]
    seconds: float
    _cipher: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        info = f"mcp_trio tokens of {self.issuer}".encode()
        kdf = HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=None, info=info)
        self._cipher = AESGCM(kdf.derive(self.secret.encode()))

    async def keep(self, login_id: str, response: TokenResponse) -> None:
        """Keep the tokens of a new login."""
        tokens = _KeptTokens.of(response, None, self.now())
        await self._swap(login_id, None, tokens, self.now() + self.seconds)

    async def has_login(self, login_id: str) -> bool:
        """Return whether the tokens of a login are kept."""
        return await self._get(login_id) is not None

    async def current(self, login_id: str) -> str:
        """Return the access token of a login, renewed if it expires soon.

        If this is cancelled, a request to the provider is finished first, as its refresh token may
        be used up.

        Raises:
            AccessDenied: The login has ended; the user has to log in again.
            RequestError: The provider gives no token now.
        """
        while True:
            found = await self._get(login_id)
            if found is None:
                raise self._ended()
            tokens, stored, ends_at = found
            now = self.now()
            if now < tokens.renew_at:
                return tokens.access_token
            if now < tokens.claimed_until:
                if now < tokens.expires_at:
                    return tokens.access_token
                await trio.sleep(_POLL_SECONDS)
                continue
            if tokens.refresh_token is None:
                await self._swap(login_id, stored, None, ends_at)
                raise self._ended()
            claimed = attrs.evolve(tokens, claimed_until=now + _CLAIM_SECONDS)
            with trio.CancelScope(shield=True):
                claim = await self._swap(login_id, stored, claimed, ends_at)
                if claim is not None:
                    refresh_token = tokens.refresh_token
                    return await self._renewed(login_id, tokens, refresh_token, claim, ends_at)

    async def _renewed(
        self, login_id: str, tokens: _KeptTokens, refresh_token: str, claim: bytes, ends_at: float
    ) -> str:
        """Return the new access token; `claim` is the record that keeps other processes away."""
        try:
            response = await self.renew(refresh_token)
        except ProviderError as error:
            logger.warning("a token of %s is not renewed: %s", self.issuer, error)
            if error.code in _REJECTED:
                await self._swap(login_id, claim, None, ends_at)
                raise self._ended() from None
            if self.now() < tokens.expires_at:
                return tokens.access_token  # the claim stays, so that the next try is later
            await self._swap(login_id, claim, tokens, ends_at)
            raise RequestError(
                SERVER_BUSY, f"the identity provider {self.issuer} gives no token now; try later"
            ) from None
        renewed = _KeptTokens.of(response, refresh_token, self.now())
        await self._swap(login_id, claim, renewed, ends_at)
        return renewed.access_token

    def _ended(self) -> AccessDenied:
        return AccessDenied(f"the login at {self.issuer} has ended: log in again")

    async def _get(self, login_id: str) -> tuple[_KeptTokens, bytes, float] | None:
        """Return tokens, as they are stored, and when they end; None if there are none.

        Tokens that another secret has encrypted count as absent.
        """
        from cryptography.exceptions import InvalidTag

        stored = await self.storage.get(_TOKENS, login_id, now=self.now())
        if stored is None:
            return None
        nonce, encrypted = stored[:_NONCE_BYTES], stored[_NONCE_BYTES:]
        try:
            text = self._cipher.decrypt(nonce, encrypted, login_id.encode())
        except InvalidTag:
            return None
        tokens, ends_at = msgspec.json.decode(text, type=tuple[_KeptTokens, float])
        return tokens, stored, ends_at

    async def _swap(
        self, login_id: str, old: bytes | None, new: _KeptTokens | None, ends_at: float
    ) -> bytes | None:
        """Store encrypted tokens in place of `old`; return the record, or None if that failed."""
        record = None
        if new is not None:
            # Base64URL of 256 bits lacks one character of padding.
            nonce = base64.urlsafe_b64decode(self.random() + "=")[:_NONCE_BYTES]
            text = msgspec.json.encode((new, ends_at))
            record = nonce + self._cipher.encrypt(nonce, text, login_id.encode())
        is_stored = await self.storage.swap(
            _TOKENS, login_id, old, record, now=self.now(), expires_at=ends_at
        )
        return record if is_stored else None


CREDENTIALS: Final = "mcp_trio.credentials"
"""The extension of an HTTP request with a function that returns the request with credentials.

`mcp_trio.http.EffectTransport` calls it inside of the effect, where nothing is recorded.
"""


def token_auth(token_of: Callable[[], Awaitable[str]], check: Callable[[str], None]) -> Any:
    """Return a function for `auth=` of a request, which sends it with a token to its origin alone.

    `token_of` is called inside of the effect; `check` raises an error for a URL to which no token
    may be sent.
    """

    def add(request: Any) -> Any:
        check(str(request.url))
        origin = _origin(request)

        async def with_token(sent: Any) -> Any:
            if _origin(sent) != origin:  # after a redirect
                return sent
            # A copy, so that the handler's request has no token.
            headers = type(sent.headers)(sent.headers)
            headers["Authorization"] = f"Bearer {await token_of()}"
            extensions: Mapping[str, Any] = sent.extensions
            return type(sent)(
                sent.method, sent.url, headers=headers, stream=sent.stream, extensions=extensions
            )

        request.extensions[CREDENTIALS] = with_token
        return request

    return add


def _origin(request: Any) -> tuple[str, str, int | None]:
    return request.url.scheme, request.url.host, request.url.port
