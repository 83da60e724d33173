"""`mcp-trio list`, `call`, `read` and `prompt`: use a server as its client."""

import contextlib
import sys
import tempfile
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, get_args

import click
import msgspec

from mcp_trio._cli.completion import complete_targets
from mcp_trio._cli.options import (
    POSITIVE,
    TakesServerCommand,
    check_headers,
    combined,
    command_after_dashes,
    header_option,
    is_url,
    load_server,
    with_header_hint,
)
from mcp_trio._cli.output import (
    Column,
    Line,
    call_bar,
    content_text,
    echo_error,
    echo_json,
    echo_peer_text,
    print_table,
    printable,
    prints_to_stderr,
    resource_bytes,
    resource_text,
    styled,
)
from mcp_trio._cli.tool_arguments import (
    ParsedArguments,
    arguments_with_types,
    parse_arguments,
    prompt_arguments,
    tool_arguments,
)
from mcp_trio._journal.texts import json_text
from mcp_trio._protocol.suggestions import did_you_mean
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS
from mcp_trio.errors import (
    METHOD_NOT_FOUND,
    AuthorizationError,
    ConnectionLost,
    MCPError,
    RecordingError,
    RequestError,
    RequestTimeout,
    Unencodable,
)
from mcp_trio.limits import DEFAULT_LIMITS, RequestLimits
from mcp_trio.types import LoggingLevel, LoggingMessageParams, TextContent

if TYPE_CHECKING:
    from mcp_trio._auth.credentials import OAuth
    from mcp_trio._client.callbacks import ElicitationCallback
    from mcp_trio._client.client import Client
    from mcp_trio._client.connect import Target
    from mcp_trio.types import CallToolResult, GetPromptResult


# SERVER, and the options for the session with it.

SERVER_EPILOG: Final = """\b
SERVER is a URL; or file.py[:object] or package.module[:object], which runs in this process; or,
with --config, a name from that file. COMMAND starts the server as a subprocess, which inherits
the environment. What a server prints goes to stderr.

\b
In --header 'Authorization: Bearer ${TOKEN}', the single quotes keep the token out of the process
list. SSL_CERT_FILE names certificates to trust.

\b
Elicitations of the server are asked on the terminal, where Ctrl-D declines; without a terminal,
they are declined.
"""


class SessionChoices(msgspec.Struct, frozen=True, kw_only=True):
    """The values of `session_parameters`: SERVER, and the options for the session with it."""

    server: str | Sequence[str]
    config: str | None
    headers: Mapping[str, str]
    timeout: float | None
    log_level: LoggingLevel | None
    stderr: bool
    protocol_version: str | None
    yes: bool


class SessionCommand(TakesServerCommand):
    """A command whose first argument is SERVER, unless there is a command after `--`."""

    server_index: ClassVar[int] = 1
    server_placeholder: ClassVar[Sequence[str]] = ("(after --)",)


def _server(context: click.Context, _: click.Parameter, text: str) -> str | Sequence[str]:
    command = command_after_dashes(context)
    return text if command is None else command


# The parameters of `SessionChoices`.
session_parameters: Final = combined(
    click.argument("server", callback=_server, shell_complete=complete_targets),
    click.option(
        "--config",
        metavar="FILE",
        type=click.Path(),
        help="Read the mcpServers of this file; SERVER is one of their names.",
    ),
    header_option,
    click.option(
        "--timeout",
        metavar="SECONDS",
        type=POSITIVE,
        help="Cancel a request that takes longer, and notify the server.",
    ),
    click.option(
        "--log-level",
        type=click.Choice(get_args(LoggingLevel)),
        help="Print the server's log messages of at least this level on stderr.",
    ),
    click.option(
        "--stderr",
        is_flag=True,
        help="Show the stderr of COMMAND; otherwise errors quote its last lines.",
    ),
    click.option(
        "--protocol-version",
        type=click.Choice(ALL_PROTOCOL_VERSIONS),
        help="Use only this protocol version.",
    ),
    click.option(
        "--yes",
        is_flag=True,
        help="Accept the server's forms with their default values, without asking.",
    ),
)


