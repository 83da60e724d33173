"""The catalogue of a folder of recordings: an SQLite file beside them, by which they are found.

The catalogue is a cache of facts about the recordings. It is brought up to date from their files,
and is made again when it is damaged or of another version of the package. Several processes may use
it at the same time: SQLite lets all of them read while one writes.
"""

import os
import sqlite3
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec

from mcp_trio._catalogue.query import Condition, parse_query
from mcp_trio._journal.calls import NO_ERROR_KINDS, Call, CallTracker
from mcp_trio._journal.records import (
    KEPT_PREFIX,
    MASKED_PREFIX,
    CommandBody,
    Damage,
    EndBody,
    OpenBody,
    Record,
    body_bytes,
    decode_body,
    first_loss,
    messages_in,
    read_recording,
)
from mcp_trio._recorder.clock import NS_PER_SECOND
from mcp_trio._recorder.encryption import KeyMissingError, is_encrypted
from mcp_trio._recorder.files import (
    COMPRESSED_SUFFIX,
    SUFFIX,
    open_recording,
    other_form,
    segment_of,
)
from mcp_trio._system import try_lock
from mcp_trio.errors import RecordingError

CATALOGUE: Final = "catalogue.sqlite"
"""The name of the catalogue's file in the folder of the recordings."""

# Increased with each change of the tables; a catalogue of another version is made again.
_VERSION: Final = 1

_TABLES: Final = """
CREATE TABLE recordings (
    id INTEGER PRIMARY KEY,
    file TEXT NOT NULL UNIQUE,    -- relative to the folder
    size INTEGER NOT NULL,        -- bytes, of all segments
    changed INTEGER NOT NULL,     -- nanoseconds, the newest segment
    is_open INTEGER NOT NULL,     -- a process still wrote it
    problem TEXT NOT NULL,        -- why it cannot be read
    session TEXT NOT NULL,
    started REAL NOT NULL,        -- Unix time
    seconds REAL NOT NULL,
    transport TEXT NOT NULL,
    role TEXT NOT NULL,
    name TEXT NOT NULL,
    version TEXT NOT NULL,
    client TEXT NOT NULL,
    client_version TEXT NOT NULL,
    protocol_version TEXT NOT NULL,
    records INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    errors INTEGER NOT NULL,      -- calls that neither succeeded nor were cancelled
    slowest REAL NOT NULL,        -- seconds
    masked INTEGER NOT NULL,      -- secrets that were replaced
    complete INTEGER NOT NULL,
    loss INTEGER NOT NULL,        -- records were lost
    damaged INTEGER NOT NULL
);
CREATE INDEX recordings_started ON recordings (started);
CREATE TABLE calls (
    recording INTEGER NOT NULL REFERENCES recordings (id) ON DELETE CASCADE,
    record INTEGER NOT NULL,
    method TEXT NOT NULL,
    name TEXT NOT NULL,
    principal TEXT NOT NULL,
    trace TEXT NOT NULL,
    began REAL NOT NULL,          -- Unix time
    seconds REAL NOT NULL,
    error TEXT NOT NULL,
    text TEXT NOT NULL
);
CREATE INDEX calls_recording ON calls (recording);
CREATE INDEX calls_name ON calls (name, error, seconds, recording);
CREATE INDEX calls_error ON calls (error, recording) WHERE error != '';
CREATE INDEX calls_principal ON calls (principal, recording) WHERE principal != '';
CREATE INDEX calls_trace ON calls (trace, recording) WHERE trace != '';
CREATE INDEX calls_seconds ON calls (seconds, recording);
CREATE TABLE effects (
    recording INTEGER NOT NULL REFERENCES recordings (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    number INTEGER NOT NULL       -- how often the effect ran
);
CREATE INDEX effects_name ON effects (name, recording);
CREATE INDEX effects_recording ON effects (recording);
CREATE TABLE tags (
    recording INTEGER NOT NULL REFERENCES recordings (id) ON DELETE CASCADE,
    tag TEXT NOT NULL
);
CREATE INDEX tags_tag ON tags (tag, recording);
CREATE INDEX tags_recording ON tags (recording);
CREATE TABLE masked (
    recording INTEGER NOT NULL REFERENCES recordings (id) ON DELETE CASCADE,
    name TEXT NOT NULL,           -- of the member that held the secrets
    number INTEGER NOT NULL       -- of replaced secrets
);
CREATE INDEX masked_recording ON masked (recording);
CREATE VIRTUAL TABLE texts USING fts5 (text, recording UNINDEXED);
"""

