"""Replay of effects: none is performed, each is compared and gets its recorded outcome."""

import contextlib
import functools
import os
import re
import socket
import sqlite3
import sys
import time
from contextlib import asynccontextmanager, closing

import attrs
import pytest
import trio

from mcp_trio import Context, Server, effect
from mcp_trio._replay.many_replays import remarks_of
from mcp_trio._session.tasks import seeded_schedule
from mcp_trio.errors import ReplayDivergence
from mcp_trio.recording import replay

RUNS = []


@effect
async def fetch(key: str) -> str:
    RUNS.append(key)
    await trio.sleep(0.001)
    if key == "bad":
        raise ValueError(key)
    return f"value of {key}"


@effect
async def store(key: str, value: str) -> None:
    RUNS.append(key)


@effect
def look(key: str) -> int:
    RUNS.append(key)
    return len(RUNS)


async def waste(seconds: float) -> str:
    await trio.sleep(seconds)
    return "wasted"


def shout(word: str) -> str:
    RUNS.append(word)
    return word.upper()


async def everything(ctx):
    values = [await fetch("a"), look("b"), str(ctx.now()), ctx.monotonic(), ctx.random.random()]
    values += [str(ctx.uuid4()), await ctx.effect(shout, "c"), await ctx.to_thread(shout, "d")]
    try:
        await fetch("bad")
    except ValueError as error:
        values.append(str(error))
    await ctx.sleep(0.5)
    try:
        with ctx.timeout(0.25):
            await ctx.effect(waste, 10)
    except trio.TooSlowError:
        values.append("too slow")
    async with ctx.lock("door"):
        await ctx.info("inside")
    values.append(ctx.patched("new"))
    await store("k", "v")
    return values


def make_server(handler, **options):
    server = Server("effects", **options)

    @server.tool
    async def run(number: int = 0, *, ctx: Context) -> list[str]:
        return [str(each) for each in await handler(ctx) or ()]

    return server


async def call(peer, _session):
    await peer.handshake(capabilities={"roots": {}})
    for number in range(2):
        params = {"name": "run", "arguments": {"number": number}}
        await peer.send_request("tools/call", params, id=number)
    answers = 0
    while answers < 2:
        message = await peer.receive()
        answers += "method" not in message


async def call_and_cancel(peer, _session):
    await peer.handshake()
    await peer.send_request("tools/call", {"name": "run", "arguments": {}}, id=1)
    await trio.sleep(0.1)
    await peer.cancel(1)
    await trio.sleep(1)


@pytest.fixture
def recorded(world, tmp_path):
    """A recording of a handler, called twice at once."""

    def make(handler, client=call):
        return world.record(make_server(handler), tmp_path / "a.mcprec.jsonl", client)

    return make


def test_every_effect_comes_from_the_recording(world, recorded):
    path = recorded(everything)
    kinds = {record["k"] for record in world.records(path)}
    assert {"cmd", "res", "err", "cxl", "val", "mark"} <= kinds
    RUNS.clear()
    for number in range(3):
        replayed = world.replayed(path, make_server(everything), number=number)
        assert replayed.sent_messages == world.sent_frames(path)
    assert RUNS == []


