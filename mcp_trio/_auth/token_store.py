"""Stores of tokens: files of the user, the keyring of the system, or memory.

A store holds a document for each server (its token) and for each authorization server (the client
that was registered there). Several processes may use it at once. One of them holds the lock of a
server while it gets a token; the others wait, and then read that token.

A lock is a lock of the system on a file for each server. The system ends it with its process.
"""

import hashlib
import importlib
import os
import secrets
import stat
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, TypeVarTuple

import attrs
import msgspec
import trio

from mcp_trio._auth.client_flow import ClientInformation, TokenSet
from mcp_trio._system import NO_FOLLOW, state_folder, try_lock
from mcp_trio.errors import ConfigError

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")

Kind: TypeAlias = Literal["token", "client"]
"""A token for a server, or a client that an authorization server knows."""

Release: TypeAlias = Callable[[], None]
"""Ends a lock."""


class TokenStore(Protocol):
    """A store of documents; implement it to keep tokens elsewhere.

    The methods may block: they are called in a thread, except for `try_lock`.
    """

    def read(self, kind: Kind, name: str) -> bytes | None:
        """Return the document of a server or issuer; None if there is none."""
        ...

    def write(self, kind: Kind, name: str, document: bytes) -> None:
        """Store a document in place of the one that is there."""
        ...

    def remove(self, kind: Kind, name: str) -> bool:
        """Remove a document; return False if there is none."""
        ...

    def names(self, kind: Kind) -> list[str]:
        """Return the servers or issuers that have a document."""
        ...

    def try_lock(self, name: str) -> Release | None:
        """Lock a server; return the function that ends the lock, or None if it is locked."""
        ...


@attrs.define(eq=False, repr=False)
class MemoryTokenStore:
    """A store in memory, for this process only."""

    _documents: dict[tuple[Kind, str], bytes] = attrs.field(
        factory=dict[tuple[Kind, str], bytes], init=False
    )
    _locked: set[str] = attrs.field(factory=set[str], init=False)

    def read(self, kind: Kind, name: str) -> bytes | None:
        """Return the document of a server or issuer; None if there is none."""
        return self._documents.get((kind, name))

    def write(self, kind: Kind, name: str, document: bytes) -> None:
        """Store a document in place of the one that is there."""
        self._documents[kind, name] = document

    def remove(self, kind: Kind, name: str) -> bool:
        """Remove a document; return False if there is none."""
        return self._documents.pop((kind, name), None) is not None

    def names(self, kind: Kind) -> list[str]:
        """Return the servers or issuers that have a document."""
        return sorted(name for of, name in self._documents if of == kind)

    def try_lock(self, name: str) -> Release | None:
        """Lock a server; return the function that ends the lock, or None if it is locked."""
        if name in self._locked:
            return None
        self._locked.add(name)
        return partial(self._locked.discard, name)


@attrs.frozen(repr=False)
class _File:
    """The content of a file, whose own name is a digest of `name`, a server or an issuer."""

    name: str
    document: msgspec.Raw


_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OWNER_FILE: Final = 0o600
_OWNER_FOLDER: Final = 0o700


