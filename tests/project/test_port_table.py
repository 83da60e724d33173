"""The table of FastMCP's features: the page, the code that it shows, and what is missing."""

import ast

import attrs
import names
import port_table
import pytest
from port_rows import GROUPS, ROWS, with_our_names
from port_table import HERE, PAGE, Outcome, has, page_with_tables, problems, run_mcp_trio

HELPERS = {"failure", "called", "contents_of"}


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
    page = names.PAGE.read_text(encoding="utf-8")
    assert names.page_with_names(page) == page, "run tools/port/port_table.py --page"


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
def test_what_is_missing_does_not_exist(name):
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
        f"before\n{port_table.BEGIN}stale line\n{port_table.END}after\n", encoding="utf-8"
    )
    monkeypatch.setattr(port_table, "PAGE", path)
    monkeypatch.setattr("sys.argv", ["port_table.py", "--page"])
    port_table.main()
    page = path.read_text(encoding="utf-8")
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    assert "stale line" not in page