_Value = TypeVar("_Value")


def in_session(
    choices: SessionChoices,
    use: "Callable[[Client], Awaitable[_Value]]",
    *,
    with_raw_results: bool = False,
) -> tuple[_Value, list[msgspec.Raw]]:
    """Connect to the chosen server, and call `use` with the client.

    Returns:
        The value that `use` returns; and with `with_raw_results`, the results of all requests in
        order, as they were received.

    Raises:
        click.UsageError: The choices name no server, or contradict each other.
        TargetUsageError: SERVER is a TARGET that names no server.
        MCPError: The session failed.
    """
    import trio

    from mcp_trio._cli.elicitation import elicitation_callback

    async def connect_and_use() -> _Value:
        async with connected(client, choices):
            return await use(client)

    with contextlib.ExitStack() as stack:
        file = None
        if with_raw_results:  # the types drop unknown members; a recording keeps the bytes
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mcp-trio-"))
            file = Path(folder) / "wire.mcprec.jsonl"
        with prints_to_stderr(), option_hints(choices):
            elicitation = elicitation_callback(accepts_defaults=choices.yes)
            client = client_of(choices, elicitation, record=file)
            value = trio.run(connect_and_use)
        return value, [] if file is None else recorded_results(file)


def recorded_results(file: Path) -> list[msgspec.Raw]:
    """Return all results in a client's recording, except that of the handshake.

    Raises:
        RecordingError: The recording lost records, because the disk was full.
    """
    from mcp_trio._journal.conversation import conversation
    from mcp_trio._journal.records import Damage, first_loss, read_recording
    from mcp_trio._recorder.files import open_recording

    items = read_recording(open_recording(file))
    records = [item for item in items if not isinstance(item, Damage)]
    if first_loss(records) is not None:
        raise RecordingError(f"no disk space for the results in {file.parent}")
    # The first result is that of `initialize`, or of `server/discover`.
    _, *results = conversation(records).of("server", "result")
    return [each.body for each in results if each.body is not None]


