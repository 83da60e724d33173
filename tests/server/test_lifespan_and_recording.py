import contextlib
import json
import stat

import pytest
import trio
import trio.testing

from mcp_trio import Client, Context, Server, ThreadContext
from mcp_trio.errors import RecordingError
from mcp_trio.transports import memory_pair


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
def server():
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
async def test_a_session_is_recorded_to_a_file(server, tmp_path, as_text):
    path = tmp_path / "x.mcprec.jsonl"
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: server.serve(theirs, record=str(path) if as_text else path))
        async with Client(ours) as client:
            await client.call_tool("tide", {"port": "Oslo"})
    records = read(path)
    opened = records[0]["f"]
    assert records[0]["k"] == "open"
    assert (opened["role"], opened["transport"]) == ("server", "memory")
    assert (opened["name"], opened["version"]) == ("the harbour", "2.1")
    assert opened["tools_digest"] == server._registry.tools_digest()
    assert opened["lifespan"] is False
    assert records[-1]["k"] == "end"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_folder_gets_a_file_for_each_session(server, tmp_path, nursery):
    from mcp_trio.testing import WirePeer

    peers = []
    for folder in (tmp_path, f"{tmp_path}/"):
        ours, theirs = memory_pair()
        await nursery.start(
            lambda task_status, f=folder, c=theirs: server.serve(
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


async def test_a_recording_that_cannot_be_made_serves_nothing(server, tmp_path):
    ours, theirs = memory_pair()
    with pytest.raises(RecordingError, match="cannot record to"):
        await server.serve(theirs, record=tmp_path / "missing" / "x.mcprec.jsonl")
    assert await ours.receive() == []


async def test_a_handler_in_a_thread_is_marked_in_the_lane_of_its_request(server, tmp_path):
    path = tmp_path / "x.mcprec.jsonl"
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: server.serve(theirs, record=path))
        async with Client(ours, log_level="info") as client:
            await client.call_tool("depth")
    of_handlers = [record for record in read(path) if record.get("l", "").startswith("r")]
    assert len({record["l"] for record in of_handlers}) == 1
    acts = [
        (record["k"], record["o"], record["f"].get("name") or record["f"].get("method"))
        for record in of_handlers
    ]
    assert acts == [
        ("mark", 1, "thread"),
        ("out", 2, "notifications/message"),
        ("out", 3, "notifications/message"),
        ("out", 4, None),
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


async def test_recording_does_not_stop_a_server_whose_list_is_broken(tmp_path, serve):
    server = Server("harbour")

    @server.tool
    async def tide(port: complex):
        pass

    asker = await serve(server, record=tmp_path / "x.mcprec.jsonl")
    assert (await asker.error("tools/list"))["code"] == -32603


# Running.


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
