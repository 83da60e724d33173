"""`mcp-trio dev`: serve a server while its code changes."""

import contextlib
import sys
import tempfile
from functools import partial
from pathlib import Path

import click

from mcp_trio._cli.completion import complete_targets
from mcp_trio._cli.options import listening
from mcp_trio._cli.output import echo_text


@click.command(
    short_help="Serve a server while its code changes.",
    epilog="""\b
The server is served over HTTP, and over WebSocket at /ws. When a Python file in a folder of the
server's own modules changes, the server is imported anew, in a new process. If that fails, the
error is printed, and the last version goes on serving. Otherwise the sessions of the last version
end, their running calls are cancelled, and clients connect again to the same URL.

\b
The log has a line for each message: time, session, direction, method, id, duration, size, and
arguments or result. What the server prints goes to stderr.

\b
Keys: r replays the last recording with the code as it is now, l lists the recordings, h shows
help, q quits. A recording has one session, or all requests of stateless clients to one version.

\b
The MCP Inspector is opened with npx, which downloads it at first. A host that starts servers over
stdio connects with `mcp-trio bridge - URL`.

\b
Exit status: 0 success, also after SIGINT or SIGTERM; 2 the address cannot be used, or wrong
usage.

\b
Examples:
  mcp-trio dev server.py
  mcp-trio dev server.py --no-inspector --record recordings
  mcp-trio dev package.module:make --port 8000 --watch settings.toml
""",
)
@click.argument("target", shell_complete=complete_targets)
@click.option(
    "--host",
    metavar="NAME",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on.",
)
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    default=0,
    help="The port; by default any free one.",
)
@click.option(
    "--record",
    "folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the recordings in this folder; by default they are deleted at the end.",
)
@click.option(
    "--watch",
    "watched",
    metavar="PATH",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Also watch this file, or the Python files in this folder.",
)
@click.option(
    "--inspector/--no-inspector",
    "with_inspector",
    default=True,
    show_default=True,
    help="Open the MCP Inspector, if Node is installed.",
)
def dev_command(
    target: str,
    host: str,
    port: int,
    folder: Path | None,
    watched: tuple[Path, ...],
    *,
    with_inspector: bool,
) -> None:
    """Serve TARGET, file.py[:object] or package.module[:object], and reload it when it changes."""
    import trio

    from mcp_trio._cli.dev_server import ServeJob
    from mcp_trio._cli.reloader import (
        MessageLog,
        Reloader,
        Watcher,
        keys_from_terminal,
        serve_versions,
    )
    from mcp_trio._server.http_serve import HttpAddress, bound_sockets
    from mcp_trio._transports.sockets import netloc

    source = target.partition(":")[0]
    path = Path(source)
    if source.endswith(".py") and not path.is_file():
        raise click.UsageError(f"{path}: no such file")
    watcher = Watcher([path.parent if source.endswith(".py") else Path.cwd(), *watched])
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mcp-trio-")))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise click.UsageError(f"cannot create {folder}: {error.strerror}") from error
        attempt = stack.enter_context(listening(netloc(host, port), "URL:"))
        sockets = stack.enter_context(bound_sockets(host, port))
        for each in sockets:
            each.set_inheritable(True)
        job = ServeJob(
            target=target,
            sockets=[each.fileno() for each in sockets],
            host=host,
            recordings=str(folder),
            import_path=sys.path,
        )
        url = HttpAddress(host=host).url(sockets[0].getsockname()[1], "/mcp")
        terminal = stack.enter_context(keys_from_terminal())
        echo_text(f"recording to {folder}")
        trio.run(
            partial(
                serve_versions,
                Reloader(job, watcher, MessageLog()),
                url,
                with_inspector=with_inspector,
                terminal=terminal,
                on_serving=attempt.report_url,
            )
        )
