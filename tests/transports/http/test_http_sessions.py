"""Channels of HTTP sessions: the streams of outgoing messages and the order of posted ones."""

import json

import msgspec
import pytest
import trio
import trio.testing

from mcp_trio import Limits
from mcp_trio._jsonrpc.messages import (
    Batch,
    DecodedMessage,
    Decoder,
    Notification,
    Request,
    encode_notification,
    encode_response,
)
from mcp_trio._protocol.metadata import SUBSCRIPTION_ID
from mcp_trio._transports.http_sessions import (
    DuplicateIdError,
    RequestInbox,
    SessionChannel,
    StatelessChannel,
    TooManyStreamsError,
)
from mcp_trio.errors import Unencodable
from mcp_trio.limits import HttpLimits, MessageLimits
from mcp_trio.transports import RelatedMessage

DECODER = Decoder(json_depth_max=32, batch_messages_max=8)


def channel(**options):
    limits = Limits(http=HttpLimits(streams_max=3, events_kept_max=8))
    return SessionChannel(limits, **options)


def deliver(to, *awaited, **message):
    frame = json.dumps({"jsonrpc": "2.0", "method": "ping", **message}).encode()
    return to.deliver(frame, DECODER.decode(frame), awaited)


def cancel(id_):
    return {"method": "notifications/cancelled", "params": {"requestId": id_}}


def say(to, text, about=None, *, is_answer=False):
    return to.send_nowait([RelatedMessage(text.encode(), about, is_answer=is_answer)])


def frames(stream):
    return [sent.frame.decode() for sent in stream.take()]


async def test_posted_messages_are_received_in_order():
    made = channel()
    frame = b'{"jsonrpc":"2.0","method":"a"}'
    assert made.deliver(frame, DECODER.decode(frame)) is None
    stream = deliver(made, 1, id=1)
    assert stream.awaits == {1}
    with trio.testing.assert_checkpoints():
        assert len(await made.receive()) == 2
    made.finish()
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
    say(made, "a", 1)
    say(made, "b", "1")
    say(made, "c")
    say(made, "d", 1, is_answer=True)
    say(made, "e", 1)
    say(made, "f", 7)
    assert frames(first) == ["a", "d"]
    assert first.is_ended
    assert frames(second) == ["b"]
    assert frames(made.unasked) == ["c", "e", "f"]


@pytest.mark.requirement("HTTP-32")
@pytest.mark.parametrize("about", [None, 1])
def test_an_answer_never_goes_to_the_stream_of_a_get(about):
    made = channel()
    deliver(made, 1, id=1)
    deliver(made, **cancel(1))
    say(made, "late", about, is_answer=True)
    assert not made.unasked.has_waiting


@pytest.mark.requirement("SSE-04")
def test_a_session_with_a_single_stream_sends_every_message_on_it():
    made = channel(transport="sse", has_one_stream=True)
    deliver(made, id=1)
    say(made, "a", 1)
    say(made, "b", 1, is_answer=True)
    assert frames(made.unasked) == ["a", "b"]
    assert made.events is None  # nobody can come back for anything


def test_messages_related_to_a_json_response_go_to_the_get_stream():
    made = channel()
    stream = deliver(made, 1, id=1)
    stream.is_narrow = True
    say(made, "a", 1)
    say(made, "b", 1, is_answer=True)
    assert (frames(stream), frames(made.unasked)) == (["b"], ["a"])


async def test_sending_is_a_checkpoint():
    made = channel()
    with trio.testing.assert_checkpoints():
        await made.send([RelatedMessage(b"a", None)])
    assert frames(made.unasked) == ["a"]


def test_a_duplicate_id_is_rejected_and_not_delivered():
    made = channel()
    deliver(made, 1, id=1)
    for awaited in ([1], [2, 1], [2, 2]):
        with pytest.raises(DuplicateIdError):
            deliver(made, *awaited, id=1)
    assert len(made._inbox._waiting) == 1
    say(made, "a", 1, is_answer=True)
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
    assert not made.is_resting
    frame = json.dumps([{"jsonrpc": "2.0", **cancel("a")}]).encode()
    message = DECODER.decode(frame)
    assert isinstance(message, Batch)
    made.deliver(frame, message)
    assert stream.is_ended
    assert made.is_resting


