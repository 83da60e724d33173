"""A policy copies recordings to a store; the tests use a real S3 server, and folders."""

import base64
import logging
import os
import sys

import obstore
import pytest
import trio

from mcp_trio import Client
from mcp_trio._catalogue.maintenance import FolderMaintenance
from mcp_trio._catalogue.uploads import FolderUpload, download
from mcp_trio._recorder.encryption import KEYS_VARIABLE
from mcp_trio._recorder.policy import PolicyRun
from mcp_trio.errors import RecordingError
from mcp_trio.recording import RecordOptions, RecordPolicy, open_recording, replay_async
from tests.catalogue.conftest import session, theatre

URL = "s3://shop/theatre"


def files(folder):
    return sorted(path.name for path in folder.iterdir() if ".mcprec." in path.name)


def maintenance_of(folder, **options):
    return FolderMaintenance(PolicyRun(RecordPolicy(folder, **{"upload": URL} | options)))


def status_of(maintenance):
    return maintenance.policy_run.policy.status


def stored(s3):
    return files(s3.bucket / "theatre")


def test_recordings_are_uploaded_compressed_once_and_replay_from_a_copy(folder, s3, tmp_path):
    before = files(folder)
    maintenance = maintenance_of(folder)
    maintenance.upload()
    assert stored(s3) == [f"{name}.zst" for name in before]
    assert files(folder) == before
    maintenance.tidy()  # compresses the files, whose names are then those in the store
    maintenance.upload()
    maintenance_of(folder).upload()  # as after a restart
    status = status_of(maintenance)
    assert (status.uploaded, status.upload_problem) == (4, "")
    sizes = sum((s3.bucket / "theatre" / name).stat().st_size for name in stored(s3))
    assert status.uploaded_bytes == sizes

    copies = tmp_path / "copies"
    assert download(URL, copies) == (4, 0)
    assert files(copies) == stored(s3)
    assert (copies / stored(s3)[0]).stat().st_mode & 0o77 == 0
    assert trio.run(replay_async, copies / files(copies)[0], theatre()).requests == 2


async def test_the_background_task_uploads(folder, s3, monkeypatch):
    uploaded = trio.Event()
    upload = FolderMaintenance.upload

    def observed(maintenance):
        upload(maintenance)
        trio.from_thread.run_sync(uploaded.set)

    monkeypatch.setattr(FolderMaintenance, "upload", observed)
    async with Client(theatre(record=RecordPolicy(folder, upload=URL))):
        await uploaded.wait()
    assert len(stored(s3)) == 4


async def test_complete_segments_are_uploaded_while_a_recording_goes_on(tmp_path, s3):
    options = {"segment_bytes_max": 500}
    async with Client(theatre(record=RecordOptions(tmp_path, **options))) as client:
        for _ in range(5):
            await client.call_tool("book", {"seat": "A1"})
        written = files(tmp_path)
        rare = maintenance_of(tmp_path, rate=0.5)
        rare.upload()
        assert status_of(rare).uploaded == 0
        maintenance = maintenance_of(tmp_path, **options)
        maintenance.upload()
        assert len(stored(s3)) == len(written) - 1 > 1
        maintenance.tidy()  # compresses segments, whose names are then those in the store
        assert len([name for name in files(tmp_path) if name.endswith(".zst")]) == len(written) - 2
        maintenance.upload()
        await client.call_tool("book", {"seat": "A1"})
        maintenance.upload()
    maintenance.tidy()
    maintenance.upload()
    assert stored(s3) == files(tmp_path)
    assert status_of(maintenance).uploaded == len(files(tmp_path))
    copies = tmp_path / "copies"
    download(URL, copies)
    assert (await replay_async(copies / min(files(copies), key=len), theatre())).requests == 6


@pytest.mark.requirement("TOOL-40")
def test_a_store_that_is_away_loses_nothing(folder, s3, caplog):
    before = files(folder)
    maintenance = maintenance_of(folder, keep_count_max=1, remove_uploaded=True, compress=False)
    s3.kill()
    try:
        for _ in range(2):
            maintenance.upload()
            maintenance.tidy()
    finally:
        s3.start()
    assert files(folder) == before
    status = status_of(maintenance)
    assert status.uploaded == status.removed == 0
    assert f"cannot upload {folder / before[0]} to {URL}: " in status.upload_problem
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with caplog.at_level(logging.INFO):
        maintenance.upload()
    assert "uploaded again" in caplog.text
    assert (status.uploaded, status.upload_problem) == (4, "")
    maintenance.tidy()
    assert files(folder) == []
    assert stored(s3) == before


