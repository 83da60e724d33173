"""The HTTP client channel with a legacy server: resumed streams, and the standalone stream."""

import json

import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import Limits
from mcp_trio.errors import OutcomeUnknown
from mcp_trio.limits import HttpLimits, MessageLimits
from mcp_trio.transports import Lost
from tests.transports.http.scripted_server import (
    EVENTS,
    Legacy,
    Reply,
    answer_to,
    asking,
    connected,
    event,
    events,
    heard,
    in_session,
    result,
)

NOTE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"n": 1}}


def call(number):
    return asking(number, "tools/call", name="add")


async def succeed(seen):
    return result(seen, content=[])


def streaming(*pieces):
    async def answer(_seen):
        return events(*pieces)

    return answer


def resumable(*pieces, listen=None):
    """A server whose calls are answered on a stream that ends early; `listen` resumes it."""
    return Legacy(answers={"tools/call": streaming(*pieces)}, listen=listen)


# Resumed streams


@pytest.mark.requirement(
    "HTTP-16", "HTTP-18", "HTTP-40", "HTTP-41", "TRAP-37", "TRAP-39", "TRAP-40"
)
async def test_a_stream_that_ends_early_is_resumed_by_get_after_the_retry_time(
    autojump_clock,
):
    at = []

    async def listen(seen):
        at.append(trio.current_time())
        if "last-event-id" not in seen.headers:
            return Reply(405)
        return events(event({"jsonrpc": "2.0", "id": 1, "result": {}}, event_id="a-2"))

    pieces = [event(text="", event_id="a-1", retry=700)]
    async with connected(resumable(*pieces, listen=listen)) as (channel, script):
        await in_session(channel)
        begun = trio.current_time()
        await channel.send([call(1)])
        assert (await heard(channel))["id"] == 1

    assert script.of("GET")[1].headers["last-event-id"] == "a-1"
    assert script.of("GET")[1].headers["accept"] == "text/event-stream"
    assert at[1] - begun == pytest.approx(0.7)


async def test_a_stream_is_resumed_after_its_last_event_as_long_as_events_come(autojump_clock):
    polls = []

    async def listen(seen):
        if "last-event-id" not in seen.headers:
            return Reply(405)
        polls.append(seen.headers["last-event-id"])
        if len(polls) < 20:
            return events(event(NOTE, event_id=f"a-{len(polls)}"))
        return events(event({"jsonrpc": "2.0", "id": 1, "result": {}}))

    pieces = [event(text="", event_id="a-0", retry=0)]
    async with connected(resumable(*pieces, listen=listen)) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])
        items = []
        while len(items) < 20:
            items += await channel.receive()

    assert polls == [f"a-{n}" for n in range(20)]
    assert json.loads(items[-1])["id"] == 1


async def test_event_ids_may_contain_any_character(autojump_clock):
    async def listen(seen):
        if "last-event-id" not in seen.headers:
            return Reply(405)
        return events(event({"jsonrpc": "2.0", "id": 1, "result": {}}))

    async with connected(resumable(event(text="", event_id="é"), listen=listen)) as (
        channel,
        script,
    ):
        await in_session(channel)
        await channel.send([call(1)])
        assert (await heard(channel))["id"] == 1

    assert script.of("GET")[1].headers["last-event-id"] == "é"


async def test_a_stream_that_breaks_is_resumed_like_one_that_ends(autojump_clock):
    async def breaking(_seen):
        async def body():
            yield event(NOTE, event_id="a-1")
            raise httpx2.ReadError("cut")

        return Reply(200, EVENTS, body())

    async def listen(seen):
        if "last-event-id" not in seen.headers:
            return Reply(405)
        return events(event({"jsonrpc": "2.0", "id": 1, "result": {}}))

    states = []
    server = Legacy(answers={"tools/call": breaking}, listen=listen)
    told = lambda *news: states.append(news)  # noqa: E731
    async with connected(server, on_state=told) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])
        assert await heard(channel) == NOTE
        assert (await heard(channel))["id"] == 1

    assert states[2:4] == [("retrying", "the stream broke: cut"), ("open", "")]


