"""`mcp-trio call`: one call of a tool."""

from typing import TYPE_CHECKING, Any

import click

from mcp_trio._cli.servers import SERVER_EPILOG, Choices, ServerCommand, server_parameters

if TYPE_CHECKING:
    from mcp_trio._cli.arguments import Arguments, Given
    from mcp_trio._client import Client
    from mcp_trio._schema import CallToolResult


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
@click.option("--progress", is_flag=True, help="Report progress on stderr, terminal or not.")
@click.pass_context
def call(
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
    from mcp_trio._cli.arguments import read_words
    from mcp_trio._cli.progress import call_progress
    from mcp_trio._cli.session import in_session

    given = read_words(arguments)

    async def act(client: "Client") -> "CallToolResult":
        typed = await _typed(client, tool, given)
        with call_progress(tool, on_any_stderr=progress) as report:
            return await client.call_tool(tool, typed, progress=report)

    result, wire = in_session(Choices(**chosen), act, with_wire=as_json)
    if as_json:
        click.echo(bytes(wire[-1]))
    else:
        _print(result)
    context.exit(1 if result.is_error else 0)


async def _typed(client: "Client", tool: str, given: "Given") -> "Arguments":
    """The arguments in the types of the tool's schema, which is asked for only if need be."""
    from mcp_trio._cli.arguments import tool_arguments

    if isinstance(given, dict):
        return given
    if not given:
        return {}
    schemas = {each.name: each.input_schema for each in await client.list_tools()}
    if tool not in schemas:
        raise click.UsageError(f"the server has no tool {tool!r}; it has: {', '.join(schemas)}")
    return tool_arguments(given, schemas[tool])


def _print(result: "CallToolResult") -> None:
    from mcp_trio._cli.content_text import content_text
    from mcp_trio._cli.terminal import echo_error, echo_theirs

    text = content_text(result.content)
    if result.is_error:
        echo_error(text)
    elif _has_more(result):
        echo_theirs("\n".join(filter(None, (text, _structured_text(result)))))
    else:
        echo_theirs(text)


def _has_more(result: "CallToolResult") -> bool:
    """Whether there is structured content that no text says as well."""
    import msgspec

    from mcp_trio._schema import TextContent

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
