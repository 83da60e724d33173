"""The order of a session's events: which are recorded, when, and without side effects."""

import itertools
import json
import math
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from mcp_trio import ConnectionLost, Limits, RequestError, RequestTimeout
from mcp_trio import types as s
from mcp_trio._journal.records import BEGINS_STEP
from mcp_trio._protocol.methods import Role
from mcp_trio._replay.schedules import SweepSequencer
from mcp_trio._replay.session_replay import SessionReplay
from mcp_trio._session.handlers import lane_of_caller
from mcp_trio._session.journal import Sequencer
from mcp_trio._session.lanes import LANE, Lane, watch_lanes
from mcp_trio.errors import LocalProtocolError
from mcp_trio.limits import RequestLimits
from mcp_trio.recording import body_bytes
from mcp_trio.transports import Oversized, memory_pair
from tests.session.fake_channels import DirectFakeChannel

# ruff: noqa: ARG002  a sequencer's methods have the words of the protocol


async def test_the_records_of_a_complete_session(serve_fake, call, message, recording, echo):
    session, channel = await serve_fake({"echo": echo}, sequencer=recording)
    channel.feed(message(**call("echo", 1)))
    await trio.testing.wait_all_tasks_blocked()
    channel.feed()
    await session.ended.wait()
    records = recording.records()
    assert recording.story() == [
        *("open", "in", "out", "mark negotiated", "in"),
        *("in", "out r5 1", "shut", "mark close 1", "end"),
    ]
    assert body_bytes(records[5]) == message(**call("echo", 1))
    assert body_bytes(records[6]) == channel.sent[0]
    assert json.loads(body_bytes(records[3]))["value"]["protocol_version"] == "2024-11-05"
    assert json.loads(body_bytes(records[7])) == {"cause": "eof"}


async def test_a_step_is_listed_only_if_the_next_record_is_not_of_its_lane(
    serve_fake, call, message, recording
):
    go_on = trio.Event()

    async def notifies(handling):
        await handling.notify("notifications/message", level("one"))
        await handling.notify("notifications/message", level("two"))
        return ""

    async def waits(handling):
        await go_on.wait()
        return await notifies(handling)

    _, channel = await serve_fake({"notifies": notifies, "waits": waits}, sequencer=recording)
    channel.feed(message(**call("notifies", 1)))
    await trio.testing.wait_all_tasks_blocked()
    assert recording.story(since=5) == ["in", "out r5 1", "out r5 2", "out r5 3"]
    assert [each.step_start for each in recording.records()[5:]] == [0, BEGINS_STEP, 0, 0]
    channel.feed(message(**call("waits", 1)), message(**call("notifies", 2)))
    await trio.testing.wait_all_tasks_blocked()
    go_on.set()
    await trio.testing.wait_all_tasks_blocked()
    assert recording.story(since=9) == [
        *("in", "in", "step r9"),
        *("out r10 1", "out r10 2", "out r10 3"),
        *("out r9 1", "out r9 2", "out r9 3"),
    ]
    assert [each.step_start for each in recording.records()[12:]] == [BEGINS_STEP, 0, 0] * 2


def level(data):
    return s.LoggingMessageParams(level="info", data=data)


async def test_a_step_has_the_time_at_which_it_happened(mock_clock, serve_fake, message, recording):
    async def waits(handling):
        await trio.sleep(1)
        return {}

    _, channel = await serve_fake({"tools/list": waits}, sequencer=recording)
    mock_clock.jump(1)
    channel.feed(message(id=1, method="tools/list"))
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(0.5)
    channel.feed(message(id=2, method="ping"))
    await trio.testing.wait_all_tasks_blocked()
    assert recording.story(since=6)[:2] == ["step r5", "in"]
    times = {each.kind: each.time_ns / 1e9 for each in recording.records()[5:]}
    assert times["step"] == times["in"] - 0.5


