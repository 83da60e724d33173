"""HTTP sessions: timeouts, resumption, stores and the HTTP+SSE transport."""

import contextlib
import gc
import logging
import os
import tracemalloc
import weakref
from functools import partial

import attrs
import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import Context, Limits, Server
from mcp_trio._protocol.stores import MemoryEventStore
from mcp_trio.http import HttpStores
from mcp_trio.limits import KIB, HttpLimits
from mcp_trio.recording import RecordOptions, replay
from tests.server.http.conftest import (
    BOTH,
    call,
    harbour,
    has_received_nothing,
    hello,
    notes,
    notification,
    site_of,
    text,
)

SOON = {"session_unused_seconds": 50, "session_idle_seconds": 1000}


@pytest.fixture
def bounded(open_site):
    async def bounded(**http):
        return await open_site(harbour(limits=Limits(http=HttpLimits(**http))))

    return bounded


async def test_a_session_that_is_never_used_ends_soon(bounded, autojump_clock):
    site = await bounded(**SOON)
    client = await site.open(ready=False)
    await trio.sleep(49)
    assert len(site.runtime.sessions) == 1
    await trio.sleep(7)
    assert len(site.runtime.sessions) == 0
    assert (await client.ask(call("tide"))).status == 404


@pytest.mark.parametrize("used_by", ["initialized", "a call", "a stream"])
async def test_a_single_message_or_stream_makes_a_session_used(bounded, used_by, autojump_clock):
    site = await bounded(**SOON)
    client = await site.open(ready=False)
    if used_by == "a stream":
        listening = client.listen()
        await listening.begun()
        listening.leave()
    else:
        messages = {
            "initialized": notification("notifications/initialized"),
            "a call": call("tide"),
        }
        await client.ask(messages[used_by])
    await trio.sleep(900)
    assert len(site.runtime.sessions) == 1
    await trio.sleep(250)
    assert len(site.runtime.sessions) == 0


async def test_a_session_with_a_pending_first_response_is_kept(bounded, autojump_clock):
    site = await bounded(**SOON)
    slow = site.begin("GET", path="/sse", accept="text/event-stream")
    path = "/" + (await slow.event()).data.decode()
    await trio.sleep(200)
    assert (await site.ask("POST", hello("2024-11-05"), path=path)).status == 202
    assert (await slow.message())["result"]["protocolVersion"] == "2024-11-05"


async def test_the_oldest_unused_session_makes_room_for_a_new_one(bounded, autojump_clock):
    site = await bounded(sessions_max=3)
    used = await site.open()
    oldest, unused = await site.open(ready=False), await site.open(ready=False)
    newest = await site.open()
    assert (await oldest.ask(call("tide"))).status == 404
    for client in (used, unused, newest):
        assert text((await client.ask(call("tide"))).json) == "high"
    rejected = await site.ask("POST", hello("2025-11-25"))
    assert rejected.status == 503
    assert "limits.http.sessions_max" in rejected.json["error"]["message"]
    assert len(site.runtime.sessions) == 3


async def test_a_session_that_is_still_starting_is_not_removed_for_room(bounded, autojump_clock):
    site = await bounded(sessions_max=1)
    site.begin("GET", path="/sse", accept="text/event-stream")
    await trio.sleep(1)
    assert (await site.ask("POST", hello("2025-11-25"))).status == 503


async def test_many_unused_sessions_do_not_block_other_clients(bounded, autojump_clock):
    site = await bounded(sessions_max=20)
    for _ in range(60):
        await site.open(ready=False)
    client = await site.open()
    assert text((await client.ask(call("tide"))).json) == "high"
    assert len(site.runtime.sessions) == 20


