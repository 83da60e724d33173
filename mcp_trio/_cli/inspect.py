"""`mcp-trio inspect`: everything that a server offers, as a page or as JSON.

The page is made by rich, which wraps long descriptions inside of their columns. All texts on it
come from the server, so unprintable characters are escaped.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from mcp_trio._cli.call import (
    LISTS,
    SERVER_EPILOG,
    SessionChoices,
    SessionCommand,
    fetch_lists,
    in_session,
    items_as_sent,
    session_parameters,
)
from mcp_trio._cli.output import echo_json, printable, printable_lines
from mcp_trio._cli.tool_arguments import (
    SCHEMA_DEPTH_MAX,
    alternatives,
    array_items,
    properties_of,
    resolved,
)
from mcp_trio._journal.conversation import members_of
from mcp_trio._journal.texts import json_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from mcp_trio._client.client import Client
    from mcp_trio.types import Implementation, Prompt, ServerCapabilities, Tool


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a server sends about itself; `lists` has the lists by the names in `LISTS`."""

    server: "Implementation"
    protocol_version: str
    capabilities: "ServerCapabilities"
    instructions: str | None
    lists: Mapping[str, Sequence[Any]]


async def fetch_facts(client: "Client") -> ServerFacts:
    """Request all lists of a server."""
    return ServerFacts(
        server=client.server_info,
        protocol_version=client.protocol_version,
        capabilities=client.server_capabilities,
        instructions=client.instructions,
        lists=await fetch_lists(client),
    )


# The page.

_ARGUMENT_COLUMNS: Final = ("argument", "type", "required", "default", "description")
_RESULT_COLUMNS: Final = ("result", *_ARGUMENT_COLUMNS[1:])

# Schemas that refer to each other can be followed in far more ways than there are schemas.
_SCHEMAS_MAX: Final = 2000

