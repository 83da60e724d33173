"""Calls that go on in another instance when their owner is lost."""

import attrs
import msgspec
import pytest
import trio

from mcp_trio import Client, Context, Limits, Server, effect, types
from mcp_trio.errors import INTERNAL_ERROR, SERVER_BUSY, OutcomeUnknown
from mcp_trio.http import HttpStores, MemoryInstances, StoreUnavailableError
from mcp_trio.limits import HttpLimits
from mcp_trio.middleware import ConcurrencyLimit, MemoryLimitStore
from mcp_trio.recording import replay
from tests.server.http.conftest import call, notes, text
from tests.server.http.test_instances import EventsOfAll, ask, listen, lose, stop

UNKNOWN = "its outcome is unknown"
CALM = 100  # seconds between two effects, in which an owner can be lost
THREAD_SECONDS = 0.02  # real seconds in which a thread computes, before the clock may jump


@attrs.define
class World:
    """The outside of all instances: the effects that ran; some of them wait for an event."""

    ran: list = attrs.field(factory=list)
    waits: set = attrs.field(factory=set)
    whims: int = 0
    on_weigh: object = lambda: None

    async def run(self, name):
        self.ran.append(name.rstrip("0123456789"))
        if self.ran[-1] in self.waits:
            await trio.sleep_forever()


@pytest.fixture
def world():
    return World()


@pytest.fixture
def stores():
    return HttpStores(instances=MemoryInstances(), events=EventsOfAll().of)


def port(world, version="1", *, resumable=True, replayable=False):
    server = Server("port", version=version, replayable=replayable)

    @effect
    async def load(name: str) -> str:
        await world.run(name)
        return name.upper()

    @effect
    def weigh(name: str) -> str:
        world.ran.append(name)
        world.on_weigh()
        return name.upper()

    @effect(repeatable=True)
    async def look(name: str) -> str:
        await world.run(name)
        return name

    @server.tool(resumable=resumable)
    async def ship(*, ctx: Context) -> str:
        await ctx.info("begun")
        first = await load(f"tea{ctx.random.randrange(10**9)}")
        await ctx.info("tea is loaded")
        started = ctx.now()
        await ctx.sleep(CALM)
        await load(f"rum{ctx.random.randrange(10**9)}")
        return f"{first.rstrip('0123456789')} since {started.year}"

    @server.tool(resumable=resumable)
    async def watch() -> str:
        return await look("sails")

    @effect(repeatable=True)
    def look_in_thread(name: str) -> str:
        trio.from_thread.run(world.run, name)
        return name

    @server.tool(resumable=resumable)
    def watch_in_thread() -> str:
        return look_in_thread("sails")

    @server.tool(resumable=resumable)
    async def careful() -> str:
        try:
            return await load("tea")
        except OutcomeUnknown:
            return await load("checked")

    @server.tool(resumable=resumable)
    async def both(*, ctx: Context) -> list[str]:
        found = []

        async def fetch(name):
            found.append(await load(name))
            await ctx.sleep(CALM)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch, "tea")
            nursery.start_soon(fetch, "rum")
        return [*sorted(found), await load("end")]

    @server.tool(resumable=resumable)
    async def consult(*, ctx: Context) -> str:
        answer = await ctx.sample("which way?", max_tokens=5)
        await ctx.sleep(CALM)
        return f"{answer.content.text} {await load('tea')}"

    @server.tool(resumable=resumable)
    def weigh_in_thread(*, ctx: Context) -> str:
        weighed = weigh("tea")
        ctx.sleep(CALM)
        ctx.state["weighed"] = ctx.state.get("weighed", 0) + 1
        return f"{weighed} {weigh('rum')} {ctx.state['weighed']}"

    @server.tool(resumable=resumable)
    async def count(*, ctx: Context) -> list[int]:
        before = ctx.state["count"] = ctx.state.get("count", 0) + 1
        await load("tea")
        await ctx.sleep(CALM)
        return [before, ctx.state["count"]]

    @server.tool(resumable=resumable)
    async def add(*, ctx: Context) -> int:
        ctx.state["count"] = ctx.state.get("count", 0) + 1
        return ctx.state["count"]

    @server.tool(resumable=resumable)
    async def whim(*, ctx: Context) -> str:
        first = await load(f"tea{world.whims}")
        world.whims += 1
        await ctx.sleep(CALM)
        return f"{first} {await load('rum')}"

    @server.tool(resumable=resumable)
    async def ask_by_result(*, ctx: Context) -> str | types.InputRequiredResult:
        if not ctx.input_responses:
            await load("tea")
            params = types.CreateMessageParams(messages=[], max_tokens=5)
            asked = types.InputRequest(method="sampling/createMessage", params=params)
            return types.InputRequiredResult(input_requests={"way": asked})
        await ctx.sleep(CALM)
        return f"{ctx.input_responses['way'].content.text} {await load('rum')}"

    return server


