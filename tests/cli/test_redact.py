"""`redact` writes a recording again without its secrets; everything else stays."""

import fcntl
import os
import stat

import pytest
import zstandard

SECRET = "Abc123Xyz789Qrs456"
ECHO = {
    "jsonrpc": "2.0",
    "method": "notifications/message",
    "params": {"level": "info", "data": SECRET},
}
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {
        "name": "login",
        "arguments": {"password": SECRET, "pin": "4711", "street": "Elm Row 5"},
    },
}
LISTED = {
    "jsonrpc": "2.0",
    "id": 1,
    "result": {
        "tools": [{"name": "login", "inputSchema": {"properties": {"pin": {"format": "password"}}}}]
    },
}
BROKEN = b'{"jsonrpc":"2.0","id":2,"x":' + SECRET.encode()


@pytest.fixture
def path(write):
    return write(
        ("out", ECHO),
        ("in", CALL),
        ("in", BROKEN),
        ("cxl", None, "r2", 0),
        ("out", LISTED, "r2", 1),
    )


@pytest.fixture
def key(tmp_path):
    file = tmp_path / "team.key"
    file.write_text("sixteen bytes or more\n")
    return file


def test_no_secret_is_left_not_even_before_its_name(path, tmp_path, invoke):
    out = tmp_path / "clean.mcprec.jsonl"
    assert invoke("redact", path, "-o", out).exit_code == 0
    clean = out.read_bytes()
    assert SECRET.encode() not in clean
    assert b"4711" not in clean
    assert b"Elm Row 5" in clean
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert invoke("check", out).exit_code == 0
    assert invoke("scan", out).exit_code == 0
    differing = invoke("diff", path, out).output
    assert "missing" not in differing
    assert "extra" not in differing


def test_rules_names_and_values_are_secret_besides(path, tmp_path, invoke):
    values = tmp_path / "values"
    values.write_text("Elm Row\n\n")
    for rule in (
        ["--name", "street"],
        ["--rule", "$.params.arguments.street"],
        ["--rule", "tools/call:$.params.arguments.street"],
        ["--values", values],
    ):
        done = invoke("redact", path, *rule)
        assert done.exit_code == 0
        assert b"Elm Row" not in done.stdout_bytes


def test_the_same_key_makes_the_same_recording(path, key, invoke):
    done = [invoke("redact", path, "--key", key).stdout_bytes for _ in range(2)]
    assert done[0] == done[1]
    assert invoke("redact", path).stdout_bytes != done[0]


def test_a_redacted_recording_is_redacted_to_the_same_frames(path, tmp_path, key, invoke):
    once = tmp_path / "once.mcprec.jsonl"
    invoke("redact", path, "-o", once, "--key", key)
    twice = invoke("redact", once).stdout_bytes.splitlines()
    for before, after in zip(once.read_bytes().splitlines()[1:-1], twice[1:-1], strict=True):
        assert before == after


def test_in_place_replaces_the_recording(path, invoke):
    assert invoke("redact", path, "--in-place").exit_code == 0
    assert SECRET.encode() not in path.read_bytes()
    assert invoke("check", path).exit_code == 0
    assert list(path.parent.iterdir()) == [path]


def test_a_name_that_says_so_is_compressed(path, tmp_path, invoke):
    out = tmp_path / "clean.mcprec.jsonl.zst"
    assert invoke("redact", path, "-o", out).exit_code == 0
    with zstandard.open(out, "rb") as file:
        assert SECRET.encode() not in file.read()
    assert invoke("check", out).exit_code == 0


def test_a_cut_recording_stays_cut(path, invoke):
    path.write_bytes(path.read_bytes()[:-5])
    done = invoke("redact", path, "--in-place")
    assert done.exit_code == 0
    assert "left out: line 7: the recording was cut" in done.stderr
    assert "not closed" in invoke("check", path).output


