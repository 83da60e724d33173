"""Replays that stop at a record: the position, and the reported state."""

import re
from functools import partial
from pathlib import Path

import pytest
import trio
from memory_sessions import scripted_session

from mcp_trio import Context, Server, ThreadContext, effect
from mcp_trio._replay.replay import run_replay
from mcp_trio._replay.replayer import Stop
from mcp_trio._session.lanes import LANE
from mcp_trio._session.tasks import seeded_schedule
from mcp_trio.errors import RecordingError, ReplayDivergence
from mcp_trio.recording import SharedRecording
from tests.replay.conversations import call

pytestmark = pytest.mark.usefixtures("measured_processes")


@effect
async def fetch(key: str) -> int:
    await trio.sleep(0.010)
    return len(key)


def make_server(*, is_changed=False):
    server, door = Server("stops"), trio.Event()

    @server.tool
    async def sell(key: str, *, ctx: Context) -> int:
        price = await fetch(key)
        await ctx.info("SOLD" if is_changed else "sold")
        return price

    @server.tool
    async def enter() -> str:
        await door.wait()
        return "inside"

    @server.tool
    async def unlock() -> None:
        await trio.sleep(0.020)
        if not is_changed:
            door.set()

    @server.tool
    def thread(key: str, *, ctx: ThreadContext) -> str:
        ctx.sleep(0.01)
        return key

    return server


CALLS = (("enter", {}), ("sell", {"key": "tea"}), ("thread", {"key": "rice"}), ("unlock", {}))


@pytest.fixture
def path(world, tmp_path):
    """A recording of four calls that begin together."""

    async def client(peer, _session):
        await peer.handshake()
        await peer.send(*(call(name, name, arguments=each) for name, each in CALLS))
        for _ in range(len(CALLS) + 1):
            await peer.receive()

    return world.record(make_server(), tmp_path / "a.mcprec.jsonl", client)


@pytest.fixture
def number(world, path):
    """Return the number of the first record of a kind in the lane of a tool."""

    def find(tool, kind, nth=0):
        records = world.records(path)
        (request,) = (r["n"] for r in records if r["k"] == "in" and r["f"].get("id") == tool)
        lanes = (f"r{request}", f"r{request}.0")

        def is_wanted(record):
            lane = record.get("l")
            in_steps = record["k"] == "step" and lanes[0] in record["f"]["lanes"]
            return record["k"] == kind and (lane in lanes or in_steps)

        return [record["n"] for record in records if is_wanted(record)][nth]

    return find


def stopped_at(path, number, *, server=None, ends=True, seed=0, **options):
    """Replay to a stop; return its reports, and the report of the replay."""
    stops = []

    def on_stop(stopped):
        lane = LANE.get()
        stops.append((str(stopped), stopped, None if lane is None else lane.name))
        if ends:
            stopped.end()

    with seeded_schedule(seed):
        report = run_replay(path, server or make_server(), stop=Stop(number, on_stop, **options))
    (one,) = stops
    return *one, report


def line_of(text):
    """Return the row `line` of a state."""
    return next(line for line in text.splitlines() if line.startswith("  line:"))


def test_a_replay_stops_at_the_call_that_makes_the_record(path, number, world):
    place = number("sell", "cmd")
    text, stopped, lane, report = stopped_at(path, place)
    total = len(world.records(path))
    assert re.match(
        rf'stopped at record {place} of {total} \(.* ms\), tools/call "sell", lane (r\d+), operation 1',
        text,
    )
    assert '  recorded:  cmd   {"name":"fetch","arguments":{"key":"tea"}}' in text.splitlines()
    assert "replay:" not in text  # it does what is recorded
    assert line_of(text).endswith(": price = await fetch(key)")
    frame, _ = stopped.frames[-1]
    assert (frame.f_code.co_name, lane is not None, report) == ("sell", True, None)


@pytest.mark.parametrize("seed", range(4))
def test_a_replay_stops_before_a_task_goes_on(path, number, seed):
    text, stopped, lane, _ = stopped_at(path, number("sell", "res"), seed=seed)
    assert line_of(text).endswith(" (for its turn): price = await fetch(key)")
    (frame, line) = stopped.frames[-1]
    assert (frame.f_code.co_name, "price" in frame.f_locals) == ("sell", False)
    assert line > frame.f_code.co_firstlineno
    assert f"lane {lane}," in text


def test_the_other_lanes_and_their_lines_are_listed(path, number):
    text, _, lane, _ = stopped_at(path, number("sell", "res"))
    waiting = [line for line in text.splitlines() if line.startswith("  waiting:")]
    assert any(line.endswith(": await door.wait()") for line in waiting)
    assert any(line.endswith(": await trio.sleep(0.020)") for line in waiting)
    assert not any(f" {lane} " in line for line in waiting)


def test_a_task_that_has_not_started_has_an_entry(path, number):
    text, stopped, _, _ = stopped_at(path, number("enter", "step"))
    assert line_of(text).endswith("(not started): async def enter() -> str:")
    assert stopped.frames == []
    file, line = stopped.entry
    assert (file, line) == (__file__, make_server_line("await door.wait()"))


def make_server_line(text):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip() == text)