@pytest.fixture
def open_ports(open_site, stores, world):
    async def open_ports(count=2, versions=("1", "1"), **options):
        return [
            await open_site(port(world, versions[number]), stores=stores, **options)
            for number in range(count)
        ]

    return open_ports


def forward(site, client, name):
    return site.begin("POST", call(name), Mcp_Session_Id=client.id, accept="application/json")


async def forward_and_lose(stores, here, there, client, name):
    """Forward a call to its owner, lose the owner between two effects, and wait for the answer."""
    asked = forward(here, client, name)
    await trio.sleep(CALM / 2)
    lose(stores, there)
    await asked.begun()
    return asked


@pytest.mark.requirement("HTTP-51")
async def test_a_call_of_a_lost_owner_goes_on_and_no_effect_runs_twice(
    open_ports, stores, world, autojump_clock
):
    here, there = await open_ports()
    client = await there.open()
    asked = forward(here, client, "ship")
    await trio.sleep(CALM / 2)
    assert world.ran == ["tea"]
    lose(stores, there)
    await asked.begun()
    assert text(asked.json).startswith("TEA since")
    assert asked.headers["mcp-session-id"] == client.id
    assert world.ran == ["tea", "rum"]
    await trio.sleep(0.1)
    assert not stores.instances.calls[client.id]


async def test_a_call_goes_on_once_if_two_requests_find_its_owner_lost_one_after_the_other(
    open_ports, stores, world, monkeypatch, autojump_clock
):
    here, there = await open_ports()
    client = await there.open()
    world.waits.add("sails")
    asked = [
        here.begin("POST", each, Mcp_Session_Id=client.id, accept="application/json")
        for each in (call("watch", id=1), call("ship", id=2))
    ]
    await trio.sleep(CALM / 2)
    world.waits.clear()
    unread, pauses = type(there.runtime.forwarder.instance).unread, iter((0, 5))

    async def unread_slowly(self, name):
        await trio.sleep(next(pauses))
        return await unread(self, name)

    monkeypatch.setattr(type(there.runtime.forwarder.instance), "unread", unread_slowly)
    lose(stores, there)
    assert text((await asked[0].begun()).json) == "sails"
    assert text((await asked[1].begun()).json).startswith("TEA since")
    await trio.sleep(CALM)
    assert sorted(world.ran) == ["rum", "sails", "sails", "tea"]


async def interrupted(open_ports, stores, world, tool, effect):
    """Lose the owner of a call while an effect runs; return the response of the other instance."""
    here, there = await open_ports()
    client = await there.open()
    world.waits.add(effect)
    asked = forward(here, client, tool)
    await trio.sleep(1)
    world.waits.clear()
    lose(stores, there)
    await asked.begun()
    return asked


@pytest.mark.requirement("HTTP-51")
async def test_an_effect_that_was_interrupted_has_an_unknown_outcome(
    open_ports, stores, world, autojump_clock
):
    asked = await interrupted(open_ports, stores, world, "careful", "tea")
    assert text(asked.json) == "CHECKED"
    assert world.ran == ["tea", "checked"]


