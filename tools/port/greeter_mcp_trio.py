"""A server by mcp_trio for the port table: `python greeter_mcp_trio.py [http PORT]`."""

import sys

from mcp_trio import Server

server = Server("greeter")


@server.tool
def greet(name: str) -> str:
    """Greet a person."""
    return f"Hello, {name}!"


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        server.run("http", port=int(sys.argv[2]))
    else:
        server.run()
