"""Channels of HTTP sessions: posted messages, streams, and single HTTP responses."""

import functools
import json

import msgspec
import pytest
import trio
import trio.testing

from mcp_trio import Limits
from mcp_trio._jsonrpc.channel_messages import DecodedMessage
from mcp_trio._jsonrpc.messages import (
    Batch,
    Decoder,
    Notification,
    Request,
    encode_notification,
    encode_response,
)
from mcp_trio._jsonrpc.sse import Event
from mcp_trio._protocol.http_requests import Rejection
from mcp_trio._protocol.metadata import SUBSCRIPTION_ID, decode_tool_call
from mcp_trio._transports.concurrency import TimerQueue
from mcp_trio._transports.http_channels import (
    DuplicateIdError,
    SessionChannel,
    StatelessChannel,
    TooManyStreamsError,
)
from mcp_trio._transports.http_response import (
    QueuedMessage,
    ResponseStream,
    StreamSender,
    StreamSource,
    run_while_connected,
)
from mcp_trio.auth import AuthInfo
from mcp_trio.errors import Unencodable
from mcp_trio.limits import HttpLimits, MessageLimits
from mcp_trio.transports import RelatedMessage
from tests.transports.http.scripted_exchange import ScriptedExchange

DECODER = Decoder(MessageLimits(json_depth_max=32, batch_size_max=8))


def channel(**options):
    limits = Limits(http=HttpLimits(streams_max=3, events_kept_max=8))
    return SessionChannel(limits, **options)


def deliver(to, *awaited, **message):
    encoded = json.dumps({"jsonrpc": "2.0", "method": "ping", **message}).encode()
    return to.deliver(encoded, DECODER.decode(encoded), awaited)


def cancel(id_):
    return {"method": "notifications/cancelled", "params": {"requestId": id_}}


def send_text(to, text, about=None, *, is_response=False):
    return to.send_nowait([RelatedMessage(text.encode(), about, is_response=is_response)])


def taken_texts(stream):
    return [queued.message.decode() for queued in stream.take()]


async def test_posted_messages_are_received_in_order():
    made = channel()
    encoded = b'{"jsonrpc":"2.0","method":"a"}'
    assert made.deliver(encoded, DECODER.decode(encoded)) is None
    stream = deliver(made, 1, id=1)
    assert stream.awaits == {1}
    with trio.testing.assert_checkpoints():
        assert len(await made.receive()) == 2
    made.end_input()
    assert not await made.receive()