# The application id of a catalogue that has the arguments of calls.
_WITH_ARGUMENTS: Final = 1

# Stands for the time of the last change of a recording whose key is missing. It is never equal to
# the time of the file, so that the recording is read again next time, perhaps with the key.
_KEY_MISSING: Final = -1

# The condition, in SQL, that a retention is about a file: it is directly in the folder, and is a
# recording, or may be one whose key is missing.
_IS_RETAINED: Final = f"(problem = '' OR changed = {_KEY_MISSING}) AND instr(file, '{os.sep}') = 0"

# The codes of SQLite for a damaged file, without the details in their higher bits.
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_BUSY_SECONDS: Final = 10.0
_BATCH: Final = 500
_TEXT_CHARS_MAX: Final = 10_000


class CatalogueRow(msgspec.Struct, frozen=True, kw_only=True):
    """A recording in the catalogue.

    Attributes:
        file: The path of its first file.
        size: The bytes of all its files.
        started: When it began, in UTC.
        seconds: How long it lasted.
        session: The id of the session.
        server: The name of the recorded server or client.
        version: The version of that server or client.
        role: "server" or "client", or that of a proxy.
        transport: The name of the transport.
        client: The name of the session's client.
        client_version: The version of that client.
        protocol_version: The protocol version of the session.
        records: The number of records.
        calls: The number of requests.
        errors: The number of calls with an error; a call that its client cancelled has none.
        slowest: The seconds of the slowest call.
        tools: The tools that were called, with the number of calls.
        principals: The users whose requests are in it.
        error_kinds: The kinds of errors, with the number of calls.
        effects: The effects of its handlers, with the number of times that each ran.
        masked: The number of secrets that were replaced, by the name of their member.
        kept: The reasons for which it was kept.
        complete: Whether it was closed.
        loss: Whether records were lost.
    """

    file: str
    size: int
    started: datetime
    seconds: float
    session: str
    server: str
    version: str
    role: str
    transport: str
    client: str
    client_version: str
    protocol_version: str
    records: int
    calls: int
    errors: int
    slowest: float
    tools: dict[str, int]
    principals: list[str]
    error_kinds: dict[str, int]
    effects: dict[str, int]
    masked: dict[str, int]
    kept: list[str]
    complete: bool
    loss: bool


# The attributes of a row that are names with their counts, each with its query by recordings.
_DETAILS: Final = {
    "tools": "SELECT recording, name, count(*) FROM calls WHERE method = 'tools/call' AND"
    " recording IN ({}) GROUP BY recording, name",
    "error_kinds": "SELECT recording, error, count(*) FROM calls WHERE error != '' AND"
    " recording IN ({}) GROUP BY recording, error",
    "principals": "SELECT recording, principal, count(*) FROM calls WHERE principal != ''"
    " AND recording IN ({}) GROUP BY recording, principal",
    "effects": "SELECT recording, name, number FROM effects WHERE recording IN ({})",
    "masked": "SELECT recording, name, number FROM masked WHERE recording IN ({})",
    "kept": "SELECT recording, tag, 1 FROM tags WHERE recording IN ({})",
}
# The other attributes, each with its column.
_COLUMNS: Final = {
    name: "name" if name == "server" else name
    for name in CatalogueRow.__struct_fields__
    if name not in _DETAILS
}


class IndexReport(msgspec.Struct, frozen=True):
    """A report on bringing a catalogue up to date.

    Attributes:
        recordings: The recordings in the catalogue.
        added: Recordings that were read.
        removed: Recordings that were forgotten, as their files are gone.
        unreadable: Files that cannot be read as recordings, with the reasons. One that has not
            changed is reported once only.
    """

    recordings: int
    added: int
    removed: int
    unreadable: dict[str, str]