@pytest.mark.requirement("HTTP-38", "HTTP-39", "HTTP-42", "HTTP-43", "TRAP-39")
def test_a_stream_is_resumed_with_the_messages_after_an_event():
    made = channel()
    first, second = deliver(made, 1, id=1), deliver(made, 2, id=2)
    begun = made.begin(first)
    assert made.begin(first) is None
    for text, about in (("a", 1), ("b", 2), ("c", 1)):
        say(made, text, about)
    ids = [sent.event_id for sent in first.take()]
    assert len({begun, *ids, made.begin(second)}) == 4
    made.left(first)
    assert made.resumed(ids[0]) is first
    assert frames(first) == ["c"]
    made.left(first)
    say(made, "d", 1, is_answer=True)
    over = made.resumed(begun)
    assert over.is_ended
    assert frames(over) == ["a", "c", "d"]
    assert frames(second) == ["b"]


def test_a_stream_with_a_connection_can_be_taken_over():
    made = channel()
    stream = deliver(made, 1, id=1)
    begun = made.begin(stream)
    say(made, "a", 1)
    stream.take()
    stream.carry(trio.CancelScope())
    assert made.resumed(begun) is stream
    made.left(stream)  # says who carried it before: it is the next one's by now
    assert frames(stream) == ["a"]


def test_messages_about_no_request_wait_for_a_get():
    made = channel()
    say(made, "a")
    assert made.begin(made.unasked) == "1-1"
    assert [(sent.event_id, sent.frame) for sent in made.unasked.take()] == [("1-2", b"a")]
    assert made.begin(made.unasked) == "1-3"
    say(made, "b")
    made.left(made.unasked)
    assert made.begin(made.unasked) is None
    assert frames(made.unasked) == ["b"]


def test_a_response_given_before_the_stream_began_gets_event_ids():
    made = channel()
    stream = deliver(made, 1, id=1)
    say(made, "a", 1, is_answer=True)
    assert stream.number is None
    begun = made.begin(stream)
    assert [sent.event_id for sent in stream.take()] == ["1-2"]
    assert frames(made.resumed(begun)) == ["a"]
    assert not made._streams


@pytest.mark.parametrize("event_id", ["", "1", "9-1", "1-9", "x-y"])
def test_an_event_id_that_was_never_issued_is_not_found(event_id):
    with pytest.raises(LookupError):
        channel().resumed(event_id)


async def test_events_of_ended_streams_are_dropped_after_a_while():
    made = channel()
    for id_ in range(100):
        stream = deliver(made, id_, id=id_)
        made.begin(stream)
        made.left(stream)
        say(made, "a", id_, is_answer=True)
    assert not made._streams
    assert not made._of_request


async def test_the_end_of_a_session_ends_every_stream():
    made = channel()
    stream = deliver(made, 1, id=1)
    await made.aclose()
    await made.aclose()
    assert stream.is_ended
    assert made.unasked.is_ended
    with pytest.raises(trio.ClosedResourceError):
        await made.receive()
    with pytest.raises(trio.ClosedResourceError):
        await made.send([])


# Everybody's stateless requests on one channel, and nobody in the way of anybody.


LISTEN = "subscriptions/listen"


def stateless_channel():
    return StatelessChannel(Limits())


def asked(to, id_, method="ping"):
    return to.deliver(Request(id_, method, msgspec.Raw(b'{"a":1}')))


def send_stateless(to, frame, about, *, is_answer=False):
    to.send_nowait([RelatedMessage(frame, about, is_answer=is_answer)])


def stateless_messages(slot):
    return [json.loads(sent.frame) for sent in slot.stream.take()]


