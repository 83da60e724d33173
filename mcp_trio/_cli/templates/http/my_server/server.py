"""The server: a tool and a resource, whose notes all clients share.

The notes are in the file that the environment variable NOTES_FILE names, notes.jsonl by default.
"""

import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio
from mcp_trio import Context, Server, effect

ALL_NOTES = "notes://all"


class Notes:
    """Notes in a file, one on each line as JSON; tasks take turns."""

    def __init__(self, path: trio.Path) -> None:
        self._path = path
        self._turn = trio.Lock()

    async def add(self, text: str) -> None:
        """Append a note to the file."""
        async with self._turn, await self._path.open("a", encoding="utf-8") as file:
            await file.write(f"{json.dumps(text)}\n")

    async def texts(self) -> list[str]:
        """Return all notes, the oldest first."""
        async with self._turn:
            text = await self._path.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]


@asynccontextmanager
async def lifespan(_: Server) -> AsyncGenerator[Notes]:
    """Create the file before the first session; all sessions use the same `Notes`."""
    path = trio.Path(os.environ.get("NOTES_FILE", "notes.jsonl"))
    await path.touch()
    yield Notes(path)


server: Server = Server("my-server", version="0.1.0", lifespan=lifespan)


# The results of an effect are recorded: a replay returns them, and touches no file.


@effect
async def store(notes: Notes, text: str) -> None:
    """Store a note."""
    await notes.add(text)


@effect
async def load(notes: Notes) -> list[str]:
    """Load all notes."""
    return await notes.texts()


@server.tool
async def add_note(text: str, *, ctx: Context) -> str:
    """Add a note that all clients can read.

    Args:
        text: The text of the note.
    """
    await store(ctx.lifespan, text)
    server.resource_updated(ALL_NOTES)  # notifies the clients that have subscribed to it
    return f"This is note {len(await load(ctx.lifespan))}."


@server.resource(ALL_NOTES, mime_type="application/json")
async def all_notes(*, ctx: Context) -> list[str]:
    """All notes, the oldest first."""
    return await load(ctx.lifespan)


def main() -> None:
    """Serve over HTTP; the command `my-server` calls this function."""
    server.run("http", port=int(os.environ.get("PORT", "8000")))


if __name__ == "__main__":
    main()