@attrs.frozen(eq=False)
class FileTokenStore:
    """A store of files that only their owner can read, by default in the user's state directory.

    Files that other users can read or write are not used: then reading raises `ConfigError`. On
    Windows, the rights of the folder protect them.

    Args:
        folder: The folder; by default `$XDG_STATE_HOME/mcp-trio/auth`. It is created when needed.
    """

    folder: Path = attrs.field(factory=lambda: state_folder() / "auth", converter=Path)

    def _path(self, kind: Kind, name: str) -> Path:
        digest = hashlib.sha256(name.encode()).hexdigest()[:32]
        return self.folder / f"{kind}-{digest}.json"

    def read(self, kind: Kind, name: str) -> bytes | None:
        """Return the document of a server or issuer; None if there is none.

        Raises:
            ConfigError: Other users could read or write the file, or it is damaged.
        """
        content = self._read(self._path(kind, name))
        return None if content is None else bytes(content.document)

    def _read(self, path: Path) -> _File | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | NO_FOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            if sys.platform != "win32":
                found = os.fstat(descriptor)
                if found.st_uid != os.getuid():
                    raise ConfigError(
                        f"{path}: belongs to another user; remove it, and log in again"
                    )
                if found.st_mode & _OTHERS:
                    raise ConfigError(
                        f"{path}: other users can read or write these tokens; remove the file, and"
                        " log in again"
                    )
            data = file.read()
        try:
            return msgspec.json.decode(data, type=_File)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ConfigError(f"{path}: is damaged; remove it, and log in again") from None

    def write(self, kind: Kind, name: str, document: bytes) -> None:
        """Store a document in place of the one that is there; readers never see a part of it.

        Raises:
            OSError: The file cannot be written.
        """
        self._make_folder()
        path = self._path(kind, name)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        content = msgspec.json.encode(_File(name, msgspec.Raw(document)))
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW
            with os.fdopen(os.open(draft, flags, _OWNER_FILE), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=_OWNER_FOLDER, parents=True, exist_ok=True)

    def remove(self, kind: Kind, name: str) -> bool:
        """Remove a document; return False if there is none."""
        try:
            self._path(kind, name).unlink()
        except FileNotFoundError:
            return False
        return True

    def names(self, kind: Kind) -> list[str]:
        """Return the servers or issuers that have a document in a file that can be used.

        Use `read` to learn why a document cannot be used.
        """
        names: list[str] = []
        for path in self.folder.glob(f"{kind}-*.json"):
            with suppress(ConfigError):
                content = self._read(path)
                if content is not None:
                    names.append(content.name)
        return sorted(names)

    def try_lock(self, name: str) -> Release | None:
        """Lock a server; return the function that ends the lock, or None if it is locked.

        On a file system without locks, such as some network file systems, nothing is locked.
        """
        self._make_folder()
        path = self._path("token", name).with_suffix(".lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NO_FOLLOW, _OWNER_FILE)
        with ExitStack() as stack:
            stack.callback(os.close, descriptor)
            return stack.pop_all().close if try_lock(descriptor) else None


@attrs.define(eq=False)
class KeyringTokenStore:
    """A store in the keyring of the system, such as macOS Keychain, by the package `keyring`.

    The keyring cannot list its entries. So the names of servers and issuers, which are no secret,
    and the locks are files.

    Args:
        folder: The folder of these files, as of `FileTokenStore`.

    Raises:
        ConfigError: The package is not installed.
    """

    folder: Path = attrs.field(factory=lambda: state_folder() / "keyring", converter=Path)
    _files: FileTokenStore = attrs.field(init=False)
    _keyring: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        try:
            self._keyring = importlib.import_module("keyring")
        except ImportError:
            raise ConfigError(
                "a KeyringTokenStore needs the package keyring: pip install keyring"
            ) from None
        self._files = FileTokenStore(self.folder)

    def read(self, kind: Kind, name: str) -> bytes | None:
        """Return the document of a server or issuer; None if there is none."""
        text: str | None = self._keyring.get_password(f"mcp-trio {kind}", name)
        return None if text is None else text.encode()

    def write(self, kind: Kind, name: str, document: bytes) -> None:
        """Store a document in place of the one that is there."""
        self._files.write(kind, name, b"null")
        self._keyring.set_password(f"mcp-trio {kind}", name, document.decode())

    def remove(self, kind: Kind, name: str) -> bool:
        """Remove a document; return False if there is none."""
        if self.read(kind, name) is not None:
            self._keyring.delete_password(f"mcp-trio {kind}", name)
        return self._files.remove(kind, name)

    def names(self, kind: Kind) -> list[str]:
        """Return the servers or issuers that have a document."""
        return self._files.names(kind)

    def try_lock(self, name: str) -> Release | None:
        """Lock a server; return the function that ends the lock, or None if it is locked."""
        return self._files.try_lock(name)


def read_tokens(store: TokenStore, server: str) -> TokenSet | None:
    """Return the token for a server; None if there is none, or none that this version can read."""
    document = store.read("token", server)
    if document is None:
        return None
    try:
        return msgspec.json.decode(document, type=TokenSet)
    except msgspec.MsgspecError:
        return None


def write_tokens(store: TokenStore, tokens: TokenSet) -> None:
    """Store the token for its server."""
    store.write("token", tokens.server, msgspec.json.encode(tokens))


def remove_tokens(store: TokenStore, server: str) -> tuple[bool, TokenSet | None]:
    """Remove the token for a server, and the client of its issuer if no other token needs it.

    Return whether there was a token, and the token; None if it could not be read.
    """
    tokens = None
    with suppress(ConfigError):  # a file that cannot be used is removed, too
        tokens = read_tokens(store, server)
    is_removed = store.remove("token", server)
    others = (read_tokens(store, each) for each in store.names("token"))
    if tokens is not None and all(each is None or each.issuer != tokens.issuer for each in others):
        store.remove("client", tokens.issuer)
    return is_removed, tokens


def read_clients(store: TokenStore) -> dict[str, ClientInformation]:
    """Return the registered clients by their issuers."""
    clients: dict[str, ClientInformation] = {}
    for issuer in store.names("client"):
        document = store.read("client", issuer)
        with suppress(msgspec.MsgspecError):
            client = msgspec.json.decode(document or b"", type=ClientInformation)
            # An entry counts only for the issuer that it names itself.
            if client.issuer == issuer:
                clients[issuer] = client
    return clients


def write_client(store: TokenStore, client: ClientInformation) -> None:
    """Store a registered client for its issuer."""
    assert client.issuer is not None
    store.write("client", client.issuer, msgspec.json.encode(client))


def remove_client(store: TokenStore, issuer: str) -> None:
    """Remove the registered client of an issuer, if there is one."""
    store.remove("client", issuer)


async def in_store(
    store: TokenStore, function: Callable[[TokenStore, *_Args], _T], *args: *_Args
) -> _T:
    """Call a function with a store, in a thread unless the store is in memory."""
    if isinstance(store, MemoryTokenStore):
        return function(store, *args)
    return await trio.to_thread.run_sync(function, store, *args)
