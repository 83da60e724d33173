"""Clients of a session that go away, and come back for what they have missed."""

import pytest
import trio
import trio.testing

from mcp_trio.limits import HttpLimits
from tests.server.http.conftest import (
    call,
    has_heard_nothing,
    notes,
    text,
)

EVENTS = "text/event-stream"


@pytest.mark.requirement("HTTP-25", "HTTP-42", "HTTP-43", "TRAP-38", "TRAP-39")
async def test_a_client_that_left_comes_back_for_its_answer(opened, ended, autojump_clock):
    client = await opened()
    listening = client.listen()
    asked, other = client.begin(call("log", id=1)), client.begin(call("log", {"seconds": 9}, id=2))
    first = await asked.event()
    second = await asked.event()
    asked.leave()
    await trio.sleep(1)
    assert ended == []
    back = client.listen(second.id)
    said = await back.rest()
    assert notes(said) == ["two"]
    assert [each["id"] for each in said if "id" in each] == [1]
    assert notes(await other.rest()) == ["one", "two"]
    assert has_heard_nothing(listening)
    everything = await client.listen(first.id).rest()  # as long as it is kept
    assert (notes(everything), everything[-1]["id"]) == (["one", "two"], 1)


@pytest.mark.requirement("HTTP-25", "HTTP-32", "TRAP-38")
async def test_an_answer_that_came_while_nobody_was_there_is_kept(opened, ended, autojump_clock):
    client = await opened()
    asked = client.begin(call("wait", {"seconds": 5}))
    first = await asked.event()
    asked.leave()
    await trio.sleep(9)
    assert ended == ["done"]
    listening = client.listen()
    back = client.listen(first.id)
    assert [text(each) for each in await back.rest()] == ["waited"]
    await trio.sleep(1)
    assert has_heard_nothing(listening)


async def test_what_was_sent_but_has_not_arrived_can_be_asked_for(opened, autojump_clock):
    client = await opened()
    asked = client.begin(call("log"))
    first = await asked.event()
    await asked.rest()
    said = await client.listen(first.id).rest()
    assert (notes(said), text(said[-1])) == (["one", "two"], "logged")


async def test_an_ended_stream_with_nothing_more_is_not_listened_to(opened, autojump_clock):
    client = await opened()
    asked = client.begin(call("log"))
    first = await asked.event()
    await asked.rest()
    last = f"{first.id.split('-')[0]}-4"
    rejected = await client.ask(method="GET", accept=EVENTS, Last_Event_ID=last)
    assert (rejected.status, rejected.headers["allow"]) == (405, "POST, DELETE")
    assert last in rejected.json["error"]["message"]


@pytest.mark.requirement("HTTP-42")
async def test_the_get_stream_is_resumed_too(opened, autojump_clock):
    client = await opened()
    listening = client.listen()
    first = await listening.event()
    await client.ask(call("ebb", id=1))
    assert (await listening.message())["method"]
    listening.leave()
    await trio.sleep(1)
    await client.ask(call("ebb", id=2))
    back = client.listen(first.id)
    said = [await back.message(), await back.message()]
    assert {each["method"] for each in said} == {"notifications/tools/list_changed"}
    await trio.sleep(1)
    assert has_heard_nothing(back)


@pytest.mark.parametrize("event_id", ["9-1", "1-99", "x", "3"])
async def test_an_event_that_nobody_knows_cannot_be_resumed(opened, event_id, autojump_clock):
    client = await opened()
    rejected = await client.ask(method="GET", accept=EVENTS, Last_Event_ID=event_id)
    assert rejected.status == 400
    assert "event" in rejected.json["error"]["message"]


async def test_what_is_kept_is_bounded(opened, autojump_clock):
    client = await opened(limits={"http": HttpLimits(events_kept_max=8)})
    asked = client.begin(call("log"))
    first = await asked.event()
    asked.leave()
    await client.ask(call("flood", {"count": 20}, id=2))
    await trio.sleep(9)
    rejected = await client.ask(method="GET", accept=EVENTS, Last_Event_ID=first.id)
    assert rejected.status == 400
    streams = client.site.runtime.sessions.used(client.id).channel._streams
    assert not streams


async def test_a_client_that_does_not_read_is_given_up_and_may_come_back(opened, autojump_clock):
    client = await opened(limits={"http": HttpLimits(unsent_bytes_max=2000)})
    asked = client.begin(call("flood", {"count": 3}))
    first = await asked.event()
    said = await asked.rest()
    assert (len(notes(said)), text(said[-1])) == (3, "flooded")
    slow = client.begin(call("flood", {"count": 300, "size": 50}, id=2))
    slow.stall()
    await trio.sleep(5)
    slow.read_on()
    await trio.sleep(1)
    assert not slow.is_ended
    back = await client.listen(f"{int(first.id.split('-')[0]) + 1}-1").rest()
    assert len(notes(back)) == 300
    assert text(back[-1]) == "flooded"
