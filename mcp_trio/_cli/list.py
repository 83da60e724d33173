"""`mcp-trio list`: what a server offers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from mcp_trio._cli.servers import SERVER_EPILOG, Choices, ServerCommand, server_parameters

if TYPE_CHECKING:
    from mcp_trio._client import Client

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
    from mcp_trio._cli.schemas import typed_names

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
def list(  # noqa: A001  a module holds its command under the command's name
    kinds: tuple[str, ...],
    as_json: bool,  # noqa: FBT001  click passes a flag by its name
    **chosen: Any,
) -> None:
    """List the tools, resources, resource templates and prompts of a server."""
    from mcp_trio._cli.session import in_session

    async def act(client: "Client") -> dict[str, Sequence[Any]]:
        return await _fetch(client, kinds)

    found, wire = in_session(Choices(**chosen), act, with_wire=as_json)
    if as_json:
        click.echo(_merged(found, wire))
    else:
        _print(found)


async def _fetch(client: "Client", kinds: Sequence[str]) -> dict[str, Sequence[Any]]:
    """The items of each kind; what was not asked for by name may be missing."""
    from mcp_trio._errors import METHOD_NOT_FOUND, RequestError

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


def _print(found: Mapping[str, Sequence[Any]]) -> None:
    from mcp_trio._cli.tables import Column, Line, print_table
    from mcp_trio._cli.terminal import printable, styled

    narrow = {"arguments": Column("arguments", screen_columns_max=_ARGUMENTS_COLUMNS_MAX)}
    for place, (name, items) in enumerate(found.items()):
        kind = KINDS[name]
        if place:
            click.echo()
        click.echo(styled(f"{name}: {len(items) or 'none'}", bold=True))
        if items:
            lines = [Line(tuple(map(printable, kind.cells(item)))) for item in items]
            print_table([narrow.get(each, Column(each)) for each in kind.columns], lines)
