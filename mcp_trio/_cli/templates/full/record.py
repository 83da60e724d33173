"""Record the session that the tests replay: `python record.py`."""

import sys
from pathlib import Path

import trio
from mcp_trio import Client

ROOT = Path(__file__).parent
RUN = [sys.executable, "-m", "mcp_trio", "run", "my_server.server"]
RECORD = ["--record", "tests/session.mcprec.jsonl", "--overwrite"]


async def main() -> None:
    """Start the server as a host does, with a database in memory, and use all of it."""
    async with Client(
        [*RUN, *RECORD],
        cwd=ROOT,
        inherit_env=True,
        env={"BOOKS_DATABASE": ":memory:"},
        elicitation=lambda _: {"sure": True},
    ) as client:
        await client.list_tools()
        books = {"author": "Austen", "titles": ["Emma", "Persuasion", "Emma"]}
        await client.call_tool("add_books", books, progress=print)
        await client.read_resource("books://Austen")
        await client.get_prompt("recommend", {"author": "Austen"})
        await client.call_tool("remove_book", {"title": "Emma"})


if __name__ == "__main__":
    trio.run(main)
