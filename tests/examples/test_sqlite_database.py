import logging
import math
import sqlite3
from contextlib import closing

import attrs
import pytest
import trio

from mcp_trio import ToolError
from mcp_trio.examples.sqlite_database import json_cell, make_sample, open_database, quoted

# It counts for minutes.
ENDLESS = """
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4000000000)
    SELECT max(i) FROM n
"""


@pytest.fixture
def path(tmp_path):
    return make_sample(tmp_path / "a library ?#%.db")


@pytest.fixture
def database(path):
    with open_database(path) as database:
        yield database


@pytest.fixture
def writable(path):
    with open_database(path, may_write=True) as database:
        yield database


def rows_of(path, sql):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


# Reading.


async def test_rows_come_with_the_names_of_their_columns(database):
    rows = await database.fetch("SELECT id, title FROM book ORDER BY id", (), rows_max=2)
    assert attrs.asdict(rows) == {
        "columns": ["id", "title"],
        "rows": [[1, "Emma"], [2, "Villette"]],
        "is_cut": True,
        "changed_rows": 0,
    }


async def test_all_rows_are_not_cut(database):
    rows = await database.fetch("SELECT title FROM book", (), rows_max=5)
    assert (len(rows.rows), rows.is_cut) == (5, False)


@pytest.mark.parametrize(
    ("sql", "parameters"),
    [("SELECT ?2, ?1", ["b", "a"]), ("SELECT :x, :y", {"x": "a", "y": "b"})],
)
async def test_parameters_are_given_in_order_or_by_name(database, sql, parameters):
    assert (await database.fetch(sql, parameters, rows_max=1)).rows == [["a", "b"]]


async def test_cells_are_converted_to_json(database):
    sql = "SELECT NULL, 1, 1.5, 9e999, 'x', zeroblob(7), CAST(x'ff41' AS TEXT)"
    rows = await database.fetch(sql, (), rows_max=1)
    assert rows.rows == [[None, 1, 1.5, "inf", "x", "<7 bytes>", "�A"]]


def test_long_texts_are_cut_with_their_length():
    assert json_cell("x" * 10_000) == "x" * 10_000
    assert json_cell("x" * 10_001) == "x" * 10_000 + "… <10001 characters>"
    assert json_cell(-math.inf) == "-inf"


async def test_a_name_cannot_break_out_of_its_quotes(writable):
    name = 'we"ird; DROP TABLE book; --'
    await writable.fetch(f"CREATE TABLE {quoted(name)} (a)", (), rows_max=1)
    assert (await writable.fetch(f"SELECT * FROM {quoted(name)}", (), rows_max=1)).columns == ["a"]


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELECT * FROM nobody", "no such table: nobody"),
        ("SELEC 1", 'near "SELEC": syntax error'),
        ("SELECT 1; SELECT 2", "one statement at a time"),
        ("SELECT ?", "Incorrect number of bindings"),
        ("SELECT '\0'", "null character"),
        ("SELECT zeroblob(1000000000)", "too big"),
    ],
)
async def test_errors_have_the_text_of_the_database(database, sql, text):
    with pytest.raises(ToolError, match=text):
        await database.fetch(sql, (), rows_max=1)
    assert (await database.fetch("SELECT 1", (), rows_max=1)).rows == [[1]]


async def test_a_number_that_sqlite_cannot_hold_is_an_error_of_the_caller(database):
    with pytest.raises(ToolError, match="too large"):
        await database.fetch("SELECT ?", [2**70], rows_max=1)


async def test_virtual_tables_can_be_read(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE VIRTUAL TABLE words USING fts5 (text); INSERT INTO words VALUES ('a needle');"
            "CREATE VIRTUAL TABLE place USING rtree (id, low, high)"
        )
    with open_database(path) as database:
        sql = "SELECT text FROM words WHERE words MATCH 'needle'"
        assert (await database.fetch(sql, (), rows_max=1)).rows == [["a needle"]]
        sql = "SELECT value FROM json_each('[7]') UNION ALL SELECT id FROM place"
        assert (await database.fetch(sql, (), rows_max=1)).rows == [[7]]
        with pytest.raises(ToolError, match="readonly"):
            await database.fetch("INSERT INTO words VALUES ('x')", (), rows_max=1)


# Refusing.


WRITES = [
    "INSERT INTO reader (name) VALUES ('Mallory')",
    "UPDATE reader SET name = 'x'",
    "DELETE FROM reader",
    "DROP TABLE reader",
    "CREATE TABLE mine (a)",
    "CREATE TEMP TABLE mine (a)",
    "ALTER TABLE reader ADD COLUMN mine",
    "REINDEX",
    "ANALYZE",
    "VACUUM",
    "BEGIN EXCLUSIVE",
    "SAVEPOINT mine",
    "PRAGMA user_version = 7",
    "PRAGMA journal_mode = DELETE",
    "WITH gone AS (SELECT 1) DELETE FROM reader",
]

