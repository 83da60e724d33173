"""The measures count what they say."""

import sizes

SOURCE = '''"""Module.

Two lines of it count as three."""

# A comment.
def long():
    """Docstring."""
    text = """
# no comment
"""  # a comment beside code counts as code
    return text


class Thing:
    async def short(self):
        return "x"
'''


def test_each_line_is_counted_as_one_kind(tmp_path):
    path = tmp_path / "thing.py"
    path.write_text(SOURCE, encoding="utf-8")
    measured = sizes.measure(path)
    assert (measured.lines, measured.docstrings, measured.comments) == (16, 4, 1)
    assert measured.code == 8
    assert sorted(measured.functions) == [(2, "short"), (6, "long")]


def test_files_and_functions_beyond_the_aims_are_named():
    file = sizes.File("big.py", 501, 1, 1, 1, [(61, "endless"), (60, "fine")])
    assert list(sizes.outgrown([("room", [file])])) == [
        "room: big.py has 501 lines",
        "room: endless in big.py has 61 lines",
    ]


def test_a_row_names_the_longest_file_and_function():
    short = sizes.File("a.py", 3, 1, 1, 1, [(1, "f"), (3, "g")])
    long = sizes.File("b.py", 9, 4, 3, 2, [(8, "h")])
    assert sizes.row("room", [short, long]).split() == [
        *("room", "2", "12", "5", "4", "3", "3"),
        *("9", "b.py", "8", "h"),
    ]


def test_the_table_ends_with_the_package_and_its_import_depth(tmp_path, capsys):
    for folder in ("mcp_trio/_room", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "mcp_trio" / "__init__.py").touch()
    (tmp_path / "mcp_trio" / "_room" / "__init__.py").touch()
    assert sizes.main([str(tmp_path)]) == 0
    *_, package, depth = capsys.readouterr().out.splitlines()
    assert package.split()[:3] == ["the", "package", "2"]
    assert depth.startswith("import depth: ")
