"""Measure the cost of a call over HTTP, and compare SDKs: `python tools/bench/over_http.py`.

As in `stdio.py`, servers take turns, and their CPU time counts (Linux only). Two servers that
always send the same answer show the cost of HTTP alone. Slowness is no failure.
"""

import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

import attrs
import measuring
from http_load import FORMS, JSON_ANSWERS, Form, HttpServerUnderLoad
from load import rotated
from measuring import (
    Aim,
    Effort,
    Measurements,
    Results,
    add_rows,
    best_peer_values,
    effort_from,
    medians_of,
    ratios,
)
from servers import (
    FLOOR_H11,
    FLOOR_HYPERCORN,
    FLOORS,
    HYPERCORN,
    OURS,
    PEERS,
    BenchFolder,
    http_commands,
    http_python_commands,
    stateless_versions,
    versions,
)

WARM_UP: Final = 200
AT_ONCE: Final = 100
CLOSED_BEFORE: Final = 4_000
"""Sessions that are closed first, until the heap grows no more between collections."""

SETTLE_SECONDS: Final = 1.0

IDLE: Final = "sessions: RSS growth of an idle one, KiB"
OPENED: Final = "sessions: open one: CPU, ms"
CLOSED_CPU: Final = "sessions: open and close one: CPU, ms"
FIRST_RSS: Final = f"sessions: RSS growth by the first {CLOSED_BEFORE:,} closed, MiB"
CLOSED_RSS: Final = "sessions: RSS growth of a closed one, KiB"
CLOSED_OBJECTS: Final = "sessions: objects left by all closed ones"
CLOSED_TASKS: Final = "sessions: tasks left by all closed ones"

SESSION_AIMS: Final = {IDLE: 3.0, CLOSED_RSS: 0.1, CLOSED_OBJECTS: 0.0, CLOSED_TASKS: 0.0}
"""Limits; RSS varies a little, so 1 MiB after 10,000 sessions is allowed."""


@attrs.frozen(kw_only=True)
class SessionEffort:
    """The number of sessions that stay idle, and of those that are opened and closed."""

    idle: int
    closed: int


def measure_sessions(
    server: HttpServerUnderLoad, effort: SessionEffort, *, counts_objects: bool
) -> Iterator[tuple[str, float]]:
    """Yield the costs of idle and of closed sessions, in a fresh server."""
    server.start()
    server.open_sessions(WARM_UP)
    rss_kib, cpu_seconds = server.rss_kib(), server.cpu_seconds()
    server.open_sessions(effort.idle)
    yield OPENED, (server.cpu_seconds() - cpu_seconds) * 1000 / effort.idle
    yield IDLE, (server.rss_kib() - rss_kib) / effort.idle
    rss_kib = server.rss_kib()
    _open_and_close(server, CLOSED_BEFORE)
    yield FIRST_RSS, (server.rss_kib() - rss_kib) / 1024
    holdings, rss_kib = _holdings(server, counts_objects=counts_objects), server.rss_kib()
    cpu_seconds = server.cpu_seconds()
    _open_and_close(server, effort.closed)
    yield CLOSED_CPU, (server.cpu_seconds() - cpu_seconds) * 1000 / effort.closed
    yield CLOSED_RSS, (server.rss_kib() - rss_kib) / effort.closed
    for row, before, after in zip(
        (CLOSED_OBJECTS, CLOSED_TASKS),
        holdings,
        _holdings(server, counts_objects=counts_objects),
        strict=False,
    ):
        yield row, after - before


