"""`mcp-trio completion`, which prints a shell's script, and the completion of arguments."""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_RECORDING_SUFFIXES: Final = (".mcprec.jsonl", ".mcprec.jsonl.zst")


def _complete_files(
    _: click.Context, __: click.Parameter, incomplete: str, *, suffixes: tuple[str, ...]
) -> "list[CompletionItem]":
    """Complete to files with these suffixes; folders are left to the shell, which adds a slash.

    Names that click cannot pass to the shell, with line ends or not in UTF-8, are left out.
    """
    from click.shell_completion import CompletionItem

    folder, start = os.path.split(incomplete)
    try:
        paths = sorted(Path(folder or ".").expanduser().iterdir())
    except (OSError, RuntimeError):  # there is no such folder, or no such user in `~user`
        return []
    matching = [
        path
        for path in paths
        if path.name.startswith(start)
        and path.name.encode(errors="ignore").decode() == path.name
        and "\n" not in path.name
    ]
    items: list[CompletionItem] = []
    if any(path.is_dir() for path in matching):
        items.append(CompletionItem(incomplete, type="dir"))
    for path in matching:
        is_shown = start.startswith(".") or not path.name.startswith(".")
        if path.name.endswith(suffixes) and is_shown and path.is_file():
            items.append(CompletionItem(f"{incomplete.removesuffix(start)}{path.name}"))
    return items


# A TARGET or SERVER is completed to a file, and not to an object in it, because that would import
# the file.
complete_targets: Final = partial(_complete_files, suffixes=(".py",))
complete_recordings: Final = partial(_complete_files, suffixes=_RECORDING_SUFFIXES)
# `FILE... TARGET`, in which the shell cannot tell the last FILE from the TARGET.
complete_recordings_and_targets: Final = partial(
    _complete_files, suffixes=(*_RECORDING_SUFFIXES, ".py")
)


@click.command(
    short_help="Print a shell's completion script.",
    epilog="""\b
The script completes commands, options, servers in Python files, recordings and hosts. Write it to
the folder in which your shell looks for completions, as below; or add this line to ~/.bashrc, or
the like to ~/.zshrc:

\b
  eval "$(mcp-trio completion bash)"

\b
Exit status: 0 success; 2 wrong usage.

\b
Examples:
  mcp-trio completion bash > ~/.local/share/bash-completion/completions/mcp-trio
  mcp-trio completion zsh > "${fpath[1]}/_mcp-trio"
  mcp-trio completion fish > ~/.config/fish/completions/mcp-trio.fish
""",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(context: click.Context, /, shell: str) -> None:
    """Print the script with which a shell completes command lines of mcp-trio."""
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None
    # click derives the variable's name from that of the program.
    script = completion(context.find_root().command, {}, "mcp-trio", "_MCP_TRIO_COMPLETE")
    click.echo(script.source(), nl=False)
