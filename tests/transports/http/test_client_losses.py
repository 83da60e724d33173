"""The HTTP client channel with a stateless server: broken connections and oversized messages."""

import json

import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import ConnectionLost, Limits
from mcp_trio.errors import OutcomeUnknown
from mcp_trio.limits import MessageLimits
from mcp_trio.transports import Oversized
from tests.transports.http.scripted_server import (
    EVENTS,
    STATELESS,
    Modern,
    Reply,
    answer_to,
    asking,
    connected,
    event,
    events,
    heard,
    result,
    telling,
)


def call(number, name="add", **arguments):
    return asking(number, "tools/call", STATELESS, name=name, arguments=arguments)


async def succeed(seen):
    return result(seen, content=[])


# Broken streams and cancelled requests


@pytest.mark.requirement("MHTTP-25")
async def test_a_stateless_stream_that_ends_before_the_answer_is_not_resumed(autojump_clock):
    async def cut(_seen):
        return events(event(text="", event_id="e-1", retry=1))

    async with connected(Modern(answers={"tools/call": cut})) as (channel, script):
        await channel.send([call(1)])
        lost = await heard(channel)

    assert lost.id == 1
    assert isinstance(lost.error, OutcomeUnknown)
    assert len(script.seen) == 1


@pytest.mark.requirement("MHTTP-13", "CANC-13")
async def test_a_stateless_request_is_cancelled_by_closing_its_stream():
    async def endless(_seen):
        async def body():
            yield b": begun\n\n"
            await trio.sleep_forever()

        return Reply(200, EVENTS, body())

    async with connected(Modern(answers={"tools/call": endless})) as (channel, script):
        await channel.send([call(1)])
        await trio.testing.wait_all_tasks_blocked()
        assert not script.closed[0].is_set()
        await channel.send([telling("notifications/cancelled", requestId=1)])
        with trio.fail_after(5):
            await script.closed[0].wait()
        await channel.send([telling("notifications/cancelled", requestId=1)])
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.05) as nothing:  # nor is there anything to say to the session
            await channel.receive()

    assert nothing.cancelled_caught
    assert len(script.seen) == 1


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (httpx2.ConnectError("rejected"), ConnectionLost),
        (httpx2.ConnectTimeout("late"), ConnectionLost),
        (httpx2.ReadError(""), OutcomeUnknown),
        (httpx2.RemoteProtocolError("no HTTP"), OutcomeUnknown),
    ],
)
async def test_a_network_error_fails_only_the_request_in_flight(fault, kind):
    faults, states = [fault], []

    async def answer(seen):
        if faults:
            raise faults.pop()
        return await succeed(seen)

    told = lambda *news: states.append(news)  # noqa: E731
    async with connected(Modern(answers={"tools/call": answer}), on_state=told) as (channel, _):
        await channel.send([call(1)])
        lost = await heard(channel)
        assert channel.state == "retrying"
        assert "http://mcp.test/mcp" in channel.reason
        await channel.send([call(2)])
        assert (await heard(channel))["id"] == 2
        assert channel.state == "open"

    assert (lost.id, type(lost.error), lost.error.__cause__) == (1, kind, fault)
    assert [state for state, _ in states] == ["connecting", "retrying", "open", "closed"]


async def test_an_unexpected_exception_fails_the_request_and_is_logged(caplog):
    async def raising(_seen):
        raise KeyError("mine")

    async with connected(Modern(answers={"tools/call": raising})) as (channel, _):
        await channel.send([call(1)])
        lost = await heard(channel)

    assert type(lost.error) is ConnectionLost
    assert "an HTTP request failed" in caplog.text


async def test_an_error_after_the_answer_fails_no_request(caplog):
    async def strange(seen):
        async def body():
            yield event(answer_to(seen, content=[]))
            raise KeyError("mine")

        return Reply(200, EVENTS, body())

    async with connected(Modern(answers={"tools/call": strange})) as (channel, _):
        await channel.send([call(1)])
        assert (await heard(channel))["id"] == 1
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0) as nothing:
            await channel.receive()

    assert nothing.cancelled_caught
    assert "an HTTP request failed" in caplog.text


# Limits


async def test_an_event_over_the_limit_is_reported_and_the_stream_is_read_on(autojump_clock):
    async def large(seen):
        big = {"jsonrpc": "2.0", "method": "notifications/x", "params": {"a": "x" * 2000}}
        return events(event(big), event(answer_to(seen, content=[])))

    limits = Limits(messages=MessageLimits(bytes_max=1000))
    async with connected(Modern(answers={"tools/call": large}), limits=limits) as (channel, _):
        await channel.send([call(1)])
        items = []
        while len(items) < 2:
            items += await channel.receive()

    assert isinstance(items[0], Oversized)
    assert json.loads(items[1])["id"] == 1


async def test_a_stream_that_ends_after_an_event_over_the_limit_names_the_limit(autojump_clock):
    async def large(seen):
        return events(event(answer_to(seen, content=["x" * 2000])))

    limits = Limits(messages=MessageLimits(bytes_max=1000))
    async with connected(Modern(answers={"tools/call": large}), limits=limits) as (channel, _):
        await channel.send([call(1)])
        items = []
        while len(items) < 2:
            items += await channel.receive()

    assert isinstance(items[0], Oversized)
    assert "after a message over limits.messages.bytes_max before the answer came" in str(
        items[1].error
    )


async def test_a_body_over_the_limit_is_reported_and_fails_its_request():
    async def large(seen):
        return result(seen, content=["x" * 2000])

    limits = Limits(messages=MessageLimits(bytes_max=1000))
    async with connected(Modern(answers={"tools/call": large}), limits=limits) as (channel, _):
        await channel.send([call(1)])
        oversized, lost = await channel.receive()

    assert isinstance(oversized, Oversized)
    assert len(oversized.prefix) <= 1000
    assert "limits.messages.bytes_max" in str(lost.error)


async def test_streams_are_read_no_faster_than_the_session_receives(autojump_clock):
    given = []
    note = {"jsonrpc": "2.0", "method": "notifications/x", "params": {"a": "x" * 500}}

    async def endless(seen):
        async def body():
            for number in range(100):
                given.append(number)
                yield event(note)
            yield event(answer_to(seen, content=[]))

        return Reply(200, EVENTS, body())

    limits = Limits(messages=MessageLimits(chunk_bytes=2000))
    async with connected(Modern(answers={"tools/call": endless}), limits=limits) as (channel, _):
        await channel.send([call(1)])
        await trio.testing.wait_all_tasks_blocked()
        assert len(given) < 10
        arrived = []
        while len(arrived) < 101:
            arrived += await channel.receive()

    assert json.loads(arrived[-1])["id"] == 1
