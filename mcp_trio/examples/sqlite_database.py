"""A SQLite database that can run untrusted statements.

`Database` does all external I/O of the example `sqlite_explorer`. Two settings make it read-only:
the mode in which the file is opened, and a pragma of the connection. Statements that reach outside
of the file are rejected.
"""

import functools
import itertools
import logging
import math
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeAlias

import attrs
import trio

from mcp_trio import ToolError

logger: logging.Logger = logging.getLogger(__name__)

Cell: TypeAlias = str | int | float | None
Parameters: TypeAlias = Sequence[Cell] | Mapping[str, Cell]

CELL_CHARS_MAX = 10_000
RESULT_CHARS_MAX = 1_000_000  # of all texts: no more rows are read after them
VALUE_BYTES_MAX = 64 * 1024 * 1024
STATEMENT_SECONDS_MAX = 30.0
BUSY_SECONDS_MAX = 5.0
STEPS_BETWEEN_CHECKS = 10_000  # of SQLite's virtual machine: a fraction of a millisecond

# No statement may open other files, or begin a transaction that outlives it.
ACTIONS_REJECTED = {
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_DETACH,
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_SAVEPOINT,
}
FUNCTIONS_REJECTED = {"load_extension", "fts3_tokenizer"}
PRAGMAS = {  # those that only read; full text search needs `data_version`
    *("table_list", "table_info", "table_xinfo", "index_list", "index_info", "index_xinfo"),
    *("foreign_key_list", "data_version"),
}
DATABASE_ERRORS = (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError)


@attrs.frozen
class Rows:
    """The result of a statement; `is_cut` is set if there were more rows than requested."""

    columns: list[str]
    rows: list[list[Cell]]
    is_cut: bool
    changed_rows: int


@attrs.define(eq=False, repr=False)
class Database:
    """A database connection that runs one statement at a time."""

    _connection: sqlite3.Connection
    statement_seconds_max: float = STATEMENT_SECONDS_MAX
    _turn: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)

    async def fetch(self, sql: str, parameters: Parameters, *, rows_max: int) -> Rows:
        """Run one statement and read its first rows: fewer if their texts are long.

        If this call is cancelled or runs out of time, SQLite stops within a moment and undoes the
        statement's changes; no thread is left running.

        Raises:
            ToolError: SQLite rejects the statement, or the statement takes too long.
        """
        started = trio.current_time()
        with trio.move_on_after(self.statement_seconds_max):
            rows = await trio.to_thread.run_sync(
                self._fetch, sql, parameters, rows_max, limiter=self._turn
            )
            seconds = trio.current_time() - started
            logger.info("%d rows in %.3f s: %s", len(rows.rows), seconds, sql)
            return rows
        logger.warning("stopped after %g s: %s", self.statement_seconds_max, sql)
        raise ToolError(f"stopped: it took longer than {self.statement_seconds_max:g} s")

    def _fetch(self, sql: str, parameters: Parameters, rows_max: int) -> Rows:
        changes_before = self._connection.total_changes
        try:
            with closing(self._connection.execute(sql, parameters)) as cursor:
                rows: list[list[Cell]] = []
                chars = 0
                for row in itertools.islice(cursor, rows_max):
                    rows.append(list(map(json_cell, row)))
                    chars += sum(len(cell) for cell in rows[-1] if isinstance(cell, str))
                    if chars > RESULT_CHARS_MAX:
                        break
                columns = [column[0] for column in cursor.description or ()]
                is_cut = next(cursor, None) is not None
            # Changes are counted at the end of a statement, which may have returned more rows.
            return Rows(columns, rows, is_cut, self._connection.total_changes - changes_before)
        except DATABASE_ERRORS as error:
            trio.from_thread.check_cancelled()  # a cancelled statement is no error of SQLite
            logger.info("rejected, %s: %s", error, sql)
            raise ToolError(str(error)) from error


@contextmanager
def open_database(path: Path, *, may_write: bool = False) -> Generator[Database]:
    """Open an existing database for reading, or also for writing.

    Raises:
        sqlite3.Error: The file cannot be opened, or is no database.
    """
    uri = f"{path.absolute().as_uri()}?mode={'rw' if may_write else 'ro'}"
    with closing(
        sqlite3.connect(
            uri,
            uri=True,
            timeout=BUSY_SECONDS_MAX,
            isolation_level=None,  # each statement is a transaction
            check_same_thread=False,  # threads take turns
        )
    ) as connection:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute(f"PRAGMA query_only = {'OFF' if may_write else 'ON'}")
        connection.execute("PRAGMA schema_version")  # fails if the file is no database
        connection.text_factory = functools.partial(str, encoding="utf-8", errors="replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
        connection.set_authorizer(authorize)
        connection.set_progress_handler(is_cancelled, STEPS_BETWEEN_CHECKS)
        yield Database(connection)


def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Tell SQLite whether a part of a statement is allowed; called before the statement runs.

    Writes are not rejected here: virtual tables prepare for them even if they are only read.
    """
    rejected = (
        action in ACTIONS_REJECTED
        or (action == sqlite3.SQLITE_FUNCTION and second in FUNCTIONS_REJECTED)
        or (action == sqlite3.SQLITE_PRAGMA and first not in PRAGMAS)
    )
    return sqlite3.SQLITE_DENY if rejected else sqlite3.SQLITE_OK


def is_cancelled() -> bool:
    """Tell SQLite whether to stop; called in its thread while a statement runs."""
    try:
        trio.from_thread.check_cancelled()
    except trio.Cancelled:
        return True
    return False


def json_cell(cell: Cell | bytes) -> Cell:
    """Return a cell as JSON for a model: the size of a blob, a long text cut."""
    if isinstance(cell, bytes):
        return f"<{len(cell)} bytes>"
    if isinstance(cell, str) and len(cell) > CELL_CHARS_MAX:
        return f"{cell[:CELL_CHARS_MAX]}… <{len(cell)} characters>"
    if isinstance(cell, float) and not math.isfinite(cell):
        return str(cell)
    return cell


def quoted(name: str) -> str:
    """Return a name as an SQL identifier, safe for any characters."""
    return '"' + name.replace('"', '""') + '"'


SAMPLE = """
CREATE TABLE book (id INTEGER PRIMARY KEY, title TEXT NOT NULL, author TEXT NOT NULL, cover BLOB);
CREATE TABLE reader (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE loan (
    book INTEGER NOT NULL REFERENCES book, reader INTEGER NOT NULL REFERENCES reader,
    lent TEXT NOT NULL, returned TEXT
);
CREATE INDEX loan_of_book ON loan (book);
CREATE VIEW missing AS
    SELECT title, name, lent FROM loan JOIN book ON book.id = book JOIN reader ON reader.id = reader
    WHERE returned IS NULL;
INSERT INTO book (title, author, cover) VALUES
    ('Emma', 'Austen', zeroblob(64)), ('Villette', 'Brontë', zeroblob(96)),
    ('Middlemarch', 'Eliot', NULL), ('Persuasion', 'Austen', NULL), ('Orlando', 'Woolf', NULL);
INSERT INTO reader (name) VALUES ('Ada'), ('Grace'), ('Lin');
WITH RECURSIVE day (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM day WHERE n < 39)
INSERT INTO loan SELECT
    n * 7 % 5 + 1, n * 5 % 3 + 1, date('2026-01-01', n || ' days'),
    CASE WHEN n < 36 THEN date('2026-01-01', (n + n % 9) || ' days') END
FROM day;
"""


def make_sample(path: Path) -> Path:
    """Make the sample database in a new file; return its path."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SAMPLE)
    return path
