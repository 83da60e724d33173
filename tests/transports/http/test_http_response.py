"""The messages that wait for a client on one HTTP response."""

import functools
import json

import pytest
import trio
import trio.testing

from mcp_trio import Limits
from mcp_trio._jsonrpc.sse import Event
from mcp_trio._protocol.http_requests import Rejection
from mcp_trio._transports.concurrency import TimerQueue
from mcp_trio._transports.http_response import AnswerStream, Sent, StreamSender, carried, until_gone
from mcp_trio.limits import HttpLimits
from tests.transports.http.scripted_exchange import ScriptedExchange

LIMITS = Limits(http=HttpLimits(events_kept_max=3, unsent_bytes_max=10))


def note(text, event_id=None):
    return Sent(text.encode(), event_id, is_answer=False)


def answer(text):
    return Sent(text.encode(), None, is_answer=True)


def frames(stream):
    return [sent.frame.decode() for sent in stream.take()]


def test_messages_are_taken_in_order_and_once():
    stream = AnswerStream(LIMITS)
    stream.put(note("a"))
    stream.put(note("b"))
    assert stream.has_waiting
    assert frames(stream) == ["a", "b"]
    assert not stream.has_waiting
    assert frames(stream) == []


def test_a_stream_ends_with_the_last_answer_that_it_awaits():
    stream = AnswerStream(LIMITS, awaits={1, "a"})
    stream.answered(1)
    assert not stream.is_ended
    stream.answered(2)
    assert not stream.is_ended
    stream.answered("a")
    assert stream.is_ended


def test_answers_alone_are_distinguished_from_answers_among_others():
    stream = AnswerStream(LIMITS, awaits={1})
    stream.put(answer("x"))
    assert stream.answers is None
    stream.answered(1)
    assert stream.answers == [b"x"]
    stream.put(note("n"))
    assert stream.answers is None
    stream.take()
    assert stream.answers == []


def test_a_stream_without_a_response_drops_its_oldest_messages():
    stream = AnswerStream(LIMITS)
    for text in "abcd":
        stream.put(note(text))
    assert (frames(stream), stream.dropped) == (["b", "c", "d"], 1)
    stream.put(note("e" * 11))
    stream.put(note("f"))
    assert (frames(stream), stream.dropped, stream.is_overrun) == (["f"], 2, False)


def test_a_single_message_may_exceed_the_buffer_limit():
    for is_carried in (False, True):
        stream = AnswerStream(LIMITS)
        if is_carried:
            stream.carry(trio.CancelScope())
        stream.put(note("a"))
        stream.put(answer("b" * 100))
        assert (len(stream.take()), stream.is_overrun) == (2, False)


def test_a_stream_that_is_read_too_slowly_is_overrun_and_cleared():
    stream = AnswerStream(LIMITS)
    stream.carry(trio.CancelScope())
    for text in "abcdefghijk":  # their number alone does not matter
        stream.put(note(text))
    assert not stream.is_overrun
    stream.put(note("l"))
    assert stream.is_overrun
    assert stream.has_news
    assert not stream.has_waiting


async def test_taking_a_stream_over_ends_the_previous_response():
    stream, first, second = AnswerStream(LIMITS), trio.CancelScope(), trio.CancelScope()
    stream.carry(first)
    stream.carry(second)
    assert (first.cancel_called, second.cancel_called) == (True, False)
    stream.put_down(first)
    assert stream.is_carried
    stream.put_down(second)
    assert not stream.is_carried


def test_missed_messages_are_sent_first_and_none_twice():
    stream = AnswerStream(LIMITS)
    stream.put(note("b", "1-2"))
    stream.put(note("c", "1-3"))
    stream.put_again([note("a", "1-1"), note("b", "1-2")])
    assert frames(stream) == ["a", "b", "c"]


def test_a_stream_without_a_connected_client_buffers_no_messages():
    stream = AnswerStream(LIMITS)
    stream.put(note("a", "1-1"))
    stream.leave()
    stream.put(note("b", "1-2"))
    assert not stream.has_waiting
    stream.put_again([note("a", "1-1")])
    stream.put(note("c", "1-3"))
    assert frames(stream) == ["a", "c"]


