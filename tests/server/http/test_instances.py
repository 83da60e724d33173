"""Instances that serve together: forwarded requests, lost owners, and sessions handed over."""

import attrs
import pytest
import trio

from mcp_trio import Context, Limits
from mcp_trio._protocol.stores import MemoryEventStore
from mcp_trio._server.instances import MemoryInstance
from mcp_trio.http import HttpStores, MemoryInstances, StoreUnavailableError
from mcp_trio.limits import HttpLimits, ShutdownLimits
from mcp_trio.recording import replay
from tests.server.http.conftest import call, harbour, hello, notes, notification, request, text

BROKEN_OFF = 502


@attrs.define
class EventsOfAll:
    """Events of all sessions, which each instance can load."""

    stored: dict = attrs.field(factory=dict)

    def of(self, session_id):
        return SharedEvents(self.stored.setdefault(session_id, {}))


@attrs.define
class SharedEvents:
    """A `MemoryEventStore` whose events other instances can load."""

    stored: dict
    buffer: MemoryEventStore = attrs.field(
        factory=lambda: MemoryEventStore(events_max=100, bytes_max=10_000)
    )

    def open_stream(self, request_ids=()):
        stream = self.buffer.open_stream()
        self.stored[stream] = [list(request_ids), [], True]
        return stream

    def keep(self, stream, data):
        self.stored[stream][1].append(bytes(data))
        return self.buffer.keep(stream, data)

    def append_ended_stream(self, events):
        stream = self.open_stream()
        ids = [self.keep(stream, data) for data in [b"", *events]]
        self.close_stream(stream)
        return ids

    def after(self, event_id):
        return self.buffer.after(event_id)

    def close_stream(self, stream):
        self.stored[stream][2] = False
        self.buffer.close_stream(stream)

    async def settle(self):
        await trio.lowlevel.checkpoint()

    async def load(self):
        for stream, (_, events, is_open) in self.stored.items():
            self.buffer.restore(stream, 1, events, is_open=is_open)
        return {stream: ids for stream, (ids, _, is_open) in self.stored.items() if is_open}


@pytest.fixture
def stores():
    return HttpStores(instances=MemoryInstances(), events=EventsOfAll().of)


@pytest.fixture
def open_sites(open_site, stores):
    async def open_sites(count=2, make=harbour):
        return [await open_site(make(), stores=stores) for _ in range(count)]

    return open_sites


def counting():
    """A server that counts in each session, and reports that."""
    server = harbour()

    @server.tool
    async def count(*, ctx: Context) -> int:
        ctx.state["count"] = ctx.state.get("count", 0) + 1
        return ctx.state["count"]

    return server


def name_of(site):
    return site.runtime.forwarder.instance.name


async def ask(site, client, message, **headers):
    """Send a message of a client to another instance than its own."""
    return await site.ask("POST", message, Mcp_Session_Id=client.id, **headers)


def listen(site, client, last_event_id=None):
    headers = {"Mcp_Session_Id": client.id, "Last_Event_ID": last_event_id}
    return site.begin("GET", accept="text/event-stream", **headers)


# Forwarding.


async def test_another_instance_forwards_a_call_to_the_owner(open_sites, autojump_clock):
    here, there = await open_sites()
    client = await there.open()
    answer = await ask(here, client, call("tide"))
    assert (answer.status, text(answer.json)) == (200, "high")
    assert answer.headers["mcp-session-id"] == client.id
    assert len(here.runtime.sessions) == 0


async def test_a_forwarded_event_stream_arrives_piece_by_piece(open_sites, autojump_clock):
    here, there = await open_sites()
    client = await there.open()
    asked = here.begin("POST", call("log"), Mcp_Session_Id=client.id)
    assert (await asked.message())["params"]["data"] == "one"
    assert not asked.is_ended
    assert notes(await asked.rest()) == ["two"]


async def test_a_question_of_a_handler_is_answered_through_another_instance(
    open_sites, autojump_clock
):
    here, there = await open_sites()
    client = await there.open("2025-06-18", {"sampling": {}})
    asked = here.begin("POST", call("ask"), Mcp_Session_Id=client.id)
    question = await asked.message()
    sampled = {"role": "assistant", "content": {"type": "text", "text": "north"}, "model": "m"}
    answer = {"jsonrpc": "2.0", "id": question["id"], "result": sampled}
    assert (await ask(here, client, answer)).status == 202
    assert text((await asked.rest())[-1]) == "north"


