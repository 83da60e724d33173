"""Sealed states: the state of a request between two rounds, encrypted for the client to keep.

A sealed state is encrypted and authenticated. It is bound to the server's name, the principal, the
method and the params that a retry repeats, so it is invalid for another user or another request. It
expires some time after its own round began, and some time after the first round of the request; all
rounds of one request are a *chain*. It is compressed and then padded, so that its length reveals
little. Every invalid state is rejected with the same error.
A `StateStore`, shared by all instances of a server, lets each state be used only once.

https://modelcontextprotocol.io/specification/2026-07-28/basic/patterns/mrtr
"""

import functools
import secrets
import time
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import attrs
import msgspec

from mcp_trio._protocol.shares import Shares
from mcp_trio._session.handler_journal import FinishedOperation, OperationId
from mcp_trio.errors import SERVER_BUSY, LocalProtocolError, RequestError
from mcp_trio.limits import MIB, Limits

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


# Keys -------------------------------------------------------------------------------------------

_KEY_BYTES_MIN: Final = 32
NONCE_BYTES: Final = 12

# The layout of sealed bytes: a version, the id of the key, the nonce, the ciphertext with its tag.
_VERSION: Final = b"\x01"
_ID_BYTES: Final = 4
_CIPHER_KEY_BYTES: Final = 32
_PREFIX_BYTES: Final = len(_VERSION) + _ID_BYTES
_PURPOSE: Final = b"mcp_trio request state"


@attrs.define(eq=False)
class KeyRing:
    """Secret keys of at least 32 bytes: the first key seals, each key opens.

    All instances of a server need the same keys. To rotate them, append the new key on every
    instance, then move it to the front on every instance, and remove the old key
    `limits.requests.state_chain_seconds` later.

    Raises:
        TypeError: `keys` is one key and not a sequence, or a key is not bytes.
        ValueError: There is no key, or a key is too short.
    """

    keys: Sequence[bytes] = attrs.field(repr=False)

    def __attrs_post_init__(self) -> None:
        if isinstance(self.keys, bytes | str):
            raise TypeError("a KeyRing takes a sequence of keys, such as [key]")
        self.keys = tuple(self.keys)
        keys = cast("Sequence[object]", self.keys)
        if not keys:
            raise ValueError("a KeyRing needs at least one key")
        sizes = [len(key) for key in keys if isinstance(key, bytes)]
        if len(sizes) < len(keys):
            raise TypeError("a key has to be bytes")
        if min(sizes) < _KEY_BYTES_MIN:
            raise ValueError(
                f"a key needs at least {_KEY_BYTES_MIN} bytes: use secrets.token_bytes()"
            )

    @classmethod
    def random(cls) -> "KeyRing":
        """Return a ring with a random key; only this process can open what the ring seals."""
        return cls([secrets.token_bytes(_KEY_BYTES_MIN)])

    def seal(self, plain: bytes, *, bound_to: bytes, nonce: bytes) -> bytes:
        """Encrypt bytes, which only `open` with the same `bound_to` decrypts.

        `nonce` is `NONCE_BYTES` random bytes, never used before.
        """
        key_id, cipher = self._ciphers[0]
        prefix = _VERSION + key_id
        return prefix + nonce + cipher.encrypt(nonce, plain, prefix + bound_to)

    def open(self, sealed: bytes, *, bound_to: bytes) -> bytes | None:
        """Decrypt bytes; return None if no key of the ring sealed them with this `bound_to`."""
        from cryptography.exceptions import InvalidTag

        prefix, rest = sealed[:_PREFIX_BYTES], sealed[_PREFIX_BYTES:]
        for key_id, cipher in self._ciphers:
            if prefix == _VERSION + key_id:
                try:
                    return cipher.decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], prefix + bound_to)
                except (InvalidTag, ValueError):  # ValueError: the bytes are too short.
                    continue
        return None

    @functools.cached_property
    def _ciphers(self) -> list[tuple[bytes, "AESGCM"]]:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        # The id and the cipher's key are derived, since a user may use the secret key for other
        # purposes as well.
        length = _ID_BYTES + _CIPHER_KEY_BYTES
        ciphers: list[tuple[bytes, AESGCM]] = []
        for key in self.keys:
            kdf = HKDF(algorithm=SHA256(), length=length, salt=None, info=_PURPOSE)
            derived = kdf.derive(key)
            ciphers.append((derived[:_ID_BYTES], AESGCM(derived[_ID_BYTES:])))
        return ciphers


