"""The maintenance of a policy's folder: its catalogue, compression, and retention of recordings.

A background task of the server or proxy tidies the folder from time to time, and puts each complete
recording into the catalogue soon after its end; another one uploads to a store. All of it happens
in threads. Several processes may serve into one folder: a lock file lets one of them tidy at a
time, and each catalogues its own recordings.
"""

import math
import os
import shutil
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import attrs
import trio

from mcp_trio._catalogue.catalogue import (
    Catalogue,
    ReadJob,
    files_by_first,
    is_being_written,
    job_of,
    names_in_folder,
)
from mcp_trio._catalogue.uploads import (
    FolderUpload,
    compressed_chunks,
    locked,
    uploaded_recordings,
    write_private,
)
from mcp_trio._recorder.encryption import is_encrypted
from mcp_trio._recorder.files import COMPRESSED_SUFFIX, other_form
from mcp_trio._recorder.policy import PolicyRun, RecordPolicy

_SECONDS_PER_DAY: Final = 24 * 60 * 60
_LOCK: Final = ".retention.lock"
# The time in which complete recordings are collected, to be put into the catalogue together.
_COLLECT_SECONDS: Final = 1.0


@attrs.define(eq=False, repr=False)
class FolderMaintenance:
    """The maintenance of a policy's folder while sessions run; all file access is in a thread.

    Attributes:
        policy_run: The recordings of the policy.
        is_ending: Whether the server or proxy ends, so that long work stops at the next file.

    Raises:
        RecordingError: The store of the policy's `upload` cannot be used.
    """

    policy_run: PolicyRun
    _finished: SimpleQueue[Sequence[str]] = attrs.field(
        factory=SimpleQueue[Sequence[str]], init=False
    )
    _finished_event: trio.Event = attrs.field(factory=trio.Event, init=False)
    is_ending: bool = attrs.field(default=False, init=False)
    _upload: FolderUpload | None = attrs.field(default=None, init=False)
    _has_indexed: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.policy_run.on_finished = self.add_finished
        policy = self.policy_run.policy
        if policy.upload:
            self._upload = FolderUpload(
                self.folder,
                policy.upload,
                compress=policy.compress,
                # With a lower rate, a running recording may be one that is forgotten at its end.
                with_running=policy.rate >= 1,
                is_ending=lambda: self.is_ending,
                on_uploaded=policy.status.count_upload,
            )

    @property
    def folder(self) -> Path:
        """The folder of the recordings."""
        return Path(self.policy_run.policy.path)

    def add_finished(self, files: Sequence[str]) -> None:
        """Let a complete recording be catalogued soon; `files` are the paths of its files."""
        self._finished.put(files)
        self._finished_event.set()

    async def run(self) -> None:
        """Tidy and upload now, and every `check_seconds`; catalogue complete recordings at once.

        Errors are logged: the recordings and their sessions go on without the catalogue, and
        without the store. When this is cancelled, an upload that waits for the store is left
        behind in its thread, and ends as soon as it does not wait any more.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tidy_repeatedly)
            if self._upload is not None:
                while True:
                    await trio.to_thread.run_sync(self.upload, abandon_on_cancel=True)
                    await trio.sleep(self.policy_run.policy.check_seconds)

    async def _tidy_repeatedly(self) -> None:
        policy = self.policy_run.policy
        next_check = -math.inf
        while True:
            if trio.current_time() >= next_check:
                await trio.to_thread.run_sync(self.try_to, self.tidy)
                next_check = trio.current_time() + policy.check_seconds
            else:
                await trio.to_thread.run_sync(self.try_to, self.index_finished)
            with trio.move_on_at(next_check):
                await self._finished_event.wait()
                await trio.sleep(_COLLECT_SECONDS)
            self._finished_event = trio.Event()

    async def end(self) -> None:
        """Put the last complete recordings into the catalogue; a part of `tidy` may be left out."""
        self.is_ending = True
        if not self._finished.empty():
            await trio.to_thread.run_sync(self.try_to, self.index_finished)

    def try_to(self, work: Callable[[], object]) -> None:
        """Call a function, and report an error of the disk or of the catalogue."""
        try:
            work()
        except Exception as error:  # the disk and the database may fail in any way
            self.policy_run.policy.status.report(f"cannot tidy {self.folder}: {error}")

    # These functions run in a thread.

    def index_finished(self) -> None:
        """Put the recordings that are complete into the catalogue."""
        jobs: list[ReadJob] = []
        arguments = self.policy_run.policy.index_arguments
        while not self._finished.empty():
            names = [os.path.relpath(path, self.folder) for path in self._finished.get()]
            # A segment may have been compressed after the end of the recording.
            names = [name if (self.folder / name).exists() else other_form(name) for name in names]
            job = job_of(self.folder, names, arguments=arguments)
            if job is not None:
                jobs.append(job)
        if jobs:
            with Catalogue(self.folder) as catalogue:
                catalogue.add(jobs)

    def tidy(self) -> None:
        """Bring the catalogue up to date, compress complete recordings, and remove old ones.

        If another process does that now, only the catalogue gets this process's recordings.
        """
        self.index_finished()
        with locked(self.folder / _LOCK) as is_locked:
            if not is_locked:
                return
            with Catalogue(self.folder) as catalogue:
                # On a full disk the catalogue cannot be written. Recordings have to be removed
                # then all the same, as the catalogue has them, and before anything is compressed.
                self.try_to(partial(self._index, catalogue))
                self._remove_recordings(catalogue)
                policy = self.policy_run.policy
                if policy.compress:
                    self._compress_recordings(catalogue)
                if policy.compress and (policy.segment_bytes_max or policy.segment_seconds_max):
                    self._compress_segments()

    def _index(self, catalogue: Catalogue) -> None:
        """Bring the catalogue up to date; look at complete recordings again the first time only."""
        arguments = self.policy_run.policy.index_arguments
        catalogue.index(arguments=arguments, only_new=self._has_indexed)
        self._has_indexed = True

    def upload(self) -> None:
        """Upload the files that are complete and not in the store yet; report the first problem."""
        assert self._upload is not None
        try:
            problems = self._upload.run() or []
        except Exception as error:  # the disk may fail in any way
            problems = [f"cannot upload {self.folder}: {error}"]
        self.policy_run.policy.status.report_upload(problems[0] if problems else "")

    def _compress_recordings(self, catalogue: Catalogue) -> None:
        rows = catalogue.in_order_of_removal()
        firsts = [file for file, _, _ in rows if not file.endswith(COMPRESSED_SUFFIX)]
        files = files_by_first(names_in_folder(self.folder)) if firsts else {}
        for first in firsts:
            if self.is_ending:
                return
            names = files.get(first)
            if (
                names is None
                or is_being_written(os.fspath(self.folder / names[-1]))
                or is_encrypted(self.folder / first)
            ):
                continue
            # The first file last, whose name is that of the recording.
            compressed = [_compress(self.folder, name) for name in reversed(names)]
            job = job_of(self.folder, compressed[::-1])
            if job is not None:
                catalogue.rename(first, job)

    def _compress_segments(self) -> None:
        """Compress the complete segments of recordings that go on, but not their first files.

        The name of the first file is that of the recording in the catalogue and in traces.
        """
        for first, (_, *later) in files_by_first(names_in_folder(self.folder)).items():
            if not later or is_encrypted(self.folder / first):
                continue
            for name in later[:-1]:
                if self.is_ending:
                    return
                # The last bytes of a segment are written after the next one has begun.
                if not is_being_written(os.fspath(self.folder / name)):
                    _compress(self.folder, name)

    def _remove_recordings(self, catalogue: Catalogue) -> None:
        """Remove recordings until each limit of the policy is kept, those with errors last.

        If the policy has a store, only recordings in the store are removed; with `remove_uploaded`,
        all of them are.
        """
        policy = self.policy_run.policy
        rows = catalogue.in_order_of_removal()
        oldest = -math.inf
        if policy.keep_days is not None:
            oldest = policy.now().timestamp() - policy.keep_days * _SECONDS_PER_DAY
        count, size = len(rows), catalogue.total_bytes()
        free = shutil.disk_usage(self.folder).free
        files: dict[str, list[str]] | None = None
        removed: list[str] = []
        uploaded: set[str] | None = None
        if policy.upload:
            uploaded = uploaded_recordings(self.folder, policy.upload, compress=policy.compress)
        for file, bytes_, started in rows:
            if self.is_ending:
                break
            if uploaded is not None and file not in uploaded:
                continue
            is_over_limit = (
                (policy.keep_count_max is not None and count > policy.keep_count_max)
                or (policy.keep_bytes_max is not None and size > policy.keep_bytes_max)
                or (policy.free_bytes_min is not None and free < policy.free_bytes_min)
            )
            if not (is_over_limit or started < oldest or policy.remove_uploaded):
                continue
            if files is None:  # once, since listing takes time in a large folder
                files = files_by_first(names_in_folder(self.folder))
            try:
                for name in reversed(files.get(file, ())):
                    (self.folder / name).unlink(missing_ok=True)
            except OSError as error:  # the limit is kept by removing another recording
                policy.status.report(f"cannot remove {self.folder / file}: {error.strerror}")
                continue
            removed.append(file)
            count, size, free = count - 1, size - bytes_, free + bytes_
            policy.status.removed += 1
            policy.status.removed_bytes += bytes_
        self.try_to(partial(catalogue.remove, removed))
        free = shutil.disk_usage(self.folder).free
        is_full = policy.free_bytes_min is not None and free < policy.free_bytes_min
        if is_full:
            policy.status.report(
                f"no session is recorded to {self.folder}: its disk has {free} bytes left, and"
                f" free_bytes_min is {policy.free_bytes_min}"
            )
        elif self.policy_run.is_paused:
            policy.status.problem = ""
        self.policy_run.is_paused = is_full


@asynccontextmanager
async def run_policy(policy: RecordPolicy) -> AsyncGenerator[PolicyRun]:
    """Record sessions by a policy within the block, and maintain its folder in the background.

    Raises:
        RecordingError: The folder, the key or the store of the recordings cannot be used.
    """
    run = PolicyRun(policy)
    run.open_folder()
    maintenance, ended, scope = FolderMaintenance(run), trio.Event(), trio.CancelScope()

    async def maintain() -> None:
        try:
            with scope:
                await maintenance.run()
            await maintenance.end()
        finally:
            ended.set()

    # A nursery would put the errors of the block into a group.
    trio.lowlevel.spawn_system_task(maintain)
    try:
        yield run
    finally:
        maintenance.is_ending = True
        scope.cancel()
        with trio.CancelScope(shield=True):
            await ended.wait()


def _compress(folder: Path, name: str) -> str:
    """Replace a file by a compressed one with the same time of change, unless it is compressed.

    Return the name of the compressed file. After a crash, the folder may have both files.
    """
    if name.endswith(COMPRESSED_SUFFIX):
        return name
    compressed_name = name + COMPRESSED_SUFFIX
    path = folder / name
    found = path.stat()
    with path.open("rb") as source:
        write_private(
            folder / compressed_name,
            compressed_chunks(source, found.st_size),
            times_ns=(found.st_atime_ns, found.st_mtime_ns),
        )
    path.unlink()
    return compressed_name
