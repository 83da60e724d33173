"""A user-defined transport in 40 lines: two named pipes, one message a line."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import trio

from mcp_trio.transports import LineSplitter, Received


class NamedPipes:
    """A channel at one end of two named pipes, each given as a file descriptor."""

    transport: str = "pipes"

    def __init__(self, fd_in: int, fd_out: int, *, message_bytes_max: int = 4_000_000) -> None:
        self._source, self._sink = trio.lowlevel.FdStream(fd_in), trio.lowlevel.FdStream(fd_out)
        self._lines = LineSplitter(message_bytes_max=message_bytes_max)

    async def send(self, messages: Sequence[bytes]) -> None:
        """Send messages, one a line."""
        try:
            await self._sink.send_all(b"".join(message + b"\n" for message in messages))
        except trio.Cancelled:
            self._sink.close()  # part of a line may have been sent: nothing may follow it
            raise

    async def receive(self) -> Sequence[Received]:
        """Receive the next messages; an empty list is the end."""
        while chunk := await self._source.receive_some():
            if messages := self._lines.feed(chunk):
                return messages
        return self._lines.finish()

    async def aclose(self) -> None:
        """Close both pipes."""
        self._sink.close()
        await self._source.aclose()


async def open_named_pipes(folder: Path, *, is_server: bool) -> NamedPipes:
    """Open one end of the pipes `to-server` and `to-client` in a folder; wait for the other end."""
    modes = (os.O_RDONLY, os.O_WRONLY) if is_server else (os.O_WRONLY, os.O_RDONLY)
    fds: dict[int, int] = {}
    with ExitStack() as opened:  # both ends open the pipes in the same order, or each would wait
        for path, mode in zip((folder / "to-server", folder / "to-client"), modes, strict=True):
            fds[mode] = await trio.to_thread.run_sync(os.open, path, mode, abandon_on_cancel=True)
            opened.callback(os.close, fds[mode])
        opened.pop_all()  # both pipes are open, and stay open
    return NamedPipes(fd_in=fds[os.O_RDONLY], fd_out=fds[os.O_WRONLY])
