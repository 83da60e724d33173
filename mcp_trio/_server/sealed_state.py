"""Sealed states: keys, sealing, and stores that let a state be used once.

A state is encrypted and authenticated, and bound to the server, the principal, the method and what
the retry repeats; so nobody else can use it, nor for anything else. It ends with its round and with
its chain, which are all rounds of one request. Its length tells little: it is compressed, then
padded. Whatever is wrong with a state, it is refused with one error (MRTR-19 to MRTR-22).

That a state is used once needs memory: a `StateStore`, which all instances share.
"""

import secrets
import time
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import attrs
import msgspec

from mcp_trio._session.journal import Place, Step
from mcp_trio.errors import SERVER_BUSY, LocalProtocolError, RequestError
from mcp_trio.limits import MIB, Limits

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


# --------------------
# The keys by which a server seals what it gives to its clients to keep.


KEY_BYTES_MIN: Final = 32
NONCE_BYTES: Final = 12

# The form of what is sealed: a version, the key's id, the nonce, then the ciphertext with its tag.
_VERSION: Final = b"\x01"
_ID_BYTES: Final = 4
_CIPHER_KEY_BYTES: Final = 32
_HEAD_BYTES: Final = len(_VERSION) + _ID_BYTES
_PURPOSE: Final = b"mcp_trio request state"


def _check_keys(_ring: object, _field: object, keys: Sequence[object]) -> None:
    if not keys:
        raise ValueError("a key ring needs a key")
    sizes = [len(key) for key in keys if isinstance(key, bytes)]
    if len(sizes) < len(keys):
        raise TypeError("a key is bytes, and no text")
    if min(sizes) < KEY_BYTES_MIN:
        raise ValueError(f"a key has at least {KEY_BYTES_MIN} bytes, best drawn by `secrets`")


def _as_keys(keys: Iterable[bytes]) -> tuple[bytes, ...]:
    if isinstance(keys, bytes | str):
        raise TypeError("a key ring takes a sequence of keys: the first seals, all of them open")
    return tuple(keys)


@attrs.define(eq=False)
class KeyRing:
    """Secret keys, of 32 bytes or more each: the first one seals, each of them opens.

    All instances of a server have the same. To change keys, add the new one at the end everywhere,
    then move it to the front everywhere, and drop the old one when
    `limits.requests.state_chain_seconds` are over.

    Raises:
        TypeError: It is one key, and no sequence; or a key is not of bytes.
        ValueError: There is no key, or a short one.
    """

    keys: Sequence[bytes] = attrs.field(converter=_as_keys, validator=_check_keys, repr=False)
    _ciphers: list[tuple[bytes, "AESGCM"]] | None = attrs.field(
        default=None, init=False, repr=False
    )

    @classmethod
    def drawn(cls) -> "KeyRing":
        """One random key, which nobody else has: what this process seals, it alone opens."""
        return cls([secrets.token_bytes(KEY_BYTES_MIN)])

    def seal(self, plain: bytes, *, bound_to: bytes, nonce: bytes) -> bytes:
        """Seal a text, which will be opened with the same `bound_to` only.

        `nonce` has `NONCE_BYTES`, drawn anew each time.
        """
        key_id, cipher = self._derived()[0]
        head = _VERSION + key_id
        return head + nonce + cipher.encrypt(nonce, plain, head + bound_to)

    def open(self, sealed: bytes, *, bound_to: bytes) -> bytes | None:
        """Return the text; None if none of these keys sealed it so."""
        from cryptography.exceptions import InvalidTag

        head, rest = sealed[:_HEAD_BYTES], sealed[_HEAD_BYTES:]
        for key_id, cipher in self._derived():
            if head == _VERSION + key_id:
                try:
                    return cipher.decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], head + bound_to)
                except (InvalidTag, ValueError):  # the latter for what is too short
                    continue
        return None

    def _derived(self) -> list[tuple[bytes, "AESGCM"]]:
        if self._ciphers is None:
            self._ciphers = [_derive(key) for key in self.keys]
        return self._ciphers