def test_retention_removes_recordings_that_are_in_the_store(folder, s3):
    maintenance = maintenance_of(folder, keep_count_max=1)
    maintenance.upload()
    maintenance.tidy()
    assert len(files(folder)) == 1
    assert len(stored(s3)) == 4


def test_a_recording_that_was_changed_is_uploaded_again(folder, s3):
    maintenance = maintenance_of(folder, compress=False)
    maintenance.upload()
    changed = folder / files(folder)[0]
    changed.write_bytes(changed.read_bytes()[:-1])
    os.utime(changed, ns=(1, 1))
    maintenance_of(folder, compress=False).upload()
    assert (s3.bucket / "theatre" / changed.name).read_bytes() == changed.read_bytes()


def test_a_damaged_list_of_uploaded_files_uploads_them_again(folder, s3):
    maintenance_of(folder).upload()
    (found,) = folder.glob(".uploaded-*")
    found.write_bytes(found.read_bytes()[:-5])
    maintenance = maintenance_of(folder)
    maintenance.upload()
    assert status_of(maintenance).uploaded == 1


def test_the_list_of_uploaded_files_is_shortened(folder, s3):
    maintenance = maintenance_of(folder)
    maintenance.upload()
    (found,) = folder.glob(".uploaded-*")
    length = found.stat().st_size
    found.write_bytes(found.read_bytes() + b"".join(b'["%d",1]\n' % n for n in range(2000)))
    maintenance.upload()
    assert found.stat().st_size == length
    assert status_of(maintenance).uploaded == 4


def test_the_list_is_shortened_also_when_all_recordings_were_removed(folder, s3):
    maintenance = maintenance_of(folder, remove_uploaded=True, compress=False)
    maintenance.upload()
    (found,) = folder.glob(".uploaded-*")
    found.write_bytes(found.read_bytes() + b"".join(b'["%d",1]\n' % n for n in range(2000)))
    maintenance.tidy()
    assert files(folder) == []
    maintenance.upload()
    assert status_of(maintenance).upload_problem == ""
    assert found.read_bytes() == b""
    assert found.stat().st_mode & 0o77 == 0


@pytest.mark.requirement("TOOL-40")
async def test_a_segment_that_begins_during_a_pass_is_uploaded_by_a_later_one(tmp_path, s3):
    """While a pass uploads one file, the session goes on in another segment of the next one."""
    (tmp_path / "a.mcprec.jsonl").write_text("1\n")
    path = tmp_path / "b.mcprec.jsonl"
    async with Client(theatre(record=RecordOptions(path, segment_bytes_max=2000))) as client:
        assert files(tmp_path) == ["a.mcprec.jsonl", "b.mcprec.jsonl"]
        begun = False

        async def begin_segment():
            while len(files(tmp_path)) < 3:
                await client.call_tool("book", {"seat": "A1"})

        def on_uploaded(_):
            nonlocal begun
            if not begun:
                begun = True
                trio.from_thread.run(begin_segment)

        upload = FolderUpload(tmp_path, URL, compress=True, with_running=False)
        upload.on_uploaded = on_uploaded
        assert await trio.to_thread.run_sync(upload.run) == []
        assert stored(s3) == ["a.mcprec.jsonl.zst"]  # b is still written
    assert upload.run() == []
    assert stored(s3) == sorted(f"{name}.zst" for name in files(tmp_path))


