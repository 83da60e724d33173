"""`mcp-trio list`, `call`, `read` and `prompt`: use a server."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import attrs
import click
import msgspec

from mcp_trio._cli.options import SERVER_EPILOG, Choices, ServerCommand, server_parameters

if TYPE_CHECKING:
    from mcp_trio._client.client import Client
    from mcp_trio.types import CallToolResult, GetPromptResult, ReadResourceResult, ResourceContents


# --------------------
# What a tool's JSON Schema says of its arguments, as far as a command line needs to know.
#
# Schemas come from servers: whatever does not look as it should says nothing, and the server
# decides.


_DEPTH_MAX: Final = 6
_ALTERNATIVES: Final = ("anyOf", "oneOf")

# What JSON Schema calls the types of values.
TYPE_NAMES: Final[Mapping[type, frozenset[str]]] = {
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    str: frozenset({"string"}),
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
    type(None): frozenset({"null"}),
}


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schemas of the arguments, by name."""
    return _members(schema.get("properties"))


def typed_names(schema: Mapping[str, Any]) -> str:
    """The arguments, as `city=string [days=integer]`."""
    return " ".join(_typed_names(schema))


def _typed_names(schema: Mapping[str, Any]) -> Iterator[str]:
    required = _items(schema.get("required"))
    for name, argument in properties_of(schema).items():
        types = "|".join(sorted(wanted_types(argument, schema)))
        typed = f"{name}={types or 'any'}"
        yield typed if name in required else f"[{typed}]"


