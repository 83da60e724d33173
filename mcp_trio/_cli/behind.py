"""A server's own command on our command line: it stands behind `--`."""

from collections.abc import Sequence
from typing import ClassVar, Final

import click

# Where in click's context the command is that stood behind `--`.
_COMMAND: Final = "mcp_trio.command"


class TakesCommand(click.Command):
    """A command whose server is named by an argument, or by a command behind `--`.

    `server_place` is where the argument stands in the usage; `server_words` stand for it on the
    command line where the command behind `--` does, if it must not be left out.
    """

    server_place: ClassVar[int]
    server_words: ClassVar[Sequence[str]] = ()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take off the command, which click would mix up with the arguments before it."""
        if "--" in args:
            place = args.index("--")
            ctx.meta[_COMMAND] = args[place + 1 :]
            args = [*self.server_words, *args[:place]]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write both ways to name the server, a line each."""
        pieces = self.collect_usage_pieces(ctx)
        formatter.write_usage(ctx.command_path, " ".join(pieces))
        del pieces[self.server_place]
        formatter.write_usage(ctx.command_path, " ".join([*pieces, "-- COMMAND..."]), "       ")


def command_behind(ctx: click.Context) -> Sequence[str] | None:
    """The command that stands behind `--`; None if there is no `--`.

    Raises:
        click.UsageError: Nothing stands there.
    """
    command: Sequence[str] | None = ctx.meta.get(_COMMAND)
    if command is not None and not command:
        raise click.UsageError("no COMMAND stands behind --")
    return command