@contextlib.asynccontextmanager
async def connected(client: "Client", choices: SessionChoices) -> AsyncGenerator[None]:
    """Connect the client, and set the log level; the connection is closed after the block."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(client)
        except ValueError as error:  # an invalid URL
            raise click.UsageError(str(error)) from error
        if choices.log_level is not None:
            if client.server_capabilities.logging is None:
                click.echo("the server does not offer logging", err=True)
            else:
                await client.set_log_level(choices.log_level)
        yield


@contextlib.contextmanager
def option_hints(choices: SessionChoices) -> Generator[None]:
    """Within this context, errors of a session name the options that help.

    Raises:
        click.UsageError: An argument of the command cannot be sent.
    """
    try:
        yield
    except Unencodable as error:
        raise click.UsageError(str(error)) from error
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
        from mcp_trio._client.connect import url_of

        url = url_of(_target(choices))
        if url is None:
            raise
        if isinstance(error, AuthorizationError):
            from mcp_trio._cli.auth import with_login_hint

            raise with_login_hint(error, url) from None
        named = with_header_hint(error)
        if named is not error and url.lower().startswith("http"):
            text = f"{named.reason}; if the server has a login page: mcp-trio auth login {url}"
            named = ConnectionLost(text, http_status=named.http_status)
        raise named from None


def client_of(
    choices: SessionChoices, elicitation: "ElicitationCallback", **options: Any
) -> "Client":
    """Return a client of the chosen server, which may be imported for that.

    `elicitation` answers the server's elicitations; `options` are further options of `Client`.

    Raises:
        click.UsageError: The choices name no server, or contradict each other.
        TargetUsageError: SERVER is a TARGET that names no server.
    """
    from mcp_trio._client.client import DEFAULT_PROTOCOL_VERSIONS, Client
    from mcp_trio._client.connect import starts_command, url_of

    target = _target(choices)
    url, headers = url_of(target), {**getattr(target, "headers", {}), **choices.headers}
    check_headers(choices.headers, url)
    limits, seconds = DEFAULT_LIMITS, choices.timeout
    if seconds is not None:
        requests = RequestLimits(
            probe_seconds=min(seconds, DEFAULT_LIMITS.requests.probe_seconds),
            initialize_seconds=seconds,
            idle_seconds=seconds,
            total_seconds=seconds,
        )
        limits = msgspec.structs.replace(DEFAULT_LIMITS, requests=requests)
    login: OAuth | None = None
    has_authorization = any(name.lower() == "authorization" for name in headers)
    if (
        url is not None
        and url.lower().startswith(("http://", "https://"))
        and not has_authorization
    ):
        from mcp_trio._cli.auth import stored_login

        try:
            login = stored_login(url)
        except ValueError as error:  # an invalid URL
            raise click.UsageError(str(error)) from error
    return Client(
        target,
        name="mcp-trio",
        protocol_versions=DEFAULT_PROTOCOL_VERSIONS
        if choices.protocol_version is None
        else (choices.protocol_version,),
        limits=limits,
        raise_tool_errors=False,
        log=None if choices.log_level is None else _print_log_message,
        elicitation=elicitation,
        elicitation_modes=("form", "url"),
        headers=choices.headers or None,
        auth=login,
        inherit_env=not isinstance(choices.server, str),
        stderr="inherit" if choices.stderr and starts_command(target) else None,
        **options,
    )


def _target(choices: SessionChoices) -> "Target":
    if not isinstance(choices.server, str):
        if choices.config is not None:
            raise click.UsageError("name one server: with --config, or its COMMAND after --")
        return choices.server
    if choices.config is None:
        return choices.server if is_url(choices.server) else load_server(choices.server)

    from mcp_trio._client.config import config_readers

    # The variables of the other servers may be unset.
    servers = config_readers(choices.config)
    if choices.server not in servers:
        raise click.UsageError(
            f"{choices.config} has no server {choices.server!r}; it has: {', '.join(servers)}"
            f"{did_you_mean(choices.server, servers)}"
        )
    return servers[choices.server]()


def _print_log_message(message: LoggingMessageParams) -> None:
    data = message.data
    text = data if isinstance(data, str) else json_text(data)
    source = "" if message.logger is None else f" {message.logger}"
    echo_error(f"{message.level}{source}: {text}")


# Of the commands that send one kind of request.
_REQUEST_EPILOG: Final = f"""{SERVER_EPILOG}
\b
Exit status: 0 success; 1 the request was rejected, the connection was lost, or the time limit was
reached; 2 wrong usage; 130 interrupted.
"""

# `mcp-trio call`.

_JSON_HELP: Final = "Print the result as the server sent it."


@click.command(
    cls=SessionCommand,
    short_help="Call a tool.",
    epilog=f"""\b
An ARGUMENT is key=value, where the value is a string if the tool's schema allows one, and JSON
otherwise; key:=value is always JSON. A single {{...}} is a JSON object with all arguments; @FILE
reads it from a file, and - from stdin.

{SERVER_EPILOG}
\b
Exit status: 0 success; 1 the tool failed (its text is on stderr), the request was rejected, the
connection was lost, or the time limit was reached; 2 wrong usage; 130 interrupted: the call is
cancelled at the server.

\b
Examples:
  mcp-trio call server.py forecast city=Oslo days=2
  mcp-trio call forecast '{{"city": "Oslo"}}' --json -- python server.py | jq .content