class Catalogue:
    """The catalogue of a folder; a context manager that closes it.

    In a folder that cannot be written, such as an archive, it is in memory: it begins with what the
    file has, if there is one, and is lost when it is closed.

    Attributes:
        folder: The folder.
        is_in_memory: Whether it is not kept in a file.

    Raises:
        RecordingError: The folder does not exist, or the file cannot be created or read.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder: Path = Path(folder)
        if not self.folder.is_dir():
            raise RecordingError(f"{folder} is not a folder: name the folder of the recordings")
        self._path = self.folder / CATALOGUE
        self.is_in_memory: bool = not os.access(self.folder, os.W_OK | os.X_OK)
        try:
            self._database = self._open_in_memory() if self.is_in_memory else self._open_file()
        except (sqlite3.Error, OSError) as error:
            raise RecordingError(f"cannot open the catalogue {self._path}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    @contextmanager
    def _reporting(self) -> Generator[None]:
        """Raise an error of SQLite as a `RecordingError`; remove a file that is damaged."""
        try:
            yield
        except sqlite3.Error as error:
            advice = ""
            # An error of the module itself, not of the database, has no code.
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
                self.close()
                try:
                    self._remove_file()
                    advice = "; it is damaged and was removed: open it again to make another one"
                except OSError:
                    advice = "; it is damaged: delete the file, and another one is made"
            text = f"cannot use the catalogue {self._path}: {error}{advice}"
            raise RecordingError(text) from error

    def _open_file(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            # It is damaged, or no database. It is only a cache, so another one replaces it.
            self._remove_file()
            return self._connect()

    def _remove_file(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)

    def _connect(self) -> sqlite3.Connection:
        # Created here, since SQLite would let others read it. A file that exists is not opened:
        # closing it would release the POSIX locks of this process's other connections to it.
        with suppress(FileExistsError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        database = sqlite3.connect(
            self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        _prepare(database)
        return database

    def _open_in_memory(self) -> sqlite3.Connection:
        database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        if self._path.exists():
            # SQLite does not look for changes by others, whose locks it could not see here.
            uri = f"{self._path.absolute().as_uri()}?mode=ro&immutable=1"
            # The file may be damaged, and is private to the user who made it.
            with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(uri, uri=True)) as file:
                file.backup(database)
        _prepare(database)
        return database

    # Updates.

    def index(
        self,
        *,
        arguments: bool = False,
        again: bool = False,
        only_new: bool = False,
        read: "Callable[[Iterable[ReadJob]], Iterator[ReadRecording]] | None" = None,
    ) -> IndexReport:
        """Read the recordings that are new or have changed, and forget those that are gone.

        Args:
            arguments: Whether the text of the calls' arguments can be searched, from now on: the
                catalogue remembers it.
            again: Whether to read all recordings, also those that are in the catalogue.
            only_new: Whether to rely on the catalogue for recordings that were complete when they
                were read. It is much faster in a large folder, and overlooks a complete recording
                that was replaced by another one of the same name.
            read: Reads the recordings as `read_job` does, for example in several processes.

        Raises:
            RecordingError: The folder or the catalogue cannot be read.
        """
        with self._reporting():
            if arguments:
                self._database.execute(f"PRAGMA application_id = {_WITH_ARGUMENTS}")
            (mark,) = self._database.execute("PRAGMA application_id").fetchone()
            arguments = mark == _WITH_ARGUMENTS
            # The condition, in SQL, for recordings whose files are not looked at again. A file that
            # is still being copied into the folder has no end, so it is not complete.
            is_settled = "complete AND NOT is_open AND problem = ''"
            if not only_new or again:
                is_settled = "FALSE"
            query = f"SELECT file FROM recordings WHERE {is_settled}"
            settled = {file for (file,) in self._database.execute(query)}
            query = f"SELECT file, size, changed, is_open FROM recordings WHERE NOT ({is_settled})"
            known = {file: rest for file, *rest in self._database.execute(query)}
            names, unreadable = names_in_folder(self.folder), dict[str, str]()
            for name in sorted(names):
                text = name.encode(errors="backslashreplace").decode()
                if text != name:
                    unreadable[text] = "its name is not UTF-8; rename it"
                    names.remove(name)
            found = recordings_of(self.folder, names, settled, arguments=arguments)
            # A later segment that was read without its first file belongs to that recording now.
            gone = (settled - names) | (known.keys() - found.keys())
            jobs = [
                job
                for file, job in found.items()
                if again or known.get(file) != [job.size, job.changed, 0]
            ]
            self.remove(sorted(gone))
            added = 0
            batch: list[ReadRecording] = []
            for indexed in map(read_job, jobs) if read is None else read(jobs):
                batch.append(indexed)
                added += not indexed.problem
                if indexed.problem:
                    unreadable[indexed.job.file] = indexed.problem
                if len(batch) >= _BATCH:
                    self._add(batch)
                    batch.clear()
            self._add(batch)
            number = self._database.execute("SELECT count(*) FROM recordings WHERE problem = ''")
            return IndexReport(number.fetchone()[0], added, len(gone), unreadable)

    def add(self, jobs: "Iterable[ReadJob]") -> None:
        """Read these recordings, and put them into the catalogue."""
        with self._reporting():
            self._add([read_job(job) for job in jobs])

    def _add(self, batch: "Sequence[ReadRecording]") -> None:
        with self._transaction():
            self._delete([each.job.file for each in batch])
            for each in batch:
                self._insert(each)

    def remove(self, files: Sequence[str]) -> None:
        """Forget recordings, whose files are named relative to the folder.

        Raises:
            RecordingError: The catalogue cannot be written; it is unchanged.
        """
        with self._reporting(), self._transaction():
            self._delete(files)

    def rename(self, file: str, job: "ReadJob") -> None:
        """Note that the files of a recording were replaced by others with the same records.

        Raises:
            RecordingError: The catalogue cannot be written; it is unchanged.
        """
        sql = "UPDATE recordings SET file = ?, size = ?, changed = ? WHERE file = ?"
        with self._reporting(), self._transaction():
            self._delete([job.file])  # another process may have read the new files meanwhile
            self._database.execute(sql, (job.file, job.size, job.changed, file))

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Generator[None]:
        """Write all that the block changes, or nothing if it raises; all queries see one state."""
        self._database.execute(f"BEGIN {kind}")
        try:
            yield
        except BaseException:
            if self._database.in_transaction:  # SQLite ends it itself if the disk is full
                self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def _delete(self, files: Sequence[str]) -> None:
        find = "SELECT id FROM recordings WHERE file = ?"
        for file in files:
            for (recording,) in self._database.execute(find, (file,)).fetchall():
                delete = "DELETE FROM texts WHERE rowid BETWEEN ? AND ?"
                self._database.execute(delete, _text_ids(recording))
                self._database.execute("DELETE FROM recordings WHERE id = ?", (recording,))

    def _insert(self, indexed: "ReadRecording") -> None:
        job, summary, database = indexed.job, indexed.summary, self._database
        calls, opening = summary.calls, summary.opening
        started = indexed.changed_seconds or _unix_time(opening.started)
        values = {
            "file": job.file,
            "size": job.size,
            "changed": job.changed,
            "is_open": indexed.is_open,
            "problem": indexed.problem,
            "session": opening.session,
            "started": started,
            "seconds": summary.seconds,
            "transport": opening.transport,
            "role": opening.role,
            "name": opening.name,
            "version": opening.version,
            "client": summary.client,
            "client_version": summary.client_version,
            "protocol_version": summary.protocol_version,
            "records": summary.records,
            "calls": len(calls),
            "errors": sum(call.error not in NO_ERROR_KINDS for call in calls),
            "slowest": max((call.duration_ns for call in calls), default=0) / 1e9,
            "masked": sum(summary.masked.values()),
            "complete": summary.complete,
            "loss": summary.loss,
            "damaged": summary.damaged,
        }
        names, places = ", ".join(values), ", ".join("?" * len(values))
        insert = f"INSERT INTO recordings ({names}) VALUES ({places})"
        recording = database.execute(insert, tuple(values.values())).lastrowid
        assert recording is not None
        database.executemany(
            "INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (
                    recording,
                    call.record,
                    call.method,
                    call.name,
                    call.principal,
                    call.trace_id,
                    max(_EARLIEST, min(started + call.begin_ns / 1e9, _LATEST)),
                    call.duration_ns / 1e9,
                    call.error,
                    call.text[:_TEXT_CHARS_MAX],
                )
                for call in calls
            ),
        )
        for table, rows in (("effects", summary.effects), ("masked", summary.masked)):
            insert = f"INSERT INTO {table} VALUES (?, ?, ?)"
            database.executemany(insert, ((recording, *row) for row in rows.items()))
        insert = "INSERT INTO tags VALUES (?, ?)"
        database.executemany(insert, ((recording, tag) for tag in summary.kept))
        texts = dict.fromkeys(call.text[:_TEXT_CHARS_MAX] for call in calls if call.text)
        arguments = chain.from_iterable(summary.arguments.values())
        texts |= dict.fromkeys(text[:_TEXT_CHARS_MAX] for text in arguments)
        ids = range(*_text_ids(recording))
        database.executemany(
            "INSERT INTO texts (rowid, text, recording) VALUES (?, ?, ?)",
            ((rowid, text, recording) for rowid, text in zip(ids, texts, strict=False)),
        )

    # Queries.

    def find(
        self, query: str = "", *, limit: int | None = None, oldest_first: bool = False
    ) -> list[CatalogueRow]:
        """Return the recordings that a query finds, the newest first.

        Args:
            query: The terms, such as `tool:book error:timeout`; all recordings without any.
            limit: The most rows to return.
            oldest_first: Whether the oldest is first.

        Raises:
            RecordingError: The catalogue cannot be read.
            ValueError: The query is invalid; the text says where.
        """
        condition = parse_query(query)
        order = "ASC" if oldest_first else "DESC"
        sql = (
            f"SELECT id, {', '.join(_COLUMNS.values())} FROM recordings WHERE problem = '' AND"
            f" ({condition.sql}) ORDER BY started {order}, id {order} LIMIT ?"
        )
        # In one transaction: another process may put a recording into the catalogue anew.
        with self._reporting(), self._transaction("DEFERRED"):
            rows: list[tuple[Any, ...]] = self._database.execute(
                sql, (*condition.parameters, -1 if limit is None else limit)
            ).fetchall()
            details = self._details([row[0] for row in rows])
        found: list[CatalogueRow] = []
        for recording, *values in rows:
            columns = dict(zip(_COLUMNS, values, strict=True))
            columns |= {kind: each.get(recording, {}) for kind, each in details.items()}
            columns["file"] = os.fspath(self.folder / columns["file"])
            for kind in ("principals", "kept"):
                columns[kind] = [*columns[kind]]
            # Without `strict`, a number is converted to a time or a truth value.
            found.append(msgspec.convert(columns, CatalogueRow, strict=False))
        return found

    def _details(self, recordings: Sequence[int]) -> Mapping[str, Mapping[int, dict[str, int]]]:
        """Return the names of `_DETAILS` with their counts, by attribute and id of a recording."""
        details: dict[str, dict[int, dict[str, int]]] = {}
        for kind, query in _DETAILS.items():
            found: defaultdict[int, dict[str, int]] = defaultdict(dict)
            for begin in range(0, len(recordings), _BATCH):
                some = recordings[begin : begin + _BATCH]
                for recording, name, count in self._database.execute(
                    query.format(", ".join("?" * len(some))), some
                ):
                    found[recording][name] = count
            details[kind] = found
        return details

    def count(self, query: str = "") -> int:
        """Return how many recordings a query finds.

        Raises:
            RecordingError, ValueError: As `find`.
        """
        rows = self.rows("SELECT count(*) FROM recordings WHERE {}", parse_query(query))
        number: int = rows[0][0]
        return number

    def rows(self, sql: str, condition: Condition) -> list[tuple[Any, ...]]:
        """Return the rows of a query in SQL, in which `{}` stands for a condition on recordings.

        Raises:
            RecordingError: The catalogue cannot be read.
        """
        with self._reporting():
            text = sql.format(f"recordings.problem = '' AND ({condition.sql})")
            return self._database.execute(text, condition.parameters).fetchall()

    def in_order_of_removal(self) -> list[tuple[str, int, float]]:
        """Return file, bytes and beginning of each recording that a retention may remove.

        These are the recordings directly in the folder that are no longer written. A file that
        cannot be read as a recording is not among them, and one in an inner folder is not either.

        Recordings with an error, or with another reason to keep them than the rate, are last; among
        others the oldest are first. A recording whose key is missing may have an error, and counts
        as one that has; it counts as begun at the time of its last change.
        """
        sql = (
            f"SELECT file, size, started FROM recordings WHERE NOT is_open AND {_IS_RETAINED}"
            f" ORDER BY changed = {_KEY_MISSING} OR errors > 0"
            " OR EXISTS (SELECT 1 FROM tags WHERE recording = id AND tag != 'rate'),"
            " started, id"
        )
        with self._reporting():
            return self._database.execute(sql).fetchall()

    def total_bytes(self) -> int:
        """Return the bytes of these recordings, and of those that are still written."""
        sql = f"SELECT coalesce(sum(size), 0) FROM recordings WHERE {_IS_RETAINED}"
        with self._reporting():
            number: int = self._database.execute(sql).fetchone()[0]
        return number


# Summaries of recordings --------------------------------------------------------------------------


class Summary(msgspec.Struct, kw_only=True):
    """The facts about a recording; those without an explanation are as in `CatalogueRow`.

    Attributes:
        opening: The body of its `open` record.
        calls: The requests of the client.
        arguments: The arguments of the calls as JSON, by the number of the record, which has
            several calls if it is a batch; empty unless they were asked for.
        damaged: Whether the file is damaged.
    """

    opening: OpenBody
    seconds: float = 0.0
    records: int = 0
    client: str = ""
    client_version: str = ""
    protocol_version: str = ""
    calls: list[Call] = []
    arguments: dict[int, list[str]] = {}
    effects: Counter[str] = msgspec.field(default_factory=Counter[str])
    kept: list[str] = []
    masked: dict[str, int] = {}
    complete: bool = False
    loss: bool = False
    damaged: bool = False


class _Client(msgspec.Struct):
    name: str = ""
    version: str = ""


class _Meta(msgspec.Struct):
    client: _Client | None = msgspec.field(name="io.modelcontextprotocol/clientInfo", default=None)
    version: str = msgspec.field(name="io.modelcontextprotocol/protocolVersion", default="")


class _Params(msgspec.Struct):
    client: _Client | None = msgspec.field(name="clientInfo", default=None)
    meta: _Meta | None = msgspec.field(name="_meta", default=None)
    arguments: msgspec.Raw = msgspec.Raw(b"")


class _Result(msgspec.Struct):
    version: str = msgspec.field(name="protocolVersion", default="")


class _Message(msgspec.Struct):
    params: _Params | None = None
    result: _Result | None = None


# A file that was changed may count more; the sums of these counts fit in the 64 bits of SQLite.
_MASKED_MAX: Final = 2**40

_DECODE = msgspec.json.Decoder(_Message).decode


def summarize(lines: Iterable[bytes], *, arguments: bool = False) -> Summary:
    """Return the facts about the recording with these lines.

    `arguments`: whether the facts include the arguments of calls, which takes longer.

    Raises:
        RecordingError: The lines are no recording.
    """
    summary: Summary | None = None
    tracker = CallTracker("server")  # replaced when the `open` record has named the role
    gaps: list[Record] = []
    calls: list[Call] = []
    begin_ns = end_ns = 0
    for item in read_recording(lines):
        if isinstance(item, Damage):
            # A last line that is cut off is no damage: it is still being written, or the process
            # ended. The recording is not `complete` then.
            if summary is not None and item.kind != "torn":
                summary.damaged = True
            continue
        end_ns = item.time_ns
        if summary is None:
            summary = Summary(opening=decode_body(item, OpenBody))
            tracker, begin_ns = CallTracker(summary.opening.role), item.time_ns
        summary.records += 1
        if item.kind == "cmd":
            name = ""
            with suppress(RecordingError):
                name = decode_body(item, CommandBody).name
            summary.effects[name] += 1
        elif item.kind == "gap":
            gaps.append(item)
        elif item.kind == "end":
            summary.complete = True
            for name, number in decode_body(item, EndBody).counts.items():
                if name.startswith(KEPT_PREFIX):
                    summary.kept.append(name.removeprefix(KEPT_PREFIX))
                elif name.startswith(MASKED_PREFIX):
                    summary.masked[name.removeprefix(MASKED_PREFIX)] = min(number, _MASKED_MAX)
        else:
            # The first messages tell the client and the protocol version.
            if item.kind in ("in", "out") and (arguments or not summary.protocol_version):
                _add_messages(summary, item, arguments=arguments)
            calls += tracker.add(item)
    if summary is None:
        raise RecordingError("not a recording: it has no complete `open` record")
    summary.calls = sorted([*calls, *tracker.unanswered(end_ns)], key=lambda call: call.record)
    summary.seconds = (end_ns - begin_ns) / NS_PER_SECOND
    # Only all gaps together show whether records were lost, since a gap may close without a loss.
    summary.loss = first_loss(gaps) is not None
    return summary


def _add_messages(summary: Summary, record: Record, *, arguments: bool) -> None:
    """Add the client, the protocol version and, on request, the arguments of a record's calls."""
    for body in messages_in(body_bytes(record) or b""):
        try:
            message = _DECODE(body)
        except (ValueError, RecursionError):
            continue
        params = message.params
        if params is not None:
            client = params.client or (params.meta.client if params.meta is not None else None)
            if client is not None and not summary.client:
                summary.client, summary.client_version = client.name, client.version
            if params.meta is not None and params.meta.version and not summary.protocol_version:
                summary.protocol_version = params.meta.version
            if arguments and params.arguments:
                text = bytes(params.arguments).decode(errors="replace")
                summary.arguments.setdefault(record.number, []).append(text)
        elif message.result is not None and not summary.protocol_version:
            summary.protocol_version = message.result.version


