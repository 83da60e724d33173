"""Where the bytes of a recording go, and where they come from."""

import errno
import fcntl
import io
import math
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

import attrs
import msgspec
import zstandard

from mcp_trio.errors import RecordingError
from mcp_trio.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from zstandard import ZstdCompressionObj


# --------------------
# How the files of a recording are named.


SUFFIX: Final = ".mcprec.jsonl"
COMPRESSED_SUFFIX: Final = ".zst"


def segment_name(path: str, number: int) -> str:
    """The file of a later segment: `trip.2.mcprec.jsonl` behind `trip.mcprec.jsonl`."""
    stem, suffix = _split(path)
    return f"{stem}.{number}{suffix}"


def first_name(path: str) -> str:
    """The file in which the recording begins that goes on in `path`."""
    stem, suffix = _split(path)
    return re.sub(r"\.[0-9]+\Z", "", stem) + suffix


def later_names(path: str) -> list[str]:
    """The files beside `path` that are named as its later segments, in order."""
    stem, suffix = _split(path)
    pattern = re.compile(re.escape(Path(stem).name) + r"\.([1-9][0-9]*)" + re.escape(suffix))
    found = (pattern.fullmatch(file.name) for file in Path(path).parent.iterdir())
    return [segment_name(path, number) for number in sorted(int(each[1]) for each in found if each)]


def _split(path: str) -> tuple[str, str]:
    """A path in front of its suffix, and the suffix, which may say two or three things."""
    bare = path.removesuffix(COMPRESSED_SUFFIX)
    suffix = SUFFIX if bare.endswith(SUFFIX) else Path(bare).suffix
    if suffix[1:].isdigit():  # the number of a segment that has no suffix
        suffix = ""
    stem = bare.removesuffix(suffix)
    return stem, path[len(stem) :]


# --------------------
# Reading a compressed recording, however much of it is there.


# Few bytes may stand for many: 4 for a block of 128 KiB.
_CHUNK_BYTES: Final = 512


class DecompressedReader(io.RawIOBase):
    """What the blocks of `file` hold, as far as they are there, whether or not their frame ended.

    `ZstdDecompressor.stream_reader` will not do: where a frame has not ended, it keeps what did not
    fit into the last read.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self._frames = zstandard.ZstdDecompressor().decompressobj(read_across_frames=True)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill `buffer` as far as it can be; 0 at the end.

        Raises:
            zstandard.ZstdError: The file is not compressed, or damaged.
        """
        while not self._rest:
            chunk = self._file.read(_CHUNK_BYTES)
            if not chunk:
                return 0
            self._rest = memoryview(self._frames.decompress(chunk))
        room = memoryview(buffer)
        taken = self._rest[: len(room)]
        room[: len(taken)] = taken
        self._rest = self._rest[len(taken) :]
        return len(taken)


# --------------------
# Making a file survive a power cut, now and then, in a thread of its own.


class SyncingThread:
    """Syncs a file so often until it is stopped; a sync that fails is told to the next writer.

    It has a descriptor of its own, so that it may outlive the writer's on a disk that hangs.

    Raises:
        OSError: No thread can be started.
    """

    def __init__(self, descriptor: int, seconds: float) -> None:
        self._descriptor = os.dup(descriptor)
        self._seconds = min(seconds, threading.TIMEOUT_MAX)
        self._failure: OSError | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mcp_trio sync", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            os.close(self._descriptor)
            raise OSError(None, f"no thread to sync it: {error}") from error

    def report(self) -> None:
        """Raise the failure of a sync that nobody was told of yet."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def stop(self, seconds_max: float) -> None:
        """Let the thread sync for the last time, and end; wait no longer than that for it."""
        self._stopped.set()
        self._thread.join(seconds_max)

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            self._sync()
        self._sync()
        os.close(self._descriptor)

    def _sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._failure = error


class Sink(Protocol):
    """Takes the bytes of a recording, from one thread at a time."""

    def write(self, data: bytes) -> None:
        """Append all of `data`, or raise and append nothing as far as that is possible."""
        ...

    def close(self) -> None:
        """Let go of whatever `write` needed."""
        ...


class FileSink:
    """A file that only its owner may read; whatever it held before is gone.

    With `sync_seconds` a thread asks the system so often to make what was written survive a power
    cut. When the system cannot, the next write fails. `close` waits for the last time that it is
    asked, at most `journal_close_seconds`.

    Raises:
        OSError: the file cannot be made (its folder must exist), or another sink writes to it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sync_seconds: float | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._close_seconds = limits.journal_close_seconds
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._is_regular = stat.S_ISREG(os.fstat(self._descriptor).st_mode)
        self.written_bytes = 0
        self._syncing: SyncingThread | None = None
        if self._is_regular:
            try:
                self._take_over()
                if sync_seconds is not None:
                    self._syncing = SyncingThread(self._descriptor, sync_seconds)
            except OSError:
                self.close()
                raise

    def _take_over(self) -> None:
        """The file may have been there, with something in it, open to others, or in use."""
        self._lock()
        os.fchmod(self._descriptor, 0o600)
        os.ftruncate(self._descriptor, 0)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            text = "another session is being recorded to it; a folder has room for both"
            raise OSError(errno.EBUSY, text) from error
        except OSError:  # a file system without locks: nobody can tell
            pass

    def write(self, data: bytes) -> None:
        """Append `data`; if the disk takes only a part of it, take that back and raise OSError."""
        rest = memoryview(data)
        if self._syncing is not None:
            self._syncing.report()
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            self._take_back()
            raise
        self.written_bytes += len(data)

    def _take_back(self) -> None:
        if self._is_regular:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self.written_bytes)
                os.lseek(self._descriptor, self.written_bytes, os.SEEK_SET)

    def close(self) -> None:
        """Close the file, synced if it is at all."""
        if self._syncing is not None:
            self._syncing.stop(self._close_seconds)
        os.close(self._descriptor)


