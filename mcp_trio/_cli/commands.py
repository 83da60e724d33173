"""The table of commands, and the exit status that an error of ours becomes."""

import importlib
from collections.abc import Mapping
from typing import Any, Final

import click

import mcp_trio
from mcp_trio._errors import MCPError, RecordingError, ReplayDivergence

COMMANDS: Final[Mapping[str, str]] = {
    "demo": "mcp_trio._cli.demo",
    "run": "mcp_trio._cli.run",
    "replay": "mcp_trio._cli.replay",
    "show": "mcp_trio._cli.show",
    "check": "mcp_trio._cli.check",
}

# An error without a row is nobody's expectation: it keeps its traceback.
STATUSES: Final[Mapping[type[MCPError], int]] = {ReplayDivergence: 1, RecordingError: 2}

EPILOG: Final = """\b
TARGET is file.py[:object] or package.module[:object];
without an object, the only Server in the module.

\b
Examples:
  mcp-trio demo --keep recordings
  mcp-trio run server.py --record recordings/
  mcp-trio replay recordings/trip.mcprec.jsonl server.py
  mcp-trio show recordings/trip.mcprec.jsonl
  mcp-trio check recordings/trip.mcprec.jsonl
"""


class CommandTable(click.Group):
    """A group that imports a command's module when the command is asked for.

    A module holds its command under the command's own name.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  the same
        """The command of that name; None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; errors that users can act on become a text and a status."""
        try:
            return super().invoke(ctx)
        except tuple(STATUSES) as error:
            click.echo(str(error), err=True)
            ctx.exit(STATUSES[type(error)])


@click.group(cls=CommandTable, epilog=EPILOG, context_settings={"max_content_width": 100})
@click.version_option(mcp_trio.__version__, message="%(prog)s %(version)s")
def commands() -> None:
    """Serve MCP servers, record their sessions, and replay them deterministically."""
