"""Stray calls, found at the call: every row of the tables, and what must not be found."""

# ruff: noqa: PLW0108  a lambda makes the call in a line of this file

import _posixsubprocess
import _socket
import _thread
import cProfile
import datetime as dt
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
from random import random as dice
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
from mcp_trio._engine import stray_calls
from mcp_trio._engine.lanes import LANE, Lane
from mcp_trio._engine.strays import Stray, StrayWatch, strict_watch, watching_thread
from mcp_trio._errors import BlockedInReplay, StrayNondeterminism


class NotDoneError(Exception):
    """What the tests raise at a stray, so that it is not done."""


@attrs.define
class Caught:
    """The strays of a test; each is stopped at the call."""

    strays: list = attrs.field(factory=list)

    def __call__(self, stray):
        self.strays.append(stray)
        raise NotDoneError


async def in_lane(function, *args):
    LANE.set(Lane("r7"))
    value = function(*args)
    return await value if hasattr(value, "__await__") else value


def strays_of(function):
    """What is found when a task of a lane calls `function`, which is stopped there."""
    caught = Caught()

    async def run():
        with StrayWatch(on_stray=caught):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stopped)

    async def stopped():
        with suppress(NotDoneError):
            await in_lane(function)

    trio.run(run)
    return caught.strays


def only(strays):
    (stray,) = strays
    return stray


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
    names = {name.removesuffix(".__init__") for name in stray_calls.FUNCTIONS}
    assert names - ELSEWHERE == {*READS, *REACHES}


@pytest.mark.parametrize("name", READS)
def test_a_reading_beside_the_context_is_found(name):
    function, instead = READS[name]
    stray = only(strays_of(function))
    assert (stray.call, stray.lane, stray.instead) == (name, "r7", instead)
    assert stray.site == f"at test_strays.py:{function.__code__.co_firstlineno}"
    assert not stray.is_outside


@pytest.mark.parametrize("name", REACHES)
def test_a_reach_for_the_outside_is_found(name):
    function, instead = REACHES[name]
    stray = only(strays_of(function))
    assert (stray.call, stray.instead, stray.is_outside) == (name, instead, True)


@pytest.mark.parametrize(
    ("function", "call", "instead"),
    [
        (wall, "time.time", NOW),
        (dice, "random.random", RANDOM),
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
def test_it_is_named_as_people_call_it(function, call, instead):
    stray = only(strays_of(lambda: function()))
    assert (stray.call, stray.instead) == (call, instead)
    assert stray.site.startswith("at test_strays.py:")


@pytest.mark.parametrize("name", sorted(stray_calls.SOCKET_METHODS))
def test_a_socket_that_was_there_before_is_found(name):
    with socket.socket() as pooled:
        stray = only(strays_of(lambda: getattr(pooled, name)()))
    assert (stray.call, stray.instead) == (f"socket.{name}", NETWORK)


def test_a_function_that_was_called_often_before_is_found_too():
    def warm():
        return wall()

    for _ in range(1000):
        warm()
    assert only(strays_of(warm)).call == "time.time"


def test_generated_code_is_its_peoples():
    made = attrs.make_class("Made", {"at": attrs.field(factory=time.time)})
    stray = only(strays_of(lambda: made()))
    assert stray.call == "time.time"
    assert stray.site.startswith("at test_strays.py:")


def test_an_example_is_peoples_code():
    place = Path(mcp_trio.__file__).parent / "examples" / "weather.py"
    assert only(strays_of(run_as(place, "time.time()"))).site == "at weather.py:1"


def run_as(place, expression, name="made_up"):
    """A function that evaluates something as if it stood in a file at `place`."""
    code = compile(expression, str(place), "eval")
    return lambda: eval(code, {"__name__": name, "time": time, "random": random, "socket": socket})


def test_what_people_installed_is_theirs_and_is_shown_where_they_call_it(tmp_path):
    place = tmp_path / "site-packages" / "dice.py"
    assert only(strays_of(run_as(place, "random.random()"))).site.startswith("at test_strays.py")


def test_installed_code_that_nobody_called_is_shown_itself(tmp_path):
    place = tmp_path / "site-packages" / "dice.py"
    caught = Caught()
    code = compile("random.random()", str(place), "eval")

    async def run():
        LANE.set(Lane("r7"))
        with StrayWatch(on_stray=caught):
            await trio.lowlevel.checkpoint()
            with pytest.raises(NotDoneError):
                stray_calls_eval(code)

    def stray_calls_eval(code):
        return eval(code, {"__name__": "dice", "random": random})

    trio.run(run)
    assert only(caught.strays).lane == "r7"


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
        run_as(Path(stray_calls.__file__), "time.time()"),
        run_as(Path(logging.__file__), "time.time()", "logging.handlers"),
        run_as(Path(logging.__file__), "socket.socket().close()", "logging.handlers"),
        run_as("/lib/site-packages/httpx.py", "time.perf_counter()", "httpx._client"),
        run_as("<frozen importlib>", "time.time()", "importlib._bootstrap"),
    ],
)
def test_this_is_no_stray(function):
    assert strays_of(function) == []


