"""A server: its lifespan, recordings, capabilities and sessions."""

import contextlib
import copy
import functools
import inspect
import json
import math
import operator
import os
import pickle
import re
import sqlite3
import stat
import typing
from types import SimpleNamespace

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from memory_sessions import client_session

from mcp_trio import Client, Context, Limits, Server, ThreadContext, effect, types
from mcp_trio._protocol.websocket import CloseCode
from mcp_trio._server.effects import ReplayLifespan
from mcp_trio._server.sessions import HandshakeTimeouts, SessionCounter
from mcp_trio._transports.concurrency import LightEvent
from mcp_trio.errors import (
    BlockedInReplay,
    LocalProtocolError,
    RecordingError,
    ReplayDivergence,
    ToolError,
)
from mcp_trio.limits import MessageLimits, RequestLimits
from mcp_trio.recording import SharedRecording, replay
from mcp_trio.testing import WirePeer
from mcp_trio.tools import Argument
from mcp_trio.transports import memory_pair
from tests.server.conftest import nothing, played_again
from tests.server.watched import watched
from tests.ways import WAYS, opened, sent_away, served, serving


def read(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


# The lifespan.


@pytest.mark.parametrize("thread", [True, False])
async def test_handlers_get_the_value_of_the_lifespan(serve, thread):
    @contextlib.asynccontextmanager
    async def lifespan(server):
        yield f"boats of {server.name}"

    server = Server("harbour", lifespan=lifespan)
    kind = ThreadContext if thread else Context

    def boats(ctx) -> str:
        return ctx.lifespan

    boats.__annotations__["ctx"] = kind
    server.tool(thread=thread)(boats)
    asker = await serve(server)
    assert await asker.call("boats") == "boats of harbour"


async def test_the_lifespan_surrounds_the_session():
    order = []

    @contextlib.asynccontextmanager
    async def lifespan(server):
        order.append("entered")
        await trio.testing.wait_all_tasks_blocked()
        yield
        order.append("left")

    server = Server("harbour", lifespan=lifespan)

    @server.tool
    async def wait(ctx: Context) -> None:
        order.append("handled")
        try:
            await trio.sleep_forever()
        finally:
            order.append("cancelled")

    async with Client(server) as client, trio.open_nursery() as nursery:
        order.append("shaken hands")
        nursery.start_soon(client.call_tool, "wait")
        while "handled" not in order:
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert order == ["entered", "shaken hands", "handled", "cancelled", "left"]


async def test_each_served_channel_enters_the_lifespan(serve):
    entered = []

    @contextlib.asynccontextmanager
    async def lifespan(server):
        entered.append(server)
        yield len(entered)

    server = Server("harbour", lifespan=lifespan)

    @server.tool
    async def which(ctx: Context) -> int:
        return ctx.lifespan

    first, second = await serve(server), await serve(server)
    assert [await asker.call("which") for asker in (first, second)] == ["1", "2"]


async def test_an_error_before_the_lifespans_yield_is_raised_and_the_channel_closed():
    @contextlib.asynccontextmanager
    async def lifespan(server):
        raise OSError("no harbour")
        yield

    ours, theirs = memory_pair()
    with pytest.raises(OSError, match="no harbour"):
        await Server("harbour", lifespan=lifespan).serve(theirs)
    assert await ours.receive() == []


async def test_an_error_after_the_lifespans_yield_is_raised_after_the_session():
    @contextlib.asynccontextmanager
    async def lifespan(server):
        yield
        raise OSError("no way out")

    ours, theirs = memory_pair()
    await ours.aclose()
    with pytest.raises(OSError, match="no way out"):
        await Server("harbour", lifespan=lifespan).serve(theirs)


@pytest.mark.parametrize("is_recorded", [False, True])
async def test_an_error_of_a_lifespan_that_is_cancelled_is_raised(nursery, tmp_path, is_recorded):
    @contextlib.asynccontextmanager
    async def lifespan(server):
        try:
            yield
        finally:
            raise RuntimeError("drained")

    server, (_, theirs) = Server("harbour", lifespan=lifespan), memory_pair()
    record = tmp_path / "x.mcprec.jsonl" if is_recorded else None
    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="drained")):
        async with trio.open_nursery() as serving:
            await serving.start(functools.partial(server.serve, theirs, record=record))
            serving.cancel_scope.cancel()


async def test_a_lifespan_whose_nursery_fails_ends_the_session():
    @contextlib.asynccontextmanager
    async def lifespan(server):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            yield

    async def fail():
        await trio.testing.wait_all_tasks_blocked()
        raise OSError("the pier broke")

    ours, theirs = memory_pair()
    with pytest.raises(ExceptionGroup) as caught:
        await Server("harbour", lifespan=lifespan).serve(theirs)
    assert [str(error) for error in caught.value.exceptions] == ["the pier broke"]
    assert await ours.receive() == []


# Recording.


@pytest.fixture
def server_lifespan_and_recording():
    made = Server("the harbour", version="2.1")

    @made.tool
    async def tide(port: str, ctx: Context) -> str:
        await ctx.info("looking")
        return f"high in {port}"

    @made.tool
    def depth(ctx: ThreadContext) -> str:
        ctx.info("sounding")
        ctx.info("again")
        return "3"

    return made


