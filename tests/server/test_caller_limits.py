"""Limits per caller: rates, requests at once, quotas, log messages, and their recordings."""

import json
import re
from functools import partial

import pytest
import trio
from memory_sessions import client_session

from mcp_trio import Client, Context, RequestError, Server, ThreadContext, ToolError
from mcp_trio._journal.records import CommandBody, encode_body
from mcp_trio._server.caller_limits import add_limits, limits_of_command, recorded_limits
from mcp_trio.auth import AuthInfo
from mcp_trio.errors import RecordingError, ReplayDivergence
from mcp_trio.http import HttpStores
from mcp_trio.middleware import (
    ConcurrencyLimit,
    LogLimit,
    MemoryLimitStore,
    Quota,
    Rate,
    RateLimit,
    RateLimited,
)
from mcp_trio.recording import Record, read_recording, replay, sweep


@pytest.fixture
def server():
    server = Server("harbour")

    @server.tool
    async def tide(a: int = 0) -> int:
        return a

    @server.tool
    async def search(count: int, *, ctx: Context) -> str:
        for number in range(count):
            await ctx.effect(_look, number)
        return "found"

    @server.tool
    def block(*, ctx: ThreadContext) -> None:
        ctx.info("in a thread")

    @server.tool
    async def wait(*, ctx: Context) -> str:
        await ctx.sleep(1)
        return "waited"

    @server.tool
    async def talk(count: int, *, ctx: Context) -> None:
        for number in range(count):
            await ctx.debug(number)

    @server.resource("sea://{name}/level")
    async def level(name: str) -> str:
        return name

    @server.prompt
    async def greet(name: str) -> str:
        return f"Greet {name}."

    @server.completion(greet, "name")
    async def names(value: str) -> list[str]:
        return [value]

    return server


def _look(number: int) -> int:
    return number


async def rejected(call):
    """Return the seconds to wait that a rejected call names; fail if it is not rejected."""
    with pytest.raises(RequestError) as caught:
        await call
    assert caught.value.code == 429
    return (caught.value.data or {}).get("retryAfter")


@pytest.mark.requirement("TOOL-38", "COMP-07", "COMP-09", "RES-24", "PROM-16")
async def test_a_burst_is_let_through_and_then_the_rate(server, autojump_clock):
    server.middleware(RateLimit("6/minute", burst=2))
    async with Client(server) as client:
        calls = [
            partial(client.call_tool, "tide"),
            partial(client.read_resource, "sea://north/level"),
            partial(client.get_prompt, "greet", {"name": "Ada"}),
            partial(client.complete, "greet", "name", "A"),
        ]
        for call in calls:
            await call()
            await call()
            seconds = await rejected(call())
            assert seconds == pytest.approx(10, abs=0.01)
            await client.list_tools()
            await trio.sleep(seconds)
            await call()
            await trio.sleep(20)


async def test_the_error_names_the_limit(server):
    server.middleware(RateLimit("1/hour", per=("user", "tool")))
    async with Client(server) as client:
        await client.call_tool("tide")
        with pytest.raises(RequestError) as caught:
            await client.call_tool("tide")
    text = r"too many requests \(1/hour per user and tool\): try again in 3\d{3}(\.\d+)? s"
    assert caught.match(text)
    assert caught.value.data == {"retryAfter": pytest.approx(3600, abs=1)}


async def test_each_tool_has_its_cost(server, autojump_clock):
    cost = {"search": 5, "tide": 0, "sea://{name}/level": 2, "prompts/get": 3}
    server.middleware(RateLimit("6/minute", cost=cost))
    async with Client(server) as client:
        for _ in range(9):
            await client.call_tool("tide")
        await client.call_tool("search", {"count": 0})
        assert await rejected(client.read_resource("sea://north/level")) == pytest.approx(10)
        assert await rejected(client.get_prompt("greet", {"name": "A"})) == pytest.approx(20)
        await client.call_tool("talk", {"count": 0})
        assert await rejected(client.call_tool("talk", {"count": 0})) == pytest.approx(10)


async def test_sessions_tools_and_unknown_names_are_limited_as_asked(server):
    server.middleware(RateLimit("1/hour", per=("session", "tool")))
    async with Client(server) as one, Client(server) as other:
        for client in (one, other):
            await client.call_tool("tide")
            await rejected(client.call_tool("tide"))
            await client.call_tool("search", {"count": 0})
            await client.read_resource("sea://north/level")
            await rejected(client.read_resource("sea://south/level"))
            # Clients invent names, so all unknown tools have one bucket.
            with pytest.raises(RequestError, match="unknown tool"):
                await client.call_tool("none")
            await rejected(client.call_tool("never"))