async def test_a_stream_is_listened_to_and_resumed_through_another_instance(
    open_sites, autojump_clock
):
    here, there = await open_sites()
    client = await there.open()
    listening = listen(here, client)
    first = await listening.event()
    await ask(here, client, call("ebb"))
    assert (await listening.message())["method"] == "notifications/tools/list_changed"
    listening.leave()
    await trio.sleep(1)
    resumed = listen(here, client, first.id)
    assert (await resumed.message())["method"] == "notifications/tools/list_changed"


async def test_a_forwarded_client_that_disconnects_cancels_nothing_and_resumes(
    open_sites, autojump_clock
):
    here, there = await open_sites()
    client = await there.open()
    asked = here.begin("POST", call("log"), Mcp_Session_Id=client.id)
    await asked.event()
    seen = await asked.event()
    asked.leave()
    await trio.sleep(9)
    assert not there.runtime.forwarder.peers()
    back = await listen(there, client, seen.id).rest()
    assert (notes(back), back[-1]["id"]) == (["two"], 1)


@pytest.mark.requirement("HTTP-51")
async def test_a_session_is_ended_through_another_instance(open_sites, stores, autojump_clock):
    here, there = await open_sites()
    client = await there.open()
    assert (await here.ask("DELETE", Mcp_Session_Id=client.id)).status == 200
    for site in (here, there):
        assert (await ask(site, client, call("tide"))).status == 404
    assert not stores.instances.sessions


async def test_a_session_of_another_principal_is_unknown_on_all_instances(
    open_site, stores, autojump_clock
):
    async def verify(head):
        return head.header("authorization")

    here, there = [await open_site(harbour(auth=verify), stores=stores) for _ in range(2)]
    client = await there.open(Authorization="anna")
    assert (await ask(here, client, call("tide"), Authorization="anna")).status == 200
    assert (await ask(here, client, call("tide"), Authorization="bert")).status == 404
    assert (await ask(there, client, call("tide"), Authorization="bert")).status == 404


async def test_an_unknown_session_is_unknown_on_all_instances(open_sites, autojump_clock):
    here, _ = await open_sites()
    assert (await here.ask("POST", call("tide"), Mcp_Session_Id="x")).status == 404


async def test_posts_of_http_with_sse_are_forwarded(open_sites, autojump_clock):
    here, there = await open_sites()
    stream = there.begin("GET", path="/sse", accept="text/event-stream")
    path = "/" + (await stream.event()).data.decode()
    assert (await there.ask("POST", hello("2024-11-05"), path=path)).status == 202
    await stream.message()
    await there.ask("POST", notification("notifications/initialized"), path=path)
    assert (await here.ask("POST", call("tide"), path=path)).status == 202
    assert text(await stream.message()) == "high"


async def test_a_slow_client_of_another_instance_slows_the_owner_down(
    open_site, stores, autojump_clock
):
    limits = Limits(http=HttpLimits(unsent_bytes_max=1000, events_kept_bytes_max=200))
    here, there = [await open_site(harbour(limits=limits), stores=stores) for _ in range(2)]
    client = await there.open()
    asked = here.begin("POST", call("flood", {"count": 100, "size": 100}), Mcp_Session_Id=client.id)
    asked.stall()
    await trio.sleep(5)
    forwarded = next(iter(there.runtime.forwarder._received.values()), None)
    assert forwarded is None or forwarded._unread_bytes <= 2200
    asked.read_on()
    await trio.sleep(5)
    assert not there.runtime.forwarder.peers()


