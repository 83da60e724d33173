"""The table of requirements and its ticks in tests, and the checks of tests/conftest.py."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import requirements
from requirements import MarkedId, Requirement, Trap, Untested

pytestmark = pytest.mark.slow


TICKED_EVERYWHERE = """
import pytest
from pytest import mark

pytestmark = [pytest.mark.slow, pytest.mark.requirement("BASE-01"), pytest.mark.real_time]

@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.requirement("BASE-02"))])
@mark.requirement("BASE-03", "BASE-04")
def test_x(x):
    "a text that says pytest.mark.requirement('BASE-09') ticks nothing"
"""
ROW = Requirement("BASE-01", "BASE", "A....", "B", "MUST NOT", "A rule.", "page")


def run(capsys, *arguments):
    status = requirements.main([str(argument) for argument in arguments])
    return status, capsys.readouterr().out


def a_test_that_ticks(tmp_path, *ids):
    folder = tmp_path / "tests"
    folder.mkdir()
    marks = ", ".join(map(repr, ids))
    text = f"import pytest\n@pytest.mark.requirement({marks})\ndef test_x(): ...\n"
    (folder / "test_x.py").write_text(text)
    return folder


def test_the_tables_are_sound():
    rows, traps = requirements.read_requirements(), requirements.read_traps()
    assert (len(rows), len(traps)) == (870, 133)
    assert list(requirements.bad_fields(rows)) == []
    assert list(requirements.bad_ids(rows, traps)) == []


def test_every_tick_of_the_test_suite_names_a_requirement():
    rows = [*requirements.read_requirements(), *requirements.read_traps()]
    known = {row.id for row in rows}
    assert (
        list(requirements.bad_marks(requirements.read_marked_ids(requirements.TESTS), known)) == []
    )


def test_ticks_are_found_in_decorators_module_marks_and_parameter_marks():
    marks = requirements.marked_ids_in(TICKED_EVERYWHERE, "test_x.py")
    assert {mark.id for mark in marks} == {"BASE-01", "BASE-02", "BASE-03", "BASE-04"}


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("NAME", "must be literals"),
        ("*NAMES", "must be literals"),
        ("1", "must be literals"),
        ("id='BASE-02'", "'BASE-02' is not a requirement"),
    ],
)
def test_a_tick_that_cannot_be_read_or_does_not_exist_is_a_problem(argument, expected):
    marks = requirements.marked_ids_in(
        f"\n@pytest.mark.requirement({argument})\ndef f(): ...", "t.py"
    )
    (problem,) = requirements.bad_marks(marks, {"BASE-01"})
    assert problem.startswith("t.py:2: ")
    assert expected in problem


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "base1"),
        ("protocol_versions", "....."),
        ("protocol_versions", "E...."),
        ("who", "X"),
        ("level", "MAY NOT"),
        ("text", ""),
        ("source", ""),
        ("area", "LIFE"),
    ],
)
def test_a_malformed_row_is_a_problem(field, value):
    assert list(requirements.bad_fields([ROW])) == []
    assert any(value in text for text in requirements.bad_fields([ROW._replace(**{field: value})]))


def test_an_id_used_twice_and_a_dangling_reference_are_problems():
    dangling = ROW._replace(id="BASE-02", text="As in BASE-77 and RFC-6570.")
    problems = list(requirements.bad_ids([ROW, ROW, dangling], []))
    assert problems == ["BASE-01: used 2 times", "BASE-02: refers to unknown BASE-77"]


@pytest.mark.parametrize(
    ("exception", "expected"),
    [
        (Untested("NONE-01", "other role", ""), "unknown id"),
        (Untested("BASE-02", "other role", ""), "but a test covers it"),
        (Untested("BASE-01", "no time", ""), "'no time' is not one of"),
    ],
)
def test_an_exception_needs_an_unticked_id_and_a_reason_from_the_list(exception, expected):
    known, ticked = {"BASE-01", "BASE-02"}, {"BASE-02"}
    (problem,) = requirements.bad_exceptions([exception], known, ticked)
    assert expected in problem


def test_the_coverage_check_requires_a_test_of_each_duty_of_its_areas_and_of_no_other():
    rows = [
        ROW,
        ROW._replace(id="BASE-02", level="SHOULD"),
        ROW._replace(id="BASE-03", level="MAY"),
        ROW._replace(id="APPS-01", area="APPS"),
        ROW._replace(id="VER-01", area="VER", protocol_versions="...DE"),
    ]
    gaps = list(requirements.uncovered_requirements(rows, {"BASE-02"}, []))
    assert [gap.split(", not")[0] for gap in gaps] == [
        "BASE-01: MUST NOT, 2024-11-05",
        "VER-01: MUST NOT, 2025-11-25",
        "VER-01: MUST NOT, 2026-07-28",
    ]


def test_the_coverage_check_requires_a_test_of_each_trap_that_is_not_for_later():
    traps = [Trap(f"TRAP-{number:02}", "gap", "It looks easy.", "x", "y") for number in (1, 3, 109)]
    gaps = list(requirements.uncovered_traps(traps, {"TRAP-01"}))
    assert gaps == ["TRAP-03: a trap without a test: It looks easy."]
    assert {trap.id for trap in requirements.read_traps()} > requirements.TRAPS_LATER


@pytest.mark.parametrize(("count", "is_rejected"), [(1, False), (2, True)])
def test_the_coverage_check_allows_exceptions_for_five_per_cent_of_the_duties(count, is_rejected):
    rows = [ROW._replace(id=f"BASE-{number:02}") for number in range(20)]
    exceptions = [Untested(row.id, "later issue", "") for row in rows[:count]]
    gaps = list(requirements.uncovered_requirements(rows, {row.id for row in rows[2:]}, exceptions))
    assert (
        any("2 exceptions; 1 are allowed for 20 requirements" in gap for gap in gaps) is is_rejected
    )


def test_the_report_counts_ticked_rows_by_area_protocol_version_and_level(capsys, tmp_path):
    tests = a_test_that_ticks(tmp_path, "PING-01", "PING-05")
    status, out = run(capsys, "--tests", tests, "--area", "PING", "--uncovered")
    assert status == 0
    heading, ping, total, *uncovered = out.splitlines()
    assert heading.split() == [
        "area",
        *requirements.PROTOCOL_VERSIONS.values(),
        "MUST",
        "SHOULD",
        "MAY",
        "all",
    ]
    assert ping.split() == ["PING", "1/4", "1/4", "1/4", "1/4", "1/1", "2/2", "0/2", "0/1", "2/5"]
    assert total.split()[1:] == ping.split()[1:]
    assert [line.split()[0] for line in uncovered[:-1]] == ["PING-02", "PING-03", "PING-04"]


def test_rows_are_chosen_by_protocol_version_and_level(capsys, tmp_path):
    tests = a_test_that_ticks(tmp_path, "PING-01")
    chosen = (
        "--area",
        "PING",
        "--protocol-version",
        "2026-07-28",
        "--level",
        "MUST",
        "--uncovered",
    )
    _, out = run(capsys, "--tests", tests, *chosen)
    assert [line.split()[0] for line in out.splitlines()[3:-1]] == ["PING-05"]


def test_an_excepted_row_is_listed_with_its_reason(capsys, tmp_path):
    _, out = run(capsys, "--tests", tmp_path, "--area", "CANC", "--uncovered")
    assert re.search(r"^CANC-12 .*\[host's duty\]", out, re.MULTILINE)


def test_an_unknown_id_fails_the_check(capsys, tmp_path):
    status, out = run(capsys, "--tests", a_test_that_ticks(tmp_path, "BASE-99"), "--check")
    assert status == 1
    assert "tests/test_x.py:2: 'BASE-99' is not a requirement" in out
    assert "area" not in out.splitlines()[0]


def test_the_coverage_check_fails_while_duties_have_no_test(capsys, tmp_path):
    status, out = run(capsys, "--tests", tmp_path, "--gate")
    assert status == 1
    assert "PING-01: MUST, 2024-11-05, not covered: " in out


def test_a_tick_has_its_file_and_line():
    (mark,) = requirements.marked_ids_in("pytestmark = pytest.mark.requirement('A-01')", "t.py")
    assert mark == MarkedId("A-01", "t.py:1")


# tests/conftest.py


HOME = Path(__file__).parents[2]


def run_pytest(folder, test, *options, program=(sys.executable,), **environment):
    shutil.copy(HOME / "tests" / "conftest.py", folder)
    (folder / "test_one.py").write_text(test, encoding="utf-8")
    # Else the modules of all plugins are rewritten first.
    plain = ["-q", "--assert=plain", "-c", HOME / "pyproject.toml"]
    command = [*program, "-m", "pytest", *plain, *options, folder]
    # pytest-xdist sets variables for a process of its own, which this one would take for its own.
    ignored = ("CI", "MCP_TRIO_EXAMPLES", "PYTEST_XDIST_")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(ignored)}
    return subprocess.run(
        command, env=inherited | environment, capture_output=True, text=True, check=False
    )


def test_an_unknown_requirement_id_stops_the_run(tmp_path):
    test = "import pytest\n@pytest.mark.requirement('BASE-01', 'BASE-99')\ndef test_x(): pass\n"
    done = run_pytest(tmp_path, test)
    assert done.returncode == 4, done.stdout
    assert "test_one.py::test_x: 'BASE-99' is no requirement" in done.stderr


def test_ci_draws_the_same_examples_each_time(tmp_path):
    test = "import hypothesis\ndef test_x(): assert hypothesis.settings.default.derandomize\n"
    assert run_pytest(tmp_path, test, CI="1").returncode == 0
    assert run_pytest(tmp_path, test).returncode == 1


def test_of_the_processes_that_tests_of_tools_start_no_coverage_is_taken():
    assert "COVERAGE_PROCESS_CONFIG" not in os.environ


MEASURED = """
def set_up():
    return 1
