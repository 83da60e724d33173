"""The `record=` option: its values, and how the recording that it names is opened.

The option is a path, `RecordOptions`, or a `SharedRecording`. `recorder_of_session` returns the
recorder for a session, which `open_recorder` makes with its file.
"""

import itertools
import math
import os
import platform
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Required,
    Self,
    TypeAlias,
    TypedDict,
    Unpack,
)

import attrs
import trio

from mcp_trio._journal.records import OpenBody, Record
from mcp_trio._recorder.clock import clock_of_run
from mcp_trio._recorder.encryption import EncryptedSink, recording_keys
from mcp_trio._recorder.files import (
    COMPRESSED_SUFFIX,
    EXISTS,
    SUFFIX,
    CompressedSink,
    FileSink,
    Segments,
    Sink,
    is_free_for_segment,
    later_names,
    segment_name,
)
from mcp_trio._recorder.writer import Recorder
from mcp_trio._system import NO_FOLLOW
from mcp_trio._version import __version__
from mcp_trio.errors import RecordingError
from mcp_trio.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from mcp_trio._journal.redaction import Redaction, Redactor


def check_positive(_: object, attribute: "attrs.Attribute[Any]", value: float | None) -> None:
    """Check, for attrs, that a value is a finite number above 0, or None."""
    if value is not None and not 0 < value < math.inf:
        raise ValueError(f"{attribute.name} is {value}: it has to be a number above 0, or None")


@attrs.frozen
class RecordOptions:
    """Options for recording a session; a bare path in their place stands for the defaults.

    Attributes:
        path: A new file, or a folder in which each session gets a file of its own. A file whose
            name ends in `.zst` is compressed.
        encrypt: Whether files are encrypted, with the first key that is found in the environment:
            in `MCP_TRIO_RECORDING_KEYS`, or by `MCP_TRIO_RECORDING_KEY_COMMAND`. Reading needs the
            same variables.
        compress: Whether files in a folder are compressed. For a single file the name decides.
        redaction: The secrets to replace before anything is written.
        segment_bytes_max: The size, in bytes, from which on the recording goes on in another file:
            `trip.2.mcprec.jsonl` after `trip.mcprec.jsonl`. Reading the first file reads them all.
            Stateless requests over HTTP start another recording instead, which replays alone, as
            soon as none of them is open and the file is nearly full.
        segment_seconds_max: The age of a file, in seconds, from which on the next write goes to
            another file.
        sync_seconds: The seconds between two syncs of the file to the disk, by a thread, so that it
            survives a power cut; None leaves that to the system. A crash of the process alone loses
            nothing in either case.
        strict: Whether a handler of a server gets an error for an untracked call, which a replay
            cannot repeat.
        overwrite: Whether a file that exists, and later segments of its name, may be replaced.
            Without it, a session that would replace one gets a `RecordingError` when it begins.
        observer: Called when a recording begins; returns a function that gets each of its records
            from the first message on, before they are written. That function runs in tasks of
            sessions, and must neither wait nor raise.

    Raises:
        ValueError: A number is not above 0.
    """

    # Whether this is a `RecordPolicy`. So a server without a policy need not import that class.
    is_policy: ClassVar[bool] = False

    path: str | os.PathLike[str]
    compress: bool = attrs.field(default=False, kw_only=True)
    encrypt: bool = attrs.field(default=False, kw_only=True)
    redaction: "Redaction | None" = attrs.field(default=None, kw_only=True)
    segment_bytes_max: int | None = attrs.field(
        default=None, kw_only=True, validator=check_positive
    )
    segment_seconds_max: float | None = attrs.field(
        default=None, kw_only=True, validator=check_positive
    )
    sync_seconds: float | None = attrs.field(default=None, kw_only=True, validator=check_positive)
    strict: bool = attrs.field(default=False, kw_only=True)
    overwrite: bool = attrs.field(default=False, kw_only=True)
    observer: Callable[[], Callable[[Record], object]] | None = attrs.field(
        default=None, kw_only=True
    )


