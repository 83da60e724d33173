"""The client of `round_trips.py`, by the official Python SDK, with its default backend."""

import sys
from functools import partial

import anyio
import round_trip
from mcp import Client  # type: ignore[import-not-found]

MODERN = "2026-07-28"


async def main(url: str, revision: str) -> None:
    mode = revision if revision == MODERN else "legacy"
    async with Client(url, mode=mode, cache=None) as client:

        async def call(number: int) -> str:
            result = await client.call_tool("add", {"a": number, "b": 1})
            return str(result.content[0].text)

        await round_trip.measure(call)


if __name__ == "__main__":
    anyio.run(partial(main, *sys.argv[1:]))
