"""Simulate a week under each recording policy: `python tools/bench/recording_policies.py`.

Users open sessions with a server in memory, more of them by day than by night, and call tools with
secrets in the arguments; one call in a hundred fails. A virtual clock makes the week, also for the
policy, so nothing waits. Each policy has a process of its own, and the same traffic. Printed are
the recordings, their bytes, the failed calls that are in them, the secrets that are found in them,
as they are on the disk and as they are read, the CPU time of a call, client and server together,
that of the threads which keep the folder, and the largest memory of the process.

The exit status is 1 if a policy that keeps errors has lost one, or a secret is found in recordings
that were redacted.
"""

import argparse
import base64
import json
import logging
import os
import random
import re
import resource
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec
import trio
import trio.testing
from measuring import print_table

from mcp_trio import Client, Context, Server
from mcp_trio._catalogue.catalogue import summarize
from mcp_trio._catalogue.maintenance import FolderMaintenance
from mcp_trio._journal.calls import NO_ERROR_KINDS
from mcp_trio._recorder.encryption import KEYS_VARIABLE
from mcp_trio._recorder.policy import PolicyRun
from mcp_trio._server.sessions import HandlerHttpClient, sessions_of
from mcp_trio.errors import ToolError
from mcp_trio.limits import MIB
from mcp_trio.recording import Catalogue, RecordPolicy, open_recording
from mcp_trio.transports import memory_pair

BEGIN: Final = datetime(2026, 11, 2, tzinfo=UTC)
DAYS: Final = 7
CALLS_PER_SESSION: Final = 20
CALLS_AT_A_TIME: Final = 5
PAUSE_SECONDS: Final = 15.0  # the mean
ERROR_SHARE: Final = 0.01
SLOW_SHARE: Final = 0.005
KEEP_DAYS: Final = 3.0

# The sessions that begin in each hour of a day, in proportion.
HOURS: Final = (1, 1, 1, 1, 1, 2, 4, 8, 12, 14, 14, 12, 10, 12, 14, 14, 12, 10, 8, 6, 5, 4, 2, 1)

TAIL: Final[Mapping[str, Any]] = {"rate": 0.01, "slow_seconds": 2}
PLAIN: Final[Mapping[str, Any]] = {"redaction": None, "compress": False}
POLICIES: Final[Mapping[str, Mapping[str, Any] | None]] = {
    "off": None,
    "none": {"rate": 0, "errors": False},
    "all, plain": PLAIN,
    "all": {},
    "sampled": {"rate": 0.01, "errors": False},
    "tail, plain": {**TAIL, **PLAIN},
    "tail": TAIL,
    "tail, encrypted": {**TAIL, "encrypt": True},
    "tail, encrypted, 3 days": {**TAIL, "encrypt": True, "keep_days": KEEP_DAYS},
}

SECRET: Final = re.compile(rb"tulip-[a-z0-9]{12}|ghp_[A-Za-z0-9]{36}")
FILES_PER_SCAN: Final = 500


