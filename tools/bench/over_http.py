"""Measure what a call over HTTP costs, beside the official SDKs: `python tools/bench/over_http.py`.

The manner is that of `stdio.py`: the servers of a form are all alive at once and take turns, and
what counts is the server's own CPU time, from the kernel (Linux only). Two floors, which answer
everything alike, tell what their HTTP costs by itself. Nothing here fails for being slow.
"""

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import attrs
import http_servers
import http_sessions
import msgspec
import report
from aims import Aim, Results, best_peer, ratios
from http_load import FORMS, JSON_ANSWERS, Form, HttpServerUnderLoad
from http_servers import FLOOR_H11, FLOOR_HYPERCORN, FLOORS, HYPERCORN
from load import Cost, rotated
from servers import OURS, PEERS, Workshop, modern_versions, versions

CONNECTIONS: Final = (1, 16, 64)
COUNTED_SECONDS: Final = 0.25

Samples = defaultdict[str, defaultdict[str, list[float]]]
"""What each server took at each turn, by row."""


@attrs.frozen(kw_only=True)
class Effort:
    """How long to look; a round has so many turns at each number of connections."""

    rounds: int
    turns: int
    seconds: float
    sessions: http_sessions.Effort


EFFORTS: Final = {
    False: Effort(
        rounds=5, turns=4, seconds=0.5, sessions=http_sessions.Effort(idle=500, ended=10_000)
    ),
    True: Effort(
        rounds=1, turns=2, seconds=0.3, sessions=http_sessions.Effort(idle=500, ended=1_000)
    ),
}


def measure(effort: Effort, workshop: Workshop) -> Results:
    """Each server's rows: the median of its turns, for each round."""
    results = _samples()
    for round_ in range(effort.rounds):
        samples = _samples()
        for form in FORMS:
            _measure_form(form, workshop, effort, round_, samples)
        _measure_sessions(workshop, effort, samples)
        for name, rows in samples.items():
            for row, values in rows.items():
                results[name][row].append(statistics.median(values))
        print(f"round {round_ + 1} of {effort.rounds} is done", file=sys.stderr)
    return results


def _samples() -> Samples:
    return defaultdict(lambda: defaultdict(list))


def _measure_form(
    form: Form, workshop: Workshop, effort: Effort, round_: int, samples: Samples
) -> None:
    """Put all servers under each load in turn; who goes first changes."""
    commands, environment = http_servers.commands(workshop, form), workshop.environment()
    with ExitStack() as stack:
        servers: dict[str, HttpServerUnderLoad] = {}
        for name in rotated(list(commands), round_):
            server = HttpServerUnderLoad(commands[name], environment, form, is_floor=name in FLOORS)
            servers[name] = stack.enter_context(server)
            cpu_ms = server.start().cpu_seconds * 1000
            samples[name][f"{form.title}: start to first answer: CPU, ms"].append(cpu_ms)
        for server in servers.values():  # let caches fill, and compilers do their work
            server.add(connections=CONNECTIONS[1], seconds=effort.seconds)
        for connections in CONNECTIONS:
            for turn in range(effort.turns):
                for name in rotated(list(servers), turn + round_):
                    cost = servers[name].add(connections=connections, seconds=effort.seconds)
                    for row, value in _add_rows(form, connections, cost):
                        samples[name][row].append(value)


def _add_rows(form: Form, connections: int, cost: Cost) -> Iterator[tuple[str, float]]:
    title = _title(form, connections)
    percentiles = statistics.quantiles(cost.call_seconds, n=100)
    yield f"{title}: CPU per 1,000, ms", cost.cpu_ms_per_1000
    yield f"{title}: p50, µs", percentiles[49] * 1_000_000
    yield f"{title}: p99, µs", percentiles[98] * 1_000_000
    yield f"{title}: /s", cost.calls_per_second


def _title(form: Form, connections: int) -> str:
    return f"{form.title}: add, {connections} conn."


def _measure_sessions(workshop: Workshop, effort: Effort, samples: Samples) -> None:
    """What sessions hold and leave, in servers that have done nothing else."""
    environment = workshop.environment()
    for name, command in http_servers.commands(workshop, JSON_ANSWERS).items():
        if name not in FLOORS:
            with HttpServerUnderLoad(command, environment, JSON_ANSWERS) as server:
                tells = name in (OURS, HYPERCORN)
                for row, value in http_sessions.measure(server, effort.sessions, tells=tells):
                    samples[name][row].append(value)