@pytest.mark.parametrize(("per", "shared"), [("user", True), ("client", False), ("tool", True)])
async def test_callers_are_distinguished_as_per_says(server, tmp_path, per, shared):
    facts = iter([AuthInfo(subject="ada", client=name) for name in ("desk", "phone")])
    server.middleware(RateLimit("1/hour", per=per))
    path = str(tmp_path / "socket")

    async def authorize(_):
        return next(facts)

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(server.serve_unix, path, authorize=authorize))
        async with Client(f"unix:{path}") as desk, Client(f"unix:{path}") as phone:
            await desk.call_tool("tide")
            await rejected(desk.call_tool("tide"))
            if shared:
                await rejected(phone.call_tool("tide"))
            else:
                await phone.call_tool("tide")
        nursery.cancel_scope.cancel()


async def test_limits_with_one_store_are_common_to_the_servers(server):
    store = MemoryLimitStore()
    other = Server("harbour")
    other.tool(name="tide")(lambda: 1)
    for each in (server, other):
        each.middleware(RateLimit("1/hour", per="tool", store=store))
        each.middleware(RateLimit("2/hour", per="tool", store=store))
    async with Client(server) as one, Client(other) as two:
        await one.call_tool("tide")
        await rejected(two.call_tool("tide"))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: RateLimit("often"), "'often' is not a rate: write '100/minute'"),
        (lambda: RateLimit("0/minute"), "'0/minute' is not a rate"),
        (lambda: RateLimit("1 mB/day"), "'1 mB/day' is not a rate"),
        (lambda: RateLimit("1/minute", burst=0), "burst"),
        (lambda: RateLimit("1/minute", per="ip"), "per='ip' is not a caller: write one or more of"),
        (lambda: RateLimit("1/minute", per=()), "is not a caller"),
        (lambda: RateLimit("5/minute", cost={"a": 6}), "'a' costs 6: it has to be from 0 to the b"),
        (lambda: RateLimit("5/minute", cost={"a": -1}), "'a' costs -1"),
        (lambda: ConcurrencyLimit(0), "places"),
        (lambda: Quota("1/day", of="calls"), "of"),
        (lambda: LogLimit("x"), "'x' is not a rate"),
    ],
)
def test_a_mistake_is_reported_where_it_is_made(make, text):
    with pytest.raises(ValueError) as caught:
        make()
    assert text in str(caught.value)


async def test_limits_of_different_methods_in_one_store_are_different(server):
    store = MemoryLimitStore()
    server.middleware(RateLimit("1/hour", methods=["resources/read"], store=store))
    server.middleware(RateLimit("1/hour", methods=["tools/call"], store=store))
    async with Client(server) as client:
        await client.read_resource("sea://north/level")
        await client.call_tool("tide")
        for again in (client.call_tool("tide"), client.read_resource("sea://north/level")):
            with pytest.raises(RequestError, match="too many requests"):
                await again


@pytest.mark.parametrize("limit", [partial(RateLimit, "1/hour"), partial(ConcurrencyLimit, 1)])
def test_a_single_text_is_no_collection_of_methods(limit):
    with pytest.raises(TypeError, match=r"write methods=\['tools/call'\]"):
        limit(methods="tools/call")


async def test_a_rate_object_is_a_rate(server):
    server.middleware(RateLimit(Rate(per_minute=1, burst=1)))
    server.middleware(Quota(Rate(per_minute=60, burst=1), of="effects"))
    async with Client(server) as client:
        await client.call_tool("search", {"count": 0})
        with pytest.raises(RequestError, match=r"1/minute per user"):
            await client.call_tool("tide")


# Requests at once


async def test_requests_beyond_the_places_are_rejected_until_one_has_finished(
    server, autojump_clock
):
    server.middleware(ConcurrencyLimit(2))
    async with Client(server) as client, trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(client.call_tool, "wait")
        await trio.sleep(0.5)
        assert await rejected(client.call_tool("tide")) is None
        await trio.sleep(1)
        for _ in range(5):
            await client.call_tool("tide")
        with pytest.raises(ToolError):
            await client.call_tool("search", {"count": "x"})
        for _ in range(2):
            nursery.start_soon(client.call_tool, "wait")


async def test_a_cancelled_request_gives_its_place_back(server, autojump_clock, tmp_path):
    server.middleware(ConcurrencyLimit(1))
    server.middleware(Quota("100/day", of="effects"))
    path = tmp_path / "session.mcprec.jsonl"
    async with client_session(server, path) as client:
        with trio.move_on_after(0.5):
            await client.call_tool("wait")
        await trio.sleep(0.1)
        assert (await client.call_tool("wait")).content[0].text == "waited"
    records = path.read_text()
    assert records.count('"ConcurrencyLimit.leave"') == 2
    assert records.count('"Quota.charge"') == 2
    await trio.to_thread.run_sync(replay, path, server)


