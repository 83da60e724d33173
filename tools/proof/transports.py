"""Record one application over every transport, and compare: `python tools/proof/transports.py`.

The same client uses it over each: lists, a call with progress, a log message, an effect and an
elicitation, a resource, and a cancelled call. Each of the server's recordings is compared with that
of the first transport, member by member, and replayed strictly. `ENVELOPE` has the members that may
differ. Exits with 1 if another member differs, if one of these never differs, or if a replay
diverges.
"""

import argparse
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs
import msgspec
import trio
from rich.console import Console
from rich.table import Table

sys.path.append(str(Path(__file__).resolve().parents[2]))

from mcp_trio import Client, Context, Limits, Server
from mcp_trio._client.connect import Target
from mcp_trio._journal.diff import json_differences
from mcp_trio.errors import ReplayDivergence
from mcp_trio.limits import ShutdownLimits
from mcp_trio.recording import Record, TickClock, body_bytes, open_recording, read_recording, replay
from mcp_trio.transports import Channel, memory_pair
from tests.transports.channel_pairs import Pair, named_pipes_in, over_stdio

PROTOCOL_VERSIONS: Final = ("2025-11-25", "2026-07-28")
_FIRST: Final = "memory"
_SECONDS: Final = 30

ENVELOPE: Final[Mapping[str, tuple[str, str]]] = {
    "t": ("time", "when it happened"),
    "h": ("digest", "of the lines before, and so of all this"),
    "open $.transport": ("transport", "how the client was connected"),
    "open $.started": ("started", "when it began"),
    "open $.clock_ns": ("clock", "the time of the clock when it began"),
    "open $.session": ("session", "the recording's own name"),
    "open $.seed": ("seed", "drawn for each recording"),
    "shut $.cause": ("cause", "how the client left: with its connection, or by a request"),
    "in notifications/cancelled $.params.reason": ("reason", "stateless HTTP clients just go away"),
    'end $.counts["sessions beside"]': ("beside", "at /ws there is the session of HTTP, too"),
    "out $.result.requestState": ("state", "of a question, drawn for each"),
    "in tools/call $.params.requestState": ("state back", "the same, as it comes back"),
    "mark suspended $.value": ("state kept", "the same, in the server's notes"),
}
"""What may differ, by record and path: what it is called below, and what it is.

Over HTTP the application numbers stateless requests itself; the one client here would do it just
so.
"""


# The application, and its client ------------------------------------------------------------------


@attrs.frozen
class Unit:
    """The elicited form."""

    unit: str


@attrs.frozen
class Application:
    """A server, and an event that is set when its cancelled handler has ended."""

    server: Server
    cancelled: trio.Event


def application(protocol_version: str) -> Application:
    """Return a fresh application for one protocol version."""
    server = Server(
        "harbour", version="1", instructions="Mind the tide.", protocol_versions=[protocol_version]
    )
    cancelled = trio.Event()

    @server.tool
    async def tide(port: str, *, ctx: Context) -> str:
        """Tell the tide, by and by."""
        for step in (1, 2):
            await ctx.report_progress(step, 2, message=f"gauge {step}")
        await ctx.info("both gauges were read")
        metres = await ctx.effect(len, port)
        answer = await ctx.elicit("Which unit?", Unit)
        return f"{metres} {answer.data.unit} at {port}" if answer.data else "nobody knows"

    @server.tool
    async def wait(*, ctx: Context) -> str:
        """Wait for the flood."""
        try:
            await ctx.report_progress(1)
            await ctx.sleep(1000)
        finally:
            cancelled.set()
        return "the flood"

    @server.resource("harbour://level")
    async def level() -> str:
        """Tell the level."""
        return "high"

    return Application(server, cancelled)


async def run_client(target: Target, protocol_version: str, cancelled: trio.Event) -> None:
    """Use the application, one request after the other, as concurrent ones have no fixed order."""
    limits = Limits(shutdown=ShutdownLimits(close_seconds=1))
    async with Client(
        target,
        protocol_versions=[protocol_version],
        limits=limits,
        log=lambda _: None,
        elicitation=lambda _: {"unit": "m"},
    ) as client:
        await client.list_tools()
        await client.call_tool("tide", {"port": "Oslo"}, progress=lambda _: None)
        await client.read_resource("harbour://level")
        async with trio.open_nursery() as nursery:
            cancel = nursery.cancel_scope.cancel
            await client.call_tool("wait", progress=lambda _: cancel())
        await cancelled.wait()
        await client.call_tool("tide", {"port": "Bergen"})


