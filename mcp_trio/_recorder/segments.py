"""A recording in several files, each begun when the one before is full."""

import math
import os
import time
from collections.abc import Callable
from typing import Protocol

from mcp_trio._recorder.names import segment_name
from mcp_trio._recorder.sink import Sink


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
