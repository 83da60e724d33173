"""Lock files with the port and token of a server."""

import contextlib
import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import PosixPath

import pytest
import trio

from mcp_trio._transports import lock_file as lock_files
from mcp_trio._transports import lock_file as module
from mcp_trio._transports import sockets
from mcp_trio._transports.lock_file import lock_file, locked_path
from mcp_trio.errors import ConfigError
from mcp_trio.transports import read_lock_file


@pytest.fixture
def path_lock_file(tmp_path):
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


def test_a_lock_file_is_readable_by_its_owner_only_and_removed_after_the_block(path_lock_file):
    with lock_file(path_lock_file, port=4711, token="sesame"):
        content = {"port": 4711, "authToken": "sesame", "pid": os.getpid()}
        assert json.loads(path_lock_file.read_text()) == content
        assert path_lock_file.stat().st_mode & 0o777 == 0o600
        assert list(path_lock_file.parent.iterdir()) == [path_lock_file]
        lock = read_lock_file(path_lock_file)
        assert (lock.port, lock.token, lock.pid) == (4711, "sesame", os.getpid())
        assert lock.url == "ws://127.0.0.1:4711/ws"
        assert "sesame" not in repr(lock)
    assert not path_lock_file.exists()
    assert read_lock_file(path_lock_file) is None


def test_the_lock_file_of_a_dead_process_is_replaced(path_lock_file):
    leave(path_lock_file, ideName="other members may be there")
    assert read_lock_file(path_lock_file) is None
    with lock_file(path_lock_file, port=2, token="new"):
        assert read_lock_file(path_lock_file).token == "new"


def test_the_lock_file_of_a_live_process_is_kept(path_lock_file):
    leave(path_lock_file, pid=os.getppid())
    with pytest.raises(FileExistsError), lock_file(path_lock_file, port=2, token="new"):
        pass
    assert read_lock_file(path_lock_file).token == "old"
    assert list(path_lock_file.parent.iterdir()) == [path_lock_file]


def test_a_file_put_there_by_another_process_is_not_removed(path_lock_file):
    with lock_file(path_lock_file, port=2, token="new"):
        path_lock_file.unlink()
        leave(path_lock_file)
    assert path_lock_file.exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"port": "1", "authToken": "x", "pid": 1}', "[" * 60_000]
)
def test_a_file_that_is_no_lock_file_is_rejected_and_kept(path_lock_file, text):
    path_lock_file.write_text(text)
    path_lock_file.chmod(0o600)
    with pytest.raises(ConfigError, match="port, authToken and pid"):
        read_lock_file(path_lock_file)
    with pytest.raises(ConfigError), lock_file(path_lock_file, port=2, token="new"):
        pass
    assert path_lock_file.read_text() == text


def test_a_file_writable_by_other_users_is_rejected(path_lock_file):
    leave(path_lock_file, pid=os.getpid())
    path_lock_file.chmod(0o620)
    with pytest.raises(ConfigError, match="another user"):
        read_lock_file(path_lock_file)


@pytest.mark.parametrize("pid", [0, -1, 2**70])
def test_an_invalid_process_id_counts_as_dead(path_lock_file, pid):
    path_lock_file.write_text(f'{{"port": 1, "authToken": "x", "pid": {pid}}}')
    path_lock_file.chmod(0o600)
    assert read_lock_file(path_lock_file) is None


def test_a_process_of_another_user_counts_as_alive(path_lock_file, monkeypatch):
    def kill(_pid, _signal):
        raise PermissionError

    leave(path_lock_file)
    monkeypatch.setattr(os, "kill", kill)
    assert read_lock_file(path_lock_file).token == "old"


# One process at a time replaces the file of a dead server.


SECONDS = 10.0


@pytest.fixture
def place(tmp_path):
    return tmp_path / "s"


@pytest.fixture
def beside(tmp_path):
    return tmp_path / ".s.lock"


def is_locked(file):
    """Return whether another process would find the path locked."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def held(path):
    """Lock the path as another process would."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class HesitantPath(PosixPath):
    def unlink(self):
        time.sleep(0.02)  # in which others find what it has found
        super().unlink()