@pytest.mark.parametrize("as_text", [True, False])
async def test_a_session_is_recorded_to_a_file(server_lifespan_and_recording, tmp_path, as_text):
    path = tmp_path / "x.mcprec.jsonl"
    record = str(path) if as_text else path
    async with client_session(server_lifespan_and_recording, record) as client:
        await client.call_tool("tide", {"port": "Oslo"})
    records = read(path)
    opened = records[0]["f"]
    assert records[0]["k"] == "open"
    assert (opened["role"], opened["transport"]) == ("server", "memory")
    assert (opened["name"], opened["version"]) == ("the harbour", "2.1")
    assert opened["listed"] == server_lifespan_and_recording._registry.list_digests()
    assert [line[9:] for line in opened["listed"]["tools"]] == ["tide", "depth"]
    assert opened["earlier_sessions"] == 0
    assert opened["lifespan"] is False
    assert records[-1]["k"] == "end"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_folder_gets_a_file_for_each_session(
    server_lifespan_and_recording, tmp_path, nursery
):
    from mcp_trio.testing import WirePeer

    peers = []
    for folder in (tmp_path, f"{tmp_path}/"):
        ours, theirs = memory_pair()
        await nursery.start(
            lambda task_status, f=folder, c=theirs: server_lifespan_and_recording.serve(
                c, record=f, task_status=task_status
            )
        )
        peers.append(WirePeer(ours))
    for peer in peers:
        await peer.handshake()
        await peer.aclose()
    await trio.testing.wait_all_tasks_blocked()
    names = [path.name for path in tmp_path.iterdir()]
    assert len(names) == 2
    assert all(name.startswith("the-harbour-") for name in names)
    assert all(name.endswith(".mcprec.jsonl") for name in names)


async def test_a_recording_that_cannot_be_made_serves_nothing(
    server_lifespan_and_recording, tmp_path
):
    ours, theirs = memory_pair()
    with pytest.raises(RecordingError, match="cannot record to"):
        await server_lifespan_and_recording.serve(
            theirs, record=tmp_path / "missing" / "x.mcprec.jsonl"
        )
    assert await ours.receive() == []


async def test_a_handler_in_a_thread_is_marked_and_its_thread_has_a_lane_of_its_own(
    server_lifespan_and_recording, tmp_path
):
    path = tmp_path / "x.mcprec.jsonl"
    async with client_session(server_lifespan_and_recording, path, log_level="info") as client:
        await client.call_tool("depth")
    of_handlers = [record for record in read(path) if record.get("l", "").startswith("r")]
    request = of_handlers[0]["l"]
    acts = [
        (record["k"], record["l"], record["f"].get("name") or record["f"].get("method"))
        for record in of_handlers
    ]
    assert acts == [
        ("mark", request, "thread"),
        ("out", f"{request}.0", "notifications/message"),
        ("out", f"{request}.0", "notifications/message"),
        ("mark", request, "thread ended"),
        ("out", request, None),
    ]


@pytest.mark.parametrize("has_lifespan", [True, False])
async def test_the_recording_contains_whether_there_was_a_lifespan(tmp_path, has_lifespan):
    @contextlib.asynccontextmanager
    async def lifespan(server):
        yield

    path = tmp_path / "x.mcprec.jsonl"
    ours, theirs = memory_pair()
    await ours.aclose()
    await Server("harbour", lifespan=lifespan if has_lifespan else None).serve(theirs, record=path)
    assert read(path)[0]["f"]["lifespan"] is has_lifespan


async def test_a_server_with_an_annotation_that_stays_undefined_does_not_start():
    server = Server("harbour")

    @server.tool
    async def tide(port: "Nowhere"):  # noqa: F821 - the name is what is tested
        pass

    ours, _ = memory_pair()
    with pytest.raises(TypeError, match=r"tide\(\) at test_server.py:\d+: parameter 'port'"):
        await server.serve(ours)


# Running.


def test_the_transport_for_old_clients_is_part_of_http():
    with pytest.raises(ValueError, match=r'run\("http"\) serves HTTP\+SSE as well'):
        Server("harbour").run("sse")


def test_an_unknown_option_of_http_is_rejected_with_the_one_that_is_meant():
    with pytest.raises(TypeError, match=r"run\(\) .* option 'prt'; did you mean 'port'\?"):
        Server("harbour").run("http", prt=1)


def test_an_option_of_http_is_rejected_over_stdio_with_what_to_write():
    with pytest.raises(TypeError, match=r"'port'; over stdio, only 'record' is one: write run\("):
        Server("harbour").run(port=8000)


def test_an_unknown_transport_is_rejected():
    with pytest.raises(ValueError, match="unknown transport 'smoke': choose from stdio"):
        Server("harbour").run("smoke")


async def test_a_lifespan_that_cannot_be_made_closes_the_channel():
    def lifespan(server):
        raise ValueError("no database")

    ours, theirs = memory_pair()
    with pytest.raises(ValueError, match="no database"):
        await Server("harbour", lifespan=lifespan).serve(theirs)
    assert await ours.receive() == []


