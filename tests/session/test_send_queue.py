"""The flushing of the send queue: every queued message is sent, and in order."""

import json
from collections import Counter

import pytest
import trio
import trio.testing

from mcp_trio import ConnectionLost, Limits
from mcp_trio import types as s
from mcp_trio.errors import LocalProtocolError
from mcp_trio.limits import MessageLimits, RecordingLimits, RequestLimits, ShutdownLimits
from tests.session.fake_channels import DirectFakeChannel, FakeChannel

CHANNELS = pytest.mark.parametrize("kind", [FakeChannel, DirectFakeChannel])


def ids(messages):
    return [json.loads(encoded).get("id") for encoded in messages]


@CHANNELS
@pytest.mark.parametrize("first", ["quick", "sleeper"])
async def test_an_answer_is_sent_although_another_handler_suspends(
    serve_fake, call, message, kind, first
):
    async def quick(handling):
        return ""

    async def sleeper(handling):
        await trio.sleep_forever()

    _, channel = await serve_fake({"quick": quick, "sleeper": sleeper}, channel=kind())
    calls = [message(**call("quick", 1)), message(**call("sleeper", 2))]
    channel.feed(*(calls if first == "quick" else reversed(calls)))
    await trio.testing.wait_all_tasks_blocked()
    assert ids(channel.sent) == [1]


@CHANNELS
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_response_is_sent_at_any_suspension_of_another_handler(
    serve_fake, call, message, kind, is_late
):
    begin = trio.Event()

    async def waiter(handling):
        await begin.wait()
        return ""

    async def sleeper(handling):
        if is_late:
            await begin.wait()
        await trio.sleep_forever()

    _, channel = await serve_fake({"waiter": waiter, "sleeper": sleeper}, channel=kind())
    channel.feed(message(**call("sleeper", 1)), message(**call("waiter", 2)))
    await trio.testing.wait_all_tasks_blocked()
    begin.set()
    await trio.testing.wait_all_tasks_blocked()
    assert ids(channel.sent) == [2]


async def test_the_answers_of_a_batch_leave_as_one_write(serve_fake, message):
    _, channel = await serve_fake()
    channel.feed(*(message(id=number, method="ping") for number in range(3)))
    await trio.testing.wait_all_tasks_blocked()
    assert [ids(write) for write in channel.writes] == [[0, 1, 2]]
    assert channel.sends == 0


async def test_the_last_request_in_flight_writes_by_itself(serve_fake, call, message, echo):
    _, channel = await serve_fake({"echo": echo})
    channel.feed(*(message(**call("echo", number)) for number in range(3)))
    await trio.testing.wait_all_tasks_blocked()
    assert set(ids(channel.sent)) == {0, 1, 2}
    assert channel.sends == 0


async def test_order_is_kept_while_the_writer_is_inside_send(serve_fake, message):
    _, channel = await serve_fake()
    channel.is_stuck = True
    for number in range(5):
        channel.feed(message(id=number, method="ping"))
        await trio.testing.wait_all_tasks_blocked()
    assert channel.is_sending
    channel.release()
    await trio.testing.wait_all_tasks_blocked()
    assert ids(channel.sent) == [0, 1, 2, 3, 4]


async def test_nothing_is_written_directly_while_the_writer_is_inside_send(
    serve_fake, message, autojump_clock
):
    class Watched(DirectFakeChannel):
        met = False

        def send_nowait(self, messages):
            self.met = self.met or self.is_sending
            return super().send_nowait(messages)

    _, channel = await serve_fake(channel=Watched())
    channel.is_stuck = True
    for number in range(3):
        channel.feed(message(id=number, method="ping"))
        await trio.testing.wait_all_tasks_blocked()
    assert channel.is_sending
    assert not channel.met


async def test_a_direct_write_that_took_a_part_leaves_the_rest_to_the_writer(serve_fake, message):
    _, channel = await serve_fake()
    channel.messages_nowait_max = 2
    channel.feed(*(message(id=number, method="ping") for number in range(5)))
    await trio.testing.wait_all_tasks_blocked()
    assert [ids(write) for write in channel.writes] == [[0, 1], [2, 3, 4]]


