"""Many clients of three instances that are killed, stopped and cut off from Redis.

    python tools/interop/instances_failures.py --seconds 600 --clients 200

A Redis and three instances of instances_server.py run on this machine, behind a TCP balancer that
sends each connection to another instance. The clients are ours, and those of the official SDKs
for Python and TypeScript. Every 20 seconds one instance is killed (SIGKILL), in turn, and started
again. Calls that an instance had begun go on in another one, as their effects allow. Some calls of
our clients count themselves in `ctx.state`. After a quarter of the time Redis is paused for 5
seconds, after a half each instance is stopped (SIGTERM) and started again, one after the other, and
after three quarters Redis is restarted. With `--rolling` instances are only stopped, one every 20
seconds, and any error is a failure. The summary counts the calls by their outcome, the calls that
were executed more than once, the messages of answered calls that are missing, those that arrived
again, the wrong numbers of calls that count, and the latencies. The exit status is 1 if a call was
executed more than once, if an answered call was not executed, if a message of an answered call is
missing, or if a number is wrong.

Clients, instances, balancer and Redis share the machine, so the latencies are those of a machine
that has too much to do.
"""

import argparse
import collections
import itertools
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import trio
from peers import PYTHON_1, TYPESCRIPT  # installed by install.py

sys.path.append(str(Path(__file__).resolve().parents[1]))

from balancer import Balancer
from server_processes import RedisProcess, free_port, wait_until_listening

from mcp_trio import Client
from mcp_trio._client.client import notifications_handled
from mcp_trio.errors import MCPError, OutcomeUnknown
from mcp_trio.types import LoggingMessageParams

HERE: Final = Path(__file__).resolve().parent
INSTANCES: Final = 3
LEGACY: Final = ["2025-11-25"]
REPORTS: Final = 10  # each so many-th call sends messages
COUNTS: Final = 4  # each so many-th call counts in `ctx.state`, if it sends no messages
MESSAGES: Final = 3
PAUSE_SECONDS: Final = 5.0
EVERY_SECONDS: Final = 20.0
"""The time between the ends of two instances."""

LEASE_SECONDS: Final = 6.0
CALL_SECONDS: Final = 30.0


@attrs.define
class Call:
    """A call of a client, as it has ended.

    Attributes:
        key: The client's name and the number of the call.
        outcome: "answered", "unknown" or "error".
        milliseconds: The time that the call took.
        messages: The number of different messages that the client received of the call.
        repeated: The number of messages that it received again.
        is_wrong: Whether the call counts, and its number does not follow the session's last one.
    """

    key: str
    outcome: str
    milliseconds: float
    messages: int
    repeated: int
    is_wrong: bool = False

    @property
    def sends_messages(self) -> bool:
        """True if the handler sends messages before its result, which takes longer."""
        return int(self.key.rpartition("-")[2]) % REPORTS == 0


