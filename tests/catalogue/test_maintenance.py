"""The background task of a policy compresses, catalogues and removes recordings."""

import base64
import errno
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
import zstandard

from mcp_trio import Client
from mcp_trio._catalogue import catalogue as catalogue_module
from mcp_trio._catalogue import maintenance as module
from mcp_trio._catalogue.maintenance import FolderMaintenance
from mcp_trio._recorder.encryption import KEYS_VARIABLE
from mcp_trio._recorder.files import segment_of
from mcp_trio._recorder.policy import PolicyRun
from mcp_trio.errors import RecordingError
from mcp_trio.recording import (
    Catalogue,
    RecordOptions,
    RecordPolicy,
    check,
    open_recording,
    replay_async,
)
from tests.catalogue.conftest import session, theatre


def files(folder):
    return sorted(path.name for path in folder.iterdir() if ".mcprec." in path.name)


def open_file(path):
    with path.open("rb") as file:
        yield zstandard.ZstdDecompressor().stream_reader(file).read()


def keeper_of(folder, **options):
    return FolderMaintenance(PolicyRun(RecordPolicy(folder, **options)))


def found(folder, query=""):
    with Catalogue(folder) as catalogue:
        return catalogue.find(query, oldest_first=True)


async def test_a_complete_recording_is_in_the_catalogue_when_the_server_ends(tmp_path):
    server = theatre(record=RecordPolicy(tmp_path, rate=0))
    await session(server, ("book", {"seat": "taken", "password": "red-tulip-97"}))
    (row,) = found(tmp_path, 'text:"seat taken" kept:error')
    assert row.tools == {"book": 1}


async def test_a_recording_is_compressed_when_it_is_complete_and_still_replays(tmp_path):
    policy = RecordPolicy(tmp_path, segment_bytes_max=500)
    await session(theatre(record=policy), *[("book", {"seat": "A1"})] * 5)
    keeper_of(tmp_path).tidy()
    names = files(tmp_path)
    assert len(names) > 2
    assert all(name.endswith(".zst") for name in names)
    (row,) = found(tmp_path)
    assert check(open_recording(row.file)).complete
    assert (await replay_async(row.file, theatre())).requests == 5
    assert (tmp_path / names[0]).stat().st_mode & 0o77 == 0


async def test_complete_segments_are_compressed_while_a_recording_goes_on(tmp_path):
    # Without a policy: its own background task might hold the lock just now.
    options = RecordOptions(tmp_path, segment_bytes_max=500)
    keeper = keeper_of(tmp_path, segment_bytes_max=500)
    async with Client(theatre(record=options)) as client:
        for _ in range(5):
            await client.call_tool("book", {"seat": "A1"})
        keeper.tidy()
        first, *later, last = sorted(files(tmp_path), key=lambda name: segment_of(name)[1])
        assert len(later) > 1
        assert all(name.endswith(".zst") for name in later)
        assert not first.endswith(".zst")
        assert not last.endswith(".zst")
        (row,) = found(tmp_path)
        assert row.file == str(tmp_path / first)
        assert not row.complete
        (row,) = found(tmp_path)
        before = len(files(tmp_path))
        await client.call_tool("book", {"seat": "A1"})
    assert len(files(tmp_path)) > before
    # An interrupted compression has left both forms of a segment.
    (tmp_path / later[0].removesuffix(".zst")).write_bytes(b"".join(open_file(tmp_path / later[0])))
    report = check(open_recording(tmp_path / first))
    assert (report.complete, report.damage) == (True, [])
    with Catalogue(tmp_path) as catalogue:
        catalogue.index()
    (row,) = found(tmp_path)
    assert (row.calls, row.complete) == (7, True)
    assert (await replay_async(row.file, theatre())).requests == 6
    keeper.tidy()
    assert all(name.endswith(".zst") for name in files(tmp_path))
    (row,) = found(tmp_path)
    assert row.file == str(tmp_path / f"{first}.zst")
    assert (await replay_async(row.file, theatre())).requests == 6
    keeper_of(tmp_path, keep_bytes_max=1).tidy()
    assert files(tmp_path) == []


async def test_a_policy_catalogues_a_recording_whose_segments_were_compressed(tmp_path):
    policy = RecordPolicy(tmp_path, segment_bytes_max=500, check_seconds=0.05)
    async with Client(theatre(record=policy)) as client:
        with trio.fail_after(10):
            while not any(name.endswith(".zst") for name in files(tmp_path)):
                await client.call_tool("book", {"seat": "A1"})
                await trio.sleep(0.05)
    (row,) = found(tmp_path)
    assert row.complete
    assert policy.status.problem == ""


