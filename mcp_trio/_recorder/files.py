"""The files of a recording: their names, the sinks that write them, and reading them back.

A recording may go on in further files, its segments. Files whose names end in `.zst` are compressed
with Zstandard and can be read while they are being written.
"""

import errno
import io
import logging
import math
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

import msgspec

from mcp_trio._recorder.encryption import EncryptedSink, begins_encrypted, decrypted
from mcp_trio._system import WRITE_FLAGS, make_private, sync_data, try_lock
from mcp_trio.errors import RecordingError
from mcp_trio.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from zstandard import ZstdCompressionObj

logger = logging.getLogger("mcp_trio")

# Names --------------------------------------------------------------------------------------------


SUFFIX: Final = ".mcprec.jsonl"
COMPRESSED_SUFFIX: Final = ".zst"


def segment_name(path: str, number: int) -> str:
    """Return the name of a later segment: `trip.2.mcprec.jsonl` after `trip.mcprec.jsonl`."""
    stem, suffix = _split(path)
    return f"{stem}.{number}{suffix}"


def segment_of(path: str) -> tuple[str, int]:
    """Return the first file of the recording that has `path` as a segment, and its number.

    A file that is not named like a later segment is number 1.
    """
    stem, suffix = _split(path)
    match = re.fullmatch(r"(.*)\.([1-9][0-9]*)", stem, re.DOTALL)
    return (path, 1) if match is None else (match[1] + suffix, int(match[2]))


def other_form(path: str) -> str:
    """Return the name of the same file in its other form: compressed, or not compressed."""
    bare = path.removesuffix(COMPRESSED_SUFFIX)
    return path + COMPRESSED_SUFFIX if bare == path else bare


def later_names(path: str) -> list[str]:
    """Return the existing files that are named like later segments of `path`, in order.

    Some may be compressed and others not, as while a session goes on. If both forms of a segment
    exist, because its compression was interrupted, the result has the form that `path` has.
    """
    stem, suffix = _split(path)
    beginning, bare = Path(stem).name + ".", suffix.removesuffix(COMPRESSED_SUFFIX)
    pattern = re.compile(
        re.escape(beginning)
        + r"([1-9][0-9]*)"
        + re.escape(bare)
        + f"(?:{re.escape(COMPRESSED_SUFFIX)})?"
    )
    names = os.listdir(Path(path).parent)  # noqa: PTH208  the folder may have many files
    found = (pattern.fullmatch(name) for name in names if name.startswith(beginning))
    later: list[str] = []
    for number in sorted({int(each[1]) for each in found if each}):
        name = segment_name(path, number)
        forms = (name, other_form(name))
        # Reading a FIFO could last for ever.
        later += [form for form in forms if Path(form).is_file()][:1]
    return later


def _split(path: str) -> tuple[str, str]:
    """Split a path before its suffix, such as `.mcprec.jsonl.zst`."""
    bare = path.removesuffix(COMPRESSED_SUFFIX)
    suffix = SUFFIX if bare.endswith(SUFFIX) else Path(bare).suffix
    if suffix[1:].isdigit():  # a segment's number; the name has no suffix
        suffix = ""
    stem = bare.removesuffix(suffix)
    return stem, path[len(stem) :]


# Sinks --------------------------------------------------------------------------------------------


class Sink(Protocol):
    """A destination for the bytes of a recording, used by one thread at a time."""

    def write(self, data: bytes) -> None:
        """Append all of `data`, or raise and, as far as possible, append nothing."""
        ...

    def close(self) -> None:
        """Release the resources of the sink."""
        ...


EXISTS: Final = (
    "the file exists; name another file, or a folder, in which each session gets a file of its own,"
    " or overwrite it: --overwrite, or RecordOptions(path, overwrite=True)"
)
"""The text of the `FileExistsError` for a file that would be overwritten."""


# The original function: in a recorded session `os.write` is one that reports the calls of handlers.
_write: Final = os.write


_OPEN_FLAGS: Final = os.O_WRONLY | os.O_CREAT | WRITE_FLAGS
_OPEN_ERRORS: Final = {
    errno.ENXIO: "no program reads this FIFO; start the one that reads it first",
    errno.ELOOP: "a symbolic link has the name of this file of the recording; remove it",
}