async def test_a_waiting_receive_is_woken(autojump_clock):
    made, received = channel(), []

    async def receive():
        received.extend(await made.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        deliver(made, 1, id=1)
    assert len(received) == 1


@pytest.mark.requirement("HTTP-21", "HTTP-31", "HTTP-32", "HTTP-36", "TRAP-41")
def test_each_message_is_sent_on_one_stream():
    made = channel()
    first, second = deliver(made, 1, id=1), deliver(made, "1", id="1")
    send_text(made, "a", 1)
    send_text(made, "b", "1")
    send_text(made, "c")
    send_text(made, "d", 1, is_response=True)
    send_text(made, "e", 1)
    send_text(made, "f", 7)
    assert taken_texts(first) == ["a", "d"]
    assert first.is_ended
    assert taken_texts(second) == ["b"]
    assert taken_texts(made.standalone) == ["c", "e", "f"]


@pytest.mark.requirement("HTTP-32")
@pytest.mark.parametrize("about", [None, 1])
def test_an_answer_never_goes_to_the_stream_of_a_get(about):
    made = channel()
    deliver(made, 1, id=1)
    deliver(made, **cancel(1))
    send_text(made, "late", about, is_response=True)
    assert not made.standalone.has_messages


@pytest.mark.requirement("SSE-04")
def test_a_session_with_a_single_stream_sends_every_message_on_it():
    made = channel(transport="sse", has_one_stream=True)
    deliver(made, id=1)
    send_text(made, "a", 1)
    send_text(made, "b", 1, is_response=True)
    assert taken_texts(made.standalone) == ["a", "b"]
    assert made.events is None  # no client can resume a stream


def test_messages_related_to_a_json_response_go_to_the_get_stream():
    made = channel()
    stream = deliver(made, 1, id=1)
    stream.is_json_only = True
    send_text(made, "a", 1)
    send_text(made, "b", 1, is_response=True)
    assert (taken_texts(stream), taken_texts(made.standalone)) == (["b"], ["a"])


async def test_sending_is_a_checkpoint():
    made = channel()
    with trio.testing.assert_checkpoints():
        await made.send([RelatedMessage(b"a", None)])
    assert taken_texts(made.standalone) == ["a"]


async def test_a_duplicate_id_is_rejected_and_not_delivered():
    made = channel()
    deliver(made, 1, id=1)
    for awaited, duplicate in (([1], 1), ([2, 1], 1), ([3, 2, 2], 2)):
        with pytest.raises(DuplicateIdError) as rejected:
            deliver(made, *awaited, id=1)
        assert rejected.value.id == duplicate
    assert len(await made.receive()) == 1
    send_text(made, "a", 1, is_response=True)
    deliver(made, 1, 2, id=1)


def test_the_number_of_streams_is_limited():
    made = channel()
    deliver(made, 1, 2, id=1)
    with pytest.raises(TooManyStreamsError):
        deliver(made, 3, 4, id=3)
    deliver(made, 3, id=3)


@pytest.mark.requirement("CANC-06")
def test_a_cancelled_request_is_not_awaited():
    made = channel()
    stream = deliver(made, 1, "a", id=1)
    deliver(made, **cancel(1))
    assert not stream.is_ended
    for other in (cancel(2), cancel([]), {"method": "notifications/cancelled"}):
        deliver(made, **other)
    assert not made.is_idle
    encoded = json.dumps([{"jsonrpc": "2.0", **cancel("a")}]).encode()
    message = DECODER.decode(encoded)
    assert isinstance(message, Batch)
    made.deliver(encoded, message)
    assert stream.is_ended
    assert made.is_idle


@pytest.mark.requirement("HTTP-38", "HTTP-39", "HTTP-42", "HTTP-43", "TRAP-39")
def test_a_stream_is_resumed_with_the_messages_after_an_event():
    made = channel()
    first, second = deliver(made, 1, id=1), deliver(made, 2, id=2)
    begun = made.begin_events(first)
    assert made.begin_events(first) is None
    for text, about in (("a", 1), ("b", 2), ("c", 1)):
        send_text(made, text, about)
    ids = [queued.event_id for queued in first.take()]
    assert len({begun, *ids, made.begin_events(second)}) == 4
    made.mark_disconnected(first)
    assert made.resume(ids[0]) is first
    assert taken_texts(first) == ["c"]
    made.mark_disconnected(first)
    send_text(made, "d", 1, is_response=True)
    over = made.resume(begun)
    assert over.is_ended
    assert taken_texts(over) == ["a", "c", "d"]
    assert taken_texts(second) == ["b"]


def test_a_stream_with_a_connection_can_be_taken_over():
    made = channel()
    stream = deliver(made, 1, id=1)
    begun = made.begin_events(stream)
    send_text(made, "a", 1)
    stream.take()
    stream.start_sending(trio.CancelScope())
    assert made.resume(begun) is stream
    made.mark_disconnected(stream)  # of the old connection, after the new one has taken it over
    assert taken_texts(stream) == ["a"]


def test_messages_about_no_request_wait_for_a_get():
    made = channel()
    send_text(made, "a")
    assert made.begin_events(made.standalone) == "1-1"
    assert [(each.event_id, each.message) for each in made.standalone.take()] == [("1-2", b"a")]
    assert made.begin_events(made.standalone) == "1-3"
    send_text(made, "b")
    made.mark_disconnected(made.standalone)
    assert made.begin_events(made.standalone) is None
    assert taken_texts(made.standalone) == ["b"]


def test_a_response_given_before_the_stream_began_gets_event_ids():
    made = channel()
    stream = deliver(made, 1, id=1)
    send_text(made, "a", 1, is_response=True)
    assert stream.number is None
    begun = made.begin_events(stream)
    assert [queued.event_id for queued in stream.take()] == ["1-2"]
    assert taken_texts(made.resume(begun)) == ["a"]
    assert not made._numbered


@pytest.mark.parametrize("event_id", ["", "1", "9-1", "1-9", "x-y"])
def test_an_event_id_that_was_never_issued_is_not_found(event_id):
    with pytest.raises(LookupError):
        channel().resume(event_id)


async def test_events_of_ended_streams_are_dropped_after_a_while():
    made = channel()
    for id_ in range(100):
        stream = deliver(made, id_, id=id_)
        made.begin_events(stream)
        made.mark_disconnected(stream)
        send_text(made, "a", id_, is_response=True)
    assert not made._numbered
    assert not made._stream_of


async def test_the_end_of_a_session_ends_every_stream():
    made = channel()
    stream = deliver(made, 1, id=1)
    await made.aclose()
    await made.aclose()
    assert stream.is_ended
    assert made.standalone.is_ended
    with pytest.raises(trio.ClosedResourceError):
        await made.receive()
    with pytest.raises(trio.ClosedResourceError):
        await made.send([])


# The channel of all stateless requests.


LISTEN = "subscriptions/listen"


def stateless_channel():
    return StatelessChannel(Limits())


def asked(to, id_, method="ping"):
    return to.deliver(Request(id_, method, msgspec.Raw(b'{"a":1}')))


def send_stateless(to, message, about, *, is_response=False):
    to.send_nowait([RelatedMessage(message, about, is_response=is_response)])


def stateless_messages(request):
    return [json.loads(queued.message) for queued in request.stream.take()]


async def test_requests_get_internal_ids_and_responses_the_ids_of_the_client():
    made = stateless_channel()
    first, second = asked(made, "a"), asked(made, "a")
    received = [json.loads(message) for message in await made.receive()]
    assert [each["id"] for each in received] == [first.number, second.number]
    assert [each["params"] for each in received] == [{"a": 1}] * 2
    send_stateless(made, encode_response(second.number, {"b": 2}), second.number, is_response=True)
    assert stateless_messages(second) == [{"jsonrpc": "2.0", "id": "a", "result": {"b": 2}}]
    assert second.stream.is_ended
    assert not first.stream.is_ended
    assert stateless_messages(first) == []


def nested(depth):
    return Request(1, "ping", msgspec.Raw(b'{"a":' * depth + b"1" + b"}" * depth))


async def test_a_message_may_be_nested_as_deep_as_the_limit():
    made = StatelessChannel(Limits(messages=MessageLimits(json_depth_max=900)))
    request = nested(700)
    made.deliver(request)
    made.notify(Notification("notifications/tide", request.params))
    assert len(await made.receive()) == 2


def test_a_request_nested_too_deeply_is_not_awaited():
    made = StatelessChannel(Limits(messages=MessageLimits(json_depth_max=20)))
    with pytest.raises(Unencodable, match=r"limits\.messages\.json_depth_max"):
        made.deliver(nested(30))
    assert made.is_idle


@pytest.mark.requirement("MHTTP-16")
async def test_a_message_about_no_open_request_is_dropped():
    made = stateless_channel()
    request = asked(made, 1)
    for about in (None, 99, "1"):
        send_stateless(made, encode_notification("n", {}), about)
    assert stateless_messages(request) == []
    with trio.testing.assert_checkpoints():
        await made.send([RelatedMessage(encode_notification("n", {}), request.number)])
    assert [each["method"] for each in stateless_messages(request)] == ["n"]


def test_a_client_that_accepts_only_json_gets_only_its_response():
    made = stateless_channel()
    request = asked(made, 1)
    request.stream.is_json_only = True
    send_stateless(made, encode_notification("n", {}), request.number)
    send_stateless(made, encode_response(request.number, {}), request.number, is_response=True)
    assert [each["id"] for each in stateless_messages(request)] == [1]


@pytest.mark.requirement("MHTTP-22", "MHTTP-24")
async def test_a_disconnect_cancels_the_request_once_and_ends_its_messages():
    made = stateless_channel()
    request = asked(made, 1)
    made.cancel(request)
    made.cancel(request)
    _request, cancelled = [json.loads(message) for message in await made.receive()]
    assert cancelled["method"] == "notifications/cancelled"
    assert cancelled["params"]["requestId"] == request.number
    send_stateless(made, encode_response(request.number, {}), request.number, is_response=True)
    assert stateless_messages(request) == []


async def test_an_answered_request_is_not_cancelled():
    made = stateless_channel()
    request = asked(made, 1)
    send_stateless(made, encode_response(request.number, {}), request.number, is_response=True)
    made.cancel(request)
    assert len(await made.receive()) == 1


@pytest.mark.requirement("MHTTP-13")
async def test_a_notification_is_passed_on_unless_it_cancels():
    made = stateless_channel()
    request = asked(made, 1)
    params = msgspec.Raw(b'{"requestId":%d}' % request.number)
    made.notify(Notification("notifications/cancelled", params))
    made.notify(Notification("notifications/tide", None))
    _request, passed = [json.loads(message) for message in await made.receive()]
    assert passed["method"] == "notifications/tide"


@pytest.mark.requirement("SUB-08")
@pytest.mark.parametrize("id_", [7, "7"])
def test_notifications_have_the_id_of_their_subscription(id_):
    made = stateless_channel()
    request = asked(made, id_, LISTEN)
    meta = {"_meta": {SUBSCRIPTION_ID: request.number}}
    send_stateless(made, encode_notification("n", {"x": 1, **meta}), request.number)
    send_stateless(made, encode_notification("n", {"_meta": {"a": request.number}}), request.number)
    send_stateless(made, encode_response(request.number, meta), request.number, is_response=True)
    first, second, last = stateless_messages(request)
    assert first["params"] == {"x": 1, "_meta": {SUBSCRIPTION_ID: id_}}
    assert second["params"] == {"_meta": {"a": request.number}}
    assert (last["id"], last["result"]["_meta"]) == (id_, {SUBSCRIPTION_ID: id_})


def test_an_error_of_a_subscription_has_no_subscription_id():
    made = stateless_channel()
    request = asked(made, 7, LISTEN)
    error = {"jsonrpc": "2.0", "id": request.number, "error": {"code": -1, "message": "no"}}
    send_stateless(made, json.dumps(error).encode(), request.number, is_response=True)
    assert stateless_messages(request) == [error | {"id": 7}]


async def test_the_end_of_a_stateless_channel_ends_every_stream():
    made = stateless_channel()
    request = asked(made, 1)
    made.end_input()
    assert len(await made.receive()) == 1
    assert not await made.receive()
    await made.aclose()
    assert request.stream.is_ended
    with pytest.raises(trio.ClosedResourceError):
        await made.receive()
    with pytest.raises(trio.ClosedResourceError):
        send_stateless(made, b"{}", request.number)


async def test_a_delivered_request_has_the_same_content_in_one_line():
    """Also if the client has sent its request in several lines."""
    made, taken = stateless_channel(), []
    made.deliver_to(taken.extend)
    for params in (None, b'{"a":1}', b'{\n  "a": [1,\r\n 2]\n}'):
        raw = None if params is None else msgspec.Raw(params)
        made.deliver(Request("x", "ping", raw), AuthInfo(subject="anna"))
    assert {message.auth.principal for message in taken} == {"anna"}
    assert not any(b"\n" in message for message in taken)
    decoder = Decoder(MessageLimits(json_depth_max=9))
    decoded = [decoder.decode(bytes(message)) for message in taken]
    params = [each.params and msgspec.json.decode(each.params) for each in decoded]
    assert params == [None, {"a": 1}, {"a": [1, 2]}]
    passed_decoded = [each.message for each in taken if isinstance(each, DecodedMessage)]
    assert passed_decoded == decoded[:2]  # the third has other white space


def test_a_stateless_tool_call_is_delivered_with_its_decoded_params():
    made, taken = stateless_channel(), []
    made.deliver_to(taken.extend)
    body = b'{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"tide"}}'
    delivered = made.deliver(decode_tool_call(body), body=body)
    made.needs_encoded = False
    unread = made.deliver(decode_tool_call(body), body=body)
    first, second = taken
    assert first.message == decode_tool_call(bytes(first))
    assert (first.message.id, second.message.id) == (delivered.number, unread.number)
    assert second.message.params == first.message.params
    assert len(second) == len(body)


# Received messages.


TIDE = encode_notification("notifications/tide")
EBB = encode_notification("notifications/ebb")


def notify(to, method):
    to.notify(Notification(f"notifications/{method}", None))


async def test_a_message_is_received_in_the_step_that_delivers_it():
    made, taken = stateless_channel(), []
    made.deliver_to(taken.append)
    notify(made, "tide")
    notify(made, "ebb")
    assert taken == [[TIDE], [EBB]]
    made.end_input()
    assert taken[2:] == [[]]


@pytest.mark.parametrize("has_ended", [False, True])
async def test_earlier_messages_are_received_first(has_ended):
    made, taken = stateless_channel(), []
    notify(made, "tide")
    notify(made, "ebb")
    if has_ended:
        made.end_input()
    made.deliver_to(lambda batch: taken.append(list(batch)))
    assert taken == [[TIDE, EBB], *([[]] if has_ended else [])]


async def test_a_closed_channel_delivers_only_the_end():
    made, taken = stateless_channel(), []
    made.deliver_to(taken.append)
    await made.aclose()
    notify(made, "tide")
    assert taken == [[]]


async def test_receive_returns_all_messages_and_is_woken(nursery):
    made, received = stateless_channel(), []

    async def receive():
        while batch := await made.receive():
            received.append(list(batch))

    notify(made, "tide")
    notify(made, "ebb")
    nursery.start_soon(receive)
    await trio.testing.wait_all_tasks_blocked()
    notify(made, "tide")
    await trio.testing.wait_all_tasks_blocked()
    made.end_input()
    await trio.testing.wait_all_tasks_blocked()
    assert received == [[TIDE, EBB], [TIDE]]
    await made.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await made.receive()


# HTTP responses.


LIMITS = Limits(http=HttpLimits(events_kept_max=3, unsent_bytes_max=10))


def note(text, event_id=None):
    return QueuedMessage(text.encode(), event_id, is_response=False)


def answer(text):
    return QueuedMessage(text.encode(), None, is_response=True)


def test_messages_are_taken_in_order_and_once():
    stream = ResponseStream(LIMITS)
    stream.put(note("a"))
    stream.put(note("b"))
    assert stream.has_messages
    assert taken_texts(stream) == ["a", "b"]
    assert not stream.has_messages
    assert taken_texts(stream) == []


def test_a_stream_ends_with_the_last_answer_that_it_awaits():
    stream = ResponseStream(LIMITS, awaits={1, "a"})
    stream.mark_answered(1)
    assert not stream.is_ended
    stream.mark_answered(2)
    assert not stream.is_ended
    stream.mark_answered("a")
    assert stream.is_ended


def test_answers_alone_are_distinguished_from_answers_among_others():
    stream = ResponseStream(LIMITS, awaits={1})
    stream.put(answer("x"))
    assert stream.responses is None
    stream.mark_answered(1)
    assert stream.responses == [b"x"]
    stream.put(note("n"))
    assert stream.responses is None
    stream.take()
    assert stream.responses == []


def test_a_stream_without_a_response_drops_its_oldest_messages():
    stream = ResponseStream(LIMITS)
    for text in "abcd":
        stream.put(note(text))
    assert (taken_texts(stream), stream.dropped) == (["b", "c", "d"], 1)
    stream.put(note("e" * 11))
    stream.put(note("f"))
    assert (taken_texts(stream), stream.dropped, stream.is_overrun) == (["f"], 2, False)


def test_a_single_message_may_exceed_the_buffer_limit():
    for is_being_sent in (False, True):
        stream = ResponseStream(LIMITS)
        if is_being_sent:
            stream.start_sending(trio.CancelScope())
        stream.put(note("a"))
        stream.put(answer("b" * 100))
        assert (len(stream.take()), stream.is_overrun) == (2, False)


def test_a_stream_that_is_read_too_slowly_is_overrun_and_cleared():
    stream = ResponseStream(LIMITS)
    stream.start_sending(trio.CancelScope())
    for text in "abcdefghijk":  # their number alone does not matter
        stream.put(note(text))
    assert not stream.is_overrun
    stream.put(note("l"))
    assert stream.is_overrun
    assert stream.is_ready
    assert not stream.has_messages


async def test_taking_a_stream_over_ends_the_previous_response():
    stream, first, second = ResponseStream(LIMITS), trio.CancelScope(), trio.CancelScope()
    stream.start_sending(first)
    stream.start_sending(second)
    assert (first.cancel_called, second.cancel_called) == (True, False)
    stream.stop_sending(first)
    assert stream.sender is not None
    stream.stop_sending(second)
    assert stream.sender is None


def test_missed_messages_are_sent_first_and_none_twice():
    stream = ResponseStream(LIMITS)
    stream.put(note("b", "1-2"))
    stream.put(note("c", "1-3"))
    stream.put_missed([note("a", "1-1"), note("b", "1-2")])
    assert taken_texts(stream) == ["a", "b", "c"]


def test_a_stream_without_a_connected_client_buffers_no_messages():
    stream = ResponseStream(LIMITS)
    stream.put(note("a", "1-1"))
    stream.mark_disconnected()
    stream.put(note("b", "1-2"))
    assert not stream.has_messages
    stream.put_missed([note("a", "1-1")])
    stream.put(note("c", "1-3"))
    assert taken_texts(stream) == ["a", "c"]


@pytest.mark.parametrize(
    "change",
    [
        lambda stream: stream.put(note("a")),
        lambda stream: stream.put_missed([note("a")]),
        lambda stream: stream.end(),
    ],
)
async def test_a_new_message_wakes_every_waiting_task(change, autojump_clock):
    stream, woken = ResponseStream(LIMITS), []

    async def wait():
        await stream.wait_ready()
        woken.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not woken
        change(stream)
    assert woken
    with trio.testing.assert_checkpoints():
        await stream.wait_ready()


async def test_waiting_for_the_end_ignores_new_messages(autojump_clock):
    stream = ResponseStream(LIMITS)
    with trio.move_on_after(1) as timeout:
        stream.put(note("a"))
        await stream.wait_ended()
    assert timeout.cancelled_caught
    stream.end()
    with trio.testing.assert_checkpoints():
        await stream.wait_ended()


async def test_a_wait_ends_after_its_time(autojump_clock):
    started = trio.current_time()
    stream, timer_queue = ResponseStream(LIMITS), TimerQueue(3)
    await stream.wait_ready_or_timeout(timer_queue)
    assert trio.current_time() - started == 3
    stream.put(note("a"))
    await stream.wait_ready_or_timeout(timer_queue)
    assert trio.current_time() - started == 3


# Responses as JSON and as events.


RESPONSE_LIMITS = Limits(
    http=HttpLimits(stream_after_seconds=1, sse_keep_alive_seconds=10, unsent_bytes_max=200)
)
BOTH = "application/json, text/event-stream"
ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{}}'
ERROR = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}'
NOTE = b'{"jsonrpc":"2.0","method":"n"}'


