"""The ticket desk: a lucky day recorded, its race found, found again, and gone with a lock."""

import subprocess
import sys

import pytest
import trio
import trio.testing
from click.testing import CliRunner

from mcp_trio import Client
from mcp_trio._cli.commands import commands
from mcp_trio.examples.ticket_desk import buy_two, make_desk
from mcp_trio.recording import replay, sweep
from mcp_trio.transports import memory_pair

SCHEDULES = 30
FORKS = 12
TARGET = "mcp_trio.examples.ticket_desk"


async def day(server, path):
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: server.serve(ours, record=path))
        async with Client(theirs) as client:
            return await buy_two(client)


@pytest.fixture(scope="module")
def lucky(tmp_path_factory):
    path = tmp_path_factory.mktemp("ticket_desk") / "lucky.mcprec.jsonl"
    clock = trio.testing.MockClock(autojump_threshold=0)
    assert trio.run(day, make_desk(), path, clock=clock) == 98
    return path


def make_locked_desk():
    return make_desk(is_locked=True)


def test_a_lucky_session_replays(lucky):
    assert replay(lucky, make_desk()).is_complete


def test_a_sweep_finds_the_race(lucky):
    report = sweep(lucky, make_desk, schedules=SCHEDULES)
    told = {(each.call, each.recorded, each.swept) for each in report.differences}
    assert told == {('tools/call "tickets_left"', '"98"', '"99"')}
    assert 0 < len(report.failing_seeds) < SCHEDULES


def test_the_seed_of_a_failing_schedule_repeats_it(lucky):
    first = sweep(lucky, make_desk, schedules=SCHEDULES).failing_seeds[0]
    for _ in range(5):
        assert sweep(lucky, make_desk, seed=first).failing_seeds == [first]


def test_the_locked_desk_has_no_differences_against_the_lucky_session(lucky):
    assert sweep(lucky, make_locked_desk, schedules=SCHEDULES).is_clean


def test_a_recording_of_the_locked_desk_has_no_differences(tmp_path):
    path = tmp_path / "locked.mcprec.jsonl"
    clock = trio.testing.MockClock(autojump_threshold=0)
    assert trio.run(day, make_locked_desk(), path, clock=clock) == 98
    assert sweep(path, make_locked_desk, schedules=SCHEDULES).is_clean
    assert not sweep(path, make_desk, schedules=SCHEDULES).is_clean


def told(*args):
    return CliRunner().invoke(commands, ["sweep", *map(str, args)])


def test_the_command_prints_the_race_and_its_seed(lucky):
    racing = told(lucky, f"{TARGET}:desk", "--schedules", FORKS)
    assert racing.exit_code == 1
    assert 'tools/call "tickets_left" (lane r' in racing.output
    seed = sweep(lucky, make_desk, schedules=FORKS).failing_seeds[0]
    assert (
        f"to repeat the first: mcp-trio sweep {lucky} {TARGET}:desk --seed {seed}" in racing.output
    )
    assert told(lucky, f"{TARGET}:desk", "--seed", seed).exit_code == 1
    locked = told(lucky, f"{TARGET}:locked_desk", "--schedules", FORKS)
    assert locked.exit_code == 0
    assert "every response is the recorded one" in locked.output


@pytest.mark.real_time
def test_the_example_records_a_lucky_session_that_a_sweep_in_a_process_can_read(tmp_path):
    path = tmp_path / "lucky.mcprec.jsonl"
    run = subprocess.run(
        [sys.executable, "-m", TARGET, path], capture_output=True, text=True, check=True
    )
    assert run.stdout == "tickets left: 98\n"
    report = sweep(path, f"{TARGET}:desk", schedules=FORKS)
    assert report.differences == sweep(path, make_desk, schedules=FORKS).differences


@pytest.mark.real_time
def test_the_example_without_a_file_prints_its_usage():
    run = subprocess.run(
        [sys.executable, "-m", TARGET], capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert f"usage: python -m {TARGET} FILE\n" in run.stderr
