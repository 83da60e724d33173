"""One process at a time replaces what a dead one has left."""

import errno
import fcntl
import os

import pytest

from mcp_trio._transports import lock_file as lock_files
from mcp_trio._transports import locked_folder as module
from mcp_trio._transports import sockets
from mcp_trio._transports.locked_folder import locked_folder


def is_locked(folder):
    """Whether somebody has it locked, as another process would see it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_a_folder_is_locked_within_the_block_alone(tmp_path):
    with locked_folder(str(tmp_path / "s")):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.real_time
def test_who_finds_it_locked_gives_up_in_bounded_time(tmp_path):
    with (
        locked_folder(str(tmp_path / "s")),
        pytest.raises(OSError, match="somebody else") as caught,
        locked_folder(str(tmp_path / "s")),
    ):
        raise AssertionError("nobody gets in")
    assert caught.value.errno == errno.EBUSY


def test_a_folder_that_is_not_there_is_the_writers_affair(tmp_path):
    with locked_folder(str(tmp_path / "none" / "s")):
        pass


def test_where_folders_cannot_be_locked_nothing_is(tmp_path, monkeypatch):
    def refuse(_descriptor, _operation):
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(module.fcntl, "flock", refuse)
    with locked_folder(str(tmp_path / "s")):
        pass


async def test_a_stale_socket_is_replaced_under_the_lock(tmp_path, monkeypatch):
    seen = []

    def noting(function):
        def noted(*arguments):
            seen.append(is_locked(tmp_path))
            function(*arguments)

        return noted

    for name in ("_remove_stale", "_bind_privately"):
        monkeypatch.setattr(sockets, name, noting(getattr(sockets, name)))
    async with sockets.unix_listener(tmp_path / "s"):
        assert not is_locked(tmp_path)
    assert seen == [True, True]


def test_a_stale_lock_file_is_replaced_under_the_lock(tmp_path, monkeypatch):
    path, seen = tmp_path / "lock", []
    path.write_text('{"port": 1, "authToken": "x", "pid": 0}')
    read = lock_files.read_lock_file

    def noting(place):
        seen.append(is_locked(tmp_path))
        return read(place)

    monkeypatch.setattr(lock_files, "read_lock_file", noting)
    with lock_files.lock_file(path, port=2, token="y"):
        assert seen == [True]