async def test_large_requests_of_one_client_do_not_break_off_those_of_others(
    open_site, autojump_clock
):
    limits = Limits(http=HttpLimits(unconfirmed_bytes_max=20_000))
    stores = HttpStores(instances=MemoryInstances())
    here, there = [await open_site(harbour(limits=limits), stores=stores) for _ in range(2)]
    client, other = await there.open(), await there.open()
    large = {"name": "wait", "arguments": {"seconds": 50}, "_meta": {"padding": "x" * 8000}}

    async def begin(client, params, number):
        message = request("tools/call", params, number)
        asked = here.begin(
            "POST", message, Mcp_Session_Id=client.id, accept="application/json"
        )  # The response begins at the end of the call.
        await trio.sleep(1)
        return asked

    first = await begin(client, large, 1)
    rejected = await begin(client, large, 2)
    small = await begin(other, {"name": "tide"}, 1)
    assert (rejected.status, rejected.headers["retry-after"]) == (503, "1")
    assert b"limits.http.unconfirmed_bytes_max=20000" in rejected.answer_body
    assert text(small.json) == "high"
    assert (await first.begun()).status == 200
    again = await begin(client, large, 3)
    assert (await again.begun()).status == 200


async def test_the_store_is_away(open_sites, stores, monkeypatch, caplog, autojump_clock):
    here, there = await open_sites()
    client = await there.open()

    async def find(_id):
        raise StoreUnavailableError("Redis at 10.0.0.5:6379/0 does not answer")

    monkeypatch.setattr(type(here.runtime.forwarder.instance), "find", lambda _, id_: find(id_))
    assert (await client.ask(call("tide"))).status == 200
    rejected = await ask(here, client, call("tide"))
    assert (rejected.status, rejected.headers["retry-after"]) == (503, "1")
    assert b"10.0.0.5" not in rejected.answer_body
    assert "10.0.0.5" in caplog.text


async def test_a_request_to_the_owner_needs_no_store(
    open_sites, stores, monkeypatch, autojump_clock
):
    here, there = await open_sites()
    client = await there.open()
    for message in (request("logging/setLevel", {"level": "error"}, 1), call("tide", id=2)):
        await client.ask(message)
    used = []

    def note(name, original):
        def noted(*args):
            used.append(name)
            return original(*args)

        monkeypatch.setattr(MemoryInstance, name, noted)

    of_calls = ("post_call_entry", "store_call_entry")
    for name in ("keep", *of_calls, "settle", "find", "take", "is_lost", "send"):
        note(name, getattr(MemoryInstance, name))
    for number in range(3, 6):
        assert text((await client.ask(call("tide", id=number))).json) == "high"
    await trio.sleep(10)
    assert used == []
    assert text((await ask(here, client, call("tide", id=6))).json) == "high"
    assert used == ["find", "send", "send"]  # the request and its answer


# Owners that are lost.


def lose(stores, site):
    stores.instances.lose(name_of(site))


async def test_a_session_of_a_lost_owner_goes_on_in_another_instance(
    open_sites, stores, autojump_clock
):
    here, there = await open_sites()
    client = await there.open()
    assert (await client.ask(request("logging/setLevel", {"level": "error"}))).status == 200
    lose(stores, there)
    asked = here.begin("POST", call("log"), Mcp_Session_Id=client.id)
    (answer,) = await asked.rest()  # without notes, because of the level
    assert text(answer) == "logged"
    assert len(here.runtime.sessions) == 1
    assert (await ask(here, client, call("tide", id=2))).headers["mcp-session-id"] == client.id


async def test_a_request_that_the_lost_owner_had_taken_has_an_unknown_outcome(
    open_sites, stores, autojump_clock
):
    here, there = await open_sites()
    client = await there.open()
    asked = here.begin("POST", call("wait", {"seconds": 50}), Mcp_Session_Id=client.id)
    await trio.sleep(0.1)
    lose(stores, there)
    await asked.begun()
    assert asked.status == BROKEN_OFF
    assert b"outcome is unknown" in asked.answer_body
    assert text((await ask(here, client, call("tide", id=2))).json) == "high"


async def test_an_outcome_is_unknown_if_the_store_fails_when_the_owner_is_lost(
    open_sites, stores, monkeypatch, autojump_clock
):
    async def fail(*_):
        raise StoreUnavailableError("the store does not answer")

    here, there = await open_sites()
    client = await there.open()
    asked = here.begin("POST", call("wait", {"seconds": 50}), Mcp_Session_Id=client.id)
    await trio.sleep(0.1)
    for name in ("find", "unread"):
        monkeypatch.setattr(MemoryInstance, name, fail)
    lose(stores, there)
    await asked.begun()
    assert asked.status == BROKEN_OFF
    assert b"outcome is unknown" in asked.answer_body


