"""Measure what limits of callers cost: `python tools/bench/limits.py`.

One process has a server and its client, joined in memory. Sessions of some calls take turns:
without a limit and with each kind, not recorded and recorded. The CPU time of a call is printed,
and how much of it the limit or the recording causes. Slowness is no failure.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import trio
from in_process import bench_server, measure_in_turns

from mcp_trio import Server
from mcp_trio.middleware import ConcurrencyLimit, LogLimit, Middleware, Quota, Rate, RateLimit
from mcp_trio.recording import RecordOptions

LIMITS: Final[Mapping[str, Sequence[Middleware]]] = {
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


def servers(folder: Path) -> Iterator[tuple[str, Server]]:
    """Yield a server for each kind of limit, not recorded and recorded."""
    for end, record in {"": None, ", recorded": RecordOptions(folder)}.items():
        for title, limits in LIMITS.items():
            server = bench_server(record=record)
            for limit in limits:
                server.middleware(limit)
            yield f"{title}{end}", server


def main() -> None:
    """Measure with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15, help="of each server (%(default)s)")
    parser.add_argument("--calls", type=int, default=400, help="in each turn (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = dict(servers(Path(folder)))
        trio.run(measure_in_turns, measured, options.turns, options.calls)


if __name__ == "__main__":
    main()
