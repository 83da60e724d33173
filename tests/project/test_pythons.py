import subprocess
import sys
import tomllib

import pytest
from pythons import ROOT, VERSIONS

PREFIX = "Programming Language :: Python :: 3."


def test_each_version_of_the_classifiers_is_tested():
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    minors = sorted(
        int(line.removeprefix(PREFIX)) for line in project["classifiers"] if line.startswith(PREFIX)
    )
    oldest = project["requires-python"].removeprefix(">=")
    assert [f"3.{minor}" for minor in minors] == [oldest, *VERSIONS]


@pytest.mark.parametrize(("options", "status"), [([], 1), (["--may-miss"], 0)])
def test_a_version_that_cannot_be_installed_is_named(tmp_path, options, status):
    done = subprocess.run(
        [
            *(sys.executable, ROOT / "tools" / "pythons.py", "--folder", tmp_path),
            *(*options, "--versions", "3.99", "--", "tests"),
        ],
        env={"PATH": str(tmp_path), "PYENV_ROOT": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (status, "")
    assert done.stdout.startswith(
        f"NOT TESTED on Python 3.99: no python3.99 on PATH or in {tmp_path}; "
    )
