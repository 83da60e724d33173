"""The limits per caller that `mcp-trio run` adds to a server, and a replay takes from a recording.

The server in a file does not have the limits of the command, so a replay of it has to add them. It
finds their settings in the recording: each decision of a limit is an effect, of which the arguments
are the settings. If no request reached a limit, the recording has no settings of it and needs none.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from mcp_trio._journal.records import CommandBody, Record, body_bytes, decode_body
from mcp_trio._server.caller_limits import ConcurrencyLimit, Quota, RateLimit
from mcp_trio._server.middleware import Middleware
from mcp_trio._server.sessions import sessions_of
from mcp_trio.errors import RecordingError

if TYPE_CHECKING:
    from mcp_trio._server.server import Server

RATE_LIMIT: Final = "run --rate-limit"
CONCURRENCY_LIMIT: Final = "run --concurrency-limit"
QUOTA: Final = "run --quota"
# The beginning of these names in the JSON of a record.
_PREFIX: Final = b'"run --'


def add_limits(server: "Server", limits: Iterable[Middleware]) -> None:
    """Add limits outside of all middleware of a server, so none runs for a rejected request."""
    sessions_of(server).middleware[:0] = limits


def limits_of_command(
    rates: Sequence[str], places: int | None, quotas: Sequence[str]
) -> list[Middleware]:
    """Return the limits of the options of `mcp-trio run`, the outermost first.

    Args:
        rates: The rates of requests of a user, such as "100/minute".
        places: The number of requests of a user that may run at once.
        quotas: The bytes of requests and results of a user, such as "100 MB/day".

    Raises:
        ValueError: A rate, the number of places or a quota is invalid.
    """
    limits: list[Middleware] = [RateLimit(rate, title=RATE_LIMIT) for rate in rates]
    if places is not None:
        limits.append(ConcurrencyLimit(places, title=CONCURRENCY_LIMIT))
    return [*limits, *(Quota(quota, of="bytes", title=QUOTA) for quota in quotas)]


_MAKERS: Final[Mapping[str, Callable[[Any], Middleware]]] = {
    RATE_LIMIT: lambda settings: RateLimit(settings["rate"], title=RATE_LIMIT),
    CONCURRENCY_LIMIT: lambda settings: ConcurrencyLimit(
        settings["places"], title=CONCURRENCY_LIMIT
    ),
    QUOTA: lambda settings: Quota(settings["rate"], of="bytes", title=QUOTA),
}


def recorded_limits(journal: Iterable[Record]) -> list[Middleware]:
    """Return the limits of the command that has recorded a session, the outermost first.

    Raises:
        RecordingError: A record of a limit has other settings than the command writes.
    """
    found: dict[tuple[str, str], Middleware] = {}
    for record in journal:
        if record.kind != "cmd" or _PREFIX not in (body_bytes(record) or b""):
            continue
        command = decode_body(record, CommandBody)
        key = command.name, str(command.arguments)
        if command.name in _MAKERS and key not in found:
            try:
                found[key] = _MAKERS[command.name](command.arguments)
            except (LookupError, TypeError, ValueError) as error:
                raise RecordingError(
                    f"record {record.number}: the settings of {command.name} are damaged"
                ) from error
    return list(found.values())


@contextmanager
def with_added_limits(server: "Server", limits: Sequence[Middleware]) -> Generator[None]:
    """Add limits outside of all middleware of a server until the block ends."""
    if not limits:
        yield
        return
    middleware = sessions_of(server).middleware
    before = [*middleware]
    add_limits(server, limits)
    try:
        yield
    finally:
        middleware[:] = before
