"""The scenario on the official Python SDK 1: `python python_1_client.py VERSION SERVER…`."""

import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import python_client
from mcp import McpError, types
from request_id_stream import RequestIdStream
from sdk_adapter import Host, Json, OnReport


class Session(python_client.HandshakeSession):
    """A session of this SDK; it sends the cancellations that the SDK does not send."""

    name = "python 1"
    version = "1"
    rejection = McpError
    # The SDK runs callbacks in its reader, which reads a cancellation after they have returned.
    cancels_callbacks = False

    def __init__(self, host: Host, from_server: Any, to_server: Any) -> None:
        self.stream = RequestIdStream(to_server)
        super().__init__(host, from_server, self.stream)

    async def call_tool(
        self, name: str, arguments: Json | None = None, report: OnReport | None = None
    ) -> Json:
        async with self.stream.cancelling(self.calls, "tools/call"):
            return await super().call_tool(name, arguments, report)


def connect(
    host: Host, mode: str, server: Sequence[str]
) -> AbstractAsyncContextManager[python_client.Session]:
    """Connect at a protocol version; "legacy" is the newest one of this SDK."""
    protocol_version = types.LATEST_PROTOCOL_VERSION if mode == "legacy" else mode
    return python_client.connected_by_handshake(Session, host, protocol_version, server)


if __name__ == "__main__":
    anyio.run(python_client.run_scenario, connect, sys.argv[1], sys.argv[2:])
