"""Regular expressions of the package that CPython 3.11.0 to 3.11.4 would match wrongly."""

import ast
import re
from pathlib import Path

import mcp_trio

PACKAGE = Path(mcp_trio.__file__).parent
POSSESSIVE_GROUP = re.compile(r"\)(?:[*+?]|\{[0-9,]+\})\+")

# The rest of a JSON string: each group has only one way to match, which those versions get right.
KNOWN = r'(?:\\.[^"\\]*+)*+'


def texts_in(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            yield node.value if isinstance(node.value, str) else node.value.decode("latin-1")


# https://github.com/python/cpython/issues/106052: such a group gives up when it should try another
# way to match, and a search for secrets then misses them. An atomic group, `(?>…)`, is right.
def test_no_pattern_has_a_possessive_group():
    found = [
        (file.name, text)
        for file in PACKAGE.rglob("*.py")
        for text in texts_in(file)
        if "(?" in text and POSSESSIVE_GROUP.search(text.replace(KNOWN, ""))
    ]
    assert found == []