async def test_an_ended_session_leaves_no_reference_cycle(bounded, autojump_clock):
    site = await bounded(**SOON)
    client = await site.open()
    await client.ask(call("tide"))
    (kept,) = site.runtime.sessions
    references = [weakref.ref(kept), weakref.ref(kept.channel), weakref.ref(kept.session)]
    del kept
    await trio.sleep(7)
    assert len(site.runtime.sessions) == 1  # it was looked at, and is younger than the limit
    gc.collect()
    gc.disable()
    try:
        await client.delete()
        await trio.testing.wait_all_tasks_blocked()
        assert [each() for each in references] == [None, None, None]
    finally:
        gc.enable()


# Clients that reconnect before their old connection is found to be lost.


EVENTS = "text/event-stream"


@pytest.mark.requirement("HTTP-25", "HTTP-36", "HTTP-42", "HTTP-43", "TRAP-38")
async def test_a_resuming_client_takes_over_the_stream_of_its_old_connection(
    opened, autojump_clock
):
    client = await opened()
    asked = client.begin(call("log"))
    first = await asked.event()
    await asked.event()
    back = client.listen(first.id)
    messages = await back.rest()
    assert notes(messages) == ["one", "two"]
    assert text(messages[-1]) == "logged"
    assert not asked.is_ended  # it was broken off
    assert asked._events == []


@pytest.mark.requirement("HTTP-25", "HTTP-42")
async def test_a_stalled_connection_does_not_block_the_resumed_stream(opened, autojump_clock):
    client = await opened()
    asked = client.begin(call("log"))
    first = await asked.event()
    asked.stall()  # its client is gone, and the network does not say so
    await trio.sleep(1)
    back = client.listen(first.id)
    assert notes([await back.message()]) == ["one"]
    again = client.listen(first.id)  # and the network has changed once more
    messages = await again.rest()
    assert (notes(messages), text(messages[-1])) == (["one", "two"], "logged")
    assert not back.is_ended
    asked.leave()
    await trio.sleep(1)
    assert not asked.is_ended


@pytest.mark.requirement("HTTP-36", "HTTP-42")
async def test_the_get_stream_is_taken_over_only_with_a_last_event_id(opened, autojump_clock):
    client = await opened()
    listening = client.listen()
    first = await listening.event()
    assert (await client.ask(method="GET", accept=EVENTS)).status == 409
    await client.ask(call("ebb", id=1))
    assert (await listening.message())["method"]
    back = client.listen(first.id)
    assert (await back.message())["method"] == "notifications/tools/list_changed"
    assert (await client.ask(method="GET", accept=EVENTS)).status == 409
    await client.ask(call("ebb", id=2))
    assert (await back.message())["method"] == "notifications/tools/list_changed"
    await trio.sleep(1)
    assert not listening._events


async def test_a_response_that_was_taken_over_keeps_no_messages(opened, autojump_clock):
    client = await opened()
    asked = client.begin(call("log", {"seconds": 50}))
    first = await asked.event()
    await asked.event()
    back = client.listen(first.id)
    await back.message()
    asked.leave()
    await trio.sleep(100)
    assert notes(await back.rest()) == ["two"]


@pytest.mark.requirement("HTTP-25", "HTTP-42")
@pytest.mark.parametrize("host", ["native", "hypercorn"])
async def test_over_sockets_the_old_connection_is_aborted(nursery, host, caplog):
    server, may_end = Server("harbour"), trio.Event()

    @server.tool
    async def log(*, ctx: Context) -> str:
        await ctx.warning("one")
        await may_end.wait()
        return "logged"

    url = await nursery.start(partial(server.serve_http, port=0, server=host))
    async with httpx2.AsyncClient(base_url=url, headers={"Accept": BOTH}) as client:
        begun = await client.post("", json=hello("2025-11-25"))
        client.headers["Mcp-Session-Id"] = begun.headers["mcp-session-id"]
        await client.post("", json=notification("notifications/initialized"))
        async with client.stream("POST", "", json=call("log")) as old:
            lines = old.aiter_lines()
            async for line in lines:
                if line.startswith("id: "):
                    break
            last = {"Last-Event-ID": line.removeprefix("id: "), "Accept": EVENTS}
            async with client.stream("GET", "", headers=last) as new:
                with pytest.raises(httpx2.RemoteProtocolError):
                    _ = [line async for line in lines]
                may_end.set()
                received = [line async for line in new.aiter_lines()]
    assert ["one" in line or "logged" in line for line in received if "data: {" in line] == [
        True
    ] * 2
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