@effect
async def leave(kind: str) -> None:
    RUNS.append(kind)
    error = {"exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "both": Failed(b"\xff")}[kind]
    await trio.sleep(0.001)
    try:
        raise KeyError(kind)
    except KeyError as cause:
        error.add_note("noted")
        raise error from cause


class Failed(Exception):
    pass


async def catching(ctx):
    for kind in ("exit", "interrupt", "both"):
        try:
            await leave(kind)
        except (SystemExit, KeyboardInterrupt, Failed) as error:
            await ctx.info(repr([error, error.__cause__, error.__notes__]))
    try:
        exit_at_once()
    except SystemExit as error:
        await ctx.info(repr(error))
    try:
        await ctx.to_thread(sys.exit, "in a thread")
    except SystemExit as error:
        await ctx.info(repr(error))


@effect
def exit_at_once() -> None:
    RUNS.append("now")
    sys.exit("now")


def test_exits_and_interrupts_of_effects_are_replayed_with_causes_notes_and_bytes(world, recorded):
    path = recorded(catching)
    RUNS.clear()
    for number in range(3):
        replayed = world.replayed(path, make_server(catching), number=number)
        assert replayed.sent_messages == world.sent_frames(path)
    assert RUNS == []
    assert b"SystemExit(3)" in path.read_bytes()
    assert b"SystemExit('in a thread')" in path.read_bytes()


async def leaving(ctx):
    await leave("exit")


async def interrupting(ctx):
    await leave("interrupt")


async def exiting_by_itself(ctx):
    await fetch("a")
    raise SystemExit(7)


@pytest.mark.parametrize(
    ("handler", "exception"),
    [
        (leaving, "SystemExit: 3"),
        (interrupting, "KeyboardInterrupt"),
        (exiting_by_itself, "SystemExit: 7"),
    ],
)
def test_a_session_that_ended_with_an_exit_replays_to_its_end(
    recorded, tmp_path, handler, exception
):
    with pytest.raises(BaseExceptionGroup):
        recorded(handler)
    for number in range(5):
        with seeded_schedule(number):
            report = replay(tmp_path / "a.mcprec.jsonl", make_server(handler))
        assert report.is_complete
        assert report.exit.startswith(f"{exception}  at test_effects.py:")
        assert any(exception in remark for remark in remarks_of(report))
    with pytest.raises(ReplayDivergence):
        replay(tmp_path / "a.mcprec.jsonl", make_server(everything))


def test_an_exit_in_place_of_an_answer_is_a_divergence(recorded):
    async def answering(ctx):
        await fetch("a")

    with pytest.raises(ReplayDivergence, match="SystemExit: 7"):
        replay(recorded(answering), make_server(exiting_by_itself))


@effect
async def use_a_driver() -> None:
    import lazy_driver

    raise lazy_driver.DriverError(lazy_driver.STARTED)


async def using_a_driver(ctx):
    try:
        await use_a_driver()
    except Exception as error:
        await ctx.info(f"{type(error).__module__} {len(error.args[0])}")
    await ctx.info(str(ctx.random.random()))


def test_the_module_of_an_exception_is_imported_outside_of_the_handler(
    world, recorded, tmp_path, monkeypatch
):
    (tmp_path / "lazy_driver.py").write_text(
        "import pathlib, random, uuid\n"
        "STARTED = str(uuid.uuid4())\n"
        "random.random()\n"
        "pathlib.Path(__file__).with_name('log').write_text('imported')\n"
        "class DriverError(Exception): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = recorded(using_a_driver)
    del sys.modules["lazy_driver"]
    replayed = world.replayed(path, make_server(using_a_driver))
    assert replayed.sent_messages == world.sent_frames(path)
    assert b"lazy_driver 36" in path.read_bytes()
    del sys.modules["lazy_driver"]


@pytest.mark.slow
def test_a_cut_anywhere_replays_up_to_the_cut(world, recorded, tmp_path):
    path = recorded(everything)
    lines = path.read_bytes().splitlines(keepends=True)
    first = world.place_of(path, lambda r: r.get("l", "").startswith("r"))
    for count in range(first + 1, len(lines)):
        cut = world.rewrite(path, tmp_path / "cut.jsonl", lambda lines, n=count: lines[:n])
        report = replay(cut, make_server(everything))
        assert report.records == count - 1
        assert not report.is_complete


def test_lanes_that_continue_after_a_cut_are_reported(world, recorded, tmp_path):
    path = recorded(everything)
    place = world.place_of(path, lambda r: r["k"] == "cmd" and r["l"] == "r5")
    cut = world.rewrite(path, tmp_path / "cut.jsonl", lambda lines: lines[: place + 1])
    report = replay(cut, make_server(everything))
    assert report.continuing["r5"].startswith("at test_effects.py:")


# Handlers that were changed, against the recording of `steps`.


async def steps(ctx):
    first = await fetch("a")
    await store("k", first)
    count = look("x")
    await ctx.info(count)
    return [first, count]


async def with_other_arguments(ctx):
    first = await fetch("b")
    await store("k", first)
    return [first]


async def with_another_value_stored(ctx):
    first = await fetch("a")
    await store("k", first + "!")


async def looking_elsewhere(ctx):
    first = await fetch("a")
    await store("k", first)
    look("y")


async def without_the_first(ctx):
    await store("k", "value of a")
    count = look("x")
    await ctx.info(count)


async def without_looking(ctx):
    first = await fetch("a")
    await store("k", first)
    await ctx.info(1)


async def with_one_more(ctx):
    first = await fetch("a")
    await ctx.effect(shout, "new")
    await store("k", first)


async def looking_twice(ctx):
    first = await fetch("a")
    look("x")
    await store("k", first)


async def with_one_more_at_the_end(ctx):
    answer = await steps(ctx)
    await fetch("again")
    return answer


async def looking_at_the_end(ctx):
    answer = await steps(ctx)
    look("again")
    return answer


async def stopping_early(ctx):
    await fetch("a")
    await trio.sleep_forever()


async def sending_something_else(ctx):
    first = await fetch("a")
    await store("k", first)
    await ctx.info(look("x") + 1000)


@pytest.mark.parametrize(
    ("handler", "kind", "ordinal"),
    [
        (with_other_arguments, "argument", 1),
        (with_another_value_stored, "argument", 3),
        (looking_elsewhere, "argument", 5),
        (without_the_first, "missing", 1),
        (without_looking, "missing", 5),
        (with_one_more, "extra", 3),
        (looking_twice, "extra", 3),
        (with_one_more_at_the_end, "extra", 7),
        (looking_at_the_end, "extra", 7),
        (stopping_early, "missing", 3),
        (sending_something_else, "message", 6),
    ],
)
def test_a_changed_handler_diverges_at_the_operation_that_it_changes(
    world, recorded, handler, kind, ordinal
):
    path = recorded(steps)
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server(handler))
    divergence = caught.value
    assert (divergence.kind, divergence.ordinal) == (kind, ordinal)
    came_first = next(each["l"] for each in world.records(path) if each.get("o") == ordinal)
    assert divergence.lane == came_first
    assert divergence.hint in str(divergence)


def test_a_changed_argument_is_shown_by_its_path(recorded):
    with pytest.raises(ReplayDivergence) as caught:
        replay(recorded(steps), make_server(with_other_arguments))
    assert '$.arguments.key: "a" became "b"' in str(caught.value)
    assert "test_effects.py:" in caught.value.replayed


# Cancellation.


async def slow(ctx):
    try:
        await ctx.effect(waste, 5)
    finally:
        with trio.CancelScope(shield=True):
            await store("cleaned", "up")


def test_a_cancelled_effect_is_cancelled_at_the_same_record(world, recorded):
    path = recorded(slow, call_and_cancel)
    kinds = [r["k"] for r in world.records(path) if r.get("l") == "r5"]
    assert kinds == ["cmd", "cxl", "cmd", "res", "cxl"]
    replayed = world.replayed(path, make_server(slow))
    assert replayed.ordered == world.played(path)


async def waiting_without_timeout(ctx):
    await ctx.effect(waste, 10)


async def waiting_in_time(ctx):
    with trio.move_on_after(0.25):
        await ctx.effect(waste, 10)


def test_a_removed_timeout_around_an_effect_diverges_at_the_cancellation(recorded):
    with pytest.raises(ReplayDivergence) as caught:
        replay(recorded(waiting_in_time), make_server(waiting_without_timeout))
    assert caught.value.kind == "uncancelled"


# Code versions.


async def patched_code(ctx):
    if ctx.patched("more"):
        await ctx.info("more")
    return [await fetch("a")]


async def old_code(ctx):
    return [await fetch("a")]


def test_patched_code_takes_the_branch_of_the_recording(world, recorded):
    path = recorded(old_code)
    assert world.replayed(path, make_server(patched_code)).sent_messages == world.sent_frames(path)
    path.unlink()
    path = recorded(patched_code)
    assert world.replayed(path, make_server(patched_code)).sent_messages == world.sent_frames(path)
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server(old_code))
    assert caught.value.kind in {"missing", "extra"}


