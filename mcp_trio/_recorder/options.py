"""Where and how sessions are recorded: what `record=` takes."""

import math
import os
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import attrs
import trio

from mcp_trio._errors import RecordingError
from mcp_trio._recorder.recorder import Recorder

if TYPE_CHECKING:
    from mcp_trio._journal.redaction import Redaction

Path: TypeAlias = str | os.PathLike[str]


def _positive(_: object, attribute: "attrs.Attribute[Any]", value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise ValueError(f"{attribute.name} is {value}: it has to be a number above 0, or None")


@attrs.frozen
class RecordOptions:
    """How a session is recorded; a bare path in its place stands for the defaults.

    Attributes:
        path: A file, or a folder in which each session gets a file of its own. A name that ends in
            `.zst` is written compressed.
        compress: Whether the files in a folder get such names. A file has its name already.
        redaction: What of a message or an effect is replaced before anything is written.
        segment_bytes_max: Behind the write that fills a file so far, the recording goes on in the
            next: `trip.2.mcprec.jsonl` behind `trip.mcprec.jsonl`. What reads the first reads all.
            Modern requests over HTTP, as soon as none of them goes on when the file is nearly full,
            begin another recording instead, which replays alone.
        segment_seconds_max: The same by a file's age, at the first write behind it.
        sync_seconds: How often what was written is made to survive a power cut, by a thread; None
            leaves that to the system. A crash of the process alone loses nothing either way.
        strict: Whether a handler is refused what no replay could repeat; for servers.

    Raises:
        ValueError: A number that is not above 0.
    """

    path: Path
    compress: bool = attrs.field(default=False, kw_only=True)
    redaction: "Redaction | None" = attrs.field(default=None, kw_only=True)
    segment_bytes_max: int | None = attrs.field(default=None, kw_only=True, validator=_positive)
    segment_seconds_max: float | None = attrs.field(default=None, kw_only=True, validator=_positive)
    sync_seconds: float | None = attrs.field(default=None, kw_only=True, validator=_positive)
    strict: bool = attrs.field(default=False, kw_only=True)


class SharedRecording:
    """One file for several sessions, in the order in which everything happened to them.

    `with SharedRecording(path) as shared:` around the sessions, each with `record=shared`. What
    handlers do to memory that the sessions share is then replayed as well. The file is made with
    the first session, and whole when the block is left; a session that still goes on is cut there,
    and so is the recording.

    All sessions belong to one Trio run, and are of one role and name. Another one is refused by a
    `RecordingError`, as is one that begins after the end of the block.
    """

    def __init__(self, record: Path | RecordOptions) -> None:
        self.options: RecordOptions = options_of(record)
        self._recorder: Recorder | None = None
        self._owner: tuple[object, ...] | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Make the file whole; again does nothing."""
        self._is_closed = True
        if self._recorder is not None:
            self._recorder.close({"sessions": self._recorder.sessions})

    def begin_session(
        self, start: Callable[[RecordOptions], Recorder], *, role: str, name: str, transport: str
    ) -> tuple[Recorder, int]:
        """The recorder, which `start` makes for the first session, and this session's channel.

        Raises:
            RecordingError: The recording is over, of another run, role or name, or cannot be made.
        """
        owner = (trio.lowlevel.current_trio_token(), role, name)
        if self._is_closed:
            raise RecordingError("the shared recording is over: begin sessions inside its block")
        if self._recorder is None:
            self._recorder = start(self.options)
            self._owner = owner
        if owner != self._owner:
            raise RecordingError("a shared recording is of one Trio run, one role and one name")
        return self._recorder, self._recorder.begin_session(transport)


RecordTo: TypeAlias = str | os.PathLike[str] | RecordOptions | SharedRecording
"""Where a session is recorded: a path, or a path with options, or a file with other sessions."""


def options_of(record: RecordTo) -> RecordOptions:
    """The options that `record` brings, or those that a bare path stands for."""
    if isinstance(record, SharedRecording):
        return record.options
    return record if isinstance(record, RecordOptions) else RecordOptions(record)


def keeps_each_session(record: RecordTo | None) -> bool:
    """Whether a second session is recorded without replacing the first."""
    if record is None or isinstance(record, SharedRecording):
        return True
    text = os.fspath(options_of(record).path)
    return text.endswith("/") or os.path.isdir(text)  # noqa: PTH112  it is text already
