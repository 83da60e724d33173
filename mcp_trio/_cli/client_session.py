"""A client session with the server that the command line names."""

import contextlib
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import click
import msgspec
import trio
from msgspec import UNSET, UnsetType

from mcp_trio._cli.options import (
    Choices,
    is_url,
    naming_header,
    reject_headers,
)
from mcp_trio._cli.output import echo_error, printable
from mcp_trio._cli.progress import bars_hidden
from mcp_trio._cli.targets import load_server
from mcp_trio._client.client import DEFAULT_PROTOCOL_VERSIONS, Client
from mcp_trio._client.config import ServerConfig, read_config
from mcp_trio._client.connect import Target, starts_command, url_of
from mcp_trio._journal.reader import Damage, first_loss, read_recording
from mcp_trio._journal.records import body_bytes
from mcp_trio._jsonrpc.messages import Decoder, Response
from mcp_trio._protocol.forms import choices_of, form_errors, with_defaults
from mcp_trio._recorder.files import open_recording
from mcp_trio.errors import ConnectionLost, RecordingError, RequestTimeout
from mcp_trio.limits import DEFAULT_LIMITS
from mcp_trio.types import ElicitParams, ElicitResult, LoggingMessageParams

# --------------------
# What a server wants to know while it works, asked of whoever sits at the terminal.
#
# Everything here goes to stderr: stdout is for what the server answers. A URL is shown in full, and
# never opened.


_BOOLEANS: Final = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
_PUNYCODE: Final = "xn--"
_DECLINED: Final = ElicitResult(action="decline")
_Answer = Callable[[ElicitParams], ElicitResult]


class Person:
    """Answers a server's questions, one after the other.

    With `takes_defaults` nobody is asked: forms are accepted as they come, if every member that is
    required has a default. Otherwise somebody is asked if there is a terminal; if not, everything
    is declined.
    """

    def __init__(self, *, takes_defaults: bool) -> None:
        self._answer = answer_of(takes_defaults=takes_defaults)
        self._lock = trio.Lock()

    async def answer(self, params: ElicitParams) -> ElicitResult:
        """What the person says to a form or a URL. Cancelled: nobody waits for it any more."""
        async with self._lock:
            return await trio.to_thread.run_sync(self._answer, params, abandon_on_cancel=True)


def answer_of(*, takes_defaults: bool) -> _Answer:
    """How questions are answered here."""
    if takes_defaults:
        return by_defaults
    return asked if sys.stdin.isatty() else _unasked


def _unasked(params: ElicitParams) -> ElicitResult:
    return _declined(params, "stdin is not a terminal; --yes accepts the defaults")


def by_defaults(params: ElicitParams) -> ElicitResult:
    """Accept a form as it is; nothing else can be accepted without a person."""
    if params.requested_schema is None:
        return _declined(
            params, f"there is no terminal on which to confirm a visit to {params.url}"
        )
    content = with_defaults({}, params.requested_schema)
    mistakes = form_errors(content, params.requested_schema)
    if mistakes:
        return _declined(params, "; ".join(mistakes))
    return ElicitResult(action="accept", content=content)


def _declined(params: ElicitParams, why: str) -> ElicitResult:
    echo_error(f"the server asks: {params.message}\ndeclined: {why}")
    return _DECLINED


def asked(params: ElicitParams) -> ElicitResult:
    """Ask on the terminal; the end of the input (Ctrl-D) declines."""
    with bars_hidden():
        echo_error(f"the server asks: {params.message} (Ctrl-D declines)")
        try:
            if params.requested_schema is None:
                return _visited(params.url or "")
            return _filled_in(params.requested_schema)
        except click.Abort:
            click.echo(err=True)
            return _DECLINED


def _visited(url: str) -> ElicitResult:
    host = _host(url) or "no host"
    echo_error(url)
    if _PUNYCODE in host:
        echo_error("warning: this host name may imitate one that you know")
    return _confirmed(f"Open {printable(host)} in a browser and continue?")


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _filled_in(schema: Mapping[str, Any]) -> ElicitResult:
    properties = cast("Mapping[str, Any]", schema.get("properties") or {})
    if not properties:
        return _confirmed("Accept?")
    required = cast("Sequence[str]", schema.get("required") or ())
    said = {name: _member(name, each, name in required) for name, each in properties.items()}
    content = {name: value for name, value in said.items() if value is not UNSET}
    return _confirmed("Send this?", content)


def _confirmed(question: str, content: dict[str, Any] | None = None) -> ElicitResult:
    if click.confirm(question, default=True, err=True):
        return ElicitResult(action="accept", content=content)
    return _DECLINED


def _member(name: str, member: Mapping[str, Any], is_required: bool) -> Any:  # noqa: FBT001  in place
    """Ask for one member until what is said fits; nothing is left out."""
    default = _text(member["default"]) if "default" in member else None if is_required else ""
    return click.prompt(
        _label(name, member),
        default=default,
        show_default=bool(default),
        value_proc=partial(_value, name, member),
        err=True,
    )


def _label(name: str, member: Mapping[str, Any]) -> str:
    """What the member is, and what may be said."""
    items = member.get("items") if member.get("type") == "array" else member
    choices = choices_of(items)
    facts = (
        member.get("description"),
        None if choices is None else f"of {', '.join(map(str, choices))}",
        _HINTS.get(str(member.get("type"))),
    )
    more = "; ".join(str(fact) for fact in facts if fact)
    label = f"{member.get('title') or name} ({more})" if more else str(member.get("title") or name)
    return printable(label)


_HINTS: Final = {"array": "with commas between them", "boolean": "y or n"}


def _value(name: str, member: Mapping[str, Any], text: str) -> Any | UnsetType:
    if not text:
        return UNSET
    value = _READERS.get(str(member.get("type")), str)(text)
    mistakes = form_errors({name: value}, {"properties": {name: member}})
    if mistakes:
        raise click.BadParameter(mistakes[0])
    return value


def _text(default: Any) -> str:
    """A default as one would type it."""
    if isinstance(default, list):
        return ", ".join(map(str, cast("Sequence[Any]", default)))
    return str(default).lower() if isinstance(default, bool) else str(default)


def _number(text: str) -> Any:
    """A number if it is one; what is none will be told to be a mistake."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _boolean(text: str) -> Any:
    return _BOOLEANS.get(text.lower(), text)


def _list(text: str) -> list[str]:
    return [each.strip() for each in text.split(",")]


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "integer": _number,
    "number": _number,
    "boolean": _boolean,
    "array": _list,
}


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
    decoder = Decoder(json_depth_max=DEFAULT_LIMITS.messages.json_depth_max)
    records = [
        item for item in read_recording(open_recording(file)) if not isinstance(item, Damage)
    ]
    if first_loss(records) is not None:
        raise RecordingError(f"no room for the results in {file.parent}")
    frames = [body_bytes(each) or b"" for each in records if each.kind == "in"]
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
            click.echo("the server does not offer logging", err=True)
        elif choices.log_level is not None:
            await client.set_log_level(choices.log_level)
        return await act(client)


def _client(choices: Choices, record: Path | None) -> Client:
    target = _target(choices)
    reject_headers(choices.headers, url_of(target))
    return Client(
        target,
        name="mcp-trio",
        protocol_versions=DEFAULT_PROTOCOL_VERSIONS
        if choices.protocol_version is None
        else (choices.protocol_version,),
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
