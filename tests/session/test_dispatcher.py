"""A request of the peer, its handler, and its single answer."""

import json
import logging
from contextvars import ContextVar, copy_context

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import ConnectionLost, RequestError, ToolError
from mcp_trio import types as s
from mcp_trio._session.exceptions import sole_exception
from mcp_trio._session.leader_followers import TaskPool
from mcp_trio._session.tasks import open_shielded_pool
from mcp_trio.limits import MessageLimits, RequestLimits
from mcp_trio.transports import Lost, RelatedMessage
from tests.session.fake_channels import DirectFakeChannel, FakeChannel
from tests.session.idle_connections import tasks_living


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


async def test_a_handler_that_fails_again_and_again_is_logged_once_a_second(serve, call, logged):
    async def fail(handling):
        raise errors.pop(0)

    errors = [KeyError(1), KeyError(2), ValueError(3), KeyError(4)]
    _, peer = await serve({"fail": fail})
    for number in range(4):
        await peer.send(call("fail", number))
        await peer.receive()
    of_fail = "the handler of tools/call 'fail' failed: "
    assert [line.removeprefix(of_fail).partition(" (")[0] for line in logged()] == [
        "KeyError: 1",
        "ValueError: 3",
    ]


class Panic(BaseException):
    """A fault that is no `Exception`, as libraries in Rust raise it."""


@pytest.mark.parametrize("siblings", [None, 0, 1])
async def test_a_fault_that_is_no_exception_fails_its_request_alone(
    serve, echo, call, logged, text_of, siblings
):
    async def panic(handling):
        if siblings is None:
            raise Panic("index 3 is out of range")
        async with trio.open_nursery() as nursery:
            for _ in range(siblings):
                nursery.start_soon(trio.sleep_forever)
            raise Panic("index 3 is out of range")

    _, peer = await serve({"panic": panic, "echo": echo})
    await peer.send(call("panic", 1))
    assert "Panic" not in one_error(await peer.receive())["message"]
    await peer.send(call("echo", 2))
    assert text_of(await peer.receive()) == "echo"
    (line,) = logged()
    assert "failed: RuntimeError: Panic: index 3 is out of range (test_dispatcher.py:" in line


async def test_a_fault_in_a_cancelled_handler_neither_ends_the_session_nor_is_lost(
    serve_fake, call, message, logged
):
    async def panic(handling):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise Panic("too late")

    session, channel = await serve_fake({"panic": panic})
    channel.feed(message(**call("panic", 1)))
    await trio.testing.wait_all_tasks_blocked()
    channel.feed(message(method="notifications/cancelled", params={"requestId": 1}))
    await trio.testing.wait_all_tasks_blocked()
    assert not session.ended.is_set()
    assert any("Panic: too late" in line for line in logged())


@pytest.mark.requirement("BASE-35")
async def test_a_failing_handler_is_an_internal_error_and_nothing_of_it_leaks(
    serve, echo, call, logged, text_of
):
    async def secret(handling):
        raise KeyError("the password is swordfish")

    _, peer = await serve({"secret": secret, "echo": echo})
    await peer.send(call("secret", 1))
    assert one_error(await peer.receive()) == {"code": -32603, "message": "internal error"}
    (line,) = logged()
    assert line.startswith("the handler of tools/call 'secret' failed: KeyError: ")
    await peer.send(call("echo", 2))
    assert text_of(await peer.receive()) == "echo"


async def test_a_request_error_is_answered_as_it_is(serve, call):
    async def reject(handling):
        raise RequestError(-1, "the user said no", {"why": [1, None]})

    _, peer = await serve({"reject": reject})
    await peer.send(call("reject", 1))
    error = {"code": -1, "message": "the user said no", "data": {"why": [1, None]}}
    assert one_error(await peer.receive()) == error


async def test_an_error_whose_data_cannot_be_encoded_is_sent_as_another_error(serve, call):
    async def reject(handling):
        raise RequestError(-1, "no", object())

    _, peer = await serve({"reject": reject})
    await peer.send(call("reject", 1))
    error = one_error(await peer.receive())
    assert (error["code"], list(error)) == (-1, ["code", "message"])
    assert "the error cannot be sent: cannot be sent as JSON: " in error["message"]


async def test_an_error_inside_groups_of_one_is_answered_bare(serve, call):
    async def reject(handling):
        async with trio.open_nursery(), trio.open_nursery():
            raise RequestError(-5, "inside two nurseries")

    _, peer = await serve({"reject": reject})
    await peer.send(call("reject", 1))
    assert one_error(await peer.receive())["code"] == -5


