"""The command line: one file a command, and nothing imported before it is needed."""


def main() -> None:
    """Run the command `mcp-trio` with this process's arguments, and exit with its status."""
    from mcp_trio._cli.commands import commands

    commands(prog_name="mcp-trio")
