"""Which server a TARGET names, and what is said when it names none."""

import sys

import pytest

from mcp_trio._cli.options import TargetError, load_server
from mcp_trio.examples import weather

TWO_SERVERS = """
from mcp_trio import Server
from first import number
one, two = Server(f"one of {number}"), Server("two")
again = one
name = "no server"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with people's code, to work in; what it imports is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first.py").write_text("number = 2\n")
    (tmp_path / "servers.py").write_text(TWO_SERVERS)
    (tmp_path / "only.py").write_text(
        "from mcp_trio import Server\nserver = same = Server('only')\n"
    )
    return tmp_path


def rejection(target):
    with pytest.raises(TargetError) as caught:
        load_server(target)
    assert caught.value.exit_code == 2
    return caught.value.message


def test_a_module_names_its_only_server():
    assert load_server("mcp_trio.examples.weather") is weather.server


@pytest.mark.usefixtures("folder")
def test_a_module_of_the_working_folder_is_found():
    assert load_server("only").name == "only"


def test_a_file_is_found_from_anywhere_and_imports_its_neighbours(folder, monkeypatch):
    monkeypatch.chdir("/")
    assert load_server(f"{folder}/servers.py:one").name == "one of 2"


@pytest.mark.usefixtures("folder")
def test_two_names_of_one_server_are_one_server():
    assert load_server("only.py").name == "only"


SCRIPT = """
from mcp_trio import Server
server = Server('script')
if __name__ == '__main__':
    raise SystemExit('ran')
"""


def test_a_file_is_not_run_as_a_script(folder):
    (folder / "script.py").write_text(SCRIPT)
    assert load_server("script.py").name == "script"


TYPED = """
from __future__ import annotations
import msgspec
from mcp_trio import Server
server = Server('typed')
class Point(msgspec.Struct):
    x: int
    next: Point | None = None
assert msgspec.convert({'x': 1}, Point).x == 1
"""


def test_classes_of_a_file_find_their_module(folder):
    (folder / "typed.py").write_text(TYPED)
    assert load_server("typed.py").name == "typed"


@pytest.mark.usefixtures("folder")
def test_several_servers_are_listed():
    assert rejection("servers.py") == (
        "servers.py defines 2 servers; choose one with servers.py:object;"
        " servers in this module: one, two, again"
    )


@pytest.mark.usefixtures("folder")
def test_a_module_without_a_server_says_so():
    assert rejection("first") == "first defines no Server at its top level"


@pytest.mark.usefixtures("folder")
def test_an_object_that_is_no_server_is_rejected_with_what_it_is():
    assert rejection("servers.py:name") == (
        "servers.py:name is not a Server but an object of type str; servers in this module: one, two, again"
    )
    assert "servers.py has no object 'three'; servers in this module:" in rejection(
        "servers.py:three"
    )


@pytest.mark.usefixtures("folder")
def test_what_does_not_exist_is_named():
    assert rejection("missing.py") == "missing.py: no such file"
    assert rejection("missing") == "missing: no such module; a file name must end with .py"
    assert (
        rejection("missing.deeper")
        == "missing.deeper: no such module; a file name must end with .py"
    )


@pytest.mark.parametrize("target", ["", ".only", "./only", ":server", "a b"])
def test_what_can_be_no_modules_name_is_told_so(target):
    place = target.partition(":")[0]
    assert rejection(target) == f"{place!r} is not a module name; a file name must end with .py"


@pytest.mark.parametrize("target", ["broken.py", "broken"])
@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import no_such_thing", "No module named 'no_such_thing'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def", "SyntaxError"),
    ],
)
def test_code_that_cannot_be_imported_shows_its_own_traceback_only(folder, target, code, text):
    (folder / "broken.py").write_text(code)
    said = rejection(target)
    assert said.startswith(f"{target} cannot be imported:\n")
    assert text in said
    assert "importlib" not in said
    assert "_cli" not in said
