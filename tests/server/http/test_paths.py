"""Where things are: nothing hides anything else."""

import pytest
import trio

from mcp_trio import Server


@pytest.mark.parametrize("path", ["/ws", "/ws/", "/sse", "/messages", "/health"])
async def test_two_things_at_one_path_are_rejected(path):
    with (
        trio.fail_after(5),
        pytest.raises(ValueError, match=r"two endpoints cannot have the path /"),
    ):
        await Server("x").serve_http(port=0, path=path)


@pytest.mark.parametrize("option", ["path", "ws_path"])
async def test_a_path_begins_with_a_slash(option):
    with trio.fail_after(5), pytest.raises(ValueError, match="begins with a slash: 'there'"):
        await Server("x").serve_http(port=0, **{option: "there"})


def test_what_is_not_there_hides_nothing():
    assert Server("x").asgi(path="/ws", has_websocket=False)
    assert Server("x").asgi(path="/sse", has_sse=False)
