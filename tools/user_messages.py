"""List every message of the package that a user can see, with its file and line.

Usage: python tools/user_messages.py [PATH ...]

The list holds the texts of raised exceptions, click help and usage texts, logger calls, warnings,
and printed output. Each text appears once; a value that is put into a text appears as `{…}`.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "mcp_trio"
LOGGER_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
PRINTING = {"echo", "secho", "print", "print_line", "warn", "fail", "write"}
CLICK_KEYWORDS = {"help", "short_help", "epilog", "metavar", "usage", "prompt"}
ERROR_SUFFIXES = ("Error", "Exception", "Exit", "Usage", "Parameter", "Warning", "Divergence")


def template(node: ast.expr) -> str | None:
    """Return the text of a string expression, or None for any other expression."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(template(value) or "{…}" for value in values)
        case ast.BinOp(left=left, op=ast.Add() | ast.Mod(), right=right):
            parts = template(left), template(right)
            return None if parts == (None, None) else "".join(part or "{…}" for part in parts)
        case _:
            return None


def strings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the outermost string expressions below `node`, with their lines."""
    text = template(node) if isinstance(node, ast.expr) else None
    if text is not None:
        yield getattr(node, "lineno", 0), text
        return
    for child in ast.iter_child_nodes(node):
        yield from strings(child)


def callee(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def is_message(text: str) -> bool:
    return " " in text.strip() and any(letter.isalpha() for letter in text)


def messages(tree: ast.Module, *, every_text: bool) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each message in one module.

    With `every_text`, all texts except docstrings count: the modules of the command line and of
    the reports compose what they print from strings in functions and tables.
    """
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                first = node.body[0] if node.body else None
                if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                    docstrings.add(id(first.value))
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
                    isinstance(decorator, ast.Call) and callee(decorator) in {"command", "group"}
                    for decorator in node.decorator_list
                ):
                    yield node.lineno, ast.get_docstring(node) or ""
            case ast.Raise(exc=ast.Call() as call):
                yield from strings(call)
            case ast.Call():
                name = callee(node)
                if name in LOGGER_METHODS | PRINTING or name.endswith(ERROR_SUFFIXES):
                    for argument in [*node.args, *(word.value for word in node.keywords)]:
                        yield from strings(argument)
                for keyword in node.keywords:
                    if keyword.arg in CLICK_KEYWORDS:
                        yield from strings(keyword.value)
            case _:
                pass
    if every_text:
        for node in ast.iter_child_nodes(tree):
            yield from _texts_except(node, docstrings)


def _texts_except(node: ast.AST, docstrings: set[int]) -> Iterator[tuple[int, str]]:
    if id(node) in docstrings:
        return
    text = template(node) if isinstance(node, ast.expr) else None
    if text is not None:
        yield getattr(node, "lineno", 0), text
        return
    for child in ast.iter_child_nodes(node):
        yield from _texts_except(child, docstrings)


def main(arguments: list[str]) -> None:
    roots = [Path(argument).resolve() for argument in arguments] or [PACKAGE]
    files = sorted(
        file for root in roots for file in (root.rglob("*.py") if root.is_dir() else [root])
    )
    seen: set[str] = set()
    for file in files:
        every_text = file.parent.name in {"_cli", "_replay"}
        found = messages(ast.parse(file.read_text()), every_text=every_text)
        for line, text in sorted(found):
            message = " ".join(text.split())
            if is_message(message) and message not in seen:
                seen.add(message)
                print(f"{file.relative_to(PACKAGE.parent)}:{line}: {message}")


if __name__ == "__main__":
    main(sys.argv[1:])
