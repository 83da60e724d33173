"""A story, told by the official Python SDK 2: `python python_2_teller.py STORY FOLDER COMMAND…`."""

import sys
import warnings
from pathlib import Path

import anyio
from mcp import ClientSession, MCPDeprecationWarning, StdioServerParameters, stdio_client
from python_2_client import Callbacks, Session, initialize
from steps import ListeningHost
from stories import tell


async def main(name: str, folder: Path, command: str, *args: str) -> None:
    host = ListeningHost(folder)
    callbacks = Callbacks(host)
    async with (
        stdio_client(StdioServerParameters(command=command, args=list(args))) as streams,
        ClientSession(
            *streams,
            sampling_callback=callbacks.sample,
            list_roots_callback=callbacks.list_roots,
            message_handler=callbacks.hear,
        ) as session,
    ):
        await initialize(session)
        await tell(name, folder, Session(session), host)


if __name__ == "__main__":
    # The newest revision has deprecated much of what this is about.
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    anyio.run(main, sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
