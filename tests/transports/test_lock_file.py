"""Lock files with the port and token of a server."""

import json
import os
import subprocess
import sys

import pytest

from mcp_trio._transports.lock_file import lock_file
from mcp_trio.errors import ConfigError
from mcp_trio.transports import read_lock_file


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.lock"


def dead_pid():
    process = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1, check=True
    )
    return int(process.stdout)


def leave(path, **members):
    given = {"port": 1, "authToken": "old", "pid": dead_pid(), **members}
    path.write_text(json.dumps(given))
    path.chmod(0o600)


def test_a_lock_file_is_readable_by_its_owner_only_and_removed_after_the_block(path):
    with lock_file(path, port=4711, token="sesame"):
        said = {"port": 4711, "authToken": "sesame", "pid": os.getpid()}
        assert json.loads(path.read_text()) == said
        assert path.stat().st_mode & 0o777 == 0o600
        assert list(path.parent.iterdir()) == [path]
        lock = read_lock_file(path)
        assert (lock.port, lock.token, lock.pid) == (4711, "sesame", os.getpid())
        assert lock.url == "ws://127.0.0.1:4711/ws"
        assert "sesame" not in repr(lock)
    assert not path.exists()
    assert read_lock_file(path) is None


def test_the_lock_file_of_a_dead_process_is_replaced(path):
    leave(path, ideName="other members may be there")
    assert read_lock_file(path) is None
    with lock_file(path, port=2, token="new"):
        assert read_lock_file(path).token == "new"


def test_the_lock_file_of_a_live_process_is_kept(path):
    leave(path, pid=os.getppid())
    with pytest.raises(FileExistsError), lock_file(path, port=2, token="new"):
        pass
    assert read_lock_file(path).token == "old"
    assert list(path.parent.iterdir()) == [path]


def test_a_file_put_there_by_another_process_is_not_removed(path):
    with lock_file(path, port=2, token="new"):
        path.unlink()
        leave(path)
    assert path.exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"port": "1", "authToken": "x", "pid": 1}', "[" * 60_000]
)
def test_a_file_that_is_no_lock_file_is_rejected_and_kept(path, text):
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="port, authToken and pid"):
        read_lock_file(path)
    with pytest.raises(ConfigError), lock_file(path, port=2, token="new"):
        pass
    assert path.read_text() == text


def test_a_file_writable_by_other_users_is_rejected(path):
    leave(path, pid=os.getpid())
    path.chmod(0o620)
    with pytest.raises(ConfigError, match="another user"):
        read_lock_file(path)


@pytest.mark.parametrize("pid", [0, -1, 2**70])
def test_an_invalid_process_id_counts_as_dead(path, pid):
    path.write_text(f'{{"port": 1, "authToken": "x", "pid": {pid}}}')
    path.chmod(0o600)
    assert read_lock_file(path) is None


def test_a_process_of_another_user_counts_as_alive(path, monkeypatch):
    def kill(_pid, _signal):
        raise PermissionError

    leave(path)
    monkeypatch.setattr(os, "kill", kill)
    assert read_lock_file(path).token == "old"