# Clients that resume a stream.


@pytest.mark.requirement("HTTP-25", "HTTP-42", "HTTP-43", "TRAP-38", "TRAP-39")
async def test_a_client_that_disconnected_resumes_its_response(opened, ended, autojump_clock):
    client = await opened()
    listening = client.listen()
    asked, other = client.begin(call("log", id=1)), client.begin(call("log", {"seconds": 9}, id=2))
    first = await asked.event()
    second = await asked.event()
    asked.leave()
    await trio.sleep(1)
    assert ended == []
    back = client.listen(second.id)
    messages = await back.rest()
    assert notes(messages) == ["two"]
    assert [each["id"] for each in messages if "id" in each] == [1]
    assert notes(await other.rest()) == ["one", "two"]
    assert has_received_nothing(listening)
    everything = await client.listen(first.id).rest()  # as long as it is kept
    assert (notes(everything), everything[-1]["id"]) == (["one", "two"], 1)


@pytest.mark.requirement("HTTP-25", "HTTP-32", "TRAP-38")
async def test_a_response_to_a_disconnected_client_is_kept(opened, ended, autojump_clock):
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
    assert has_received_nothing(listening)


async def test_events_that_were_sent_but_lost_can_be_resumed(opened, autojump_clock):
    client = await opened()
    asked = client.begin(call("log"))
    first = await asked.event()
    await asked.rest()
    messages = await client.listen(first.id).rest()
    assert (notes(messages), text(messages[-1])) == (["one", "two"], "logged")


async def test_resuming_an_ended_stream_after_its_last_event_is_rejected(opened, autojump_clock):
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
    messages = [await back.message(), await back.message()]
    assert {each["method"] for each in messages} == {"notifications/tools/list_changed"}
    await trio.sleep(1)
    assert has_received_nothing(back)


@pytest.mark.parametrize("event_id", ["9-1", "1-99", "x", "3"])
async def test_an_unknown_event_cannot_be_resumed(opened, event_id, autojump_clock):
    client = await opened()
    rejected = await client.ask(method="GET", accept=EVENTS, Last_Event_ID=event_id)
    assert rejected.status == 400
    assert "event" in rejected.json["error"]["message"]


async def test_the_events_kept_for_resumption_are_bounded(opened, autojump_clock):
    client = await opened(limits={"http": HttpLimits(events_kept_max=8)})
    asked = client.begin(call("log"))
    first = await asked.event()
    asked.leave()
    await client.ask(call("flood", {"count": 20}, id=2))
    await trio.sleep(9)
    rejected = await client.ask(method="GET", accept=EVENTS, Last_Event_ID=first.id)
    assert rejected.status == 400
    streams = client.site.runtime.sessions.use(client.id).channel._numbered
    assert not streams


async def test_a_client_that_does_not_read_is_disconnected_and_can_resume(opened, autojump_clock):
    client = await opened(limits={"http": HttpLimits(unsent_bytes_max=2000)})
    asked = client.begin(call("flood", {"count": 3}))
    first = await asked.event()
    messages = await asked.rest()
    assert (len(notes(messages)), text(messages[-1])) == (3, "flooded")
    slow = client.begin(call("flood", {"count": 300, "size": 50}, id=2))
    slow.stall()
    await trio.sleep(5)
    slow.read_on()
    await trio.sleep(1)
    assert not slow.is_ended
    back = await client.listen(f"{int(first.id.split('-')[0]) + 1}-1").rest()
    assert len(notes(back)) == 300
    assert text(back[-1]) == "flooded"