class SharedRecording:
    """A recording of several sessions in one file, in the order in which their events happened.

    Put `with SharedRecording(path) as shared:` around the sessions, and give each `record=shared`.
    A replay then also repeats how handlers of different sessions use memory that they share. The
    first session creates the file; leaving the block completes it. A session that is still open
    then is cut there, and so is the recording.

    All sessions have the same Trio run, role and name. Any other session, and one that begins after
    the block, gets a `RecordingError`.

    Raises:
        RecordingError: The file exists and is not empty, and `RecordOptions.overwrite` is not set.
    """

    # Whether there is one session, and its lifespan: both have channel 0, as a single session has.
    _is_of_sole_session: ClassVar[bool] = False

    def __init__(self, record: str | os.PathLike[str] | RecordOptions) -> None:
        check_record_target(record)
        self.options: RecordOptions = options_of(record)
        self._recorder: Recorder | None = None
        self._run_role_and_name: tuple[object, ...] | None = None
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
        """Complete the file; idempotent."""
        self._is_closed = True
        if self._recorder is not None:
            counts = {} if self._is_of_sole_session else {"sessions": self._recorder.sessions}
            self._recorder.close(counts)

    def begin_session(
        self, opening: "Opening", *, lifespan: int | None = None
    ) -> tuple[Recorder, int]:
        """Return the recorder, which is opened if this is the first session, and a new channel.

        `lifespan` is the channel of the session's lifespan, if that is recorded.

        Raises:
            RecordingError: The recording is closed, belongs to another Trio run, role or name, or
                its file cannot be created.
        """
        recorder = self._get_recorder(opening)
        channel = recorder.begin_session(
            opening["transport"], lifespan=lifespan, is_sole=self._is_of_sole_session
        )
        # The lifespan may have registered tools since the file was opened.
        recorder.add_schemas(opening.get("schemas", dict))
        return recorder, channel

    def begin_lifespan(self, opening: "Opening") -> tuple[Recorder, int]:
        """Return the recorder, and a channel for a lifespan.

        Raises:
            RecordingError, ValueError: As for `recorder_of_session`.
        """
        recorder = self._get_recorder(opening)
        return recorder, recorder.begin_lifespan()

    def _get_recorder(self, opening: "Opening") -> Recorder:
        run_role_and_name = (trio.lowlevel.current_trio_token(), opening["role"], opening["name"])
        if self._is_closed:
            raise RecordingError(
                "the shared recording is closed: begin sessions inside its `with` block"
            )
        if self._recorder is None:
            self._recorder = self._open_recorder(opening)
            self._run_role_and_name = run_role_and_name
        if run_role_and_name != self._run_role_and_name:
            raise RecordingError(
                "all sessions of a shared recording need the same Trio run, role and name"
            )
        return self._recorder

    def _open_recorder(self, opening: "Opening") -> Recorder:
        return open_recorder(self.options, **opening)


class SoleSessionRecording(SharedRecording):
    """A recording of one session and of its lifespan, which begins before and ends after it."""

    _is_of_sole_session = True


RecordTarget: TypeAlias = str | os.PathLike[str] | RecordOptions | SharedRecording
"""The file of a recording: a path, a path with options, or a recording shared with sessions."""


def options_of(record: RecordTarget) -> RecordOptions:
    """Return the options in `record`; for a bare path, the defaults."""
    if isinstance(record, SharedRecording):
        return record.options
    return record if isinstance(record, RecordOptions) else RecordOptions(record)


def check_record_target(record: RecordTarget | None) -> None:
    """Check that a session can be recorded to `record`, as far as that is known beforehand.

    `open_recorder` checks it again, when it creates the file. This function reports the error
    earlier: before a process is started, or a connection made.

    Raises:
        RecordingError: The file is not empty, and `RecordOptions.overwrite` is not set; or the
            path looks like a folder, and there is none; or there is no key for the encryption.
    """
    if record is None or isinstance(record, SharedRecording):
        return
    options = options_of(record)
    path = Path(options.path)
    if not path.suffix and not path.exists() and path.parent.is_dir():
        raise RecordingError(
            f"cannot record to {path}: there is no such folder; make it, or name a file such as"
            f" {path}.mcprec.jsonl"
        )
    if not options.overwrite and path.is_file() and path.stat().st_size:
        raise RecordingError(f"cannot record to {path}: {EXISTS}")
    if options.encrypt:
        recording_keys()


def holds_many_sessions(record: RecordTarget | None) -> bool:
    """Return whether a second session can be recorded without replacing the first."""
    if record is None or isinstance(record, SharedRecording):
        return True
    text = os.fspath(options_of(record).path)
    return text.endswith("/") or os.path.isdir(text)  # noqa: PTH112  the path is text already


