"""Rounds in recordings, each a file of its own: they replay without a key."""

import pytest
import trio

from mcp_trio import Context, KeyRing, Server, ThreadContext
from mcp_trio.http import MemoryStore
from mcp_trio.recording import RecordOptions, Redaction, replay
from tests.server.rounds import TRUE, asking_at_its_end


@pytest.mark.parametrize("redaction", [None, Redaction(key=b"0123456789abcdef")])
async def test_each_round_is_replayed_without_the_key(resumable, tmp_path, redaction):
    done, secret = [], "hunter2-hunter2"

    def charge(password: str) -> str:
        done.append(password)
        return f"paid by {password}"

    async def ask(password: str, *, ctx: Context) -> str:
        total, said = await ctx.effect(charge, password), []

        async def one(name: str) -> None:
            said.append((await ctx.elicit(f"{name} {password}?", bool)).data)
            await ctx.effect(done.append, name)

        async with trio.open_nursery() as nursery:
            for name in "ab":
                nursery.start_soon(one, name)
        last = await ctx.elicit(f"pay with {password}?", bool)
        return f"{total} {said} {last.data} {ctx.random.random()} {ctx.now()}"

    it, paths = resumable(ask, password=secret, options={"states": MemoryStore()}), []

    def next_path():
        paths.append(tmp_path / f"{len(paths)}.mcprec.jsonl")
        it.options = {"record": RecordOptions(paths[-1], redaction=redaction)}

    next_path()
    result = await it.begin()
    while result["resultType"] == "input_required":
        next_path()
        result = await it.go_on(result, **dict.fromkeys(result["inputRequests"], TRUE))
    await trio.testing.wait_all_tasks_blocked()
    elsewhere = Server("shop", version="1", keys=KeyRing.random(), states=MemoryStore())
    elsewhere.tool(name="it", resumable=True)(ask)
    done.clear()

    assert len(paths) == 3
    for path in paths:
        assert (secret.encode() in path.read_bytes()) is (redaction is None)
        await trio.to_thread.run_sync(replay, path, elsewhere)
    assert done == []


@pytest.fixture
def replayed(tmp_path):
    """Record the requests of a chain; gives what replays all of them, with a server's handler."""
    paths = []

    def next_path():
        paths.append(tmp_path / f"{len(paths)}.mcprec.jsonl")
        return paths[-1]

    async def again(*handlers):
        await trio.testing.wait_all_tasks_blocked()
        for path, handler in zip(paths, handlers, strict=True):
            server = Server("shop", version="1")
            server.tool(name="it", resumable=True)(handler)
            await trio.to_thread.run_sync(replay, path, server)

    again.next_path = next_path
    return again


async def test_a_handler_that_asks_at_its_end_is_replayed(resumable, replayed):
    errors = []
    ask = asking_at_its_end(errors)
    it = resumable(ask)
    it.options = {"record": replayed.next_path()}
    await it.begin()
    await replayed(ask)

    assert len(errors) == 2
    assert len(set(errors)) == 1


async def test_clean_up_in_each_round_is_replayed(resumable, replayed):
    done = []

    async def ask(*, ctx: Context) -> str:
        said = []

        async def one(name: str) -> None:
            try:
                said.append((await ctx.elicit(name, bool)).data)
            finally:
                with trio.CancelScope(shield=True):
                    await ctx.info(f"{name} {ctx.now()}")
                    await ctx.effect(done.append, name)

        async with trio.open_nursery() as nursery:
            for name in "ab":
                nursery.start_soon(one, name)
        return f"{said} {ctx.random.random()}"

    it = resumable(ask)
    it.params["_meta"] = {"io.modelcontextprotocol/logLevel": "info"}
    it.options = {"record": replayed.next_path()}
    first = await it.begin()
    it.options = {"record": replayed.next_path()}
    await it.go_on(first, q1=TRUE, q2=TRUE)
    await replayed(ask, ask)

    assert sorted(done) == ["a", "a", "b", "b"]
    assert len(it.told) == 4


async def test_a_round_of_a_changed_handler_is_replayed(resumable, replayed):
    def version(question):
        async def ask(*, ctx: Context) -> str:
            return str((await ctx.elicit(question, bool)).data)

        return ask

    old, new = version("delete one?"), version("delete all?")
    it, later = resumable(old), resumable(new)
    it.options = {"record": replayed.next_path()}
    first = await it.begin()
    later.options = {"record": replayed.next_path()}
    second = await later.go_on(first, q1=TRUE)
    later.options = {"record": replayed.next_path()}
    await later.go_on(second, q2=TRUE)

    await replayed(old, new, new)


async def test_a_handler_in_a_thread_is_replayed(resumable, replayed):
    def price() -> int:
        return 30

    def ask(*, ctx: ThreadContext) -> str:
        total = ctx.effect(price)
        answer = ctx.elicit(f"pay {total}?", bool)
        return f"{total} {answer.data} {ctx.patched('new')} {ctx.now()} {ctx.random.random()}"

    it = resumable(ask)
    it.options = {"record": replayed.next_path()}
    first = await it.begin()
    it.options = {"record": replayed.next_path()}
    await it.go_on(first, q1=TRUE)

    await replayed(ask, ask)


async def test_a_cancelled_question_beside_another_is_replayed(resumable, replayed):
    async def ask(*, ctx: Context) -> str:
        async def vain() -> None:
            with trio.move_on_after(0) as scope:
                await ctx.elicit("vain?", bool)
            assert scope.cancelled_caught

        async with trio.open_nursery() as nursery:
            nursery.start_soon(vain)
            nursery.start_soon(ctx.elicit, "sure?", bool)
        return "asked"

    it = resumable(ask)
    it.options = {"record": replayed.next_path()}
    result = await it.begin()
    await replayed(ask)

    assert "sure?" in {each["params"]["message"] for each in result["inputRequests"].values()}
