"""Copies of recordings in a store: an S3-compatible server, a cloud bucket, or another folder.

Recordings are written to a local folder first, as without a store, so no session waits for the
network. A pass over the folder uploads the files that are complete and are not in the store yet.
The names of uploaded files are kept in a list in the folder. If it is lost, they are uploaded
again, to the same names, which changes nothing.

`obstore` speaks to the stores: one library without further dependencies for S3, Google Cloud
Storage and Azure, whose calls release the interpreter while they wait. Its credentials come from
the environment.
"""

import hashlib
import os
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

import attrs
import msgspec

from mcp_trio._catalogue.catalogue import is_being_written, names_in_folder, recordings_of
from mcp_trio._recorder.encryption import is_encrypted
from mcp_trio._recorder.files import (
    COMPRESSED_SUFFIX,
    SUFFIX,
    later_names,
    segment_name,
    segment_of,
)
from mcp_trio._system import try_lock
from mcp_trio.errors import RecordingError
from mcp_trio.limits import MIB

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_LOCK: Final = ".upload.lock"
# The end of the name of a file that is not complete yet.
_PART: Final = ".part"

_FILE_URL: Final = "file:"
_LEVEL: Final = 9
_READ_BYTES: Final = 256 * 1024

# Smaller files are uploaded in one request, larger ones in parts of this size.
_PART_BYTES: Final = 5 * MIB
_PARTS_AT_ONCE: Final = 2

# A single failure may be due to its file. After so many in a row the store counts as unavailable,
# and the pass ends.
_FAILURES_MAX: Final = 3

# The list is written anew when it has many more names than the folder.
_UNUSED_NAMES_MAX: Final = 1000

# The next pass tries again, so one request does not have to be repeated for long.
_RETRIES: Final = 2
_RETRY_SECONDS: Final = 5
_REQUEST_SECONDS: Final = 30
_CONNECT_SECONDS: Final = 5


class _EndingError(Exception):
    """The server ends while a file is uploaded."""


