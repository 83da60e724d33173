"""The floors are held: each planted break is found, at its file and line, and a clean house stands."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "layers.py"
ROOMS = (
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
BREAKS = {
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
    "sideways": ("_server/side.py", "import mcp_trio._client", "must not import mcp_trio._client"),
    "sideways on the ground": ("errors.py", "import mcp_trio.limits", "import mcp_trio.limits"),
    "impure": ("_journal/clock.py", "import time", "must not import time"),
    "impure in a function": ("errors.py", "def f():\n    import socket", "import socket"),
    "a call": ("_protocol/log.py", "print('x')", "must not call print()"),
    "a method call": ("_jsonrpc/now.py", "x = (lambda d: d.datetime.now())", "d.datetime.now()"),
    "the top face": ("_server/v.py", "from mcp_trio import __version__", "import mcp_trio itself"),
    "work in a face": ("testing.py", "def helper():\n    pass", "a face only re-exports"),
    "a class in a face": ("__init__.py", "class Server:\n    pass", "a face only re-exports"),
    "a room without a floor": ("_attic/__init__.py", "", "stands on no floor"),
    "a file without a floor": ("attic.py", "", "stands on no floor"),
    "no package": ("_session/deep/hole.py", "", "has no __init__.py"),
}


def build_house(folder, files):
    for room in ROOMS:
        (folder / room).mkdir(parents=True)
        (folder / room / "__init__.py").touch()
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def run_tool(folder):
    return subprocess.run(
        [sys.executable, TOOL, folder], capture_output=True, text=True, check=False, cwd="/"
    )


def test_a_clean_house_stands_and_its_longest_chain_is_told(tmp_path):
    done = run_tool(build_house(tmp_path / "mcp_trio", CLEAN))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout
    assert "longest chain of imports: 5 files, within the aim" in done.stdout
    assert "testing > _session.session > _protocol.states > _jsonrpc.lines > limits" in done.stdout


@pytest.mark.parametrize(("file", "text", "said"), BREAKS.values(), ids=BREAKS.keys())
def test_a_planted_break_is_found(tmp_path, file, text, said):
    done = run_tool(build_house(tmp_path / "mcp_trio", {**CLEAN, file: text}))
    assert done.returncode == 1, done.stdout + done.stderr
    module = "mcp_trio." + file.removesuffix(".py").replace("/", ".")
    lines = [line for line in done.stdout.splitlines() if line.startswith("mcp_trio")]
    found = [line for line in lines if said in line]
    assert len(found) == 1, done.stdout
    assert module.rpartition(".")[0] in found[0]
    assert found[0].split(":")[1].isdigit()


def test_a_break_fails_only_the_floor_that_it_stands_on(tmp_path):
    file, text, _ = BREAKS["upward"]
    done = run_tool(build_house(tmp_path / "mcp_trio", {**CLEAN, file: text}))
    failed = [line for line in done.stdout.splitlines() if line.strip().startswith("FAIL")]
    assert [line.split()[1] for line in failed] == ["types"]


def test_a_circle_inside_one_folder_is_found(tmp_path):
    circle = {
        "_session/one.py": "from mcp_trio._session import two\n",
        "_session/two.py": "def f():\n    from mcp_trio._session import one\n",
    }
    done = run_tool(build_house(tmp_path / "mcp_trio", CLEAN | circle))
    assert done.returncode == 1
    assert "imports in a circle: mcp_trio._session." in done.stdout
