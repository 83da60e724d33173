"""Attack our client: `python tools/attacks/client_attacks.py`.

An HTTP server in this process answers every request with a small body that is decoded to gigabytes.
A server on stdio sends nothing but faulty messages, each of which could be logged. The attacked
program runs in a process of its own, which measures the growth of its memory, the longest time for
which the event loop was held, and the log. The exit status is 1 if a limit was exceeded, or if an
error does not name the fault (Linux only).
"""

import argparse
import gzip
import io
import logging
import socketserver
import sys
import threading
import warnings
import zlib
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import httpx2
import trio
import zstandard
from attacked_process import AttackCost, cost_in_process, cost_of, print_cost

sys.path += [str(Path(__file__).resolve().parents[1] / each) for each in ("interop", "bench")]

from interop_command import new_table, show

from mcp_trio import Client, Context, Server
from mcp_trio.http import EffectTransport

SECONDS_MAX: Final = 10.0
LOG_BYTES_MAX: Final = 4_000
FLOOD_SECONDS: Final = 2.0
DECODED_BYTES: Final = 1 << 30


# The bodies.


def gzipped(size: int) -> bytes:
    """Return `size` spaces, compressed."""
    return b"".join(_gzip_pieces(size))


def _gzip_pieces(size: int) -> Generator[bytes]:
    compressor, piece = zlib.compressobj(9, wbits=31), b" " * (1 << 24)
    for _ in range(size // len(piece)):
        yield compressor.compress(piece)
    yield compressor.flush()


def zstd(size: int) -> bytes:
    """Return `size` spaces, compressed."""
    compressor, piece = zstandard.ZstdCompressor(19).compressobj(), b" " * (1 << 24)
    pieces = [compressor.compress(piece) for _ in range(size // len(piece))]
    return b"".join([*pieces, compressor.flush()])


def bombs() -> Mapping[str, tuple[str, bytes]]:
    """Return the `Content-Encoding` and the body of each attack."""
    once = gzipped(DECODED_BYTES)
    return {
        "gzip": ("gzip", once),
        "gzip twice": ("gzip, gzip", gzip.compress(once)),
        "zstd": ("zstd", zstd(DECODED_BYTES)),
    }


# The server.


@contextmanager
def serving(bodies: Mapping[str, tuple[str, bytes]]) -> Generator[int]:
    """Serve the bodies at paths such as `/JSON/gzip`; yield the port."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            path = self.rfile.readline().split()[1].decode()
            while self.rfile.readline().strip():
                pass
            _, media_type, name = path.split("/")
            encoding, body = bodies[name.replace("-", " ")]
            head = f"HTTP/1.1 200 OK\r\nContent-Type: {media_type.replace('_', '/')}\r\n"
            head += f"Content-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n"
            try:
                self.wfile.write(head.encode() + body)
                self.rfile.read()
            except OSError:
                pass  # the client has closed the connection

    class Threads(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Threads(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


# The attacked programs.


async def list_tools(url: str, http: Any = None) -> None:
    """Connect our client to the server."""
    async with Client(url, http=http) as client:
        await client.list_tools()


async def fetch(url: str, make: Callable[[], Any] | None = None) -> None:
    """Let the handler of a tool GET the URL, by `ctx.http` or by a client of its own."""
    server = Server("attacked")

    @server.tool
    async def fetch(ctx: Context) -> str:
        try:
            if make is None:
                await ctx.http.get(url)
            else:
                async with make() as http:
                    await http.get(url)
        except (httpx.HTTPError, httpx2.HTTPError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    async with Client(server) as client:
        result = await client.call_tool("fetch")
    raise RuntimeError(str(result.content))


PROGRAMS: Final[Mapping[str, Callable[[str], Awaitable[None]]]] = {
    "Client": list_tools,
    "Client(http=httpx)": lambda url: list_tools(url, httpx.AsyncClient(verify=False)),
    "ctx.http": fetch,
    "EffectTransport in httpx": lambda url: fetch(
        url,
        lambda: httpx.AsyncClient(
            transport=EffectTransport(httpx.AsyncHTTPTransport(verify=False)),
            headers={"Accept-Encoding": "br, zstd"},
        ),
    ),
}


_FLOOD: Final = """
import json, sys, time
write, line = sys.stdout.buffer.write, sys.argv[1].encode() + b"\\n"
while "initialize" not in (request := json.loads(input()))["method"]:
    error = {"code": -32601, "message": ""}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}), flush=True)