class FileSink:
    """A sink that writes a new file, which only its owner can read.

    A file that exists is used only if it is empty, or if `overwrite` is True. A FIFO is used if a
    program reads it: waiting for one could last for ever.

    `flags` are further flags for `os.open`, for a file whose name this package has made in a folder
    of the user: in a shared folder, another user may have made a file of that name. With
    `os.O_EXCL`, an existing file is rejected; with `NO_FOLLOW`, a symbolic link and everything else
    that is no regular file.

    With `sync_seconds`, a thread syncs the file to the disk at that interval. When a sync fails,
    the next write raises its error, or `close` if there is none. `close` waits for the last sync
    for at most `limits.recording.close_seconds`.

    Raises:
        FileExistsError: The file is not empty; nothing was changed.
        OSError: The file cannot be created (its folder must exist), or another sink writes to it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        sync_seconds: float | None = None,
        limits: Limits = DEFAULT_LIMITS,
        flags: int = 0,
    ) -> None:
        self._close_seconds = limits.recording.close_seconds
        self.written_bytes = 0
        self._syncing: SyncingThread | None = None
        try:
            self._descriptor = os.open(path, _OPEN_FLAGS | flags, 0o600)
        except OSError as error:
            text = EXISTS if error.errno == errno.EEXIST else _OPEN_ERRORS.get(error.errno or 0)
            if text is None:
                raise
            raise OSError(error.errno, text) from error
        self._is_regular = stat.S_ISREG(os.fstat(self._descriptor).st_mode)
        if flags and not self._is_regular:
            self.close()
            raise OSError(errno.EINVAL, "it is not a regular file")
        if sys.platform != "win32":
            os.set_blocking(self._descriptor, True)
        if self._is_regular:
            try:
                self._lock()
                if not overwrite and os.fstat(self._descriptor).st_size:
                    raise FileExistsError(errno.EEXIST, EXISTS)
                # An existing file may be readable by others.
                make_private(self._descriptor)
                os.ftruncate(self._descriptor, 0)
                if sync_seconds is not None:
                    self._syncing = SyncingThread(self._descriptor, sync_seconds)
            except OSError:
                self.close()
                raise

    def _lock(self) -> None:
        if not try_lock(self._descriptor):
            text = "another session is being recorded to this file; record both to a folder instead"
            raise OSError(errno.EBUSY, text)

    def write(self, data: bytes) -> None:
        """Append `data`; if the disk takes only a part of it, remove that and raise OSError."""
        if self._syncing is not None:
            self._syncing.report()
        size = len(data)
        try:
            written = _write(self._descriptor, data)
            while written < size:
                written += _write(self._descriptor, memoryview(data)[written:])
        except OSError:
            if self._is_regular:
                with suppress(OSError):
                    os.ftruncate(self._descriptor, self.written_bytes)
                    os.lseek(self._descriptor, self.written_bytes, os.SEEK_SET)
            raise
        self.written_bytes += size

    def close(self) -> None:
        """Close the file, after a last sync if it is synced at all.

        Raises:
            OSError: The end of the file may not be on the disk; the file is closed nevertheless.
        """
        try:
            if self._syncing is not None:
                self._syncing.stop(self._close_seconds)
        finally:
            os.close(self._descriptor)


class SyncingThread:
    """A thread that syncs a file to the disk every `seconds`; `report` and `stop` raise its errors.

    It duplicates the descriptor, so that it can outlive the sink when the disk hangs.

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
            raise OSError(None, f"cannot start a thread that syncs the file: {error}") from error

    def report(self) -> None:
        """Raise the error of the last failed sync, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def stop(self, seconds_max: float) -> None:
        """Make the thread sync once more and end; wait at most `seconds_max` for it.

        Raises:
            OSError: The last sync has failed, or takes longer.
        """
        self._stopped.set()
        self._thread.join(min(seconds_max, threading.TIMEOUT_MAX))
        self.report()
        if self._thread.is_alive():
            text = f"the last sync takes longer than limits.recording.close_seconds ({seconds_max})"
            raise OSError(errno.ETIMEDOUT, text)

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            self._sync()
        self._sync()
        os.close(self._descriptor)

    def _sync(self) -> None:
        try:
            sync_data(self._descriptor)
        except OSError as error:
            self._failure = error


# An empty last block, which ends a Zstandard frame without checksum (RFC 8878, section 3.1.1.2).
_FRAME_END: Final = b"\x01\x00\x00"

# Each compressed recording keeps a window of 2 to this power bytes in memory.
_WINDOW_LOG: Final = 17
_LEVEL: Final = 3


class CompressedSink:
    """A sink that compresses to `file` with Zstandard; each write ends in a complete block.

    So all that was written can be read at any time. After a failed write, the next write ends the
    frame at its last complete block and begins another.
    """

    def __init__(self, file: FileSink | EncryptedSink) -> None:
        self._file = file
        self._frame: ZstdCompressionObj | None = None
        self._is_in_frame = False

    @property
    def written_bytes(self) -> int:
        """The size of the file in bytes."""
        return self._file.written_bytes

    def write(self, data: bytes) -> None:
        """Append all of `data`, or raise and append nothing."""
        if not data:  # a frame without a block has no header, so that it could not be ended
            return
        import zstandard

        frame_end = b""
        if self._frame is None:
            frame_end = _FRAME_END if self._is_in_frame else b""
            parameters = zstandard.ZstdCompressionParameters(
                compression_level=_LEVEL,
                window_log=_WINDOW_LOG,
                write_checksum=False,
                write_content_size=False,
            )
            self._frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        blocks = self._frame.compress(data)
        blocks += self._frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        try:
            self._file.write(frame_end + blocks)
        except BaseException:
            self._frame = None
            raise
        self._is_in_frame = True

    def close(self) -> None:
        """End the frame, and close the file, also if that raises."""
        try:
            if self._is_in_frame:
                self._file.write(_FRAME_END)
        finally:
            self._file.close()


class Segments:
    """A sink that divides a recording into files: `path`, and the segments named after it.

    `open_file` opens the sink of one file. `clock` returns seconds.

    Raises:
        OSError: The first file cannot be created.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        open_file: Callable[[str], FileSink | EncryptedSink | CompressedSink],
        bytes_max: float | None = None,
        seconds_max: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = self._name = os.fspath(path)
        self._open_file = open_file
        self._bytes_max = bytes_max or math.inf
        self._seconds_max = seconds_max or math.inf
        self._clock = clock
        self._number = 1
        self._next_opening = b""
        self._file = open_file(self._path)
        self._begun = clock()

    @property
    def filled(self) -> float:
        """The size or age of the current file, as a share of its maximum; the larger of both."""
        age_seconds = self._clock() - self._begun
        return max(self._file.written_bytes / self._bytes_max, age_seconds / self._seconds_max)

    def begin_next(self, opening: bytes) -> None:
        """Make the next write begin a new file with the line `opening`; this one is complete."""
        self._next_opening = opening

    def write(self, data: bytes) -> None:
        """Append all of `data`, or raise and append nothing.

        If the first write to a new file fails, the next write creates the file again.
        """
        if not self._next_opening:
            self._file.write(data)
            return
        name = segment_name(self._path, self._number + 1)
        file = self._open_file(name)
        try:
            file.write(self._next_opening + data)
        except BaseException:
            file.close()
            raise
        self._next_opening = b""
        self._file, full = file, self._file
        self._name, full_name = name, self._name
        self._number += 1
        self._begun = self._clock()
        try:
            full.close()
        except Exception as error:  # as any write; all of `data` is in the new file
            logger.warning("the end of %s may not be on the disk: %s", full_name, error)

    def close(self) -> None:
        """Close the current file."""
        self._file.close()


