"""The scenario on the official Python SDK 2: `python python_2_client.py VERSION SERVER…`."""

import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import anyio
import python_client
from facts import FACTS, has, is_url
from mcp import Client, MCPDeprecationWarning, MCPError, types
from pydantic import BaseModel
from sdk_adapter import Host, Json, wire

# The newest protocol version deprecates some of the tested features.
warnings.simplefilter("ignore", MCPDeprecationWarning)


class Session(python_client.HandshakeSession):
    """A session of this SDK, which has to be given the handshake's result."""

    name = "python 2"
    version = "2"
    rejection = MCPError
    cancels_callbacks = True

    def adopt(self, server: types.InitializeResult) -> None:
        self.calls.adopt(server)
        super().adopt(server)


class ClientSession(python_client.Session):
    """The SDK's client, which negotiates the version and answers input requests itself."""

    name = Session.name
    version = Session.version
    rejection = Session.rejection
    cancels_callbacks = Session.cancels_callbacks

    def __init__(self, client: Client) -> None:
        self.calls = client
        self.protocol_version = client.protocol_version
        self.capabilities = wire(client.server_capabilities)
        self.level: str | None = None

    async def page(self, fetch: Callable[..., Awaitable[BaseModel]], cursor: str | None) -> Json:
        return await self.answer(fetch(cursor=cursor))

    async def set_level(self, level: types.LoggingLevel) -> None:
        self.level = level

    def options(self) -> Json:
        return {} if self.level is None else {"meta": {types.LOG_LEVEL_META_KEY: self.level}}

    @asynccontextmanager
    async def listening(self, **what: object) -> AsyncIterator[None]:
        """Hold a subscription with `subscriptions/listen` while the block runs."""
        async with self.calls.listen(**what):
            yield
        # The SDK cancels in another task, which the next request might overtake.
        await self.list_resource_templates()

    def subscription(self, uri: str) -> AbstractAsyncContextManager[None]:
        return self.listening(resource_subscriptions=[uri])

    def list_changes(self) -> AbstractAsyncContextManager[None]:
        kinds = ("tools", "prompts", "resources")
        return self.listening(**{f"{kind}_list_changed": True for kind in kinds})


@asynccontextmanager
async def connected_by_client(
    host: Host, mode: str, server: Sequence[str]
) -> AsyncIterator[python_client.Session]:
    """Connect with the SDK's client, in its mode `auto` or `legacy`, or at a version."""
    target = server[0] if is_url(server[0]) else python_client.process_of(server)
    callbacks = python_client.Callbacks(host).by_name()
    info = types.Implementation(name=Session.name, version=Session.version)
    async with Client(target, mode=mode, client_info=info, cache=None, **callbacks) as client:
        yield ClientSession(client)


MODES: Final[Mapping[str, str]] = {
    "legacy": "legacy",
    "both": "auto",
    "stateless": FACTS.protocol_versions[-1],
}


def connect(
    host: Host, wanted: str, server: Sequence[str]
) -> AbstractAsyncContextManager[python_client.Session]:
    """Connect in a version mode or at a protocol version, by a command or a URL."""
    if wanted in MODES:
        return connected_by_client(host, MODES[wanted], server)
    if has(wanted, "sessions"):
        return python_client.connected_by_handshake(Session, host, wanted, server)
    return connected_by_client(host, "auto", server)


if __name__ == "__main__":
    anyio.run(python_client.run_scenario, connect, sys.argv[1], sys.argv[2:])
