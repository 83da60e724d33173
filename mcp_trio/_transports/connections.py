"""Open a channel to a URL of a socket, report its state, and compute pauses between attempts.

The channel of a WebSocket, a Unix socket or a TCP socket has one connection, which is one session.
A channel over HTTP, which `http_client` opens, may use many; it also reports its state by
`ReportedState`, and makes the same pauses.
"""

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias
from urllib.parse import urlsplit

import attrs

from mcp_trio._transports.channel import Channel
from mcp_trio.limits import Limits

if TYPE_CHECKING:
    import ssl

logger = logging.getLogger("mcp_trio")

RandomSource: TypeAlias = Callable[[], float]
"""Returns numbers from 0 to 1, so that clients of a lost server do not all reconnect at once."""

State: TypeAlias = Literal["connecting", "open", "retrying", "closed"]

OnState: TypeAlias = Callable[[State, str], None]
"""Called with the new state of a connection, and with its reason. It must not wait."""

_TRANSITIONS: Final[frozenset[tuple[State, State]]] = frozenset(
    {
        ("connecting", "open"),
        ("connecting", "retrying"),
        ("connecting", "closed"),
        ("open", "retrying"),
        ("open", "closed"),
        ("retrying", "open"),
        ("retrying", "retrying"),  # only the reason changes, which is not reported
        ("retrying", "closed"),
    }
)
_SOCKET_SCHEMES: Final = frozenset({"ws", "wss", "unix", "tcp"})
_DOUBLINGS_MAX: Final = 16  # so that many failures do not overflow a float


def pause_seconds(failures: int, limits: Limits, random_source: RandomSource) -> float:
    """Return the pause before the next attempt to connect, after this number of failed ones.

    It is `limits.http.sse_retry_ms` at first, over each transport. It is doubled with each failure,
    up to `limits.http.reconnect_seconds_max`, and half of it is random.
    """
    first_seconds = limits.http.sse_retry_ms / 1000
    longest = backoff_seconds(failures, first_seconds, limits.http.reconnect_seconds_max)
    return longest * (1 + random_source()) / 2


def backoff_seconds(failures: int, first_seconds: float, seconds_max: float) -> float:
    """Return `first_seconds`, doubled with each failure, at most `seconds_max`."""
    return min(first_seconds * 2.0 ** min(failures, _DOUBLINGS_MAX), seconds_max)


@attrs.define(eq=False, repr=False)
class ReportedState:
    """The state of a connection; `on_state` is called with each new state.

    "connecting": the server has not answered yet. "open": the last request was answered.
    "retrying": the server could not be reached or a stream broke; the next attempt follows, with
    the next call at the latest. "closed": the session is over.

    An exception of `on_state` is logged.
    """

    on_state: OnState | None = None
    state: State = attrs.field(default="connecting", init=False)
    reason: str = attrs.field(default="", init=False)

    def begin(self) -> None:
        """Report the state "connecting"."""
        self._report()

    def change(self, state: State, reason: str = "") -> None:
        """Change the state, if there is a transition to it; none leads out of "closed"."""
        if (self.state, state) not in _TRANSITIONS:
            return
        has_changed = state != self.state
        self.state, self.reason = state, reason
        if has_changed:
            self._report()

    def _report(self) -> None:
        if self.on_state is None:
            return
        try:
            self.on_state(self.state, self.reason)
        except Exception:
            # `state_changed` is the name of the option of `Client` and `dial`.
            logger.exception("the callback state_changed failed")


@attrs.frozen(kw_only=True, repr=False)
class SocketChannelOptions:
    """Options of `open_socket_channel`, which `open_websocket_channel` documents."""

    headers: Mapping[str, str] | None = None
    token: str | None = None
    ssl_context: "ssl.SSLContext | None" = None


def is_socket_url(url: str) -> bool:
    """Return whether the URL is that of a WebSocket, a Unix socket or a TCP socket."""
    return url.partition(":")[0].lower() in _SOCKET_SCHEMES


class NamedChannel(Channel, Protocol):
    """A channel to a URL, which is its name in errors."""

    @property
    def name(self) -> str:
        """The URL, without anything that may be secret."""
        ...

    def mark_going_away(self) -> None:
        """Let `aclose` tell the peer that this side shuts down, if the protocol can express it."""
        ...


async def open_socket_channel(
    url: str, options: SocketChannelOptions, limits: Limits
) -> NamedChannel:
    """Connect to a server at a WebSocket, Unix or TCP URL, and return the channel.

    Raises:
        ConnectionLost: The server cannot be reached, or rejects the connection.
        ValueError: The URL or an option is invalid.
        TypeError: An option does not fit the scheme of the URL.
    """
    if not is_socket_url(url):
        raise ValueError("the URL of a connection has to begin with ws://, wss://, unix: or tcp://")
    scheme, _, rest = url.partition(":")
    scheme = scheme.lower()
    # Imported here, because clients of other servers need neither sockets nor trio-websocket.
    if scheme in ("ws", "wss"):
        from mcp_trio._transports.trio_websocket import open_websocket_channel

        return await open_websocket_channel(
            url,
            headers=options.headers,
            token=options.token,
            ssl_context=options.ssl_context,
            limits=limits,
        )
    if options.headers or options.token is not None or options.ssl_context is not None:
        raise TypeError("headers, token and ssl_context are for HTTP and WebSocket URLs only")
    from mcp_trio._transports.sockets import open_tcp_channel, open_unix_channel

    if scheme == "unix":
        return await open_unix_channel(rest, limits=limits)
    parts = urlsplit(url)
    if not parts.hostname or parts.port is None or parts.path:
        raise ValueError("the URL of a TCP server has to be tcp://host:port")
    return await open_tcp_channel(parts.hostname, parts.port, limits=limits)