# Connections of limited duration.


SHORT = {"http": HttpLimits(stream_seconds_max=3, sse_retry_ms=700)}


async def all_events(exchange):
    """The events of a stream, when it has ended."""
    with trio.fail_after(60):
        while not exchange.is_ended:
            await trio.sleep(0.1)
    return [await exchange.event() for _ in range(len(exchange._events))]


@pytest.mark.requirement("HTTP-15", "HTTP-17", "HTTP-42", "TRAP-38")
async def test_a_long_stream_is_closed_and_can_be_resumed(opened, autojump_clock):
    client = await opened(limits=SHORT)
    begun = trio.current_time()
    *before, last = await all_events(client.begin(call("log", {"seconds": 5})))
    assert trio.current_time() - begun == pytest.approx(3, abs=0.5)
    assert len(before) == 2
    assert (last.data, last.retry_ms) == (b"", 700)
    after = await client.listen(last.id).rest()
    assert (notes(after), text(after[-1])) == (["two"], "logged")
    assert trio.current_time() - begun == pytest.approx(5)


async def test_a_stream_may_be_closed_and_resumed_repeatedly(opened, autojump_clock):
    client = await opened(limits=SHORT)
    *_, last = await all_events(client.begin(call("wait", {"seconds": 8})))
    (again,) = await all_events(client.listen(last.id))
    assert (again.data, again.retry_ms) == (b"", 700)
    assert again.id != last.id
    assert [text(each) for each in await client.listen(again.id).rest()] == ["waited"]


async def test_messages_sent_between_two_connections_are_not_lost(opened, autojump_clock):
    client = await opened(limits=SHORT)
    *_, last = await all_events(client.begin(call("log", {"seconds": 5})))
    await trio.sleep(9)
    after = await client.listen(last.id).rest()
    assert (notes(after), text(after[-1])) == (["two"], "logged")


@pytest.mark.requirement("HTTP-34")
async def test_a_long_get_stream_is_closed_and_can_be_resumed(opened, autojump_clock):
    client = await opened(limits=SHORT)
    *_, last = await all_events(client.listen())
    assert (last.data, last.retry_ms) == (b"", 700)
    await client.ask(call("ebb"))
    back = client.listen(last.id)
    assert (await back.message())["method"] == "notifications/tools/list_changed"


@pytest.mark.parametrize("protocol_version", ["2025-03-26", "2025-06-18"])
async def test_clients_of_versions_without_polling_keep_their_stream(
    opened, protocol_version, autojump_clock
):
    asked = (await opened(protocol_version, limits=SHORT)).begin(call("log", {"seconds": 9}))
    messages = await asked.rest()
    assert (notes(messages), text(messages[-1])) == (["one", "two"], "logged")


async def test_stateless_streams_are_not_closed_early(opened, autojump_clock):
    site = (await opened(limits=SHORT)).site
    asked = site.begin_stateless(call("wait", {"seconds": 9}))
    assert [text(each) for each in await asked.rest()] == ["waited"]


# Stores of sessions and events.


# Alternative implementations.


@attrs.define
class EventList:
    """All events that ever were, in one list."""

    events: list = attrs.field(factory=list)
    open: set = attrs.field(factory=set)
    streams: int = 0

    def open_stream(self, request_ids=()):  # noqa: ARG002
        self.streams += 1
        self.open.add(self.streams)
        return self.streams

    def keep(self, stream, data):
        if stream not in self.open:
            raise KeyError(stream)
        self.events.append((stream, data))
        return f"e{len(self.events)}"

    def append_ended_stream(self, events):
        stream = self.open_stream()
        ids = [self.keep(stream, data) for data in [b"", *events]]
        self.close_stream(stream)
        return ids

    def after(self, event_id):
        place = int(event_id[1:]) if event_id[1:].isdigit() else 0
        if not 0 < place <= len(self.events):
            raise LookupError(event_id)
        stream = self.events[place - 1][0]
        return stream, [
            (f"e{number}", data)
            for number, (other, data) in enumerate(self.events, 1)
            if number > place and other == stream
        ]

    def close_stream(self, stream):
        self.open.remove(stream)

    async def settle(self):
        await trio.lowlevel.checkpoint()

    async def load(self):
        return {}


