"""Subscriptions that are renewed in the next session."""

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import Client, Server
from tests.client.stateless import LEGACY, STATELESS

URI = "tide://bergen"


@attrs.define(eq=False)
class Mortal:
    """A server object whose sessions end when a test says so."""

    lives: list = attrs.field(factory=list)
    servers: list = attrs.field(factory=list)
    has_tide: bool = True

    async def serve(self, channel):
        server = Server("mortal", offers=["resources"])

        @server.tool
        async def live() -> None:
            pass

        if self.has_tide:
            server.resource(URI)(live)
        with trio.CancelScope() as life:
            self.lives.append(life)
            self.servers.append(server)
            await server.serve(channel)

    async def die(self):
        self.lives[-1].cancel()
        await trio.testing.wait_all_tasks_blocked()

    async def change_in_next_life(self, client):
        await self.die()
        await client.call_tool("live")
        self.servers[-1].resource_updated(URI)
        await trio.sleep(1)


@pytest.mark.parametrize("protocol_version", [LEGACY[-1], STATELESS])
async def test_resource_updates_arrive_after_a_restart(protocol_version, autojump_clock):
    mortal, heard = Mortal(), []
    options = {"restart": True, "resource_updated": lambda told: heard.append(told.uri)}
    async with Client(mortal, protocol_versions=[protocol_version], **options) as client:
        await client.subscribe(URI)
        await mortal.change_in_next_life(client)
        assert heard == [URI]
        await client.unsubscribe(URI)
        await mortal.change_in_next_life(client)
    assert heard == [URI]


async def test_a_resource_that_is_gone_after_a_restart_is_logged(autojump_clock, caplog):
    mortal = Mortal()
    async with Client(mortal, protocol_versions=[LEGACY[-1]], restart=True) as client:
        await client.subscribe(URI)
        mortal.has_tide = False
        await mortal.die()
        await client.call_tool("live")
    assert f"the client will not be notified of changes of {URI}: resource not found" in caplog.text