async def test_an_unknown_outcome_is_no_reason_to_repeat_a_request_on_a_full_instance(
    open_sites, stores, autojump_clock
):
    limits = Limits(http=HttpLimits(sessions_max=1))
    here, there = await open_sites(make=lambda: harbour(limits=limits))
    own, client = await here.open(), await there.open()
    await own.ask(call("tide"))
    asked = here.begin("POST", call("wait", {"seconds": 50}), Mcp_Session_Id=client.id)
    await trio.sleep(0.1)
    lose(stores, there)
    await asked.begun()
    assert asked.status == BROKEN_OFF


async def test_events_of_a_lost_owner_are_resumed_and_its_requests_end(
    open_sites, stores, autojump_clock
):
    here, there = await open_sites()
    client = await there.open()
    listening, asked = client.listen(), client.begin(call("log", {"seconds": 1000}))
    position = await listening.event()
    await client.ask(call("ebb", id=2))
    mark, _ = await asked.event(), await asked.event()
    lose(stores, there)
    resumed = listen(here, client, position.id)
    assert (await resumed.message())["method"] == "notifications/tools/list_changed"
    (note, outcome) = await listen(here, client, mark.id).rest()
    assert note["params"]["data"] == "one"
    assert (outcome["id"], "outcome is unknown" in outcome["error"]["message"]) == (1, True)
    await ask(here, client, call("ebb", id=3))
    assert (await resumed.message())["method"] == "notifications/tools/list_changed"


async def test_subscriptions_go_on_in_another_instance(open_sites, stores, autojump_clock):
    def make():
        server = harbour()

        @server.resource("sea://{name}")
        async def sea(name: str) -> str:
            return name

        @server.tool
        async def storm(name: str, *, ctx: Context) -> None:
            server.resource_updated(f"sea://{name}")

        return server

    here, there = await open_sites(make=make)
    client = await there.open()
    for number, (method, name) in enumerate(
        [("subscribe", "a"), ("subscribe", "b"), ("unsubscribe", "a")], 10
    ):
        uri = {"uri": f"sea://{name}"}
        assert (await client.ask(request(f"resources/{method}", uri, number))).status == 200
    lose(stores, there)
    listening = listen(here, client)
    await listening.event()
    for number, name in enumerate("ab", 20):
        await ask(here, client, call("storm", {"name": name}, id=number))
    assert (await listening.message())["params"]["uri"] == "sea://b"


async def test_a_session_with_a_value_that_cannot_go_on_ends_with_its_owner(
    open_sites, stores, autojump_clock
):
    def make():
        server = harbour()

        @server.tool
        async def remember(*, ctx: Context) -> None:
            ctx.state["seen"] = object()

        return server

    here, there = await open_sites(make=make)
    client = await there.open()
    await client.ask(call("remember"))
    lose(stores, there)
    assert (await ask(here, client, call("tide"))).status == 404
    assert not stores.instances.sessions


async def test_an_owner_whose_session_was_taken_closes_it(open_sites, stores, autojump_clock):
    here, there = await open_sites()
    client = await there.open()
    lose(stores, there)
    await ask(here, client, call("tide"))
    there.runtime.forwarder.lose_session(client.id)
    assert len(there.runtime.sessions) == 0
    assert stores.instances.sessions[client.id].owner == name_of(here)


async def test_an_owner_that_seemed_lost_answers_nothing_that_it_cannot_store(
    open_sites, stores, autojump_clock
):
    here, there = await open_sites(make=counting)
    client = await there.open()
    assert text((await client.ask(call("count"))).json) == "1"
    lose(stores, there)
    assert text((await ask(here, client, call("count", id=2))).json) == "2"
    stale = await client.ask(call("count", id=3))
    assert (stale.status, b"outcome is unknown" in stale.answer_body) == (BROKEN_OFF, True)
    assert len(there.runtime.sessions) == 0
    assert text((await ask(here, client, call("count", id=4))).json) == "3"


async def test_a_session_goes_on_with_what_was_stored_when_it_was_taken(
    open_sites, stores, monkeypatch, autojump_clock
):
    here, there = await open_sites(make=counting)
    client = await there.open()
    await client.ask(call("count"))
    found = stores.instances.sessions[client.id]
    await client.ask(call("count", id=2))
    newer = stores.instances.sessions[client.id]

    async def take_late(instance, session_id, former_owner):
        stores.instances.sessions[session_id] = newer  # the slow owner stores it after `find`
        return await take(instance, session_id, former_owner)

    take = MemoryInstance.take
    monkeypatch.setattr(MemoryInstance, "take", take_late)
    lose(stores, there)
    stores.instances.sessions[client.id] = found
    assert text((await ask(here, client, call("count", id=3))).json) == "3"


