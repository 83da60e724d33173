"""The scenario, told by the official Python SDK 1: `python python_1_client.py REVISION SERVER…`."""

import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import python_client
from mcp import McpError, types
from noted_stream import NotedStream
from parties import Host, Json, OnReport


class Session(python_client.HandshakeSession):
    """A session of this SDK, which cancels no request: so it is done here."""

    name = "python 1"
    version = "1"
    rejection = McpError
    # The SDK runs callbacks in its reader: it hears of a cancellation when they have returned.
    cancels_callbacks = False

    def __init__(self, host: Host, from_server: Any, to_server: Any) -> None:
        self.stream = NotedStream(to_server)
        super().__init__(host, from_server, self.stream)

    async def call_tool(
        self, name: str, arguments: Json | None = None, report: OnReport | None = None
    ) -> Json:
        async with self.stream.cancelling(self.calls, "tools/call"):
            return await super().call_tool(name, arguments, report)


def connect(
    host: Host, wanted: str, server: Sequence[str]
) -> AbstractAsyncContextManager[python_client.Session]:
    """A session at a revision, or at the newest of the only era that the SDK speaks."""
    protocol_version = types.LATEST_PROTOCOL_VERSION if wanted == "legacy" else wanted
    return python_client.shaking_hands(Session, host, protocol_version, server)


if __name__ == "__main__":
    anyio.run(python_client.tell_scenario, connect, sys.argv[1], sys.argv[2:])