async def test_segments_that_were_compressed_after_the_end_are_catalogued(tmp_path):
    """The end of the recording was reported with the names that the segments had then."""
    keeper = keeper_of(tmp_path, segment_bytes_max=500)
    async with Client(theatre(record=RecordOptions(tmp_path, segment_bytes_max=500))) as client:
        for _ in range(5):
            await client.call_tool("book", {"seat": "A1"})
        keeper.tidy()
        assert any(name.endswith(".zst") for name in files(tmp_path))
        assert not found(tmp_path)[0].complete
    names = [name.removesuffix(".zst") for name in files(tmp_path)]
    names.sort(key=lambda name: segment_of(name)[1])
    keeper.add_finished([str(tmp_path / name) for name in names])
    keeper.index_finished()
    assert found(tmp_path)[0].complete


async def test_a_recording_that_is_still_written_is_left_alone(tmp_path):
    # Without a policy: its own background task might hold the lock just now.
    async with Client(theatre(record=RecordOptions(tmp_path))) as client:
        await client.call_tool("book", {"seat": "A1"})
        maintenance = keeper_of(tmp_path, keep_bytes_max=1)
        maintenance.tidy()
        assert files(tmp_path)[0].endswith(".jsonl")
        assert len(found(tmp_path)) == 1


@pytest.mark.requirement("TOOL-40")
@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, [0, 1, 2, 3]),
        ({"keep_count_max": 2}, [1, 3]),
        ({"keep_count_max": 1}, [1]),
        ({"keep_bytes_max": 1}, []),
        ({"keep_days": 1}, [0, 1, 2, 3]),
    ],
)
def test_recordings_with_errors_are_removed_last(folder, options, left):
    rows = found(folder)
    with Catalogue(folder) as catalogue:
        catalogue.index()
        names = [row.file for row in catalogue.find(oldest_first=True)]
    maintenance = keeper_of(folder, compress=False, **options)
    maintenance.tidy()
    assert [row.file for row in found(folder)] == [names[number] for number in left]
    assert maintenance.policy_run.policy.status.removed == 4 - len(left)
    assert rows == []


def test_another_recording_is_removed_in_place_of_one_that_cannot_be(folder, monkeypatch):
    unlink = Path.unlink

    def fail(path, **options):
        if path.name == first:
            raise PermissionError(errno.EACCES, "Permission denied")
        unlink(path, **options)

    first = files(folder)[0]
    monkeypatch.setattr(Path, "unlink", fail)
    maintenance = keeper_of(folder, keep_count_max=3, compress=False)
    maintenance.tidy()
    assert first in files(folder)
    assert len(files(folder)) == 3
    status = maintenance.policy_run.policy.status
    assert (status.removed, status.problem.endswith(f"{first}: Permission denied")) == (1, True)


def test_old_recordings_are_removed_with_and_without_errors(folder):
    policy = {"keep_days": 2, "now": lambda: datetime.now(UTC) + timedelta(days=3)}
    maintenance = keeper_of(folder, compress=False, **policy)
    maintenance.tidy()
    assert files(folder) == []


def test_a_full_disk_ends_recording_until_there_is_room(folder, monkeypatch):
    free = [1000]
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage._replace(free=free[0]))
    maintenance = keeper_of(folder, compress=False, free_bytes_min=10**9)
    run = maintenance.policy_run
    maintenance.tidy()
    assert files(folder) == []
    assert run.is_paused
    assert "its disk has 1000 bytes left" in run.policy.status.problem
    free[0] = 2 * 10**9
    maintenance.tidy()
    assert not run.is_paused
    assert run.policy.status.problem == ""


def test_no_recording_is_removed_unless_a_limit_is_set(folder, monkeypatch):
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage._replace(free=0))
    before = files(folder)
    maintenance = keeper_of(folder, compress=False)
    maintenance.tidy()
    assert files(folder) == before != []
    assert not maintenance.policy_run.is_paused


async def test_no_session_is_recorded_while_the_disk_is_full(tmp_path):
    policy = RecordPolicy(tmp_path)
    run = PolicyRun(policy)
    run.is_paused = True
    assert run.sole_recording() is None
    assert policy.status.unrecorded == 1


def test_only_one_process_tidies_a_folder(folder):
    import os

    from mcp_trio._system import try_lock

    descriptor = os.open(folder / ".retention.lock", os.O_CREAT | os.O_RDWR)
    assert try_lock(descriptor)
    keeper_of(folder, keep_count_max=1).tidy()
    assert len(files(folder)) == 4
    os.close(descriptor)
    keeper_of(folder, keep_count_max=1).tidy()
    assert len(files(folder)) == 1


@pytest.mark.parametrize("step", ["fsync", "utime"])
def test_a_compression_that_fails_leaves_the_recording(folder, monkeypatch, step):
    before = files(folder)

    def fail(*_args, **_options):
        raise OSError("the disk is full")

    monkeypatch.setattr(module.os, step, fail)
    maintenance = keeper_of(folder)
    maintenance.try_to(maintenance.tidy)
    assert files(folder) == before
    assert "the disk is full" in maintenance.policy_run.policy.status.problem


