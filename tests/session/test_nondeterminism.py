"""Untracked calls: every row of the tables, the watch, and calls that do not count."""

import _posixsubprocess
import _socket
import _thread
import cProfile
import datetime as dt
import functools
import gc
import logging
import os
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from datetime import date
from datetime import datetime as moment
from os import urandom
from pathlib import Path
from random import random as random_source
from random import shuffle
from secrets import token_hex
from socket import create_connection
from time import monotonic, perf_counter
from time import time as wall
from urllib.request import urlopen
from uuid import uuid4

import attrs
import pytest
import trio

import mcp_trio
from mcp_trio._session import nondeterminism
from mcp_trio._session.journal import LANE, Lane
from mcp_trio._session.nondeterminism import UntrackedCallWatch, strict_watch, watching_thread
from mcp_trio.errors import BlockedInReplay, UntrackedNondeterminism
from mcp_trio.recording import UntrackedCall

# ruff: noqa: PLW0108  a lambda makes the call in a line of this file


class NotDoneError(Exception):
    """What is raised at a stray, so that it is not done."""


def untracked_calls_of(function):
    """What is found when a task of a lane calls `function`, which is stopped there."""
    found = []

    def stop(untracked_call):
        found.append(untracked_call)
        raise NotDoneError

    async def run():
        with UntrackedCallWatch(on_untracked_call=stop):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stopped)

    async def stopped():
        LANE.set(Lane("r7"))
        with suppress(NotDoneError):
            if hasattr(value := function(), "__await__"):
                await value

    trio.run(run)
    return found


def only(untracked_calls):
    (untracked_call,) = untracked_calls
    return untracked_call


# Every row of the table.

NOW, MONOTONIC, RANDOM, UUID = "ctx.now()", "ctx.monotonic()", "ctx.random", "ctx.uuid4()"
SLEEP, THREAD = "ctx.sleep()", "ctx.to_thread()"
SECRET = "ctx.random, or an @effect if it has to stay secret"
PROCESS, NETWORK = "an @effect that runs it", "ctx.http, or an @effect that does it"

READS = {
    "time.time": (lambda: time.time(), NOW),
    "time.time_ns": (lambda: time.time_ns(), NOW),
    "datetime.datetime.now": (lambda: moment.now(), NOW),
    "datetime.datetime.utcnow": (lambda: dt.datetime.utcnow(), NOW),
    "datetime.datetime.today": (lambda: dt.datetime.today(), NOW),
    "datetime.date.today": (lambda: date.today(), NOW),
    "time.monotonic": (lambda: monotonic(), MONOTONIC),
    "time.monotonic_ns": (lambda: time.monotonic_ns(), MONOTONIC),
    "time.perf_counter": (lambda: perf_counter(), MONOTONIC),
    "time.perf_counter_ns": (lambda: time.perf_counter_ns(), MONOTONIC),
    "time.process_time": (lambda: time.process_time(), MONOTONIC),
    "time.process_time_ns": (lambda: time.process_time_ns(), MONOTONIC),
    "time.thread_time": (lambda: time.thread_time(), MONOTONIC),
    "time.thread_time_ns": (lambda: time.thread_time_ns(), MONOTONIC),
    "random.random": (lambda: random.random(), RANDOM),
    "random.getrandbits": (lambda: random.getrandbits(8), RANDOM),
    "random.Random.seed": (lambda: random.seed(), RANDOM),
    "os.urandom": (lambda: os.urandom(8), SECRET),
    "os.getrandom": (lambda: os.getrandom(8), SECRET),
    "uuid._generate_time_safe": (lambda: uuid._generate_time_safe(), UUID),
}
REACHES = {
    "time.sleep": (lambda: time.sleep(9), SLEEP),
    "trio.to_thread.run_sync": (lambda: trio.to_thread.run_sync(print), THREAD),
    "_thread.start_new_thread": (lambda: _thread.start_new_thread(print, ()), THREAD),
    "subprocess.Popen": (lambda: subprocess.Popen(["true"]), PROCESS),
    "_posixsubprocess.fork_exec": (lambda: _posixsubprocess.fork_exec(), PROCESS),
    "os.fork": (lambda: os.fork(), PROCESS),
    "os.forkpty": (lambda: os.forkpty(), PROCESS),
    "os.posix_spawn": (lambda: os.posix_spawn("true", [], {}), PROCESS),
    "os.posix_spawnp": (lambda: os.posix_spawnp("true", [], {}), PROCESS),
    "os.system": (lambda: os.system("true"), PROCESS),
    "socket.socket": (lambda: socket.socket(), NETWORK),
    "_socket.getaddrinfo": (lambda: _socket.getaddrinfo("localhost", 1), NETWORK),
    "_socket.gethostbyaddr": (lambda: _socket.gethostbyaddr("localhost"), NETWORK),
    "_socket.gethostbyname": (lambda: _socket.gethostbyname("localhost"), NETWORK),
    "_socket.gethostbyname_ex": (lambda: _socket.gethostbyname_ex("localhost"), NETWORK),
    "_socket.getnameinfo": (lambda: _socket.getnameinfo(("127.0.0.1", 1), 0), NETWORK),
}

