"""What a client connects to, and how a channel to it is opened: one row for each kind."""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import attrs

from mcp_trio._client.config import ServerConfig
from mcp_trio._errors import ConnectionLost
from mcp_trio._limits import Limits
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.child_process import Command
from mcp_trio._transports.memory import memory_pair
from mcp_trio._transports.stdio_client import open_process_channel

Stderr: TypeAlias = Callable[[str], None] | Literal["inherit"]


@runtime_checkable
class Serving(Protocol):
    """A server object, known by its ability to serve a channel."""

    async def serve(self, channel: Channel) -> None:
        """Serves one session, until the channel ends."""
        ...


Target: TypeAlias = Command | ServerConfig | Serving | Channel
"""A command (a program and its arguments), one from a file, a server object, or a channel."""


@attrs.frozen(kw_only=True)
class ProcessOptions:
    """How a command is started; see `open_process_channel`."""

    env: Mapping[str, str] | None = None
    inherit_env: bool = False
    cwd: str | os.PathLike[str] | None = None
    stderr: Stderr | None = None


class Served(NamedTuple):
    """A server object and its end of the channel: somebody has to bring them together."""

    server: Serving
    channel: Channel


class Connected(NamedTuple):
    """A channel to the target, and how texts name the target until it has said its own name."""

    channel: Channel
    name: str
    served: Served | None = None


async def open_target(target: Target, *, process: ProcessOptions, limits: Limits) -> Connected:
    """A channel to `target`, which the caller owns.

    Raises:
        ConnectionLost: The command could not be started.
        TypeError: `target` is of no known kind, or `process` says how to start what is no command.
    """
    for is_it, open_it in _KINDS:
        if is_it(target):
            return await open_it(target, process, limits)
    raise TypeError(
        "a client connects to a command (a list: the program and its arguments),"
        f" a ServerConfig, a server object or a channel, not {target!r}"
    )


def _is_command(target: object) -> bool:
    return isinstance(target, Sequence) and not isinstance(target, str | bytes)


def _is_config(target: object) -> bool:
    return isinstance(target, ServerConfig)


def starts_command(target: object) -> bool:
    """Whether a process is started for `target`."""
    return _is_command(target) or _is_config(target)


def can_start(target: object) -> bool:
    """Whether a server can be had there once more when the first one has ended."""
    return starts_command(target) or _is_server(target)


def _is_server(target: object) -> bool:
    return isinstance(target, Serving)


def _is_channel(target: object) -> bool:
    return all(hasattr(target, name) for name in ("send", "receive", "aclose"))


async def _open_command(command: Command, process: ProcessOptions, limits: Limits) -> Connected:
    channel = await open_process_channel(
        command,
        env=process.env,
        inherit_env=process.inherit_env,
        cwd=process.cwd,
        stderr=process.stderr,
        limits=limits,
    )
    return Connected(channel, os.fspath(command[0]))


async def _open_config(config: ServerConfig, process: ProcessOptions, limits: Limits) -> Connected:
    if config.command is None:
        raise ConnectionLost("the server has a url, but this version connects to commands only")
    process = attrs.evolve(
        process, env={**config.env, **(process.env or {})}, cwd=process.cwd or config.cwd
    )
    return await _open_command([config.command, *config.args], process, limits)


async def _open_server(server: Serving, process: ProcessOptions, limits: Limits) -> Connected:
    _refuse_process_options(process)
    ours, theirs = memory_pair(limits=limits)
    return Connected(ours, "the server object", Served(server, theirs))


async def _open_channel(channel: Channel, process: ProcessOptions, _limits: Limits) -> Connected:
    _refuse_process_options(process)
    return Connected(channel, "the server")


def _refuse_process_options(process: ProcessOptions) -> None:
    if process != ProcessOptions():
        raise TypeError("env, inherit_env, cwd and stderr are for commands only")


_KINDS: Final[tuple[tuple[Callable[[object], bool], Callable[..., Awaitable[Connected]]], ...]] = (
    (_is_command, _open_command),
    (_is_config, _open_config),
    (_is_server, _open_server),
    (_is_channel, _open_channel),
)