def test_a_large_file_is_uploaded_in_parts(tmp_path, s3):
    name = "large.mcprec.jsonl.zst"
    (tmp_path / name).write_bytes(os.urandom(12 * 2**20))
    maintenance_of(tmp_path).upload()
    assert (s3.bucket / "theatre" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_the_end_of_a_server_ends_an_upload(tmp_path, s3):
    name = "large.mcprec.jsonl.zst"
    (tmp_path / name).write_bytes(os.urandom(12 * 2**20))
    answers = iter([False] * 10)
    upload = FolderUpload(
        tmp_path, URL, compress=True, with_running=True, is_ending=lambda: next(answers, True)
    )
    assert upload.run() == []
    assert not (s3.bucket / "theatre" / name).exists()
    assert upload.run() == []


async def test_encrypted_recordings_are_uploaded_as_they_are(tmp_path, s3, monkeypatch):
    key = base64.b64encode(bytes(32)).decode()
    monkeypatch.setenv(KEYS_VARIABLE, f"desk:{key}")
    await session(theatre(record=RecordOptions(tmp_path, encrypt=True)), ("book", {"seat": "A1"}))
    monkeypatch.delenv(KEYS_VARIABLE)
    maintenance_of(tmp_path).upload()
    (name,) = files(tmp_path)
    assert (s3.bucket / "theatre" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_a_wrong_key_is_reported(folder, s3, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    maintenance = maintenance_of(folder)
    maintenance.upload()
    assert "403 Forbidden" in status_of(maintenance).upload_problem
    with pytest.raises(RecordingError, match="cannot copy recordings from s3://shop/theatre"):
        download(URL, folder)


def test_one_file_that_fails_does_not_keep_others_back(folder, s3, monkeypatch):
    put = obstore.put
    failing = files(folder)[0]

    def fail(store, name, *arguments, **options):
        if name.startswith(failing):
            raise OSError("this file fails")
        put(store, name, *arguments, **options)

    monkeypatch.setattr(obstore, "put", fail)
    maintenance = maintenance_of(folder)
    maintenance.upload()
    assert "this file fails" in status_of(maintenance).upload_problem
    assert status_of(maintenance).uploaded == 3
    failing = ""
    problems = FolderUpload(folder, "s3://shop/b", compress=True, with_running=True).run()
    assert len(problems) == 3


def test_only_one_process_uploads_from_a_folder(folder, s3):
    from mcp_trio._system import try_lock

    descriptor = os.open(folder / ".upload.lock", os.O_CREAT | os.O_RDWR)
    assert try_lock(descriptor)
    maintenance = maintenance_of(folder)
    maintenance.upload()
    assert status_of(maintenance).uploaded == 0
    os.close(descriptor)
    maintenance.upload()
    assert status_of(maintenance).uploaded == 4


def test_a_folder_that_is_gone_is_reported(tmp_path, s3):
    maintenance = maintenance_of(tmp_path / "none")
    maintenance.upload()
    assert "cannot upload" in status_of(maintenance).upload_problem


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("bucket", "is not the URL of a store"),
        ("memory:///", "s3://, gs://, az://, file://"),
        ("s3://", "is not the URL of a store"),
        ("s3://ada:red-tulip@bucket/x", "credentials are read from the environment"),
        ("az://account/box?sig=tulip", "credentials are read from the environment"),
    ],
)
def test_a_wrong_url_is_rejected_where_it_is_written(tmp_path, url, error):
    with pytest.raises(ValueError, match=error) as raised:
        RecordPolicy(tmp_path, upload=url)
    assert "tulip" not in str(raised.value)


def test_removing_needs_a_store(tmp_path):
    with pytest.raises(ValueError, match="remove_uploaded needs the URL"):
        RecordPolicy(tmp_path, remove_uploaded=True)


def test_a_store_that_cannot_be_used_is_an_error_at_the_start(tmp_path, monkeypatch):
    with pytest.raises(RecordingError, match="there is no such folder; make it"):
        maintenance_of(tmp_path, upload=f"file://{tmp_path / 'none'}")
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(RecordingError, match="pip install 'mcp_trio\\[upload\\]'"):
        maintenance_of(tmp_path)


def test_copies_replace_nothing_and_stay_in_their_folder(tmp_path):
    source, target = tmp_path / "store", tmp_path / "copies"
    (source / "inner").mkdir(parents=True)
    for name in ("a.mcprec.jsonl", "a.2.mcprec.jsonl", "b.mcprec.jsonl", "inner/c.mcprec.jsonl"):
        (source / name).write_text("1\n")
    (source / "notes.txt").write_text("1\n")
    url = f"file://{source}"
    assert download(url, target, "a*") == (2, 0)
    assert download(url, target) == (1, 2)
    assert files(target) == ["a.2.mcprec.jsonl", "a.mcprec.jsonl", "b.mcprec.jsonl"]
    (target / "b.mcprec.jsonl").write_text("other\n")
    with pytest.raises(RecordingError, match="is another file of the same name"):
        download(url, target)
    assert list(open_recording(target / "b.mcprec.jsonl")) == [b"other\n"]


@pytest.mark.requirement("TOOL-40")
def test_copies_in_a_mounted_folder_are_private(folder, tmp_path):
    store = tmp_path / "mounted"
    store.mkdir()
    before = os.umask(0)
    try:
        maintenance = maintenance_of(folder, upload=f"file://{store}")
        maintenance.upload()
    finally:
        os.umask(before)
    assert status_of(maintenance).upload_problem == ""
    copies = list(store.iterdir())
    assert {path.stat().st_mode & 0o777 for path in copies} == {0o600}
    assert download(f"file://{store}", tmp_path / "back") == (len(copies), 0)
