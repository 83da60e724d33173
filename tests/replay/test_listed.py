"""Replays of servers that list other entries than when recorded, or hide and transform them."""

import json

import pytest
import trio

from mcp_trio import Context, Limits, Server, ThreadContext
from mcp_trio.errors import ReplayDivergence
from mcp_trio.limits import ShutdownLimits
from mcp_trio.recording import replay
from mcp_trio.tools import Argument, Fixed

USES = {
    "tool": ("tools/call", {"name": "add", "arguments": {"amount": 1}}),
    "resource": ("resources/read", {"uri": "shelf://all"}),
    "template": ("resources/read", {"uri": "shelf://one/tea"}),
    "completion": (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "plan"}, "argument": {"name": "what", "value": ""}},
    ),
}


def make_server(*, changed=(), adds=False, amount_max=3, word="added"):
    """A server whose entries `changed` have another description."""
    server = Server("shop")

    def about(name):
        return f"{name}, newly described" if name in changed else name

    async def add(amount: int, ctx: Context) -> str:
        await ctx.sleep(0.01)
        return word

    async def add_with_default(ctx: Context, amount: int = 5) -> str:
        await ctx.sleep(0.01)
        return word

    handler = add_with_default if "default" in changed else add
    server.tool(name="add", description=about("add"))(handler)
    server.tool(name="other", description=about("other"))(lambda: "x")
    if adds:
        server.tool(name="new")(lambda: "x")

    @server.prompt(description=about("plan"))
    def plan(what: str = "") -> str:
        return "plan"

    server.completion(plan, "what")(lambda _: ["x"])
    server.resource("shelf://all", description=about("all"))(lambda: "tea")

    @server.resource("shelf://one/{name}", description=about("one"))
    def one(name: str) -> str:
        return name

    return server


@pytest.fixture
def recorded(world, tmp_path):
    def record(*uses, server=None):
        async def ask(peer, session):
            await peer.handshake()
            for number, (method, params) in enumerate(uses, 1):
                await peer.send_request(method, params, id=number)
                await peer.receive()

        return world.record(server or make_server(), tmp_path / "shop.mcprec.jsonl", ask)

    return record


def diverged(path, server):
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, server)
    return caught.value


@pytest.mark.parametrize(
    ("use", "change", "named"),
    [
        ("tool", "add", 'the tool "add"'),
        ("tool", "default", 'the tool "add"'),
        ("completion", "plan", 'the prompt "plan"'),
        ("resource", "all", 'the resource "shelf://all"'),
        ("template", "one", 'the resource template "shelf://one/{name}"'),
    ],
)
def test_a_request_that_used_a_change_diverges(recorded, use, change, named):
    path = recorded(USES["tool"], USES[use])
    assert replay(path, make_server()).list_changes == ()
    server = make_server(changed=[change])
    divergence = diverged(path, server)
    assert divergence.kind == "changed"
    assert f"{named} has another description, other parameters" in divergence.hint
    line = path.read_bytes().splitlines()[divergence.record]
    assert (json.loads(line)["k"], json.loads(line)["f"]["method"]) == ("in", USES[use][0])
    assert replay(path, server, mode="outbound").list_changes == (f"{named} was changed",)


def test_a_change_that_was_not_used_is_reported(recorded):
    path = recorded(USES["tool"])
    report = replay(path, make_server(changed=["other", "all"], adds=True))
    assert report.list_changes == (
        'the tool "other" was changed',
        'the resource "shelf://all" was changed',
        'the tool "new" was added',
    )
    server = make_server()
    server.remove_tool("other")
    assert replay(path, server).list_changes == ('the tool "other" was removed',)


def test_a_recorded_list_shows_what_changed(recorded):
    path = recorded(USES["tool"], ("tools/list", {}))
    divergence = diverged(path, make_server(changed=["add"]))
    assert divergence.kind == "message"
    assert '$.result.tools[0].description: "add" became "add, newly described"' in str(divergence)