async def test_a_call_whose_handler_does_not_expect_that_ends_with_an_error(
    open_ports, stores, world, autojump_clock
):
    asked = await interrupted(open_ports, stores, world, "ship", "tea")
    assert asked.json["error"]["code"] == INTERNAL_ERROR
    assert UNKNOWN in asked.json["error"]["message"]


@pytest.mark.parametrize("tool", ["watch", "watch_in_thread"])
async def test_a_repeatable_effect_runs_again(open_ports, stores, world, autojump_clock, tool):
    autojump_clock.autojump_threshold = THREAD_SECONDS
    asked = await interrupted(open_ports, stores, world, tool, "sails")
    assert text(asked.json) == "sails"
    assert world.ran == ["sails", "sails"]


async def test_a_client_that_resumes_its_stream_gets_the_rest_once(
    open_ports, stores, world, autojump_clock
):
    here, there = await open_ports()
    client = await there.open()
    asked = client.begin(call("ship"))
    seen = [await asked.event() for _ in range(3)]  # the mark of the stream, and two messages
    await trio.sleep(1)
    lose(stores, there)
    rest = await listen(here, client, seen[1].id).rest()
    assert notes(rest) == ["tea is loaded"]
    assert text(rest[-1]).startswith("TEA since")
    assert world.ran == ["tea", "rum"]


async def test_a_call_that_takes_too_long_for_a_stop_goes_on_elsewhere(
    open_ports, stores, world, autojump_clock
):
    here, there = await open_ports()
    client = await there.open()
    asked = client.begin(call("ship"))
    seen = [await asked.event() for _ in range(3)]
    await stop(there)
    assert stores.instances.sessions[client.id].owner is None
    rest = await listen(here, client, seen[-1].id).rest()
    assert text(rest[-1]).startswith("TEA since")
    assert world.ran == ["tea", "rum"]


async def test_a_call_that_goes_on_keeps_its_place_in_a_limit(open_site, world, autojump_clock):
    limits = MemoryLimitStore()
    stores = HttpStores(instances=MemoryInstances(), events=EventsOfAll().of, limits=limits)
    sites = []
    for _ in range(2):
        server = port(world)
        server.middleware(ConcurrencyLimit(1, per="tool"))
        sites.append(await open_site(server, stores=stores))
    here, there = sites
    client = await there.open()
    asked = forward(here, client, "ship")
    await trio.sleep(CALM / 2)
    assert "error" in (await client.ask(call("ship", id=2))).json  # There is one place.
    lose(stores, there)
    await asked.begun()
    assert text(asked.json).startswith("TEA since")
    later = forward(here, client, "ship")
    await later.begun()
    assert text(later.json).startswith("TEA since")


async def test_tasks_of_a_handler_go_on(open_ports, stores, world, autojump_clock):
    here, there = await open_ports()
    client = await there.open()
    asked = await forward_and_lose(stores, here, there, client, "both")
    assert asked.json["result"]["structuredContent"] == {"result": ["RUM", "TEA", "END"]}
    assert sorted(world.ran) == ["end", "rum", "tea"]


async def test_a_question_that_was_answered_is_not_asked_again(
    open_ports, stores, world, autojump_clock
):
    here, there = await open_ports()
    client = await there.open("2025-06-18", {"sampling": {}})
    asked = client.begin(call("consult"))
    question = await asked.message()
    sampled = {"role": "assistant", "content": {"type": "text", "text": "north"}, "model": "m"}
    await client.ask({"jsonrpc": "2.0", "id": question["id"], "result": sampled})
    await trio.sleep(CALM / 2)
    lose(stores, there)
    continued = here.begin("POST", call("consult"), Mcp_Session_Id=client.id)
    await continued.begun()
    assert continued.status == 400  # an unfinished request has the same id
    await trio.sleep(2 * CALM)
    assert world.ran == ["tea"]
    assert not stores.instances.calls[client.id]


async def test_a_handler_of_another_version_does_not_go_on(
    open_ports, stores, world, autojump_clock
):
    there, here, third = await open_ports(3, versions=("1", "2", "1"))
    client = await there.open()
    asked = await forward_and_lose(stores, here, there, client, "ship")
    assert UNKNOWN in asked.json["error"]["message"]
    lose(stores, here)
    assert text((await ask(third, client, call("watch", id=2))).json) == "sails"
    await trio.sleep(2 * CALM)
    assert world.ran == ["tea", "sails"]


