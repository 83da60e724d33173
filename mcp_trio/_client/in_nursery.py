"""A client whose session lives in a nursery of the caller's, instead of a task of its own."""

from typing import Unpack

import trio

from mcp_trio._client.client import Client
from mcp_trio._client.options import ClientOptions
from mcp_trio._client.targets import Target


async def connect_client(
    target: Target, nursery: trio.Nursery, **options: Unpack[ClientOptions]
) -> Client:
    """A connected `Client` whose session lives in `nursery`, until `aclose`, or its cancellation.

    What the server does, even its death, never ends the nursery. Options and errors are those of
    `Client` and of entering it.
    """
    client = Client(target, **options)
    # Its class is for `async with`; this function is its other half.
    await client._connect(nursery.start_soon)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return client