NEVER = [
    "ATTACH ':memory:' AS mine",
    "ATTACH '{elsewhere}' AS mine",
    "VACUUM INTO '{elsewhere}'",
    "DETACH main",
    "PRAGMA writable_schema = ON",
    "PRAGMA query_only = OFF",
    "PRAGMA temp_store_directory = '/'",
    "PRAGMA hard_heap_limit = 1",
    "SELECT * FROM pragma_database_list",
    "SELECT load_extension('mine')",
    "BEGIN",
]


@pytest.mark.parametrize("sql", [*WRITES, *NEVER])
async def test_a_reader_changes_nothing(database, path, tmp_path, sql):
    before = path.read_bytes()
    with pytest.raises(ToolError):
        await database.fetch(sql.format(elsewhere=tmp_path / "elsewhere.db"), (), rows_max=1)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("sql", WRITES[:5])
async def test_the_file_and_the_connection_hold_without_the_authorizer(database, sql):
    database._connection.set_authorizer(None)
    with pytest.raises(ToolError, match="readonly"):
        await database.fetch(sql, (), rows_max=1)
    await database.fetch("PRAGMA query_only = OFF", (), rows_max=1)
    with pytest.raises(ToolError, match="readonly"):
        await database.fetch(sql, (), rows_max=1)


@pytest.mark.parametrize("sql", NEVER)
async def test_a_writable_database_rejects_other_files_and_settings(writable, tmp_path, path, sql):
    with pytest.raises(ToolError):
        await writable.fetch(sql.format(elsewhere=tmp_path / "elsewhere.db"), (), rows_max=1)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


async def test_tables_can_be_described_by_pragmas(database):
    rows = await database.fetch("SELECT name FROM pragma_table_info('reader')", (), rows_max=9)
    assert rows.rows == [["id"], ["name"]]
    assert (await database.fetch("PRAGMA index_list('loan')", (), rows_max=9)).rows


def test_a_file_that_is_no_database_is_rejected_when_opened(tmp_path):
    with pytest.raises(sqlite3.OperationalError), open_database(tmp_path / "missing.db"):
        pass
    with pytest.raises(sqlite3.OperationalError), open_database(tmp_path / "x.db", may_write=True):
        pass
    (tmp_path / "text.db").write_text("this is a text and no database at all" * 100)
    with pytest.raises(sqlite3.DatabaseError), open_database(tmp_path / "text.db"):
        pass


# Writing.


async def test_a_write_returns_the_number_of_changed_rows(writable, path):
    sql = "INSERT INTO reader (name) VALUES (?), (?) RETURNING name"
    rows = await writable.fetch(sql, ["Joan", "Mary"], rows_max=9)
    assert (rows.rows, rows.changed_rows) == ([["Joan"], ["Mary"]], 2)
    assert rows_of(path, "SELECT count(*) FROM reader") == [(5,)]


async def test_a_violated_constraint_is_an_error_and_undoes_the_statement(writable, path):
    sql = "INSERT INTO reader (name) VALUES ('Joan'), ('Ada')"
    with pytest.raises(ToolError, match=r"UNIQUE constraint failed: reader\.name"):
        await writable.fetch(sql, (), rows_max=1)
    assert rows_of(path, "SELECT count(*) FROM reader") == [(3,)]


# Stopping.


@pytest.mark.real_time
async def test_a_cancelled_statement_stops_and_the_next_one_runs(database):
    with trio.fail_after(10):
        with trio.move_on_after(0.1) as scope:
            await database.fetch(ENDLESS, (), rows_max=1)
        assert scope.cancelled_caught
        assert database._turn.borrowed_tokens == 0
        assert (await database.fetch("SELECT 1", (), rows_max=1)).rows == [[1]]


@pytest.mark.real_time
async def test_a_waiting_statement_can_be_cancelled(database, nursery):
    async def endless():
        await database.fetch(ENDLESS, (), rows_max=1)

    with trio.fail_after(10):
        nursery.start_soon(endless)
        while not database._turn.borrowed_tokens:
            await trio.sleep(0.001)
        with trio.move_on_after(0.05) as scope:
            await database.fetch("SELECT 1", (), rows_max=1)
        assert scope.cancelled_caught
        assert database._turn.borrowed_tokens == 1
        nursery.cancel_scope.cancel()


@pytest.mark.real_time
async def test_a_cancelled_change_is_undone(writable, path):
    sql = f"INSERT INTO reader (name) SELECT * FROM ({ENDLESS.replace('max(i)', 'i')})"
    with trio.fail_after(10), trio.move_on_after(0.1) as scope:
        await writable.fetch(sql, (), rows_max=1)
    assert scope.cancelled_caught
    assert rows_of(path, "SELECT count(*) FROM reader") == [(3,)]


@pytest.mark.real_time
async def test_a_statement_is_stopped_after_its_time_limit(database, caplog):
    database.statement_seconds_max = 0.1
    with pytest.raises(ToolError, match=r"longer than 0\.1 s"):
        await database.fetch(ENDLESS, (), rows_max=1)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert (await database.fetch("SELECT 1", (), rows_max=1)).rows == [[1]]
