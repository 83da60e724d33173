"""The life of a session, from its start to each of its ends."""

import json
import logging
import math
import tracemalloc

import pytest
import trio
import trio.testing

from mcp_trio import ConnectionLost
from mcp_trio import types as s
from mcp_trio._session.lanes import Lane
from mcp_trio.limits import MIB, MessageLimits, RequestLimits
from tests.session.fake_channels import DirectFakeChannel, FakeChannel


def ids(messages):
    return [json.loads(encoded).get("id") for encoded in messages]


async def forever(handling):
    await trio.sleep_forever()


@pytest.mark.requirement("LIFE-20", "LIFE-22")
async def test_closing_ends_the_session_without_a_message(serve):
    session, peer = await serve()
    session.shut("closed")
    assert await peer.receive_end() == []
    with pytest.raises(EOFError):
        await peer.receive()
    await session.ended.wait()
    assert (session.cause, str(session.loss)) == (
        "closed",
        "the session was closed on this side",
    )


async def test_only_the_first_cause_of_the_end_is_reported(serve):
    session, _ = await serve()
    session.shut("signal")
    session.shut("lost", ConnectionLost("later"))
    await session.ended.wait()
    assert (session.cause, str(session.loss)) == ("signal", "the session was ended by a signal")


async def test_l13_a_session_is_closed_from_any_task_in_any_order(serve):
    """Elsewhere closing from another task is a corrupted scope stack."""
    (one, _), (two, _) = await serve(), await serve()

    async def close(session):
        session.shut("closed")
        session.shut("closed")
        await session.ended.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(close, one)
        nursery.start_soon(close, two)
        nursery.start_soon(close, one)


async def test_l02_a_session_does_not_change_the_exceptions_of_the_body(serve):
    """Elsewhere a KeyError inside the block arrives as a group in a group."""
    session, _ = await serve()

    async def body():
        try:
            raise KeyError
        finally:
            session.shut("closed")
            await session.ended.wait()

    with pytest.raises(KeyError):
        await body()


@pytest.mark.requirement("LIFE-20")
async def test_after_the_peer_has_closed_handlers_may_finish_until_a_timeout(
    autojump_clock, serve_fake, call, message
):
    async def quick(handling):
        await trio.sleep(1)
        await handling.progress(1)
        return "in time"

    session, channel = await serve_fake({"quick": quick, "slow": forever})
    began = trio.current_time()
    channel.feed(message(**call("quick", 1, token=1)), message(**call("slow", 2)))
    channel.feed()
    await session.ended.wait()
    assert ids(channel.sent) == [None, 1]
    assert trio.current_time() - began == 1.5
    assert session.cause == "eof"


async def test_requests_that_wait_for_a_slot_may_run_while_draining_but_not_after(
    autojump_clock, serve_fake, call, message, small
):
    begun = []

    async def slow(handling):
        begun.append(handling.request.id)
        await trio.sleep(1)
        return ""

    session, channel = await serve_fake(
        {"slow": slow}, limits=small(requests=RequestLimits(in_flight_max=1))
    )
    channel.feed(*(message(**call("slow", number)) for number in range(3)))
    channel.feed()
    await session.ended.wait()
    assert begun == [0, 1]
    assert ids(channel.sent) == [0]


async def test_a_drain_ends_with_its_last_handler(mock_clock, serve_fake, message):
    session, channel = await serve_fake()
    channel.feed(message(id=1, method="ping"))
    channel.feed()
    await session.ended.wait()
    assert ids(channel.sent) == [1]


@pytest.mark.parametrize("cause", ["closed", "signal", "lost"])
async def test_without_a_drain_handlers_are_cancelled_at_once(
    serve_fake, call, message, small, cause
):
    ends = []

    async def tidy(handling):
        try:
            await trio.sleep_forever()
        finally:
            ends.append(handling.request.id)

    session, channel = await serve_fake(
        {"tidy": tidy}, limits=small(requests=RequestLimits(in_flight_max=1))
    )
    channel.feed(message(**call("tidy", 1)), message(**call("tidy", 2)))
    await trio.testing.wait_all_tasks_blocked()
    session.shut(cause)
    await session.ended.wait()
    assert ends == [1]
    assert channel.sent == []


async def test_a_response_given_while_closing_is_still_sent(serve_fake, call, message):
    async def tidy(handling):
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            return "partial"

    session, channel = await serve_fake({"tidy": tidy})
    channel.feed(message(**call("tidy", 1)))
    await trio.testing.wait_all_tasks_blocked()
    session.shut("closed")
    await session.ended.wait()
    assert ids(channel.sent) == [1]