# The files of recordings --------------------------------------------------------------------------


class ReadJob(NamedTuple):
    """A recording in a folder, and how to read it.

    Attributes:
        folder: The folder.
        file: Its first file, relative to the folder.
        files: All its files, in order.
        size: Their bytes.
        changed: When they last changed, in nanoseconds.
        arguments: Whether the arguments of calls are read as well.
    """

    folder: str
    file: str
    files: tuple[str, ...]
    size: int
    changed: int
    arguments: bool


# Stands for the summary of a file that is no recording.
_EMPTY: Final = Summary(opening=OpenBody(transport="", role="", name="", version="", started=""))


class ReadRecording(NamedTuple):
    """A recording that was read; `problem` says why it could not be."""

    job: ReadJob
    is_open: bool
    summary: Summary = _EMPTY
    problem: str = ""
    changed_seconds: float = 0.0  # the time of the last change, if the key is missing


# The range of times that are a `datetime` in every time zone. A recording that began at another
# time counts as one whose beginning is unknown.
_EARLIEST: Final = datetime(2, 1, 1, tzinfo=UTC).timestamp()
_LATEST: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


def read_job(job: ReadJob) -> ReadRecording:
    """Read a recording; a file that is no recording is reported in the result."""
    first, *later = (os.path.join(job.folder, name) for name in job.files)  # noqa: PTH118  fast
    is_open = is_being_written(later[-1] if later else first)
    try:
        encrypted = is_encrypted(first)
        arguments = job.arguments and not encrypted
        summary = summarize(open_recording(first, later=later), arguments=arguments)
        if encrypted:  # The catalogue is not encrypted, so texts of messages stay out of it.
            for call in summary.calls:
                call.text = ""
    except KeyMissingError as error:  # It is tried again next time, perhaps with the key.
        seconds, job = job.changed / 1e9, job._replace(changed=_KEY_MISSING)
        return ReadRecording(job, is_open, _EMPTY, str(error), seconds)
    except RecordingError as error:
        return ReadRecording(job, is_open, problem=str(error))
    return ReadRecording(job, is_open, summary)


