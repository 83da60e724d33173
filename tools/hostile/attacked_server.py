"""The server that `attacking.py` attacks: one that gives up soon what others wait for."""

import argparse
import logging
import resource
from typing import Annotated

import trio
from msgspec import Meta

from mcp_trio import Context, Limits, Server

# As in production, but for the times; shorter ones would end what a busy machine only delays.
LIMITS = Limits(
    http_head_seconds=1.0,
    http_body_seconds=1.0,
    http_idle_seconds=1.5,
    write_stall_seconds=0.5,
)
PATH = "/outer"
NAME = "x"

server = Server("hostile", limits=LIMITS)


@server.tool
async def echo(text: str) -> str:
    """Return the text."""
    return text


@server.tool
async def large(mib: Annotated[int, Meta(ge=1, le=8)]) -> str:
    """Return a long text."""
    return "x" * (mib << 20)


@server.tool
async def pour(*, ctx: Context) -> str:
    """Report more than anybody wants to hear."""
    for step in range(1_000_000):
        await ctx.progress(step, message="x" * 10_000)
        await trio.lowlevel.checkpoint()
    return "poured out"


@server.tool
async def tasks() -> str:
    """How many tasks there are."""
    return f"{trio.lowlevel.current_statistics().tasks_living}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve, to be attacked.")
    parser.add_argument("--host", choices=["native", "hypercorn"], default="native")
    options = parser.parse_args()
    # Thousands of connections are thousands of descriptors.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    server.run("http", port=0, server=options.host, path=PATH, hosts=[NAME])
