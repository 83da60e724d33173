"""Error texts for targets that are invalid or cannot be reached."""

import pytest

from mcp_trio import Client, ClientGroup, ConnectionLost, Server


@pytest.mark.parametrize("url", ["ws://127.0.0.1:1/ws", "tcp://127.0.0.1:1", "http://127.0.0.1:1/"])
async def test_the_error_says_why_a_target_cannot_be_reached(url):
    with pytest.raises(ConnectionLost, match="refused"):
        async with Client(url):
            pass


@pytest.mark.parametrize("target", ["python server.py", "localhost:8000"])
async def test_the_error_for_an_invalid_string_names_the_accepted_targets(target):
    with pytest.raises(ValueError, match=r"ws://.*unix:.*tcp://.*a command is a list"):
        async with Client(target):
            pass


async def test_a_group_with_restart_may_have_a_server_at_a_url():
    group = ClientGroup({"web": "http://127.0.0.1:1/", "here": Server("here")}, restart=True)
    with pytest.raises(ConnectionLost, match="cannot connect"):
        await group.__aenter__()