class WritingThread:
    """A thread that writes to a slow sink in order, until `finish` or until a write fails.

    It has no lock: only the caller changes the counters `_handed_…`, and only the thread changes
    the counters `_written_…`. After a failure the thread has ended, and the caller may use the sink
    again. The caller may also end the thread when the sink is fast again (`has_caught_up`): a write
    is slow if it takes longer than `slow_seconds`.

    Raises:
        RuntimeError: No thread can be started.
    """

    def __init__(
        self, sink: Sink, *, write_clock: Callable[[], float], slow_seconds: float
    ) -> None:
        self.failure: Exception | None = None
        self._sink = sink
        self._write_clock = write_clock
        self._slow_seconds = slow_seconds
        # Lines and the number of their records; None ends the thread.
        self._batches: SimpleQueue[tuple[bytes, int] | None] = SimpleQueue()
        self._handed_bytes = self._handed_records = 0
        self._written_bytes = self._written_records = 0
        self._last_was_fast = False
        self._thread = threading.Thread(target=self._run, name="mcp_trio recorder", daemon=False)
        self._thread.start()

    def write(self, data: bytes, records: int) -> None:
        """Hand in the lines of `records` records, without waiting."""
        self._handed_bytes += len(data)
        self._handed_records += records
        self._batches.put((data, records))

    @property
    def waiting_bytes(self) -> int:
        """The number of bytes that are not yet written."""
        return self._handed_bytes - self._written_bytes

    @property
    def waiting_records(self) -> int:
        """The number of records that are not yet written, or after a failure are lost."""
        return self._handed_records - self._written_records

    @property
    def has_caught_up(self) -> bool:
        """True if everything is written, and the last write was fast."""
        return self._last_was_fast and not self.waiting_bytes

    def finish(self, seconds_max: float = threading.TIMEOUT_MAX) -> bool:
        """Make the thread write the rest and end; return whether it has ended in `seconds_max`.

        `failure` is the error if it has ended because a write failed.
        """
        self._batches.put(None)
        self._thread.join(min(seconds_max, threading.TIMEOUT_MAX))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            data, records = batch
            begin = self._write_clock()
            try:
                self._sink.write(data)
            except Exception as error:  # a disk may fail in any way; the recorder writes a gap
                self.failure = error
                return
            self._last_was_fast = self._write_clock() - begin <= self._slow_seconds
            self._written_records += records
            self._written_bytes += len(data)