async def test_a_message_sent_in_part_is_finished(serve_fake, message):
    session, channel = await serve_fake()
    channel.leaves_unfinished = True
    channel.feed(message(id=1, method="ping"))
    await trio.testing.wait_all_tasks_blocked()
    assert [ids(write) for write in channel.writes] == [[1], []]
    assert session.send_queue.is_empty


@pytest.fixture
async def begun(serve_fake, message):
    """A session with nothing to send but the rest of a message, which the peer does not read."""

    class Begins(DirectFakeChannel):
        def send_nowait(self, messages):
            taken = super().send_nowait(messages)
            self.is_stuck = self.is_unfinished = True
            return taken

    session, channel = await serve_fake(channel=Begins())
    channel.release()
    await trio.testing.wait_all_tasks_blocked()
    channel.writes.clear()
    channel.feed(message(id=1, method="ping"))
    await trio.testing.wait_all_tasks_blocked()
    assert ids(channel.sent) == [1]
    return session, channel


async def test_a_message_sent_in_part_is_finished_before_the_channel_is_closed(
    autojump_clock, begun
):
    session, channel = begun
    session.shut("closed")
    await trio.sleep(1)
    assert not channel.is_closed
    channel.release()
    await session.ended.wait()
    assert not channel.is_unfinished


async def test_the_rest_of_a_message_that_is_not_read_is_a_stalled_write(autojump_clock, begun):
    session, _ = begun
    with trio.fail_after(40):
        await session.ended.wait()
    assert session.cause == "lost"


async def test_a_long_queue_leaves_in_chunks(serve_fake, message, small):
    _, channel = await serve_fake(
        limits=small(messages=MessageLimits(chunk_bytes=100)), channel=FakeChannel()
    )
    channel.feed(*(message(id=number, method="ping") for number in range(6)))
    await trio.testing.wait_all_tasks_blocked()
    assert ids(channel.sent) == [0, 1, 2, 3, 4, 5]
    assert [len(write) for write in channel.writes] == [3, 3]


@CHANNELS
async def test_the_journal_is_written_before_the_bytes_that_it_records(
    serve_fake, message, recording, kind
):
    async def busy(handling):
        await handling.notify("notifications/message", log("busy"))
        await trio.sleep_forever()

    def written_so_far():
        return [bytes(record.body) for record in recording.records() if record.kind == "out"]

    class Checked(kind):
        def _write(self, messages):
            super()._write(messages)
            assert set(messages) <= set(written_so_far())

    _, channel = await serve_fake({"tools/list": busy}, channel=Checked(), sequencer=recording)
    channel.feed(message(id=1, method="tools/list"), message(id=2, method="ping"))
    await trio.testing.wait_all_tasks_blocked()
    assert len(channel.sent) == 2


async def test_a_recording_is_written_even_if_no_message_is_sent(
    serve_fake, message, make_recording
):
    recording = make_recording(Limits(recording=RecordingLimits(unwritten_bytes_max=1000)))
    _, channel = await serve_fake(sequencer=recording)
    written = len(recording.records())
    for _ in range(20):
        channel.feed(message(method="notifications/unknown"))
    await trio.testing.wait_all_tasks_blocked()
    assert channel.sent == []
    assert len(recording.records()) > written


@pytest.mark.parametrize("token", [None, "t"])
async def test_a_notification_yields_only_every_64th_time(serve, call, token):
    steps = Counter()

    class Steps(trio.abc.Instrument):
        def before_task_step(self, task):
            steps[task] += 1

    async def chatty(handling):
        trio.lowlevel.add_instrument(instrument := Steps())
        await trio.lowlevel.checkpoint()
        task, yielded = trio.lowlevel.current_task(), []
        for number in range(1, 130):
            before = steps[task]
            await handling.progress(number)
            if steps[task] > before:
                yielded.append(number)
        trio.lowlevel.remove_instrument(instrument)
        return yielded

    _, peer = await serve({"chatty": chatty}, buffer_bytes_max=1_000_000)
    await peer.send(call("chatty", 1, token=token))
    *reports, answer = await peer.receive_available()
    assert len(reports) == (129 if token else 0)
    assert answer["result"]["content"][0]["text"] == "[64, 128]"


