"""Requests that a handler makes together are one operation of its lane."""

import json
from contextlib import suppress

import pytest
import trio
import trio.testing
from memory_sessions import scripted_session

from mcp_trio import (
    Context,
    Limits,
    MCPError,
    RequestError,
    Roots,
    Sampling,
    Server,
    ThreadContext,
    effect,
)
from mcp_trio._cli.timeline import read_rows
from mcp_trio.errors import ReplayDivergence, RequestAbandoned
from mcp_trio.limits import ShutdownLimits
from mcp_trio.recording import (
    SharedRecording,
    TickClock,
    diff,
    open_recording,
    read_recording,
    replay,
    replay_live,
    sweep,
)

QUESTIONS = (Roots(), Sampling("Why?"))
ANSWERS = {
    "roots/list": {"roots": []},
    "sampling/createMessage": {
        "role": "assistant",
        "model": "m",
        "content": {"type": "text", "text": "So."},
    },
}


@effect
def weigh(thing: str) -> int:
    return len(thing)


def make_server():
    server = Server("together")

    @server.tool
    async def ask(*, ctx: Context) -> list[str]:
        roots, sampled = await ctx.ask_all(*QUESTIONS)
        await ctx.info("answered")
        return [sampled.model, *(root.uri for root in roots)]

    @server.tool
    async def ask_in_time(milliseconds: float, *, ctx: Context) -> bool:
        with trio.move_on_after(milliseconds / 1000) as scope:
            await ctx.ask_all(*QUESTIONS)
        return scope.cancelled_caught

    @server.tool
    async def ask_nothing(*, ctx: Context) -> list[str]:
        return list(await ctx.ask_all())

    @server.tool
    async def ask_in_vain(*, ctx: Context) -> str:
        with suppress(MCPError):
            await ctx.ask_all(*QUESTIONS, Sampling("How?"))
        return "asked"

    @server.tool
    def ask_from_thread(*, ctx: ThreadContext) -> str:
        weight = weigh("anchor")
        with suppress(RequestAbandoned):
            return f"{weigh('hawser')} {ctx.ask_all(*QUESTIONS)[1].model} {weight}"
        return "never said"

    return server


def calling(tool, *, rejected="", cancels_after=None, **arguments):
    """A client that answers the first question at once, and the second after 10 ms."""

    async def client(peer, _session):
        await peer.handshake(capabilities={"roots": {}, "sampling": {}})
        await peer.send_request("tools/call", {"name": tool, "arguments": arguments}, id=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, peer, nursery.cancel_scope)
            if cancels_after is not None:
                await trio.sleep(cancels_after)
                await peer.cancel(1)
                await trio.sleep(0.02)
                nursery.cancel_scope.cancel()

    async def answer(peer, scope):
        while True:
            message = await peer.receive()
            if message.get("method") == rejected:
                error = {"code": -1, "message": "no"}
                await peer.send({"id": message["id"], "error": error})
            elif "method" in message and "id" in message:
                await trio.sleep(0.005)
                await peer.send_result(message, ANSWERS[message["method"]])
            elif message.get("id") == 1:
                scope.cancel()

    return client


def effect_records(world, path):
    """The effects of the recording, and how they ended, by the lane."""
    kinds = {"cmd", "res", "err", "cxl"}
    return [(it["k"], it["l"].count(".")) for it in world.records(path) if it["k"] in kinds]


@pytest.mark.parametrize(
    ("tool", "options"),
    [
        ("ask", {}),
        ("ask", {"cancels_after": 0.007}),
        ("ask_in_time", {"milliseconds": 3}),
        ("ask_in_time", {"milliseconds": 7}),
        ("ask_in_time", {"milliseconds": 10.5}),
        ("ask_in_time", {"milliseconds": 30}),
        ("ask_nothing", {}),
        ("ask_in_vain", {"rejected": "sampling/createMessage"}),
        ("ask_from_thread", {}),
        ("ask_from_thread", {"cancels_after": 0.002}),
        ("ask_from_thread", {"cancels_after": 0.007}),
    ],
)
def test_requests_made_together_replay(world, tmp_path, tool, options):
    path = world.record(make_server(), tmp_path / "a.mcprec.jsonl", calling(tool, **options))
    for number in range(5):
        assert world.replayed(
            path, make_server(), number=number
        ).sent_messages == world.sent_frames(path)