async def test_a_call_does_not_begin_again_where_its_handler_is_not_resumable(
    open_site, stores, world, tmp_path, autojump_clock
):
    there = await open_site(port(world), stores=stores)
    other = port(world, resumable=False)
    here = await open_site(other, stores=stores, record=tmp_path)
    client = await there.open()
    asked = await forward_and_lose(stores, here, there, client, "ship")
    assert UNKNOWN in asked.json["error"]["message"]
    await trio.sleep(2 * CALM)
    assert not stores.instances.calls[client.id]
    assert await replayed_requests([here], tmp_path, lambda: other) == [1]
    assert world.ran == ["tea"]


async def test_a_call_whose_entries_are_lost_does_not_go_on(
    open_ports, stores, world, autojump_clock
):
    here, there = await open_ports()
    client = await there.open()
    asked = forward(here, client, "ship")
    await trio.sleep(CALM / 2)
    (entries,) = stores.instances.calls[client.id].values()
    del entries[1]
    lose(stores, there)
    await asked.begun()
    assert (asked.status, UNKNOWN.encode() in asked.answer_body) == (502, True)
    assert world.ran == ["tea"]
    assert not stores.instances.calls[client.id]


async def test_a_call_with_large_results_of_effects_does_not_go_on(
    open_site, stores, caplog, autojump_clock
):
    def make():
        limits = Limits(http=HttpLimits(kept_call_bytes_max=2500))
        server = Server("port", replayable=True, limits=limits)

        @effect
        async def load() -> str:
            return "x" * 1000

        @server.tool
        async def ship(*, ctx: Context) -> str:
            for _ in range(5):
                await load()
            await ctx.sleep(CALM)
            return await load()

        return server

    here, there = [await open_site(make(), stores=stores) for _ in range(2)]
    client = await there.open()
    answer = await client.ask(call("ship"), accept="application/json")
    assert len(text(answer.json)) == 1000
    asked = forward(here, client, "ship")
    await trio.sleep(CALM / 2)
    assert not any(stores.instances.calls[client.id].values())
    assert "kept_call_bytes_max=2500" in caplog.text
    lose(stores, there)
    await asked.begun()
    assert (asked.status, UNKNOWN.encode() in asked.answer_body) == (502, True)


async def test_an_effect_does_not_run_while_the_store_is_away(
    open_ports, world, monkeypatch, caplog, autojump_clock
):
    _, there = await open_ports()
    client = await there.open()

    async def store_call_entry(*_):
        raise StoreUnavailableError("Redis at 10.0.0.5:6379/0 does not answer")

    monkeypatch.setattr(
        type(there.runtime.forwarder.instance), "store_call_entry", store_call_entry
    )
    answer = await client.ask(call("careful"))
    assert answer.json["error"]["code"] == SERVER_BUSY
    assert "10.0.0.5" not in answer.json["error"]["message"]
    assert "10.0.0.5" in caplog.text
    assert world.ran == []


async def test_an_owner_that_seemed_lost_runs_no_further_effect(
    open_ports, stores, world, autojump_clock
):
    here, there = await open_ports()
    client = await there.open()
    asked = client.begin(call("ship"), accept="application/json")
    await trio.sleep(CALM / 2)
    lose(stores, there)
    assert (await ask(here, client, call("watch", id=2))).status == 200
    await asked.begun()  # the first owner goes on after its pause, and finds its session taken
    assert (asked.status, UNKNOWN.encode() in asked.answer_body) == (502, True)
    await trio.sleep(CALM)
    assert world.ran == ["tea", "sails", "rum"]
    assert len(there.runtime.sessions) == 0


