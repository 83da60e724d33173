"""The client of `round_trips.py`, by mcp_trio: `python client_http_mcp_trio.py URL REVISION`."""

import sys
from functools import partial

import round_trip
import trio

from mcp_trio import Client


async def main(url: str, protocol_version: str) -> None:
    async with Client(url, protocol_versions=(protocol_version,)) as client:

        async def call(number: int) -> str:
            answer = await client.call_tool("add", {"a": number, "b": 1}, result_type=int)
            return str(answer)

        await round_trip.measure(call)


if __name__ == "__main__":
    trio.run(partial(main, *sys.argv[1:]))
