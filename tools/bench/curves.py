"""Measure how costs grow, and draw the curves: `python tools/bench/curves.py [--plots FOLDER]`.

Each curve has the cost of one unit (a call, a session, a tool, a megabyte) against a number that
grows by factors of ten, so that a flat line means: the cost of a unit does not depend on it. Every
point is the median of some turns with a server of its own. The figures are the server's CPU time or
memory (Linux only).
"""

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
from http_load import JSON_ANSWERS, HttpServerUnderLoad
from load import NEWEST_LEGACY, ServerUnderLoad
from matplotlib import rcParams
from matplotlib.figure import Figure
from measuring import print_table
from servers import HERE

SERVER: Final = (sys.executable, str(HERE / "server_mcp_trio.py"))
ENVIRONMENT: Final[Mapping[str, str]] = {}
TURNS: Final = 3
SECONDS: Final = 1.0
CONNECTIONS: Final = 16

_TENS: Final = (1, 10, 100, 1_000, 10_000)
_KIB: Final = 1 << 10

Points = Iterator[tuple[str, float]]
"""The measured values of one point: the name of its line, and the value."""


@attrs.frozen(kw_only=True)
class Curve:
    """One plot: its lines have the same axes.

    Attributes:
        name: The name of its file.
        title: What it shows.
        x: The title of the horizontal axis.
        y: The title of the vertical axis.
        values: The points of the horizontal axis.
        measure: Measures the values of one point.
    """

    name: str
    title: str
    x: str
    y: str
    values: Sequence[int]
    measure: Callable[[int], Points]


def _stdio(*options: str) -> ServerUnderLoad:
    return ServerUnderLoad([*SERVER, *options], ENVIRONMENT, NEWEST_LEGACY)


def calls_in_flight(count: int) -> Points:
    """Yield the CPU time of a call while so many are in flight."""
    with tempfile.TemporaryDirectory() as folder:
        for line, options in (("stdio", []), ("stdio, recording", ["--record", f"{folder}/"])):
            with _stdio(*options) as server:
                server.initialize()
                server.add(in_flight=count, seconds=SECONDS / 2)
                cost = server.add(in_flight=count, seconds=SECONDS)
                yield line, cost.cpu_ms_per_1000


