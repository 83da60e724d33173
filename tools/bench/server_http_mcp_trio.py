"""The benchmarked HTTP server on mcp_trio."""

import argparse
import gc

import function_calls
import trio

from mcp_trio import Server

server = Server("bench")

HELD = frozenset({"HttpSession", "Session", "SessionChannel", "AnswerStream"})


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool
async def holdings() -> str:
    """Count the tasks, and the objects that belong to sessions."""
    gc.collect()
    objects = sum(type(each).__name__ in HELD for each in gc.get_objects())
    return f"{objects} {trio.lowlevel.current_statistics().tasks_living}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve the benchmark over HTTP.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--form", choices=["json", "sse", "stateless"], required=True)
    parser.add_argument("--host", choices=["native", "hypercorn"], default="native")
    parser.add_argument("--count-calls", action="store_true")
    options = parser.parse_args()
    if options.count_calls:
        server.tool(name="function_calls")(function_calls.count)
        function_calls.watch()
    server.run(
        "http", port=options.port, server=options.host, streams_answers=options.form == "sse"
    )