@pytest.mark.parametrize(
    "tell",
    [
        lambda stream: stream.put(note("a")),
        lambda stream: stream.put_again([note("a")]),
        lambda stream: stream.end(),
    ],
)
async def test_a_new_message_wakes_every_waiting_task(tell, autojump_clock):
    stream, woken = AnswerStream(LIMITS), []

    async def wait():
        await stream.news()
        woken.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not woken
        tell(stream)
    assert woken
    with trio.testing.assert_checkpoints():
        await stream.news()


async def test_waiting_for_the_end_ignores_new_messages(autojump_clock):
    stream = AnswerStream(LIMITS)
    with trio.move_on_after(1) as patience:
        stream.put(note("a"))
        await stream.ended()
    assert patience.cancelled_caught
    stream.end()
    with trio.testing.assert_checkpoints():
        await stream.ended()


async def test_a_wait_ends_after_its_time(autojump_clock):
    began = trio.current_time()
    stream = AnswerStream(LIMITS)
    await stream.soon(3)
    assert trio.current_time() - began == 3
    stream.put(note("a"))
    with trio.testing.assert_checkpoints():
        await stream.soon(3)
    assert trio.current_time() - began == 3


# How a stream gets to its client: as JSON, as events, or not at all.


LIMITS_CARRYING = Limits(
    http=HttpLimits(stream_after_seconds=1, sse_keep_alive_seconds=10, unsent_bytes_max=200)
)
BOTH = "application/json, text/event-stream"
ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{}}'
ERROR = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}'
NOTE = b'{"jsonrpc":"2.0","method":"n"}'


def exchange_of(accept=BOTH):
    return ScriptedExchange.of(headers=[("Accept", accept)])


def stream_of(*frames):
    stream = AnswerStream(LIMITS_CARRYING, awaits={1})
    for frame in frames:
        put(stream, frame)
    return stream


def put(stream, frame, event_id=None):
    is_answer = frame in (ANSWER, ERROR)
    stream.put(Sent(frame, event_id, is_answer=is_answer))
    if is_answer:
        stream.answered(1)


async def carry(stream, accept=BOTH, **options):
    exchange = exchange_of(accept)
    await StreamSender(limits=LIMITS_CARRYING, headers=[("X", "y")], **options).carry(
        exchange, stream
    )
    assert exchange.is_ended
    assert exchange.headers["x"] == "y"
    return exchange


@pytest.mark.requirement("HTTP-12", "MHTTP-14")
async def test_a_single_response_is_json():
    exchange = await carry(stream_of(ANSWER))
    assert (exchange.status, exchange.answer_body) == (200, ANSWER)
    assert exchange.headers["content-type"] == "application/json"


@pytest.mark.requirement("HTTP-12", "HTTP-24", "MHTTP-14", "MHTTP-18", "MHTTP-19")
async def test_a_response_with_other_messages_is_a_stream():
    exchange = await carry(stream_of(NOTE, ANSWER))
    assert exchange.is_stream
    assert exchange.headers["x-accel-buffering"] == "no"
    assert await exchange.rest() == [json.loads(NOTE), json.loads(ANSWER)]


@pytest.mark.parametrize(
    ("frame", "status_of", "status"),
    [
        (ANSWER, {-32601: 404}.get, 200),
        (ERROR, {-32601: 404}.get, 404),
        (ERROR, None, 200),
    ],
)
async def test_the_status_follows_from_the_error(frame, status_of, status):
    for accept in (BOTH, "application/json", "text/event-stream"):
        exchange = await carry(stream_of(frame), accept, status_of=status_of)
        assert exchange.status == status
        assert exchange.is_stream == (accept == "text/event-stream" and status == 200)


@pytest.mark.requirement("TRAP-31")
@pytest.mark.parametrize(
    ("accept", "wants_stream", "is_stream"),
    [
        (BOTH, False, False),
        (BOTH, True, True),
        ("application/json", True, False),
        ("text/event-stream", False, True),
    ],
)
async def test_the_content_type_is_one_that_the_client_accepts(accept, wants_stream, is_stream):
    exchange = await carry(stream_of(ANSWER), accept, wants_stream=wants_stream)
    assert exchange.is_stream == is_stream


