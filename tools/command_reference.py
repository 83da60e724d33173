"""A hook of mkdocs that inserts the help text of every command into the command reference."""

from typing import Final

import click

from mcp_trio._cli.commands import GROUPS, commands

MARKER: Final = "<!-- the help text of every command -->"
WIDTH: Final = 98  # that of `--help` on a wide terminal


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the marker in a page; mkdocs calls this for each page that it builds."""
    return markdown.replace(MARKER, reference()) if MARKER in markdown else markdown


def reference() -> str:
    """Return a section for each group of commands, with the output of `--help` for each command."""
    lines: list[str] = []
    for group, names in GROUPS.items():
        lines += [f"## {group}", ""]
        for name in names:
            lines += [f"### {name}", "", "```text", help_text(name), "```", ""]
    return "\n".join(lines)


def help_text(name: str) -> str:
    """Return the output of `mcp-trio NAME --help`."""
    command = commands.get_command(click.Context(commands), name)
    assert command is not None
    context = click.Context(command, info_name=f"mcp-trio {name}", terminal_width=WIDTH)
    return command.get_help(context)
