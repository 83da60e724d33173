"""Measure the cost of a call over stdio, and compare SDKs: `python tools/bench/stdio.py`.

All servers of a round run at once and take turns within each measure, so that a ratio compares
moments that are close together. Times vary by a factor of two on a shared machine: read the ratios
and their ranges, or the function calls per request. Slowness is no failure.

The figures are the server's CPU time (Linux only), unless they say p50, p99, wall or /s.
"""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

import attrs
from load import ServerUnderLoad, rotated
from measuring import (
    BEST_PEER,
    IN_FLIGHT,
    Aim,
    Effort,
    Measurements,
    Results,
    Values,
    add_rows,
    best_peer_values,
    effort_from,
    figure_text,
    function_calls,
    medians_of,
    print_aims,
    print_figures,
    print_ratios,
    print_table,
    ratio_text,
    ratios,
)
from servers import OURS, PEERS, PYTHON_PEER, RECORDING, BenchFolder, versions

IMPORTS: Final = "import"
RECORDING_SHARE: Final = 0.1

NOTIFICATIONS: Final = 1000
ECHOED_MIB: Final = (1, 8)
TOOLS_MORE: Final = 1000
CROWDED: Final = f"{TOOLS_MORE + 3:,} tools"

_MIB: Final = 1 << 20

Measured = Iterator[tuple[str, float]]


@attrs.frozen
class Measure:
    """A load and its figures; some are measured once a round, not in every turn."""

    apply: Callable[[ServerUnderLoad, Effort], Measured]
    is_once: bool = False


@attrs.frozen(kw_only=True)
class Scenario:
    """The options of a server and its measures; `title` distinguishes scenarios."""

    title: str
    options: Sequence[str]
    measures: Sequence[Measure]

    def start(self, server: ServerUnderLoad) -> Measured:
        """Yield the time from the start to the answer to `initialize`."""
        start = server.initialize()
        yield f"start{self.title} to first answer: CPU, ms", start.cpu_seconds * 1000
        yield f"start{self.title} to first answer: wall, ms", start.seconds * 1000


def _warm_up(server: ServerUnderLoad, effort: Effort) -> Measured:
    """Fill caches, without measuring."""
    for in_flight in IN_FLIGHT:
        server.add(in_flight=in_flight, seconds=effort.seconds)
    yield from ()


def _add(in_flight: int) -> Callable[[ServerUnderLoad, Effort], Measured]:
    def apply(server: ServerUnderLoad, effort: Effort) -> Measured:
        cost = server.add(in_flight=in_flight, seconds=effort.seconds)
        yield from add_rows(f"add, {in_flight} in flight", cost)

    return apply


def _echo(mib: int) -> Callable[[ServerUnderLoad, Effort], Measured]:
    """Measure a call and a result of so many MiB."""
    text = "x" * (mib * _MIB)

    def apply(server: ServerUnderLoad, _: Effort) -> Measured:
        begin = server.cpu_seconds()
        if server.call("echo", text=text).text != text:
            raise RuntimeError("the echo is another text")
        cpu_seconds = server.cpu_seconds() - begin
        yield f"echo {mib} MiB: CPU per MB, ms", cpu_seconds * 1000 / (len(text) / 1_000_000)

    return apply


def _progress(server: ServerUnderLoad, _: Effort) -> Measured:
    """Measure a call that sends many progress notifications."""
    begin = server.cpu_seconds()
    answer = server.call("notify", count=NOTIFICATIONS)
    if answer.notifications != NOTIFICATIONS:
        raise RuntimeError(f"{answer.notifications} notifications of {NOTIFICATIONS}")
    cpu_ms = (server.cpu_seconds() - begin) * 1000
    yield "progress: CPU per 1,000 notifications, ms", cpu_ms * 1000 / NOTIFICATIONS


def _memory(server: ServerUnderLoad, _: Effort) -> Measured:
    yield "RSS after the run, MiB", server.rss_mib()


def _list(kind: str) -> Callable[[ServerUnderLoad, Effort], Measured]:
    def apply(server: ServerUnderLoad, _: Effort) -> Measured:
        begin = server.cpu_seconds()
        listing = server.list_tools()
        cpu_ms = (server.cpu_seconds() - begin) * 1000
        if len(set(listing.names)) != TOOLS_MORE + 3:
            raise RuntimeError(f"{len(set(listing.names))} tools were listed")
        yield f"tools/list, {CROWDED}, {kind}: CPU, ms", cpu_ms
        yield f"tools/list, {CROWDED}, {kind}: p50, ms", listing.seconds * 1000
        yield f"tools/list, {CROWDED}: size, KiB", listing.size_bytes / 1024

    return apply