def test_the_frames_of_a_def_handler_are_those_of_its_thread(path, number):
    text, stopped, _, _ = stopped_at(path, number("thread", "cmd"))
    assert line_of(text).endswith(": ctx.sleep(0.01)")
    frame, _ = stopped.frames[-1]
    assert (frame.f_code.co_name, frame.f_locals["key"]) == ("thread", "rice")


@pytest.mark.parametrize("kind", ["in", "shut", "end"])
def test_a_replay_stops_at_a_record_without_a_lane(path, world, kind):
    place = world.place_of(path, lambda record: record["k"] == kind)
    text, stopped, lane, report = stopped_at(path, place)
    assert text.startswith(f"stopped at record {place} of ")
    assert f"  recorded:  {kind}" in text
    assert (lane, len(stopped.frames), report) == (None, 0, None)


def test_a_replay_stops_at_what_the_session_sends(path, world):
    place = world.place_of(path, lambda record: record["k"] == "out" and "l" not in record)
    text, _, _, report = stopped_at(path, place)
    assert text.startswith(f"stopped at record {place} of ")
    assert report is None


@pytest.mark.parametrize("seed", range(3))
def test_a_replay_that_goes_on_after_any_record_is_the_same(path, world, seed):
    for record in world.records(path)[1:]:
        _, _, _, report = stopped_at(path, record["n"], ends=False, seed=seed)
        assert report.records == len(world.records(path)) - 1


def test_a_debugger_stops_before_the_last_step_of_an_answer(path, number):
    text, stopped, _, _ = stopped_at(path, number("enter", "out"), needs_task=True)
    assert line_of(text).endswith("(for its turn): await door.wait()")
    frame, _ = stopped.frames[-1]
    assert frame.f_code.co_name == "enter"


def test_a_stop_shows_what_the_replay_does_instead(path, number):
    text, _, _, _ = stopped_at(path, number("sell", "out"), server=make_server(is_changed=True))
    (recorded,) = (line for line in text.splitlines() if line.startswith("  recorded:"))
    (replayed,) = (line for line in text.splitlines() if line.startswith("  replay:"))
    assert ('"data":"sold"' in recorded, '"data":"SOLD"' in replayed) == (True, True)


def test_a_debugger_also_stops_where_no_task_makes_the_record(world, tmp_path):
    async def client(peer, _session):
        await peer.handshake()
        await peer.send(call(1, "enter", arguments={}), call(2, "unlock", arguments={}))
        await peer.receive()
        await peer.receive()

    path = world.record(make_server(), tmp_path / "b.mcprec.jsonl", client)

    place = world.place_of(path, lambda record: record["k"] == "out" and "inside" in str(record))
    stops = []
    stop = Stop(place, stops.append, needs_task=True)
    with pytest.raises(ReplayDivergence) as caught:
        run_replay(path, make_server(is_changed=True), stop=stop)
    assert caught.value.record == place
    (stopped,) = stops
    frame, _ = stopped.frames[-1]
    assert frame.f_code.co_name == "enter"


def test_a_divergence_before_the_record_is_reported(path, number):
    place = number("enter", "out")
    with pytest.raises(ReplayDivergence) as caught:
        run_replay(path, make_server(is_changed=True), stop=Stop(place, pytest.fail))
    assert caught.value.record < place


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (0, "record 0 takes no part in a replay: stop at record 1 instead"),
        (-1, "there is no record -1: the last one is record "),
        (9999, "there is no record 9999: the last one is record "),
    ],
)
def test_a_number_that_is_not_replayed_is_rejected(path, place, text):
    with pytest.raises(RecordingError, match=text):
        run_replay(path, make_server(), stop=Stop(place, pytest.fail))


async def test_the_mark_that_ends_a_session_and_a_cut_file_is_rejected(world, tmp_path):
    with SharedRecording(tmp_path / "shared.mcprec.jsonl") as shared:
        async with scripted_session(make_server(), shared) as (peer, _):
            await peer.handshake()
    path = world.rewrite(shared.options.path, tmp_path / "cut.mcprec.jsonl", lambda rows: rows[:-1])
    last = world.records(path)[-1]
    assert last["f"]["name"] == "ended"
    replay_to_stop = partial(run_replay, path, make_server(), stop=Stop(last["n"], pytest.fail))
    text = f"record {last['n']} takes no part in a replay, nor does a later one"
    with pytest.raises(RecordingError, match=text):
        await trio.to_thread.run_sync(replay_to_stop)


def reject_debugger(path, place):
    with pytest.raises(RecordingError) as caught:
        run_replay(path, make_server(), stop=Stop(place, pytest.fail, needs_task=True))
    return str(caught.value)


def test_a_debugger_at_a_record_of_no_handler_is_rejected(path, world):
    text = reject_debugger(path, 1)
    assert text.startswith("no handler makes record 1, so that a debugger has no task: the next ")
    last = len(world.records(path)) - 1
    assert reject_debugger(path, last).endswith(f"record {last}, so that a debugger has no task")


def test_a_debugger_at_the_response_of_a_handler_that_has_returned_is_rejected(path, number):
    place, step = number("sell", "out", 1), number("sell", "res")
    text = reject_debugger(path, place)
    assert text.startswith(f"record {place} is the response of a handler")
    assert text.endswith(f"its last step begins with record {step}")