def exchange_of(accept=BOTH):
    return ScriptedExchange.of(headers=[("Accept", accept)])


def stream_of(*messages):
    stream = ResponseStream(RESPONSE_LIMITS, awaits={1})
    for message in messages:
        put(stream, message)
    return stream


def put(stream, message, event_id=None):
    is_response = message in (ANSWER, ERROR)
    stream.put(QueuedMessage(message, event_id, is_response=is_response))
    if is_response:
        stream.mark_answered(1)


class FirstEvent(StreamSource):
    def __init__(self, event):
        self.event = event

    def begin_events(self, stream):  # noqa: ARG002
        return self.event


class Unanswered(StreamSource):
    def __init__(self, rejection):
        self.rejection = rejection

    def unanswered(self, stream):  # noqa: ARG002
        return self.rejection and self.rejection.response()


async def send(stream, accept=BOTH, source=None, **options):
    exchange = exchange_of(accept)
    sender = StreamSender(limits=RESPONSE_LIMITS, **options)
    await sender.send(exchange, stream, source or StreamSource(), [("X", "y")])
    assert exchange.is_ended
    assert exchange.headers["x"] == "y"
    return exchange


@pytest.mark.requirement("HTTP-12", "MHTTP-14")
async def test_a_single_response_is_json():
    exchange = await send(stream_of(ANSWER))
    assert (exchange.status, exchange.answer_body) == (200, ANSWER)
    assert exchange.headers["content-type"] == "application/json"


