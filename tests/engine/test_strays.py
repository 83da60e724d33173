"""The watch for stray calls: what it does at one, whom it watches, and what it leaves alone."""

import cProfile
import gc
import logging
import random
import sys
import time

import pytest
import trio

from mcp_trio._session.journal import LANE, Lane
from mcp_trio._session.nondeterminism import UntrackedCallWatch, strict_watch, watching_thread
from mcp_trio.errors import BlockedInReplay, UntrackedNondeterminism
from mcp_trio.recording import UntrackedCall


async def in_lane(function, *args):
    """Call a function as the doing of a lane."""
    LANE.set(Lane("r7"))
    value = function(*args)
    if hasattr(value, "__await__"):
        await value


# Whom it watches.


def test_outside_lanes_nothing_is_a_untracked_call():
    found = []

    async def run():
        with UntrackedCallWatch(on_untracked_call=found.append):
            time.time()
            random.random()

    trio.run(run)
    assert found == []


def test_a_session_that_is_not_watched_is_let_alone():
    found = []

    async def run():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_lane, trio.sleep, 0)
            nursery.start_soon(unwatched)
            with UntrackedCallWatch(on_untracked_call=found.append):
                await trio.sleep(0.001)

    async def unwatched():
        LANE.set(Lane("r8"))
        await trio.sleep(0.0001)
        time.time()

    trio.run(run)
    assert found == []


async def test_only_steps_in_lanes_are_looked_at():
    before = sys.getprofile()
    with UntrackedCallWatch(on_untracked_call=pytest.fail):
        await trio.lowlevel.checkpoint()
        assert sys.getprofile() is before
        LANE.set(Lane("r3"))
        await trio.lowlevel.checkpoint()
        assert sys.getprofile() is not before
    assert sys.getprofile() is before


# What comes of it.


def test_a_untracked_call_is_one_line():
    untracked_call = UntrackedCall(
        call="time.time", site="at a.py:3", lane="r1", instead="ctx.now()"
    )
    assert str(untracked_call) == "time.time() at a.py:3 in lane r1: use ctx.now()"


async def test_a_replay_notes_readings_and_blocks_the_outside():
    noted = []

    async def handler():
        assert time.time() > 0
        with pytest.raises(
            BlockedInReplay, match=r"time\.sleep\(\) at test_strays.py:\d+ would reach"
        ):
            time.sleep(9)

    with UntrackedCallWatch(on_untracked_call=noted.append, blocks=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_lane, handler)
    assert [untracked_call.call for untracked_call in noted] == ["time.time", "time.sleep"]


