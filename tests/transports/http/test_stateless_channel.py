"""Everybody's stateless requests on one channel, and nobody in the way of anybody."""

import json

import msgspec
import pytest
import trio
import trio.testing

from mcp_trio import Limits
from mcp_trio._jsonrpc.messages import (
    DecodedMessage,
    Decoder,
    Notification,
    Request,
    encode_notification,
    encode_response,
)
from mcp_trio._protocol.metadata import SUBSCRIPTION_ID
from mcp_trio._transports.http_sessions import StatelessChannel
from mcp_trio.errors import Unencodable
from mcp_trio.limits import MessageLimits
from mcp_trio.transports import RelatedMessage

LISTEN = "subscriptions/listen"


def channel():
    return StatelessChannel(Limits())


def asked(to, id_, method="ping"):
    return to.deliver(Request(id_, method, msgspec.Raw(b'{"a":1}')))


def say(to, frame, about, *, is_answer=False):
    to.send_nowait([RelatedMessage(frame, about, is_answer=is_answer)])


def frames(slot):
    return [json.loads(sent.frame) for sent in slot.stream.take()]


async def test_each_request_has_a_number_of_its_own_and_its_answer_the_clients():
    made = channel()
    first, second = asked(made, "a"), asked(made, "a")
    received = [json.loads(frame) for frame in await made.receive()]
    assert [each["id"] for each in received] == [first.number, second.number]
    assert [each["params"] for each in received] == [{"a": 1}] * 2
    say(made, encode_response(second.number, {"b": 2}), second.number, is_answer=True)
    assert frames(second) == [{"jsonrpc": "2.0", "id": "a", "result": {"b": 2}}]
    assert second.stream.is_ended
    assert not first.stream.is_ended
    assert frames(first) == []


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
    made = channel()
    slot = asked(made, 1)
    for about in (None, 99, "1"):
        say(made, encode_notification("n", {}), about)
    assert frames(slot) == []
    with trio.testing.assert_checkpoints():
        await made.send([RelatedMessage(encode_notification("n", {}), slot.number)])
    assert [each["method"] for each in frames(slot)] == ["n"]


def test_a_client_that_takes_its_answer_only_gets_that():
    made = channel()
    slot = asked(made, 1)
    slot.stream.is_narrow = True
    say(made, encode_notification("n", {}), slot.number)
    say(made, encode_response(slot.number, {}), slot.number, is_answer=True)
    assert [each["id"] for each in frames(slot)] == [1]


@pytest.mark.requirement("MHTTP-22", "MHTTP-24")
async def test_a_disconnect_cancels_the_request_once_and_ends_its_messages():
    made = channel()
    slot = asked(made, 1)
    made.abandon(slot)
    made.abandon(slot)
    _request, cancelled = [json.loads(frame) for frame in await made.receive()]
    assert cancelled["method"] == "notifications/cancelled"
    assert cancelled["params"]["requestId"] == slot.number
    say(made, encode_response(slot.number, {}), slot.number, is_answer=True)
    assert frames(slot) == []


async def test_what_was_answered_is_not_cancelled():
    made = channel()
    slot = asked(made, 1)
    say(made, encode_response(slot.number, {}), slot.number, is_answer=True)
    made.abandon(slot)
    assert len(await made.receive()) == 1


@pytest.mark.requirement("MHTTP-13")
async def test_a_notification_is_passed_on_unless_it_cancels():
    made = channel()
    slot = asked(made, 1)
    params = msgspec.Raw(b'{"requestId":%d}' % slot.number)
    made.notify(Notification("notifications/cancelled", params))
    made.notify(Notification("notifications/tide", None))
    _request, passed = [json.loads(frame) for frame in await made.receive()]
    assert passed["method"] == "notifications/tide"


@pytest.mark.requirement("SUB-08")
@pytest.mark.parametrize("id_", [7, "7"])
def test_a_subscription_is_named_by_its_own_id(id_):
    made = channel()
    slot = asked(made, id_, LISTEN)
    meta = {"_meta": {SUBSCRIPTION_ID: slot.number}}
    say(made, encode_notification("n", {"x": 1, **meta}), slot.number)
    say(made, encode_notification("n", {"_meta": {"a": slot.number}}), slot.number)
    say(made, encode_response(slot.number, meta), slot.number, is_answer=True)
    first, second, last = frames(slot)
    assert first["params"] == {"x": 1, "_meta": {SUBSCRIPTION_ID: id_}}
    assert second["params"] == {"_meta": {"a": slot.number}}
    assert (last["id"], last["result"]["_meta"]) == (id_, {SUBSCRIPTION_ID: id_})


def test_an_error_of_a_subscription_has_no_name():
    made = channel()
    slot = asked(made, 7, LISTEN)
    error = {"jsonrpc": "2.0", "id": slot.number, "error": {"code": -1, "message": "no"}}
    say(made, json.dumps(error).encode(), slot.number, is_answer=True)
    assert frames(slot) == [error | {"id": 7}]


async def test_the_end_is_the_end_of_every_stream():
    made = channel()
    slot = asked(made, 1)
    made.finish()
    assert len(await made.receive()) == 1
    assert not await made.receive()
    await made.aclose()
    assert slot.stream.is_ended
    with pytest.raises(trio.ClosedResourceError):
        await made.receive()
    with pytest.raises(trio.ClosedResourceError):
        say(made, b"{}", slot.number)


async def test_what_is_taken_means_what_is_written_in_it():
    """Also where the client had set its request in lines, which no frame has."""
    made, taken = channel(), []
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