def test_an_undecorated_generator_is_rejected_as_a_lifespan():
    async def lifespan(server):
        yield

    with pytest.raises(TypeError, match="asynccontextmanager"):
        Server("harbour", lifespan=lifespan)


# An error of the lifespan after a cancellation is raised without an exception group.


@contextlib.asynccontextmanager
async def lifespan(_server):
    yield
    raise LookupError("no sea")


@pytest.mark.parametrize("way", WAYS)
async def test_an_error_of_the_lifespan_is_raised_without_a_group_after_a_cancellation(
    way, tmp_path
):
    with trio.CancelScope() as scope:
        status = SimpleNamespace(started=lambda _url: scope.cancel())
        with pytest.raises(LookupError) as raised:
            await serving(Server("harbour", lifespan=lifespan), way, tmp_path)(task_status=status)
    assert raised.value.args == ("no sea",)


# The stand-in for the lifespan in a replay may only be passed to effects.


async def entered(it):
    async with it:
        pass


def entered_at_once(it):
    with it:
        pass


async def awaited(it):
    return await it


def run(function):
    return lambda it: trio.run(function, it)


def assign(it):
    it.name = 1


def drop(it):
    del it.name


def assign_item(it):
    it["name"] = 1


def drop_item(it):
    del it["name"]


@pytest.mark.parametrize(
    "use",
    [
        *(bool, int, float, str, bytes, len, list, iter, next, hash, aiter, operator.index),
        *(operator.neg, operator.invert, os.fspath, reversed, format, copy.copy, pickle.dumps),
        *(operator.call, copy.deepcopy, entered_at_once, assign, drop, assign_item, drop_item),
        *(run(entered), run(awaited)),
        lambda it: it(1, name=2),
        lambda it: it[0],
        lambda it: f"{it}",
        lambda it: "name" in it,
        lambda it: it == 1,
        lambda it: it != 1,
        lambda it: it < 1,
        lambda it: it >= 1,
        lambda it: it + 1,
        lambda it: 1 + it,
        lambda it: it % 1,
        lambda it: it / 1,
        lambda it: {it: 1},
    ],
)
def test_every_use_of_the_stand_in_is_rejected(use):
    with pytest.raises(BlockedInReplay, match=r"ctx\.lifespan\.fetch was used .*def fetch\("):
        use(ReplayLifespan().fetch)


def test_the_lifespan_itself_has_no_name_for_an_effect():
    with pytest.raises(BlockedInReplay, match=r"^ctx\.lifespan was used .*def use\("):
        bool(ReplayLifespan())


def test_a_stand_in_has_a_repr():
    assert repr(ReplayLifespan().db.pool) == "<ctx.lifespan.db.pool, which a replay does not have>"
    assert repr(ReplayLifespan()["db"]) == '<ctx.lifespan["db"], which a replay does not have>'
    assert not hasattr(ReplayLifespan(), "__wrapped__")


def test_an_item_of_the_lifespan_is_rejected_by_its_name():
    with pytest.raises(BlockedInReplay, match=r'ctx\.lifespan\["db"\] was used .*def db\('):
        len(ReplayLifespan()["db"])


# In a replay.


@attrs.define(eq=False)
class Database:
    """An object that could be encoded as JSON, but not decoded to itself."""

    path: str
    asked: int = 0

    async def fetch(self, sql: str) -> str:
        self.asked += 1
        return f"{sql} {self.asked}"


@attrs.define(eq=False)
class State:
    db: Database
    settings: dict[str, str] = attrs.field(factory=dict)
    url: str = "file:db"
    seconds: float = 1.5


class Loose:
    def __init__(self):
        self.db = Database("loose")
        self.settings = {}


@effect
async def fetch(db: Database, sql: str) -> str:
    return await db.fetch(sql)


def serving_lifespan_stand_in(handler, make=lambda: State(Database("file"))):
    @contextlib.asynccontextmanager
    async def lifespan(_):
        with contextlib.closing(sqlite3.connect(":memory:")):  # A replay cannot do this again.
            yield make()

    server = Server("harbour", lifespan=lifespan)
    server.tool(name="tool")(handler)
    return server


async def played(record, handler, replayed=None, **options):
    """Record a session with a handler, and replay it, with another one if there is one."""
    asker, recorded = await record(serving_lifespan_stand_in(handler, **options))
    text = await asker.call("tool")
    await played_again(asker, recorded, serving_lifespan_stand_in(replayed or handler, **options))
    return text, recorded()


@pytest.mark.parametrize("make", [lambda: State(Database("file")), Loose], ids=["slots", "dict"])
async def test_the_lifespan_and_what_it_holds_are_opaque_to_effects(record, make):
    async def tool(ctx: Context) -> list[str]:
        @effect
        async def several(state: State, settings: dict, db: Database) -> str:
            return await state.db.fetch("three")

        state = ctx.lifespan
        return [await fetch(state.db, "one"), await several(state, state.settings, state.db)]

    text, effects = await played(record, tool, make=make)
    assert json.loads(text) == ["one 1", "three 2"]
    opaque = "<opaque>"
    assert [body["arguments"] for kind, body in effects if kind == "cmd"] == [
        {"db": opaque, "sql": "one"},
        {"state": opaque, "settings": opaque, "db": opaque},
    ]


