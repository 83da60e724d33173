"""The page about the life of a request names only files and functions that exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mcp_trio"
PAGE = ROOT / "docs" / "explanation" / "life-of-a-request.md"

FILE = re.compile(r"`(_\w+/\w+\.py)`")
MEMBER = re.compile(r"`(_?[A-Z]\w+\.\w+)`")
FUNCTION_IN_FILE = re.compile(r"`(\w+)`\s+(?:in\s+|\()`(_\w+/\w+\.py)`")
MEMBER_IN_FILE = re.compile(r"`(_?[A-Z]\w+\.\w+)`\s+(?:in\s+|\()`(_\w+/\w+\.py)`")


def names_in(file: Path) -> Iterator[str]:
    """Yield the names at the top level of a module, and `Class.member` for those of classes."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        yield from _names_of(node)
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                yield from (f"{node.name}.{name}" for name in _names_of(member))


def _names_of(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]):
            yield name
        case _:
            pass


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_each_file_on_the_page_exists() -> None:
    files = set(FILE.findall(page()))
    assert len(files) > 20
    assert [file for file in sorted(files) if not (PACKAGE / file).is_file()] == []


def test_each_member_on_the_page_exists() -> None:
    known = {name for file in PACKAGE.rglob("*.py") for name in names_in(file)}
    members = set(MEMBER.findall(page()))
    assert len(members) > 60
    assert members - known == set()


def test_a_function_that_is_named_with_its_file_is_in_that_file() -> None:
    named = {*FUNCTION_IN_FILE.findall(page()), *MEMBER_IN_FILE.findall(page())}
    assert len(named) > 30
    elsewhere = [
        (name, file) for name, file in sorted(named) if name not in {*names_in(PACKAGE / file)}
    ]
    assert elsewhere == []