def _derive(key: bytes) -> tuple[bytes, "AESGCM"]:
    """A key's id, and its cipher: neither is the key itself, which may serve elsewhere too."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    length = _ID_BYTES + _CIPHER_KEY_BYTES
    derived = HKDF(algorithm=SHA256(), length=length, salt=None, info=_PURPOSE).derive(key)
    return derived[:_ID_BYTES], AESGCM(derived[_ID_BYTES:])


_PADDED_TO_BYTES: Final = 256
_LENGTH_BYTES: Final = 4
_LEVEL: Final = 6
_B64_CHARS: Final = 4
_encode: Final = msgspec.json.Encoder().encode


class State(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What travels between two rounds.

    Attributes:
        chain: Names all rounds of one request; random.
        round: How many rounds came before.
        began: When the first of them was, in seconds of the time of day.
        ends: When this state does.
        version: Of the handler that made it.
        text: A state of the handler's own.
        seed: What the randomness of a resumable handler comes from.
        steps: What it did, in order.
        pending: What it asked, by the keys of its questions.
        asked: How many questions it has asked ever.
    """

    chain: str
    round: int
    began: float
    ends: float = 0.0
    version: str
    text: str | None = None
    seed: str = ""
    steps: Sequence[Step] = ()
    pending: Mapping[str, Place] = msgspec.field(default_factory=dict[str, Place])
    asked: int = 0


@attrs.frozen(kw_only=True)
class Binding:
    """What a state is good for, and nothing else: `digest` is of all that a retry repeats."""

    principal: str | None
    method: str
    digest: bytes

    def at(self, server: str) -> bytes:
        """One text, which no other binding has, nor this one at another server."""
        return _encode([server, self.principal, self.method, self.digest.hex()])


_decode_state: Final = msgspec.json.Decoder(State).decode


@attrs.frozen(kw_only=True)
class Sealer:
    """Makes texts of states, and states of texts; a server is known by its name."""

    server: str
    keys: KeyRing
    limits: Limits

    def seal(self, state: State, binding: Binding, *, now: float, nonce: bytes) -> str:
        """The text for the client; `now` is in seconds of the time of day.

        Raises:
            LocalProtocolError: The state is too large.
        """
        limits = self.limits
        ends = min(
            now + limits.requests.state_seconds, state.began + limits.requests.state_chain_seconds
        )
        plain = _encode(msgspec.structs.replace(state, ends=ends))
        if len(plain) > limits.requests.state_plain_bytes_max:
            raise _too_large(
                len(plain),
                "limits.requests.state_plain_bytes_max",
                limits.requests.state_plain_bytes_max,
            )
        sealed = self.keys.seal(_padded(plain), bound_to=binding.at(self.server), nonce=nonce)
        text = urlsafe_b64encode(sealed).rstrip(b"=").decode()
        if len(text) > limits.requests.state_bytes_max:
            raise _too_large(
                len(text), "limits.requests.state_bytes_max", limits.requests.state_bytes_max
            )
        return text

    def open(self, text: str, binding: Binding, *, version: str, now: float) -> State | None:
        """The state; None if it is not good here, or not any more."""
        if len(text) > self.limits.requests.state_bytes_max:
            return None
        sealed = _bytes_of(text)
        padded = (
            None if sealed is None else self.keys.open(sealed, bound_to=binding.at(self.server))
        )
        if padded is None:
            return None
        state = _state_of(padded, self.limits.requests.state_plain_bytes_max)
        is_good = state is not None and state.version == version and now < state.ends
        return state if is_good else None


def _too_large(size: int, setting: str, most: int) -> LocalProtocolError:
    return LocalProtocolError(
        f"the request's state has {size} bytes, more than {setting}={most}: keep less of what its"
        " steps return"
    )


