"""Call the server of instances_failures.py by the official Python SDK.

`python_1_instances_client.py URL NAMES SECONDS` prints one line for each call: the key, the
outcome, the milliseconds, and the numbers of different messages and of those received again.
"""

import sys
import time
from functools import partial

import anyio
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


async def call_until(url: str, name: str, end: float) -> None:
    number = 0
    while time.time() < end:
        received: list[str] = []

        async def take(params: object, received: list[str] = received) -> None:
            received.append(str(getattr(params, "data", "")))

        try:
            async with (
                streamable_http_client(url) as (read, write, *_),
                ClientSession(read, write, logging_callback=take) as session,
            ):
                await session.initialize()
                while time.time() < end:
                    number += 1
                    tool, key = "report" if number % 10 == 0 else "add", f"{name}-{number}"
                    began = time.perf_counter()
                    outcome = "unknown"
                    try:
                        with anyio.fail_after(30):
                            result = await session.call_tool(tool, {"key": key})
                        outcome = "error" if result.isError else "answered"
                    finally:
                        milliseconds = (time.perf_counter() - began) * 1000
                        notes = [each for each in received if each.startswith(f"{key} ")]
                        counts = len(set(notes)), len(notes) - len(set(notes))
                        print(key, outcome, f"{milliseconds:.1f}", *counts, flush=True)
                    await anyio.sleep(0.2)
        except Exception as error:  # the call is counted; a new session begins
            print("#", name, repr(error), file=sys.stderr, flush=True)
            await anyio.sleep(0.5)


async def main(url: str, names: str, seconds: str) -> None:
    end = time.time() + float(seconds)
    async with anyio.create_task_group() as tasks:
        for name in names.split(","):
            tasks.start_soon(partial(call_until, url, name, end))


anyio.run(main, *sys.argv[1:4])
