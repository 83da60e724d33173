"""The command line, `mcp-trio`. Each command's module is imported when the command runs."""


def main() -> None:
    """Run `mcp-trio` with this process's arguments, and exit with its status."""
    from mcp_trio._cli.commands import commands

    commands(prog_name="mcp-trio")
