"""What it costs to import a package, each time in a new interpreter."""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

UNIT: Final = "trio + msgspec"

_BARE: Final = "(bare interpreter)"
_STATEMENTS: Final[Mapping[str, str]] = {
    _BARE: "pass",
    UNIT: "import trio, msgspec",
    "mcp_trio": "import mcp_trio",
    "mcp_trio.Server": "from mcp_trio import Server",
    "mcp_trio.Client": "from mcp_trio import Client",
}
_PEERS_STATEMENTS: Final[Mapping[str, str]] = {
    "mcp.server.mcpserver.MCPServer": "from mcp.server.mcpserver import MCPServer",
}


def measure(
    rounds: int, peers_python: str, environment: Mapping[str, str]
) -> dict[str, list[float]]:
    """The CPU time of each import over that of the bare interpreter, in milliseconds, by round.

    A first round is dropped: it compiles, and fills the system's caches.
    """
    costs: defaultdict[str, list[float]] = defaultdict(list)
    commands = {
        **{name: [sys.executable, "-c", text] for name, text in _STATEMENTS.items()},
        **{name: [peers_python, "-c", text] for name, text in _PEERS_STATEMENTS.items()},
    }
    for round_ in range(rounds + 1):
        for name, command in commands.items():
            cost = _cpu_ms(command, environment)
            if round_:
                costs[name].append(cost)
    bare = costs.pop(_BARE)
    return {
        name: [value - nothing for value, nothing in zip(values, bare, strict=True)]
        for name, values in costs.items()
    }


def _cpu_ms(command: Sequence[str], environment: Mapping[str, str]) -> float:
    process = subprocess.Popen(command, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} failed")
    return (usage.ru_utime + usage.ru_stime) * 1000
