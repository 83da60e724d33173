"""`mcp-trio prompt`: a prompt, filled in."""

from typing import TYPE_CHECKING, Any

import click

from mcp_trio._cli.servers import SERVER_EPILOG, Choices, ServerCommand, server_parameters

if TYPE_CHECKING:
    from mcp_trio._client import Client
    from mcp_trio._schema import GetPromptResult


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
def prompt(
    name: str,
    arguments: tuple[str, ...],
    as_json: bool,  # noqa: FBT001  click passes a flag by its name
    **chosen: Any,
) -> None:
    """Fill in the prompt NAME, and print its messages, each under the role that speaks it."""
    from mcp_trio._cli.arguments import prompt_arguments, read_words
    from mcp_trio._cli.session import in_session

    texts = prompt_arguments(read_words(arguments))

    async def act(client: "Client") -> "GetPromptResult":
        return await client.get_prompt(name, texts)

    result, wire = in_session(Choices(**chosen), act, with_wire=as_json)
    if as_json:
        click.echo(bytes(wire[-1]))
    else:
        _print(result)


def _print(result: "GetPromptResult") -> None:
    from mcp_trio._cli.content_text import content_text
    from mcp_trio._cli.terminal import echo_theirs, styled

    for message in result.messages:
        click.echo(styled(f"{message.role}:", bold=True))
        echo_theirs(content_text([message.content]))