def test_the_wait_for_all_answers_has_an_end_of_its_own(world, tmp_path):
    path = world.record(make_server(), tmp_path / "a.mcprec.jsonl", calling("ask"))
    assert effect_records(world, path) == [("cmd", 0), ("res", 1), ("res", 1), ("res", 0)]
    path = world.record(
        make_server(),
        tmp_path / "b.mcprec.jsonl",
        calling("ask_in_vain", rejected="sampling/createMessage"),
    )
    assert effect_records(world, path)[-1] == ("err", 0)


def test_an_error_before_a_cancellation_is_raised_again(world, tmp_path):
    async def client(peer, _session):
        await peer.handshake(capabilities={"roots": {}, "sampling": {}})
        await peer.send_request("tools/call", {"name": "ask"}, id=1)
        first, _ = await peer.receive_many(2)
        error = {"id": first["id"], "error": {"code": -1, "message": "no"}}
        cancel = {"method": "notifications/cancelled", "params": {"requestId": 1}}
        await peer.send(error, cancel)
        await peer.receive()

    path = world.record(make_server(), tmp_path / "a.mcprec.jsonl", client)
    assert effect_records(world, path)[-2:] == [("err", 0), ("cxl", 0)]
    for number in range(5):
        replayed = world.replayed(path, make_server(), number=number)
        assert replayed.ordered == world.played(path)


def test_the_first_of_two_rejections_is_raised(world, tmp_path):
    caught = []

    def make():
        server = Server("together")

        @server.tool
        async def ask(*, ctx: Context) -> str:
            try:
                await ctx.ask_all(*QUESTIONS)
            except RequestError as error:
                caught.append(error)
            return "asked"

        return server

    async def client(peer, _session):
        await peer.handshake(capabilities={"roots": {}, "sampling": {}})
        await peer.send_request("tools/call", {"name": "ask"}, id=1)
        asked = await peer.receive_many(2)
        rejections = [
            {"id": it["id"], "error": {"code": -1, "message": it["method"]}} for it in asked
        ]
        await peer.send(*rejections)
        await peer.receive()

    for turn in range(5):
        path = world.record(make(), tmp_path / f"{turn}.mcprec.jsonl", client)
        assert effect_records(world, path) == [("cmd", 0), ("err", 1), ("err", 1), ("err", 0)]
        assert world.replayed(path, make()).sent_messages == world.sent_frames(path)
    assert {error.message for error in caught} == {"roots/list"}


def test_an_effect_in_a_thread_is_no_task_of_the_handlers(world, tmp_path):
    path = world.record(make_server(), tmp_path / "a.mcprec.jsonl", calling("ask_from_thread"))
    lanes = {it["l"] for it in world.records(path) if "l" in it}
    # The thread has a lane, and each task that asks for it a child of that lane.
    assert {lane.partition(".")[2] for lane in lanes if "." in lane} == {"0", "0.0", "0.1"}


# Sessions with JSON-RPC batches are recorded as one record per batch and replay byte for byte.


BATCHED = "2025-03-26"


def make_server_batched_sessions(*, greeting="hello"):
    server = Server("post")

    @server.tool
    async def greet(name: str, *, ctx: Context) -> str:
        await ctx.list_roots()
        await ctx.sleep(0.01)
        return f"{greeting} {name} {ctx.random.random()}"

    @server.tool
    async def hang() -> str:
        await trio.sleep_forever()
        return ""

    @server.method("notifications/letter")
    async def letter(params: dict[str, str]) -> None:
        pass

    return server