def wanted_types(schema: object, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The names of the types that fit a schema inside `root`; none if it does not say."""
    members = _members(schema)
    if depth > _DEPTH_MAX:  # it refers to itself
        return frozenset()
    if "$ref" in members:
        return wanted_types(_referred(members["$ref"], root), root, depth + 1)
    names = _declared(members)
    for keyword in _ALTERNATIVES:
        for alternative in _items(members.get(keyword)):
            names |= wanted_types(alternative, root, depth + 1)
    return names


def _declared(members: Mapping[str, Any]) -> frozenset[str]:
    declared = members.get("type")
    names = [declared] if isinstance(declared, str) else _items(declared)
    values = _items(members.get("enum")) + ([members["const"]] if "const" in members else [])
    return frozenset(map(str, names)).union(*(TYPE_NAMES[type(value)] for value in values))


def _referred(reference: object, root: Mapping[str, Any]) -> object:
    """The schema at a pointer such as `#/$defs/Day`; None for any other reference."""
    place: object = root
    for step in str(reference).removeprefix("#/").split("/"):
        place = _members(place).get(step)
    return place


def _items(value: Any) -> list[Any]:
    return list(cast("Iterable[Any]", value)) if isinstance(value, list) else []


def _members(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


# --------------------
# The arguments of a tool or prompt, as a person types them.
#
# Words are `key=value` or `key:=json`; or there is a single one, which is the whole object as JSON,
# or says where that is: `@file`, or `-` for stdin. A value is what the tool's schema wants: a text
# is taken as it stands, anything else is read as JSON.


Arguments: TypeAlias = dict[str, Any]


@attrs.frozen
class Assignment:
    """One word: a name, and the text of its value, which `:=` declares to be JSON."""

    name: str
    text: str
    is_json: bool


Given: TypeAlias = Arguments | list[Assignment]
"""The whole object, or an assignment for each word."""


def read_words(words: Sequence[str]) -> Given:
    """The whole object, or an assignment for each word.

    Raises:
        click.UsageError: They are neither.
    """
    if len(words) == 1 and words[0].startswith(("{", "@", "-")):
        return _object(words[0])
    assignments = [_assignment(word) for word in words]
    names = [assignment.name for assignment in assignments]
    for name in names:
        if names.count(name) > 1:
            raise click.UsageError(f"{name}: given twice; write a list as {name}:='[...]'")
    return assignments


def tool_arguments(assignments: Iterable[Assignment], schema: Mapping[str, Any]) -> Arguments:
    """The arguments of a tool with this schema.

    Raises:
        click.UsageError: A value is not what the schema wants.
    """
    properties = properties_of(schema)
    return {
        each.name: _typed_value(each, wanted_types(properties.get(each.name), schema))
        for each in assignments
    }


def prompt_arguments(given: Given) -> dict[str, str]:
    """The arguments of a prompt, which are all texts.

    Raises:
        click.UsageError: One is not.
    """
    if isinstance(given, list):
        given = {each.name: _json(each) if each.is_json else each.text for each in given}
    for name, value in given.items():
        if not isinstance(value, str):
            raise click.UsageError(f"{name}: the arguments of a prompt must be strings")
    return given


def _assignment(word: str) -> Assignment:
    name, equals, text = word.partition("=")
    if not equals or not name.removesuffix(":"):
        raise click.UsageError(
            f"{word!r} is not an argument: write key=value, key:=json, or one {{...}}, @file or -"
        )
    return Assignment(name.removesuffix(":"), text, name.endswith(":"))


def _object(word: str) -> Arguments:
    try:
        return msgspec.json.decode(_source(word), type=dict[str, Any])
    except OSError as error:
        raise click.UsageError(f"{word}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"the arguments are not a JSON object: {error}") from error


def _source(word: str) -> str | bytes:
    if word == "-":
        return sys.stdin.buffer.read()
    return Path(word[1:]).read_bytes() if word.startswith("@") else word


def _typed_value(assignment: Assignment, wanted: frozenset[str]) -> Any:
    if assignment.is_json:
        return _json(assignment)
    if "string" in wanted:
        return assignment.text
    try:
        value = msgspec.json.decode(assignment.text)
    except (ValueError, RecursionError):
        value = assignment.text
    if wanted and not TYPE_NAMES[type(value)] & wanted:
        choices = " or ".join(sorted(wanted))
        raise click.UsageError(
            f"{assignment.name}: the tool wants {choices}, not {assignment.text!r}"
        )
    return value


def _json(assignment: Assignment) -> Any:
    try:
        return msgspec.json.decode(assignment.text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{assignment.name}: not JSON: {error}") from error


# --------------------
# `mcp-trio call`: one call of a tool.


@click.command(
    cls=ServerCommand,
    short_help="Call a tool.",
    epilog=f"""\b
An ARGUMENT is key=value: a text where the tool's schema wants a text, JSON where it wants
something else; key:=value is always JSON. A single {{...}} is all arguments, as JSON;
@FILE reads them from a file, and - from stdin.

{SERVER_EPILOG}
\b
Exit status: 0 done; 1 the tool says that it failed (its text is on stderr), or the server
refuses, is lost, or takes too long; 2 misused; 130 interrupted: the server is told to stop.

\b
Examples:
  mcp-trio call server.py forecast city=Oslo days=2
  mcp-trio call forecast '{{"city": "Oslo"}}' --json -- python server.py | jq .content
""",
)
@server_parameters
@click.argument("tool")
@click.argument("arguments", metavar="[ARGUMENT]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="The result as the server sent it.")
@click.option(
    "--progress", is_flag=True, help="Report progress on stderr even if it is not a terminal."
)
@click.pass_context
def call_command(
    context: click.Context,
    /,
    tool: str,
    arguments: tuple[str, ...],
    as_json: bool,  # noqa: FBT001  click passes a flag by its name
    progress: bool,  # noqa: FBT001  the same
    **chosen: Any,
) -> None:
    """Call TOOL, and print what it gives back; its progress is shown while it runs.

    Structured content is printed as JSON, unless one of the texts says the same.
    """
    from mcp_trio._cli.client_session import in_session
    from mcp_trio._cli.progress import call_progress

    given = read_words(arguments)

    async def act(client: "Client") -> "CallToolResult":
        typed = await _typed_arguments(client, tool, given)
        with call_progress(tool, on_any_stderr=progress) as report:
            return await client.call_tool(tool, typed, progress=report)

    result, wire = in_session(Choices(**chosen), act, with_wire=as_json)
    if as_json:
        click.echo(bytes(wire[-1]))
    else:
        _print_call(result)
    context.exit(1 if result.is_error else 0)


async def _typed_arguments(client: "Client", tool: str, given: "Given") -> "Arguments":
    """The arguments in the types of the tool's schema, which is asked for only if need be."""
    if isinstance(given, dict):
        return given
    if not given:
        return {}
    schemas = {each.name: each.input_schema for each in await client.list_tools()}
    if tool not in schemas:
        raise click.UsageError(f"the server has no tool {tool!r}; it has: {', '.join(schemas)}")
    return tool_arguments(given, schemas[tool])


def _print_call(result: "CallToolResult") -> None:
    from mcp_trio._cli.output import content_text, echo_error, echo_theirs

    text = content_text(result.content)
    if result.is_error:
        echo_error(text)
    elif _has_more(result):
        echo_theirs("\n".join(filter(None, (text, _structured_text(result)))))
    else:
        echo_theirs(text)


def _has_more(result: "CallToolResult") -> bool:
    """Return whether there is structured content that no text says as well."""
    import msgspec

    from mcp_trio.types import TextContent

    if result.structured_content is msgspec.UNSET:
        return False
    texts = (part.text for part in result.content if isinstance(part, TextContent))
    return all(_read(text) != result.structured_content for text in texts)


def _read(text: str) -> Any:
    """What a text says as JSON; itself if it is none."""
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text


def _structured_text(result: "CallToolResult") -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(result.structured_content)).decode()