def open_store(url: str) -> "ObjectStore":
    """Return the store at a URL such as `s3://bucket/prefix`, without a request to it.

    Raises:
        RecordingError: The library is not installed, or its settings in the environment, or the
            URL, are invalid.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        raise RecordingError(
            f"cannot use {url}: the package obstore is missing: pip install 'mcp_trio[upload]'"
        ) from error
    try:
        folder = _local_folder(url)
        if folder is not None:
            if not folder.is_dir():
                raise RecordingError(f"cannot use {url}: there is no such folder; make it")
            return from_url(url)
        return from_url(
            url,
            retry_config={
                "max_retries": _RETRIES,
                "retry_timeout": timedelta(seconds=_RETRY_SECONDS),
            },
            client_options={
                "timeout": timedelta(seconds=_REQUEST_SECONDS),
                "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
                # obstore does not read this variable when it is given options.
                "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() in {"1", "true"},
            },
        )
    except (BaseError, ValueError) as error:
        raise RecordingError(f"cannot use {url}: {_first_line(error)}") from error


def _local_folder(url: str) -> Path | None:
    """Return the folder that a `file://` URL names; None for another store."""
    return Path(url2pathname(urlsplit(url).path)) if url.startswith(_FILE_URL) else None


def uploaded_recordings(folder: Path, url: str, *, compress: bool) -> set[str]:
    """Return the recordings whose files are all in the store, by the names of their first files."""
    uploaded = _UploadedList(folder, url)

    def is_uploaded(path: Path) -> bool:
        try:
            changed = path.stat().st_mtime_ns  # compression preserves it
        except OSError:
            return False
        return uploaded.has(_stored_name(path, compress=compress), changed)

    return {
        first
        for first, recording in recordings_of(folder, _names(folder)).items()
        if all(is_uploaded(folder / name) for name in recording.files)
    }


class _UploadedList:
    """The list of the files that were uploaded from a folder to a store, which is kept in a file.

    It has the time of the last change of each file, in nanoseconds, by its name in the store. Each
    store has a list of its own.
    """

    def __init__(self, folder: Path, url: str) -> None:
        digest = hashlib.sha256(url.encode()).hexdigest()
        self._path = folder / f".uploaded-{digest[:16]}.jsonl"
        self._changed: dict[str, int] = {}
        with suppress(FileNotFoundError):
            for line in self._path.read_bytes().splitlines():
                # A line may be incomplete, after a crash: the file is uploaded once more.
                with suppress(msgspec.DecodeError, UnicodeDecodeError):
                    name, changed = msgspec.json.decode(line, type=tuple[str, int])
                    self._changed[name] = changed

    def __len__(self) -> int:
        """Return the number of files in the list."""
        return len(self._changed)

    def has(self, name: str, changed: int) -> bool:
        """Return whether a file was uploaded after its last change."""
        return self._changed.get(name) == changed

    def add(self, name: str, changed: int) -> None:
        """Add a file that was uploaded."""
        self._changed[name] = changed
        descriptor = os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        try:
            os.write(descriptor, self._line(name))
        finally:
            os.close(descriptor)

    def keep_only(self, names: Collection[str]) -> None:
        """Remove all files but these from the list."""
        self._changed = {name: self._changed[name] for name in self._changed if name in names}
        write_private(self._path, map(self._line, self._changed))

    def _line(self, name: str) -> bytes:
        return msgspec.json.encode((name, self._changed[name])) + b"\n"


@attrs.define(eq=False, repr=False)
class FolderUpload:
    """The upload of a folder's recordings to a store; its calls block, and belong in a thread.

    Attributes:
        folder: The folder of the recordings; inner folders are left alone.
        url: The URL of the store.
        compress: Whether a file that is neither compressed nor encrypted is compressed on its way.
        with_running: Whether the complete segments of a recording are uploaded while it goes on.
        only: The recordings to upload, by the names of their first files; None for all.
        is_ending: Returns whether to stop before the next file, or within a large one.
        on_uploaded: Called with the number of bytes of each file after it was uploaded.

    Raises:
        RecordingError: As `open_store`.
    """

    folder: Path
    url: str
    compress: bool = attrs.field(kw_only=True)
    with_running: bool = attrs.field(kw_only=True)
    only: Collection[str] | None = attrs.field(default=None, kw_only=True)
    is_ending: Callable[[], bool] = attrs.field(default=lambda: False, kw_only=True)
    on_uploaded: Callable[[int], object] = attrs.field(default=lambda _: None, kw_only=True)
    _store: "ObjectStore" = attrs.field(init=False)
    _local: Path | None = attrs.field(default=None, init=False)  # the folder of a `file://` URL
    _settled: set[str] = attrs.field(factory=set[str], init=False)

    def __attrs_post_init__(self) -> None:
        self._store = open_store(self.url)
        self._local = _local_folder(self.url)

    def run(self) -> list[str] | None:
        """Upload the complete files that are not in the store; return what failed.

        None: another process uploads from this folder now, and nothing was done. A file that fails
        does not keep the others from being uploaded, unless the store seems to be unavailable.

        Raises:
            OSError: The folder, or the list of uploaded files, cannot be used.
        """
        with locked(self.folder / _LOCK) as is_locked:
            return self._upload() if is_locked else None

    def _upload(self) -> list[str]:
        names = _names(self.folder)
        self._settled &= names
        uploaded = _UploadedList(self.folder, self.url)
        if len(uploaded) > len(names) + _UNUSED_NAMES_MAX:
            uploaded.keep_only(
                {_stored_name(self.folder / name, compress=self.compress) for name in names}
            )
        problems: list[str] = []
        failures = 0
        recordings = recordings_of(self.folder, names, self._settled)
        if self.only is not None:
            missing = [self.folder / name for name in sorted({*self.only} - recordings.keys())]
            problems += [f"cannot upload {path}: no such recording" for path in missing]
            recordings = {first: recordings[first] for first in self.only if first in recordings}
        for first, recording in sorted(recordings.items()):
            *files, last = (self.folder / name for name in recording.files)
            number = segment_of(last.name)[1] + 1
            # Another segment may have begun since the names were read, before this one was closed.
            is_running = (
                is_being_written(os.fspath(last))
                or Path(segment_name(os.fspath(self.folder / first), number)).exists()
            )
            if is_running and not self.with_running:
                if self.only is not None:
                    problems.append(_still_recorded(self.folder / first))
                continue
            is_settled = not is_running
            for path in files if is_running else (*files, last):
                if self.is_ending():
                    return problems
                # The last bytes of a segment are written after the next one has begun.
                if is_running and is_being_written(os.fspath(path)):
                    continue
                try:
                    with _opened(path) as file:
                        found = Path(file.name)
                        name = _stored_name(found, compress=self.compress)
                        changed = os.fstat(file.fileno()).st_mtime_ns
                        if uploaded.has(name, changed):
                            continue
                        self._put(file, name, compressed=name != found.name)
                    uploaded.add(name, changed)
                except _EndingError:
                    return problems
                except Exception as error:  # the disk, or the store, may fail in any way
                    is_settled = False
                    if not path.exists():  # it was removed meanwhile
                        continue
                    problems.append(f"cannot upload {path} to {self.url}: {_first_line(error)}")
                    failures += 1
                    if failures >= _FAILURES_MAX:
                        return problems
                else:
                    failures = 0
            if is_settled:
                self._settled.add(first)
        return problems

    def _put(self, file: IO[bytes], name: str, *, compressed: bool) -> None:
        import obstore

        size = os.fstat(file.fileno()).st_size
        sent = 0

        def chunks() -> Iterator[bytes]:
            nonlocal sent
            for chunk in compressed_chunks(file, size) if compressed else _read(file):
                if self.is_ending():
                    raise _EndingError
                sent += len(chunk)
                yield chunk

        if self._local is not None:  # obstore would create the file with the mode of the umask.
            write_private(self._local / name, chunks())
            self.on_uploaded(sent)
            return
        data = chunks() if size > _PART_BYTES else b"".join(chunks())
        obstore.put(self._store, name, data, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)
        self.on_uploaded(sent)


def upload_recordings(
    recordings: Mapping[Path, Collection[str] | None], url: str
) -> tuple[int, list[str]]:
    """Upload complete recordings, compressed.

    Args:
        recordings: By folder the names of the recordings' first files; None for all in the folder.
        url: The URL of the store.

    Returns:
        The number of files that were uploaded, and what failed.

    Raises:
        OSError, RecordingError: As `FolderUpload`.
    """
    sizes: list[int] = []
    problems: list[str] = []
    for folder, only in recordings.items():
        upload = FolderUpload(
            folder, url, compress=True, with_running=False, only=only, on_uploaded=sizes.append
        )
        failed = upload.run()
        if failed is None:
            failed = [
                f"{folder} is not copied: another process copies from it now; try again later"
            ]
        problems += failed
    return len(sizes), problems


def copy_to_folder(recordings: Iterable[Path], folder: Path) -> tuple[int, int, list[str]]:
    """Copy complete recordings, named by their first files, into a folder.

    It is created if need be, for its owner only, and so are the copies. A file that the folder has,
    with the same size, is not copied again.

    Returns:
        The number of files that were copied, that of files which were there, and what failed.

    Raises:
        RecordingError: The folder cannot be created.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RecordingError(f"cannot copy to {folder}: {error.strerror}") from error
    copied = present = 0
    problems: list[str] = []
    for first in recordings:
        try:
            files = [first, *map(Path, later_names(os.fspath(first)))]
            if is_being_written(os.fspath(files[-1])):
                problems.append(_still_recorded(first))
                continue
            # The first file last: readers look for segments that are named like it.
            for file in reversed(files):
                if _has_copy(folder / file.name, file.stat().st_size):
                    present += 1
                    continue
                with file.open("rb") as opened:
                    write_private(folder / file.name, _read(opened))
                copied += 1
        except OSError as error:
            problems.append(f"cannot copy {first} to {folder}: {error.strerror}")
        except RecordingError as error:
            problems.append(f"cannot copy {first}: {error}")
    return copied, present, problems