def set_up_in_test():
    return 2
def test():
    return 3
def finalize():
    return 4
def test_async():
    return 5
"""
MEASURED_TEST = """
import measured, pytest

@pytest.fixture(scope="module")
def first():
    yield measured.set_up()
    measured.finalize()

@pytest.fixture
def second():
    return measured.set_up_in_test()

def test_x(first, request):
    assert (first, request.getfixturevalue("second")) == (1, 2)
    measured.test()

async def test_y():
    measured.test_async()
"""


def test_coverage_measures_fixtures_tests_and_finalizers(tmp_path):
    settings = f"[run]\nparallel = true\npatch = subprocess\nsource = {tmp_path}\n"
    (tmp_path / "settings").write_text(settings, encoding="utf-8")
    (tmp_path / "measured.py").write_text(MEASURED, encoding="utf-8")
    environment = {
        "COVERAGE_RCFILE": str(tmp_path / "settings"),
        "COVERAGE_FILE": str(tmp_path / "coverage"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(HOME)]),
    }
    coverage = [sys.executable, "-m", "coverage"]
    done = run_pytest(tmp_path, MEASURED_TEST, "-n1", program=[*coverage, "run"], **environment)
    assert done.returncode == 0, done.stdout
    for command in (["combine"], ["report", "--include=*/measured.py", "--fail-under=100"]):
        done = subprocess.run(
            [*coverage, *command],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
