"""The life of a session, from its start to each of its ends."""

import json
import logging

import pytest
import trio
import trio.testing

from mcp_trio import ConnectionLost
from mcp_trio._testing.channels import DirectFakeChannel, FakeChannel
from mcp_trio.limits import MessageLimits, RequestLimits


def ids(frames):
    return [json.loads(frame).get("id") for frame in frames]


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


async def test_only_the_first_cause_counts(serve):
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
async def test_when_the_peer_has_closed_handlers_may_finish_for_a_while(
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


async def test_a_drain_that_is_done_waits_no_longer(mock_clock, serve_fake, message):
    session, channel = await serve_fake()
    channel.feed(message(id=1, method="ping"))
    channel.feed()
    await session.ended.wait()
    assert ids(channel.sent) == [1]


@pytest.mark.parametrize("cause", ["closed", "signal", "lost"])
async def test_otherwise_handlers_are_cancelled_at_once(serve_fake, call, message, small, cause):
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


async def test_an_answer_given_while_closing_still_leaves(serve_fake, call, message):
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
    autojump_clock, serve_fake
):
    class Stubborn(DirectFakeChannel):
        async def aclose(self):
            await trio.sleep_forever()

    session, _ = await serve_fake(channel=Stubborn())
    began = trio.current_time()
    session.shut("closed")
    await session.ended.wait()
    assert trio.current_time() - began < 10


async def test_nothing_is_read_after_the_end_began(serve_fake, message):
    session, channel = await serve_fake()
    channel.feed(message(id=1, method="ping"))
    session.shut("closed")
    channel.feed(message(id=2, method="ping"))
    await session.ended.wait()
    assert channel.sent == []


async def test_a_cancelled_run_winds_down_and_lets_the_cancellation_go_on(
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


async def test_a_session_that_was_shut_before_it_ran_ends_at_once(make_session):
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
    heard = []

    async def fails(params):
        heard.append(params)
        raise ValueError("a bug")

    _, peer = await serve({"notifications/roots/list_changed": fails})
    for _ in range(2):
        await peer.send_notification("notifications/roots/list_changed")
    await trio.testing.wait_all_tasks_blocked()
    assert len(heard) == 2
    assert logged(logging.ERROR) == ["the callback for notifications/roots/list_changed failed"] * 2


async def test_callbacks_slower_than_the_peer_cost_notifications_that_are_counted(
    serve, small, logged
):
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
    assert len(session.application.heard) + session.connection.counts["notifications dropped"] == 8
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
    assert len(session.application.heard) == 5


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
        == "no answer to a ping within 10 s (limits.requests.ping_response_seconds)"
    )
    assert "the peer did not answer a ping within 10 s" in logged()


async def test_a_ping_behind_a_large_answer_is_not_waited_for(autojump_clock, serve, small):
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

        async def send(self, frames):
            self.sent += frames
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
    told = [json.loads(frame) for frame in channel.sent]
    assert all(message["jsonrpc"] == "2.0" for message in told)
    assert ["error" in message for message in told] == [True, False, False]


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
    assert sorted(logged(logging.ERROR))[1:] == [
        "the callback for notifications/roots/list_changed failed",
        "the handler of tools/list failed",
    ]
