"""What it costs to import a package, each time in a new interpreter."""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

BARE: Final = "(bare interpreter)"
UNIT: Final = "trio + msgspec"

STATEMENTS: Final[Mapping[str, str]] = {
    BARE: "pass",
    UNIT: "import trio, msgspec",
    "mcp_trio": "import mcp_trio",
    "mcp_trio.Server": "from mcp_trio import Server",
    "mcp.server.mcpserver.MCPServer": "from mcp.server.mcpserver import MCPServer",
}


def measure(rounds: int) -> dict[str, list[float]]:
    """The CPU time of each statement in milliseconds, once a round; a first round is dropped."""
    costs: defaultdict[str, list[float]] = defaultdict(list)
    for round_ in range(rounds + 1):
        for name, statement in STATEMENTS.items():
            cost = _cpu_ms(statement)
            if round_:
                costs[name].append(cost)
    return dict(costs)


def _cpu_ms(statement: str) -> float:
    process = subprocess.Popen([sys.executable, "-c", statement])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{statement!r} failed")
    return (usage.ru_utime + usage.ru_stime) * 1000
