"""Measurements of a server under attack, of the other client's calls, and their report."""

import os
import sys
import time
from pathlib import Path

import attrs
import measurements
import pytest
import trio
from measurements import AttackResult, Cost, Resources

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
    assert await measurements.wait_until_released(
        looks(*resources), Resources(5, 9), 3.0
    ) == Resources(*after)
    looked = (trio.current_time() - begin) / measurements.POLL_SECONDS
    assert looked == pytest.approx(seconds)


async def test_a_meter_counts_what_a_process_takes(nursery, autojump_clock):
    meter = measurements.Meter(os.getpid())
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
    before = measurements.descriptors_of(os.getpid())
    ends = os.pipe()
    assert measurements.descriptors_of(os.getpid()) == before + 2
    for end in ends:
        os.close(end)


def test_what_is_left_is_a_complaint_unless_it_is_nothing_or_less():
    baseline = Resources(5, 9)
    assert Resources(5, 9).excess_over(baseline).problem() == ""
    assert Resources(4, 8).excess_over(baseline).problem() == ""
    assert Resources(7, 8).excess_over(baseline).problem() == "2 descriptors and -1 tasks are left"
    assert Resources(5, 10).excess_over(baseline).problem() == "0 descriptors and 1 tasks are left"


CALLS = """
import time, other_client

def answers():
    yield from (True, False, True)
    time.sleep(60)

other_client.PAUSE_SECONDS = 0
other_client.call_forever(answers().__next__)
"""


@pytest.fixture
def command(monkeypatch):
    """A client that calls three times: it is answered, and not, and answered."""
    monkeypatch.setenv("PYTHONPATH", str(Path(measurements.__file__).parent))
    return [sys.executable, "-c", CALLS]


@pytest.mark.real_time
async def test_another_client_reports_its_calls_until_it_is_stopped(nursery, monkeypatch, command):
    monkeypatch.setattr(measurements, "_OTHER_CALL_SECONDS_MAX", 0.1)
    begin = time.monotonic()
    with measurements.other_client_calling(command) as other_client:
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
        monkeypatch.setattr(measurements, name, seconds)
    tasks = [7, 9]
    begin = time.monotonic()
    async with measurements.watched(os.getpid(), lambda: tasks[0], command) as watch:

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


# The report.


WELL = AttackResult(
    name="an attack",
    target="native",
    outcomes="400 x2",
    seconds=[0.1, 0.2],
    violations=[],
    cost=Cost(cpu_ms=1.0, rss_kib=(2.0, 0.0), left=Resources(0, -1), calls=[0.001, 0.002]),
)


def test_what_was_withstood_is_no_complaint(capsys):
    assert measurements.report([WELL, attrs.evolve(WELL, target="hypercorn")], "attacks", 1.0)
    out = capsys.readouterr().out
    assert out.count("400 x2") == 2
    assert out.index("native") < out.index("hypercorn")
    assert "2 attacks, 0 problems, 1 s" in out


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ({"violations": ["it was bad", "it was bad"]}, "it was bad x2"),
        ({"left": Resources(2, 0)}, "2 descriptors and 0 tasks are left x1"),
        ({"left": Resources(0, 1)}, "0 descriptors and 1 tasks are left x1"),
        ({"calls": [0.1, None]}, "1 calls of the other client failed x1"),
        ({"calls": [0.1, 5.5]}, "the other client was answered after 5.5 s x1"),
        ({"calls": []}, "the other client was answered after 0.0 s x1"),
    ],
)
def test_what_must_not_be_is_told(what, problem, capsys):
    cost = attrs.evolve(WELL.cost, **{key: what[key] for key in what if key != "violations"})
    result = attrs.evolve(WELL, cost=cost, violations=what.get("violations", []))
    assert not measurements.report([result], "attacks", 1.0)
    out = capsys.readouterr().out
    assert f"an attack, native: {problem}" in out
    assert ", 1 problems," in out


def test_the_other_client_may_have_to_wait_longer():
    patient = attrs.evolve(WELL, late_seconds=15.0, cost=attrs.evolve(WELL.cost, calls=[5.5]))
    assert list(patient.problems()) == []


def test_a_host_that_may_fail_others_is_not_reported_for_failed_calls():
    failed = attrs.evolve(WELL, cost=attrs.evolve(WELL.cost, calls=[0.1, None]))
    assert list(failed.problems()) == ["1 calls of the other client failed"]
    assert list(attrs.evolve(failed, may_fail_others=True).problems()) == []


def test_where_nothing_was_done_nothing_is_shown(capsys):
    assert not measurements.report([], "attacks", 1.0)
    assert "nothing was done" in capsys.readouterr().out
