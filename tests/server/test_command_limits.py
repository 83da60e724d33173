"""The limits that `mcp-trio run` adds to a server, and replays and sweeps of its recordings."""

from functools import partial

import pytest
import trio

from mcp_trio import Client, Context, RequestError, Server
from mcp_trio._journal.records import CommandBody, Record, encode_body
from mcp_trio._server.command_limits import add_limits, limits_of_command, recorded_limits
from mcp_trio.errors import RecordingError, ReplayDivergence
from mcp_trio.http import HttpStores
from mcp_trio.middleware import MemoryLimitStore, RateLimit
from mcp_trio.recording import replay, sweep
from mcp_trio.transports import memory_pair


def make_server():
    server = Server("harbour")

    @server.tool
    async def tide(*, ctx: Context) -> float:
        await ctx.sleep(0.5)
        return await ctx.effect(lambda: 2.5)

    return server


def limited_server(*limits):
    server = make_server()
    add_limits(server, limits_of_command(*limits))
    return server


async def record(server, path, *, at_once=1, later=0):
    """Record calls of a client; return the texts of the rejections."""
    rejections = []

    async def call(client):
        try:
            await client.call_tool("tide")
        except RequestError as error:
            rejections.append(error.message)

    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(server.serve, theirs, record=path))
        async with Client(ours) as client:
            async with trio.open_nursery() as calls:
                for _ in range(at_once):
                    calls.start_soon(call, client)
            for _ in range(later):
                await call(client)
    return rejections


async def test_each_option_is_a_limit_and_a_replay_of_the_plain_server_has_them(
    tmp_path, autojump_clock
):
    path = tmp_path / "session.mcprec.jsonl"
    server = limited_server(["2/second", "5/hour"], 2, ["0.2 kB/hour"])
    rejections = await record(server, path, at_once=3, later=4)
    assert {text.partition(":")[0] for text in rejections} == {
        "too many requests (2/second per user)",
        "the quota is used up (0.2 kB/hour of bytes per user)",
    }
    plain = make_server()
    report = await trio.to_thread.run_sync(replay, path, plain)
    assert report.requests == 7
    assert plain._sessions.middleware == []
    swept = await trio.to_thread.run_sync(partial(sweep, path, make_server, schedules=3))
    assert not swept.differences


async def test_requests_at_once_are_limited_and_replayed(tmp_path, autojump_clock):
    path = tmp_path / "session.mcprec.jsonl"
    rejections = await record(limited_server([], 2, []), path, at_once=3)
    assert [text.partition(":")[0] for text in rejections] == [
        "too many requests at once (2 per user)"
    ]
    await trio.to_thread.run_sync(replay, path, make_server())


@pytest.mark.requirement("TOOL-38")
async def test_the_limits_of_the_command_are_outside_of_those_of_the_server(
    tmp_path, autojump_clock
):
    path = tmp_path / "session.mcprec.jsonl"
    server = make_server()
    server.middleware(RateLimit("1/minute"))
    add_limits(server, limits_of_command(["1/hour"], None, []))
    rejections = await record(server, path, later=1)
    assert rejections == ["too many requests (1/hour per user): try again in 3599.5 s"]
    plain = make_server()
    plain.middleware(RateLimit("1/minute"))
    await trio.to_thread.run_sync(replay, path, plain)
    with pytest.raises(ReplayDivergence):  # the server's own limit is missing
        await trio.to_thread.run_sync(replay, path, make_server())


def test_damaged_settings_in_a_recording_are_an_error():
    body = encode_body(CommandBody(name="run --rate-limit", arguments={"rate": "often"}))
    record = Record(number=7, time_ns=0, kind="cmd", lane="r1", ordinal=0, body=body)
    with pytest.raises(RecordingError, match="record 7: the settings of run --rate-limit"):
        recorded_limits([record])


def test_an_invalid_rate_is_rejected():
    with pytest.raises(ValueError, match="'often' is no rate"):
        limits_of_command(["often"], None, [])


@pytest.mark.requirement("TOOL-38")
async def test_limits_without_a_store_use_that_of_the_instances():
    shared = HttpStores(limits=MemoryLimitStore())
    own = MemoryLimitStore()
    server, other = make_server(), make_server()
    for each in (server, other):
        add_limits(each, limits_of_command(["2/hour"], None, []))
    other.middleware(RateLimit("1/hour", store=own))
    async with trio.open_nursery() as nursery:
        urls = [
            await nursery.start(partial(each.serve_http, port=0, stores=shared))
            for each in (server, other)
        ]
        async with Client(urls[0]) as one, Client(urls[1]) as two:
            await one.call_tool("tide")
            await two.call_tool("tide")
            for client in (one, two):
                with pytest.raises(RequestError, match=r"2/hour per user"):
                    await client.call_tool("tide")
        nursery.cancel_scope.cancel()
    assert own._buckets._full_at
    assert server._sessions.limit_store is None