# The transports -----------------------------------------------------------------------------------

Transport: TypeAlias = Callable[[Server, Path], AbstractAsyncContextManager[Target]]
"""Serves, recording into a folder; gives what the client connects to."""


async def _serve_channel(server: Server, channel: Channel, folder: Path) -> None:
    await server.serve(channel, record=folder)


@asynccontextmanager
async def _over(make: Callable[[Path], Any], server: Server, folder: Path) -> AsyncGenerator[Any]:
    ours, theirs = await make(folder)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_serve_channel, server, theirs, folder)
        yield ours


async def _memory(_folder: Path) -> Pair:
    return memory_pair()


async def _stdio(_folder: Path) -> Pair:
    return over_stdio()


async def _named_pipes(folder: Path) -> Pair:
    own = folder / "pipes"
    own.mkdir()
    return await named_pipes_in(own)


@asynccontextmanager
async def _at(
    serve: Callable[..., Any], url_of: Callable[[str], str], server: Server, folder: Path
) -> AsyncGenerator[str]:
    async with trio.open_nursery() as nursery:
        url: str = await nursery.start(partial(serve, server, folder))
        yield url_of(url)
        nursery.cancel_scope.cancel()


async def _http(host: Any, server: Server, folder: Path, **status: Any) -> None:
    await server.serve_http(port=0, server=host, record=folder, **status)


async def _websocket(server: Server, folder: Path, **status: Any) -> None:
    await server.serve_websocket(port=0, record=folder, **status)


async def _unix(server: Server, folder: Path, **status: Any) -> None:
    await server.serve_unix(folder / "socket", record=folder, **status)


async def _tcp(server: Server, folder: Path, **status: Any) -> None:
    await server.serve_tcp(port=0, record=folder, **status)


def _same_url(url: str) -> str:
    return url


def _sse_url(url: str) -> str:
    return url.replace("/mcp", "/sse")


def _websocket_url(url: str) -> str:
    return url.replace("http:", "ws:").replace("/mcp", "/ws")


TRANSPORTS: Final[Mapping[str, Transport]] = {
    _FIRST: partial(_over, _memory),
    "stdio": partial(_over, _stdio),
    "HTTP": partial(_at, partial(_http, "native"), _same_url),
    "HTTP, hypercorn": partial(_at, partial(_http, "hypercorn"), _same_url),
    "HTTP+SSE": partial(_at, partial(_http, "native"), _sse_url),
    "WebSocket": partial(_at, _websocket, _same_url),
    "WebSocket, native": partial(_at, partial(_http, "native"), _websocket_url),
    "WebSocket, ASGI": partial(_at, partial(_http, "hypercorn"), _websocket_url),
    "Unix": partial(_at, _unix, _same_url),
    "TCP": partial(_at, _tcp, _same_url),
    "named pipes": partial(_over, _named_pipes),
}


_UNSUPPORTED: Final = frozenset({("HTTP+SSE", "2026-07-28")})


async def record(transport: Transport, protocol_version: str, folder: Path) -> Path:
    """Record the client's session over one transport, and return the file."""
    tested = application(protocol_version)
    with trio.fail_after(_SECONDS):
        async with transport(tested.server, folder) as target:
            await run_client(target, protocol_version, tested.cancelled)
    return _recording_in(folder)


def _recording_in(folder: Path) -> Path:
    """Return the recording that has a tool call."""
    (found,) = [each for each in folder.glob("*.jsonl") if "tools/call" in each.read_text()]
    return found


# Comparing ----------------------------------------------------------------------------------------


def records_of(path: Path) -> list[Record]:
    """Return the records of a recording."""
    return [each for each in read_recording(open_recording(path)) if isinstance(each, Record)]


def differences(left: Sequence[Record], right: Sequence[Record]) -> Iterator[str]:
    """Yield the record and path of each difference, except those in the schedule of the tasks.

    Trio runs tasks that wake together in a random order, over one transport as over two. So the
    records of steps are left out, and a request's lane, which has the number of the request's
    record, is named by the count of the messages received so far.
    """
    for one, other in zip_longest(_without_schedule(left), _without_schedule(right)):
        if one is None or other is None:
            yield "more records"
        elif one.kind != other.kind:
            yield f"{one.kind} became {other.kind}"
        else:
            yield from _between(one, other)