def call(number, tool, **arguments):
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def note(method, **params):
    return {"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params}


def batch(*messages):
    return json.dumps(messages, separators=(",", ":")).encode()


async def talk(peer, _session):
    await peer.handshake(protocol_version=BATCHED, capabilities={"roots": {}})
    await peer.send(
        batch(
            note("letter", text="a"),
            call(1, "greet", name="Ada"),
            {"jsonrpc": "2.0", "id": 7, "method": 9},
            call(2, "hang"),
            call(3, "greet", name="Bob"),
            note("letter", text="b"),
            {"jsonrpc": "2.0", "id": 4, "method": "ping"},
        )
    )
    messages = await peer.receive_many(4)
    asked = [each["id"] for each in messages if each.get("method") == "roots/list"]
    assert len(asked) == 2
    await peer.send(batch(call(5, "greet", name="Eve")))
    asked.append((await peer.receive())["id"])
    await peer.send(
        batch(*({"jsonrpc": "2.0", "id": id_, "result": {"roots": []}} for id_ in asked))
    )
    assert {each["id"] for each in await peer.receive_many(3)} == {1, 3, 5}
    await peer.send(batch(note("cancelled", requestId=2)))
    await peer.receive_available()


@pytest.fixture
def path_batched_sessions(world, tmp_path):
    return world.record(make_server_batched_sessions(), tmp_path / "post.mcprec.jsonl", talk)


@pytest.mark.requirement("BASE-24", "BASE-27")
def test_a_batch_is_one_record_and_each_of_its_messages_has_a_lane(world, path_batched_sessions):
    records = world.records(path_batched_sessions)
    batches = [r for r in records if r["k"] == "in" and isinstance(r["f"], list)]
    assert len(batches) == 4
    number = batches[0]["n"]
    lanes = {record["l"] for record in records if record.get("l", "").endswith(tuple("0123456789"))}
    assert lanes == {
        *(f"n{number}", f"n{number}-5"),
        *(f"r{number}-1", f"r{number}-3", f"r{number}-4"),
        f"r{batches[1]['n']}",
    }
    answers = [r["f"]["id"] for r in records if r["k"] == "out" and "method" not in r["f"]]
    assert sorted(map(str, answers)) == ["1", "3", "4", "5", "7", "handshake"]


def test_batches_replay_byte_for_byte(world, path_batched_sessions):
    for number in range(5):
        actions = world.replayed(
            path_batched_sessions, make_server_batched_sessions(), number=number
        )
        assert actions.ordered == world.played(path_batched_sessions)
        assert actions.sent_messages == world.sent_frames(path_batched_sessions)


@pytest.mark.slow
@pytest.mark.parametrize("lane", range(3))
def test_a_recording_of_batches_cut_anywhere_replays_up_to_the_cut(
    world, path_batched_sessions, tmp_path, lane
):
    first = world.place_of(path_batched_sessions, lambda r: r.get("l", "").startswith("r"))
    for cut in range(first + 1 + lane, len(world.records(path_batched_sessions)), 3):
        part = world.rewrite(
            path_batched_sessions, tmp_path / "cut.mcprec.jsonl", lambda lines, c=cut: lines[:c]
        )
        replay(part, make_server_batched_sessions())


def test_a_divergence_names_the_call_within_the_batch(path_batched_sessions):
    with pytest.raises(ReplayDivergence) as caught:
        replay(path_batched_sessions, make_server_batched_sessions(greeting="bye"))
    assert 'tools/call "greet"' in str(caught.value)


def test_a_live_replay_sends_the_messages_of_a_batch_one_by_one(path_batched_sessions):
    report = replay_live(path_batched_sessions, make_server_batched_sessions())
    assert (report.requests, report.answered) == (6, 5)
    assert {each.path for each in report.differences} <= {"$.result.content[0].text"}


def test_two_recordings_of_the_same_batches_are_equal(world, path_batched_sessions, tmp_path):
    again = world.record(make_server_batched_sessions(), tmp_path / "again.mcprec.jsonl", talk)
    both = [list(read_recording(open_recording(each))) for each in (path_batched_sessions, again)]
    different = [each for each in diff(*both) if not each.path.endswith("text")]
    assert different == []


def test_a_sweep_reads_requests_and_responses_in_batches(path_batched_sessions):
    report = sweep(path_batched_sessions, make_server_batched_sessions, schedules=3)
    assert {difference.path for difference in report.differences} <= {
        "answer $.result.content[0].text"
    }


def test_a_timeline_tells_the_batch_and_each_of_its_messages(path_batched_sessions):
    rows, counts, _ = read_rows(path_batched_sessions)
    head = next(row for row in rows if row.what == "a batch of 7 messages")
    batch_rows = [row for row in rows if row.record == head.record]
    assert [row.what for row in batch_rows[1:]] == [
        "notifications/letter",
        "tools/call greet",
        "malformed message",
        "tools/call hang",
        "tools/call greet",
        "notifications/letter",
        "ping",
    ]
    assert [row.size_bytes is None for row in batch_rows] == [False, *[True] * 7]
    answers = [row.what for row in rows if row.kind == "out" and row.id in {1, 3}]
    assert (
        answers == ["roots/list", "roots/list", *["answer tools/call greet"] * 2][-len(answers) :]
    )
    assert counts.records == len({row.record for row in rows})


# Sleeps that end in a replay although they were cancelled just before their end.


# A little longer than the 10 ms after which the sleep is cancelled.
JUST_LONGER = 0.0100005


async def sleeping(ctx):
    await trio.sleep(JUST_LONGER)
    await ctx.info("never said")


async def sleeping_child(ctx):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeping, ctx)


