"""Replay of `def` handlers: one thread runs at a time, and all threads end."""

import contextvars
import json
import math
import random
import threading
import time
from collections import Counter

import pytest
import trio

from mcp_trio import Limits, RequestError, Server, ThreadContext, effect
from mcp_trio.errors import CapabilityMissing, ReplayDivergence, RequestAbandoned
from mcp_trio.limits import ReplayLimits, RequestLimits
from mcp_trio.recording import TickClock, replay

# The clock of a recording jumps while threads begin: nothing may be too late by that.
LIMITS = Limits(
    replay=ReplayLimits(thread_seconds=0.3),
    requests=RequestLimits(idle_seconds=math.inf, total_seconds=math.inf),
)


@effect
def fetch(key: str) -> str:
    return f"value of {key}"


def talking(ctx, number):
    ctx.info(["first", number])
    values = [fetch("a"), str(ctx.now()), str(ctx.uuid4()), ctx.monotonic()]
    ctx.sleep(0.01 * number)
    with ctx.lock("door"):
        ctx.info(["second", number])
    values.append(len(ctx.list_roots()))
    return values


def make_server(handler, *, limits=LIMITS):
    server = Server("threads", limits=limits)

    @server.tool
    def run(number: int, *, ctx: ThreadContext) -> list[str]:
        return [str(each) for each in handler(ctx, number) or ()]

    @server.resource("thread://{name}")
    def read(name: str, *, ctx: ThreadContext) -> str:
        ctx.info(name)
        return name

    @server.method("notifications/acme/tick")
    def tick() -> None:
        server.list_changed("tools")

    return server


def calling(count):
    async def client(peer, _session):
        await peer.handshake(capabilities={"roots": {}})
        for number in range(count):
            params = {"name": "run", "arguments": {"number": number}}
            await peer.send_request("tools/call", params, id=number)
        for _ in range(count):
            await answer_until(peer, lambda message: "method" not in message)
        await peer.send_notification("notifications/acme/tick")
        await answer_until(peer, lambda message: "list_changed" in message["method"])

    return client


def answer_text(message):
    return message["result"]["content"][0]["text"]


async def real_seconds(seconds):
    """Sleep in a thread, which takes real time under any clock of the run."""
    await trio.to_thread.run_sync(time.sleep, seconds)


async def answer_until(peer, is_last):
    """Answer the server's questions until a message arrives for which `is_last` is true."""
    while not is_last(message := await peer.receive()):
        if message.get("method") == "roots/list":
            await peer.send_result(message, {"roots": [{"uri": "file:///a"}]})


@pytest.fixture
def recorded(world, tmp_path):
    def make(handler, client):
        return world.record(make_server(handler), tmp_path / "a.mcprec.jsonl", client)

    return make


@pytest.mark.parametrize("number", range(3))
def test_handlers_in_threads_send_the_same_bytes_in_the_same_order(world, recorded, number):
    path = recorded(talking, calling(6))
    assert sum(r["k"] == "mark" and r["f"]["name"] == "thread" for r in world.records(path)) == 7
    replayed = world.replayed(path, make_server(talking), number=number)
    assert replayed.sent_messages == world.sent_frames(path)
    assert replayed.ordered == world.played(path)


def test_one_thread_runs_at_a_time(recorded):
    running, most = [], []

    def working(ctx, number):
        for step in range(3):
            running.append(number)
            most.append(len(running))
            threading.Event().wait(0.002)
            running.remove(number)
            ctx.info(step)

    path = recorded(working, calling(5))
    most.clear()
    assert replay(path, make_server(working)).is_complete
    assert max(most) == 1


def test_a_read_within_a_thread_takes_another_one(world, recorded):
    def reading(ctx, number):
        ctx.info("before")
        return [content.text for content in ctx.read_resource(f"thread://{number}")]

    path = recorded(reading, calling(3))
    replayed = world.replayed(path, make_server(reading))
    assert replayed.ordered == world.played(path)


# What a thread runs in the event loop by itself.