async def test_a_handler_that_asks_in_rounds_has_a_place_in_each(autojump_clock):
    server = Server("harbour")
    store = MemoryLimitStore()
    server.middleware(RateLimit("1/hour"))
    server.middleware(ConcurrencyLimit(1, store=store))

    @server.tool(resumable=True)
    async def book(*, ctx: Context) -> str:
        await ctx.elicit("sure?")
        await ctx.elicit("really?")
        return "booked"

    async with Client(server, elicitation=lambda _: True) as client:
        assert (await client.call_tool("book")).content[0].text == "booked"
    assert store._holders == {}


async def test_each_round_of_a_handler_is_charged(autojump_clock):
    server = Server("harbour")
    store = MemoryLimitStore()
    server.middleware(Quota("60/hour", of="effects", store=store))

    @server.tool(resumable=True)
    async def book(*, ctx: Context) -> str:
        for number in range(3):
            await ctx.elicit("sure?")
            await ctx.effect(_look, number)
        return "booked"

    async with Client(server, elicitation=lambda _: True) as client:
        await client.call_tool("book")
        (key,) = store._buckets._full_at
        rate = Rate(per_minute=1, burst=60)
        assert await store.take(key, rate, 58) == pytest.approx(60, abs=2)
        assert await store.take(key, rate, 57) == 0


# Quotas


async def test_a_quota_of_effects_counts_those_that_ran(server, autojump_clock):
    server.middleware(Quota("60/hour", of="effects"))
    async with Client(server) as client:
        await client.call_tool("search", {"count": 59})
        await client.call_tool("tide")
        await client.call_tool("wait")
        await client.call_tool("search", {"count": 3})
        assert await rejected(client.call_tool("tide")) == pytest.approx(180, abs=5)
        await trio.sleep(180)
        await client.call_tool("tide")


async def test_a_quota_of_bytes_counts_requests_and_results(server, autojump_clock):
    server.middleware(Quota("10 kB/hour", of="bytes"))

    @server.tool
    async def echo(text: str, times: int) -> str:
        return text * times

    async with Client(server) as client:
        await client.call_tool("echo", {"text": "x" * 4000, "times": 0})
        await client.call_tool("echo", {"text": "x", "times": 4000})
        # The result of a tool has its text twice, as content and as structured content.
        seconds = await rejected(client.call_tool("tide"))
        assert 720 < seconds < 1500
        await trio.sleep(seconds)
        await client.call_tool("tide")


async def test_quotas_with_different_bursts_in_one_store_are_different(server, autojump_clock):
    store = MemoryLimitStore()
    for burst in (1, 100):
        server.middleware(Quota(Rate(60, burst), of="effects", store=store))
    async with Client(server) as client:
        await client.call_tool("search", {"count": 50})
        await trio.sleep(51)
        await client.call_tool("tide")


async def test_the_error_of_a_quota_names_the_whole_time_to_wait(server, autojump_clock):
    server.middleware(Quota("10/day", of="effects"))
    async with Client(server) as client:
        await client.call_tool("search", {"count": 200})
        with pytest.raises(RequestError) as caught:
            await client.call_tool("tide")
        seconds = float(re.search(r"in ([0-9.]+) s", str(caught.value))[1])
        assert seconds > 1_000_000
        assert seconds == caught.value.data["retryAfter"]


# Log messages


@pytest.mark.requirement("LOG-13")
async def test_log_messages_beyond_the_rate_are_dropped(server, autojump_clock, caplog, tmp_path):
    server.middleware(LogLimit("2/minute"))
    received = []
    path = tmp_path / "session.mcprec.jsonl"
    async with client_session(server, path, log=lambda it: received.append(it.data)) as client:
        await client.call_tool("talk", {"count": 5})
        await trio.sleep(30)
        await client.call_tool("talk", {"count": 200})
    assert received == [0, 1, 0]
    assert "dropped a log message of 'talk' (LogLimit)" in caplog.text
    await trio.to_thread.run_sync(replay, path, server)
    replace_middleware(server, LogLimit("3/minute"))
    await diverges(path, server)


@pytest.mark.parametrize("rates", [("2/hour", "9/hour"), ("9/hour", "2/hour")])
async def test_each_of_several_limits_on_log_messages_holds(server, rates):
    received = []
    for rate in rates:
        server.middleware(LogLimit(rate))
    async with Client(server, log=lambda it: received.append(it.data)) as client:
        await client.call_tool("talk", {"count": 5})
    assert received == [0, 1]