async def test_an_unreachable_server_is_tried_a_limited_number_of_times_with_growing_pauses(
    autojump_clock,
):
    at = []

    async def listen(seen):
        if "last-event-id" not in seen.headers:
            return Reply(405)
        at.append(trio.current_time())
        if len(at) % 2:
            raise httpx2.ConnectError("rejected")
        return Reply(503)

    pieces = [event(text="", event_id="a-1", retry=1500)]
    limits = Limits(http=HttpLimits(reconnects_max=4, reconnect_seconds_max=10, resume_seconds=100))
    async with connected(resumable(*pieces, listen=listen), limits=limits) as (channel, _):
        await in_session(channel)
        begun = trio.current_time()
        await channel.send([call(1)])
        lost = await heard(channel, seconds=100)

    pauses = [later - earlier for earlier, later in zip([begun, *at], at, strict=False)]
    assert pauses == pytest.approx([1.5, 2, 4, 8, 10])
    assert type(lost.error) is OutcomeUnknown
    assert "rejected" in str(lost.error)
    assert "(limits.http.reconnects_max=4)" in str(lost.error)


@pytest.mark.parametrize(("retry_ms", "seconds"), [(None, 10), (4000, 12)])
async def test_a_call_to_an_unreachable_server_fails_within_resume_seconds(
    autojump_clock, retry_ms, seconds
):
    async def listen(seen):
        if "last-event-id" not in seen.headers:
            return Reply(405)
        raise httpx2.ConnectError("rejected")

    pieces = [event(text="", event_id="a-1", retry=retry_ms)]
    async with connected(resumable(*pieces, listen=listen), random_source=lambda: 1) as (
        channel,
        _,
    ):
        await in_session(channel)
        begun = trio.current_time()
        await channel.send([call(1)])
        lost = await heard(channel, seconds=100)

    first_pause = (retry_ms or 1000) / 1000
    assert trio.current_time() - begun == pytest.approx(first_pause + seconds)
    assert type(lost.error) is OutcomeUnknown
    assert "rejected before the answer came (limits.http.resume_seconds=10)" in str(lost.error)


async def test_a_server_that_was_reachable_again_may_be_unreachable_as_long_again(autojump_clock):
    polls = []

    async def listen(seen):
        if "last-event-id" not in seen.headers:
            return Reply(405)
        polls.append(trio.current_time())
        if len(polls) in (4, 8):
            return events(event(NOTE, event_id=f"a-{len(polls)}"))
        if len(polls) == 12:
            return events(event({"jsonrpc": "2.0", "id": 1, "result": {}}))
        raise httpx2.ConnectError("rejected")

    pieces = [event(text="", event_id="a-1")]
    async with connected(resumable(*pieces, listen=listen), random_source=lambda: 1) as (
        channel,
        _,
    ):
        await in_session(channel)
        await channel.send([call(1)])
        succeed = [await heard(channel, seconds=100) for _ in range(3)]

    assert succeed[:2] == [NOTE, NOTE]
    assert succeed[2]["id"] == 1
    assert polls[-1] - polls[0] > 20


async def test_an_open_stream_without_events_is_not_a_failure(autojump_clock):
    """Some proxies cut connections that have been silent for half a minute."""
    gets = []

    async def silence():
        await trio.sleep(29)
        for _ in ():
            yield b""

    async def listen(seen):
        if "last-event-id" not in seen.headers:
            return Reply(405)
        gets.append(seen)
        if len(gets) <= 2:
            return Reply(200, EVENTS, silence())
        return events(event({"jsonrpc": "2.0", "id": 1, "result": {}}))

    pieces = [event(text="", event_id="a-1")]
    limits = Limits(http=HttpLimits(resume_seconds=10))
    async with connected(resumable(*pieces, listen=listen), limits=limits) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])
        assert (await heard(channel, seconds=100))["id"] == 1