# Keywords of JSON Schema that bound a value, and how a type shows them.
_BOUNDS: Final[Mapping[str, str]] = {
    "format": "{}",
    "minimum": ">= {}",
    "exclusiveMinimum": "> {}",
    "maximum": "<= {}",
    "exclusiveMaximum": "< {}",
    "multipleOf": "multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "pattern": "pattern {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
}


def print_page(console: "Console", facts: ServerFacts) -> None:
    """Print a server's page to a console of rich, with each list below a heading."""
    server = facts.server
    _print(console, f"{server.name} {server.version}", style="bold")
    _print(console, server.title, server.description, server.website_url)
    _print(console, f"protocol version {facts.protocol_version}")
    capabilities: list[str] = []
    for name, value in msgspec.to_builtins(facts.capabilities).items():
        included = [key for key, each in value.items() if each is not False]
        capabilities.append(f"{name} ({', '.join(included)})" if included else name)
    _print(console, f"capabilities: {', '.join(capabilities) or 'none'}")
    if facts.instructions:
        _print(console, "instructions:")
        _print(console, facts.instructions, indent=2)
    for kind, items in facts.lists.items():
        console.print()
        _print(console, f"{kind}: {len(items) or 'none'}", style="bold underline")
        for item in items:
            console.print()
            if kind == "tools":
                _print_tool(console, item)
            elif kind == "prompts":
                _print_prompt(console, item)
            else:
                _print(console, getattr(item, "uri", None) or item.uri_template, style="bold cyan")
                details = (item.title, item.mime_type)
                _print(console, ", ".join([item.name, *filter(None, details)]), indent=2)
                _print(console, item.description, indent=2)
                _print_members(console, "annotations", item.annotations)
                _print_members(console, "_meta", item.meta)


def _print_tool(console: "Console", tool: "Tool") -> None:
    _print(console, tool.name, style="bold cyan")
    _print(console, tool.title, tool.description, indent=2)
    budget = schema_budget()
    _print_table(console, _ARGUMENT_COLUMNS, list(argument_rows(tool.input_schema, budget)))
    if tool.output_schema is not None:
        schema = tool.output_schema
        rows = [*_rows_inside(schema, schema, budget, "")]
        if not properties_of(schema):  # the result as a whole has a type
            text = str(schema.get("description", ""))
            rows.insert(0, ("", type_text(schema, schema, budget), "", "", text))
        _print_table(console, _RESULT_COLUMNS, rows)
    if next(budget, None) is None:
        _print(console, "the schemas are too large to be shown completely: see --json", indent=2)
    _print_members(console, "annotations", tool.annotations)
    _print_members(console, "execution", tool.execution)
    _print_members(console, "_meta", tool.meta)


def _print_prompt(console: "Console", prompt: "Prompt") -> None:
    _print(console, prompt.name, style="bold cyan")
    _print(console, prompt.title, prompt.description, indent=2)
    rows = [
        (each.name, "yes" if each.required else "no", each.description or each.title or "")
        for each in prompt.arguments or ()
    ]
    _print_table(console, ("argument", "required", "description"), rows)
    _print_members(console, "_meta", prompt.meta)


def _print(console: "Console", *texts: str | None, indent: int = 0, style: str = "") -> None:
    """Print each text that is not empty, with unprintable characters escaped."""
    from rich.text import Text

    for text in filter(None, texts):
        content = Text(printable_lines(text.strip()), style=style)
        console.print(_indented(content, indent))


def _print_table(console: "Console", columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, unless it has no rows, without the columns that are empty."""
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    shown = [0, *(at for at in range(1, len(columns)) if any(row[at] for row in rows))]
    for index in shown:
        table.add_column(columns[index], overflow="fold")  # long words are broken, not cut
    for row in rows:
        texts = (printable(" ".join(row[index].split())) for index in shown)
        table.add_row(*map(Text, texts))
    console.print(_indented(table, 2))


def _indented(content: "RenderableType", columns: int) -> "RenderableType":
    from rich.padding import Padding

    return Padding(content, (0, 0, 0, columns), expand=False)


def _print_members(console: "Console", name: str, value: object) -> None:
    """Print a JSON object in one line, unless it is None or empty."""
    members = msgspec.to_builtins(value)
    if members:
        texts = (f"{key}: {json_text(each)}" for key, each in members.items())
        _print(console, f"{name}: {', '.join(texts)}", indent=2)


# The arguments of a tool, from its JSON Schema. As in `call`, a schema may contain anything.


def schema_budget() -> Iterator[int]:
    """Return an iterator with an item for each schema of a tool that may be shown."""
    return iter(range(_SCHEMAS_MAX))


def argument_rows(
    schema: Mapping[str, Any],
    budget: Iterator[int],
    root: Mapping[str, Any] | None = None,
    path: str = "",
    outer: Sequence[str] = (),
) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield name, type, "yes" or "no" for required, default and description of each argument.

    The members of an object follow it, as `point.x`, and those of the objects of an array, as
    `points[].x`. Those of a schema that contains itself follow once, and none when the budget is
    used up. `outer` has an item for each schema that this one is inside of: the reference to it, if
    there is one.
    """
    root = schema if root is None else root
    required = array_items(schema.get("required"))
    for name, argument in properties_of(schema).items():
        # The members beside a `$ref`, such as a description, go before those that it refers to.
        members = {**resolved(argument, root), **members_of(argument)}
        default = json_text(members["default"]) if "default" in members else ""
        text = str(members.get("description") or members.get("title") or "")
        is_required = "yes" if name in required else "no"
        yield f"{path}{name}", type_text(argument, root, budget), is_required, default, text
        yield from _rows_inside(argument, root, budget, f"{path}{name}", outer)


def _rows_inside(
    schema: object,
    root: Mapping[str, Any],
    budget: Iterator[int],
    path: str,
    outer: Sequence[str] = (),
) -> Iterator[tuple[str, str, str, str, str]]:
    reference = str(members_of(schema).get("$ref", ""))
    if len(outer) >= SCHEMA_DEPTH_MAX or (reference and reference in outer):
        return
    if next(budget, None) is None:
        return
    outer = (*outer, reference)
    members = resolved(schema, root)
    if properties_of(members):
        yield from argument_rows(members, budget, root, f"{path}." if path else "", outer)
    elif "items" in members:
        yield from _rows_inside(members["items"], root, budget, f"{path}[]", outer)
    else:
        for alternative in alternatives(members):
            yield from _rows_inside(alternative, root, budget, path, outer)


def type_text(
    schema: object, root: Mapping[str, Any], budget: Iterator[int], depth: int = 0
) -> str:
    """Return the type that a schema inside of `root` describes, such as `integer, >= 1`."""
    # A schema that contains itself exceeds the depth.
    if depth > SCHEMA_DEPTH_MAX or next(budget, None) is None:
        return "any"
    members = resolved(schema, root)
    if "const" in members:
        return json_text(members["const"])
    if values := array_items(members.get("enum")):
        return " | ".join(map(json_text, values))
    if schemas := alternatives(members):
        texts = (type_text(each, root, budget, depth + 1) for each in schemas)
        return " | ".join(dict.fromkeys(texts))
    declared = members.get("type")
    names = [declared] if isinstance(declared, str) else array_items(declared)
    if "array" in names and members_of(members.get("items")):
        item = type_text(members["items"], root, budget, depth + 1)
        names = [f"array of {item}" if name == "array" else name for name in names]
    bounds = [text.format(members[key]) for key, text in _BOUNDS.items() if key in members]
    return ", ".join([" | ".join(map(str, names)) or "any", *bounds])


# `mcp-trio inspect`.


@click.command(
    cls=SessionCommand,
    short_help="Show everything that a server offers.",
    epilog=f"""\b
The page has the server's name, version, protocol version, capabilities and instructions, and each
tool, resource, resource template and prompt with its arguments.

\b
--json prints one object with the keys server, protocolVersion, capabilities, instructions, tools,
resources, resourceTemplates and prompts. All of them are always there; the items of the lists are
as the server sent them, and a list that the server does not offer is empty.

\b
--call reads lines such as `forecast city=Oslo days=2`, and calls the tool. /prompt and /read get
prompts and resources; /help lists the rest. On a terminal, Tab completes names, arguments and
values, Ctrl-C cancels the running call, and Ctrl-D ends. Otherwise the lines come from stdin.

{SERVER_EPILOG}
\b
Exit status: 0 success; 1 a request was rejected, the connection was lost, the time limit was
reached, or with --call and without a terminal, a line failed; 2 wrong usage; 130 interrupted.

\b
Examples:
  mcp-trio inspect server.py
  mcp-trio inspect server.py --call
  mcp-trio inspect --json -- npx -y some-server | jq '.tools[].name'
""",
)
@session_parameters
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--call", "opens_prompt", is_flag=True, help="Call the server from a prompt instead.")
@click.pass_context
def inspect_command(
    context: click.Context, /, *, as_json: bool, opens_prompt: bool, **chosen: Any
) -> None:
    """Show everything that a server offers, as a page."""
    if opens_prompt:
        from mcp_trio._cli.call_prompt import run_prompt

        if as_json:
            raise click.UsageError("--call prints results, not JSON: leave out --json")
        context.exit(run_prompt(SessionChoices(**chosen)))
    facts, raw_results = in_session(SessionChoices(**chosen), fetch_facts, with_raw_results=as_json)
    if as_json:
        lists: Mapping[str, Any] = items_as_sent(facts.lists, raw_results)
        members = {
            "server": facts.server,
            "protocolVersion": facts.protocol_version,
            "capabilities": facts.capabilities,
            "instructions": facts.instructions,
            **{kind.member: lists.get(kind.member, ()) for kind in LISTS.values()},
        }
        echo_json(msgspec.json.encode(members))
        return
    from rich.console import Console

    # In colours, and as wide as the screen, on a terminal only.
    width = None if sys.stdout.isatty() else 100
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        print_page(console, facts)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