async def test_queued_messages_are_sent_before_the_channel_is_closed(
    autojump_clock, serve_fake, message, nursery
):
    session, channel = await serve_fake(channel=FakeChannel())
    channel.is_stuck = True
    channel.feed(message(id=1, method="ping"))
    await trio.testing.wait_all_tasks_blocked()
    session.shut("closed")
    await trio.sleep(1)
    assert not channel.is_closed
    channel.release()
    await session.ended.wait()
    assert ids(channel.sent) == [1]


async def test_a_peer_that_does_not_read_delays_closing_by_a_bounded_time(
    autojump_clock, serve_fake, message
):
    session, channel = await serve_fake()
    channel.is_stuck = True
    channel.feed(message(id=1, method="ping"))
    await trio.testing.wait_all_tasks_blocked()
    began = trio.current_time()
    session.shut("closed")
    await session.ended.wait()
    assert trio.current_time() - began == 2
    assert channel.is_closed


async def test_a_transport_that_does_not_close_delays_the_end_by_a_bounded_time(
    autojump_clock, serve_fake, logged
):
    class Stubborn(DirectFakeChannel):
        async def aclose(self):
            await trio.sleep_forever()

    session, _ = await serve_fake(channel=Stubborn())
    began = trio.current_time()
    session.shut("closed")
    await session.ended.wait()
    assert trio.current_time() - began < 10
    (text,) = logged(logging.ERROR)
    assert text.startswith("the transport did not close within")


async def test_nothing_is_read_after_the_end_began(serve_fake, message):
    session, channel = await serve_fake()
    channel.feed(message(id=1, method="ping"))
    session.shut("closed")
    channel.feed(message(id=2, method="ping"))
    await session.ended.wait()
    assert channel.sent == []


async def test_a_cancelled_run_closes_the_session_and_propagates_the_cancellation(
    autojump_clock, make_session, handshake, message
):
    channel = DirectFakeChannel()
    session = make_session(channel)
    channel.feed(*handshake)
    with trio.move_on_after(5) as scope:
        await session.run()
    assert scope.cancelled_caught
    assert session.cause == "closed"
    assert session.ended.is_set()
    assert channel.is_closed


async def test_a_run_that_is_cancelled_before_it_begins_ends_too(make_session):
    session = make_session(DirectFakeChannel())
    with trio.CancelScope() as scope:
        scope.cancel()
        await session.run()
    assert session.ended.is_set()
    other = make_session(DirectFakeChannel())
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            scope.cancel()
            await nursery.start(other.run)
    assert other.ended.is_set()


async def test_a_session_closed_before_it_runs_ends_at_once(make_session):
    session = make_session(DirectFakeChannel())
    session.shut("closed")
    await session.run()
    assert session.ended.is_set()


async def test_a_handler_that_shields_itself_delays_only_its_own_task(
    autojump_clock, make_session, handshake, message, recording, logged
):
    leave = trio.Event()

    async def shielded(handling):
        with trio.CancelScope(shield=True):
            await leave.wait()
            await handling.progress(1)
        return {}

    channel = DirectFakeChannel()
    session = make_session(channel, {"tools/list": shielded}, sequencer=recording)
    params = {"_meta": {"progressToken": "t"}}
    channel.feed(*handshake, message(id=1, method="tools/list", params=params))
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(session.run)
            await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
            scope.cancel()
            with trio.CancelScope(shield=True):
                await session.ended.wait()
                assert trio.current_time() - began == 2
                assert channel.is_closed
                assert recording.records()[-1].kind == "end"
                leave.set()
    assert recording.records()[-1].kind == "end"
    assert logged(logging.ERROR) == [
        "a handler in a shielded scope still runs 2 s after its cancellation"
    ]


async def test_notifications_reach_the_application_in_order_and_one_at_a_time(serve):
    running = []

    async def slowly(params):
        running.append("begin")
        await trio.lowlevel.checkpoint()
        running.append("end")

    _, peer = await serve({"notifications/roots/list_changed": slowly})
    for _ in range(3):
        await peer.send_notification("notifications/roots/list_changed")
    await trio.testing.wait_all_tasks_blocked()
    assert running == ["begin", "end"] * 3


async def test_a_callback_that_fails_is_logged_and_the_next_one_runs(serve, logged):
    handled = []

    async def fails(params):
        handled.append(params)
        raise ValueError("a bug")

    _, peer = await serve({"notifications/roots/list_changed": fails})
    for _ in range(100):
        await peer.send_notification("notifications/roots/list_changed")
    await trio.testing.wait_all_tasks_blocked()
    assert len(handled) == 100
    assert logged(logging.ERROR) == ["the callback for notifications/roots/list_changed failed"]


