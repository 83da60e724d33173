"""What was written is synced by a thread; a sync that fails is a write that fails."""

import errno
import os
import threading
from pathlib import Path

import pytest

from mcp_trio import Limits
from mcp_trio._recorder import files as syncing
from mcp_trio._recorder.files import FileSink
from mcp_trio.limits import RecordingLimits

pytestmark = pytest.mark.real_time


@pytest.fixture
def syncs(monkeypatch):
    """Each sync, as the name of its thread; `syncs.error` makes them fail."""
    told = Syncs()
    monkeypatch.setattr(syncing.os, "fdatasync", told.sync)
    return told


class Syncs:
    def __init__(self):
        self.threads = []
        self.error = None
        self.happened = threading.Semaphore(0)

    def sync(self, descriptor):
        os.fstat(descriptor)
        self.threads.append(threading.current_thread())
        self.happened.release()
        if self.error is not None:
            raise self.error

    def wait(self, count=1):
        for _ in range(count):
            assert self.happened.acquire(timeout=20)


def test_a_file_is_synced_by_time_and_when_it_is_closed(tmp_path, syncs):
    sink = FileSink(tmp_path / "x", sync_seconds=0.001)
    sink.write(b"data")
    syncs.wait(3)
    assert threading.main_thread() not in syncs.threads
    sink.close()
    assert threading.main_thread() not in syncs.threads
    assert (tmp_path / "x").read_bytes() == b"data"


def test_a_file_is_synced_when_it_is_closed(tmp_path, syncs):
    before = open_descriptors()
    sink = FileSink(tmp_path / "x", sync_seconds=threading.TIMEOUT_MAX * 2)
    assert syncs.threads == []
    sink.close()
    assert len(syncs.threads) == 1
    assert open_descriptors() == before


def test_closing_does_not_wait_for_a_disk_that_hangs(tmp_path, monkeypatch):
    goes_on, ended = threading.Event(), threading.Event()

    def hang(_):
        goes_on.wait(20)
        ended.set()

    monkeypatch.setattr(syncing.os, "fdatasync", hang)
    limits = Limits(recording=RecordingLimits(close_seconds=0.01))
    sink = FileSink(tmp_path / "x", sync_seconds=60, limits=limits)
    sink.close()
    assert not ended.is_set()
    with pytest.raises(OSError, match="another session"):
        FileSink(tmp_path / "x")
    goes_on.set()
    assert ended.wait(20)


def test_without_sync_seconds_no_file_is_synced(tmp_path, syncs):
    sink = FileSink(tmp_path / "x")
    sink.write(b"data")
    sink.close()
    assert syncs.threads == []


def test_the_next_write_reports_a_failed_sync_once(tmp_path, syncs):
    syncs.error = OSError(errno.EIO, "Input/output error")
    sink = FileSink(tmp_path / "x", sync_seconds=0.001)
    syncs.wait(2)
    syncs.error = None
    syncs.wait(2)
    with pytest.raises(OSError, match="Input/output error"):
        sink.write(b"lost")
    sink.write(b"kept")
    syncs.error = OSError(errno.EIO, "Input/output error")
    sink.close()
    assert (tmp_path / "x").read_bytes() == b"kept"


def open_descriptors():
    return {file.name for file in Path("/proc/self/fd").iterdir()}


def test_without_a_thread_there_is_no_such_file(tmp_path, monkeypatch):
    def reject(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", reject)
    before = open_descriptors()
    with pytest.raises(OSError, match="cannot start a thread that syncs the file"):
        FileSink(tmp_path / "x", sync_seconds=1)
    assert open_descriptors() == before
