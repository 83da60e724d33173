"""The command line, `mcp-trio`. Each command's module is imported when the command runs."""

import os
import sys
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import io


def main() -> None:
    """Run `mcp-trio` with this process's arguments, and exit with its status."""
    # A parent process may have closed streams. A descriptor that stays closed would become that of
    # the next file or socket that is opened.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115  open until the end
    # The encoding of stdout may lack characters of a peer's text, as in a pipe on Windows.
    cast("io.TextIOWrapper[Any]", sys.stdout).reconfigure(errors="backslashreplace")

    from mcp_trio._cli.commands import commands

    commands(prog_name="mcp-trio")