# Only some Pythons and systems have these.
ELSEWHERE = {"_thread.start_joinable_thread"}


def test_every_function_of_the_table_is_tried():
    names = {name.removesuffix(".__init__") for name in nondeterminism.FUNCTIONS}
    assert names - ELSEWHERE == {*READS, *REACHES}


@pytest.mark.parametrize("name", READS)
def test_a_direct_clock_or_random_call_is_found(name):
    function, instead = READS[name]
    untracked_call = only(untracked_calls_of(function))
    assert (untracked_call.call, untracked_call.lane, untracked_call.instead) == (
        name,
        "r7",
        instead,
    )
    assert (
        untracked_call.location == f"at test_nondeterminism.py:{function.__code__.co_firstlineno}"
    )
    assert not untracked_call.is_outside


@pytest.mark.parametrize("name", REACHES)
def test_a_direct_external_io_call_is_found(name):
    function, instead = REACHES[name]
    untracked_call = only(untracked_calls_of(function))
    assert (untracked_call.call, untracked_call.instead, untracked_call.is_outside) == (
        name,
        instead,
        True,
    )


@pytest.mark.parametrize(
    ("function", "call", "instead"),
    [
        (wall, "time.time", NOW),
        (random_source, "random.random", RANDOM),
        (urandom, "os.urandom", SECRET),
        (moment.now, "datetime.datetime.now", NOW),
        (lambda: shuffle([1, 2]), "random.Random.shuffle", RANDOM),
        (lambda: random.choice("ab"), "random.Random.choice", RANDOM),
        (lambda: random.Random(), "random.Random", RANDOM),
        (lambda: random.SystemRandom().random(), "random.SystemRandom.random", SECRET),
        (lambda: uuid4(), "uuid.uuid4", UUID),
        (lambda: uuid.uuid1(), "uuid.uuid1", UUID),
        (lambda: token_hex(), "secrets.token_hex", SECRET),
        (lambda: secrets.choice("ab"), "random.Random.choice", SECRET),
        (lambda: threading.Thread(target=print).start(), "threading.Thread.start", THREAD),
        (lambda: subprocess.run(["true"], check=False), "subprocess.run", PROCESS),
        (lambda: os.popen("true"), "os.popen", PROCESS),
        (lambda: trio.run_process(["true"]), "trio.run_process", PROCESS),
        (lambda: create_connection(("localhost", 1)), "socket.create_connection", NETWORK),
        (lambda: urlopen("http://localhost:1"), "urllib.request.urlopen", NETWORK),
        (lambda: trio.open_tcp_stream("localhost", 1), "trio.open_tcp_stream", NETWORK),
        (lambda: trio.socket.socket(), "trio.socket", NETWORK),
        (lambda: trio.Path(__file__).read_bytes(), "trio.wrapper", THREAD),
    ],
)
def test_an_untracked_call_has_its_public_name_and_its_replacement(function, call, instead):
    untracked_call = only(untracked_calls_of(lambda: function()))
    assert (untracked_call.call, untracked_call.instead) == (call, instead)
    assert untracked_call.location.startswith("at test_nondeterminism.py:")


@pytest.mark.parametrize("name", sorted(nondeterminism.SOCKET_METHODS))
def test_a_socket_that_was_there_before_is_found(name):
    with socket.socket() as pooled:
        untracked_call = only(untracked_calls_of(lambda: getattr(pooled, name)()))
    assert (untracked_call.call, untracked_call.instead) == (f"socket.{name}", NETWORK)


def test_a_function_that_was_called_often_before_is_found_too():
    def warm():
        return wall()

    for _ in range(1000):
        warm()
    assert only(untracked_calls_of(warm)).call == "time.time"