@attrs.define(eq=False)
class Instance:
    """The process of one instance, which is started again at the same port."""

    redis: RedisProcess
    executions: Path
    balancer_port: int
    lease_seconds: float
    log: int = subprocess.DEVNULL
    is_replayable: bool = True
    port: int = attrs.field(factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None

    def start(self, *options: str) -> None:
        """Start the instance, with further arguments of instances_server.py."""
        command = [sys.executable, str(HERE / "instances_server.py"), str(self.port)]
        command += [self.redis.url, str(self.lease_seconds)]
        command += [f"127.0.0.1:{self.balancer_port}", *options]
        environment = {**os.environ, "EXECUTIONS": str(self.executions)}
        if self.is_replayable:
            environment["REPLAYABLE"] = "1"
        self.process = subprocess.Popen(command, env=environment, stderr=self.log)

    async def ready(self) -> None:
        """Wait until the instance accepts connections."""
        assert self.process is not None
        await trio.to_thread.run_sync(wait_until_listening, self.port, self.process)

    async def end(self, number: int) -> None:
        """Send a signal to the instance, and wait for its end."""
        assert self.process is not None
        self.process.send_signal(number)
        await trio.to_thread.run_sync(self.process.wait)


def _take(received: list[str], params: LoggingMessageParams) -> None:
    received.append(str(params.data))


async def call_until(url: str, name: str, end: float, calls: list[Call]) -> None:
    """Call the tools by our client until the time `end`; begin a new session after an error."""
    numbers = itertools.count(1)
    while time.time() < end:
        received: list[str] = []
        try:
            async with Client(
                url,
                protocol_versions=LEGACY,
                log_level="info",
                log=partial(_take, received),
            ) as client:
                counted: int | None = 0
                while time.time() < end:
                    number = next(numbers)
                    key = f"{name}-{number}"
                    tool = "add" if number % REPORTS else "report"
                    if tool == "add" and number % COUNTS == 0:
                        tool = "count" if number % (2 * COUNTS) else "count_in_thread"
                    began, outcome, is_wrong = time.perf_counter(), "error", False
                    try:
                        with trio.fail_after(CALL_SECONDS):
                            result = await client.call_tool(tool, {"key": key})
                        outcome = "answered"
                        if tool.startswith("count"):
                            is_wrong = counted is not None and result.data != counted + 1
                            counted = result.data
                    except (OutcomeUnknown, trio.TooSlowError):
                        outcome = "unknown"
                    except MCPError as error:
                        outcome = "unknown" if "outcome is unknown" in str(error) else "error"
                        print("#", name, error, file=sys.stderr)
                    milliseconds = (time.perf_counter() - began) * 1000
                    await notifications_handled(client)
                    notes = [each for each in received if each.startswith(f"{key} ")]
                    received.clear()
                    messages, repeated = len(set(notes)), len(notes) - len(set(notes))
                    if outcome != "answered" and tool.startswith("count"):
                        counted = None  # The call may have counted.
                    call = Call(key, outcome, milliseconds, messages, repeated, is_wrong)
                    calls.append(call)
                    await trio.sleep(0.2)
        except MCPError as error:
            print("#", name, repr(error), file=sys.stderr)
            await trio.sleep(0.5)


async def call_by_sdk(command: Sequence[str], calls: list[Call]) -> None:
    """Run a program that calls the tools by an official SDK, and read its lines."""
    done = await trio.run_process(command, capture_stdout=True, stderr=None, check=False)
    for line in done.stdout.decode().splitlines():
        key, outcome, milliseconds, messages, repeated = line.split()
        calls.append(Call(key, outcome, float(milliseconds), int(messages), int(repeated)))


async def disturb(
    instances: Sequence[Instance],
    redis: RedisProcess,
    seconds: float,
    *,
    is_gentle: bool,
) -> None:
    """End an instance each `EVERY_SECONDS`, in turn, and disturb Redis twice.

    If `is_gentle`, instances are only stopped, and Redis goes on: clients must see no error.
    """
    began, turn = trio.current_time(), itertools.cycle(instances)
    others = ["pause of Redis", "rolling restart", "restart of Redis"]
    due = [] if is_gentle else [(seconds * (n + 1) / 4, name) for n, name in enumerate(others)]

    async def end(way: signal.Signals) -> None:
        instance = next(turn)
        print(f"{trio.current_time() - began:5.0f} s: {way.name} to an instance", file=sys.stderr)
        await instance.end(way)
        instance.start()
        await instance.ready()

    while True:
        await trio.sleep(EVERY_SECONDS)
        elapsed = trio.current_time() - began
        if elapsed > seconds - EVERY_SECONDS / 2:
            return
        await end(signal.SIGTERM if is_gentle else signal.SIGKILL)
        if due and elapsed > due[0][0]:
            _, event = due.pop(0)
            print(f"{elapsed:5.0f} s: {event}", file=sys.stderr)
            if event == "pause of Redis":
                redis.signal(signal.SIGSTOP)
                await trio.sleep(PAUSE_SECONDS)
                redis.signal(signal.SIGCONT)
            elif event == "restart of Redis":
                await trio.to_thread.run_sync(redis.stop)
                redis.start()
            else:
                for _ in instances:
                    await end(signal.SIGTERM)


def named(kind: str, count: int) -> str:
    """Return the names of clients of one kind, for a command line."""
    return ",".join(f"{kind}{number}" for number in range(count))


def callers(count: int, seconds: float, url: str) -> Iterator[list[str]]:
    """Yield the commands of the official SDKs, each for so many clients."""
    python = [PYTHON_1.python, str(HERE / "python_1_instances_client.py")]
    yield [*python, url, named("python", count), str(seconds)]
    typescript = TYPESCRIPT.start("instances_client.mjs")
    yield [*typescript, url, named("typescript", count), str(seconds)]


def summarize(calls: Sequence[Call], executions: Path, *, is_gentle: bool) -> int:
    """Print the summary; return the exit status."""
    executed = collections.Counter(executions.read_text().split())
    failures = 0
    print(
        f"{'clients':12} {'calls':>6} {'answered':>8} {'unknown':>7} {'errors':>6}"
        f" {'twice':>5} {'lost':>5} {'again':>5} {'wrong':>5} {'p50 ms':>7} {'p90 ms':>7}"
        f" {'p99 ms':>7} {'max ms':>7}"
    )
    by_kind: dict[str, list[Call]] = collections.defaultdict(list)
    for call in calls:
        by_kind[re.split(r"\d", call.key)[0]].append(call)
    for kind, its in sorted(by_kind.items()):
        outcomes = collections.Counter(call.outcome for call in its)
        answered = [call for call in its if call.outcome == "answered"]
        twice = sum(executed[call.key] > 1 for call in its)
        never = sum(not executed[call.key] for call in answered)
        reports = [call for call in answered if call.sends_messages]
        lost = sum(MESSAGES - call.messages for call in reports)
        again = sum(call.repeated for call in reports)
        wrong = sum(call.is_wrong for call in its)
        plain = sorted(call.milliseconds for call in answered if not call.sends_messages) or [0.0]
        percent = statistics.quantiles(plain, n=100) if len(plain) > 1 else plain * 99
        print(
            f"{kind:12} {len(its):6} {len(answered):8} {outcomes['unknown']:7}"
            f" {outcomes['error']:6} {twice:5} {lost:5} {again:5} {wrong:5} {percent[49]:7.1f}"
            f" {percent[89]:7.1f} {percent[98]:7.1f} {plain[-1]:7.1f}"
        )
        failures += twice + never + lost + wrong
        if is_gentle:
            failures += len(its) - len(answered)
    return 1 if failures else 0


@asynccontextmanager
async def served(redis: RedisProcess, executions: Path, log: int) -> AsyncIterator[Any]:
    """Run Redis, the instances and the balancer within the block."""
    balancer = Balancer()
    instances = [
        Instance(redis, executions, balancer.port, LEASE_SECONDS, log) for _ in range(INSTANCES)
    ]
    redis.start()
    try:
        for instance in instances:
            instance.start()
        for instance in instances:
            await instance.ready()
        balancer.ports = [instance.port for instance in instances]
        async with trio.open_nursery() as nursery:
            await nursery.start(balancer.run)
            yield f"http://127.0.0.1:{balancer.port}/mcp", instances
            nursery.cancel_scope.cancel()
    finally:
        for instance in instances:
            if instance.process is not None:
                instance.process.kill()
                instance.process.wait()
        redis.signal(signal.SIGCONT)
        redis.stop()


async def main(options: argparse.Namespace) -> int:
    """Run everything, and print the summary."""
    calls: list[Call] = []
    with tempfile.TemporaryDirectory() as folder:
        executions = Path(folder) / "executions"
        executions.touch()
        log = 2 if options.verbose else subprocess.DEVNULL
        redis = RedisProcess(folder, keeps_data=True)
        async with served(redis, executions, log) as (url, instances):
            of_each = options.clients // 4
            end = time.time() + options.seconds
            async with trio.open_nursery() as nursery:
                for number in range(options.clients - 2 * of_each):
                    nursery.start_soon(call_until, url, f"ours{number}", end, calls)
                for command in callers(of_each, options.seconds, url):
                    nursery.start_soon(call_by_sdk, command, calls)
                end_instances = partial(disturb, is_gentle=options.rolling)
                nursery.start_soon(end_instances, instances, redis, options.seconds)
        return summarize(calls, executions, is_gentle=options.rolling)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rolling", action="store_true", help="only stop instances, by SIGTERM")
    parser.add_argument("--verbose", action="store_true", help="print the logs of instances")
    raise SystemExit(trio.run(main, parser.parse_args()))
