"""Frames as `ws` cuts them, read by our ends: `python tools/interop/websocket_framing.py`.

It cuts messages into frames and characters into two, pings in between, sends too much, and hangs
up: to our server at each of its hosts, and where that dials. Prints what came of it; the
exit status is 1 if a trick went wrong, or was not played, or `ws` is not installed.
"""

import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import attrs
import trio
from interop_command import empty_table, show, sit
from peers import TYPESCRIPT, MissingPeer, is_installed
from progress_lines import Telling, hear
from rich.table import Table

from mcp_trio import Limits, Server
from mcp_trio.limits import HttpLimits, MessageLimits, WebSocketLimits

PROGRAM: Final = "framing.mjs"
SECONDS_MAX: Final = 60.0
FRAME_BYTES_MAX: Final = 2 * 1024 * 1024
PING_SECONDS: Final = 0.1
RIGHT: Final = "ok"
TRICKS: Final = (
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


def make_server() -> Server:
    """One that says what it hears."""
    limits = Limits(
        messages=MessageLimits(bytes_max=FRAME_BYTES_MAX),
        websocket=WebSocketLimits(ping_interval_seconds=PING_SECONDS, pong_seconds=SECONDS_MAX),
        http=HttpLimits(sse_retry_ms=1),
    )
    server = Server("framing", limits=limits)

    @server.tool
    async def echo(text: str) -> str:
        return text

    return server


@attrs.define
class Meeting(Telling):
    """What came of `ws` and one of our ends: a step is a trick."""

    end: str

    def fault_of(self, trick: str) -> str:
        """What is wrong with one, or nothing."""
        told = self.told.get(trick, f"was not played: {self.complaint}")
        return "" if told == RIGHT else told


Serve: TypeAlias = Callable[..., Awaitable[None]]
Meet: TypeAlias = Callable[[Meeting], Awaitable[None]]


def _met_at(serve: Callable[[Server], Serve]) -> Meet:
    """`ws` connects to our server, served in that way."""

    async def meet(meeting: Meeting) -> None:
        async with trio.open_nursery() as nursery:
            url: str = await nursery.start(serve(make_server()))
            place = f"ws://{url.split('/')[2]}/ws"
            await _play([place], meeting.note, meeting.complain)
            nursery.cancel_scope.cancel()

    return meet


async def _met_by_dialling(meeting: Meeting) -> None:
    """Our server dials to where `ws` listens, which it says first."""
    async with trio.open_nursery() as nursery:

        def note(line: str) -> None:
            if line.startswith("ws://"):
                nursery.start_soon(make_server().dial, line)
            else:
                meeting.note(line)

        await _play([], note, meeting.complain)
        nursery.cancel_scope.cancel()


async def _play(
    place: Sequence[str], note: Callable[[str], None], complain: Callable[[str], None]
) -> None:
    """Let `ws` play its tricks, and hear of them; it is killed if that takes too long."""
    with trio.move_on_after(SECONDS_MAX):
        await hear([*TYPESCRIPT.start(PROGRAM), *place], note, complain)


ENDS: Final[Mapping[str, Meet]] = {
    "serve_websocket": _met_at(lambda server: partial(server.serve_websocket, port=0)),
    "native": _met_at(lambda server: partial(server.serve_http, port=0, server="native")),
    "hypercorn": _met_at(lambda server: partial(server.serve_http, port=0, server="hypercorn")),
    "dial": _met_by_dialling,
}


def meet_all(_folder: Path) -> list[Meeting]:
    """Let `ws` play with each of our ends.

    Raises:
        MissingPeer: It is not installed.
    """
    if not is_installed(TYPESCRIPT):
        raise MissingPeer(f"ws {TYPESCRIPT.pins()['ws']}")
    meetings = [Meeting(end) for end in ENDS]

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for meeting in meetings:
                nursery.start_soon(ENDS[meeting.end], meeting)

    trio.run(main)
    return meetings


def table_of(meetings: Sequence[Meeting]) -> Table:
    """Each trick at each end."""
    table = empty_table()
    table.add_column(f"ws {TYPESCRIPT.pins()['ws']}", no_wrap=True)
    for meeting in meetings:
        table.add_column(meeting.end)
    for trick in TRICKS:
        faults = (meeting.fault_of(trick) for meeting in meetings)
        table.add_row(trick, *("[bold red]-[/]" if fault else RIGHT for fault in faults))
    return table


def complaints(meetings: Sequence[Meeting]) -> Iterator[str]:
    """What must not be, in sentences."""
    for meeting in meetings:
        for trick in TRICKS:
            if fault := meeting.fault_of(trick):
                yield f"{meeting.end}: {trick}: {fault}"
        for trick in meeting.told.keys() - set(TRICKS):
            yield f"{meeting.end}: {trick}: nobody asked for that"


def report(meetings: Sequence[Meeting], seconds: float) -> bool:
    """Print everything; returns whether it is as it should be."""
    found = list(complaints(meetings))
    show(table_of(meetings), found)
    print(f"{len(meetings)} ends, {len(TRICKS)} tricks, {len(found)} complaints, {seconds:.0f} s")
    return not found


if __name__ == "__main__":
    # Of each trick there is a warning, which nobody needs to read.
    logging.basicConfig(level=logging.ERROR)
    sys.exit(sit(meet_all, report))