def count_function_calls(workshop: Workshop) -> Results:
    """Function calls per `add` on one connection, in servers of their own."""
    environment = workshop.environment()
    return {
        name: {
            f"{form.title}: function calls per add": [_function_calls(command, environment, form)]
            for form in FORMS
        }
        for name, command in http_servers.python_commands("--count-calls").items()
    }


def _function_calls(command: Sequence[str], environment: Mapping[str, str], form: Form) -> float:
    """The mean; both calls of which there is one too many are counted as others."""
    with HttpServerUnderLoad(command, environment, form) as server:
        server.start()
        server.add(connections=1, seconds=COUNTED_SECONDS)
        begin = int(server.call("function_calls"))
        calls = len(server.add(connections=1, seconds=COUNTED_SECONDS).call_seconds)
        return (int(server.call("function_calls")) - begin) / (calls + 2)


# What came of it

_BEST_PEER_SHARE: Final = 0.5
_US_OVER_FLOOR: Final = 100.0


def aims() -> Iterator[Aim]:
    """What each form and load is to cost, and what a session may."""
    for form in FORMS:
        for connections in CONNECTIONS:
            title = _title(form, connections)
            row = f"{title}: CPU per 1,000, ms"
            yield _of_best(title, row)
            yield _over_floor(title, row)
    for row, at_most in http_sessions.AIMS.items():
        yield _of_ours(row, at_most)


def _of_ours(row: str, at_most: float) -> Aim:
    return Aim(row, at_most, lambda results: results[OURS][row])


def _of_best(title: str, row: str) -> Aim:
    def ratios_of(results: Results) -> Sequence[float]:
        return ratios(results[OURS][row], best_peer(results, row), row=row)

    return Aim(f"{title} ÷ best peer", _BEST_PEER_SHARE, ratios_of)


def _over_floor(title: str, row: str) -> Aim:
    """Milliseconds per 1,000 calls are microseconds a call."""

    def ratios_of(results: Results) -> Sequence[float]:
        pairs = zip(results[HYPERCORN][row], results[FLOOR_HYPERCORN][row], strict=True)
        return [ours - floor for ours, floor in pairs]

    return Aim(f"{title}, hypercorn, over its floor, µs", _US_OVER_FLOOR, ratios_of)


def print_ratios(results: Results) -> None:
    """How much dearer we are than each peer, and than the floor."""
    others = (*PEERS, FLOOR_H11)
    rows = [row for row in results[OURS] if row in results[FLOOR_H11]]
    report.print_table(
        "our native listener ÷ others: median, lowest-highest round; rates are turned round",
        ["measure", "÷ best peer", *(f"÷ {name}" for name in others), "hypercorn ÷ its floor"],
        ([row, *_ratio_cells(results, row, others)] for row in rows),
    )


def _ratio_cells(results: Results, row: str, others: Sequence[str]) -> Iterator[str]:
    ours = results[OURS][row]
    yield report.ratio_text(ratios(ours, best_peer(results, row), row=row))
    for name in others:
        yield report.ratio_text(ratios(ours, results[name][row], row=row))
    over = ratios(results[HYPERCORN][row], results[FLOOR_HYPERCORN][row], row=row)
    yield report.ratio_text(over)


def main(arguments: list[str]) -> int:
    """Print the tables, or everything as JSON."""
    parser = argparse.ArgumentParser(description="Measure the cost of a call over HTTP.")
    parser.add_argument("--rounds", type=int, help="how often everything is measured")
    parser.add_argument("--quick", action="store_true", help="one short round: does it work?")
    parser.add_argument("--json", action="store_true", help="print every value as JSON")
    options = parser.parse_args(arguments)
    effort = EFFORTS[options.quick]
    if options.rounds:
        effort = attrs.evolve(effort, rounds=options.rounds)
    with tempfile.TemporaryDirectory(prefix="mcp_trio-bench-") as folder:
        workshop = Workshop(Path(folder))
        counts = count_function_calls(workshop)
        results = measure(effort, workshop)
    if options.json:
        everything = {"function calls": counts, **results}
        print(msgspec.json.format(msgspec.json.encode(everything)).decode())
        return 0
    print(f"{versions()}; {modern_versions()}")
    report.print_figures("HTTP: medians", results)
    print_ratios(results)
    report.print_figures("function calls per request", counts)
    report.print_aims(results, aims())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