def _padded(plain: bytes) -> bytes:
    packed = zlib.compress(plain, _LEVEL)
    text = len(packed).to_bytes(_LENGTH_BYTES) + packed
    return text + bytes(-len(text) % _PADDED_TO_BYTES)


def _state_of(padded: bytes, bytes_max: int) -> State | None:
    """What was sealed; None for what another release, or one with other limits, has sealed."""
    length = int.from_bytes(padded[:_LENGTH_BYTES])
    packed = padded[_LENGTH_BYTES : _LENGTH_BYTES + length]
    try:
        return _decode_state(zlib.decompressobj().decompress(packed, bytes_max))
    except (zlib.error, msgspec.MsgspecError):
        return None


def _bytes_of(text: str) -> bytes | None:
    """What a text stands for; None if it does not, or another text would stand for the same."""
    try:
        sealed = urlsafe_b64decode(text + "=" * (-len(text) % _B64_CHARS))
    except ValueError:  # also of what is not ASCII
        return None
    return sealed if urlsafe_b64encode(sealed).rstrip(b"=").decode() == text else None


# Once only ---------------------------------------------------------------------------------------


class StateStore(Protocol):
    """Remembers which states were used, for all instances of a server.

    A key names a round of a chain. What is remembered may be forgotten after `seconds`.
    """

    async def take(self, key: str, *, seconds: float) -> bool:
        """Use a state: True the first time, False ever after; at once for all instances."""
        ...

    async def keep(self, key: str, reply: bytes, *, seconds: float) -> None:
        """Keep the result that a used state has led to."""
        ...

    async def kept(self, key: str) -> bytes | None:
        """That result, for a client that has lost it; None if there is none yet."""
        ...


class _Used(NamedTuple):
    ends: float
    reply: bytes | None = None


@attrs.define(eq=False)
class MemoryStore:
    """A `StateStore` in the memory of this process, for a server that has one instance.

    At most `states_max` states are remembered; while so many are, no other one is taken. Of what
    they have led to `reply_bytes_max` are kept. Where there is no room, those are forgotten that
    are over, from the oldest to the first that is not.
    """

    states_max: int = 10_000
    reply_bytes_max: int = 64 * MIB
    now: Callable[[], float] = attrs.field(default=time.monotonic, kw_only=True)
    _used: OrderedDict[str, _Used] = attrs.field(factory=OrderedDict[str, _Used], init=False)
    _reply_bytes: int = attrs.field(default=0, init=False)

    async def take(self, key: str, *, seconds: float) -> bool:
        """See `StateStore.take`.

        Raises:
            RequestError: Too many are remembered (server busy).
        """
        if len(self._used) >= self.states_max:
            self._forget()
        if key in self._used:
            return False
        if len(self._used) >= self.states_max:
            text = f"too many states were used lately (states_max={self.states_max})"
            raise RequestError(SERVER_BUSY, text)
        self._used[key] = _Used(self.now() + seconds)
        return True

    async def keep(self, key: str, reply: bytes, *, seconds: float) -> None:
        """See `StateStore.keep`."""
        size_bytes = len(reply)
        if self._reply_bytes + size_bytes > self.reply_bytes_max:
            self._forget()
        if self._reply_bytes + size_bytes <= self.reply_bytes_max:
            self._drop(key)
            self._used[key] = _Used(self.now() + seconds, reply)
            self._reply_bytes += size_bytes

    async def kept(self, key: str) -> bytes | None:
        """See `StateStore.kept`."""
        used = self._used.get(key)
        return None if used is None else used.reply

    def _forget(self) -> None:
        now = self.now()
        while self._used:
            key, oldest = next(iter(self._used.items()))
            if now < oldest.ends:
                return
            self._drop(key)

    def _drop(self, key: str) -> None:
        used = self._used.pop(key, None)
        if used is not None:
            self._reply_bytes -= len(used.reply or b"")
