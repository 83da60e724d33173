"""A request of the peer, its handler, and its single answer."""

import logging

import pytest
import trio
import trio.testing

from mcp_trio import RequestError
from mcp_trio import types as s
from mcp_trio._session.tasks import bare
from mcp_trio._testing.channels import DirectFakeChannel
from mcp_trio.limits import MessageLimits


def one_error(answer):
    assert "result" not in answer
    return answer["error"]


@pytest.mark.requirement("BASE-06")
@pytest.mark.parametrize("request_id", [1, "1", -(2**53), "é\U0001f642", ""])
async def test_an_answer_repeats_the_id_of_its_request(serve, echo, call, text_of, request_id):
    _, peer = await serve({"echo": echo})
    await peer.send(call("echo", request_id))
    answer = await peer.receive()
    assert (type(answer["id"]), answer["id"]) == (type(request_id), request_id)
    assert text_of(answer) == "echo"


@pytest.mark.requirement("BASE-35")
async def test_a_failing_handler_is_an_internal_error_and_nothing_of_it_leaks(
    serve, echo, call, logged, text_of
):
    async def secret(handling):
        raise KeyError("the password is swordfish")

    _, peer = await serve({"secret": secret, "echo": echo})
    await peer.send(call("secret", 1))
    assert one_error(await peer.receive()) == {"code": -32603, "message": "internal error"}
    assert logged(logging.ERROR) == ["the handler of tools/call failed"]
    await peer.send(call("echo", 2))
    assert text_of(await peer.receive()) == "echo"


async def test_a_request_error_is_answered_as_it_is(serve, call):
    async def reject(handling):
        raise RequestError(-1, "the user said no", {"why": [1, None]})

    _, peer = await serve({"reject": reject})
    await peer.send(call("reject", 1))
    error = {"code": -1, "message": "the user said no", "data": {"why": [1, None]}}
    assert one_error(await peer.receive()) == error


async def test_an_error_that_cannot_be_sent_is_still_an_error(serve, call):
    async def reject(handling):
        raise RequestError(-1, "no", object())

    _, peer = await serve({"reject": reject})
    await peer.send(call("reject", 1))
    error = {"code": -1, "message": "the data of the error cannot be encoded as JSON"}
    assert one_error(await peer.receive()) == error


async def test_an_error_inside_groups_of_one_is_answered_bare(serve, call):
    async def reject(handling):
        async with trio.open_nursery(), trio.open_nursery():
            raise RequestError(-5, "inside two nurseries")

    _, peer = await serve({"reject": reject})
    await peer.send(call("reject", 1))
    assert one_error(await peer.receive())["code"] == -5


def test_a_group_of_several_stays_a_group():
    group = ExceptionGroup("", [ValueError(), ExceptionGroup("", [KeyError()])])
    assert bare(group) is group
    assert isinstance(bare(ExceptionGroup("", [group.exceptions[1]])), KeyError)


async def test_an_error_beside_a_cancellation_does_not_end_the_session(
    serve, echo, call, logged, text_of
):
    async def messy(handling):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while cleaning up")

    _, peer = await serve({"messy": messy, "echo": echo})
    await peer.send(call("messy", 1))
    assert await peer.receive_available() == []
    await peer.cancel(1)
    await peer.send(call("echo", 2))
    assert text_of(await peer.receive()) == "echo"
    await trio.testing.wait_all_tasks_blocked()
    assert logged(logging.ERROR) == ["the handler of tools/call failed"]


async def test_a_result_over_the_frame_limit_fails_that_request_alone(
    serve, echo, call, small, text_of
):
    async def huge(handling):
        return "x" * 5000

    _, peer = await serve(
        {"huge": huge, "echo": echo}, limits=small(messages=MessageLimits(bytes_max=4000))
    )
    await peer.send(call("huge", 1), call("echo", 2))
    answers = {answer["id"]: answer for answer in await peer.receive_many(2)}
    assert one_error(answers[1])["code"] == -32603
    assert "limits.messages.bytes_max=4000" in one_error(answers[1])["message"]
    assert text_of(answers[2]) == "echo"


