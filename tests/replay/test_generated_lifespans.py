"""A lifespan with workers replays with the handlers that it meets: programs of random blocks."""

import contextlib

import pytest

from mcp_trio._session.tasks import seeded_schedule
from mcp_trio.errors import NothingCompared
from mcp_trio.recording import replay
from tests.replay import generated_lifespans as programs

# Some programs drop async generators, which is part of what they test.
pytestmark = pytest.mark.filterwarnings("ignore:the async generator:ResourceWarning")

# The number of programs, and how often each is replayed.
QUICK = range(4)
SLOW = range(4, 60)
REPLAYS = 3


def assert_replays(seed: int, path: str) -> None:
    recorded = programs.record(seed, path)
    for number in range(REPLAYS):
        server, log = programs.make_server(seed)
        # A server that was cancelled early has answered nothing.
        with seeded_schedule(number), contextlib.suppress(NothingCompared):
            report = replay(path, server)
            assert report.is_complete
            assert report.lifespan == "the lifespan ran again"
        assert str(log) == recorded


@pytest.mark.parametrize("seed", QUICK)
def test_a_generated_lifespan_replays(seed: int, tmp_path) -> None:
    assert_replays(seed, str(tmp_path / "a.mcprec.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SLOW)
def test_many_generated_lifespans_replay(seed: int, tmp_path) -> None:
    assert_replays(seed, str(tmp_path / "a.mcprec.jsonl"))


@pytest.mark.slow
def test_two_live_runs_of_a_lifespan_differ(tmp_path) -> None:
    """The other tests could not fail if programs did the same in each run."""
    runs = [
        [programs.record(seed, str(tmp_path / f"{seed}-{run}.mcprec.jsonl")) for run in range(2)]
        for seed in range(10)
    ]
    assert sum(first != second for first, second in runs) > 5
