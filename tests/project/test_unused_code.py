"""Calls that stand nowhere in the package."""

import ast
from pathlib import Path

import pytest

import mcp_trio

pytestmark = pytest.mark.slow

FILES = sorted(Path(mcp_trio.__file__).parent.rglob("*.py"))
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "webbrowser.open", "os.startfile"}


def calls_of_shells(source):
    """The calls in a file that give words to a shell, or to who opens URLs."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            has_shell = any(each.arg == "shell" for each in node.keywords)
            if has_shell or name in SHELLS or name.startswith("webbrowser."):
                yield ast.unparse(node)


@pytest.mark.requirement("SEC-02")
def test_no_shell_is_given_a_command_and_no_browser_a_url():
    assert len(FILES) > 100
    for file in FILES:
        assert list(calls_of_shells(file.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "source", ["os.system(url)", "subprocess.run(x, shell=True)", "webbrowser.open_new(url)"]
)
def test_one_would_be_found(source):
    assert list(calls_of_shells(source)) == [source]
