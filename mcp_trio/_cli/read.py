"""`mcp-trio read`: the contents of a resource."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from mcp_trio._cli.servers import SERVER_EPILOG, Choices, ServerCommand, server_parameters

if TYPE_CHECKING:
    from mcp_trio._client import Client
    from mcp_trio._schema import ReadResourceResult, ResourceContents


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
def read(
    uri: str,
    as_json: bool,  # noqa: FBT001  click passes a flag by its name
    output: Any,
    **chosen: Any,
) -> None:
    """Read the resource URI, and print what is in it."""
    from mcp_trio._cli.session import in_session

    async def act(client: "Client") -> "ReadResourceResult":
        return await client.read_resource(uri)

    result, wire = in_session(Choices(**chosen), act, with_wire=as_json)
    content = bytes(wire[-1]) if as_json else _joined(result.contents)
    if output is not None:
        _write(output, content)
    elif as_json:
        click.echo(content)
    elif sys.stdout.isatty():
        _print(result.contents)
    else:
        click.echo(content, nl=False)


def _write(output: Any, content: bytes) -> None:
    try:
        output.write(content)
    except click.FileError as error:  # it is opened only now
        raise click.BadParameter(error.format_message(), param_hint="'-o'") from error


def _joined(contents: "Iterable[ResourceContents]") -> bytes:
    from mcp_trio._cli.content_text import resource_bytes

    return b"".join(map(resource_bytes, contents))


def _print(contents: "Iterable[ResourceContents]") -> None:
    from mcp_trio._cli.content_text import resource_text
    from mcp_trio._cli.terminal import echo_theirs

    for each in contents:
        echo_theirs(resource_text(each))