async def test_outcomes_are_recorded_when_the_lane_resumes(serve, call, recording):
    async def asks(handling):
        await handling.ask("roots/list")
        with trio.move_on_after(0):
            await handling.ask("roots/list")
        with pytest.raises(RequestError, match="no roots"):
            await handling.ask("roots/list")
        return ""

    _, peer = await serve({"asks": asks}, sequencer=recording)
    await peer.send(call("asks", 1))
    await peer.send_result(await peer.receive(), {"roots": []})
    while (asked := await peer.receive()).get("method") != "roots/list":
        pass
    await peer.send({"id": asked["id"], "error": {"code": 1, "message": "no roots"}})
    await peer.receive()
    assert [text for text in recording.story(since=5) if "r5" in text] == [
        *("out r5 1", "res r5 2"),
        "cxl r5 3",
        *("out r5 4", "err r5 5"),
        "out r5 6",
    ]


async def test_a_request_of_a_handler_after_the_end_began_has_an_outcome(
    autojump_clock, serve_fake, call, message, recording
):
    async def asks_late(handling):
        await trio.sleep(1)
        with pytest.raises(ConnectionLost):
            await handling.ask("roots/list")
        return ""

    session, channel = await serve_fake({"asks_late": asks_late}, sequencer=recording)
    channel.feed(message(**call("asks_late", 1)))
    await trio.testing.wait_all_tasks_blocked()
    channel.feed()
    await session.ended.wait()
    assert recording.story(since=5) == [
        *("in", "step r5", "shut", "err r5 1", "out r5 2", "mark close 1", "end")
    ]


async def test_the_cancellation_of_a_request_is_sent_right_after_its_outcome(
    serve, call, recording
):
    async def asks(handling):
        await handling.ask("roots/list")

    _, peer = await serve({"asks": asks}, sequencer=recording)
    await peer.send(call("asks", 1))
    await peer.receive()
    await peer.cancel(1)
    assert (await peer.receive())["method"] == "notifications/cancelled"
    assert recording.story(since=6) == ["out r5 1", "in", "cxl r5 2", "out r5 3", "cxl r5 4"]


async def test_a_request_of_a_handler_that_timed_out_is_recorded_as_cancelled(
    serve, call, recording
):
    async def asks(handling):
        with pytest.raises(RequestTimeout):
            await handling.ask("roots/list")
        return ""

    limits = Limits(requests=RequestLimits(total_seconds=0))
    _, peer = await serve({"asks": asks}, sequencer=recording, limits=limits)
    await peer.send(call("asks", 1))
    await peer.receive_many(3)
    assert recording.story(since=6) == ["out r5 1", "cxl r5 2", "out r5 3", "out r5 4"]


async def test_a_handler_that_ends_without_an_answer_is_recorded(serve, call, recording):
    async def slow(handling):
        await trio.sleep_forever()

    _, peer = await serve({"slow": slow}, sequencer=recording)
    await peer.send(call("slow", 1))
    await peer.receive_available()
    await peer.cancel(1)
    await peer.receive_available()
    assert recording.story(since=5) == ["in", "step r5", "in", "cxl r5 1"]


async def test_invalid_messages_are_recorded_verbatim(serve_fake, recording):
    _, channel = await serve_fake(sequencer=recording)
    odd = [b"junk", b'\xff{"jsonrpc":"2.0"}', b'{"jsonrpc":"2.0","id":\n5}']
    channel.feed(*odd)
    channel.feed(Oversized(size=10_000_000, prefix=b'{"jsonrpc":"2.0","id":"big","method":"x"'))
    await trio.testing.wait_all_tasks_blocked()
    recording.flush()
    taken = [r for r in recording.records()[5:] if r.kind == "in"]
    assert [body_bytes(r) for r in taken[:3]] == odd
    assert taken[0].body_base64
    assert taken[3].envelope == {"discarded": 10_000_000}
    assert json.loads(channel.sent[-1])["id"] == "big"