async def test_many_requests_at_once_open_a_session_of_a_lost_owner_once(
    open_sites, stores, autojump_clock
):
    here, there = await open_sites()
    client = await there.open()
    lose(stores, there)
    asked = [here.begin("POST", call("tide", id=n), Mcp_Session_Id=client.id) for n in range(5)]
    assert {text((await each.begun()).json) for each in asked} == {"high"}
    assert len(here.runtime.sessions) == 1


async def test_a_full_instance_rejects_the_session_of_a_lost_owner_until_it_has_room(
    open_sites, stores, autojump_clock
):
    limits = Limits(http=HttpLimits(sessions_max=1))
    here, there = await open_sites(make=lambda: harbour(limits=limits))
    own, client = await here.open(), await there.open()
    await own.ask(call("tide"))  # A session that its client uses is not closed to make room.
    lose(stores, there)
    answer = await ask(here, client, call("tide"))
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert "sessions_max" in answer.json["error"]["message"]
    await here.ask("DELETE", Mcp_Session_Id=own.id)
    assert text((await ask(here, client, call("tide", id=2))).json) == "high"


async def test_the_recording_of_a_session_that_goes_on_elsewhere_replays(
    open_site, stores, tmp_path, autojump_clock
):
    here, there = [await open_site(harbour(), stores=stores, record=tmp_path) for _ in range(2)]
    client = await there.open()
    await client.ask(request("logging/setLevel", {"level": "error"}, 1))
    lose(stores, there)
    asked = here.begin("POST", call("log", id=2), Mcp_Session_Id=client.id)
    assert text((await asked.rest())[-1]) == "logged"
    for site in (here, there):
        site.runtime.close()
        await site.runtime.ended.wait()
    reports = [
        await trio.to_thread.run_sync(replay, path, harbour())
        for path in tmp_path.iterdir()
        if b'"tools/call"' in path.read_bytes()
    ]
    assert [report.requests for report in reports] == [2]  # the level and the call


# Handing over.


async def stop(site):
    """Stop an instance as at SIGTERM."""
    await site.runtime.hand_over()
    site.runtime.close()
    await site.runtime.ended.wait()


async def test_a_stopped_instance_hands_its_sessions_over(open_sites, stores, autojump_clock):
    here, there = await open_sites()
    client = await there.open()
    listening = client.listen()
    position = await listening.event()
    await stop(there)
    assert listening.is_ended
    assert stores.instances.sessions[client.id].owner is None
    assert text((await ask(here, client, call("tide"))).json) == "high"
    resumed = listen(here, client, position.id)
    await ask(here, client, call("ebb", id=2))
    assert (await resumed.message())["method"] == "notifications/tools/list_changed"


async def test_open_requests_are_answered_before_their_session_is_handed_over(
    open_sites, nursery, autojump_clock
):
    here, there = await open_sites()
    client = await there.open()
    asked = client.begin(call("wait", {"seconds": 3}))
    forwarded = here.begin("POST", call("wait", {"seconds": 3}, id=2), Mcp_Session_Id=client.id)
    await trio.sleep(0.1)
    nursery.start_soon(stop, there)
    await trio.sleep(0.1)
    late = await client.ask(call("tide", id=3))
    assert text(late.json) == "high"
    assert [text((await each.rest())[-1]) for each in (asked, forwarded)] == ["waited"] * 2
    await there.runtime.ended.wait()
    assert text((await ask(here, client, call("tide", id=4))).json) == "high"