class SuccessiveSessions:
    """The recording of sessions that follow one another when a client or a server reconnects.

    If `may_reconnect`, and `record` names a single file, the file becomes a shared recording in
    which each session has a channel.

    Attributes:
        record: The target to record each session to.

    Raises:
        RecordingError: The file exists and is not empty, and `RecordOptions.overwrite` is not set.
    """

    def __init__(self, record: RecordTarget | None, *, may_reconnect: bool = True) -> None:
        check_record_target(record)
        self.record = record
        self._shared: SharedRecording | None = None
        if record is not None and may_reconnect and not holds_many_sessions(record):
            self.record = self._shared = SharedRecording(options_of(record))

    def end(self) -> None:
        """Complete the shared file, if there is one; a session that is still open is cut."""
        if self._shared is not None:
            self._shared.close()


# Opening ------------------------------------------------------------------------------------------


_ID_BYTES: Final = 8

# JavaScript and jq read JSON numbers as floats, which hold integers of 53 bits exactly.
_SEED_BITS: Final = 53

_WRITER: Final = f"mcp_trio/{__version__} Python/{platform.python_version()}"
_session_numbers = itertools.count(1)


class Opening(TypedDict, total=False):
    """The arguments of `open_recorder`."""

    role: Required[str]
    transport: Required[str]
    name: Required[str]
    version: Required[str]
    listed: Mapping[str, Sequence[str]]
    earlier_sessions: int
    lifespan: bool
    schemas: Callable[[], Mapping[str, Any]]
    limits: Limits


def recorder_of_session(
    record: RecordTarget, *, lifespan_channel: int | None = None, **opening: Unpack[Opening]
) -> tuple[Recorder, int]:
    """Return the recorder for a session that begins now, and the session's channel in it.

    In a shared recording, the arguments of `open_recorder` count for the first session or lifespan;
    `lifespan_channel` is the channel of the session's lifespan, if that is recorded.

    Raises:
        RecordingError: The file cannot be created, or the shared recording rejects this session.
        ValueError: The redaction options are invalid.
    """
    if isinstance(record, SharedRecording):
        return record.begin_session(opening, lifespan=lifespan_channel)
    return open_recorder(options_of(record), **opening), 0


def utc_now() -> datetime:
    """Return the time of day."""
    return datetime.now(UTC)


def open_recorder(
    record: str | os.PathLike[str] | RecordOptions,
    *,
    role: str,
    transport: str,
    name: str,
    version: str,
    listed: Mapping[str, Sequence[str]] = MappingProxyType({}),
    earlier_sessions: int = 0,
    lifespan: bool = False,
    schemas: Callable[[], Mapping[str, Any]] = dict,
    limits: Limits = DEFAULT_LIMITS,
    make: Callable[..., Recorder] | None = None,
    now: Callable[[], datetime] = utc_now,
) -> Recorder:
    """Create the file of a recording, write its `open` record and return the recorder.

    A path that is a folder, or ends with a slash, gets a new file for this session, named after
    `name`, the time and the process. Only the file's owner can read it. Times count from now, on
    the clock of the Trio run. `schemas` returns the input schemas of the tools by tool name, in
    which passwords may be declared; it is called only for redaction.

    `make` returns a recorder of another class than `Recorder`, which creates the file later, so
    that no error of the file is raised here. It is called with the path of the file, a function
    that creates the file and returns its sink, and the options of a `Recorder`. `now` returns the
    time of day for the `open` record and the name of the file.

    Raises:
        RecordingError: The file cannot be created, or it or a later segment would overwrite a file
            without `RecordOptions.overwrite`.
        ValueError: The redaction options are invalid; no file was created.
    """
    options = options_of(record)
    started = now()
    seed = secrets.randbits(_SEED_BITS)
    clock_kind, clock = clock_of_run()
    begin_ns = clock.ns
    # Invalid redaction options raise before the file is created.
    redactor = _redactor(options, schemas, limits)
    if make is None:
        check_record_target(record)
    path = _file_path(options, name, started)
    open_sink = partial(_open_sink, path, options, limits)
    if make is None:
        make_recorder: Callable[..., Recorder] = partial(Recorder, open_sink())
    else:
        make_recorder = partial(make, path, open_sink)
    recorder = make_recorder(
        clock=clock,
        begin_ns=begin_ns,
        limits=limits,
        seed=seed,
        redactor=redactor,
        observe=None if options.observer is None else options.observer(),
    )
    recorder.path = path
    body = OpenBody(
        transport=transport,
        role=role,
        name=name,
        version=version,
        listed={kind: [*lines] for kind, lines in listed.items()},
        earlier_sessions=earlier_sessions,
        seed=seed,
        started=started.isoformat(timespec="microseconds"),
        lifespan=lifespan,
        session=secrets.token_hex(_ID_BYTES),
        writer=_WRITER,
        clock=clock_kind,
        clock_ns=begin_ns,
        strict=options.strict,
    )
    recorder.open(body)
    return recorder


