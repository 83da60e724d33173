"""Measure the house: `python tools/sizes.py`.

One table: for each folder its files, its lines of code, comments, docstrings and blanks, its
longest file, its longest and median function; then the whole, and the longest chain of imports.
"""

import argparse
import ast
import statistics
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from import_graph import find_circle, longest_chain, own_files, read_imports

HOME: Final = Path(__file__).resolve().parent.parent
FILE_LINES_AIM: Final = 500
FUNCTION_LINES_AIM: Final = 60

COUNTED: Final = ("lines", "code", "comments", "docstrings")
HEADING: Final = (
    f"{'folder':22}{'files':>6}"
    + "".join(f"{kind:>11}" for kind in COUNTED)
    + f"{'median':>8}  {'longest file':30}{'longest function'}"
)


class File(NamedTuple):
    """The lines of one file by kind, and the length of each of its functions."""

    name: str
    lines: int
    code: int
    comments: int
    docstrings: int
    functions: list[tuple[int, str]]


def comment_lines(path: Path) -> set[int]:
    """Return the lines that hold nothing but a comment."""
    with path.open("rb") as file:
        return {
            token.start[0]
            for token in tokenize.tokenize(file.readline)
            if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#")
        }


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the lines of all docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            lines.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def function_lengths(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the length and name of each function, from `def` to its last line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or 0) - node.lineno + 1, node.name


def measure(path: Path) -> File:
    """Measure one file."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    comments, docstrings = comment_lines(path), docstring_lines(tree)
    written = {number for number, line in enumerate(text.split("\n"), 1) if line.strip()}
    return File(
        name=path.name,
        lines=text.count("\n"),
        code=len(written - comments - docstrings),
        comments=len(comments),
        docstrings=len(docstrings),
        functions=list(function_lengths(tree)),
    )


def folders_of(home: Path) -> Iterator[tuple[str, list[File]]]:
    """Yield the measured files of each folder of the package, of the tests and of the tools."""
    package = home / "mcp_trio"
    yield "mcp_trio/*.py", [measure(path) for path in sorted(package.glob("*.py"))]
    folders = sorted(path for path in package.iterdir() if path.is_dir())
    for folder in [*folders, home / "tests", home / "tools"]:
        files = [measure(path) for path in sorted(folder.rglob("*.py"))]
        if files:
            yield str(folder.relative_to(home)), files


def row(name: str, files: Iterable[File]) -> str:
    """Put the measures of some files on one line."""
    files = list(files)
    lengths = sorted(function for file in files for function in file.functions)
    longest_file = max(files, key=lambda file: file.lines)
    length, function = lengths[-1] if lengths else (0, "-")
    median = statistics.median(length for length, _ in lengths) if lengths else 0
    sums = [sum(getattr(file, kind) for file in files) for kind in COUNTED]
    return (
        f"{name:22}{len(files):>6}"
        + "".join(f"{count:>11}" for count in sums)
        + f"{median:>8g}  {longest_file.lines:>5} {longest_file.name:24}{length:>5} {function}"
    )


def outgrown(folders: Iterable[tuple[str, list[File]]]) -> Iterator[str]:
    """Yield each file and function beyond the aims."""
    for folder, files in folders:
        for file in files:
            if file.lines > FILE_LINES_AIM:
                yield f"{folder}: {file.name} has {file.lines} lines"
            for length, name in file.functions:
                if length > FUNCTION_LINES_AIM:
                    yield f"{folder}: {name} in {file.name} has {length} lines"


def print_depth(package: Path) -> None:
    """Print the longest chain of imports."""
    graph = own_files(read_imports(package), package.name)
    if find_circle(graph):
        print("import depth: endless, there is a circle")
        return
    chain = longest_chain(graph)
    print(f"import depth: {len(chain)} files ({' > '.join(chain)})")


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure the house.")
    parser.add_argument("home", nargs="?", type=Path, default=HOME, help="the project's folder")
    home = parser.parse_args(arguments).home
    folders = list(folders_of(home))
    package = [file for name, files in folders if name.startswith("mcp_trio") for file in files]
    print(HEADING)
    for name, files in folders:
        print(row(name, files))
    print(row("the package", package))
    for line in outgrown(folders):
        print(line)
    print_depth(home / "mcp_trio")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