@pytest.mark.requirement("MHTTP-20", "HTTP-14")
async def test_a_waiting_client_gets_keep_alive_comments(autojump_clock):
    stream, exchange = stream_of(), exchange_of()
    async with trio.open_nursery() as nursery:
        carrier = StreamSender(limits=LIMITS_CARRYING, begin=lambda: "1-1")
        nursery.start_soon(carrier.carry, exchange, stream)
        await trio.sleep(0.9)
        assert exchange.status is None
        await trio.sleep(0.2)
        first = await exchange.event()
        assert (first.data, first.id, first.retry_ms) == (
            b"",
            "1-1",
            LIMITS_CARRYING.http.sse_retry_ms,
        )
        await trio.sleep(25)
        assert exchange.comments == 2
        put(stream, ANSWER, "1-2")
    assert (await exchange.event()).id == "1-2"
    assert exchange.is_ended


async def test_the_first_event_can_be_chosen():
    stream = stream_of(ANSWER)
    exchange = exchange_of("text/event-stream")
    await StreamSender(limits=LIMITS_CARRYING, first_event=Event(b"x", name="endpoint")).stream(
        exchange, stream
    )
    assert (await exchange.event()).name == "endpoint"


async def test_a_client_that_accepts_only_json_waits_for_the_response(autojump_clock):
    stream, exchange = stream_of(), exchange_of("application/json")
    stream.is_narrow = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(StreamSender(limits=LIMITS_CARRYING).carry, exchange, stream)
        await trio.sleep(1000)
        assert exchange.status is None
        put(stream, ANSWER)
    assert exchange.answer_body == ANSWER


async def test_several_responses_are_an_array_if_sse_is_not_accepted():
    stream = AnswerStream(LIMITS_CARRYING, awaits={1})
    stream.is_narrow = True
    stream.put(Sent(ERROR, None, is_answer=True))
    put(stream, ANSWER)
    exchange = await carry(stream, "application/json")
    assert exchange.json == [json.loads(ERROR), json.loads(ANSWER)]
    stream = AnswerStream(LIMITS_CARRYING, awaits={1})
    stream.put(Sent(ERROR, None, is_answer=True))
    put(stream, ANSWER)
    assert (await carry(stream)).is_stream


@pytest.mark.parametrize(
    ("rejection", "status"), [(None, 202), (Rejection(status=503, text="no", id="q"), 503)]
)
async def test_a_request_that_ends_without_a_message_gets_a_status(rejection, status):
    stream = stream_of()
    stream.end()
    exchange = await carry(stream, why_unanswered=lambda: rejection)
    assert exchange.status == status
    if rejection is None:
        assert exchange.answer_body == b""
        return
    assert exchange.json["id"] == "q"


async def test_a_stream_that_ends_without_a_message_is_closed():
    stream = stream_of()
    stream.end()
    exchange = await carry(stream, "text/event-stream")
    assert (exchange.status, exchange.pieces) == (200, [])


async def test_a_client_that_reads_too_slowly_is_disconnected_until_it_reconnects(autojump_clock):
    stream, exchange = stream_of(NOTE), exchange_of()
    carrier = StreamSender(limits=LIMITS_CARRYING)
    stays = []

    async def watch():
        stays.append(await until_gone(exchange, functools.partial(carrier.carry, exchange, stream)))

    async with trio.open_nursery() as nursery:
        exchange.stall()
        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        assert stream.is_carried
        for _ in range(20):
            put(stream, NOTE)
        exchange.read_on()
    assert (stays, exchange.is_ended, stream.is_carried) == ([False], False, False)
    put(stream, ANSWER)
    again = await carry(stream, "text/event-stream")
    assert await again.rest() == [json.loads(ANSWER)]


@pytest.mark.parametrize("is_soon", [True, False])
async def test_sending_reports_whether_the_client_stayed(autojump_clock, is_soon):
    for is_gone in (False, True):
        stream, exchange = stream_of(*([ANSWER] if is_soon else [])), exchange_of()
        stays = []

        async def watch(exchange=exchange, stream=stream, stays=stays):
            try:
                stays.append(
                    await carried(
                        exchange, StreamSender(limits=LIMITS_CARRYING), stream, TimerQueue(0.25)
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
        assert not stream.is_carried
