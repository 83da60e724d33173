"""Our client, which follows a story: `python our_story_client.py STORY FOLDER FILE SERVER…`."""

import sys
from pathlib import Path

import trio
from facts import FACTS
from our_client import Session, client_for
from steps import ListeningHost
from stories import tell


async def main(name: str, folder: Path, recording: str, command: list[str]) -> None:
    host = ListeningHost(folder)
    options = {"record": recording, "stderr": "inherit"}
    async with client_for(host, command, FACTS.protocol_version, **options) as client:
        await tell(name, folder, Session(client, host), host)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