@pytest.mark.parametrize("number", range(3))
def test_what_threads_run_in_the_event_loop_replays_in_the_recorded_order(world, recorded, number):
    log, lock, variable = [], trio.Lock(), contextvars.ContextVar("variable", default=0)

    async def step(thread, turn):
        log.append([thread, turn, variable.get()])
        await trio.sleep(0.001 * random.randrange(4))
        async with lock:
            log.append([thread, turn, fetch(f"{thread}")])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 0)
            nursery.start_soon(trio.lowlevel.checkpoint)
        return turn

    def running(ctx, thread):
        variable.set(thread)
        for turn in range(3):
            threading.Event().wait(random.random() / 1000)
            assert trio.from_thread.run(step, thread, turn) == turn
            trio.from_thread.run_sync(log.append, [thread, turn, "sync"])
        with pytest.raises(TypeError):
            trio.from_thread.run(log.append, "never")
        with pytest.raises(TypeError):
            trio.from_thread.run_sync(step, thread, 4)
        with pytest.raises(ZeroDivisionError):
            trio.from_thread.run_sync(divmod, 1, 0)
        return log

    path = recorded(running, calling(5))
    recorded_log, log[:] = [*log], []
    heard = world.replayed(path, make_server(running), number=number)
    assert heard.sent_messages == world.sent_frames(path)
    assert heard.ordered == world.played(path)
    assert log == recorded_log


def test_a_thread_uses_the_event_loop_after_the_end_of_its_request(world, recorded):
    begun, may_end, notes, done = threading.Event(), threading.Event(), [], trio.Event()

    async def finish():
        await trio.sleep(0.001)
        notes.append("finished")
        done.set()

    def working(ctx, number):
        if number == 2:
            trio.from_thread.run(done.wait)
            return notes
        try:
            begun.set()
            may_end.wait(5)
        finally:
            trio.from_thread.run_sync(notes.append, "ends")
            trio.from_thread.run(finish)

    async def client(peer, _session):
        await peer.handshake()
        for number in 1, 2:
            params = {"name": "run", "arguments": {"number": number}}
            await peer.send_request("tools/call", params, id=number)
            assert await trio.to_thread.run_sync(begun.wait, 5)
        await peer.cancel(1)
        await trio.sleep(1)
        may_end.set()
        assert json.loads(answer_text(await peer.receive())) == notes

    path = recorded(working, client)
    assert notes == ["ends", "finished"]
    done, notes[:] = trio.Event(), []
    heard = world.replayed(path, make_server(working))
    assert heard.ordered == world.played(path)
    assert notes == ["ends", "finished"]


# Cancellation.

SEEN = []


def asking(ctx, number):
    ctx.info("asks")
    try:
        ctx.sample("Why?")
    except RequestAbandoned:
        SEEN.append(ctx.is_cancelled)
        with pytest.raises(RequestAbandoned):
            ctx.info("never said")
        SEEN.append("left")
        raise


def test_an_abandoned_thread_is_rejected_and_ends(world, recorded):
    async def client(peer, _session):
        await peer.handshake(capabilities={"sampling": {}})
        for number in range(3):
            params = {"name": "run", "arguments": {"number": number}}
            await peer.send_request("tools/call", params, id=number)
        await peer.receive_many(6)
        for number in range(3):
            await peer.cancel(number)
        await peer.receive_many(3)

    path = recorded(asking, client)
    cancelled = [r["l"] for r in world.records(path) if r["k"] == "cxl"]
    assert len(cancelled) == 9  # each request, its wait for its thread, and the call of the thread
    while len(SEEN) < 6:  # the threads of the recorded session end after it
        time.sleep(0.001)
    SEEN.clear()
    replayed = world.replayed(path, make_server(asking))
    assert replayed.ordered == world.played(path)
    assert Counter(SEEN) == {True: 3, "left": 3}


def test_nothing_of_a_request_is_recorded_after_its_end(world, recorded):
    def asking_roots(ctx, number):
        with pytest.raises(RequestAbandoned):
            ctx.sample("Why?")

    async def client(peer, _session):
        await peer.handshake(capabilities={"sampling": {}})
        params = {"name": "run", "arguments": {"number": 1}}
        await peer.send_request("tools/call", params, id=1)
        await peer.receive()
        await peer.cancel(1)
        await peer.receive()
        await trio.sleep(1)

    path = recorded(asking_roots, client)
    kinds = [(r["k"], r["o"]) for r in world.records(path) if r.get("l", "").startswith("r")]
    assert kinds == [("mark", 1), ("out", 1), ("cxl", 2), ("cxl", 2), ("out", 3), ("cxl", 3)]
    replayed = world.replayed(path, make_server(asking_roots))
    assert replayed.ordered == world.played(path)