@pytest.mark.parametrize("is_in_group", [False, True])
async def test_a_cancellation_that_a_callback_has_kept_does_not_end_the_session(
    serve, logged, is_in_group
):
    handled = []

    async def keeps(params):
        handled.append(params)
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.sleep_forever()
            except trio.Cancelled as error:
                kept = error
        raise BaseExceptionGroup("", [kept, ValueError()]) if is_in_group else kept

    session, peer = await serve({"notifications/roots/list_changed": keeps})
    for _ in range(2):
        await peer.send_notification("notifications/roots/list_changed")
    await trio.testing.wait_all_tasks_blocked()
    assert len(handled) == 2
    assert session.cause is None
    assert logged(logging.ERROR) == ["the callback for notifications/roots/list_changed failed"]


async def test_notifications_dropped_because_of_slow_callbacks_are_counted(serve, small, logged):
    go_on = trio.Event()

    async def slow(params):
        await go_on.wait()

    limits = small(messages=MessageLimits(notifications_queued_max=2))
    session, peer = await serve({"notifications/roots/list_changed": slow}, limits=limits)
    for _ in range(8):
        await peer.send_notification("notifications/roots/list_changed")
    await peer.send_request("ping", id=1)
    assert (await peer.receive())["id"] == 1
    go_on.set()
    await trio.testing.wait_all_tasks_blocked()
    assert (
        len(session.application.notifications)
        + session.connection.counts.get("notifications dropped", 0)
        == 8
    )
    assert session.connection.counts["notifications dropped"] >= 5
    assert len(logged()) == 1
    assert "limits.messages.notifications_queued_max=2" in logged()[0]


async def test_the_last_notifications_of_the_peer_are_delivered_before_the_end(
    autojump_clock, serve
):
    async def slow(params):
        await trio.sleep(0.1)

    session, peer = await serve({"notifications/roots/list_changed": slow})
    for _ in range(5):
        await peer.send_notification("notifications/roots/list_changed")
    await peer.aclose()
    await session.ended.wait()
    assert len(session.application.notifications) == 5


@pytest.mark.requirement("PING-02")
async def test_pings_are_sent_periodically_when_configured(autojump_clock, serve, small):
    session, peer = await serve(limits=small(requests=RequestLimits(ping_interval_seconds=10.0)))
    for number in range(1, 4):
        asked = await peer.receive()
        assert asked["method"] == "ping"
        assert trio.current_time() == pytest.approx(10 * number)
        answer = {"result": {}} if number != 2 else {"error": {"code": 1, "message": "no"}}
        await peer.send({"id": asked["id"], **answer})
    assert session.cause is None
    session.shut("closed")
    await session.ended.wait()


async def test_pings_are_off_by_default(autojump_clock, serve):
    _, peer = await serve()
    with trio.move_on_after(10_000):
        await peer.receive()
        raise AssertionError


@pytest.mark.requirement("PING-03", "PING-04")
async def test_a_ping_without_an_answer_is_a_lost_connection(autojump_clock, serve, small, logged):
    session, _ = await serve(limits=small(requests=RequestLimits(ping_interval_seconds=5.0)))
    await session.ended.wait()
    assert trio.current_time() == pytest.approx(15)
    assert session.cause == "lost"
    assert (
        str(session.loss)
        == "no response to a ping within 10 s (limits.requests.ping_response_seconds)"
    )
    assert "the peer did not respond to a ping within 10 s" in logged()


async def test_the_ping_timeout_excludes_the_sending_of_a_large_response(
    autojump_clock, serve, small
):
    async def large(_handling):
        return "x" * 2_000_000

    session, peer = await serve(
        {"large": large}, limits=small(requests=RequestLimits(ping_interval_seconds=5.0))
    )
    await peer.send_request("tools/call", {"name": "large"}, id=1)
    received = b""
    while b"\n" not in received:  # which takes half a minute
        await trio.sleep(1)
        assert session.cause is None
        received += peer.channel.source.read_nowait()
    assert trio.current_time() > 15
    assert session.cause is None


@pytest.mark.requirement("PING-01")
async def test_a_ping_is_answered_before_the_handshake_and_by_both_sides(serve, dial):
    for start in (serve, dial):
        _, peer = await start(handshake=False)
        await peer.send_request("ping", id="p")
        assert await peer.receive() == {"jsonrpc": "2.0", "id": "p", "result": {}}