# --------------------
# `mcp-trio list`: what a server offers.


# Descriptions need room as well.
_ARGUMENTS_COLUMNS_MAX: Final = 40


@attrs.frozen(kw_only=True)
class Kind:
    """One of the lists: where it comes from, and what of its items people want to see.

    `offer` is the capability that announces it, `member` its name on the wire.
    """

    offer: str
    member: str
    fetch: "Callable[[Client], Any]"
    columns: tuple[str, ...]
    cells: Callable[[Any], tuple[str, ...]]


def _tool(tool: Any) -> tuple[str, ...]:

    return tool.name, typed_names(tool.input_schema), _first_line(tool.description)


def _resource(resource: Any) -> tuple[str, ...]:
    return resource.uri, *_what_it_is(resource)


def _template(template: Any) -> tuple[str, ...]:
    return template.uri_template, *_what_it_is(template)


def _what_it_is(resource: Any) -> tuple[str, ...]:
    return resource.name, resource.mime_type or "", _first_line(resource.description)


def _prompt(prompt: Any) -> tuple[str, ...]:
    blanks = prompt.arguments or ()
    names = (blank.name if blank.required else f"[{blank.name}]" for blank in blanks)
    return prompt.name, " ".join(names), _first_line(prompt.description)


def _first_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines()
    return lines[0] if lines else ""


KINDS: Final[Mapping[str, Kind]] = {
    "tools": Kind(
        offer="tools",
        member="tools",
        fetch=lambda client: client.list_tools(),
        columns=("name", "arguments", "description"),
        cells=_tool,
    ),
    "resources": Kind(
        offer="resources",
        member="resources",
        fetch=lambda client: client.list_resources(),
        columns=("URI", "name", "MIME type", "description"),
        cells=_resource,
    ),
    "templates": Kind(
        offer="resources",
        member="resourceTemplates",
        fetch=lambda client: client.list_resource_templates(),
        columns=("URI template", "name", "MIME type", "description"),
        cells=_template,
    ),
    "prompts": Kind(
        offer="prompts",
        member="prompts",
        fetch=lambda client: client.list_prompts(),
        columns=("name", "arguments", "description"),
        cells=_prompt,
    ),
}


