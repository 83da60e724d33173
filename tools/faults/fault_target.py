"""The server that `run_faults.py` tests, with short time limits."""

import argparse
import logging
import sys
from pathlib import Path

import trio

from mcp_trio import Limits, Server

sys.path += [str(Path(__file__).resolve().parents[1] / each) for each in ("", "bench")]

import serve_sockets
from attack_target import TOOLS, allow_descriptors

from mcp_trio.limits import (
    HttpLimits,
    MessageLimits,
    RequestLimits,
    ShutdownLimits,
    WebSocketLimits,
)

# As in production, but for the times, and for what is too large.
LIMITS = Limits(
    messages=MessageLimits(bytes_max=1 << 20, write_stall_seconds=1.5),
    http=HttpLimits(headers_seconds=1.5, idle_seconds=1.5),
    requests=RequestLimits(first_request_seconds=2.0),
    websocket=WebSocketLimits(ping_interval_seconds=1.5, pong_seconds=1.5),
    shutdown=ShutdownLimits(close_seconds=0.5, drain_seconds=0.5),
)


async def wait(seconds: float) -> str:
    """Answer after so many seconds."""
    await trio.sleep(seconds)
    return "waited"


def server_with(limits: Limits) -> Server:
    server = Server("faults", limits=limits)
    for tool in (*TOOLS, wait):
        server.tool(tool)
    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve, to be troubled.")
    parser.add_argument("--transport", choices=serve_sockets.STARTS, required=True)
    parser.add_argument("--place", default="0", help="a port, or the path of a socket file")
    parser.add_argument("--patient", action="store_true", help="with the limits of production")
    options = parser.parse_args()
    allow_descriptors()
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(message)s")
    serve_sockets.run(
        server_with(Limits() if options.patient else LIMITS), options.transport, options.place
    )
