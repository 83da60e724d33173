"""What stands for the lifespan in a replay: it may be passed to effects, and nothing else."""

import contextlib
import copy
import json
import operator
import os
import pickle

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import Context, Server, effect
from mcp_trio._server.effects import ReplayLifespan
from mcp_trio.errors import BlockedInReplay, ReplayDivergence
from tests.server.conftest import played_again


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
        lambda it: it["name"],
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


def test_it_can_be_shown():
    assert repr(ReplayLifespan().db.pool) == "<ctx.lifespan.db.pool, which a replay does not have>"
    assert not hasattr(ReplayLifespan(), "__wrapped__")


# In a replay.


@attrs.define(eq=False)
class Database:
    """An object that JSON could say, but which is not what it says."""

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


def serving(handler, make=lambda: State(Database("file"))):
    @contextlib.asynccontextmanager
    async def lifespan(_):
        yield make()

    server = Server("harbour", lifespan=lifespan)
    server.tool(name="tool")(handler)
    return server


async def played(record, handler, replayed=None, **options):
    """Record a session with a handler, and replay it, with another one if there is one."""
    asker, told = await record(serving(handler, **options))
    text = await asker.call("tool")
    await played_again(asker, told, serving(replayed or handler, **options))
    return text, told()


@pytest.mark.parametrize("make", [lambda: State(Database("file")), Loose], ids=["slots", "dict"])
async def test_the_lifespan_and_what_it_holds_are_opaque_to_effects(record, make):
    async def tool(ctx: Context) -> list[str]:
        @effect
        async def several(state: State, settings: dict, db: Database) -> str:
            return await state.db.fetch("three")

        state = ctx.lifespan
        return [await fetch(state.db, "one"), await several(state, state.settings, state.db)]

    text, told = await played(record, tool, make=make)
    assert json.loads(text) == ["one 1", "three 2"]
    opaque = "<opaque>"
    assert [body["arguments"] for kind, body in told if kind == "cmd"] == [
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

    text, told = await played(record, tool)
    assert json.loads(text) == ["file:db file 1.5", "file"]
    opaque = "<opaque>"
    (command,) = [body["arguments"] for kind, body in told if kind == "cmd"]
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