async def sleeping_child_in_time(ctx):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeping, ctx)
        await trio.sleep(0.010)
        await ctx.info("enough")
        nursery.cancel_scope.cancel()


async def woken_and_cancelled(ctx):
    """Wake a child before its cancellation, so that it makes its call, which is cancelled."""
    wakeup = trio.Event()

    async def listen():
        await wakeup.wait()
        await ctx.info("never said")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        await trio.sleep(0.005)
        await ctx.info("ring")
        wakeup.set()
        nursery.cancel_scope.cancel()


def make_run_server(handler):
    server = Server("run")

    @server.tool
    async def run(*, ctx: Context) -> str:
        await handler(ctx)
        return "done"

    return server


async def cut_short(peer, _session):
    await peer.handshake()
    params = {"name": "run", "arguments": {}}
    await peer.send_request("tools/call", params, id=1)
    await peer.send_request("tools/call", params, id=2)
    await trio.sleep(0.010)
    await peer.cancel(1)
    await peer.cancel(2)
    await trio.sleep(0.1)


@pytest.fixture(params=[sleeping, sleeping_child, sleeping_child_in_time, woken_and_cancelled])
def handler_early_wakeups(request):
    return request.param


@pytest.fixture
def recorded(world, tmp_path, handler_early_wakeups):
    return world.record(
        make_run_server(handler_early_wakeups), tmp_path / "early.mcprec.jsonl", cut_short
    )


def test_a_call_cancelled_just_before_it_is_no_divergence(world, recorded, handler_early_wakeups):
    replayed = world.replayed(recorded, make_run_server(handler_early_wakeups))
    assert replayed.sent_messages == world.sent_frames(recorded)
    assert replayed.ordered == world.played(recorded)


def test_each_removed_cxl_diverges(desk, world, recorded, handler_early_wakeups):
    numbers = [r["n"] for r in world.records(recorded) if r["k"] == "cxl"]
    for number in numbers:
        without = world.rewrite(
            recorded,
            recorded.with_name("without.jsonl"),
            lambda lines, n=number: lines[:n] + lines[n + 1 :],
        )
        divergence = desk.assert_diverges(without, make_run_server(handler_early_wakeups))
        assert divergence.record == number


def test_a_removed_shut_diverges_at_its_index(desk, world, recorded, handler_early_wakeups):
    number = world.place_of(recorded, lambda r: r["k"] == "shut")
    without = world.rewrite(
        recorded,
        recorded.with_name("without.jsonl"),
        lambda lines: lines[:number] + lines[number + 1 :],
    )
    assert desk.assert_diverges(without, make_run_server(handler_early_wakeups)).record == number


def test_two_sleeps_in_a_row_both_end_in_time(world, tmp_path):
    async def sleep_twice(ctx):
        await trio.sleep(0.003)
        await trio.sleep(0.004)
        await ctx.info("awake")

    path = world.record(make_run_server(sleep_twice), tmp_path / "a.mcprec.jsonl", cut_short)
    assert replay(path, make_run_server(sleep_twice)).is_complete