async def test_nested_values_and_texts_of_the_lifespan_replay_too(record):
    async def tool(ctx: Context) -> list[str]:
        @effect
        async def ask(url: str, *dbs: Database, seconds: float, **more: object) -> str:
            return f"{url} {dbs[0].path} {seconds}"

        @effect
        def ask_in_passing(path: str) -> str:
            return path

        state = ctx.lifespan
        path = state.db.path
        asked = await ask(state.url, state.db, state, seconds=state.seconds, path=path, beside=1)
        return [asked, ask_in_passing(path)]

    text, effects = await played(record, tool)
    assert json.loads(text) == ["file:db file 1.5", "file"]
    opaque = "<opaque>"
    (command,) = [body["arguments"] for kind, body in effects if kind == "cmd"]
    assert command == {
        "url": "file:db",
        "dbs": [opaque, opaque],
        "seconds": 1.5,
        "more": {"path": "file", "beside": 1},
    }


@pytest.mark.parametrize(
    "changed",
    [
        lambda state: ("<ctx.lifespan", state.db),
        lambda state: (state.url, 3),
        lambda state: (state.url, state.db, 3),
        lambda state: (state.url, {"db": state.db}),
    ],
)
async def test_arguments_beside_a_stand_in_are_compared(record, changed):
    def handler(arguments):
        async def tool(ctx: Context) -> int:
            async def count(*things: object) -> int:
                return len(things)

            return await ctx.effect(count, *arguments(ctx.lifespan))

        return tool

    with pytest.raises(ReplayDivergence, match="changed:"):
        await played(record, handler(lambda state: (state.url, state.db)), handler(changed))


async def test_a_replay_rejects_where_the_lifespan_is_used(record):
    async def tool(ctx: Context) -> str:
        try:
            return await ctx.lifespan.db.fetch("one")
        except BlockedInReplay:
            return "one 1"

    text, _ = await played(record, tool)
    assert text == "one 1"


async def test_a_method_of_the_lifespan_is_no_effect_in_a_replay(record):
    async def tool(ctx: Context) -> str:
        return await ctx.effect(ctx.lifespan.db.fetch, "one")

    async def replayed(ctx: Context) -> str:
        with pytest.raises(BlockedInReplay):
            await ctx.effect(ctx.lifespan.db.fetch, "one")

        async def fetch(sql: str) -> str:
            raise AssertionError

        return await ctx.effect(fetch, "one")

    text, _ = await played(record, tool, replayed)
    assert text == "one 1"


# Serving can be cancelled while the lifespan is still starting.


WAYS_SLOW_LIFESPANS = ["websocket", "unix", "tcp", "http", "hypercorn", "dial"]


def serving_slow_lifespans(server, way, tmp_path):
    if way == "unix":
        return functools.partial(server.serve_unix, tmp_path / "s")
    if way == "dial":
        return functools.partial(server.dial, f"unix:{tmp_path}/none")
    if way == "hypercorn":
        return functools.partial(server.serve_http, port=0, server="hypercorn")
    return functools.partial(getattr(server, f"serve_{way}"), port=0)


@pytest.mark.parametrize("way", WAYS_SLOW_LIFESPANS)
async def test_a_lifespan_that_is_still_starting_can_be_cancelled(way, tmp_path, autojump_clock):
    release, ended, scope, story = trio.Event(), trio.Event(), trio.CancelScope(), []

    @contextlib.asynccontextmanager
    async def lifespan(_):
        story.append("begins")
        try:
            await release.wait()
        except trio.Cancelled:
            story.append("cancelled")
            raise
        yield

    server = Server("slow", lifespan=lifespan)

    async def serve():
        with scope:
            await serving_slow_lifespans(server, way, tmp_path)()
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await trio.sleep(1)
        scope.cancel()
        with trio.move_on_after(60):
            await ended.wait()
        has_ended = ended.is_set()
        release.set()
    assert has_ended
    assert story == ["begins", "cancelled"]


# A server offers only its declared capabilities.


CHANGED = "notifications/resources/list_changed"
UPDATED = "notifications/resources/updated"
TIDE = "harbour://tide"


async def tide() -> str:
    return "high"


@pytest.mark.requirement("RES-01", "RES-12", "RES-13")
@pytest.mark.parametrize("subscribe", [True, None])
@pytest.mark.parametrize("list_changed", [True, None])
async def test_resources_come_with_subscriptions_and_changes_with_one_or_with_none(
    serve, subscribe, list_changed
):
    resources = types.ResourcesCapability(subscribe=subscribe, list_changed=list_changed)
    server = Server("harbour", capabilities=types.ServerCapabilities(resources=resources))
    server.resource(TIDE)(tide)
    asker = await serve(server)
    declared = {"subscribe": subscribe, "listChanged": list_changed}
    assert asker.hello["capabilities"]["resources"] == {
        name: True for name, is_declared in declared.items() if is_declared
    }
    answer = await asker.ask("resources/subscribe", {"uri": TIDE})
    assert answer.get("result") == ({} if subscribe else None)
    server.resource("harbour://wind")(tide)
    server.resource_updated(TIDE)
    methods = [message["method"] for message in await asker.wire.receive_available()]
    assert methods == [CHANGED] * bool(list_changed) + [UPDATED] * bool(subscribe)