def test_a_library_that_measures_for_itself_reaches_the_outside_all_the_same():
    function = run_as("/lib/site-packages/httpx.py", "socket.socket()", "httpx._client")
    assert only(strays_of(function)).call == "socket.socket"


def test_outside_lanes_nothing_is_a_stray():
    caught = Caught()

    async def run():
        with StrayWatch(on_stray=caught):
            time.time()
            random.random()

    trio.run(run)
    assert caught.strays == []


def test_a_session_that_is_not_watched_is_let_alone():
    caught = Caught()

    async def run():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_lane, trio.sleep, 0)
            nursery.start_soon(unwatched)
            with StrayWatch(on_stray=caught):
                await trio.sleep(0.001)

    async def unwatched():
        LANE.set(Lane("r8"))
        await trio.sleep(0.0001)
        time.time()

    trio.run(run)
    assert caught.strays == []


# What comes of it.


def test_a_stray_is_one_line():
    stray = Stray(call="time.time", site="at a.py:3", lane="r1", instead=NOW, is_outside=False)
    assert str(stray) == "time.time() at a.py:3 in lane r1: use ctx.now()"


async def test_a_replay_notes_readings_and_blocks_the_outside():
    noted = []

    async def handler():
        assert time.time() > 0
        with pytest.raises(BlockedInReplay, match=r"time\.sleep\(\) at test_strays.py:\d+ reaches"):
            time.sleep(9)

    with StrayWatch(on_stray=noted.append, blocks=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_lane, handler)
    assert [stray.call for stray in noted] == ["time.time", "time.sleep"]


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
        with StrayWatch(on_stray=found.append), StrayWatch(on_stray=found.append):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(in_lane, handler)
    finally:
        gc.callbacks.remove(reads_the_clock)
    assert [stray.call for stray in found] == ["time.monotonic"]
    assert gc.callbacks == callbacks


async def test_a_strict_recording_refuses_readings_too():
    async def handler():
        with pytest.raises(StrayNondeterminism, match=r"time\.time\(\) at .* use ctx\.now\(\)"):
            time.time()

    with strict_watch():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_lane, handler)


async def test_the_watch_comes_back_after_a_stray_was_raised():
    found = []

    async def handler():
        for _ in range(3):
            with pytest.raises(NotDoneError):
                time.time()
            await trio.lowlevel.checkpoint()

    def refuse(stray):
        found.append(stray)
        raise NotDoneError

    with StrayWatch(on_stray=refuse):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_lane, handler)
    assert len(found) == 3


async def test_watches_end_in_any_order_and_leave_nothing():
    found = []

    async def serve(name, seconds):
        with StrayWatch(on_stray=lambda stray: found.append((name, stray.call))):
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
        with StrayWatch(on_stray=caught.append):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(in_lane, time.time)
        assert sys.getprofile() is theirs
    finally:
        sys.setprofile(None)
    assert ("c_call", time.time) in seen


async def test_who_takes_the_place_meanwhile_keeps_it():
    def theirs(frame, event, arg):
        pass

    with StrayWatch(on_stray=print):
        sys.setprofile(theirs)
    assert sys.getprofile() is theirs
    sys.setprofile(None)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="a profiler in C is no profile function")
async def test_a_profiler_in_c_is_let_alone(caplog):
    profiler = cProfile.Profile()
    found = []
    profiler.enable()
    try:
        with StrayWatch(on_stray=found.append):
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

    async def carry():
        LANE.set(Lane("r9"))
        with watched_off():
            await trio.to_thread.run_sync(handler)

    def watched_off():
        return StrayWatch(on_stray=found.append)

    with watched_off():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(carry)
    assert [(stray.call, stray.lane) for stray in found if stray.call == "time.time"] == [
        ("time.time", "r9")
    ]


