"""A SQLite explorer, and a template for real servers: lifespan, limits, cancellation, logging.

    mcp-trio run mcp_trio.examples.sqlite_explorer

All handlers use the database through one effect, so that recorded sessions replay without it.

Environment variables configure the server; a host sets them in its configuration file:

    SQLITE_EXPLORER_DATABASE    the file; by default a small sample of a lending library
    SQLITE_EXPLORER_WRITE       1 lets statements change the database
    SQLITE_EXPLORER_LOG         a log file with a line for each request, rotated and compressed
    SQLITE_EXPLORER_LOG_LEVEL   the level of records in that file; INFO by default
"""

import logging
import os
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated
from urllib.parse import quote

from msgspec import Meta

from mcp_trio import Context, RequestError, Server, effect
from mcp_trio.examples.sqlite_database import (
    Cell,
    Database,
    Parameters,
    Rows,
    make_sample,
    open_database,
    quoted,
)
from mcp_trio.observers import RequestLog
from mcp_trio.types import EmbeddedResource

logger: logging.Logger = logging.getLogger(__name__)

ROWS_MAX = 1_000
RESOURCE_NOT_FOUND = -32002


@asynccontextmanager
async def lifespan(_: Server) -> AsyncGenerator[Database]:
    """Open the database before the first session, and close it after the last."""
    file = os.environ.get("SQLITE_EXPLORER_DATABASE")
    may_write = os.environ.get("SQLITE_EXPLORER_WRITE") == "1"
    with TemporaryDirectory(prefix="sqlite-explorer-") as folder, ExitStack() as stack:
        path = Path(file) if file else make_sample(Path(folder, "library.db"))
        logger.info("opening %s for %s", path, "writing" if may_write else "reading")
        try:
            database = stack.enter_context(open_database(path, may_write=may_write))
        except sqlite3.Error as error:
            logger.error("cannot open %s: %s", path, error)  # noqa: TRY400  # the error is raised
            error.add_note(f"the database is {path}")  # SQLite's error does not name it
            raise
        yield database


server: Server = Server(
    "sqlite-explorer",
    version="1.0",
    instructions="Read the tables first. Pass values as parameters, not inside the SQL.",
    lifespan=lifespan,
    observers=[
        RequestLog(
            os.environ.get("SQLITE_EXPLORER_LOG") or None,
            level=os.environ.get("SQLITE_EXPLORER_LOG_LEVEL", "INFO").upper(),
        )
    ],
)


@effect
async def fetch(
    database: Database, sql: str, parameters: Parameters = (), *, rows_max: int = ROWS_MAX
) -> Rows:
    """Run a statement; all handlers use this effect, so a replay needs no database."""
    return await database.fetch(sql, parameters, rows_max=rows_max)


@server.tool
async def query(
    sql: str,
    parameters: list[Cell] | dict[str, Cell] | None = None,
    limit: Annotated[int, Meta(ge=1, le=ROWS_MAX)] = 100,
    *,
    ctx: Context,
) -> Rows:
    """Run one SQL statement.

    Args:
        sql: The statement, with `?` or `:name` where parameters go.
        parameters: The values, as a list or by name.
        limit: How many rows to return at most.
    """
    rows = await fetch(ctx.lifespan, sql, parameters or (), rows_max=limit)
    if rows.is_cut:
        count = len(rows.rows)
        await ctx.info(f"there are more than {count} rows: narrow the query or raise the limit")
    return rows


@server.tool
async def explain(
    sql: str, parameters: list[Cell] | dict[str, Cell] | None = None, *, ctx: Context
) -> str:
    """Tell how SQLite would run a statement, without running it: scans, searches, indexes.

    Args:
        sql: The statement.
        parameters: Its values, if it has any.
    """
    plan = await fetch(ctx.lifespan, f"EXPLAIN QUERY PLAN {sql}", parameters or ())
    depths: dict[Cell, int] = {}
    lines: list[str] = []
    for step, parent, _, detail in plan.rows:
        depths[step] = depths.get(parent, -1) + 1
        lines.append(f"{'  ' * depths[step]}{detail}")
    return "\n".join(lines)


@server.tool
async def tables(*, ctx: Context) -> Rows:
    """List the tables and views, with the statements that made them."""
    return await fetch(
        ctx.lifespan,
        "SELECT name, type, sql FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY 1",
    )


@server.resource("sqlite://schema", mime_type="application/sql")
async def schema(*, ctx: Context) -> str:
    """The statements that would make this database again, without its rows."""
    statements = await fetch(
        ctx.lifespan, "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"
    )
    return "".join(f"{sql};\n" for (sql,) in statements.rows)


@server.resource("sqlite://table/{name}", mime_type="application/json")
async def table(name: str, *, ctx: Context) -> Rows:
    """The first rows of a table or view."""
    if name not in await table_names(name, ctx=ctx):
        raise RequestError(RESOURCE_NOT_FOUND, f"no table or view is named {name}")
    return await fetch(ctx.lifespan, f"SELECT * FROM {quoted(name)}", rows_max=20)  # noqa: S608  # quoted


@server.prompt
async def analyse_table(
    table: str, question: str = "What stands out?", *, ctx: Context
) -> list[EmbeddedResource | str]:
    """Look into a table, from its first rows on.

    Args:
        table: The table or view.
        question: What to find out.
    """
    first_rows = await ctx.read_resource(f"sqlite://table/{quote(table, safe='')}")
    task = (
        f"These are the first rows of {quoted(table)}. Query the database, and answer: {question}"
    )
    return [*(EmbeddedResource(resource=contents) for contents in first_rows), task]


@server.completion(analyse_table, "table")
@server.completion("sqlite://table/{name}", "name")
async def table_names(prefix: str, *, ctx: Context) -> list[str]:
    """Return the tables and views whose names begin with `prefix`."""
    found = await fetch(
        ctx.lifespan,
        "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')"
        " AND substr(name, 1, length(:prefix)) = :prefix ORDER BY 1",
        {"prefix": prefix},
    )
    return [str(name) for (name,) in found.rows]


if __name__ == "__main__":
    server.run()
