"""Property 2: a replay has the order of the journal, and lanes are named by what the code does."""

import tempfile
from contextlib import contextmanager
from itertools import count as counting
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proof.observed_replay import NotingServer, recorded_actions

from mcp_trio import Context, Server
from mcp_trio._session.lanes import Lane

pytestmark = pytest.mark.slow

# A tree of tasks: each node sends a message, starts its children, and sends another message.
trees = st.recursive(st.just([]), lambda nodes: st.lists(nodes, max_size=3), max_leaves=6)
some = settings(max_examples=settings().max_examples // 3, suppress_health_check=list(HealthCheck))


def forest(tasks):
    """A server whose handlers grow a tree of raw nurseries."""
    server = Server("forest")

    async def grow(node, ctx):
        await trio.lowlevel.checkpoint()
        await ctx.info("before")
        async with trio.open_nursery() as nursery:
            for child in node:
                nursery.start_soon(grow, child, ctx)
                await trio.lowlevel.checkpoint()
        await ctx.info("behind")

    @server.tool
    async def plant(tree: int, *, ctx: Context) -> str:
        await grow(tasks[tree], ctx)
        return "grown"

    return server


def talk_of(tasks, stage):
    async def talk(peer, _session):
        await peer.handshake()
        numbers = range(len(tasks))
        await peer.send(*(stage.call(number, "plant", tree=number) for number in numbers))
        await stage.answer_all(peer, *numbers)

    return talk


def names_of(node, name):
    """The lanes of a tree, as they are defined: the spawner's name, and its spawn count."""
    yield name
    for number, child in enumerate(node):
        yield from names_of(child, f"{name}.{number}")


@some
@given(tasks=st.lists(trees, min_size=1, max_size=3), seed=st.integers(0, 99))
def test_lanes_and_their_order_are_the_same_under_every_schedule(stage, tasks, seed):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "forest.mcprec.jsonl")
        stage.play(forest(tasks), talk_of(tasks, stage), record=path, seed=seed)
        actions = recorded_actions(path)
        expected = {name for n, tree in enumerate(tasks) for name in names_of(tree, f"r{5 + n}")}
        assert {action.lane for action in actions.ordered if action.lane} - {"close"} == expected
        for other in (seed + 100, seed + 200):
            noting_server = NotingServer(forest(tasks))
            stage.replayed(path, noting_server, seed=other)
            assert actions.difference(noting_server.actions) is None


# The control: lanes by the time at which they were spawned.


@contextmanager
def lanes_by_spawn_time(monkeypatch):
    numbers = counting()

    def child(self):
        outer = None if self.outer is None else self.outer.child()
        return Lane(f"{self.name.partition('.')[0]}.{next(numbers)}", self.owner, outer)

    with monkeypatch.context() as patch:
        patch.setattr(Lane, "child", child)
        yield


def test_lanes_named_by_spawn_time_differ_in_most_replays(stage, tmp_path, monkeypatch, count):
    tasks = [[[[], []], [[], []], [[]]]] * 2
    path = tmp_path / "forest.mcprec.jsonl"
    with lanes_by_spawn_time(monkeypatch):
        stage.play(forest(tasks), talk_of(tasks, stage), record=path)
    differing = 0
    for seed in range(20):
        with lanes_by_spawn_time(monkeypatch):
            differing += stage.divergence(path, forest(tasks), seed=seed) is not None
    count(20)
    assert differing > 10
