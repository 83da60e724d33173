"""Measure what a call over stdio costs, beside the official SDKs: `python tools/bench/stdio.py`.

The servers of a round are all alive at once and take turns within each measure, so that a ratio
compares moments that are close together. Times move by a factor of two on a shared machine: read
the ratios and their range, or the function calls per request. Nothing here fails for being slow.

The figures are the server's own CPU time, from the kernel, unless they say p50, p99, wall or /s;
Linux only.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import attrs
import imports
import report
from aims import IMPORTS, Results
from load import ServerUnderLoad, rotated
from measures import COURSES, IN_FLIGHT, Course
from report import BEST_PEER
from rounds import (
    Effort,
    Measurements,
    asked_for,
    function_calls,
    medians_of,
    print_json,
)
from servers import OURS, PEERS, PYTHON_PEER, RECORDING, Workshop, versions

COUNTED_SECONDS: Final = 0.25

RATIOS: Final = {
    "÷ best peer": (OURS, BEST_PEER),
    **{f"÷ {peer}": (OURS, peer) for peer in PEERS},
    "recording ÷ best peer": (RECORDING, BEST_PEER),
    "recording ÷ none": (RECORDING, OURS),
}


@attrs.frozen(kw_only=True)
class StdioEffort(Effort):
    """The same; imports take rounds of their own."""

    import_rounds: int


EFFORTS: Final = {
    False: StdioEffort(rounds=5, turns=4, seconds=0.3, import_rounds=7),
    True: StdioEffort(rounds=1, turns=1, seconds=0.25, import_rounds=1),
}


def measure(effort: Effort, workshop: Workshop) -> Results:
    """Each server's rows: the median of its turns, for each round."""

    def measure_round(round_: int) -> Measurements:
        for course in COURSES:
            yield from _follow(course, workshop, effort, round_)

    return medians_of(effort.rounds, measure_round)


def _follow(course: Course, workshop: Workshop, effort: Effort, round_: int) -> Measurements:
    """Lead all servers through a course; who goes first changes with each turn and round."""
    commands, environment = workshop.commands(*course.options), workshop.environment()
    with ExitStack() as stack:
        servers: dict[str, ServerUnderLoad] = {}
        for name in rotated(list(commands), round_):
            servers[name] = stack.enter_context(ServerUnderLoad(commands[name], environment))
            for row, value in course.start(servers[name]):
                yield name, row, value
        for step in course.measures:
            for turn in range(1 if step.is_once else effort.turns):
                for name in rotated(list(servers), turn):
                    for row, value in step.apply(servers[name], effort):
                        yield name, row, value


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
        for in_flight, calls in function_calls(server, IN_FLIGHT, COUNTED_SECONDS):
            yield f"function calls per add, {in_flight} in flight", [calls]


def main(arguments: list[str]) -> int:
    """Print the tables, or everything as JSON."""
    effort, is_json = asked_for(arguments, "Measure the cost of a call over stdio.", EFFORTS)
    with tempfile.TemporaryDirectory(prefix="mcp_trio-bench-") as folder:
        workshop = Workshop(Path(folder))
        counts = count_function_calls(workshop)
        servers = measure(effort, workshop)
        python = workshop.commands()[PYTHON_PEER][0]
        costs = imports.measure(effort.import_rounds, python, workshop.environment())
    results = {**servers, IMPORTS: costs}
    if is_json:
        print_json(results, counts)
        return 0
    print(versions())
    report.print_figures("stdio: medians", servers)
    report.print_ratios("our cost ÷ theirs", servers, RATIOS)
    report.print_figures("function calls per request", counts)
    report.print_imports(results[IMPORTS])
    report.print_aims(results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
