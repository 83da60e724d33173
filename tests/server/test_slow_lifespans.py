"""Serving can be cancelled while the lifespan is still starting."""

import contextlib
import functools

import pytest
import trio

from mcp_trio import Server

WAYS = ["websocket", "unix", "tcp", "http", "hypercorn", "dial"]


def serving(server, way, tmp_path):
    if way == "unix":
        return functools.partial(server.serve_unix, tmp_path / "s")
    if way == "dial":
        return functools.partial(server.dial, f"unix:{tmp_path}/none")
    if way == "hypercorn":
        return functools.partial(server.serve_http, port=0, server="hypercorn")
    return functools.partial(getattr(server, f"serve_{way}"), port=0)


@pytest.mark.parametrize("way", WAYS)
async def test_a_lifespan_that_is_still_starting_can_be_cancelled(way, tmp_path, autojump_clock):
    release, ended, scope, story = trio.Event(), trio.Event(), trio.CancelScope(), []

    @contextlib.asynccontextmanager
    async def lifespan(_):
        story.append("begins")
        try:
            await release.wait()
        except trio.Cancelled:
            story.append("cancelled")
            raise
        yield

    server = Server("slow", lifespan=lifespan)

    async def serve():
        with scope:
            await serving(server, way, tmp_path)()
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await trio.sleep(1)
        scope.cancel()
        with trio.move_on_after(60):
            await ended.wait()
        has_ended = ended.is_set()
        release.set()
    assert has_ended
    assert story == ["begins", "cancelled"]
