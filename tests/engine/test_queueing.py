"""Requests that wait for a slot, and messages that never wait with them."""

import json
from contextvars import ContextVar

import pytest
import trio
import trio.testing

from mcp_trio._testing.channels import DirectFakeChannel
from mcp_trio.limits import RequestLimits

TRACE = ContextVar("trace", default=None)


@pytest.fixture
def host_check():
    """Tools that wait: `slow` until the event of its request is set, and who has begun."""

    class HostCheck:
        def __init__(self):
            self.begun = []
            self.events = {}

        async def slow(self, handling):
            request_id = handling.request.id
            self.begun.append(request_id)
            await self.events.setdefault(request_id, trio.Event()).wait()
            return request_id

        def open(self, request_id):
            self.events.setdefault(request_id, trio.Event()).set()

    return HostCheck()


async def test_requests_beyond_the_bound_wait_in_order(serve, call, small, host_check):
    _, peer = await serve(
        {"slow": host_check.slow}, limits=small(requests=RequestLimits(in_flight_max=2))
    )
    await peer.send(*(call("slow", number) for number in range(4)))
    assert await peer.receive_available() == []
    assert set(host_check.begun) == {0, 1}
    host_check.open(1)
    assert [answer["id"] for answer in await peer.receive_available()] == [1]
    assert host_check.begun[2:] == [2]
    host_check.open(0)
    await peer.receive_available()
    assert host_check.begun[3:] == [3]


async def test_a_request_for_which_there_is_no_room_is_rejected_naming_the_setting(
    serve, call, small, host_check, logged
):
    limits = small(requests=RequestLimits(in_flight_max=1, queued_max=2))
    session, peer = await serve({"slow": host_check.slow}, limits=limits)
    await peer.send(*(call("slow", number) for number in range(6)))
    answers = await peer.receive_available()
    assert [answer["id"] for answer in answers] == [3, 4, 5]
    error = answers[0]["error"]
    assert error["code"] == -32000
    assert "limits.requests.queued_max=2" in error["message"]
    assert session.connection.counts["requests refused"] == 3
    assert len(logged()) == 1
    host_check.open(0)
    host_check.open(1)
    host_check.open(2)
    assert [answer["id"] for answer in await peer.receive_available()] == [0, 1, 2]


async def test_waiting_requests_are_bounded_by_bytes_too(serve, call, small, host_check):
    limits = small(requests=RequestLimits(in_flight_max=1, queued_bytes_max=300))
    _, peer = await serve({"slow": host_check.slow}, limits=limits)
    large = call("slow", 2)
    large["params"]["arguments"] = {"x": "y" * 300}
    await peer.send(call("slow", 0), call("slow", 1), large, call("slow", 3))
    answers = await peer.receive_available()
    assert [answer["id"] for answer in answers] == [2]
    assert "limits.requests.queued_bytes_max=300" in answers[0]["error"]["message"]
    host_check.open(0)
    assert [answer["id"] for answer in await peer.receive_available()] == [0]
    await peer.send(large)
    answers = await peer.receive_available()
    assert "limits.requests.queued_bytes_max=300" in answers[0]["error"]["message"]


@pytest.mark.requirement("CANC-06")
async def test_a_queued_request_that_is_cancelled_never_runs(
    serve, call, small, host_check, recording
):
    limits = small(requests=RequestLimits(in_flight_max=1))
    _, peer = await serve({"slow": host_check.slow}, limits=limits, sequencer=recording)
    await peer.send(call("slow", 0), call("slow", 1), call("slow", 2))
    await peer.receive_available()
    await peer.cancel(1)
    host_check.open(0)
    assert [answer["id"] for answer in await peer.receive_available()] == [0]
    assert host_check.begun == [0, 2]


async def test_the_id_of_a_dropped_request_is_free_at_once(serve, call, small, host_check):
    _, peer = await serve(
        {"slow": host_check.slow}, limits=small(requests=RequestLimits(in_flight_max=1))
    )
    await peer.send(call("slow", 0), call("slow", 1))
    await peer.cancel(1)
    await peer.send(call("slow", 1))
    host_check.open(1)
    host_check.open(0)
    assert [answer["id"] for answer in await peer.receive_available()] == [0, 1]


@pytest.mark.requirement("PING-01", "CANC-06")
async def test_cancellations_and_pings_pass_a_full_queue(serve, call, small, host_check):
    limits = small(requests=RequestLimits(in_flight_max=1, queued_max=1))
    _, peer = await serve({"slow": host_check.slow}, limits=limits)
    await peer.send(call("slow", 0), call("slow", 1))
    await peer.send_request("ping", id="ping")
    assert await peer.receive() == {"jsonrpc": "2.0", "id": "ping", "result": {}}
    await peer.cancel(0)
    host_check.open(1)
    assert [answer["id"] for answer in await peer.receive_available()] == [1]


async def test_notifications_pass_a_full_queue(serve, call, small, host_check):
    limits = small(requests=RequestLimits(in_flight_max=1, queued_max=1))
    session, peer = await serve({"slow": host_check.slow}, limits=limits)
    await peer.send(call("slow", 0), call("slow", 1))
    await peer.send_notification("notifications/roots/list_changed")
    assert await peer.receive_available() == []
    assert [name for name, _ in session.application.heard] == ["notifications/roots/list_changed"]


@pytest.mark.requirement("BASE-21")
async def test_handlers_that_all_await_the_client_at_the_bound_do_not_deadlock(
    serve, call, small, text_of
):
    async def asks(handling):
        roots = await handling.ask("roots/list")
        return roots.roots[0].uri

    limits = small(requests=RequestLimits(in_flight_max=3, queued_max=10))
    _, peer = await serve({"asks": asks}, limits=limits)
    await peer.send(*(call("asks", number) for number in range(9)))
    answers = {}
    with trio.fail_after(5):
        while len(answers) < 9:
            message = await peer.receive()
            if message.get("method") == "roots/list":
                await peer.send_result(message, {"roots": [{"uri": f"file:///{message['id']}"}]})
            else:
                answers[message["id"]] = text_of(message)
    assert set(answers) == set(range(9))
    assert len(set(answers.values())) == 9


async def test_the_reader_never_waits_for_a_handler(serve_fake, call, message, small):
    async def stuck(handling):
        with trio.CancelScope(shield=True):
            await release.wait()

    release = trio.Event()
    _, channel = await serve_fake(
        {"stuck": stuck},
        channel=DirectFakeChannel(),
        limits=small(requests=RequestLimits(in_flight_max=1)),
    )
    for number in range(1, 50):
        channel.feed(message(**call("stuck", number)))
    channel.feed(message(id=0, method="ping"))
    await trio.testing.wait_all_tasks_blocked()
    assert [json.loads(frame)["id"] for frame in channel.sent] == [0]
    release.set()
    await trio.testing.wait_all_tasks_blocked()
    assert len(channel.sent) == 50


async def test_a_request_does_not_begin_with_the_context_variables_of_the_one_before(
    serve, call, small, host_check
):
    traces = []

    async def traced(handling):
        traces.append(TRACE.get())
        TRACE.set(handling.request.id)
        await host_check.slow(handling)
        return ""

    TRACE.set("outside")
    _, peer = await serve({"traced": traced}, limits=small(requests=RequestLimits(in_flight_max=1)))
    await peer.send(call("traced", 1), call("traced", 2))
    host_check.open(1)
    host_check.open(2)
    await peer.receive_many(2)
    assert len(set(traces)) == 1