def payload(size: int) -> Points:
    """Yield the CPU time of an echo of so many bytes, for each megabyte of the text."""
    text = "x" * size
    repeats = max(1, min(300, (8 << 20) // size))
    with _stdio() as server:
        server.initialize()
        server.call("echo", text=text)
        begin = server.cpu_seconds()
        for _ in range(repeats):
            if server.call("echo", text=text).text != text:
                raise RuntimeError("the echo is another text")
        cpu_ms = (server.cpu_seconds() - begin) * 1000 / repeats
        yield "an echo, ms", cpu_ms
        yield "each MB of it, ms", cpu_ms / (size / 1_000_000)


def tools(count: int) -> Points:
    """Yield the CPU time of lists, and of a call, for a server with so many tools more."""
    with _stdio("--tools", str(count)) as server:
        server.initialize()
        for line in ("first list", "later list"):
            begin = server.cpu_seconds()
            names = server.list_tools().names
            if len(set(names)) != count + 3:
                raise RuntimeError(f"{len(set(names))} tools were listed")
            yield f"{line}, each tool", (server.cpu_seconds() - begin) * 1_000_000 / len(names)
        server.add(in_flight=CONNECTIONS, seconds=SECONDS / 2)
        yield "a call", server.add(in_flight=CONNECTIONS, seconds=SECONDS).cpu_ms_per_1000


def session_cpu(count: int) -> Points:
    """Yield the CPU time of a call over HTTP while so many sessions take turns."""
    with HttpServerUnderLoad(SERVER, ENVIRONMENT, JSON_ANSWERS) as server:
        server.start()
        sessions = server.open_sessions(count)
        connections = min(count, CONNECTIONS)
        server.add(connections=connections, seconds=SECONDS / 2, sessions=sessions)
        cost = server.add(connections=connections, seconds=SECONDS, sessions=sessions)
        yield "a call", cost.cpu_ms_per_1000


def session_memory(count: int) -> Points:
    """Yield the memory of each of so many open sessions, idle and after a call in each."""
    with HttpServerUnderLoad(SERVER, ENVIRONMENT, JSON_ANSWERS) as server:
        server.start()
        server.close_sessions(server.open_sessions(100))
        before = server.rss_kib()
        sessions = server.open_sessions(count)
        yield "idle", (server.rss_kib() - before) / count
        server.call_once_in_each(sessions)
        yield "after a call", (server.rss_kib() - before) / count


def recording_size(count: int) -> Points:
    """Yield the bytes of a recording for each of so many calls."""
    with tempfile.TemporaryDirectory() as folder:
        for line, suffix in (("plain", ""), ("compressed", ".zst")):
            path = Path(folder, f"recording.mcprec.jsonl{suffix}")
            with _stdio("--record", str(path)) as server:
                server.initialize()
                for number in range(count):
                    server.call("add", a=number, b=1)
            yield line, path.stat().st_size / count


CURVES: Final = (
    Curve(
        name="in-flight",
        title="CPU time of a call, by calls in flight",
        x="calls in flight",
        y="µs of CPU a call",
        values=_TENS,
        measure=calls_in_flight,
    ),
    Curve(
        name="payload",
        title="CPU time of an echo, by its size",
        x="bytes of the text",
        y="ms of CPU",
        values=(100, 1_000, 10_000, 100_000, _KIB * _KIB, 8 * _KIB * _KIB, 15 * _KIB * _KIB),
        measure=payload,
    ),
    Curve(
        name="tools",
        title="CPU time of lists and calls, by the number of tools",
        x="tools besides three",
        y="µs of CPU",
        values=_TENS,
        measure=tools,
    ),
    Curve(
        name="session-cpu",
        title="CPU time of a call over HTTP, by sessions that take turns",
        x="sessions",
        y="µs of CPU a call",
        values=_TENS,
        measure=session_cpu,
    ),
    Curve(
        name="session-memory",
        title="Memory of a session over HTTP, by open sessions",
        x="sessions",
        y="KiB each",
        values=_TENS[1:],
        measure=session_memory,
    ),
    Curve(
        name="recording-size",
        title="Size of a recording, by the calls in it",
        x="calls",
        y="bytes a call",
        values=_TENS,
        measure=recording_size,
    ),
)


def measured(curve: Curve, turns: int) -> Mapping[str, Mapping[int, float]]:
    """Return the median of each line of a curve at each of its points."""
    lines: dict[str, dict[int, float]] = {}
    for value in curve.values:
        samples: dict[str, list[float]] = {}
        for _ in range(turns):
            for line, figure in curve.measure(value):
                samples.setdefault(line, []).append(figure)
        for line, figures in samples.items():
            lines.setdefault(line, {})[value] = statistics.median(figures)
        print(f"{curve.name} at {value:,} is done", file=sys.stderr)
    return lines


def draw(curve: Curve, lines: Mapping[str, Mapping[int, float]], note: str, folder: Path) -> None:
    """Write the plot of a curve, with logarithmic axes, to an SVG file."""
    rcParams.update({"svg.fonttype": "none", "svg.hashsalt": curve.name})
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for line, points in lines.items():
        axes.plot(list(points), list(points.values()), marker="o", label=line)
    axes.set(xscale="log", yscale="log", title=curve.title, xlabel=curve.x, ylabel=curve.y)
    axes.grid(which="both", alpha=0.3)
    axes.legend()
    figure.supxlabel(note, fontsize=7, x=0.99, ha="right")
    figure.savefig(folder / f"{curve.name}.svg", metadata={"Date": None})


def _where() -> str:
    """Return the commit and the machine."""
    commit = (
        subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, check=True
        )
        .stdout.decode()
        .strip()
    )
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("model name\t: ")[2]
    cores = len(cpu.split("model name\t: "))
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{commit}, {python}, {cores} cores of {cpu.partition(chr(10))[0]}"


def main() -> None:
    names = [curve.name for curve in CURVES]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="CURVE", help=", ".join(names))
    parser.add_argument("--turns", type=int, default=TURNS, help="for each point (%(default)s)")
    parser.add_argument("--plots", type=Path, help="folder for the plots, as SVG files")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; one of {', '.join(names)}")
    note = _where()
    print(note)
    for curve in CURVES:
        if options.names and curve.name not in options.names:
            continue
        lines = measured(curve, options.turns)
        print_table(
            f"{curve.title}: {curve.y}",
            [curve.x, *(f"{value:,}" for value in curve.values)],
            ([line, *(f"{y:.3g}" for y in points.values())] for line, points in lines.items()),
        )
        if options.plots:
            options.plots.mkdir(parents=True, exist_ok=True)
            draw(curve, lines, note, options.plots)


if __name__ == "__main__":
    main()
