"""The table of FastMCP's features: the page, the code that it shows, and what is missing."""

import ast
import subprocess

import attrs
import fastmcp_names
import port_table
import pytest
from port_rows import GROUPS, ROWS, with_our_names
from port_table import HERE, PAGE, Outcome, has, page_with_tables, problems, run_mcp_trio
from ported_servers import (
    list_problems,
    make_port,
    masked,
    page_with_table,
    patch_of,
    size_of,
    step_problems,
)
from server_rows import SERVERS, PortedServer, call, failing

HELPERS = {"failure", "called", "contents_of", "asked"}


def sources(path):
    """The text of each public coroutine function of a file, by its name."""
    text = path.read_text(encoding="utf-8")
    found = {
        node.name: ast.get_source_segment(text, node)
        for node in ast.parse(text).body
        if isinstance(node, ast.AsyncFunctionDef) and not node.name.startswith("_")
    }
    return {name: source for name, source in found.items() if name not in HELPERS}


SAME, WITH_FASTMCP, WITH_MCP_TRIO = (
    sources(HERE / f"{name}.py") for name in ("same_rows", "in_fastmcp", "in_mcp_trio")
)


def lines_not_in(lines, *texts):
    return [line for line in lines if not any(line in text for text in texts)]


def test_the_page_has_the_tables_of_the_rows():
    page = PAGE.read_text(encoding="utf-8")
    assert page_with_tables(page) == page, "run tools/port/port_table.py --page"


def test_the_page_of_names_has_the_tables():
    page = fastmcp_names.PAGE.read_text(encoding="utf-8")
    assert fastmcp_names.page_with_names(page) == page, "run tools/port/port_table.py --page"


def test_each_row_has_its_functions_and_each_function_its_row():
    assert not SAME.keys() & {*WITH_FASTMCP, *WITH_MCP_TRIO}
    assert sorted({*SAME, *WITH_FASTMCP}) == sorted(ROWS)
    assert sum(map(len, GROUPS.values())) == len(ROWS)
    without_ours = {name for name, row in ROWS.items() if row.absent} - set(WITH_MCP_TRIO)
    assert sorted({*SAME, *WITH_MCP_TRIO, *without_ours}) == sorted(ROWS)


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_the_lines_of_a_row_are_in_its_functions(row):
    scripts = [(HERE / f"greeter_{name}.py").read_text("utf-8") for name in ("fastmcp", "mcp_trio")]
    if row.name in SAME:
        theirs = [with_our_names(line) for line in row.fastmcp if line not in scripts[0]]
        assert lines_not_in([*theirs, *row.ours], SAME[row.name], scripts[1]) == []
    else:
        assert lines_not_in(row.fastmcp, WITH_FASTMCP[row.name], scripts[0]) == []
        assert lines_not_in(row.ours, WITH_MCP_TRIO.get(row.name, ""), scripts[1]) == []
    assert "|" not in "".join([row.feature, row.reason, *row.fastmcp, *row.ours])


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_a_row_that_differs_gives_the_reason(row):
    if row.differs or row.verdict == "missing":
        assert row.reason
    assert (row.verdict == "missing") is not bool(row.ours)
    assert (row.verdict == "missing") or not row.absent


@pytest.mark.parametrize("name", [row.absent for row in ROWS.values() if row.absent])
def test_a_name_that_the_table_calls_missing_does_not_exist(name):
    assert not has(name), "change the row of tools/port/port_rows.py, and write its function"


def test_attributes_and_parameters_that_exist_are_found():
    assert has("Server.tool")
    assert has("Server.tool(tags)")
    assert not has("Server.tool(no_such_option)")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SAME, *WITH_MCP_TRIO])
def test_a_row_runs_with_mcp_trio(name):
    assert "failed" not in run_mcp_trio(name).facts


def test_a_difference_is_reported_if_the_row_does_not_name_it():
    row = attrs.evolve(ROWS["ping"], differs=["a"])
    theirs = Outcome({"a": 1, "b": 2}, 0)
    assert problems(row, theirs, Outcome({"a": 3, "b": 2}, 0)) == []
    assert problems(row, theirs, Outcome({"a": 1, "b": 4}, 0)) == [
        "a: no difference any more: FastMCP 1, mcp_trio 1",
        "b: differs: FastMCP 2, mcp_trio 4",
    ]
    assert problems(row, theirs, Outcome({"failed": "why"}, 0)) == ["mcp_trio: why"]
    assert problems(row, Outcome({"failed": "why"}, 0), None) == ["FastMCP: why"]


def test_a_feature_that_exists_by_now_is_reported():
    row = attrs.evolve(ROWS["mount"], absent="Server.tool")
    assert problems(row, Outcome({}, 0), None) == ["mcp_trio has Server.tool now"]


def test_a_row_that_raises_is_reported(monkeypatch):
    async def fail():
        raise ValueError("why")

    import in_mcp_trio

    monkeypatch.setattr(in_mcp_trio, "ping", fail)
    assert run_mcp_trio("ping").facts == {"failed": "ValueError: why"}
    assert run_mcp_trio("a feature that is missing") is None


def test_the_page_that_is_written_keeps_its_text(tmp_path, monkeypatch):
    path = tmp_path / "page.md"
    path.write_text(
        f"before\n{fastmcp_names.BEGIN}stale line\n{fastmcp_names.END}after\n", encoding="utf-8"
    )
    monkeypatch.setattr(port_table, "PAGE", path)
    monkeypatch.setattr("sys.argv", ["port_table.py", "--page"])
    port_table.main()
    page = path.read_text(encoding="utf-8")
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    assert "stale line" not in page


# Public servers that are ported: the page, the patches, and how outcomes are compared.

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
