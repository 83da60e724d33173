"""The contract of `AuthorizationStorage`, at each implementation."""

import os
import stat

import pytest
import trio

from mcp_trio._auth.authorization_storage import SqliteStorage


@pytest.fixture(params=["memory", "file"])
def storage(request, tmp_path):
    storage = SqliteStorage(None if request.param == "memory" else tmp_path / "auth.sqlite")
    yield storage
    storage.close()


async def test_a_record_is_added_once_replaced_and_removed(storage):
    assert await storage.get("code", "a", now=0) is None
    assert await storage.swap("code", "a", None, b"1", now=0)
    assert not await storage.swap("code", "a", None, b"2", now=0)
    assert await storage.get("code", "a", now=0) == b"1"
    assert not await storage.swap("code", "a", b"2", b"3", now=0)
    assert await storage.swap("code", "a", b"1", b"2", now=0)
    assert not await storage.swap("code", "a", b"1", None, now=0)
    assert await storage.get("code", "a", now=0) == b"2"
    assert await storage.swap("code", "a", b"2", None, now=0)
    assert await storage.get("code", "a", now=0) is None
    assert await storage.swap("code", "a", None, None, now=0)


async def test_kinds_have_keys_of_their_own(storage):
    assert await storage.swap("code", "a", None, b"1", now=0)
    assert await storage.get("grant", "a", now=0) is None
    assert await storage.swap("grant", "a", None, b"2", now=0)
    assert await storage.swap("grant", "b", None, b"3", now=0, expires_at=5)
    assert await storage.get("code", "a", now=0) == b"1"
    assert [await storage.count(kind, now=0) for kind in ("code", "grant", "client")] == [1, 2, 0]
    assert await storage.count("grant", now=5) == 1


async def test_an_expired_record_is_absent(storage):
    assert await storage.swap("code", "a", None, b"1", now=0, expires_at=10)
    assert await storage.get("code", "a", now=9.9) == b"1"
    assert await storage.get("code", "a", now=10) is None
    assert not await storage.swap("code", "a", b"1", b"2", now=10)
    assert not await storage.swap("code", "a", b"1", None, now=10)
    assert await storage.swap("code", "a", None, b"3", now=10, expires_at=20)
    assert await storage.get("code", "a", now=19) == b"3"
    assert await storage.swap("code", "a", b"3", b"4", now=19)
    assert await storage.get("code", "a", now=1e9) == b"4"


async def test_of_several_that_replace_a_record_at_once_one_does(storage):
    await storage.swap("code", "a", None, b"0", now=0)
    won = []

    async def replace(number):
        if await storage.swap("code", "a", b"0", b"%d" % number, now=0):
            won.append(b"%d" % number)

    async with trio.open_nursery() as nursery:
        for number in range(1, 9):
            nursery.start_soon(replace, number)
    assert len(won) == 1
    assert await storage.get("code", "a", now=0) == won[0]


async def test_processes_share_a_file_that_only_its_owner_can_read(tmp_path):
    path = tmp_path / "auth.sqlite"
    first, second = SqliteStorage(path), SqliteStorage(os.fspath(path))
    assert await first.swap("code", "a", None, b"1", now=0)
    assert await second.get("code", "a", now=0) == b"1"
    assert await second.swap("code", "a", b"1", b"2", now=0)
    assert not await first.swap("code", "a", b"1", b"3", now=0)
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    first.close()
    assert await first.get("code", "a", now=0) == b"2"
    first.close()
    second.close()