@pytest.mark.parametrize("accept", ["application/json", "application/json, text/event-stream"])
async def test_a_request_that_takes_too_long_has_an_unknown_outcome_and_its_session_goes_on(
    open_site, stores, autojump_clock, accept
):
    limits = Limits(shutdown=ShutdownLimits(hand_over_seconds=2))
    here, there = [await open_site(harbour(limits=limits), stores=stores) for _ in range(2)]
    client = await there.open()
    asked = client.begin(call("wait", {"seconds": 1000}), accept=accept)
    await trio.sleep(0.1)
    await stop(there)
    await asked.begun()
    if asked.status == 200:  # A stream of events that has begun can be resumed.
        assert await asked.rest() == []
    else:
        assert (asked.status, b"outcome is unknown" in asked.answer_body) == (BROKEN_OFF, True)
    assert text((await ask(here, client, call("tide", id=2))).json) == "high"


async def test_a_leaving_instance_forwards_to_others(open_sites, nursery, autojump_clock):
    here, there = await open_sites()
    client, busy = await there.open(), await there.open()
    await ask(here, client, call("tide", id=9))  # the owner is remembered
    busy.begin(call("wait", {"seconds": 3}))
    await trio.sleep(0.1)
    nursery.start_soon(stop, there)
    await trio.sleep(1)
    assert text((await client.ask(call("tide"))).json) == "high"
    new = await there.open()
    assert {each.id for each in here.runtime.sessions} == {client.id, new.id}


async def test_a_leaving_instance_waits_for_requests_whose_owner_is_looked_up(
    open_sites, nursery, monkeypatch, autojump_clock
):
    _, there = await open_sites()
    client = await there.open()
    instance = type(there.runtime.forwarder.instance)
    find = instance.find

    async def find_slowly(self, session_id):
        await trio.sleep(3 if self is there.runtime.forwarder.instance else 0)
        return await find(self, session_id)

    monkeypatch.setattr(instance, "find", find_slowly)
    nursery.start_soon(stop, there)
    await trio.sleep(0.1)
    assert text((await client.ask(call("tide"))).json) == "high"


async def test_the_last_instance_keeps_sessions_for_the_next_one(open_site, stores, autojump_clock):
    there = await open_site(harbour(), stores=stores)
    client = await there.open()
    await stop(there)
    here = await open_site(harbour(), stores=stores)
    assert text((await ask(here, client, call("tide"))).json) == "high"


async def test_an_instance_stops_without_the_store(open_sites, monkeypatch, autojump_clock):
    _, there = await open_sites()
    client = await there.open()
    instance = type(there.runtime.forwarder.instance)
    monkeypatch.setattr(instance, "leave", lambda _: trio.sleep_forever())
    await stop(there)
    assert (await client.ask(call("tide"))).status == 503


async def test_a_leaving_instance_takes_no_session(open_sites, stores, nursery, autojump_clock):
    here, there, leaving = await open_sites(3)
    client, busy = await there.open(), await leaving.open()
    busy.begin(call("wait", {"seconds": 3}))
    await trio.sleep(0.1)
    nursery.start_soon(stop, leaving)
    await trio.sleep(0.1)
    facts = stores.instances.sessions[client.id].facts
    there.runtime.forwarder.instance.hand_over(client.id, facts)
    here.runtime.forwarder._owners[client.id] = (name_of(leaving), None)
    assert text((await ask(here, client, call("tide"))).json) == "high"
    assert stores.instances.sessions[client.id].owner == name_of(here)


async def test_a_stopped_instance_answers_stateless_requests_first(open_sites, autojump_clock):
    _, there = await open_sites()
    asked = there.begin_stateless(call("wait", {"seconds": 3}))
    wish = request("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, 2)
    subscribed = there.begin_stateless(wish)
    await trio.sleep(0.1)
    began = trio.current_time()
    await stop(there)
    assert text((await asked.rest())[-1]) == "waited"
    assert subscribed.is_ended
    assert trio.current_time() - began < 4


async def test_a_stopped_instance_relays_the_answers_of_others_first(open_sites, autojump_clock):
    here, there = await open_sites()
    client = await there.open()
    asked = here.begin("POST", call("wait", {"seconds": 3}), Mcp_Session_Id=client.id)
    await trio.sleep(0.1)
    await stop(here)
    assert text((await asked.rest())[-1]) == "waited"


async def test_a_stopped_instance_ends_the_streams_that_it_forwards(open_sites, autojump_clock):
    here, there = await open_sites()
    client = await there.open()
    listening = listen(here, client)
    await listening.event()
    await stop(here)
    assert listening.is_ended
    await trio.sleep(1)
    assert not there.runtime.forwarder.peers()