async def test_the_recordings_of_both_owners_replay(
    open_ports, stores, world, tmp_path, autojump_clock
):
    here, there = await open_ports(record=tmp_path)
    client = await there.open()
    await forward_and_lose(stores, here, there, client, "ship")
    for site in (here, there):
        site.runtime.close()
        await site.runtime.ended.wait()
    ran = list(world.ran)
    reports = [
        await trio.to_thread.run_sync(replay, path, port(world))
        for path in tmp_path.iterdir()
        if b'"tools/call"' in path.read_bytes()
    ]
    assert [report.requests for report in reports] == [1, 1]
    assert world.ran == ran


async def test_handlers_in_the_event_loop_that_cannot_wait_are_not_kept(open_site, stores):
    server = Server("port", replayable=True)

    @server.tool(resumable=True, thread=False)
    def stow() -> str:
        return "stowed"

    there = await open_site(server, stores=stores)
    client = await there.open()
    assert text((await client.ask(call("stow"))).json) == "stowed"
    assert client.id not in stores.instances.calls


async def test_handlers_that_are_not_resumable_do_not_go_on_and_the_session_does(
    open_site, stores, world, autojump_clock
):
    here, there = [await open_site(port(world, resumable=False), stores=stores) for _ in range(2)]
    client = await there.open()
    asked = forward(here, client, "ship")
    await trio.sleep(CALM / 2)
    assert client.id not in stores.instances.calls
    lose(stores, there)
    await asked.begun()
    assert (asked.status, UNKNOWN.encode() in asked.answer_body) == (502, True)
    assert text((await ask(here, client, call("watch", id=2))).json) == "sails"


# Replayable servers.


@pytest.fixture
def open_replayable(open_site, stores, world):
    async def open_replayable(make=port, **options):
        servers = [make(world, resumable=False, replayable=True) for _ in range(2)]
        return [await open_site(server, stores=stores, **options) for server in servers]

    return open_replayable


async def replayed_requests(sites, folder, make):
    """Close the sites; replay the recordings of calls, and return their numbers of requests."""
    for site in sites:
        site.runtime.close()
        await site.runtime.ended.wait()
    reports = [
        await trio.to_thread.run_sync(replay, path, make())
        for path in folder.iterdir()
        if b'"tools/call"' in path.read_bytes()
    ]
    return sorted(report.requests for report in reports)


@pytest.mark.parametrize(
    ("tool", "expected"), [("ship", "TEA since"), ("weigh_in_thread", "TEA RUM 1")]
)
async def test_all_calls_of_a_replayable_server_go_on(
    open_replayable, stores, world, tmp_path, autojump_clock, tool, expected
):
    autojump_clock.autojump_threshold = THREAD_SECONDS
    here, there = await open_replayable(record=tmp_path)
    client = await there.open()
    asked = await forward_and_lose(stores, here, there, client, tool)
    assert text(asked.json).startswith(expected)
    await trio.sleep(CALM)
    assert world.ran == ["tea", "rum"]
    make = lambda: port(world, resumable=False, replayable=True)  # noqa: E731
    assert await replayed_requests((here, there), tmp_path, make) == [1, 1]
    assert world.ran == ["tea", "rum"]


async def test_an_effect_in_a_thread_begins_when_the_store_knows_it(
    open_replayable, stores, world, autojump_clock
):
    autojump_clock.autojump_threshold = THREAD_SECONDS
    _, there = await open_replayable()
    client, known = await there.open(), []

    def note_entries():
        (entries,) = stores.instances.calls[client.id].values()
        known.extend(entry for entry in entries.values() if b'"cmd"' in entry)

    world.on_weigh = note_entries
    answer = await client.ask(call("weigh_in_thread"), accept="application/json")
    assert text(answer.json) == "TEA RUM 1"
    assert len(known) == 2


async def test_a_handler_that_has_used_the_state_goes_on_with_the_same_state(
    open_replayable, stores, world, tmp_path, autojump_clock
):
    here, there = await open_replayable(record=tmp_path)
    client = await there.open()
    assert (await client.ask(call("add", id=1))).json["result"]["structuredContent"]["result"] == 1
    asked = here.begin(
        "POST", call("count", id=2), Mcp_Session_Id=client.id, accept="application/json"
    )
    await trio.sleep(CALM / 2)
    lose(stores, there)
    await asked.begun()
    assert asked.json["result"]["structuredContent"] == {"result": [2, 2]}
    assert world.ran == ["tea"]
    make = lambda: port(world, resumable=False, replayable=True)  # noqa: E731
    assert await replayed_requests((here, there), tmp_path, make) == [1, 2]