async def test_the_64th_notification_is_a_flush(serve_fake, call, message):
    async def chatty(handling):
        for number in range(70):
            await handling.notify("notifications/message", log(number))
        return "done"

    _, channel = await serve_fake({"chatty": chatty})
    channel.feed(message(**call("chatty", 1)))
    await trio.testing.wait_all_tasks_blocked()
    assert len(channel.sent) == 71
    assert len(channel.writes[0]) == 63
    assert channel.sends <= 1


def log(number):
    return s.LoggingMessageParams(level="info", data=number)


@pytest.mark.parametrize("token", [None, "t"])
async def test_a_notification_is_a_cancellation_check(serve, call, token):
    leave, reached = trio.Event(), []

    async def chatty(handling):
        with trio.CancelScope(shield=True):
            await leave.wait()
        reached.append("before")
        await handling.progress(1)
        reached.append("after")

    _, peer = await serve({"chatty": chatty})
    await peer.send(call("chatty", 1, token=token))
    assert await peer.receive_available() == []
    await peer.cancel(1)
    leave.set()
    assert await peer.receive_available() == []
    assert reached == ["before"]


@pytest.mark.parametrize("kind", ["progress", "log"])
async def test_a_notification_in_a_cancelled_scope_is_not_sent(serve, call, text_of, kind):
    async def chatty(handling):
        with trio.CancelScope() as scope:
            scope.cancel()
            if kind == "progress":
                await handling.progress(1)
            else:
                await handling.notify("notifications/message", log(1))
        return scope.cancelled_caught

    _, peer = await serve({"chatty": chatty})
    await peer.send(call("chatty", 1, token="t"))
    assert text_of(await peer.receive()) == "True"


async def test_outgoing_requests_wait_for_room_only_in_their_callers_task(
    serve_fake, call, message, small
):
    posted = []

    async def chatty(handling):
        for number in range(100):
            await handling.notify("notifications/message", log(number))
            posted.append(number)
        return "done"

    limits = small(messages=MessageLimits(send_queue_bytes_max=1000))
    session, channel = await serve_fake({"chatty": chatty}, limits=limits)
    channel.is_stuck = True
    channel.feed(message(**call("chatty", 1)))
    await trio.testing.wait_all_tasks_blocked()
    assert 0 < len(posted) < 20
    assert 1000 <= session.send_queue.queued_bytes < 1300
    for number in range(2, 5):
        channel.feed(message(id=number, method="ping"))
        await trio.testing.wait_all_tasks_blocked()
    channel.release()
    await trio.testing.wait_all_tasks_blocked()
    assert len(posted) == 100
    assert [number for number in ids(channel.sent) if number] == [2, 3, 4, 1]


async def test_the_reader_stops_only_while_answers_fill_the_queue(serve_fake, message, small):
    session, channel = await serve_fake(
        limits=small(messages=MessageLimits(send_queue_bytes_max=1000))
    )
    channel.is_stuck = True
    for number in range(100):
        channel.feed(message(id=number, method="ping"))
    await trio.testing.wait_all_tasks_blocked()
    assert 1000 <= session.send_queue.queued_bytes < 1200
    channel.release()
    await trio.testing.wait_all_tasks_blocked()
    assert ids(channel.sent) == list(range(100))


async def test_no_handler_starts_while_answers_fill_the_queue(serve_fake, call, message, small):
    started = set()

    async def tool(handling):
        started.add(handling.request.id)
        return "x" * 500

    _, channel = await serve_fake(
        {"tool": tool}, limits=small(messages=MessageLimits(send_queue_bytes_max=1000))
    )
    channel.is_stuck = True
    channel.feed(*(message(**call("tool", number)) for number in range(10)))
    await trio.testing.wait_all_tasks_blocked()
    assert len(started) == 2
    channel.release()
    await trio.testing.wait_all_tasks_blocked()
    assert started == set(ids(channel.sent)) == set(range(10))