SCENARIOS: Final = (
    Scenario(
        title="",
        options=(),
        measures=(
            Measure(_warm_up, is_once=True),
            *(Measure(_add(in_flight)) for in_flight in IN_FLIGHT),
            *(Measure(_echo(mib)) for mib in ECHOED_MIB),
            Measure(_progress),
            Measure(_memory, is_once=True),
        ),
    ),
    Scenario(
        title=f" with {CROWDED}",
        options=("--tools", str(TOOLS_MORE)),
        measures=(
            Measure(_list("first"), is_once=True),
            Measure(_list("later")),
        ),
    ),
)


UNIT: Final = "trio + msgspec"

_BARE: Final = "(bare interpreter)"
_STATEMENTS: Final[Mapping[str, str]] = {
    _BARE: "pass",
    UNIT: "import trio, msgspec",
    "mcp_trio": "import mcp_trio",
    "mcp_trio.Server": "from mcp_trio import Server",
    "mcp_trio.Client": "from mcp_trio import Client",
}
_PEERS_STATEMENTS: Final[Mapping[str, str]] = {
    "mcp.server.mcpserver.MCPServer": "from mcp.server.mcpserver import MCPServer",
}


def measure_imports(
    rounds: int, peers_python: str, environment: Mapping[str, str]
) -> dict[str, list[float]]:
    """Return the CPU time of each import beyond the bare interpreter's, in ms by round.

    The first round is not counted, as it compiles the modules.
    """
    costs: defaultdict[str, list[float]] = defaultdict(list)
    commands = {
        **{name: [sys.executable, "-c", text] for name, text in _STATEMENTS.items()},
        **{name: [peers_python, "-c", text] for name, text in _PEERS_STATEMENTS.items()},
    }
    for round_ in range(rounds + 1):
        for name, command in commands.items():
            cost = _cpu_ms(command, environment)
            if round_:
                costs[name].append(cost)
    bare = costs.pop(_BARE)
    return {
        name: [value - nothing for value, nothing in zip(values, bare, strict=True)]
        for name, values in costs.items()
    }


def _cpu_ms(command: Sequence[str], environment: Mapping[str, str]) -> float:
    process = subprocess.Popen(command, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} failed")
    return (usage.ru_utime + usage.ru_stime) * 1000


def _of_best(row: str, at_most: float, *, server: str = OURS) -> Aim:
    def ratios_of(results: Results) -> Sequence[float]:
        return ratios(results[server][row], best_peer_values(results, row), row=row)

    recording = ", recording" if server == RECORDING else ""
    return Aim(f"{_title(row)}{recording} ÷ best peer", at_most, ratios_of)


def _of_allowance(row: str, least: float) -> Aim:
    """An aim for the cost of recording: at most 10 %, or `least` in the row's unit."""

    def ratios_of(results: Results) -> Sequence[float]:
        return [
            (recorded - plain) / max(plain * RECORDING_SHARE, least)
            for plain, recorded in zip(results[OURS][row], results[RECORDING][row], strict=True)
        ]

    return Aim(f"{_title(row)}: cost of recording ÷ its limit", 1.0, ratios_of)


def _of_unit(name: str) -> Aim:
    def ratios_of(results: Results) -> Sequence[float]:
        rows = results[IMPORTS]
        return ratios(rows[name], rows[UNIT], row=name)

    return Aim(f"import of {name} ÷ {UNIT}", 1.3, ratios_of)


def _title(row: str) -> str:
    return row.rpartition(":")[0]


_ADD: Final = {n: f"add, {n} in flight: CPU per 1,000, ms" for n in IN_FLIGHT}
_PROGRESS: Final = "progress: CPU per 1,000 notifications, ms"
_ECHO: Final = "echo 1 MiB: CPU per MB, ms"

# 3 µs a call, or a notification, is 3 ms for a thousand of them.
_US_3_PER_1000: Final = 3.0
_US_3_PER_MB: Final = 0.003