def open_recording(
    path: str | os.PathLike[str], *, limits: Limits = DEFAULT_LIMITS
) -> Iterator[bytes]:
    """The lines of a recording, LF included; a name that ends in `.zst` is decompressed.

    The lines of its later segments follow, from the files beside it. A compressed file that was
    cut, or is still being written, gives the lines up to there.

    Raises:
        RecordingError: The file cannot be read, or not decompressed, or it has a line longer than
            `recording_line_bytes_max`, or it is a later segment itself.
    """
    name = os.fspath(path)
    lines = _lines(name, limits)
    first = next(lines, b"")
    head = _head(first)
    if head.segment > 1:
        raise RecordingError(
            f"{name} is segment {head.segment} of a recording: name its first file,"
            f" {first_name(name)}"
        )
    if first:
        yield first
    yield from lines
    for later in _later_names(name) if head.session else ():
        yield from _lines_of_segment(later, head.session, limits)


def _later_names(name: str) -> list[str]:
    try:
        return later_names(name)
    except OSError as error:
        raise RecordingError(
            f"cannot look for later segments of {name}: {error.strerror}"
        ) from error


def _lines_of_segment(name: str, session: str, limits: Limits) -> Iterator[bytes]:
    """Nothing, if it is no segment, one of an earlier recording here, or has just been made."""
    lines = _lines(name, limits)
    first = next(lines, b"")
    head = _head(first)
    if head.segment > 1 and head.session == session:
        yield first
        yield from lines


def is_free_for_segment(name: str) -> bool:
    """Whether nothing would be lost with the file: it is empty, or a segment of what was here.

    Raises:
        RecordingError: As `open_recording`.
    """
    first = next(_lines(name, DEFAULT_LIMITS), b"")
    return not first or _head(first).segment > 1


class _FirstBody(msgspec.Struct):
    session: str = ""
    segment: int = 1


class _FirstRecord(msgspec.Struct, rename={"head": "f"}):
    head: _FirstBody


def _head(line: bytes) -> _FirstBody:
    """What the first line of a file says of the file; of what is no recording, nothing."""
    try:
        return msgspec.json.decode(line, type=_FirstRecord).head
    except ValueError:
        return _FirstBody()


def _lines(name: str, limits: Limits) -> Iterator[bytes]:
    bytes_max = limits.recording_line_bytes_max
    read = _compressed if name.endswith(COMPRESSED_SUFFIX) else nullcontext[IO[bytes]]
    try:
        with Path(name).open("rb") as file, read(file) as lines:
            while line := lines.readline(bytes_max + 1):
                if len(line) > bytes_max:
                    raise RecordingError(
                        f"cannot read {name}: it has a line longer than recording_line_bytes_max"
                        f" ({bytes_max} bytes)"
                    )
                yield line
    except OSError as error:
        raise RecordingError(f"cannot read {name}: {error.strerror}") from error


@contextmanager
def _compressed(file: IO[bytes]) -> Generator[IO[bytes], None, None]:
    import zstandard

    try:
        with io.BufferedReader(DecompressedReader(file)) as reader:
            yield reader
    except zstandard.ZstdError as error:
        raise RecordingError(f"cannot decompress {file.name}: {error}") from error


# --------------------
# A compressed recording, which can be read while it is being written.


# An empty last block: what a frame without checksum ends with, whatever came before.
_FRAME_END: Final = b"\x01\x00\x00"

# A session keeps a window of this size (2 to the power of it, in bytes) in memory.
_WINDOW_LOG: Final = 17
_LEVEL: Final = 3