async def test_a_result_nested_too_deeply_fails_that_request_alone(serve, call, small):
    deep = []
    for _ in range(20):
        deep = [deep]

    async def nested(handling):
        return s.CallToolResult(content=[], meta={"deep": deep})

    _, peer = await serve(
        {"nested": nested}, limits=small(messages=MessageLimits(json_depth_max=20))
    )
    await peer.send(call("nested", 1))
    assert "limits.messages.json_depth_max (20)" in one_error(await peer.receive())["message"]


@pytest.mark.requirement("BASE-35")
async def test_l16_a_result_with_a_lone_surrogate_fails_that_call_and_nothing_else(
    serve, echo, call, text_of
):
    """Elsewhere the writer dies of it, the call hangs, and the server is gone."""

    async def file_name(handling):
        return "caf\udce9.txt"

    _, peer = await serve({"file_name": file_name, "echo": echo})
    await peer.send(call("file_name", 1), call("echo", 2))
    answers = {answer["id"]: answer for answer in await peer.receive_many(2)}
    assert one_error(answers[1])["code"] == -32603
    assert "cannot be sent" in one_error(answers[1])["message"]
    assert text_of(answers[2]) == "echo"


async def test_l17_half_an_emoji_pair_in_an_argument_is_answered(serve, echo, call, text_of):
    """Elsewhere the frame is dropped without a reply, and the host waits for its timeout."""
    _, peer = await serve({"echo": echo})
    await peer.send(
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call",'
        b'"params":{"name":"echo","arguments":{"x":"\\ud83d"}}}',
        call("echo", 2),
    )
    answers = {answer["id"]: answer for answer in await peer.receive_many(2)}
    assert set(answers) == {1, 2}
    assert one_error(answers[1])["code"] == -32700
    assert text_of(answers[2]) == "echo"


async def test_l10_junk_is_counted_and_logged_and_answered_where_an_id_is_known(
    serve, echo, call, logged, text_of
):
    """Elsewhere junk is dropped without a reply or a log line that the host can see."""
    session, peer = await serve({"echo": echo})
    await peer.send(b"junk", b'{"id": 7}', b'{"jsonrpc":"2.0","id":8,"method":', call("echo", 9))
    answers = {answer["id"]: answer for answer in await peer.receive_many(3)}
    assert one_error(answers[7])["code"] == -32600
    assert one_error(answers[8])["code"] == -32700
    assert text_of(answers[9]) == "echo"
    assert session.connection.counts["malformed"] == 3
    assert len(logged()) == 3


@pytest.mark.requirement("BASE-14")
async def test_nothing_is_sent_back_for_notifications(serve):
    _, peer = await serve()
    await peer.send_notification("notifications/unknown")
    await peer.send_notification("notifications/progress", {"progressToken": []})
    await peer.send_notification("tools/call", {"name": "x"})
    await peer.send(b'{"jsonrpc":"2.0","method":5}')
    assert await peer.receive_available() == []


@pytest.mark.requirement("BASE-32", "BASE-34")
async def test_requests_that_the_protocol_rejects_never_reach_a_handler(serve, call):
    _, peer = await serve({})
    await peer.send({"id": 1, "method": "nothing/here"}, {"id": 2, "method": "tools/call"})
    codes = [one_error(answer)["code"] for answer in await peer.receive_many(2)]
    assert codes == [-32601, -32602]


@pytest.mark.requirement("CANC-06")
async def test_a_cancelled_handler_stops_and_is_never_answered(serve, call, logged):
    stopped = trio.Event()

    async def slow(handling):
        try:
            await trio.sleep_forever()
        finally:
            assert handling.is_cancelled
            stopped.set()

    _, peer = await serve({"slow": slow})
    await peer.send(call("slow", 1))
    assert await peer.receive_available() == []
    await peer.cancel(1, "lunch")
    await stopped.wait()
    assert await peer.receive_available() == []


@pytest.mark.requirement("CANC-11")
async def test_the_reason_of_a_cancellation_is_logged(serve, call, logged):
    async def slow(handling):
        await trio.sleep_forever()

    _, peer = await serve({"slow": slow})
    await peer.send(call("slow", 1))
    await peer.cancel(1, "the user went to lunch")
    await peer.receive_available()
    assert any("the user went to lunch" in text for text in logged(logging.INFO))


