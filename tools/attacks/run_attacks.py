"""Attack our HTTP servers and measure the cost: `python tools/attacks/run_attacks.py`.

Each attack of `http_attacks.py` runs against a server process, while a well-behaved client makes
calls, each on a new connection. Both hosts are attacked at the same time. Prints a table for each;
the exit status is 1 if a client got an answer that is not allowed, was not disconnected, left
resources behind, or delayed the other client. Costs are the server's, including the other client's
calls (Linux only).
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import trio
from http_attacks import ATTACKS, CLOSE_SECONDS_MAX, Attack, Ending, Target
from measurements import AttackResult, RunningTarget, Watch, report, running_target
from target import allow_descriptors

HOSTS: Final = ("native", "hypercorn")


# The attacks


async def attack_all(
    servers: Sequence[RunningTarget], attacks: Sequence[Attack]
) -> list[AttackResult]:
    """Attack all servers at once."""
    results: list[AttackResult] = []

    async def attack(server: RunningTarget) -> None:
        async with server.watched() as watch:
            results.extend([await _measure(each, server, watch) for each in attacks])

    async with trio.open_nursery() as nursery:
        for server in servers:
            nursery.start_soon(attack, server)
    hosts = [server.transport for server in servers]
    return sorted(results, key=lambda result: hosts.index(result.target))


async def _measure(attack: Attack, server: RunningTarget, watch: Watch) -> AttackResult:
    host = server.transport
    endings, cost = await watch.cost_of(partial(attack.run, Target(server.port)))
    return AttackResult(
        name=attack.name,
        target=host,
        outcomes=outcomes(endings),
        seconds=[each.seconds for each in endings],
        violations=list(violations(attack, host, endings)),
        cost=cost,
        may_fail_others=host not in attack.hosts,
    )


def run(hosts: Sequence[str], attacks: Sequence[Attack]) -> list[AttackResult]:
    """Start a server for each host, and attack it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mcp_trio-hostile-")))
        servers = [stack.enter_context(running_target(host, "http", folder)) for host in hosts]
        return trio.run(attack_all, servers, attacks)


# Outcomes.


def outcomes(endings: Sequence[Ending]) -> str:
    """Return how often connections ended in which way, such as `400 x5, silence x2`."""
    counted = Counter(_summary(each) for each in endings)
    return ", ".join(f"{word} x{count}" for word, count in counted.most_common())


def _summary(ending: Ending) -> str:
    answers = Counter(ending.answers)
    parts = [
        f"{status}" if count == 1 else f"{status} {count:,} times"
        for status, count in answers.items()
    ]
    is_open = ["open"] if ending.seconds is None else []
    return "+".join([*parts, *is_open]) or "silence"


def violations(attack: Attack, host: str, endings: Sequence[Ending]) -> Iterator[str]:
    """Yield a sentence for each outcome that is not allowed."""
    if host in attack.hosts:
        for ending in endings:
            yield from _violations_of(attack, ending)
    if any(ending.has_leaked for ending in endings):
        yield "a header was injected"


def _violations_of(attack: Attack, ending: Ending) -> Iterator[str]:
    if ending.seconds is None:
        yield f"a connection was kept for {CLOSE_SECONDS_MAX:g} s: {_summary(ending)}"
    if len(ending.answers) > attack.answers_max:
        yield f"{len(ending.answers)} answers"
    if not set(ending.answers).issubset(attack.statuses):
        yield f"answered with {_summary(ending)}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Attack a server in every way.")
    parser.add_argument("--host", choices=HOSTS, action="append", help="may be repeated")
    parser.add_argument("--attack", metavar="WORDS", help="only those whose name has these words")
    options = parser.parse_args(arguments)
    attacks = [each for each in ATTACKS if (options.attack or "") in each.name]
    allow_descriptors()
    begin = time.monotonic()
    results = run(options.host or HOSTS, attacks)
    return 0 if report(results, "attacks", time.monotonic() - begin) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
