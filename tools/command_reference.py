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
            lines += [f"### {name}", ""]
            for each in (name, *subcommands(name)):
                lines += ["```text", help_text(each), "```", ""]
    return "\n".join(lines)


def subcommands(name: str) -> list[str]:
    """Return the commands of a group of commands, such as `auth login`."""
    group = commands.get_command(click.Context(commands), name)
    return [f"{name} {each}" for each in group.commands] if isinstance(group, click.Group) else []


def help_text(name: str) -> str:
    """Return the output of `mcp-trio NAME --help`."""
    command: click.Command | None = commands
    for part in name.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), part)
    assert command is not None
    context = click.Context(command, info_name=f"mcp-trio {name}", terminal_width=WIDTH)
    return command.get_help(context)
