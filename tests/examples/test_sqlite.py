""""""

import json
import logging
import math
import os
import sqlite3
import sys
import tempfile
from contextlib import closing

import attrs
import pytest
import trio
from memory_sessions import client_session

from mcp_trio import Client, ConnectionLost, RequestError, ToolError
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.examples.sqlite_database import json_cell, make_sample, open_database, quoted
from mcp_trio.examples.sqlite_explorer import server
from mcp_trio.recording import replay

EXPLORER = "mcp_trio.examples.sqlite_explorer"
COMMAND = [sys.executable, "-m", "mcp_trio", "run", EXPLORER]

# A query that counts for minutes.
ENDLESS = """
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4000000000)
    SELECT max(i) FROM n
"""


@pytest.fixture
def environment(monkeypatch):
    """Set the settings of the explorer, and no others."""
    for name in [name for name in os.environ if name.startswith("SQLITE_EXPLORER_")]:
        monkeypatch.delenv(name)

    def set_environment(**values):
        for name, value in values.items():
            monkeypatch.setenv(f"SQLITE_EXPLORER_{name}", str(value))

    return set_environment


def text_of(result):
    (content,) = result.content
    return content.text


async def query(client, sql, **arguments):
    return json.loads(text_of(await client.call_tool("query", {"sql": sql, **arguments})))


@pytest.mark.usefixtures("environment")
async def test_without_a_database_there_is_a_sample_that_is_gone_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with Client(server) as client:
        assert len(list(tmp_path.iterdir())) == 1
        answer = await query(client, "SELECT name FROM reader ORDER BY id")
        assert answer == {
            "columns": ["name"],
            "rows": [["Ada"], ["Grace"], ["Lin"]],
            "is_cut": False,
            "changed_rows": 0,
        }
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("environment")
async def test_a_cut_result_comes_with_a_log_message():
    messages = []
    async with Client(server, log=messages.append) as client:
        answer = await query(client, "SELECT * FROM loan", limit=2)
    assert (len(answer["rows"]), answer["is_cut"]) == (2, True)
    assert [params.data for params in messages] == [
        "there are more than 2 rows: narrow the query or raise the limit"
    ]


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("parameters", [["Ada"], {"name": "Ada"}])
async def test_values_are_passed_apart_from_the_statement(parameters):
    sql = f"SELECT id FROM reader WHERE name = {'?' if isinstance(parameters, list) else ':name'}"
    async with Client(server) as client:
        assert (await query(client, sql, parameters=parameters))["rows"] == [[1]]


@pytest.mark.usefixtures("environment")
async def test_the_database_is_only_read_unless_the_environment_allows_writing(
    tmp_path, environment
):
    path = make_sample(tmp_path / "mine.db")
    environment(DATABASE=path)
    sql = "DELETE FROM loan WHERE returned IS NULL"
    async with Client(server) as client:
        with pytest.raises(ToolError, match="attempt to write a readonly database"):
            await query(client, sql)
    environment(WRITE="1")
    async with Client(server) as client:
        assert (await query(client, sql))["changed_rows"] == 4
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM loan").fetchone() == (36,)


@pytest.mark.usefixtures("environment")
async def test_a_plan_is_a_tree_of_scans_and_searches():
    sql = "SELECT title FROM book WHERE id IN (SELECT book FROM loan WHERE reader = ?)"
    async with Client(server) as client:
        plan = text_of(await client.call_tool("explain", {"sql": sql, "parameters": [1]}))
        assert "SEARCH book USING INTEGER PRIMARY KEY" in plan
        assert "\n  SCAN loan" in plan
        with pytest.raises(ToolError, match="no such table: nobody"):
            await client.call_tool("explain", {"sql": "SELECT * FROM nobody"})