class Garbage:
    """Reads the clock when it is collected."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        time.time()


async def test_what_the_garbage_collector_calls_is_nobodys_doing():
    found, callbacks = [], [*gc.callbacks]

    def reads_the_clock(phase, info):
        time.perf_counter()

    async def handler():
        Garbage()
        gc.collect()
        time.monotonic()

    gc.callbacks.append(reads_the_clock)
    try:
        with (
            UntrackedCallWatch(on_untracked_call=found.append),
            UntrackedCallWatch(on_untracked_call=found.append),
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(in_lane, handler)
    finally:
        gc.callbacks.remove(reads_the_clock)
    assert [untracked_call.call for untracked_call in found] == ["time.monotonic"]
    assert gc.callbacks == callbacks


async def test_a_strict_recording_rejects_readings_too():
    async def handler():
        with pytest.raises(UntrackedNondeterminism, match=r"time\.time\(\) at .* use ctx\.now\(\)"):
            time.time()

    with strict_watch():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_lane, handler)


async def test_the_watch_comes_back_after_a_untracked_call_was_raised():
    found = []

    async def handler():
        for _ in range(3):
            with pytest.raises(LookupError):
                time.time()
            await trio.lowlevel.checkpoint()

    def reject(untracked_call):
        found.append(untracked_call)
        raise LookupError

    with UntrackedCallWatch(on_untracked_call=reject):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_lane, handler)
    assert len(found) == 3


async def test_watches_end_in_any_order_and_leave_nothing():
    found = []

    async def serve(name, seconds):
        with UntrackedCallWatch(
            on_untracked_call=lambda untracked_call: found.append((name, untracked_call.call))
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(in_lane, handler, seconds)

    async def handler(seconds):
        time.time()
        await trio.sleep(seconds)
        random.random()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, "first", 0.001)
        nursery.start_soon(serve, "second", 0.002)
    assert sorted(found) == [
        (name, call) for name in ("first", "second") for call in ("random.random", "time.time")
    ]
    assert sys.getprofile() is None


# Profile functions of others.


async def test_a_profile_function_of_somebody_else_goes_on_and_comes_back():
    seen = []

    def theirs(frame, event, arg):
        seen.append((event, arg))

    sys.setprofile(theirs)
    try:
        caught = []
        with UntrackedCallWatch(on_untracked_call=caught.append):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(in_lane, time.time)
        assert sys.getprofile() is theirs
    finally:
        sys.setprofile(None)
    assert ("c_call", time.time) in seen


async def test_who_takes_the_place_meanwhile_keeps_it():
    def theirs(frame, event, arg):
        pass

    with UntrackedCallWatch(on_untracked_call=print):
        sys.setprofile(theirs)
    assert sys.getprofile() is theirs
    sys.setprofile(None)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="a profiler in C is no profile function")
async def test_a_profiler_in_c_is_let_alone(caplog):
    profiler = cProfile.Profile()
    found = []
    profiler.enable()
    try:
        with UntrackedCallWatch(on_untracked_call=found.append):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(in_lane, time.time)
        assert sys.getprofile() is profiler
    finally:
        profiler.disable()
    assert found == []
    assert "a profiler runs" in caplog.text


# Threads of `def` handlers.


async def test_a_handlers_thread_is_watched():
    found = []

    def handler():
        with watching_thread():
            time.time()
        assert sys.getprofile() is None

    with UntrackedCallWatch(on_untracked_call=found.append):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_lane, trio.to_thread.run_sync, handler)
    untracked_calls = [(untracked_call.call, untracked_call.lane) for untracked_call in found]
    assert untracked_calls.count(("time.time", "r7")) == 1
    assert untracked_calls[0] == ("trio.to_thread.run_sync", "r7")


async def test_a_thread_of_a_session_that_nobody_watches_has_no_profile_function():
    def handler():
        with watching_thread():
            return sys.getprofile()

    assert await trio.to_thread.run_sync(handler) is None


# The profile function itself, called by hand: while it runs, its own steps cannot be measured.

CALL_IN_LOGGING = compile(
    "import sys, time; hook(sys._getframe(), 'c_call', time.time)", logging.__file__, "exec"
)


class FrameAlone:
    """A frame that nobody called."""

    f_back = None

    def __init__(self, code):
        self.f_code = code


async def test_a_profile_function_asks_the_tables_and_tells_the_watch():
    found = []
    frame = sys._getframe()
    LANE.set(Lane("r3"))
    with UntrackedCallWatch(on_untracked_call=found.append, blocks=True):
        await trio.lowlevel.checkpoint()
        hook = sys.getprofile()
        sys.setprofile(None)  # and is called here instead
        before = []
        hook.previous = lambda *event: before.append(event)
        LANE.set(None)
        hook(frame, "c_call", time.time)
        LANE.set(Lane("r3"))
        hook(frame, "c_call", len)
        hook(frame, "c_call", time.time)
        hook(frame, "return", None)
        hook(frame, "call", None)
        hook(FrameAlone(frame.f_code), "call", None)
        with pytest.raises(BlockedInReplay):
            hook(frame, "c_call", time.sleep)
        found_in_lane, events = [*found], len(before)
        exec(CALL_IN_LOGGING, {"__name__": "logging", "hook": hook})
        hook.previous = None
        hook(frame, "return", None)
    assert [untracked_call.call for untracked_call in found_in_lane] == ["time.time", "time.sleep"]
    assert found == found_in_lane
    assert events == 7
    with pytest.raises(UntrackedNondeterminism):
        strict_watch().see(found[0])
