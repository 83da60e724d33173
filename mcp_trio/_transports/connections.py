"""Connections of a client by URL: their state, and pauses before reconnecting."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias
from urllib.parse import urlsplit

import attrs

from mcp_trio._transports.channel import Channel
from mcp_trio.limits import Limits

if TYPE_CHECKING:
    import ssl


# --------------------
# How long whoever lost its server waits before it comes back.


RandomSource: TypeAlias = Callable[[], float]
"""Gives numbers from 0 to 1, so that clients that were cut off together do not come back so."""


def pause_seconds(failures: int, limits: Limits, random_source: RandomSource) -> float:
    """The pause behind so many failures in a row: longer and longer, up to a bound."""
    first_seconds = limits.http.sse_retry_ms / 1000
    doubled = backoff_seconds(failures, first_seconds, limits.http.reconnect_seconds_max)
    return doubled * (1 + random_source()) / 2


def backoff_seconds(failures: int, first_seconds: float, seconds_max: float) -> float:
    """The same without chance, from any first pause to any bound."""
    return min(first_seconds * 2.0 ** min(failures, 16), seconds_max)


# --------------------
# How a client's connection to its server stands, for those who want to look or be told.


logger = logging.getLogger("mcp_trio")

State: TypeAlias = Literal["connecting", "open", "retrying", "closed"]
OnState: TypeAlias = Callable[[State, str], None]
"""Hears how a connection stands; and why."""

# What may follow on what; "retrying" on itself brings another reason, of which nobody is told.
_TRANSITIONS: Final[frozenset[tuple[State, State]]] = frozenset(
    {
        ("connecting", "open"),
        ("connecting", "retrying"),
        ("connecting", "closed"),
        ("open", "retrying"),
        ("open", "closed"),
        ("retrying", "open"),
        ("retrying", "retrying"),
        ("retrying", "closed"),
    }
)


@attrs.define(eq=False)
class ReportedState:
    """The state and, if it is a bad one, why.

    "connecting": nothing was heard yet. "open": the server answered last. "retrying": it could not
    be reached, or a stream broke; the next try is due, with the next call at the latest. "closed":
    the session is over. `on_state` is told of each state, must not wait, and hurts nobody if it
    raises.
    """

    on_state: OnState | None = None
    state: State = attrs.field(default="connecting", init=False)
    reason: str = attrs.field(default="", init=False)

    def begin(self) -> None:
        """Tell that it is "connecting"."""
        self._tell()

    def become(self, state: State, reason: str = "") -> None:
        """The state is this from now on, if it may follow on what it was; "closed" is the last."""
        if (self.state, state) not in _TRANSITIONS:
            return
        is_other = state != self.state
        self.state, self.reason = state, reason
        if is_other:
            self._tell()

    def _tell(self) -> None:
        if self.on_state is None:
            return
        try:
            self.on_state(self.state, self.reason)
        except Exception:
            logger.exception("on_state failed")


class NamedChannel(Channel, Protocol):
    """A channel that knows who is at the other end, without what may be secret."""

    @property
    def name(self) -> str:
        """Who."""
        ...

    def mark_going_away(self) -> None:
        """This side stops: the peer is told so when it is closed, if there are words for that."""
        ...


@attrs.frozen(kw_only=True, repr=False)
class ConnectionOptions:
    """What a connection is opened with; see `open_websocket_channel`."""

    headers: Mapping[str, str] | None = None
    token: str | None = None
    ssl_context: "ssl.SSLContext | None" = None


async def open_connection(url: str, options: ConnectionOptions, limits: Limits) -> NamedChannel:
    """A channel to whoever listens at `url`, connected.

    Raises:
        ConnectionLost: Nobody does, or we are refused.
        ValueError: The URL is none of a connection, or something of the options is wrong.
        TypeError: Something was given that does not go with its scheme.
    """
    open_it = _BY_SCHEME.get(_scheme_of(url))
    if open_it is None:
        raise ValueError("the URL of a connection begins with ws://, wss://, unix: or tcp://")
    return await open_it(url, options, limits)


def is_connection_url(url: str) -> bool:
    """Whether it is reached by a connection that is one session, and not by requests of HTTP."""
    return _scheme_of(url) in _BY_SCHEME


def _scheme_of(url: str) -> str:
    return url.partition(":")[0].lower()


async def _open_websocket(url: str, options: ConnectionOptions, limits: Limits) -> NamedChannel:
    from mcp_trio._transports.websocket_client import open_websocket_channel

    return await open_websocket_channel(
        url,
        headers=options.headers,
        token=options.token,
        ssl_context=options.ssl_context,
        limits=limits,
    )


async def _open_unix(url: str, options: ConnectionOptions, limits: Limits) -> NamedChannel:
    _reject_web_options(options)
    from mcp_trio._transports.sockets import open_unix_channel

    return await open_unix_channel(url.partition(":")[2], limits=limits)


async def _open_tcp(url: str, options: ConnectionOptions, limits: Limits) -> NamedChannel:
    _reject_web_options(options)
    from mcp_trio._transports.sockets import open_tcp_channel

    parts = urlsplit(url)
    if not parts.hostname or parts.port is None or parts.path:
        raise ValueError("the URL of a TCP server is tcp://host:port")
    return await open_tcp_channel(parts.hostname, parts.port, limits=limits)


def _reject_web_options(options: ConnectionOptions) -> None:
    if options.headers or options.token is not None or options.ssl_context is not None:
        raise TypeError("headers, token and ssl_context are for URLs of the web only")


_BY_SCHEME: Final[Mapping[str, Callable[..., Awaitable[NamedChannel]]]] = {
    "ws": _open_websocket,
    "wss": _open_websocket,
    "unix": _open_unix,
    "tcp": _open_tcp,
}