def _without_schedule(records: Iterable[Record]) -> Iterator[Record]:
    received: dict[str, str] = {}
    for record in records:
        if record.kind == "in":
            received[f"r{record.number}"] = f"r{len(received)}"
        if record.kind != "step":
            request, dot, child = (record.lane or "").partition(".")
            yield msgspec.structs.replace(record, lane=received.get(request, request) + dot + child)


_NAMED_KINDS: Final = frozenset({"in", "out", "mark"})
_RECORD_MEMBERS: Final = {
    "channel": "c",
    "lane": "l",
    "ordinal": "o",
    "time_ns": "t",
    "digest": "h",
}


def _between(one: Record, other: Record) -> Iterator[str]:
    for member, key in _RECORD_MEMBERS.items():
        if getattr(one, member) != getattr(other, member):
            yield key
    message = body_bytes(one) or b"null"
    for name, *texts in (
        (f"{_named(one.kind, message)} $", message, body_bytes(other) or b"null"),
        ("x $", msgspec.json.encode(one.envelope), msgspec.json.encode(other.envelope)),
    ):
        for path, _, _ in json_differences(*texts):
            yield path.replace("$", name, 1)


class _Named(msgspec.Struct):
    """The method of a message, or the name of a mark."""

    method: str = ""
    name: str = ""


def _named(kind: str, message: bytes) -> str:
    """Return a record's kind, with the name of a mark or the method of a message."""
    if kind not in _NAMED_KINDS:
        return kind
    body = msgspec.json.decode(message, type=_Named)
    return f"{kind} {body.method or body.name}".rstrip()


def replayed(path: Path, protocol_version: str) -> str:
    """Replay with a fresh application; return "yes", or how it diverges."""
    try:
        report = replay(path, application(protocol_version).server, allow_damaged=True)
    except ReplayDivergence as divergence:
        return str(divergence).partition("\n")[0]
    return "yes" if report.is_complete else "not to its end"


@attrs.frozen
class Row:
    """The results of one transport."""

    transport: str
    records: int
    differing: tuple[str, ...]
    replayed: str

    @property
    def is_right(self) -> bool:
        return self.replayed == "yes" and set(self.differing) <= ENVELOPE.keys()


def rows_of(protocol_version: str, names: Sequence[str]) -> Iterator[Row]:
    """Yield a row for each transport."""
    first: list[Record] | None = None
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            path = trio.run(
                record, TRANSPORTS[name], protocol_version, Path(folder), clock=TickClock()
            )
            records, replay_result = records_of(path), replayed(path, protocol_version)
        first = first or records
        differing = tuple(dict.fromkeys(differences(first, records)))
        yield Row(name, len(records), differing, replay_result)


def table_of(protocol_version: str, rows: Sequence[Row]) -> Table:
    table = Table(
        "transport", "records", "differing fields", "replays strictly", title=protocol_version
    )
    for row in rows:
        named = (ENVELOPE.get(field, (f"WRONG {field}",))[0] for field in row.differing)
        fields = ", ".join(named) or "(the others are compared with this)"
        table.add_row(row.transport, str(row.records), fields, row.replayed)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--protocol-version", action="append", choices=PROTOCOL_VERSIONS, help="only this"
    )
    console = Console(width=None if sys.stdout.isatty() else 140)
    protocol_versions = parser.parse_args(arguments).protocol_version or PROTOCOL_VERSIONS
    found: list[Row] = []
    for protocol_version in protocol_versions:
        names = [name for name in TRANSPORTS if (name, protocol_version) not in _UNSUPPORTED]
        rows = list(rows_of(protocol_version, names))
        console.print(table_of(protocol_version, rows))
        found += rows
    for field, (title, meaning) in ENVELOPE.items():
        console.print(f"{title}: {meaning} ({field})", highlight=False, markup=False)
    unused = unused_fields(found) if set(protocol_versions) == set(PROTOCOL_VERSIONS) else []
    for field in unused:
        console.print(f"WRONG: {field} never differs", highlight=False, markup=False)
    return 0 if all(row.is_right for row in found) and not unused else 1


def unused_fields(rows: Iterable[Row]) -> list[str]:
    """Return the members that may differ, and never do."""
    return sorted(ENVELOPE.keys() - {field for row in rows for field in row.differing})


if __name__ == "__main__":
    sys.exit(main())
