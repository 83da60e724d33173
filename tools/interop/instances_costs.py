"""CPU time per call of three instances: with memory stores, and with Redis and two ways of routing.

    python tools/interop/instances_costs.py --calls 5000

One client of a session with a handshake calls a tool that only returns. With sticky routing, each
call reaches the owner of the session; with random routing, two of three calls reach another
instance. A call of a replayable server goes on when its instance is lost. The CPU time is that of
all instances, and of Redis.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx2
import trio
from instances_failures import INSTANCES, Instance

sys.path += [str(Path(__file__).resolve().parents[1] / each) for each in ("", "bench")]

from load import NEWEST_LEGACY, cpu_seconds_of, initialize_request
from server_processes import RedisProcess


def cpu_seconds(process: "subprocess.Popen[bytes] | None") -> float:
    """Return the CPU time that a process has used so far; 0 if it is not run."""
    return 0.0 if process is None else cpu_seconds_of(process.pid)


async def measure(
    instances: list[Instance], redis: RedisProcess, calls: int, *, is_random: bool
) -> tuple[float, float]:
    """Return the CPU microseconds per call of all instances, and of Redis."""
    randomness = random.Random(1)
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
        urls = [f"http://127.0.0.1:{each.port}/mcp" for each in instances]
        opened = await http.post(urls[0], content=initialize_request(NEWEST_LEGACY))
        http.headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
        initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await http.post(urls[0], json=initialized)

        async def call(number: int) -> None:
            params = {"name": "echo", "arguments": {"text": "a"}}
            message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            url = randomness.choice(urls) if is_random else urls[0]
            response = await http.post(url, json=message)
            assert response.json()["result"]["content"][0]["text"] == "a"

        for number in range(200):
            await call(number)
        before = [cpu_seconds(each.process) for each in instances], cpu_seconds(redis.process)
        for number in range(calls):
            await call(number)
        used = sum(cpu_seconds(each.process) for each in instances) - sum(before[0])
        of_redis = cpu_seconds(redis.process) - before[1]
    return 1e6 * used / calls, 1e6 * of_redis / calls


async def main(options: argparse.Namespace) -> None:
    """Measure each case, and print a table."""
    print(f"{'case':36} {'instances, us':>14} {'Redis, us':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for case, has_redis, is_random, is_replayable in (
            ("memory stores, sticky routing", False, False, False),
            ("Redis, sticky routing", True, False, False),
            ("Redis, random routing", True, True, False),
            ("Redis, sticky routing, replayable", True, False, True),
            ("Redis, random routing, replayable", True, True, True),
        ):
            redis, executions = RedisProcess(folder), Path(folder) / "executions"
            instances = [
                Instance(redis, executions, 0, 9.0, is_replayable=is_replayable)
                for _ in range(INSTANCES)
            ]
            try:
                redis.start()
                for each in instances:
                    each.start(*([] if has_redis else ["memory"]))
                    await each.ready()
                used, of_redis = await measure(instances, redis, options.calls, is_random=is_random)
            finally:
                for each in instances:
                    if each.process is not None:
                        each.process.kill()
                        each.process.wait()
                redis.stop()
            print(f"{case:36} {used:14.0f} {of_redis:10.0f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=5000)
    trio.run(main, parser.parse_args())