@pytest.mark.requirement("HTTP-12", "HTTP-24", "MHTTP-14", "MHTTP-18", "MHTTP-19")
async def test_a_response_with_other_messages_is_a_stream():
    exchange = await send(stream_of(NOTE, ANSWER))
    assert exchange.is_stream
    assert exchange.headers["x-accel-buffering"] == "no"
    assert await exchange.rest() == [json.loads(NOTE), json.loads(ANSWER)]


@pytest.mark.parametrize(
    ("message", "status_of", "status"),
    [
        (ANSWER, {-32601: 404}.get, 200),
        (ERROR, {-32601: 404}.get, 404),
        (ERROR, None, 200),
    ],
)
async def test_the_status_follows_from_the_error(message, status_of, status):
    for accept in (BOTH, "application/json", "text/event-stream"):
        exchange = await send(stream_of(message), accept, status_of=status_of)
        assert exchange.status == status
        assert exchange.is_stream == (accept == "text/event-stream" and status == 200)


@pytest.mark.requirement("TRAP-31")
@pytest.mark.parametrize(
    ("accept", "prefers_events", "is_stream"),
    [
        (BOTH, False, False),
        (BOTH, True, True),
        ("application/json", True, False),
        ("text/event-stream", False, True),
    ],
)
async def test_the_content_type_is_one_that_the_client_accepts(accept, prefers_events, is_stream):
    exchange = await send(stream_of(ANSWER), accept, prefers_events=prefers_events)
    assert exchange.is_stream == is_stream


