"""Connections by their URLs: WebSocket, Unix domain sockets, TCP. Each of them is one session."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

import attrs

from mcp_trio._limits import Limits
from mcp_trio._transports.channel import Channel

if TYPE_CHECKING:
    import ssl


class NamedChannel(Channel, Protocol):
    """A channel that knows who is at the other end, without what may be secret."""

    @property
    def name(self) -> str:
        """Who."""
        ...

    def goes_away(self) -> None:
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


def is_of_connection(url: str) -> bool:
    """Whether it is reached by a connection that is one session, and not by requests of HTTP."""
    return _scheme_of(url) in _BY_SCHEME


def _scheme_of(url: str) -> str:
    return url.partition(":")[0].lower()


async def _open_websocket(url: str, options: ConnectionOptions, limits: Limits) -> NamedChannel:
    from mcp_trio._transports.websocket.client import open_websocket_channel

    return await open_websocket_channel(
        url,
        headers=options.headers,
        token=options.token,
        ssl_context=options.ssl_context,
        limits=limits,
    )


async def _open_unix(url: str, options: ConnectionOptions, limits: Limits) -> NamedChannel:
    _refuse_web_options(options)
    from mcp_trio._transports.sockets import open_unix_channel

    return await open_unix_channel(url.partition(":")[2], limits=limits)


async def _open_tcp(url: str, options: ConnectionOptions, limits: Limits) -> NamedChannel:
    _refuse_web_options(options)
    from mcp_trio._transports.sockets import open_tcp_channel

    parts = urlsplit(url)
    if not parts.hostname or parts.port is None or parts.path:
        raise ValueError("the URL of a TCP server is tcp://host:port")
    return await open_tcp_channel(parts.hostname, parts.port, limits=limits)


def _refuse_web_options(options: ConnectionOptions) -> None:
    if options.headers or options.token is not None or options.ssl_context is not None:
        raise TypeError("headers, token and ssl_context are for URLs of the web only")


_BY_SCHEME: Final[Mapping[str, Callable[..., Awaitable[NamedChannel]]]] = {
    "ws": _open_websocket,
    "wss": _open_websocket,
    "unix": _open_unix,
    "tcp": _open_tcp,
}
