"""Record the session that the tests replay: `python record.py`."""

import os
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import trio
from mcp_trio import Client
from mcp_trio.recording import RecordOptions, SharedRecording, TickClock

from my_server.server import ALL_NOTES, server

FILE = Path(__file__).with_name("tests") / "session.mcprec.jsonl"


async def main() -> None:
    """Serve over HTTP on a free port, and use the server as a client."""
    with SharedRecording(RecordOptions(FILE, overwrite=True)) as recording:
        async with trio.open_nursery() as nursery:
            url = await nursery.start(partial(server.serve_http, port=0, record=recording))
            async with Client(url) as client:
                await client.list_tools()
                await client.call_tool("add_note", {"text": "Water the plants."})
                await client.read_resource(ALL_NOTES)
            nursery.cancel_scope.cancel()  # stops the server


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        os.environ["NOTES_FILE"] = str(Path(folder, "notes.jsonl"))
        trio.run(main, clock=TickClock())  # the clock with which every session replays exactly
