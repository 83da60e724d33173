"""A session's frames, each on its own way; and what was posted to it, in order."""

import json

import pytest
import trio
import trio.testing

from mcp_trio import Limits
from mcp_trio._jsonrpc.messages import Batch, Decoder
from mcp_trio._transports.http_sessions import DuplicateIdError, SessionChannel, TooManyStreamsError
from mcp_trio.limits import HttpLimits
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


async def test_what_was_posted_is_received_in_order():
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
def test_each_frame_takes_one_way():
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
def test_of_one_that_has_one_stream_all_take_it():
    made = channel(transport="sse", has_one_stream=True)
    deliver(made, id=1)
    say(made, "a", 1)
    say(made, "b", 1, is_answer=True)
    assert frames(made.unasked) == ["a", "b"]
    assert made.events is None  # nobody can come back for anything


def test_messages_beside_a_json_answer_go_to_the_stream_of_a_get():
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


def test_an_id_is_awaited_once_and_nothing_is_delivered_then():
    made = channel()
    deliver(made, 1, id=1)
    for awaited in ([1], [2, 1], [2, 2]):
        with pytest.raises(DuplicateIdError):
            deliver(made, *awaited, id=1)
    assert len(made._inbox._waiting) == 1
    say(made, "a", 1, is_answer=True)
    deliver(made, 1, 2, id=1)


def test_there_are_only_so_many_streams():
    made = channel()
    deliver(made, 1, 2, id=1)
    with pytest.raises(TooManyStreamsError):
        deliver(made, 3, 4, id=3)
    deliver(made, 3, id=3)


@pytest.mark.requirement("CANC-06")
def test_what_is_cancelled_is_not_awaited():
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
def test_a_stream_is_resumed_with_what_came_behind_an_event():
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


def test_a_stream_that_is_carried_can_be_taken_over():
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


def test_what_was_answered_before_its_events_had_ids_has_them_then():
    made = channel()
    stream = deliver(made, 1, id=1)
    say(made, "a", 1, is_answer=True)
    assert stream.number is None
    begun = made.begin(stream)
    assert [sent.event_id for sent in stream.take()] == ["1-2"]
    assert frames(made.resumed(begun)) == ["a"]
    assert not made._streams


@pytest.mark.parametrize("event_id", ["", "1", "9-1", "1-9", "x-y"])
def test_an_event_that_was_never_given_is_not_found(event_id):
    with pytest.raises(LookupError):
        channel().resumed(event_id)


async def test_what_ended_streams_held_is_forgotten_with_time():
    made = channel()
    for id_ in range(100):
        stream = deliver(made, id_, id=id_)
        made.begin(stream)
        made.left(stream)
        say(made, "a", id_, is_answer=True)
    assert not made._streams
    assert not made._of_request


async def test_the_end_is_the_end_of_every_stream():
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
