"""What a client connects to, and how a channel to it is opened: one row for each kind."""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Final,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    runtime_checkable,
)

import attrs

from mcp_trio._client.config import ServerConfig
from mcp_trio._limits import Limits
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.child_process import Command
from mcp_trio._transports.condition import OnState
from mcp_trio._transports.connections import ConnectionOptions, is_of_connection, open_connection
from mcp_trio._transports.memory import memory_pair
from mcp_trio._transports.stdio_client import open_process_channel

if TYPE_CHECKING:
    import ssl

    import httpx

Stderr: TypeAlias = Callable[[str], None] | Literal["inherit"]


@runtime_checkable
class Serving(Protocol):
    """A server object, known by its ability to serve a channel."""

    async def serve(self, channel: Channel) -> None:
        """Serves one session, until the channel ends."""
        ...


Target: TypeAlias = str | Command | ServerConfig | Serving | Channel
"""A URL, a command (a program and its arguments), one of both from a file, a server, a channel."""


@attrs.frozen(kw_only=True)
class ProcessOptions:
    """How a command is started; see `open_process_channel`."""

    env: Mapping[str, str] | None = None
    inherit_env: bool = False
    cwd: str | os.PathLike[str] | None = None
    stderr: Stderr | None = None


@attrs.frozen(kw_only=True, repr=False)
class WebOptions:
    """How a URL is asked; see `open_http_channel` and `open_websocket_channel`.

    `on_state` is for HTTP: how a connection stands that is one session, its client sees itself.
    """

    http: "httpx.AsyncClient | None" = None
    headers: Mapping[str, str] | None = None
    token: str | None = None
    ssl_context: "ssl.SSLContext | None" = None
    on_state: OnState | None = None
    is_old: bool = False


@attrs.frozen
class _Means:
    process: ProcessOptions
    web: WebOptions
    limits: Limits


NO_WEB_OPTIONS: Final = WebOptions()

_OF_HTTP: Final = ("http://", "https://")


class Served(NamedTuple):
    """A server object and its end of the channel: somebody has to bring them together."""

    server: Serving
    channel: Channel


class Connected(NamedTuple):
    """A channel to the target, and how texts name the target until it has said its own name."""

    channel: Channel
    name: str
    served: Served | None = None


async def open_target(
    target: Target,
    *,
    process: ProcessOptions,
    web: WebOptions = NO_WEB_OPTIONS,
    limits: Limits,
) -> Connected:
    """A channel to `target`, which the caller owns.

    Raises:
        ConnectionLost: The command could not be started.
        TypeError: `target` is of no known kind, or `process` says how to start what is no command,
            or `web` how to ask what is no URL.
        ValueError: A URL is none.
    """
    means = _Means(process, web, limits)
    for is_it, open_it in _KINDS:
        if is_it(target):
            return await open_it(target, means)
    raise TypeError(
        "a client connects to a URL, a command (a list: the program and its arguments),"
        f" a ServerConfig, a server object or a channel, not {target!r}"
    )


def _is_url(target: object) -> bool:
    return isinstance(target, str)


def url_of(target: object) -> str | None:
    """Where it is reached by a URL; None if it is not."""
    if isinstance(target, ServerConfig) and target.command is None:
        return target.url
    return target if isinstance(target, str) else None


def has_url(target: object) -> bool:
    """Whether it is asked by requests of HTTP, of which each can be lost by itself."""
    url = url_of(target)
    return url is not None and not is_of_connection(url)


def has_connection(target: object) -> bool:
    """Whether it is reached by a URL whose connection is one session."""
    url = url_of(target)
    return url is not None and is_of_connection(url)


def _is_command(target: object) -> bool:
    return isinstance(target, Sequence) and not isinstance(target, str | bytes)


def _is_config(target: object) -> bool:
    return isinstance(target, ServerConfig)


def starts_command(target: object) -> bool:
    """Whether a process is started for `target`."""
    return _is_command(target) or (isinstance(target, ServerConfig) and url_of(target) is None)


def can_start(target: object) -> bool:
    """Whether a server can be had there once more when the first one has ended."""
    return starts_command(target) or _is_server(target) or has_connection(target)


def _is_server(target: object) -> bool:
    return isinstance(target, Serving)


def _is_channel(target: object) -> bool:
    return all(hasattr(target, name) for name in ("send", "receive", "aclose"))


async def _open_url(url: str, means: _Means) -> Connected:
    _refuse_process_options(means)
    web = means.web
    if is_of_connection(url):
        return await _open_connection(url, web, means.limits)
    if not url.lower().startswith(_OF_HTTP):
        raise ValueError(
            "the URL of a server begins with http:// or https:// and its host, or with ws://,"
            " wss://, unix: or tcp://; a command is a list: the program and its arguments"
        )
    if web.ssl_context is not None:
        raise TypeError("ssl_context is for wss:// only: bring http= for https://")
    from mcp_trio._protocol.websocket import bearer
    from mcp_trio._transports.http.client_channel import open_http_channel

    channel = await open_http_channel(
        url,
        http=web.http,
        headers={**bearer(web.token), **(web.headers or {})},
        limits=means.limits,
        on_state=web.on_state,
        is_old=web.is_old,
    )
    return Connected(channel, channel.name)


async def _open_connection(url: str, web: WebOptions, limits: Limits) -> Connected:
    if web.http is not None:
        raise TypeError("http is for http:// and https:// only")
    options = ConnectionOptions(headers=web.headers, token=web.token, ssl_context=web.ssl_context)
    channel = await open_connection(url, options, limits)
    return Connected(channel, channel.name)


async def _open_command(command: Command, means: _Means) -> Connected:
    _refuse_web_options(means)
    process = means.process
    channel = await open_process_channel(
        command,
        env=process.env,
        inherit_env=process.inherit_env,
        cwd=process.cwd,
        stderr=process.stderr,
        limits=means.limits,
    )
    return Connected(channel, os.fspath(command[0]))


async def _open_config(config: ServerConfig, means: _Means) -> Connected:
    if config.command is None:
        assert config.url is not None
        headers = {**config.headers, **(means.web.headers or {})}
        web = attrs.evolve(means.web, headers=headers)
        return await _open_url(config.url, attrs.evolve(means, web=web))
    given = means.process
    process = attrs.evolve(
        given, env={**config.env, **(given.env or {})}, cwd=given.cwd or config.cwd
    )
    command = [config.command, *config.args]
    return await _open_command(command, attrs.evolve(means, process=process))


async def _open_server(server: Serving, means: _Means) -> Connected:
    _refuse_process_options(means)
    _refuse_web_options(means)
    ours, theirs = memory_pair(limits=means.limits)
    return Connected(ours, "the server object", Served(server, theirs))


async def _open_channel(channel: Channel, means: _Means) -> Connected:
    _refuse_process_options(means)
    _refuse_web_options(means)
    return Connected(channel, "the server")


def _refuse_process_options(means: _Means) -> None:
    if means.process != ProcessOptions():
        raise TypeError("env, inherit_env, cwd and stderr are for commands only")


def _refuse_web_options(means: _Means) -> None:
    if means.web != NO_WEB_OPTIONS:
        raise TypeError("http, headers, token and ssl_context are for URLs only")


_KINDS: Final[tuple[tuple[Callable[[object], bool], Callable[..., Awaitable[Connected]]], ...]] = (
    (_is_url, _open_url),
    (_is_command, _open_command),
    (_is_config, _open_config),
    (_is_server, _open_server),
    (_is_channel, _open_channel),
)