async def test_log_messages_of_a_handler_in_a_thread_are_limited(server):
    server.middleware(LogLimit("1/hour", per="tool"))
    received = []
    async with Client(server, log=lambda it: received.append(it.data)) as client:
        await client.call_tool("block")
        await client.call_tool("block")
        await client.call_tool("talk", {"count": 2})
    assert received == ["in a thread", 0]


# Recordings


def records_of(path):
    return list(read_recording(path.read_bytes().splitlines(keepends=True)))


def replace_middleware(server, *middleware):
    server._sessions.middleware[:] = middleware


async def diverges(path, server):
    with pytest.raises(ReplayDivergence) as caught:
        await trio.to_thread.run_sync(replay, path, server)
    return caught.value


async def test_a_replay_takes_the_recorded_decisions_and_finds_a_changed_limit(
    server, tmp_path, autojump_clock
):
    def limits(rate="2/hour", places=3, quota="9/hour"):
        return RateLimit(rate), ConcurrencyLimit(places), Quota(quota, of="effects")

    replace_middleware(server, *limits())
    async with Client(server) as client:  # another session has used up a part
        await client.call_tool("tide")
    path = tmp_path / "session.mcprec.jsonl"
    async with client_session(server, path, raise_tool_errors=False) as client:
        await client.call_tool("tide")
        await client.call_tool("search", {"count": 2})
        await rejected(client.call_tool("tide"))
    replace_middleware(server, *limits())
    report = await trio.to_thread.run_sync(replay, path, server)
    assert report.requests >= 3
    first = next(each for each in records_of(path) if b'"tools/call"' in bytes(each.body))
    for changed in ({"rate": "3/hour"}, {"places": 2}, {"quota": "8/hour"}):
        replace_middleware(server, *limits(**changed))
        divergence = await diverges(path, server)
        assert divergence.kind == "argument"
        assert divergence.lane == f"r{first.number}"
    replace_middleware(server)
    assert (await diverges(path, server)).kind in {"missing", "extra"}


async def test_the_recording_of_a_rate_limit_does_not_name_the_caller(server, tmp_path):
    server.middleware(RateLimit("1/hour", per=("user", "session")))
    path = tmp_path / "session.mcprec.jsonl"
    async with client_session(server, path) as client:
        await client.call_tool("tide")
    (command,) = [each for each in records_of(path) if b'"RateLimit"' in bytes(each.body)]
    assert json.loads(bytes(command.body))["arguments"] == {
        "rate": "1/hour",
        "burst": 1,
        "per": ["user", "session"],
        "cost": 1.0,
    }


async def test_a_handler_may_say_when_to_try_again():
    server = Server("harbour")

    @server.tool
    async def busy() -> None:
        raise RateLimited("the pier is busy", retry_after=2.5)

    async with Client(server) as client:
        assert await rejected(client.call_tool("busy")) == 2.5


@pytest.mark.requirement("TOOL-38")
async def test_under_load_each_caller_gets_the_burst_and_the_rate_and_no_more(
    server, autojump_clock
):
    server.middleware(RateLimit("50/second", burst=20, per="session"))
    allowed = {}

    async def call(name, pause):
        allowed[name] = 0
        async with Client(server) as client:
            while trio.current_time() < begin + 10:
                try:
                    await client.call_tool("tide")
                    allowed[name] += 1
                except RequestError as error:
                    assert 0 < error.data["retryAfter"] <= 0.02  # noqa: PT017
                await trio.sleep(pause)

    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, "fast", 0.01)
        nursery.start_soon(call, "faster", 0.007)
        nursery.start_soon(call, "slow", 0.1)
    assert allowed["fast"] == pytest.approx(520, abs=2)
    assert allowed["faster"] == pytest.approx(520, abs=2)
    assert allowed["slow"] == pytest.approx(100, abs=2)


# The limits that `mcp-trio run` adds to a server, and replays and sweeps of its recordings.


def make_server():
    server = Server("harbour")

    @server.tool
    async def tide(*, ctx: Context) -> float:
        await ctx.sleep(0.5)
        return await ctx.effect(lambda: 2.5)

    return server


def limited_server(*limits):
    server = make_server()
    add_limits(server, limits_of_command(*limits))
    return server


