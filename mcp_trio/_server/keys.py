"""The keys by which a server seals what it gives to its clients to keep."""

import secrets
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

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
    then move it to the front everywhere, and drop the old one when `chain_seconds` are over.

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

        Raises:
            ModuleNotFoundError: The extra `seal` is not installed.
        """
        key_id, cipher = self._derived()[0]
        head = _VERSION + key_id
        return head + nonce + cipher.encrypt(nonce, plain, head + bound_to)

    def open(self, sealed: bytes, *, bound_to: bytes) -> bytes | None:
        """The text; None if it was not sealed so, by a key of these.

        Without the extra `seal` nothing can have been.
        """
        try:
            ciphers = self._derived()
        except ModuleNotFoundError:
            return None
        from cryptography.exceptions import InvalidTag

        head, rest = sealed[:_HEAD_BYTES], sealed[_HEAD_BYTES:]
        for key_id, cipher in ciphers:
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


def check_sealing() -> None:
    """Refuse, before anything is sealed, what cannot be.

    Raises:
        ModuleNotFoundError: The extra `seal` is not installed.
    """
    if find_spec("cryptography") is None:
        raise _missing()


def _missing() -> ModuleNotFoundError:
    return ModuleNotFoundError(
        "sealing a request's state needs `cryptography`: install mcp_trio[seal]"
    )


def _derive(key: bytes) -> tuple[bytes, "AESGCM"]:
    """A key's id, and its cipher: neither is the key itself, which may serve elsewhere too."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise _missing() from error
    length = _ID_BYTES + _CIPHER_KEY_BYTES
    derived = HKDF(algorithm=SHA256(), length=length, salt=None, info=_PURPOSE).derive(key)
    return derived[:_ID_BYTES], AESGCM(derived[_ID_BYTES:])