def _redactor(
    options: RecordOptions, schemas: Callable[[], Mapping[str, Any]], limits: Limits
) -> "Redactor | None":
    if options.redaction is None:
        return None
    from mcp_trio._journal.redaction import KEY_BYTES, Redactor

    key = options.redaction.key or secrets.token_bytes(KEY_BYTES)
    return Redactor(options.redaction, key=key, schemas=schemas(), limits=limits)


def _open_sink(target: Path, options: RecordOptions, limits: Limits) -> Sink:
    """Create the file, or the first segment, of a recording."""
    path = os.fspath(target)
    is_named_by_user = target == Path(options.path)
    keys = recording_keys() if options.encrypt else None

    def open_file(name: str) -> FileSink | EncryptedSink | CompressedSink:
        flags = NO_FOLLOW
        if name == path:
            # In a folder, another process may have created the file since its name was chosen.
            flags = 0 if is_named_by_user else os.O_EXCL
        file = FileSink(
            name,
            overwrite=options.overwrite,
            sync_seconds=options.sync_seconds,
            limits=limits,
            flags=flags,
        )
        sink = file if keys is None else EncryptedSink(file, keys)
        return CompressedSink(sink) if name.endswith(COMPRESSED_SUFFIX) else sink

    try:
        if options.segment_bytes_max is None and options.segment_seconds_max is None:
            return open_file(path)
        if is_named_by_user:
            _check_later_segments(path, overwrite=options.overwrite)
        return Segments(
            path,
            open_file=open_file,
            bytes_max=options.segment_bytes_max,
            seconds_max=options.segment_seconds_max,
        )
    except OSError as error:
        raise RecordingError(f"cannot record to {target}: {error.strerror}") from error


def _check_later_segments(target: str, *, overwrite: bool) -> None:
    """Check that no later segment will replace a file, unless it is a segment and `overwrite`."""
    if Path(target).exists() and not Path(target).is_file():
        raise RecordingError(
            f"cannot record to {target} in segments: it is not a regular file; leave out"
            " segment_bytes_max and segment_seconds_max"
        )
    for name in later_names(target):
        if name.endswith(COMPRESSED_SUFFIX) != target.endswith(COMPRESSED_SUFFIX):
            continue  # a new segment has another name
        if not overwrite and Path(name).stat().st_size:
            raise RecordingError(
                f"cannot record to {target}: a later segment would replace {name}; record to a"
                " folder, or overwrite: --overwrite, or RecordOptions(path, overwrite=True)"
            )
        if not is_free_for_segment(name):
            raise RecordingError(
                f"cannot record to {target}: a later segment would replace {name},"
                " which is not a segment"
            )


def _file_path(options: RecordOptions, name: str, started: datetime) -> Path:
    """Return the path of the file: that of the options, or an unused one in their folder."""
    text = os.fspath(options.path)
    if not (text.endswith("/") or Path(text).is_dir()):
        if options.compress and not text.endswith(COMPRESSED_SUFFIX):
            raise RecordingError(
                f"cannot record to {text}: compress=True is for folders;"
                f" a single file is compressed if its name ends in {COMPRESSED_SUFFIX}"
            )
        return Path(text)
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
    stamp = started.strftime("%Y%m%dT%H%M%SZ")
    suffix = SUFFIX + COMPRESSED_SUFFIX * options.compress
    for number in _session_numbers:
        # A process of another container may have the same number, and record to the same folder.
        path = Path(text) / f"{plain}-{stamp}-{os.getpid()}-{number}{suffix}"
        second = Path(segment_name(os.fspath(path), 2))
        if not (os.path.lexists(path) or os.path.lexists(second)):
            return path
    raise AssertionError("the counter of numbers never ends")