async def record(server, path, *, at_once=1, later=0):
    """Record calls of a client; return the texts of the rejections."""
    rejections = []

    async def call(client):
        try:
            await client.call_tool("tide")
        except RequestError as error:
            rejections.append(error.message)

    async with client_session(server, path) as client:
        async with trio.open_nursery() as calls:
            for _ in range(at_once):
                calls.start_soon(call, client)
        for _ in range(later):
            await call(client)
    return rejections


async def test_each_option_is_a_limit_and_a_replay_of_the_plain_server_has_them(
    tmp_path, autojump_clock
):
    path = tmp_path / "session.mcprec.jsonl"
    server = limited_server(["2/second", "5/hour"], 2, ["0.2 kB/hour"])
    rejections = await record(server, path, at_once=3, later=4)
    assert {text.partition(":")[0] for text in rejections} == {
        "too many requests (2/second per user)",
        "the quota is used up (0.2 kB/hour of bytes per user)",
    }
    plain = make_server()
    report = await trio.to_thread.run_sync(replay, path, plain)
    assert report.requests == 7
    assert plain._sessions.middleware == []
    swept = await trio.to_thread.run_sync(partial(sweep, path, make_server, schedules=3))
    assert not swept.differences


async def test_requests_at_once_are_limited_and_replayed(tmp_path, autojump_clock):
    path = tmp_path / "session.mcprec.jsonl"
    rejections = await record(limited_server([], 2, []), path, at_once=3)
    assert [text.partition(":")[0] for text in rejections] == [
        "too many requests at once (2 per user)"
    ]
    await trio.to_thread.run_sync(replay, path, make_server())


@pytest.mark.requirement("TOOL-38")
async def test_the_limits_of_the_command_are_outside_of_those_of_the_server(
    tmp_path, autojump_clock
):
    path = tmp_path / "session.mcprec.jsonl"
    server = make_server()
    server.middleware(RateLimit("1/minute"))
    add_limits(server, limits_of_command(["1/hour"], None, []))
    rejections = await record(server, path, later=1)
    assert rejections == ["too many requests (1/hour per user): try again in 3599.5 s"]
    plain = make_server()
    plain.middleware(RateLimit("1/minute"))
    await trio.to_thread.run_sync(replay, path, plain)
    with pytest.raises(ReplayDivergence):  # the server's own limit is missing
        await trio.to_thread.run_sync(replay, path, make_server())


def test_damaged_settings_in_a_recording_are_an_error():
    body = encode_body(CommandBody(name="run --rate-limit", arguments={"rate": "often"}))
    record = Record(number=7, time_ns=0, kind="cmd", lane="r1", ordinal=0, body=body)
    with pytest.raises(RecordingError, match="record 7: the settings of run --rate-limit"):
        recorded_limits([record])


def test_an_invalid_rate_is_rejected():
    with pytest.raises(ValueError, match="'often' is not a rate"):
        limits_of_command(["often"], None, [])


@pytest.mark.requirement("TOOL-38")
async def test_limits_without_a_store_use_that_of_the_instances():
    shared = HttpStores(limits=MemoryLimitStore())
    own = MemoryLimitStore()
    server, other = make_server(), make_server()
    for each in (server, other):
        add_limits(each, limits_of_command(["2/hour"], None, []))
    other.middleware(RateLimit("1/hour", store=own))
    async with trio.open_nursery() as nursery:
        urls = [
            await nursery.start(partial(each.serve_http, port=0, stores=shared))
            for each in (server, other)
        ]
        async with Client(urls[0]) as one, Client(urls[1]) as two:
            await one.call_tool("tide")
            await two.call_tool("tide")
            for client in (one, two):
                with pytest.raises(RequestError, match=r"2/hour per user"):
                    await client.call_tool("tide")
        nursery.cancel_scope.cancel()
    assert own._buckets._full_at
    assert server._sessions.limit_store is None


async def test_another_address_of_the_server_takes_no_store_from_its_limits(nursery):
    shared = HttpStores(limits=MemoryLimitStore())
    server = make_server()
    add_limits(server, limits_of_command(["2/hour"], None, []))
    url = await nursery.start(partial(server.serve_http, port=0, stores=shared))
    for stores in (HttpStores(), shared):
        async with trio.open_nursery() as inner:
            await inner.start(partial(server.serve_http, port=0, stores=stores))
            inner.cancel_scope.cancel()
        async with Client(url) as client:
            await client.call_tool("tide")
    other = make_server()
    add_limits(other, limits_of_command(["2/hour"], None, []))
    other_url = await nursery.start(partial(other.serve_http, port=0, stores=shared))
    async with Client(other_url) as client:
        with pytest.raises(RequestError, match=r"2/hour per user"):
            await client.call_tool("tide")
    nursery.cancel_scope.cancel()
