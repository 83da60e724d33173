"""The server: a tool, and how to serve it over stdio."""

from mcp_trio import Context, Server

server: Server = Server("my-server", version="0.1.0")


@server.tool
async def greet(name: str, *, ctx: Context) -> str:
    """Greet a person, and tell the time.

    Args:
        name: The name of the person.
    """
    # A replay gets the recorded time, because it is read through the context.
    return f"Hello, {name}! It is {ctx.now():%H:%M} UTC."


def main() -> None:
    """Serve over stdio; the command `my-server` calls this function."""
    server.run()


if __name__ == "__main__":
    main()
