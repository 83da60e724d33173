"""Measure what a call over HTTP costs, beside the official SDKs: `python tools/bench/over_http.py`.

The manner is that of `stdio.py`: the servers of a form are all alive at once and take turns, and
what counts is the server's own CPU time, from the kernel (Linux only). Two floors, which answer
everything alike, tell what their HTTP costs by itself. Nothing here fails for being slow.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import attrs
import http_servers
import http_sessions
import report
from aims import Aim, Results, best_peer, ratios
from http_load import FORMS, JSON_ANSWERS, Form, HttpServerUnderLoad
from http_servers import FLOOR_H11, FLOOR_HYPERCORN, FLOORS, HYPERCORN
from load import rotated
from rounds import Effort, Measurements, add_rows, asked_for, medians_of, print_json
from servers import OURS, PEERS, Workshop, stateless_versions, versions

CONNECTIONS: Final = (1, 16, 64)
COUNTED_SECONDS: Final = 0.25


@attrs.frozen(kw_only=True)
class HttpEffort(Effort):
    """The same; and how many sessions are left alone or ended."""

    sessions: http_sessions.Effort


EFFORTS: Final = {
    False: HttpEffort(
        rounds=5, turns=4, seconds=0.5, sessions=http_sessions.Effort(idle=500, ended=10_000)
    ),
    True: HttpEffort(
        rounds=1, turns=2, seconds=0.3, sessions=http_sessions.Effort(idle=500, ended=1_000)
    ),
}


def measure(effort: HttpEffort, workshop: Workshop) -> Results:
    """Each server's rows: the median of its turns, for each round."""

    def measure_round(round_: int) -> Measurements:
        for form in FORMS:
            yield from _measure_form(form, workshop, effort, round_)
        yield from _measure_sessions(workshop, effort.sessions)

    return medians_of(effort.rounds, measure_round)


def _measure_form(form: Form, workshop: Workshop, effort: Effort, round_: int) -> Measurements:
    """Put all servers under each load in turn; who goes first changes."""
    commands, environment = http_servers.commands(workshop, form), workshop.environment()
    with ExitStack() as stack:
        servers: dict[str, HttpServerUnderLoad] = {}
        for name in rotated(list(commands), round_):
            server = HttpServerUnderLoad(commands[name], environment, form, is_floor=name in FLOORS)
            servers[name] = stack.enter_context(server)
            cpu_ms = server.start().cpu_seconds * 1000
            yield name, f"{form.title}: start to first answer: CPU, ms", cpu_ms
        for server in servers.values():  # let caches fill, and compilers do their work
            server.add(connections=CONNECTIONS[1], seconds=effort.seconds)
        for connections in CONNECTIONS:
            for turn in range(effort.turns):
                for name in rotated(list(servers), turn + round_):
                    cost = servers[name].add(connections=connections, seconds=effort.seconds)
                    for row, value in add_rows(_title(form, connections), cost):
                        yield name, row, value


def _title(form: Form, connections: int) -> str:
    return f"{form.title}: add, {connections} conn."


def _measure_sessions(workshop: Workshop, effort: http_sessions.Effort) -> Measurements:
    """What sessions hold and leave, in servers that have done nothing else."""
    environment = workshop.environment()
    for name, command in http_servers.commands(workshop, JSON_ANSWERS).items():
        if name not in FLOORS:
            with HttpServerUnderLoad(command, environment, JSON_ANSWERS) as server:
                tells = name in (OURS, HYPERCORN)
                for row, value in http_sessions.measure(server, effort, tells=tells):
                    yield name, row, value


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


RATIOS: Final = {
    "÷ best peer": (OURS, report.BEST_PEER),
    **{f"÷ {name}": (OURS, name) for name in (*PEERS, FLOOR_H11)},
    "hypercorn ÷ its floor": (HYPERCORN, FLOOR_HYPERCORN),
}


def main(arguments: list[str]) -> int:
    """Print the tables, or everything as JSON."""
    effort, is_json = asked_for(arguments, "Measure the cost of a call over HTTP.", EFFORTS)
    with tempfile.TemporaryDirectory(prefix="mcp_trio-bench-") as folder:
        workshop = Workshop(Path(folder))
        counts = count_function_calls(workshop)
        results = measure(effort, workshop)
    if is_json:
        print_json(results, counts)
        return 0
    print(f"{versions()}; {stateless_versions()}")
    report.print_figures("HTTP: medians", results)
    calls = [row for row in results[OURS] if row in results[FLOOR_H11]]
    report.print_ratios("our native listener ÷ others", results, RATIOS, calls)
    report.print_figures("function calls per request", counts)
    report.print_aims(results, aims())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
