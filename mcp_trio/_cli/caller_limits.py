"""The options of `mcp-trio run` that limit the users of a server."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from mcp_trio._cli.options import combined

if TYPE_CHECKING:
    from mcp_trio._server.middleware import Middleware

limit_options: Final = combined(
    click.option(
        "--rate-limit",
        "rate_limits",
        metavar="RATE",
        multiple=True,
        help="Reject requests of a user beyond this rate, such as 100/minute; a user without a "
        "name is a network, or over stdio the session. The instances of --redis count together.",
    ),
    click.option(
        "--concurrency-limit",
        metavar="N",
        type=click.IntRange(1),
        help="Reject requests of a user while N others of it run.",
    ),
    click.option(
        "--quota",
        "quotas",
        metavar="RATE",
        multiple=True,
        help="Reject requests of a user that has used up these bytes of requests and results, "
        "such as '100 MB/day'.",
    ),
)


def take_limits(chosen: dict[str, Any]) -> "Sequence[Middleware]":
    """Take the values of `limit_options` out of those of all options, and return the limits.

    Raises:
        click.UsageError: A rate is invalid.
    """
    rates, places, quotas = (
        chosen.pop(name) for name in ("rate_limits", "concurrency_limit", "quotas")
    )
    if not (rates or places or quotas):
        return ()
    from mcp_trio._server.command_limits import limits_of_command

    try:
        return limits_of_command(rates, places, quotas)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
