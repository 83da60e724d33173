"""The servers for pages in a browser, and the origins of the pages."""

import shutil
import subprocess
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

import trio
from browser_cases import HOSTS, ON_THE_WAY, TLS_HOSTS, TOKEN, TOOL, Host, Setting, greeting
from peers import NodeEnvironment

from mcp_trio import Context, Server

HERE: Final = Path(__file__).resolve().parent
PAGE: Final = "/page/index.html"
SANDBOXED: Final = f"{PAGE}?sandboxed"
BUNDLE_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.05

Addresses = Mapping[tuple[Host, Setting], str]
"""Addresses of servers (`127.0.0.1` and a port), by host and setting."""

Serve = Callable[..., Awaitable[None]]


# Pages


def bundle(environment: NodeEnvironment, folder: Path) -> None:
    """Copy the page into a folder, and bundle the SDKs beside it."""
    shutil.copytree(HERE / "page", folder / "page")
    esbuild = environment.start("node_modules/esbuild/bin/esbuild")
    script = str(environment.folder / "typescript.mjs")
    options = ["--bundle", "--log-level=error", f"--outfile={folder / 'page' / 'typescript.js'}"]
    subprocess.run([*esbuild, script, *options], check=True, timeout=BUNDLE_SECONDS)


class PageHandler(SimpleHTTPRequestHandler):
    """Serves files without logging; pages with `?sandboxed` get an opaque origin."""

    def end_headers(self) -> None:
        if self.path == SANDBOXED:
            self.send_header("Content-Security-Policy", "sandbox allow-scripts")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base's name
        ...


@contextmanager
def pages_of(folder: Path) -> Generator[str]:
    """Serve the files of a folder as an origin."""
    handler = partial(PageHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=[POLL_SECONDS])
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


# Servers


def server_with_greeting(greeted: set[str]) -> Server:
    """Return a server whose tool notes each name that it has greeted."""
    server = Server("browser")

    @server.tool(name=TOOL)
    async def greet(name: str, *, ctx: Context) -> str:
        """Greet a name."""
        greeted.add(name)
        await ctx.report_progress(1, total=2, message=ON_THE_WAY)
        return greeting(name)

    return server


async def serve_all(
    nursery: trio.Nursery, server: Server, origin: str, secured: Mapping[str, str]
) -> Addresses:
    """Serve at every host, in every setting; return the addresses."""
    settings: Mapping[Setting, Mapping[str, Any]] = {
        "open": {"allows_cors": True},
        "token": {"allows_cors": True, "token": TOKEN},
        "unreadable": {},
        "TLS": {"allows_cors": True, **secured},
    }
    addresses: dict[tuple[Host, Setting], str] = {}
    for setting, options in settings.items():
        for host in TLS_HOSTS if setting == "TLS" else HOSTS:
            serve = _serving(server, host, {**options, "origins": [origin]})
            url: str = await nursery.start(serve)
            addresses[host, setting] = url.split("/")[2]
    return addresses


def _serving(server: Server, host: Host, options: Mapping[str, Any]) -> Serve:
    if host != "listener":
        return partial(server.serve_http, port=0, server=host, **options)
    rest = {name: value for name, value in options.items() if name != "allows_cors"}
    return partial(server.serve_websocket, port=0, **rest)
