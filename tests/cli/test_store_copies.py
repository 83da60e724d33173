"""`mcp-trio copy` between a folder and a store, and `run --upload`."""

import json
import os

import pytest

from mcp_trio._system import try_lock
from tests.catalogue.conftest import folder, s3, s3_process  # noqa: F401 - fixtures
from tests.cli.test_catalogue import calls


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
    assert f"another process copies from {folder} now" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("a", "b"), "one of FROM and TO is a folder"),
        (("s3://a", "s3://b"), "one of FROM and TO is a folder"),
        (("a", "ftp://b"), "is not the URL of a store"),
        (("none", "s3://b"), "none is no folder"),
        ((".", "s3://b", "--name", "x*"), "--name chooses recordings of a store"),
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
