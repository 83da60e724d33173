"""Outgoing requests: each ends exactly once, in its caller's task."""

import json
import math

import pytest
import trio
import trio.testing

from mcp_trio import ConnectionLost, RequestError, RequestTimeout
from mcp_trio import types as s
from mcp_trio._protocol.versions import NEWEST_LEGACY
from mcp_trio.errors import LocalProtocolError, OutcomeUnknown, RemoteProtocolError, Unencodable
from mcp_trio.limits import MessageLimits
from tests.session.fake_channels import FakeChannel


async def ignore(_params):
    pass


@pytest.fixture
def outcomes(nursery):
    """Start requests in tasks of their own; how each ended is kept by name."""

    class Outcomes(dict):
        def start(self, name, session, method="tools/list"):
            nursery.start_soon(self._keep, name, session.request, method)

        def shake_hands(self, session):
            nursery.start_soon(self._keep, "handshake", session.initialize)

        async def _keep(self, name, ask, *args):
            try:
                self[name] = await ask(*args)
            except Exception as error:
                self[name] = error

    return Outcomes()


@pytest.mark.requirement("BASE-04", "BASE-21")
async def test_a_request_ends_with_the_peers_result(dial, outcomes):
    session, peer = await dial()
    for name in "abc":
        outcomes.start(name, session)
    asked = await peer.receive_many(3)
    assert len({message["id"] for message in asked}) == 3
    for message in reversed(asked):
        tool = {"name": f"tool {message['id']}", "inputSchema": {"type": "object"}}
        await peer.send_result(message, {"tools": [tool]})
    await trio.testing.wait_all_tasks_blocked()
    names = {outcomes[name].tools[0].name for name in "abc"}
    assert names == {f"tool {message['id']}" for message in asked}


async def test_a_request_ends_with_the_peers_error(dial, outcomes):
    session, peer = await dial()
    outcomes.start("one", session)
    outcomes.start("two", session)
    for number in range(2):
        asked = await peer.receive()
        error = {"code": -5, "message": "no", "data": {"deep": [1]}}
        await peer.send({"id": asked["id"], "error": error if number else error | {"data": None}})
    await trio.testing.wait_all_tasks_blocked()
    assert all(type(outcome) is RequestError for outcome in outcomes.values())
    assert {repr(outcome.data) for outcome in outcomes.values()} == {"None", "{'deep': [1]}"}
    assert outcomes["one"].code == -5


async def test_an_error_whose_data_cannot_be_read_is_an_error_of_the_peer(dial, outcomes):
    session, peer = await dial()
    outcomes.start("one", session)
    asked = await peer.receive()
    error = b'{"code":-5,"message":"no","data":{"deep":1e999}}'
    await peer.send(b'{"jsonrpc":"2.0","id":%d,"error":%b}' % (asked["id"], error))
    await trio.testing.wait_all_tasks_blocked()
    assert type(outcomes["one"]) is RemoteProtocolError
    assert "the response to tools/list is the error 'no' (code -5)" in str(outcomes["one"])


async def test_a_result_of_the_wrong_type_is_an_error_of_the_peer(dial, outcomes):
    session, peer = await dial()
    outcomes.start("one", session)
    await peer.send_result(await peer.receive(), {"tools": 5})
    await trio.testing.wait_all_tasks_blocked()
    assert type(outcomes["one"]) is RemoteProtocolError


async def test_requests_that_the_protocol_forbids_are_not_sent(dial):
    session, peer = await dial()
    with pytest.raises(LocalProtocolError):
        await session.request("resources/list")
    with pytest.raises(Unencodable):
        await session.request("tools/call", s.CallToolParams(name="caf\udce9"))
    assert await peer.receive_available() == []


async def test_the_error_of_a_request_that_is_not_sent_is_recorded_in_its_lane(
    serve, call, recording, story
):
    """Otherwise a replay lets the lane wait for the turn of its next operation."""

    async def ask(handling):
        with pytest.raises(LocalProtocolError):
            await handling.ask("sampling/createMessage")
        return ""

    _, peer = await serve({"ask": ask}, sequencer=recording)
    await peer.send(call("ask", 1))
    await peer.receive()
    assert list(story().values()) == [[("err", None)]]


