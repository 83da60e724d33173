"""A server by FastMCP for the port table: `python greeter_fastmcp.py [http PORT]`."""

import sys

from fastmcp import FastMCP

mcp = FastMCP("greeter")


@mcp.tool
def greet(name: str) -> str:
    """Greet a person."""
    return f"Hello, {name}!"


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        mcp.run(transport="http", port=int(sys.argv[2]), show_banner=False)
    else:
        mcp.run(show_banner=False)
