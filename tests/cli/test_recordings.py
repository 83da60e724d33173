"""`mcp-trio check`, `diff` and `export`."""

import json
import os
import stat

import pytest
import zstandard

# `check`.


PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
ANSWER = {"jsonrpc": "2.0", "id": 1, "result": {}}


@pytest.fixture
def path(write):
    return write(("in", PING), ("out", ANSWER))


def change(path, old, new):
    before = path.read_bytes()
    assert old in before
    path.write_bytes(before.replace(old, new, 1))


def test_an_undamaged_recording_is_complete(path, invoke):
    shown = invoke("check", path)
    assert shown.exit_code == 0
    assert shown.output == f"{path}: complete\n4 records: 1 open, 1 in, 1 out, 1 end\n"


def test_a_cut_last_line_is_distinguished_from_damage(path, invoke):
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
    ("old", "new", "damage"),
    [
        (b"ping", b"pong", "line 4: digest: "),
        (b'{"n":1,', b'{"n":1', "line 2: damaged: "),
        (b'"n":2', b'"n":3', "line 3: numbering: "),
    ],
)
def test_damage_in_the_middle_is_reported_with_its_line(path, invoke, old, new, damage):
    change(path, old, new)
    shown = invoke("check", path)
    assert shown.exit_code == 1
    assert "damaged: a line in the middle was changed or lost" in shown.output
    assert f"\n{damage}" in shown.output


@pytest.mark.parametrize(
    ("old", "new"), [(b'"k":"in"', b'"k":"new"'), (b'"n":1,', b'"n":1,"z":1,')]
)
def test_a_recording_of_a_later_version_is_reported_as_such(write, invoke, old, new):
    path = write(("in", PING), end=False)
    change(path, old, new)
    shown = invoke("check", path)
    assert shown.exit_code == 1
    assert "written by a later version" in shown.output


def test_a_gap_with_lost_records_is_status_1(write, invoke):
    shown = invoke("check", write(("gap", {"reason": "full"}), ("gap", {"count": 1})))
    assert shown.exit_code == 1
    assert "complete, but with a gap" in shown.output
    cut = invoke("check", write(("gap", {"reason": "full"}), end=False))
    assert "cut between two lines: the session was not closed, but with a gap" in cut.output


def test_a_gap_without_lost_records_is_status_0(write, invoke):
    shown = invoke("check", write(("gap", {"reason": "slow disk"}), ("gap", {"count": 0})))
    assert "complete, with a gap in which nothing was lost" in shown.output
    assert shown.exit_code == 0


def test_a_recording_in_a_pipe_is_checked(path, mcp_trio):
    reading, writing = os.pipe()
    os.write(writing, path.read_bytes())
    os.close(writing)
    done = mcp_trio("check", f"/dev/fd/{reading}", pass_fds=[reading])
    os.close(reading)
    assert (done.returncode, done.stderr) == (0, "")


def test_check_rejects_a_file_that_is_not_a_recording(tmp_path, invoke):
    assert invoke("check", tmp_path / "missing.mcprec.jsonl").exit_code == 2
    empty = tmp_path / "empty.mcprec.jsonl"
    empty.touch()
    shown = invoke("check", empty)
    assert shown.exit_code == 2
    assert shown.stderr == f"{empty}: not a recording: it is empty\n"


@pytest.mark.parametrize("name", ["empty", "a"])
def test_an_error_names_the_file_even_if_its_name_is_a_word_of_the_error(
    invoke, tmp_path, monkeypatch, name
):
    monkeypatch.chdir(tmp_path)
    assert invoke("check", name).stderr == f"cannot read {name}: No such file or directory\n"
    (tmp_path / name).touch()
    shown = invoke("check", name)
    assert (shown.exit_code, shown.stderr) == (2, f"{name}: not a recording: it is empty\n")


# `diff`.


def call(id_, name):
    return {"jsonrpc": "2.0", "id": id_, "method": "tools/call", "params": {"name": name}}


def answer(id_, text):
    return {"jsonrpc": "2.0", "id": id_, "result": {"content": [{"type": "text", "text": text}]}}


SESSION = [
    ("in", call(1, "a")),
    ("in", call(2, "b")),
    ("out", answer(1, "one"), "r1", 1),
    ("out", answer(2, "two"), "r2", 1),
]


@pytest.fixture
def two(write, tmp_path):
    """Write two recordings, and compress the second one."""

    def two(left, right, **options):
        a = write(*left).rename(tmp_path / "a.mcprec.jsonl")
        b = tmp_path / "b.mcprec.jsonl.zst"
        b.write_bytes(zstandard.compress(write(*right, **options).read_bytes()))
        return a, b

    return two


def test_equal_recordings_have_no_difference(two, invoke):
    shown = invoke("diff", *two(SESSION, SESSION))
    assert shown.exit_code == 0
    assert shown.output == "no differences in 6 and 6 records\n"
    assert invoke("diff", "--json", *two(SESSION, SESSION)).output == ""


def test_a_difference_is_shown_with_its_path_and_both_values(two, invoke):
    changed = [*SESSION[:3], ("out", answer(2, "\x1b" + "t" * 90), "r2", 1)]
    shown = invoke("diff", *two(SESSION, changed))
    assert shown.exit_code == 1
    _, line, _, total = shown.output.splitlines()
    assert line.split()[:8] == ["changed", "4", "4", "r2", "out", "answer", "tools/call", "b"]
    value = '"\\u001b' + "t" * 52 + "…"
    assert line.endswith(f'$.result.content[0].text: "two" -> {value}')
    assert total == "1 difference in 6 and 6 records"