@pytest.mark.requirement("CANC-01", "CANC-02")
async def test_leaving_a_scope_cancels_the_request_at_the_peer_exactly_once(dial):
    session, peer = await dial()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.request, "tools/list")
            asked = await peer.receive()
            scope.cancel()
    messages = await peer.receive_available()
    assert [message["method"] for message in messages] == ["notifications/cancelled"]
    assert messages[0]["params"] == {"requestId": asked["id"], "reason": "cancelled by the caller"}


@pytest.mark.requirement("CANC-08", "CANC-09")
async def test_a_late_answer_is_only_counted(dial, outcomes):
    session, peer = await dial()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.request, "tools/list")
            asked = await peer.receive()
            scope.cancel()
    await peer.send_result(asked, {"tools": []})
    outcomes.start("next", session)
    await peer.receive()
    await peer.send_result(await peer.receive(), {"tools": []})
    await trio.testing.wait_all_tasks_blocked()
    assert outcomes["next"].tools == []
    assert session.connection.counts["late answer"] == 1


async def test_a_cancelled_caller_with_an_answer_sends_no_cancellation(serve_fake, message):
    session, channel = await serve_fake()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.request, "roots/list")
            await trio.testing.wait_all_tasks_blocked()
            session.take(message(id=json.loads(channel.sent[0])["id"], result={"roots": []}))
            scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert len(channel.sent) == 1


async def test_a_request_cancelled_before_it_was_sent_is_not_sent(dial):
    session, peer = await dial()
    with trio.CancelScope() as scope:
        scope.cancel()
        await session.request("tools/list")
    assert await peer.receive_available() == []


@pytest.mark.requirement("TIME-01")
async def test_every_request_has_a_total_timeout(autojump_clock, dial):
    session, peer = await dial()
    began = trio.current_time()
    with pytest.raises(RequestTimeout) as caught:
        await session.request("tools/list", idle_seconds=math.inf)
    assert trio.current_time() - began == 600
    assert str(caught.value) == (
        "tools/list: no response within 600 s in all; raise limits.requests.total_seconds"
    )
    assert [message["method"] for message in await peer.receive_available()] == [
        "tools/list",
        "notifications/cancelled",
    ]


@pytest.mark.requirement("TIME-01", "CANC-01")
async def test_a_request_without_an_answer_times_out(autojump_clock, dial):
    session, peer = await dial()
    began = trio.current_time()
    with pytest.raises(RequestTimeout) as caught:
        await session.request("tools/list")
    assert trio.current_time() - began == 60
    assert caught.value.budget == "idle"
    assert "raise limits.requests.idle_seconds" in str(caught.value)
    notification = (await peer.receive_available())[-1]
    assert notification["params"]["reason"] == "timeout"


async def test_the_error_names_a_timeout_of_the_caller(autojump_clock, dial):
    session, _ = await dial()
    with pytest.raises(RequestTimeout, match=r"within 5 s without progress; raise idle_seconds"):
        await session.request("tools/list", idle_seconds=5)
    with pytest.raises(RequestTimeout, match=r"within 3 s in all; raise total_seconds"):
        await session.request("tools/list", total_seconds=3)


@pytest.mark.requirement("TIME-01", "PROG-10")
async def test_progress_restarts_the_idle_timeout_but_not_the_total_timeout(
    autojump_clock, dial, nursery
):
    session, peer = await dial()
    began = trio.current_time()

    async def report():
        token = (await peer.receive())["params"]["_meta"]["progressToken"]
        for number in range(100):
            await trio.sleep(50)
            params = {"progressToken": token, "progress": number}
            await peer.send_notification("notifications/progress", params)

    nursery.start_soon(report)
    with pytest.raises(RequestTimeout) as caught:
        await session.request("tools/list", on_progress=ignore)
    assert trio.current_time() - began == 600
    assert caught.value.budget == "total"


async def test_silence_after_progress_is_an_idle_timeout(autojump_clock, dial, nursery):
    session, peer = await dial()
    began = trio.current_time()

    async def report():
        token = (await peer.receive())["params"]["_meta"]["progressToken"]
        await trio.sleep(50)
        params = {"progressToken": token, "progress": 1}
        await peer.send_notification("notifications/progress", params)

    nursery.start_soon(report)
    with pytest.raises(RequestTimeout, match="idle"):
        await session.request("tools/list", on_progress=ignore)
    assert trio.current_time() - began == 110


