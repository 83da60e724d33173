"""A hook of mkdocs that inserts the public names into the API reference, and the commands' help.

A marker in a page stands for the names of a public module, or for the help text of every command.
"""

import re
from pathlib import Path
from typing import Final

import click

from mcp_trio._cli.commands import GROUPS, commands

PACKAGE: Final = Path(__file__).resolve().parent.parent / "mcp_trio"
MODULE_MARKER: Final = re.compile(r"^<!-- the names of mcp_trio\.(\w+) -->$", re.MULTILINE)
NAME: Final = re.compile(r"^from (\S+) import \w+ as (\w+)$", re.MULTILINE)
HIDDEN: Final = "{show_root_heading: false, show_root_toc_entry: false, members: false}"
COMMANDS_MARKER: Final = "<!-- the help text of every command -->"
WIDTH: Final = 98  # that of `--help` on a wide terminal


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the markers in a page; mkdocs calls this for each page that it builds."""
    page = MODULE_MARKER.sub(lambda marker: module_reference(marker[1]), markdown)
    return page.replace(COMMANDS_MARKER, command_reference()) if COMMANDS_MARKER in page else page


def module_reference(module: str) -> str:
    """Return the docstring of a public module, and the names in its stub without the exceptions.

    The reference shows all exceptions at `mcp_trio.errors`.
    """
    names = NAME.findall((PACKAGE / f"{module}.pyi").read_text(encoding="utf-8"))
    lines = [f"::: mcp_trio.{module}", f"    options: {HIDDEN}", ""]
    lines += [f"::: mcp_trio.{module}.{name}" for source, name in names if source != ".errors"]
    return "\n".join(lines)


def command_reference() -> str:
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
