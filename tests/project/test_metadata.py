"""The project file, the changelog and the tracked text keep their promises."""

import os
import re
import tomllib
from pathlib import Path

import mcp_trio

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