# The lifespan.


@attrs.define
class Shelf:
    books: list


@asynccontextmanager
async def open_shelf(_server):
    with closing(sqlite3.connect(":memory:")):  # A replay cannot do this again.
        yield Shelf(["Emma"])


@effect
async def browse(shelf: Shelf) -> list[str]:
    return shelf.books


async def through_an_effect(ctx):
    return await browse(ctx.lifespan)


async def past_effects(ctx):
    return ctx.lifespan.books[:1]


async def through_an_attribute(ctx):
    return await first_of(ctx.lifespan.books)


@effect
async def first_of(books: list[str]) -> list[str]:
    return books[:1]


@asynccontextmanager
async def open_shelf_in_a_dict(_server):
    with closing(sqlite3.connect(":memory:")) as db:
        yield {"db": db, "titles": ["Emma"], "count": 1}


@effect
async def titles_of(db: sqlite3.Connection, titles: list[str], count: int) -> list[str]:
    return [row[0] for row in db.execute("SELECT ?", titles[:count])]


async def through_items(ctx):
    shelf = ctx.lifespan
    return await titles_of(shelf["db"], shelf["titles"], shelf["count"])


def test_the_items_of_a_lifespan_that_is_a_dict_can_be_passed_to_effects(world, tmp_path):
    server = make_server(through_items, lifespan=open_shelf_in_a_dict)
    path = world.record(server, tmp_path / "a.mcprec.jsonl", call)
    assert '{"db":"<opaque>","titles":"<opaque>","count":1}' in path.read_text()
    assert replay(path, make_server(through_items, lifespan=None)).is_complete