async def test_a_handler_that_finds_another_state_than_before_ends_and_its_session_goes_on(
    open_replayable, stores, world, tmp_path, autojump_clock
):
    here, there = await open_replayable(record=tmp_path)
    client = await there.open()
    asked = forward(here, client, "count")
    await trio.sleep(CALM / 4)
    assert (await client.ask(call("add", id=2))).json["result"]["structuredContent"]["result"] == 2
    lose(stores, there)
    await asked.begun()
    assert asked.json["error"]["code"] == INTERNAL_ERROR
    assert UNKNOWN in asked.json["error"]["message"]
    added = await ask(here, client, call("add", id=3))
    assert added.json["result"]["structuredContent"]["result"] == 3
    assert world.ran == ["tea"]
    await trio.sleep(CALM)
    make = lambda: port(world, resumable=False, replayable=True)  # noqa: E731
    assert await replayed_requests((here, there), tmp_path, make) == [2, 2]


async def test_no_effect_runs_twice_for_a_handler_that_does_something_else(
    open_replayable, stores, world, autojump_clock
):
    here, there = await open_replayable()
    client = await there.open()
    asked = await forward_and_lose(stores, here, there, client, "whim")
    assert UNKNOWN in asked.json["error"]["message"]
    assert world.ran == ["tea"]


async def test_a_handler_that_asks_by_its_result_goes_on(
    open_replayable, stores, world, autojump_clock
):
    here, there = await open_replayable()
    client = await there.open("2025-06-18", {"sampling": {}})
    asked = client.begin(call("ask_by_result"))
    asking = await asked.event()
    question = msgspec.json.decode(asking.data)
    sampled = {"role": "assistant", "content": {"type": "text", "text": "north"}, "model": "m"}
    await client.ask({"jsonrpc": "2.0", "id": question["id"], "result": sampled})
    await trio.sleep(CALM / 2)
    lose(stores, there)
    (answer,) = await listen(here, client, asking.id).rest()
    assert text(answer) == "north RUM"
    assert world.ran == ["tea", "rum"]


async def test_a_handler_that_reads_a_resource_behind_a_client_reads_it_again(
    open_replayable, stores, world, tmp_path, autojump_clock
):
    def make(world, **_):
        server, far = Server("hub", replayable=True), Server("far")
        server.mount(Client(far), prefix="far")

        @far.resource("sea://tide")
        async def tide(*, ctx: Context) -> str:
            world.ran.append("tide")
            await ctx.report_progress(1)
            await ctx.sleep(CALM / 2 + 1)
            return "high"

        @server.tool
        async def read(*, ctx: Context) -> str:
            return (await ctx.read_resource("sea://far/tide"))[0].text

        return server

    here, there = await open_replayable(make, record=tmp_path)
    client = await there.open()
    with trio.fail_after(10 * CALM):
        asked = await forward_and_lose(stores, here, there, client, "read")
    assert text(asked.json) == "high"
    assert world.ran == ["tide", "tide"]
    assert await replayed_requests((here, there), tmp_path, lambda: make(world)) == [1, 1]
    assert world.ran == ["tide", "tide"]


@pytest.mark.parametrize("is_inner_replayable", [True, False])
async def test_a_mounted_server_has_to_be_replayable_as_well(
    open_replayable, stores, world, autojump_clock, is_inner_replayable
):
    def make(world, **options):
        outer = Server("outer", replayable=True)
        inner = port(world, resumable=False, replayable=is_inner_replayable)
        outer.mount(inner, prefix="inner")
        return outer

    here, there = await open_replayable(make)
    client = await there.open()
    asked = await forward_and_lose(stores, here, there, client, "inner_ship")
    assert asked.status == (200 if is_inner_replayable else 502)