async def test_random_pauses_spread_reconnecting_clients(autojump_clock):
    at = []

    async def listen(seen):
        if "last-event-id" in seen.headers:
            at.append(trio.current_time())
        return Reply(405)

    pieces = [event(text="", event_id="a-1")]
    server = resumable(*pieces, listen=listen)
    async with connected(server, random_source=lambda: 0.5) as (channel, _):
        await in_session(channel)
        begun = trio.current_time()
        await channel.send([call(1)])
        lost = await heard(channel)

    assert at == [pytest.approx(begun + 0.75)]
    assert "HTTP 405" in str(lost.error)
    assert type(lost.error) is OutcomeUnknown  # the call itself was accepted


async def test_a_stream_without_ids_cannot_be_resumed():
    async with connected(resumable(event(NOTE))) as (channel, script):
        await in_session(channel)
        await channel.send([call(1)])
        items = []
        while len(items) < 2:
            items += await channel.receive()

    assert isinstance(items[1], Lost)
    assert len(script.of("GET")) == 1


async def test_a_stream_with_an_event_over_the_limit_cannot_be_resumed(autojump_clock):
    big = NOTE | {"params": {"a": "x" * 2000}}
    limits = Limits(messages=MessageLimits(bytes_max=1000))
    async with connected(resumable(event(big, event_id="a-1")), limits=limits) as (channel, script):
        await in_session(channel)
        await channel.send([call(1)])
        items = []
        while len(items) < 2:
            items += await channel.receive()

    assert isinstance(items[1], Lost)
    assert len(script.of("GET")) == 1


async def test_an_empty_event_id_makes_a_stream_not_resumable():
    pieces = [event(NOTE, event_id="a-1"), event(NOTE, event_id="")]
    async with connected(resumable(*pieces)) as (channel, script):
        await in_session(channel)
        await channel.send([call(1)])
        items = []
        while len(items) < 3:
            items += await channel.receive()

    assert isinstance(items[2], Lost)
    assert len(script.of("GET")) == 1


async def test_a_session_that_the_server_forgets_while_a_stream_is_resumed_ends(autojump_clock):
    async def listen(seen):
        return Reply(404 if "last-event-id" in seen.headers else 405)

    pieces = [event(text="", event_id="a-1")]
    async with connected(resumable(*pieces, listen=listen)) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])
        (lost,) = await channel.receive()
        assert await channel.receive() == []

    assert type(lost.error) is OutcomeUnknown


async def test_a_resumed_stream_has_to_be_an_event_stream(autojump_clock):
    async def listen(seen):
        return result(seen) if seen.body else Reply(200, {"content-type": "text/html"}, b"hello")

    pieces = [event(text="", event_id="a-1")]
    async with connected(resumable(*pieces, listen=listen)) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])

        assert "text/html" in str((await heard(channel)).error)


# The standalone stream


@pytest.mark.requirement("HTTP-27", "HTTP-28", "HTTP-35")
async def test_messages_of_no_request_are_received_on_the_standalone_stream():
    async def listen(_seen):
        async def body():
            yield event(NOTE, event_id="g-1")
            yield event(NOTE, name="other", event_id="g-2")
            yield event({"jsonrpc": "2.0", "id": "s-1", "method": "ping"})
            await trio.sleep_forever()

        return Reply(200, EVENTS, body())

    async with connected(Legacy(listen=listen)) as (channel, script):
        await in_session(channel)
        items = [json.loads(item) for item in await channel.receive()]

    assert [item["method"] for item in items] == ["notifications/message", "ping"]
    assert script.of("GET")[0].headers["accept"] == "text/event-stream"