@pytest.mark.requirement("TRAN-02", "TRAN-03")
async def test_a_custom_transport_of_three_methods_carries_a_session(
    make_session, handshake, message, echo
):
    class Custom:
        def __init__(self):
            self.sent = []
            self.arrived = [
                [message(id=0, method="tools/list")],
                handshake,
                [message(id=1, method="tools/list")],
                [],
            ]

        async def send(self, batch):
            self.sent += batch
            await trio.lowlevel.checkpoint()

        async def receive(self):
            await trio.testing.wait_all_tasks_blocked()
            return self.arrived.pop(0)

        async def aclose(self):
            await trio.lowlevel.checkpoint()

    channel = Custom()
    session = make_session(channel, {"tools/list": echo})
    await session.run()
    assert ids(channel.sent) == [0, "handshake", 1]
    messages = [json.loads(encoded) for encoded in channel.sent]
    assert all(message["jsonrpc"] == "2.0" for message in messages)
    assert ["error" in message for message in messages] == [True, False, False]


async def test_an_error_beside_the_last_cancellation_stays_in_the_session(
    autojump_clock, make_session, handshake, message, logged
):
    async def messy(*_):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            with trio.CancelScope(shield=True):
                await trio.sleep(60)
            raise ValueError("after the end")

    channel = DirectFakeChannel()
    changed = "notifications/roots/list_changed"
    session = make_session(channel, {"tools/list": messy, changed: messy})
    channel.feed(*handshake, message(id=1, method="tools/list"), message(method=changed))
    async with trio.open_nursery() as nursery:
        await nursery.start(session.run)
        await trio.testing.wait_all_tasks_blocked()
        session.shut("closed")
    _, callback, handler = sorted(logged())
    assert callback == "the callback for notifications/roots/list_changed failed"
    assert handler.startswith("the handler of tools/list failed: ")


# The end of the sending side: a transport that fails, a peer that reads nothing.


async def test_the_error_of_a_failed_direct_write_is_reported_by_send(serve_fake, message):
    """A process channel learns only while waiting with which status its process exited."""

    class Process(DirectFakeChannel):
        def send_nowait(self, messages):
            if ids(messages) == [1]:
                raise trio.BrokenResourceError
            return super().send_nowait(messages)

    session, channel = await serve_fake(channel=Process())
    channel.send_error = ConnectionLost("it exited", exit_status=3)
    channel.feed(message(id=1, method="ping"))
    await session.ended.wait()
    assert session.loss.exit_status == 3