@pytest.mark.parametrize("number", range(6))
def test_a_late_call_does_not_delay_an_earlier_sleep(world, tmp_path, number):
    """The recording machine paused between two tasks: one slept already, one was notified."""

    async def sleep_and_notify(ctx):
        await trio.sleep(0.009)
        await ctx.info("awake")

    async def in_a_nursery(ctx):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ctx.info, "late")
            nursery.start_soon(sleep_and_notify, ctx)

    async def once(peer, _session):
        await peer.handshake()
        await peer.send_request("tools/call", {"name": "run", "arguments": {}}, id=1)
        await trio.sleep(0.1)

    def pause(lines):
        lines[0] = lines[0].replace(b'"clock":"virtual"', b'"clock":"foreign"')
        place = world.place_of(path, lambda r: r["k"] == "out" and r["f"].get("params"))
        record = json.loads(lines[place])
        record["t"] += 5_000_000
        lines[place] = json.dumps(record, separators=(",", ":")).encode() + b"\n"

    path = world.record(make_run_server(in_a_nursery), tmp_path / "a.mcprec.jsonl", once)
    late = world.rewrite(path, tmp_path / "late.jsonl", pause)
    replayed = world.replayed(late, make_run_server(in_a_nursery), number=number)
    assert replayed.ordered == world.played(late)


# A call without a record is accepted only if its lane reaches the call a little too early.


async def forever(ctx):
    await trio.sleep_forever()


async def notifying_first(ctx):
    await ctx.info("new")
    await trio.sleep_forever()


async def notifying_late(ctx):
    await trio.sleep(0.5)
    await ctx.info("new")
    await trio.sleep_forever()


async def notifying_under_shield(ctx):
    with trio.CancelScope(shield=True):
        await ctx.info("new")
    await trio.sleep_forever()


async def notifying_in_the_end(ctx):
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await ctx.info("new")


async def notifying_unshielded_in_the_end(ctx):
    try:
        await trio.sleep_forever()
    finally:
        await ctx.info("new")


async def reading_first(ctx):
    ctx.monotonic()
    await trio.sleep_forever()


async def reading_in_the_end(ctx):
    try:
        await trio.sleep_forever()
    finally:
        ctx.monotonic()


async def reading_in_a_child(ctx):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reading_first, ctx)


async def choosing_first(ctx):
    ctx.patched("new")
    await ctx.info("new")


async def sleeping_as_an_effect(ctx):
    await ctx.sleep(1000)


async def answering_at_once(ctx):
    pass


async def answering_soon(ctx):
    await trio.sleep(0.5)


async def notifying_in_a_child(ctx):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notifying_late, ctx)


async def cancelled(peer, _session):
    await peer.handshake()
    await peer.send_request("tools/call", {"name": "run", "arguments": {}}, id=1)
    await trio.sleep(5)
    await peer.cancel(1)
    await trio.sleep(1)


async def left(peer, _session):
    await peer.handshake()
    await peer.send_request("tools/call", {"name": "run", "arguments": {}}, id=1)
    await trio.sleep(5)


@pytest.mark.parametrize("client", [cancelled, left])
@pytest.mark.parametrize(
    "handler",
    [
        notifying_first,
        notifying_late,
        notifying_under_shield,
        notifying_in_the_end,
        notifying_unshielded_in_the_end,
        reading_first,
        reading_in_the_end,
        reading_in_a_child,
        choosing_first,
        sleeping_as_an_effect,
        answering_at_once,
        answering_soon,
        notifying_in_a_child,
    ],
)
def test_new_operations_long_before_a_cancellation_diverge(world, tmp_path, client, handler):
    path = world.record(make_run_server(forever), tmp_path / "a.mcprec.jsonl", client)
    assert replay(path, make_run_server(forever)).is_complete
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_run_server(handler))
    assert caught.value.lane.startswith("r")


# Deadlines at the very time of a cancellation replay as recorded.


AFTER_SECONDS = 0.010

# The rounding error of a sum of times in floating point, which nanoseconds do not show.
A_BIT_SECONDS = 1e-12


async def notify_under_shield(ctx):
    try:
        await trio.sleep(1)
    finally:
        with trio.CancelScope(shield=True):
            await ctx.info("cleaned up")


async def last_under_shield(_ctx):
    with trio.CancelScope(shield=True):
        await trio.sleep(1)


async def at_once(_ctx):
    pass


async def of_a_child(ctx):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notify_under_shield, ctx)


async def announce(ctx):
    ctx.server.list_changed("tools")
    await trio.sleep(1)