@pytest.mark.requirement("MHTTP-20", "HTTP-14")
async def test_a_waiting_client_gets_keep_alive_comments(autojump_clock):
    stream, exchange = stream_of(), exchange_of()
    async with trio.open_nursery() as nursery:
        source = FirstEvent(Event(id="1-1", retry_ms=RESPONSE_LIMITS.http.sse_retry_ms))
        sender = StreamSender(limits=RESPONSE_LIMITS)
        nursery.start_soon(sender.send, exchange, stream, source, ())
        await trio.sleep(0.9)
        assert exchange.status is None
        await trio.sleep(0.2)
        first = await exchange.event()
        assert (first.data, first.id, first.retry_ms) == (
            b"",
            "1-1",
            RESPONSE_LIMITS.http.sse_retry_ms,
        )
        await trio.sleep(25)
        assert exchange.comments == 2
        put(stream, ANSWER, "1-2")
    assert (await exchange.event()).id == "1-2"
    assert exchange.is_ended


async def test_the_first_event_can_be_chosen():
    stream = stream_of(ANSWER)
    exchange = exchange_of("text/event-stream")
    source = FirstEvent(Event(b"x", name="endpoint"))
    await StreamSender(limits=RESPONSE_LIMITS).send_events(exchange, stream, source, ())
    assert (await exchange.event()).name == "endpoint"


