"""The Python SDK's client for `round_trips.py`, with its default backend."""

import sys
from functools import partial

import anyio
import timed_calls
from mcp import Client  # type: ignore[import-not-found]

STATELESS_VERSION = "2026-07-28"


async def main(url: str, protocol_version: str) -> None:
    mode = protocol_version if protocol_version == STATELESS_VERSION else "legacy"
    async with Client(url, mode=mode, cache=None) as client:

        async def call(number: int) -> str:
            result = await client.call_tool("add", {"a": number, "b": 1})
            return str(result.content[0].text)

        await timed_calls.measure(call)


if __name__ == "__main__":
    anyio.run(partial(main, *sys.argv[1:]))