def is_being_written(name: str) -> bool:
    """Return whether a recorder has the file open, or has just created it."""
    try:
        descriptor = os.open(name, os.O_RDONLY)
    except OSError:
        return False
    try:
        # An empty file is not tried: its recorder is about to lock it, and would fail if this
        # function held the lock just then.
        if not os.fstat(descriptor).st_size:
            return True
        # Shared, since several threads may ask at the same time, and none of them is a recorder.
        return not try_lock(descriptor, is_shared=True)
    finally:
        os.close(descriptor)


def names_in_folder(folder: Path) -> set[str]:
    """Return the files of recordings in a folder and its folders, relative to the folder."""
    found: set[str] = set()
    suffixes = SUFFIX, SUFFIX + COMPRESSED_SUFFIX
    for root, _, names in os.walk(folder):
        inner = os.path.relpath(root, folder)
        own = [name for name in names if name.endswith(suffixes)]
        found.update(own if inner == "." else (os.path.join(inner, name) for name in own))  # noqa: PTH118
    return found


def recordings_of(
    folder: Path,
    names: Collection[str],
    settled: Collection[str] = frozenset(),
    *,
    arguments: bool = False,
) -> dict[str, ReadJob]:
    """Return the recordings of a folder's files by first file.

    `settled` has files that the caller does not look at again; their recordings are left out, and
    so is a recording of which a file was removed meanwhile.
    """
    recordings: dict[str, ReadJob] = {}
    for first, files in files_by_first(names, settled).items():
        job = job_of(folder, files, arguments=arguments)
        if job is not None:
            recordings[first] = job
    return recordings