def test_a_group_of_several_stays_a_group():
    group = ExceptionGroup("", [ValueError(), ExceptionGroup("", [KeyError()])])
    assert sole_exception(group) is group
    assert isinstance(sole_exception(ExceptionGroup("", [group.exceptions[1]])), KeyError)


async def kept_cancellation():
    """Return the exception of a cancel scope that has ended."""
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as error:
            return error


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("others", "reason"),
    [(None, "RuntimeError: a trio.Cancelled was raised after"), ([KeyError(1)], "KeyError: 1")],
)
async def test_a_cancellation_that_a_handler_has_kept_does_not_end_the_session(
    serve, echo, call, logged, text_of, others, reason, waits
):
    async def keep(handling):
        kept = await kept_cancellation()
        if waits:
            await trio.lowlevel.checkpoint()
        raise kept if others is None else BaseExceptionGroup("", [kept, *others])

    _, peer = await serve({"keep": keep, "echo": echo})
    await peer.send(call("keep", 1))
    assert one_error(await peer.receive())["message"] == "internal error"
    (line,) = logged()
    assert line.startswith(f"the handler of tools/call 'keep' failed: {reason}")
    await peer.send(call("echo", 2))
    assert text_of(await peer.receive()) == "echo"


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
    (line,) = logged()
    assert line.startswith(
        "the handler of tools/call 'messy' failed: ValueError: while cleaning up"
    )


async def test_a_result_over_the_message_limit_fails_that_request_alone(
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


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestError(-5, "x" * 5000), -5),
        (RequestError(-5, "no", {"why": "x" * 5000}), -5),
        (ToolError("x" * 5000), -32603),
    ],
)
async def test_an_error_over_the_message_limit_is_sent_as_another_error(
    serve, call, small, logged, error, code
):
    async def fail(handling):
        raise error

    _, peer = await serve({"fail": fail}, limits=small(messages=MessageLimits(bytes_max=4000)))
    await peer.send(call("fail", 1))
    answer = one_error(await peer.receive())
    assert answer["code"] == code
    assert "the error cannot be sent: " in answer["message"]
    assert "limits.messages.bytes_max=4000" in answer["message"]
    (line,) = logged()
    assert line == f"tools/call: {answer['message']}"


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
    """Elsewhere the message is dropped without a reply, and the host waits for its timeout."""
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


