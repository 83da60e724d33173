"""What attacks came to: it is shown, and what must not be is told."""

import attack_report
import attrs
import pytest
from attack_report import AttackResult
from observed_process import Cost, Resources

pytestmark = pytest.mark.slow

WELL = AttackResult(
    name="an attack",
    target="native",
    outcomes="400 x2",
    seconds=[0.1, 0.2],
    violations=[],
    cost=Cost(cpu_ms=1.0, rss_kib=(2.0, 0.0), left=Resources(0, -1), calls=[0.001, 0.002]),
)


def test_what_was_withstood_is_no_complaint(capsys):
    assert attack_report.report([WELL, attrs.evolve(WELL, target="hypercorn")], "attacks", 1.0)
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
    assert not attack_report.report([result], "attacks", 1.0)
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
    assert not attack_report.report([], "attacks", 1.0)
    assert "nothing was done" in capsys.readouterr().out
