"""Lanes of tasks, of their children, and of sessions side by side and nested."""

from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from mcp_trio import types as s
from mcp_trio._protocol.methods import Role
from mcp_trio._session.journal import LANE, Lane, Unrecorded, watch_lanes
from mcp_trio.errors import LocalProtocolError
from mcp_trio.transports import memory_pair


def level(data):
    return s.LoggingMessageParams(level="info", data=data)


async def test_the_lanes_of_child_tasks_are_named_by_their_spawner(
    serve_fake, call, message, recording
):
    lanes = []

    async def nests(handling):
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(child, handling)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child, handling)
        return ""

    async def child(handling):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.lowlevel.checkpoint)
            nursery.start_soon(leaf, handling)

    async def leaf(handling):
        lanes.append(handling.current_lane().name)

    _, channel = await serve_fake({"nests": nests}, sequencer=recording)
    channel.feed(message(**call("nests", 1)))
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(lanes) == ["r5.0.1", "r5.1.1", "r5.2.1"]


async def test_a_task_without_a_lane_may_not_act_for_a_request(
    serve_fake, call, message, nursery, recording
):
    rejected = []

    async def elsewhere(handling):
        with pytest.raises(LocalProtocolError, match="no lane"):
            await handling.notify("notifications/message", level("x"))
        rejected.append(1)

    async def hands_over(handling):
        nursery.start_soon(outside, handling, elsewhere)
        await trio.sleep_forever()

    async def outside(handling, act):
        LANE.set(None)
        await act(handling)

    _, channel = await serve_fake({"hands_over": hands_over}, sequencer=recording)
    channel.feed(message(**call("hands_over", 1)))
    await trio.testing.wait_all_tasks_blocked()
    assert rejected == [1]


async def test_watching_lanes_twice_is_watching_once():
    watch_lanes()
    watch_lanes()
    LANE.set(Lane("r1"))
    names = []

    async def child():
        names.append(LANE.get().name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(child)
    assert names == ["r1.0"]


@pytest.fixture
def within(make_session):
    """A client and a server that live in a handler, each recorded or not."""

    @asynccontextmanager
    async def enter(tools, *, client_tools, sequencers):
        ours, theirs = memory_pair()
        client = make_session(ours, client_tools, role=Role.CLIENT, sequencer=sequencers[0])
        server = make_session(theirs, tools, sequencer=sequencers[1])
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run)
            await nursery.start(server.run)
            await client.initialize()
            yield client
            client.shut("closed")

    return enter


@pytest.mark.parametrize("is_inner_recorded", [True, False])
async def test_the_lanes_of_a_session_inside_a_handler_do_not_mix_with_its_own(
    serve_fake, call, message, recording, make_recording, within, is_inner_recorded
):
    inner = [make_recording() if is_inner_recorded else Unrecorded() for _ in range(2)]

    async def outer(handling):
        async def tells_outside(_):
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(handling.notify, "notifications/message", level("within"))
            return s.ListRootsResult(roots=[])

        async def asks(handling):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(handling.ask, "roots/list")
            return ""

        roots = {"roots/list": tells_outside}
        async with within({"asks": asks}, client_tools=roots, sequencers=inner) as client:
            await client.request("tools/call", s.CallToolParams(name="asks"))
            await handling.notify("notifications/message", level("from here"))
        return ""

    _, channel = await serve_fake({"outer": outer}, sequencer=recording)
    channel.feed(message(**call("outer", 1)))
    await trio.testing.wait_all_tasks_blocked()
    outs = [text.split() for text in recording.story(since=6) if text.startswith("out")]
    assert [(lane.split(".")[0], int(ordinal)) for _, lane, ordinal in outs] == [
        *(("r5", 1), ("r5", 1), ("r5", 1), ("r5", 2))
    ]
    assert len({lane for _, lane, _ in outs}) == 3
    if is_inner_recorded:
        client_story, server_story = (each.story(since=5) for each in inner)
        assert [text for text in server_story if " r" in text] == [
            *("mark r5 0", "out r5.0 1", "res r5.0 2", "out r5 1")
        ]
        assert [text for text in client_story if " r" in text] == ["out r6 1"]


async def test_a_task_of_another_session_has_no_lane_in_this_one(serve, call, make_recording):
    held = []

    async def holds(handling):
        held.append(handling)
        await trio.sleep_forever()

    async def meddles(handling):
        with pytest.raises(LocalProtocolError, match="no lane"):
            await held[0].notify("notifications/message", level("x"))
        return "rejected"

    _, one = await serve({"holds": holds}, sequencer=make_recording())
    _, other = await serve({"meddles": meddles}, sequencer=make_recording())
    await one.send(call("holds", 1))
    await one.receive_available()
    await other.send(call("meddles", 1))
    assert "rejected" in str(await other.receive())
