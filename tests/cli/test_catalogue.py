"""`mcp-trio index`, `find`, `stats` and `copy` of a folder of recordings; `run` with a policy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from mcp_trio import Client
from mcp_trio._system import try_lock
from tests.catalogue.conftest import folder, recordings, s3, s3_process  # noqa: F401 - fixtures

SERVER = """
from mcp_trio import Server
from mcp_trio.errors import ToolError

server = Server("shop")


@server.tool
async def sell(item: str, password: str = "") -> str:
    if item == "gone":
        raise ToolError("sold out")
    return item
"""


def test_find_prints_a_table_files_or_json(invoke, folder):  # noqa: F811
    shown = invoke("find", str(folder), "error:any")
    assert shown.exit_code == 0
    assert "1 protocol, 1 tool" in shown.output
    (file,) = invoke("find", str(folder), "error:any", "--files").output.split()
    (row,) = map(json.loads, invoke("find", str(folder), "error:any", "--json").output.splitlines())
    assert row["file"] == file
    assert invoke("show", file).exit_code == 0
    assert len(invoke("find", str(folder), "--files", "--limit", "2").output.split()) == 2


def test_find_exits_with_1_if_it_finds_nothing_and_with_2_for_a_wrong_query(invoke, folder):  # noqa: F811
    for options in ((), ("--files",), ("--json",)):
        shown = invoke("find", str(folder), "tool:none", *options)
        assert (shown.exit_code, shown.output) == (1, "")
    assert invoke("find", str(folder), "tol:none").exit_code == 2
    assert invoke("find", str(folder), "--files", "--json").exit_code == 2


def test_rows_of_find_are_input_to_other_commands(invoke, folder, s3, tmp_path):  # noqa: F811
    rows = invoke("find", str(folder), "tool:book", "--json").output
    files = [json.loads(line)["file"] for line in rows.splitlines()]
    assert len(files) == 3
    for stdin in (rows, "\n".join(files)):
        shown = invoke("show", "-", "--method", "tools/call", input=stdin).output
        assert [line for line in shown.splitlines() if line.endswith(":")] == [
            f"{file}:" for file in files
        ]
    shown = invoke("show", "-", "--json", "--errors", input=rows).output
    errors = [json.loads(line) for line in shown.splitlines()]
    assert len({row["file"] for row in errors}) == 1
    assert all(row["file"] in files for row in errors)

    two = "\n".join(files[:2])
    assert invoke("diff", "-", "-", input=two).output == invoke("diff", *files[:2]).output
    assert invoke("diff", files[0], "-", input=files[0]).exit_code == 0
    shown = invoke("diff", "-", "-", input=rows)
    assert (shown.exit_code, "stdin names 3 recordings for 2 -" in shown.output) == (2, True)

    checked = invoke("check", "-", input=rows)
    assert (checked.exit_code, checked.output.count(": complete")) == (0, 3)
    checked = invoke("check", "-", input=f"{files[0]}x\n{rows}")
    assert (checked.exit_code, checked.output.count(": complete")) == (2, 3)
    assert invoke("scan", "-", input=rows).stderr.count("without redaction") == 3

    copies = tmp_path / "copies"
    copied = invoke("copy", "-", str(copies), input=rows)
    assert (copied.exit_code, copied.output) == (0, "3 files copied, 0 were there\n")
    for path in map(Path, files):
        assert (copies / path.name).read_bytes() == path.read_bytes()
    assert invoke("copy", "-", "s3://shop/some", input=rows).output == "3 files copied\n"
    back = invoke("copy", "s3://shop/some", str(tmp_path / "back"))
    assert back.output == "3 files copied, 0 were there\n"


def test_what_cannot_be_copied_is_named_and_the_others_are_copied(invoke, folder, tmp_path):  # noqa: F811
    first, second, third, _ = sorted(folder.glob("*.mcprec.jsonl"))
    copies = tmp_path / "copies"
    copies.mkdir()
    (copies / first.name).write_text("other")
    names = f"{first}\n{second}x\n{third}\n"
    shown = invoke("copy", "-", str(copies), input=names)
    assert (shown.exit_code, shown.stdout) == (1, "1 files copied, 0 were there\n")
    assert "is another file of the same name" in shown.stderr
    assert f"cannot copy {second}x" in shown.stderr
    shown = invoke("copy", "-", f"file://{copies}", input=f"{second}\n{second}x\n")
    assert (shown.exit_code, shown.stdout) == (1, "1 files copied\n")
    assert f"cannot upload {second}x: no such recording" in shown.stderr
    with second.open("rb") as file:
        assert try_lock(file.fileno())
        for target in (str(tmp_path / "new"), f"file://{folder}"):
            shown = invoke("copy", "-", target, input=str(second))
            assert (shown.exit_code, "still being recorded" in shown.stderr) == (1, True)


@pytest.mark.parametrize(
    "command",
    [
        *(("show", "-"), ("check", "-"), ("scan", "-")),
        *(("diff", "-", "-"), ("redact", "-", "--in-place"), ("copy", "-", "new")),
    ],
)
def test_stdin_that_names_no_recording_is_an_error(invoke, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    shown = invoke(*command, input="")
    assert (shown.exit_code, shown.output) == (1, "Error: stdin names no recording\n")
    shown = invoke(*command, input='{"name": "x"}')
    assert (shown.exit_code, "line 1 of stdin names no recording" in shown.output) == (2, True)


def test_stdin_can_name_any_file(folder, tmp_path):  # noqa: F811
    name = os.fsencode(tmp_path) + b"/caf\xe9.mcprec.jsonl"
    Path(os.fsdecode(name)).write_bytes(min(folder.glob("*.mcprec.jsonl")).read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "mcp_trio", "check", "-"],
        check=False,
        capture_output=True,
        input=name,
        env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"},
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"caf\udce9.mcprec.jsonl: complete" in done.stdout


def test_index_counts_the_recordings_and_names_what_is_left_out(invoke, folder):  # noqa: F811
    (folder / "odd.mcprec.jsonl").write_text("odd\n")
    shown = invoke("index", str(folder), "--arguments")
    assert "4 recordings" in shown.output
    assert "odd.mcprec.jsonl is left out" in shown.output
    assert invoke("find", str(folder), "gallery", "--no-update").exit_code == 0


@pytest.mark.parametrize("has_file", [True, False])
def test_a_folder_that_cannot_be_written_is_searched_in_memory(
    invoke,
    folder,  # noqa: F811
    monkeypatch,
    has_file,
):
    if has_file:
        assert invoke("index", str(folder)).exit_code == 0
        newest = max(folder.glob("*.mcprec.jsonl"))
        newest.rename(newest.with_name("later.mcprec.jsonl"))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
    assert len(invoke("find", str(folder), "--files").output.split()) == 4
    assert "later.mcprec" in invoke("find", str(folder), "--files").output or not has_file
    assert "4 recordings" in invoke("stats", str(folder)).output
    shown = invoke("index", str(folder))
    assert (shown.exit_code, "cannot be written" in shown.output) == (2, True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_damaged_catalogue_of_a_folder_that_cannot_be_written_is_ignored(
    invoke,
    folder,  # noqa: F811
    monkeypatch,
):
    (folder / "catalogue.sqlite").write_bytes(b"no database at all" * 100)
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
    assert len(invoke("find", str(folder), "--files").output.split()) == 4


def test_stats_prints_a_table_json_or_a_page(invoke, folder, tmp_path):  # noqa: F811
    shown = invoke("stats", str(folder)).output
    assert "4 recordings" in shown
    assert "resources/read" in shown
    assert json.loads(invoke("stats", str(folder), "--json").output)["errors"] == 2
    file = tmp_path / "stats.html"
    assert invoke("stats", str(folder), "tool:pay", "--page", str(file)).exit_code == 0
    assert "tool:pay</title>" in file.read_text()
    assert invoke("stats", str(folder), "--page", str(tmp_path / "no" / "file")).exit_code == 2


# The options of `run`.


def calls(tmp_path, *options):
    """Call a served tool with two items, each in a session of its own."""
    (tmp_path / "shop.py").write_text(SERVER)
    command = [sys.executable, "-m", "mcp_trio", "run", str(tmp_path / "shop.py"), *options]

    async def main():
        for item in ("pen", "gone"):
            async with Client(command, raise_tool_errors=False) as client:
                arguments = {"item": item, "password": "red-tulip-97"}
                await client.call_tool("sell", arguments)

    trio.run(main)


def test_run_keeps_only_sessions_with_errors_if_the_rate_is_0(invoke, tmp_path):
    kept = tmp_path / "new" / "kept"
    calls(tmp_path, "--record", str(kept), "--keep-rate", "0", "--max-days", "30")
    shown = invoke("find", str(kept), "--json")
    (row,) = map(json.loads, shown.output.splitlines())
    assert row["kept"] == ["error"]
    for path in kept.iterdir():
        assert b"red-tulip-97" not in path.read_bytes()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--keep-rate", "0"), "recording options need --record PATH"),
        (("--record", "shop.py", "--max-days", "3"), "need a folder, and shop.py is a file"),
        (("--record", "shop.py/x", "--max-days", "3"), "cannot create the folder"),
        (("--record", "new", "--keep-slow", "1", "--overwrite"), "remove overwrite=True"),
        (("--record", "new", "--keep-rate", "2"), "--keep-rate"),
    ],
)
def test_options_of_a_policy_that_cannot_be_used_are_reported(
    invoke, tmp_path, monkeypatch, options, error
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(SERVER)
    shown = invoke("run", "shop.py", *options)
    assert shown.exit_code == 2
    assert error in shown.output


# Copies in a store.


def test_recordings_are_copied_to_a_store_and_back(invoke, folder, s3, tmp_path):  # noqa: F811
    copied = invoke("copy", str(folder), "s3://shop/desk")
    assert (copied.exit_code, copied.output) == (0, "4 files copied\n")
    assert invoke("copy", str(folder), "s3://shop/desk").output == "0 files copied\n"
    copies = str(tmp_path / "copies")
    none = invoke("copy", "s3://shop/desk", copies, "--name", "none*")
    assert none.output == "0 files copied, 0 were there\n"
    back = invoke("copy", "s3://shop/desk", copies)
    assert (back.exit_code, back.output) == (0, "4 files copied, 0 were there\n")
    (row,) = map(json.loads, invoke("find", copies, "error:any", "--json").output.splitlines())
    assert row["errors"] == 2


def test_a_store_that_rejects_files_is_an_error(invoke, folder, s3, monkeypatch):  # noqa: F811
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    shown = invoke("copy", str(folder), "s3://shop/desk")
    assert shown.exit_code == 1
    assert "0 files copied" in shown.output
    assert "403 Forbidden" in shown.stderr
    assert invoke("copy", "s3://shop/desk", str(folder)).exit_code == 2


def test_a_folder_that_another_process_copies_from_is_an_error(invoke, folder, s3):  # noqa: F811
    descriptor = os.open(folder / ".upload.lock", os.O_CREAT | os.O_RDWR)
    try:
        assert try_lock(descriptor)
        shown = invoke("copy", str(folder), "s3://shop/busy")
    finally:
        os.close(descriptor)
    assert shown.exit_code == 1
    assert f"{folder} is not copied: another process copies from it" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("a", "b"), "one of FROM and TO is a folder"),
        (("s3://a", "s3://b"), "one of FROM and TO is a folder"),
        (("a", "ftp://b"), "is not the URL of a store"),
        (("none", "s3://b"), "none is not a folder"),
        ((".", "s3://b", "--name", "x*"), "--name chooses recordings of a store"),
        (("-", "-"), "TO is a folder"),
    ],
)
def test_wrong_usage_of_copy_is_named(invoke, arguments, error):
    shown = invoke("copy", *arguments)
    assert (shown.exit_code, error in shown.output) == (2, True)


def test_run_uploads_and_removes(invoke, tmp_path):
    store, kept = tmp_path / "store", tmp_path / "kept"
    store.mkdir()
    calls(tmp_path, "--record", str(kept), "--upload", f"file://{store}", "--remove-uploaded")
    assert invoke("copy", str(kept), f"file://{store}").exit_code == 0
    assert len(list(store.glob("*.mcprec.jsonl.zst"))) == 2