async def test_a_thread_of_a_session_that_nobody_watches_has_no_profile_function():
    def handler():
        with watching_thread():
            return sys.getprofile()

    assert await trio.to_thread.run_sync(handler) is None


# The same judgement outside of a profile function, where its own steps can be measured.


def judged(function):
    """What `function`, which calls `judge()`, is found to have called."""
    row = stray_calls.row_of_function(time.time)
    found = []

    def judge():
        found.append(stray_calls.stray_of(sys._getframe(1), row, "r1"))

    function(judge)
    return only(found)


def at(place, name, expression="judge()"):
    code = compile(expression, str(place), "eval")
    return lambda judge: eval(code, {"__name__": name, "judge": judge})


def test_a_judgement_walks_the_stack():
    ours = Path(stray_calls.__file__)
    standard = Path(logging.__file__).parents[1]
    assert judged(lambda judge: judge()).call == "time.time"
    assert judged(at("/a/site-packages/b.py", "b")).site.startswith("at test_strays.py:")
    assert judged(at(standard / "site-packages" / "b.py", "b")).call == "time.time"
    assert judged(at("<attrs generated init b>", "b")).call == "time.time"
    assert judged(at(standard / "uuid.py", "uuid")).instead == UUID
    assert judged(at(standard / "uuid.py", "uuid")).call == "uuid.<module>"
    assert judged(at("/a/site-packages/httpx/b.py", "httpx.b")) is None
    assert judged(at(standard / "logging" / "b.py", "logging.b")) is None
    assert judged(at(standard / "queue.py", "queue")) is None
    assert judged(at(standard / "queue.py", None)) is None
    assert judged(at(Path(trio.__file__).parent / "b.py", "trio.b")) is None
    assert judged(at(ours, "mcp_trio.b")) is None


def test_a_judgement_ends_where_the_stack_ends():
    row = stray_calls.row_of_function(time.time)
    found = []

    class Call:
        def __init__(self, file, back=None):
            self.f_code = compile("0", file, "eval")
            self.f_globals = {"__name__": "uuid"}
            self.f_back = back
            self.f_lineno = 7

    found.append(stray_calls.stray_of(Call(uuid.__file__, Call(uuid.__file__)), row, "r1"))
    assert found == [None]
    assert stray_calls.stray_of(Call("/site-packages/b.py"), row, "r1").site == "at b.py:7"


def test_what_this_python_lacks_is_passed_over():
    assert stray_calls._found("no_such_module.function") is None
    assert stray_calls._found("time.no.such") is None


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
    assert stray_calls.row_of_code(frames[0]) is None
    assert stray_calls.row_of_code(frame_of_seed(3)) is None
    assert stray_calls.row_of_function(len) is None
    assert stray_calls.row_of_function(random.random).rule.instead == RANDOM
    with socket.socket() as pooled:
        assert stray_calls.row_of_function(pooled.send).name == "socket.send"


async def test_a_profile_function_asks_the_tables_and_tells_the_watch():
    found = []
    frame = sys._getframe()
    LANE.set(Lane("r3"))
    with StrayWatch(on_stray=found.append, blocks=True):
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
        in_logging = at(logging.__file__, "logging", "judge()")
        in_logging(lambda: hook(sys._getframe(1), "c_call", time.time))
        hook.previous = None
        hook(frame, "return", None)
    assert [stray.call for stray in found_in_lane] == ["time.time", "time.sleep"]
    assert found == found_in_lane
    assert events == 7
    with pytest.raises(StrayNondeterminism):
        strict_watch().see(found[0])


class FrameAlone:
    """A frame that nobody called."""

    f_back = None

    def __init__(self, code):
        self.f_code = code


async def test_only_steps_in_lanes_are_looked_at():
    before = sys.getprofile()
    with StrayWatch(on_stray=pytest.fail):
        await trio.lowlevel.checkpoint()
        assert sys.getprofile() is before
        LANE.set(Lane("r3"))
        await trio.lowlevel.checkpoint()
        assert sys.getprofile() is not before
    assert sys.getprofile() is before