def _open_and_close(server: HttpServerUnderLoad, count: int) -> None:
    for _ in itertools.repeat(None, count // AT_ONCE):
        server.close_sessions(server.open_sessions(AT_ONCE))
    time.sleep(SETTLE_SECONDS)


def _holdings(server: HttpServerUnderLoad, *, counts_objects: bool) -> list[int]:
    return [int(each) for each in server.call("holdings").split()] if counts_objects else []


CONNECTIONS: Final = (1, 16, 64)
COUNTED_SECONDS: Final = 0.25


@attrs.frozen(kw_only=True)
class HttpEffort(Effort):
    """An effort with the numbers of sessions."""

    sessions: SessionEffort


EFFORTS: Final = {
    False: HttpEffort(
        rounds=5, turns=4, seconds=0.5, sessions=SessionEffort(idle=500, closed=10_000)
    ),
    True: HttpEffort(
        rounds=1, turns=2, seconds=0.3, sessions=SessionEffort(idle=500, closed=1_000)
    ),
}


def measure(effort: HttpEffort, bench_folder: BenchFolder) -> Results:
    """Return each server's rows, with a value for each round."""

    def measure_round(round_: int) -> Measurements:
        for form in FORMS:
            yield from _measure_form(form, bench_folder, effort, round_)
        yield from _measure_sessions(bench_folder, effort.sessions)

    return medians_of(effort.rounds, measure_round)


def _measure_form(
    form: Form, bench_folder: BenchFolder, effort: Effort, round_: int
) -> Measurements:
    """Put all servers under each load in turn; the order of servers changes."""
    commands, environment = http_commands(bench_folder, form), bench_folder.environment()
    with ExitStack() as stack:
        servers: dict[str, HttpServerUnderLoad] = {}
        for name in rotated(list(commands), round_):
            server = HttpServerUnderLoad(commands[name], environment, form, is_floor=name in FLOORS)
            servers[name] = stack.enter_context(server)
            cpu_ms = server.start().cpu_seconds * 1000
            yield name, f"{form.title}: start to first answer: CPU, ms", cpu_ms
        for server in servers.values():  # fill caches
            server.add(connections=CONNECTIONS[1], seconds=effort.seconds)
        for connections in CONNECTIONS:
            for turn in range(effort.turns):
                for name in rotated(list(servers), turn + round_):
                    cost = servers[name].add(connections=connections, seconds=effort.seconds)
                    for row, value in add_rows(_title(form, connections), cost):
                        yield name, row, value


def _title(form: Form, connections: int) -> str:
    return f"{form.title}: add, {connections} conn."


def _measure_sessions(bench_folder: BenchFolder, effort: SessionEffort) -> Measurements:
    """Measure sessions, in a fresh process of each server."""
    environment = bench_folder.environment()
    for name, command in http_commands(bench_folder, JSON_ANSWERS).items():
        if name not in FLOORS:
            with HttpServerUnderLoad(command, environment, JSON_ANSWERS) as server:
                counts_objects = name in (OURS, HYPERCORN)
                for row, value in measure_sessions(server, effort, counts_objects=counts_objects):
                    yield name, row, value


def count_function_calls(bench_folder: BenchFolder) -> Results:
    """Count function calls per `add` on one connection, in separate servers."""
    environment = bench_folder.environment()
    return {
        name: {
            f"{form.title}: function calls per add": [_function_calls(command, environment, form)]
            for form in FORMS
        }
        for name, command in http_python_commands("--count-calls").items()
    }


def _function_calls(command: Sequence[str], environment: Mapping[str, str], form: Form) -> float:
    """Return the mean; two of the calls are those that read the counter."""
    with HttpServerUnderLoad(command, environment, form) as server:
        server.start()
        server.add(connections=1, seconds=COUNTED_SECONDS)
        begin = int(server.call("function_calls"))
        calls = len(server.add(connections=1, seconds=COUNTED_SECONDS).call_seconds)
        return (int(server.call("function_calls")) - begin) / (calls + 2)


# Aims and report.

_BEST_PEER_SHARE: Final = 0.2
_US_OVER_FLOOR: Final = 100.0


def aims() -> Iterator[Aim]:
    """Yield the aims of each form and load, and of sessions."""
    for form in FORMS:
        for connections in CONNECTIONS:
            title = _title(form, connections)
            row = f"{title}: CPU per 1,000, ms"
            yield _of_best(title, row)
            yield _over_floor(title, row)
    for row, at_most in SESSION_AIMS.items():
        yield _of_ours(row, at_most)


def _of_ours(row: str, at_most: float) -> Aim:
    return Aim(row, at_most, lambda results: results[OURS][row])


def _of_best(title: str, row: str) -> Aim:
    def ratios_of(results: Results) -> Sequence[float]:
        return ratios(results[OURS][row], best_peer_values(results, row), row=row)

    return Aim(f"{title} ÷ best peer", _BEST_PEER_SHARE, ratios_of)


def _over_floor(title: str, row: str) -> Aim:
    """An aim for microseconds per call, which are milliseconds per 1,000 calls."""

    def ratios_of(results: Results) -> Sequence[float]:
        pairs = zip(results[HYPERCORN][row], results[FLOOR_HYPERCORN][row], strict=True)
        return [ours - floor for ours, floor in pairs]

    return Aim(f"{title}, hypercorn, over its floor, µs", _US_OVER_FLOOR, ratios_of)


RATIOS: Final = {
    "÷ best peer": (OURS, measuring.BEST_PEER),
    **{f"÷ {name}": (OURS, name) for name in (*PEERS, FLOOR_H11)},
    "hypercorn ÷ its floor": (HYPERCORN, FLOOR_HYPERCORN),
}


def main(arguments: list[str]) -> int:
    effort = effort_from(arguments, "Measure the cost of a call over HTTP.", EFFORTS)
    with BenchFolder.temporary() as bench_folder:
        counts = count_function_calls(bench_folder)
        results = measure(effort, bench_folder)
    print(f"{versions()}; {stateless_versions()}")
    measuring.print_figures("HTTP: medians", results)
    calls = [row for row in results[OURS] if row in results[FLOOR_H11]]
    measuring.print_ratios("our native listener ÷ others", results, RATIOS, calls)
    measuring.print_figures("function calls per request", counts)
    measuring.print_aims(results, aims())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