@pytest.fixture
def shelved(world, tmp_path):
    def make(handler):
        server = make_server(handler, lifespan=open_shelf)
        return world.record(server, tmp_path / "a.mcprec.jsonl", call)

    return make


@pytest.mark.parametrize("handler", [through_an_effect, through_an_attribute])
def test_a_lifespan_that_opens_something_is_not_entered_and_can_be_passed_to_effects(
    shelved, handler
):
    path = shelved(handler)
    report = replay(path, make_server(handler, lifespan=None))
    assert report.is_complete
    assert re.fullmatch(
        r"the lifespan was replaced by a stand-in: it opened something by itself,"
        r" sqlite3\.connect\(':memory:'\) at test_effects\.py:\d+",
        report.lifespan,
    )


def test_a_use_of_the_lifespan_outside_of_effects_is_blocked(shelved, caplog):
    path = shelved(past_effects)
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server(past_effects))
    assert "write `@effect async def books" in caplog.text
    assert caught.value.kind == "blocked"
    assert "use `@effect async def books" in str(caught.value)
    assert f"at test_effects.py:{past_effects.__code__.co_firstlineno + 1}" in str(caught.value)


def test_a_real_lifespan_may_be_given(shelved):
    path = shelved(past_effects)
    assert replay(path, make_server(past_effects), lifespan=open_shelf).is_complete


def test_an_error_of_the_lifespan_is_raised_unwrapped(shelved):
    @asynccontextmanager
    async def broken(_server):
        raise ZeroDivisionError
        yield

    with pytest.raises(ZeroDivisionError):
        replay(shelved(past_effects), make_server(past_effects), lifespan=broken)


# The outside.


async def dialling(ctx):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", 9))
    return [str(time.time() > 0)]


def test_direct_external_io_is_blocked_and_reported(recorded):
    path = recorded(dialling)
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server(dialling))
    divergence = caught.value
    assert divergence.kind == "blocked"
    assert "untracked:" in str(divergence)
    assert divergence.untracked_calls[0].instead in str(divergence)


async def asking_for_the_process(ctx):
    return [str(os.getpid() > 0)]


def test_untracked_calls_are_in_the_report(recorded):
    path = recorded(asking_for_the_process)
    report = replay(path, make_server(asking_for_the_process))
    assert {untracked_call.call for untracked_call in report.untracked_calls} == {"os.getpid"}


# Replay in outbound mode, which compares only what is sent.


@effect
async def fetch_outbound(key: str) -> str:
    await trio.sleep(0.001)
    return f"value of {key}"


@effect
async def weigh(key: str) -> int:
    await trio.sleep(0.002)
    return len(key)


@effect
def look_outbound(key: str) -> str:
    return f"seen {key}"


async def count(state, key="a"):
    """Read a shared total, wait for an effect, and write the total."""
    before = state["total"]
    value = await fetch_outbound(key)
    state["total"] = before + 1
    return value


async def finish(ctx):
    await ctx.list_roots()
    await ctx.info("done")


async def steps_outbound(ctx, state):
    first = await count(state)
    await ctx.info(state["total"])
    weight = await weigh("a")
    ctx.now()
    seen = look_outbound("a")
    second = await fetch_outbound("b")
    await finish(ctx)
    return [first, second, str(weight), seen, str(ctx.patched("x"))]


async def in_another_order(ctx, state):
    first = await count(state)
    await ctx.info(state["total"])
    second = await fetch_outbound("b")
    patched = ctx.patched("x")
    seen = look_outbound("a")
    weight = await weigh("a")
    await finish(ctx)
    return [first, second, str(weight), seen, str(patched)]


async def moved_before_a_frame(ctx, state):
    first = await count(state)
    weight, second = await weigh("a"), await fetch_outbound("b")
    await ctx.info(state["total"])
    seen = look_outbound("a")
    await finish(ctx)
    return [first, second, str(weight), seen, str(ctx.patched("x"))]


async def with_other_arguments_outbound(ctx, state):
    first = await count(state, "other")
    await ctx.info(state["total"])
    second = await fetch_outbound("arguments")
    await finish(ctx)
    return [first, second, "1", look_outbound("else"), str(ctx.patched("x"))]


async def sending_more(ctx, state):
    await ctx.info("more")
    return await steps_outbound(ctx, state)