""",
)
@session_parameters
@click.argument("tool")
@click.argument("arguments", metavar="[ARGUMENT]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help=_JSON_HELP)
@click.option(
    "--progress", is_flag=True, help="Report progress on stderr even if it is not a terminal."
)
@click.pass_context
def call_command(
    context: click.Context,
    /,
    tool: str,
    arguments: tuple[str, ...],
    *,
    as_json: bool,
    progress: bool,
    **chosen: Any,
) -> None:
    """Call TOOL, show its progress, and print its result.

    Structured content is printed as JSON, unless one of the texts is the same JSON.
    """
    given = parse_arguments(arguments)

    async def call(client: "Client") -> "tuple[CallToolResult, str]":
        from mcp_trio._client.connect import starts_command
        from mcp_trio._client.results import is_internal_error

        result = await call_tool(client, tool, given, progress_on_any_stderr=progress)
        if not result.is_error or as_json:  # With --json, no other result may follow this one.
            return result, ""
        if is_internal_error(result) and starts_command(client.target) and not chosen["stderr"]:
            return result, "; --stderr shows what the server logged"
        # Some servers report an unknown tool in a result.
        is_unknown = tool in content_text(result.content)
        return result, await _suggestion(tool, client.list_tools) if is_unknown else ""

    (result, hint), raw_results = in_session(
        SessionChoices(**chosen), call, with_raw_results=as_json
    )
    if as_json:
        echo_json(bytes(raw_results[-1]))
    else:
        print_tool_result(result, hint)
    context.exit(1 if result.is_error else 0)


async def call_tool(
    client: "Client", tool: str, given: ParsedArguments, *, progress_on_any_stderr: bool = False
) -> "CallToolResult":
    """Call a tool with the parsed arguments, and report its progress.

    Raises:
        click.UsageError: The server has no such tool, or an argument has the wrong type.
        MCPError: The request failed; the text names the tool that was probably meant.
    """
    if isinstance(given, dict):
        typed = given
    elif not given:
        typed = {}
    else:  # only assignments need the tool's schema
        schemas = {each.name: each.input_schema for each in await client.list_tools()}
        if tool not in schemas:
            raise click.UsageError(
                f"the server has no tool {tool!r}; it has: {', '.join(schemas) or 'none'}"
                f"{did_you_mean(tool, schemas)}"
            )
        typed = tool_arguments(given, schemas[tool])
    try:
        with call_bar(tool, on_any_stderr=progress_on_any_stderr) as report:
            return await client.call_tool(tool, typed, progress=report)
    except RequestError as error:
        hint = await _suggestion(tool, client.list_tools)
        raise RequestError(error.code, f"{error.message}{hint}", error.data) from None


def print_tool_result(result: "CallToolResult", hint: str = "") -> None:
    """Print the result of a tool to stdout; the text of a failed tool to stderr, with `hint`."""
    text, structured = content_text(result.content), result.structured_content
    if result.is_error:
        echo_error(f"{text}{hint}")
        return
    texts = (part.text for part in result.content if isinstance(part, TextContent))
    if structured is not msgspec.UNSET and not _repeats(texts, structured):
        formatted = msgspec.json.format(msgspec.json.encode(structured)).decode()
        text = f"{text}\n{formatted}" if text else formatted
    echo_peer_text(text)


async def _suggestion(name: str, fetch: Callable[[], Awaitable[Iterable[Any]]]) -> str:
    """Return the end of an error text if the server has no tool, or no prompt, of this name."""
    try:
        names = [each.name for each in await fetch()]
    except MCPError:
        return ""
    return "" if name in names else did_you_mean(name, names)


def _repeats(texts: Iterable[str], structured: Any) -> bool:
    """Return whether a text repeats structured content, as JSON.

    A value that is not an object is wrapped in structured content: `5` repeats `{"result": 5}`.
    """
    for text in texts:
        values: list[Any] = [text]
        with contextlib.suppress(ValueError, RecursionError):
            values.append(msgspec.json.decode(text))
        if structured in [*values, *({"result": value} for value in values)]:
            return True
    return False


# `mcp-trio list`.

_ARGUMENTS_COLUMNS_MAX: Final = 40  # leaves room for the descriptions


class ListKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of list that servers announce by a capability, and how to request and print it.

    `member` is the name of the list in the result.
    """

    capability: str
    member: str
    fetch: "Callable[[Client], Any]"
    columns: tuple[str, ...]
    cells: Callable[[Any], tuple[str, ...]]