async def test_requests_get_internal_ids_and_responses_the_ids_of_the_client():
    made = stateless_channel()
    first, second = asked(made, "a"), asked(made, "a")
    received = [json.loads(frame) for frame in await made.receive()]
    assert [each["id"] for each in received] == [first.number, second.number]
    assert [each["params"] for each in received] == [{"a": 1}] * 2
    send_stateless(made, encode_response(second.number, {"b": 2}), second.number, is_answer=True)
    assert stateless_messages(second) == [{"jsonrpc": "2.0", "id": "a", "result": {"b": 2}}]
    assert second.stream.is_ended
    assert not first.stream.is_ended
    assert stateless_messages(first) == []


def nested(depth):
    return Request(1, "ping", msgspec.Raw(b'{"a":' * depth + b"1" + b"}" * depth))


async def test_a_request_may_be_nested_as_deep_as_the_limit_says():
    made = StatelessChannel(Limits(messages=MessageLimits(json_depth_max=900)))
    made.deliver(nested(700))
    assert len(await made.receive()) == 1


def test_a_request_nested_too_deeply_is_not_awaited():
    made = StatelessChannel(Limits(messages=MessageLimits(json_depth_max=20)))
    with pytest.raises(Unencodable, match=r"limits\.messages\.json_depth_max"):
        made.deliver(nested(30))
    assert made.is_resting


@pytest.mark.requirement("MHTTP-16")
async def test_a_message_about_no_open_request_is_dropped():
    made = stateless_channel()
    slot = asked(made, 1)
    for about in (None, 99, "1"):
        send_stateless(made, encode_notification("n", {}), about)
    assert stateless_messages(slot) == []
    with trio.testing.assert_checkpoints():
        await made.send([RelatedMessage(encode_notification("n", {}), slot.number)])
    assert [each["method"] for each in stateless_messages(slot)] == ["n"]


def test_a_client_that_accepts_only_json_gets_only_its_response():
    made = stateless_channel()
    slot = asked(made, 1)
    slot.stream.is_narrow = True
    send_stateless(made, encode_notification("n", {}), slot.number)
    send_stateless(made, encode_response(slot.number, {}), slot.number, is_answer=True)
    assert [each["id"] for each in stateless_messages(slot)] == [1]


@pytest.mark.requirement("MHTTP-22", "MHTTP-24")
async def test_a_disconnect_cancels_the_request_once_and_ends_its_messages():
    made = stateless_channel()
    slot = asked(made, 1)
    made.abandon(slot)
    made.abandon(slot)
    _request, cancelled = [json.loads(frame) for frame in await made.receive()]
    assert cancelled["method"] == "notifications/cancelled"
    assert cancelled["params"]["requestId"] == slot.number
    send_stateless(made, encode_response(slot.number, {}), slot.number, is_answer=True)
    assert stateless_messages(slot) == []


async def test_an_answered_request_is_not_cancelled():
    made = stateless_channel()
    slot = asked(made, 1)
    send_stateless(made, encode_response(slot.number, {}), slot.number, is_answer=True)
    made.abandon(slot)
    assert len(await made.receive()) == 1


@pytest.mark.requirement("MHTTP-13")
async def test_a_notification_is_passed_on_unless_it_cancels():
    made = stateless_channel()
    slot = asked(made, 1)
    params = msgspec.Raw(b'{"requestId":%d}' % slot.number)
    made.notify(Notification("notifications/cancelled", params))
    made.notify(Notification("notifications/tide", None))
    _request, passed = [json.loads(frame) for frame in await made.receive()]
    assert passed["method"] == "notifications/tide"


