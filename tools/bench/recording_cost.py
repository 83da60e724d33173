"""Measure the cost of recording and the speed of replay: `python tools/bench/recording_cost.py`.

The same server runs unrecorded, recorded, and recorded with redaction; these take turns of a
fraction of a second, and the server's CPU time counts (Linux only). A ratio compares two turns that
follow one another, and the median over all turns is printed. With `--against CHECKOUT`, the package
of another checkout is measured in the same turns. Slowness is no failure.
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import attrs
import trio
import trio.testing
from http_load import JSON_ANSWERS, HttpServerUnderLoad
from load import Cost, ServerUnderLoad, rotated
from measuring import print_table
from memory_sessions import client_session

from mcp_trio import Context, Server
from mcp_trio.recording import replay

SERVER: Final = [sys.executable, str(Path(__file__).resolve().parent / "server_mcp_trio.py")]
HERE: Final = "this checkout"
THERE: Final = "the other"

PLAIN: Final = "not recorded"
RECORDED: Final = "recorded"
REDACTED: Final = "redacted"

REPLAYED_RECORDS: Final = 6_000
WATCHED: Final = "watched"
UNWATCHED: Final = "not watched"

AIMED_RATIO: Final = 1.1
AIMED_US: Final = 3.0
VIRTUAL_MINUTES: Final = 60


@attrs.frozen(kw_only=True)
class Effort:
    """The number of turns, the seconds of each, and the number of replays of each recording."""

    turns: int
    seconds: float
    replays: int


EFFORTS: Final = {
    False: Effort(turns=40, seconds=0.15, replays=7),
    True: Effort(turns=4, seconds=0.1, replays=1),
}


@attrs.frozen(kw_only=True)
class Load:
    """A kind of calls: their transport and number in flight, and whether each has an effect."""

    transport: str
    in_flight: int
    has_effect: bool

    @property
    def title(self) -> str:
        return f"{self.transport}, {self.in_flight} in flight{', one effect' * self.has_effect}"

    @property
    def options(self) -> Sequence[str]:
        return ["--effect"] if self.has_effect else []


LOADS: Final = [
    Load(transport=transport, in_flight=in_flight, has_effect=has_effect)
    for has_effect in (False, True)
    for transport in ("stdio", "HTTP")
    for in_flight in (1, 16)
]

Turns = Sequence[float]
"""The microseconds of CPU per call, in each turn."""


@attrs.frozen
class Checkout:
    """A checkout whose package is measured, by the servers and tools of this one."""

    name: str
    path: Path
    folder: Path

    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.path)}

    def recordings(self, load: Load, kind: str = RECORDED) -> Path:
        return self.folder / self.name / load.title / kind

    def command(self, load: Load, kind: str) -> Sequence[str]:
        if kind == PLAIN:
            return [*SERVER, *load.options]
        folder = self.recordings(load, kind)
        folder.mkdir(parents=True)
        redacts = ["--redact"] if kind == REDACTED else []
        return [*SERVER, *load.options, *redacts, "--record", f"{folder}/"]

    def start(
        self, load: Load, kind: str, stack: ExitStack
    ) -> "ServerUnderLoad | HttpServerUnderLoad":
        command, environment = self.command(load, kind), self.environment()
        if load.transport == "HTTP":
            http = stack.enter_context(HttpServerUnderLoad(command, environment, JSON_ANSWERS))
            http.start()
            return http
        server = stack.enter_context(ServerUnderLoad(command, environment))
        server.initialize()
        return server

    def bytes_per_call(self, load: Load) -> float:
        """Return the size of the recordings of a load, divided by the number of its answers."""
        size = calls = 0
        for path in self.recordings(load).iterdir():
            lines = path.read_bytes()
            size += len(lines)
            calls += lines.count(b',"k":"out"')
        return size / calls

    def recording(self, load: Load) -> Path:
        """Return a recording that is cut after its first records."""
        (path,) = self.recordings(load).iterdir()
        cut = self.folder / self.name / "replayed.mcprec.jsonl"
        with path.open("rb") as lines:
            cut.write_bytes(b"".join(itertools.islice(lines, REPLAYED_RECORDS)))
        return cut

    def replayed(self, recording: Path, load: Load, kind: str) -> float:
        """Replay in a process of its own; return the microseconds of CPU per record."""
        options = [*load.options, *(["--watch-nothing"] if kind == UNWATCHED else [])]
        command = [*SERVER, *options, "--replay", str(recording)]
        printed = subprocess.check_output(command, env=self.environment(), text=True)
        records, seconds = printed.split()
        return float(seconds) * 1_000_000 / int(records)


def cost_of(server: ServerUnderLoad | HttpServerUnderLoad, load: Load, seconds: float) -> Cost:
    if isinstance(server, HttpServerUnderLoad):
        return server.add(connections=load.in_flight, seconds=seconds)
    return server.add(in_flight=load.in_flight, seconds=seconds)


def measure(
    load: Load, checkouts: Sequence[Checkout], effort: Effort
) -> Mapping[str, Mapping[str, Turns]]:
    """Return the CPU time per call in each turn: by checkout, and by what is recorded."""
    turns: dict[str, dict[str, list[float]]] = {each.name: defaultdict(list) for each in checkouts}
    with ExitStack() as stack:
        servers = {
            (checkout.name, kind): checkout.start(load, kind, stack)
            for checkout in checkouts
            for kind in (PLAIN, RECORDED, REDACTED)
        }
        for server in servers.values():  # fill caches
            cost_of(server, load, effort.seconds)
        for turn in range(effort.turns):
            for name, kind in rotated(list(servers), turn):
                cost = cost_of(servers[name, kind], load, effort.seconds)
                turns[name][kind].append(cost.cpu_ms_per_1000)
    return turns


def ratio(turns: Turns, others: Turns) -> float:
    return statistics.median(one / other for one, other in zip(turns, others, strict=True))


def more(turns: Turns, others: Turns) -> float:
    return statistics.median(one - other for one, other in zip(turns, others, strict=True))


def print_costs(checkouts: Sequence[Checkout], effort: Effort) -> None:
    """Measure all loads, and print a row for each and each checkout."""
    rows: list[list[str]] = []
    for load in LOADS:
        measured = measure(load, checkouts, effort)
        rows += (cost_row(checkout, load, measured[checkout.name]) for checkout in checkouts)
        print(f"{load.title}: measured", file=sys.stderr)
    print_table(
        f"server CPU per call, µs; medians of {effort.turns} turns of {effort.seconds} s",
        [
            "calls",
            "package",
            PLAIN,
            RECORDED,
            "more",
            "ratio",
            "aim",
            "ratio, redacted",
            "bytes per call",
        ],
        rows,
    )


def cost_row(checkout: Checkout, load: Load, turns: Mapping[str, Turns]) -> list[str]:
    plain, recorded, redacted = (turns[kind] for kind in (PLAIN, RECORDED, REDACTED))
    is_met = ratio(recorded, plain) <= AIMED_RATIO or more(recorded, plain) <= AIMED_US
    return [
        load.title,
        checkout.name,
        f"{statistics.median(plain):.1f}",
        f"{statistics.median(recorded):.1f}",
        f"{more(recorded, plain):+.1f}",
        f"{ratio(recorded, plain):.2f}",
        "met" if is_met else "MISSED",
        f"{ratio(redacted, plain):.2f}",
        f"{checkout.bytes_per_call(load):.0f}",
    ]


def replay_rows(checkouts: Sequence[Checkout], effort: Effort) -> Iterator[list[str]]:
    """Replay the recordings of stdio with 16 calls in flight; yield a row for each checkout."""
    for load in (each for each in LOADS if (each.transport, each.in_flight) == ("stdio", 16)):
        us: dict[tuple[str, str], list[float]] = defaultdict(list)
        recordings = {each: each.recording(load) for each in checkouts}
        runs = [(checkout, kind) for checkout in checkouts for kind in (WATCHED, UNWATCHED)]
        for turn in range(effort.replays):
            for checkout, kind in rotated(runs, turn):
                us[checkout.name, kind].append(checkout.replayed(recordings[checkout], load, kind))
        for checkout in checkouts:
            yield [
                load.title,
                checkout.name,
                *(replay_cell(us[checkout.name, kind]) for kind in (WATCHED, UNWATCHED)),
            ]


def replay_cell(us: Turns) -> str:
    median = statistics.median(us)
    return f"{median:.0f} µs, {1_000_000 / median:,.0f} a second"


def print_replays(checkouts: Sequence[Checkout], effort: Effort) -> None:
    """Print the speed with and without the hook and the captured functions."""
    print_table(
        f"replay CPU per record; medians of {effort.replays}, {REPLAYED_RECORDS:,} records each",
        ["recording", "package", WATCHED, UNWATCHED],
        replay_rows(checkouts, effort),
    )


def print_virtual_hour(folder: Path) -> None:
    """Record an hour of sleeps with a virtual clock, and print the replay's duration."""
    server = Server("hour")

    @server.tool
    async def wait(*, ctx: Context) -> None:
        for minute in range(VIRTUAL_MINUTES):
            await ctx.sleep(60)
            await ctx.info(minute)

    async def session() -> None:
        async with client_session(server, path, log_level="info") as client:
            await client.call_tool("wait", idle_seconds=7200, total_seconds=7200)

    path = folder / "hour.mcprec.jsonl"
    trio.run(session, clock=trio.testing.MockClock(autojump_threshold=0))
    begin = time.perf_counter()
    report = replay(path, server)
    milliseconds = (time.perf_counter() - begin) * 1000
    print(f"{report.recorded_seconds:,.0f} recorded seconds replayed in {milliseconds:.1f} ms")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Measure the cost of recording and replay.")
    parser.add_argument("--quick", action="store_true", help="few short turns")
    parser.add_argument("--turns", type=int, help="how often each server is measured")
    parser.add_argument("--against", metavar="CHECKOUT", type=Path, help="another checkout")
    options = parser.parse_args(arguments)
    effort = EFFORTS[options.quick]
    if options.turns:
        effort = attrs.evolve(effort, turns=options.turns)
    with tempfile.TemporaryDirectory(prefix="mcp_trio-bench-") as name:
        folder = Path(name)
        checkouts = [Checkout(HERE, Path(__file__).resolve().parents[2], folder)]
        if options.against:
            checkouts.append(Checkout(THERE, options.against.resolve(), folder))
        print_costs(checkouts, effort)
        print_replays(checkouts, effort)
        print_virtual_hour(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
