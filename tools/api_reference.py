"""A hook of mkdocs that inserts the names of every public module into the API reference."""

import re
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).resolve().parent.parent / "mcp_trio"
MARKER: Final = re.compile(r"^<!-- the names of mcp_trio\.(\w+) -->$", re.MULTILINE)
NAME: Final = re.compile(r"^from (\S+) import \w+ as (\w+)$", re.MULTILINE)
HIDDEN: Final = "{show_root_heading: false, show_root_toc_entry: false, members: false}"


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the markers in a page; mkdocs calls this for each page that it builds."""
    return MARKER.sub(lambda marker: reference(marker[1]), markdown)


def reference(module: str) -> str:
    """Return the docstring of a public module, and the names in its stub without the exceptions.

    The reference shows all exceptions at `mcp_trio.errors`.
    """
    names = NAME.findall((PACKAGE / f"{module}.pyi").read_text(encoding="utf-8"))
    lines = [f"::: mcp_trio.{module}", f"    options: {HIDDEN}", ""]
    lines += [f"::: mcp_trio.{module}.{name}" for source, name in names if source != ".errors"]
    return "\n".join(lines)
