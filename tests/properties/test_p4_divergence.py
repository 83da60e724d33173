"""Property 4: every change of a handler diverges at the first record that it affects.

The expected record comes from a recording of the changed handler, whose lane is compared with that
of the unchanged one.
"""

import tempfile
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_trio import Context, Server
from mcp_trio._replay.session_replay import SessionReplay

pytestmark = pytest.mark.slow

# Steps that do the same whenever they run.


async def fetch(amount: int) -> int:
    await trio.sleep(amount / 1000)
    if amount == 5:
        raise LookupError("five")
    return amount * 2


async def log(ctx, amount, seen):
    await ctx.info([amount, len(seen)])


async def ask(ctx, amount, seen):
    seen.append(len(await ctx.list_roots()))


async def run_effect(ctx, amount, seen):
    try:
        seen.append(await ctx.effect(fetch, amount))
    except LookupError:
        seen.append("failed")


async def sleep(ctx, amount, seen):
    await ctx.sleep(amount / 1000)


async def hurry(ctx, amount, seen):
    try:
        with ctx.timeout(amount / 1000):
            await ctx.effect(fetch, 3)
    except trio.TooSlowError:
        seen.append("too slow")


async def draw(ctx, amount, seen):
    await ctx.info(f"{ctx.random.random() < 2} {amount}")


async def lock(ctx, amount, seen):
    async with ctx.lock(f"door {amount}"):
        seen.append("inside")


async def remember(ctx, amount, seen):
    """Nothing but memory: it is seen in the answer."""
    seen.append(amount)


STEPS = (log, ask, run_effect, sleep, hurry, draw, lock, remember)


def server_of(script):
    server = Server("script")

    @server.tool
    async def run(*, ctx: Context) -> list[object]:
        seen = []
        for step, amount in script:
            await step(ctx, amount, seen)
        return seen

    return server


def lane(stage, path):
    """The records of the one request: their kinds, their contents and times, and their numbers."""
    return [
        (record["k"], (record.get("f"), record.get("x"), record["t"]), record["n"])
        for record in stage.records(path)
        if record.get("l") == "r5"
    ]


def record(stage, script, path):
    async def talk(peer, _session):
        await peer.handshake(capabilities={"roots": {}})
        await peer.send(stage.call(1, "run"))
        await stage.answer_all(peer, 1)

    stage.play(server_of(script), talk, record=path)
    return lane(stage, path)


def first_affected(recorded, changed):
    """The number of the first record that another handler would not have written."""
    for (kind, body, number), (other_kind, other_body, _) in zip(recorded, changed, strict=False):
        if (kind, body) != (other_kind, other_body):
            return number
    return None


# Changes.

steps = st.tuples(st.sampled_from(STEPS), st.integers(1, 6))
scripts = st.lists(steps, min_size=1, max_size=6)


@st.composite
def changes(draw):
    """A script, and the same with one step dropped, added, moved or changed."""
    script = draw(scripts)
    place = draw(st.integers(0, len(script) - 1))
    rest = [*script[:place], *script[place + 1 :]]
    other = draw(st.integers(0, len(rest)))
    changed = draw(
        st.sampled_from(
            [
                rest,
                [*script[:place], draw(steps), *script[place:]],
                [*rest[:other], script[place], *rest[other:]],
                [
                    *script[:place],
                    (script[place][0], draw(st.integers(1, 6))),
                    *script[place + 1 :],
                ],
            ]
        )
    )
    return script, changed


some = settings(max_examples=settings().max_examples // 2, suppress_health_check=list(HealthCheck))


@some
@given(change=changes())
def test_a_changed_handler_diverges_at_the_first_record_that_it_affects(stage, change):
    script, changed = change
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.mcprec.jsonl")
        recorded = record(stage, script, path)
        affected = first_affected(recorded, record(stage, changed, Path(folder, "b.mcprec.jsonl")))
        for seed in range(2):
            divergence = stage.divergence(path, server_of(changed), seed=seed)
            assert (None if divergence is None else divergence.record) == affected


# The control.


def test_without_the_comparison_changes_are_not_detected(stage, tmp_path, monkeypatch, count):
    script = [(log, 1), (run_effect, 2), (sleep, 3), (lock, 1), (remember, 1)]
    others = [
        [*script[:place], (step, amount + 1), *script[place + 1 :]]
        for place, (step, amount) in enumerate(script)
    ]
    path = tmp_path / "a.mcprec.jsonl"
    record(stage, script, path)
    assert all(stage.divergence(path, server_of(changed)) for changed in others)
    monkeypatch.setattr(SessionReplay, "_is_same", lambda *_: True)
    assert not any(stage.divergence(path, server_of(changed)) for changed in others)
    count(2 * len(others))