def _still_recorded(path: Path) -> str:
    return f"{path} is not copied: a session is still being recorded to it"


def download(url: str, folder: Path, pattern: str = "*") -> tuple[int, int]:
    """Copy the recordings of a store into a folder.

    A file that the folder has, with the same size, is not copied again. A copy is complete when it
    gets its name, and only its owner can read it.

    Args:
        url: The URL of the store.
        folder: The folder; it is created if need be, for its owner only.
        pattern: The names to copy, as in a shell; by default all.

    Returns:
        The number of files that were copied, and that of files which were there.

    Raises:
        RecordingError: As `open_store`; or the store cannot be read, or a file not be written, or
            the folder has another file of the name.
    """
    store = open_store(url)
    import obstore

    copied = present = 0
    name = ""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # An overload of it returns a type of the optional package arro3.
        found = obstore.list_with_delimiter(store)["objects"]  # pyright: ignore[reportUnknownMemberType]
        sizes = {each["path"]: each["size"] for each in found}
        # The first file of a recording last: readers look for segments that are named like it.
        for name in sorted(sizes, key=segment_of, reverse=True):
            is_recording = name.endswith((SUFFIX, SUFFIX + COMPRESSED_SUFFIX))
            # The name comes from the store, and must not lead out of the folder.
            if not is_recording or Path(name).name != name:
                continue
            if not fnmatchcase(segment_of(name)[0], pattern):
                continue
            if _has_copy(folder / name, sizes[name]):
                present += 1
                continue
            write_private(folder / name, map(bytes, obstore.get(store, name)))
            copied += 1
    except Exception as error:  # obstore has an exception of its own for each kind of failure
        raise RecordingError(
            f"cannot copy {name or 'recordings'} from {url}: {_first_line(error)}"
        ) from error
    return copied, present


