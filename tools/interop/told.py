"""What a program tells, line by line, while it runs."""

from collections.abc import Callable

import trio


async def take_in(stream: trio.abc.ReceiveStream, note: Callable[[str], None]) -> None:
    """Hand over each line that comes, until the end."""
    rest = b""
    async for chunk in stream:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            note(line.decode("utf-8", "replace"))