def _description_cells(resource: Any) -> tuple[str, ...]:
    return resource.name, resource.mime_type or "", _first_line(resource.description)


def _first_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines()
    return lines[0] if lines else ""


LISTS: Final[Mapping[str, ListKind]] = {
    "tools": ListKind(
        capability="tools",
        member="tools",
        fetch=lambda client: client.list_tools(),
        columns=("name", "arguments", "description"),
        cells=lambda tool: (
            tool.name,
            arguments_with_types(tool.input_schema),
            _first_line(tool.description),
        ),
    ),
    "resources": ListKind(
        capability="resources",
        member="resources",
        fetch=lambda client: client.list_resources(),
        columns=("URI", "name", "MIME type", "description"),
        cells=lambda resource: (resource.uri, *_description_cells(resource)),
    ),
    "templates": ListKind(
        capability="resources",
        member="resourceTemplates",
        fetch=lambda client: client.list_resource_templates(),
        columns=("URI template", "name", "MIME type", "description"),
        cells=lambda template: (template.uri_template, *_description_cells(template)),
    ),
    "prompts": ListKind(
        capability="prompts",
        member="prompts",
        fetch=lambda client: client.list_prompts(),
        columns=("name", "arguments", "description"),
        cells=lambda prompt: (
            prompt.name,
            " ".join(
                argument.name if argument.required else f"[{argument.name}]"
                for argument in prompt.arguments or ()
            ),
            _first_line(prompt.description),
        ),
    ),
}


async def fetch_lists(client: "Client", kinds: Collection[str] = ()) -> dict[str, Sequence[Any]]:
    """Request the lists of these kinds; without a kind, each list that the server offers."""
    lists: dict[str, Sequence[Any]] = {}
    for name, kind in LISTS.items():
        is_offered = getattr(client.server_capabilities, kind.capability) is not None
        if name not in kinds and (kinds or not is_offered):
            continue
        try:
            lists[name] = await kind.fetch(client)
        except RequestError as error:
            # Many servers with resources do not know the request for templates.
            if name in kinds or error.code != METHOD_NOT_FOUND:
                raise
    return lists


def items_as_sent(
    kinds: Iterable[str], raw_results: Iterable[msgspec.Raw]
) -> dict[str, list[msgspec.Raw]]:
    """Return the items of all pages of these lists, each as the server sent it, by member name."""
    members: dict[str, list[msgspec.Raw]] = {LISTS[kind].member: [] for kind in kinds}
    for page in raw_results:
        result = msgspec.json.decode(page, type=dict[str, msgspec.Raw])
        for member in members.keys() & result:
            members[member] += msgspec.json.decode(result[member], type=list[msgspec.Raw])
    return members


@click.command(
    cls=SessionCommand,
    short_help="List what a server offers.",
    epilog=f"""\b
KIND is tools, resources, templates or prompts; without a KIND, every list that the server offers
is printed. It may come before SERVER, too. Arguments in brackets are optional.

{_REQUEST_EPILOG}
\b
Examples:
  mcp-trio list server.py
  mcp-trio list tools --json -- python server.py | jq -r '.tools[].name'
""",
)
@session_parameters
@click.argument("kinds", metavar="[KIND]...", nargs=-1)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, with a list for each KIND."
)
def list_command(kinds: tuple[str, ...], *, as_json: bool, **chosen: Any) -> None:
    """List the tools, resources, resource templates and prompts of a server."""
    # A KIND may also come before SERVER, as it does before a `-- COMMAND`.
    server = chosen["server"]
    if isinstance(server, str) and server in LISTS and kinds and kinds[-1] not in LISTS:
        chosen["server"], kinds = kinds[-1], (server, *kinds[:-1])
    for name in kinds:
        if name not in LISTS:
            hint = did_you_mean(name, LISTS)
            raise click.UsageError(f"{name!r} is not one of {', '.join(LISTS)}{hint}")

    lists, raw_results = in_session(
        SessionChoices(**chosen),
        lambda client: fetch_lists(client, kinds),
        with_raw_results=as_json,
    )
    if as_json:
        echo_json(msgspec.json.encode(items_as_sent(lists, raw_results)))
        return

    narrow = {"arguments": Column("arguments", screen_columns_max=_ARGUMENTS_COLUMNS_MAX)}
    for index, (name, items) in enumerate(lists.items()):
        kind = LISTS[name]
        if index:
            click.echo()
        click.echo(styled(f"{name}: {len(items) or 'none'}", bold=True))
        if items:
            lines = [Line(tuple(kind.cells(item))) for item in items]
            print_table([narrow.get(each, Column(each)) for each in kind.columns], lines)