info = {"name": "", "version": ""}
result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": info}
print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    write(line * 100)
"""
FLOODS: Final = {"junk": "x", "unknown answers": '{"jsonrpc":"2.0","id":"never asked","result":{}}'}


async def be_flooded(line: str) -> None:
    """Connect our client to a server that sends the same line for `FLOOD_SECONDS`."""
    command = [sys.executable, "-c", _FLOOD, line, str(FLOOD_SECONDS)]
    async with Client(command):
        await trio.sleep(FLOOD_SECONDS)


def flooded(line: str) -> tuple[int, int]:
    """Return how many lines and bytes a flood adds to the log."""
    text = io.StringIO()
    logging.basicConfig(stream=text, force=True)
    trio.run(be_flooded, line)
    return text.getvalue().count("\n"), len(text.getvalue())


async def attacked(program: str, url: str) -> AttackCost:
    """Run a program, and measure it."""

    async def run() -> str:
        with trio.move_on_after(SECONDS_MAX):
            try:
                await PROGRAMS[program](url)
            except Exception as raised:
                return f"{type(raised).__name__}: {raised}"
            return "none"
        return f"none within {SECONDS_MAX:g} s"

    return await cost_of(run)


def warm_up(program: str) -> None:
    """Import what the program needs, as imports hold the event loop too."""
    warnings.simplefilter("ignore")
    trio.run(attacked, program, "http://127.0.0.1:1/application_json/gzip")


def problems_of(cost: AttackCost) -> Iterator[str]:
    yield from cost.problems()
    if not any(word in cost.outcome for word in ("Content-Encoding", "limits.")):
        yield f"the error does not name the fault: {cost.outcome}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Attack our client.")
    parser.add_argument("--program", choices=PROGRAMS, help="measure one program, at --url")
    parser.add_argument("--url")
    options = parser.parse_args(arguments)
    if options.program:
        warm_up(options.program)
        print_cost(trio.run(attacked, options.program, options.url))
        return 0
    bodies = bombs()
    table = new_table("program", "media type", "encoding", right=("bytes", "MiB", "held ms", "s"))
    table.add_column("error")
    problems: list[str] = []
    with serving(bodies) as port:
        for program in PROGRAMS:
            for media_type in ("application/json", "text/event-stream"):
                for name, (_, body) in bodies.items():
                    path = f"{media_type.replace('/', '_')}/{name.replace(' ', '-')}"
                    url = ("--url", f"http://127.0.0.1:{port}/{path}")
                    arguments = ("--program", program, *url)
                    cost = cost_in_process(__file__, *arguments, seconds_max=4 * SECONDS_MAX)
                    figures = (cost.memory_mib, cost.held_ms, cost.seconds)
                    cells = (f"{len(body):,}", *(f"{figure:,.1f}" for figure in figures))
                    table.add_row(program, media_type, name, *cells, cost.outcome[:300])
                    found = problems_of(cost)
                    problems += (f"{program}, {media_type}, {name}: {each}" for each in found)
    are_bodies_harmless = show(table, problems, "compressed bodies: {}")
    logs = new_table("flood", right=("lines logged", "bytes logged"))
    problems = []
    for name, line in FLOODS.items():
        lines, size = flooded(line)
        logs.add_row(name, f"{lines:,}", f"{size:,}")
        if size > LOG_BYTES_MAX:
            problems.append(f"{name}: {size:,} bytes were logged in {FLOOD_SECONDS:g} s")
    are_floods_harmless = show(logs, problems, "floods of faulty messages: {}")
    return 0 if are_bodies_harmless and are_floods_harmless else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