def make_server_simultaneous_deadlines(seconds, then):
    server = Server(
        "ties",
        limits=Limits(shutdown=ShutdownLimits(drain_seconds=AFTER_SECONDS)),
        offers=["tools"],
    )

    @server.tool
    async def run(*, ctx: Context) -> str:
        await trio.sleep(seconds)
        await then(ctx)
        return "done"

    return server


async def call_simultaneous_deadlines(peer):
    await peer.handshake()
    await peer.send_request("tools/call", {"name": "run", "arguments": {}}, id=1)


async def cancelled_simultaneous_deadlines(peer, _session):
    await call_simultaneous_deadlines(peer)
    await trio.sleep(AFTER_SECONDS)
    await peer.cancel(1)
    await trio.sleep(2)


async def left_simultaneous_deadlines(peer, _session):
    """Disconnect at once, so that the session's drain ends when the sleep does."""
    await call_simultaneous_deadlines(peer)


def assert_replays(world, tmp_path, client, seconds, then):
    path = world.record(
        make_server_simultaneous_deadlines(seconds, then), tmp_path / "a.mcprec.jsonl", client
    )
    replayed = world.replayed(path, make_server_simultaneous_deadlines(seconds, then))
    assert replayed.sent_messages == world.sent_frames(path)
    assert replayed.ordered == world.played(path)
    return [record["k"] for record in world.records(path) if record.get("l", "").startswith("r")]


@pytest.mark.parametrize("client", [cancelled_simultaneous_deadlines, left_simultaneous_deadlines])
@pytest.mark.parametrize("then", [notify_under_shield, last_under_shield, at_once, of_a_child])
def test_a_sleep_cancelled_just_before_its_end_is_cancelled_again(world, tmp_path, client, then):
    seconds = AFTER_SECONDS + A_BIT_SECONDS
    kinds = assert_replays(world, tmp_path, client, seconds, then)
    assert kinds[-1] == "cxl"


@pytest.mark.parametrize("client", [cancelled_simultaneous_deadlines, left_simultaneous_deadlines])
@pytest.mark.parametrize("then", [notify_under_shield, last_under_shield, at_once, announce])
def test_a_sleep_that_ended_just_before_a_cancellation_ends_again(world, tmp_path, client, then):
    assert_replays(world, tmp_path, client, AFTER_SECONDS - A_BIT_SECONDS, then)


# A deadline at the time at which an error cancels the tasks around it.


def make_racer():
    server = Server("races")

    async def hurry(ctx):
        try:
            with ctx.timeout(1):
                await ctx.sleep(5)
        except trio.TooSlowError:
            await ctx.info("too slow")

    async def break_down(ctx):
        await ctx.sleep(1)
        raise ValueError("the end of all")

    @server.tool
    async def race(*, ctx: Context) -> str:
        async with trio.open_nursery() as outer:
            outer.start_soon(hurry, ctx)
            async with trio.open_nursery() as inner:
                inner.start_soon(break_down, ctx)
        return "never"

    return server


async def call_racer(peer, _session):
    await peer.handshake()
    await peer.send_request("tools/call", {"name": "race", "arguments": {}}, id=1)
    await trio.sleep(2)


def recorded_races(world, tmp_path):
    """Return recordings under several schedules, by the order of their records."""
    found = {}
    for number in range(20):
        path = tmp_path / f"{number}.mcprec.jsonl"
        world.record(make_racer(), path, call_racer, number=number)
        found[tuple(world.played(path))] = path
    return found


def test_a_deadline_at_the_time_of_the_session_end_expires_again(world, tmp_path):
    races = recorded_races(world, tmp_path)
    assert len(races) > 1
    for path in races.values():
        for number in range(8):
            replayed = world.replayed(path, make_racer(), number=number)
            assert replayed.sent_messages == world.sent_frames(path)
            assert replayed.ordered == world.played(path)


# Replay of several sessions in one recording.


COUNT = 4


async def add(total, ctx):
    before = total[0]
    await ctx.info(before)
    await trio.sleep(0.001)
    total[0] = before + 1
    ctx.server.list_changed("tools")
    await ctx.sleep(0.002)


def make_server_shared_recordings(handler=add):
    server = Server("shared", offers=["tools"])
    total = [0]

    @server.tool
    async def run(*, ctx: Context) -> int:
        await handler(total, ctx)
        return total[0]

    return server


