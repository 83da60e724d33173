"""Public servers that are ported: the page, the patches, and how outcomes are compared."""

import subprocess

import attrs
import pytest
from ported_servers import (
    PAGE,
    list_problems,
    make_port,
    masked,
    page_with_table,
    patch_of,
    size_of,
    step_problems,
)
from server_rows import SERVERS, PortedServer, call, failing

SERVER = PortedServer(
    name="adder",
    version="1.0",
    licence="MIT",
    framework=["fastmcp==1.0"],
    folder="adder",
    lines=2,
    steps=[call("add", a=1)],
    not_called={"now": "it depends on the time"},
    masked=frozenset({"time"}),
)
PATCH = """\
Port adder.

--- a/adder/tools.py
+++ b/adder/tools.py
@@ -1,2 +1,3 @@
-from fastmcp import FastMCP
+import trio
+from mcp_trio import Server
 DONE = True
"""


def text(value):
    return {"content": [{"type": "text", "text": value}]}


def test_the_page_has_the_table_of_the_servers():
    page = PAGE.read_text(encoding="utf-8")
    assert page_with_table(page) == page, "run tools/port/ported_servers.py --page"


@pytest.mark.parametrize("server", SERVERS.values(), ids=list(SERVERS))
def test_a_patch_names_the_package_its_version_and_its_licence(server):
    head, _, diff = patch_of(server).read_text(encoding="utf-8").partition("\n--- ")
    assert f"{server.name} {server.version} " in head
    assert f"licence: {server.licence}" in head
    assert diff.startswith(f"a/{server.folder}/")


@pytest.mark.parametrize("server", SERVERS.values(), ids=list(SERVERS))
def test_a_step_that_differs_gives_the_reason(server):
    assert all(bool(step.differs) is bool(step.reason) for step in server.steps)
    assert not server.tools & server.not_called.keys()
    assert all("==" in package for package in server.packages)


def test_the_size_of_a_patch_leaves_its_headers_out():
    assert size_of(PATCH) == (1, 2)


def test_a_port_is_a_patched_copy_also_inside_a_repository(tmp_path):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    package, patch, folder = tmp_path / "adder", tmp_path / "adder.patch", tmp_path / "in" / "port"
    (package / "__pycache__").mkdir(parents=True)
    (package / "tools.py").write_text("from fastmcp import FastMCP\nDONE = True\n", "utf-8")
    patch.write_text(PATCH, encoding="utf-8")
    for _ in range(2):  # the folder is made anew
        make_port(package, patch, folder)
        ported = (folder / "adder" / "tools.py").read_text(encoding="utf-8")
        assert ported == "import trio\nfrom mcp_trio import Server\nDONE = True\n"
    assert [path.name for path in (folder / "adder").iterdir()] == ["tools.py"]
    (package / "tools.py").write_text("DONE = True\n", "utf-8")
    with pytest.raises(subprocess.CalledProcessError):
        make_port(package, patch, folder)


def test_members_are_masked_also_in_texts_whose_format_is_kept():
    members = frozenset({"time", "at"})
    assert masked({"time": 1, "a": [{"at": 2, "b": 3}]}, members) == {
        "time": "masked",
        "a": [{"at": "masked", "b": 3}],
    }
    text = '{"time":1.5,"b": {"at": "2026-01-01, noon"},"timer":3}'
    assert masked(text, members) == '{"time":masked,"b": {"at": masked},"timer":3}'
    assert masked(text, frozenset()) == text


def test_a_difference_is_reported_if_the_step_does_not_name_it():
    assert step_problems(SERVER, [text('{"time": 1}')], [text('{"time": 2}')]) == []
    (problem,) = step_problems(SERVER, [text("1")], [text("2")])
    assert problem.startswith('tools/call {"name": "add", "arguments": {"a": 1}}: content: differs')
    explained = attrs.evolve(
        SERVER, steps=[attrs.evolve(SERVER.steps[0], differs=frozenset({"content"}), reason="why")]
    )
    assert step_problems(explained, [text("1")], [text("2")]) == []
    (problem,) = step_problems(explained, [text("1")], [text("1")])
    assert "no difference any more" in problem


def test_both_texts_of_an_exception_end_with_it():
    server = attrs.evolve(SERVER, steps=[failing("no such number", "add", a="x")])
    theirs, ours = (
        text("Error calling tool 'add': no such number"),
        text("error in add: no such number"),
    )
    assert step_problems(server, [theirs], [ours]) == []
    (problem,) = step_problems(server, [theirs], [text("internal error in add")])
    assert "ported: no text ends with ': no such number'" in problem
    assert step_problems(server, [{"error": [1, "no"]}], [ours])


def test_tools_that_the_row_leaves_out_are_reported():
    listed = {"add": [["a"], ["a"]], "now": [[], []]}
    assert list_problems(SERVER, listed, listed) == []
    more = {**listed, "subtract": [[], []]}
    assert list_problems(SERVER, more, more) == ["subtract: the row does not name this tool"]
    (problem,) = list_problems(SERVER, listed, {**listed, "add": [["a"], []]})
    assert problem.startswith("add: the parameters differ")
