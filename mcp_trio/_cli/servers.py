"""SERVER on the command line, and the options that say how to talk to it."""

from collections.abc import Mapping, Sequence
from typing import Final, get_args

import attrs
import click

from mcp_trio._cli.behind import TakesCommand, command_behind
from mcp_trio._cli.parameters import together
from mcp_trio._cli.urls import header_option
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._protocol import ALL_REVISIONS
from mcp_trio._schema import LoggingLevel

SERVER_EPILOG: Final = """\b
SERVER is a URL; or file.py[:object] or package.module[:object], whose server then runs in this
process; or, with --config, a name in that file; or is left out when the server's own command
follows behind --, which inherits the environment. What a server prints goes to stderr.

\b
Write --header 'Authorization: Bearer ${TOKEN}' in single quotes: what the environment holds does
not stand in the list of processes then. SSL_CERT_FILE names certificates to trust.

\b
What a server asks meanwhile is asked on the terminal, where Ctrl-D declines; without a terminal
it is declined.
"""


@attrs.frozen(kw_only=True)
class Choices:
    """What the options below have chosen: SERVER's words, and how to talk to it."""

    server: str | Sequence[str]
    config: str | None
    headers: Mapping[str, str]
    timeout: float | None
    log_level: LoggingLevel | None
    stderr: bool
    revision: str | None
    yes: bool

    @property
    def limits(self) -> Limits:
        """The default limits, with one time-out for each request if one was chosen."""
        if self.timeout is None:
            return DEFAULT_LIMITS
        return attrs.evolve(
            DEFAULT_LIMITS,
            probe_seconds=min(self.timeout, DEFAULT_LIMITS.probe_seconds),
            initialize_seconds=self.timeout,
            request_idle_seconds=self.timeout,
            request_total_seconds=self.timeout,
        )


class ServerCommand(TakesCommand):
    """A command whose first argument is SERVER, unless the server's command stands behind `--`."""

    server_place = 1
    server_words = ("(behind --)",)


def _server_words(ctx: click.Context, _: click.Parameter, word: str) -> str | Sequence[str]:
    command = command_behind(ctx)
    return word if command is None else command


# SERVER and its options, which make up `Choices`.
server_parameters: Final = together(
    click.argument("server", callback=_server_words),
    click.option(
        "--config",
        metavar="FILE",
        type=click.Path(),
        help="SERVER is a name in this file, under mcpServers, as hosts have it.",
    ),
    header_option,
    click.option(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(min=0, min_open=True),
        help="Give up a request that takes longer, and tell the server.",
    ),
    click.option(
        "--log-level",
        type=click.Choice(get_args(LoggingLevel)),
        help="Print the server's log messages of at least this level on stderr.",
    ),
    click.option(
        "--stderr",
        is_flag=True,
        help="Pass on the stderr of the server's command; else its end stands in errors.",
    ),
    click.option(
        "--revision",
        type=click.Choice(ALL_REVISIONS),
        help="Speak this revision of the protocol, and no other.",
    ),
    click.option(
        "--yes",
        is_flag=True,
        help="Accept the server's forms as they are, by their defaults, and ask nobody.",
    ),
)