@attrs.define(eq=False)
class Wire:
    """Changes that take their time, as if they went over a network."""

    members: list = attrs.field(factory=list)

    @contextlib.asynccontextmanager
    async def joined(self, on_change):
        send, receive = trio.open_memory_channel(100)

        async def carry():
            async for notice in receive:
                await trio.sleep(0.01)
                on_change(notice)

        def send_change(notice):
            for other in self.members:
                if other is not send:
                    other.send_nowait(notice)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(carry)
            self.members.append(send)
            yield send_change
            self.members.remove(send)
            nursery.cancel_scope.cancel()


EVENT_STORES = [lambda: MemoryEventStore(events_max=100, bytes_max=1000), EventList]
CHANGES = [lambda: HttpStores().changes, Wire]

TOOLS = ("notifications/tools/list_changed", None)


# The contract of stores.


@pytest.mark.parametrize("make", EVENT_STORES)
def test_a_store_returns_the_events_after_an_id_on_its_stream(make):
    store = make()
    one, two = store.open_stream(), store.open_stream()
    ids = [
        store.keep(one, b"a"),
        store.keep(two, b"x"),
        store.keep(one, b"b"),
        store.keep(one, b""),
    ]
    assert len(set(ids)) == 4
    assert store.after(ids[0]) == (one, [(ids[2], b"b"), (ids[3], b"")])
    assert store.after(ids[1]) == (two, [])


@pytest.mark.parametrize("make", EVENT_STORES)
def test_a_closed_stream_can_be_read_but_takes_no_events(make):
    store = make()
    stream = store.open_stream()
    first, second = store.keep(stream, b"a"), store.keep(stream, b"b")
    store.close_stream(stream)
    assert store.after(first) == (stream, [(second, b"b")])
    with pytest.raises(KeyError):
        store.keep(stream, b"c")
    with pytest.raises(KeyError):
        store.close_stream(stream)


@pytest.mark.parametrize("make", EVENT_STORES)
def test_an_appended_ended_stream_behaves_like_a_closed_stream(make):
    store = make()
    earlier = store.keep(store.open_stream(), b"x")
    first, second, third = store.append_ended_stream([b"a", b"b"])
    assert len({earlier, first, second, third}) == 4
    stream, events = store.after(first)
    assert events == [(second, b"a"), (third, b"b")]
    assert store.after(third) == (stream, [])
    assert store.after(earlier)[0] != stream
    with pytest.raises(KeyError):
        store.keep(stream, b"c")


@pytest.mark.parametrize("make", EVENT_STORES)
def test_an_event_id_that_was_never_issued_is_unknown(make):
    store = make()
    store.keep(store.open_stream(), b"a")
    for event_id in ("7-7", "e9", "", "x"):
        with pytest.raises(LookupError):
            store.after(event_id)
    with pytest.raises(KeyError):
        store.keep(7, b"b")


@pytest.mark.parametrize("make", CHANGES)
async def test_all_other_members_receive_the_changes_in_order(make, autojump_clock):
    changes, received = make(), {"a": [], "b": [], "c": []}
    async with (
        changes.joined(received["a"].append) as send_change,
        changes.joined(received["b"].append),
        changes.joined(received["c"].append),
    ):
        sent = [TOOLS, ("notifications/resources/updated", "sea://1"), TOOLS]
        for notice in sent:
            send_change(notice)
        await trio.sleep(1)
    assert received == {"a": [], "b": sent, "c": sent}