class CompressedSink:
    """Writes to `file` in Zstandard, whole blocks each time: no byte waits for those behind it.

    A write that fails leaves the frame at its last whole block. It is ended there, and what comes
    next is in a frame of its own.
    """

    def __init__(self, file: FileSink) -> None:
        self._file = file
        self._frame: ZstdCompressionObj | None = None
        self._is_in_frame = False

    @property
    def written_bytes(self) -> int:
        """How many bytes the file has."""
        return self._file.written_bytes

    def write(self, data: bytes) -> None:
        """Append all of `data`, or raise and append nothing."""
        head = b""
        if self._frame is None:
            head = _FRAME_END if self._is_in_frame else b""
            self._frame = _new_frame()
        blocks = self._frame.compress(data)
        blocks += self._frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        try:
            self._file.write(head + blocks)
        except BaseException:
            self._frame = None
            raise
        self._is_in_frame = True

    def close(self) -> None:
        """End the frame, and close the file."""
        if self._is_in_frame:
            with suppress(OSError):
                self._file.write(_FRAME_END)
        self._file.close()


def _new_frame() -> "ZstdCompressionObj":
    parameters = zstandard.ZstdCompressionParameters(
        compression_level=_LEVEL,
        window_log=_WINDOW_LOG,
        write_checksum=False,
        write_content_size=False,
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compressobj()


# --------------------
# Writing to a slow disk in a thread of its own, so that nobody waits for it.


@attrs.frozen(kw_only=True)
class _Batch:
    data: bytes
    records: int


class WritingThread:
    """Writes batches in order until told to finish, or until a write fails.

    Each counter is written by one side only: what was handed in by the caller, what was written by
    the thread. After a failure the thread has ended, and the sink is the caller's again.

    Raises:
        RuntimeError: no thread can be started.
    """

    def __init__(
        self, sink: Sink, *, write_clock: Callable[[], float], fast_seconds_max: float
    ) -> None:
        self.failure: Exception | None = None
        self._sink = sink
        self._write_clock = write_clock
        self._fast_seconds_max = fast_seconds_max
        self._batches: SimpleQueue[_Batch | None] = SimpleQueue()
        self._handed_bytes = self._handed_records = 0
        self._written_bytes = self._written_records = 0
        self._last_was_fast = False
        self._thread = threading.Thread(target=self._run, name="mcp_trio recorder", daemon=False)
        self._thread.start()

    def write(self, data: bytes, records: int) -> None:
        """Hand in the lines of so many records; never waits."""
        self._handed_bytes += len(data)
        self._handed_records += records
        self._batches.put(_Batch(data=data, records=records))

    @property
    def waiting_bytes(self) -> int:
        """How much is not yet written."""
        return self._handed_bytes - self._written_bytes

    @property
    def waiting_records(self) -> int:
        """How many records are not yet written; after a failure, never will be."""
        return self._handed_records - self._written_records

    @property
    def has_caught_up(self) -> bool:
        """Whether all is written, the last batch fast."""
        return self._last_was_fast and not self.waiting_bytes

    def finish(self, seconds_max: float) -> bool:
        """Let the thread write what it has, and end; False if it did not in time."""
        self._batches.put(None)
        self._thread.join(seconds_max)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            begin = self._write_clock()
            try:
                self._sink.write(batch.data)
            except Exception as error:  # a disk may fail in any way; the recorder says it in a gap
                self.failure = error
                return
            self._last_was_fast = self._write_clock() - begin <= self._fast_seconds_max
            self._written_records += batch.records
            self._written_bytes += len(batch.data)


# --------------------
# A recording in several files, each begun when the one before is full.


class MeasuredSink(Sink, Protocol):
    """A sink that knows how large its file is."""

    @property
    def written_bytes(self) -> int:
        """How many bytes the file has."""
        ...


class Segments:
    """A sink that goes on in the next file when it is told to.

    `open_file` makes the sink of a file, whose name follows from `path`. `clock` is in seconds.

    Raises:
        OSError: The first file cannot be made.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        open_file: Callable[[str], MeasuredSink],
        bytes_max: float | None = None,
        seconds_max: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = os.fspath(path)
        self._open_file = open_file
        self._bytes_max = bytes_max or math.inf
        self._seconds_max = seconds_max or math.inf
        self._clock = clock
        self._number = 1
        self._head = b""
        self._file = open_file(self._path)
        self._begun = clock()

    @property
    def filled(self) -> float:
        """How large, or how old, the present file is, as a share of what it may be."""
        age_seconds = self._clock() - self._begun
        return max(self._file.written_bytes / self._bytes_max, age_seconds / self._seconds_max)

    def begin_next(self, head: bytes) -> None:
        """Let the next write begin a file, with `head` in front; the present one is complete."""
        self._head = head

    def write(self, data: bytes) -> None:
        """Append all of `data`, or raise and append nothing; a file that fails is begun again."""
        if self._head:
            self._write_first(self._head + data)
        else:
            self._file.write(data)

    def _write_first(self, data: bytes) -> None:
        file = self._open_file(segment_name(self._path, self._number + 1))
        try:
            file.write(data)
        except BaseException:
            file.close()
            raise
        self._head = b""
        self._file, full = file, self._file
        self._number += 1
        self._begun = self._clock()
        full.close()

    def close(self) -> None:
        """Close the present file."""
        self._file.close()
