"""Where the bytes of a recording go, and where they come from."""

import errno
import fcntl
import io
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Final, Protocol, cast

from mcp_trio._errors import RecordingError
from mcp_trio._limits import DEFAULT_LIMITS, Limits

COMPRESSED_SUFFIX: Final = ".zst"


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

    Raises:
        OSError: the file cannot be made (its folder must exist), or another sink writes to it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._is_regular = stat.S_ISREG(os.fstat(self._descriptor).st_mode)
        self._written_bytes = 0
        if self._is_regular:
            try:
                self._take_over()
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
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            self._take_back()
            raise
        self._written_bytes += len(data)

    def _take_back(self) -> None:
        if self._is_regular:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._written_bytes)
                os.lseek(self._descriptor, self._written_bytes, os.SEEK_SET)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def open_recording(
    path: str | os.PathLike[str], *, limits: Limits = DEFAULT_LIMITS
) -> Iterator[bytes]:
    """The lines of a recording, LF included; a name that ends in `.zst` is decompressed.

    A compressed file that was cut gives the lines up to there.

    Raises:
        RecordingError: The file cannot be read, or not decompressed, or it has a line longer than
            `recording_line_bytes_max`.
    """
    name = os.fspath(path)
    bytes_max = limits.recording_line_bytes_max
    read = _compressed if name.endswith(COMPRESSED_SUFFIX) else nullcontext[IO[bytes]]
    try:
        with Path(path).open("rb") as file, read(file) as lines:
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

    decompressor = zstandard.ZstdDecompressor()
    try:
        with decompressor.stream_reader(file, read_across_frames=True) as reader:
            yield io.BufferedReader(cast("io.RawIOBase", reader))
    except zstandard.ZstdError as error:
        raise RecordingError(f"cannot decompress {file.name}: {error}") from error
