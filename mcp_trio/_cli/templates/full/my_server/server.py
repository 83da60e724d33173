"""The server: tools, a resource template and a prompt on a reading list.

The environment variable BOOKS_DATABASE names the file of the database, books.db by default.
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from mcp_trio import Context, Server, ToolError

from my_server.database import Book, Database, books_by, open_database, remove, store


@asynccontextmanager
async def lifespan(_: Server) -> AsyncGenerator[Database]:
    """Open the database before the first session, and close it after the last."""
    with open_database(os.environ.get("BOOKS_DATABASE", "books.db")) as database:
        yield database


server: Server = Server(
    "my-server",
    version="0.1.0",
    instructions="Read books://AUTHOR before you add or remove books.",
    lifespan=lifespan,
)


@dataclass(frozen=True)
class Removal:
    """The form of `remove_book`."""

    sure: bool = False


@server.tool
async def add_books(author: str, titles: list[str], *, ctx: Context) -> list[Book]:
    """Add books of an author; return those that were not in the list yet.

    Args:
        author: The name of the author.
        titles: The titles of the books.
    """
    today = ctx.now().date()  # a replay gets the recorded time
    added: list[Book] = []
    for number, title in enumerate(titles, 1):
        book = Book(title, author, today)
        if await store(ctx.lifespan, book):
            added.append(book)
        await ctx.report_progress(number, len(titles))
    return added


@server.tool
async def remove_book(title: str, *, ctx: Context) -> str:
    """Remove a book, after asking the user.

    Args:
        title: The title of the book.
    """
    answer = await ctx.elicit(f"Remove {title!r} from the list?", Removal)
    if answer.data is None or not answer.data.sure:
        return f"{title!r} stays in the list."
    if not await remove(ctx.lifespan, title):
        raise ToolError(f"no book in the list has the title {title!r}")
    return f"{title!r} is removed."


@server.resource("books://{author}", mime_type="application/json")
async def books(author: str, *, ctx: Context) -> list[Book]:
    """The books of an author."""
    return await books_by(ctx.lifespan, author)


@server.prompt
async def recommend(author: str, *, ctx: Context) -> str:
    """Ask for a book to read next.

    Args:
        author: The name of an author in the list.
    """
    known = ", ".join(book.title for book in await books_by(ctx.lifespan, author))
    return f"I have read these books of {author}: {known or 'none'}. Which one should I read next?"


def main() -> None:
    """Serve over stdio; the command `my-server` calls this function."""
    server.run()


if __name__ == "__main__":
    main()