@pytest.mark.requirement("TOOL-35", "PROM-11", "TOOL-01", "PROM-01")
@pytest.mark.parametrize("kind", ["tools", "prompts"])
async def test_changes_of_undeclared_lists_are_not_sent(serve, kind):
    capabilities = types.ServerCapabilities(
        tools=types.ToolsCapability(), prompts=types.PromptsCapability()
    )
    server = Server("harbour", capabilities=capabilities)
    asker = await serve(server)
    assert asker.hello["capabilities"] == {"tools": {}, "prompts": {}}
    add = {"tools": server.tool, "prompts": server.prompt}[kind]
    add(tide)
    assert await asker.wire.receive_available() == []


@pytest.mark.requirement("LOG-01", "LOG-04")
async def test_a_server_that_does_not_declare_logging_cannot_log(serve):
    server = Server("harbour", capabilities=types.ServerCapabilities(tools={}))

    @server.tool
    async def talk(ctx: Context) -> str:
        with pytest.raises(LocalProtocolError, match="logging"):
            await ctx.info("hello")
        return "said nothing"

    asker = await serve(server)
    assert await asker.call("talk") == "said nothing"
    assert asker.received == []
    assert (await asker.error("logging/setLevel", {"level": "info"}))["code"] == -32601


@pytest.mark.requirement("TOOL-02", "RES-02", "PROM-02")
@pytest.mark.parametrize(
    ("method", "empty"),
    [
        ("tools/list", {"tools": []}),
        ("resources/list", {"resources": []}),
        ("resources/templates/list", {"resourceTemplates": []}),
        ("prompts/list", {"prompts": []}),
    ],
)
async def test_a_declared_list_may_be_empty_and_needs_no_params(serve, method, empty):
    asker = await serve(Server("harbour", offers={"tools", "resources", "prompts"}))
    assert await asker.result(method) == empty
    assert await asker.result(method, {}) == empty


@pytest.mark.requirement("ROOT-10", "SAMP-06", "LIFE-14")
@pytest.mark.parametrize("declared", [{}, {"roots": {}}, {"sampling": {}}])
async def test_a_client_is_asked_only_for_declared_capabilities(serve, autojump_clock, declared):
    server = Server("harbour")

    @server.tool
    async def ask(ctx: Context) -> str:
        questions = {"roots": ctx.list_roots, "sampling": functools.partial(ctx.sample, "Why?")}
        for capability in questions.keys() - declared.keys():
            with pytest.raises(LocalProtocolError, match=f"did not announce {capability}"):
                await questions[capability]()
        return "asked nothing"

    asker = await serve(server, capabilities=declared)
    assert await asker.call("ask") == "asked nothing"
    assert asker.received == []


# Count the sessions of one server that are open at the same time.


FILES = [None, "a folder", SharedRecording("one.jsonl"), SharedRecording("other.jsonl")]


@attrs.define(eq=False)
class Unrecorded:
    """A session without a recording, which has no number of others."""

    session_counter: SessionCounter

    def count_closed(self):
        self.session_counter.unrecorded_closed()


def count_opened(session_counter, file):
    if file is not None:
        return session_counter.count_recorded(file)
    session_counter.count_unrecorded()
    return Unrecorded(session_counter)


def test_a_single_session_counts_no_others():
    assert SessionCounter().count_recorded("a folder").others() == 0


@pytest.mark.parametrize("file", FILES[:2])
def test_sessions_open_at_the_same_time_are_counted_even_after_they_close(file):
    session_counter = SessionCounter()
    count_opened(session_counter, file).count_closed()
    first = session_counter.count_recorded("a folder")
    second = count_opened(session_counter, file)
    assert first.others() == 1
    second.count_closed()
    third = count_opened(session_counter, file)
    fourth = session_counter.count_recorded("a folder")
    assert (first.others(), fourth.others()) == (3, 2)
    third.count_closed()
    assert (first.others(), fourth.others()) == (3, 2)


@given(
    st.lists(st.one_of(st.sampled_from(FILES), st.integers(0, 9)), max_size=30).map(
        lambda moves: [*moves, "a folder"]
    )
)
def test_the_count_equals_the_number_of_overlapping_sessions_in_other_files(moves):
    """A file opens a session recorded there, a number closes one of those that are open."""
    session_counter, open_now, met, counts = SessionCounter(), [], {}, {}
    for number, move in enumerate(moves):
        if isinstance(move, int):
            if open_now:
                open_now.pop(move % len(open_now))[2].count_closed()
            continue
        beside = count_opened(session_counter, move)
        if move is not None:
            counts[number] = beside
        met[number] = set()
        for other, file, _ in open_now:
            if move is not file or not isinstance(move, SharedRecording):
                met[number].add(other)
                met[other].add(number)
        open_now.append((number, move, beside))
    for number, move, _ in open_now:
        if move is not None:
            assert counts[number].others() == len(met[number])


# Connections whose client sends no first request are closed.


