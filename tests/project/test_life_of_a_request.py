"""The pages that explain the package name only files and functions that exist.

A reader follows the page about the life of a request without a search, so it also names the file of
each class.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mcp_trio"
PAGES = ROOT / "docs" / "explanation"
LIFE = "life-of-a-request"

FILE = re.compile(r"`((?:_\w+/)?\w+\.py)`")
MEMBER = re.compile(r"`(_?[A-Z]\w+\.\w+)`")
FUNCTION_IN_FILE = re.compile(r"`(\w+)`\s+(?:in\s+|\()`(_\w+/\w+\.py)`")
SENTENCE_END = re.compile(r"(?<=[.:])\)?\s+(?=[A-Z`*-])|\n\n|\n(?=\|)")
MEMBER_IN_FILE = re.compile(r"`(_?[A-Z]\w+\.\w+)`\s+(?:in\s+|\()`(_\w+/\w+\.py)`")
NAME = re.compile(r"`(\w+)`")
FIRST_NAME = re.compile(r"`(\w+)(?:\.\w+)?`")  # a function or class, or the class of a member

# Headers of HTTP, which are also the names of classes.
HEADERS = frozenset({"Host", "Origin"})


@functools.cache
def names_in(file: Path) -> frozenset[str]:
    """Return the names at the top level of a module, and `Class.member` for those of classes."""
    names = set[str]()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        names.update(_names_of(node))
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                names.update(f"{node.name}.{name}" for name in _names_of(member))
    return frozenset(names)


def _names_of(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]):
            yield name
        case _:
            pass


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "fewest"), [(LIFE, 20), ("architecture", 20), ("glossary", 0)])
def test_each_file_on_a_page_exists(name: str, fewest: int) -> None:
    files = set(FILE.findall(page(name)))
    assert len(files) >= fewest
    assert [file for file in sorted(files) if not (PACKAGE / file).is_file()] == []


@pytest.mark.parametrize(("name", "fewest"), [(LIFE, 60), ("architecture", 2), ("glossary", 0)])
def test_each_member_on_a_page_exists(name: str, fewest: int) -> None:
    known = {name for file in PACKAGE.rglob("*.py") for name in names_in(file)}
    members = set(MEMBER.findall(page(name)))
    assert len(members) >= fewest
    assert members - known == set()


@pytest.mark.parametrize(("name", "fewest"), [(LIFE, 30), ("architecture", 5), ("glossary", 0)])
def test_a_function_that_is_named_with_its_file_is_in_that_file(name: str, fewest: int) -> None:
    text = page(name)
    named = {*FUNCTION_IN_FILE.findall(text), *MEMBER_IN_FILE.findall(text)}
    assert len(named) >= fewest
    elsewhere = [
        (name, file) for name, file in sorted(named) if name not in names_in(PACKAGE / file)
    ]
    assert elsewhere == []


def test_the_sentence_that_first_names_a_class_or_function_names_its_file() -> None:
    text = page(LIFE)
    known = {name for file in PACKAGE.rglob("*.py") for name in names_in(file)}
    assert set(MEMBER.findall(text)) - known == set()
    seen, without_file = set(HEADERS), list[str]()
    for sentence in SENTENCE_END.split(text):
        in_files = {name for file in FILE.findall(sentence) for name in names_in(PACKAGE / file)}
        new = [name for name in FIRST_NAME.findall(sentence) if name in known - seen]
        without_file += [name for name in new if name not in in_files]
        seen.update(new)
    assert len(seen) > 60
    assert without_file == []


def test_the_page_names_the_file_of_each_class_and_function() -> None:
    text = page(LIFE)
    in_files = {name for file in FILE.findall(text) for name in names_in(PACKAGE / file)}
    members = set(MEMBER.findall(text))
    assert members - in_files == set()
    known = {name for file in PACKAGE.rglob("*.py") for name in names_in(file)}
    names = {name for name in NAME.findall(text) if name in known} - HEADERS
    assert len(names) > 40
    assert names - in_files == set()