async def test_pings_have_a_lane_of_their_own(mock_clock, serve_fake, message, recording, small):
    limits = small(requests=RequestLimits(ping_interval_seconds=5.0))
    session, channel = await serve_fake(sequencer=recording, limits=limits)
    mock_clock.jump(5)
    await trio.testing.wait_all_tasks_blocked()
    channel.feed(message(id=json.loads(channel.sent[0])["id"], result={}))
    await trio.testing.wait_all_tasks_blocked()
    assert [text for text in recording.story() if " ping" in text] == [
        *("step ping", "out ping 1", "res ping 2")
    ]
    session.shut("closed")
    await session.ended.wait()


async def test_the_session_of_a_client_is_recorded(dial, recording):
    session, peer = await dial(sequencer=recording)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.request, "tools/list")
        await peer.send_result(await peer.receive(), {"tools": []})
    session.shut("closed")
    await session.ended.wait()
    assert recording.story() == [
        *("open", "out", "in", "out", "mark negotiated"),
        *("out", "in", "shut", "mark close 1", "end"),
    ]


async def conversation(serve_fake, call, message, sequencer):
    """One long exchange in which the order of handlers is settled by events; what was sent."""
    turns = {number: trio.Event() for number in range(6)}

    async def asks(handling):
        await turns[0].wait()
        answer = await handling.ask("roots/list")
        await handling.progress(len(answer.roots))
        turns[1].set()
        return "asked"

    async def nests(handling):
        await turns[1].wait()
        async with trio.open_nursery() as nursery:
            for number in range(70):
                await handling.progress(number)
            nursery.start_soon(turns[2].wait)
            turns[2].set()
        turns[3].set()
        return "nested"

    async def fails(handling):
        await turns[3].wait()
        turns[4].set()
        raise ValueError

    async def slow(handling):
        turns[0].set()
        await trio.sleep_forever()

    tools = {"asks": asks, "nests": nests, "fails": fails, "slow": slow}
    session, channel = await serve_fake(tools, sequencer=sequencer)
    for number, name in enumerate(tools):
        channel.feed(message(**call(name, number, token=f"t{number}")))
    await trio.testing.wait_all_tasks_blocked()
    channel.feed(b"junk", message(id="p", method="ping"))
    await trio.testing.wait_all_tasks_blocked()
    asked = next(m for m in map(json.loads, channel.sent) if m.get("method") == "roots/list")
    channel.feed(message(id=asked["id"], result={"roots": [{"uri": "file:///"}]}))
    await trio.testing.wait_all_tasks_blocked()
    channel.feed(message(method="notifications/cancelled", params={"requestId": 3}))
    await trio.testing.wait_all_tasks_blocked()
    session.shut("closed")
    await session.ended.wait()
    return channel.sent


async def test_recording_changes_no_outbound_byte(serve_fake, call, message, recording):
    unrecorded = await conversation(serve_fake, call, message, Sequencer())
    recorded = await conversation(serve_fake, call, message, recording)
    assert len(unrecorded) > 70
    assert recorded == unrecorded


async def test_a_recorder_that_fails_does_not_disturb_the_session(
    serve_fake, call, message, recording
):
    unrecorded = await conversation(serve_fake, call, message, Sequencer())
    recording.recorder._sink.fail = True
    assert await conversation(serve_fake, call, message, recording) == unrecorded


async def test_a_step_is_recorded_even_if_it_was_the_last_thing_that_happened(
    make_session, handshake, message, recording
):
    async def leave(handling):
        raise KeyboardInterrupt

    channel = DirectFakeChannel()
    session = make_session(channel, {"tools/list": leave}, sequencer=recording)
    channel.feed(*handshake, message(id=1, method="tools/list"))
    with pytest.raises(BaseExceptionGroup):
        await session.run()
    assert recording.story(since=5) == ["in", "step r5", "shut", "end"]


