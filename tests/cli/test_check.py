"""`check` tells a whole recording from a cut one, and that from a damaged one."""

import pytest

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
ANSWER = {"jsonrpc": "2.0", "id": 1, "result": {}}


@pytest.fixture
def path(write):
    return write(("in", PING), ("out", ANSWER))


def change(path, old, new):
    before = path.read_bytes()
    assert old in before
    path.write_bytes(before.replace(old, new, 1))


def test_a_whole_recording_is_whole(path, invoke):
    shown = invoke("check", path)
    assert shown.exit_code == 0
    assert shown.output == f"{path}: complete\n4 records: 1 open, 1 in, 1 out, 1 end\n"


def test_a_torn_tail_is_told_from_damage(path, invoke):
    path.write_bytes(path.read_bytes()[:-10])
    shown = invoke("check", path)
    assert shown.exit_code == 1
    assert "cut in its last line: all earlier lines are intact" in shown.output
    assert "line 4: torn: " in shown.output


def test_a_recording_that_was_not_closed_is_cut(write, invoke):
    shown = invoke("check", write(("in", PING), end=False))
    assert shown.exit_code == 1
    assert "cut between two lines: the session was not closed" in shown.output


@pytest.mark.parametrize(
    ("old", "new", "flaw"),
    [
        (b"ping", b"pong", "line 4: digest: "),
        (b'{"n":1,', b'{"n":1', "line 2: damaged: "),
        (b'"n":2', b'"n":3', "line 3: numbering: "),
    ],
)
def test_a_damaged_middle_is_told_with_its_line(path, invoke, old, new, flaw):
    change(path, old, new)
    shown = invoke("check", path)
    assert shown.exit_code == 1
    assert "damaged: a line in the middle was changed or lost" in shown.output
    assert f"\n{flaw}" in shown.output


@pytest.mark.parametrize(
    ("old", "new"), [(b'"k":"in"', b'"k":"new"'), (b'"n":1,', b'"n":1,"z":1,')]
)
def test_a_recording_of_a_later_writer_is_told_as_such(write, invoke, old, new):
    path = write(("in", PING), end=False)
    change(path, old, new)
    shown = invoke("check", path)
    assert shown.exit_code == 1
    assert "written by a later version" in shown.output


def test_a_gap_is_a_loss_though_the_file_is_whole(write, invoke):
    shown = invoke("check", write(("gap", {"reason": "full"}), ("gap", {"count": 1})))
    assert shown.exit_code == 1
    assert "complete, but with a gap" in shown.output
    cut = invoke("check", write(("gap", {"reason": "full"}), end=False))
    assert "cut between two lines: the session was not closed, but with a gap" in cut.output


def test_a_gap_that_lost_nothing_is_told_and_the_recording_is_whole(write, invoke):
    shown = invoke("check", write(("gap", {"reason": "slow disk"}), ("gap", {"count": 0})))
    assert "complete, with a gap in which nothing was lost" in shown.output
    assert shown.exit_code == 0


def test_what_is_no_recording_is_rejected(tmp_path, invoke):
    assert invoke("check", tmp_path / "missing.mcprec.jsonl").exit_code == 2
    empty = tmp_path / "empty.mcprec.jsonl"
    empty.touch()
    shown = invoke("check", empty)
    assert shown.exit_code == 2
    assert shown.stderr == f"{empty}: not a recording: it is empty\n"


@pytest.mark.parametrize("name", ["empty", "a"])
def test_a_file_is_named_also_if_its_name_is_a_word(invoke, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert invoke("check", name).stderr == f"cannot read {name}: No such file or directory\n"
    (tmp_path / name).touch()
    shown = invoke("check", name)
    assert (shown.exit_code, shown.stderr) == (2, f"{name}: not a recording: it is empty\n")
