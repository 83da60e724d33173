"""The Python SDK 2 client, which follows a story: `python_2_story_client.py STORY FOLDER …`."""

import sys
from pathlib import Path

import anyio
from facts import FACTS
from python_2_client import connect
from steps import ListeningHost
from stories import tell


async def main(name: str, folder: Path, command: list[str]) -> None:
    host = ListeningHost(folder)
    async with connect(host, FACTS.protocol_version, command) as session:
        await tell(name, folder, session, host)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