class Gating(Sequencer):
    """A sequencer that replays: the test chooses the lane that takes the next step."""

    has_lanes = has_steps = replays = True

    def __init__(self):
        self.gates = {}
        self.log = []
        self.numbers = itertools.count()

    def allow(self, lane):
        self._gate_of(lane)[0].send_nowait(None)

    def _gate_of(self, lane):
        return self.gates.setdefault(lane, trio.open_memory_channel(100))

    async def _wait(self, lane):
        with trio.CancelScope(shield=True):
            await self._gate_of(lane)[1].receive()

    async def step(self, lane):
        await self._wait(lane.name)
        self.log.append(f"step {lane.name}")

    async def turn(self, lane):
        if lane.has_steps:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await self._wait(lane.name)

    def received(self, encoded, *, embed):
        return next(self.numbers)

    def sent(self, encoded, lane):
        self.log.append(f"out {lane.name if lane else None}")

    def resumed(self, lane, kind, body=None, *, is_cancelled=False):
        self.log.append(f"{kind} {lane.name}")

    def ended(self, lane, *, unstarted=False):
        self.log.append(f"cxl {lane.name}{' unstarted' if unstarted else ''}")

    def marked(self, name, value, lane=None):
        self.log.append(f"mark {name}")


async def test_a_sequencer_that_replays_decides_which_lane_takes_the_next_step(
    serve_fake, call, message
):
    async def asks(handling):
        await handling.notify("notifications/message", level("hello"))
        await handling.ask("roots/list")
        return ""

    gating = Gating()
    session, channel = await serve_fake({"asks": asks}, sequencer=gating)
    channel.feed(message(**call("asks", 1)), message(**call("asks", 2)))
    await trio.testing.wait_all_tasks_blocked()
    gating.log.clear()

    async def expect(lane, *happened):
        gating.allow(lane)
        await trio.testing.wait_all_tasks_blocked()
        assert gating.log == list(happened)
        gating.log.clear()

    await expect("r3", "step r3", "out r3", "out r3")
    asked = json.loads(channel.sent[-1])
    await expect("r2", "step r2", "out r2", "out r2")
    channel.feed(message(id=asked["id"], result={"roots": []}))
    await trio.testing.wait_all_tasks_blocked()
    assert gating.log == []
    await expect("r3", "step r3", "res r3", "out r3")
    channel.feed(message(method="notifications/cancelled", params={"requestId": 1}))
    await trio.testing.wait_all_tasks_blocked()
    assert gating.log == []
    await expect("r2", "step r2", "cxl r2", "out r2", "cxl r2")
    session.shut("closed")
    await expect("close", "mark drained")
    await session.ended.wait()


async def test_a_live_sequencer_has_no_turns(recording):
    lane = Lane("r1", has_steps=True)
    for sequencer in (Sequencer(), recording):
        assert sequencer.step(lane) is None
        with trio.testing.assert_no_checkpoints():
            await sequencer.turn(lane)
            await sequencer.turn_to_end()
            await sequencer.let_thread_run("tool")
            sequencer.thread_waits()
        with pytest.raises(NotImplementedError):
            await sequencer.outcome(lane)


@pytest.mark.parametrize("sequencer", [SessionReplay, SweepSequencer])
def test_a_replay_has_a_method_of_its_own_for_each_event(sequencer):
    events = {name for name in vars(Sequencer) if not name.startswith("_")}
    assert events - vars(sequencer).keys() == set()


async def test_a_handler_that_is_cancelled_before_its_first_step_never_runs(
    serve_fake, call, message
):
    ran = []

    async def tool(handling):
        ran.append(1)

    gating = Gating()
    session, channel = await serve_fake({"tool": tool}, sequencer=gating)
    channel.feed(message(**call("tool", 1)))
    channel.feed(message(method="notifications/cancelled", params={"requestId": 1}))
    await trio.testing.wait_all_tasks_blocked()
    gating.allow("r2")
    await trio.testing.wait_all_tasks_blocked()
    assert gating.log[-2:] == ["step r2", "cxl r2 unstarted"]
    assert ran == []
    gating.allow("close")
    session.shut("closed")
    await session.ended.wait()