# Reading ------------------------------------------------------------------------------------------


def open_recording(
    path: str | os.PathLike[str],
    *,
    limits: Limits = DEFAULT_LIMITS,
    later: Sequence[str] | None = None,
) -> Iterator[bytes]:
    """Yield the lines of a recording, including LF; a file named `.zst` is decompressed.

    An encrypted file is decrypted with the keys that `recording_keys` finds in the environment.

    The lines of its later segments follow, from the files in the same folder, or from the files
    `later`, if they are known. A compressed file that was cut, or is still being written, yields
    the lines up to that point, and so does an encrypted one.

    Raises:
        RecordingError: The file cannot be read, decrypted or decompressed, has a line longer than
            `limits.recording.line_bytes_max`, or is a later segment itself.
    """
    name = os.fspath(path)
    lines = _lines(name, limits)
    first = next(lines, b"")
    opening = _opening_in(first)
    if opening.segment > 1:
        raise RecordingError(
            f"{name} is segment {opening.segment} of a recording: name its first file,"
            f" {segment_of(name)[0]}"
        )
    last = first
    if first:
        yield first
    for last in lines:
        yield last
    # Looking for files takes time in a large folder, and nothing follows the record `end`.
    if not opening.session or _kind_of(last) == "end":
        return
    try:
        later = later_names(name) if later is None else later
    except OSError as error:
        raise RecordingError(
            f"cannot look for later segments of {name}: {error.strerror}"
        ) from error
    for segment in later:
        other = other_form(segment)
        if Path(other).exists() and not Path(segment).exists():
            segment = other
        lines = _lines(segment, limits)
        first = next(lines, b"")
        found = _opening_in(first)
        # A file with such a name may be empty, or of another recording.
        if found.segment > 1 and found.session == opening.session:
            yield first
            yield from lines


def recordings_in(folder: str | os.PathLike[str], *, role: str) -> list[str]:
    """Return the recordings of a role in a folder and its folders, sorted, without later segments.

    Those of HTTP servers without a message are left out: a server opens the session of stateless
    requests when it starts, whether or not such requests come. Files that cannot be read as a
    recording are returned, so that they are not overlooked.
    """
    found = list[str]()
    for path in sorted(Path(folder).rglob(f"*{SUFFIX}*")):
        name = os.fspath(path)
        if not name.endswith((SUFFIX, SUFFIX + COMPRESSED_SUFFIX)) or not path.is_file():
            continue
        try:
            opening = _opening_in(next(_lines(name, DEFAULT_LIMITS), b""))
        except RecordingError:
            opening = _Opening()
        if opening.segment != 1 or opening.role not in {role, ""}:
            continue
        if opening.transport != "http" or _has_message(name):
            found.append(name)
    return found


