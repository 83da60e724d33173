"""The metadata and keys of an issuer: fetched when first needed, cached, and rotated.

An issuer that is unavailable does not stop the server at once: keys that were fetched before are
used on for a while. Nothing that a client sends makes the server fetch more often than once per
interval.
"""

import logging
import math
from typing import TYPE_CHECKING, Any, Final, TypedDict

import attrs
import trio

from mcp_trio._auth.fetching import Fetcher, FetchError, check_secure_url
from mcp_trio._auth.metadata import AuthorizationServerMetadata, authorization_server_urls

if TYPE_CHECKING:
    from joserfc.jwk import Key

logger = logging.getLogger("mcp_trio")

_KEYS_MAX: Final = 100


class JsonWebKeySet(TypedDict):
    """A set of public keys, as in RFC 7517, section 5."""

    keys: list[dict[str, Any]]


class VerifierUnavailableError(Exception):
    """Tokens cannot be verified now, because the authorization server is unavailable.

    The request is answered with 503, since the token may be valid.
    """


def public_keys(key_set: JsonWebKeySet) -> "list[Key]":
    """Return the keys of a set that can verify signatures.

    Keys that are unknown, malformed, secret or for encryption are left out, as RFC 7517, section 5,
    demands for the unknown ones.
    """
    from joserfc.errors import JoseError
    from joserfc.jwk import JWKRegistry

    keys: list[Key] = []
    for each in key_set["keys"][:_KEYS_MAX]:
        if each.get("kty") == "oct":  # a shared secret: every reader of the set could sign with it
            continue
        try:
            key = JWKRegistry.import_key(each)
        # joserfc warns of weak keys; a filter may make an exception of that.
        except (JoseError, ValueError, TypeError, KeyError, Warning):
            continue
        if key.get("use", "sig") == "sig":
            keys.append(key)
    return keys


@attrs.define(kw_only=True, eq=False, repr=False)
class Issuer:
    """An authorization server, as a server that verifies its tokens needs it.

    Attributes:
        url: The issuer, as it is in tokens; compared as a plain string.
        jwks_uri: The URL of its keys, if its metadata are not to be fetched.
        fresh_seconds: The time after which metadata and keys are fetched again.
        pause_seconds: The least time between two fetches that an unknown key or a failure causes.
        stale_seconds_max: The time for which keys are used while the issuer is unavailable.
    """

    url: str
    jwks_uri: str | None = None
    fetcher: Fetcher = attrs.field(factory=Fetcher)
    fresh_seconds: float = 600.0
    pause_seconds: float = 30.0
    stale_seconds_max: float = 86_400.0
    _metadata: AuthorizationServerMetadata | None = attrs.field(default=None, init=False)
    _metadata_at: float = attrs.field(default=-math.inf, init=False)
    _keys: "list[Key]" = attrs.field(factory=list[Any], init=False)
    _keys_at: float = attrs.field(default=-math.inf, init=False)
    # The time of the last fetch, and the error with which it failed, if it did.
    _tried_at: float = attrs.field(default=-math.inf, init=False)
    _failure: str = attrs.field(default="", init=False)
    _fetching: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        check_secure_url(self.url)
        if self.jwks_uri is not None:
            check_secure_url(self.jwks_uri)

    async def metadata(self) -> AuthorizationServerMetadata:
        """Return the metadata, fetched at most once in `fresh_seconds`.

        Raises:
            VerifierUnavailableError: The metadata cannot be fetched, or are of another issuer.
        """
        async with self._fetching:
            return await self._fresh_metadata()

    async def keys(self, key_id: str | None) -> "list[Key]":
        """Return the keys that may have signed a token with this key id; none if there is no such.

        Raises:
            VerifierUnavailableError: The keys cannot be fetched.
        """
        found = self._keys_with(key_id)
        # While one task fetches the keys again from a slow issuer, the others use the known ones.
        seconds_max = self.stale_seconds_max if self._fetching.locked() else self.fresh_seconds
        if found and _age(self._keys_at) < seconds_max:
            return found
        async with self._fetching:
            found = self._keys_with(key_id)
            is_fresh = _age(self._keys_at) < self.fresh_seconds
            if found and is_fresh:
                return found  # another task has fetched them meanwhile
            try:
                # Fresh keys without this one: it may have been added since they were fetched, so
                # they are fetched again, but not within the pause.
                if is_fresh and self._is_pausing and not self._failure:
                    return found
                self._check_pause()
                await self._fetch_keys()
            except VerifierUnavailableError:
                if not found or _age(self._keys_at) >= self.stale_seconds_max:
                    raise
                return found
            return self._keys_with(key_id)

    def _keys_with(self, key_id: str | None) -> "list[Key]":
        return [key for key in self._keys if key_id is None or key.kid in {None, key_id}]

    @property
    def _is_pausing(self) -> bool:
        return _age(self._tried_at) < self.pause_seconds

    def _check_pause(self) -> None:
        """Raise the error of the last failure again during the pause after it."""
        if self._failure and self._is_pausing:
            raise VerifierUnavailableError(self._failure)

    async def _fetch_keys(self) -> None:
        url = self.jwks_uri
        if url is None:
            url = (await self._fresh_metadata()).jwks_uri
            if url is None:
                raise self._failed(f"the metadata of {self.url} have no jwks_uri")
        try:
            fetched = public_keys(await self.fetcher.get_json(url, JsonWebKeySet))
        except FetchError as error:
            raise self._failed(str(error)) from error
        self._keys = fetched
        self._keys_at = self._tried_at = trio.current_time()
        self._failure = ""

    async def _fresh_metadata(self) -> AuthorizationServerMetadata:
        """Return the metadata; fetch them if they are older than `fresh_seconds`."""
        if self._metadata is not None and _age(self._metadata_at) < self.fresh_seconds:
            return self._metadata
        self._check_pause()
        failure: FetchError | None = None
        for url in authorization_server_urls(self.url):
            try:
                metadata = await self.fetcher.get_json(url, AuthorizationServerMetadata)
            except FetchError as error:
                failure = failure or error
                if error.status is None:  # it is unavailable, or slow: do not ask it three times
                    break
                continue
            if metadata.issuer != self.url:
                # RFC 8414, section 3.3. Another of the URLs may have those of this issuer.
                text = f"the metadata are of the issuer {metadata.issuer!r}, not {self.url!r}"
                failure = FetchError(url, text)
                continue
            self._metadata, self._metadata_at = metadata, trio.current_time()
            self._tried_at, self._failure = self._metadata_at, ""
            return metadata
        raise self._failed(str(failure)) from failure

    def _failed(self, reason: str) -> VerifierUnavailableError:
        self._tried_at, self._failure = trio.current_time(), reason
        logger.warning("tokens of %s cannot be verified: %s", self.url, reason)
        return VerifierUnavailableError(reason)


def _age(since: float) -> float:
    """Return the seconds since a time; infinity if it is a time of an earlier Trio run."""
    age = trio.current_time() - since
    return age if age >= 0 else math.inf
