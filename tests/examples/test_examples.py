"""The transport of the example: its size, a session over it, recorded and replayed.

The checks of the contract are put to it in `tests/transports/test_channel_contract.py`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing
from click.testing import CliRunner
from memory_sessions import client_session

from mcp_trio import Client
from mcp_trio._cli.commands import commands
from mcp_trio.examples import named_pipes
from mcp_trio.examples.named_pipes import open_named_pipes
from mcp_trio.examples.ticket_desk import buy_two, make_desk
from mcp_trio.examples.weather import server
from mcp_trio.recording import open_recording, read_recording, replay, replay_async, sweep
from tests.processes import open_descriptors
from tests.transports.channel_pairs import named_pipes_in


@pytest.fixture
def folder(tmp_path):
    for name in ("to-server", "to-client"):
        os.mkfifo(tmp_path / name, 0o600)
    return tmp_path


def test_the_example_has_forty_lines():
    lines = Path(named_pipes.__file__).read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line]) <= 40


@pytest.mark.real_time
@pytest.mark.requirement("TRAN-06")
@pytest.mark.parametrize("protocol_version", ["2025-11-25", "2026-07-28"])
async def test_a_session_over_named_pipes_is_recorded_and_replayed(
    nursery, folder, protocol_version
):
    path = folder / "pipes.mcprec.jsonl"
    served = trio.Event()

    async def serve():
        await server.serve(await open_named_pipes(folder, is_server=True), record=path)
        served.set()

    nursery.start_soon(serve)
    channel = await open_named_pipes(folder, is_server=False)
    reports = []
    async with Client(channel, protocol_versions=[protocol_version]) as client:
        await client.call_tool("forecast", {"city": "Oslo"}, progress=reports.append)
        assert len(reports) == 3
    await served.wait()
    records = [*read_recording(open_recording(path))]
    assert b'"transport":"pipes"' in bytes(records[0].body)
    report = await replay_async(path, server)
    assert report.is_complete
    assert report.records == len(records) - 1  # without the first, which tells what it is


@pytest.mark.real_time
async def test_a_send_cancelled_within_a_line_closes_the_pipe(tmp_path):
    ours, theirs = await named_pipes_in(tmp_path)
    with trio.move_on_after(0.05):
        await ours.send([b"x" * 1_000_000])
    with pytest.raises(trio.ClosedResourceError):
        await ours.send([b"{}"])
    await ours.aclose()
    received = []
    while frames := await theirs.receive():
        received += frames
    await theirs.aclose()
    (piece,) = received
    assert set(piece) == {ord("x")}


@pytest.mark.parametrize("is_server", [True, False])
async def test_an_opening_that_fails_half_way_leaves_nothing_open(folder, is_server):
    (folder / "to-client").unlink()
    with (folder / "to-server").open("rb+", buffering=0):  # the other end
        before = open_descriptors()
        with pytest.raises(FileNotFoundError):
            await open_named_pipes(folder, is_server=is_server)
        assert open_descriptors() == before


# The ticket desk: its race is found by a sweep, and fixed by a lock.


SCHEDULES = 30
FORKS = 12
TARGET = "mcp_trio.examples.ticket_desk"


async def day(server, path):
    async with client_session(server, path) as client:
        return await buy_two(client)


@pytest.fixture(scope="module")
def lucky(tmp_path_factory):
    path = tmp_path_factory.mktemp("ticket_desk") / "lucky.mcprec.jsonl"
    clock = trio.testing.MockClock(autojump_threshold=0)
    assert trio.run(day, make_desk(), path, clock=clock) == 98
    return path


def make_locked_desk():
    return make_desk(is_locked=True)


def test_a_session_in_which_the_race_did_not_show_replays(lucky):
    assert replay(lucky, make_desk()).is_complete


def test_a_sweep_finds_the_race(lucky):
    report = sweep(lucky, make_desk, schedules=SCHEDULES)
    differences = {(each.call, each.recorded, each.swept) for each in report.differences}
    assert differences == {('tools/call "tickets_left"', '"98"', '"99"')}
    assert 0 < len(report.failing_schedules) < SCHEDULES


def test_the_seed_of_a_failing_schedule_repeats_it(lucky):
    first = sweep(lucky, make_desk, schedules=SCHEDULES).failing_schedules[0]
    for _ in range(5):
        assert sweep(lucky, make_desk, seed=first).failing_schedules == [first]


def test_the_locked_desk_has_no_differences_against_the_lucky_session(lucky):
    assert sweep(lucky, make_locked_desk, schedules=SCHEDULES).is_clean


@pytest.mark.slow
def test_a_recording_of_the_locked_desk_has_no_differences(tmp_path):
    path = tmp_path / "locked.mcprec.jsonl"
    clock = trio.testing.MockClock(autojump_threshold=0)
    assert trio.run(day, make_locked_desk(), path, clock=clock) == 98
    assert sweep(path, make_locked_desk, schedules=SCHEDULES).is_clean
    assert not sweep(path, make_desk, schedules=SCHEDULES).is_clean


def run_sweep(*args):
    return CliRunner().invoke(commands, ["sweep", *map(str, args)])


@pytest.mark.slow
def test_the_command_prints_the_race_and_how_to_repeat_it(lucky, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    racing = run_sweep(lucky, f"{TARGET}:desk", "--schedules", FORKS)
    assert racing.exit_code == 1
    assert 'tools/call "tickets_left" (lane r' in racing.output
    repeat = ["replay", str(lucky), f"{TARGET}:desk", "--schedule", "lucky.schedule.json"]
    assert f"to repeat it: mcp-trio {' '.join(repeat)}" in racing.output
    repeated = CliRunner().invoke(commands, repeat)
    assert repeated.exit_code == 1
    assert '"98" recorded, "99" now' in repeated.output
    fixed = [*repeat[:2], f"{TARGET}:locked_desk", *repeat[3:]]
    assert CliRunner().invoke(commands, fixed).exit_code == 0
    seed = sweep(lucky, make_desk, schedules=FORKS).failing_schedules[0]
    assert run_sweep(lucky, f"{TARGET}:desk", "--seed", seed).exit_code == 1


@pytest.mark.slow
def test_the_command_covers_all_schedules_of_the_locked_desk(lucky, tmp_path):
    output = tmp_path / "none.json"
    options = ["--strategy", "depth-first", "--output", output]
    locked = run_sweep(lucky, f"{TARGET}:locked_desk", *options)
    assert locked.exit_code == 0
    assert "every response is the recorded one\nthese are all schedules" in locked.output
    assert not output.exists()


@pytest.mark.slow
@pytest.mark.real_time
def test_the_example_records_a_lucky_session_that_a_sweep_in_a_process_can_read(tmp_path):
    path = tmp_path / "lucky.mcprec.jsonl"
    run = subprocess.run(
        [sys.executable, "-m", TARGET, path], capture_output=True, text=True, check=True
    )
    assert run.stdout == "tickets left: 98\n"
    for strategy in ("random", "pct", "depth-first"):
        there = sweep(path, f"{TARGET}:desk", schedules=FORKS, strategy=strategy)
        here = sweep(path, make_desk, schedules=FORKS, strategy=strategy)
        assert there.differences == here.differences != ()
        assert there.shortest == here.shortest
        repeated = sweep(path, f"{TARGET}:desk", schedule=there.shortest)
        assert [each.text for each in repeated.differences] == list(there.shortest.differences)


@pytest.mark.slow
@pytest.mark.real_time
def test_the_example_without_a_file_prints_its_usage():
    run = subprocess.run(
        [sys.executable, "-m", TARGET], capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert f"usage: python -m {TARGET} FILE\n" in run.stderr