async def test_progress_starts_no_timeout_while_timeouts_are_paused(autojump_clock, dial, nursery):
    session, peer = await dial()
    began = trio.current_time()

    async def play():
        asked = await peer.receive()
        with session.calls.paused_timeouts():
            await trio.sleep(10)
            params = {"progressToken": asked["params"]["_meta"]["progressToken"], "progress": 1}
            await peer.send_notification("notifications/progress", params)
            await trio.sleep(500)
        await peer.send_result(asked, {"tools": []})

    nursery.start_soon(play)
    assert (await session.request("tools/list", on_progress=ignore)).tools == []
    assert trio.current_time() - began == 510


async def test_a_response_at_the_moment_of_the_timeout_is_returned(mock_clock, serve_fake, message):
    session, channel = await serve_fake()
    results = []

    async def caller():
        results.append(await session.request("roots/list", total_seconds=5))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(caller)
        await trio.testing.wait_all_tasks_blocked()
        answer = message(id=json.loads(channel.sent[0])["id"], result={"roots": []})
        for call in session.calls._open.values():
            call.time_out()
        session.take(answer)
    assert results[0].roots == []
    assert len(channel.sent) == 1


async def test_requests_with_different_timeouts_time_out_one_by_one(autojump_clock, dial, nursery):
    session, peer = await dial()
    began = trio.current_time()
    ended = {}

    async def ask(seconds):
        with pytest.raises(RequestTimeout):
            await session.request("tools/list", total_seconds=seconds)
        ended[seconds] = trio.current_time() - began

    nursery.start_soon(ask, 30)
    await trio.sleep(1)
    for seconds in (5, 50, 10):
        nursery.start_soon(ask, seconds)
    await trio.sleep(100)
    assert ended == {5: 6, 10: 11, 30: 30, 50: 51}
    methods = [message["method"] for message in await peer.receive_available()]
    assert methods == ["tools/list"] * 4 + ["notifications/cancelled"] * 4


async def test_a_request_outlives_the_deadline_of_one_that_has_ended(
    autojump_clock, dial, nursery, outcomes
):
    session, peer = await dial()
    outcomes.start("first", session)
    await peer.send_result(await peer.receive(), {"tools": []})
    await trio.sleep(40)
    outcomes.start("second", session)
    asked = await peer.receive()
    await trio.sleep(59)
    await peer.send_result(asked, {"tools": []})
    await trio.testing.wait_all_tasks_blocked()
    assert [outcome.tools for outcome in outcomes.values()] == [[], []]


async def test_a_request_times_out_later_if_timeouts_are_paused_at_its_deadline(
    autojump_clock, dial, nursery
):
    session, _ = await dial()
    began = trio.current_time()

    async def pause():
        await trio.sleep(50)
        with session.calls.paused_timeouts():
            await trio.sleep(500)

    nursery.start_soon(pause)
    with pytest.raises(RequestTimeout):
        await session.request("tools/list")
    assert trio.current_time() - began == 560


async def test_nothing_waits_for_timeouts_after_the_session(dial, outcomes):
    session, peer = await dial()
    before = trio.lowlevel.current_statistics().tasks_living
    outcomes.start("one", session)
    await peer.receive()
    session.shut("closed")
    await session.ended.wait()
    await trio.testing.wait_all_tasks_blocked()
    assert isinstance(outcomes["one"], ConnectionLost)
    assert trio.lowlevel.current_statistics().tasks_living < before
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf


@pytest.mark.requirement("PROG-02", "PROG-03", "PROG-07")
async def test_progress_reaches_the_caller_in_its_own_task_in_order_and_before_the_result(
    dial, nursery
):
    session, peer = await dial()
    received = []

    async def on_progress(params):
        await trio.lowlevel.checkpoint()
        received.append((params.progress, params.total, trio.lowlevel.current_task()))

    async def play():
        asked = await peer.receive()
        token = asked["params"]["_meta"]["progressToken"]
        reports = [{"progress": 0.5}, {"progress": 1}, {"progress": 2, "total": 3.5}]
        await peer.send(
            *(
                {"method": "notifications/progress", "params": {"progressToken": token, **report}}
                for report in reports
            ),
            {"id": asked["id"], "result": {"tools": []}},
            {
                "method": "notifications/progress",
                "params": {"progressToken": token, "progress": 9},
            },
        )

    nursery.start_soon(play)
    await session.request("tools/list", on_progress=on_progress)
    here = trio.lowlevel.current_task()
    assert received == [(0.5, None, here), (1, None, here), (2, 3.5, here)]
    await trio.testing.wait_all_tasks_blocked()
    assert session.connection.counts["late progress"] == 1