# States -----------------------------------------------------------------------------------------

_PADDED_TO_BYTES: Final = 256
_COMPRESSION_LEVEL: Final = 6
_BASE64_GROUP_CHARS: Final = 4
_encode: Final = msgspec.json.Encoder().encode


class State(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a request between two rounds.

    Attributes:
        chain: The random id of the request, the same in all its rounds.
        round: The number of rounds before this one.
        began: The time of the first round, in seconds since the Unix epoch.
        ends: The time at which the state expires, in seconds since the Unix epoch.
        version: The version of the handler.
        text: The `request_state` of the `InputRequiredResult` that the handler returned, if it
            returned one.
        seed: The seed of a resumable handler's random numbers.
        operations: The operations that a resumable handler has finished, in order.
        pending: The requests to the client without an answer so far, by their keys.
        asked: The number of requests to the client in all rounds.
    """

    chain: str
    round: int
    began: float
    ends: float = 0.0
    version: str
    text: str | None = None
    seed: str = ""
    operations: Sequence[FinishedOperation] = ()
    pending: Mapping[str, OperationId] = msgspec.field(default_factory=dict[str, OperationId])
    asked: int = 0


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """The request that a state is bound to.

    Attributes:
        principal: The authenticated user, if the transport knows one.
        method: The name of the method.
        digest: A digest of the params that every retry repeats.
    """

    principal: str | None
    method: str
    digest: bytes

    def bytes_for(self, server: str) -> bytes:
        """Return bytes that differ for each binding and server name."""
        return _encode([server, self.principal, self.method, self.digest.hex()])


_decode_state: Final = msgspec.json.Decoder(State).decode


class Sealer(msgspec.Struct, frozen=True, kw_only=True):
    """An encoder and decoder of sealed states for the server with the name `server`."""

    server: str
    keys: KeyRing
    limits: Limits

    def seal(self, state: State, binding: Binding, *, now: float, nonce: bytes) -> str:
        """Return the `requestState` for the client; `now` is in seconds since the Unix epoch.

        Raises:
            LocalProtocolError: The state is larger than the limits allow.
        """
        limits = self.limits
        ends = min(
            now + limits.requests.state_seconds, state.began + limits.requests.state_chain_seconds
        )
        plain = _encode(msgspec.structs.replace(state, ends=ends))
        self._check_size(plain, "state_plain_bytes_max")
        packed = zlib.compress(plain, _COMPRESSION_LEVEL)
        padded = packed + bytes(-len(packed) % _PADDED_TO_BYTES)
        sealed = self.keys.seal(padded, bound_to=binding.bytes_for(self.server), nonce=nonce)
        text = urlsafe_b64encode(sealed).rstrip(b"=").decode()
        self._check_size(text, "state_bytes_max")
        return text

    def _check_size(self, state: str | bytes, setting: str) -> None:
        most = getattr(self.limits.requests, setting)
        if len(state) > most:
            raise LocalProtocolError(
                f"the request's state has {len(state)} bytes, more than"
                f" limits.requests.{setting}={most}: return less from the handler's effects"
            )

    def open(self, text: str, binding: Binding, *, version: str, now: float) -> State | None:
        """Return the state in a `requestState`; None if it is invalid or expired.

        It is invalid for another request than that in `binding`, and for another `version`.

        `now` is in seconds since the Unix epoch. The clocks of two machines may differ, and a clock
        may be set back, by as much as `limits.requests.state_seconds`. A state that expires later
        than that is invalid, because a `StateStore` may forget its use before it expires.
        """
        if len(text) > self.limits.requests.state_bytes_max:
            return None
        try:
            sealed = urlsafe_b64decode(text + "=" * (-len(text) % _BASE64_GROUP_CHARS))
        except ValueError:  # This includes text that is not ASCII.
            return None
        if urlsafe_b64encode(sealed).rstrip(b"=").decode() != text:
            return None  # Only one text is accepted for the same bytes.
        padded = self.keys.open(sealed, bound_to=binding.bytes_for(self.server))
        if padded is None:
            return None
        plain_bytes_max = self.limits.requests.state_plain_bytes_max
        try:
            # The padding follows the end of the compressed data, and is left over.
            state = _decode_state(zlib.decompressobj().decompress(padded, plain_bytes_max))
        except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError):
            # Another release of this library has sealed the state, or one with larger limits.
            return None
        if state.version != version:
            return None
        seconds_left = state.ends - now
        is_valid = 0 < seconds_left <= 2 * self.limits.requests.state_seconds
        return state if is_valid else None


# The store in memory ----------------------------------------------------------------------------


class _Used(NamedTuple):
    ends: float
    client: str | int
    reply: bytes | None = None


# All clients together may use this multiple of the limits of one client.
_ALL_CLIENTS_FACTOR: Final = 4


@attrs.define(eq=False, repr=False)
class MemoryStore:
    """A `StateStore` in the memory of this process, for a server with one instance.

    When the store is full, expired states are removed, the oldest first, up to the first state that
    has not expired. All clients together may have four times as much as one.

    Attributes:
        states_max: The maximum number of used states of one client, whose further retries are
            rejected.
        reply_bytes_max: The maximum size of all kept results of one client, of which no further
            result is kept.
        now: The clock, in seconds.
    """

    states_max: int = 10_000
    reply_bytes_max: int = 16 * MIB
    now: Callable[[], float] = attrs.field(default=time.monotonic, kw_only=True)
    _used: OrderedDict[str, _Used] = attrs.field(factory=OrderedDict[str, _Used], init=False)
    _states: Shares = attrs.field(init=False)
    _reply_bytes: Shares = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._states = Shares(self.states_max, _ALL_CLIENTS_FACTOR, "states_max")
        self._reply_bytes = Shares(self.reply_bytes_max, _ALL_CLIENTS_FACTOR, "reply_bytes_max")

    async def take(self, key: str, *, seconds: float, client: str | int) -> bool:
        """Mark a state as used; return False if it was used before.

        Raises:
            RequestError: The store is full (server busy).
        """
        if not self._states.may_take(client):
            self._remove_expired()
        if key in self._used:
            return False
        exceeded = self._states.exceeded(client)
        if exceeded is not None:
            raise RequestError(SERVER_BUSY, f"too many used states{exceeded}")
        self._add(key, _Used(self.now() + seconds, client))
        return True

    async def keep(self, key: str, reply: bytes, *, seconds: float) -> None:
        """Keep the result of the retry that used a state, if there is room for it.

        The result for a state that has expired, and was removed, is not kept.
        """
        used = self._used.get(key)
        if used is None:
            return
        client, size_bytes = used.client, len(reply)
        if not self._reply_bytes.may_take(client, size_bytes):
            self._remove_expired()
        if self._reply_bytes.may_take(client, size_bytes):
            self._remove(key)
            self._add(key, _Used(self.now() + seconds, client, reply), size_bytes)

    async def kept(self, key: str) -> bytes | None:
        """Return the kept result; None if there is none."""
        used = self._used.get(key)
        return None if used is None else used.reply

    def _remove_expired(self) -> None:
        now = self.now()
        while self._used:
            key, oldest = next(iter(self._used.items()))
            if now < oldest.ends:
                return
            self._remove(key)

    def _remove(self, key: str) -> None:
        used = self._used.pop(key, None)
        if used is not None:
            self._states.give_back(used.client)
            self._reply_bytes.give_back(used.client, len(used.reply or b""))

    def _add(self, key: str, used: _Used, reply_bytes: int = 0) -> None:
        self._used[key] = used
        self._states.take(used.client)
        self._reply_bytes.take(used.client, reply_bytes)
