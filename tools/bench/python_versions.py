"""Compare versions of Python: `python tools/bench/python_versions.py PYTHON [PYTHON …]`.

Each argument is an interpreter in whose environment mcp_trio is installed. The servers of a round
are alive at the same time and take turns; the figures are the server's CPU time over stdio (Linux
only), and its memory after the calls.
"""

import argparse
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from load import NEWEST_LEGACY, ServerUnderLoad, rotated
from measuring import IN_FLIGHT, Effort, Measurements, medians_of, print_figures, turns
from servers import HERE

EFFORT: Final = Effort(rounds=3, turns=4, seconds=0.5)

_NAME: Final = (
    "import platform, sysconfig; print(platform.python_version() +"
    " (' free-threaded' if sysconfig.get_config_var('Py_GIL_DISABLED') else ''), end='')"
)
_ENVIRONMENT: Final = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}


def measure_round(commands: Mapping[str, Sequence[str]], round_: int) -> Measurements:
    """Yield the figures of all interpreters; their order changes in each turn and round."""
    with ExitStack() as stack:
        servers: dict[str, ServerUnderLoad] = {}
        for name in rotated(list(commands), round_):
            server = ServerUnderLoad(commands[name], _ENVIRONMENT, NEWEST_LEGACY)
            servers[name] = stack.enter_context(server)
            yield name, "start to first answer: CPU, ms", server.initialize().cpu_seconds * 1000
        for name, in_flight, cost in turns(servers, IN_FLIGHT, EFFORT, round_):
            yield name, f"add, {in_flight} in flight: CPU, µs", cost.cpu_ms_per_1000
        for name, server in servers.items():
            yield name, "RSS after the run, MiB", server.rss_mib()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="+", metavar="PYTHON", help="an interpreter")
    parser.add_argument("--rounds", type=int, default=EFFORT.rounds)
    options = parser.parse_args()
    commands: dict[str, Sequence[str]] = {}
    for python in options.pythons:
        name = subprocess.run([python, "-c", _NAME], capture_output=True, text=True, check=True)
        commands[name.stdout] = [python, str(HERE / "server_mcp_trio.py")]
    results = medians_of(options.rounds, lambda round_: measure_round(commands, round_))
    print_figures("versions of Python: medians of the rounds", results)


if __name__ == "__main__":
    main()