@pytest.mark.usefixtures("environment")
async def test_the_tables_are_a_tool_and_the_schema_makes_the_same_database_again():
    async with Client(server) as client:
        tables = json.loads(text_of(await client.call_tool("tables")))
        (contents,) = (await client.read_resource("sqlite://schema")).contents
    assert [row[:2] for row in tables["rows"]] == [
        ["book", "table"],
        ["loan", "table"],
        ["missing", "view"],
        ["reader", "table"],
    ]
    assert contents.mime_type == "application/sql"
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(contents.text)
        made = connection.execute("SELECT name FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    assert sorted(made) == [("book",), ("loan",), ("loan_of_book",), ("missing",), ("reader",)]


@pytest.mark.usefixtures("environment")
async def test_the_first_rows_of_a_table_are_a_resource():
    async with Client(server) as client:
        (contents,) = (await client.read_resource("sqlite://table/book")).contents
        rows = json.loads(contents.text)
        assert rows["columns"] == ["id", "title", "author", "cover"]
        assert rows["rows"][0] == [1, "Emma", "Austen", "<64 bytes>"]
        (contents,) = (await client.read_resource("sqlite://table/loan")).contents
        rows = json.loads(contents.text)
        assert (len(rows["rows"]), rows["is_cut"]) == (20, True)


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("name", ["nobody", "boo", "%22book%22", "sqlite_schema"])
async def test_a_table_that_is_not_there_is_not_found(name):
    async with Client(server) as client:
        with pytest.raises(RequestError, match="no table or view") as caught:
            await client.read_resource(f"sqlite://table/{name}")
    assert caught.value.code == PROTOCOL_VERSIONS[client.protocol_version].resource_not_found_code


@pytest.mark.usefixtures("environment")
async def test_a_prompt_contains_the_first_rows(tmp_path, environment):
    path = make_sample(tmp_path / "mine.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('CREATE TABLE "odd ""name" (a)')
    environment(DATABASE=path)
    async with Client(server) as client:
        arguments = {"table": 'odd "name', "question": "Is it odd?"}
        rows, task = (await client.get_prompt("analyse_table", arguments)).messages
        assert rows.content.resource.uri == "sqlite://table/odd%20%22name"
        assert json.loads(rows.content.resource.text)["columns"] == ["a"]
        assert '"odd ""name"' in task.content.text
        assert task.content.text.endswith("Is it odd?")


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("ref", ["analyse_table", "sqlite://table/{name}"])
async def test_names_of_tables_are_completed(ref):
    argument = "table" if ref == "analyse_table" else "name"
    async with Client(server) as client:
        completed = await client.complete(ref, argument, "")
        assert completed.completion.values == ["book", "loan", "missing", "reader"]
        completed = await client.complete(ref, argument, "lo")
        assert completed.completion.values == ["loan"]


@pytest.mark.usefixtures("environment")
@pytest.mark.real_time
async def test_a_cancelled_call_stops_the_statement_and_the_next_call_runs():
    async with Client(server) as client:
        with trio.fail_after(10):
            with trio.move_on_after(0.2) as scope:
                await query(client, ENDLESS)
            assert scope.cancelled_caught
            assert (await query(client, "SELECT 1"))["rows"] == [[1]]


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
async def test_it_runs_as_a_process_and_logs_to_a_file_that_is_whole_at_the_end(tmp_path):
    log = tmp_path / "explorer.log"
    environment = {"SQLITE_EXPLORER_LOG": str(log), "SQLITE_EXPLORER_LOG_LEVEL": "debug"}
    async with Client(COMMAND, env=environment) as client:
        assert (await query(client, "SELECT count(*) FROM book"))["rows"] == [[5]]
        with pytest.raises(ToolError, match="not authorized"):
            await query(client, f"ATTACH '{tmp_path}/mine.db' AS mine")
    texts = [json.loads(line)["text"] for line in log.read_text("utf-8").splitlines()]
    assert [text.partition(":")[2] for text in texts if "rows in" in text] == [
        " SELECT count(*) FROM book"
    ]
    assert any(text.startswith("rejected, not authorized: ATTACH") for text in texts)


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
async def test_a_database_that_cannot_be_opened_is_named_to_the_host_and_in_the_log(tmp_path):
    log, path = tmp_path / "explorer.log", tmp_path / "missing.db"
    environment = {"SQLITE_EXPLORER_LOG": str(log), "SQLITE_EXPLORER_DATABASE": str(path)}
    with pytest.raises(ConnectionLost) as caught:
        await Client(COMMAND, env=environment).__aenter__()
    assert caught.value.stderr_tail.endswith(
        f"unable to open database file\nthe database is {path}"
    )
    last = json.loads(log.read_text("utf-8").splitlines()[-1])
    assert last["text"] == f"cannot open {path}: unable to open database file"


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
@pytest.mark.real_time
async def test_a_host_that_disconnects_ends_statements_and_the_lifespan(tmp_path, nursery):
    log = tmp_path / "explorer.log"
    environment = {"SQLITE_EXPLORER_LOG": str(log), "TMPDIR": str(tmp_path)}

    async def endless():
        with pytest.raises(ConnectionLost):
            await query(client, ENDLESS)

    with trio.fail_after(20):
        async with Client([sys.executable, "-m", EXPLORER], env=environment) as client:
            nursery.start_soon(endless)
            assert list(tmp_path.glob("sqlite-explorer-*"))
            await trio.sleep(0.1)
    assert not list(tmp_path.glob("sqlite-explorer-*"))
    assert "opening" in log.read_text("utf-8")


@pytest.mark.usefixtures("environment")
async def test_a_recorded_session_replays_without_the_database(tmp_path):
    """The lifespan is not entered: every row is an effect's."""
    path = tmp_path / "library.mcprec.jsonl"
    async with client_session(server, path) as client:
        await client.call_tool("query", {"sql": "SELECT * FROM book", "limit": 2})
        with pytest.raises(ToolError):
            await client.call_tool("query", {"sql": "nonsense"})
        await client.read_resource("sqlite://schema")
        await client.get_prompt("analyse_table", {"table": "book"})
    report = await trio.to_thread.run_sync(replay, path, server)
    assert report.requests == 4
    assert not report.untracked_calls


# A query that counts for minutes.


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


# The first releases of Python 3.12 take `?2` for a name, and warn.
@pytest.mark.filterwarnings("ignore:Binding:DeprecationWarning")
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


async def test_rows_with_many_long_texts_are_cut(database):
    numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"
    cells = ", ".join(["hex(zeroblob(2500))"] * 100)
    rows = await database.fetch(f"{numbers} SELECT {cells} FROM n", (), rows_max=1000)
    assert (len(rows.rows), rows.is_cut) == (3, True)
    rows = await database.fetch(f"{numbers} SELECT {cells} FROM n LIMIT 2", (), rows_max=1000)
    assert (len(rows.rows), rows.is_cut) == (2, False)


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


# Rejected statements.


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
    rows = await writable.fetch("UPDATE reader SET name = name || 1 RETURNING id", (), rows_max=1)
    assert (rows.is_cut, rows.changed_rows) == (True, 5)
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