async def test_a_client_that_accepts_only_json_waits_for_the_response(autojump_clock):
    stream, exchange = stream_of(), exchange_of("application/json")
    stream.is_json_only = True
    async with trio.open_nursery() as nursery:
        sender = StreamSender(limits=RESPONSE_LIMITS)
        nursery.start_soon(sender.send, exchange, stream, StreamSource(), ())
        await trio.sleep(1000)
        assert exchange.status is None
        put(stream, ANSWER)
    assert exchange.answer_body == ANSWER


async def test_several_responses_are_an_array_if_sse_is_not_accepted():
    stream = ResponseStream(RESPONSE_LIMITS, awaits={1})
    stream.is_json_only = True
    stream.put(QueuedMessage(ERROR, None, is_response=True))
    put(stream, ANSWER)
    exchange = await send(stream, "application/json")
    assert exchange.json == [json.loads(ERROR), json.loads(ANSWER)]
    stream = ResponseStream(RESPONSE_LIMITS, awaits={1})
    stream.put(QueuedMessage(ERROR, None, is_response=True))
    put(stream, ANSWER)
    assert (await send(stream)).is_stream


@pytest.mark.parametrize(
    ("rejection", "status"), [(None, 202), (Rejection(status=503, text="no", id="q"), 503)]
)
async def test_a_request_that_ends_without_a_message_gets_a_status(rejection, status):
    stream = stream_of()
    stream.end()
    exchange = await send(stream, source=Unanswered(rejection))
    assert exchange.status == status
    if rejection is None:
        assert exchange.answer_body == b""
        return
    assert exchange.json["id"] == "q"


