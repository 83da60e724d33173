"""What sessions cost a server over HTTP: those that nobody uses, and those that have ended."""

import itertools
import time
from collections.abc import Iterator
from typing import Final

import attrs
from http_load import HttpServerUnderLoad

WARM_UP: Final = 200
AT_ONCE: Final = 100
ENDED_BEFORE: Final = 4_000
"""By then the heap has its level: what has ended lies there until the collector comes."""

SETTLE_SECONDS: Final = 1.0

IDLE: Final = "sessions: RSS growth of an idle one, KiB"
OPENED: Final = "sessions: open one: CPU, ms"
ENDED_CPU: Final = "sessions: open and end one: CPU, ms"
FIRST_RSS: Final = f"sessions: RSS growth by the first {ENDED_BEFORE:,} ended, MiB"
ENDED_RSS: Final = "sessions: RSS growth of an ended one, KiB"
ENDED_OBJECTS: Final = "sessions: objects that all ended ones leave"
ENDED_TASKS: Final = "sessions: tasks that all ended ones leave"

AIMS: Final = {IDLE: 5.0, ENDED_RSS: 0.1, ENDED_OBJECTS: 0.0, ENDED_TASKS: 0.0}
"""At most so much; RSS is never quite still, so that 1 MiB after 10,000 sessions is nothing."""


@attrs.frozen(kw_only=True)
class Effort:
    """How many sessions are left alone, and how many are opened and ended."""

    idle: int
    ended: int


def measure(
    server: HttpServerUnderLoad, effort: Effort, *, tells: bool
) -> Iterator[tuple[str, float]]:
    """Both, in a server that has done nothing yet; one of ours tells what it holds."""
    server.start()
    server.open_sessions(WARM_UP)
    rss_kib, cpu_seconds = server.rss_kib(), server.cpu_seconds()
    server.open_sessions(effort.idle)
    yield OPENED, (server.cpu_seconds() - cpu_seconds) * 1000 / effort.idle
    yield IDLE, (server.rss_kib() - rss_kib) / effort.idle
    rss_kib = server.rss_kib()
    _open_and_end(server, ENDED_BEFORE)
    yield FIRST_RSS, (server.rss_kib() - rss_kib) / 1024
    held, rss_kib = _held(server, tells=tells), server.rss_kib()
    cpu_seconds = server.cpu_seconds()
    _open_and_end(server, effort.ended)
    yield ENDED_CPU, (server.cpu_seconds() - cpu_seconds) * 1000 / effort.ended
    yield ENDED_RSS, (server.rss_kib() - rss_kib) / effort.ended
    for row, before, after in zip(
        (ENDED_OBJECTS, ENDED_TASKS), held, _held(server, tells=tells), strict=False
    ):
        yield row, after - before


def _open_and_end(server: HttpServerUnderLoad, count: int) -> None:
    for _ in itertools.repeat(None, count // AT_ONCE):
        server.close_sessions(server.open_sessions(AT_ONCE))
    time.sleep(SETTLE_SECONDS)


def _held(server: HttpServerUnderLoad, *, tells: bool) -> list[int]:
    return [int(each) for each in server.call("holdings").split()] if tells else []
