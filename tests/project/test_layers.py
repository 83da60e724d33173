"""The checks of the code: layers of imports, and functions that are never called."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mcp_trio

pytestmark = pytest.mark.slow


TOOL = Path(__file__).parents[2] / "tools" / "layers.py"
PACKAGES = (
    *("_cli", "examples", "_replay", "_testing", "_server", "_client", "_session"),
    *("_transports", "_recorder", "_protocol", "_journal", "_jsonrpc"),
)
CLEAN = {
    "__init__.py": '"""Face."""\n',
    "errors.py": "",
    "limits.py": "",
    "_version.py": "",
    "types.py": "import msgspec\n",
    "testing.py": "from mcp_trio._session import session\n",
    "_jsonrpc/lines.py": "import re\nfrom mcp_trio import limits\n",
    "_session/session.py": "import trio\nfrom mcp_trio._protocol import states\n",
    "_protocol/states.py": "from mcp_trio._jsonrpc import lines\n",
}
FAULTS = {
    "upward": ("_jsonrpc/up.py", "from mcp_trio._session import session", "_session.session"),
    "inside a function": (
        "_jsonrpc/up.py",
        "def late():\n    from mcp_trio._session import session",
        "_session.session",
    ),
    "for type checkers": (
        "_jsonrpc/up.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mcp_trio._session.session",
        "_session.session",
    ),
    "sideways": (
        "_transports/side.py",
        "import mcp_trio._recorder",
        "must not import mcp_trio._recorder",
    ),
    "up within the roles": (
        "_client/up.py",
        "import mcp_trio._server",
        "must not import mcp_trio._server",
    ),
    "sideways in the lowest layer": (
        "errors.py",
        "import mcp_trio.limits",
        "import mcp_trio.limits",
    ),
    "impure": ("_journal/clock.py", "import time", "must not import time"),
    "impure in a function": ("errors.py", "def f():\n    import socket", "import socket"),
    "a call": ("_protocol/log.py", "print('x')", "must not call print()"),
    "a method call": ("_jsonrpc/now.py", "x = (lambda d: d.datetime.now())", "d.datetime.now()"),
    "the top level": (
        "_server/v.py",
        "from mcp_trio import __version__",
        "must not import mcp_trio",
    ),
    "a function that re-exports nothing": (
        "testing.py",
        "def f():\n    pass",
        "may only re-export",
    ),
    "a class beside re-exports": ("__init__.py", "class A:\n    pass", "may only re-export"),
    "a package without a layer": ("_attic/__init__.py", "", "is in no layer"),
    "a module without a layer": ("attic.py", "", "is in no layer"),
    "a folder without __init__": ("_session/deep/hole.py", "", "has no __init__.py"),
}


def write_package(folder, files):
    for package in PACKAGES:
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def run_tool(folder):
    return subprocess.run(
        [sys.executable, TOOL, folder], capture_output=True, text=True, check=False, cwd="/"
    )


def test_a_clean_package_passes_and_its_longest_import_chain_is_printed(tmp_path):
    done = run_tool(write_package(tmp_path / "mcp_trio", CLEAN))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout
    assert "longest chain of imports: 5 modules" in done.stdout
    assert "testing > _session.session > _protocol.states > _jsonrpc.lines > limits" in done.stdout


@pytest.mark.parametrize(("file", "text", "expected"), FAULTS.values(), ids=FAULTS.keys())
def test_a_planted_fault_is_found(tmp_path, file, text, expected):
    done = run_tool(write_package(tmp_path / "mcp_trio", {**CLEAN, file: text}))
    assert done.returncode == 1, done.stdout + done.stderr
    module = "mcp_trio." + file.removesuffix(".py").replace("/", ".")
    lines = [line for line in done.stdout.splitlines() if line.startswith("mcp_trio")]
    found = [line for line in lines if expected in line]
    assert len(found) == 1, done.stdout
    assert module.rpartition(".")[0] in found[0]
    assert found[0].split(":")[1].isdigit()


def test_a_fault_fails_only_its_own_layer(tmp_path):
    file, text, _ = FAULTS["upward"]
    done = run_tool(write_package(tmp_path / "mcp_trio", {**CLEAN, file: text}))
    failed = [line for line in done.stdout.splitlines() if line.strip().startswith("FAIL")]
    assert [line.split()[1] for line in failed] == ["types"]


def test_an_import_cycle_inside_one_package_is_found(tmp_path):
    cycle = {
        "_session/one.py": "from mcp_trio._session import two\n",
        "_session/two.py": "def f():\n    from mcp_trio._session import one\n",
    }
    done = run_tool(write_package(tmp_path / "mcp_trio", CLEAN | cycle))
    assert done.returncode == 1
    assert "import cycle: mcp_trio._session." in done.stdout


def test_type_only_imports_may_form_a_cycle_inside_one_package(tmp_path):
    cycle = {
        "_session/one.py": "from mcp_trio._session import two\n",
        "_session/two.py": (
            "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    from mcp_trio._session import one\n"
        ),
    }
    done = run_tool(write_package(tmp_path / "mcp_trio", CLEAN | cycle))
    assert done.returncode == 0, done.stdout


# Functions that are never called.


FILES = sorted(Path(mcp_trio.__file__).parent.rglob("*.py"))
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "webbrowser.open", "os.startfile"}


def calls_of_shells(source):
    """Return the calls in a file that pass text to a shell, or open URLs."""
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
