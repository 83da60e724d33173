"""`python -m mcp_trio` is the command `mcp-trio`."""

from mcp_trio._cli import main

if __name__ == "__main__":
    main()