@pytest.mark.parametrize("make", CHANGES)
async def test_a_member_that_has_left_receives_no_changes(make, autojump_clock):
    changes, received = make(), []
    async with changes.joined([].append) as send_change:
        async with changes.joined(received.append):
            pass
        send_change(TOOLS)
        await trio.sleep(1)
    assert received == []


# Servers with alternative stores.


@pytest.mark.parametrize("make", [lambda _id: EventList(), None])
async def test_streams_are_resumed_from_any_store(open_site, make, autojump_clock):
    site = await open_site(harbour(), stores=HttpStores(events=make))
    client = await site.open()
    asked = client.begin(call("log"))
    await asked.event()
    second = await asked.event()
    asked.leave()
    await trio.sleep(9)
    back = await client.listen(second.id).rest()
    assert (notes(back), back[-1]["id"]) == (["two"], 1)


async def test_each_session_has_a_store_of_its_own(open_site, autojump_clock):
    made = {}

    def make(session_id):
        made[session_id] = EventList()
        return made[session_id]

    site = await open_site(harbour(), stores=HttpStores(events=make))
    clients = [await site.open() for _ in range(2)]
    assert set(made) == {client.id for client in clients}


@pytest.mark.parametrize("make", CHANGES)
async def test_clients_of_another_application_are_notified_of_a_change(
    open_site, make, autojump_clock
):
    stores = HttpStores(changes=make())
    here, there = [await open_site(harbour(), stores=stores) for _ in range(2)]
    client, other = await here.open(), await there.open()
    listening, hearing = client.listen(), other.listen()
    await client.ask(call("ebb"))
    changed = "notifications/tools/list_changed"
    assert (await listening.message())["method"] == changed
    assert (await hearing.message())["method"] == changed
    await trio.sleep(1)
    for exchange in (listening, hearing):  # it does not come back
        assert not [event for event in exchange._events if event.data]


# The HTTP+SSE transport of 2024-11-05.


async def begin(site, **headers):
    """A stream, and where to post to."""
    stream = site.begin("GET", path="/sse", accept="text/event-stream", **headers)
    event = await stream.event()
    assert event.name == "endpoint"
    return stream, "/" + event.data.decode()


async def opened(site, protocol_version="2024-11-05", **headers):
    stream, path = await begin(site, **headers)
    assert (await site.ask("POST", hello(protocol_version), path=path, **headers)).status == 202
    assert (await stream.message())["result"]["protocolVersion"] == protocol_version
    await site.ask("POST", notification("notifications/initialized"), path=path, **headers)
    return stream, path


@pytest.mark.requirement("SSE-01", "SSE-02", "SSE-04", "SSE-08", "TRAP-43")
async def test_responses_are_sent_on_the_sse_stream(open_site, autojump_clock):
    site = await open_site(harbour())
    stream, path = await opened(site)
    assert stream.headers["content-type"] == "text/event-stream"
    for id_, name in ((1, "log"), (2, "tide")):
        answer = await site.ask("POST", call(name, id=id_), path=path)
        assert (answer.status, answer.answer_body) == (202, b"")
    messages = [await stream.message() for _ in range(4)]
    assert notes(messages) == ["one", "two"]
    assert [text(each) for each in messages if "id" in each] == ["high", "logged"]


async def test_a_batch_is_answered_message_by_message(open_site, autojump_clock):
    site = await open_site(harbour())
    stream, path = await opened(site, "2025-03-26")
    await site.ask("POST", [call("tide", id=1), call("tide", id=2)], path=path)
    assert {(await stream.message())["id"], (await stream.message())["id"]} == {1, 2}


@pytest.mark.slow
async def test_a_session_lives_as_long_as_its_stream(open_site, autojump_clock):
    site = await open_site(harbour())
    stream, path = await opened(site)
    await trio.sleep(10_000)
    assert (await site.ask("POST", call("tide"), path=path)).status == 202
    stream.leave()
    await trio.sleep(1)
    assert len(site.runtime.sessions) == 0
    assert (await site.ask("POST", call("tide"), path=path)).status == 404