def test_generated_code_counts_as_user_code():
    made = attrs.make_class("Made", {"at": attrs.field(factory=time.time)})
    untracked_call = only(untracked_calls_of(lambda: made()))
    assert untracked_call.call == "time.time"
    assert untracked_call.location.startswith("at test_nondeterminism.py:")


# Whose doing it is.


def run_as(place, expression, name="made_up", **names):
    """What evaluates something as if it stood in a file at `place`, with no frame in between."""
    known = {"__name__": name, "time": time, "random": random, "socket": socket, **names}
    return functools.partial(eval, compile(expression, str(place), "eval"), known)


def test_an_example_counts_as_user_code():
    place = Path(mcp_trio.__file__).parent / "examples" / "weather.py"
    assert only(untracked_calls_of(run_as(place, "time.time()"))).location == "at weather.py:1"


def test_a_call_in_an_installed_package_is_located_at_its_caller_in_user_code(tmp_path):
    library = run_as(tmp_path / "site-packages" / "dice.py", "random.random()")
    assert only(untracked_calls_of(lambda: library())).location.startswith(
        "at test_nondeterminism.py:"
    )


def test_without_user_code_a_call_is_located_in_the_installed_package(tmp_path):
    library = run_as(tmp_path / "site-packages" / "dice.py", "random.random()")
    handler = run_as(nondeterminism.__file__, "library()", library=library)
    assert only(untracked_calls_of(handler)).location == "at dice.py:1"


# What is none.


def log_something():
    logging.getLogger("somebody").warning("hello")


async def sleeps_by_trio():
    await trio.sleep(0)
    return trio.current_time()


def in_effect():
    token = LANE.set(None)
    try:
        return time.time(), random.random()
    finally:
        LANE.reset(token)


@pytest.mark.parametrize(
    "function",
    [
        log_something,
        sleeps_by_trio,
        in_effect,
        lambda: random.Random(3).random(),
        lambda: random.Random(3).shuffle([1, 2]),
        lambda: uuid.UUID(int=3),
        lambda: uuid.uuid5(uuid.NAMESPACE_URL, "a"),
        lambda: moment.fromtimestamp(0),
        lambda: time.gmtime(0),
        lambda: tempfile.gettempdir(),
        lambda: len(sorted([3, 1])),
        run_as(Path(nondeterminism.__file__), "time.time()"),
        run_as(Path(logging.__file__), "time.time()", "logging.handlers"),
        run_as(Path(logging.__file__), "socket.socket().close()", "logging.handlers"),
        run_as("/lib/site-packages/httpx.py", "time.perf_counter()", "httpx._client"),
        run_as("/lib/site-packages/httpx2.py", "time.perf_counter()", "httpx2._client"),
        run_as("<frozen importlib>", "time.time()", "importlib._bootstrap"),
    ],
)
def test_these_calls_are_not_untracked(function):
    assert untracked_calls_of(function) == []


def test_io_of_a_library_with_exempt_clock_calls_is_still_untracked():
    function = run_as("/lib/site-packages/httpx2.py", "socket.socket()", "httpx2._client")
    assert only(untracked_calls_of(function)).call == "socket.socket"


# The same judgement outside of a profile function, where its own steps can be measured.


def judged(function):
    """What `function`, which calls `judge()`, is found to have called."""
    row = nondeterminism.row_of_function(time.time)
    found = []

    def judge():
        found.append(nondeterminism.untracked_call_of(sys._getframe(1), row, "r1"))

    function(judge)
    return only(found)


def at(place, name):
    code = compile("judge()", str(place), "eval")
    return lambda judge: eval(code, {"__name__": name, "judge": judge})


def test_the_decision_follows_the_callers_on_the_stack():
    ours = Path(nondeterminism.__file__)
    standard = Path(logging.__file__).parents[1]
    assert judged(lambda judge: judge()).call == "time.time"
    assert judged(at("/a/site-packages/b.py", "b")).location.startswith(
        "at test_nondeterminism.py:"
    )
    assert judged(at(standard / "site-packages" / "b.py", "b")).call == "time.time"
    assert judged(at("<attrs generated init b>", "b")).call == "time.time"
    assert judged(at(standard / "uuid.py", "uuid")).instead == UUID
    assert judged(at(standard / "uuid.py", "uuid")).call == "uuid.<module>"
    assert judged(at("/a/site-packages/httpx2/b.py", "httpx2.b")) is None
    assert judged(at(standard / "logging" / "b.py", "logging.b")) is None
    assert judged(at(standard / "queue.py", "queue")) is None
    assert judged(at(standard / "queue.py", None)) is None
    assert judged(at(Path(trio.__file__).parent / "b.py", "trio.b")) is None
    assert judged(at(ours, "mcp_trio.b")) is None