def use_clock(ctx):
    ctx.monotonic()


def use_effect(ctx):
    ctx.effect(fetch, "a")


def use_patch(ctx):
    ctx.patched("new")


def say(ctx):
    ctx.info("never said")


def none(ctx):
    """End the thread without a call."""


class Work:
    """The events of a thread: it has begun, it may end, and it has ended."""

    def __init__(self):
        self.begun, self.may_end, self.ended = (threading.Event() for _ in range(3))

    def calculate(self) -> None:
        self.begun.set()
        self.may_end.wait(5)


def calculate(ctx, work):
    work.calculate()


def calculate_as_effect(ctx, work):
    ctx.effect(work.calculate)


@pytest.mark.parametrize("use", [use_clock, use_effect, use_patch, say, none])
@pytest.mark.parametrize("after", [calculate, calculate_as_effect])
def test_a_thread_makes_no_call_after_the_end_of_its_request(world, recorded, use, after):
    work, went_on = Work(), []

    def working(ctx, number):
        try:
            ctx.info("works")
            after(ctx, work)
            use(ctx)
            went_on.append(use)
        finally:
            work.ended.set()

    async def client(peer, _session):
        """Cancel the request while its thread calculates, and wait for the thread."""
        await peer.handshake(capabilities={"sampling": {}})
        await peer.send_request("tools/call", {"name": "run", "arguments": {"number": 1}}, id=1)
        await peer.receive()
        assert await trio.to_thread.run_sync(work.begun.wait, 10)
        await peer.cancel(1)
        await trio.sleep(1)
        work.may_end.set()
        assert await trio.to_thread.run_sync(work.ended.wait, 10)

    path = recorded(working, client)
    recorded_steps = list(went_on)
    went_on.clear()
    replayed = world.replayed(path, make_server(working))
    assert replayed.ordered == world.played(path)
    assert went_on == recorded_steps


@pytest.mark.parametrize("number", range(8))
def test_a_request_may_end_while_its_thread_waits_for_another_thread(world, tmp_path, number):
    work = Work()

    def working(ctx, number):
        if number == 2:
            ctx.info("works too")
            return
        fetch("a")
        work.calculate()
        with pytest.raises(RequestAbandoned):
            fetch("b")

    async def client(peer, _session):
        """Begin another request in the turn in which the first one is cancelled."""
        await peer.handshake(capabilities={})
        params = {"name": "run", "arguments": {"number": 2}}
        for earlier in ("a", "b"):  # Their tasks run the next handlers.
            await peer.send_request("tools/call", params, id=earlier)
        await peer.receive_many(4)
        await peer.send_request("tools/call", {"name": "run", "arguments": {"number": 1}}, id=1)
        assert await trio.to_thread.run_sync(work.begun.wait, 10)
        await peer.send(
            {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params},
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
        )
        await peer.receive_many(2)
        work.may_end.set()

    # In some schedules the thread of the second request runs first, live and in a replay.
    path = tmp_path / "a.mcprec.jsonl"
    world.record(make_server(working), path, client, number=number, clock=TickClock())
    for replay_number in range(12):
        replayed = world.replayed(path, make_server(working), number=replay_number)
        assert replayed.ordered == world.played(path)


# Locks that others wait for.


def ask_nobody(ctx):
    with pytest.raises(CapabilityMissing):
        ctx.sample("Why?")


def ask_nothing(ctx):
    assert ctx.ask_all() == ()


def read_nothing(ctx):
    with pytest.raises(RequestError):
        ctx.read_resource("nowhere://")


def take_it_again(ctx):
    with pytest.raises(RuntimeError), ctx.lock("door"):
        pytest.fail("taken twice")


def take_patch_again(ctx):
    assert ctx.patched("new")


