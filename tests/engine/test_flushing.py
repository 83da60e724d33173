"""Who writes what goes out, and when: every queued frame has a flusher, and the order is kept."""

import json
import logging
from collections import Counter

import pytest
import trio
import trio.testing

from mcp_trio import _schema as s
from mcp_trio._errors import ConnectionLost, LocalProtocolError
from mcp_trio._testing.fake_channel import DirectFakeChannel, FakeChannel

CHANNELS = pytest.mark.parametrize("kind", [FakeChannel, DirectFakeChannel])


def ids(frames):
    return [json.loads(frame).get("id") for frame in frames]


@CHANNELS
@pytest.mark.parametrize("first", ["quick", "sleeper"])
async def test_an_answer_leaves_though_its_neighbour_suspends(
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
async def test_an_answer_leaves_whether_its_neighbour_suspends_before_or_after(
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


async def test_a_direct_write_that_took_a_part_leaves_the_rest_to_the_writer(serve_fake, message):
    _, channel = await serve_fake()
    channel.frames_nowait_max = 2
    channel.feed(*(message(id=number, method="ping") for number in range(5)))
    await trio.testing.wait_all_tasks_blocked()
    assert [ids(write) for write in channel.writes] == [[0, 1], [2, 3, 4]]


async def test_a_frame_that_was_begun_is_finished(serve_fake, message):
    session, channel = await serve_fake()
    channel.leaves_tail = True
    channel.feed(message(id=1, method="ping"))
    await trio.testing.wait_all_tasks_blocked()
    assert [ids(write) for write in channel.writes] == [[1], []]
    assert session.outbox.is_empty


async def test_a_long_queue_leaves_in_chunks(serve_fake, message, small):
    _, channel = await serve_fake(limits=small(chunk_bytes=100), channel=FakeChannel())
    channel.feed(*(message(id=number, method="ping") for number in range(6)))
    await trio.testing.wait_all_tasks_blocked()
    assert ids(channel.sent) == [0, 1, 2, 3, 4, 5]
    assert [len(write) for write in channel.writes] == [3, 3]


@CHANNELS
async def test_the_journal_is_written_before_the_bytes_that_it_explains(
    serve_fake, message, recording, kind
):
    async def busy(handling):
        await handling.notify("notifications/message", log("busy"))
        await trio.sleep_forever()

    def written_so_far():
        return [bytes(record.frame) for record in recording.records() if record.kind == "out"]

    class Checked(kind):
        def _write(self, frames):
            super()._write(frames)
            assert set(frames) <= set(written_so_far())

    _, channel = await serve_fake({"tools/list": busy}, channel=Checked(), sequencer=recording)
    channel.feed(message(id=1, method="tools/list"), message(id=2, method="ping"))
    await trio.testing.wait_all_tasks_blocked()
    assert len(channel.sent) == 2


async def test_a_recording_is_written_early_when_nothing_leaves(serve_fake, message, recording):
    recording.unwritten_bytes_max = 1000
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


async def test_our_own_messages_wait_for_room_in_their_callers_task_and_stop_nobody_else(
    serve_fake, call, message, small
):
    posted = []

    async def chatty(handling):
        for number in range(100):
            await handling.notify("notifications/message", log(number))
            posted.append(number)
        return "done"

    limits = small(outbound_bytes_max=1000)
    session, channel = await serve_fake({"chatty": chatty}, limits=limits)
    channel.is_stuck = True
    channel.feed(message(**call("chatty", 1)))
    await trio.testing.wait_all_tasks_blocked()
    assert 0 < len(posted) < 20
    assert 1000 <= session.outbox.queued_bytes < 1300
    for number in range(2, 5):
        channel.feed(message(id=number, method="ping"))
        await trio.testing.wait_all_tasks_blocked()
    channel.release()
    await trio.testing.wait_all_tasks_blocked()
    assert len(posted) == 100
    assert [number for number in ids(channel.sent) if number] == [2, 3, 4, 1]


async def test_the_reader_stops_only_while_answers_fill_the_queue(serve_fake, message, small):
    session, channel = await serve_fake(limits=small(outbound_bytes_max=1000))
    channel.is_stuck = True
    for number in range(100):
        channel.feed(message(id=number, method="ping"))
    await trio.testing.wait_all_tasks_blocked()
    assert 1000 <= session.outbox.queued_bytes < 1200
    channel.release()
    await trio.testing.wait_all_tasks_blocked()
    assert ids(channel.sent) == list(range(100))


async def test_no_handler_starts_while_answers_fill_the_queue(serve_fake, call, message, small):
    started = set()

    async def tool(handling):
        started.add(handling.request.id)
        return "x" * 500

    _, channel = await serve_fake({"tool": tool}, limits=small(outbound_bytes_max=1000))
    channel.is_stuck = True
    channel.feed(*(message(**call("tool", number)) for number in range(10)))
    await trio.testing.wait_all_tasks_blocked()
    assert len(started) == 2
    unwanted = min(set(range(10)) - started)
    channel.feed(message(method="notifications/cancelled", params={"requestId": unwanted}))
    await trio.testing.wait_all_tasks_blocked()
    channel.release()
    await trio.testing.wait_all_tasks_blocked()
    assert started == set(ids(channel.sent)) == set(range(10)) - {unwanted}


async def test_a_request_of_ours_waits_for_room_too(serve_fake, message, small, nursery):
    session, channel = await serve_fake(limits=small(outbound_bytes_max=100))
    channel.is_stuck = True
    channel.feed(*(message(id=number, method="ping") for number in range(3)))
    await trio.testing.wait_all_tasks_blocked()
    before = session.outbox.queued_bytes
    nursery.start_soon(session.notify, "notifications/tools/list_changed")
    await trio.testing.wait_all_tasks_blocked()
    assert session.outbox.queued_bytes == before
    channel.release()
    await trio.testing.wait_all_tasks_blocked()
    assert len(channel.sent) == 4


async def test_a_caller_that_waits_for_room_is_woken_when_the_session_ends(
    serve_fake, message, small, nursery
):
    session, channel = await serve_fake(
        limits=small(outbound_bytes_max=100, close_seconds=0, drain_seconds=0)
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


async def test_a_direct_write_that_fails_leaves_the_reason_to_send(serve_fake, message):
    """A process channel learns only while waiting with which status its process exited."""

    class Process(DirectFakeChannel):
        def send_nowait(self, frames):
            if ids(frames) == [1]:
                raise trio.BrokenResourceError
            return super().send_nowait(frames)

    session, channel = await serve_fake(channel=Process())
    channel.send_error = ConnectionLost("it exited", exit_status=3)
    channel.feed(message(id=1, method="ping"))
    await session.ended.wait()
    assert session.loss.exit_status == 3


@CHANNELS
async def test_whatever_a_transport_raises_ends_its_own_session_alone(
    serve_fake, message, logged, kind
):
    session, channel = await serve_fake(channel=kind())
    channel.send_error = ZeroDivisionError("a bug in a transport")
    channel.close_error = ValueError("another")
    channel.feed(message(id=1, method="ping"))
    await session.ended.wait()
    assert session.cause == "lost"
    assert isinstance(session.loss.__cause__, ZeroDivisionError)
    assert logged(logging.ERROR) == ["the transport failed", "the transport failed to close"]


@pytest.mark.parametrize("error", [trio.BrokenResourceError(), OSError("gone"), ValueError("bug")])
async def test_a_receive_that_fails_ends_the_session_as_lost(serve_fake, error):
    session, channel = await serve_fake()
    channel.break_down(error)
    await session.ended.wait()
    assert session.cause == "lost"
    assert session.loss.__cause__ is error


async def test_a_peer_that_is_gone_is_no_error_in_the_log(serve_fake, message, logged):
    session, channel = await serve_fake()
    channel.send_error = BrokenPipeError()
    channel.feed(message(id=1, method="ping"))
    await session.ended.wait()
    assert logged(logging.WARNING) == []


async def test_a_write_without_progress_ends_the_session_as_lost(
    autojump_clock, serve_fake, message
):
    session, channel = await serve_fake()
    await trio.sleep(100)
    began = trio.current_time()
    channel.is_stuck = True
    channel.feed(message(id=1, method="ping"))
    await session.ended.wait()
    assert 30 <= trio.current_time() - began <= 34
    assert session.cause == "lost"
    assert session.loss.reason == (
        "the peer read nothing for 30 s while messages waited (write_stall_seconds)"
    )


async def test_a_peer_that_reads_slowly_is_not_stalled(autojump_clock, serve, call, text_of):
    async def tool(handling):
        return "x" * 10_000

    session, peer = await serve({"tool": tool}, buffer_bytes_max=1000, chunk_bytes=1000)
    await peer.send(call("tool", 1))
    pipe = peer.channel.source
    for _ in range(9):
        await trio.sleep(25)
        peer.channel._splitter.feed(pipe.read_nowait())
    assert session.cause is None


async def test_a_slow_peer_on_a_channel_that_tells_no_bytes_is_not_stalled(
    autojump_clock, serve_fake, message
):
    session, channel = await serve_fake(channel=FakeChannel())
    for number in range(10):
        channel.is_stuck = True
        channel.feed(message(id=number, method="ping"))
        await trio.sleep(25)
        channel.release()
        await trio.sleep(0.1)
    assert session.cause is None


@pytest.mark.parametrize("error", [None, OSError("too late")])
async def test_a_send_that_ends_after_the_loss_changes_nothing(serve_fake, message, error):
    session, channel = await serve_fake(channel=FakeChannel())
    channel.is_stuck = True
    channel.feed(message(id=1, method="ping"))
    await trio.testing.wait_all_tasks_blocked()
    channel.send_error = error
    channel.release()
    session.shut("lost", ConnectionLost("first"))
    await session.ended.wait()
    assert session.outbox.queued_bytes == 0
    assert str(session.loss) == "first"


async def test_a_write_that_fails_while_draining_leaves_the_cause_as_it_was(
    autojump_clock, serve_fake, call, message
):
    async def slow(handling):
        await trio.sleep(1)
        return ""

    session, channel = await serve_fake({"slow": slow})
    channel.feed(message(**call("slow", 1)))
    channel.feed()
    channel.send_error = BrokenPipeError()
    await session.ended.wait()
    assert session.cause == "eof"


async def test_nobody_posts_after_a_loss(serve_fake, call, message):
    async def tidy(handling):
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                for number in range(3):
                    await handling.notify("notifications/message", log(number))

    session, channel = await serve_fake({"tidy": tidy})
    channel.feed(message(**call("tidy", 1)))
    await trio.testing.wait_all_tasks_blocked()
    session.shut("lost")
    await session.ended.wait()
    assert session.outbox.queued_bytes == 0
    assert channel.sent == []


async def test_an_unsendable_notification_is_its_callers_error(serve):
    session, _ = await serve()
    with pytest.raises(LocalProtocolError):
        await session.notify("notifications/cancelled")


@pytest.mark.requirement("PROG-11")
async def test_progress_goes_no_faster_than_the_peer_reads(serve_fake, call, message, small):
    """The peer sets the rate: what it has not read yet makes the reporting handler wait."""
    told = 0

    async def chatty(handling):
        nonlocal told
        for number in range(100_000):
            await handling.progress(number)
            told += 1

    _, channel = await serve_fake({"chatty": chatty}, limits=small(outbound_bytes_max=10_000))
    channel.is_stuck = True
    channel.feed(message(**call("chatty", 1, token="t")))
    await trio.testing.wait_all_tasks_blocked()
    assert 0 < told < 200
    first = told
    channel.release()
    while told == first:
        await trio.lowlevel.checkpoint()
    channel.is_stuck = True
    await trio.testing.wait_all_tasks_blocked()
    assert told < 1_000