def test_another_divergence_of_the_request_names_what_changed(recorded):
    path = recorded(USES["tool"])
    divergence = diverged(path, make_server(changed=["add"], word="subtracted"))
    assert divergence.kind == "message"
    assert '\n  cause:     the tool "add" was changed since the recording\n' in str(divergence)
    assert "since the recording" not in str(
        diverged(path, make_server(changed=["other"], word="x"))
    )


def test_a_divergence_names_the_earlier_sessions_of_the_process(recorded):
    server = make_server()
    path = recorded(USES["tool"], server=server)
    assert "ended before this one began" not in str(diverged(path, make_server(word="x")))
    path.unlink()
    recorded(USES["tool"], server=server)
    assert json.loads(path.read_bytes().splitlines()[0])["f"]["earlier_sessions"] == 1
    assert "1 other session of the recorded process ended before this one began" in str(
        diverged(path, make_server(word="x"))
    )


# Handlers that hide and show entries at the same time, and transformed tools.

LIMITS = Limits(shutdown=ShutdownLimits(drain_seconds=0.05))


def make_hiding_server():
    server = Server("harbour", limits=LIMITS)

    @server.tool(tags={"admin"}, timeout=0.0025)
    async def drain(seconds: float, unit: str, ctx: Context) -> str:
        await ctx.sleep(seconds)
        return f"{seconds} {unit}"

    @server.tool
    async def switch(number: int, ctx: Context) -> None:
        await (ctx.enable if number % 2 else ctx.disable)(tags={"admin"})
        await ctx.sleep(0.001 * (number % 3))
        await ctx.disable("drain", "harbour://tide")

    @server.tool
    async def unlock(ctx: Context) -> None:
        await ctx.enable("drain")

    @server.tool
    def switch_in_thread(number: int, ctx: ThreadContext) -> None:
        ctx.enable(tags={"admin"})
        ctx.sleep(0.001)
        (ctx.enable if number % 2 else ctx.disable)("harbour://tide")

    @server.resource("harbour://tide", tags={"admin"})
    async def tide() -> str:
        return "high"

    async def wrap(call, arguments, ctx):
        await ctx.info("drains")
        return await call(arguments)

    changes = {"seconds": Argument("time", default=0.001), "unit": Fixed("s")}
    server.transform_tool("drain", arguments=changes, wrap=wrap)
    server.disable(tags={"admin"})
    return server


def request(id_, method, **params):
    return {"id": id_, "method": method, "params": params}


def call(id_, name, **arguments):
    return request(id_, "tools/call", name=name, arguments=arguments)


async def talk(peer, _session):
    await peer.handshake()
    for number in range(8):
        ids = (f"{number}.{part}" for part in range(6))
        await peer.send(
            call(next(ids), "switch", number=number),
            call(next(ids), "drain"),
            request(next(ids), "tools/list"),
        )
        await peer.send(
            call(next(ids), "switch_in_thread", number=number),
            call(next(ids), "drain", time=0.001 * number),
            request(next(ids), "resources/list"),
        )
        while not (await peer.receive()).get("id", "").startswith(f"{number}."):
            pass
    await trio.sleep(0.1)
    await peer.send(call("last", "unlock"))
    await trio.sleep(0.1)
    await peer.send(call("late", "drain", time=9), call("in time", "drain", time=0.002))
    await trio.sleep(0.1)
    await peer.receive_available()


@pytest.mark.parametrize(
    "number", [0, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 4))]
)
def test_decisions_of_concurrent_handlers_replay_byte_for_byte(world, tmp_path, number):
    path = world.record(make_hiding_server(), tmp_path / "a.mcprec.jsonl", talk, number=number)
    text = path.read_text(encoding="utf-8")
    for part in "unknown tool: drain", "timed out", "0.002 s", "list_changed":
        assert part in text
    for other in (number + 100, number + 200):
        replayed = world.replayed(path, make_hiding_server(), number=other)
        assert replayed.sent_messages == world.sent_frames(path)
        assert replayed.ordered == world.played(path)
