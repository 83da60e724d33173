"""What is measured: each measure puts one server under one load, for a few rows of the table."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import attrs
from load import ServerUnderLoad
from rounds import Effort, add_rows

IN_FLIGHT: Final = (1, 16, 128)
NOTIFICATIONS: Final = 1000
ECHOED_MIB: Final = (1, 8)
TOOLS_MORE: Final = 1000
CROWDED: Final = f"{TOOLS_MORE + 3:,} tools"

_MIB: Final = 1 << 20

Measured = Iterator[tuple[str, float]]


@attrs.frozen
class Measure:
    """A load and what it shows; some are applied once a round and not at every turn."""

    apply: Callable[[ServerUnderLoad, Effort], Measured]
    is_once: bool = False


@attrs.frozen(kw_only=True)
class Course:
    """Servers started alike, and what each of them goes through.

    `title` tells them apart from those of another course.
    """

    title: str
    options: Sequence[str]
    measures: Sequence[Measure]

    def start(self, server: ServerUnderLoad) -> Measured:
        """From nothing to the answer to `initialize`."""
        start = server.initialize()
        yield f"start{self.title} to first answer: CPU, ms", start.cpu_seconds * 1000
        yield f"start{self.title} to first answer: wall, ms", start.seconds * 1000


def _warm_up(server: ServerUnderLoad, effort: Effort) -> Measured:
    """Measure nothing: let caches fill, and compilers do their work."""
    for in_flight in IN_FLIGHT:
        server.add(in_flight=in_flight, seconds=effort.seconds)
    yield from ()


def _add(in_flight: int) -> Callable[[ServerUnderLoad, Effort], Measured]:
    def apply(server: ServerUnderLoad, effort: Effort) -> Measured:
        cost = server.add(in_flight=in_flight, seconds=effort.seconds)
        yield from add_rows(f"add, {in_flight} in flight", cost)

    return apply


def _echo(mib: int) -> Callable[[ServerUnderLoad, Effort], Measured]:
    """A call and a result of so many bytes; who is linear pays the same per MB for each size."""
    text = "x" * (mib * _MIB)

    def apply(server: ServerUnderLoad, _: Effort) -> Measured:
        begin = server.cpu_seconds()
        if server.call("echo", text=text).text != text:
            raise RuntimeError("the echo is another text")
        cpu_seconds = server.cpu_seconds() - begin
        yield f"echo {mib} MiB: CPU per MB, ms", cpu_seconds * 1000 / (len(text) / 1_000_000)

    return apply


def _progress(server: ServerUnderLoad, _: Effort) -> Measured:
    """One call that reports much."""
    begin = server.cpu_seconds()
    answer = server.call("notify", count=NOTIFICATIONS)
    if answer.notifications != NOTIFICATIONS:
        raise RuntimeError(f"{answer.notifications} notifications of {NOTIFICATIONS}")
    cpu_ms = (server.cpu_seconds() - begin) * 1000
    yield "progress: CPU per 1,000 notifications, ms", cpu_ms * 1000 / NOTIFICATIONS


def _memory(server: ServerUnderLoad, _: Effort) -> Measured:
    """What the server holds, after everything."""
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


COURSES: Final = (
    Course(
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
    Course(
        title=f" with {CROWDED}",
        options=("--tools", str(TOOLS_MORE)),
        measures=(
            Measure(_list("first"), is_once=True),
            Measure(_list("later")),
        ),
    ),
)
