"""`export` writes messages and says what it left out."""

import json
import stat

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
ANSWER = {"jsonrpc": "2.0", "id": 1, "result": {}}


def test_messages_are_written_a_line_each(write, invoke):
    done = invoke("export", write(("in", PING), ("mark", {"name": "start"}), ("out", ANSWER)))
    assert (done.exit_code, done.stderr) == (0, "")
    documents = [json.loads(line) for line in done.stdout.splitlines()]
    assert [document | {"@context": 0} for document in documents] == [
        PING | {"@context": 0},
        ANSWER | {"@context": 0},
    ]


def test_an_output_file_is_its_owners_alone(write, invoke, tmp_path):
    out = tmp_path / "out.jsonl"
    done = invoke("export", write(("in", PING)), "--format", "jsonld", "--with-records", "-o", out)
    assert (done.exit_code, done.output) == (0, "")
    assert json.loads(out.read_bytes())["record:direction"] == "in"
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_what_was_left_out_is_said(write, invoke):
    path = write(("in", b"\xff"), ("in", PING))
    path.write_bytes(path.read_bytes()[:-5])
    done = invoke("export", path)
    assert done.exit_code == 1
    assert len(done.stdout.splitlines()) == 1
    assert [line.partition(": '")[0] for line in done.stderr.splitlines()] == [
        "left out: record 1: not JSON",
        "left out: line 4: the recording was cut in its last line",
    ]


def test_what_cannot_be_read_or_written_is_unusable(write, invoke, tmp_path):
    path = write(("in", PING))
    missing = invoke("export", tmp_path / "none")
    assert (missing.exit_code, "cannot read" in missing.stderr) == (2, True)
    nowhere = invoke("export", path, "-o", tmp_path / "no" / "out")
    assert (nowhere.exit_code, "cannot write" in nowhere.stderr) == (2, True)
    before = path.read_bytes()
    itself = invoke("export", path, "-o", path)
    assert (itself.exit_code, "OUT is the recording itself" in itself.stderr) == (2, True)
    assert path.read_bytes() == before


def test_what_is_no_recording_costs_no_other_file(tmp_path, invoke):
    (tmp_path / "none").write_text("no recording\n")
    (tmp_path / "out").write_text("precious")
    assert invoke("export", tmp_path / "none", "-o", tmp_path / "out").exit_code == 2
    assert (tmp_path / "out").read_text() == "precious"


def test_a_segment_of_the_recording_is_not_written_over(write, invoke):
    path = write(("in", PING))
    segment = path.with_name("hand.2.mcprec.jsonl")
    segment.write_text("more of it")
    done = invoke("export", path, "-o", segment)
    assert (done.exit_code, "OUT is the recording itself" in done.stderr) == (2, True)
    assert segment.read_text() == "more of it"