@pytest.mark.parametrize(
    "call", [ask_nobody, ask_nothing, read_nothing, take_it_again, take_patch_again]
)
def test_a_thread_continues_after_a_call_without_a_record(world, recorded, call):
    came, may_go_on, numbers = threading.Event(), threading.Event(), []

    def passing(ctx, number):
        ctx.patched("new")
        with ctx.lock("door"):
            call(ctx)
            numbers.append(number)
        if number == 1:
            came.set()
            may_go_on.wait(5)
            call(ctx)
            numbers.append("never")

    async def client(peer, _session):
        await peer.handshake()
        for number in 1, 2:
            params = {"name": "run", "arguments": {"number": number}}
            await peer.send_request("tools/call", params, id=number)
            await trio.to_thread.run_sync(came.wait, 5)
        assert (await peer.receive())["id"] == 2
        await peer.cancel(1)
        await trio.sleep(1)
        may_go_on.set()
        await real_seconds(0.02)

    path = recorded(passing, client)
    replayed = world.replayed(path, make_server(passing))
    assert replayed.ordered == world.played(path)
    assert numbers == [1, 2] * 2


def test_a_call_that_converts_its_cancellation_has_returned(world, tmp_path):
    errors, entered, left = [], threading.Event(), threading.Event()

    def reading(ctx, number):
        try:
            ctx.read_resource("stubborn://")
        except Exception as error:
            errors.append(type(error))
            left.set()
            raise

    def make_stubborn_server():
        server = make_server(reading)

        @server.resource("stubborn://")
        async def stubborn() -> str:
            entered.set()
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                raise ValueError("no") from None

        return server

    async def client(peer, _session):
        await peer.handshake()
        params = {"name": "run", "arguments": {"number": 1}}
        await peer.send_request("tools/call", params, id=1)
        await trio.to_thread.run_sync(entered.wait, 5)
        await peer.cancel(1)
        await trio.to_thread.run_sync(left.wait, 5)

    path = world.record(make_stubborn_server(), tmp_path / "a.mcprec.jsonl", client)
    world.replayed(path, make_stubborn_server())
    assert errors == [ValueError] * 2


# Divergences.


def silent(ctx, number):
    pass


def louder(ctx, number):
    ctx.info(["first", number])
    ctx.info("more")


@pytest.mark.parametrize(("handler", "kind"), [(silent, "missing"), (louder, "extra")])
def test_a_changed_def_handler_diverges_with_its_location(recorded, handler, kind):
    path = recorded(talking, calling(3))
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server(handler))
    assert caught.value.kind == kind
    if handler is louder:
        assert "at test_threads.py:" in caught.value.replayed


def test_threads_end_with_a_replay_that_diverges(recorded):
    ended = []

    def counting(ctx, number):
        try:
            return talking(ctx, number)
        finally:
            ended.append(number)

    path = recorded(counting, calling(3))
    ended.clear()

    def changed(ctx, number):
        try:
            ctx.info(["first", number])
            ctx.info("more")
        finally:
            ended.append(number)

    with pytest.raises(ReplayDivergence):
        replay(path, make_server(changed))
    assert sorted(ended) == [0, 1, 2]


def test_a_thread_that_never_returns_is_reported(recorded):
    release = threading.Event()
    is_replay = threading.Event()

    def stuck(ctx, number):
        ctx.info("here")
        if is_replay.is_set():
            release.wait(20)

    path = recorded(stuck, calling(2))
    is_replay.set()
    try:
        with pytest.raises(ReplayDivergence) as caught:
            replay(path, make_server(stuck))
    finally:
        release.set()
    assert caught.value.kind == "problem"
    assert "the thread of 'run' neither ended nor used its context within 0.3 s" in str(
        caught.value
    )


def test_a_thread_that_catches_everything_does_not_delay_the_end(recorded):
    path = recorded(talking, calling(2))
    is_over = threading.Event()

    def swallowing(ctx, number):
        while not is_over.is_set():
            try:
                ctx.info("again")
            except BaseException:
                time.sleep(0.0001)

    try:
        with pytest.raises(ReplayDivergence):
            replay(path, make_server(swallowing))
    finally:
        is_over.set()