@pytest.mark.requirement("SUB-08")
@pytest.mark.parametrize("id_", [7, "7"])
def test_notifications_have_the_id_of_their_subscription(id_):
    made = stateless_channel()
    slot = asked(made, id_, LISTEN)
    meta = {"_meta": {SUBSCRIPTION_ID: slot.number}}
    send_stateless(made, encode_notification("n", {"x": 1, **meta}), slot.number)
    send_stateless(made, encode_notification("n", {"_meta": {"a": slot.number}}), slot.number)
    send_stateless(made, encode_response(slot.number, meta), slot.number, is_answer=True)
    first, second, last = stateless_messages(slot)
    assert first["params"] == {"x": 1, "_meta": {SUBSCRIPTION_ID: id_}}
    assert second["params"] == {"_meta": {"a": slot.number}}
    assert (last["id"], last["result"]["_meta"]) == (id_, {SUBSCRIPTION_ID: id_})


def test_an_error_of_a_subscription_has_no_subscription_id():
    made = stateless_channel()
    slot = asked(made, 7, LISTEN)
    error = {"jsonrpc": "2.0", "id": slot.number, "error": {"code": -1, "message": "no"}}
    send_stateless(made, json.dumps(error).encode(), slot.number, is_answer=True)
    assert stateless_messages(slot) == [error | {"id": 7}]


async def test_the_end_of_a_stateless_channel_ends_every_stream():
    made = stateless_channel()
    slot = asked(made, 1)
    made.finish()
    assert len(await made.receive()) == 1
    assert not await made.receive()
    await made.aclose()
    assert slot.stream.is_ended
    with pytest.raises(trio.ClosedResourceError):
        await made.receive()
    with pytest.raises(trio.ClosedResourceError):
        send_stateless(made, b"{}", slot.number)


async def test_a_delivered_request_has_the_same_content_in_one_line():
    """Also where the client had set its request in lines, which no frame has."""
    made, taken = stateless_channel(), []
    made.deliver_to(taken.extend)
    for params in (None, b'{"a":1}', b'{\n  "a": [1,\r\n 2]\n}'):
        raw = None if params is None else msgspec.Raw(params)
        made.deliver(Request("x", "ping", raw), "anna")
    assert {frame.principal for frame in taken} == {"anna"}
    assert not any(b"\n" in frame for frame in taken)
    decoder = Decoder(json_depth_max=9)
    said = [decoder.decode(bytes(frame)) for frame in taken]
    params = [None if each.params is None else msgspec.json.decode(each.params) for each in said]
    assert params == [None, {"a": 1}, {"a": [1, 2]}]
    understood = [frame.message for frame in taken if isinstance(frame, DecodedMessage)]
    assert understood == said[:2]  # the third has other space in it


# What was posted: taken at once where a session takes it, and else in order by who reads.


async def test_a_message_is_received_in_the_step_that_delivers_it():
    inbox, taken = RequestInbox(), []
    inbox.deliver_to(taken.append)
    inbox.put(b"a")
    inbox.put(b"b")
    assert taken == [[b"a"], [b"b"]]
    inbox.end()
    assert taken[2:] == [[]]


@pytest.mark.parametrize("has_ended", [False, True])
async def test_earlier_messages_are_received_first(has_ended):
    inbox, taken = RequestInbox(), []
    inbox.put(b"a")
    inbox.put(b"b")
    if has_ended:
        inbox.end()
    inbox.deliver_to(lambda batch: taken.append(list(batch)))
    assert taken == [[b"a", b"b"], *([[]] if has_ended else [])]


async def test_a_closed_channel_delivers_only_the_end():
    inbox, taken = RequestInbox(), []
    inbox.deliver_to(taken.append)
    inbox.close()
    inbox.put(b"a")
    assert taken == [[]]


async def test_take_returns_all_items_and_is_woken(nursery):
    inbox, read = RequestInbox(), []

    async def receive():
        while batch := await inbox.receive():
            read.append(list(batch))

    inbox.put(b"a")
    inbox.put(b"b")
    nursery.start_soon(receive)
    await trio.testing.wait_all_tasks_blocked()
    inbox.put(b"c")
    await trio.testing.wait_all_tasks_blocked()
    inbox.end()
    await trio.testing.wait_all_tasks_blocked()
    assert read == [[b"a", b"b"], [b"c"]]
    inbox.close()
    with pytest.raises(trio.ClosedResourceError):
        await inbox.receive()
