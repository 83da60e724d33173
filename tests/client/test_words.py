"""What a newcomer is told who gave a client a target that is none, or is not there."""

import pytest

from mcp_trio import Client, ClientGroup, ConnectionLost, Server


@pytest.mark.parametrize("url", ["ws://127.0.0.1:1/ws", "tcp://127.0.0.1:1", "http://127.0.0.1:1/"])
async def test_why_nobody_can_be_reached_is_said(url):
    with pytest.raises(ConnectionLost, match="refused"):
        async with Client(url):
            pass


@pytest.mark.parametrize("target", ["python server.py", "localhost:8000"])
async def test_what_a_string_has_to_be_is_said(target):
    with pytest.raises(ValueError, match=r"ws://.*unix:.*tcp://.*a command is a list"):
        async with Client(target):
            pass


async def test_a_group_that_starts_its_servers_again_may_have_one_at_a_url():
    group = ClientGroup({"web": "http://127.0.0.1:1/", "here": Server("here")}, restart=True)
    with pytest.raises(ConnectionLost, match="cannot connect"):
        await group.__aenter__()
