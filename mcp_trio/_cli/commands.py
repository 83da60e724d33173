"""The `mcp-trio` command group: its subcommands, and the exit status for each kind of error."""

import errno
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any, Final

import click

import mcp_trio
from mcp_trio._cli.output import PrintableFormatter, echo_error, printable_lines
from mcp_trio._protocol.suggestions import did_you_mean
from mcp_trio.errors import ConfigError, MCPError, RecordingError

# The module of each command, by the headings of the help text.
GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "Create and publish a project": {
        "new": "mcp_trio._cli.new",
        "package": "mcp_trio._cli.package",
    },
    "Serve": {
        "demo": "mcp_trio._cli.serve",
        "run": "mcp_trio._cli.serve",
        "dev": "mcp_trio._cli.dev",
        "bridge": "mcp_trio._cli.record",
    },
    "Use a server": {
        "inspect": "mcp_trio._cli.inspect",
        "list": "mcp_trio._cli.call",
        "call": "mcp_trio._cli.call",
        "read": "mcp_trio._cli.call",
        "prompt": "mcp_trio._cli.call",
        "auth": "mcp_trio._cli.auth",
    },
    "Record and replay": {
        "record": "mcp_trio._cli.record",
        "replay": "mcp_trio._cli.replay",
        "mock": "mcp_trio._cli.replay",
        "sweep": "mcp_trio._cli.replay",
        "show": "mcp_trio._cli.recordings",
        "diff": "mcp_trio._cli.recordings",
        "check": "mcp_trio._cli.recordings",
        "redact": "mcp_trio._cli.recordings",
        "scan": "mcp_trio._cli.recordings",
        "export": "mcp_trio._cli.recordings",
    },
    "Keep recordings": {
        "index": "mcp_trio._cli.catalogue",
        "find": "mcp_trio._cli.catalogue",
        "stats": "mcp_trio._cli.catalogue",
        "copy": "mcp_trio._cli.catalogue",
        "test": "mcp_trio._cli.recordings",
    },
    "Set up": {
        "install": "mcp_trio._cli.install",
        "completion": "mcp_trio._cli.completion",
    },
}

COMMANDS: Final[Mapping[str, str]] = {
    name: module for rows in GROUPS.values() for name, module in rows.items()
}

_INTERRUPTED_STATUS: Final = 130

# What to write in place of options that users try, where a command does not have them.
_OTHER_OPTIONS: Final[Mapping[str, str]] = {
    "--record": "the server records: ... -- mcp-trio run server.py --record FILE",
    "--token": "write --header 'Authorization: Bearer ${TOKEN}'",
}

EPILOG: Final = """\b
TARGET is file.py[:object] or package.module[:object]: a Server, or a function that makes one;
without an object, the only Server in the module that is not mounted into another one.
SERVER is a URL, a TARGET, or a name from the mcpServers file that --config names.
Leave SERVER out to start the server with a command: ... -- COMMAND...

\b
Examples:
  mcp-trio demo --keep recordings
  mcp-trio new my-server
  mcp-trio run server.py --record recordings/
  mcp-trio dev server.py
  mcp-trio list server.py
  mcp-trio call server.py forecast city=Oslo days=2
  mcp-trio call forecast city=Oslo -- npx -y some-weather-server
  mcp-trio list http://127.0.0.1:8000/mcp
  mcp-trio show recordings/trip.mcprec.jsonl --errors
  mcp-trio replay recordings/trip.mcprec.jsonl server.py
  mcp-trio install server.py --host claude-desktop

\b
Exit status: 0 success; 1 failure, as each command's help says; 2 wrong usage or an unusable file;
130 interrupted.
"""


class CommandTable(click.Group):
    """A group that imports a command's module when the command is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """Return the names, in the order of the help text."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  click's signature
        """Import and return a command; None if there is no command of this name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(
            importlib.import_module(COMMANDS[cmd_name]), f"{cmd_name}_command"
        )
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first argument names."""
        name = args[0]
        if not (name in COMMANDS or name.startswith("-") or ctx.resilient_parsing):
            ctx.fail(f"No such command {name!r}{did_you_mean(name, COMMANDS)}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options before the command."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise _with_suggestion(error) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section for each group of commands."""
        for group, names in GROUPS.items():
            rows: list[tuple[str, str]] = []
            for name in names:
                command = self.get_command(ctx, name)
                assert command is not None
                rows.append((name, command.get_short_help_str()))
            with formatter.section(group):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, and turn an `MCPError` into an error text and an exit status."""
        # The handler of the standard library for programs that configure none: servers may do so.
        if logging.lastResort is not None:
            logging.lastResort.setFormatter(PrintableFormatter())
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            raise _with_suggestion(error) from None
        except click.UsageError as error:
            text = error.format_message()  # it may quote a peer
            if printable_lines(text) != text:
                raise click.UsageError(printable_lines(text), error.ctx) from None
            raise
        except MCPError as error:  # other exceptions are bugs: they keep their traceback
            echo_error(str(error))
            ctx.exit(2 if isinstance(error, ConfigError | RecordingError) else 1)
        except OSError as error:
            functions = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
            # Other errors are bugs, or a command handles them; for a pipe, click does.
            if click.echo.__code__ not in functions or isinstance(error, BrokenPipeError):
                raise
            echo_error(f"cannot write the output: {error.strerror}")
            # The rest in the buffer would fail once more at the end of the process.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)
        except KeyboardInterrupt:
            ctx.exit(_INTERRUPTED_STATUS)
        except BaseExceptionGroup as group:
            if group.split(KeyboardInterrupt)[1] is None:
                ctx.exit(_INTERRUPTED_STATUS)
            if group.split(BrokenPipeError)[1] is not None:
                raise
            # The reader of stdout has ended: click exits with status 1, without a traceback.
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from group


def _with_suggestion(error: click.NoSuchOption) -> click.UsageError:
    """Return the error with the option that was probably meant; click would list up to three."""
    parameters = [] if error.ctx is None else error.ctx.command.get_params(error.ctx)
    options = [name for each in parameters for name in (*each.opts, *each.secondary_opts)]
    hint = did_you_mean(error.option_name, [name for name in options if name.startswith("-")])
    if advice := _OTHER_OPTIONS.get(error.option_name):
        hint = f"; {advice}"
    return click.UsageError(f"No such option {error.option_name!r}{hint}", error.ctx)


@click.group(cls=CommandTable, epilog=EPILOG, context_settings={"max_content_width": 100})
@click.version_option(mcp_trio.__version__, message="%(prog)s %(version)s")
def commands() -> None:
    """Serve MCP servers, use them, record their sessions, and replay them deterministically."""