@pytest.mark.requirement("CANC-06", "CANC-09")
async def test_the_answer_of_a_cancelled_handler_is_not_sent(serve, call, echo, text_of):
    leave = trio.Event()

    async def stubborn(handling):
        with trio.CancelScope(shield=True):
            await leave.wait()
        return "too late"

    _, peer = await serve({"stubborn": stubborn, "echo": echo})
    await peer.send(call("stubborn", 1))
    assert await peer.receive_available() == []
    await peer.cancel(1)
    await peer.send(call("echo", 2))
    assert (await peer.receive())["id"] == 2
    leave.set()
    assert await peer.receive_available() == []


@pytest.mark.requirement("CANC-07", "CANC-09", "CANC-10")
async def test_cancellations_of_unknown_and_finished_requests_do_no_harm(
    serve, echo, call, text_of
):
    session, peer = await serve({"echo": echo})
    await peer.send(call("echo", 1))
    assert text_of(await peer.receive()) == "echo"
    await peer.cancel(1)
    await peer.cancel("never sent")
    await peer.send_notification("notifications/cancelled", {"reason": "no id"})
    await peer.send(call("echo", 2))
    assert (await peer.receive())["id"] == 2
    assert session.connection.counts["late cancellation"] == 2


@pytest.mark.requirement("CANC-06")
async def test_an_id_is_free_again_only_when_its_cancelled_handler_has_ended(serve, call):
    leave = trio.Event()

    async def slow(handling):
        with trio.CancelScope(shield=True):
            await leave.wait()

    _, peer = await serve({"slow": slow})
    await peer.send(call("slow", 1))
    assert await peer.receive_available() == []
    await peer.cancel(1)
    await peer.send(call("slow", 1))
    assert one_error(await peer.receive())["code"] == -32600
    leave.set()
    await peer.receive_available()
    await peer.send(call("slow", 1))
    assert (await peer.receive())["id"] == 1


@pytest.mark.requirement("PROG-05", "PROG-06", "PROG-09", "TRAP-62")
async def test_requested_and_growing_progress_is_sent_while_the_request_runs(serve, call, nursery):
    later = trio.Event()

    async def reports(handling):
        for progress in (1, 1, 0.5, 2.5):
            await handling.progress(progress, 3)
        nursery.start_soon(reports_late, handling)
        return ""

    async def reports_late(handling):
        await later.wait()
        await handling.progress(3)

    _, peer = await serve({"reports": reports})
    await peer.send(call("reports", 1))
    assert [message.get("id") for message in await peer.receive_available()] == [1]
    await peer.send(call("reports", 2, token="t"))
    *told, answer = await peer.receive_available()
    assert [message["params"] for message in told] == [
        {"progressToken": "t", "progress": 1.0, "total": 3.0},
        {"progressToken": "t", "progress": 2.5, "total": 3.0},
    ]
    assert answer["id"] == 2
    later.set()
    assert await peer.receive_available() == []


async def test_a_handler_whose_cancellation_is_there_before_it_starts_never_runs(
    serve_fake, call, message, recording
):
    ran = []

    async def tool(handling):
        ran.append(handling.request.id)

    _, channel = await serve_fake({"tool": tool}, sequencer=recording)
    cancel = message(method="notifications/cancelled", params={"requestId": 1})
    channel.feed(message(**call("tool", 1)), cancel)
    await trio.testing.wait_all_tasks_blocked()
    assert ran == channel.sent == []
    recording.flush()
    last = recording.records()[-1]
    assert (last.kind, bytes(last.body), last.ordinal) == ("cxl", b'"unstarted"', 1)


async def test_a_base_exception_ends_the_session_in_order_and_propagates(
    make_session, message, handshake, recording
):
    async def leave(handling):
        raise SystemExit(3)

    channel = DirectFakeChannel()
    session = make_session(channel, {"tools/list": leave}, sequencer=recording)
    channel.feed(*handshake)
    channel.feed(message(id=1, method="tools/list"))
    with pytest.raises(BaseExceptionGroup) as caught:
        await session.run()
    assert caught.value.subgroup(SystemExit)
    assert session.ended.is_set()
    assert channel.is_closed
    assert [record.kind for record in recording.records()][-2:] == ["shut", "end"]
