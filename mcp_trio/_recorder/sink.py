"""Where the bytes of a recording go, and where they come from."""

import errno
import fcntl
import io
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Protocol

import msgspec

from mcp_trio._errors import RecordingError
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._recorder.names import COMPRESSED_SUFFIX, first_name, later_names
from mcp_trio._recorder.syncing import SyncingThread


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


class _Head(msgspec.Struct):
    session: str = ""
    segment: int = 1


class _FirstRecord(msgspec.Struct, rename={"head": "f"}):
    head: _Head


def _head(line: bytes) -> _Head:
    """What the first line of a file says of the file; of what is no recording, nothing."""
    try:
        return msgspec.json.decode(line, type=_FirstRecord).head
    except ValueError:
        return _Head()


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

    from mcp_trio._recorder.decompressed import Decompressed

    try:
        with io.BufferedReader(Decompressed(file)) as reader:
            yield reader
    except zstandard.ZstdError as error:
        raise RecordingError(f"cannot decompress {file.name}: {error}") from error
