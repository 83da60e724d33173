"""Every replay ends, whatever its handlers do, and leaves no task behind."""

import json
import threading
from contextlib import asynccontextmanager

import pytest
import trio

from mcp_trio import Limits
from mcp_trio._replay import clock
from mcp_trio.recording import replay


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """To spin takes fewer looks at the clock, and less time."""
    monkeypatch.setattr(clock, "_READINGS_MAX", 2_000)
    monkeypatch.setattr(clock, "_READINGS_AFTER_END_MAX", 500)


# Handlers that hold up the end.


async def shielded(state, ctx, amount):
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()


async def shielded_for_an_hour(state, ctx, amount):
    with trio.CancelScope(shield=True):
        await trio.sleep(3600)


async def swallowing(state, ctx, amount):
    while True:
        try:
            await ctx.info("again")
            await trio.sleep(1)
        except Exception:
            pass


async def swallowing_all_once(state, ctx, amount):
    try:
        await ctx.info("again")
    except BaseException:
        return amount


async def spinning(state, ctx, amount):
    while True:
        await trio.sleep(0)


async def shielded_and_busy(state, ctx, amount):
    with trio.CancelScope(shield=True):
        while True:
            await trio.sleep(1)


async def exiting_when_aborted(state, ctx, amount):
    try:
        await ctx.info("again")
    except BaseException as error:
        raise SystemExit(3) from error


async def exiting(state, ctx, amount):
    raise SystemExit(3)


@pytest.mark.parametrize(
    "handler",
    [
        shielded,
        shielded_for_an_hour,
        swallowing,
        swallowing_all_once,
        spinning,
        shielded_and_busy,
        exiting,
        exiting_when_aborted,
    ],
)
def test_a_divergence_ends_whatever_handlers_do(desk, path, handler):
    before = threading.active_count()
    divergence = desk.assert_diverges(path, desk.make_server(add=handler, forever=handler))
    assert divergence.record > 4
    assert threading.active_count() <= before


def test_an_error_that_ends_the_session_is_a_divergence_with_a_location(desk, path):
    divergence = desk.assert_diverges(path, desk.make_server(add=exiting))
    assert "SystemExit: 3  at test_endings.py:" in str(divergence)
    assert "the replay cannot continue" in str(divergence)


def test_a_handler_that_loops_without_waiting_is_reported(desk, path):
    assert "loops without waiting" in str(
        desk.assert_diverges(path, desk.make_server(add=spinning))
    )


def test_ctrl_c_is_not_a_divergence(desk, path):
    async def interrupted(state, ctx, amount):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay(path, desk.make_server(add=interrupted))


def test_an_error_of_the_server_object_is_raised_unwrapped(path):
    class Broken:
        limits = Limits()

        @property
        def _sessions(self):
            return self

        def open_session(self, *_, **__):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        replay(path, Broken())


def test_a_handler_that_loops_after_a_cut_is_reported(desk, world, path):
    place = desk.first_of_add(path, 1)
    start = {"n": place, "k": "mark", "l": "r5", "o": 0, "t": 0, "f": {"name": "start"}}
    line = json.dumps(start).encode() + b"\n"
    cut = world.rewrite(path, path.with_name("cut.jsonl"), lambda lines: [*lines[:place], line])
    divergence = desk.assert_diverges(cut, desk.make_server(add=spinning))
    assert "no more records" in str(divergence)


def test_a_task_with_a_shield_in_its_own_context_manager_is_ended(desk, path):
    @asynccontextmanager
    async def protected():
        with trio.CancelScope() as scope:
            scope.shield = True
            yield

    async def handler(state, ctx, amount):
        async with protected(), trio.open_nursery() as nursery:
            nursery.cancel_scope.shield = True
            nursery.start_soon(trio.sleep_forever)

    assert desk.assert_diverges(path, desk.make_server(add=handler)).record > 4