async def test_l10_invalid_messages_are_counted_logged_and_answered_if_they_have_an_id(
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
    assert len(logged()) == 1
    session.shut("closed")
    await session.ended.wait()
    assert logged()[1].endswith("(and 2 more like this)")


async def test_a_flood_of_faults_is_one_line_a_second_for_each_kind(
    serve, echo, logged, autojump_clock
):
    session, peer = await serve({"echo": echo})
    unknown = [b'{"jsonrpc":"2.0","id":%d,"result":{}}' % number for number in range(1000)]
    for _ in range(3):
        await peer.send(*unknown, *[b"junk"] * 1000, *[b'{"id": 7}'] * 100)
        await peer.receive_many(100)
        await trio.sleep(1)
    assert session.connection.counts["unknown answer"] == 3000
    lines = logged()
    assert len(lines) == 6
    assert sum("(and 999 more like this before)" in line for line in lines) == 2
    assert sum("(and 1099 more like this before)" in line for line in lines) == 2


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
    *notifications, answer = await peer.receive_available()
    assert [message["params"] for message in notifications] == [
        {"progressToken": "t", "progress": 1.0, "total": 3.0},
        {"progressToken": "t", "progress": 2.5, "total": 3.0},
    ]
    assert answer["id"] == 2
    later.set()
    assert await peer.receive_available() == []


async def test_a_handler_cancelled_before_it_starts_never_runs(
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


@pytest.mark.parametrize("error", [SystemExit(3), pytest.fail.Exception("of the test")])
async def test_an_exit_ends_the_session_in_order_and_propagates(
    make_session, message, handshake, recording, error
):
    async def leave(handling):
        raise error

    channel = DirectFakeChannel()
    session = make_session(channel, {"tools/list": leave}, sequencer=recording)
    channel.feed(*handshake)
    channel.feed(message(id=1, method="tools/list"))
    with pytest.raises(BaseExceptionGroup) as caught:
        await session.run()
    assert caught.value.subgroup(type(error))
    assert session.ended.is_set()
    assert channel.is_closed
    assert [record.kind for record in recording.records()][-2:] == ["shut", "end"]


# Messages that belong to a request of the peer, and requests that are lost one by one.


class AddressedChannel(FakeChannel):
    takes_related_messages = True


class DirectAddressedChannel(DirectFakeChannel):
    takes_related_messages = True


KINDS = pytest.mark.parametrize("kind", [AddressedChannel, DirectAddressedChannel])


def addresses(channel):
    """Return the kind of each message, the request that it belongs to, and if it is the response."""
    messages = []
    for encoded in channel.sent:
        assert isinstance(encoded, RelatedMessage)
        message = json.loads(encoded)
        messages.append(
            (
                message.get("method", message.get("id")),
                encoded.related_request_id,
                encoded.is_response,
            )
        )
    return messages


@KINDS
async def test_the_answer_and_notifications_of_a_handler_belong_to_its_request(
    serve_fake, message, call, kind
):
    async def tell(handling):
        await handling.progress(1)
        params = s.LoggingMessageParams(level="error", data="said")
        await handling.notify("notifications/message", params)
        return "told"

    _session, channel = await serve_fake({"tell": tell}, channel=kind())
    channel.feed(message(**call("tell", "a", token="t")), message(**call("tell", 2, token="u")))
    await trio.testing.wait_all_tasks_blocked()
    addressed = addresses(channel)
    for id_ in ("a", 2):
        assert [each for each in addressed if each[1] == id_] == [
            ("notifications/progress", id_, False),
            ("notifications/message", id_, False),
            (id_, id_, True),
        ]
    assert len(addressed) == 6


@KINDS
async def test_a_rejection_belongs_to_the_rejected_request(serve_fake, message, kind):
    _session, channel = await serve_fake(channel=kind())
    channel.feed(message(id=1, method="nowhere"), message(id=2, method="ping"), b"{", b"[]")
    await trio.testing.wait_all_tasks_blocked()
    assert addresses(channel)[:2] == [(1, 1, True), (2, 2, True)]
    assert {(about, is_response) for _, about, is_response in addresses(channel)[2:]} <= {
        (None, True)
    }


@KINDS
async def test_a_request_of_a_handler_belongs_to_the_request_that_it_handles(
    serve_fake, message, call, kind
):
    async def ask(handling):
        await handling.ask("roots/list")
        return "asked"

    _session, channel = await serve_fake({"ask": ask}, channel=kind())
    channel.feed(message(**call("ask", 5)))
    await trio.testing.wait_all_tasks_blocked()
    assert addresses(channel) == [("roots/list", 5, False)]
    question = json.loads(channel.sent[0])
    channel.feed(message(method="notifications/cancelled", params={"requestId": 5}))
    await trio.testing.wait_all_tasks_blocked()
    assert addresses(channel)[1:] == [("notifications/cancelled", 5, False)]
    assert json.loads(channel.sent[1])["params"]["requestId"] == question["id"]


@KINDS
async def test_unsolicited_messages_belong_to_no_request(serve_fake, kind):
    session, channel = await serve_fake(channel=kind())
    await session.notify("notifications/tools/list_changed")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.request, "roots/list")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert [each[1:] for each in addresses(channel)] == [(None, False)] * 3


async def test_other_channels_get_plain_messages(serve_fake, message):
    _session, channel = await serve_fake()
    channel.feed(message(id=1, method="ping"))
    await trio.testing.wait_all_tasks_blocked()
    assert [type(encoded) for encoded in channel.sent] == [bytes]


# Requests that are lost one by one.


@pytest.fixture
def ask(serve_fake):
    """Two questions on the wire; gives the session, its channel, and what has become of both."""

    async def ask(nursery, **options):
        session, channel = await serve_fake(channel=AddressedChannel(), **options)
        outcomes = {}

        async def one(name):
            try:
                outcomes[name] = await session.request("roots/list")
            except ConnectionLost as error:
                outcomes[name] = error

        for name in ("first", "second"):
            nursery.start_soon(one, name)
            await trio.testing.wait_all_tasks_blocked()
        ids = [json.loads(encoded)["id"] for encoded in channel.sent]
        return session, channel, outcomes, ids

    return ask


async def test_the_loss_of_a_request_fails_only_that_request(nursery, ask, message):
    session, channel, outcomes, ids = await ask(nursery)
    gone = ConnectionLost("the stream broke")
    channel.feed(Lost(ids[0], gone), message(id=ids[1], result={"roots": []}))
    await trio.testing.wait_all_tasks_blocked()
    assert isinstance(outcomes["first"], ConnectionLost)
    assert str(outcomes["first"]) == "the stream broke"
    assert outcomes["second"].roots == []
    assert session.cause is None
    channel.feed(message(id=1, method="ping"))
    await trio.testing.wait_all_tasks_blocked()
    assert json.loads(channel.sent[-1])["id"] == 1


async def test_an_answer_to_a_lost_request_counts_as_late(nursery, ask, message):
    session, channel, _outcomes, ids = await ask(nursery)
    channel.feed(Lost(ids[0], ConnectionLost("gone")))
    channel.feed(message(id=ids[0], result={"roots": []}))
    await trio.testing.wait_all_tasks_blocked()
    assert session.connection.counts["late answer"] == 1


async def test_a_loss_without_a_waiting_caller_is_counted(nursery, ask, message):
    session, channel, outcomes, ids = await ask(nursery)
    channel.feed(message(id=ids[0], result={"roots": []}))
    channel.feed(Lost(ids[0], ConnectionLost("gone")), Lost(999, ConnectionLost("gone")))
    await trio.testing.wait_all_tasks_blocked()
    assert outcomes["first"].roots == []
    assert session.connection.counts["late answer"] == 2
    assert session.cause is None


async def test_a_loss_is_recorded(nursery, ask, recording):
    _session, channel, _outcomes, ids = await ask(nursery, sequencer=recording)
    channel.feed(Lost(ids[0], ConnectionLost("gone")))
    await trio.testing.wait_all_tasks_blocked()
    assert "mark lost" in recording.story()


async def test_the_cancellation_of_a_lost_request_is_not_sent(nursery, ask):
    _session, channel, outcomes, ids = await ask(nursery)
    sent = len(channel.sent)
    channel.feed(*[Lost(id_, ConnectionLost("gone")) for id_ in ids])
    await trio.testing.wait_all_tasks_blocked()
    assert len(outcomes) == 2
    assert len(channel.sent) == sent


# Sessions in a nursery that they share, over channels that deliver by themselves.


@attrs.define(eq=False)
class DeliveringChannel:
    """Takes everything that is sent; `fault` is what it fails with from then on."""

    take: object = None
    writes: list = attrs.field(factory=list)
    fault: object = None
    is_closed: bool = False

    def deliver_to(self, take):
        self.take = take

    def send_nowait(self, messages):
        if self.fault is not None:
            raise self.fault
        self.writes.append([json.loads(encoded) for encoded in messages])
        return len(messages)

    async def send(self, messages):
        await trio.lowlevel.checkpoint()
        self.send_nowait(messages)

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


async def test_delivered_requests_are_answered_in_the_same_step_with_one_write(begin, message):
    session, channel = begin()
    assert session.initialized.is_set()
    channel.take([message(id=number, method="ping") for number in range(3)])
    assert [[each["id"] for each in write] for write in channel.writes] == [[0, 1, 2]]


async def test_an_idle_session_has_no_tasks(begin, message, call, autojump_clock):
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


async def test_notifications_are_handled_in_order_by_a_temporary_task(
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
    assert len(session.application.notifications) == 2


async def test_a_sheltered_session_ends_separately_and_reports_its_end(
    begin, message, call, autojump_clock
):
    async def forever(handling):
        await trio.sleep_forever()

    states = []
    (one, first), (_, second) = begin({"forever": forever}), begin()
    one.ended.when_set(lambda: states.append((one.ended.is_set(), first.is_closed)))
    first.take([message(**call("forever", 1))])
    await trio.testing.wait_all_tasks_blocked()
    one.shut("closed")
    await one.ended.wait()
    await trio.testing.wait_all_tasks_blocked()
    assert states == [(True, True)]
    first.take([message(id=2, method="ping")])
    assert not first.writes
    second.take([message(id=2, method="ping")])
    assert second.writes


async def test_the_end_of_the_delivered_messages_ends_the_session(begin, autojump_clock):
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
    channel.take([None])  # which is no message
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
        async with open_shielded_pool(lambda: session.shut("closed")) as warm:
            session.begin(warm, copy_context())
            channel.take([*handshake, message(id=1, method="tools/list")])
            await session.ended.wait()
            assert trio.current_time() >= 6
    assert scope.cancel_called
    assert recording.records()[-1].kind == "end"


# Requests that wait for a place, and messages that never wait with them.


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
    assert [name for name, _ in session.application.notifications] == [
        "notifications/roots/list_changed"
    ]


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
    assert [json.loads(encoded)["id"] for encoded in channel.sent] == [0]
    release.set()
    await trio.testing.wait_all_tasks_blocked()
    assert len(channel.sent) == 50


async def test_a_request_does_not_inherit_context_variables_of_the_previous_one(
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