async def sending_less(ctx, state):
    await fetch_outbound("a")
    await ctx.info(1)
    await fetch_outbound("b")
    await ctx.list_roots()
    return []


async def with_an_unknown_effect(ctx, state):
    await fetch_outbound("a")
    await ctx.effect(unknown)


async def fetching_once_too_often(ctx, state):
    for key in "abc":
        await fetch_outbound(key)


async def looking_once_too_often(ctx, state):
    look_outbound("a")
    look_outbound("a")


def unknown() -> int:
    return 1


def make_server_outbound(handler):
    server = Server("outbound")
    state = {"total": 0}

    @server.tool
    async def run(*, ctx: Context) -> list[str]:
        return await handler(ctx, state) or []

    return server


async def client(peer, _session, *, cancels=False):
    await peer.handshake(capabilities={"roots": {}})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_roots, peer)
        for number in range(3):
            params = {"name": "run", "arguments": {}}
            await peer.send_request("tools/call", params, id=number)
            await trio.sleep(0.0015)
        if cancels:
            await peer.cancel(2)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()


async def answer_roots(peer):
    while True:
        message = await peer.receive()
        if message.get("method") == "roots/list":
            await trio.sleep(0.003)
            await peer.send_result(message, {"roots": []})


@pytest.fixture
def path(world, tmp_path):
    return world.record(make_server_outbound(steps_outbound), tmp_path / "a.mcprec.jsonl", client)


@pytest.mark.parametrize(
    "handler", [steps_outbound, in_another_order, with_other_arguments_outbound]
)
@pytest.mark.parametrize("number", range(3))
def test_a_cancelled_lane_may_have_an_effect_that_is_not_recorded(world, tmp_path, handler, number):
    cancelling = functools.partial(client, cancels=True)
    path = world.record(
        make_server_outbound(steps_outbound), tmp_path / "a.mcprec.jsonl", cancelling
    )
    assert world.records(path)[world.place_of(path, lambda r: r["k"] == "cxl")]["l"] == "r19"
    replayed = world.replayed(path, make_server_outbound(handler), number=number, mode="outbound")
    assert replayed.sent_messages == world.sent_frames(path)


@pytest.mark.parametrize(
    "handler",
    [steps_outbound, in_another_order, moved_before_a_frame, with_other_arguments_outbound],
)
@pytest.mark.parametrize("number", range(3))
def test_effects_in_another_order_replay_if_the_messages_are_the_same(world, path, handler, number):
    replayed = world.replayed(path, make_server_outbound(handler), number=number, mode="outbound")
    assert replayed.sent_messages == world.sent_frames(path)


@pytest.mark.parametrize(
    "handler", [in_another_order, moved_before_a_frame, with_other_arguments_outbound]
)
def test_effects_in_another_order_diverge_in_strict_mode(path, handler):
    with pytest.raises(ReplayDivergence):
        replay(path, make_server_outbound(handler))


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (sending_more, "message"),
        (sending_less, "message"),
        (with_an_unknown_effect, "extra"),
        (fetching_once_too_often, "extra"),
        (looking_once_too_often, "extra"),
    ],
)
def test_another_message_or_an_unrecorded_effect_diverges(path, handler, kind):
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server_outbound(handler), mode="outbound")
    assert caught.value.kind == kind
    assert 'mode="outbound"' not in str(caught.value)


async def with_a_child_that_only_waits(ctx, state):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 0.001)
        await ctx.info("waits")


@pytest.mark.parametrize("mode", ["strict", "outbound"])
def test_a_task_without_operations_is_no_difference(world, tmp_path, mode):
    server = make_server_outbound(with_a_child_that_only_waits)
    path = world.record(server, tmp_path / "a.mcprec.jsonl", client)
    assert replay(path, make_server_outbound(with_a_child_that_only_waits), mode=mode).requests == 3


@pytest.mark.slow
def test_a_cut_recording_replays_up_to_the_cut(world, path, tmp_path):
    lines = path.read_bytes().splitlines(keepends=True)
    first = world.place_of(path, lambda r: r.get("l", "").startswith("r"))
    for count in range(first + 1, len(lines)):
        cut = world.rewrite(path, tmp_path / "cut.jsonl", lambda lines, n=count: lines[:n])
        report = replay(cut, make_server_outbound(in_another_order), mode="outbound")
        assert report.records == count - 1


def test_an_unknown_mode_is_rejected(path):
    with pytest.raises(ValueError, match="unknown mode 'lax': one of strict, outbound"):
        replay(path, make_server_outbound(steps_outbound), mode="lax")