def files_by_first(
    names: Collection[str], settled: Collection[str] = frozenset()
) -> dict[str, list[str]]:
    """Return the files of each recording in order, by the first; see `recordings_of`."""
    segments: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for file in sorted(name for name in names if name not in settled):
        first, number = segment_of(file)
        if first not in names:
            # Of the first segment and this one, only one may be compressed. If the first one is
            # gone, this file counts as a recording of its own.
            first = other_form(first) if number > 1 and other_form(first) in names else file
        if first not in settled:
            # Of both forms of a segment, the one that is not compressed is first here.
            segments[first].setdefault(number, file)
    return {first: [each[number] for number in sorted(each)] for first, each in segments.items()}


def job_of(folder: Path, files: Sequence[str], *, arguments: bool = False) -> ReadJob | None:
    """Return the job for a recording with these files, relative to the folder.

    None if one of them is gone, or is no file: to open a named pipe would take for ever. The folder
    is not listed, because that takes time in a large one.
    """
    try:
        # Twice as fast as with `Path`.
        found = [os.stat(os.path.join(folder, file)) for file in files]  # noqa: PTH116, PTH118
    except OSError:
        return None
    # Without files, the recorder's were removed before it ended.
    if not found or not all(stat.S_ISREG(each.st_mode) for each in found):
        return None
    size, changed = sum(each.st_size for each in found), max(each.st_mtime_ns for each in found)
    return ReadJob(os.fspath(folder), files[0], tuple(files), size, changed, arguments)


