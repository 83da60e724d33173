"""Encryption of recordings at rest: AES-256-GCM, in frames that can be checked without the key.

An encrypted file has the name that it would have otherwise. It begins with a header, a line of
JSON, which names the key. Each write follows as a frame: a byte `D`, four bytes with the length of
the ciphertext, the ciphertext with its tag, and eight bytes of a running SHA-256 of the file so
far. A last frame `E` without content says that the file was closed. A file that was cut can be
read up to its last complete frame.

The key of a file is derived from the named key and a random salt in the header (HKDF, RFC 5869).
Its nonces are the numbers of the frames, so that none is used twice; after a failed write, another
header with another salt follows.

https://csrc.nist.gov/pubs/sp/800/38/d/final
"""

import base64
import functools
import hashlib
import os
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import msgspec

from mcp_trio.errors import RecordingError
from mcp_trio.limits import KIB, MIB

if TYPE_CHECKING:
    from mcp_trio._recorder.files import FileSink

KEYS_VARIABLE: Final = "MCP_TRIO_RECORDING_KEYS"
COMMAND_VARIABLE: Final = "MCP_TRIO_RECORDING_KEY_COMMAND"

_MAGIC: Final = b'{"mcprec_encrypted":'
_HEADER_BYTES_MAX: Final = 4 * KIB
_FRAME_BYTES_MAX: Final = MIB
_KEY_BYTES: Final = 32
_SALT_BYTES: Final = 16
_TAG_BYTES: Final = 16
_LENGTH_BYTES: Final = 4
_DIGEST_BYTES: Final = 8
_NONCE_BYTES: Final = 12
_DATA: Final = b"D"
_END: Final = b"E"
_VERSION: Final = 1
_COMMAND_SECONDS: Final = 30
_URL_SAFE: Final = str.maketrans("+/", "-_")
# 43 digits of base64 are 32 bytes.
_KEY_TEXT: Final = re.compile(r"([\w.-]{1,64}):([A-Za-z0-9+/_-]{43}=?)", re.ASCII)


class KeyMissingError(RecordingError):
    """The key of an encrypted recording is not known; with it, the recording may be readable."""


# Keys ---------------------------------------------------------------------------------------------


def recording_keys() -> Mapping[str, bytes]:
    """Return the keys by name, from the environment; the first one encrypts new recordings.

    They are in the variable `MCP_TRIO_RECORDING_KEYS`, or are printed by the command in
    `MCP_TRIO_RECORDING_KEY_COMMAND`, which runs once in a process. Each is a name, a colon, and 32
    bytes in base64; commas or white space separate them.

    Raises:
        KeyMissingError: There is no key.
        RecordingError: The command fails, or a key is invalid. The text has no key in it.
    """
    text, command = os.environ.get(KEYS_VARIABLE, ""), os.environ.get(COMMAND_VARIABLE, "")
    source = f"${KEYS_VARIABLE}"
    if not text.strip() and command.strip():
        text, source = _output_of(command), f"the output of ${COMMAND_VARIABLE}"
    return _parsed_keys(text, source)


