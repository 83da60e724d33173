"""One process at a time replaces what a dead one has left, and nobody else can keep it from that."""

import contextlib
import errno
import fcntl
import os
import socket
import threading
import time
from pathlib import PosixPath

import pytest
import trio

from mcp_trio._transports import lock_file as lock_files
from mcp_trio._transports import lock_file as module
from mcp_trio._transports import sockets
from mcp_trio._transports.lock_file import locked_path

SECONDS = 10.0


@pytest.fixture
def place(tmp_path):
    return tmp_path / "s"


@pytest.fixture
def beside(tmp_path):
    return tmp_path / ".s.lock"


def is_locked(file):
    """Whether somebody has it locked, as another process would see it."""
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
    """By somebody else."""
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


def test_a_place_is_locked_within_the_block_alone(place, beside):
    with locked_path(str(place)):
        assert is_locked(beside)
    assert not list(place.parent.iterdir())


async def test_who_holds_the_folder_keeps_nobody_out_of_it(place):
    leave_dead(place)
    with held(place.parent):
        async with sockets.unix_listener(place):
            assert place.is_socket()
        with lock_files.lock_file(place, port=1, token="x"):
            assert place.is_file()
    assert not list(place.parent.iterdir())


@pytest.mark.real_time
def test_who_finds_it_locked_gives_up_in_bounded_time_and_says_by_what(place, beside):
    beside.touch()
    with (
        held(beside),
        pytest.raises(OSError, match=r"another process.*\.s\.lock") as caught,
        locked_path(str(place)),
    ):
        raise AssertionError("nobody gets in")
    assert caught.value.errno == errno.EBUSY
    assert beside.exists()


@pytest.mark.real_time
def test_of_many_servers_that_find_a_dead_one_exactly_one_takes_its_place(place, monkeypatch):
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


def test_a_lock_that_was_removed_by_who_had_it_counts_for_nothing(place, beside, monkeypatch):
    lock, removals = fcntl.flock, [beside]

    def lock_late(descriptor, operation):
        while removals:  # who was before us is done just now
            removals.pop().unlink()
        lock(descriptor, operation)

    monkeypatch.setattr(module.fcntl, "flock", lock_late)
    with locked_path(str(place)):
        assert is_locked(beside)
    assert not list(place.parent.iterdir())


def test_a_lock_that_is_another_file_by_now_counts_for_nothing(place, beside, monkeypatch):
    lock, others = fcntl.flock, [beside]

    def lock_late(descriptor, operation):
        while others:  # who was before us is done, and somebody new has begun
            other = others.pop()
            other.unlink()
            other.touch()
        lock(descriptor, operation)

    monkeypatch.setattr(module.fcntl, "flock", lock_late)
    with locked_path(str(place)):
        assert is_locked(beside)


async def test_what_a_killed_one_has_left_is_taken_over(place, beside):
    leave_dead(place)
    beside.touch(0o600)
    async with sockets.unix_listener(place):
        assert list(place.parent.iterdir()) == [place]


def test_a_link_to_elsewhere_is_not_followed(place, beside, tmp_path):
    elsewhere = tmp_path / "precious"
    beside.symlink_to(elsewhere)
    with pytest.raises(OSError, match=r"\.s\.lock"), locked_path(str(place)):
        raise AssertionError("nobody gets in")
    assert not elsewhere.exists()


async def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="none"):
        async with sockets.unix_listener(tmp_path / "none" / "s"):
            pass


async def test_a_folder_that_is_gone_at_the_end_is_no_fault(tmp_path):
    folder = tmp_path / "none"
    folder.mkdir()
    async with sockets.unix_listener(folder / "s"):
        (folder / "s").unlink()
        folder.rmdir()


def test_where_files_cannot_be_locked_nothing_is(place, monkeypatch):
    def reject(_descriptor, _operation):
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(module.fcntl, "flock", reject)
    with locked_path(str(place)):
        pass
    assert not list(place.parent.iterdir())


async def test_a_stale_socket_is_replaced_under_the_lock(place, beside, monkeypatch):
    seen = []

    def noting(function):
        def noted(*arguments):
            seen.append(is_locked(beside))
            function(*arguments)

        return noted

    for name in ("_remove_stale", "_bind_privately"):
        monkeypatch.setattr(sockets, name, noting(getattr(sockets, name)))
    async with sockets.unix_listener(place):
        assert not beside.exists()
    assert seen == [True, True]


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
