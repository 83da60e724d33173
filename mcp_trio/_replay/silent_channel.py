"""The wire of a session that runs again without a peer."""

from collections.abc import Sequence

import trio

from mcp_trio._wire import Oversized


class SilentChannel:
    """Takes all frames: the sequencer has seen them before. What arrives comes by hand."""

    transport = "replay"

    def send_nowait(self, frames: Sequence[bytes]) -> int:
        """All of them."""
        return len(frames)

    async def send(self, frames: Sequence[bytes]) -> None:  # noqa: ARG002  the protocol's
        """All of them."""
        await trio.lowlevel.checkpoint()

    async def receive(self) -> Sequence[bytes | Oversized]:
        """Never anything."""
        await trio.sleep_forever()

    async def aclose(self) -> None:
        """Nothing to close."""
        await trio.lowlevel.checkpoint()