def leave_dead(place):
    """A socket of a server that was killed."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(place))
        dead.listen(1)


def test_a_path_is_locked_within_the_block_only(place, beside):
    with locked_path(str(place)):
        assert is_locked(beside)
    assert not list(place.parent.iterdir())


async def test_a_lock_on_the_folder_does_not_block_the_path(place):
    leave_dead(place)
    with held(place.parent):
        async with sockets.unix_listener(place):
            assert place.is_socket()
        with lock_files.lock_file(place, port=1, token="x"):
            assert place.is_file()
    assert not list(place.parent.iterdir())


@pytest.mark.real_time
def test_waiting_for_a_lock_is_bounded_and_the_error_names_its_file(place, beside):
    beside.touch()
    with (
        held(beside),
        pytest.raises(OSError, match=r"another process.*\.s\.lock") as caught,
        locked_path(str(place)),
    ):
        raise AssertionError("the path was locked")
    assert caught.value.errno == errno.EBUSY
    assert beside.exists()


@pytest.mark.real_time
def test_exactly_one_of_many_servers_replaces_a_dead_one(place, monkeypatch):
    leave_dead(place)
    monkeypatch.setattr(module, "_TRIES", 5000)
    together, kept = threading.Barrier(4, timeout=SECONDS), threading.Barrier(4, timeout=SECONDS)
    monkeypatch.setattr(sockets, "Path", HesitantPath)
    outcomes = []

    async def serve():
        together.wait()
        try:
            async with sockets.unix_listener(place) as listener:
                kept.wait()
                with socket.socket(socket.AF_UNIX) as client, trio.move_on_after(SECONDS):
                    client.connect(os.fspath(place))
                    await (await listener.accept()).aclose()
                    outcomes.append("serves")
        except OSError as error:
            outcomes.append(errno.errorcode[error.errno])
            kept.wait()

    threads = [threading.Thread(target=trio.run, args=(serve,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["EADDRINUSE"] * 3 + ["serves"]
    assert not list(place.parent.iterdir())


def test_a_lock_on_a_removed_file_does_not_count(place, beside, monkeypatch):
    lock, removals = fcntl.flock, [beside]

    def lock_late(descriptor, operation):
        while removals:  # the earlier holder has just finished
            removals.pop().unlink()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    with locked_path(str(place)):
        assert is_locked(beside)
    assert not list(place.parent.iterdir())


def test_a_lock_on_a_replaced_file_does_not_count(place, beside, monkeypatch):
    lock, others = fcntl.flock, [beside]

    def lock_late(descriptor, operation):
        while others:  # the previous process is done and another one has begun
            other = others.pop()
            other.unlink()
            other.touch()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    with locked_path(str(place)):
        assert is_locked(beside)


async def test_the_lock_file_of_a_killed_process_is_taken_over(place, beside):
    leave_dead(place)
    beside.touch(0o600)
    async with sockets.unix_listener(place):
        assert list(place.parent.iterdir()) == [place]


def test_a_symbolic_link_is_not_followed(place, beside, tmp_path):
    elsewhere = tmp_path / "precious"
    beside.symlink_to(elsewhere)
    with pytest.raises(OSError, match=r"\.s\.lock"), locked_path(str(place)):
        raise AssertionError("the path was locked")
    assert not elsewhere.exists()


async def test_a_missing_folder_is_named_in_the_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="none"):
        async with sockets.unix_listener(tmp_path / "none" / "s"):
            pass


async def test_a_folder_removed_within_the_block_is_no_error(tmp_path):
    folder = tmp_path / "none"
    folder.mkdir()
    async with sockets.unix_listener(folder / "s"):
        (folder / "s").unlink()
        folder.rmdir()


def test_without_file_locks_the_block_runs_unprotected(place, monkeypatch):
    def reject(_descriptor, _operation):
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(fcntl, "flock", reject)
    with locked_path(str(place)):
        pass
    assert not list(place.parent.iterdir())


async def test_a_stale_socket_is_replaced_under_the_lock(place, beside, monkeypatch):
    seen = []

    def noting(function):
        def noted(*arguments):
            seen.append(is_locked(beside))
            return function(*arguments)

        return noted

    monkeypatch.setattr(sockets, "_remove_stale", noting(sockets._remove_stale))
    monkeypatch.setattr(os, "umask", noting(os.umask))
    async with sockets.unix_listener(place):
        assert not beside.exists()
    assert seen == [True, True, True]  # before the socket file is made, `umask` is set and reset


def test_a_stale_lock_file_is_replaced_under_the_lock(place, beside, monkeypatch):
    seen = []
    place.write_text('{"port": 1, "authToken": "x", "pid": 0}')
    read = lock_files.read_lock_file

    def noting(path):
        seen.append(is_locked(beside))
        return read(path)

    monkeypatch.setattr(lock_files, "read_lock_file", noting)
    with lock_files.lock_file(place, port=2, token="y"):
        assert seen == [True]