def _has_message(name: str) -> bool:
    """Return whether a message was received in a recording, or whether it cannot be read."""
    try:
        return any(_kind_of(line) == "in" for line in open_recording(name))
    except RecordingError:
        return True


def is_free_for_segment(name: str) -> bool:
    """Return whether a new segment may replace the file: it is empty or a later segment itself.

    Raises:
        RecordingError: As `open_recording`.
    """
    first = next(_lines(name, DEFAULT_LIMITS), b"")
    return not first or _opening_in(first).segment > 1


class _Opening(msgspec.Struct):
    session: str = ""
    segment: int = 1
    role: str = ""
    transport: str = ""


# The keys of a record's body and kind are "f" and "k"; see `_journal/records.py`.
class _FirstRecord(msgspec.Struct, rename={"body": "f"}):
    body: _Opening


def _opening_in(line: bytes) -> _Opening:
    """Return session, segment, role and transport from the first line; defaults if it has none."""
    try:
        return msgspec.json.decode(line, type=_FirstRecord).body
    except (ValueError, RecursionError):
        return _Opening()


class _Kind(msgspec.Struct, rename={"kind": "k"}):
    kind: str = ""


def _kind_of(line: bytes) -> str:
    """Return the kind of a record; empty if the line is none."""
    try:
        return msgspec.json.decode(line, type=_Kind).kind
    except (ValueError, RecursionError):
        return ""


def _lines(name: str, limits: Limits) -> Iterator[bytes]:
    bytes_max = limits.recording.line_bytes_max
    read = _decompressing if name.endswith(COMPRESSED_SUFFIX) else nullcontext[IO[bytes]]
    try:
        with Path(name).open("rb") as file, read(_decrypted(file)) as lines:
            while line := lines.readline(bytes_max + 1):
                if len(line) > bytes_max:
                    raise RecordingError(
                        f"cannot read {name}: it has a line longer than"
                        f" limits.recording.line_bytes_max ({bytes_max} bytes)"
                    )
                yield line
    except OSError as error:
        raise RecordingError(f"cannot read {name}: {error.strerror}") from error


def _decrypted(file: IO[bytes]) -> IO[bytes]:
    """Return a file, or the content of one that is encrypted."""
    if not begins_encrypted(file):
        return file
    return io.BufferedReader(_PieceReader(decrypted(file, file.name), file.name))


@contextmanager
def _decompressing(file: IO[bytes]) -> Generator[IO[bytes], None, None]:
    """Open the content of a compressed file within the block."""
    import zstandard

    try:
        with io.BufferedReader(_PieceReader(_decompressed(file), file.name)) as reader:
            yield reader
    except zstandard.ZstdError as error:
        raise RecordingError(f"cannot decompress {file.name}: {error}") from error


# Small, since a compressed block of 4 bytes may expand to 128 KiB.
_CHUNK_BYTES: Final = 512


def _decompressed(file: IO[bytes]) -> Iterator[bytes]:
    """Yield all complete blocks in a compressed file, even if its last frame has not ended.

    `ZstdDecompressor.stream_reader` cannot be used: in a frame that has not ended, it loses what
    did not fit into the last read.

    Raises:
        zstandard.ZstdError: The file is not compressed, or damaged.
    """
    import zstandard

    frames = zstandard.ZstdDecompressor().decompressobj(read_across_frames=True)
    while chunk := file.read(_CHUNK_BYTES):
        yield frames.decompress(chunk)


class _PieceReader(io.RawIOBase):
    """A file-like reader of the bytes that an iterator yields piece by piece.

    Its reads raise the errors of the iterator.
    """

    def __init__(self, pieces: Iterator[bytes], name: str) -> None:
        super().__init__()
        self.name = name
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Read into `buffer`; return the number of bytes, 0 at the end of the file."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        room = memoryview(buffer)
        taken = self._rest[: len(room)]
        room[: len(taken)] = taken
        self._rest = self._rest[len(taken) :]
        return len(taken)
