"""Where tokens are kept: who can read them, and what happens when several processes write."""

import os
import stat
import sys
import types

import pytest

from mcp_trio._auth.client_flow import ClientInformation
from mcp_trio._auth.token_store import (
    read_clients,
    read_tokens,
    write_client,
    write_tokens,
)
from mcp_trio.auth import FileTokenStore, KeyringTokenStore, MemoryTokenStore
from mcp_trio.errors import ConfigError
from tests.auth.scripted_flows import ISSUER, SERVER, token_set


@pytest.fixture
def keyring(monkeypatch):
    """A keyring in memory, in place of the package of that name."""
    passwords = {}
    module = types.ModuleType("keyring")
    module.get_password = lambda service, name: passwords.get((service, name))
    module.set_password = lambda service, name, text: passwords.update({(service, name): text})
    module.delete_password = lambda service, name: passwords.pop((service, name))
    monkeypatch.setitem(sys.modules, "keyring", module)
    return passwords


@pytest.fixture(params=["memory", "file", "keyring"])
def store(request, tmp_path, keyring):
    kinds = {
        "memory": MemoryTokenStore,
        "file": lambda: FileTokenStore(tmp_path / "a" / "b"),
        "keyring": lambda: KeyringTokenStore(tmp_path),
    }
    return kinds[request.param]()


@pytest.mark.requirement("AUTH-42", "AUTH-54")
def test_stored_tokens_and_clients_are_read_again(store):
    tokens = token_set(dpop_key={"kty": "EC"})
    client = ClientInformation(issuer=ISSUER, client_id="c", client_secret="s")
    assert (read_tokens(store, SERVER), read_clients(store)) == (None, {})
    write_tokens(store, tokens)
    write_client(store, client)
    assert (read_tokens(store, SERVER), read_clients(store)) == (tokens, {ISSUER: client})
    assert store.names("token") == [SERVER]
    write_tokens(store, token_set(access_token="newer"))
    assert read_tokens(store, SERVER).access_token == "newer"
    assert store.remove("token", SERVER)
    assert not store.remove("token", SERVER)
    assert (read_tokens(store, SERVER), store.names("token")) == (None, [])


def test_a_lock_excludes_others_until_it_ends(store):
    release = store.try_lock(SERVER)
    assert store.try_lock(SERVER) is None
    other = store.try_lock("https://other.example")
    assert other is not None
    release()
    again = store.try_lock(SERVER)
    assert again is not None
    again()
    other()


def test_a_document_of_another_version_counts_as_none(store):
    store.write("token", SERVER, b'{"unknown": 1}')
    store.write("client", ISSUER, b'{"unknown": 1}')
    assert (read_tokens(store, SERVER), read_clients(store)) == (None, {})


@pytest.mark.requirement("AUTH-55")
def test_a_client_that_names_another_issuer_is_not_used(store):
    client = ClientInformation(issuer="https://evil.example", client_id="c")
    write_client(store, client)
    store.write("client", ISSUER, store.read("client", "https://evil.example"))
    assert [*read_clients(store)] == ["https://evil.example"]


# Files


@pytest.mark.requirement("AUTH-42")
def test_only_the_owner_can_read_the_files(tmp_path):
    old = os.umask(0)
    try:
        store = FileTokenStore(tmp_path / "state" / "auth")
        write_tokens(store, token_set())
        store.try_lock(SERVER)()
    finally:
        os.umask(old)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in store.folder.iterdir()}
    assert modes == {0o600}
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


@pytest.mark.requirement("AUTH-42")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o602])
def test_files_that_others_can_read_or_write_are_not_used(tmp_path, mode):
    store = FileTokenStore(tmp_path)
    write_tokens(store, token_set())
    (path,) = tmp_path.glob("token-*.json")
    path.chmod(mode)
    with pytest.raises(ConfigError, match="other users can read or write these tokens"):
        read_tokens(store, SERVER)
    assert store.names("token") == []
    # The next login writes a file that is safe.
    write_tokens(store, token_set())
    assert read_tokens(store, SERVER) == token_set()


def test_the_file_of_another_user_is_not_used(tmp_path, monkeypatch):
    store = FileTokenStore(tmp_path)
    write_tokens(store, token_set())
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(ConfigError, match="belongs to another user"):
        read_tokens(store, SERVER)


def test_a_link_is_not_followed(tmp_path):
    store = FileTokenStore(tmp_path / "store")
    write_tokens(store, token_set())
    (path,) = store.folder.glob("token-*.json")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tokens(store, SERVER)
    write_tokens(store, token_set())
    assert not path.is_symlink()


def test_a_damaged_file_is_named(tmp_path):
    store = FileTokenStore(tmp_path)
    write_tokens(store, token_set())
    (path,) = tmp_path.glob("token-*.json")
    path.write_bytes(b"{")
    with pytest.raises(ConfigError, match="is damaged; remove it, and log in again") as caught:
        read_tokens(store, SERVER)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_written_leaves_no_draft(tmp_path, monkeypatch):
    store = FileTokenStore(tmp_path)

    def fail(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_tokens(store, token_set())
    assert [*tmp_path.iterdir()] == []


def test_a_file_system_without_locks_is_used_without_them(tmp_path, monkeypatch):
    def fail(_descriptor, _operation):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", fail)
    release = FileTokenStore(tmp_path).try_lock(SERVER)
    release()

    def broken(_descriptor, _operation):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("fcntl.flock", broken)
    with pytest.raises(OSError, match="Input/output"):
        FileTokenStore(tmp_path).try_lock(SERVER)


# The keyring


def test_the_keyring_has_the_token_and_the_files_have_none(tmp_path, keyring):
    store = KeyringTokenStore(tmp_path)
    write_tokens(store, token_set())
    assert [*keyring] == [("mcp-trio token", SERVER)]
    for path in tmp_path.iterdir():
        assert b"old-token" not in path.read_bytes()


def test_without_the_package_there_is_no_keyring(monkeypatch):
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ConfigError, match="pip install keyring"):
        KeyringTokenStore()