async def test_each_progress_report_to_a_handler_is_recorded_as_a_resumption(
    serve, call, recording
):
    async def asks(handling):
        seen = []

        async def report(params):
            seen.append(params.progress)
            await handling.notify("notifications/message", level(params.progress))

        await handling.ask("roots/list", on_progress=report)
        return seen

    _, peer = await serve({"asks": asks}, sequencer=recording)
    await peer.send(call("asks", 1))
    asked = await peer.receive()
    token = asked["params"]["_meta"]["progressToken"]
    for progress in (1, 2):
        params = {"progressToken": token, "progress": progress}
        await peer.send_notification("notifications/progress", params)
    await peer.send_result(asked, {"roots": []})
    await peer.receive_many(3)
    acts = [text for text in recording.story(since=5) if " r5 " in f"{text} "]
    assert acts == [
        "out r5 1",
        "res r5 2",
        "out r5 3",
        "res r5 4",
        "out r5 5",
        "res r5 6",
        "out r5 7",
    ]


async def test_a_notification_is_recorded_when_it_is_delivered_or_dropped(serve, recording):
    async def ponder(params):
        await trio.sleep_forever()

    tools = {"notifications/roots/list_changed": ponder}
    session, peer = await serve(tools, sequencer=recording)
    await peer.send(*[{"method": "notifications/roots/list_changed"}] * 3)
    await trio.testing.wait_all_tasks_blocked()
    session.shut("closed")
    await session.ended.wait()
    assert recording.story(since=5) == [
        *["in"] * 3,
        "mark n5 1",
        *("shut", "mark close 1"),
        *("cxl n6 1", "cxl n7 1"),
        "end",
    ]
    assert len(session.application.notifications) == 1


async def test_a_notification_that_is_not_sent_is_recorded_as_well(serve, call, recording):
    """Or a replay would not know when the lane decided that, nor whether it was cancelled there."""

    async def tool(handling):
        await handling.progress(1)
        await handling.notify_if("notifications/message", lambda: None)
        with pytest.raises(LocalProtocolError):
            await handling.progress(math.nan)
        with trio.CancelScope() as scope:
            scope.cancel()
            await handling.progress(2)
        return ""

    _, peer = await serve({"tool": tool}, sequencer=recording)
    await peer.send(call("tool", 1))
    await peer.receive()
    records = [entry for entry in recording.story() if " r5 " in entry]
    assert records == ["res r5 1", "res r5 2", "err r5 3", "cxl r5 4", "out r5 5"]


async def test_progress_is_compared_with_the_last_value_in_its_turn(serve, call):
    class Backwards(Sequencer):
        """The lane that was begun first has its turn last."""

        has_lanes = replays = True

        def __init__(self):
            self.story = []
            self.has_come = trio.Event()

        async def turn(self, lane):
            if lane.name.endswith(".0"):
                await self.has_come.wait()

        def sent(self, encoded, lane):
            if lane is not None:
                self.story.append(("out", lane.name))
                self.has_come.set()

        def resumed(self, lane, kind, body=None, *, is_cancelled=False):
            self.story.append((kind, lane.name))

    async def tool(handling):
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(handling.progress, 5)
        return ""

    sequencer = Backwards()
    _, peer = await serve({"tool": tool}, sequencer=sequencer)
    await peer.send(call("tool", 1, token="t"))
    await peer.receive()
    await peer.receive()
    assert sequencer.story[:2] == [("out", "r0.1"), ("res", "r0.0")]


# Lanes of tasks, of their children, and of sessions side by side and nested.


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
        lanes.append(lane_of_caller(handling).name)

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
    inner = [make_recording() if is_inner_recorded else Sequencer() for _ in range(2)]

    async def outer(handling):
        async def sends_outside(_):
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(handling.notify, "notifications/message", level("within"))
            return s.ListRootsResult(roots=[])

        async def asks(handling):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(handling.ask, "roots/list")
            return ""

        roots = {"roots/list": sends_outside}
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
            *("step r5", "out r5.0 1", "res r5.0 2", "out r5 1")
        ]
        acts = [text for text in client_story if " r6" in text]
        assert acts[-1] == "out r6 1"
        assert sorted(acts[0].split()) == ["r6", "r6.0", "r6.1", "step"]
        assert len(acts) == 2


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