class Traffic:
    """The sessions of a week, and what their calls are meant to do; the same for each policy."""

    def __init__(self, calls: int) -> None:
        self.sessions: int = max(calls // CALLS_PER_SESSION, 1)
        self.calls: int = self.sessions * CALLS_PER_SESSION
        self.secrets: set[bytes] = set()
        self.failed: dict[int, float] = {}  # orders, and when their session began

    def starts(self) -> Sequence[float]:
        """Return the seconds of the week at which sessions begin."""
        chance = random.Random(1)
        hours = chance.choices(range(24), HOURS, k=self.sessions)
        days = chance.choices(range(DAYS), k=self.sessions)
        return sorted(
            ((day * 24 + hour) + chance.random()) * 3600
            for day, hour in zip(days, hours, strict=True)
        )

    def password(self, chance: random.Random) -> str:
        """Return a password that is found by its name only."""
        chars = chance.choices(string.ascii_lowercase + string.digits, k=12)
        return self._planted("tulip-" + "".join(chars))

    def token(self, chance: random.Random) -> str:
        """Return a token that is found by its shape, in the midst of a text."""
        chars = chance.choices(string.ascii_letters + string.digits, k=36)
        return self._planted("ghp_" + "".join(chars))

    def _planted(self, secret: str) -> str:
        self.secrets.add(secret.encode())
        return secret

    def found_in(self, data: bytes) -> set[bytes]:
        """Return the secrets that some bytes hold."""
        return self.secrets.intersection(SECRET.findall(data))


def shop(record: RecordPolicy | None) -> Server:
    """Return a server whose calls succeed, take long or fail, as their arguments say."""
    server = Server("shop", version="3.2", record=record)

    @server.tool
    async def search(order: int, text: str, ending: str = "") -> list[str]:
        end(order, ending)
        return [f"{text} {number}" for number in range(3)]

    @server.tool(timeout=10)
    async def pay(
        order: int, password: str, seconds: float, ending: str = "", *, ctx: Context
    ) -> str:
        await ctx.sleep(20 if ending == "timeout" else seconds)
        end(order, ending)
        return f"paid with {password}"

    @server.tool
    async def comment(order: int, text: str, ending: str = "") -> str:
        end(order, ending)
        return f"noted: {text}"

    def end(order: int, ending: str) -> None:
        if ending == "tool":
            raise ToolError(f"order {order} is sold out")
        if ending == "internal":
            raise KeyError(order)

    return server


async def run_session(
    serve: Callable[[Any], Any], traffic: Traffic, number: int, began: float
) -> None:
    """Open a session, make its calls with pauses, and close it."""
    near, far = memory_pair()
    chance = random.Random(number)
    password, token = traffic.password(chance), traffic.token(chance)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, far)
        async with Client(near, raise_tool_errors=False) as client:
            for order in range(number * CALLS_PER_SESSION, (number + 1) * CALLS_PER_SESSION):
                if not order % CALLS_AT_A_TIME:
                    await trio.sleep(chance.expovariate(1 / PAUSE_SECONDS))
                tool = chance.choice(("search", "pay", "comment"))
                arguments: dict[str, Any] = {"order": order}
                if chance.random() < ERROR_SHARE:
                    traffic.failed[order] = began
                    endings = ("tool", "internal", "timeout" if tool == "pay" else "tool")
                    arguments["ending"] = chance.choice(endings)
                if tool == "pay":
                    is_slow = chance.random() < SLOW_SHARE
                    seconds = chance.uniform(2, 5) if is_slow else chance.expovariate(20)
                    arguments |= {"password": password, "seconds": round(seconds, 3)}
                elif tool == "search":
                    arguments["text"] = "a red coat with a hood"
                else:
                    arguments["text"] = f"pushed with {token}, please check the order {order}"
                await client.call_tool(tool, arguments)


@attrs.define
class Cost:
    """The CPU seconds of the event loop's thread, and of all others."""

    loop: float = 0.0
    background: float = 0.0


async def simulate(server: Server, traffic: Traffic) -> Cost:
    """Run all sessions of the week within one lifespan of the server."""
    sessions = sessions_of(server)
    begin = trio.current_time()
    cost = Cost(time.thread_time(), time.process_time())
    async with (
        sessions.enter_lifespan(None, transport="memory") as lifespan,
        HandlerHttpClient(1) as http,
        trio.open_nursery() as nursery,
    ):
        serve = partial(sessions.serve_session, lifespan=lifespan, http=http)
        for number, start in enumerate(traffic.starts()):
            await trio.sleep_until(begin + start)
            nursery.start_soon(run_session, serve, traffic, number, start)
    loop = time.thread_time() - cost.loop
    return Cost(loop, time.process_time() - cost.background - loop)


class Outcome(msgspec.Struct, kw_only=True):
    """The figures of one policy."""

    calls: int
    loop_seconds: float
    background_seconds: float
    memory_mib: float
    recordings: int = 0
    kept_bytes: int = 0
    catalogue_bytes: int = 0
    errors: int = 0
    errors_kept: int = 0
    errors_in_bounds: int = 0
    errors_lost: int = 0
    scanned: int = 0
    secrets_by_scan: int = 0
    secrets_on_disk: int = 0
    secrets_read: int = 0
    replays_redacted: bool = False


def run_policy(name: str, calls: int, folder: Path) -> Outcome:
    """Run the week under one policy, and look at what is in its folder."""
    logging.disable(logging.CRITICAL)  # of handlers that fail
    os.environ[KEYS_VARIABLE] = "bench:" + base64.b64encode(bytes(32)).decode()
    options, traffic = POLICIES[name], Traffic(calls)
    clock = trio.testing.MockClock(autojump_threshold=0)
    begin_seconds = clock.current_time()

    def now() -> datetime:
        return BEGIN + timedelta(seconds=clock.current_time() - begin_seconds)

    policy = None
    if options is not None:
        chance = random.Random(2).random
        policy = RecordPolicy(folder, now=now, chance=chance, check_seconds=3600, **options)
    cost = trio.run(simulate, shop(policy), traffic, clock=clock)
    outcome = Outcome(
        calls=traffic.calls,
        loop_seconds=cost.loop,
        background_seconds=cost.background,
        memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        errors=len(traffic.failed),
    )
    if policy is not None:
        FolderMaintenance(PolicyRun(policy)).tidy()
        look_into(folder, policy, traffic, outcome)
    return outcome


