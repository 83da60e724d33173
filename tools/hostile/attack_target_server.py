"""The server that `run_attacks.py` attacks, with short time limits."""

import argparse
import logging
import sys
from pathlib import Path
from typing import Annotated

from msgspec import Meta

sys.path.append(str(Path(__file__).resolve().parent.parent))

from attack_target import TOOLS, allow_descriptors

from mcp_trio import Limits, Server
from mcp_trio.limits import HttpLimits, MessageLimits

# As in production, but for the times; shorter ones would end what a busy machine only delays.
LIMITS = Limits(
    http=HttpLimits(headers_seconds=1.0, body_seconds=1.0, idle_seconds=1.5),
    messages=MessageLimits(write_stall_seconds=0.5),
)
PATH = "/outer"
NAME = "x"

server = Server("hostile", limits=LIMITS)


@server.tool
async def large(mib: Annotated[int, Meta(ge=1, le=8)]) -> str:
    """Return a long text."""
    return "x" * (mib << 20)


for tool in TOOLS:
    server.tool(tool)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve, to be attacked.")
    parser.add_argument("--host", choices=["native", "hypercorn"], default="native")
    options = parser.parse_args()
    allow_descriptors()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    server.run("http", port=0, server=options.host, path=PATH, hosts=[NAME])
