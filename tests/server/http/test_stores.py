"""What a served application keeps: the contract of each interface, and that others fit behind it."""

import contextlib

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import types as s
from mcp_trio._protocol.event_store import ReplayBuffer
from mcp_trio._server.http_options import MemoryChanges, MemorySessions
from mcp_trio.http import HttpStores, SessionFacts
from tests.server.http.conftest import call, harbour, notes

# Second implementations, as plain as can be.


@attrs.define
class EventList:
    """All events that ever were, in one list."""

    events: list = attrs.field(factory=list)
    open: set = attrs.field(factory=set)
    streams: int = 0

    def open_stream(self):
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


@attrs.define
class SessionTable:
    """Rows of what was said, as a database would have them."""

    rows: list = attrs.field(factory=list)

    def keep(self, session_id, facts):
        self.rows.append((session_id, facts))

    def forget(self, session_id):
        self.rows = [row for row in self.rows if row[0] != session_id]

    async def find(self, session_id):
        await trio.sleep(0.01)
        return next((facts for name, facts in self.rows if name == session_id), None)


@attrs.define(eq=False)
class Wire:
    """Changes that take their time, as if they went over a network."""

    members: list = attrs.field(factory=list)

    @contextlib.asynccontextmanager
    async def joined(self, hear):
        send, receive = trio.open_memory_channel(100)

        async def carry():
            async for notice in receive:
                await trio.sleep(0.01)
                hear(notice)

        def tell(notice):
            for other in self.members:
                if other is not send:
                    other.send_nowait(notice)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(carry)
            self.members.append(send)
            yield tell
            self.members.remove(send)
            nursery.cancel_scope.cancel()


EVENT_STORES = [lambda: ReplayBuffer(events_max=100, bytes_max=1000), EventList]
SESSION_STORES = [MemorySessions, SessionTable]
CHANGES = [MemoryChanges, Wire]

ANNA = SessionFacts(
    principal="anna",
    protocol_version="2025-06-18",
    client=None,
    capabilities=s.ClientCapabilities(),
)
TOOLS = ("notifications/tools/list_changed", None)


# The contracts.


@pytest.mark.parametrize("make", EVENT_STORES)
def test_what_followed_an_event_on_its_stream_is_given_again(make):
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
def test_events_of_a_closed_stream_can_be_asked_for_and_none_are_added(make):
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
def test_a_stream_that_comes_whole_is_like_one_that_was_closed(make):
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
def test_nothing_is_known_of_an_id_that_was_never_given(make):
    store = make()
    store.keep(store.open_stream(), b"a")
    for event_id in ("7-7", "e9", "", "x"):
        with pytest.raises(LookupError):
            store.after(event_id)
    with pytest.raises(KeyError):
        store.keep(7, b"b")


@pytest.mark.parametrize("make", SESSION_STORES)
async def test_a_session_is_known_until_it_has_ended(make, autojump_clock):
    store = make()
    assert await store.find("1") is None
    store.keep("1", ANNA)
    assert await store.find("1") == ANNA
    assert await store.find("2") is None
    store.forget("1")
    store.forget("1")
    assert await store.find("1") is None


@pytest.mark.parametrize("make", CHANGES)
async def test_a_change_is_heard_by_all_others_in_its_order(make, autojump_clock):
    changes, heard = make(), {"a": [], "b": [], "c": []}
    async with (
        changes.joined(heard["a"].append) as tell,
        changes.joined(heard["b"].append),
        changes.joined(heard["c"].append),
    ):
        told = [TOOLS, ("notifications/resources/updated", "sea://1"), TOOLS]
        for notice in told:
            tell(notice)
        await trio.sleep(1)
    assert heard == {"a": [], "b": told, "c": told}


@pytest.mark.parametrize("make", CHANGES)
async def test_who_has_left_hears_nothing(make, autojump_clock):
    changes, heard = make(), []
    async with changes.joined([].append) as tell:
        async with changes.joined(heard.append):
            pass
        tell(TOOLS)
        await trio.sleep(1)
    assert heard == []


# What stands behind them does not matter.


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


@pytest.mark.requirement("HTTP-51")
@pytest.mark.parametrize("make", SESSION_STORES)
async def test_a_session_of_another_machine_is_misdirected_here_and_not_ended(
    open_site, make, autojump_clock
):
    async def verify(head):
        return head.header("authorization")

    stores = HttpStores(sessions=make())
    here, there = [await open_site(harbour(), stores=stores, verify=verify) for _ in range(2)]
    client = await there.open("2025-06-18", {"roots": {}}, Authorization="anna")
    facts = await stores.sessions.find(client.id)
    assert (facts.principal, facts.protocol_version, facts.client.name) == (
        "anna",
        "2025-06-18",
        "buoy",
    )
    assert facts.capabilities.roots is not None

    async def statuses(authorization):
        fields = {"Mcp_Session_Id": client.id, "Authorization": authorization}
        asked = (("POST", call("tide")), ("GET", None), ("DELETE", None))
        return [(await here.ask(method, each, **fields)) for method, each in asked]

    rejected = await statuses("anna")
    assert [each.status for each in rejected] == [421] * 3
    assert "Mcp-Session-Id" in rejected[0].json["error"]["message"]
    assert rejected[0].json["id"] == 1
    assert [each.status for each in await statuses("bert")] == [404] * 3
    assert (await client.ask(call("tide"))).status == 200
    assert (await client.delete()).status == 200
    assert [each.status for each in await statuses("anna")] == [404] * 3


async def test_a_session_that_ends_here_is_not_looked_for_elsewhere(open_site, autojump_clock):
    stores = HttpStores()
    site = await open_site(harbour(), stores=stores)
    client = await site.open()
    (begun,) = site.runtime.sessions
    begun.close()
    assert (await client.ask(call("tide"))).status == 404
    assert await stores.sessions.find(client.id) is None


@pytest.mark.parametrize("make", CHANGES)
async def test_what_changes_at_one_application_is_told_to_the_clients_of_another(
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