async def test_the_stream_ends_when_the_server_closes(open_site, autojump_clock):
    site = await open_site(harbour())
    stream, _path = await opened(site)
    site.runtime.close()
    assert await stream.rest() == []


@pytest.mark.parametrize("path", ["/messages", "/messages?session_id=none", "/messages?x=1"])
async def test_an_unknown_session_is_not_found(open_site, path, autojump_clock):
    site = await open_site(harbour())
    assert (await site.ask("POST", call("tide"), path=path)).status == 404


@pytest.mark.requirement("HTTP-32")
async def test_sse_and_streamable_http_sessions_do_not_mix(open_site, autojump_clock):
    site = await open_site(harbour())
    _stream, path = await opened(site)
    client = await site.open()
    posted = await site.ask("POST", call("tide"), path=f"/messages?session_id={client.id}")
    assert posted.status == 404
    client.id = path.partition("=")[2]
    assert (await client.ask(call("tide"))).status == 404


@pytest.mark.requirement("SSE-07", "HTTP-61")
async def test_a_stream_belongs_to_the_principal_that_opened_it(open_site, autojump_clock):
    async def verify(head):
        return head.header("authorization")

    site = await open_site(harbour(auth=verify))
    assert (await site.ask("GET", path="/sse")).status == 401
    _stream, path = await opened(site, Authorization="me")
    rejected = await site.ask("POST", call("tide"), path=path, Authorization="you")
    assert rejected.status == 404


@pytest.mark.parametrize(("method", "path"), [("POST", "/sse"), ("GET", "/messages")])
async def test_each_sse_endpoint_allows_one_method(open_site, method, path, autojump_clock):
    site = await open_site(harbour())
    rejected = await site.ask(method, path=path)
    assert (rejected.status, rejected.headers["allow"]) == (
        405,
        "GET" if method == "POST" else "POST",
    )


async def test_an_invalid_message_is_a_bad_request(open_site, autojump_clock):
    site = await open_site(harbour())
    _stream, path = await opened(site)
    rejected = await site.ask("POST", b"{", path=path)
    assert (rejected.status, rejected.json["error"]["code"]) == (400, -32700)


@pytest.mark.requirement("SSE-05", "TRAP-44")
@pytest.mark.parametrize(("method", "path"), [("GET", "/sse"), ("POST", "/messages")])
async def test_a_page_of_another_origin_is_rejected(open_site, method, path, autojump_clock):
    site = await open_site(harbour())
    rejected = await site.ask(method, path=path, Origin="http://evil.example")
    assert rejected.status == 403
    assert len(site.runtime.sessions) == 0


async def test_the_sse_endpoints_can_be_disabled(open_site, autojump_clock):
    site = await open_site(harbour(), has_sse=False)
    assert (await site.ask("GET", path="/sse")).status == 404


# Idle sessions have no tasks and take little memory.


SESSIONS = 100
KIB_MAX = 5


def tasks_living():
    return trio.lowlevel.current_statistics().tasks_living


async def has_come_to_rest():
    await trio.sleep(60)  # whoever only waits for a while has gone by then
    return tasks_living()


@pytest.mark.slow
async def test_idle_sessions_have_no_tasks(open_site, autojump_clock):
    site = await open_site(harbour())
    await site.open()
    before = await has_come_to_rest()
    clients = [await site.open() for _ in range(SESSIONS)]
    assert len(site.runtime.sessions) == SESSIONS + 1
    assert await has_come_to_rest() <= before
    for client in clients:
        assert text((await client.ask(call("tide"))).json) == "high"
    assert await has_come_to_rest() <= before