async def test_a_waiting_request_can_be_cancelled_while_answers_fill_the_queue(
    serve_fake, call, message, small
):
    started, go_on = set(), trio.Event()

    async def tool(handling):
        started.add(handling.request.id)
        await go_on.wait()
        return "x" * 500

    limits = small(
        messages=MessageLimits(send_queue_bytes_max=1000),
        requests=RequestLimits(in_flight_max=2),
    )
    _, channel = await serve_fake({"tool": tool}, limits=limits)
    channel.is_stuck = True
    channel.feed(*(message(**call("tool", number)) for number in range(10)))
    await trio.testing.wait_all_tasks_blocked()
    go_on.set()
    await trio.testing.wait_all_tasks_blocked()
    assert started == {0, 1}
    channel.feed(message(method="notifications/cancelled", params={"requestId": 9}))
    await trio.testing.wait_all_tasks_blocked()
    channel.release()
    await trio.testing.wait_all_tasks_blocked()
    assert started == set(ids(channel.sent)) == set(range(9))


async def test_an_outgoing_request_waits_for_room_too(serve_fake, message, small, nursery):
    session, channel = await serve_fake(
        limits=small(messages=MessageLimits(send_queue_bytes_max=100))
    )
    channel.is_stuck = True
    channel.feed(*(message(id=number, method="ping") for number in range(3)))
    await trio.testing.wait_all_tasks_blocked()
    before = session.send_queue.queued_bytes
    nursery.start_soon(session.notify, "notifications/tools/list_changed")
    await trio.testing.wait_all_tasks_blocked()
    assert session.send_queue.queued_bytes == before
    channel.release()
    await trio.testing.wait_all_tasks_blocked()
    assert len(channel.sent) == 4


async def test_a_caller_that_waits_for_room_is_woken_when_the_session_ends(
    serve_fake, message, small, nursery
):
    session, channel = await serve_fake(
        limits=small(
            messages=MessageLimits(send_queue_bytes_max=100),
            shutdown=ShutdownLimits(close_seconds=0, drain_seconds=0),
        )
    )
    channel.is_stuck = True
    channel.feed(*(message(id=number, method="ping") for number in range(3)))
    await trio.testing.wait_all_tasks_blocked()
    lost = []

    async def caller():
        try:
            await session.request("roots/list")
        except ConnectionLost as error:
            lost.append(error.reason)

    nursery.start_soon(caller)
    await trio.testing.wait_all_tasks_blocked()
    session.shut("closed")
    await session.ended.wait()
    await trio.testing.wait_all_tasks_blocked()
    assert lost == ["the session was closed on this side"]


async def test_an_unsendable_notification_is_its_callers_error(serve):
    session, _ = await serve()
    with pytest.raises(LocalProtocolError):
        await session.notify("notifications/cancelled")


@pytest.mark.requirement("PROG-11")
async def test_progress_goes_no_faster_than_the_peer_reads(
    serve_fake, call, message, small, autojump_clock
):
    """The peer sets the rate: what it has not read yet makes the reporting handler wait."""
    sent = 0

    async def chatty(handling):
        nonlocal sent
        for number in range(100_000):
            await handling.progress(number)
            sent += 1

    _, channel = await serve_fake(
        {"chatty": chatty}, limits=small(messages=MessageLimits(send_queue_bytes_max=10_000))
    )
    channel.is_stuck = True
    channel.feed(message(**call("chatty", 1, token="t")))
    await trio.testing.wait_all_tasks_blocked()
    assert 0 < sent < 200
    first = sent
    channel.release()
    while sent == first:
        await trio.lowlevel.checkpoint()
    channel.is_stuck = True
    await trio.testing.wait_all_tasks_blocked()
    assert sent < 1_000
