"""Any Trio code replays: handlers and lifespans of random blocks, under other schedules and clocks."""

import contextlib

import pytest

from mcp_trio._session.tasks import seeded_schedule
from mcp_trio.errors import NothingCompared
from mcp_trio.recording import replay
from tests.replay import generated_lifespans, generated_programs

# Programs drop async generators before their end, which is part of what they test.
pytestmark = pytest.mark.filterwarnings("ignore:the async generator:ResourceWarning")

REPLAYS = 3
QUICK = range(4)
SLOW = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 60)]


@pytest.mark.parametrize("seed", [*QUICK, *SLOW])
def test_a_generated_program_replays(seed, tmp_path):
    path = str(tmp_path / "a.mcprec.jsonl")
    recorded = generated_programs.record(seed, path)
    for number in range(REPLAYS):
        server, logs = generated_programs.make_server(seed)
        with seeded_schedule(number):
            assert replay(path, server).is_complete
        assert str(logs) == recorded


@pytest.mark.parametrize("seed", [*QUICK, *SLOW])
def test_a_generated_lifespan_replays_with_the_handlers_that_it_meets(seed, tmp_path):
    path = str(tmp_path / "a.mcprec.jsonl")
    recorded = generated_lifespans.record(seed, path)
    for number in range(REPLAYS):
        server, log = generated_lifespans.make_server(seed)
        # A server that was cancelled early has answered nothing.
        with seeded_schedule(number), contextlib.suppress(NothingCompared):
            report = replay(path, server)
            assert report.is_complete
            assert report.lifespan == "the lifespan ran again"
        assert str(log) == recorded


@pytest.mark.slow
@pytest.mark.parametrize("programs", [generated_programs, generated_lifespans])
def test_two_live_runs_of_a_program_differ(programs, tmp_path):
    """The other tests could not fail if programs did the same in each run."""
    runs = [
        [programs.record(seed, str(tmp_path / f"{seed}-{run}.mcprec.jsonl")) for run in range(2)]
        for seed in range(10)
    ]
    assert sum(first != second for first, second in runs) > 5