def _known_kinds(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    for word in words:
        if word not in KINDS:
            raise click.BadParameter(f"{word!r}: behind SERVER stand only {', '.join(KINDS)}")
    return words


@click.command(
    cls=ServerCommand,
    short_help="List what a server offers.",
    epilog=f"""\b
KIND is tools, resources, templates or prompts; without any, all that the server offers.
Arguments in brackets may be left out.

{SERVER_EPILOG}
\b
Exit status: 0 done; 1 the server refuses, is lost, or takes too long; 2 misused; 130 interrupted.

\b
Examples:
  mcp-trio list server.py
  mcp-trio list tools --json -- python server.py | jq -r '.tools[].name'
""",
)
@server_parameters
@click.argument("kinds", metavar="[KIND]...", nargs=-1, callback=_known_kinds)
@click.option("--json", "as_json", is_flag=True, help="One object, a list for each kind.")
def list_command(
    kinds: tuple[str, ...],
    as_json: bool,  # noqa: FBT001  click passes a flag by its name
    **chosen: Any,
) -> None:
    """List the tools, resources, resource templates and prompts of a server."""
    from mcp_trio._cli.client_session import in_session

    async def act(client: "Client") -> dict[str, Sequence[Any]]:
        return await _fetch(client, kinds)

    found, wire = in_session(Choices(**chosen), act, with_wire=as_json)
    if as_json:
        click.echo(_merged(found, wire))
    else:
        _print_list(found)


async def _fetch(client: "Client", kinds: Sequence[str]) -> dict[str, Sequence[Any]]:
    """The items of each kind; what was not asked for by name may be missing."""
    from mcp_trio.errors import METHOD_NOT_FOUND, RequestError

    found: dict[str, Sequence[Any]] = {}
    for name, kind in KINDS.items():
        is_offered = getattr(client.server_capabilities, kind.offer) is not None
        if name not in kinds and (kinds or not is_offered):
            continue
        try:
            found[name] = await kind.fetch(client)
        except RequestError as error:  # many servers have resources, but know of no templates
            if name in kinds or error.code != METHOD_NOT_FOUND:
                raise
    return found


def _merged(found: Iterable[str], wire: Iterable[Any]) -> bytes:
    """The lists of all pages in one object, each item as it was on the wire."""
    import msgspec

    members: dict[str, Any] = {KINDS[name].member: [] for name in found}
    for page in wire:
        parts = msgspec.json.decode(page, type=dict[str, msgspec.Raw])
        for member in members.keys() & parts:
            members[member] += msgspec.json.decode(parts[member], type=Sequence[msgspec.Raw])
    return msgspec.json.encode(members)


def _print_list(found: Mapping[str, Sequence[Any]]) -> None:
    from mcp_trio._cli.output import Column, Line, print_table, printable, styled

    narrow = {"arguments": Column("arguments", screen_columns_max=_ARGUMENTS_COLUMNS_MAX)}
    for place, (name, items) in enumerate(found.items()):
        kind = KINDS[name]
        if place:
            click.echo()
        click.echo(styled(f"{name}: {len(items) or 'none'}", bold=True))
        if items:
            lines = [Line(tuple(map(printable, kind.cells(item)))) for item in items]
            print_table([narrow.get(each, Column(each)) for each in kind.columns], lines)


# --------------------
# `mcp-trio prompt`: a prompt, filled in.


@click.command(
    cls=ServerCommand,
    short_help="Fill in a prompt.",
    epilog=f"""\b
An ARGUMENT is key=text. A single {{...}} is all arguments, as JSON; @FILE reads them
from a file, and - from stdin.

{SERVER_EPILOG}
\b
Exit status: 0 done; 1 the server refuses, is lost, or takes too long; 2 misused; 130 interrupted.

\b
Examples:
  mcp-trio prompt server.py plan_trip city=Oslo
  mcp-trio prompt plan_trip city=Oslo --json -- python server.py
""",
)
@server_parameters
@click.argument("name")
@click.argument("arguments", metavar="[ARGUMENT]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="The result as the server sent it.")
def prompt_command(
    name: str,
    arguments: tuple[str, ...],
    as_json: bool,  # noqa: FBT001  click passes a flag by its name
    **chosen: Any,
) -> None:
    """Fill in the prompt NAME, and print its messages, each under the role that speaks it."""
    from mcp_trio._cli.client_session import in_session

    texts = prompt_arguments(read_words(arguments))

    async def act(client: "Client") -> "GetPromptResult":
        return await client.get_prompt(name, texts)

    result, wire = in_session(Choices(**chosen), act, with_wire=as_json)
    if as_json:
        click.echo(bytes(wire[-1]))
    else:
        _print_prompt(result)


def _print_prompt(result: "GetPromptResult") -> None:
    from mcp_trio._cli.output import content_text, echo_theirs, styled

    for message in result.messages:
        click.echo(styled(f"{message.role}:", bold=True))
        echo_theirs(content_text([message.content]))


@click.command(
    cls=ServerCommand,
    short_help="Read a resource.",
    epilog=f"""\b
A file or a pipe gets the bytes of the resource, as they are; a terminal gets texts only,
and of the rest what it is.

{SERVER_EPILOG}
\b
Exit status: 0 done; 1 the server refuses, is lost, or takes too long; 2 misused; 130 interrupted.

\b
Examples:
  mcp-trio read server.py weather://Oslo/now
  mcp-trio read logo://large -o logo.png -- python server.py
""",
)
@server_parameters
@click.argument("uri")
@click.option("--json", "as_json", is_flag=True, help="The result as the server sent it.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.File("wb", lazy=True),
    help="Write the bytes of the resource to this file.",
)
def read_command(
    uri: str,
    as_json: bool,  # noqa: FBT001  click passes a flag by its name
    output: Any,
    **chosen: Any,
) -> None:
    """Read the resource URI, and print what is in it."""
    from mcp_trio._cli.client_session import in_session

    async def act(client: "Client") -> "ReadResourceResult":
        return await client.read_resource(uri)

    result, wire = in_session(Choices(**chosen), act, with_wire=as_json)
    content = bytes(wire[-1]) if as_json else _joined(result.contents)
    if output is not None:
        _write(output, content)
    elif as_json:
        click.echo(content)
    elif sys.stdout.isatty():
        _print_read(result.contents)
    else:
        click.echo(content, nl=False)


def _write(output: Any, content: bytes) -> None:
    try:
        output.write(content)
    except click.FileError as error:  # it is opened only now
        raise click.BadParameter(error.format_message(), param_hint="'-o'") from error


def _joined(contents: "Iterable[ResourceContents]") -> bytes:
    from mcp_trio._cli.output import resource_bytes

    return b"".join(map(resource_bytes, contents))


def _print_read(contents: "Iterable[ResourceContents]") -> None:
    from mcp_trio._cli.output import echo_theirs, resource_text

    for each in contents:
        echo_theirs(resource_text(each))
