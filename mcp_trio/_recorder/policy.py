"""Recording as a policy: which sessions are kept, and how long.

The share `rate` of the sessions is recorded to a file from its beginning. Every other session is
*held*: its records stay in memory, and are neither redacted nor encoded, until a reason to keep the
session appears. Then the held records are redacted and written, before the bytes that come next,
and the recording goes on in its file like any other. A session without a reason is forgotten when
it ends.

Memory is bounded. When a session holds more than `held_bytes_max`, or all sessions together hold
more than `held_bytes_total_max`, the session is written to its file without a reason. The file is
removed if the session ends without one.

A session that cannot be recorded, because its file cannot be created or redaction fails, goes on
and is counted in `RecordStatus`. A session never waits or fails because of the policy.
"""

import logging
import math
import os
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias, cast

import attrs
import msgspec
import trio

from mcp_trio._journal.calls import NO_ERROR_KINDS, Call, CallTracker
from mcp_trio._journal.records import (
    KEPT_PREFIX,
    MASKED_PREFIX,
    GapBody,
    OpenBody,
    Record,
    encode_body,
)
from mcp_trio._journal.redaction import (
    Redaction,
    Redactor,
    TooManySecretsError,
    redacted_body,
    redacted_record,
)
from mcp_trio._recorder.clock import NS_PER_SECOND
from mcp_trio._recorder.encryption import recording_keys
from mcp_trio._recorder.files import Segments, Sink, other_form, segment_name
from mcp_trio._recorder.options import (
    Opening,
    RecordOptions,
    SoleSessionRecording,
    check_positive,
    open_recorder,
    utc_now,
)
from mcp_trio._recorder.writer import Recorder, opening_bytes
from mcp_trio.errors import RecordingError
from mcp_trio.limits import MIB

logger = logging.getLogger("mcp_trio")

RATE_REASON: Final = "rate"
ERROR_REASON: Final = "error"
SLOW_REASON: Final = "slow"
KEEP_REASON: Final = "keep"  # a handler has called `ctx.keep`, with a reason of its own

# The errors that are reasons of their own.
_NAMED_ERRORS: Final = frozenset({"timeout", "denied"})
# The outcomes that are no reasons. A rate limit is none: one client could fill the disk with
# sessions in which it has to wait.
_NO_REASONS: Final = NO_ERROR_KINDS | {"limited"}

_PERCENT: Final = 100

# The slowest percent are known after so many calls of a tool.
_CALLS_MIN: Final = 100
_BUCKETS_PER_DOUBLING: Final = 8
_NAMES_MAX: Final = 1000

# The requests of many stateless clients should not share one decision. So under a rate below 1,
# their recording ends after so many bytes or seconds, as soon as no request is open.
_STATELESS_BYTES_MAX: Final = 256 * 1024
_STATELESS_SECONDS_MAX: Final = 10

# The bytes that a held record takes in memory, besides those that `Recorder` counts for it.
_HELD_RECORD_BYTES: Final = 200

SharesByName: TypeAlias = Mapping[str, float] | Collection[str]

_ANY_KEY: Final = b"any key"  # rules are checked with it, and nothing is redacted


