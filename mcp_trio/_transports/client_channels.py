"""Channels that a client opens to a URL: over a WebSocket, a Unix socket or TCP."""

import functools
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec
import trio

from mcp_trio._protocol.http_headers import encoded
from mcp_trio._protocol.websocket import bearer_header, offered_subprotocols
from mcp_trio._transports.channel import Channel, text_with_cause
from mcp_trio._transports.connections import ConnectionOptions, is_connection_url
from mcp_trio._transports.sockets import open_tcp_channel, open_unix_channel
from mcp_trio._transports.trio_websocket import (
    HandshakeFailed,
    TrioSocket,
    client_socket,
    over_wire,
)
from mcp_trio._transports.websocket import WebSocketChannel, start_channel
from mcp_trio.errors import ConnectionLost
from mcp_trio.limits import DEFAULT_LIMITS, Limits

_PORTS: Final = {"ws": 80, "wss": 443}

_trusted_by_system: Final = functools.cache(ssl.create_default_context)  # reads a large file


async def open_websocket_channel(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    token: str | None = None,
    ssl_context: ssl.SSLContext | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> WebSocketChannel:
    """Open a WebSocket to the server at `url`, and return a channel over it.

    Proxies are not used.

    Args:
        url: A `ws://` or `wss://` URL.
        headers: Additional headers of the request.
        token: The token for `Authorization: Bearer`; it is also offered as a subprotocol, for
            servers that look there.
        ssl_context: TLS settings for `wss://`, in place of the system's trusted certificates.
        limits: The limits of the channel.

    Raises:
        ConnectionLost: The server cannot be reached or does not answer within
            `limits.http.headers_seconds`, or rejects the WebSocket.
        ValueError: The URL, a header or the token is invalid.
    """
    address = _address(url)
    if ssl_context is not None and not address.is_secure:
        raise ValueError("ssl_context is for wss://")
    fields = encoded([*{**bearer_header(token), **(headers or {})}.items()])
    opening = _opened(address, fields, token, ssl_context, limits)
    return await start_channel(opening, name=address.name, limits=limits)


class _Address(msgspec.Struct, frozen=True):
    scheme: str
    host: str
    port: int
    target: str
    path: str

    @property
    def is_secure(self) -> bool:
        return self.scheme == "wss"

    @property
    def netloc(self) -> str:
        """Return the value of the header `Host`."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == _PORTS[self.scheme] else f"{name}:{self.port}"

    @property
    def name(self) -> str:
        """Return the URL without its query, which may hold a secret."""
        return f"{self.scheme}://{self.netloc}{self.path}"


def _address(url: str) -> _Address:
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError("the URL of a WebSocket begins with ws:// or wss:// and its host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the URL of a WebSocket must not contain a user: use headers= or token=")
    path = parts.path or "/"
    target = f"{path}?{parts.query}" if parts.query else path
    port = parts.port or _PORTS[parts.scheme]
    return _Address(parts.scheme, parts.hostname, port, target, path)


@asynccontextmanager
async def _opened(
    address: _Address,
    fields: Sequence[tuple[bytes, bytes]],
    token: str | None,
    ssl_context: ssl.SSLContext | None,
    limits: Limits,
) -> AsyncGenerator[TrioSocket, None]:
    """Open a WebSocket for the length of a block."""
    seconds, name = limits.http.headers_seconds, address.name
    with trio.CancelScope() as timeout:
        timeout.deadline = trio.current_time() + seconds
        try:
            if address.is_secure:
                stream: trio.abc.Stream = await _open_tls(address, ssl_context)
            else:
                plain = await trio.open_tcp_stream(address.host, address.port)
                stream = over_wire(plain, limits)
        except OSError as error:
            raise ConnectionLost(f"cannot connect to {name}: {text_with_cause(error)}") from error
        try:
            async with client_socket(
                stream,
                host=address.netloc,
                target=address.target,
                subprotocols=offered_subprotocols(token),
                fields=fields,
                limits=limits,
            ) as socket:
                timeout.deadline = float("inf")
                yield socket
        except HandshakeFailed as failure:
            if failure.status is None:
                raise ConnectionLost(f"{name} {failure}") from None
            text = " ".join(failure.body.decode(errors="replace").split())
            detail = f": {text[: limits.messages.error_text_chars_max]}" if text else ""
            raise ConnectionLost(
                f"{name} answered HTTP {failure.status}{detail}", http_status=failure.status
            ) from None
    if timeout.cancelled_caught:
        raise ConnectionLost(
            f"{name} did not answer in {seconds:g} s (limits.http.headers_seconds)"
        )


async def _open_tls(
    address: _Address, ssl_context: ssl.SSLContext | None
) -> trio.SSLStream[trio.SocketStream]:
    stream = await trio.open_ssl_over_tcp_stream(
        address.host,
        address.port,
        ssl_context=ssl_context or _trusted_by_system(),
        https_compatible=True,
    )
    try:
        await stream.do_handshake()  # reports an untrusted certificate here, and not later
    except BaseException as error:
        await trio.aclose_forcefully(stream)
        if isinstance(error, trio.BrokenResourceError):
            reason = error.__cause__ or "the server closed the connection"
            raise OSError(f"{reason} (TLS)") from error
        raise
    return stream


# Connections of any kind ------------------------------------------------------------------------


class NamedChannel(Channel, Protocol):
    """A channel to a URL."""

    @property
    def name(self) -> str:
        """The URL, without anything that may be secret."""
        ...

    def mark_going_away(self) -> None:
        """Let `aclose` tell the peer that this side shuts down, if the protocol can express it."""
        ...


async def open_connection(url: str, options: ConnectionOptions, limits: Limits) -> NamedChannel:
    """Open a connection to a server at a WebSocket, Unix or TCP URL.

    Raises:
        ConnectionLost: The server cannot be reached, or rejects the connection.
        ValueError: The URL or an option is invalid.
        TypeError: An option does not fit the scheme of the URL.
    """
    if not is_connection_url(url):
        raise ValueError("the URL of a connection begins with ws://, wss://, unix: or tcp://")
    scheme, _, rest = url.partition(":")
    scheme = scheme.lower()
    if scheme in ("ws", "wss"):
        return await open_websocket_channel(
            url,
            headers=options.headers,
            token=options.token,
            ssl_context=options.ssl_context,
            limits=limits,
        )
    if options.headers or options.token is not None or options.ssl_context is not None:
        raise TypeError("headers, token and ssl_context are for HTTP and WebSocket URLs only")
    if scheme == "unix":
        return await open_unix_channel(rest, limits=limits)
    parts = urlsplit(url)
    if not parts.hostname or parts.port is None or parts.path:
        raise ValueError("the URL of a TCP server is tcp://host:port")
    return await open_tcp_channel(parts.hostname, parts.port, limits=limits)
