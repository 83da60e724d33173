"""Sessions in a nursery that they share, over channels that deliver by themselves."""

import json
import logging
from contextvars import copy_context

import attrs
import pytest
import trio
import trio.testing

from mcp_trio._session.leader_followers import TaskPool
from mcp_trio._session.tasks import sheltered


@attrs.define(eq=False)
class DeliveringChannel:
    """Takes everything that is sent; `fault` is what it fails with from then on."""

    take: object = None
    writes: list = attrs.field(factory=list)
    fault: object = None
    is_closed: bool = False

    def deliver_to(self, take):
        self.take = take

    def send_nowait(self, frames):
        if self.fault is not None:
            raise self.fault
        self.writes.append([json.loads(frame) for frame in frames])
        return len(frames)

    async def send(self, frames):
        await trio.lowlevel.checkpoint()
        self.send_nowait(frames)

    async def receive(self):
        raise AssertionError

    async def aclose(self):
        self.is_closed = True
        await trio.lowlevel.checkpoint()


@pytest.fixture
def begin(nursery, make_session, handshake):
    """Begin a session of named tools in the test's nursery; returns it and its channel."""

    def start(tools=None, **options):
        channel = DeliveringChannel()
        session = make_session(channel, tools, **options)
        session.begin(TaskPool(nursery), copy_context())
        channel.take(handshake)
        channel.writes.clear()
        return session, channel

    return start


def tasks_living():
    return trio.lowlevel.current_statistics().tasks_living


async def test_what_is_delivered_is_answered_in_the_same_step_as_one_write(begin, message):
    session, channel = begin()
    assert session.initialized.is_set()
    channel.take([message(id=number, method="ping") for number in range(3)])
    assert [[each["id"] for each in write] for write in channel.writes] == [[0, 1, 2]]


async def test_there_are_tasks_only_while_there_is_something_to_do(
    begin, message, call, autojump_clock
):
    async def slow(handling):
        await handling.progress(1)
        await trio.sleep(1)
        return "slow"

    before = tasks_living()
    sessions = [begin({"slow": slow}) for _ in range(10)]
    assert tasks_living() == before
    for _, channel in sessions:
        channel.take([message(**call("slow", 1, token=7))])
    await trio.sleep(0.5)
    assert tasks_living() == before + 10
    await trio.sleep(20)  # warm tasks have gone, too
    assert tasks_living() == before
    for _, channel in sessions:
        progress, answer = channel.writes
        assert progress[0]["params"]["progressToken"] == 7
        assert answer[0]["id"] == 1


async def test_notifications_are_looked_at_in_order_by_a_task_that_goes(
    begin, message, autojump_clock
):
    order = []

    async def changed(_params):
        order.append("begun")
        await trio.sleep(1)
        order.append("done")

    session, channel = begin({"notifications/roots/list_changed": changed})
    before = tasks_living()
    for _ in range(2):
        channel.take([message(method="notifications/roots/list_changed")])
    await trio.sleep(3)
    assert order == ["begun", "done"] * 2
    assert tasks_living() == before
    assert len(session.application.heard) == 2


async def test_a_session_ends_alone_and_reports_its_end(begin, message, call, autojump_clock):
    async def forever(handling):
        await trio.sleep_forever()

    told = []
    (one, first), (_, second) = begin({"forever": forever}), begin()
    one.ended.when_set(lambda: told.append((one.ended.is_set(), first.is_closed)))
    first.take([message(**call("forever", 1))])
    await trio.testing.wait_all_tasks_blocked()
    one.shut("closed")
    await one.ended.wait()
    await trio.testing.wait_all_tasks_blocked()
    assert told == [(True, True)]
    first.take([message(id=2, method="ping")])
    assert not first.writes
    second.take([message(id=2, method="ping")])
    assert second.writes


async def test_the_end_of_what_is_delivered_ends_the_session(begin, autojump_clock):
    session, channel = begin()
    channel.take([])
    assert session.cause == "eof"
    await session.ended.wait()


@pytest.mark.parametrize("how", ["answer", "notification"])
async def test_a_failing_channel_ends_its_session_but_not_the_deliverer(
    begin, message, how, autojump_clock
):
    session, channel = begin()
    channel.fault = trio.BrokenResourceError("gone")
    if how == "answer":
        channel.take([message(id=1, method="ping")])
    else:
        await session.notify("notifications/tools/list_changed")
    await session.ended.wait()
    assert session.cause == "lost"


async def test_an_internal_error_ends_its_session_but_not_the_deliverer(
    begin, logged, autojump_clock
):
    session, channel = begin()
    channel.take([None])  # which is no frame
    assert session.cause == "lost"
    assert logged(logging.ERROR) == ["the transport failed"]
    await session.ended.wait()


async def test_the_owner_of_sheltered_sessions_is_notified_of_its_cancellation(
    make_session, handshake, message, recording, autojump_clock
):
    async def slow(handling):
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)

    channel = DeliveringChannel()
    session = make_session(channel, {"tools/list": slow}, sequencer=recording)
    with trio.move_on_after(5) as scope:
        async with sheltered(lambda: session.shut("closed")) as warm:
            session.begin(warm, copy_context())
            channel.take([*handshake, message(id=1, method="tools/list")])
            await session.ended.wait()
            assert trio.current_time() >= 6
    assert scope.cancel_called
    assert recording.records()[-1].kind == "end"
