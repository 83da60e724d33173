"""The books, in a SQLite database.

Handlers use the database only through the functions with `@effect`. Their results are recorded, and
a replay returns them without a database.
"""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date
from typing import Any

import trio
from mcp_trio import effect

SCHEMA = """
CREATE TABLE IF NOT EXISTS book (
    title TEXT PRIMARY KEY, author TEXT NOT NULL, added TEXT NOT NULL
)
"""


@dataclass(frozen=True)
class Book:
    """A book, and the day on which it was added."""

    title: str
    author: str
    added: date


class Database:
    """A connection to the database; threads take turns."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._turn = trio.CapacityLimiter(1)

    async def run(self, sql: str, values: Sequence[str]) -> tuple[list[Any], int]:
        """Run a statement in a thread; return its rows, and the number of rows that it changed."""
        return await trio.to_thread.run_sync(self._run, sql, values, limiter=self._turn)

    def _run(self, sql: str, values: Sequence[str]) -> tuple[list[Any], int]:
        with self._connection, closing(self._connection.execute(sql, values)) as cursor:
            return cursor.fetchall(), cursor.rowcount


@contextmanager
def open_database(path: str) -> Generator[Database]:
    """Open the database, and create it if it does not exist."""
    connection = sqlite3.connect(path, check_same_thread=False)
    with closing(connection):
        connection.execute(SCHEMA)
        yield Database(connection)


@effect
async def store(database: Database, book: Book) -> bool:
    """Store a book; return False if there is one with this title already."""
    _, stored = await database.run(
        "INSERT INTO book VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        (book.title, book.author, book.added.isoformat()),
    )
    return stored > 0


@effect
async def books_by(database: Database, author: str) -> list[Book]:
    """Return the books of an author, by title."""
    rows, _ = await database.run(
        "SELECT title, author, added FROM book WHERE author = ? ORDER BY title", (author,)
    )
    return [Book(title, author, date.fromisoformat(added)) for title, author, added in rows]


@effect
async def remove(database: Database, title: str) -> bool:
    """Remove a book; return False if there is none with this title."""
    _, removed = await database.run("DELETE FROM book WHERE title = ?", (title,))
    return removed > 0
