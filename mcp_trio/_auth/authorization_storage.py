"""The storage of an authorization server: an interface, and its implementation with SQLite.

The server keeps few kinds of records, such as clients and grants, and changes each of them by
compare-and-swap. Thus any database can be the storage, and processes can share it: of two that
redeem the same code, one wins.
"""

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import attrs
import trio

from mcp_trio._system import make_private


class AuthorizationStorage(Protocol):
    """The records of an authorization server, by kind and key.

    A record that has expired is as absent as one that was removed; an implementation removes
    expired records in its own time. Each operation is atomic, and complete when it returns. A
    record may contain the private key that signs tokens, so others must not be able to read it.
    """

    async def get(self, kind: str, key: str, *, now: float) -> bytes | None:
        """Return a record; None if there is none.

        Args:
            kind: The kind of record, such as "client".
            key: The key of the record within its kind.
            now: The Unix time.
        """
        ...

    async def swap(
        self,
        kind: str,
        key: str,
        old: bytes | None,
        new: bytes | None,
        *,
        now: float,
        expires_at: float | None = None,
    ) -> bool:
        """Replace a record if it is still the old one; return whether it was.

        If this is cancelled, the record is the old or the new one.

        Args:
            kind: The kind of record.
            key: The key of the record within its kind.
            old: The record to replace; None if there must be none.
            new: The new record; None to remove the old one.
            now: The Unix time.
            expires_at: The Unix time from which on the new record is absent; None for never.
        """
        ...

    async def count(self, kind: str, *, now: float) -> int:
        """Return the number of records of a kind."""
        ...


# The time for which a statement waits while another process writes to the database.
_BUSY_SECONDS_MAX: Final = 5.0
_BUSY_POLL_SECONDS: Final = 0.01

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS record (
    kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, expires_at REAL,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS record_expires_at ON record (expires_at) WHERE expires_at IS NOT NULL;
"""

_GET: Final = """
SELECT value FROM record
WHERE kind = :kind AND key = :key AND (expires_at IS NULL OR expires_at > :now)
"""

_COUNT: Final = """
SELECT count(*) FROM record WHERE kind = :kind AND (expires_at IS NULL OR expires_at > :now)
"""

_REMOVE_EXPIRED: Final = "DELETE FROM record WHERE expires_at <= :now"

# By whether there is an old record, and a new one. Each is one statement, and so atomic.
_SWAPS: Final = {
    (False, True): """
        INSERT INTO record (kind, key, value, expires_at) VALUES (:kind, :key, :new, :expires_at)
        ON CONFLICT (kind, key) DO UPDATE SET value = :new, expires_at = :expires_at
        WHERE expires_at <= :now
    """,
    (True, True): """
        UPDATE record SET value = :new, expires_at = :expires_at
        WHERE kind = :kind AND key = :key AND value = :old
        AND (expires_at IS NULL OR expires_at > :now)
    """,
    (True, False): """
        DELETE FROM record
        WHERE kind = :kind AND key = :key AND value = :old
        AND (expires_at IS NULL OR expires_at > :now)
    """,
}


@attrs.define(eq=False, repr=False)
class SqliteStorage:
    """An `AuthorizationStorage` in a SQLite database, which several processes may share.

    The database is opened at the first use. `close` closes it, and so does the end of the object.

    Attributes:
        path: The path of the file. It is created if it does not exist. Only its owner can read and
            write it, also if it exists, as it contains the private key that signs tokens. None for
            a database in memory, which ends when it is closed.
    """

    path: str | os.PathLike[str] | None = None
    _connection: sqlite3.Connection | None = attrs.field(default=None, init=False)
    _close_once: Callable[[], object] | None = attrs.field(default=None, init=False)
    # One thread at a time uses the connection. The limiter lets tasks wait for it; the lock also
    # keeps `close` from closing it meanwhile, which can crash the interpreter.
    _limiter: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(1), init=False
    )
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    async def get(self, kind: str, key: str, *, now: float) -> bytes | None:
        """Return a record; None if there is none."""
        rows, _ = await self._execute([_GET], {"kind": kind, "key": key, "now": now})
        return rows[0][0] if rows else None

    async def swap(
        self,
        kind: str,
        key: str,
        old: bytes | None,
        new: bytes | None,
        *,
        now: float,
        expires_at: float | None = None,
    ) -> bool:
        """Replace a record if it is still the old one; return whether it was."""
        if old is None and new is None:
            return await self.get(kind, key, now=now) is None
        values = {"kind": kind, "key": key, "old": old, "new": new, "now": now}
        values["expires_at"] = expires_at
        statements = [_REMOVE_EXPIRED, _SWAPS[old is not None, new is not None]]
        _, changed = await self._execute(statements, values)
        return changed == 1

    async def count(self, kind: str, *, now: float) -> int:
        """Return the number of records of a kind."""
        ((number,),), _ = await self._execute([_COUNT], {"kind": kind, "now": now})
        return int(number)

    def close(self) -> None:
        """Close the database, after the operation that runs; the next use opens it again."""
        with self._lock:
            if self._close_once is not None:
                self._close_once()
            self._connection = self._close_once = None

    async def _execute(
        self, statements: Sequence[str], values: Mapping[str, Any]
    ) -> tuple[list[Any], int]:
        """Return the rows of the last statement, and the number of records that it changed."""

        def execute() -> tuple[list[Any], int]:
            with self._lock:
                connection = self._opened()
                cursors = [connection.execute(each, values) for each in statements]
                return cursors[-1].fetchall(), cursors[-1].rowcount

        return await trio.to_thread.run_sync(execute, limiter=self._limiter)

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            target = ":memory:"
            if self.path is not None:
                target = str(Path(self.path).absolute())
                descriptor = os.open(target, os.O_RDWR | os.O_CREAT, 0o600)
                try:
                    make_private(descriptor)  # An existing file may be readable by others.
                finally:
                    os.close(descriptor)
            connection = sqlite3.connect(
                target,
                timeout=_BUSY_SECONDS_MAX,
                isolation_level=None,  # each statement is a transaction
                check_same_thread=False,
            )
            try:
                _use_write_ahead_log(connection)
                connection.executescript(_TABLE)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self._close_once = weakref.finalize(self, connection.close)
        return self._connection


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Set the journal mode of a database, which another process may be doing at the same time.

    For this statement SQLite does not wait, as it does for others.
    """
    give_up_at = time.monotonic() + _BUSY_SECONDS_MAX
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() >= give_up_at:
                raise
            time.sleep(_BUSY_POLL_SECONDS)
        else:
            return
