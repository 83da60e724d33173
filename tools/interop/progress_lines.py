"""Progress lines of a running program."""

import subprocess
from collections.abc import Callable, Sequence
from functools import partial

import attrs
import trio


@attrs.define(kw_only=True)
class Telling:
    """What was told on the way: how each step went, and what was complained of last."""

    told: dict[str, str] = attrs.field(factory=dict[str, str])
    complaint: str = ""

    def note(self, line: str) -> None:
        """Take in a line that was printed: a step, and how it went."""
        step, _, outcome = line.partition(": ")
        self.told[step] = outcome

    def complain(self, line: str) -> None:
        """Take in a line of complaint."""
        self.complaint = line or self.complaint


async def hear(
    command: Sequence[str], note: Callable[[str], None], complain: Callable[[str], None]
) -> int:
    """Run a program and hand over all that it tells; it is killed if this is cancelled.

    Returns:
        Its status.
    """
    run = partial(
        trio.run_process, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False
    )
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(run)
        assert process.stdout is not None
        assert process.stderr is not None
        nursery.start_soon(take_in, process.stdout, note)
        nursery.start_soon(take_in, process.stderr, complain)
    return await process.wait()


async def take_in(stream: trio.abc.ReceiveStream, note: Callable[[str], None]) -> None:
    """Hand over each line that comes, until the end."""
    rest = b""
    async for chunk in stream:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            note(line.decode("utf-8", "replace"))