async def test_a_stream_that_ends_without_a_message_is_closed():
    stream = stream_of()
    stream.end()
    exchange = await send(stream, "text/event-stream")
    assert (exchange.status, exchange.pieces) == (200, [])


async def test_a_client_that_reads_too_slowly_is_disconnected_until_it_reconnects(autojump_clock):
    stream, exchange = stream_of(NOTE), exchange_of()
    sender = StreamSender(limits=RESPONSE_LIMITS)
    stays = []

    async def watch():
        send = functools.partial(sender.send, exchange, stream, StreamSource(), ())
        stays.append(await run_while_connected(exchange, send))

    async with trio.open_nursery() as nursery:
        exchange.stall()
        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        assert stream.sender is not None
        for _ in range(20):
            put(stream, NOTE)
        exchange.read_on()
    assert (stays, exchange.is_ended, stream.sender) == ([False], False, None)
    put(stream, ANSWER)
    again = await send(stream, "text/event-stream")
    assert await again.rest() == [json.loads(ANSWER)]


@pytest.mark.parametrize("is_soon", [True, False])
async def test_sending_reports_whether_the_client_stayed(autojump_clock, is_soon):
    for is_gone in (False, True):
        stream, exchange = stream_of(*([ANSWER] if is_soon else [])), exchange_of()
        stays = []

        async def watch(exchange=exchange, stream=stream, stays=stays):
            try:
                sender, timer_queue = StreamSender(limits=RESPONSE_LIMITS), TimerQueue(0.25)
                stays.append(
                    await sender.send_while_connected(
                        exchange, stream, StreamSource(), (), timer_queue
                    )
                )
            except trio.BrokenResourceError:
                stays.append("broken")

        async with trio.open_nursery() as nursery:
            if is_gone and is_soon:
                exchange.leave()
            nursery.start_soon(watch)
            await trio.sleep(5)
            if is_gone:
                exchange.leave()
            await trio.sleep(5)
            if not stream.is_ended:
                put(stream, ANSWER)
        assert stays == ["broken" if is_gone and is_soon else not is_gone]
        assert stream.sender is None