@pytest.mark.requirement("TRAP-42")
@pytest.mark.parametrize("status", [400, 404, 405, 501])
async def test_a_server_may_have_no_standalone_stream(status, caplog, autojump_clock):
    async def listen(_seen):
        return Reply(status)

    async with connected(Legacy(listen=listen, answers={"tools/call": succeed})) as (
        channel,
        script,
    ):
        await in_session(channel)
        await channel.send([call(1)])
        assert (await heard(channel))["id"] == 1
        await trio.sleep(1000)

    assert caplog.text == ""
    assert len(script.of("GET")) == (6 if status == 501 else 1)


@pytest.mark.requirement("HTTP-33")
async def test_the_standalone_stream_is_opened_again_when_it_ends(autojump_clock):
    async def listen(seen):
        if seen.headers.get("last-event-id") == "g-1":
            await trio.sleep_forever()
        return events(event(NOTE, event_id="g-1", retry=3000))

    async with connected(Legacy(listen=listen)) as (channel, script):
        await in_session(channel)
        await heard(channel)
        await trio.sleep(2.9)
        assert len(script.of("GET")) == 1
        await trio.sleep(0.2)
        assert len(script.of("GET")) == 2


async def test_a_standalone_stream_is_given_up_after_failures_but_not_after_long_connections(
    autojump_clock,
):
    lives = [40.0] * 20

    async def listen(_seen):
        async def body():
            await trio.sleep(lives.pop() if lives else 0)
            for _ in ():
                yield b""

        return Reply(200, EVENTS, body())

    async with connected(Legacy(listen=listen)) as (channel, script):
        await in_session(channel)
        await trio.sleep(5000)
        assert len(script.of("GET")) == 20 + 6
        assert channel.state == "open"  # calls can be made


async def test_a_standalone_stream_that_is_not_found_any_more_ends_the_session(
    autojump_clock,
):
    async def listen(seen):
        return (
            Reply(404) if "last-event-id" in seen.headers else events(event(NOTE, event_id="g-1"))
        )

    async with connected(Legacy(listen=listen)) as (channel, _):
        await in_session(channel)
        assert await heard(channel) == NOTE

        assert await channel.receive() == []


async def test_an_unexpected_exception_on_the_standalone_stream_is_logged(caplog):
    async def listen(_seen):
        raise KeyError("mine")

    async with connected(Legacy(listen=listen)) as (channel, _):
        await in_session(channel)
        assert channel.state == "open"

    assert "the standalone stream failed" in caplog.text


async def test_an_answer_finishes_its_request_on_any_stream(autojump_clock):
    answer = trio.Event()

    async def listen(_seen):
        async def body():
            await answer.wait()
            yield event({"jsonrpc": "2.0", "id": 1, "result": {}})
            yield event({"jsonrpc": "2.0", "id": 2, "error": {"code": 1, "message": "no"}})
            yield event({"jsonrpc": "2.0", "id": 9, "result": {}})
            await trio.sleep_forever()

        return Reply(200, EVENTS, body())

    async def endless(_seen):
        async def body():
            yield event(text="", event_id="a-1")
            await trio.sleep_forever()

        return Reply(200, EVENTS, body())

    async with connected(Legacy(listen=listen, answers={"tools/call": endless})) as (
        channel,
        script,
    ):
        await in_session(channel)
        await channel.send([call(1), call(2)])
        answer.set()
        items = []
        while len(items) < 3:
            items += await channel.receive()
        await trio.sleep(3)

        assert [stream.is_set() for stream in script.closed] == [False, True, True]
        with trio.move_on_after(1) as nothing:
            await channel.receive()
        assert nothing.cancelled_caught


async def test_answers_may_arrive_as_a_batch_in_version_2025_03_26():
    async def batched(seen):
        vague = {"jsonrpc": "2.0", "error": {"code": 1, "message": "no"}}
        answers = [vague, answer_to(seen), {"jsonrpc": "2.0", "method": "notifications/x"}]
        return Reply(200, {"content-type": "application/json"}, json.dumps(answers).encode())

    async with connected(Legacy(answers={"tools/call": batched})) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])
        batch = await heard(channel)

    assert batch[1]["id"] == 1
