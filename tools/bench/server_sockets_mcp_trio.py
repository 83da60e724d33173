"""The benchmarked server over sockets: the one of `server_mcp_trio.py`."""

import argparse

import function_calls
import serve_sockets
from server_mcp_trio import server

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve the benchmark over a socket.")
    parser.add_argument("--transport", choices=serve_sockets.STARTS, required=True)
    parser.add_argument("--place", required=True, help="a port, or the path of a socket file")
    parser.add_argument("--count-calls", action="store_true")
    options = parser.parse_args()
    if options.count_calls:
        server.tool(name="function_calls")(function_calls.count)
        function_calls.watch()
    serve_sockets.run(server, options.transport, options.place)
