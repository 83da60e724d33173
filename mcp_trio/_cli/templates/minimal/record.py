"""Record the session that the tests replay: `python record.py`."""

import sys
from pathlib import Path

import trio
from mcp_trio import Client

ROOT = Path(__file__).parent
RUN = [sys.executable, "-m", "mcp_trio", "run", "my_server.server"]
RECORD = ["--record", "tests/session.mcprec.jsonl", "--overwrite"]


async def main() -> None:
    """Start the server as a host does, and call its tool."""
    async with Client([*RUN, *RECORD], cwd=ROOT, inherit_env=True) as client:
        await client.list_tools()
        await client.call_tool("greet", {"name": "Ada"})


if __name__ == "__main__":
    trio.run(main)