async def test_the_task_tidies_again_after_a_while_and_at_once_for_news(
    tmp_path, autojump_clock, monkeypatch
):
    maintenance = keeper_of(tmp_path, check_seconds=60)
    calls = []

    async def note(_, work):
        calls.append(work.__name__)

    monkeypatch.setattr(trio.to_thread, "run_sync", note)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(maintenance.run)
        await trio.sleep(10)
        maintenance.add_finished([str(tmp_path / "one")])
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    await maintenance.end()
    assert calls == ["tidy", "index_finished", "tidy", "index_finished"]


def test_the_folder_is_not_listed_for_each_recording(folder, monkeypatch):
    listed, scandir = [], os.scandir

    def note(path):
        listed.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", note)
    monkeypatch.setattr(os, "listdir", None)
    keeper_of(folder, keep_count_max=2).tidy()
    assert len(found(folder)) == 2
    assert len(listed) == 3  # to index, to remove, to compress


def test_complete_recordings_are_read_once(folder, monkeypatch):
    maintenance = keeper_of(folder, compress=False)
    maintenance.tidy()

    def read(job):
        raise AssertionError(job)

    monkeypatch.setattr(catalogue_module, "read_job", read)
    os.utime(folder / files(folder)[0])
    maintenance.tidy()
    maintenance.policy_run = PolicyRun(RecordPolicy(folder))  # it compresses
    maintenance.tidy()
    assert maintenance.policy_run.policy.status.problem == ""
    rows = found(folder)
    assert [Path(row.file).name for row in rows] == files(folder)
    assert all(row.file.endswith(".zst") for row in rows)
    assert [row.size for row in rows] == [Path(row.file).stat().st_size for row in rows]
    os.utime(rows[0].file)
    another = keeper_of(folder)  # of a process that has just started
    another.tidy()
    assert "cannot tidy" in another.policy_run.policy.status.problem


def test_only_recordings_directly_in_the_folder_are_removed(folder):
    (folder / "notes.mcprec.jsonl").write_text("no recording\n")
    golden = folder / "golden"
    golden.mkdir()
    shutil.copy(folder / files(folder)[1], golden / "trip.mcprec.jsonl")
    keeper_of(folder, keep_bytes_max=1).tidy()
    assert files(folder) == ["notes.mcprec.jsonl"]
    assert files(golden) == ["trip.mcprec.jsonl"]


def test_only_recordings_directly_in_the_folder_count(folder):
    before = files(folder)
    bytes_max = sum((folder / name).stat().st_size for name in before)
    golden = folder / "golden"
    golden.mkdir()
    shutil.copy(folder / before[1], golden / "trip.mcprec.jsonl")
    (folder / "notes.mcprec.jsonl").write_text("no recording\n")
    keeper_of(folder, keep_bytes_max=bytes_max, compress=False).tidy()
    assert files(folder) == sorted([*before, "notes.mcprec.jsonl"])


def test_recordings_are_removed_although_the_catalogue_cannot_be_written(folder, monkeypatch):
    def full(*_args, **_options):
        raise RecordingError("the disk is full")

    with Catalogue(folder) as catalogue:
        catalogue.index()
    monkeypatch.setattr(Catalogue, "index", full)
    monkeypatch.setattr(Catalogue, "remove", full)
    maintenance = keeper_of(folder, keep_count_max=1, compress=False)
    maintenance.tidy()
    assert len(files(folder)) == 1
    assert "the disk is full" in maintenance.policy_run.policy.status.problem


@pytest.mark.requirement("TOOL-40")
async def test_recordings_whose_key_is_missing_are_removed_last(tmp_path, monkeypatch):
    monkeypatch.setenv(KEYS_VARIABLE, f"desk:{base64.b64encode(bytes(32)).decode()}")
    await session(theatre(record=RecordOptions(tmp_path, encrypt=True)), ("book", {"seat": "A1"}))
    (encrypted,) = files(tmp_path)
    await session(theatre(record=RecordOptions(tmp_path)), ("book", {"seat": "A2"}))
    monkeypatch.delenv(KEYS_VARIABLE)
    changed = (tmp_path / encrypted).stat().st_mtime
    later = [datetime.fromtimestamp(changed + days * 86_400, UTC) for days in (1, 3)]
    keeper_of(tmp_path, compress=False, keep_count_max=1).tidy()
    assert files(tmp_path) == [encrypted]
    for now, left in zip(later, ([encrypted], []), strict=True):
        keeper_of(tmp_path, compress=False, keep_days=2, now=lambda now=now: now).tidy()
        assert files(tmp_path) == left
