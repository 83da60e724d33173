"""Recordings that the command line names: read with a bar, and named in what goes wrong."""

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from mcp_trio._cli.progress import counted
from mcp_trio._errors import RecordingError
from mcp_trio._journal.reader import Flaw, read_recording
from mcp_trio._journal.records import Record
from mcp_trio._recorder.names import COMPRESSED_SUFFIX, later_names
from mcp_trio._recorder.sink import open_recording


def lines_of(file: str | os.PathLike[str]) -> Iterator[bytes]:
    """The lines of a recording; a long one shows how far it was read.

    Raises:
        RecordingError: The file cannot be read, or not decompressed.
    """
    return counted(open_recording(file), f"reading {Path(file).name}", total_bytes=_size(file))


def records_of(file: str | os.PathLike[str]) -> Iterator[Record | Flaw]:
    """The records of a recording, flaws at their places.

    Raises:
        RecordingError: As `lines_of`, or it is no recording; the text names the file.
    """
    with naming(file):
        yield from read_recording(lines_of(file))


@contextmanager
def naming(file: str | os.PathLike[str]) -> Generator[None, None, None]:
    """Put the file's name into the text of a `RecordingError` that has none."""
    name = os.fspath(file)
    try:
        yield
    except RecordingError as error:
        if f" {name}:" in str(error) or str(error).startswith(f"{name} "):
            raise
        raise RecordingError(f"{name}: {error}") from error


def is_recording_itself(output: str, file: str) -> bool:
    """Whether a file to write is the recording, or a segment of it: writing would cost that."""
    if not (Path(output).exists() and Path(file).exists()):
        return False
    return any(Path(output).samefile(each) for each in files_of(file))


def files_of(file: str | os.PathLike[str]) -> list[str]:
    """The recording's file and its later segments, as far as they can be seen."""
    name = os.fspath(file)
    try:
        return [name, *later_names(name)]
    except OSError:  # reading it will say so
        return [name]


def _size(file: str | os.PathLike[str]) -> int | None:
    """How many bytes of lines there will be, if that is known."""
    name = os.fspath(file)
    if name.endswith(COMPRESSED_SUFFIX):
        return None
    try:
        return sum(Path(each).stat().st_size for each in files_of(name))
    except OSError:
        return None