# `mcp-trio prompt`.


@click.command(
    cls=SessionCommand,
    short_help="Get a prompt.",
    epilog=f"""\b
An ARGUMENT is key=text. A single {{...}} is a JSON object with all arguments; @FILE reads it from
a file, and - from stdin.

{_REQUEST_EPILOG}
\b
Examples:
  mcp-trio prompt server.py plan_trip city=Oslo
  mcp-trio prompt plan_trip city=Oslo --json -- python server.py
""",
)
@session_parameters
@click.argument("name")
@click.argument("arguments", metavar="[ARGUMENT]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help=_JSON_HELP)
def prompt_command(name: str, arguments: tuple[str, ...], *, as_json: bool, **chosen: Any) -> None:
    """Get the prompt NAME with its arguments, and print each message below its role."""
    given = prompt_arguments(parse_arguments(arguments))
    result, raw_results = in_session(
        SessionChoices(**chosen),
        lambda client: get_prompt(client, name, given),
        with_raw_results=as_json,
    )
    if as_json:
        echo_json(bytes(raw_results[-1]))
        return
    print_prompt_result(result)


async def get_prompt(client: "Client", name: str, given: dict[str, str]) -> "GetPromptResult":
    """Get a prompt; the error of an unknown one names the prompt that was probably meant."""
    try:
        return await client.get_prompt(name, given)
    except RequestError as error:
        hint = await _suggestion(name, client.list_prompts)
        raise RequestError(error.code, f"{error.message}{hint}", error.data) from None


def print_prompt_result(result: "GetPromptResult") -> None:
    """Print each message of a prompt below its role."""
    for message in result.messages:
        click.echo(styled(f"{printable(message.role)}:", bold=True))
        echo_peer_text(content_text([message.content]))


# `mcp-trio read`.


@click.command(
    cls=SessionCommand,
    short_help="Read a resource.",
    epilog=f"""\b
A file or pipe gets the bytes of the resource; a terminal shows texts, and only the type and size
of other contents.

{_REQUEST_EPILOG}
\b
Examples:
  mcp-trio read server.py weather://Oslo/now
  mcp-trio read logo://large -o logo.png -- python server.py
""",
)
@session_parameters
@click.argument("uri")
@click.option("--json", "as_json", is_flag=True, help=_JSON_HELP)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.File("wb", lazy=True),
    help="Write the bytes of the resource to this file.",
)
def read_command(uri: str, *, as_json: bool, output: Any, **chosen: Any) -> None:
    """Read the resource URI, and print its contents."""
    result, raw_results = in_session(
        SessionChoices(**chosen),
        lambda client: client.read_resource(uri),
        with_raw_results=as_json,
    )
    content = bytes(raw_results[-1]) if as_json else b"".join(map(resource_bytes, result.contents))
    if output is not None:
        try:
            output.write(content)
            output.close_intelligently()
        except click.FileError as error:  # click opens the file at the first write
            raise click.BadParameter(error.format_message(), param_hint="'-o'") from error
        except OSError as error:
            raise click.ClickException(f"cannot write {output.name}: {error.strerror}") from error
    elif as_json:
        echo_json(content)
    elif sys.stdout.isatty():
        for each in result.contents:
            echo_peer_text(resource_text(each))
    else:
        click.echo(content, nl=False)