def test_missing_extra_and_reordered_records_are_shown(two, invoke):
    shown = invoke("diff", *two(SESSION, [*SESSION[:2], SESSION[3]]))
    assert "only in A" in shown.output
    assert "answer tools/call a" in shown.output
    shown = invoke("diff", *two(SESSION[:3], SESSION))
    assert "only in B" in shown.output
    shown = invoke("diff", *two(SESSION, [*SESSION[:2], SESSION[3], SESSION[2]]))
    assert "from here on in another order" in shown.output


def test_recordings_of_two_sides_are_compared_by_their_messages(two, invoke):
    other = [({"in": "out", "out": "in"}[kind], message) for kind, message, *_ in SESSION]
    shown = invoke("diff", *two(SESSION, other, role="client"))
    assert shown.exit_code == 0
    assert shown.output.endswith("records, by the messages of server and client\n")


def test_only_the_first_differences_are_shown_without_all(two, invoke):
    many = [("in", call(number, "a")) for number in range(30)]
    files = two(many, [("in", call(number, "b")) for number in range(30)])
    shown = invoke("diff", *files).output
    assert shown.count('"a" -> "b"') == 20
    assert shown.endswith("30 differences in 32 and 32 records; 10 more with --all\n")
    shown = invoke("diff", "--all", *files).output
    assert shown.count('"a" -> "b"') == 30
    assert shown.endswith("30 differences in 32 and 32 records\n")


def test_diff_as_json_is_one_object_per_line(two, invoke):
    right = [("in", call(1, "b")), ("in", b"\xff")]
    shown = invoke("diff", "--json", *two([("in", call(1, "a")), ("in", b"x")], right))
    assert shown.exit_code == 1
    first, second = map(json.loads, shown.output.splitlines())
    assert first == {
        "what": "changed",
        "kind": "in",
        "lane": None,
        "left": 1,
        "right": 1,
        "path": "$.params.name",
        "left_value": "a",
        "right_value": "b",
    }
    assert (second["left_value"], second["right_value"]) == ("x", "\\xff")
    absent = [("in", {"jsonrpc": "2.0", "id": 1, "method": "tools/call"})]
    shown = invoke("diff", "--json", *two([("in", call(1, "a"))], absent))
    assert "right_value" not in json.loads(shown.output)
    assert '{"name":"a"} -> nothing' in invoke("diff", *two([("in", call(1, "a"))], absent)).output


def test_damage_is_reported_and_intact_records_are_compared(two, invoke):
    a, b = two(SESSION, SESSION)
    a.write_bytes(a.read_bytes()[:-5])
    shown = invoke("diff", a, b)
    assert shown.exit_code == 1
    assert f"{a}: line 6: the recording was cut in its last line\n" in shown.stderr
    assert "only in B" in shown.stdout


def test_diff_rejects_a_file_that_is_not_a_recording(two, invoke, tmp_path):
    a, _ = two(SESSION, SESSION)
    other = tmp_path / "other.jsonl"
    other.write_text("{}\n")
    shown = invoke("diff", a, other)
    assert shown.exit_code == 2
    assert shown.stderr.startswith(f"{other}: not a recording")
    assert invoke("diff", a, tmp_path / "missing").exit_code == 2


# `export`.


def test_each_message_is_exported_as_one_line(write, invoke):
    done = invoke("export", write(("in", PING), ("mark", {"name": "start"}), ("out", ANSWER)))
    assert (done.exit_code, done.stderr) == (0, "")
    documents = [json.loads(line) for line in done.stdout.splitlines()]
    assert [document | {"@context": 0} for document in documents] == [
        PING | {"@context": 0},
        ANSWER | {"@context": 0},
    ]


def test_an_exported_file_is_readable_by_its_owner_alone(write, invoke, tmp_path):
    out = tmp_path / "out.jsonl"
    done = invoke("export", write(("in", PING)), "--format", "jsonld", "--with-records", "-o", out)
    assert (done.exit_code, done.output) == (0, "")
    assert json.loads(out.read_bytes())["record:direction"] == "in"
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_messages_that_are_left_out_are_reported(write, invoke):
    path = write(("in", b"\xff"), ("in", PING))
    path.write_bytes(path.read_bytes()[:-5])
    done = invoke("export", path)
    assert done.exit_code == 1
    assert len(done.stdout.splitlines()) == 1
    assert [line.partition(": '")[0] for line in done.stderr.splitlines()] == [
        "left out: record 1: not JSON",
        "left out: line 4: the recording was cut in its last line",
    ]


def test_unreadable_input_and_unwritable_output_are_status_2(write, invoke, tmp_path):
    path = write(("in", PING))
    missing = invoke("export", tmp_path / "none")
    assert (missing.exit_code, "cannot read" in missing.stderr) == (2, True)
    nowhere = invoke("export", path, "-o", tmp_path / "no" / "out")
    assert (nowhere.exit_code, "cannot write" in nowhere.stderr) == (2, True)
    before = path.read_bytes()
    itself = invoke("export", path, "-o", path)
    assert (itself.exit_code, "OUT is the recording itself" in itself.stderr) == (2, True)
    assert path.read_bytes() == before


def test_a_failed_export_does_not_overwrite_the_output(tmp_path, invoke):
    (tmp_path / "none").write_text("no recording\n")
    (tmp_path / "out").write_text("precious")
    assert invoke("export", tmp_path / "none", "-o", tmp_path / "out").exit_code == 2
    assert (tmp_path / "out").read_text() == "precious"


def test_export_does_not_overwrite_a_segment_of_the_recording(write, invoke):
    path = write(("in", PING))
    segment = path.with_name("hand.2.mcprec.jsonl")
    segment.write_text("more of it")
    done = invoke("export", path, "-o", segment)
    assert (done.exit_code, "OUT is the recording itself" in done.stderr) == (2, True)
    assert segment.read_text() == "more of it"
