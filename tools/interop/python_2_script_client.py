"""The Python SDK 2 client, running a script: `python_2_script_client.py SCRIPT FOLDER SERVER…`."""

import sys
from pathlib import Path

import anyio
from facts import FACTS
from python_2_client import connect
from request_scripts import ScriptHost, run_script


async def main(name: str, folder: Path, command: list[str]) -> None:
    host = ScriptHost(folder)
    async with connect(host, FACTS.protocol_version, command) as session:
        await run_script(name, folder, session, host)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