@pytest.mark.slow
async def test_a_session_is_idle_again_after_its_requests(open_site, autojump_clock):
    server = harbour()
    notified = []

    @server.method("notifications/acme/horn")
    async def horn() -> None:
        await trio.sleep(1)
        notified.append("horn")

    site = await open_site(server)
    client = await site.open()
    before = await has_come_to_rest()
    asked = client.begin(call("log"))
    await asked.begun()
    await client.ask(notification("notifications/acme/horn"))
    await client.ask(call("ebb", id=2))
    assert tasks_living() > before
    await asked.rest()
    assert await has_come_to_rest() <= before
    assert notified == ["horn"]
    listening = client.listen()
    assert (await listening.message())["method"] == "notifications/tools/list_changed"


@pytest.mark.slow
async def test_an_idle_session_takes_little_memory(open_site, autojump_clock):
    site = await open_site(harbour())
    for _ in range(SESSIONS):
        await use_one(site)
    await has_come_to_rest()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(4 * SESSIONS):
            await use_one(site)
        await has_come_to_rest()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown / (4 * SESSIONS) <= KIB_MAX * KIB


async def use_one(site):
    client = await site.open()
    await client.ask(call("tide"))


@pytest.mark.slow
async def test_ended_sessions_leave_nothing_in_the_server(open_site, autojump_clock):
    site = await open_site(harbour())
    before = await has_come_to_rest()
    for _ in range(SESSIONS):
        client = await site.open()
        await client.ask(call("tide"))
        await client.delete()
    assert await has_come_to_rest() <= before
    sessions = site.runtime.server
    assert len(site.runtime.sessions) == 0
    assert len(sessions.change_notifier.listeners) <= 1  # that of all stateless requests
    assert sessions._counter._all.opened == sessions._counter._all.closed + 1


@pytest.mark.slow
@pytest.mark.parametrize("is_awake", [False, True])
async def test_an_idle_session_ends_with_a_complete_recording(
    open_site, tmp_path, is_awake, autojump_clock
):
    site = await open_site(harbour(), record=tmp_path)
    client = await site.open()
    await client.ask(call("tide"))
    asked = client.begin(call("wait", {"seconds": 60})) if is_awake else None
    await trio.sleep(1)
    site.runtime.close()
    await site.runtime.ended.wait()
    if asked is not None:
        await asked.rest()
    (recorded,) = [each for each in tmp_path.iterdir() if b'"initialize"' in each.read_bytes()]
    report = await trio.to_thread.run_sync(replay, recorded, harbour())
    assert report.is_complete


@pytest.mark.slow
async def test_a_handler_that_ends_the_process_ends_every_session_in_order(tmp_path):
    server = Server("harbour")

    @server.tool
    async def leave() -> str:
        raise SystemExit(3)

    sites = []

    async def serve():
        async with site_of(server, record=tmp_path) as site:
            sites.append(site)
            clients = [await site.open() for _ in range(3)]
            clients[0].begin(call("leave"))
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await serve()
    assert caught.value.subgroup(SystemExit)
    assert sites[0].runtime.ended.is_set()
    files = [each.read_text().splitlines() for each in tmp_path.iterdir()]
    assert len(files) == 4  # one more for all stateless requests
    assert all('"end"' in lines[-1] for lines in files)


@pytest.mark.slow
@pytest.mark.parametrize("leads", [False, True])
async def test_a_strict_recording_detects_untracked_calls_in_each_session(
    open_site, tmp_path, autojump_clock
):
    server = Server("harbour")

    @server.tool
    async def process() -> int:
        return os.getpid()

    site = await open_site(server, record=RecordOptions(tmp_path, strict=True))
    for _ in range(2):
        client = await site.open()
        answer = await client.ask(call("process"))
        assert answer.json["result"]["isError"]
        await client.delete()
    stateless = await site.ask_stateless(call("process"))
    assert stateless.json["result"]["isError"]
    site.runtime.close()
    await site.runtime.ended.wait()