async def talk_shared_recordings(server, shared, number):
    await trio.sleep(number / 2000)
    async with scripted_session(server, shared) as (peer, _):
        await peer.handshake()
        for call in range(3):
            await peer.send_request("tools/call", {"name": "run", "arguments": {}}, id=call)
            await trio.sleep(0.0012)
        await trio.sleep(0.01)


@pytest.fixture
def path_shared_recordings(tmp_path):
    async def main():
        with SharedRecording(tmp_path / "shared.mcprec.jsonl") as shared:
            async with trio.open_nursery() as nursery:
                for number in range(COUNT):
                    nursery.start_soon(talk_shared_recordings, server, shared, number)

    server = make_server_shared_recordings()
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return tmp_path / "shared.mcprec.jsonl"


@pytest.mark.parametrize("number", range(4))
def test_all_sessions_send_the_same_bytes_in_the_same_order(world, path_shared_recordings, number):
    assert {r.get("c", 0) for r in world.records(path_shared_recordings)} == set(range(COUNT + 1))
    assert world.replayed(
        path_shared_recordings, make_server_shared_recordings(), number=number
    ).sent_messages == world.sent_frames(path_shared_recordings)


@pytest.mark.slow
def test_a_cut_replays_up_to_the_cut(world, path_shared_recordings, tmp_path):
    lines = path_shared_recordings.read_bytes().splitlines(keepends=True)
    first = world.place_of(path_shared_recordings, lambda r: r.get("l", "").startswith("r"))
    for count in range(first + 1, len(lines), 3):
        cut = world.rewrite(
            path_shared_recordings, tmp_path / "cut.jsonl", lambda lines, n=count: lines[:n]
        )
        assert replay(cut, make_server_shared_recordings()).records == count - 1


def test_a_divergence_names_its_session(path_shared_recordings):
    async def once_more(total, ctx):
        await add(total, ctx)
        await ctx.info("more")

    with pytest.raises(ReplayDivergence, match=r"lane r[0-9]+ of session [1-4]"):
        replay(path_shared_recordings, make_server_shared_recordings(once_more))


def test_a_session_that_never_ends_diverges(world, path_shared_recordings, tmp_path):
    async def shielded(total, ctx):
        await add(total, ctx)
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()

    with pytest.raises(ReplayDivergence):
        replay(path_shared_recordings, make_server_shared_recordings(shielded))


# Sessions that are in no file, or in another one.


async def talk_apart(server, paths):
    async with trio.open_nursery() as nursery:
        for number, path in enumerate(paths):
            nursery.start_soon(talk_shared_recordings, server, path, number)


@pytest.mark.parametrize(
    ("others", "text"),
    [
        (0, ""),
        (
            1,
            "1 other session was open at the same time: memory that sessions share is not in",
        ),
        (
            2,
            "2 other sessions were open at the same time: memory that sessions share is not in",
        ),
    ],
)
def test_a_divergence_counts_the_concurrent_sessions_of_other_files(tmp_path, others, text):
    path = tmp_path / "apart.mcprec.jsonl"
    trio.run(talk_apart, make_server_shared_recordings(), [path, *[None] * others])
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server_shared_recordings(louder))
    assert text in caught.value.hint
    assert ("SharedRecording" in caught.value.hint) == bool(others)


async def louder(total, ctx):
    await ctx.info("louder")


@pytest.mark.parametrize("number", range(10))
def test_a_notification_that_the_end_of_its_session_cancels_is_cancelled_in_a_replay(
    world, tmp_path, number
):
    def make_server():
        server = Server("closing")

        @server.tool
        async def wait() -> None:
            try:
                await trio.sleep_forever()
            finally:
                server.list_changed("tools")

        return server

    async def client(peer, session):
        await peer.handshake()
        await peer.send_request("tools/call", {"name": "wait", "arguments": {}}, id=1)
        await trio.testing.wait_all_tasks_blocked(0.01)
        session.shut("closed")

    path = tmp_path / "a.mcprec.jsonl"
    world.record(make_server(), path, client, number=number, clock=TickClock())
    for replay_number in range(10):
        replayed = world.replayed(path, make_server(), number=replay_number)
        assert replayed.ordered == world.played(path)
