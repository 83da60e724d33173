"""The test suite refuses to run on false premises."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HOME = Path(__file__).parents[2]


def run_pytest(folder, test, **environment):
    shutil.copy(HOME / "tests" / "conftest.py", folder)
    (folder / "test_one.py").write_text(test, encoding="utf-8")
    # Else the modules of all plugins are rewritten first.
    plain = ["-q", "--assert=plain", "-c", HOME / "pyproject.toml"]
    command = [sys.executable, "-m", "pytest", *plain, folder]
    inherited = {k: v for k, v in os.environ.items() if k != "CI"}
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