@functools.lru_cache(maxsize=4)
def _output_of(command: str) -> str:
    try:
        done = subprocess.run(
            # Windows splits a command itself; there, a backslash is a part of a path.
            command if sys.platform == "win32" else shlex.split(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMMAND_SECONDS,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise RecordingError(
            f"${COMMAND_VARIABLE} failed with exit status {error.returncode}:"
            " it has to print the keys of recordings"
        ) from None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise RecordingError(f"${COMMAND_VARIABLE} cannot be run: {reason}") from None
    return done.stdout.decode(errors="replace")


@functools.lru_cache(maxsize=4)
def _parsed_keys(text: str, source: str) -> Mapping[str, bytes]:
    keys: dict[str, bytes] = {}
    for number, part in enumerate(re.split(r"[\s,]+", text.strip(" \t\r\n,")), 1):
        if not part:
            raise KeyMissingError(
                f"no key for recordings: set ${KEYS_VARIABLE} to NAME:KEY, where KEY is 32 random"
                f" bytes in base64, or ${COMMAND_VARIABLE} to a command that prints that"
            )
        match = _KEY_TEXT.fullmatch(part)
        if match is None or match[1] in keys:
            raise RecordingError(
                f"key {number} in {source} is not NAME:KEY with a name of its own, and 32 bytes in"
                " base64"
            )
        keys[match[1]] = base64.urlsafe_b64decode(match[2].translate(_URL_SAFE).rstrip("=") + "=")
    return keys


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The header; `frames` is the number of frames in the file before it."""

    mcprec_encrypted: int
    key: str
    salt: str
    frames: int


class _Cipher:
    """The cipher of the frames that follow one header, in their order."""

    def __init__(self, key: bytes, salt: bytes, header: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        derived = HKDF(SHA256(), _KEY_BYTES, salt, b"mcp_trio recording").derive(key)
        self._aes = AESGCM(derived)
        self._header = header
        self._frames = 0

    def encrypt(self, kind: bytes, data: bytes) -> bytes:
        """Return the ciphertext of the next frame."""
        return self._aes.encrypt(self._next_nonce(), data, kind + self._header)

    def decrypt(self, kind: bytes, ciphertext: bytes) -> bytes:
        """Return the content of the next frame.

        Raises:
            cryptography.exceptions.InvalidTag: The key is another one, or the frame was changed.
        """
        return self._aes.decrypt(self._next_nonce(), ciphertext, kind + self._header)

    def _next_nonce(self) -> bytes:
        self._frames += 1
        return self._frames.to_bytes(_NONCE_BYTES, "big")


# Writing ------------------------------------------------------------------------------------------


class EncryptedSink:
    """A sink that encrypts to `file`, with the first of the keys."""

    def __init__(self, file: "FileSink", keys: Mapping[str, bytes]) -> None:
        self._file = file
        self._name, self._key = next(iter(keys.items()))
        self._cipher: _Cipher | None = None
        self._digest = hashlib.sha256()
        self._frames = 0

    @property
    def written_bytes(self) -> int:
        """The size of the file in bytes."""
        return self._file.written_bytes

    def write(self, data: bytes) -> None:
        """Append all of `data`, or raise and append nothing."""
        if data:
            self._write(_DATA, data)

    def close(self) -> None:
        """Write that the file is closed, and close it, also if that raises.

        A file to which nothing could be written stays empty, so that it can be created again.
        """
        try:
            if self._frames:
                self._write(_END, b"")
        finally:
            self._file.close()

    def _write(self, kind: bytes, data: bytes) -> None:
        encoded: list[bytes] = []
        digest, frames = self._digest.copy(), self._frames
        # If this write fails, the next one begins with another header, so that no nonce is used
        # again.
        cipher, self._cipher = self._cipher, None
        if cipher is None:
            salt = secrets.token_bytes(_SALT_BYTES)
            header = _Header(
                mcprec_encrypted=_VERSION, key=self._name, salt=salt.hex(), frames=frames
            )
            line = msgspec.json.encode(header) + b"\n"
            encoded.append(line)
            digest.update(line)
            cipher = _Cipher(self._key, salt, line)
        view = memoryview(data)
        for begin in range(0, max(len(data), 1), _FRAME_BYTES_MAX):
            ciphertext = cipher.encrypt(kind, bytes(view[begin : begin + _FRAME_BYTES_MAX]))
            frame = kind + len(ciphertext).to_bytes(_LENGTH_BYTES, "big") + ciphertext
            digest.update(frame)
            encoded += (frame, digest.digest()[:_DIGEST_BYTES])
            frames += 1
        self._file.write(b"".join(encoded))
        self._cipher, self._digest, self._frames = cipher, digest, frames


# Reading ------------------------------------------------------------------------------------------


class _Frame(msgspec.Struct, frozen=True):
    kind: bytes
    ciphertext: bytes


class FrameReport(msgspec.Struct, kw_only=True):
    """The state of an encrypted file, as far as it can be checked without the key.

    Attributes:
        key: The name of the key.
        frames: The number of complete frames.
        is_closed: Whether the file was closed; otherwise it was cut, or is still being written.
        damage: The first damage of the file, with its place; empty if there is none.
    """

    key: str = ""
    frames: int = 0
    is_closed: bool = False
    damage: str = ""


def is_encrypted(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is an encrypted recording; False if it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return begins_encrypted(file)
    except OSError:
        return False


def begins_encrypted(file: IO[bytes]) -> bool:
    """Return whether an open file begins as an encrypted recording.

    The file has to be at its start, and is there again afterwards.
    """
    if not file.seekable():
        return False
    begin = file.read(len(_MAGIC))
    file.seek(0)
    return begin == _MAGIC


def check_frames(path: str | os.PathLike[str]) -> FrameReport:
    """Check the frames of an encrypted file without its key: their order, lengths and digests.

    Raises:
        RecordingError: The file cannot be read.
    """
    report = FrameReport()
    try:
        with Path(path).open("rb") as file:
            for part in _parts(file):
                if isinstance(part, _Frame):
                    report.frames += 1
                    report.is_closed = part.kind == _END
                else:
                    report.key = part[0].key
    except _DamageError as error:
        report.damage = str(error)
    except OSError as error:
        raise RecordingError(f"cannot read {os.fspath(path)}: {error.strerror}") from error
    return report


class _DamageError(Exception):
    """A part of an encrypted file is damaged; the text says which, and how."""


def _parts(file: IO[bytes]) -> Iterator[_Frame | tuple[_Header, bytes]]:
    """Yield the headers and frames of a file, up to the last complete one.

    Raises:
        _DamageError: A part is damaged.
    """
    digest, frames, is_closed = hashlib.sha256(), 0, False
    while kind := file.read(1):
        if is_closed:
            raise _DamageError("something follows the end of the file")
        if kind == _MAGIC[:1]:
            line = kind + file.readline(_HEADER_BYTES_MAX)
            if not line.endswith(b"\n"):
                if len(line) > _HEADER_BYTES_MAX:
                    raise _DamageError(f"the header after frame {frames} is damaged")
                return
            yield _header(line, frames), line
            digest.update(line)
            continue
        frames += 1
        if kind not in (_DATA, _END):
            raise _DamageError(f"frame {frames} is damaged: it is of no known kind")
        length = file.read(_LENGTH_BYTES)
        size = int.from_bytes(length, "big")
        if len(length) < _LENGTH_BYTES:
            return
        if not _TAG_BYTES <= size <= _FRAME_BYTES_MAX + _TAG_BYTES:
            raise _DamageError(f"frame {frames} is damaged: it has an impossible length")
        rest = file.read(size + _DIGEST_BYTES)
        if len(rest) < size + _DIGEST_BYTES:
            return
        ciphertext = rest[:size]
        digest.update(kind + length + ciphertext)
        if digest.digest()[:_DIGEST_BYTES] != rest[size:]:
            raise _DamageError(f"frame {frames} is damaged: it, or the file before it, was changed")
        is_closed = kind == _END
        yield _Frame(kind, ciphertext)


def _header(line: bytes, frames: int) -> _Header:
    try:
        header = msgspec.json.decode(line, type=_Header)
        bytes.fromhex(header.salt)
    except ValueError:
        raise _DamageError(f"the header after frame {frames} is damaged") from None
    if header.mcprec_encrypted != _VERSION:
        version = header.mcprec_encrypted
        raise _DamageError(f"it has version {version} of the encryption, which is unknown here")
    if header.frames != frames:
        raise _DamageError(f"frames are missing after frame {frames}")
    return header


def decrypted(file: IO[bytes], name: str) -> Iterator[bytes]:
    """Yield the content of an encrypted file, up to its last complete frame.

    Raises:
        KeyMissingError: The key is not known.
        RecordingError: The key is another one, or the file is damaged.
    """
    from cryptography.exceptions import InvalidTag

    cipher: _Cipher | None = None
    key_name = ""
    try:
        for part in _parts(file):
            if isinstance(part, _Frame):
                assert cipher is not None
                yield cipher.decrypt(part.kind, part.ciphertext)
            else:
                header, line = part
                key_name = header.key
                cipher = _Cipher(_key_named(key_name, name), bytes.fromhex(header.salt), line)
    except _DamageError as error:
        raise RecordingError(f"cannot decrypt {name}: {error}") from error
    except InvalidTag:
        raise RecordingError(
            f"cannot decrypt {name}: the key {key_name!r} is not the one that has"
            " encrypted it, or the file was changed without the key"
        ) from None


def _key_named(key_name: str, file_name: str) -> bytes:
    try:
        keys = recording_keys()
    except KeyMissingError as error:
        raise KeyMissingError(f"{file_name} is encrypted: {error}") from None
    if key_name not in keys:
        raise KeyMissingError(
            f"{file_name} is encrypted with the key {key_name!r}, which is not among the keys"
            f" {', '.join(keys)}: add it to ${KEYS_VARIABLE}"
        )
    return keys[key_name]