# The tables ---------------------------------------------------------------------------------------


def _prepare(database: sqlite3.Connection) -> None:
    """Set the options of a connection, and make the tables of this version; close it on an error.

    Tables of another version are dropped, but not those of another program.
    """
    tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
    try:
        names = {name for (name,) in database.execute(tables)}
        if names and "recordings" not in names:
            text = "it is the database of another program; rename it"
            raise sqlite3.OperationalError(text)  # noqa: TRY301
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA foreign_keys = ON")
        if database.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
            database.execute("BEGIN IMMEDIATE")
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version != _VERSION:  # no other process has made the tables meanwhile
                own = [name for (name,) in database.execute(tables).fetchall()]
                database.execute("PRAGMA defer_foreign_keys = ON")
                for name in own:
                    # Tables of SQLite itself, and those with the content of `texts`.
                    if not name.startswith(("sqlite_", "texts_")):
                        database.execute(f'DROP TABLE "{name}"')
                for statement in _TABLES.split(";\n"):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {_VERSION}")
            database.execute("COMMIT")
    except BaseException:
        database.close()
        raise


# The most texts of a recording. The id of its first text is the id of the recording times this.
_TEXTS_MAX: Final = 2**20


def _unix_time(text: str) -> float:
    """Return the Unix time of a text in ISO 8601; 0 if it has none within the range."""
    with suppress(ValueError, OverflowError):
        seconds = datetime.fromisoformat(text).timestamp()
        if _EARLIEST <= seconds <= _LATEST:
            return seconds
    return 0.0


def _text_ids(recording: int) -> tuple[int, int]:
    return recording * _TEXTS_MAX, (recording + 1) * _TEXTS_MAX - 1
