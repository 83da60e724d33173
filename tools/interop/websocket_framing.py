"""Send unusual WebSocket frames to our servers: `python tools/interop/websocket_framing.py`.

`ws` splits messages and characters into frames, pings in between, sends too much, and disconnects:
at each of our WebSocket servers, and where our server dials. Prints a table of cases and endpoints;
the exit status is 1 if a case failed or was not run, or if `ws` is not installed.
"""

import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import attrs
import trio
from interop_command import Progress, new_table, run_command, run_program, show, wrong
from peers import TYPESCRIPT, MissingPeer, is_installed
from rich.table import Table

from mcp_trio import Limits, Server
from mcp_trio.limits import HttpLimits, MessageLimits, WebSocketLimits
from mcp_trio.types import TextContent

PROGRAM: Final = "websocket_framing.mjs"
SECONDS_MAX: Final = 60.0
FRAME_BYTES_MAX: Final = 2 * 1024 * 1024
PING_SECONDS: Final = 0.1
RIGHT: Final = "ok"
CASES: Final = (
    "the handshake",
    "no compression",
    "1 MiB in frames of 4 KiB",
    "frames of one byte",
    "empty frames",
    "pings between frames",
    "pings of any size",
    "pongs unasked",
    "is pinged",
    "too much",
    "a binary message",
    "a close",
    "a close of our own",
    "a cut",
    "another connection",
)

# Features that hypercorn's WebSocket lacks through its public interface, with the reason. The guide
# "Deploy behind hypercorn" names all of them.
LACKING: Final[Mapping[tuple[str, str], str]] = {
    ("hypercorn", "no compression"): "hypercorn negotiates compression by itself",
    ("hypercorn", "pings between frames"): "wsproto 205: a ping within a compressed message fails",
    ("hypercorn", "too much"): "hypercorn closes the connection itself (1009)",
}


def make_server() -> Server:
    limits = Limits(
        messages=MessageLimits(bytes_max=FRAME_BYTES_MAX),
        websocket=WebSocketLimits(ping_interval_seconds=PING_SECONDS, pong_seconds=SECONDS_MAX),
        http=HttpLimits(sse_retry_ms=1),
    )
    server = Server("framing", limits=limits)

    @server.tool
    async def echo(text: str) -> TextContent:  # a string would be sent twice
        return TextContent(text=text)

    return server


@attrs.define
class EndpointResult(Progress):
    """The outcomes of all cases at one endpoint."""

    endpoint: str

    def failure_of(self, case: str) -> str:
        """Return what went wrong in a case, or an empty text."""
        outcomes = self.outcomes.get(case, f"was not run: {self.last_error}")
        return "" if outcomes == RIGHT else outcomes


Serve: TypeAlias = Callable[..., Awaitable[None]]
Run: TypeAlias = Callable[[EndpointResult], Awaitable[None]]


def _served_by(serve: Callable[[Server], Serve]) -> Run:
    """Return a function that lets `ws` connect to our server, served in this way."""

    async def run(result: EndpointResult) -> None:
        async with trio.open_nursery() as nursery:
            url: str = await nursery.start(serve(make_server()))
            url = f"ws://{url.split('/')[2]}/ws"
            await _run_cases([url], result.note, result.note_error)
            nursery.cancel_scope.cancel()

    return run


async def _dialled(result: EndpointResult) -> None:
    """Let our server dial the URL that `ws` prints first."""
    async with trio.open_nursery() as nursery:

        def note(line: str) -> None:
            if line.startswith("ws://"):
                nursery.start_soon(make_server().dial, line)
            else:
                result.note(line)

        await _run_cases([], note, result.note_error)
        nursery.cancel_scope.cancel()


async def _run_cases(
    url: Sequence[str], note: Callable[[str], None], note_error: Callable[[str], None]
) -> None:
    """Run the cases in `ws`, which is killed after a minute."""
    with trio.move_on_after(SECONDS_MAX):
        await run_program([*TYPESCRIPT.start(PROGRAM), *url], note, note_error)


ENDPOINTS: Final[Mapping[str, Run]] = {
    "serve_websocket": _served_by(lambda server: partial(server.serve_websocket, port=0)),
    "native": _served_by(lambda server: partial(server.serve_http, port=0, server="native")),
    "hypercorn": _served_by(lambda server: partial(server.serve_http, port=0, server="hypercorn")),
    "dial": _dialled,
}


def run_all(_folder: Path) -> list[EndpointResult]:
    """Run the cases at all endpoints at once."""
    if not is_installed(TYPESCRIPT):
        raise MissingPeer(f"ws {TYPESCRIPT.pins()['ws']}")
    results = [EndpointResult(endpoint) for endpoint in ENDPOINTS]

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for result in results:
                nursery.start_soon(ENDPOINTS[result.endpoint], result)

    trio.run(main)
    return results


def table_of(results: Sequence[EndpointResult]) -> Table:
    table = new_table(f"ws {TYPESCRIPT.pins()['ws']}", *(result.endpoint for result in results))
    for case in CASES:
        table.add_row(case, *(_cell(result, case) for result in results))
    return table


def _cell(result: EndpointResult, case: str) -> str:
    if not result.failure_of(case):
        return RIGHT
    return "lacking" if (result.endpoint, case) in LACKING else wrong("-")


def problems(results: Sequence[EndpointResult]) -> Iterator[str]:
    for result in results:
        for case in CASES:
            failure, is_lacking = result.failure_of(case), (result.endpoint, case) in LACKING
            if is_lacking and not failure:
                yield f"{result.endpoint}: {case}: works, so its row in LACKING can go"
            elif failure and not is_lacking:
                yield f"{result.endpoint}: {case}: {failure}"
        for case in result.outcomes.keys() - set(CASES):
            yield f"{result.endpoint}: {case}: unknown case"


def report(results: Sequence[EndpointResult], seconds: float) -> bool:
    """Print the table and the problems; return whether there are no problems."""
    show(table_of(results))
    for (endpoint, case), reason in LACKING.items():
        print(f"{endpoint}: {case}: lacking: {reason}")
    summary = f"{len(results)} endpoints, {len(CASES)} cases, {{}}, {seconds:.0f} s"
    return show(None, problems(results), summary)


if __name__ == "__main__":
    # Each case logs a warning, which is expected.
    logging.basicConfig(level=logging.ERROR)
    sys.exit(run_command(run_all, report))