def test_a_damaged_recording_is_rejected(path, invoke):
    path.write_bytes(path.read_bytes().replace(b'"n":2', b'"n":3'))
    before = path.read_bytes()
    done = invoke("redact", path, "--in-place")
    assert done.exit_code == 2
    assert "numbering" in done.stderr
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-o", "{path}"], "--in-place"),
        (["-o", "x", "--in-place"], "cannot be used together"),
        (["--rule", "pin"], "not a JSON path"),
        (["--key", "{path}.none"], "cannot read the key"),
        (["--values", "{path}.none"], "cannot read the values"),
        (["-o", "{path}/none/x"], "cannot write"),
    ],
)
def test_misuse_is_said(path, invoke, arguments, text):
    done = invoke("redact", path, *(each.format(path=path) for each in arguments))
    assert done.exit_code == 2
    assert text in done.stderr


def test_a_recording_in_several_files_is_not_replaced(path, invoke):
    segment = path.parent / "hand.2.mcprec.jsonl"
    segment.write_bytes(b"more of it")
    for where, text in ((["--in-place"], "several files"), (["-o", segment], "itself")):
        done = invoke("redact", path, *where)
        assert (done.exit_code, text in done.stderr) == (2, True)
    assert segment.read_bytes() == b"more of it"


def test_a_recording_that_is_not_there_is_told(tmp_path, invoke):
    (tmp_path / "out").touch()
    done = invoke("redact", tmp_path / "none", "-o", tmp_path / "out")
    assert (done.exit_code, "cannot read" in done.stderr) == (2, True)


def test_a_listing_that_is_none_teaches_no_schema(write, invoke):
    odd = {"jsonrpc": "2.0", "id": 1, "result": {"tools": 3, "inputSchema": 1}}
    assert invoke("redact", write(("out", odd))).exit_code == 0


def test_in_place_follows_a_link_to_what_holds_the_secrets(path, tmp_path, invoke):
    link = tmp_path / "link.mcprec.jsonl"
    link.symlink_to(path)
    assert invoke("redact", link, "--in-place").exit_code == 0
    assert link.is_symlink()
    assert SECRET.encode() not in path.read_bytes()


def test_another_name_of_the_file_is_told(path, tmp_path, invoke):
    (tmp_path / "other.mcprec.jsonl").hardlink_to(path)
    assert "hard link" in invoke("redact", path, "--in-place").stderr


def test_a_recording_that_is_still_written_is_not_replaced(path, invoke):
    before = path.read_bytes()
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = invoke("redact", path, "--in-place")
    assert done.exit_code == 2
    assert "still being recorded" in done.stderr
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["none", "no/folder"])
def test_a_recording_that_is_not_there_cannot_be_replaced(tmp_path, invoke, name):
    done = invoke("redact", tmp_path / name, "--in-place")
    assert done.exit_code == 2
    assert "cannot read" in done.stderr


def test_a_rewriting_that_fails_half_way_leaves_all_as_it_was(path, invoke, monkeypatch):
    before = path.read_bytes()

    def fail(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fail)
    assert invoke("redact", path, "--in-place").exit_code != 0
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_file_may_hold_more_secrets_than_a_session(write, invoke):
    calls = [
        ("in", {**CALL, "params": {"arguments": {"password": f"word-{number:05}"}}})
        for number in range(1100)
    ]
    done = invoke("redact", write(*calls))
    assert done.exit_code == 0
    assert b"word-" not in done.stdout_bytes


def test_what_a_tool_calls_a_password_in_its_results_is_one(write, invoke):
    tool = LISTED["result"]["tools"][0]
    tool = {**tool, "outputSchema": {"properties": {"seed": {"format": "password"}}}}
    listed = {**LISTED, "result": {"tools": [tool]}}
    result = {"structuredContent": {"seed": "abcdef1"}, "content": []}
    done = invoke("redact", write(("out", listed), ("out", {"id": 2, "result": result})))
    assert done.exit_code == 0
    assert b"abcdef1" not in done.stdout_bytes