def _check_share(_: object, attribute: "attrs.Attribute[Any]", value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{attribute.name} is {value}: it has to be a share, from 0 to 1")


def _shares_by_name(value: SharesByName) -> Mapping[str, float]:
    """Return the shares by name; that of a name in a collection is 1."""
    if isinstance(value, str):
        text = "tools= and principals= take collections of names, not one text"
        raise TypeError(f"{text}: write {[value]!r}")
    shares = dict.fromkeys(value, 1.0)
    if isinstance(value, Mapping):
        shares |= cast("Mapping[str, float]", value)
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise ValueError(f"the share of {name!r} is {share}: it has to be from 0 to 1")
    return shares


# The stores that `obstore` knows and that keep what they are given. A table, so that a wrong URL is
# reported where it is written, and without the library.
_UPLOAD_SCHEMES: Final = ("s3", "gs", "az", "file")


def check_upload_url(url: str) -> None:
    """Raise a `ValueError` unless this may be the URL of a store.

    Its text names the schemes. A URL has no credentials, because it is logged.
    """
    scheme, separator, rest = url.partition("://")
    if scheme not in _UPLOAD_SCHEMES or not separator or not rest:
        names = ", ".join(f"{each}://" for each in _UPLOAD_SCHEMES)
        raise ValueError(
            f"{url!r} is not the URL of a store, such as s3://bucket/prefix: it begins with {names}"
        )
    if "@" in rest or "?" in rest:
        raise ValueError(
            f"the URL of the store at {scheme}:// has credentials or a query: credentials are read"
            " from the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )


def _folder(path: str | os.PathLike[str]) -> str:
    return os.path.join(os.fspath(path), "")  # noqa: PTH118  a Path cannot end in a slash


@attrs.define(eq=False)
class RecordStatus:
    """Counters of a policy, since it was made; they change while sessions run.

    Attributes:
        sessions: Sessions that have begun.
        kept: Sessions that have ended and are kept.
        forgotten: Sessions that have ended without a reason to keep them.
        unrecorded: Sessions that could not be recorded.
        removed: Recordings that the retention has removed.
        removed_bytes: The bytes of these.
        lost_records: Records that a disk which failed could not take; `gap` records mark them.
        reasons: Kept sessions by reason.
        masked: Secrets that were replaced, by the name of the member in which each was found.
        held_bytes: Bytes of records in memory now, by an estimate.
        problem: The last problem of the disk, or of redaction; empty if there was none, and again
            when a recording could be made.
        uploaded: Files that were uploaded.
        uploaded_bytes: The bytes of these.
        upload_problem: The problem of the last attempt to upload; empty if there was none.
    """

    sessions: int = 0
    kept: int = 0
    forgotten: int = 0
    unrecorded: int = 0
    removed: int = 0
    removed_bytes: int = 0
    lost_records: int = 0
    reasons: Counter[str] = attrs.field(factory=Counter[str])
    masked: Counter[str] = attrs.field(factory=Counter[str])
    held_bytes: int = 0
    problem: str = ""
    uploaded: int = 0
    uploaded_bytes: int = 0
    upload_problem: str = ""

    def report(self, problem: str) -> None:
        """Keep a problem, and log it unless it is that of the last time."""
        if problem != self.problem:
            logger.warning(
                "%s; sessions go on, and those that are not recorded are counted", problem
            )
        self.problem = problem

    def count_upload(self, size: int) -> None:
        """Count a file of so many bytes that was uploaded."""
        self.uploaded += 1
        self.uploaded_bytes += size

    def report_upload(self, problem: str) -> None:
        """Keep the problem of an attempt to upload, or ""; log it unless the last had one too."""
        if problem and not self.upload_problem:
            logger.warning("%s; the file stays in its folder, and is tried again", problem)
        elif self.upload_problem and not problem:
            logger.info("recordings are uploaded again")
        self.upload_problem = problem


class Durations:
    """The durations of calls, by tool, in buckets; about 9 % wide each.

    A tool has its own statistics if it is among the first that were called; all others share one,
    because clients choose the names that they call.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, Counter[int]] = {}

    def add(self, name: str, duration_ns: int) -> float:
        """Add a call; return the percentage of the calls that took as long or longer.

        Until a tool has 100 calls (`_CALLS_MIN`), the result is 100.
        """
        if name not in self._by_name and len(self._by_name) >= _NAMES_MAX:
            name = ""
        buckets = self._by_name.setdefault(name, Counter())
        bucket = int(math.log2(duration_ns + 1) * _BUCKETS_PER_DOUBLING)
        buckets[bucket] += 1
        calls = buckets.total()
        if calls < _CALLS_MIN:
            return _PERCENT
        return _PERCENT * sum(n for each, n in buckets.items() if each >= bucket) / calls


@attrs.frozen
class RecordPolicy(RecordOptions):
    """A policy for the recordings of a server: `Server(record=RecordPolicy("recordings"))`.

    With these defaults every session is recorded, with secrets replaced. `rate=0.01` keeps one
    session in a hundred, and every session with an error, a time-out or a rejected access. The
    other options of `RecordOptions` apply as well. It is for servers, and for the proxies `mcp-trio
    record` and `mcp-trio bridge`: a client that is given a policy records each of its sessions. A
    proxy knows only the messages, so it rejects `principals` and `strict`, and takes `headers` only
    between HTTP clients and an HTTP server.

    While a server or proxy runs, a background task keeps a catalogue of the folder, compresses
    complete recordings, and removes recordings, of all processes, while a limit is exceeded: the
    oldest first, and those with errors, or kept for another reason than the rate, after all others.

    Attributes:
        path: The folder of the recordings; it is created if need be, for its owner only.
        rate: The share of sessions, from 0 to 1, that are kept whatever happens in them.
        tools: Names of tools: sessions that call one of them are kept; or by name the share of such
            sessions.
        principals: Names of users, or their shares: the sessions of these users are kept.
        headers: Names of HTTP headers, or by name the value: sessions with such a request are kept.
        errors: Whether sessions are kept in which a call fails, runs out of time, or is rejected by
            an access rule, a schema or the protocol. A call that its client cancels is no error.
        slow_seconds: The seconds from which on a call is slow; sessions with a slow call are kept.
        slow_percent: The percentage of calls that are slow, among those of the same tool.
        held_bytes_max: The bytes of records, by an estimate, that a session may hold in memory
            before it is written to a file.
        held_bytes_total_max: The bytes that all sessions may hold.
        redaction: The secrets to replace before anything is written; None records them.
        compress: Whether a recording is compressed when it is complete, by the background task, and
            the complete segments of one that goes on; an encrypted one while it is written.
        keep_days: The days after which a recording is removed.
        keep_bytes_max: The bytes that all recordings of the folder may have.
        keep_count_max: The number of recordings that the folder may have.
        free_bytes_min: The bytes that have to be free on the disk. As long as removing recordings
            does not achieve that, no session is recorded. None by default, because other programs
            may have filled the disk, for which no recording should be removed unasked.
        check_seconds: The seconds after which the background task compresses and removes again.
        index_arguments: Whether the catalogue has the text of the calls' arguments.
        upload: The URL of a store, such as `s3://bucket/prefix`, to which a background task copies
            the files of recordings when they are complete. Recordings that are not in the store
            are not removed, except by you. Needs `mcp_trio[upload]`.
        remove_uploaded: Whether a complete recording is removed when all of it is in the store.
        chance: Returns a random number from 0 to 1; for tests.
        now: Returns the time of day, in UTC; for tests. A thread calls it, too.
        status: The counters of this policy.

    Raises:
        TypeError: A single text stands for a collection.
        ValueError: A share is not from 0 to 1, another number is not above 0, `upload` is not the
            URL of a store, or `remove_uploaded` is set without it; or `overwrite` is set.
    """

    is_policy: ClassVar[bool] = True

    path: str | os.PathLike[str] = attrs.field(converter=_folder)
    rate: float = attrs.field(default=1.0, kw_only=True, validator=_check_share)
    tools: Mapping[str, float] = attrs.field(
        factory=dict[str, float], kw_only=True, converter=_shares_by_name
    )
    principals: Mapping[str, float] = attrs.field(
        factory=dict[str, float], kw_only=True, converter=_shares_by_name
    )
    headers: Mapping[str, str] | Collection[str] = attrs.field(default=(), kw_only=True)
    errors: bool = attrs.field(default=True, kw_only=True)
    slow_seconds: float | None = attrs.field(default=None, kw_only=True, validator=check_positive)
    slow_percent: float | None = attrs.field(default=None, kw_only=True, validator=check_positive)
    held_bytes_max: int = attrs.field(default=MIB, kw_only=True, validator=check_positive)
    held_bytes_total_max: int = attrs.field(
        default=64 * MIB, kw_only=True, validator=check_positive
    )
    redaction: Redaction | None = attrs.field(factory=Redaction, kw_only=True)
    compress: bool = attrs.field(default=True, kw_only=True)
    keep_days: float | None = attrs.field(default=None, kw_only=True, validator=check_positive)
    keep_bytes_max: int | None = attrs.field(default=None, kw_only=True, validator=check_positive)
    keep_count_max: int | None = attrs.field(default=None, kw_only=True, validator=check_positive)
    free_bytes_min: int | None = attrs.field(default=None, kw_only=True, validator=check_positive)
    check_seconds: float = attrs.field(default=60.0, kw_only=True, validator=check_positive)
    index_arguments: bool = attrs.field(default=False, kw_only=True)
    upload: str = attrs.field(default="", kw_only=True)
    remove_uploaded: bool = attrs.field(default=False, kw_only=True)
    chance: Callable[[], float] = attrs.field(default=random.random, kw_only=True, repr=False)
    now: Callable[[], datetime] = attrs.field(default=utc_now, kw_only=True, repr=False)
    status: RecordStatus = attrs.field(factory=RecordStatus, init=False, eq=False, repr=False)
    _durations: Durations = attrs.field(factory=Durations, init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.overwrite:
            raise ValueError("a RecordPolicy never overwrites a recording: remove overwrite=True")
        if isinstance(self.headers, str):
            raise TypeError(f"headers= takes a collection of names: write {[self.headers]!r}")
        if self.upload:
            check_upload_url(self.upload)
        elif self.remove_uploaded:
            raise ValueError("remove_uploaded needs the URL of a store: upload='s3://bucket'")

    @property
    def may_keep(self) -> bool:
        """Return whether a session may be kept for another reason than the rate."""
        rules = (self.tools, self.principals, self.headers, self.errors)
        return any(rules) or self.slow_seconds is not None or self.slow_percent is not None

    def percent_above(self, name: str, duration_ns: int) -> float:
        """Count a call; return the percentage of the calls of the tool that took as long."""
        return self._durations.add(name, duration_ns)


@attrs.define(eq=False, repr=False)
class PolicyRun:
    """The recordings of one policy, while a server or proxy runs.

    Attributes:
        policy: The policy.
        on_finished: Called with the paths of the files of each recording that is complete.
        is_paused: Whether no recording begins, because the disk is full.
        headers: The names of HTTP headers for which sessions are kept, with the value or "".
        current_headers: The headers of the HTTP request whose message is being received.
    """

    policy: RecordPolicy
    current_headers: ClassVar[ContextVar[Mapping[str, str] | None]] = ContextVar(
        "mcp_trio_request_headers", default=None
    )

    on_finished: Callable[[Sequence[str]], object] = attrs.field(default=lambda _: None, init=False)
    is_paused: bool = attrs.field(default=False, init=False)
    _options: RecordOptions = attrs.field(init=False)
    headers: Mapping[str, str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        policy = self.policy
        # The background task could not compress what is encrypted.
        self._options = attrs.evolve(policy, compress=policy.compress and policy.encrypt)
        headers = policy.headers
        self.headers = {
            name.lower(): headers[name] if isinstance(headers, Mapping) else "" for name in headers
        }

    def open_folder(self) -> None:
        """Create the folder of the recordings, if need be, and check the rules of the redaction.

        Raises:
            RecordingError: It cannot be created, no file can be created in it, or there is no key
                for the encryption.
            ValueError: The rules are invalid.
        """
        path = os.fspath(self.policy.path)
        try:
            Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise RecordingError(
                f"cannot record to {path}: the folder cannot be created: {error.strerror}"
            ) from error
        if not os.access(path, os.W_OK | os.X_OK):
            raise RecordingError(f"cannot record to {path}: a file cannot be created there")
        if self.policy.redaction is not None:
            Redactor(self.policy.redaction, key=_ANY_KEY)
        if self.policy.encrypt:
            recording_keys()

    def choose(self) -> Counter[str] | None:
        """Decide how a session that begins is recorded, and count it.

        The result has the reasons to keep it; without any, its records are held. None: it is not
        recorded.
        """
        self.policy.status.sessions += 1
        if self.is_paused:
            self.policy.status.unrecorded += 1
            return None
        if self.policy.chance() < self.policy.rate:
            return Counter([RATE_REASON])
        if self.policy.may_keep:
            return Counter()
        self.policy.status.forgotten += 1
        return None

    def new_choice_timer(self) -> Callable[[], bool]:
        """Return a function that returns True when a choice that is made now should be repeated.

        The stateless requests of all clients are in one session, which has no end.
        """
        due = trio.current_time() + _STATELESS_SECONDS_MAX
        return lambda: trio.current_time() >= due

    def begin_session(self, opening: Opening) -> Recorder | None:
        """Return the recorder of a session that begins; None if it is not recorded."""
        reasons = self.choose()
        return None if reasons is None else self.begin(opening, reasons)

    def begin(self, opening: Opening, reasons: Counter[str]) -> Recorder:
        """Return the recorder of a session that begins, for the `reasons` of `choose`."""
        start = partial(open_recorder, now=self.policy.now, **opening)
        make = partial(PolicyRecorder, self, reasons)
        try:
            return start(self._options, make=make)
        except Exception as error:  # of a function that the redaction calls
            self.policy.status.report(
                f"cannot record a session: redaction failed: {type(error).__name__}"
            )
            unredacted = attrs.evolve(self._options, redaction=None)  # nothing will be written
            return start(unredacted, make=partial(make, is_lost=True))

    def sole_recording(self) -> SoleSessionRecording | None:
        """Return the recording of a session and of its lifespan; None if it is not recorded."""
        reasons = self.choose()
        return None if reasons is None else _SoleSession(self, reasons)

    def reasons_at_call(self, call: Call) -> list[str]:
        """Return the reasons to keep a session in a call that has just ended."""
        policy, reasons = self.policy, list[str]()
        if policy.errors and call.error not in _NO_REASONS:
            reasons.append(call.error if call.error in _NAMED_ERRORS else ERROR_REASON)
        seconds = call.duration_ns / NS_PER_SECOND
        is_slow = policy.slow_seconds is not None and seconds >= policy.slow_seconds
        if policy.slow_percent is not None and not call.error:
            is_slow |= policy.percent_above(call.name, call.duration_ns) <= policy.slow_percent
        if is_slow:
            reasons.append(SLOW_REASON)
        return reasons

    def reason_at_header(self) -> str:
        """Return the reason to keep a session for a header of the current request, or ""."""
        current = self.current_headers.get() or {}
        for name, value in self.headers.items():
            if name in current and value in ("", current[name]):
                return f"header {name}"
        return ""


class _SoleSession(SoleSessionRecording):
    """The recording under a policy of one session and of its lifespan."""

    def __init__(self, run: PolicyRun, reasons: Counter[str]) -> None:
        super().__init__(run.policy)
        self._run, self._reasons = run, reasons

    def _open_recorder(self, opening: Opening) -> Recorder:
        return self._run.begin(opening, self._reasons)


class _NullSink:
    """A sink that writes nothing, for a recorder that has no file yet."""

    def write(self, data: bytes) -> None:
        """Forget the data."""

    def close(self) -> None:
        """Do nothing."""


class PolicyRecorder(Recorder):
    """A recorder that holds its records until there is a reason to write them.

    `open_sink` creates the file at `path`: at once, if there are `reasons` to keep the session from
    its beginning. If it `is_lost`, nothing is written.
    """

    def __init__(
        self,
        run: PolicyRun,
        reasons: Counter[str],
        path: Path,
        open_sink: Callable[[], Sink],
        *,
        redactor: "Redactor | None",
        observe: Callable[[Record], object] | None,
        is_lost: bool = False,
        **settings: Any,
    ) -> None:
        is_watched = run.policy.may_keep and not reasons
        super().__init__(
            _NullSink(), redactor=None, observe=self._watch if is_watched else observe, **settings
        )
        self.reasons = reasons
        self._run = run
        self._path = path
        self._open_sink = open_sink
        self._later_redactor = redactor
        self._observer = observe
        self._calls: CallTracker
        self._drawn: set[str] = set()  # the users and tools whose share has decided
        self._is_held = True
        self._is_lost = is_lost
        self._is_finished = False
        self._held_bytes = self._held_records = 0
        self._opened_ns = 0
        self._is_sampled = run.policy.rate < 1
        self._tried_at = -math.inf

    @property
    def is_nearly_full(self) -> bool:
        """True if another recording should begin as soon as no request is open.

        With a rate below 1 that is soon, and at once if this recording is kept for what happened:
        the stateless requests of many clients are in one recording.
        """
        if self._is_sampled:
            age_ns = self.time_ns - self._opened_ns
            is_decided = bool(self.reasons) and RATE_REASON not in self.reasons
            if (
                is_decided
                or age_ns > _STATELESS_SECONDS_MAX * NS_PER_SECOND
                or self._held_bytes > _STATELESS_BYTES_MAX
            ):
                return True
        return super().is_nearly_full

    def open(self, body: OpenBody) -> None:
        """Hold the `open` record, or create the file and write it."""
        self._opening, self._opened_ns = body, self.time_ns
        self._calls = CallTracker(body.role)
        self.records.append(self.encoder.record("open", encode_body(body), self._opened_ns))
        if self.reasons and not self._is_lost:
            self._write_held()

    def add_schemas(self, schemas: Callable[[], Mapping[str, Any]]) -> None:
        """Redact the passwords that these schemas declare, now or when the records are written."""
        if self._later_redactor is not None:
            self._later_redactor.add_schemas(schemas())

    def flush(self) -> None:
        """Write the records if there is a reason to; else note how much is held."""
        if not self._is_held:
            self._held_bytes += self.unwritten_bytes
            super().flush()
            return
        if self._is_lost:
            self.records.clear()
            self.unwritten_bytes = 0
            return
        records = len(self.records)
        size = self.unwritten_bytes + (records - self._held_records) * _HELD_RECORD_BYTES
        self._held_records, self.unwritten_bytes = records, 0
        policy = self._run.policy
        self._held_bytes += size
        policy.status.held_bytes += size
        is_over = (
            self._held_bytes > policy.held_bytes_max
            or policy.status.held_bytes > policy.held_bytes_total_max
        )
        if self.reasons or is_over:
            self._write_held(is_last_attempt=is_over)

    def keep(self, why: str) -> None:
        """Keep the recording, for a reason that a handler gives."""
        super().keep(why)
        self.reasons[KEEP_REASON] += 1

    def _watch(self, record: Record) -> None:
        """Look for reasons to keep the session in a record."""
        if self._observer is not None:
            self._observer(record)
        policy = self._run.policy
        if record.kind == "in":
            if self._run.headers and (reason := self._run.reason_at_header()):
                self.reasons[reason] += 1
            self._draw("principal", (record.envelope or {}).get("principal", ""), policy.principals)
        for call in self._calls.add(record):
            self.reasons.update(self._run.reasons_at_call(call))
            if call.method == "tools/call":
                self._draw("tool", call.name, policy.tools)

    def _draw(self, kind: str, name: str, shares: Mapping[str, float]) -> None:
        """Keep the share of the sessions with a user or a tool: decide once in each session."""
        reason = f"{kind} {name}"
        if name in shares and reason not in self._drawn:
            self._drawn.add(reason)
            if self._run.policy.chance() < shares[name]:
                self.reasons[reason] += 1

    def _write_held(self, *, is_last_attempt: bool = True) -> None:
        """Redact the held records, create the file and write them.

        If the file cannot be created, the records are held for another attempt, unless this is the
        last attempt.
        """
        status = self._run.policy.status
        now, retry_seconds = self._write_clock(), self.limits.recording.retry_seconds
        if not is_last_attempt and now - self._tried_at < retry_seconds:
            return
        self._tried_at = now
        opening = self._opening
        assert opening is not None
        if self._later_redactor is not None:
            try:
                self.records = _redacted(self.records, opening, self._later_redactor)
            # A secret must not be written, and the text of the error may hold one too.
            except Exception as error:
                self._give_up(f"cannot record a session: redaction failed: {type(error).__name__}")
                return
        try:
            sink = self._open_sink()
        except RecordingError as error:
            status.report(str(error))
            if is_last_attempt:
                self._give_up(str(error))
            return
        self._release()
        self._sink, self._segments = sink, sink if isinstance(sink, Segments) else None
        self._redactor = self._later_redactor
        self._end_shortcut()
        opened = self.records[0]
        super().flush()
        if self.is_paused:
            # As in `open` of the base class: a file without this record is no recording.
            self._unwritten_opening = self.encoder.lines([opened])
            self._lost -= 1
        else:
            status.problem = ""

    def _release(self) -> None:
        """Note that no records are held any more."""
        if self._is_held:
            self._is_held = False
            self._run.policy.status.held_bytes -= self._held_bytes

    def _give_up(self, problem: str) -> None:
        """Forget the held records, and all that follow, because they cannot be written."""
        status = self._run.policy.status
        status.report(problem)
        status.held_bytes -= self._held_bytes
        self._held_bytes = 0
        self._is_lost = True
        self.records.clear()

    def _pause(self, reason: str, records: int) -> None:
        super()._pause(reason, records)
        self._run.policy.status.report(f"cannot write to {self._path}: {reason}")

    def _resume(self) -> None:
        lost = self._lost
        super()._resume()
        if not self.is_paused:
            self._run.policy.status.lost_records += lost
            self._run.policy.status.problem = ""

    def close(self, counts: dict[str, int]) -> None:
        """Complete the recording, or forget it; idempotent."""
        if self._is_finished:
            return
        self._is_finished = True
        status = self._run.policy.status
        if self._is_held and self.reasons and not self._is_lost:
            self._write_held()
        if self._is_held:
            if self._is_lost:
                status.unrecorded += 1
            else:
                status.forgotten += 1
            self._release()
            self.records.clear()
            super().close({})
            return
        masked = Counter[str]()
        if self._later_redactor is not None:
            masked = self._later_redactor.masked
        named = {
            KEPT_PREFIX + reason: n for reason, n in self.reasons.items() if reason != KEEP_REASON
        }
        super().close(counts | named | {MASKED_PREFIX + name: n for name, n in masked.items()})
        is_empty = bool(self._unwritten_opening)  # a full disk has not taken a single record
        if not self.reasons or is_empty:
            if is_empty:
                status.unrecorded += 1
                status.lost_records += self._lost
            else:
                status.forgotten += 1
            for name in chain.from_iterable(reversed(self._files())):
                with suppress(OSError):
                    Path(name).unlink()
            return
        status.lost_records += self._lost
        status.kept += 1
        status.reasons.update(self.reasons.keys())
        status.masked.update(masked)
        self._run.on_finished([form for each in self._files() for form in each[:1]])

    def _files(self) -> list[list[str]]:
        """Return the paths of the recording's files, which may be compressed by now.

        Of each there is one, or both during its compression; or none of the last, if it was not
        created.
        """
        first = os.fspath(self._path)
        segments = 1 if self._opening is None else self._opening.segment
        names = (first, *(segment_name(first, number) for number in range(2, segments + 1)))
        forms = ((name, other_form(name)) for name in names)
        return [[form for form in each if Path(form).exists()] for each in forms]


def _redacted(records: list[Record], opening: OpenBody, redactor: "Redactor") -> list[Record]:
    """Return the first records of a recording with all secrets replaced, also before their names.

    A record with more secrets than the limits allow is lost in a gap.

    Raises:
        ValueError: A secret that a function of the user returned is too short.
    """
    opened, *others = records
    for record in others:  # A secret may occur before its name: this pass finds all secrets.
        # The second pass replaces the record by a gap.
        with suppress(TooManySecretsError):
            redacted_body(record, redactor)
    opened = msgspec.structs.replace(opened, body=msgspec.Raw(opening_bytes(opening, redactor)))
    redacted = [opened]
    for record in others:
        try:
            redacted.append(redacted_record(record, redacted_body(record, redactor), redactor))
        # As in `Recorder.record`. A client must not prevent the recording of all that it does.
        except TooManySecretsError as error:
            gap = GapBody(reason=f"redaction failed: {type(error).__name__}", count=1)
            redacted.append(
                Record(
                    number=record.number,
                    kind="gap",
                    time_ns=record.time_ns,
                    body=msgspec.Raw(encode_body(gap)),
                )
            )
    return redacted
