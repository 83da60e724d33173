"""Our client, running a request script: `our_script_client.py SCRIPT FOLDER FILE SERVER…`."""

import sys
from pathlib import Path

import trio
from facts import FACTS
from our_client import Session, client_for
from request_scripts import ScriptHost, run_script


async def main(name: str, folder: Path, recording: str, command: list[str]) -> None:
    host = ScriptHost(folder)
    options = {"record": recording, "stderr": "inherit"}
    async with client_for(host, command, FACTS.protocol_version, **options) as client:
        await run_script(name, folder, Session(client, host), host)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
