"""Our client for `round_trips.py`: `python client_http_mcp_trio.py URL VERSION`."""

import sys
from functools import partial

import timed_calls
import trio

from mcp_trio import Client


async def main(url: str, protocol_version: str) -> None:
    async with Client(url, protocol_versions=(protocol_version,)) as client:

        async def call(number: int) -> str:
            answer = await client.call_tool("add", {"a": number, "b": 1}, result_type=int)
            return str(answer)

        await timed_calls.measure(call)


if __name__ == "__main__":
    trio.run(partial(main, *sys.argv[1:]))
