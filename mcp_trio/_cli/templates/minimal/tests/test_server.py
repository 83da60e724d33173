"""Tests of the server: by its recorded session, and by a client in this process."""

import pytest
from mcp_trio import Client

from my_server.server import server


@pytest.mark.mcp_recording("session.mcprec.jsonl")
def test_the_recorded_session_replays(mcp_replay):
    mcp_replay(server)


async def test_a_person_is_greeted_by_name():
    async with Client(server) as client:
        greeting = await client.call_tool("greet", {"name": "Grace"}, result_type=str)
    assert greeting.startswith("Hello, Grace!")
