"""Answers that cannot be read fail their call at once."""

import json

import pytest
import trio
import trio.testing

from mcp_trio import ConnectionLost, Limits
from mcp_trio.errors import OutcomeUnknown, RemoteProtocolError
from mcp_trio.limits import MessageLimits
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair
from tests.client.conftest import connected

LIMITS = Limits(messages=MessageLimits(bytes_max=2000))
TEXT = [{"type": "text", "text": "x" * 5000}]


@pytest.fixture
async def ends(nursery):
    ours, theirs = memory_pair(limits=LIMITS)
    return await connected((ours, WirePeer(theirs)), nursery, limits=LIMITS)


def id_first(asked, result):
    return json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode()


def id_last(asked, result):
    return json.dumps({"result": result, "jsonrpc": "2.0", "id": asked["id"]}).encode()


async def outcome_of(client, name, into):
    try:
        into[name] = (await client.call_tool(name)).content[0].text
    except Exception as error:
        into[name] = error


@pytest.mark.parametrize("framed", [id_first, id_last])
async def test_an_answer_over_the_size_limit_fails_at_once_and_the_session_goes_on(
    ends, autojump_clock, framed
):
    client, server = ends
    began, told = trio.current_time(), {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outcome_of, client, "large", told)
        await server.send(framed(await server.receive(), {"content": TEXT}))
    assert type(told["large"]) is OutcomeUnknown
    assert "server's response to tools/call" in str(told["large"])
    assert "over limits.messages.bytes_max=2000 of this client" in str(told["large"])
    assert trio.current_time() - began < 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outcome_of, client, "small", told)
        asked = await server.receive()
        assert asked["params"]["name"] == "small"  # and no cancellation before it
        await server.send_result(asked, {"content": [{"type": "text", "text": "fine"}]})
    assert told["small"] == "fine"


async def test_another_call_goes_on_beside_an_unreadable_answer(ends, autojump_clock):
    client, server = ends
    told = {}
    async with trio.open_nursery() as nursery:
        for name in ("one", "two"):
            nursery.start_soon(outcome_of, client, name, told)
        asked = {each["params"]["name"]: each for each in await server.receive_many(2)}
        await server.send(id_first(asked["one"], {"content": TEXT}))
        await trio.testing.wait_all_tasks_blocked()
        assert list(told) == ["one"]
        await server.send_result(asked["two"], {"content": [{"type": "text", "text": "fine"}]})
    assert type(told["one"]) is OutcomeUnknown
    assert told["two"] == "fine"


async def test_a_lone_surrogate_in_an_answer_fails_only_its_call(ends, autojump_clock):
    """L17, the other way round: the caller waited for its timeout."""
    client, server = ends
    began, told = trio.current_time(), {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outcome_of, client, "emoji", told)
        asked = await server.receive()
        await server.send(b'{"jsonrpc":"2.0","id":%d,"result":{"a":"\\ud83d"}}' % asked["id"])
    assert type(told["emoji"]) is RemoteProtocolError
    assert "incomplete surrogate pair" in str(told["emoji"])
    assert trio.current_time() - began < 1
    assert client.counts == {"unreadable answer": 1}


async def test_an_answer_cut_off_by_the_servers_death_is_a_lost_connection(ends, autojump_clock):
    client, server = ends
    told = {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outcome_of, client, "cut", told)
        asked = await server.receive()
        whole = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[]' % asked["id"]
        server.channel.sink.write_nowait(whole)
        server.channel.sink.close()
    assert isinstance(told["cut"], ConnectionLost)
    assert "limits.messages.bytes_max" not in str(told["cut"])
