"""The project file, the changelog, tracked text, Python versions, and pages with their pictures."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pictures
import pytest
from pythons import VERSIONS

import mcp_trio
from mcp_trio._journal.records import KINDS, OpenBody
from mcp_trio.recording import Record

HOME = Path(__file__).parents[2]
PROJECT_LINES = (HOME / "pyproject.toml").read_text(encoding="utf-8").splitlines()
PROJECT = tomllib.loads("\n".join(PROJECT_LINES))
MADE_BY_TOOLS = re.compile(
    r"\.git|\.venv|\.nox|\.\w+_cache|\.hypothesis|__pycache__|build|dist|node_modules"
)
# Split, so that this file does not mention what it forbids.
BESIDE_THE_CHECKOUT = "../" + "shared"
NOWHERE = ("/work/" + "main", "/work/" + "shared")


def requirement_strings(value):
    if isinstance(value, dict):
        value = [part for values in value.values() for part in values]
    return [text for text in value if isinstance(text, str)]


def lines_without_a_reason(values):
    """Find the lines of the project file that name a value and have no comment beside it."""
    return [
        line
        for value in values
        for line in PROJECT_LINES
        if f'"{value}"' in line and not re.search(r'["\]}],?\s*# \S', line)
    ]


def text_files():
    for folder, names, files in os.walk(HOME):
        names[:] = [name for name in names if not MADE_BY_TOOLS.fullmatch(name)]
        for path in (Path(folder, file) for file in files if not MADE_BY_TOOLS.fullmatch(file)):
            try:
                yield path.relative_to(HOME).as_posix(), path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def test_the_changelog_begins_with_the_version_of_the_package():
    headings = re.findall(r"^## (\S+)", (HOME / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings[0] == mcp_trio.__version__


def test_every_dependency_has_its_reason():
    dependencies = [
        *requirement_strings(PROJECT["project"]["dependencies"]),
        *requirement_strings(PROJECT["dependency-groups"]),
    ]
    assert len(dependencies) > 20
    assert lines_without_a_reason(dependencies) == []


def test_every_rule_that_is_switched_off_has_its_reason():
    lint = PROJECT["tool"]["ruff"]["lint"]
    assert lint["select"] == ["ALL"]
    rules = {*lint["ignore"], *requirement_strings(lint["per-file-ignores"])}
    assert lines_without_a_reason(rules) == []


def test_no_file_needs_what_lies_beside_the_checkout():
    files = dict(text_files())
    assert ".ci/run" in files
    assert "mcp_trio/__init__.py" in files
    assert [name for name, text in files.items() if BESIDE_THE_CHECKOUT in text] == []


def test_no_file_names_a_path_of_a_machine():
    assert [name for name, text in text_files() if any(path in text for path in NOWHERE)] == []


def test_the_package_is_typed_and_licensed():
    assert (HOME / "mcp_trio" / "py.typed").exists()
    assert "MIT License" in (HOME / "LICENSE").read_text("utf-8")
    assert PROJECT["project"]["license"] == "MIT"


# docs/reference/recording-format.md, compared with the golden recordings.


PAGE = (HOME / "docs/reference/recording-format.md").read_text(encoding="utf-8")
GOLDEN = sorted((HOME / "recordings").glob("*.mcprec.jsonl"))


def names_in_table(heading):
    """The names in the first column of the table below a heading."""
    table = PAGE.partition(f"{heading}\n")[2].partition("\n\n#")[0]
    cells = re.findall(r"^\| (`[^|]*`) \|", table, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def records_of(path):
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield line, json.loads(line)


def test_the_keys_of_a_record_are_listed_in_their_order():
    assert names_in_table("## Records") == list(Record.__struct_encode_fields__)


def test_every_kind_of_record_is_listed_once():
    assert names_in_table("## Kinds") == [
        kind for kind in names_in_table("## Kinds") if kind in KINDS
    ]
    assert sorted(names_in_table("## Kinds")) == sorted(KINDS)


def test_every_member_of_the_open_record_is_listed():
    assert sorted(names_in_table("### The open record")) == sorted(OpenBody.__struct_fields__)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name.partition(".")[0])
def test_a_golden_recording_has_only_what_the_page_lists(path):
    marks, facts = names_in_table("### Marks"), names_in_table("### Envelopes")
    for _, record in records_of(path):
        if record["k"] == "mark" and "f" in record:
            assert record["f"]["name"] in marks
        assert set(record.get("x", {})) <= {fact.partition(":")[0] for fact in facts}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name.partition(".")[0])
def test_the_digests_of_a_golden_recording_are_computed_as_the_page_describes(path):
    covered, is_later_segment = hashlib.sha256(), False
    for line, record in records_of(path):
        number, kind = record["n"], record["k"]
        is_later_segment |= kind == "open" and number > 0
        if kind == "gap":
            covered = hashlib.sha256()
        elif "h" in record:
            if not is_later_segment:  # its first digest covers lines of the segment before
                assert record["h"] == covered.hexdigest()[:16]
            is_later_segment = False
            covered = hashlib.sha256(record["h"].encode())
        else:
            assert number == 0 or (number % 64 and kind != "end")
        covered.update(line)


# The Python versions that `tools/pythons.py` tests.

PREFIX = "Programming Language :: Python :: 3."


def test_each_version_of_the_classifiers_is_tested():
    project = PROJECT["project"]
    minors = sorted(
        int(line.removeprefix(PREFIX)) for line in project["classifiers"] if line.startswith(PREFIX)
    )
    oldest = project["requires-python"].removeprefix(">=")
    assert [f"3.{minor}" for minor in minors] == [oldest, *VERSIONS]


@pytest.mark.parametrize("half_installed", [False, True])
@pytest.mark.parametrize(("options", "status"), [([], 1), (["--may-miss"], 0)])
def test_a_version_that_cannot_be_installed_is_named(tmp_path, options, status, half_installed):
    if half_installed:
        python = tmp_path / "debian-3.99" / "usr" / "bin" / "python3.99"
        python.parent.mkdir(parents=True)
        python.write_text("#!/bin/false\n")
        python.chmod(0o700)
    done = subprocess.run(
        [
            *(sys.executable, HOME / "tools" / "pythons.py", "--folder", tmp_path),
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


# The pictures of the documentation.


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_as_it_is_drawn_now(name, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    drawn = pictures.PICTURES[name]()
    assert (pictures.FOLDER / name).read_text(encoding="utf-8") == drawn
    assert len(drawn) < 60_000
    assert "url(http" not in drawn  # no font is fetched from elsewhere


# Tools.

# `name.py`; the modules of an import; `"name"`.
NAMES_OF_SCRIPTS = re.compile(
    r"\b(\w+)\.py\b|^\s*(?:from|import) ([\w., ]+)|\"(\w+)\"", re.MULTILINE
)


def test_each_tool_is_run_by_a_session_a_test_a_page_or_another_tool():
    """A script that is named nowhere else was made for one occasion, and can go."""
    named_in = {
        path: set(re.findall(r"\w+", " ".join("".join(each) for each in names)))
        for path, text in text_files()
        if path.endswith((".py", ".md", ".mjs")) and (names := NAMES_OF_SCRIPTS.findall(text))
    }
    tools = [path for path in named_in if path.startswith("tools/") and path.endswith(".py")]
    unused = [
        path
        for path in tools
        if not any(Path(path).stem in names for other, names in named_in.items() if other != path)
    ]
    assert unused == []
