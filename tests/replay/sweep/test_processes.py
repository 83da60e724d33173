"""The processes of a sweep."""

import os

import pytest

from mcp_trio._replay import sweep as sweeping
from mcp_trio._replay.sweep import SweepOptions, sweep_forked
from mcp_trio.errors import RecordingError, SweepUnavailable
from mcp_trio.limits import Limits
from mcp_trio.recording import sweep

pytestmark = pytest.mark.slow

FORKS = 8


def test_each_fork_starts_with_new_state_and_finds_the_same_differences(sums, path):
    assert sweep_forked(
        path, sums.make_server(exclusive=True), SweepOptions(schedules=FORKS)
    ).is_clean
    here = sweep(path, sums.make_server, schedules=FORKS)
    forked = sweep_forked(path, sums.make_server(), SweepOptions(schedules=FORKS))
    assert forked.differences == here.differences != ()
    assert forked.outcomes == here.outcomes > 1


def test_a_failing_fork_reports_its_error(path):
    class Broken:
        limits = Limits()

        @property
        def _sessions(self):
            return self

        def open_session(self, *_, **__):
            raise ZeroDivisionError("not today")

    with pytest.raises(SweepUnavailable, match="not today"):
        sweep_forked(path, Broken(), SweepOptions(schedules=1))


def test_a_system_without_fork_is_rejected(sums, path, monkeypatch):
    monkeypatch.delattr("os.fork")
    with pytest.raises(SweepUnavailable, match="cannot fork"):
        sweep_forked(path, sums.make_server(), SweepOptions())


def test_an_error_of_the_sweep_process_is_raised(path):
    with pytest.raises(
        SweepUnavailable, match=r"(?s)exited with status 2: .*no/such\.py: no such file"
    ):
        sweep(path, "no/such.py", seed=3)


def test_invalid_arguments_of_a_sweep_process_raise_here(path, tmp_path):
    with pytest.raises(RecordingError, match="cannot read"):
        sweep(tmp_path / "none.jsonl", "no/such.py")
    with pytest.raises(ValueError, match="schedules must be at least 1"):
        sweep(path, "no/such.py", schedules=0)


def test_output_of_the_server_is_kept_out_of_the_report(path, tmp_path):
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


def test_remaining_forks_are_killed_after_an_interrupt(sums, path, monkeypatch):
    forks = []

    class Dying(sweeping._Fork):
        def result(self):
            forks.append(self)
            if len(forks) == 2:
                raise KeyboardInterrupt
            return super().result()

    monkeypatch.setattr(sweeping, "_Fork", Dying)
    monkeypatch.setattr(sweeping, "_PROCESSES_MAX", 3)
    with pytest.raises(KeyboardInterrupt):
        sweep_forked(path, sums.make_server(), SweepOptions(schedules=6))
    os.waitpid(forks[1].process, 0)  # was being waited for
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_trio_without_the_flag_is_rejected(sums, path, monkeypatch):
    monkeypatch.delattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING")
    with pytest.raises(SweepUnavailable, match="Trio"):
        sweep(path, sums.make_server)


def test_the_flag_is_restored_after_a_sweep(sums, path):
    from trio._core import _run

    before = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()
    sweep(path, sums.make_server, schedules=2)
    assert (_run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()) == before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"schedules": 0}, "schedules must be at least 1"),
        ({"bound": 0}, "the bound"),
        ({"strategy": "luck"}, "unknown strategy 'luck': one of random, pct, depth-first"),
        ({"strategy": "depth-first", "seed": 3}, "no seeds"),
    ],
)
def test_invalid_options_are_rejected(sums, path, options, text):
    with pytest.raises(ValueError, match=text):
        sweep(path, sums.make_server, **options)