@pytest.mark.parametrize("kind", [FakeChannel, DirectFakeChannel])
async def test_any_error_of_a_transport_ends_its_own_session_only(
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


@pytest.mark.parametrize("name", ["receive", "send", "aclose"])
async def test_a_transport_that_fails_while_it_is_cancelled_does_not_leave_the_session(
    autojump_clock, make_session, message, logged, name
):
    class Messy(FakeChannel):
        pass

    async def messy(*_):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while cleaning up")

    setattr(Messy, name, messy)
    channel = Messy()
    session = make_session(channel)
    channel.feed(message(id=1, method="ping"))
    async with trio.open_nursery() as nursery:
        await nursery.start(session.run)
        await trio.testing.wait_all_tasks_blocked()
        session.shut("closed")
    assert session.cause == "closed"
    assert len(logged(logging.ERROR)) == 1


@pytest.mark.parametrize("error", [trio.BrokenResourceError(), OSError("gone"), ValueError("bug")])
async def test_a_receive_that_fails_ends_the_session_as_lost(serve_fake, error):
    session, channel = await serve_fake()
    channel.break_down(error)
    await session.ended.wait()
    assert session.cause == "lost"
    assert session.loss.__cause__ is error


async def test_the_disconnect_of_a_peer_is_not_logged_as_an_error(serve_fake, message, logged):
    session, channel = await serve_fake()
    channel.send_error = BrokenPipeError()
    channel.feed(message(id=1, method="ping"))
    await session.ended.wait()
    assert logged(logging.WARNING) == []


async def test_unsent_messages_are_freed_at_the_end(autojump_clock, serve_fake):
    """It may be large, and ended tasks are only freed by a garbage collection."""
    session, channel = await serve_fake(channel=FakeChannel())
    channel.is_stuck = True
    for _ in range(3):
        session.send_queue.post(b"{}" * 1000)
        await trio.testing.wait_all_tasks_blocked()
    session.shut("lost", ConnectionLost("gone"))
    assert session.send_queue.dropped
    await session.ended.wait()
    assert session.send_queue.is_empty
    assert not session.send_queue.dropped


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
        "the peer read nothing for 30 s while messages waited (limits.messages.write_stall_seconds)"
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


async def test_a_slow_peer_on_a_channel_without_a_byte_count_is_not_stalled(
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
    assert session.send_queue.queued_bytes == 0
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


async def test_nothing_is_queued_after_a_loss(serve_fake, call, message):
    async def tidy(handling):
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                params = s.LoggingMessageParams(level="info", data="bye")
                for _ in range(3):
                    await handling.notify("notifications/message", params)

    session, channel = await serve_fake({"tidy": tidy})
    channel.feed(message(**call("tidy", 1)))
    await trio.testing.wait_all_tasks_blocked()
    session.shut("lost")
    await session.ended.wait()
    assert session.send_queue.queued_bytes == 0
    assert channel.sent == []


# The memory that a peer that never reads can use.


class Flood(DirectFakeChannel):
    """A peer that sends requests as fast as they are taken, and never reads."""

    number = 0

    async def receive(self):
        await trio.sleep(0.001)
        first, self.number = self.number, self.number + 100
        return [
            b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"big"}}' % number
            for number in range(first, self.number)
        ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "limits", "mib_max"),
    [
        pytest.param(0, {}, 64, id="quick handlers"),
        pytest.param(0.02, {}, 64, id="all places taken"),
        pytest.param(
            1000,
            {"messages": MessageLimits(send_queue_bytes_max=MIB)},
            8,
            id="nothing but refusals",
        ),
    ],
)
async def test_l04_a_peer_that_never_reads_uses_bounded_memory_and_is_disconnected(
    autojump_clock, make_session, handshake, nursery, small, seconds, limits, mib_max
):
    """Elsewhere each request that a host sends without reading answers stays in memory."""

    async def big(handling):
        await trio.sleep(seconds)
        return "x" * 100_000

    channel = Flood()
    channel.is_stuck = True
    session = make_session(channel, {"big": big}, limits=small(**limits))
    for encoded in handshake:
        session.connection.receive(encoded)
    tracemalloc.start()
    try:
        await nursery.start(session.run)
        await trio.sleep(29)
        assert session.cause is None
        assert (
            session.send_queue.queued_bytes
            >= session.connection.limits.messages.send_queue_bytes_max
        )
        await trio.sleep(31)
        rest, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert session.cause == "lost"
    assert "limits.messages.write_stall_seconds" in str(session.loss)
    assert peak < mib_max * MIB
    assert rest < MIB
    taken = channel.number
    await trio.sleep(1000)
    assert channel.number == taken
    assert session.ended.is_set()


# Background tasks of an application, beside the requests of the peer.


@pytest.fixture
def serve_beside(nursery, make_session, handshake):
    """Start a server that does something by itself; returns it and a peer before its handshake."""
    from mcp_trio.testing import WirePeer
    from mcp_trio.transports import memory_pair

    async def start(beside, **options):
        ours, theirs = memory_pair()
        session = make_session(ours, **options)
        session.application.beside = beside
        await nursery.start(session.run)
        return session, WirePeer(theirs)

    return start


async def test_an_application_acts_when_the_client_is_initialized(serve_beside):
    order = []

    async def beside(session):
        order.append("begun")
        await session.initialized.wait()
        order.append("initialized")
        await session.notify("notifications/tools/list_changed")

    session, peer = await serve_beside(beside)
    await trio.testing.wait_all_tasks_blocked()
    assert order == ["begun"]
    await peer.handshake()
    assert (await peer.receive())["method"] == "notifications/tools/list_changed"
    assert session.negotiated.is_set()


async def test_a_client_is_initialized_by_its_notification(dial):
    session, _ = await dial()
    assert session.initialized.is_set()


async def test_the_initialized_callback_is_cancelled_with_the_session_and_recorded(
    serve_beside, recording
):
    async def beside(session):
        await session.initialized.wait()
        while trio.current_effective_deadline() > -math.inf:  # until it is cancelled
            await trio.lowlevel.cancel_shielded_checkpoint()
        await session.send_queue.room_for_message(Lane("beside"))
        raise AssertionError

    session, peer = await serve_beside(beside, sequencer=recording)
    await peer.handshake()
    await session.initialized.wait()
    session.shut("closed")
    await session.ended.wait()
    assert recording.story(since=5) == ["shut", "mark close 1", "cxl beside 1", "end"]


async def test_an_error_of_the_initialized_callback_is_logged_and_ends_no_session(
    serve_beside, logged
):
    async def beside(session):
        raise OSError("aground")

    session, peer = await serve_beside(beside)
    await peer.handshake()
    assert "a background task of the application failed" in logged()
    await peer.send_request("ping", id=1)
    assert (await peer.receive())["id"] == 1
    assert session.cause is None