@pytest.mark.requirement("PROG-10")
async def test_unrequested_progress_does_no_harm(dial, outcomes):
    session, peer = await dial()
    outcomes.start("one", session)
    asked = await peer.receive()
    for token in (asked["id"], "unknown", 99):
        params = {"progressToken": token, "progress": 1}
        await peer.send_notification("notifications/progress", params)
    await peer.send_result(asked, {"tools": []})
    await trio.testing.wait_all_tasks_blocked()
    assert outcomes["one"].tools == []
    assert session.connection.counts["late progress"] == 3


@pytest.mark.requirement("CANC-01")
async def test_an_exception_of_a_progress_callback_goes_to_the_caller(dial, nursery):
    session, peer = await dial()

    def on_progress(params):
        raise ZeroDivisionError

    async def play():
        asked = await peer.receive()
        params = {"progressToken": asked["params"]["_meta"]["progressToken"], "progress": 1}
        await peer.send_notification("notifications/progress", params)

    nursery.start_soon(play)
    with pytest.raises(ZeroDivisionError):
        await session.request("tools/list", on_progress=on_progress)
    assert [m["method"] for m in await peer.receive_available()] == ["notifications/cancelled"]
    assert session.cause is None


async def test_a_progress_callback_may_exceed_the_timeouts_after_the_response(
    autojump_clock, dial, nursery
):
    session, peer = await dial()
    reports = []

    async def takes_long(progress):
        await trio.sleep(1000)
        reports.append(progress)

    def on_progress(params):
        return takes_long(params.progress) if params.progress == 1 else reports.append("quick")

    async def play():
        asked = await peer.receive()
        token = asked["params"]["_meta"]["progressToken"]
        for number in (1, 2):
            params = {"progressToken": token, "progress": number}
            await peer.send_notification("notifications/progress", params)
        await peer.send_result(asked, {"tools": []})

    nursery.start_soon(play)
    assert (await session.request("tools/list", on_progress=on_progress)).tools == []
    assert reports == [1, "quick"]


async def test_a_slow_callback_drops_the_oldest_reports_and_blocks_nothing(dial, small, nursery):
    session, peer = await dial(limits=small(messages=MessageLimits(progress_queued_max=3)))
    reports = []
    go_on = trio.Event()

    async def on_progress(params):
        await go_on.wait()
        reports.append(params.progress)

    async def play():
        asked = await peer.receive()
        token = asked["params"]["_meta"]["progressToken"]
        for number in range(10):
            params = {"progressToken": token, "progress": number}
            await peer.send_notification("notifications/progress", params)
        await peer.send_result(asked, {"tools": []})
        await trio.testing.wait_all_tasks_blocked()
        go_on.set()

    nursery.start_soon(play)
    await session.request("tools/list", on_progress=on_progress)
    assert reports[-3:] == [7, 8, 9]
    assert session.connection.counts["progress dropped"] == 10 - len(reports)


async def test_all_progress_is_dropped_if_none_may_wait(dial, small, nursery):
    session, peer = await dial(limits=small(messages=MessageLimits(progress_queued_max=0)))
    reports = []

    async def play():
        asked = await peer.receive()
        params = {"progressToken": asked["params"]["_meta"]["progressToken"], "progress": 1}
        await peer.send_notification("notifications/progress", params)
        await peer.send_result(asked, {"tools": []})

    nursery.start_soon(play)
    await session.request("tools/list", on_progress=reports.append)
    assert reports == []
    assert session.connection.counts["progress dropped"] == 1


async def test_a_lost_connection_fails_every_call_with_an_error_of_its_own(dial, outcomes):
    session, peer = await dial()
    outcomes.start("one", session)
    outcomes.start("two", session)
    await peer.receive_many(2)
    await peer.aclose()
    await session.ended.wait()
    assert {type(outcome) for outcome in outcomes.values()} == {OutcomeUnknown}
    assert outcomes["one"] is not outcomes["two"]
    assert str(outcomes["one"]) == "the peer closed the connection"
    with pytest.raises(ConnectionLost, match="the peer closed the connection"):
        await session.request("tools/list")
    with pytest.raises(ConnectionLost):
        await session.notify("notifications/roots/list_changed")


async def test_a_notification_is_sent(dial):
    session, peer = await dial()
    await session.notify("notifications/roots/list_changed")
    assert (await peer.receive())["method"] == "notifications/roots/list_changed"