LIMITS = Limits(requests=RequestLimits(first_request_seconds=80))
LEGACY, STATELESS = "2025-11-25", "2026-07-28"


@attrs.define(eq=False)
class SomeSession:
    has_begun: bool = False
    closing: LightEvent = attrs.field(factory=LightEvent)
    shut_by: list = attrs.field(factory=list)

    def shut(self, cause):
        self.shut_by.append((cause, trio.current_time()))
        self.closing.set()


@attrs.define(eq=False)
class SomeWebSocket:
    failures: list = attrs.field(factory=list)

    def fail(self, loss, code=CloseCode.INTERNAL_ERROR):
        self.failures.append((str(loss), code, trio.current_time()))


@pytest.fixture
def handshake_timeouts(nursery):
    handshake_timeouts = HandshakeTimeouts(LIMITS)
    nursery.start_soon(handshake_timeouts.run)
    return handshake_timeouts


async def test_only_connections_without_a_first_request_are_closed(
    handshake_timeouts, autojump_clock, caplog
):
    silent, busy = SomeSession(), SomeSession()
    for session in (silent, busy):
        handshake_timeouts.task_status_for(object()).started(session)
    await trio.sleep(75)
    assert not silent.shut_by
    busy.has_begun = True
    await trio.sleep(1000)
    [(cause, at)] = silent.shut_by
    assert (cause, busy.shut_by) == ("lost", [])
    assert 80 <= at <= 90
    assert "no first request for 80 s (limits.requests.first_request_seconds)" in caplog.text


async def test_a_websocket_is_closed_with_the_reason(handshake_timeouts, autojump_clock):
    channel, session = SomeWebSocket(), SomeSession()
    handshake_timeouts.task_status_for(channel).started(session)
    await trio.sleep(100)
    [(text, code, _)] = channel.failures
    assert "limits.requests.first_request_seconds" in text
    assert code == CloseCode.INTERNAL_ERROR
    assert not session.shut_by  # its channel notifies it


async def test_the_handshake_timeout_starts_when_the_session_has_opened(
    handshake_timeouts, autojump_clock
):
    channel = SomeWebSocket()
    pending = handshake_timeouts.task_status_for(channel)
    await trio.sleep(1000)  # the bridge has no server yet
    pending.started(SomeSession())
    await trio.sleep(1000)
    [(_, _, failed_at)] = channel.failures
    assert 1080 <= failed_at <= 1090


async def test_connections_that_have_ended_are_forgotten(handshake_timeouts, autojump_clock):
    ended = SomeSession()
    handshake_timeouts.task_status_for(object()).started(ended)
    handshake_timeouts.task_status_for(object())
    ended.closing.set()
    await trio.sleep(1000)
    assert not ended.shut_by
    assert not handshake_timeouts.pending