AIMS: Final = (
    _of_best(_ADD[1], 0.8),
    _of_best(_ADD[16], 0.5),
    _of_best(_ADD[128], 0.4),
    _of_best(_ADD[16], 1.0, server=RECORDING),
    _of_best(_ADD[128], 1.0, server=RECORDING),
    *(_of_allowance(row, _US_3_PER_1000) for row in (*_ADD.values(), _PROGRESS)),
    _of_allowance(_ECHO, _US_3_PER_MB),
    _of_best(_PROGRESS, 0.5),
    _of_best(_ECHO, 0.8),
    _of_best("start to first answer: CPU, ms", 0.8),
    _of_best(f"start with {CROWDED} to first answer: CPU, ms", 0.8),
    _of_best(f"tools/list, {CROWDED}, first: CPU, ms", 1.0),
    _of_best(f"tools/list, {CROWDED}, later: CPU, ms", 0.05),
    _of_unit("mcp_trio"),
    _of_unit("mcp_trio.Server"),
)


def print_imports(rows: Values) -> None:
    """Print the CPU time of each import, and its ratio to that of the dependencies."""
    unit = rows[UNIT]
    print_table(
        "import, CPU ms over the bare interpreter",
        ["import", "ms", f"÷ {UNIT}"],
        (
            [name, figure_text(values), ratio_text(ratios(values, unit, row=name))]
            for name, values in rows.items()
        ),
    )


COUNTED_SECONDS: Final = 0.25

RATIOS: Final = {
    "÷ best peer": (OURS, BEST_PEER),
    **{f"÷ {peer}": (OURS, peer) for peer in PEERS},
    "recording ÷ best peer": (RECORDING, BEST_PEER),
    "recording ÷ none": (RECORDING, OURS),
}


@attrs.frozen(kw_only=True)
class StdioEffort(Effort):
    """An effort with a number of rounds for imports."""

    import_rounds: int


EFFORTS: Final = {
    False: StdioEffort(rounds=5, turns=4, seconds=0.3, import_rounds=7),
    True: StdioEffort(rounds=1, turns=1, seconds=0.25, import_rounds=1),
}


def measure(effort: Effort, bench_folder: BenchFolder) -> Results:
    """Return each server's rows, with a value for each round."""

    def measure_round(round_: int) -> Measurements:
        for scenario in SCENARIOS:
            yield from _run_scenario(scenario, bench_folder, effort, round_)

    return medians_of(effort.rounds, measure_round)


def _run_scenario(
    scenario: Scenario, bench_folder: BenchFolder, effort: Effort, round_: int
) -> Measurements:
    """Yield the figures of all servers; their order changes in each turn and round."""
    commands, environment = bench_folder.commands(*scenario.options), bench_folder.environment()
    with ExitStack() as stack:
        servers: dict[str, ServerUnderLoad] = {}
        for name in rotated(list(commands), round_):
            servers[name] = stack.enter_context(ServerUnderLoad(commands[name], environment))
            for row, value in scenario.start(servers[name]):
                yield name, row, value
        for step in scenario.measures:
            for turn in range(1 if step.is_once else effort.turns):
                for name in rotated(list(servers), turn):
                    for row, value in step.apply(servers[name], effort):
                        yield name, row, value


def count_function_calls(bench_folder: BenchFolder) -> Results:
    """Count function calls per `add`, in separate servers, as counting slows them down."""
    environment = bench_folder.environment()
    return {
        name: dict(_function_calls(command, environment))
        for name, command in bench_folder.python_commands("--count-calls").items()
    }


def _function_calls(
    command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[tuple[str, Sequence[float]]]:
    with ServerUnderLoad(command, environment) as server:
        for in_flight, calls in function_calls(server, IN_FLIGHT, COUNTED_SECONDS):
            yield f"function calls per add, {in_flight} in flight", [calls]


def main(arguments: list[str]) -> int:
    effort = effort_from(arguments, "Measure the cost of a call over stdio.", EFFORTS)
    with BenchFolder.temporary() as bench_folder:
        counts = count_function_calls(bench_folder)
        servers = measure(effort, bench_folder)
        python = bench_folder.commands()[PYTHON_PEER][0]
        costs = measure_imports(effort.import_rounds, python, bench_folder.environment())
    results = {**servers, IMPORTS: costs}
    print(versions())
    print_figures("stdio: medians", servers)
    print_ratios("our cost ÷ theirs", servers, RATIOS)
    print_figures("function calls per request", counts)
    print_imports(results[IMPORTS])
    print_aims(results, AIMS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
