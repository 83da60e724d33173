"""A session with the server that the command line names."""

import contextlib
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click
import msgspec
import trio

from mcp_trio._cli.forms import Person
from mcp_trio._cli.servers import Choices
from mcp_trio._cli.targets import load_server
from mcp_trio._cli.terminal import echo_error
from mcp_trio._cli.urls import is_url, naming_header, refuse_headers
from mcp_trio._client import Client
from mcp_trio._client.config import ServerConfig, read_config
from mcp_trio._client.options import DEFAULT_REVISIONS
from mcp_trio._client.targets import Target, starts_command, url_of
from mcp_trio._errors import ConnectionLost, RecordingError, RequestTimeout
from mcp_trio._journal.reader import Flaw, first_loss, read_recording
from mcp_trio._journal.records import frame_of
from mcp_trio._limits import DEFAULT_LIMITS
from mcp_trio._recorder.sink import open_recording
from mcp_trio._schema import LoggingMessageParams
from mcp_trio._wire import Decoder, Response

_Value = TypeVar("_Value")


def in_session(
    choices: Choices, act: Callable[[Client], Awaitable[_Value]], *, with_wire: bool = False
) -> tuple[_Value, list[msgspec.Raw]]:
    """Connect to the chosen server; returns what `act` makes of that, and the results on the wire.

    These are the results of all requests of `act`, in order, to the byte; there are none without
    `with_wire`.

    Raises:
        click.UsageError: The choices name no server.
        TargetError: The same, for a TARGET.
        MCPError: Whatever went wrong with the server.
    """
    if not with_wire:
        return _connected(choices, act, None), []
    # Types keep what they know; a recording keeps everything.
    with tempfile.TemporaryDirectory(prefix="mcp-trio-") as folder:
        file = Path(folder) / "wire.mcprec.jsonl"
        return _connected(choices, act, file), _results(file)


def _results(file: Path) -> list[msgspec.Raw]:
    """All results in a client's recording, but for that of the handshake."""
    decoder = Decoder(json_depth_max=DEFAULT_LIMITS.json_depth_max)
    records = [item for item in read_recording(open_recording(file)) if not isinstance(item, Flaw)]
    if first_loss(records) is not None:
        raise RecordingError(f"no room for the results in {file.parent}")
    frames = [frame_of(each) or b"" for each in records if each.kind == "in"]
    messages = [message for frame in frames for message in decoder.messages(frame)]
    _, *results = [message.result for message in messages if isinstance(message, Response)]
    return results


def _connected(
    choices: Choices, act: Callable[[Client], Awaitable[_Value]], record: Path | None
) -> _Value:
    # A server in this process prints where it likes, but stdout is for what it answers.
    with contextlib.redirect_stdout(sys.stderr):
        client = _client(choices, record)
        try:
            return trio.run(_converse, client, choices, act)
        except RequestTimeout as error:
            raise RequestTimeout(
                error.method,
                error.budget,
                error.seconds,
                "--timeout",
                server=error.server,
                stderr_tail=error.stderr_tail,
            ) from None
        except ConnectionLost as error:
            raise naming_header(error) from None


async def _converse(
    client: Client, choices: Choices, act: Callable[[Client], Awaitable[_Value]]
) -> _Value:
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(client)
        except ValueError as error:  # a URL that is none
            raise click.UsageError(str(error)) from error
        if choices.log_level is not None and client.server_capabilities.logging is None:
            click.echo("the server offers no log", err=True)
        elif choices.log_level is not None:
            await client.set_log_level(choices.log_level)
        return await act(client)


def _client(choices: Choices, record: Path | None) -> Client:
    target = _target(choices)
    refuse_headers(choices.headers, url_of(target))
    return Client(
        target,
        name="mcp-trio",
        revisions=DEFAULT_REVISIONS if choices.revision is None else (choices.revision,),
        limits=choices.limits,
        record=record,
        raise_tool_errors=False,
        log=None if choices.log_level is None else _print_log,
        elicitation=Person(takes_defaults=choices.yes).answer,
        elicitation_modes=("form", "url"),
        headers=choices.headers or None,
        inherit_env=not isinstance(choices.server, str),
        stderr="inherit" if choices.stderr and starts_command(target) else None,
    )


def _target(choices: Choices) -> Target:
    if not isinstance(choices.server, str):
        if choices.config is not None:
            raise click.UsageError("--config names the server, and so does the command behind --")
        return choices.server
    if choices.config is not None:
        return _configured(choices.server, choices.config)
    return choices.server if is_url(choices.server) else load_server(choices.server)


def _configured(name: str, file: str) -> ServerConfig:
    servers = read_config(file)
    if name not in servers:
        raise click.UsageError(f"{file} has no server {name!r}; it has: {', '.join(servers)}")
    return servers[name]


def _print_log(message: LoggingMessageParams) -> None:
    data = message.data
    text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
    source = "" if message.logger is None else f" {message.logger}"
    echo_error(f"{message.level}{source}: {text}")
