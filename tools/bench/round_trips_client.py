"""A client of `round_trips.py`: `python round_trips_client.py mcp_trio|sdk VERSION TARGET…`.

The target is a URL, or the command of a server over stdio. The client makes calls one after the
other, and prints their durations and its total CPU time.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

STATELESS_VERSION: Final = "2026-07-28"
WARM_UP: Final = 100
CALLS: Final = 500


async def measure(call: Callable[[int], Awaitable[str]]) -> None:
    seconds: list[float] = []
    cpu_begin = 0.0
    for number in range(WARM_UP + CALLS):
        if number == WARM_UP:
            cpu_begin = time.process_time()
        begin = time.perf_counter()
        answer = await call(number)
        seconds.append(time.perf_counter() - begin)
        if answer != str(number + 1):
            raise ValueError(f"{number} and 1 are {answer}")
    cpu_seconds = time.process_time() - cpu_begin
    print(json.dumps({"seconds": seconds[WARM_UP:], "cpu_seconds": cpu_seconds}))


def run_mcp_trio(target: Sequence[str], protocol_version: str) -> None:
    import trio

    from mcp_trio import Client

    async def main() -> None:
        server = target[0] if len(target) == 1 else target
        async with Client(server, protocol_versions=(protocol_version,)) as client:

            async def call(number: int) -> str:
                answer = await client.call_tool("add", {"a": number, "b": 1}, result_type=int)
                return str(answer)

            await measure(call)

    trio.run(main)


def run_sdk(target: Sequence[str], protocol_version: str) -> None:
    from mcp import Client, StdioServerParameters  # type: ignore[import-not-found]

    async def main() -> None:
        mode = protocol_version if protocol_version == STATELESS_VERSION else "legacy"
        program, *arguments = target
        server = StdioServerParameters(command=program, args=arguments) if arguments else program
        async with Client(server, mode=mode, cache=None) as client:
            await measure(partial(call, client))

    async def call(client: Any, number: int) -> str:
        result = await client.call_tool("add", {"a": number, "b": 1})
        return str(result.content[0].text)

    asyncio.run(main())


CLIENTS: Final[Mapping[str, Callable[[Sequence[str], str], None]]] = {
    "mcp_trio": run_mcp_trio,
    "sdk": run_sdk,
}

if __name__ == "__main__":
    name, protocol_version, *target = sys.argv[1:]
    CLIENTS[name](target, protocol_version)