@pytest.mark.parametrize("way", WAYS)
async def test_a_silent_connection_is_closed_and_others_continue(way, tmp_path, mock_clock):
    limits = Limits(requests=RequestLimits(first_request_seconds=2))
    server = watched("harbour", limits=limits)
    async with served(server, way, tmp_path) as (url, _scope), contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                Client(await opened(url), protocol_versions=[protocol_version])
            )
            for protocol_version in (LEGACY, STATELESS)
        ]
        silent = await opened(url)
        await silent.send([json.dumps({"id": 1}).encode()])  # which is nothing that counts
        await sent_away(silent, mock_clock, limits.requests.first_request_seconds)
        for client in clients:
            assert len(await client.list_tools()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seconds", [86_400.0, math.inf])
async def test_closed_connections_are_forgotten_before_the_timeout(
    nursery, autojump_clock, seconds
):
    handshake_timeouts = HandshakeTimeouts(
        Limits(requests=RequestLimits(first_request_seconds=seconds))
    )
    nursery.start_soon(handshake_timeouts.run)
    session = SomeSession(has_begun=True)
    handshake_timeouts.task_status_for(object()).started(session)
    session.closing.set()
    await trio.sleep(60)
    assert not handshake_timeouts.pending
    nursery.cancel_scope.cancel()


# The name of a client is for display: nothing is granted or rejected for it.


CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
ACCEPTED = {"action": "accept", "content": {}}


async def moor(*, ctx: Context) -> str:
    return (await ctx.elicit("Moor?")).action


async def show(*, ctx: Context) -> str | types.InputRequiredResult:
    if ctx.input_responses:
        return "accept"
    schema = {"type": "object", "properties": {}}
    form = types.ElicitParams(message="Moor?", requested_schema=schema)
    question = types.InputRequest(method="elicitation/create", params=form)
    return types.InputRequiredResult(input_requests={"mine": question}, request_state="asked")


def claims(name):
    """The metadata of a request with the name of a client."""
    return {"_meta": {CLIENT_INFO: {"name": name, "version": "1"}, "principal": name}}


@pytest.mark.requirement("ELIC-47", "META-19")
@pytest.mark.parametrize("handler", [moor, show])
async def test_a_state_is_not_bound_to_the_identity_that_a_client_claims(resumable, chain, handler):
    plain = chain(lambda server: server.tool(name="it")(show))
    it = resumable(moor) if handler is moor else plain
    first = (await it.send(**claims("anna")))["result"]
    (key,) = first["inputRequests"]
    answers = {"requestState": first["requestState"], "inputResponses": {key: ACCEPTED}}
    last = (await it.send(**answers, **claims("bert")))["result"]
    assert last["content"][0]["text"] == "accept"


# The help of Server explains every option.


FUNCTIONS = [
    *(Server.tool, Server.resource, Server.prompt, Server.completion, Server.method),
    *(Server.serve, Server.serve_http, Server.serve_websocket, Server.serve_unix, Server.serve_tcp),
    *(Server.dial, Server.asgi, Server.run, Server.transform_tool, Server.enable, Server.disable),
    Context.disable,
]

PUBLIC_METHODS = {
    *("tool", "remove_tool", "resource", "remove_resource", "prompt", "remove_prompt"),
    *("completion", "remove_completion", "method", "resource_updated", "list_changed"),
    *("run", "serve", "serve_stdio", "serve_http", "asgi", "serve_websocket"),
    *("serve_unix", "serve_tcp", "dial", "middleware", "route"),
    *("transform_tool", "from_openapi", "mount", "enable", "disable"),
}


def documented(doc, section):
    """Return the names that a section of a docstring explains."""
    (lines,) = re.findall(
        rf"^{section}:\n((?: .*\n|\n)+)", f"{inspect.cleandoc(doc)}\n", re.MULTILINE
    )
    return set(re.findall(r"^    (\w+):", lines, re.MULTILINE))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_every_parameter_is_explained(function):
    parameters = inspect.signature(function).parameters.keys() - {"self"}
    assert documented(function.__doc__, "Args") == parameters


@pytest.mark.parametrize("function", [Server.tool, Server.prompt], ids=["tool", "prompt"])
def test_an_overload_has_the_options_of_the_decorator(function):
    _, overload = typing.get_overloads(function)
    expected = dict(inspect.signature(function).parameters)
    del expected["handler"]
    parameters = dict(inspect.signature(overload).parameters)
    _, name, *_ = parameters
    assert parameters.pop(name).kind is inspect.Parameter.POSITIONAL_ONLY
    assert parameters == expected


def test_every_attribute_of_a_server_is_explained():
    attributes = {it.name for it in attrs.fields(Server) if not it.name.startswith("_")}
    assert documented(Server.__doc__, "Attributes") == attributes


def test_a_server_has_no_other_public_members():
    attributes = {it.name for it in attrs.fields(Server) if not it.name.startswith("_")}
    assert {name for name in dir(Server) if not name.startswith("_")} == PUBLIC_METHODS | attributes


def test_both_kinds_of_context_have_the_same_operations():
    def operations(kind):
        return {name for name in dir(kind) if not name.startswith("_")}

    assert operations(Context) - operations(ThreadContext) == {"http", "timeout", "to_thread"}
    assert operations(ThreadContext) <= operations(Context)


# A client that initializes again on the same connection.


async def test_a_second_client_on_one_connection_has_a_session_of_its_own(record):
    server = Server("harbour")

    @server.tool
    async def hail(*, ctx: Context) -> None:
        await ctx.info("ahoy")

    @server.resource("harbour://tide")
    async def tide() -> str:
        return "high"

    asker, recorded = await record(server, protocol_version="2025-06-18")
    await asker.result("logging/setLevel", {"level": "error"})
    await asker.result("resources/subscribe", {"uri": "harbour://tide"})
    await asker.result("tools/call", {"name": "hail"})
    assert asker.received == []

    hello = await asker.wire.handshake(protocol_version="2025-11-25")
    assert hello["result"]["protocolVersion"] == "2025-11-25"
    server.resource_updated("harbour://tide")
    await asker.result("tools/call", {"name": "hail"})
    assert [message["params"].get("data") for message in asker.received] == ["ahoy"]
    report = await played_again(asker, recorded, server)
    assert report.requests == 4


async def test_a_notification_that_waits_for_room_is_not_sent_before_a_second_client_is_initialized(
    nursery, tmp_path
):
    limits = Limits(messages=MessageLimits(send_queue_bytes_max=1000))
    server = Server("harbour", limits=limits)
    long_uri = f"harbour://{'x' * 1500}"

    @server.resource(long_uri)
    async def tide() -> str:
        return "high"

    @server.tool
    async def change_tide(ctx: Context) -> None:
        ctx.server.resource_updated(long_uri)

    @server.tool
    async def open_berth(ctx: Context) -> None:
        ctx.server.tool(name="moor")(nothing)

    ours, theirs = memory_pair(buffer_bytes_max=256)
    path = tmp_path / "it.mcprec.jsonl"
    await nursery.start(functools.partial(server.serve, theirs, record=path))
    peer = WirePeer(ours)
    await peer.handshake()
    await peer.send_request("resources/subscribe", {"uri": long_uri}, id=1)
    await peer.receive()
    # The buffer takes the first notification, the second fills the queue, and the third waits.
    for number in (2, 3, 4):
        await peer.send_request("tools/call", {"name": "change_tide"}, id=number)
        await trio.testing.wait_all_tasks_blocked()
    params = {"protocolVersion": "2025-11-25", "capabilities": {}}
    params["clientInfo"] = {"name": "second", "version": "0"}
    await peer.send_request("initialize", params, id=5)
    await peer.send_request("tools/call", {"name": "open_berth"}, id=6)
    received = [
        message.get("method", message.get("id")) for message in await peer.receive_available()
    ]
    updated = "notifications/resources/updated"
    assert received == [2, updated, 3, updated, 4, 5, 6]
    await peer.send_notification("notifications/initialized")
    (message,) = await peer.receive_available()
    assert message["method"] == "notifications/tools/list_changed"
    await peer.aclose()
    await trio.testing.wait_all_tasks_blocked()
    server.remove_tool("moor")
    report = await trio.to_thread.run_sync(replay, path, server)
    assert report.requests == 5


async def test_a_second_client_is_rejected_while_a_request_of_the_first_is_unfinished(serve):
    server = Server("harbour")

    @server.tool
    async def wait() -> None:
        await trio.sleep_forever()

    asker = await serve(server)
    await asker.begin("tools/call", {"name": "wait"})
    answer = await asker.wire.handshake()
    assert "requests of this one are unfinished (1 received, 0 sent)" in answer["error"]["message"]


async def test_a_change_that_waited_for_room_is_sent_when_the_second_client_has_initialized(serve):
    server = Server("harbour", limits=Limits(messages=MessageLimits(send_queue_bytes_max=70_000)))

    @server.tool
    async def hail(*, ctx: Context) -> None:
        while True:
            await ctx.info("ahoy" * 1000)

    @server.resource("harbour://tide")
    async def tide() -> str:
        return "high"

    asker = await serve(server, protocol_version="2025-06-18")
    await asker.result("resources/subscribe", {"uri": "harbour://tide"})
    call = await asker.begin("tools/call", {"name": "hail"})
    await trio.testing.wait_all_tasks_blocked()  # The client does not read.
    server.resource_updated("harbour://tide")
    await trio.testing.wait_all_tasks_blocked()
    await asker.wire.cancel(call)
    await trio.testing.wait_all_tasks_blocked()

    info = {"name": "other", "version": "9"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
    initialize = await asker.begin("initialize", hello)
    subscribe = await asker.begin("resources/subscribe", {"uri": "harbour://tide"})
    await trio.testing.wait_all_tasks_blocked()
    server.resource_updated("harbour://tide")
    await asker.end(initialize)
    await asker.end(subscribe)
    await trio.testing.wait_all_tasks_blocked()
    assert {message["method"] for message in asker.received} == {"notifications/message"}
    await asker.wire.send_notification("notifications/initialized")
    assert (await asker.wire.receive())["method"] == "notifications/resources/updated"


# Errors at the registration and at the start of a server: each error says what to write.

server = Server("desk")


@server.tool
async def find(q: str) -> str:
    return q


@server.tool
def wait(ctx: ThreadContext) -> None:
    with ctx.timeout(3):
        pass


async def log(request):
    """A middleware without `call_next`."""


class Logging:
    async def on_call_tool(self, context, call_next): ...


@contextlib.contextmanager
def blocking(_server):
    yield


@contextlib.asynccontextmanager
async def without_server():
    yield


class Place: ...


def place(at: Place) -> str: ...


async def run_in_trio():
    server.run()


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: server.disable("fnd"), LookupError, "did you mean 'find'?"),
        (lambda: server.enable(names={"find"}), TypeError, "write the names as positional"),
        (lambda: server.disable(names={"find"}), TypeError, "write the names as positional"),
        (lambda: server.transform_tool("fnd", name="x"), LookupError, "did you mean 'find'?"),
        (
            lambda: server.transform_tool("find", arguments={"words": Argument("x")}),
            ValueError,
            "'find' has no argument 'words'; it has: q",
        ),
        (
            lambda: server.transform_tool("find", arguments={"q": "words"}),
            TypeError,
            "has to be an Argument or Fixed of mcp_trio.tools, such as Argument('words')",
        ),
        (
            lambda: server.middleware(log),
            TypeError,
            "the middleware 'log' has to be `async def log(request, call_next)`",
        ),
        (lambda: server.middleware(Logging()), TypeError, "'Logging' has to be a function"),
        (lambda: Server("x", lifespan=blocking), TypeError, "write @asynccontextmanager above"),
        (
            lambda: Server("x", lifespan=without_server),
            TypeError,
            "the lifespan 'without_server' has to be `async def without_server(server)`",
        ),
        (lambda: server.tool(place), TypeError, "make it an attrs class or a dataclass"),
        (lambda: trio.run(run_in_trio), RuntimeError, "write `await server.serve_stdio()`"),
        (
            lambda: trio.run(Client({"mcpServers": {}}).__aenter__),
            TypeError,
            "a configuration is for ClientGroup.from_config",
        ),
    ],
)
def test_an_error_of_registration_says_what_to_write(make, error, text):
    with pytest.raises(error, match=re.escape(text)):
        make()


async def test_the_error_of_a_def_handler_names_an_operation_of_async_handlers(caplog):
    async with Client(server) as client:
        with pytest.raises(ToolError):
            await client.call_tool("wait")
    assert "no attribute 'timeout'; a `def` handler has none: write `async def`" in caplog.text
