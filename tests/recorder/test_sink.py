"""Files of recordings: private, whole, readable."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from mcp_trio import Limits
from mcp_trio._recorder.files import FileSink
from mcp_trio.errors import RecordingError
from mcp_trio.limits import RecordingLimits
from mcp_trio.recording import open_recording

LINES = [b"one\n", b"two\n", b"three"]


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_recording_is_only_its_owners(tmp_path, mask):
    before = os.umask(mask)
    try:
        FileSink(tmp_path / "x").close()
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "x") == 0o600


def test_a_file_that_was_there_is_emptied_and_made_private(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    path.chmod(0o644)
    sink = FileSink(path)
    sink.write(b"new")
    sink.close()
    assert (path.read_bytes(), mode_of(path)) == (b"new", 0o600)


def test_the_folder_must_exist(tmp_path):
    with pytest.raises(FileNotFoundError):
        FileSink(tmp_path / "no" / "x")


def test_what_is_written_is_with_the_system_at_once(tmp_path):
    sink = FileSink(tmp_path / "x")
    sink.write(b"one\n")
    sink.write(b"two\n")
    assert (tmp_path / "x").read_bytes() == b"one\ntwo\n"
    sink.close()


def test_a_full_disk_is_an_error_and_leaves_the_device_alone():
    before = mode_of(Path("/dev/full"))
    sink = FileSink("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        sink.write(b"x")
    sink.close()
    assert mode_of(Path("/dev/full")) == before


FULL_DISK = """
import resource, signal, sys
from mcp_trio._recorder.files import FileSink
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
sink = FileSink(sys.argv[1])
sink.write(b"12345678")
try:
    sink.write(b"never half of it")
except OSError:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    sink.write(b"later")
    sink.close()
"""


def test_a_write_that_fails_half_way_is_taken_back(tmp_path):
    """In a process of its own, where a file may grow to 10 bytes and a longer write is cut."""
    subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path / "x")], check=True)
    assert (tmp_path / "x").read_bytes() == b"12345678later"


def test_the_lines_of_a_recording_keep_their_ends(tmp_path):
    (tmp_path / "x.mcprec.jsonl").write_bytes(b"".join(LINES))
    assert list(open_recording(tmp_path / "x.mcprec.jsonl")) == LINES


def test_a_compressed_recording_is_read_alike(tmp_path):
    path = tmp_path / "x.mcprec.jsonl.zst"
    compress = zstandard.ZstdCompressor().compress
    path.write_bytes(compress(b"".join(LINES[:1])) + compress(b"".join(LINES[1:])))
    assert list(open_recording(str(path))) == LINES


def test_a_compressed_recording_that_was_cut_is_read_up_to_there(tmp_path):
    path = tmp_path / "x.mcprec.jsonl.zst"
    compressor = zstandard.ZstdCompressor().compressobj()
    begin = compressor.compress(b"one\n") + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    path.write_bytes(begin)
    assert list(open_recording(path)) == [b"one\n"]


def test_an_unreadable_file_is_an_error(tmp_path):
    with pytest.raises(RecordingError, match="No such file"):
        list(open_recording(tmp_path / "x.mcprec.jsonl"))
    (tmp_path / "x.zst").write_bytes(b"not compressed at all")
    with pytest.raises(RecordingError, match=r"cannot decompress .*x\.zst: "):
        list(open_recording(tmp_path / "x.zst"))


@pytest.mark.parametrize("name", ["x.mcprec.jsonl", "x.mcprec.jsonl.zst"])
def test_no_more_than_a_line_of_bounded_length_is_read(tmp_path, name):
    limits = Limits(recording=RecordingLimits(line_bytes_max=4))
    path = tmp_path / name
    compress = zstandard.ZstdCompressor().compress if name.endswith(".zst") else bytes
    path.write_bytes(compress(b"123\n"))
    assert list(open_recording(path, limits=limits)) == [b"123\n"]
    path.write_bytes(compress(b"123\n1234\n"))
    lines = open_recording(path, limits=limits)
    assert next(lines) == b"123\n"
    with pytest.raises(
        RecordingError, match=r"longer than limits\.recording\.line_bytes_max \(4 bytes\)"
    ):
        next(lines)


def test_a_file_that_another_session_is_recorded_to_is_left_alone(tmp_path):
    first = FileSink(tmp_path / "x")
    first.write(b"first")
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(OSError, match="another session is being recorded to this file"):
        FileSink(tmp_path / "x")
    assert set(Path("/proc/self/fd").iterdir()) == before
    assert (tmp_path / "x").read_bytes() == b"first"
    first.close()
    FileSink(tmp_path / "x").close()
    assert (tmp_path / "x").read_bytes() == b""


def test_a_file_system_without_locks_takes_recordings(tmp_path, monkeypatch):
    def reject(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", reject)
    FileSink(tmp_path / "x").close()
    assert (tmp_path / "x").read_bytes() == b""
