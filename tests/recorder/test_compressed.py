"""A compressed recording can be read at any time, up to where it is written or was cut."""

import io
import random

import attrs
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._recorder.files import CompressedSink, FileSink
from mcp_trio.recording import open_recording


@attrs.define
class MemoryFile:
    """The file of a sink; refuses the writes that the test names."""

    rejected: set = attrs.Factory(set)
    data: bytes = b""
    writes: int = 0
    is_closed: bool = False

    @property
    def written_bytes(self):
        return len(self.data)

    def write(self, data):
        self.writes += 1
        if self.writes in self.rejected:
            raise OSError(28, "No space left on device")
        self.data += data

    def close(self):
        self.is_closed = True


def decompressed(data):
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True) as r:
        return r.read()


def test_what_was_written_can_be_read_at_once(tmp_path):
    path = tmp_path / "x.zst"
    sink = CompressedSink(FileSink(path))
    for count in range(1, 50):
        sink.write(b"line\n")
        assert list(open_recording(path)) == [b"line\n"] * count
    assert sink.written_bytes == path.stat().st_size
    sink.close()
    assert list(open_recording(path)) == [b"line\n"] * 49
    assert zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())


def test_a_frame_that_has_not_ended_is_read_to_its_last_block(tmp_path):
    path = tmp_path / "x.zst"
    sink = CompressedSink(FileSink(path))
    lines = [random.Random(number).randbytes(4000).hex().encode() + b"\n" for number in range(50)]
    sink.write(b"".join(lines))
    assert list(open_recording(path)) == lines
    sink.close()


def test_a_cut_file_gives_the_writes_that_are_whole(tmp_path):
    path = tmp_path / "x.zst"
    sink = CompressedSink(FileSink(path))
    ends = [0]
    for number in range(5):
        sink.write(random.Random(number).randbytes(30).hex().encode() + b"\n")
        ends.append(sink.written_bytes)
    sink.close()
    whole = path.read_bytes()
    lines = list(open_recording(path))
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        at_least = sum(end <= cut for end in ends[1:])
        assert list(open_recording(path))[:at_least] == lines[:at_least]


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=12),
    rejected=st.sets(st.integers(1, 12)),
)
def test_a_write_that_fails_takes_nothing_else_with_it(chunks, rejected):
    file = MemoryFile(rejected)
    sink = CompressedSink(file)
    kept = []
    for chunk in chunks:
        try:
            sink.write(chunk)
        except OSError:
            continue
        kept.append(chunk)
        assert decompressed(file.data) == b"".join(kept)
    sink.close()
    assert file.is_closed
    assert decompressed(file.data) == b"".join(kept)


def test_nothing_written_is_an_empty_file():
    file = MemoryFile()
    CompressedSink(file).close()
    assert (file.data, file.is_closed) == (b"", True)


def test_a_failure_is_told():
    with pytest.raises(OSError, match="No space"):
        CompressedSink(MemoryFile({1})).write(b"x")
