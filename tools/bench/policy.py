"""Measure what a recording policy costs: `python tools/bench/policy.py`.

One process has a server and its client, joined in memory. Sessions of some calls take turns: not
recorded; with a policy that never keeps them; held and forgotten; recorded; recorded with
redaction, as a policy does at rate 1; recorded and encrypted. The CPU time of a call is printed,
and how much of it the recording causes. Slowness is no failure.
"""

import argparse
import base64
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import trio
from in_process import bench_server, measure_in_turns

from mcp_trio import Server
from mcp_trio._recorder.encryption import KEYS_VARIABLE
from mcp_trio.recording import RecordOptions, RecordPolicy


def servers(folder: Path) -> Mapping[str, Server]:
    """Return a server for each way to record it."""
    (folder / "plain").mkdir()
    (folder / "encrypted").mkdir()
    os.environ[KEYS_VARIABLE] = "bench:" + base64.b64encode(bytes(32)).decode()
    records = {
        "not recorded": None,
        "policy, left out by the rate": RecordPolicy(folder / "out", rate=0, errors=False),
        "policy, held and forgotten": RecordPolicy(folder / "held", rate=0, slow_seconds=9),
        "recorded": RecordOptions(folder / "plain"),
        "policy, kept and redacted": RecordPolicy(folder / "kept"),
        "recorded and encrypted": RecordOptions(folder / "encrypted", encrypt=True),
    }
    return {title: bench_server(record=record) for title, record in records.items()}


def main() -> None:
    """Measure with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--calls", type=int, default=400)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        trio.run(measure_in_turns, servers(Path(temporary)), options.turns, options.calls)


if __name__ == "__main__":
    main()
