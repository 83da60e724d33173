"""Show that limits hold under load, and what they cost: `python tools/bench/limits.py`.

Load: one server over HTTP, and users with tokens of their own. Each user has some clients that call
as fast as they can; a client ignores that it should wait. The table compares the allowed calls of
each user with what was configured: the burst, and the rate for the time of the load.

Cost: a server and its client joined in memory, whose sessions take turns with each kind of limit.
The CPU time of a call is printed, not recorded and recorded.
"""

import argparse
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import trio
from measuring import print_table

from mcp_trio import Client, RequestError, Server
from mcp_trio.auth import StaticTokens
from mcp_trio.middleware import (
    ConcurrencyLimit,
    LogLimit,
    Middleware,
    Quota,
    Rate,
    RateLimit,
)
from mcp_trio.recording import RecordOptions


@attrs.frozen
class Allowed:
    """The calls of one user under load.

    Attributes:
        allowed: The calls that were answered.
        rejected: The calls that were rejected because of the rate.
        configured: The most calls that the rate and its burst allow in the time of the load.
    """

    user: str
    allowed: int
    rejected: int
    configured: float


async def load(
    server: Server, rate: Rate, users: Mapping[str, Sequence[Client]], seconds: float
) -> list[Allowed]:
    """Let connected clients call "add" for some seconds; return what each user was allowed."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    server.middleware(RateLimit(rate))
    begin = trio.current_time()

    async def call(user: str, client: Client) -> None:
        while trio.current_time() < begin + seconds:
            try:
                await client.call_tool("add", {"a": 1, "b": 2})
                counts[user]["allowed"] += 1
            except RequestError as error:
                if "retryAfter" not in (error.data or {}):
                    raise
                counts[user]["rejected"] += 1

    async with trio.open_nursery() as nursery:
        for user, clients in users.items():
            for client in clients:
                nursery.start_soon(call, user, client)
    taken = trio.current_time() - begin
    configured = rate.burst + rate.per_minute / 60 * taken
    return [
        Allowed(user, counts[user]["allowed"], counts[user]["rejected"], configured)
        for user in users
    ]


def _server(
    *limits: Middleware, record: RecordOptions | None = None, auth: StaticTokens | None = None
) -> Server:
    server = Server("bench", record=record, auth=auth)
    for limit in limits:
        server.middleware(limit)

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return server


@asynccontextmanager
async def _connected(
    users: int, clients: int
) -> AsyncGenerator[tuple[Server, dict[str, list[Client]]]]:
    """Serve over HTTP, and connect clients of each user, within the block."""
    names = [f"user {number}" for number in range(users)]
    tokens = {name: f"token-{number}" for number, name in enumerate(names)}
    server = _server(auth=StaticTokens({token: name for name, token in tokens.items()}))
    async with trio.open_nursery() as nursery:
        url = await nursery.start(partial(server.serve_http, port=0))
        connected: dict[str, list[Client]] = {name: [] for name in names}
        try:
            for name, token in tokens.items():
                for _ in range(clients):
                    client = await Client(url, token=token).__aenter__()
                    connected[name].append(client)
            yield server, connected
        finally:
            for each in connected.values():
                for client in each:
                    await client.aclose()
        nursery.cancel_scope.cancel()


async def show_load(options: argparse.Namespace) -> None:
    """Measure the load, and print its table."""
    rate = Rate.parse(options.rate, options.burst)
    async with _connected(options.users, options.clients) as (server, users):
        rows = await load(server, rate, users, options.seconds)
    print_table(
        f"{options.rate}, burst {rate.burst}, for {options.seconds:g} s,"
        f" {options.clients} clients of each user",
        ["user", "allowed", "configured", "rejected"],
        [(row.user, str(row.allowed), f"{row.configured:.1f}", str(row.rejected)) for row in rows],
    )


_LIMITS: Mapping[str, Sequence[Middleware]] = {
    "no limit": (),
    "RateLimit": (RateLimit(Rate(per_minute=1e9, burst=10**6)),),
    "RateLimit with costs": (
        RateLimit(Rate(per_minute=1e9, burst=10**6), per=("user", "tool"), cost={"add": 2}),
    ),
    "ConcurrencyLimit": (ConcurrencyLimit(1000),),
    "Quota of effects": (Quota(Rate(per_minute=1e9, burst=10**9), of="effects"),),
    "Quota of bytes": (Quota(Rate(per_minute=1e12, burst=10**12), of="bytes"),),
    "LogLimit": (LogLimit("100/second"),),
}


async def _session(server: Server, calls: int) -> float:
    """Return the microseconds of CPU time of one call."""
    async with Client(server) as client:
        await client.call_tool("add", {"a": 1, "b": 2})
        begin = time.process_time()
        for _ in range(calls):
            await client.call_tool("add", {"a": 1, "b": 2})
        return (time.process_time() - begin) / calls * 1e6


async def show_cost(options: argparse.Namespace, folder: Path) -> None:
    """Measure the cost of each limit in turns, and print the table."""
    plain = {title: _server(*limits) for title, limits in _LIMITS.items()}
    recorded = {
        title: _server(*limits, record=RecordOptions(folder)) for title, limits in _LIMITS.items()
    }
    results: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(options.turns):
        for kind, servers in {"plain": plain, "recorded": recorded}.items():
            for title, server in servers.items():
                results[kind, title].append(await _session(server, options.calls))
    rows: list[tuple[str, ...]] = []
    for title in _LIMITS:
        cells = [title]
        for kind in ("plain", "recorded"):
            cost = statistics.median(results[kind, title])
            base = statistics.median(results[kind, "no limit"])
            cells += [f"{cost:.0f}", f"{cost - base:+.0f}"]
        rows.append(tuple(cells))
    headings = ["", "call, µs", "more", "recorded call, µs", "more"]
    print_table("CPU time of a call: client and server", headings, rows)


def main() -> None:
    """Measure with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="50/second")
    parser.add_argument("--burst", type=int, default=20)
    parser.add_argument("--users", type=int, default=3)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--calls", type=int, default=400)
    options = parser.parse_args()
    trio.run(show_load, options)
    with tempfile.TemporaryDirectory() as temporary:
        trio.run(show_cost, options, Path(temporary))


if __name__ == "__main__":
    main()