def look_into(folder: Path, policy: RecordPolicy, traffic: Traffic, outcome: Outcome) -> None:
    """Count what is in the recordings of a folder."""
    with Catalogue(folder) as catalogue:
        files = [Path(row.file) for row in catalogue.find(oldest_first=True)]
    outcome.recordings = len(files)
    outcome.kept_bytes = sum(file.stat().st_size for file in files)
    outcome.catalogue_bytes = sum(file.stat().st_size for file in folder.glob("catalogue.*"))
    outcome.replays_redacted = policy.redaction is not None
    kept: set[int] = set()
    on_disk: set[bytes] = set()
    read: set[bytes] = set()
    for file in files:
        lines = list(open_recording(file))
        on_disk |= traffic.found_in(file.read_bytes())
        read |= traffic.found_in(b"".join(lines))
        summary = summarize(lines, arguments=True)
        kept.update(
            json.loads(summary.arguments[call.record][0])["order"]
            for call in summary.calls
            if call.error not in NO_ERROR_KINDS
        )
    outcome.secrets_on_disk, outcome.secrets_read = len(on_disk), len(read)
    outcome.errors_kept = len(kept & traffic.failed.keys())
    # An hour is the time between two passes of the background task.
    oldest = 0.0
    if policy.keep_days is not None:
        oldest = (DAYS - policy.keep_days) * 24 * 3600 + 3600
    in_bounds = {order for order, began in traffic.failed.items() if began >= oldest}
    outcome.errors_in_bounds = len(in_bounds)
    outcome.errors_lost = len(in_bounds - kept) if policy.errors else 0
    # Scanning takes as long as the whole simulation, so large folders are scanned in part.
    some = files[:: max(len(files) // (FILES_PER_SCAN * 4), 1)]
    outcome.scanned = len(some)
    for index in range(0, len(some), FILES_PER_SCAN):
        names = map(str, some[index : index + FILES_PER_SCAN])
        command = [sys.executable, "-m", "mcp_trio", "scan", *names]
        output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        outcome.secrets_by_scan += sum(map(int, re.findall(r"likely secrets: ([0-9]+)", output)))


def main() -> int:
    """Run the policies, each in a process, and print a table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policies", nargs="*", metavar="POLICY", default=[*POLICIES])
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="keep the recordings in this folder")
    parser.add_argument("--as-json", action="store_true", help="run one policy, and print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = options.folder or Path(temporary)
        if options.as_json:
            (name,) = options.policies
            inner = folder / name.replace(", ", "-").replace(" ", "-")
            print(msgspec.json.encode(run_policy(name, options.calls, inner)).decode())
            return 0
        outcomes: dict[str, Outcome] = {}
        for name in options.policies:
            command = [sys.executable, __file__, name, "--as-json", "--calls", str(options.calls)]
            command += ["--folder", str(folder)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            outcomes[name] = msgspec.json.decode(output, type=Outcome)
            print(f"{name}: {output.decode().strip()}", file=sys.stderr)
    print_outcomes(outcomes)
    is_wrong = any(
        each.errors_lost or (each.replays_redacted and each.secrets_by_scan + each.secrets_read)
        for each in outcomes.values()
    )
    return int(is_wrong)


def print_outcomes(outcomes: Mapping[str, Outcome]) -> None:
    """Print a row for each policy."""
    headings = [
        "policy",
        "recordings",
        "MiB",
        "bytes a call",
        "errors kept",
        "of those in bounds",
        "secrets by scan",
        "by grep",
        "CPU of a call, µs",
        "more",
        "background, µs a call",
        "memory, MiB",
    ]
    base = next(iter(outcomes.values()))
    rows: list[tuple[str, ...]] = []
    for name, each in outcomes.items():
        us = each.loop_seconds / each.calls * 1e6
        rows.append(
            (
                name,
                f"{each.recordings:,}",
                f"{each.kept_bytes / MIB:.1f}",
                f"{each.kept_bytes / each.calls:.1f}",
                f"{each.errors_kept:,} of {each.errors:,}",
                f"{each.errors_in_bounds - each.errors_lost:,} of {each.errors_in_bounds:,}",
                f"{each.secrets_by_scan:,} in {each.scanned:,}",
                f"{each.secrets_on_disk:,} / {each.secrets_read:,}",
                f"{us:.0f}",
                f"{us - base.loop_seconds / base.calls * 1e6:+.0f}",
                f"{each.background_seconds / each.calls * 1e6:.0f}",
                f"{each.memory_mib:.0f}",
            )
        )
    calls = base.calls
    print_table(
        f"a week: {calls:,} calls in {calls // CALLS_PER_SESSION:,} sessions", headings, rows
    )


if __name__ == "__main__":
    sys.exit(main())
