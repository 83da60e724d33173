"""The modules of a target: which are imported anew for a replay, and which are not."""

import importlib
import sys
import sysconfig

import pytest

from mcp_trio._replay.targets import fresh_server, own_files

SERVER = """
import {modules}
from mcp_trio import Server

server = Server("harbour")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a server; the path and the modules of the interpreter are restored later."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_module_beside_the_server_is_imported_anew(folder):
    (folder / "pier.py").write_text("")
    (folder / "server.py").write_text(SERVER.format(modules="pier"))
    with fresh_server(f"{folder}/server.py"):
        first = sys.modules["pier"]
        assert own_files(f"{folder}/server.py") == [f"{folder}/pier.py", f"{folder}/server.py"]
    with fresh_server(f"{folder}/server.py"):
        assert sys.modules["pier"] is not first


@pytest.mark.parametrize("is_installed", [True, False])
def test_a_library_behind_a_symbolic_link_is_not_imported_anew(folder, monkeypatch, is_installed):
    """As uv links an interpreter, and, with `--link-mode=symlink`, the files of a package."""
    stored = folder / "store"
    linked = folder / "venv" / "site-packages" if is_installed else folder / "python"
    stored.mkdir()
    linked.parent.mkdir(exist_ok=True)
    (stored / "pilot.py").write_text("")
    if is_installed:
        linked.mkdir()
        (linked / "pilot.py").symlink_to(stored / "pilot.py")
    else:
        linked.symlink_to(stored)
        monkeypatch.setattr(sysconfig, "get_path", {"stdlib": str(linked)}.get)
    sys.path.append(str(linked))
    imported = importlib.import_module("pilot")
    (folder / "server.py").write_text(SERVER.format(modules="pilot"))
    with fresh_server(f"{folder}/server.py"):
        assert sys.modules["pilot"] is imported
        assert own_files(f"{folder}/server.py") == [f"{folder}/server.py"]


def test_a_file_in_a_package_that_is_not_installed_imports_the_package(folder):
    inner = folder / "harbour" / "north"
    inner.mkdir(parents=True)
    for each in (inner, inner.parent):
        (each / "__init__.py").write_text("")
    (inner / "crane.py").write_text("")
    (inner / "server.py").write_text(SERVER.format(modules="harbour.north.crane"))
    with fresh_server(f"{inner}/server.py"):
        assert f"{inner}/crane.py" in own_files(f"{inner}/server.py")
