"""Replays of a server that lists other tools, prompts or resources than when it was recorded."""

import json

import pytest

from mcp_trio import Context, Server
from mcp_trio.errors import ReplayDivergence
from mcp_trio.recording import replay

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
