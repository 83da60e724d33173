"""Measure what a call over stdio costs, beside the official SDKs: `python tools/bench/stdio.py`.

The servers of a round are all alive at once and take turns within each measure, so that a ratio
compares moments that are close together. Times move by a factor of two on a shared machine: read
the ratios and their range, or the function calls per request. Nothing here fails for being slow.

The figures are the server's own CPU time, from the kernel, unless they say p50, p99, wall or /s;
Linux only.
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
import imports
import msgspec
import report
from aims import IMPORTS, Results
from load import ServerUnderLoad, rotated
from measures import COURSES, IN_FLIGHT, Course, Effort, Measured
from servers import PYTHON_PEER, Workshop, versions

COUNTED_SECONDS: Final = 0.25

EFFORTS: Final = {
    False: Effort(rounds=5, turns=4, seconds=0.3, import_rounds=7),
    True: Effort(rounds=1, turns=1, seconds=0.25, import_rounds=1),
}

Samples = defaultdict[str, defaultdict[str, list[float]]]
"""What each server took at each turn, by row."""


def measure(effort: Effort, workshop: Workshop) -> Results:
    """Each server's rows: the median of its turns, for each round."""
    results: Samples = _samples()
    for round_ in range(effort.rounds):
        samples = _samples()
        for course in COURSES:
            _follow(course, workshop, effort, round_, samples)
        for name, rows in samples.items():
            for row, values in rows.items():
                results[name][row].append(statistics.median(values))
        print(f"round {round_ + 1} of {effort.rounds} is done", file=sys.stderr)
    return results


def _samples() -> Samples:
    return defaultdict(lambda: defaultdict(list))


def _follow(
    course: Course, workshop: Workshop, effort: Effort, round_: int, samples: Samples
) -> None:
    """Lead all servers through a course; who goes first changes with each turn and round."""

    def note(name: str, measured: Measured) -> None:
        for row, value in measured:
            samples[name][row].append(value)

    commands, environment = workshop.commands(*course.options), workshop.environment()
    with ExitStack() as stack:
        servers: dict[str, ServerUnderLoad] = {}
        for name in rotated(list(commands), round_):
            servers[name] = stack.enter_context(ServerUnderLoad(commands[name], environment))
            note(name, course.start(servers[name]))
        for step in course.measures:
            for turn in range(1 if step.is_once else effort.turns):
                for name in rotated(list(servers), turn):
                    note(name, step.apply(servers[name], effort))


def count_function_calls(workshop: Workshop) -> Results:
    """Function calls per `add`, in servers of their own: counting slows them down."""
    environment = workshop.environment()
    return {
        name: dict(_function_calls(command, environment))
        for name, command in workshop.python_commands("--count-calls").items()
    }


def _function_calls(
    command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[tuple[str, Sequence[float]]]:
    with ServerUnderLoad(command, environment) as server:
        server.initialize()
        for in_flight in IN_FLIGHT:
            server.add(in_flight=in_flight, seconds=COUNTED_SECONDS)
            begin = int(server.call("function_calls").text)
            calls = len(server.add(in_flight=in_flight, seconds=COUNTED_SECONDS).call_seconds)
            count = int(server.call("function_calls").text) - begin
            yield f"function calls per add, {in_flight} in flight", [count / (calls + 1)]


def main(arguments: list[str]) -> int:
    """Print the tables, or everything as JSON."""
    parser = argparse.ArgumentParser(description="Measure the cost of a call over stdio.")
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
        servers = measure(effort, workshop)
        python = workshop.commands()[PYTHON_PEER][0]
        costs = imports.measure(effort.import_rounds, python, workshop.environment())
    results = {**servers, IMPORTS: costs}
    if options.json:
        everything = {"function calls": counts, **results}
        print(msgspec.json.format(msgspec.json.encode(everything)).decode())
        return 0
    print(versions())
    report.print_figures("stdio: medians", servers)
    report.print_ratios(servers)
    report.print_figures("function calls per request", counts)
    report.print_imports(results[IMPORTS])
    report.print_aims(results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
