"""What is seen of a server's process from outside, and of the client that means well."""

import os
import sys
import time
from pathlib import Path

import observed_process
import pytest
import trio
from observed_process import Resources

pytestmark = pytest.mark.slow


@pytest.fixture
def looks():
    """`looks(*held)` sees these, one after the other, and the last of them for ever."""

    def looks(*resources):
        seen = [*resources]

        async def poll():
            await trio.lowlevel.checkpoint()
            return Resources(*(seen.pop(0) if len(seen) > 1 else seen[0]))

        return poll

    return looks


@pytest.mark.parametrize(
    ("resources", "after", "seconds"),
    [
        ([(5, 9)], (5, 9), 0),
        ([(4, 8)], (4, 8), 0),
        ([(7, 9), (7, 9), (5, 9)], (5, 9), 2),
        ([(5, 12), (5, 11), (5, 9)], (5, 9), 2),
        ([(7, 9), (5, 12), (5, 12)], (5, 9), 1),  # each has been at rest once
        ([(6, 9)], (6, 9), 150),
        ([(5, 10)], (5, 10), 150),
    ],
)
async def test_what_is_left_is_what_does_not_go_away(
    looks, resources, after, seconds, autojump_clock
):
    begin = trio.current_time()
    assert await observed_process.wait_until_released(
        looks(*resources), Resources(5, 9), 3.0
    ) == Resources(*after)
    looked = (trio.current_time() - begin) / observed_process.POLL_SECONDS
    assert looked == pytest.approx(seconds)


async def test_a_meter_counts_what_a_process_takes(nursery, autojump_clock):
    meter = observed_process.Meter(os.getpid())
    nursery.start_soon(meter.poll)
    large = bytearray(os.urandom(32 << 20))
    await trio.sleep(1)
    size = len(large)
    del large
    peak_kib, left_kib = meter.rss_kib()
    assert peak_kib >= 0.9 * size / 1024
    assert left_kib <= peak_kib - 0.5 * size / 1024
    assert meter.cpu_ms() > 0
    nursery.cancel_scope.cancel()


def test_descriptors_are_counted():
    before = observed_process.descriptors_of(os.getpid())
    ends = os.pipe()
    assert observed_process.descriptors_of(os.getpid()) == before + 2
    for end in ends:
        os.close(end)


def test_what_is_left_is_a_complaint_unless_it_is_nothing_or_less():
    baseline = Resources(5, 9)
    assert Resources(5, 9).excess_over(baseline).problem() == ""
    assert Resources(4, 8).excess_over(baseline).problem() == ""
    assert Resources(7, 8).excess_over(baseline).problem() == "2 descriptors and -1 tasks are left"
    assert Resources(5, 10).excess_over(baseline).problem() == "0 descriptors and 1 tasks are left"


CALLS = """
import time, observed_process

def answers():
    yield from (True, False, True)
    time.sleep(60)

observed_process.PAUSE_SECONDS = 0
observed_process.call_forever(answers().__next__)
"""


@pytest.fixture
def command(monkeypatch):
    """A client that calls three times: it is answered, and not, and answered."""
    monkeypatch.setenv("PYTHONPATH", str(Path(observed_process.__file__).parent))
    return [sys.executable, "-c", CALLS]


@pytest.mark.real_time
async def test_another_client_reports_its_calls_until_it_is_stopped(nursery, monkeypatch, command):
    monkeypatch.setattr(observed_process, "_OTHER_CALL_SECONDS_MAX", 0.1)
    begin = time.monotonic()
    with observed_process.other_client_calling(command) as other_client:
        nursery.start_soon(other_client.read_calls)
        with trio.fail_after(20):
            while len(calls := await other_client.calls(begin)) < 3:
                pass
        assert [seconds is None for seconds in calls] == [False, True, False]
        assert await other_client.calls(time.monotonic()) == []
    assert other_client.process.returncode is not None


@pytest.mark.real_time
async def test_a_watch_measures_the_cost_of_an_attack_and_what_it_left(monkeypatch, command):
    for name, seconds in (
        ("_OTHER_CALL_SECONDS_MAX", 0.1),
        ("RELEASE_SECONDS_MAX", 0.1),
        ("QUIET_SECONDS", 0),
    ):
        monkeypatch.setattr(observed_process, name, seconds)
    tasks = [7, 9]
    begin = time.monotonic()
    async with observed_process.watched(os.getpid(), lambda: tasks[0], command) as watch:

        async def attack():
            with trio.fail_after(20):
                while len(await watch.other_client.calls(begin)) < 3:
                    pass
            tasks.pop(0)
            return "done"

        assert watch.baseline.tasks == 7
        outcome, cost = await watch.cost_of(attack)
        assert outcome == "done"
        assert cost.left.tasks == 2
        assert watch.baseline.tasks == 9
        _, cost = await watch.cost_of(trio.lowlevel.checkpoint)
        assert cost.left.tasks == 0
        assert cost.calls == []