def _has_copy(target: Path, size: int) -> bool:
    """Return whether a folder has a copy of a file of this size already.

    Raises:
        RecordingError: The folder has another file of the name.
    """
    if not target.exists():
        return False
    if target.stat().st_size != size:
        raise RecordingError(f"{target} is another file of the same name; copy to another folder")
    return True


@contextmanager
def locked(path: Path) -> Generator[bool]:
    """Hold the lock of a file for the block; yield False if another process holds it."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        yield try_lock(descriptor)
    finally:
        os.close(descriptor)


def write_private(
    target: Path, chunks: Iterable[bytes], *, times_ns: tuple[int, int] | None = None
) -> None:
    """Write a file that only its owner can read; it is complete, and synced, when it gets its name.

    `times_ns` are its times of the last access and change, in nanoseconds; by default now.
    """
    part = target.with_name(target.name + _PART)
    try:
        descriptor = os.open(part, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(chunks)
            # Another file may be removed for this one, which a loss of power must not take, too.
            file.flush()
            os.fsync(descriptor)
        if times_ns is not None:
            os.utime(part, ns=times_ns)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _names(folder: Path) -> set[str]:
    return {name for name in names_in_folder(folder) if os.sep not in name}


def _stored_name(path: Path, *, compress: bool) -> str:
    """Return the name of a file in the store, where it may be compressed."""
    if not compress or path.name.endswith(COMPRESSED_SUFFIX) or is_encrypted(path):
        return path.name
    return path.name + COMPRESSED_SUFFIX


def _opened(path: Path) -> IO[bytes]:
    """Open a file; if the background task has just compressed it, open the compressed one."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        return path.with_name(path.name + COMPRESSED_SUFFIX).open("rb")


def _read(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_READ_BYTES):
        yield chunk


def compressed_chunks(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Compress a file of `size` bytes, and yield its chunks."""
    import zstandard

    compressor = zstandard.ZstdCompressor(level=_LEVEL)
    return compressor.read_to_iter(file, size=size, read_size=_READ_BYTES)


def _first_line(error: Exception) -> str:
    """Return the first line of an error of obstore; the others show its Rust objects."""
    return (str(error) or type(error).__name__).splitlines()[0]