@pytest.mark.requirement("LIFE-02", "LIFE-11")
async def test_the_handshake_sets_version_and_capabilities(dial):
    session, peer = await dial(handshake=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.initialize)
        asked = await peer.answer_initialize(capabilities={"tools": {}})
    assert asked["method"] == "initialize"
    assert asked["params"]["protocolVersion"] == NEWEST_LEGACY.name
    assert json.loads(peer.received[1])["method"] == "notifications/initialized"
    assert session.negotiated.is_set()
    assert session.connection.peer_info.name == "wire peer"


@pytest.mark.requirement("LIFE-16", "LIFE-17", "CANC-03")
async def test_l12_a_server_that_never_answers_ends_by_a_timeout_of_its_own(autojump_clock, dial):
    """Elsewhere connecting has no timeout, and the caller's own takes longer than the limit."""
    session, peer = await dial(handshake=False)
    began = trio.current_time()
    with pytest.raises(RequestTimeout) as caught:
        await session.initialize()
    assert trio.current_time() - began == 30
    assert str(caught.value) == (
        "initialize: no response within 30 s in all; raise limits.requests.initialize_seconds"
    )
    assert [message["method"] for message in await peer.receive_end()] == ["initialize"]
    await session.ended.wait()
    assert session.cause == "closed"


@pytest.mark.requirement("CANC-03", "TRAP-21")
async def test_initialize_is_never_cancelled_but_closes_the_session(dial):
    session, peer = await dial(handshake=False)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.initialize)
            await peer.receive()
            scope.cancel()
    assert await peer.receive_end() == []
    await session.ended.wait()


@pytest.mark.requirement("LIFE-09", "LIFE-16")
async def test_a_client_disconnects_from_a_server_of_an_unknown_protocol_version(dial, outcomes):
    session, peer = await dial(handshake=False)
    outcomes.shake_hands(session)
    info = {"name": "s", "version": "1"}
    result = {"protocolVersion": "1999-01-01", "capabilities": {}, "serverInfo": info}
    await peer.send_result(await peer.receive(), result)
    assert await peer.receive_end() == []
    assert type(outcomes["handshake"]) is RemoteProtocolError
    assert session.cause == "closed"


async def test_a_rejected_handshake_leaves_the_session_usable(dial, outcomes):
    session, peer = await dial(handshake=False)
    outcomes.shake_hands(session)
    asked = await peer.receive()
    await peer.send({"id": asked["id"], "error": {"code": -32602, "message": "no"}})
    await trio.testing.wait_all_tasks_blocked()
    assert type(outcomes["handshake"]) is RequestError
    assert session.cause is None
    assert not session.negotiated.is_set()


# The outcome of a request whose connection was lost: not sent, or unknown.


class Stuck(FakeChannel):
    """From the moment that it `is_stuck`, a `send` goes on until the connection breaks."""

    is_stuck = False

    async def send(self, messages):
        if not self.is_stuck:
            await super().send(messages)
            return
        await self.breaks.wait()
        raise ConnectionLost("it broke", exit_status=3)


class Reporting(Stuck):
    """A channel that reports which requests were lost."""

    reports_losses = True


async def outcomes_of(serve_fake, channel):
    """Of a request that was being sent, of one that waited, and of a late one."""
    outcomes = {}
    channel.breaks = trio.Event()
    session, channel = await serve_fake(channel=channel)
    channel.is_stuck = True

    async def ask(name):
        with pytest.raises(ConnectionLost) as caught:
            await session.request("ping")
        outcomes[name] = caught.value

    async with trio.open_nursery() as nursery:
        for name in ("sent", "waiting"):
            nursery.start_soon(ask, name)
            await trio.testing.wait_all_tasks_blocked()
        channel.breaks.set()
    await ask("late")
    return outcomes


async def test_the_outcome_is_unknown_only_for_requests_that_were_sent(serve_fake):
    outcomes = await outcomes_of(serve_fake, Stuck())
    assert {name: type(outcome) for name, outcome in outcomes.items()} == {
        "sent": OutcomeUnknown,
        "waiting": ConnectionLost,
        "late": ConnectionLost,
    }
    assert {outcome.reason for outcome in outcomes.values()} == {"it broke"}
    assert {outcome.exit_status for outcome in outcomes.values()} == {3}


async def test_the_outcomes_that_a_channel_reports_are_used(serve_fake):
    outcomes = await outcomes_of(serve_fake, Reporting())
    assert {type(outcome) for outcome in outcomes.values()} == {ConnectionLost}