def test_the_decision_ends_at_the_outermost_caller():
    row = nondeterminism.row_of_function(time.time)
    found = []

    class Call:
        def __init__(self, file, back=None):
            self.f_code = compile("0", file, "eval")
            self.f_globals = {"__name__": "uuid"}
            self.f_back = back
            self.f_lineno = 7

    found.append(
        nondeterminism.untracked_call_of(Call(uuid.__file__, Call(uuid.__file__)), row, "r1")
    )
    assert found == [None]
    assert (
        nondeterminism.untracked_call_of(Call("/site-packages/b.py"), row, "r1").location
        == "at b.py:7"
    )


def test_functions_missing_in_this_python_are_skipped():
    assert nondeterminism._found("no_such_module.function") is None
    assert nondeterminism._found("time.no.such") is None


def test_rows_are_found_for_functions_in_c_and_in_python():
    frames = []

    def keep(*args):
        frames.append(sys._getframe())

    def frame_of_seed(a):
        """A frame with the code of `random.Random.seed`."""
        before = sys.getprofile()
        sys.setprofile(
            lambda frame, *_: frames.append(frame) if frame.f_code.co_name == "seed" else None
        )
        random.Random(a)
        sys.setprofile(before)
        return frames.pop()

    keep()
    assert nondeterminism.row_of_code(frames[0]) is None
    assert nondeterminism.row_of_code(frame_of_seed(3)) is None
    assert nondeterminism.row_of_function(len) is None
    assert nondeterminism.row_of_function(random.random).rule.instead == RANDOM
    with socket.socket() as pooled:
        assert nondeterminism.row_of_function(pooled.send).name == "socket.send"


# The watch for stray calls: what it does at one, whom it watches, and what it leaves alone.


async def in_lane(function, *args):
    """Call a function as the doing of a lane."""
    LANE.set(Lane("r7"))
    value = function(*args)
    if hasattr(value, "__await__"):
        await value


# Whom it watches.


def test_outside_lanes_no_call_is_untracked():
    found = []

    async def run():
        with UntrackedCallWatch(on_untracked_call=found.append):
            time.time()
            random.random()

    trio.run(run)
    assert found == []


def test_a_session_without_a_watch_is_not_checked():
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


async def test_only_steps_in_lanes_are_watched():
    before = sys.getprofile()
    with UntrackedCallWatch(on_untracked_call=pytest.fail):
        await trio.lowlevel.checkpoint()
        assert sys.getprofile() is before
        LANE.set(Lane("r3"))
        await trio.lowlevel.checkpoint()
        assert sys.getprofile() is not before
    assert sys.getprofile() is before


# What comes of it.


def test_an_untracked_call_is_described_in_one_line():
    untracked_call = UntrackedCall(
        call="time.time", location="at a.py:3", lane="r1", instead="ctx.now()"
    )
    assert str(untracked_call) == "time.time() at a.py:3 in lane r1: use ctx.now()"


async def test_a_replay_reports_clock_calls_and_blocks_external_io():
    noted = []

    async def handler():
        assert time.time() > 0
        with pytest.raises(
            BlockedInReplay, match=r"time\.sleep\(\) at test_nondeterminism.py:\d+ would reach"
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


async def test_calls_of_the_garbage_collector_are_not_untracked():
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


async def test_a_strict_recording_rejects_clock_and_random_calls_too():
    async def handler():
        with pytest.raises(UntrackedNondeterminism, match=r"time\.time\(\) at .* use ctx\.now\(\)"):
            time.time()

    with strict_watch():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_lane, handler)


async def test_the_watch_continues_after_it_raised_an_error():
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


async def test_an_existing_profile_function_is_still_called_and_is_restored():
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


async def test_a_profile_function_set_during_the_watch_is_kept():
    def theirs(frame, event, arg):
        pass

    with UntrackedCallWatch(on_untracked_call=print):
        sys.setprofile(theirs)
    assert sys.getprofile() is theirs
    sys.setprofile(None)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="a profiler in C is no profile function")
async def test_a_profiler_in_c_is_not_replaced(caplog):
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
    assert "a profiler is running" in caplog.text


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


async def test_a_thread_of_an_unwatched_session_has_no_profile_function():
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


async def test_the_profile_function_looks_up_calls_and_reports_them_to_the_watch():
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
        strict_watch().report(found[0])
