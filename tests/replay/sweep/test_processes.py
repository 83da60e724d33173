"""A process for each schedule, or all in this one; and what a sweep needs of them."""

import os

import pytest

from mcp_trio._replay import sweep as sweeping
from mcp_trio._replay.sweep import sweep_forked
from mcp_trio.errors import RecordingError, SweepUnavailable
from mcp_trio.recording import sweep

pytestmark = pytest.mark.slow

FORKS = 8


def test_a_fork_for_each_schedule_starts_with_fresh_state_and_finds_what_is_found_here(sums, path):
    assert sweep_forked(path, sums.make_server(exclusive=True), schedules=FORKS).is_clean
    here = sweep(path, sums.make_server, schedules=FORKS)
    forked = sweep_forked(path, sums.make_server(), schedules=FORKS)
    assert forked.differences == here.differences != ()
    assert forked.outcomes == here.outcomes > 1


def test_a_fork_that_breaks_says_why(path):
    class Broken:
        @property
        def _sessions(self):
            return self

        def open_session(self, *_, **__):
            raise ZeroDivisionError("not today")

    with pytest.raises(SweepUnavailable, match="not today"):
        sweep_forked(path, Broken(), schedules=1)


def test_a_system_without_fork_is_told(sums, path, monkeypatch):
    monkeypatch.delattr("os.fork")
    with pytest.raises(SweepUnavailable, match="cannot fork"):
        sweep_forked(path, sums.make_server())


def test_a_target_that_cannot_be_swept_elsewhere_is_told(path):
    with pytest.raises(
        SweepUnavailable, match=r"(?s)exited with status 2: .*no/such\.py: no such file"
    ):
        sweep(path, "no/such.py", seed=3)


def test_what_is_wrong_with_a_sweep_elsewhere_is_told_as_of_one_here(path, tmp_path):
    with pytest.raises(RecordingError, match="cannot read"):
        sweep(tmp_path / "none.jsonl", "no/such.py")
    with pytest.raises(ValueError, match="one schedule"):
        sweep(path, "no/such.py", schedules=0)


def test_what_a_server_prints_is_no_part_of_the_report(path, tmp_path):
    target = tmp_path / "chatty.py"
    target.write_text(
        "from mcp_trio import Server\n"
        "print('imported')\n"
        "server = Server('sums')\n"
        "@server.tool\n"
        "async def total() -> int:\n"
        "    print('called')\n"
        "    return 11\n"
    )
    report = sweep(path, str(target), schedules=2)
    assert report.schedules == 2
    assert {each.call for each in report.differences} >= {'tools/call "add"'}


def test_forks_that_nobody_waits_for_any_more_are_ended(sums, path, monkeypatch):
    forks = []

    class Dying(sweeping._Fork):
        def outcome(self):
            forks.append(self)
            if len(forks) == 2:
                raise KeyboardInterrupt
            return super().outcome()

    monkeypatch.setattr(sweeping, "_Fork", Dying)
    monkeypatch.setattr(sweeping, "_PROCESSES_MAX", 3)
    with pytest.raises(KeyboardInterrupt):
        sweep_forked(path, sums.make_server(), schedules=6)
    os.waitpid(forks[1].process, 0)  # was being waited for
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_trio_without_the_flag_is_told(sums, path, monkeypatch):
    monkeypatch.delattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING")
    with pytest.raises(SweepUnavailable, match="Trio"):
        sweep(path, sums.make_server)


def test_the_flag_is_as_it_was_afterwards(sums, path):
    from trio._core import _run

    before = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()
    sweep(path, sums.make_server, schedules=2)
    assert (_run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()) == before


def test_a_sweep_takes_one_schedule_at_least(sums, path):
    with pytest.raises(ValueError, match="one schedule"):
        sweep(path, sums.make_server, schedules=0)
